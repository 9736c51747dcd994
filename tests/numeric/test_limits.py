"""Limits with a known answer: the closed forms against the spectrum of random matrices, and where they apply."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import integrate

from attnphase.checks import limits
from attnphase.checks.case import Case
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.problem.losses import LOSSES
from attnphase.problem.problem import Problem
from attnphase.processes.progress import silent
from attnphase.rows.kinds import REGULARIZERS
from derivations.replica.limits import Facts, reductions_of, ridge_regression

ONE_THREAD = SolverSettings(threads=1)


def mean_over_eigenvalues(alpha: float, function) -> float:
    """Mean of a function of the eigenvalues of ``Z^T Z / d``, Z of size alpha d x d: the Marchenko-Pastur law."""
    c = 1 / alpha
    low, high = (1 - np.sqrt(c)) ** 2, (1 + np.sqrt(c)) ** 2

    def density(angle: float) -> float:
        x = (low + high) / 2 + (high - low) / 2 * np.cos(angle)
        return function(alpha * x) * ((high - low) / 2 * np.sin(angle)) ** 2 / (2 * np.pi * c * x)

    return integrate.quad(density, 0, np.pi, epsabs=0, epsrel=1e-11)[0] + max(1 - alpha, 0.0) * function(0.0)


LAWS = [(0.6, 0.13, 0.4, 0.0), (1.7, 0.05, 0.7, 0.23), (3.1, 0.6, 1.9, 1.4), (0.7, 0.2, 0.6, 0.4)]


@pytest.mark.parametrize(("alpha", "strength", "gamma", "noise"), LAWS)
def test_ridge_regression_is_that_of_random_matrices(alpha, strength, gamma, noise):
    """``w = (A + lambda)^-1 (A w* + X^T z / sqrt(d))``, ``A = X^T X / d``: all order parameters are traces of it."""

    def shrunk(x: float) -> float:
        return gamma * x / (gamma * x + strength)

    of_noise = mean_over_eigenvalues(alpha, lambda x: gamma * x / (gamma * x + strength) ** 2)
    q = gamma * (mean_over_eigenvalues(alpha, lambda x: shrunk(x) ** 2) + noise * of_noise)
    theta = gamma * mean_over_eigenvalues(alpha, shrunk)
    expected = {
        "q": q,
        "theta": theta,
        "V": gamma * mean_over_eigenvalues(alpha, lambda x: 1 / (gamma * x + strength)),
        "test_error": gamma - 2 * theta + q,
        "weight_norm": q / gamma,
    }
    values = {"alpha": alpha, "lambda": strength, "gamma": gamma, "Delta": noise}
    found = ridge_regression()
    assert set(found) == set(expected)
    for name, expression in found.items():
        number = float(expression.subs({symbol: values[str(symbol)] for symbol in expression.free_symbols}))
        assert number == pytest.approx(expected[name], rel=1e-8), name


SQUARE = Facts(length=1, squared=True)


def test_kinds_say_which_limits_they_have():
    assert [name for name, kind in LOSSES.items() if kind.is_squared] == ["square"]
    assert [name for name, kind in LOSSES.items() if kind.has_grams] == ["attention"]
    assert [name for name, kind in REGULARIZERS.items() if kind.quadratic] == ["ridge"]


@pytest.mark.parametrize(
    "changes",
    [
        {"length": 2},
        {"squared": False},
        {"ridge": False},
        {"isotropic": False},
        {"mixture": True},
        {"correlated": True},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_ridge_regression_applies_to_its_own_limit_only(changes):
    assert "ridge regression" in {one.name for one in reductions_of(SQUARE)}
    assert "ridge regression" not in {one.name for one in reductions_of(replace(SQUARE, **changes))}


@pytest.mark.parametrize(
    ("name", "facts", "applies"),
    [
        ("ridge as a general regulariser", replace(SQUARE, ridge=False), False),
        ("one cluster is a Gaussian", replace(SQUARE, squared=False, bilinear=True, length=4), True),
        ("one cluster is a Gaussian", replace(SQUARE, mixture=True), False),
        ("one cluster is a Gaussian", replace(SQUARE, isotropic=False), False),
        ("equal clusters are a Gaussian", replace(SQUARE, length=2), True),
        ("equal clusters are a Gaussian", replace(SQUARE, length=3), False),
        ("temperature", replace(SQUARE, squared=False, bilinear=True, length=2, temperature=1.3), True),
        ("temperature", replace(SQUARE, squared=False, bilinear=True, length=2), False),
        ("temperature", replace(SQUARE, squared=False, bilinear=True, length=2, temperature=1.3, ridge=False), False),
    ],
)
def test_where_other_limits_apply(name, facts, applies):
    assert (name in {one.name for one in reductions_of(facts)}) is applies


def test_temperature_is_a_scale_of_the_weights():
    """``check`` compares a warm student with one of temperature 1 and ridge lambda T, whose norm is smaller by T."""
    problem = Problem.paper(omega=0.29).with_fields(
        {"student.temperature": 1.6, "integration.rule": "sobol", "integration.nodes": 64}
    )
    point = solve_point(problem, 1.8, settings=ONE_THREAD)
    assert limits._cooled(Case.of(problem, point, ONE_THREAD), silent).passed
