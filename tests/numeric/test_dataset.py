"""The dataset schema: labels, validation, and files that lose nothing and are never half written."""

import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from attnphase.data.build import coordinate_name, from_lines, from_points, from_thresholds
from attnphase.data.files import load_dataset, save_dataset, to_json
from attnphase.data.text import points_json
from attnphase.data.validate import validate_dataset
from attnphase.data.variables import NOT_COMPUTED, POINT_VARIABLES, STATUS_MEANINGS
from attnphase.errors import DatasetError
from attnphase.fixed_points.point import BranchPoint
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status
from attnphase.sweeps.points import labelled

DOCS = Path(__file__).parents[2] / "docs"
PROBLEM = Problem().with_fields({"student.rank": 2, "teacher.rank": 3, "tokens.length": 4})
ALPHAS = [0.5, 0.1 + 0.2, 2.0]
OMEGAS = [0.0, 1 / 3]
SHAPES = {"token": 4, "row": 2, "col": 2, "teacher": 3, "eigenvalue": 3}


OWN = ("residual", "iterations", "nodes", "on_branch", "zero_weights", "identities", "status")


def a_point(problem=PROBLEM, alpha=0.5, branch="semantic", status=Status.converged, residual=1e-9):
    """A point with numbers that tell the places apart."""
    rng = np.random.default_rng(list(f"{alpha}{branch}{problem.teacher.omega}".encode()))
    values, errors = {}, {}
    for variable in POINT_VARIABLES:
        if variable.name in OWN:
            continue
        number = rng.normal(size=[SHAPES[dim] for dim in variable.dims])
        values[variable.name] = number if variable.dims else float(number)
        if variable.has_stderr:
            errors[variable.name] = np.abs(number) / 100
    values["unsolved_nodes"] = 3
    nothing: Any = None  # datasets do not hold restart information
    return BranchPoint(problem, alpha, branch, values, errors, status, residual, 17, "sobol", 2**40, nothing)


def points():
    return [
        a_point(PROBLEM.with_fields({"teacher.omega": omega}), alpha, branch)
        for alpha in ALPHAS
        for omega in OMEGAS
        for branch in ("semantic", "positional")
    ]


SWEPT = {"branch": ["positional", "semantic"], "teacher.omega": OMEGAS, "alpha": ALPHAS}


def grid():
    return from_points(points(), SWEPT, problem=PROBLEM)


def refusal(call, *args, **kwargs):
    """The sentence with which a call is refused."""
    with pytest.raises(DatasetError) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert message[-1] in ".?"
    assert "\n" not in message
    return message


# --- labels ---------------------------------------------------------------------------------------------------------


def test_one_point_has_scalar_coordinates():
    point = a_point()
    ds = validate_dataset(from_points([point]))
    assert ds["alpha"].item() == 0.5
    assert ds["branch"].item() == "semantic"
    assert dict(ds.sizes) == SHAPES
    np.testing.assert_array_equal(ds["theta"], point.values["theta"])
    np.testing.assert_array_equal(ds["theta_stderr"], point.errors["theta"])
    assert ds["iterations"].item() == 17
    assert ds["nodes"].item() == 2**40
    assert ds["status"].item() == 0


def test_every_point_of_a_grid_lies_at_its_place():
    ds = validate_dataset(grid())
    assert ds["status"].dims == ("branch", "omega", "alpha")
    assert ds["omega"].attrs["field"] == "teacher.omega"
    for point in points():
        at = ds.sel(branch=point.branch, omega=point.problem.teacher.omega, alpha=point.alpha)
        for name, value in point.values.items():
            np.testing.assert_array_equal(at[name], value)


def test_a_missing_point_is_not_computed():
    all_points = points()
    ds = validate_dataset(from_points(all_points[1:], SWEPT, problem=PROBLEM))
    hole = ds.sel(branch="semantic", omega=0.0, alpha=0.5)
    assert STATUS_MEANINGS[hole["status"].item()] == "not_computed"
    assert hole["status"].item() == NOT_COMPUTED
    assert hole["q"].isnull().all()
    assert hole["q_stderr"].isnull().all()
    assert hole["iterations"].item() == 0
    assert int((ds["status"] == NOT_COMPUTED).sum()) == 1
    assert int(ds["test_error"].isnull().sum()) == 1


def test_an_unknown_standard_error_is_nan():
    point = a_point()
    del point.errors["V"]
    ds = validate_dataset(from_points([point]))
    assert ds["V_stderr"].isnull().all()
    assert ds["V"].notnull().all()


def test_lines_join_to_the_grid_of_their_points():
    lines = []
    for branch in SWEPT["branch"]:
        for omega in OMEGAS:
            own = [p for p in points() if p.branch == branch and p.problem.teacher.omega == omega]
            lines.append(from_points(own, {"alpha": ALPHAS}))
    xr.testing.assert_equal(from_lines(lines, SWEPT, problem=PROBLEM), grid())


