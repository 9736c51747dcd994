"""Losses with kinks given as formulas: minima at the kinks, and fixed points.

Expected numbers are those of `own_overlaps`, the equations of regression with one token in closed form, of the
hinge's proximal point, and of energies on a fine grid.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from scipy.special import erf
from sympy import symbols
from uncompiled import uncompiled

import attnphase as ap
from attnphase.errors import ProblemError
from attnphase.integration.rules import sobol
from attnphase.kernels.local.constants import Starts
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.system import System
from derivations.models.functions import Modulus, Relu
from derivations.models.kinks import kinks
from derivations.models.scalar import formula_roughness


def own_overlaps(
    alpha: float, strength: float, noise: float, slope: float, tokens: int = 1
) -> tuple[float, float, float]:
    """Overlaps q, V and theta of ``slope |h - y|`` with ``y = k + sqrt(noise) z``, where h and k sum over the tokens.

    The variance of a token's k is one.  All tokens have ``g = clip(u/(L V), -slope, slope)`` of ``u = y - omega``, a
    Gaussian of variance ``L (q - 2 theta + 1) + noise``.
    """
    q, V, theta = 1.0, 1.0, 0.5
    for _ in range(20000):
        spread, width = np.sqrt(tokens * (q - 2 * theta + 1) + noise), tokens * V
        edge = slope * width / spread
        inside = erf(edge / np.sqrt(2))
        density = np.exp(-(edge**2) / 2) / np.sqrt(2 * np.pi)
        squares = (spread / width) ** 2 * (inside - 2 * edge * density) + slope**2 * (1 - inside)
        q_hat = tokens * alpha * squares
        V_hat = theta_hat = tokens * alpha * inside / width
        curvature = strength + V_hat
        new = ((q_hat + theta_hat**2) / curvature**2, 1 / curvature, theta_hat / curvature)
        moved = max(abs(a - b) for a, b in zip(new, (q, V, theta), strict=True))
        q, V, theta = new
        if moved < 1e-12:
            return q, V, theta
    raise AssertionError("own iteration has not converged")


def problem_of(formula: str, noise: float = 0.0, strength: float = 0.01, length: int = 1, rank: int = 1) -> Problem:
    return Problem.from_dict(
        {
            "tokens": {"length": length, "sigma": 1.0},
            "positions": {"kind": "none"},
            "student": {"rank": rank},
            "teacher": {"noise": noise, "rank": rank},
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


@pytest.mark.parametrize(
    ("formula", "alpha", "tokens"),
    [
        ("0.8*abs(h0_0 + h1_0 - k0_0 - k1_0 - noise0_0)", 1.3, 2),
        ("0.8*abs(h0_0 - k0_0 - noise0_0) + 0.8*abs(h1_0 - k1_0 - noise1_0)", 0.85, 1),  # two samples of one token
    ],
)
def test_fixed_points_of_absolute_losses_of_two_tokens_are_those_of_their_closed_form(formula, alpha, tokens):
    point = ap.solve(problem_of(formula, noise=0.4, strength=0.07, length=2), alpha=alpha, branch="semantic")
    assert int(point.status) == Status.converged
    assert int(point.unsolved_nodes) == 0
    right = own_overlaps(2 * alpha / tokens, 0.07, 0.4, 0.8, tokens)
    for name, value in zip(("q", "V", "theta"), right, strict=True):
        found, error = (point[each].to_numpy().ravel() for each in (name, f"{name}_stderr"))
        assert ((error > 0) & (error < 0.01 * value)).all()
        assert (abs(found - value) < 4 * error).all(), (name, found, error, value)


def minimised(formula: str, V, length: int = 1, rank: int = 1, count: int = 24):
    """Centres, teacher's fields, and what the minimiser finds, for four times ``count`` nodes from all starts."""
    omega, k = np.random.default_rng(2).normal(0.2, 1.5, (2, 1, 1, 4, count, length, rank))
    variances = np.broadcast_to(np.asarray(V, dtype=float), (length, rank, rank)).copy()
    with uncompiled():
        system = System.of(problem_of(formula, length=length, rank=rank))
        channel = Channel(system, sobol(2 * length * rank, 1, False, count, 4, 5))
        found, minima = channel.proximal.minimise(omega, k, variances, ((0, 1),), Starts.COLD, None)
    assert (minima.steps >= 0).all()
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


@pytest.mark.parametrize("V", [0.04, 2.5])
def test_two_absolute_losses_are_solved_apart(V):
    omega, k, found, h = minimised("abs(h0_0 - k0_0) + 0.6*abs(h1_0 - k1_0)", V, length=2)
    bound = np.array([1.0, 0.6])[:, None]
    residual = np.clip((k - omega) / V, -bound, bound)
    np.testing.assert_allclose(found.residual, residual, atol=1e-9)
    np.testing.assert_allclose(h, omega + V * residual, atol=1e-9)


