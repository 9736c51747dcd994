"""Labels with noise: in closed forms, by two ways through the code, and where nothing may change."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attnphase.errors import ProblemError
from attnphase.fixed_points.family import family_of
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.setting import Setting
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.integration.rules import gauss_hermite, sobol
from attnphase.kernels.key import ModelKey
from attnphase.problem.problem import Problem
from attnphase.state_evolution.baseline import linear_test_error
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.state_evolution.system import System
from derivations.replica.limits import ridge_regression

ONE_THREAD = SolverSettings(threads=1)
FEW_NODES = {"integration.rule": "sobol", "integration.nodes": 64}
PAPER = Problem.paper(omega=0.27).with_fields(FEW_NODES)
NOISY = PAPER.with_fields({"teacher.noise": 0.013})
ONE_TOKEN = {"tokens.length": 1, "tokens.sigma": 0.7, "regularizer.strength": 0.13, "teacher.noise": 0.31}
SQUARE = Problem().with_fields({**ONE_TOKEN, "loss.kind": "square"})
WRITTEN = Problem().with_fields(
    {**ONE_TOKEN, "loss.kind": "expression", "loss.expression": "(h - k - noise)**2/2", "integration.rule": "sobol"}
)


def solved(problem: Problem, alpha: float, branch: str = "semantic") -> BranchPoint:
    return solve_point(problem, alpha, branch, settings=ONE_THREAD)


@pytest.mark.parametrize("problem", [SQUARE, WRITTEN], ids=["in the teacher's field", "beside it"])
def test_ridge_regression_by_either_way(problem):
    """Noise as variance of the field, and as numbers of its own, are ridge regression with noise."""
    point = solved(problem, 1.6)
    values = {"alpha": 1.6, "lambda": 0.13, "gamma": 0.7**2, "Delta": 0.31}
    for name, expression in ridge_regression().items():
        exact = float(expression.subs({symbol: values[str(symbol)] for symbol in expression.free_symbols}))
        error = float(np.ravel(point.errors[name])[0])
        assert error < 0.01 * exact
        assert np.ravel(point.values[name])[0] == pytest.approx(exact, abs=4 * error + 1e-6 * exact), name


def test_a_student_that_is_held_at_zero_pays_for_the_noise():
    """At ``W = 0`` the loss is quadratic in the noise, ``alpha L Delta Tr D / 2`` more, and the test error the same."""
    strong = {"regularizer.strength": 1e4, "tokens.sigma": [0.5, 0.8]}
    clean, noisy = (solved(p.with_fields(strong), 1.3, "uninformed") for p in (PAPER, NOISY))
    added = noisy.values["training_loss"] - clean.values["training_loss"]
    errors = [float(point.errors["training_loss"]) for point in (clean, noisy)]
    expected = 1.3 * 2 * 0.013 * (0.25 + 0.64) / 2
    assert math.hypot(*errors) < 0.03 * expected
    assert added == pytest.approx(expected, abs=4 * math.hypot(*errors))
    error = math.hypot(*(float(point.errors["test_error"]) for point in (clean, noisy)))
    assert noisy.values["test_error"] == pytest.approx(float(clean.values["test_error"]), abs=4 * error)


def test_no_noise_is_nothing():
    """A problem with noise 0 is the one that says nothing of it: text, hash, and the kernel that it asks for."""
    silent = NOISY.with_fields({"teacher.noise": 0.0})
    assert silent == PAPER
    assert silent.hash == PAPER.hash
    assert "noise" not in silent.to_toml()
    assert ModelKey.of(silent) == ModelKey.of(PAPER)
    assert not ModelKey.of(SQUARE).noisy  # there noise is variance of a field alone
    assert ModelKey.of(NOISY) != ModelKey.of(PAPER)


def test_noise_leaves_symmetries_and_the_linear_predictor():
    """Its law knows no tokens and no signs, and the best linear map is that of the labels' mean."""
    clean, noisy = System.of(PAPER), System.of(NOISY)
    assert noisy.reflects
    orders = [
        sorted((tuple(order), A.tolist(), B.tolist()) for order, A, B, _ in one.symmetries) for one in (clean, noisy)
    ]
    assert orders[0] == orders[1]
    assert linear_test_error(noisy) == linear_test_error(clean)


def test_sign_changes_leave_the_noise_to_itself():
    """With an odd number of nodes some have no sign of their own but that of the noise, which no orbit changes."""
    rule = gauss_hermite(3, 1, True, 5, 1)
    signs = np.array(rule.signs)
    nodes = rule.nodes[0] * np.stack([signs[:, 0], signs[:, 1], np.ones(4)], axis=1)[:, None]
    for powers in ((0, 0, 1), (0, 0, 3), (2, 0, 1), (1, 1, 1), (2, 4, 2), (0, 2, 4)):
        moment = ((nodes ** np.array(powers)).prod(axis=-1) @ rule.weights).mean()
        exact = math.prod(0 if p % 2 else math.prod(range(p - 1, 0, -2)) for p in powers)
        assert moment == pytest.approx(exact, abs=1e-12), powers


def test_rules_have_dimensions_for_the_noise():
    """Compiled code reads what lies behind an array that is too short."""
    with pytest.raises(ValueError, match="fewer dimensions"):
        Channel(System.of(NOISY), sobol(4, 2, True, 64, 16, 0))
    edge = Setting(PAPER, 1.7, "teacher.noise")
    family = family_of(edge, "semantic", initial_overlaps(PAPER, "semantic"), (0.0, 0.02), ONE_THREAD)
    assert family.rule.nodes.shape[-1] == 8


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"teacher.noise": -0.1}, r"teacher.noise must be a number from 0 to 1e6, but it is -0.1."),
        ({"teacher.noise": True}, r"teacher.noise must be a number from 0 to 1e6, but it is true."),
        (
            {"teacher.noise": 0.1, "integration.rule": "published"},
            'integration.rule = "published" needs teacher.noise = 0.0: choose "auto" for this problem.',
        ),
        (
            {**ONE_TOKEN, "loss.kind": "expression", "loss.expression": "(h - k)**2"},
            "teacher.noise is 0.31, but loss.expression does not say where it enters: write it with noise, or leave"
            " teacher.noise out.",
        ),
        (
            {"teacher.noise": 0.1, "loss.kind": "expression", "loss.expression": "(h0_0 - k0_0 - noise)**2"},
            None,
        ),
        (
            {**ONE_TOKEN, "loss.kind": "expression", "loss.expression": "(h - k)**2/(1 + noise)"},
            "loss.expression must be a finite number for all fields, but is not finite at",
        ),
    ],
)
def test_noise_that_cannot_be_is_refused(fields, sentence):
    with pytest.raises(ProblemError) as caught:
        Problem().with_fields(fields)
    if sentence is None:
        assert "noise" in str(caught.value)
    else:
        assert str(caught.value).startswith(sentence)
