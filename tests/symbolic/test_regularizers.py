"""Regularisers of users, formulas and operators: values, kinks and parity against closed forms; others are refused.

Not public: what is found of a regulariser before any row is solved.
"""

import sys
from types import ModuleType

import numpy as np
import pytest
from hypothesis import strategies as st

from attnphase.errors import ProblemError
from attnphase.problem import Problem, Regularizer
from attnphase.problem.own_functions import check_regularizer
from attnphase.rows.operator import load_prox
from attnphase.sweeps.kept import own_functions
from derivations.models.regularizers import ConvexPenalty

MODULE = "proximal_operators_of_a_user"
W = np.concatenate([-np.logspace(1, -3, 23), np.logspace(-3, 1, 29)])
ABS, TENTHS = np.abs, st.integers(-20, 20).map(lambda n: n / 10)

# text, value, kinks (place, slope before and behind), whether it is even
FORMULAS = [
    ("w**4 + 0.2*w**2", lambda w: w**4 + 0.2 * w**2, (), True),
    ("0.3*sqrt(w**2)", lambda w: 0.3 * ABS(w), ((0, -0.3, 0.3),), True),
    ("max(w, -2*w)", lambda w: np.maximum(w, -2 * w), ((0, -2, 1),), False),
    ("0.2*w**2 + abs(w - 0.3)", lambda w: 0.2 * w**2 + ABS(w - 0.3), ((0.3, -0.88, 1.12),), False),
    (
        "abs(w) + abs(w - 2) + abs(w + 2)",
        lambda w: ABS(w) + ABS(w - 2) + ABS(w + 2),
        ((-2, -3, -1), (0, -1, 1), (2, 1, 3)),
        True,
    ),
    ("relu(abs(w) - 0.7)", lambda w: np.maximum(ABS(w) - 0.7, 0), ((-0.7, -1, 0), (0.7, 0, 1)), True),
    ("relu(exp(w) - 2)", lambda w: np.maximum(np.exp(w) - 2, 0), ((np.log(2), 0, 2),), False),
    ("abs(w)*relu(w)", lambda w: w**2 * (w > 0), (), False),
    ("sqrt(w**2 + 1e-12)", lambda w: np.sqrt(w**2 + 1e-12), (), True),  # a steep slope is no kink
    ("softplus(w) + softplus(-w)", lambda w: np.logaddexp(0, w) + np.logaddexp(0, -w), (), True),
    ("w**2 + 1e-9*exp(0.3*w)", lambda w: w**2 + 1e-9 * np.exp(0.3 * w), (), False),
    ("log(cosh(w))", lambda w: np.log(np.cosh(w)), (), True),
]


@pytest.mark.parametrize(("text", "value", "kinks", "even"), FORMULAS, ids=[text for text, *_ in FORMULAS])
def test_value_kinks_and_parity_of_formulas(text, value, kinks, even):
    penalty = ConvexPenalty.of(text)
    np.testing.assert_allclose(penalty.numeric[0](W), value(W), rtol=1e-12, atol=1e-14)
    assert len(penalty.kinks) == len(kinks)
    np.testing.assert_allclose(penalty.kinks, np.array(kinks, dtype=float), rtol=0, atol=2e-7)
    rows = Regularizer(kind="expression", expression=text).rows(1)
    assert rows is not None
    assert penalty.even is rows.even is even


