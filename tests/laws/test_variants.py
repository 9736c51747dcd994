"""Mixtures, spectra and penalties of attention against each other and direct minimisation; edges of domains."""

from typing import Any

import numpy as np
import pytest
from models import model
from one_token import Cluster, OneToken, logistic
from scipy.stats import norm

import attnphase as ap

SETTINGS = ap.SolverSettings(threads=1, stability=False, identity=False)
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
