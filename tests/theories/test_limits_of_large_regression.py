"""Closed forms of the replica-symmetric theory against the spectrum of random matrices, and where they apply.

Not public: `derive` prints these limits, and no public function returns them as expressions.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from models import model
from scipy import integrate

import attnphase as ap
from derivations.replica.limits import Facts, reductions_of, ridge_regression


def mean_over_eigenvalues(alpha: float, function: Callable[[float], float]) -> float:
    """Mean of a function of the eigenvalues of ``Z^T Z / d``, Z of size alpha d x d: the Marchenko-Pastur law."""
    c = 1 / alpha
    low, high = (1 - np.sqrt(c)) ** 2, (1 + np.sqrt(c)) ** 2

    def density(angle: float) -> float:
        x = (low + high) / 2 + (high - low) / 2 * np.cos(angle)
        return function(alpha * x) * ((high - low) / 2 * np.sin(angle)) ** 2 / (2 * np.pi * c * x)

    return integrate.quad(density, 0, np.pi, epsabs=0, epsrel=1e-11)[0] + max(1 - alpha, 0.0) * function(0.0)


@pytest.mark.parametrize(
    ("alpha", "strength", "gamma", "noise"), [(0.6, 0.13, 0.4, 0.0), (1.7, 0.05, 0.7, 0.23), (3.1, 0.6, 1.9, 1.4)]
)
def test_ridge_regression_is_that_of_random_matrices(alpha, strength, gamma, noise):
    """``w = (A + lambda)^-1 (A w* + X^T z / sqrt(d))``: the closed forms, and a solved point."""

    def shrunk(x: float) -> float:
        return gamma * x / (gamma * x + strength)

    of_noise = mean_over_eigenvalues(alpha, lambda x: gamma * x / (gamma * x + strength) ** 2)
    q = gamma * (mean_over_eigenvalues(alpha, lambda x: shrunk(x) ** 2) + noise * of_noise)
    theta = gamma * mean_over_eigenvalues(alpha, shrunk)
    V = gamma * mean_over_eigenvalues(alpha, lambda x: 1 / (gamma * x + strength))
    expected = {"q": q, "theta": theta, "V": V, "test_error": gamma - 2 * theta + q, "weight_norm": q / gamma}
    values = {"alpha": alpha, "lambda": strength, "gamma": gamma, "Delta": noise}
    fields = {"tokens.sigma": float(np.sqrt(gamma)), "teacher.noise": noise, "regularizer.strength": strength}
    point, found = ap.solve(model("square", fields), alpha), ridge_regression()
    assert set(found) == set(expected)
    for name, expression in found.items():
        number = float(expression.subs({symbol: values[str(symbol)] for symbol in expression.free_symbols}))
        assert number == pytest.approx(expected[name], rel=1e-8), name
        error = float(np.ravel(point[f"{name}_stderr"])[0])
        assert float(np.ravel(point[name])[0]) == pytest.approx(expected[name], rel=1e-5, abs=4 * error), name


SQUARE = Facts(length=1, squared=True)
WARM = replace(SQUARE, squared=False, bilinear=True, length=2, temperature=1.3)


@pytest.mark.parametrize(
    ("name", "facts", "applies"),
    [
        ("ridge regression", SQUARE, True),
        ("ridge regression", replace(SQUARE, length=2), False),
        ("ridge regression", replace(SQUARE, squared=False), False),
        ("ridge regression", replace(SQUARE, ridge=False), False),
        ("ridge regression", replace(SQUARE, isotropic=False), False),
        ("ridge regression", replace(SQUARE, mixture=True), False),
        ("ridge regression", replace(SQUARE, correlated=True), False),
        ("ridge as a general regulariser", replace(SQUARE, ridge=False), False),
        ("one cluster is a Gaussian", replace(SQUARE, mixture=True), False),
        ("equal clusters are a Gaussian", replace(SQUARE, length=2), True),
        ("temperature", WARM, True),
        ("temperature", replace(WARM, temperature=1.0), False),
    ],
)
def test_limits_apply_to_their_own_problems_only(name, facts, applies):
    assert (name in {one.name for one in reductions_of(facts)}) is applies


def test_temperature_is_a_scale_of_the_weights():
    """``check`` compares a warm student with one of temperature 1 and ridge lambda T, whose norm is smaller by T."""
    fields = {"student.temperature": 1.6, "teacher.omega": 0.29}
    few = {"integration.rule": "sobol", "integration.nodes": 64}
    report = ap.check(model("paper", fields | few), 1.8, settings=ap.SolverSettings(threads=1))
    assert {one.name: one.passed for one in report.checks}["reduction: temperature"] is True
