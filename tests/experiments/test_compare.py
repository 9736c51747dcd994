"""Theory against runs whose numbers are written by hand: frames, standard errors, fits, what is left out."""

import json
import math
from typing import Any

import numpy as np
import pytest
import xarray as xr
from by_formula import DIMENSIONS, SEEDS, written
from models import model

pytest.importorskip("torch", reason="experiments need PyTorch")

import attnphase as ap
from attnphase.errors import CompareError
from attnphase.figures import comparison_figure

FEW = {"integration.rule": "sobol", "integration.nodes": 64}
PAPER = ap.Problem.paper(omega=0.3).with_fields(FEW)


def quantity(theory: xr.Dataset, runs: xr.Dataset, name: str) -> Any:
    return next(q for q in ap.compare(theory, runs).quantities if q.name == name)


@pytest.fixture(scope="module")
def point() -> xr.Dataset:
    return ap.solve(PAPER, 2.0, "semantic")


def test_differences_standard_errors_and_fits_are_those_written(point):
    """Of a loss whose means lie on no line in 1/d, and overlaps whose do; fits by NumPy."""
    runs = written(point, 0.02, 7.0)
    runs["training_loss"].to_numpy()[0, 1] *= 1.01
    comparison = ap.compare(point, runs)
    loss, theory = quantity(point, runs, "training_loss"), float(point["training_loss"])
    values = runs["training_loss"].to_numpy()[0, :, 0]
    means, errors, d = values.mean(axis=1), values.std(axis=1, ddof=1) / 2, np.array(DIMENSIONS)
    np.testing.assert_allclose([one.value for one in loss.measured], means, rtol=1e-14)
    np.testing.assert_allclose([one.stderr for one in loss.measured], errors, rtol=1e-12)
    expected = (means - theory) / np.hypot(errors, float(point["training_loss_stderr"]))
    np.testing.assert_allclose([one.z for one in loss.measured], expected, rtol=1e-9)
    (slope, value), covariance = np.polyfit(1 / d, means, 1, w=1 / errors, cov="unscaled")
    found = [loss.limit.value, loss.limit.stderr, loss.limit.slope, loss.limit.chi2]
    chi2 = (((means - value - slope / d) / errors) ** 2).sum()
    np.testing.assert_allclose(found, [value, covariance[1, 1] ** 0.5, slope, chi2], rtol=1e-6)
    assert (loss.limit.degrees_of_freedom, chi2 > 0.1) == (1, True)
    overlaps = [q for q in comparison.quantities if q.name[0] in "qmt" and "error" not in q.name]
    assert len(overlaps) == 6  # q and theta of two tokens, the training loss, and m, which is 0 for both
    for q in overlaps:
        assert q.name == "training_loss" or q.limit is None or abs(q.limit.difference) < 1e-10, q.name
    parsed = json.loads(comparison.to_json())
    assert parsed["worst"] == pytest.approx(comparison.worst)
    assert len(parsed["quantities"]) == len(comparison.quantities)
    wrong = ap.compare(point.assign(theta=1.05 * point["theta"].copy()), written(point))
    assert not wrong.within(3)
    assert {q.name for q in wrong.quantities if abs(q.z) > 3} == {"theta[1,1,1]", "theta[2,1,1]"}


@pytest.mark.parametrize(
    "fields", [{}, pytest.param({"student.tied": False}, marks=pytest.mark.long)], ids=["tied", "untied"]
)
def test_overlaps_are_compared_up_to_rotations_and_signs(fields):
    """Every run is turned by a rotation of its columns and a sign of the teacher, which nothing may notice."""
    point = ap.solve(model("rank 2", {**FEW, **fields}), 2.5, "semantic")
    draws = np.random.default_rng(3)
    turns, signs = np.linalg.qr(draws.standard_normal((SEEDS, 2, 2)))[0], draws.choice([-1.0, 1.0], (SEEDS, 2))
    if fields:
        turns = np.stack([np.kron(np.eye(2), turn) for turn in turns])
    runs = written(point, 1e-4, A=turns[:, None], B=signs[:, None, None, :])
    for name in ("q[1,1,1]", "q[1,1,2]", "theta[1,1,1]", "theta[2,2,2]", "theta[1,1,2]"):
        size = np.abs(point[name.partition("[")[0]].to_numpy()).max()
        assert abs(quantity(point, runs, name).measured[-1].difference) < 2e-3 * size, name


def test_runs_are_aligned_by_m_where_theta_vanishes():
    """A positional run with the sign of its weights reversed is the theory's."""
    point = ap.solve(PAPER, 1.9, "positional")
    runs = written(point, 1e-4, A=np.array([1.0, -1.0, -1.0, 1.0])[:, None, None, None])
    for name in ("m[1,1]", "m[2,1]"):
        found = quantity(point, runs, name)
        assert abs(found.measured[-1].difference) < min(1e-4, 0.01 * abs(found.theory))


SPARSE = {"regularizer.kind": "elastic-net", "regularizer.strength": 0.002, "regularizer.ridge": 0.01}
APART: dict[str, tuple[ap.Problem, Any]] = {
    "a ridge for each column": (model("rank 2", FEW | {"regularizer.strength": [0.01, 0.02]}), "semantic"),
    "a penalty of entries": (model("rank 2", FEW | SPARSE), "mixed"),
    "a loss that knows its columns": (model("heads", FEW), "semantic"),
}


