"""Where all weights vanish: a flag says so, and no covariance is negative."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import attnphase as ap
from attnphase.data.build import from_points
from attnphase.data.validate import validate_dataset
from attnphase.fixed_points.deflation import solutions_of
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.fixed_points.threshold import Outcome
from attnphase.fixed_points.transitions import thresholds_of
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.branches import Identity
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.rest import rests
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.state_evolution.system import System

QUICK = SolverSettings(threads=1, stability=False)
PAPER = Problem.paper(omega=0.27).with_fields({"integration.rule": "sobol", "integration.nodes": 256})


def loss_of_zero_weights(problem: Problem, alpha: float) -> float:
    """``alpha E Tr[(1/2 - T) D (1/2 - T)^T] / 2`` with two tokens: scores are 1/2 at h = 0. By Gauss-Hermite nodes."""
    x, w = np.polynomial.hermite_e.hermegauss(60)
    weights = np.outer(w, w).ravel() / (2 * np.pi)
    variance = float(problem.tokens.sigma) ** 2  # pyright: ignore[reportArgumentType]
    k = np.sqrt(variance) * np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1).reshape(-1, 2)
    logits = k[:, :, None] * k[:, None, :]
    scores = np.exp(logits - logits.max(axis=-1, keepdims=True))
    scores /= scores.sum(axis=-1, keepdims=True)
    omega = problem.teacher.omega
    targets = (1 - omega) * scores + omega * problem.mixing_matrix
    return alpha * float(weights @ (variance * (0.5 - targets) ** 2).sum(axis=(1, 2))) / 2


@pytest.mark.parametrize(
    ("fields", "branch"),
    [
        ({"tokens.sigma": 0.037}, "semantic"),
        ({"tokens.sigma": 0.037, "regularizer.strength": 0.02}, "positional"),
        ({"tokens.sigma": 0.043, "regularizer.strength": 0.03}, "semantic"),
        ({"regularizer.strength": 60.0}, "uninformed"),
        ({"regularizer.strength": 41.0, "student.tied": False}, "uninformed"),
    ],
)
def test_weights_that_vanish_are_flagged(fields: dict[str, Any], branch: str) -> None:
    """The loss gains less from small weights than the ridge costs: all are zero, and the loss is that of h = 0."""
    problem, alpha = PAPER.with_fields(fields), 1.4
    point = solve_point(problem, alpha, branch, settings=QUICK)
    assert point.status is Status.converged
    assert np.diagonal(point.values["q"], axis1=1, axis2=2).min() >= 0
    expected = loss_of_zero_weights(problem, alpha)
    assert abs(point.values["training_loss"] - expected) < 4 * point.errors["training_loss"] + 1e-9 * expected
    ds = validate_dataset(from_points([point]))
    assert ds["zero_weights"].item() == 1
    assert ds["zero_weights"].attrs["flag_meanings"].split()[1] == "yes"


def test_weights_that_do_not_vanish_are_not_flagged() -> None:
    for branch in ("semantic", "positional"):
        point = solve_point(PAPER, 1.9, branch, settings=QUICK)
        assert point.values["weight_norm"] > 0.1
        assert validate_dataset(from_points([point]))["zero_weights"].item() == 0


def test_weights_of_a_cold_student_are_small_and_not_zero() -> None:
    """In the units of its own weights, which shrink with the root of its temperature."""
    cold = PAPER.with_fields({"student.temperature": 1.3e-6, "regularizer.strength": 0.006 / 1.3e-6})
    point = solve_point(cold, 1.9, "positional", settings=QUICK)
    assert 0 < point.values["q"].max() < 2e-7
    assert not point.zero_weights


def test_what_the_teacher_does_not_tell_is_no_negative_covariance() -> None:
    """q is lifted along the eigenvectors of q - theta rho^-1 theta^T that are negative, and no others."""
    rho = np.array([[[0.5, 0.1], [0.1, 0.3]], [[0.4, 0.0], [0.0, 0.2]]])
    theta = np.array([[[0.1, 0.2], [-0.1, 0.05]], [[0.0, 0.0], [0.3, -0.2]]])
    told = np.array([one @ np.linalg.solve(own, one.T) for one, own in zip(theta, rho, strict=True)])
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    left = np.array([np.diag([0.02, -1e-11]), turn @ np.diag([-3e-12, 0.4]) @ turn.T])
    given = Overlaps(told + left, np.ones((2, 2, 2)), np.zeros((2, 2, 1)), theta)
    expected = told + np.array([np.diag([0.02, 0.0]), turn @ np.diag([0.0, 0.4]) @ turn.T])
    assert np.allclose(given.possible(rho).q, expected, rtol=0, atol=1e-16)
    inside = Overlaps(told + 0.01 * np.eye(2), given.V, given.m, theta)
    assert inside.possible(rho) is inside
    nothing = Overlaps(np.full((2, 1, 1), -1e-21), np.ones((2, 1, 1)), np.zeros((2, 1, 1)), np.zeros((2, 1, 2)))
    assert not nothing.possible(rho).q.any()
    assert nothing.vanish(rho)
    assert not inside.vanish(rho)


@pytest.mark.parametrize("branch", ["semantic", "positional"])
def test_weights_that_vanish_under_a_rule_of_lines_are_those_of_no_branch(branch: str) -> None:
    """No rule but Sobol points has errors that are statistics: its symmetry tells."""
    problem = Problem.paper(omega=0.27).with_fields({"tokens.sigma": 0.19, "regularizer.strength": 0.023})
    point = solve_point(problem, 3.1, branch, settings=QUICK)
    assert point.rule == "lines"
    assert point.status is Status.converged
    assert point.zero_weights
    assert point.on_branch is Identity.merged


# --- at rest beside a kink of the regulariser -------------------------------------------------------------------------

KINKED: list[dict[str, Any]] = [
    {"regularizer.kind": "lasso"},
    {"regularizer.kind": "elastic-net", "regularizer.ridge": 0.013},
    {"regularizer.kind": "group-lasso", "student.tied": False},
    {"regularizer.kind": "lasso", "student.tied": False},
]


def assert_at_rest(point: BranchPoint, expected: float, *, merged: bool) -> None:
    """Every weight is exactly zero, and no sample moves any; the losses are those of h = 0."""
    assert point.status is Status.converged
    assert point.zero_weights
    assert point.on_branch is (Identity.merged if merged else Identity.on_branch)
    for name in ("q", "V", "m", "theta", "q_hat", "m_hat", "theta_hat", "density", "weight_norm", "replicon"):
        assert not np.any(point.values.get(name, 0.0)), name
    error = 4 * point.errors["training_loss"] + 1e-9 * expected
    assert abs(point.values["training_loss"] - expected) < error < 0.03 * expected
    assert abs(point.values["test_error"] - expected / point.alpha) < error / point.alpha  # 2 E[loss] / L


@pytest.mark.parametrize("changes", KINKED)
@settings(max_examples=2)
@given(data=st.data())
def test_zero_weights_rest_beside_any_kink(changes: dict[str, Any], data: st.DataObject) -> None:
    """The logits are quadratic in h: no sample has a slope there, and no strength is too small for W = 0 to be one."""
    strength, alpha = data.draw(st.floats(0.045, 0.4)), data.draw(st.floats(0.4, 2.6))
    branch = data.draw(st.sampled_from(["semantic", "positional", "uninformed"]))
    problem = PAPER.with_fields({**changes, "regularizer.strength": strength, "integration.nodes": 1024})
    point = solve_point(problem, alpha, branch, settings=SolverSettings(threads=1))
    assert_at_rest(point, loss_of_zero_weights(problem, alpha), merged=branch != "uninformed")


def test_zero_weights_at_rest_are_those_of_training() -> None:
    """And their metrics are those of h = 0: the mean of ``k_0^2 + h_0^2`` is the tokens' variance."""
    problem = PAPER.with_fields(
        {"regularizer.kind": "lasso", "regularizer.strength": 0.07, "metrics.size": "k0_0**2 + h0_0**2"}
    )
    point = solve_point(problem, 1.3, "semantic", settings=SolverSettings(threads=1))
    assert_at_rest(point, loss_of_zero_weights(problem, 1.3), merged=True)
    variance = float(problem.tokens.sigma) ** 2  # pyright: ignore[reportArgumentType]
    assert abs(point.values["metric_size"] - variance) < 4 * point.errors["metric_size"] < 0.02 * variance
    (alone,) = solutions_of(problem, 1.3, starts=1, settings=QUICK)
    assert alone.point.zero_weights
    assert alone.eigenvalue == 0
    beside = ap.solve(
        problem, 1.4, "semantic", start=ap.solve(problem, 1.3, "semantic"), settings=SolverSettings(stability=False)
    )
    assert beside["zero_weights"].item() == 1
    assert beside["training_loss"].item() == pytest.approx(1.4 / 1.3 * point.values["training_loss"], rel=1e-9)
    slope = ap.sensitivity(problem, 1.3, field="alpha")
    assert abs(slope["d_training_loss"].item() - loss_of_zero_weights(problem, 1)) < (
        4 * slope["d_training_loss_stderr"].item() + 1e-8
    )
    runs = ap.simulate(problem, 1.3, dimension=60, seeds=2, test_samples=0)
    assert not runs["weight_norm"].to_numpy().any()
    assert not runs["density"].to_numpy().any()


