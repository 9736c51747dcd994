"""What the stated errors of tensor rules are worth, and what an iteration leaves of the way to its fixed point."""

from __future__ import annotations

from math import sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from attnphase.fixed_points import other_rules, solver
from attnphase.fixed_points.other_rules import is_contradicted
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.integration.kinds import Automatic
from attnphase.integration.refinement import Refinement
from attnphase.integration.rules import Rule
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.errors import Response, contradicted, way_left
from attnphase.state_evolution.replicates import Variations

ONE_THREAD = SolverSettings(threads=1, stability=False)


def logistic(sigma: float, strength: float, **integration: Any) -> Problem:
    return Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": sigma},
            "loss": {"kind": "logistic"},
            "regularizer": {"strength": strength},
            "integration": integration,
        }
    )


class LogisticRegression:
    """State evolution of logistic regression with the labels of a teacher's signs; one field, no rule of the package.

    The ridge's equations for one token, with label probabilities ``Phi(y theta omega / (q s))``, where
    ``s^2 = rho - theta^2 / q``, and a trapezoid in omega: its error falls faster than any power of the step.
    """

    def __init__(self, sigma: float, strength: float, alpha: float) -> None:
        self.gamma, self.strength, self.alpha = sigma**2, strength, alpha
        self.z = np.linspace(-9, 9, 8001)
        self.weights = stats.norm.pdf(self.z) * (self.z[1] - self.z[0])

    def image(self, overlaps: np.ndarray) -> np.ndarray:
        q, V, theta = overlaps
        spread = sqrt(self.gamma - theta**2 / q)
        omega = sqrt(q) * self.z
        g_g = g_z = g_k = 0.0
        for label in (1.0, -1.0):
            g = label * self.pull(label * omega, V)
            argument = label * theta * omega / (q * spread)
            probability, density = stats.norm.cdf(argument), stats.norm.pdf(argument)
            g_g += self.weights @ (probability * g**2)
            g_z += self.weights @ (probability * g * self.z)
            g_k += self.weights @ (label * spread * density * g)  # the teacher's field about its mean given omega
        q_hat, theta_hat = self.alpha * g_g, self.alpha * g_k / spread**2
        V_hat = theta_hat * theta / q - self.alpha * g_z / sqrt(q)
        resolvent = self.gamma / (self.strength + self.gamma * V_hat)
        signal = self.gamma * theta_hat
        return np.array([resolvent**2 * (q_hat + signal * theta_hat), resolvent, resolvent * signal])

    @staticmethod
    def pull(margin: np.ndarray, V: float) -> np.ndarray:
        """``g = 1 / (1 + exp(margin + V g))``, by Newton's method from the middle, where it cannot leave (0, 1)."""
        low, high = np.zeros_like(margin), np.ones_like(margin)
        for _ in range(60):
            g = (low + high) / 2
            above = g > 1 / (1 + np.exp(margin + V * g))
            low, high = np.where(above, low, g), np.where(above, g, high)
        return (low + high) / 2

    def solution(self, start: np.ndarray) -> np.ndarray:
        """The fixed point (q, V, theta), from a point near it, in logarithms."""
        found = optimize.root(lambda x: np.log(self.image(np.exp(x))) - x, np.log(start), tol=1e-11)
        assert found.success
        return np.exp(found.x)


def deviations(point: BranchPoint, sigma: float, strength: float) -> np.ndarray:
    """Of q, V and theta from the right ones, in stated errors."""
    values = np.array([np.ravel(point.values[name])[0] for name in ("q", "V", "theta")])
    errors = np.array([np.ravel(point.errors[name])[0] for name in ("q", "V", "theta")])
    right = LogisticRegression(sigma, strength, point.alpha).solution(values)
    return np.abs(values - right) / errors


@pytest.mark.parametrize("rule", ["auto", "gauss-hermite"])
@pytest.mark.parametrize(("sigma", "strength", "alpha"), [(1.2, 0.3, 7.0), (1.1, 0.15, 9.0)])
def test_stated_errors_where_orders_agree_before_they_are_right(sigma, strength, alpha, rule):
    """Even orders miss the narrow range of omega in which labels are uncertain, all of them alike."""
    point = solve_point(logistic(sigma, strength, rule=rule), alpha, settings=ONE_THREAD)
    assert point.status is Status.converged
    assert deviations(point, sigma, strength).max() < 4
    if rule == "auto":
        assert np.ravel(point.errors["q"] / point.values["q"])[0] < 1e-3


