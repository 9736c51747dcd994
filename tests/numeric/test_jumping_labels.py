"""Formulas whose label jumps as the teacher's fields vary: the map is smooth, and its points are those of exact means.

Several tokens that enter a loss by their sum are one token: h = sum of h_l has the law of sqrt(L) h_l.
"""

from typing import Any

import numpy as np
import pytest

from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.system import System
from tests.experiments.test_drawn_labels import probit

QUICK = SolverSettings(threads=1, stability=False)


def problem_of(loss: dict[str, Any], length: int, sigma: float, noise: float = 0.0) -> Problem:
    return Problem.from_dict(
        {
            "tokens": {"length": length, "sigma": sigma},
            "regularizer": {"strength": 0.043},
            "positions": {"kind": "none"},
            "teacher": {"noise": noise},
            "loss": loss,
        }
    )


@pytest.mark.parametrize(
    ("kind", "formula", "length", "noise"),
    [
        ("logistic", probit, 1, 0.37),
        ("logistic", "softplus(-sign(k0_0+k1_0)*(h0_0+h1_0))", 2, 0.0),
        ("hinge", "relu(1-sign(k0_0+k1_0)*(h0_0+h1_0))", 2, 0.0),
    ],
)
def test_points_are_those_of_exact_means_over_the_label(kind: str, formula: Any, length: int, noise: float) -> None:
    """The built-in losses integrate over the label, which these formulas sample."""
    sigma, alpha = 0.83, 1.37
    sampled = problem_of({"kind": "expression", "expression": formula}, length, sigma, noise)
    # the ridge of the sum's weights is that of every token's, which share one W
    exact = problem_of({"kind": kind}, 1, sigma * np.sqrt(length), noise)
    point, right = (solve_point(one, alpha, "semantic", settings=QUICK) for one in (sampled, exact))
    assert point.status is right.status is Status.converged
    for name, power in {"q": 1, "V": 1, "theta": 1, "training_loss": 0}.items():
        (value, other), (error, its) = (
            [np.ravel(numbers[name])[0] for numbers in each]
            for each in ((point.values, right.values), (point.errors, right.errors))
        )
        factor = length**power
        assert abs(factor * value - other) < 4 * np.hypot(factor * error, its)
        assert factor * error < 0.02 * abs(other)


def test_the_students_normals_are_those_of_its_fields(uncompiled: None) -> None:
    """They make omega given the teacher's fields, which come first; the joint covariance is that of the overlaps."""
    problem = Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": 0.83},
            "positions": {"kind": "none"},
            "teacher": {"rank": 2},
            "student": {"rank": 2},
            "loss": {"kind": "expression", "expression": "log(cosh(h0_0 - sign(k0_0 - 0.6*k0_1)*h0_1))"},
            "integration": {"rule": "sobol", "nodes": 256},
        }
    )
    system = System.of(problem)
    rule = system.refinement(2**12).first()
    q, theta = np.array([[[0.9, 0.2], [0.2, 0.6]]]), np.array([[[0.3, -0.1], [0.2, 0.25]]])
    overlaps = Overlaps(q, np.array([[[1.1, 0.1], [0.1, 0.8]]]), np.zeros((1, 2, 1)), theta)
    omega, k, xi, floored, _ = Channel(system, rule).nodes_at(overlaps)
    back = theta[0] / 0.83**2
    values, vectors = np.linalg.eigh(floored.q[0] - back @ theta[0].T)
    root = (vectors * np.sqrt(values)) @ vectors.T
    np.testing.assert_allclose(omega, k @ back.T + xi @ root, atol=1e-12)
    for one, other, expected in ((omega, omega, q[0]), (omega, k, theta[0]), (k, k, 0.83**2 * np.eye(2))):
        mean = one.reshape(-1, 2).T @ other.reshape(-1, 2) / k[..., 0].size
        np.testing.assert_allclose(mean, expected, atol=0.05)


@pytest.mark.parametrize(
    ("formula", "rough"),
    [
        ("0.5*(h0_0 - min(k0_0, 1.7))**2", True),
        ("0.5*(h0_0 - abs(k0_0 + noise))**2", True),
        ("softplus(-sign(k0_0)*h0_0)", True),
        ("0.5*relu(h0_0 - k0_0)**2", False),
        ("exp(h0_0) - k0_0*h0_0", False),
    ],
)
def test_no_tensor_rule_is_taken_across_a_kink_of_the_label(formula: str, rough: bool) -> None:
    """Orders of such a rule agree before they are right, where the kink lies in the tail."""
    form = problem_of({"kind": "expression", "expression": formula}, 1, 0.83, 0.2 * ("noise" in formula)).loss.form
    assert form.is_rough is rough
