"""The paper's experiments, as short as they can be, and what their texts say of runs.

Not public: the paper's settings, and its tables of where runs end.
"""

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import xarray as xr
from by_formula import points
from matplotlib.collections import QuadMesh
from matplotlib.contour import ContourSet

pytest.importorskip("torch", reason="experiments need PyTorch")

import attnphase as ap
from attnphase.data.text import runs_table
from attnphase.paper import run as paper
from attnphase.paper.catalogue import EXPERIMENTS, planned
from attnphase.paper.ends import ends_text
from attnphase.paper.run import basins, published_table, run_experiment


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fig7", {"dimension": (20, 40), "alpha": (1.5,)}),
        ("adam", {"dimension": (40,)}),
        pytest.param("fig3", {"alpha": (0.6, 1.8), "dimension": (30,)}, marks=pytest.mark.long),
    ],
)
def test_experiments_write_theory_runs_figure_and_text(name, changes, tmp_path, monkeypatch):
    solve_grid: Any = paper.sweep
    few = {"integration.rule": "sobol", "integration.nodes": 64}
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
        assert "3 runs; share that reached each minimum" in text
        runs["training_loss"][{"seed": 1}], runs["status"][{"seed": 1}] = 1e6, 4
        told, left = paper._basin_text(theory, runs), runs["training_loss"].to_numpy().ravel()[::2]
        assert re.search(f"^2 runs, without 1 that diverged;.* {left.mean():.6f} .- {left.std():.6f}", told, re.DOTALL)
        places = np.array([[0.0, 9.0], [7.0, 7.0], [9.0, 0.0]])  # sizes of m and theta: semantic, lost, positional
        for part, size in zip(("m", "theta"), places.T, strict=True):
            runs[part].to_numpy().reshape(3, -1)[:] = size[:, None]
        assert re.search(f"semantic +0.500 .- {np.sqrt(0.25 / 2):.3f}", paper._basin_text(theory, runs))
        ax: Any = ap.figures.scatter_figure(theory.isel(alpha=0), runs).axes[0]
        assert np.count_nonzero(np.isfinite(ax.get_lines()[0].get_xydata()).all(1)) == 2
        runs["status"][{"seed": 0}] = 4
        assert re.search(f": {left[1]:.6f}$", paper._basin_text(theory, runs), re.MULTILINE)
    elif name == "fig7":
        assert ap.compare(theory, runs).text() in text
    else:
        np.testing.assert_allclose(runs["omega"], theory["omega"])
        assert runs["training_loss"].dims == ("start", "dimension", "omega", "alpha", "seed")
        assert "of 6 points the sign of the losses' difference is the theory's" in text


def test_a_grid_of_runs_is_drawn_and_told_without_those_that_diverged(tmp_path, monkeypatch):
    """Differences in thousandths, by omega and alpha, of the theory and of the runs at d = 30."""
    alphas, omegas, simulated = [0.6, 1.2], [0.1, 0.25, 0.4], ap.simulate
    differences = {"theory": [[4, 0.1], [-3, -0.1], [3, 1]], "runs": [[5, -1], [-2, -4], [-6, 3]]}

    def of(which, branch, alpha, omega):
        apart = differences[which][omegas.index(omega)][alphas.index(alpha)]
        return 0.05 + omega / 10 + alpha / 100 + 1e-3 * apart * (branch == "semantic")

    def simulate(problem, *shape, **_):
        runs = simulated(problem, *shape, steps=1, test_samples=0)
        for i, k in np.ndindex(2, 2):
            loss = of("runs", EXPERIMENTS["fig3"].starts[i], alphas[k], problem.teacher.omega)
            runs["training_loss"].to_numpy()[i, :, k] = [1 - i, 1, 1], [loss - 0.002, loss + 0.002, 8 + i]
        runs["status"][{"seed": 2}] = 4
        return runs

    def sweep(problem, *, omega, alpha, branch, **_):
        ds = points({"teacher.omega": omega}, alpha, branch, problem, training_loss=partial(of, "theory"))
        ds["status"][{"branch": 0, "omega": 2, "alpha": 0}] = 1
        return ds

    figures: list[Any] = []
    for name, made in (("simulate", simulate), ("sweep", sweep), ("save_figure", lambda one, _: figures.append(one))):
        monkeypatch.setattr(paper, name, made)
    run_experiment(planned("fig3", overrides={"alpha": alphas, "dimension": (20, 30), "seeds": 3}), tmp_path)
    for ax, which in zip(figures[0].axes, ("runs", "theory"), strict=False):
        values = next(one for one in ax.collections if type(one) is QuadMesh).get_array()
        np.testing.assert_allclose(np.asarray(values), differences[which])
        (line,) = (one for one in ax.collections if isinstance(one, ContourSet))
        assert any(np.isclose(path.vertices, [0.6, 0.325]).all(1).any() for path in line.get_paths())  # from -3 to 3
    (hatched,) = (one for one in figures[0].axes[1].collections if getattr(one, "get_hatch", lambda: None)())
    assert np.argwhere(~np.ma.getmaskarray(hatched.get_array())).tolist() == [[2, 0]]
    said = " ".join((tmp_path / "fig3.txt").read_text(encoding="utf-8").split())
    assert re.search(r"d = 30: of 6 points the sign .* at 4; of the 3 where .* over 2 % of the loss, at 2\.$", said)