@pytest.mark.parametrize("text", ["w**4 + 0.2*w**2", "0.3*abs(w) + w**2", "log(cosh(0.8*w))", "exp(0.3*w) + w*w"])
def test_slope_and_curvature_are_derivatives(text):
    value, slope, curvature = ConvexPenalty.of(text).numeric
    w, step = np.linspace(-2.3, 2.1, 12).reshape(3, 4), 1e-5
    np.testing.assert_allclose(slope(w), (value(w + step) - value(w - step)) / (2 * step), rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(curvature(w), (slope(w + step) - slope(w - step)) / (2 * step), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(("steepness", "jump"), [(5.0, 0.02), (50.0, 0.01), (0.3, 1e-4)])
def test_a_small_kink_on_a_steep_slope_is_found(steepness, jump):
    """``a w^2 + b |w - 1|/2`` has the slope 2a at its kink, which jumps by b there."""
    ((place, left, right),) = ConvexPenalty.of(f"{steepness}*w**2 + {jump / 2}*abs(w - 1)").kinks
    assert place == pytest.approx(1.0, abs=1e-9)
    assert right - left == pytest.approx(jump, rel=1e-3)
    assert (left + right) / 2 == pytest.approx(2 * steepness, rel=1e-4)


NO_PENALTIES = {
    "w**3": "is not convex: its slope falls at w = -",
    "abs(w)**0.5": "is not convex",
    "log(1 + w**2)": "is not convex: its slope falls at w = (0.99|-?1)",
    "sin(3*w) + w**2/2": "is not convex",
    "0.1*w**2 - 0.03*sqrt(w**2 + 0.01)": "is not convex",
    "abs(w) - 0.3*abs(w - 1)": "is not convex",
    "log(w - 2)": "is not finite at w = ",
    "w - w": "does not depend on w",
    "sign(w)*w**2": "jumps",
}


@pytest.mark.parametrize("text", NO_PENALTIES)
def test_formulas_that_are_no_convex_penalties_are_refused(text):
    with pytest.raises(ProblemError, match=r"regularizer\.expression.*" + NO_PENALTIES[text]):
        check_regularizer(Regularizer(kind="expression", expression=text, ridge=0.3), 2)


def soft(v, step):
    return np.sign(v) * np.maximum(np.abs(v) - 0.4 * step, 0.0)


def huber(v, step):
    """Quadratic below 0.5, linear beyond."""
    inner = np.abs(v) <= 0.5 + 0.4 * step
    return np.where(inner, v / (1 + 0.8 * step), v - 0.4 * step * np.sign(v))


PENALTIES = {
    "lasso": (soft, lambda w: 0.4 * ABS(w)),
    "ridge": (lambda v, step: v / (1 + 0.6 * step), lambda w: 0.3 * w**2),
    "elastic net": (lambda v, step: soft(v, step) / (1 + 0.6 * step), lambda w: 0.4 * ABS(w) + 0.3 * w**2),
    "nothing": (lambda v, step: v, np.zeros_like),
    "Huber": (huber, lambda w: np.where(ABS(w) <= 0.5, 0.4 * w**2, 0.4 * ABS(w) - 0.1)),
}
NO_OPERATORS = {
    "expands": (lambda v, step: 1.3 * v, "its slope in v must lie between 0 and 1, but reaches 1.3"),
    "turns round": (lambda v, step: -0.2 * v, "its slope in v must lie between 0 and 1, but reaches -0.2"),
    "jumps": (lambda v, step: np.where(ABS(v) > 1, v, 0.0), "is not the proximal operator of a convex function"),
    "is one-sided": (lambda v, step: np.maximum(v - step, 0.0), "must be odd"),
    "is shifted": (lambda v, step: v - 0.3 * step, "must be odd"),
    "loses entries": (lambda v, step: v[:-1], "array of the shape of its first argument"),
}


@pytest.fixture
def module(monkeypatch):
    made = ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, made)
    return made


@pytest.mark.parametrize("name", PENALTIES)
def test_value_is_recovered_from_the_operator(name, module):
    module.prox, value = PENALTIES[name]
    check_regularizer(Regularizer(kind="prox", prox=f"{MODULE}:prox", ridge=0.2), 2)
    found = load_prox(f"{MODULE}:prox", 0.2)
    w = np.concatenate([np.linspace(-5.7, 5.3, 41), [0.0, 1e-3, -0.02]]).reshape(4, 11)
    np.testing.assert_allclose(found.value(w), value(w), rtol=0, atol=2e-6)
    np.testing.assert_allclose(found.penalty(w), (value(w) + 0.1 * w**2).sum(axis=-1), rtol=0, atol=2e-5)


def test_checkpoints_depend_on_what_an_operator_returns(module):
    """Whether its own module, or one that it imports, has changed."""
    threshold = [0.3]
    module.prox = lambda v, step: np.sign(v) * np.maximum(ABS(v) - threshold[0] * step, 0)
    problem = Problem().with_fields({"regularizer.kind": "prox", "regularizer.prox": f"{MODULE}:prox"})
    before = own_functions(problem)
    assert own_functions(problem) == before
    threshold[0] = 0.31
    assert own_functions(problem) != before
    module.prox = lambda v, step: v / (1 + step)
    assert own_functions(problem) not in (before, "")


@pytest.mark.parametrize("name", NO_OPERATORS)
def test_functions_that_are_no_proximal_operators_are_refused(name, module):
    module.prox, words = NO_OPERATORS[name]
    with np.errstate(all="ignore"), pytest.raises(ProblemError, match=words):
        check_regularizer(Regularizer(kind="prox", prox=f"{MODULE}:prox"), 2)