SLOPES = Problem.from_dict(
    {
        "tokens": {"length": 1, "sigma": 0.83},
        "loss": {
            "kind": "expression",
            "expression": "a*abs(h) + b*h*sign(k) + g*h**2*k**2",
            "parameters": {"a": 1.0, "b": 0.5, "g": 0.7},
        },
        "regularizer": {"kind": "lasso", "strength": 1.7},
        "integration": {"rule": "sobol", "nodes": 1024},
    }
)


@settings(max_examples=12)
@given(
    a=st.floats(-1, 3), b=st.floats(-2, 2), g=st.floats(0.1, 2), kind=st.sampled_from(["lasso", "elastic-net", "ridge"])
)
def test_zero_weights_rest_where_zero_is_a_slope_of_the_loss(a: float, b: float, g: float, kind: str) -> None:
    """Slopes at h = 0 lie between b - a and b + a for k > 0: zero is one of a minimum for |b| <= a."""
    assume(abs(abs(b) - a) > 1e-3)
    numbers = {"loss.parameters.a": a, "loss.parameters.b": b, "loss.parameters.g": g}
    problem = SLOPES.with_fields({**numbers, "regularizer.kind": kind})
    start = initial_overlaps(problem, "uninformed")
    assert rests(System.of(problem), start) == (kind != "ridge" and abs(b) <= a)