def truncated_overlaps(alpha: float, strength: float, noise: float) -> tuple[float, float, float]:
    """Overlaps q, V and theta of ``min(|h - y|, 1)`` with ``y = k + sqrt(noise) z``, where k has variance one.

    The proximal point is omega, or that of ``|h - y|``, a soft threshold, where this has the lower energy: up to
    ``1 + V/2`` of ``|y - omega|``, if V is below two.
    """
    q, V, theta = 0.5, 1.0, 0.5
    for _ in range(20000):
        spread = np.sqrt(q - 2 * theta + 1 + noise)
        u = np.linspace(0, 1 + V / 2, 8001)
        g = np.minimum(u / V, 1)
        weight = 2 * np.exp(-(u**2) / (2 * spread**2)) / np.sqrt(2 * np.pi) / spread * (u[1] - u[0])
        weight[[0, -1]] /= 2
        # by parts: the mean of dg/du, jumps included
        slope = (weight * g * u).sum() / spread**2
        q_hat, V_hat = alpha * (weight * g**2).sum(), alpha * slope
        new = ((q_hat + V_hat**2) / (strength + V_hat) ** 2, 1 / (strength + V_hat), V_hat / (strength + V_hat))
        moved = max(abs(a - b) for a, b in zip(new, (q, V, theta), strict=True))
        q, V, theta = (0.5 * (a + b) for a, b in zip(new, (q, V, theta), strict=True))
        if moved < 1e-10:
            assert V < 2
            return q, V, theta
    raise AssertionError("own iteration has not converged")


def test_the_fixed_point_of_a_truncated_loss_is_that_of_its_two_candidates():
    point = ap.solve(problem_of("min(abs(h - k - noise), 1)", noise=0.3, strength=0.4), alpha=1.9, branch="semantic")
    assert int(point.status) == Status.converged
    for name, value in zip(("q", "V", "theta"), truncated_overlaps(1.9, 0.4, 0.3), strict=True):
        found, error = (float(point[each].squeeze()) for each in (name, f"{name}_stderr"))
        assert 0 < error < 0.02 * value
        assert abs(found - value) < 4 * error, (name, found, error, value)


@pytest.mark.parametrize("V", [0.9, 40.0])
def test_losses_that_flatten_away_from_their_kinks_have_the_lowest_minima_of_a_grid(V):
    """From elsewhere no slope leads to the kinks."""
    omega, k, _, h = minimised("min(abs(h**2 - k - 1), 2) + 0.4*min(abs(h - k + 0.3), 0.6)", V)

    def energy(fields):
        far, near = abs(fields**2 - k - 1), abs(fields - k + 0.3)
        return (fields - omega) ** 2 / (2 * V) + np.minimum(far, 2) + 0.4 * np.minimum(near, 0.6)

    grid = energy(np.linspace(-9, 9, 90001)).min(axis=-1)
    np.testing.assert_array_less(energy(h)[..., 0], grid + 1e-9)


@pytest.mark.parametrize("V", [0.9, 40.0])
def test_losses_of_two_fields_that_flatten_have_the_lowest_minima_of_a_grid(V):
    """At one kink, at the other, at both, or at none."""
    omega, k, _, h = minimised("min(abs(h0_0 - k0_0 - k1_0), 1) + min(abs(h1_0 - k1_0 + 0.4), 1)", V, length=2)

    def own(fields, label, center):
        return (fields - center) ** 2 / (2 * V) + np.minimum(abs(fields - label), 1)

    labels = np.stack([k[..., 0, 0] + k[..., 1, 0], k[..., 1, 0] - 0.4], axis=-1)[..., None]
    grid = own(np.linspace(-9, 9, 18001), labels, omega).min(axis=-1).sum(axis=-1)
    np.testing.assert_array_less(own(h, labels, omega).sum(axis=(-2, -1)), grid + 1e-9)


def share(first, second):
    return 1 / (1 + np.exp(second - first))


