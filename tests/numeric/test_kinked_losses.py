"""Losses with kinks given as formulas: minima at the kinks, and fixed points.

Expected numbers are those of `own_overlaps`, the equations of regression with one token in closed form, of the
hinge's proximal point, and of energies on a fine grid.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy.special import erf

import attnphase as ap
from attnphase.errors import ProblemError
from attnphase.fixed_points.iteration import Status
from attnphase.integration.rules import sobol
from attnphase.kernels.local.constants import Starts
from attnphase.problem.problem import Problem
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.system import System
from derivations.models.scalar import formula_has_kink


def own_overlaps(alpha: float, strength: float, noise: float, slope: float) -> tuple[float, float, float]:
    """Overlaps q, V and theta of ``slope |h - y|`` with ``y = k + sqrt(noise) z`` and unit variance of k.

    With ``g = clip(u/V, -slope, slope)`` of ``u = y - omega``, a Gaussian of variance ``q - 2 theta + 1 + noise``.
    """
    q, V, theta = 1.0, 1.0, 0.5
    for _ in range(20000):
        spread = np.sqrt(q - 2 * theta + 1 + noise)
        edge = slope * V / spread
        inside = erf(edge / np.sqrt(2))
        density = np.exp(-(edge**2) / 2) / np.sqrt(2 * np.pi)
        q_hat = alpha * ((spread / V) ** 2 * (inside - 2 * edge * density) + slope**2 * (1 - inside))
        V_hat = theta_hat = alpha * inside / V
        curvature = strength + V_hat
        new = ((q_hat + theta_hat**2) / curvature**2, 1 / curvature, theta_hat / curvature)
        moved = max(abs(a - b) for a, b in zip(new, (q, V, theta), strict=True))
        q, V, theta = new
        if moved < 1e-12:
            return q, V, theta
    raise AssertionError("own iteration has not converged")


def problem_of(formula: str, noise: float = 0.0, strength: float = 0.01) -> Problem:
    return Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": 1.0},
            "teacher": {"noise": noise},
            "regularizer": {"strength": strength},
            "loss": {"kind": "expression", "expression": formula},
        }
    )


def test_the_fixed_point_of_an_absolute_loss_is_that_of_its_closed_form():
    """No Gauss-Hermite rule is taken across the kink, every node is solved, and q, V and theta have true errors."""
    problem = problem_of("0.8*abs(h - k - noise)", noise=0.4, strength=0.07)
    point = ap.solve(problem, alpha=1.7, branch="semantic")
    assert int(point.status) == Status.converged
    assert int(point.unsolved_nodes) == 0
    right = own_overlaps(1.7, 0.07, 0.4, 0.8)
    for name, value in zip(("q", "V", "theta"), right, strict=True):
        found, error = (float(point[each].squeeze()) for each in (name, f"{name}_stderr"))
        assert 0 < error < 0.01 * value
        assert abs(found - value) < 4 * error, (name, found, error, value)


def minimised(formula: str, V: float):
    """Centres, teacher's fields, and what the minimiser finds, for 256 nodes from all starts."""
    channel = Channel(System.of(problem_of(formula)), sobol(2, 1, False, 64, 4, 5))
    omega, k = np.random.default_rng(2).normal(0.2, 1.5, (2, 1, 1, 4, 64, 1, 1))
    found, minima = channel.proximal.minimise(omega, k, np.full((1, 1, 1), V), ((0, 1),), Starts.COLD, None)
    return omega, k, found, minima.fields[:, 0].reshape(omega.shape)


@pytest.mark.parametrize("V", [0.02, 0.7, 4.0])
def test_the_hinge_as_a_formula_has_the_proximal_points_of_the_hinge(V):
    omega, k, found, h = minimised("max(0, 1 - h*sign(k))", V)
    label = np.sign(k)
    residual = label * np.clip((1 - label * omega) / V, 0, 1)
    assert ((residual != 0) & (np.abs(residual) < 1)).any()
    np.testing.assert_allclose(found.residual, residual, atol=1e-9)
    np.testing.assert_allclose(h, omega + V * residual, atol=1e-10)


@pytest.mark.parametrize("V", [0.3, 2.0])
@pytest.mark.parametrize(
    ("formula", "loss"),
    [
        ("abs(abs(h) - abs(k))", lambda h, k: np.abs(np.abs(h) - np.abs(k))),
        ("abs(h**2 - k**2)/2", lambda h, k: np.abs(h**2 - k**2) / 2),
        ("relu(h - k) + 0.3*relu(k - h) + h**2/8", lambda h, k: np.maximum(h - k, 0.3 * (k - h)) + h**2 / 8),
    ],
)
def test_lowest_minima_of_losses_with_kinks_are_those_of_a_grid(formula, loss, V):
    omega, k, found, h = minimised(formula, V)
    grid = np.linspace(-9, 9, 36001)
    best = ((grid - omega) ** 2 / (2 * V) + loss(grid, k)).min(axis=-1, keepdims=True)
    own = (h - omega) ** 2 / (2 * V) + loss(h, k)
    # a step of the grid is 5e-4, times slopes up to ten
    np.testing.assert_array_less(own, best + 1e-9)
    np.testing.assert_allclose(own, best, atol=5e-3)
    np.testing.assert_allclose(found.residual, (h - omega) / V, atol=1e-8)


@pytest.mark.parametrize(
    ("formula", "kink"),
    [
        ("abs(h0_0 - 2*k0_0)", True),
        ("max(h0_0, h1_0 - k0_0)", True),
        ("abs(h**3 - k)", True),
        ("sqrt((h - k)**2)", True),
        ("relu(1 - h*sign(k))**2", False),
        ("min(abs(h - k), 1)**2/2 + relu(abs(h - k) - 1)", False),  # Huber's
        ("min(abs(h - k), 1)**2/2 + relu(abs(h - k) - 2)", True),
        ("(h - k)*abs(h - k)", False),
        ("(h - abs(k))**2 + max(k, 0)", False),
    ],
)
def test_a_formula_has_a_kink_where_its_gradient_jumps(formula, kink):
    assert formula_has_kink(formula) is kink


def test_a_kinked_formula_is_not_trained_by_steps_across_its_kink():
    """As the hinge; a formula without a kink is."""
    assert problem_of("abs(h - k)").loss.form.has_kink
    assert not problem_of("relu(1 - h*sign(k))**2").loss.form.has_kink


def test_the_sign_of_a_field_of_the_student_is_refused():
    text = "(h - k)**2 + 0.5*sign(h - 1)*k"
    with pytest.raises(ProblemError, match=re.escape("loss.expression takes sign(h0_0 - 1)")):
        problem_of(text)
    assert problem_of("(h - sign(k - 1))**2").loss.expression == "(h - sign(k - 1))**2"
