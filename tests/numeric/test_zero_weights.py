"""Where all weights vanish: a flag says so, and no covariance is negative."""

from typing import Any

import numpy as np
import pytest

from attnphase.data.build import from_points
from attnphase.data.validate import validate_dataset
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.branches import Identity
from attnphase.state_evolution.overlaps import Overlaps

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