def test_points_off_the_grid_or_twice_are_refused():
    assert "alpha is 7.0" in refusal(from_points, [a_point(alpha=7.0)], {"alpha": ALPHAS})
    assert "two points" in refusal(from_points, [a_point(), a_point()], {"alpha": ALPHAS})
    assert "no point" in refusal(from_points, [])


@pytest.mark.parametrize(
    ("swept", "name"),
    [
        ("teacher.omega", "omega"),
        ("tokens.sigma", "sigma"),
        ("student.rank", "student_rank"),
        ("teacher.score", "teacher_score"),
        ("teacher.temperature", "teacher_temperature"),  # a key of two sections that a plain problem leaves out
        ("student.causal", "student_causal"),
        ("integration.nodes", "integration_nodes"),  # a variable has the key's name
        ("integration.seed", "integration_seed"),  # so has a dimension of experiments
        ("regularizer.ridge", "ridge"),
        ("alpha", "alpha"),
    ],
)
def test_a_dimension_is_named_by_its_key(swept, name):
    assert coordinate_name(swept) == name


def test_every_variable_says_what_it_is():
    ds = grid()
    for name in ds.variables:
        assert set(ds[name].attrs) >= {"long_name", "units", "latex"}
        assert ds[name].attrs["units"] == "1"
    assert ds["q"].attrs["ancillary_variables"] == "q_stderr"
    assert ds["status"].attrs["flag_meanings"] == "converged iteration_limit left_domain not_computed"
    np.testing.assert_array_equal(ds["status"].attrs["flag_values"], [0, 1, 2, 3])
    assert Problem.from_toml(ds.attrs["problem"]) == PROBLEM
    assert ds.attrs["problem_hash"] == PROBLEM.hash


def test_thresholds_follow_the_schema_too(tmp_path):
    ds = from_thresholds(
        PROBLEM,
        OMEGAS,
        {"alpha_c": [1.0, np.nan], "alpha_l": [2.0, 3.0]},
        {"alpha_c": [0.1, np.nan], "alpha_l": [0.1, 0.1]},
        "sobol",
    )
    save_dataset(ds, tmp_path / "t.nc")
    assert load_dataset(tmp_path / "t.nc").identical(ds)


# --- validation -----------------------------------------------------------------------------------------------------


def without_attribute(ds, variable, attribute):
    del ds[variable].attrs[attribute]
    return ds


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda ds: ds.drop_vars("q"), '"q"'),
        (lambda ds: ds.drop_vars("status"), '"status"'),
        (lambda ds: ds.drop_vars("theta_stderr"), '"theta_stderr"'),
        (lambda ds: ds.drop_vars("alpha"), '"alpha"'),
        (lambda ds: ds.drop_vars("omega"), '"omega"'),
        (lambda ds: ds.assign(gain=ds["residual"]), '"gain"'),
        (lambda ds: ds.assign(q=ds["q"].astype("float32")), '"q"'),
        (lambda ds: ds.assign(m=ds["m"].transpose(..., "token")), '"m"'),
        (lambda ds: ds.assign(V_stderr=-ds["V_stderr"]), '"V_stderr"'),
        (lambda ds: ds.assign(theta=ds["theta"] * np.nan), '"theta"'),
        (lambda ds: ds.assign(status=ds["status"] + np.int8(9)), '"status"'),
        (lambda ds: ds.assign_coords(branch=["x", "y"]), '"branch"'),
        (lambda ds: ds.isel(token=slice(1)), '"q"'),
        (lambda ds: ds.transpose("alpha", ...), "out of order"),
        (lambda ds: without_attribute(ds, "V", "latex"), '"V"'),
        (lambda ds: ds.assign(V=ds["V"].assign_attrs(latex=np.arange(3))), '"latex" of variable "V"'),
        (lambda ds: ds.isel(alpha=[]), "nothing along alpha"),
        (lambda ds: ds.isel(branch=[0, 0]), '"branch" has a value twice'),
        (lambda ds: without_attribute(ds, "V_stderr", "units"), '"V_stderr"'),
        (lambda ds: ds.assign_attrs(problem="[tokens]\nlenght = 2"), '"problem"'),
        (lambda ds: ds.assign_attrs(problem=Problem().to_toml()), '"problem_hash"'),
        (lambda ds: ds.assign_attrs(schema="other"), '"schema"'),
        (lambda ds: xr.Dataset({"x": 1}), "not a dataset of attnphase"),
    ],
)
def test_what_breaks_the_schema_is_named(spoil, named):
    with xr.set_options(keep_attrs=True):
        spoilt = spoil(grid())
    assert named in refusal(validate_dataset, spoilt)


def test_a_selection_still_follows_the_schema():
    ds = grid()
    validate_dataset(ds.sel(branch="semantic"))
    validate_dataset(ds.isel(omega=0, alpha=slice(2)))