@pytest.mark.parametrize(
    ("formula", "loss", "columns"),
    [
        (
            "relu(1 - sign(k0_0 + k1_0)*(h0_0 + h1_0))",
            lambda a, b, k, l: np.maximum(0, 1 - np.sign(k + l) * (a + b)),
            False,
        ),
        (
            "max(0.9*(k0_0 - h0_0), 0.1*(h0_0 - k0_0)) + 0.5*abs(h0_0 - 2*h1_0 + k1_0) + 0.2*abs(h1_0 + h0_0)",
            lambda a, b, k, l: np.maximum(0.9 * (k - a), 0.1 * (a - k)) + abs(a - 2 * b + l) / 2 + abs(a + b) / 5,
            True,
        ),
        (
            "relu(h0_0 + h1_0 - k0_0) - 0.3*abs(2*k0_0 - 2*h1_0 - 2*h0_0) + (h0_0 - k1_0)**2",
            lambda a, b, k, l: np.maximum(a + b - k, 0) - 0.6 * abs(a + b - k) + (a - l) ** 2,
            False,
        ),
        ("max(abs(h0_0 - k0_0), abs(h1_0 - k1_0))", lambda a, b, k, l: np.maximum(abs(a - k), abs(b - l)), True),
        (
            "3*abs(exp(h0_0)/(exp(h0_0) + exp(h1_0)) - exp(k0_0)/(exp(k0_0) + exp(k1_0)))",
            lambda a, b, k, l: 3 * abs(share(a, b) - share(k, l)),
            False,
        ),
        ("abs(h0_0*h1_0 - k0_0*k1_0)", lambda a, b, k, l: abs(a * b - k * l), True),
        ("abs(abs(h0_0 + h1_0) - abs(k0_0 + k1_0))", lambda a, b, k, l: abs(abs(a + b) - abs(k + l)), False),
    ],
)
def test_lowest_minima_of_two_fields_are_those_of_a_grid(formula, loss, columns):
    """Of two tokens, or of two columns, whose variances are correlated."""
    text = re.sub(r"([hk])1_0", r"\g<1>0_1", formula) if columns else formula
    V = np.array([[1.7, 0.8], [0.8, 0.9]]) if columns else np.diag([1.3, 1.3])
    sizes = {"length": 1, "rank": 2} if columns else {"length": 2, "rank": 1}
    omega, k, found, h = minimised(text, V if columns else V[:1, :1], count=16, **sizes)
    omega, k, g, h = (each.reshape(-1, 2) for each in (omega, k, found.residual, h))
    np.testing.assert_allclose(g @ V, h - omega, atol=1e-9)

    def energy(fields, at):
        apart = fields - omega[at]
        return np.einsum("...a,ab,...b", apart, np.linalg.inv(V), apart) / 2 + loss(*np.moveaxis(fields, -1, 0), *k[at])

    grid = np.stack(np.meshgrid(*[np.linspace(-7, 7, 281)] * 2), axis=-1)
    near = np.random.default_rng(4).normal(size=(500, 2)) * np.geomspace(1e-5, 1, 500)[:, None]
    for at in range(len(h)):
        own = energy(h[at], at)
        assert own <= energy(grid, at).min() + 1e-9
        assert own <= energy(h[at] + near, at).min() + 1e-11


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
    assert formula_roughness(formula).kink is kink


def test_steps_follow_a_kink_that_is_curved():
    """Wide minima on a quadric: all are found, though a step along the kink leaves it."""
    V = np.array([[20.0, 12.0], [12.0, 15.0]])
    omega, k, found, h = minimised("abs(h0_0*h1_0 + h0_1*h1_1 - k0_0*k1_0)", V, length=2, rank=2)
    np.testing.assert_allclose(omega + found.residual @ V, h, atol=1e-9)
    level = (h[..., 0, :] * h[..., 1, :]).sum(axis=-1) - k[..., 0, 0] * k[..., 1, 0]
    assert np.median(abs(level)) < 1e-9


def test_arguments_in_proportion_are_one_kink():
    """Of opposite signs, their slopes may only be added."""
    h, k = symbols("h k", real=True)
    pair: list[Any] = [Relu(h - k), Modulus(2 * k - 2 * h)]
    assert len(kinks(pair[0] - pair[1] / 3 + Modulus(h + k), [h])) == 2
    assert kinks(pair[0] ** 2 + Modulus(k), [h]) == ()


def test_a_kinked_formula_is_not_trained_by_steps_across_its_kink():
    """As the hinge; a formula without a kink is."""
    assert problem_of("abs(h - k)").loss.form.has_kink
    assert not problem_of("relu(1 - h*sign(k))**2").loss.form.has_kink


@pytest.mark.parametrize("text", ["sqrt(abs(h0_0 - k1_0)) + h1_0**2", "(0.5 + abs(h0_0 - k1_0)**0.3)*h1_0**2"])
def test_an_infinite_slope_at_a_kink_of_several_fields_is_refused(text):
    with pytest.raises(ProblemError, match=re.escape("infinite slope where h0_0 - k1_0 vanishes")):
        problem_of(text, length=2)
    finite = text.replace("abs(h0_0 - k1_0)", "(0.1 + abs(h0_0 - k1_0))")
    assert problem_of(finite, length=2).loss.form.has_kink


def test_the_sign_of_a_field_of_the_student_is_refused():
    text = "(h - k)**2 + 0.5*sign(h - 1)*k"
    with pytest.raises(ProblemError, match=re.escape("loss.expression takes sign(h0_0 - 1)")):
        problem_of(text)
    assert problem_of("(h - sign(k - 1))**2").loss.expression == "(h - sign(k - 1))**2"