def test_at_a_kink_of_the_loss_zero_weights_have_no_loss() -> None:
    point = solve_point(SLOPES, 1.9, "semantic", settings=QUICK)
    assert point.zero_weights
    assert not point.values["V"].any()
    assert abs(point.values["training_loss"]) < 1e-15


@pytest.mark.parametrize("strength", [1.3, 3.9, 7.3, 21.0])
def test_a_loss_with_a_slope_at_zero_leaves_a_small_density(strength: float) -> None:
    """Of least squares: p is the share of Gaussian sources beyond the strength, and ``V = p / A``.

    With ``A = alpha / (1 + V)`` and tokens of variance rho the sources' variance is
    ``A^2 rho^2 + A^2 rho (rho - 2 theta + q) / alpha``.
    """
    rho, alpha = 0.83**2, 1.7
    problem = Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": 0.83},
            "loss": {"kind": "expression", "expression": "(h - k)**2/2"},
            "regularizer": {"kind": "lasso", "strength": strength},
        }
    )
    q = theta = V = p = 0.0
    for _ in range(400):
        A = alpha / (1 + V)
        deviation = np.sqrt(A**2 * rho**2 + A**2 * rho * (rho - 2 * theta + q) / alpha)
        z = strength / deviation
        p, density = 2 * norm.sf(z), np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
        square = p * (1 + z**2) - 2 * z * density  # E max(|x| - z, 0)^2
        if z > 8:  # where the difference loses its digits: sum of the asymptotic series
            square = 4 * density / z**3 * (1 - 6 / z**2 + 45 / z**4 - 420 / z**6)
        q, theta, V = rho * square * (deviation / (A * rho)) ** 2, rho * p, p / A
    point = solve_point(problem, alpha, "semantic", settings=QUICK)
    assert point.status is Status.converged
    assert point.values["density"] == pytest.approx(p, rel=1e-3)
    assert abs(point.values["training_loss"] / (alpha * rho / 2) - 1) < (1e-4 if p < 1e-3 else 1)


