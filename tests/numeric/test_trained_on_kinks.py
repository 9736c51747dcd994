"""Trained parameters of losses with kinks: quantiles, hinges with a bias, units with a threshold.

Expected numbers are those of a state evolution by proximal points in closed form, and differences of minimised losses.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trained_on_kinks import Own, of_kinks, own_fixed_point
from uncompiled import uncompiled

import attnphase as ap
from attnphase.errors import ProblemError
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.integration.rules import sobol
from attnphase.kernels.local.constants import Starts
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.proximal import lower_factors
from attnphase.state_evolution.system import System

SETTINGS = SolverSettings(threads=1, stability=False)

# --- the slope of the minimised loss ----------------------------------------------------------------------------------


def minimised_loss(omega: Any, k: Any, V: float, b: float, a: float, w: float) -> Any:
    """Of ``a (h - 1)^2 / 2 + w |h - k - 2 b|``, a soft threshold about the minimum without the modulus."""
    width = V / (1 + a * V)
    h = width * (omega / V + a)
    away = h - k - 2 * b
    h = k + 2 * b + np.sign(away) * np.maximum(np.abs(away) - w * width, 0)
    return (h - omega) ** 2 / (2 * V) + a * (h - 1) ** 2 / 2 + w * np.abs(h - k - 2 * b)


def slopes_of(formula: str, numbers: dict[str, float], V: Any, length: int = 1, rank: int = 1, Q: float | None = None):
    """Cavity fields, labels, slopes and curvatures of nodes, and functions of what is trained: energies and slopes."""
    omega, k = np.random.default_rng(2).normal(0.2, 1.5, (2, 24, length, rank))
    variances = np.broadcast_to(np.asarray(V, dtype=float), (length, rank, rank)).copy()
    problem = Problem.from_dict(
        {
            "tokens": {"length": length, "sigma": 1.0},
            "positions": {"kind": "none"},
            "student": {"rank": rank},
            "teacher": {"rank": rank},
            "regularizer": {"strength": 0.1},
            "loss": {
                "kind": "expression",
                "expression": formula,
                "parameters": numbers,
                "trained": dict.fromkeys(numbers, "0"),
            },
        }
    )
    begin = np.array([*numbers.values(), *([] if Q is None else [Q])])

    def at(trained: Any) -> tuple[Any, Any, Any]:
        with uncompiled():
            system = System.of(problem).at(trained)
            channel = Channel(system, sobol(2 * length * rank, 1, False, len(omega), 1, 5))
            found, minima = channel.proximal.minimise(
                omega[None, None, None], k[None, None, None], variances, ((0, 1),), Starts.COLD, None
            )
            assert (minima.steps >= 0).all()
            slopes, curvatures = channel.proximal.trained_slopes_of(
                0, omega, k, lower_factors(variances), minima.fields[:, 0]
            )
        return found.envelope.ravel(), slopes, curvatures

    return omega, k, begin, at


def test_the_slope_on_a_kink_is_that_of_the_minimised_loss():
    """Not that of the step from the cavity field, which the other term has a part in."""
    V, (a, w, b) = 0.8, (0.7, 1.3, 0.3)
    omega, k, begin, at = slopes_of(f"{a}*(h - 1)**2/2 + {w}*abs(h - k - 2*b)", {"b": b}, V)
    _, slopes, curvatures = at(begin)
    omega, k, step = omega.ravel(), k.ravel(), 1e-5
    wanted = (minimised_loss(omega, k, V, b + step, a, w) - minimised_loss(omega, k, V, b - step, a, w)) / (2 * step)
    np.testing.assert_allclose(slopes[:, 0], wanted, atol=1e-8)
    on = np.abs(wanted) < 2 * w - 1e-6
    assert 3 <= on.sum() <= len(on) - 3
    # on the kink h = k + 2 b, of which the energy has this second derivative in b
    np.testing.assert_allclose(curvatures[:, 0, 0], np.where(on, 4 * (1 / V + a), 0.0), atol=1e-8)


@pytest.mark.parametrize(
    ("formula", "numbers", "V", "sizes"),
    [
        ("max(0.9*(k - h - b), 0.1*(h + b - k)) + 0.3*(k - h - b)**2", {"b": 0.3}, 2.0, {}),
        ("(relu(a*h - b) - k)**2/2", {"a": 1.2, "b": 0.3}, 2.0, {}),
        ("relu(1 - sign(k)*(a*h + b))", {"a": 0.8, "b": 0.3}, 1.5, {}),
        ("a*abs(h - k - b*Q) + Q*h**2/5", {"a": 0.8, "b": 0.3}, 1.5, {"Q": 1.1}),
        ("w*abs(h0_0*h1_0 - b*k0_0) + 0.4*abs(h0_0 - h1_0 + a)", {"w": 1.0, "a": 0.2, "b": 0.7}, 1.3, {"length": 2}),
        ("abs(h0_0*h0_1 - b*k0_0) + relu(h0_1 - a*k0_1)", {"a": 0.6, "b": 0.7}, [[1.7, 0.8], [0.8, 0.9]], {"rank": 2}),
        ("log(1 + exp(-sign(k)*(a*h + b)))", {"a": 0.8, "b": 0.3}, 2.0, {}),  # without a kink
    ],
)
def test_derivatives_are_those_of_minimised_losses(formula: str, numbers: dict[str, float], V: Any, sizes: Any):
    """By central differences of the lowest energies, and of their slopes; one or two kinks hold, or none."""
    _, _, begin, at = slopes_of(formula, numbers, V, **sizes)
    _, slopes, curvatures = at(begin)
    step = 1e-4
    for place, one in enumerate(step * np.eye(len(begin))):
        (high, above, _), (low, below, _) = at(begin + one), at(begin - one)
        np.testing.assert_allclose(slopes[:, place], (high - low) / (2 * step), atol=1e-6)
        if place < len(numbers):  # of Q they are those at fixed fields
            followed = (above - below) / (2 * step)
            np.testing.assert_allclose(curvatures[:, place, : len(numbers)], followed[:, : len(numbers)], atol=2e-6)


# --- fixed points -----------------------------------------------------------------------------------------------------

CASES = {
    "median": (3.0, 1.0, 0.4, 0.0, {"pinball": 0.8, "size": 0.3}),  # the median of y - 0.3 Q - h is b
    "quantile": (3.0, 1.0, 0.1, 0.001, {"pinball": 1.0, "tau": 0.9}),
    "with a square": (1.6, 0.7, 0.2, 0.3, {"pinball": 1.3, "tau": 0.2, "square": 0.6}),
    "with an anchor": (2.0, 0.5, 0.3, 0.05, {"pinball": 1.2, "tau": 0.3, "anchor": 0.4, "enters": 2.0}),
    "hinge": (2.5, 0.2, 0.3, 0.02, {"hinge": 1.1, "edge": 0.4}),
    "unit": (2.5, 0.3, 0.3, 0.05, {"unit": 1.0}),
}


def compared(point: BranchPoint, own: Own) -> None:
    assert point.status is Status.converged
    for name in ("q", "theta", "V", "trained"):
        value, error = (float(np.ravel(one[name])[0]) for one in (point.values, point.errors))
        wanted = own.b if name == "trained" else getattr(own, name)
        assert abs(value - wanted) <= 4 * error + 1e-7, (name, value, wanted, error)
        assert error < 2e-3 * max(abs(wanted), 0.1)


@pytest.mark.parametrize("name", CASES)
def test_a_parameter_on_a_kink_is_that_of_closed_forms(name: str):
    alpha, noise, strength, penalty, numbers = CASES[name]
    own = own_fixed_point(alpha, noise, strength, penalty, **numbers)
    assert abs(own.b) > 0.1
    compared(solve_point(of_kinks(noise, strength, penalty, **numbers), alpha, settings=SETTINGS), own)


quantiles = st.fixed_dictionaries(
    {"pinball": st.floats(0.6, 1.5), "tau": st.floats(0.1, 0.9), "square": st.sampled_from([0.0, 0.7])},
    optional={"anchor": st.floats(0.1, 0.6), "enters": st.sampled_from([-1.3, 0.6, 2.0]), "size": st.floats(-0.1, 0.3)},
)
hinges = st.fixed_dictionaries({"hinge": st.floats(0.7, 1.4), "edge": st.floats(-0.6, 0.6)})
units = st.fixed_dictionaries({"unit": st.just(1.0), "b": st.floats(-0.3, 0.3)})


@settings(max_examples=9, deadline=None)
@given(
    numbers=st.one_of(quantiles, hinges, units),
    alpha=st.floats(1.5, 3.5),
    noise=st.floats(0.3, 1.2),
    strength=st.floats(0.1, 0.6),
    penalty=st.sampled_from([0.003, 0.05, 0.8]),
)
def test_drawn_parameters_on_kinks_are_those_of_closed_forms(
    numbers: dict[str, float], alpha: float, noise: float, strength: float, penalty: float
):
    own = own_fixed_point(alpha, noise, strength, penalty, **{name: x for name, x in numbers.items() if name != "b"})
    compared(solve_point(of_kinks(noise, strength, penalty, **numbers), alpha, settings=SETTINGS), own)


def test_a_loose_tolerance_leaves_no_wrong_parameter():
    alpha, noise, strength, penalty, numbers = CASES["quantile"]
    own = own_fixed_point(alpha, noise, strength, penalty, **numbers)
    loose = SolverSettings(threads=1, stability=False, tolerance=1e-4)
    compared(solve_point(of_kinks(noise, strength, penalty, **numbers), alpha, settings=loose), own)


@pytest.mark.parametrize("start", [-30.0, 400.0])
def test_an_intercept_far_from_the_labels_comes_back(start: float):
    """There no proximal point lies on the kink, and without a penalty the objective has no curvature."""
    own = own_fixed_point(3.0, 1.0, 0.4, 0.0, pinball=1.0, tau=0.8)
    compared(solve_point(of_kinks(1.0, 0.4, 0.0, pinball=1.0, tau=0.8, b=start), 3.0, settings=SETTINGS), own)


@pytest.mark.parametrize("name", ["quantile", "hinge"])
def test_errors_of_a_parameter_on_a_kink_are_those_of_its_seeds(name: str):
    """Distances to the closed form under eight seeds are as large as stated."""
    alpha, noise, strength, penalty, numbers = CASES[name]
    own = own_fixed_point(alpha, noise, strength, penalty, **numbers)
    problem, scores = of_kinks(noise, strength, penalty, **numbers), []
    for seed in range(8):
        sampled = {"integration.rule": "sobol", "integration.nodes": 256, "integration.seed": seed}
        point = solve_point(problem.with_fields(sampled), alpha, settings=SETTINGS)
        scores.append((point.values["trained"][0] - own.b) / point.errors["trained"][0])
    assert 0.4 < np.sqrt(np.mean(np.square(scores))) < 2.2


def test_derivatives_of_a_parameter_on_a_kink():
    """In alpha, by differences of the closed forms."""
    alpha, noise, strength, penalty, numbers = CASES["quantile"]
    found = ap.sensitivity(of_kinks(noise, strength, penalty, **numbers), alpha, field="alpha", settings=SETTINGS)
    high, low = (own_fixed_point(alpha + step, noise, strength, penalty, **numbers) for step in (0.01, -0.01))
    for name, place in (("trained", 3), ("V", 2)):
        value, error = (float(np.ravel(found[f"d_{name}{end}"])[0]) for end in ("", "_stderr"))
        wanted = (high[place] - low[place]) / 0.02
        assert abs(value - wanted) <= 4 * error + 2e-4 * abs(wanted)
        assert error < 0.01 * abs(wanted)


@pytest.mark.parametrize("penalty", [-0.05, -0.8])
def test_a_maximum_on_a_kink_is_no_solution(penalty: float):
    """For a median of symmetric labels b = 0 is stationary, and by the closed forms a minimum or a maximum."""
    numbers = {"pinball": 1.0}
    high = own_fixed_point(2.5, 0.8, 0.3, penalty, held=0.05, **numbers).slope
    point = solve_point(of_kinks(0.8, 0.3, penalty, **numbers), 2.5, settings=SETTINGS)
    assert (high > 0) == (penalty == -0.05)
    assert point.status is (Status.converged if high > 0 else Status.left_domain)


def test_checks_hold():
    alpha, noise, strength, penalty, numbers = CASES["with an anchor"]
    report = ap.check(of_kinks(noise, strength, penalty, **numbers), alpha, experiment=False)
    assert [check.name for check in report.checks if not check.passed] == []
    assert {"slopes of trained parameters"} <= {check.name for check in report.checks}


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "node", "name"),
    [("softplus(-sign(a*k - b)*h)", "sign(a*k0_0 - b)", "b"), ("(h - k)**2 + b*sign(Q - a)", "sign(Q0_0 - a)", "Q0_0")],
)
def test_a_jump_in_what_is_trained_is_refused(text: str, node: str, name: str):
    loss = {"kind": "expression", "expression": text, "parameters": {"a": 0.7, "b": 0.3}, "trained": {"b": "b**2"}}
    with pytest.raises(ProblemError, match=re.escape(f"loss.expression takes {node}, which jumps in {name}, and")):
        Problem.from_dict({"tokens": {"length": 1}, "regularizer": {"strength": 0.1}, "loss": loss})
