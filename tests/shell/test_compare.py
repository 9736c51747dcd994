"""Experiments beside theory: differences and fits by hand, and figures that show them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="experiments need PyTorch")

from command import run

import attnphase as ap

EXPERIMENTS = Path(__file__).parents[2] / "data" / "experiments"
START, OTHER = "semantic=0.4,positional=0.2,noise=0.3", "semantic=0.1,positional=0.7,noise=0.2"


@pytest.fixture(scope="module")
def comparison():
    """The shipped runs of Figure 7 beside a rough theory, which is not what is asked for here."""
    runs = ap.load_dataset(EXPERIMENTS / "fig7-runs.nc")
    problem = ap.Problem.from_toml(runs.attrs["problem"]).with_fields(
        {"integration.nodes": 64, "integration.rule": "sobol"}
    )
    theory = ap.sweep(problem, [1.5], branch=["semantic", "positional"], workers=1, progress=False)
    return ap.compare(theory, runs), runs, theory


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_means_deviations_and_the_fit_in_the_dimension_are_those_by_hand(comparison, tmp_path):
    found, runs, theory = comparison
    for name, ds in (("theory.nc", theory), ("runs.nc", runs)):
        ap.save_dataset(ds, tmp_path / name)
    told = run("compare", tmp_path / "theory.nc", tmp_path / "runs.nc", "--json").stdout
    assert json.loads(told)["worst"] == pytest.approx(found.worst)
    assert "(" in run("compare", tmp_path / "runs.nc", tmp_path / "runs.nc", code=2).stderr  # the file's name
    for start in ("semantic", "positional"):
        (loss,) = (one for one in found.quantities if (one.name, one.start) == ("training_loss", start))
        values = runs["training_loss"].sel(start=start).squeeze("alpha").transpose("dimension", "seed").to_numpy()
        d, mean = runs["dimension"].to_numpy(), values.mean(1)
        error = values.std(1, ddof=1) / values.shape[1] ** 0.5
        np.testing.assert_allclose([one.value for one in loss.measured], mean, rtol=1e-12)
        np.testing.assert_allclose(
            [one.z for one in loss.measured], (mean - loss.theory) / np.hypot(error, loss.theory_stderr)
        )
        (b, a), covariance = np.polyfit(1 / d, mean, 1, w=1 / error, cov="unscaled")
        np.testing.assert_allclose([loss.limit.value, loss.limit.slope], [a, b], rtol=1e-8)
        np.testing.assert_allclose([loss.limit.stderr, loss.limit.slope_stderr], np.diag(covariance)[::-1] ** 0.5)
        assert loss.limit.chi2 == pytest.approx((((mean - a - b / d) / error) ** 2).sum(), rel=1e-6)
        assert loss.limit.z == pytest.approx((a - loss.theory) / np.hypot(loss.limit.stderr, loss.theory_stderr))
        axes = next(ax for ax in ap.figures.comparison_figure(found).axes if "epsilon_t" in ax.get_ylabel())
        heights = [np.asarray(bars[0].get_ydata()) for bars in axes.containers]
        assert any(len(one) == len(mean) and np.allclose(one, mean * one[0] / mean[0]) for one in heights)


def test_over_alpha_a_figure_shows_the_largest_dimension_alone(comparison):
    """All of whose runs at one alpha may have diverged."""
    found, _, theory = comparison
    lost = [replace(one, alpha=2.5, measured=one.measured[:-1]) for one in found.quantities]
    beside = replace(found, quantities=(*found.quantities, *lost), theory=theory)
    for ax in ap.figures.comparison_figure(beside).axes:
        assert [np.asarray(bars[0].get_xdata()).tolist() for bars in ax.containers] == [[1.5]] * len(ax.containers)
        assert ax.containers


def test_trajectories_are_means_with_errors_beside_the_limit_and_drawn_so():
    problem = ap.Problem().with_fields({"integration.rule": "gauss-hermite", "integration.nodes": 4})
    theory = ap.sgd_flow(problem, [START, OTHER], 1.3, 3.0, records=7, progress=False)
    runs = ap.simulate(
        problem, 3.0, [OTHER, START], 20, 3, "sgd", learning_rate=1.3, trajectory=10, test_samples=0, progress=False
    )
    runs["status"][{"start": 0, "seed": 1}] = 4
    whole, found = theory, ap.compare(theory, runs)
    assert isinstance(found, ap.interface.TrajectoryComparison)
    assert found.excluded == (f"{OTHER}, alpha = 3, d = 20: of 3 runs 1 diverged: not counted.",)
    quantities = {one.name: one for one in found.quantities if one.start == START}
    q, theory = quantities["q[1,1,1]"], theory.sel(start=START)
    values = runs["trajectory_q"].isel(start=1, dimension=0, alpha=0, token=0, row=0, col=0).to_numpy()[:, :7]
    np.testing.assert_allclose(q.times, np.arange(7) / 2)
    np.testing.assert_allclose(q.value, values.mean(0))
    np.testing.assert_allclose(q.stderr, values.std(0, ddof=1) / 3**0.5)
    np.testing.assert_allclose(q.theory, theory["q"][:, 0, 0, 0], rtol=1e-6)
    for ax, name in zip(ap.figures.trajectory_figure(found).axes, quantities, strict=False):
        assert ax.get_title() == name
        (_, line) = (one for one in ax.get_lines() if one.get_color() == "black")
        np.testing.assert_allclose(np.asarray(line.get_ydata(), dtype=float), quantities[name].theory)
        np.testing.assert_allclose(np.asarray(ax.containers[1][0].get_ydata(), dtype=float), quantities[name].value)
        assert len(ax.containers) == 2
    runs["status"][{"start": 0, "seed": 2}] = 4
    lonely = f"{OTHER}, alpha = 3, d = 20: one run has no standard error: left out."
    assert ap.compare(whole, runs).excluded[1:] == (lonely,)