def test_sobol_points_decide_where_orders_agree_by_chance(monkeypatch):
    """Each order is compared with itself: no distance is left, and only points of another kind can tell."""
    monkeypatch.setattr(Automatic, "of_solve", lambda self, **_: self)
    monkeypatch.setattr(Refinement, "gauges", lambda self, rule, minima: () if rule.randomised else (rule,) * 2)
    problem = logistic(0.7, 0.06).with_fields({"integration.standard_error": 1e-6})
    point = solve_point(problem, 6.0, settings=ONE_THREAD)
    assert point.rule == "sobol"
    assert deviations(point, 0.7, 0.06).max() < 4
    monkeypatch.setattr(Automatic, "comparison", lambda self, rule: None)
    alone = solve_point(problem, 6.0, settings=ONE_THREAD)
    assert alone.rule == "gauss-hermite"
    assert deviations(alone, 0.7, 0.06).max() > 1e3


def test_a_tensor_rule_that_is_asked_for_states_its_distance_to_the_points_that_contradict_it(monkeypatch):
    gauges = Refinement.gauges

    def agreeing(self: Refinement, rule: Rule, minima: float) -> tuple[Rule, ...]:
        return (rule, rule) if not rule.randomised and minima == 0 else gauges(self, rule, minima)

    monkeypatch.setattr(Refinement, "gauges", agreeing)
    point = solve_point(logistic(0.7, 0.06, rule="gauss-hermite", nodes=25), 6.0, settings=ONE_THREAD)
    assert point.status is Status.converged
    assert (point.rule, point.nodes) == ("gauss-hermite", 625)
    assert 0.5 < deviations(point, 0.7, 0.06).max() < 2


def test_smooth_problems_have_a_rule_without_chance():
    """The square loss: no scatter of points enters the error."""
    problem = Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": 0.9},
            "loss": {"kind": "square"},
            "regularizer": {"strength": 0.04},
            "teacher": {"noise": 0.3},
            "integration": {"standard_error": 1e-6},
        }
    )
    point = solve_point(problem, 1.6, settings=ONE_THREAD)
    assert point.rule == "lines"
    assert np.ravel(point.errors["q"] / point.values["q"])[0] < 1e-6
    assert_ridge_regression(point, 0.9, 0.04, 0.3)


def test_a_rule_is_contradicted_by_more_than_three_combined_errors_of_anything():
    """Of the point, of what is measured there, or of the energy; carried on to the fixed point by the derivatives."""
    response = Response(np.array([[0.5, 0.0], [0.0, 0.9]]), np.array([[0.0, 1.0]]), np.ones(2), np.inf)
    scatter = np.array([[3.0, -3.0], [-3.0, 3.0], [4.0, 4.0]]) * np.array([0.5, 0.1])  # of the fixed point, 3 3 4
    own = Variations(np.array([[0.5 * 3.0, 0.0]]), np.zeros((1, 1)), np.array([0.2]))
    size = np.sqrt(3.0**2 + 3.0**2 + 4.0**2)

    def against(x: float, y: float, value: float, energy: float) -> Variations:
        shift = np.array([[0.5 * x, 0.1 * y]])
        values = np.array([[value - y], [0.0], [0.0], [0.0]])  # the point's shift is carried on to it
        return Variations(np.vstack([shift, scatter]), values, np.array([energy, 0.0, 0.1, 0.0]))

    first, energy = 3 * np.hypot(size, 3.0), 3 * np.hypot(0.2, 0.1)
    for share, expected in ((0.99, False), (1.01, True)):
        assert contradicted(own, against(share * first, 0.0, 0.0, 0.0), response) is expected
        assert contradicted(own, against(0.0, share * 3 * size, 0.0, 0.0), response) is expected
        assert contradicted(own, against(0.0, 0.0, share * 3 * size, 0.0), response) is expected
        assert contradicted(own, against(0.0, 0.0, 0.0, share * energy), response) is expected


@pytest.mark.parametrize(("share", "expected"), [(0.0, False), (1e-4, True)])
def test_a_second_minimum_that_only_other_points_see_contradicts_a_rule(monkeypatch, share, expected):
    """However well both agree: the rule's orders say nothing of its error there."""
    monkeypatch.setattr(other_rules, "variations", lambda *_: None)
    monkeypatch.setattr(other_rules, "contradicted", lambda *_: False)
    run: Any = SimpleNamespace(callback=lambda _: None, map=lambda rule: SimpleNamespace(rough_share=share))
    place: Any = SimpleNamespace(
        map_=SimpleNamespace(channel=SimpleNamespace(rule="tensor")),
        found=SimpleNamespace(point=None),
        measured=SimpleNamespace(moved=None),
        response=None,
    )
    rules: Any = SimpleNamespace(comparison=lambda rule: "sobol")
    assert is_contradicted(run, rules, place) is run.contradicted is expected


