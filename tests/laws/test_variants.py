"""Mixtures, spectra and penalties of attention against each other and direct minimisation; edges of domains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from models import model
from one_token import Cluster, OneToken, logistic
from scipy.stats import norm

import attnphase as ap

SETTINGS = ap.SolverSettings(threads=1, stability=False, identity=False)
SAMPLED = {"integration.rule": "sobol", "integration.nodes": 256}
MIXTURE = {
    "tokens.kind": "mixture",
    "tokens.clusters": [{"sigma": 0.5, "mean": [1.5]}, {"sigma": 0.4, "mean": [-1.5]}],
    "tokens.law": {"kind": "same", "probability": 0.8},
}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def solved(name: str, fields: dict[str, Any], alpha: float, branch: Any = "semantic") -> Any:
    point = ap.solve(model(name, fields), alpha, branch, settings=SETTINGS)
    assert point.status.item() == 0
    return point.squeeze()


def test_a_mixture_lies_in_the_ranges_of_direct_minimisation() -> None:
    """Three minimisations at d = 1000: |W|^2/d .351-.367, theta/gamma .518-.540, training loss .00312-.00322."""
    point = solved("paper", MIXTURE, 2.0)
    assert 0.351 < point.weight_norm.item() < 0.367
    ratio = point.theta.values.reshape(2, 2) / np.square([0.5, 0.4])
    assert np.all((ratio > 0.518) & (ratio < 0.540))
    assert 0.00312 < point.training_loss.item() < 0.00322


@pytest.mark.parametrize(
    ("name", "fields", "branch"),
    [
        ("paper", {}, "positional"),
        ("untied", {}, "semantic"),
        ("paper", {"regularizer.kind": "elastic-net"}, "semantic"),
    ],
)
def test_one_cluster_of_mean_zero_is_a_gaussian_token(name: str, fields: dict[str, Any], branch: str) -> None:
    one = {"tokens.kind": "mixture", "tokens.clusters": [{"sigma": 0.5}]}
    a, b = (solved(name, SAMPLED | fields | more, 1.7, branch) for more in ({}, one))
    for key in ("q", "V", "m", "theta", "training_loss", "test_error", "weight_norm"):
        np.testing.assert_allclose(b[key].squeeze(), a[key], rtol=1e-9, atol=1e-14, err_msg=key)


def test_clusters_with_a_teacher_mean_and_unequal_counts() -> None:
    """Tokens with one and three clusters, means along the teacher: the means pull the weights along."""
    clusters = [
        [{"sigma": 0.45, "mean": [0.7]}],
        [{"sigma": 0.4, "mean": [-0.6]}, {"sigma": 0.6, "mean": [0.2]}, {"sigma": 0.5, "mean": [0.9]}],
    ]
    law = {"tokens.law": {"kind": "table", "table": [[0.2, 0.5, 0.3]]}, "tokens.mean_teacher": [[0.6]]}
    point = solved("paper", SAMPLED | {"tokens.kind": "mixture", "tokens.clusters": clusters} | law, 1.6)
    assert point.free_energy_gap.item() < 1e-6 * point.training_loss.item()
    m = point.m.values.ravel()
    assert np.corrcoef(m[np.isfinite(m)], [0.7, -0.6, 0.2, 0.9])[0, 1] > 0.95
    assert (np.nanmax(np.abs(m)) > 0.2, point.q.isnull().sum().item()) == (True, 2)


def test_the_measure_of_finite_matrices_gives_the_solution_of_its_law() -> None:
    """Neither the basis nor a vector within a level matters: with the ridge, second moments are all that counts."""
    d, rng = 90, np.random.default_rng(4)
    basis, low = np.linalg.qr(rng.normal(size=(d, d)))[0], np.arange(d) < d // 3
    covariance = (basis * np.where(low, 0.12, 0.4)) @ basis.T
    p, teacher = np.empty(d), np.empty(d)
    for level in (low, ~low):
        size = level.sum()
        along, across = np.linalg.qr(rng.normal(size=(size, 2)))[0].T
        p[level], teacher[level] = along * np.sqrt(size / d), across * np.sqrt(size)
    p, teacher = basis @ p, basis @ teacher
    measured = ap.Spectrum.from_matrices([covariance, covariance], np.stack([p, -p]), teacher[:, None])
    law = [{"weight": 1 / 3, "variances": [0.12] * 2}, {"weight": 2 / 3, "variances": [0.4] * 2}]
    finite, limit = (solved("paper", SAMPLED | {"tokens.spectrum": x}, 1.8) for x in (measured.atoms(), law))
    for name in ("q", "V", "theta", "test_error", "training_loss", "weight_norm"):
        np.testing.assert_allclose(finite[name], limit[name], rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("kind", ["lasso", "group-lasso", "expression"])
def test_directions_without_variance_are_less_data_and_more_variance(kind: str) -> None:
    """Their weights are zero: with a share w of them it is the problem of alpha/(1 - w) and variance gamma (1 - w)."""
    share, gamma = 0.23, 0.41
    own: Any = {"regularizer.expression": "0.008*sqrt(w**2 + 0.2)"} if kind == "expression" else {}
    rest = own or {"regularizer.strength": 0.004}
    rest |= {"positions.kind": "none", "regularizer.kind": kind, "integration.rule": "sobol", "integration.nodes": 64}
    spectrum = {"kind": "two-level", "variances": [0.0, gamma], "fraction": share}
    found = solved("paper", rest | {"tokens.spectrum": spectrum}, 2.3)
    right = solved("paper", rest | {"tokens.sigma": float(np.sqrt(gamma * (1 - share)))}, 2.3 / (1 - share))
    for name in ("q", "V", "theta"):
        # both are solved to 1e-9 or so; the noise floor of a smooth penalty is 1e-7 of a source
        np.testing.assert_allclose(found[name], right[name], rtol=0, atol=1e-7 * abs(right[name]).max().item() + 1e-9)
    assert found.density.item() == pytest.approx((1 - share) * right.density.item(), rel=1e-6)


def lasso_fit(d: int, alpha: float, strength: float, sigma: float, seed: int) -> Any:
    """Minimiser of ``1/2 |y - X w|^2 + strength |w|_1``, entries of X of variance sigma^2/d, by coordinate descent."""
    rng = np.random.default_rng(seed)
    X = sigma * rng.normal(size=(round(alpha * d), d)) / np.sqrt(d)
    residual = X @ rng.normal(size=d)
    w, curvature, largest = np.zeros(d), (X**2).sum(axis=0), 1.0
    while largest > 1e-7:
        largest = 0.0
        for i in range(d):
            gradient = X[:, i] @ residual + curvature[i] * w[i]
            new = np.sign(gradient) * max(abs(gradient) - strength, 0) / curvature[i]
            largest = max(largest, abs(new - w[i]))
            residual, w[i] = residual - X[:, i] * (new - w[i]), new
    return w


def test_a_lasso_has_the_density_of_coordinate_descent() -> None:
    sigma, alpha, strength, d, seeds = 0.9, 0.8, 0.35, 200, 8
    point = solved(
        "square", {"tokens.sigma": sigma, "regularizer.kind": "lasso", "regularizer.strength": strength}, alpha
    )
    fits = [lasso_fit(d, alpha, strength, sigma, seed) for seed in range(seeds)]
    for name, samples in (("density", [np.mean(w != 0) for w in fits]), ("weight_norm", [w @ w / d for w in fits])):
        error = np.std(samples, ddof=1) / np.sqrt(seeds)
        # the finite-size correction is of order 1/d
        assert abs(np.mean(samples) - point[name].item()) < 3 * error + 2 / d * point[name].item(), name


@pytest.mark.parametrize(
    "numbers", [{"a": 1.0}, {"logistic": 0.0, "square": 1.0, "scale": 0.0, "shift": 1.0, "apart": -2.0}]
)
def test_a_metric_that_jumps_in_a_single_field_has_an_error(numbers: dict[str, float]) -> None:
    """The share of wrong labels of two opposite classes is that of a Gaussian beyond zero."""
    clusters = [{"sigma": 0.8, "mean": [-1.3]}, {"sigma": 0.8, "mean": [1.3]}]
    fields = {"tokens.clusters": clusters, "tokens.law.weights": [0.5, 0.5], "regularizer.strength": 0.3}
    fields |= {"metrics.error": "(1 - sign((1 - 2*c[0])*h[0, 0]))/2"}
    point = solved("terms", fields | {f"loss.parameters.{key}": x for key, x in numbers.items()}, 1.7, "uninformed")
    wrong = norm.cdf(-abs(point.m.values.ravel()[0]) / np.sqrt(point.q.values.ravel()[0]))
    assert abs(point.metric_error.item() - wrong) < 4 * point.metric_error_stderr.item() < 1e-3


@pytest.mark.parametrize("alpha", [0.7, 2.3])
def test_a_strong_ridge_gives_the_mean_of_the_samples(alpha: float) -> None:
    clusters = [{"sigma": 1.0, "mean": [-1.0]}, {"sigma": 1.0, "mean": [1.0]}]
    fields = {"tokens.clusters": clusters, "tokens.law.weights": [0.5, 0.5], "regularizer.strength": 3e4}
    point = solved("terms", fields, alpha, "uninformed")
    cosine = abs(point.m.values.ravel()[0]) / np.sqrt(point.q.values.ravel()[0])
    assert cosine == pytest.approx(1 / np.sqrt(1 + 1 / alpha), rel=1e-4)


# --- derivatives where a field can only grow, or only fall ------------------------------------------------------------


def one_sided(at: list[float], step: float) -> float:
    """Slope at the first of four values, right to third order."""
    return (-11 * at[0] + 18 * at[1] - 9 * at[2] + 2 * at[3]) / (6 * step)


def test_the_derivative_in_the_noise_at_no_noise() -> None:
    """Of logistic regression, by the own equations."""
    fields = {"tokens.sigma": 0.9, "regularizer.strength": 0.05}
    ds = ap.sensitivity(model("logistic", fields), 2.0, field="teacher.noise", settings=SETTINGS).squeeze()
    near = np.array([[ds[key].item() for key in ("q", "V", "m", "theta")]])
    noises = [i * 2e-3 for i in range(4)]
    own = [OneToken([Cluster(sigma=0.9)], logistic, 2.0, 0.05, noise=x, sizes=(40, 300)).solved(near) for x in noises]
    for name in ("q", "theta", "training_loss"):
        slope = one_sided([float(np.ravel(one[name])[0]) for one in own], 2e-3)
        error = 3 * ds[f"d_{name}_stderr"].item() + 1e-3 * abs(slope)
        assert abs(ds[f"d_{name}"].item() - slope) < error, name


@pytest.mark.parametrize("omega", [0.0, 1.0])
def test_the_derivative_in_omega_at_both_ends(omega: float) -> None:
    """Of the training loss, from solves on the side that there is."""
    nodes = {"integration.rule": "sobol", "integration.nodes": 64}
    branch, inwards = ("semantic", 1) if omega == 0 else ("positional", -1)
    ds = ap.sensitivity(model("paper", nodes | {"teacher.omega": omega}), 1.5, "teacher.omega", branch).squeeze()
    tight = ap.SolverSettings(tolerance=1e-10, stability=False, identity=False)
    at = [
        ap.solve(model("paper", nodes | {"teacher.omega": omega + inwards * i * 0.004}), 1.5, branch, settings=tight)
        for i in range(4)
    ]
    slope = inwards * one_sided([one.training_loss.item() for one in at], 0.004)
    error = ds.d_training_loss_stderr.item()
    assert abs(ds.d_training_loss.item() - slope) < 4 * error + 1e-6
    assert error < 0.1 * abs(slope) + 1e-3


def test_checks_of_attention_hold() -> None:
    """Slopes by the teacher's fields among them, of which symmetries turn the teacher's columns too."""
    report = ap.check(
        model("paper", {"teacher.omega": 0.37, "integration.standard_error": 0.01}), 1.9, experiment=False
    )
    assert report.passed, report.text()
    assert len({one.name for one in report.checks}) >= 10