def test_published_means_stand_beside_ours():
    starts = ["semantic", "positional"]
    runs = ap.simulate(ap.Problem.paper(omega=0.3), 1.5, starts, [23], 4, "gd", steps=10, test_samples=0)
    runs["theta"][{"seed": 1}], runs["status"][{"seed": 1}] = 1e6, 4  # ran away: they do not count

    def line_of_theta():
        lines = published_table("fig7_scaling", runs).splitlines()
        assert len(lines) == 1 + 8
        return next(one for one in lines if one.startswith("theta") and "semantic" in one).split()

    row = next(r for r in ap.reference.read_reference("fig7_scaling") if r["d"] == 23 and r["start"] == "semantic")
    line = line_of_theta()
    assert float(line[4]) == pytest.approx(float(row["theta"]), rel=1e-4)
    theta = np.abs(runs["theta"].sel(start="semantic").isel(token=0).drop_isel(seed=1).to_numpy())
    assert float(line[5]) == pytest.approx(theta.mean(), rel=1e-4)
    runs["theta"][{"start": 0}] = 1.1 * row["theta"]  # without scatter: the error is that of about 70 published runs
    assert float(line_of_theta()[-1]) == pytest.approx(0.1 * row["theta"] / row["theta_sd"] * 70**0.5, abs=0.06)
    assert published_table("fig7_scaling", runs.assign_coords(alpha=[1.4])) == ""
    runs["gradient_norm"][{"seed": 1}] = 7e9
    shown, others = (runs_table(one).text().split() for one in (runs, runs.drop_isel(seed=1)))
    assert len(others) > 10
    cells, those = ([one for one in words if "(" in one] for words in (shown, others))
    assert cells == those
    assert "7.0e+09" not in shown
    value, error = cells[0].rstrip(")").split("(")  # the training loss, as 0.0123(45)
    loss = runs["training_loss"].sel(start="semantic").drop_isel(seed=1).to_numpy()
    assert float(value) == pytest.approx(loss.mean(), rel=0.05)
    assert int(error) / 10 ** len(value.split(".")[1]) == pytest.approx(loss.std(ddof=1) / 3**0.5, rel=0.3)
    runs["status"][{"start": 0}] = 4
    assert line_of_theta()[-2:] == ["–", "–"]
    assert "7.0e+09" not in runs_table(runs).text()


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
    gap = np.array([[1.0, 1.0], [1.0, np.nan]])  # pairs of token and cluster that there are
    losses = np.array([[2.0] * 8, [2.3, 1.6, 1.7, 1.5, 1.9, 1.8, 2.1, 9.0]])
    diverged = np.array([[0] * 8, [0] * 7 + [4]])  # as RunStatus says
    sizes, branches, places = ("token", "cluster"), ("branch", "alpha"), ("dimension", "seed")
    overlaps = {"theta": [[0.1195], [0.12], [0.0]], "m": [[0.0], [0.0], [0.21]]}
    numbers = {"training_loss": [[2.0], [2.0], [1.5]], "training_loss_stderr": [[0.03], [0.03], [0.04]]}
    numbers |= {"test_error": [[0.7], [0.7], [0.9]], "test_error_stderr": [[0.0]] * 3}
    theory = xr.Dataset(
        {name: ((*branches, *sizes), np.multiply.outer(values, gap)) for name, values in overlaps.items()}
        | {name: (branches, values) for name, values in numbers.items()},
        coords={"branch": ["mixed", "semantic", "positional"], "alpha": [0.8]},
    )
    own = {"training_loss": losses, "test_error": losses / 2, "status": diverged}
    runs = xr.Dataset(
        {name: ((*places, *sizes), np.multiply.outer(values, gap)) for name, values in (("theta", theta), ("m", m))}
        | {name: (places, values) for name, values in own.items()},
        coords={"dimension": [30, 60]},
    )
    return ends_text(theory, runs.expand_dims({"start": ["semantic"], "alpha": [0.8]}))


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