def test_a_point_that_did_not_converge_is_kept():
    ds = validate_dataset(from_points([a_point(status=Status.left_domain, residual=np.inf)]))
    assert ds["status"].item() == Status.left_domain
    assert json.loads(to_json(ds))["residual"] is None


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [grid, lambda: from_points([a_point()]), lambda: from_points(points()[1:], SWEPT)])
def test_a_file_loses_nothing(tmp_path, make):
    ds = make()
    save_dataset(ds, tmp_path / "x.nc")
    back = load_dataset(tmp_path / "x.nc")
    xr.testing.assert_identical(back, ds)
    for name in ds.variables:
        assert back[name].dtype == ds[name].dtype
        np.testing.assert_array_equal(back[name].to_numpy(), ds[name].to_numpy())
    assert [p.name for p in tmp_path.iterdir()] == ["x.nc"]


def test_other_programs_can_read_the_file(tmp_path):
    save_dataset(grid(), tmp_path / "x.nc")
    with xr.open_dataset(tmp_path / "x.nc") as ds:
        assert ds.sizes["branch"] == 2


def test_an_existing_file_is_replaced_only_by_force(tmp_path):
    path = tmp_path / "x.nc"
    path.write_text("precious")
    assert "--force" in refusal(save_dataset, grid(), path)
    assert path.read_text() == "precious"
    save_dataset(grid(), path, force=True)
    load_dataset(path)


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    assert "no folder" in refusal(save_dataset, grid(), tmp_path / "missing" / "x.nc")
    assert "folder" in refusal(save_dataset, grid(), tmp_path)


@pytest.fixture
def without_rights():
    """Root may write everywhere: for a moment it is nobody."""
    if os.geteuid() != 0:
        yield
        return
    nobody = 65534
    os.setresuid(nobody, nobody, 0)
    yield
    os.setresuid(0, 0, 0)


@pytest.mark.usefixtures("without_rights")
def test_a_folder_without_permission_is_refused():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o500)
        assert "not writable" in refusal(save_dataset, grid(), folder / "x.nc")
        assert list(folder.iterdir()) == []
        folder.chmod(0o700)


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x.nc"
    save_dataset(grid(), path)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("attnphase.files.writing.os.fsync", full)
    assert "No space left" in refusal(save_dataset, grid(), path, force=True)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x.nc"]


def test_a_file_size_limit_leaves_nothing(tmp_path):
    """The operating system's own refusal, in a process of its own."""
    old, new = tmp_path / "old.nc", tmp_path / "new.nc"
    save_dataset(grid(), old)
    code = f"""
import resource
from attnphase.data.files import load_dataset, save_dataset
from attnphase.errors import DatasetError
ds = load_dataset({str(old)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    save_dataset(ds, {str(new)!r})
except DatasetError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "cannot be written: File too large." in done.stdout
    assert list(tmp_path.iterdir()) == [old]


@pytest.mark.parametrize("keep", [0, 1, 100, 4000, 12000])
def test_a_truncated_file_is_refused(tmp_path, keep):
    path = tmp_path / "x.nc"
    save_dataset(grid(), path)
    path.write_bytes(path.read_bytes()[:keep])
    assert str(path) in refusal(load_dataset, path)


def test_what_is_not_a_dataset_of_ours_is_refused(tmp_path):
    assert "no such file" in refusal(load_dataset, tmp_path / "no.nc")
    assert "folder" in refusal(load_dataset, tmp_path)
    text = tmp_path / "text.nc"
    text.write_text("hello")
    assert "not a netCDF file" in refusal(load_dataset, text)
    foreign = tmp_path / "foreign.nc"
    xr.Dataset({"x": ("time", [1.0, 2.0])}).to_netcdf(foreign)
    message = refusal(load_dataset, foreign)
    assert str(foreign) in message
    assert "not a dataset of attnphase" in message


# --- JSON and the page ----------------------------------------------------------------------------------------------


def test_json_has_scalars_and_nested_lists():
    point = a_point()
    point.values["free_energy_gap"] = float("nan")
    data = json.loads(to_json(from_points([point])), parse_constant=pytest.fail)
    assert data["alpha"] == 0.5
    assert data["branch"] == "semantic"
    assert data["test_error"] == point.values["test_error"]
    assert data["q"] == point.values["q"].tolist()
    assert data["free_energy_gap"] is None
    assert data["iterations"] == 17


def test_points_are_the_same_json_as_their_dataset():
    """Which the command prints without making it, for xarray's sake."""
    one, other = a_point(), a_point(branch="positional", status=Status.left_domain, residual=np.inf)
    assert points_json([one], "semantic") == to_json(labelled([one], "semantic"))
    assert points_json([one, other], "all") == to_json(labelled([one, other], "all"))


def test_the_page_has_the_tables_of_the_code():
    updated = runpy.run_path(str(DOCS / "update_schema.py"))["updated"]
    page = (DOCS / "schema.md").read_text(encoding="utf-8")
    assert page == updated(page), "run python docs/update_schema.py"
