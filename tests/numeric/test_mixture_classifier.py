"""A classifier of a Gaussian mixture against its own scalar equations, by SciPy's quadrature and roots."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq, root
from scipy.special import expit
from scipy.stats import norm
from models import of_terms

import attnphase as ap

LOSSES = {
    "logistic": ({"logistic": 1.0, "a": -1.0}, lambda h: -expit(-h), lambda h: expit(h) * expit(-h)),
    "square": ({"square": 1.0, "scale": 0.0, "shift": -1.0, "apart": 2.0}, lambda h: h - 1, lambda h: np.ones_like(h)),
}
"""The formula's numbers, and its first and second derivative at the label 1."""


def classifier(numbers: dict[str, float], ridge: float, distance: float, sigma: float) -> ap.Problem:
    clusters = [{"sigma": sigma, "mean": [-distance]}, {"sigma": sigma, "mean": [distance]}]
    problem = of_terms(clusters, [0.5, 0.5], ridge, numbers)
    return replace(problem, metrics={"error": "(1 + sign((1 - 2*c[0])*h[0, 0]))/2"})


def scalar_equations(name: str, alpha: float, ridge: float, distance: float, sigma: float) -> np.ndarray:
    """The fixed point (m, q, V) of fields h = m + sqrt(q) x at the label 1, which the other label mirrors."""
    _, slope, bend = LOSSES[name]

    def proximal(omega: float, V: float) -> float:
        reach = V * (1 + abs(omega)) + 1
        found: Any = brentq(lambda h: h - omega + V * slope(h), omega - reach, omega + reach, xtol=1e-14)
        return found

    def mean(function, m: float, q: float) -> float:
        return quad(lambda x: function(m + np.sqrt(q) * x) * norm.pdf(x), -9, 9, epsabs=1e-12, epsrel=1e-11)[0]

    def image(x: np.ndarray) -> np.ndarray:
        m, q, V = np.exp(x)

        def pull(omega: float) -> float:
            return -slope(proximal(omega, V))

        def stiffness(omega: float) -> float:
            curvature = bend(proximal(omega, V))
            return curvature / (1 + V * curvature)

        force, noise, stiff = (alpha * mean(f, m, q) for f in (pull, lambda omega: pull(omega) ** 2, stiffness))
        response = 1 / (ridge + sigma**2 * stiff)
        along = response * distance * force
        return np.log([distance * along, sigma**2 * (along**2 + response**2 * sigma**2 * noise), sigma**2 * response])

    return np.exp(root(lambda x: image(x) - x, np.log([0.3, 0.3, 1.0]), tol=1e-10).x)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_the_fixed_point_is_that_of_the_scalar_equations(name):
    alpha, ridge, distance, sigma = 1.7, 0.3, 1.3, 0.8
    ds = ap.solve(classifier(LOSSES[name][0], ridge, distance, sigma), alpha, "uninformed").squeeze()
    m, q, V = scalar_equations(name, alpha, ridge, distance, sigma)
    assert ds.status.item() == 0
    for value, found in ((m, abs(ds.m)), (q, ds.q), (V, ds.V)):
        assert found.to_numpy().ravel() == pytest.approx([value, value], rel=1e-5)
    wrong = norm.cdf(-m / np.sqrt(q))
    assert abs(ds.metric_error.item() - wrong) < 4 * ds.metric_error_stderr.item() < 1e-3


@pytest.mark.parametrize("alpha", [0.7, 2.3])
def test_a_strong_ridge_gives_the_mean_of_the_samples(alpha):
    ds = ap.solve(classifier(LOSSES["logistic"][0], 3e4, 1.0, 1.0), alpha, "uninformed").squeeze()
    cosine = abs(ds.m.to_numpy().ravel()[0]) / np.sqrt(ds.q.to_numpy().ravel()[0])
    assert cosine == pytest.approx(1 / np.sqrt(1 + 1 / alpha), rel=1e-4)


def test_logits_of_classes_whose_sum_does_not_matter():
    """W lambda 1 = 0 by three ridges lambda: W sqrt(lambda) = U B^T for any basis B of what is orthogonal to theirs."""
    ridges = np.array([0.31, 0.55, 0.18])
    basis = np.linalg.svd(np.sqrt(ridges)[None])[2][1:]
    means = [[1.1, 0.0], [-0.6, 0.9], [-0.7, -0.8]]
    clusters = [{"sigma": sigma, "mean": mean} for sigma, mean in zip((0.8, 1.1, 0.9), means, strict=True)]
    tokens = {"kind": "mixture", "length": 1, "clusters": clusters, "law": {"weights": [0.5, 0.2, 0.3]}}

    def problem(logits: str, strength: Any, columns: int) -> ap.Problem:
        label = "[(1 - c)*(2 - c)/2, c*(2 - c), c*(c - 1)/2]"
        loss = f"z = {logits}\nlog(sum(exp(z))) - sum({label}*z)"
        return ap.Problem.from_dict(
            {
                "tokens": tokens,
                "positions": {"kind": "none"},
                "student": {"rank": columns},
                "regularizer": {"strength": strength},
                "loss": {"kind": "expression", "expression": loss},
            }
        )

    three = ap.solve(
        problem("h[0]", ridges.tolist(), 3), 2.3, branch="positional", settings=ap.SolverSettings(stability=False)
    )
    change = (basis / np.sqrt(ridges)).tolist()
    two = ap.solve(
        problem(f"h[0] @ {change}", 1.0, 2), 2.3, branch="positional", settings=ap.SolverSettings(stability=False)
    )
    assert three.status == two.status == 0
    W, U = (point.q.isel(token=0, cluster=0).values for point in (three, two))
    np.testing.assert_allclose(W, np.array(change).T @ U @ change, atol=2e-3)
    np.testing.assert_allclose(W @ ridges, 0, atol=1e-9)
    for name in ("training_loss", "test_error"):
        np.testing.assert_allclose(three[name], two[name], rtol=1e-3)
