"""Scores: shipped, registered, imported and written as formulas."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Function, Heaviside, Integer, Max, Piecewise, Symbol, exp, log, sign, sqrt

from derivations.models.functions import Relu
from derivations.models.row_functions import row_formula_of
from derivations.models.scores import SCORES, RowScore, ScoreError, register_score, resolve, row_entries

LOGITS = st.lists(st.floats(-3.1, 2.7).filter(lambda v: abs(v) > 1e-3), min_size=1, max_size=4)


def values(score, point):
    z = [Symbol(f"z{b}", real=True) for b in range(len(point))]
    at = dict(zip(z, point, strict=True))
    return np.array([float(entry.subs(at).evalf(30)) for entry in row_entries(score, z)])


def softmax(z):
    weights = np.exp(z)
    return weights / weights.sum()


REFERENCES = {
    "softmax": softmax,
    "linear": lambda z: z,
    "relu": lambda z: np.maximum(z, 0) / (0.1 + np.maximum(z, 0).sum()),
    "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
    "softmax1": lambda z: np.exp(z) / (1 + np.exp(z).sum()),
}


@pytest.fixture
def scores():
    """Forget the scores that a test registers."""
    before = dict(SCORES)
    yield SCORES
    SCORES.clear()
    SCORES.update(before)


@pytest.fixture
def module(monkeypatch):
    made = ModuleType("row_functions_of_a_user")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def test_every_shipped_score_has_a_reference():
    assert set(SCORES) == set(REFERENCES)


@pytest.mark.parametrize("name", sorted(REFERENCES))
@settings(deadline=None, max_examples=25)
@given(point=LOGITS)
def test_shipped_scores(name, point):
    assert np.allclose(values(resolve(name, len(point)), point), REFERENCES[name](np.array(point)), rtol=1e-12, atol=0)


@settings(deadline=None, max_examples=25)
@given(point=LOGITS, shift=st.floats(0.5, 2.3))
@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_shift_invariance_is_as_declared(name, point, shift):
    score = resolve(name, len(point))
    z = [*point, 0.0] if score.null_logit else list(point)
    symbols = [Symbol(f"z{b}", real=True) for b in range(len(z))]

    def row(logits):
        at = dict(zip(symbols, logits, strict=True))
        return np.array([float(entry.subs(at).evalf(30)) for entry in score.row(symbols)])

    moved = row([v + shift for v in z])
    if score.shift_invariant:
        assert np.allclose(moved, row(z), rtol=1e-12, atol=0)
    elif max(point) > 0.01:
        assert not np.allclose(moved, row(z), rtol=1e-6, atol=0)


@settings(deadline=None, max_examples=20)
@given(point=LOGITS)
def test_formulas_registered_and_imported_scores_agree(point):
    def row(logits):
        weights = [log(1 + exp(v)) ** 2 for v in logits]
        return [w / (3 + sum(weights)) for w in weights]

    numbers = np.log1p(np.exp(np.array(point))) ** 2
    expected = numbers / (3 + numbers.sum())
    made = ModuleType("row_functions_of_a_user")
    made.squared = row  # type: ignore[attr-defined]
    made.whole = RowScore("whole", "w", row)  # type: ignore[attr-defined]
    sys.modules[made.__name__] = made
    try:
        found = [
            resolve("softplus(z)**2/(3 + sum(softplus(z)**2))", len(point)),
            resolve(row_formula_of(row, len(point)), len(point)),
            register_score("squared", row),
            resolve("squared", len(point)),
            resolve("row_functions_of_a_user:squared", len(point)),
            resolve("row_functions_of_a_user:whole", len(point)),
        ]
    finally:
        del sys.modules[made.__name__]
        SCORES.pop("squared", None)
    for score in found:
        assert np.allclose(values(score, point), expected, rtol=1e-12, atol=0)


def test_the_single_name_z_is_a_formula():
    assert np.allclose(values(resolve("z", 3), [0.3, -1.2, 2.5]), [0.3, -1.2, 2.5], rtol=1e-15, atol=0)


def test_formulas_may_have_kinks():
    score = resolve("relu(z) + abs(z - 0.2) + max(z, 0.1)", 3)
    z = np.array([0.3, -1.2, 2.5])
    expected = np.maximum(z, 0) + abs(z - 0.2) + np.maximum(z, 0.1)
    assert np.allclose(values(score, z.tolist()), expected, rtol=1e-14, atol=0)


def test_length_of_the_row_is_known_to_formulas():
    assert np.allclose(values(resolve("z/(L + 1)", 3), [0.3, -1.2, 2.5]), np.array([0.3, -1.2, 2.5]) / 4, atol=1e-15)


def test_functions_with_kinks_are_replaced(scores):
    score = register_score("kinked", lambda z: [Max(v, Integer(0)) + abs(v) * sign(v) + Heaviside(v) for v in z])
    point = np.array([0.7, -1.4])
    assert np.allclose(values(score, point), np.maximum(point, 0) + point + (point > 0), rtol=1e-14, atol=0)
    z = [Symbol("z0", real=True), Symbol("z1", real=True)]
    assert row_entries(score, z)[0].has(Relu)
    assert row_entries(score, z)[0].diff(z[0], 2) == 0


def test_registering_again_replaces(scores):
    register_score("changing", lambda z: [2 * v for v in z])
    register_score("changing", lambda z: [3 * v for v in z])
    assert np.allclose(values(resolve("changing", 2), [0.4, 0.9]), [1.2, 2.7], rtol=1e-15, atol=0)


@pytest.mark.parametrize("name", ["two words", "", "a-b", "module:attribute", "3rd", 7])
def test_names_that_are_none(name, scores):
    with pytest.raises(ScoreError, match="must be a Python name"):
        register_score(name, lambda z: list(z))
    assert name not in scores


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_shipped_names_are_taken(name, scores):
    with pytest.raises(ScoreError, match=f'"{name}" is a shipped score'):
        register_score(name, lambda z: [2 * v for v in z])
    assert np.allclose(values(SCORES[name], [0.4, 0.9]), REFERENCES[name](np.array([0.4, 0.9])), rtol=1e-12)


def raises(z):
    raise KeyError("nothing here")


UNKNOWN = Function("unknown")
BAD_ROWS = {
    "one entry": (lambda z: [z[0]], "returns 1 entries for 2 logits"),
    "no sequence": (lambda z: z[0], "fails on 2 logits"),
    "fails": (raises, "fails on 2 logits: 'nothing here'"),
    "nothing": (lambda z: None, "fails on 2 logits"),
    "foreign": (lambda z: [v * Symbol("beta") for v in z], "entry 0 .* holds beta, which is not a logit"),
    "text": (lambda z: ["v +" for v in z], "entry 0 .* is not an expression"),
    "relation": (lambda z: [v > 0 for v in z], "entry 0 .* is not an expression"),
    "object": (lambda z: [object() for _ in z], "entry 0 .* is not an expression"),
    "piecewise": (lambda z: [z[0], Piecewise((z[1], z[0] > 0), (0, True))], "entry 1 .* Piecewise .* relu"),
    "undefined": (lambda z: [UNKNOWN(v) for v in z], "entry 0 .* no known derivative"),
    "root": (lambda z: [sqrt(v) for v in z], r"not a finite number at logits \(0, 0\)"),
    "logarithm": (lambda z: [log(v) for v in z], "not a finite number at logits"),
    "infinite": (lambda z: [v / (z[0] - z[0]) for v in z], "not a finite number"),
}


@pytest.mark.parametrize("case", sorted(BAD_ROWS))
def test_bad_rows_are_refused(case, module, scores):
    row, words = BAD_ROWS[case]
    with pytest.raises(ScoreError, match=words) as caught:
        register_score("bad", row)
    assert str(caught.value).endswith(".")
    assert "bad" not in scores
    module.bad = row
    with pytest.raises(ScoreError, match=words):
        resolve("row_functions_of_a_user:bad", 2)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sofmax", 'there is no score "sofmax": did you mean "softmax"'),
        ("qqq", "the known ones are softmax, linear, relu, sigmoid, softmax1"),
        ("no_such_module_anywhere:row", '"no_such_module_anywhere:row" cannot be imported'),
        ("math:no_such_function", 'module math has no callable "no_such_function"'),
        ("math:pi", 'module math has no callable "pi"'),
        ("math:", "has no callable"),
        ("z.real", r"the formula .* cannot be used: 'z.real' cannot stand"),
        ("q + z", 'unknown name "q"'),
        ("log(z)", "not a finite number"),
        ("1/0 + z", "not a finite real number"),
        ("z +", "is not a formula"),
        ("", "is empty"),
        (":row", "cannot be imported"),
    ],
)
def test_names_that_cannot_be_resolved(name, words):
    with pytest.raises(ScoreError, match=words) as caught:
        resolve(name, 2)
    assert str(caught.value).endswith((".", "?"))


def test_a_row_function_must_fit_the_problem_s_length(module):
    module.pair = lambda z: [z[0] - z[-1], z[-1] - z[0]]
    assert np.allclose(values(resolve("row_functions_of_a_user:pair", 2), [0.4, 1.7]), [-1.3, 1.3], rtol=1e-14)
    with pytest.raises(ScoreError, match="returns 2 entries for 4 logits"):
        resolve("row_functions_of_a_user:pair", 4)


@pytest.mark.parametrize("body", ["import no_such_module_anywhere", "x = (", "1 / 0"])
def test_a_module_that_fails_on_import_is_named(body, tmp_path, monkeypatch):
    (tmp_path / "broken_rows_of_a_user.py").write_text(body + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ScoreError, match=r"broken_rows_of_a_user:row.* cannot be imported"):
        resolve("broken_rows_of_a_user:row", 2)