def test_thresholds_beside_zero_weights() -> None:
    """At ``zero_semantic`` the branch has the loss of zero weights, ``alpha 3 rho^2 / 4``; it begins at less alpha."""
    problem = Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": 0.83},
            "positions": {"kind": "none"},
            "loss": {"kind": "expression", "expression": "(h**2 - k**2)**2/4 + g*h**2", "parameters": {"g": 0.5}},
            "regularizer": {"kind": "lasso", "strength": 1.5},
            "integration": {"standard_error": 3e-3},
        }
    )
    ds = ap.thresholds(problem, alpha=(3.9, 6.5), transitions=True)
    begin, equal = ds["spinodal_semantic"].item(), ds["zero_semantic"].item()
    assert 3.9 < begin < 0.9 * equal
    assert 0 < ds["zero_semantic_stderr"].item() < 1e-3 * equal
    assert ds["zero_positional_status"].item() == Outcome.no_branch
    points = {a: solve_point(problem, a, "semantic", settings=QUICK) for a in (0.97 * begin, 1.03 * begin, equal)}
    below, above, there = points.values()
    zero = 3 * 0.83**4 / 4
    assert below.zero_weights
    assert below.on_branch is Identity.merged
    assert above.on_branch is there.on_branch is Identity.on_branch
    assert above.values["training_loss"] > 1.02 * zero * above.alpha
    error = np.hypot(there.errors["training_loss"], 0.5 * zero * ds["zero_semantic_stderr"].item())
    assert abs(there.values["training_loss"] - zero * equal) < 4 * error < 2e-3 * zero * equal


def test_a_ridge_has_no_thresholds_beside_zero_weights() -> None:
    assert not {"zero_semantic", "zero_positional"} & {*thresholds_of(PAPER, (1.2, 1.3), None, QUICK)}


def test_parameters_are_trained_beside_zero_weights() -> None:
    """At h = 0 the loss ``(b - k^2)^2/4`` has its minimum at the variance rho, and its mean there is ``rho^2/2``."""
    problem = Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": 0.83},
            "positions": {"kind": "none"},
            "loss": {
                "kind": "expression",
                "expression": "(h**2 + b - k**2)**2/4 + h**2/2",
                "parameters": {"b": 0.1},
                "trained": {"b": "0"},
            },
            "regularizer": {"kind": "lasso", "strength": 1.5},
        }
    )
    point, rho = solve_point(problem, 2.2, "semantic", settings=QUICK), 0.83**2
    assert point.zero_weights
    assert not point.values["density"]
    for name, expected in (("trained", rho), ("training_loss", 2.2 * rho**2 / 2)):
        assert abs(np.squeeze(point.values[name]) - expected) < 4 * np.squeeze(point.errors[name]) < 0.01