@pytest.mark.parametrize("why", APART)
def test_columns_that_the_problem_tells_apart_are_not_rotated(why):
    """A run is compared as it is, as all symmetries only exchange columns or change their signs."""
    problem, branch = APART[why]
    point = ap.solve(problem, 1.5, branch)
    turn = np.array([[0.8, 0.6], [-0.6, 0.8]])
    expected = abs((turn @ point["q"].to_numpy()[0] @ turn.T)[0, 1])
    assert expected > 0.01
    found = quantity(point, written(point, 1e-4, A=turn), "q[1,1,2]")
    assert abs(found.measured[-1].value) == pytest.approx(expected, abs=1e-3)


def test_equal_entries_are_compared_once_and_m_only_with_directions():
    """Three tokens of one law counted thrice in how many quantities agree."""
    problem = model("three tokens", FEW | {"positions.kind": "none", "tokens.sigma": 0.7})
    point = ap.solve(problem, 1.9, "semantic")
    runs = ap.simulate(problem, 1.9, "semantic", [40, 80], 3)

    def names(*compared: xr.Dataset) -> list[str]:
        return [q.name for q in ap.compare(*compared).quantities if q.name[0] in "qmt" and "error" not in q.name]

    assert names(point, runs) == ["training_loss", "q[1,1,1]", "theta[1,1,1]"]
    other = point.assign(q=point["q"].copy(data=point["q"] + np.array([0, 1e-9, 0])[:, None, None]))
    assert names(other, runs) == ["training_loss", "q[1,1,1]", "q[2,1,1]", "theta[1,1,1]"]


def test_runs_that_diverged_are_left_out_and_late_ones_named(point):
    runs = written(point)
    flag = runs["status"].attrs["flag_meanings"].split().index
    runs["status"].to_numpy()[0, 0, 0, 0] = flag("diverged")
    runs["training_loss"].to_numpy()[0, 0, 0, 0] = 1e9
    runs["status"].to_numpy()[0, 1, 0, :2] = flag("unsettled"), flag("step_limit")
    runs["m"].to_numpy()[0, 1, 0, 2] = np.nan
    comparison = ap.compare(point, runs)
    assert comparison.excluded == (
        "semantic, alpha = 2, d = 50: of 4 runs 1 diverged: not counted.",
        "semantic, alpha = 2, d = 100: of 4 runs 1 unsettled, 1 step_limit: counted, though not converged.",
        "semantic, alpha = 2: m is not a number in some runs: left out.",
    )
    loss = quantity(point, runs, "training_loss")
    assert [one.runs for one in loss.measured] == [3, 4, 4]
    assert loss.measured[0].value < 1
    assert not [q for q in comparison.quantities if q.name.startswith("m[")]
    runs["status"].to_numpy()[:] = flag("diverged")
    assert ap.compare(point, runs).quantities == ()
    single = ap.compare(point, written(point).isel(seed=[0], dimension=[0]))  # which has no standard error
    assert math.isnan(single.worst)
    assert not single.within()


def test_theory_of_a_sweep_and_of_other_nodes_is_found(point):
    """A problem's text does not say that there is no noise; figures over alpha have all of the theory."""
    other = PAPER.with_fields({"integration.nodes": 128, "teacher.omega": 0.1})
    fields = {"teacher.noise": [0.0, 0.02]}
    grid = ap.sweep(other, alpha=[1.9, 2.0, 2.4], omega=[0.2, 0.3], fields=fields, branch=("semantic",), workers=1)
    runs, own = written(point), grid["training_loss"].sel(omega=0.3, noise=0.0, branch="semantic")
    assert quantity(grid, runs, "training_loss").theory == float(own.sel(alpha=2.0))
    both = ap.simulate(PAPER, [1.9, 2.4], "semantic", [20, 30], 2, "gd", steps=1)
    axes = comparison_figure(ap.compare(grid, both)).axes[0]
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), np.stack([own["alpha"], own], axis=1))
    means = both["training_loss"].sel(dimension=30).mean("seed").squeeze()
    np.testing.assert_allclose(axes.containers[0][0].get_xydata(), np.stack([means["alpha"], means], axis=1))


def test_what_does_not_belong_together_is_refused(point):
    few: Any = (30, 2, "gd")
    runs, own = written(point), point["alpha"].item()
    elsewhere, turned = (
        ap.simulate(PAPER, 2.9, "semantic", *few, steps=1),
        ap.simulate(PAPER, own, "positional", *few, steps=1),
    )
    a, b = PAPER.with_fields({"regularizer.strength": 0.02}), PAPER.with_fields({"teacher.noise": 0.1})
    other, noisy = (ds.assign_attrs(problem=p.to_toml(), problem_hash=p.hash) for ds, p in ((point, a), (runs, b)))
    for theory, changed, words in (
        (runs, point, r'must be a dataset of kind "points", but is "experiments"'),
        (other, runs, r"different problems: regularizer\.strength is 0\.02 in the theory and 0\.01"),
        (point, noisy, r"different problems: teacher\.noise is None in the theory and 0\.1"),
        (point, elsewhere, r"the theory has no alpha = 2\.9"),
        (point, turned, r"the theory has no branch \"positional\""),
        (point.assign(weight_norm=point["weight_norm"] * np.inf), runs, "weight_norm is inf"),
        (point, runs.assign(q=runs["q"] * 0 + 1e308), r"q is 1e\+308"),
    ):
        with pytest.raises(CompareError, match=words):
            ap.compare(theory, changed)
