"""Classification near a hard margin, where fixed points lie far from their start.

Expected numbers are those of `own_point`: the equations of one token, iterated plainly on a grid of 4001 points, with
no rule, start or minimiser of the package.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, ndtr

import attnphase as ap
from attnphase.integration.kinds import Automatic
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Anderson, Newton, Plain, Status, iterate


def _hinge(omega: np.ndarray, V: float) -> np.ndarray:
    return np.clip((1 - omega) / V, 0.0, 1.0)


def _logistic(omega: np.ndarray, V: float) -> np.ndarray:
    """``g`` with ``g = 1 / (1 + exp(omega + V g))``, by bisection."""
    low, high = np.zeros_like(omega), np.ones_like(omega)
    for _ in range(45):
        middle = (low + high) / 2
        above = middle > expit(-omega - V * middle)
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return (low + high) / 2


OWN = {"hinge": _hinge, "logistic": _logistic}


def own_point(loss: str, alpha: float, strength: float, sigma: float, start: tuple[float, float, float]):
    """Overlaps q, V and theta, by averages over omega given the label +1 (the label -1 is its mirror image)."""
    g_of, gamma = OWN[loss], sigma**2
    z = np.linspace(-9, 9, 4001)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    q, V, theta = start
    for _ in range(4000):
        omega, mean, spread = np.sqrt(q) * z, theta * z / np.sqrt(q), np.sqrt(gamma - theta**2 / q)
        g = g_of(omega, V)
        label = 2 * ndtr(mean / spread)
        q_hat = alpha * density @ (label * g**2)
        at_zero = np.exp(-((mean / spread) ** 2) / 2) / np.sqrt(2 * np.pi) / spread
        theta_hat = 2 * alpha * density @ (at_zero * g)
        # by Stein's lemma, from which the part by the label is taken off
        V_hat = -alpha * (density @ (label * g * z)) / np.sqrt(q) + theta_hat * theta / q
        curvature = strength + gamma * V_hat
        new = (
            gamma**2 * (q_hat + gamma * theta_hat**2) / curvature**2,
            gamma / curvature,
            gamma**2 * theta_hat / curvature,
        )
        moved = max(abs(a - b) / b for a, b in zip(new, (q, V, theta), strict=True))
        q, V, theta = new
        if moved < 1e-8:
            return q, V, theta
    raise AssertionError("own iteration has not converged")


def problem_of(loss: str, strength: float, sigma: float, rule: str) -> Problem:
    return Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": sigma},
            "loss": {"kind": loss},
            "regularizer": {"strength": strength},
            "integration": {"rule": rule},
        }
    )


@pytest.mark.parametrize("method", ["newton", "anderson"])
@pytest.mark.parametrize(
    ("loss", "alpha", "strength", "sigma"), [("hinge", 6.5, 0.006, 0.9), ("logistic", 9.0, 0.0007, 1.2)]
)
def test_a_point_far_from_its_start_is_reached_with_the_maps_that_are_given(loss, alpha, strength, sigma, method):
    problem = problem_of(loss, strength, sigma, "sobol")
    point = ap.solve(problem, alpha=alpha, branch="semantic", settings=ap.SolverSettings(method=method, max_maps=2000))
    assert int(point.status) == Status.converged
    right = own_point(loss, alpha, strength, sigma, (30.0, 5.0, 4.0))
    for name, value in zip(("q", "V", "theta"), right, strict=True):
        found, error = (float(point[each].squeeze()) for each in (name, f"{name}_stderr"))
        assert abs(found - value) < 4 * error, (name, found, error, value)


def test_a_point_that_a_tensor_rule_cannot_hold_ends_no_sweep(capfd):
    """The loss at alpha = 25 is too narrow for few nodes of a tensor rule, under which V_hat has the wrong sign."""
    strength, sigma, alphas = 0.03, 1.1, [1.5, 25.0]
    problem = problem_of("logistic", strength, sigma, "auto")
    points = ap.sweep(problem, alpha=alphas, branch="semantic", workers=1).squeeze("branch")
    assert int(points.status[0]) == Status.converged
    assert np.isfinite(points.q).all()
    last = ap.solve(problem, alpha=alphas[1], branch="semantic", settings=ap.SolverSettings(max_maps=2000))
    assert int(last.status) == Status.converged
    right = own_point("logistic", alphas[1], strength, sigma, (80.0, 2.0, 8.0))
    for name, value in zip(("q", "V", "theta"), right, strict=True):
        found, error = (float(last[each].squeeze()) for each in (name, f"{name}_stderr"))
        assert abs(found - value) < 4 * error, (name, found, error, value)
    assert capfd.readouterr().out == ""


def test_derivatives_that_are_not_numbers_reach_no_lapack(capfd):
    """LAPACK would write a complaint to standard output, where results belong."""
    unknown = np.full((2, 2), np.nan)
    found = iterate(lambda x: x / 2, np.ones(2), np.ones_like, Newton(unknown), tolerance=1e-6, max_maps=400)
    # damped by .8 an eigenvalue of one half makes steps of 1 - .2 (1 - .5)
    assert found.status is Status.converged
    assert found.maps == 1 + np.ceil(np.log(2e-6) / np.log(0.9))
    step = Anderson().step
    step(np.ones(2), np.full(2, np.inf), np.ones(2), lambda x: x)
    step(np.full(2, 0.5), np.ones(2), np.ones(2), lambda x: x)
    assert capfd.readouterr().out == ""


def test_plain_steps_are_full_where_the_residual_keeps_its_side_and_shorter_where_it_turns():
    """Eigenvalue .9: full steps, so .9 a map.  Eigenvalue -7: only shares below 2/8 converge."""
    slow = iterate(lambda x: 0.9 * x, np.ones(1), np.ones_like, Plain(), tolerance=1e-8, max_maps=400)
    assert slow.history[-1] / slow.history[-2] == pytest.approx(0.9)
    fast = iterate(lambda x: -7.0 * x, np.ones(1), np.ones_like, Plain(), tolerance=1e-8, max_maps=400)
    assert slow.status is fast.status is Status.converged


@pytest.mark.parametrize(("strength", "sigma", "alpha"), [(0.012, 0.95, 18.0)])
def test_sobol_points_replace_a_tensor_rule_under_which_nothing_converges(monkeypatch, strength, sigma, alpha):
    """Few nodes of a tensor rule lead farther on to a point of their own, which is far off with a small error."""
    monkeypatch.setattr(Automatic, "of_solve", lambda self, **_: self)
    problem = problem_of("logistic", strength, sigma, "auto")
    point = ap.solve(
        problem, alpha=alpha, branch="semantic", settings=ap.SolverSettings(identity=False, stability=False)
    )
    assert int(point.status) == Status.converged
    assert point.attrs["rule"] == "sobol"
    assert int(point.nodes) >= 4096
    right = own_point("logistic", alpha, strength, sigma, (120.0, 2.0, 8.0))
    for name, value in zip(("q", "V", "theta"), right, strict=True):
        found, error = (float(point[each].squeeze()) for each in (name, f"{name}_stderr"))
        assert abs(found - value) < 4 * error < 0.04 * abs(value), (name, found, error, value)


@pytest.mark.parametrize(("strength", "sigma", "alpha"), [(0.012, 0.95, 18.0), (0.0034, 0.85, 15.0), (0.01, 2.1, 9.0)])
def test_lines_resolve_narrow_labels(strength, sigma, alpha):
    """With a thousand nodes at most, where fixed tensor rules lead astray."""
    point = ap.solve(
        problem_of("logistic", strength, sigma, "auto"),
        alpha=alpha,
        settings=ap.SolverSettings(identity=False, stability=False),
    )
    assert int(point.status) == Status.converged
    assert point.attrs["rule"] == "lines"
    assert int(point.nodes) <= 2000
    right = own_point("logistic", alpha, strength, sigma, (120.0, 2.0, 8.0))
    for name, value in zip(("q", "V", "theta"), right, strict=True):
        found, error = (float(point[each].squeeze()) for each in (name, f"{name}_stderr"))
        assert abs(found - value) < 2 * error + 1e-6 * value, (name, found, error, value)
        assert error < 2e-3 * value
