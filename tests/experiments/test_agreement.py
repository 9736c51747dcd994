"""Theory against training at d <= 600, for every kind of problem: in standard errors, after the correction in 1/d."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

pytest.importorskip("torch", reason="experiments need PyTorch")

import attnphase as ap
from attnphase.compare import compare
from attnphase.errors import ProblemError
from attnphase.experiments.paper import EXPERIMENTS, basins, published_table, run_experiment
from attnphase.problem import Problem
from attnphase.reference import read_reference

PROBLEMS = {
    **EXPERIMENTS["agreement"].problems,
    "rank 2": EXPERIMENTS["agreement-rank2"].problems[""],
    "lasso": EXPERIMENTS["agreement-lasso"].problems[""],
}
CASES = [
    *((name, branch) for name in EXPERIMENTS["agreement"].problems for branch in ("semantic", "positional")),
    ("rank 2", "mixed"),
    ("lasso", "semantic"),
]
DIMENSIONS, SEED = [200, 320, 500], 2


@pytest.mark.slow
@pytest.mark.parametrize(("name", "branch"), CASES)
def test_theory_and_training_agree(name, branch):
    """Every quantity of the theory lies within 3 standard errors of the experiments' limit of large d.

    Where the smallest dimension is clearly off, the largest is less so: the correction shrinks.
    """
    problem = PROBLEMS[name]
    sparse = problem.regularizer.kind != "ridge"
    seeds = 8 if sparse else 16
    theory = ap.solve(problem, 2.0, branch)
    assert int(theory["status"]) == 0
    optimizer = "fista" if sparse else "lbfgs"
    runs = ap.simulate(problem, 2.0, branch, DIMENSIONS, seeds, optimizer, seed=SEED, test_samples=0)
    assert (runs["status"] == 0).all()
    comparison = compare(theory, runs)
    limits = {q.name: q.limit for q in comparison.quantities}
    assert {"training_loss", "test_error", "weight_norm", "linear_test_error"} <= set(limits)
    assert all(limit is not None for limit in limits.values())
    assert comparison.within(3.0), comparison.text()
    shrinking = [
        abs(q.measured[-1].difference) < abs(q.measured[0].difference)
        for q in comparison.quantities
        if abs(q.measured[0].z) > 3
    ]
    assert all(shrinking), comparison.text()


@pytest.mark.slow
def test_a_second_column_leads_semantic_and_positional_starts_to_the_mixed_state():
    """At rank 2 both are saddles of the risk: training leaves them for the theory's mixed branch."""
    problem = PROBLEMS["rank 2"]
    runs = ap.simulate(problem, 2.0, ["semantic", "positional"], [600], 12, seed=SEED, test_samples=0)
    branches = {b: float(ap.solve(problem, 2.0, b)["training_loss"]) for b in ("semantic", "positional", "mixed")}
    for start in ("semantic", "positional"):
        losses = runs["training_loss"].sel(start=start).to_numpy().ravel()
        error = losses.std(ddof=1) / len(losses) ** 0.5
        # the correction at this dimension is of the size of a few standard errors, the saddle is further away
        assert abs(losses.mean() - branches["mixed"]) < 4 * error
        assert branches[start] - losses.mean() > 6 * error


# --- the paper's experiments ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fig7", "adam"])
def test_experiments_of_the_paper_write_theory_runs_figure_and_text(name, tmp_path):
    overrides = {"dimension": (20, 40) if name != "adam" else (40,), "seeds": 3, "steps": 40}
    if name != "adam":
        overrides["alpha"] = (1.5,)
    said: list[str] = []
    results = run_experiment(name, tmp_path, overrides=overrides, say=said.append)
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


@pytest.mark.slow
def test_the_grid_of_figure_3_has_theory_beside_it(tmp_path):
    overrides = {"alpha": (0.6, 1.8), "dimension": (30,), "seeds": 2, "steps": 60}
    run_experiment("fig3", tmp_path, overrides=overrides)
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


def test_unknown_experiments_are_refused(tmp_path):
    with pytest.raises(ProblemError, match=r'^experiment must be one of fig2, fig3, .*, not "fig9"\.$'):
        run_experiment("fig9", tmp_path)
    with pytest.raises(ProblemError, match='size must be quick or full, not "huge"'):
        run_experiment("fig2", tmp_path, "huge")
    with pytest.raises(ProblemError, match="steps must be a whole number of at least 1, not 0"):
        run_experiment("fig7", tmp_path, overrides={"steps": 0})
    assert not list(tmp_path.iterdir())
