"""What a dataset of ours cannot hold, and the sizes of overlaps that figures show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xarray as xr

from attnphase.data.build import from_points, from_runs
from attnphase.data.files import load_dataset, write_dataset
from attnphase.data.reading import overlap_size
from attnphase.data.schemas import SCHEMA_VERSION
from attnphase.data.validate import validate_dataset
from attnphase.data.variables import EXPERIMENT_VARIABLES, POINT_VARIABLES
from attnphase.errors import DatasetError
from attnphase.figures import fig3
from attnphase.figures.selection import drawn_size_error
from attnphase.fixed_points.point import BranchPoint
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status

PROBLEM = Problem.paper(omega=0.31)
RANKS = Problem().with_fields({"student.rank": 2, "teacher.rank": 3})


def a_point(problem: Problem, alpha: float, branch: str = "semantic") -> BranchPoint:
    """Numbers that are different everywhere."""
    generator = np.random.default_rng(round(1000 * alpha))
    sizes = {"token": 2, "row": problem.columns, "col": problem.columns, "teacher": problem.teacher_columns}
    sizes["eigenvalue"] = 3
    values: dict[str, Any] = {"unsolved_nodes": 2}
    errors: dict[str, Any] = {}
    for variable in POINT_VARIABLES:
        if variable.name in (
            "residual",
            "iterations",
            "nodes",
            "on_branch",
            "zero_weights",
            "identities",
            "status",
            "unsolved_nodes",
        ):
            continue
        number = generator.normal(size=[sizes[dim] for dim in variable.dims])
        values[variable.name] = number if variable.dims else float(number)
        if variable.has_stderr:
            errors[variable.name] = np.abs(number) / 50
    nothing: Any = None
    return BranchPoint(problem, alpha, branch, values, errors, Status.converged, 1e-9, 9, "sobol", 1024, nothing)


def points(problem: Problem = PROBLEM) -> xr.Dataset:
    alphas = [0.7, 1.1, 1.9]
    return from_points([a_point(problem, alpha) for alpha in alphas], {"alpha": alphas}, problem=problem)


def runs() -> xr.Dataset:
    swept = {"start": ["semantic"], "dimension": [20, 40], "alpha": [0.8, 1.6], "seed": [0, 1, 2]}
    generator = np.random.default_rng(3)
    columns = {}
    for variable in EXPERIMENT_VARIABLES:
        shape = (1, 2, 2, 3, *({"token": 2}.get(dim, 1) for dim in variable.dims))
        for name in (variable.name, variable.stderr) if variable.has_stderr else (variable.name,):
            columns[name] = np.abs(generator.normal(size=shape)).astype(variable.dtype)
    return from_runs(PROBLEM, swept, columns, rule="gd", seed=4)


def refused(ds: xr.Dataset) -> str:
    with pytest.raises(DatasetError) as caught:
        validate_dataset(ds)
    return str(caught.value)


def test_what_is_right_is_taken():
    assert validate_dataset(points()) is not None
    assert validate_dataset(runs()) is not None


@pytest.mark.parametrize("value", [0.0, -0.7])
def test_sample_complexities_of_points_are_positive(value):
    ds = points()
    alphas = ds["alpha"].to_numpy().copy()
    alphas[1] = value
    with_attributes = ds.assign_coords(alpha=("alpha", alphas, ds["alpha"].attrs))
    assert '"alpha" must be positive' in refused(with_attributes)


@pytest.mark.parametrize("name", ["alpha", "dimension"])
@pytest.mark.parametrize("value", [0, -20])
def test_dimensions_and_sample_complexities_of_runs_are_positive(name, value):
    ds = runs()
    numbers = ds[name].to_numpy().copy()
    numbers[0] = value
    assert "must be positive" in refused(ds.assign_coords({name: (name, numbers, ds[name].attrs)}))


@pytest.mark.parametrize("name", ["q", "theta_hat", "test_error", "free_energy_gap"])
def test_a_single_number_that_is_none_is_refused(name):
    """One entry of one point among those that have theirs."""
    ds = points().copy(deep=True)
    ds[name].to_numpy()[(1, *(0,) * (ds[name].ndim - 1))] = np.nan
    assert f'"{name}" is NaN' in refused(ds)


def test_only_the_linear_test_error_may_be_unknown_for_a_formula():
    formula = {"loss.kind": "expression", "loss.expression": "(h0_0 - k0_0)**2 + (h1_0 - k1_0)**2"}
    ds = points(Problem().with_fields(formula))
    ds["linear_test_error"][:] = np.nan
    assert validate_dataset(ds) is not None
    ds["training_loss"][1] = np.nan
    assert "training_loss" in refused(ds)


def test_a_single_standard_error_may_be_unknown_but_not_negative():
    ds = points().copy(deep=True)
    ds["q_stderr"].to_numpy()[1, 0, 0, 0] = np.nan
    validate_dataset(ds)
    ds["q_stderr"].to_numpy()[2, 0, 0, 0] = -1e-9
    assert '"q_stderr" is negative' in refused(ds)


def test_sizes_of_overlaps_are_norms():
    """Of the first token; a rotation of the columns does not change them, and their errors are norms, too."""
    ds = points(RANKS)
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(2, 2)))[0]
    for name, norm in (("m", lambda x: np.linalg.norm(x)), ("theta", lambda x: np.linalg.norm(x, "fro"))):
        for i in range(3):
            first = ds[name].isel(alpha=i, token=0).to_numpy()
            size = overlap_size(ds, name).isel(alpha=i).item()
            assert size == pytest.approx(norm(first), rel=1e-12)
            assert size == pytest.approx(norm(rotation @ first), rel=1e-12)
            error = ds[f"{name}_stderr"].isel(alpha=i, token=0).to_numpy()
            assert drawn_size_error(ds, name).isel(alpha=i).item() == pytest.approx(norm(error), rel=1e-12)


def test_the_phase_diagram_shows_the_branch_of_lower_loss():
    """Which is one here and the other there: the maps of the overlaps are those of the winner."""
    alphas, omegas, names = [0.7, 1.1, 1.9], [0.1, 0.3], ["semantic", "positional"]
    swept = {"branch": names, "teacher.omega": omegas, "alpha": alphas}
    found = []
    for omega in omegas:
        problem = PROBLEM.with_fields({"teacher.omega": omega})
        for alpha in alphas:
            for i, name in enumerate(names):
                point = a_point(problem, alpha + omega + i, name)
                found.append(replace(point, alpha=alpha))
    ds = from_points(found, swept, problem=PROBLEM)
    loss = ds["training_loss"].to_numpy()
    lower = loss.argmin(axis=0)
    assert {0, 1} == set(lower.ravel().tolist())
    figure = fig3(ds)
    for axes, name in ((figure.axes[2], "theta"), (figure.axes[3], "m")):
        shown = np.asarray(axes.collections[0].get_array()).reshape(len(omegas), len(alphas))
        sizes = overlap_size(ds, name).to_numpy()
        np.testing.assert_allclose(shown, np.take_along_axis(sizes, lower[None], 0)[0], rtol=1e-12)


def test_flags_of_runs_are_known_ones():
    ds = runs()
    ds["status"][0, 1, 0, 2] = 6
    assert 'variable "status" must lie between 0 and 5' in refused(ds)


@pytest.mark.parametrize("name", ["alpha", "dimension"])
def test_coordinates_of_runs_are_numbers(name: str):
    ds = runs()
    texts = (name, [f"{value:g}" for value in ds[name].to_numpy()], ds[name].attrs)
    assert f'coordinate "{name}" must be positive numbers' in refused(ds.assign_coords({name: texts}))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_coordinates_are_finite(value: float):
    """A figure has no place for anything else, and a page no way to write it."""
    for ds, name in ((points(), "alpha"), (runs(), "alpha")):
        values = np.atleast_1d(ds[name].to_numpy()).astype(float).copy()
        values[-1] = value
        changed = ds.assign_coords({name: (ds[name].dims, values.reshape(ds[name].shape), ds[name].attrs)})
        assert f'coordinate "{name}" must be' in refused(changed)


@pytest.mark.parametrize("field", [np.array([1, 2]), 3, "", "tokens", "tokens.", "tokens..sigma", "nothing.sigma"])
def test_the_field_of_a_coordinate_is_one_of_a_problem(field: object):
    ds = points()
    ds["alpha"].attrs["field"] = field
    assert 'attribute "field" of variable "alpha" must be a field' in refused(ds)


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
def test_another_version_of_the_schema_is_refused(version, tmp_path):
    """By the file's name, its version and ours, and what wrote it."""
    ds, path = from_points([a_point(PROBLEM, 1.3)]), tmp_path / "other.nc"
    assert ds.attrs["schema_version"] == SCHEMA_VERSION
    write_dataset(ds.assign_attrs(schema_version=version, attnphase_version="9.1"), path)
    with pytest.raises(DatasetError) as caught:
        load_dataset(path)
    assert str(caught.value) == (
        f"{path}: the dataset follows version {version} of the schema, but this attnphase reads version"
        f" {SCHEMA_VERSION}: use attnphase 9.1, which wrote it, or compute the dataset again."
    )


@pytest.mark.parametrize("version", [np.array([SCHEMA_VERSION, 2]), np.array([]), float(SCHEMA_VERSION), "1", "x"])
@pytest.mark.parametrize("wrote", ["two\nlines", "", None])
def test_what_is_no_version_of_the_schema_is_refused_in_one_line(version, wrote):
    told = refused(points().assign_attrs(schema_version=version, attnphase_version=wrote))
    assert "of the schema, but this attnphase reads version" in told
    assert "\n" not in told
    assert told.endswith(f" {SCHEMA_VERSION}: compute the dataset again.")