# --- what an iteration leaves -----------------------------------------------------------------------------------------


def ridge_regression(sigma: float, strength: float, noise: float, alpha: float) -> np.ndarray:
    """(q, V, theta) of ridge regression in closed form: the square loss has g = (k - omega) / (1 + V).

    In units of sigma: ``V = 1 / (strength + alpha / (1 + V))``, ``theta = V alpha / (1 + V)`` and
    ``q = V^2 alpha (1 + noise - 2 theta + q) / (1 + V)^2 + theta^2``.
    """
    strength, noise = strength / sigma**2, noise / sigma**2
    linear = strength + alpha - 1
    V = (sqrt(linear**2 + 4 * strength) - linear) / (2 * strength)
    theta, share = V * alpha / (1 + V), alpha * (V / (1 + V)) ** 2
    return np.array([sigma**2 * (share * (1 + noise - 2 * theta) + theta**2) / (1 - share), V, sigma**2 * theta])


def assert_ridge_regression(point: BranchPoint, sigma: float, strength: float, noise: float) -> None:
    """Within three stated errors, and rounding."""
    right = ridge_regression(sigma, strength, noise, point.alpha)
    for name, value in zip(("q", "V", "theta"), right, strict=True):
        error = np.ravel(point.errors[name])[0] + 1e-13 * value
        assert abs(np.ravel(point.values[name])[0] - value) < 3 * error, name


@pytest.mark.parametrize(("sigma", "strength", "noise"), [(0.7, 2e-7, 0.4), (1.5, 3e-6, 0.1), (0.8, 1e-8, 0.3)])
def test_what_a_residual_leaves_is_in_the_errors_and_small(sigma, strength, noise):
    """At an interpolation peak the fixed point is a thousand residuals away: it is iterated on, and states the rest."""
    problem = Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": sigma},
            "loss": {"kind": "square"},
            "regularizer": {"strength": strength},
            "teacher": {"noise": noise},
            "integration": {"standard_error": 1e-6},
        }
    )
    point = solve_point(problem, 1.0, settings=ONE_THREAD)
    assert point.status is Status.converged
    assert_ridge_regression(point, sigma, strength, noise)
    assert np.ravel(point.errors["q"] / point.values["q"])[0] < 1e-6
    loose = solve_point(problem, 1.0, settings=SolverSettings(threads=1, stability=False, tolerance=1e-4))
    assert loose.status is Status.converged
    assert_ridge_regression(loose, sigma, strength, noise)


def test_a_point_that_is_iterated_further_stays_converged(monkeypatch):
    """By two maps at a time."""
    monkeypatch.setattr(solver, "FEW_MAPS", 2)
    problem = Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": 0.8},
            "loss": {"kind": "square"},
            "regularizer": {"strength": 1.3e-8},
            "teacher": {"noise": 0.3},
        }
    )
    point = solve_point(problem, 1.0, settings=SolverSettings(threads=1, stability=False, tolerance=1e-4))
    assert point.status is Status.converged
    assert point.residual < 1e-7  # of the 1e-4 asked for
    assert_ridge_regression(point, 0.8, 1.3e-8, 0.3)


def test_what_is_left_of_the_way_is_measured_by_errors_or_the_tolerance():
    """Ways of 0.1 and 0.2 to the fixed point, with errors of 0.05 and 0.01, and a tolerance of 0.03 and 0.07."""
    response = Response(np.diag([0.5, 0.9]), np.zeros((1, 2)), np.ones(2), np.inf)
    moved = Variations(np.array([[0.015, 0.0], [0.02, 0.001]]), np.zeros((2, 1)), np.zeros(2))
    map_: Any = SimpleNamespace(scales=lambda x: np.array([3.0, 7.0]))
    for tolerance, expected in ((0.0, 0.2 / 0.01), (0.01, 0.2 / 0.07), (0.1, 0.1 / 0.3)):
        left = way_left(map_, np.zeros(2), np.array([0.05, 0.02]), response, moved, tolerance)
        assert left == pytest.approx(expected)
