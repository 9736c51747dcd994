"""Theory against training, in standard errors: shipped runs up to d = 2000 for every problem, and a few made here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

pytest.importorskip("torch", reason="experiments need PyTorch")

import attnphase as ap
from attnphase.checks.comparison import compare
from attnphase.data.variables import RunStatus
from attnphase.errors import ProblemError
from attnphase.paper import run as paper
from attnphase.paper.catalogue import EXPERIMENTS, planned
from attnphase.paper.ends import ends_text
from attnphase.paper.run import basins, published_table, run_experiment
from attnphase.problem.problem import Problem
from attnphase.reference import read_reference

SHIPPED = Path(__file__).parents[2] / "data" / "experiments"
PAPER = Problem.paper(omega=0.3)
COARSE = {"integration.rule": "sobol", "integration.nodes": 64}
CONTROLLED = ("training_loss", "test_error", "weight_norm")


def solved(problem: Problem, branches: tuple[Any, ...]) -> xr.Dataset:
    """The theory at alpha = 2, good enough that the runs' errors decide."""
    moderate = problem.with_fields({"integration.standard_error": 5e-3})
    theory = ap.sweep(moderate, alpha=[2.0], branch=branches, workers=1)
    assert not theory["status"].any()
    return theory


def limit(runs: xr.Dataset, name: str, point: xr.Dataset) -> tuple[float, float]:
    """Limit of large d and its standard error, freed of what runs have in common with the linear predictor.

    One draw of teacher and samples is harder than another, for the linear predictor as well, whose error in the limit
    is known to many digits: a fit of ``a + b/d + c (linear - its limit)`` to single runs, whose variances fall like
    1/d, leaves a two to five times smaller error of a than the runs' means have.
    """
    d = np.repeat(runs["dimension"].to_numpy(), runs.sizes["seed"]).astype(float)
    values, linear = (runs[n].transpose("dimension", "seed").to_numpy().ravel() for n in (name, "linear_test_error"))
    weight = np.sqrt(d)
    design = np.stack([np.ones_like(d), 1 / d, linear - float(point["linear_test_error"])], axis=1) * weight[:, None]
    fitted = np.linalg.lstsq(design, values * weight)[0]
    residual = values * weight - design @ fitted
    covariance = residual @ residual / (len(d) - 3) * np.linalg.inv(design.T @ design)
    return float(fitted[0]), float(np.sqrt(covariance[0, 0]))


