"""The paper's experiments, as short as they can be; texts of shipped runs along alpha, which the docs cite.

Not public: the paper's settings, and its tables of where runs end.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

pytest.importorskip("torch", reason="experiments need PyTorch")

import attnphase as ap
from attnphase.data.text import format_value
from attnphase.data.variables import RunStatus
from attnphase.paper import run as paper
from attnphase.paper.catalogue import EXPERIMENTS, planned
from attnphase.paper.ends import ends_text
from attnphase.paper.run import basins, published_table, run_experiment

SHIPPED = Path(__file__).parents[2] / "data" / "experiments"


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fig7", {"dimension": (20, 40), "alpha": (1.5,)}),
        ("adam", {"dimension": (40,)}),
        ("fig3", {"alpha": (0.6, 1.8), "dimension": (30,)}),
    ],
)
def test_experiments_write_theory_runs_figure_and_text(name, changes, tmp_path, monkeypatch):
    solve_grid, few = paper.sweep, {"integration.rule": "sobol", "integration.nodes": 64}
    monkeypatch.setattr(
        paper, "sweep", lambda problem, **grid: solve_grid(problem.with_fields(few), **grid | {"workers": 1})
    )
    run_experiment(planned(name, overrides={"seeds": 3, "steps": 40, **changes}), tmp_path)
    runs, theory = (ap.load_dataset(tmp_path / f"{name}-{kind}.nc") for kind in ("runs", "theory"))
    assert tuple(runs["start"].to_numpy()) == EXPERIMENTS[name].starts
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / f"{name}.txt").read_text(encoding="utf-8")
    assert EXPERIMENTS[name].title in text
    if name == "adam":
        assert sum(basins(theory.isel(alpha=0), runs).values()) == pytest.approx(1)
        assert "share that reached each minimum" in text
    elif name == "fig7":
        assert ap.compare(theory, runs).text() in text
    else:
        np.testing.assert_allclose(runs["omega"], theory["omega"])
        assert runs["training_loss"].dims == ("start", "dimension", "omega", "alpha", "seed")
        assert "of 6 points the sign of the losses' difference is the theory's" in text


def test_published_means_stand_beside_ours():
    starts = ["semantic", "positional"]
    runs = ap.simulate(ap.Problem.paper(omega=0.3), 1.5, starts, [23], 3, "gd", steps=10, test_samples=0)
    lines = published_table("fig7_scaling", runs).splitlines()
    assert len(lines) == 1 + 8
    row = next(r for r in ap.reference.read_reference("fig7_scaling") if r["d"] == 23 and r["start"] == "semantic")
    line = next(one for one in lines if one.startswith("theta") and "semantic" in one).split()
    assert float(line[4]) == pytest.approx(float(row["theta"]), rel=1e-4)
    theta = np.abs(runs["theta"].sel(start="semantic").isel(token=0).to_numpy())
    assert float(line[5]) == pytest.approx(theta.mean(), rel=1e-4)
    assert published_table("fig7_scaling", runs.assign_coords(alpha=[1.4])) == ""


def test_basins_are_told_apart_by_the_theorys_overlaps():
    dims, runs_dims = ("branch", "token", "row", "teacher"), ("seed", "token", "row", "teacher")
    theory = xr.Dataset(
        {"theta": (dims, [[[[0.16]]], [[[0.0]]]]), "m": (dims[:3], [[[0.0]], [[-0.25]]])},
        coords={"branch": ["semantic", "positional"]},
    )
    theta, m = np.array([0.15, -0.1, 0.01, 0.0, 0.12]), np.array([0.01, 0.0, -0.2, 0.05, 0.2])
    runs = xr.Dataset({"theta": (runs_dims, theta.reshape(5, 1, 1, 1)), "m": (runs_dims[:3], m.reshape(5, 1, 1))})
    assert basins(theory, runs) == {"semantic": 0.4, "positional": 0.2, "both": 0.2, "neither": 0.2}


def ends(m: Any, theta: Any) -> str:
    """Of a mixture with one cluster at token 2: runs of the semantic start at d = 30 and 60; a third branch merged."""
    gap = [[1.0, 1.0], [1.0, np.nan]]  # pairs of token and cluster that there are
    losses = np.reshape([[2.0] * 8, [2.3, 1.6, 1.7, 1.5, 1.9, 1.8, 2.1, 9.0]], (1, 2, 1, 8))
    status = np.full((1, 2, 1, 8), RunStatus.converged)
    status[0, 1, 0, 7] = RunStatus.diverged
    numbers: dict[str, list[float]] = {
        "training_loss": [2.0, 2.0, 1.5],
        "training_loss_stderr": [0.03, 0.03, 0.04],
        "test_error": [0.7, 0.7, 0.9],
        "test_error_stderr": [0.0, 0.0, 0.0],
    }
    sizes, dims = ("token", "cluster"), ("start", "dimension", "alpha", "seed")
    overlaps = {"theta": [[0.1195], [0.12], [0.0]], "m": [[0.0], [0.0], [0.21]]}
    theory = xr.Dataset(
        {name: (("branch", "alpha", *sizes), np.multiply.outer(value, gap)) for name, value in overlaps.items()}
        | {name: (("branch", "alpha"), np.reshape(value, (3, 1))) for name, value in numbers.items()},
        coords={"branch": ["mixed", "semantic", "positional"], "alpha": [0.8]},
    )
    own = {"theta": np.reshape(theta, losses.shape), "m": np.reshape(m, losses.shape)}
    runs = xr.Dataset(
        {name: ((*dims, *sizes), np.multiply.outer(value, gap)) for name, value in own.items()}
        | {"training_loss": (dims, losses), "test_error": (dims, losses / 2), "status": (dims, status)},
        coords={"start": ["semantic"], "dimension": [30, 60], "alpha": [0.8]},
    )
    return ends_text(theory, runs)


def test_runs_that_left_their_branch_are_compared_with_the_one_where_they_ended():
    """At d = 60 two stayed, five left and one is lost; at d = 30 all stayed, and nothing is said."""
    m = [[0.05] * 8, [-0.08, 0.2, -0.19, 0.15, 0.18, -0.22, 0.0, 0.2]]
    theta = [[0.11] * 8, [0.1, 0.01, 0.02, 0.05, -0.01, 0.0, 0.09, 0.0]]
    # mean 1.7, and the standard error of five numbers a tenth apart
    error = np.sqrt(0.025 / 5)
    loss, test = 0.2 / np.hypot(error, 0.04), (0.85 - 0.9) / (error / 2)
    assert [line.split() for line in ends(m, theta).splitlines()[3:]] == [
        ["semantic", "0.8", "60", "semantic", "2", "–", "–"],
        ["semantic", "0.8", "60", "positional", "5", f"{loss:+.1f}", f"{test:+.1f}"],
    ]
    assert ends([[0.05] * 8] * 2, [[0.11] * 8] * 2) == ""


ALPHAS = np.linspace(0.5, 2.0, 7)
# where a start's limits of large d part from the theory of its branch by more than 3 standard errors
PARTED = {
    "correlated": {"semantic": [0.5, 0.75]},
    "rank2": {"semantic": list(ALPHAS), "positional": [1.0, 1.25, 1.5, 1.75, 2.0], "mixed": [0.5]},
    "untied": {"semantic": [0.5, 0.75, 1.0]},
    "values": {"semantic": list(ALPHAS), "positional": [1.25, 1.5, 1.75, 2.0]},
}
# of 24 runs at d = 1000, how many stayed, where not all did at every alpha
STAYED = {
    ("correlated", "semantic"): [4, 5, 12, 21, 23, 24, 24],
    ("untied", "semantic"): [2, 3, 6, 12, 22, 24, 24],
    ("rank2", "positional"): [24, 4, 5, 3, 0, 0, 0],
    ("rank2", "semantic"): [0] * 7,
    ("values", "semantic"): [13, 20, 24, 24, 24, 24, 24],
}


@pytest.mark.parametrize("name", PARTED)
def test_texts_of_shipped_runs_are_theirs_and_say_what_the_docs_say(name):
    """Means of Appendix E.3, where training parts from the theory, and how many runs stayed on their branch."""
    runs = ap.load_dataset(SHIPPED / f"{name}-runs.nc")
    compared, ended = (SHIPPED / f"{name}.txt").read_text(encoding="utf-8").split("Where not all runs stayed")
    parted: dict[str, list[float]] = {}
    seen = set()
    for part in compared.split("\n\n"):
        head = re.match(r"(\w+), alpha = ([\d.]+)", part)
        if head is None:
            continue
        start, alpha = head[1], float(head[2])
        seen.add((start, alpha))
        block = {words[0]: words[1:] for words in map(str.split, part.splitlines()[2:])}
        for quantity in ("training_loss", "test_error", "weight_norm"):
            values = runs[quantity].sel(start=start, alpha=alpha)
            means, errors = values.mean("seed"), values.std("seed", ddof=1) / np.sqrt(24)
            texts = [format_value(float(mean), float(error)) for mean, error in zip(means, errors, strict=True)]
            assert [block[quantity][1], block[quantity][3]] == texts
        if max(abs(float(words[6].split("(")[0])) for words in block.values()) > 3:
            parted.setdefault(start, []).append(alpha)
    starts = list(map(str, runs["start"].to_numpy()))
    assert seen == {(start, alpha) for start in starts for alpha in ALPHAS}
    assert parted == PARTED[name]
    rows = [line.split() for line in ended.splitlines()[3:]]
    for start in starts:
        left = [
            sum(int(n) for s, a, d, end, n, *_ in rows if (s, float(a), d) == (start, alpha, "1000") and end != start)
            for alpha in ALPHAS
        ]
        assert [24 - count for count in left] == STAYED.get((name, start), [24] * 7), start
