"""Formulas and proximal operators of users: what is understood of them, and what is refused."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnphase.errors import ProblemError
from attnphase.problem import Regularizer
from attnphase.problem.own_functions import check_regularizer
from attnphase.rows.formula import load_expression
from attnphase.rows.kinds import REGULARIZERS
from attnphase.rows.operator import load_prox
from derivations.models.regularizers import ConvexPenalty, RegularizerError

MODULE = "proximal_operators_of_a_user"
W = np.concatenate([-np.logspace(1, -3, 23), np.logspace(-3, 1, 29)])


def expression(text):
    return Regularizer(kind="expression", expression=text, ridge=0.3)


def soft(v, step):
    return np.sign(v) * np.maximum(np.abs(v) - 0.4 * step, 0.0)


@pytest.fixture
def module(monkeypatch):
    made = ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, made)
    load_prox.cache_clear()
    yield made
    load_prox.cache_clear()


# ------------------------------------------------------------------------------------------------------------ formulas


@pytest.mark.parametrize(
    ("text", "value", "kinks", "even"),
    [
        ("0.7*w**2", lambda w: 0.7 * w**2, (), True),
        ("w**4 + 0.2*w**2", lambda w: w**4 + 0.2 * w**2, (), True),
        ("0.3*abs(w)", lambda w: 0.3 * abs(w), ((0, -0.3, 0.3),), True),
        ("0.3*sqrt(w**2)", lambda w: 0.3 * abs(w), ((0, -0.3, 0.3),), True),
        ("max(w, -2*w)", lambda w: np.maximum(w, -2 * w), ((0, -2, 1),), False),
        ("abs(w - 1.5)", lambda w: abs(w - 1.5), ((1.5, -1, 1),), False),
        ("relu(w - 0.7)", lambda w: np.maximum(w - 0.7, 0), ((0.7, 0, 1),), False),
        ("0.2*w**2 + abs(w - 0.3)", lambda w: 0.2 * w**2 + abs(w - 0.3), ((0.3, -0.88, 1.12),), False),
        (
            "abs(w) + abs(w - 2) + abs(w + 2)",
            lambda w: abs(w) + abs(w - 2) + abs(w + 2),
            ((-2, -3, -1), (0, -1, 1), (2, 1, 3)),
            True,
        ),
        ("relu(abs(w) - 0.7)", lambda w: np.maximum(abs(w) - 0.7, 0), ((-0.7, -1, 0), (0.7, 0, 1)), True),
        ("max(abs(w), 0.6)", lambda w: np.maximum(abs(w), 0.6), ((-0.6, -1, 0), (0.6, 0, 1)), True),
        ("relu(exp(w) - 2)", lambda w: np.maximum(np.exp(w) - 2, 0), ((np.log(2), 0, 2),), False),
        ("abs(w)**3", lambda w: abs(w) ** 3, (), True),
        ("abs(w)*relu(w)", lambda w: w**2 * (w > 0), (), False),
        ("relu(w - 0.4)**2", lambda w: np.maximum(w - 0.4, 0) ** 2, (), False),
        ("0.01*sqrt(w**2 + 0.1)", lambda w: 0.01 * np.sqrt(w**2 + 0.1), (), True),
        ("softplus(w) + softplus(-w)", lambda w: np.logaddexp(0, w) + np.logaddexp(0, -w), (), True),
        ("exp(0.3*w)", lambda w: np.exp(0.3 * w), (), False),
        ("log(cosh(w))", lambda w: np.log(np.cosh(w)), (), True),
    ],
)
def test_convex_formulas(text, value, kinks, even):
    penalty = ConvexPenalty.of(text)
    assert np.allclose(penalty.numeric[0](W), value(W), rtol=1e-12, atol=1e-14)
    assert np.allclose(penalty.kinks, np.array(kinks, dtype=float), rtol=0, atol=2e-7)
    assert len(penalty.kinks) == len(kinks)
    assert penalty.even is even
    check_regularizer(expression(text), 2)


@pytest.mark.parametrize("text", ["w**4 + 0.2*w**2", "0.3*abs(w) + w**2", "log(cosh(0.8*w))", "exp(0.3*w) + w*w"])
def test_slope_and_curvature_are_derivatives(text):
    value, slope, curvature = ConvexPenalty.of(text).numeric
    w, step = np.linspace(-2.3, 2.1, 12), 1e-5
    assert np.allclose(slope(w), (value(w + step) - value(w - step)) / (2 * step), rtol=1e-7, atol=1e-8)
    assert np.allclose(curvature(w), (slope(w + step) - slope(w - step)) / (2 * step), rtol=1e-7, atol=1e-8)


def test_a_formula_keeps_the_shape_of_its_argument():
    for function in ConvexPenalty.of("0.3*w + 0.2*abs(w)").numeric:
        assert function(np.full((2, 3), 0.4)).shape == (2, 3)


@settings(deadline=None, max_examples=25)
@given(
    place=st.integers(-30, 30).map(lambda n: n / 10),
    left=st.integers(-20, 20).map(lambda n: n / 10),
    jump=st.integers(1, 30).map(lambda n: n / 10),
    curvature=st.integers(1, 20).map(lambda n: n / 10),
)
def test_kinks_of_random_formulas(place, left, jump, curvature):
    # slope (left + curvature (w - place)), and `jump` more beyond the kink
    text = f"{left}*w + {curvature}*(w - ({place}))**2/2 + {jump}*relu(w - ({place}))"
    ((at, below, above),) = ConvexPenalty.of(text).kinks
    assert abs(at - place) < 1e-12
    assert abs(below - left) < 1e-6
    assert abs(above - left - jump) < 1e-6


@settings(deadline=None, max_examples=25)
@given(place=st.integers(-20, 20).map(lambda n: n / 10), depth=st.integers(2, 20).map(lambda n: n / 10))
def test_downward_kinks_are_found_and_placed(place, depth):
    text = f"0.3*w**2 - {depth}*abs(w - ({place}))"
    with pytest.raises(RegularizerError, match="is not convex: its slope falls at w = ") as caught:
        ConvexPenalty.of(text)
    found = float(str(caught.value).rpartition("= ")[2].rstrip("."))
    assert abs(found - place) < 0.06


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-0.2*w**2", r"is not convex: its slope falls at w = "),
        ("w**3", r"is not convex: its slope falls at w = -"),
        ("cos(w)", "is not convex"),
        ("abs(w)**0.5", "is not convex"),
        ("log(1 + w**2)", "is not convex: its slope falls at w = (0.99|-?1)"),
        ("w**2 - 0.3*abs(w)", "is not convex"),
        ("abs(w**2 - 2)", "is not convex"),
        ("abs(abs(w) - 1)", "is not convex"),
        ("sin(3*w) + w**2/2", "is not convex"),
        ("sqrt(w)", "is not finite at w = -"),
        ("log(w)", "is not finite at w = -"),
        ("log(w - 2)", "is not finite at w = "),
        ("1/0*w", "is not a finite real number"),
        ("sqrt(-1)*w", "is not a finite real number"),
        ("3", "does not depend on w"),
        ("0*w", "does not depend on w"),
        ("w - w", "does not depend on w"),
        ("sign(w)", "jumps"),
        ("sign(w)*w**2", "jumps"),
        ("abs(w) + sign(w - 1)", "jumps"),
        ("v**2", 'unknown name "v"'),
        ("w.real", "cannot stand in a formula"),
        ("w**", "is not a formula"),
        ("prox(w)", 'unknown function "prox"'),
    ],
)
def test_other_formulas_are_refused(text, words):
    with pytest.raises(ProblemError, match=words) as caught:
        check_regularizer(expression(text), 2)
    assert caught.value.field == "regularizer.expression"
    assert str(caught.value).startswith("regularizer.expression")


# ---------------------------------------------------------------------------------------------- proximal operators


def group(v, step):
    return v / (1 + 0.6 * step)


PENALTIES = {
    "lasso": (soft, lambda w: 0.4 * abs(w)),
    "ridge": (group, lambda w: 0.3 * w**2),
    "interval": (lambda v, step: np.clip(v, -6.5, 6.5), np.zeros_like),
    "elastic": (lambda v, step: soft(v, step) / (1 + 0.6 * step), lambda w: 0.4 * abs(w) + 0.3 * w**2),
    "nothing": (lambda v, step: v, np.zeros_like),
    # Huber: quadratic below 0.5, linear beyond
    "huber": (
        lambda v, step: np.where(
            np.abs(v) <= 0.5 + 0.8 * step * 0.5, v / (1 + 0.8 * step), v - 0.4 * step * np.sign(v)
        ),
        lambda w: np.where(abs(w) <= 0.5, 0.4 * w**2, 0.4 * abs(w) - 0.1),
    ),
}


@pytest.mark.parametrize("name", sorted(PENALTIES))
def test_value_is_recovered_from_the_operator(name, module):
    prox, value = PENALTIES[name]
    module.prox = prox
    check_regularizer(Regularizer(kind="prox", prox=f"{MODULE}:prox", ridge=0.2), 2)
    found = load_prox(f"{MODULE}:prox", 0.2)
    w = np.concatenate([np.linspace(-5.7, 5.3, 41), [0.0, 1e-3, -0.02]]).reshape(4, 11)
    assert found.value(w).shape == w.shape
    assert np.allclose(found.value(w), value(w), rtol=0, atol=2e-6)
    assert np.allclose(found.penalty(w), (value(w) + 0.1 * w**2).sum(axis=-1), rtol=0, atol=2e-5)
    assert np.array_equal(found.value(np.zeros(3)), np.zeros(3))


def broken(v, step):
    raise RuntimeError("out of order")


@pytest.mark.parametrize(
    ("prox", "words"),
    [
        (lambda v, step: 1.3 * v, "its slope in v must lie between 0 and 1, but reaches 1.3"),
        (lambda v, step: -0.2 * v, "its slope in v must lie between 0 and 1, but reaches -0.2"),
        (lambda v, step: np.where(np.abs(v) > 1, v, 0.0), "is not the proximal operator of a convex function"),
        (lambda v, step: v / 0.0 * np.nan, "is not the proximal operator"),
        (lambda v, step: np.maximum(v - step, 0.0), "must be odd"),
        (lambda v, step: v - 0.3 * step, "must be odd"),
        (lambda v, step: np.sum(v), "array of the shape of its first argument"),
        (lambda v, step: v[:-1], "array of the shape of its first argument"),
        (lambda v, step: np.ravel(v), "array of the shape of its first argument"),
        (broken, "fails on an array: out of order"),
        (lambda v: v, "fails on an array"),
        (lambda v, step: v if v > 0 else -v, "fails on an array"),
        (lambda v, step: "text", "fails on an array"),
    ],
)
def test_other_functions_are_refused(prox, words, module):
    module.prox = prox
    with np.errstate(all="ignore"), pytest.raises(ProblemError, match=words) as caught:
        check_regularizer(Regularizer(kind="prox", prox=f"{MODULE}:prox"), 2)
    assert caught.value.field == "regularizer.prox"
    assert "regularizer.prox" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module_anywhere:prox", "cannot be imported"),
        (f"{MODULE}:absent", 'has no function "absent"'),
        (f"{MODULE}:number", 'has no function "number"'),
    ],
)
def test_functions_that_cannot_be_found(name, words, module):
    module.number = 3
    with pytest.raises(ProblemError, match=words) as caught:
        check_regularizer(Regularizer(kind="prox", prox=name), 2)
    assert caught.value.field == "regularizer.prox"


@pytest.mark.parametrize("body", ["import no_such_module_anywhere", "x = (", "1 / 0"])
def test_a_module_that_fails_on_import_is_named(body, tmp_path, monkeypatch):
    (tmp_path / "broken_operators_of_a_user.py").write_text(body + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ProblemError, match=r"broken_operators_of_a_user:prox.* cannot be imported"):
        load_prox("broken_operators_of_a_user:prox", 0.0)


@pytest.mark.parametrize("kind", [name for name, kind in REGULARIZERS.items() if not kind.own])
def test_shipped_kinds_need_no_check(kind):
    before = load_expression.cache_info().currsize, load_prox.cache_info().currsize
    check_regularizer(Regularizer(kind=kind, strength=0.7), 2)
    assert (load_expression.cache_info().currsize, load_prox.cache_info().currsize) == before