def assert_agree(theory: xr.Dataset, runs: xr.Dataset, accuracy: dict[str, float]) -> None:
    """Every quantity within 3 standard errors; three of them, by the sharper estimate, with errors that mean something.

    Where the smallest dimension is clearly off, the largest is less so: the correction shrinks.
    """
    comparison = compare(theory, runs)
    assert {*CONTROLLED, "linear_test_error"} <= {q.name for q in comparison.quantities}
    assert all(q.limit is not None for q in comparison.quantities)
    assert comparison.within(3.0), comparison.text()
    assert not comparison.excluded
    for q in comparison.quantities:
        if abs(q.measured[0].z) > 3:
            assert abs(q.measured[-1].difference) < abs(q.measured[0].difference), comparison.text()
    for start in map(str, runs["start"].to_numpy()):
        point = theory.sel(branch=start).isel(alpha=0)
        for name in CONTROLLED:
            found, error = limit(runs.sel(start=start).isel(alpha=0), name, point)
            expected = float(point[name])
            deviation = abs(found - expected) / np.hypot(error, float(point[f"{name}_stderr"]))
            assert deviation < 3, (start, name, found, error, expected)
            assert error < accuracy[name] * expected, (start, name, error / expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tied", "untied", "mixture", "anisotropic", "elastic-net", "lasso", "rank2"])
def test_theory_agrees_with_shipped_runs(name):
    """24 runs of L-BFGS or proximal gradients at each of three dimensions, made by ``attnphase experiment``."""
    runs = ap.load_dataset(SHIPPED / f"agreement-{name}-runs.nc")
    assert runs["dimension"].to_numpy().tolist() == [500, 1000, 2000]
    assert runs.sizes["seed"] == 24
    theory = solved(Problem.from_toml(runs.attrs["problem"]), tuple(map(str, runs["start"].to_numpy())))
    assert_agree(theory, runs, {"training_loss": 0.011, "test_error": 0.014, "weight_norm": 0.012})


LIVE = {
    "a mixture along the teacher": (
        {
            "tokens.kind": "mixture",
            "tokens.clusters": [[{"sigma": 0.45, "mean": [0.7]}, {"sigma": 0.6, "mean": [-0.4]}]] * 2,
            "tokens.law": {"kind": "same", "probability": 0.8},
            "tokens.mean_teacher": [[0.6]],
        },
        "semantic",
        "lbfgs",
    ),
    "sparse": (
        {"regularizer.kind": "elastic-net", "regularizer.strength": 0.01, "regularizer.ridge": 0.002},
        "semantic",
        "fista",
    ),
    "strongly regularised": ({"regularizer.strength": 0.1}, "positional", "lbfgs"),
    "untied, anisotropic": (
        {
            "student.tied": False,
            "tokens.sigma": None,
            "tokens.spectrum": [{"weight": 0.25, "variances": [0.6] * 2}, {"weight": 0.75, "variances": [0.15] * 2}],
        },
        "positional",
        "lbfgs",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LIVE)
def test_theory_agrees_with_training_here_and_now(name):
    """What was shipped says nothing about the training code of today."""
    fields, branch, optimizer = LIVE[name]
    problem = PAPER.with_fields(fields)
    runs = ap.simulate(problem, 2.0, branch, [80, 160, 320], 8, optimizer, seed=2, test_samples=0)
    assert not runs["status"].any()
    assert_agree(solved(problem, (branch,)), runs, {"training_loss": 0.04, "test_error": 0.06, "weight_norm": 0.06})


def test_a_second_column_leads_semantic_and_positional_starts_to_the_mixed_state():
    """At rank 2 both are saddles of the risk: training leaves them for one minimum, that of the mixed start.

    In the theory the three differ by 16 and 23 per cent.
    """
    problem = PAPER.with_fields({"student.rank": 2})
    runs = ap.simulate(problem, 2.0, ["semantic", "positional", "mixed"], 150, 4, seed=2, test_samples=0)
    assert not runs["status"].any()
    losses = runs["training_loss"].isel(dimension=0, alpha=0)
    for start in ("semantic", "positional"):
        np.testing.assert_allclose(losses.sel(start=start), losses.sel(start="mixed"), rtol=1e-8)
    both = ("m", "theta")  # the mixed state has both order parameters
    sizes = {name: np.abs(runs[name].sel(start="semantic").to_numpy()).max(axis=(-2, -1)) for name in both}
    assert all((size > 0.05).all() for size in sizes.values())


# --- the paper's experiments ------------------------------------------------------------------------------------------


@pytest.fixture
def coarse_theory(monkeypatch):
    """Experiments choose how good their theory is; here few nodes will do."""
    solve_grid = paper.sweep

    def coarse(problem, **grid):
        return solve_grid(problem.with_fields(COARSE), **{**grid, "workers": 1})

    monkeypatch.setattr(paper, "sweep", coarse)


@pytest.mark.usefixtures("coarse_theory")
@pytest.mark.parametrize("name", ["fig7", "adam"])
def test_experiments_of_the_paper_write_theory_runs_figure_and_text(name, tmp_path):
    overrides = {"dimension": (20, 40) if name != "adam" else (40,), "seeds": 3, "steps": 40}
    if name != "adam":
        overrides["alpha"] = (1.5,)
    said: list[str] = []
    results = run_experiment(planned(name, overrides=overrides), tmp_path, say=said.append)
    assert list(results) == [""]
    runs = ap.load_dataset(tmp_path / f"{name}-runs.nc")
    theory = ap.load_dataset(tmp_path / f"{name}-theory.nc")
    assert tuple(runs["start"].to_numpy()) == EXPERIMENTS[name].starts
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / f"{name}.txt").read_text(encoding="utf-8")
    assert EXPERIMENTS[name].title in text
    assert text.strip() in said[0]
    assert not list(tmp_path.glob("*.checkpoint"))
    if name == "adam":
        shares = basins(theory.isel(alpha=0), runs)
        assert sum(shares.values()) == pytest.approx(1)
        assert "share that reached each minimum" in text
    else:
        assert compare(theory, runs).text() in text


@pytest.mark.usefixtures("coarse_theory")
def test_the_grid_of_figure_3_has_theory_beside_it(tmp_path):
    overrides = {"alpha": (0.6, 1.8), "dimension": (30,), "seeds": 2, "steps": 60}
    run_experiment(planned("fig3", overrides=overrides), tmp_path)
    runs, theory = ap.load_dataset(tmp_path / "fig3-runs.nc"), ap.load_dataset(tmp_path / "fig3-theory.nc")
    np.testing.assert_allclose(runs["omega"], theory["omega"])
    assert runs["training_loss"].dims == ("start", "dimension", "omega", "alpha", "seed")
    assert "of 6 points the sign of the losses' difference is the theory's" in (tmp_path / "fig3.txt").read_text()


def test_published_numbers_stand_beside_ours():
    """The published means are those of the table, and ours those of the runs."""
    runs = ap.simulate(
        Problem.paper(omega=0.3), 1.5, ["semantic", "positional"], [23], 3, "gd", steps=10, test_samples=0
    )
    lines = published_table("fig7_scaling", runs).splitlines()
    assert len(lines) == 1 + 8
    table = read_reference("fig7_scaling")
    row = next(r for r in table if r["d"] == 23 and r["start"] == "semantic")
    line = next(one for one in lines if one.startswith("theta") and "semantic" in one).split()
    assert float(line[4]) == pytest.approx(float(row["theta"]), rel=1e-4)
    theta = np.abs(runs["theta"].sel(start="semantic").isel(token=0).to_numpy())
    assert float(line[5]) == pytest.approx(theta.mean(), rel=1e-4)
    assert published_table("fig7_scaling", runs.assign_coords(alpha=[1.4])) == ""


def test_basins_are_told_apart_by_the_theorys_overlaps():
    theory = xr.Dataset(
        {
            "theta": (("branch", "token", "row", "teacher"), [[[[0.16]]], [[[0.0]]]]),
            "m": (("branch", "token", "row"), [[[0.0]], [[-0.25]]]),
        },
        coords={"branch": ["semantic", "positional"]},
    )
    theta, m = [0.15, -0.1, 0.01, 0.0, 0.12], [0.01, 0.0, -0.2, 0.05, 0.2]
    runs = xr.Dataset(
        {
            "theta": (("seed", "token", "row", "teacher"), np.reshape(theta, (5, 1, 1, 1))),
            "m": (("seed", "token", "row"), np.reshape(m, (5, 1, 1))),
        }
    )
    assert basins(theory, runs) == {"semantic": 0.4, "positional": 0.2, "both": 0.2, "neither": 0.2}


def made_up_ends(losses, m, theta, status):
    """Theory of a mixture with one cluster at token 2, and runs of the semantic start at d = 30 and 60.

    A third branch has run into the semantic one.
    """
    gap = [[1.0, 1.0], [1.0, np.nan]]  # pairs of token and cluster that there are
    theory = xr.Dataset(
        {
            "theta": (("branch", "alpha", "token", "cluster"), np.multiply.outer([[0.1195], [0.12], [0.0]], gap)),
            "m": (("branch", "alpha", "token", "cluster"), np.multiply.outer([[0.0], [0.0], [0.21]], gap)),
            "training_loss": (("branch", "alpha"), [[2.0], [2.0], [1.5]]),
            "training_loss_stderr": (("branch", "alpha"), [[0.03], [0.03], [0.04]]),
            "test_error": (("branch", "alpha"), [[0.7], [0.7], [0.9]]),
            "test_error_stderr": (("branch", "alpha"), [[0.0], [0.0], [0.0]]),
        },
        coords={"branch": ["mixed", "semantic", "positional"], "alpha": [0.8]},
    )
    dims = ("start", "dimension", "alpha", "seed")
    shape = (1, 2, 1, -1)
    runs = xr.Dataset(
        {
            "theta": ((*dims, "token", "cluster"), np.multiply.outer(np.reshape(theta, shape), gap)),
            "m": ((*dims, "token", "cluster"), np.multiply.outer(np.reshape(m, shape), gap)),
            "training_loss": (dims, np.reshape(losses, shape)),
            "test_error": (dims, np.reshape(losses, shape) / 2),
            "status": (dims, np.reshape(status, shape)),
        },
        coords={"start": ["semantic"], "dimension": [30, 60], "alpha": [0.8]},
    )
    return theory, runs


def test_runs_that_left_their_branch_are_held_against_the_one_where_they_ended():
    """At d = 60 two stayed, five left and one is lost; at d = 30 all stayed, and nothing is said."""
    left = [1.6, 1.7, 1.5, 1.9, 1.8]
    losses = [[2.0] * 8, [2.3, *left, 2.1, 9.0]]
    m = [[0.05] * 8, [-0.08, 0.2, -0.19, 0.15, 0.18, -0.22, 0.0, 0.2]]
    theta = [[0.11] * 8, [0.1, 0.01, 0.02, 0.05, -0.01, 0.0, 0.09, 0.0]]
    status = [[RunStatus.converged] * 8, [RunStatus.converged] * 7 + [RunStatus.diverged]]
    text = ends_text(*made_up_ends(losses, m, theta, status))
    rows = [line.split() for line in text.splitlines()[3:]]
    # mean 1.7, and the standard error of five numbers a tenth apart; that of two is none to speak of
    error = np.sqrt(0.025 / 5)
    loss, test = 0.2 / np.hypot(error, 0.04), (0.85 - 0.9) / (error / 2)
    assert rows == [
        ["semantic", "0.8", "60", "semantic", "2", "–", "–"],
        ["semantic", "0.8", "60", "positional", "5", f"{loss:+.1f}", f"{test:+.1f}"],
    ]
    staying = [[0.05] * 8] * 2, [[0.11] * 8] * 2
    assert ends_text(*made_up_ends(losses, *staying, status)) == ""


def test_unknown_experiments_are_refused(tmp_path):
    with pytest.raises(ProblemError, match=r'^experiment must be one of fig2, .*, not "fig9": did you mean "fig7"\?$'):
        planned("fig9")
    with pytest.raises(ProblemError, match='size must be one of quick, full, not "huge"'):
        planned("fig2", "huge")
    with pytest.raises(ProblemError, match="steps must be a whole number of at least 1, not 0"):
        planned("fig7", overrides={"steps": 0})
    assert not list(tmp_path.iterdir())


def test_metrics_agree_with_runs():
    """The share of wrong labels and a distance of the fields, at two dimensions and in their limit."""
    problem = Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": 1.2},
            "loss": {"kind": "logistic"},
            "regularizer": {"strength": 0.4},
            "metrics": {"wrong": "(1 - sign(h*k))/2", "distance": "abs(h - k)"},
        }
    )
    theory = ap.solve(problem, 1.8)
    runs = ap.simulate(
        problem, alpha=1.8, start="semantic", dimension=[150, 300], seeds=24, optimizer="lbfgs", tolerance=1e-6
    )
    comparison = compare(theory, runs)
    found = {q.name: q for q in comparison.quantities}
    assert {"metric_wrong", "metric_distance"} <= set(found)
    assert comparison.within(3.0), comparison.text()
    for name in ("metric_wrong", "metric_distance"):
        assert found[name].theory == theory[name].item()
        assert found[name].measured[-1].stderr < 0.02 * found[name].theory
        assert bool((runs[f"{name}_stderr"] < 5e-3 * runs[name]).all())
