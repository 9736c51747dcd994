"""Functions of users become the formulas that they are: equal problems have equal hashes, others have others.

Not public: `fingerprint`, of expressions that no problem holds.
"""

import pickle
import re
import sys
from itertools import combinations
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sympy import Heaviside, Max, Symbol, exp, log

import attnphase as ap
from attnphase import functions as fn
from attnphase.errors import ProblemError
from derivations.models.fingerprints import fingerprint
from derivations.models.formulas import parse_formula
from derivations.models.scalar import Sizes, field_names
from derivations.models.scores import SCORES, resolve, row_entries
from derivations.models.traced import formula_of

RNG = np.random.default_rng(5)
NUMBERS = {"a": 1.3, "b": 0.2}


def problem_of(expression: Any = "(h0_0 - h1_0 - a*k0_0)**2/2 + b**2", length=2, **fields):
    clusters = [{"sigma": 0.9, "mean": [0.0]}, {"sigma": 0.8, "mean": [1.4]}]
    tokens = {"kind": "mixture", "length": length, "clusters": clusters, "law": {"kind": "single-location"}}
    sizes = {"teacher": {"rank": 2, "noise": 0.2}, "student": {"rank": 2}} if length == 3 else {}
    loss = {"kind": "expression", "expression": expression} | ({"parameters": NUMBERS} if length == 2 else {})
    whole = {"tokens": tokens, "positions": {"kind": "none"}, "loss": loss, **sizes}
    return ap.Problem.from_dict(whole).with_fields(fields)


def attention(h, k, noise, c, beta=1.3):
    weights = fn.softmax(beta * h[:, 0])
    return (c @ k[:, 1] + noise[0, 0] - weights @ h[:, 1]) ** 2 / 2 + fn.relu(fn.max(h[0, 0], 0.25) - 1) / 3


ATTENTION = """
weights = softmax(beta*h[:, 0])
(c @ k[:, 1] + noise[0, 0] - weights @ h[:, 1])**2/2 + relu(max(h[0, 0], 0.25) - 1)/3
"""


def by_hand(h, k, a, b):
    return (fn.tanh(a * h[0, 0]) - k[0, 0]) ** 2 / 2 + b * k[1, 0] * (k[0, 0] + h[1, 0])


# the same, in two ways of writing
WRITTEN = {
    "loss": (
        {"loss.expression": "(tanh(a*h0_0) - k0_0)**2/2 + b*k1_0*(k0_0 + h1_0)"},
        {"loss.expression": by_hand},
    ),
    "parameters": ({}, {"loss.parameters": {"b": 0.2, "a": 1.3}}),
    "penalties": (
        {"loss.trained": {"a": "a**2/2", "b": "0.1*b**2"}},
        {"loss.trained": {"b": lambda b: b**2 / 10, "a": lambda a: 0.5 * a * a}},
    ),
    "metric": ({"metrics.one": "sum(h*k)"}, {"metrics.one": lambda h, k: h[0, 0] * k[0, 0] + k[1, 0] * h[1, 0]}),
    "parameter": ({"metrics.one": "(a*h0_0 - 2)**2"}, {"metrics.one": lambda h, a=9, s=2: (a * h[0, 0] - s) ** 2}),
    "sampler": (
        {"tokens.sampler": "k*u - [[v*(k0_0 - k1_0)], [c0]]", "tokens.parameters": {"u": 0.3, "v": 0.7}},
        {"tokens.sampler": lambda k, c, v=0.7, u=0.3: [[u * k[0, 0] + v * (k[1, 0] - k[0, 0])], [u * k[1, 0] - c[0]]]},
    ),
    "density": (
        {"tokens.density": "1 + u*tanh(k0_0)*v*c1", "tokens.parameters": {"u": 0.3, "v": 0.7}},
        {"tokens.density": lambda k, c, v=0.7, u=0.3: 1 + c[1] * u * v * fn.tanh(k[0, 0])},
    ),
    "density of one": ({}, {"tokens.density": "1 + 0*c0*k1_0"}),
    "regulariser": (
        {"regularizer.kind": "expression", "regularizer.expression": "0.1*sqrt(w**2 + 2)"},
        {"regularizer.kind": "expression", "regularizer.expression": lambda w: fn.sqrt(2 + w * w) / 10},
    ),
    "probability": ({}, {"tokens.law.probability": 1.0}),
    "zero mean": ({"tokens.clusters": [{"sigma": 0.9}, {"sigma": 0.8, "mean": [1.4]}]}, {}),
    "clusters of each": ({}, {"tokens.clusters": [[{"sigma": 0.9}, {"sigma": 0.8, "mean": [1.4]}]] * 2}),
    "products": ({}, {"tokens.mean_teacher": [[0.0]], "positions.teacher": [[0.0], [0.0]]}),
    "ridges": ({"regularizer.strength": 0.3}, {"regularizer.strength": [0.3]}),
    "no attention": ({}, {"teacher.omega": 0.7, "teacher.mixing": [[0.2, 0.8], [0.5, 0.5]]}),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_equal_models_have_equal_hashes(name):
    one, other = (problem_of(**fields) for fields in WRITTEN[name])
    assert one.hash == other.hash
    for again in (one, other):
        assert ap.Problem.from_toml(again.to_toml()) == again == pickle.loads(pickle.dumps(again))


def test_other_models_have_other_hashes():
    changes = [
        {}, {"loss.expression": "(h0_0 + h1_0 - a*k0_0)**2/2 + b**2"}, {"loss.parameters": {"a": 0.2, "b": 1.3}},
        {"loss.trained": {"a": "a**2"}}, {"loss.trained": {"b": "b**2"}}, {"loss.trained": {"b": "b**2/3"}},
        {"metrics.one": "h0_0"}, {"metrics.two": "h0_0"}, {"metrics.one": "h1_0"}, {"metrics.one": "c1 + noise0_1"},
        {"tokens.density": "1 + tanh(k0_0)/2"}, {"tokens.density": "1 + tanh(k0_0)/3"},
        {"tokens.sampler": "k + k**3"}, {"tokens.sampler": "k + k**5"}, {"tokens.sampler": "[[k1_0], [k0_0]]"},
        {"tokens.density": "1 + u*tanh(k0_0)", "tokens.parameters": {"u": 0.5}},
        {"regularizer.kind": "expression", "regularizer.expression": "w**2"},
        {"regularizer.kind": "expression", "regularizer.expression": "w**4"},
        {"tokens.law.probability": 0.9}, {"tokens.mean_teacher": [[0.4]]},
        {"tokens.clusters": [{"sigma": 0.9, "mean": [0.1]}, {"sigma": 0.8, "mean": [1.4]}]},
        {"tokens.clusters": [[{"sigma": 0.9}] * 2, [{"sigma": 0.9}, {"sigma": 0.8, "mean": [1.4]}]]},
    ]  # fmt: skip
    assert len({problem_of(**one).hash for one in changes}) == len(changes)
    plain = ap.Problem()
    assert plain.hash != plain.with_fields({"teacher.omega": 0.7}).hash


def test_a_function_of_arrays_is_its_formula():
    first = problem_of(attention, 3)
    assert dict(first.loss.parameters or {}) == {"beta": 1.3}
    assert first.hash == first.with_fields({"loss.expression": ATTENTION, "loss.parameters": {"beta": 1.3}}).hash
    assert first.with_fields({"loss.parameters.beta": 2.0}).hash != first.hash
    assert (first.loss.form.cluster_columns, first.loss.form.has_kink) == (1, True)


@pytest.mark.parametrize("name", fn.__all__)
def test_each_function_is_that_of_formulas(name):
    function = getattr(fn, name)
    if name in ("argmax", "hardmax", "softmax"):
        text, made = (
            f"sum({name}(h[:, 0] - k[:, 1])*k[:, 0])",
            lambda h, k: (function(h[:, 0] - k[:, 1]) * k[:, 0]).sum(),
        )
    elif name in ("max", "min"):
        text = f"sum({name}(2 + sin(h), cos(k))) + {name}(h) + {name}(h[0, 0], k[1, 1], 0.3)"
        made = lambda h, k: function(2 + fn.sin(h), fn.cos(k)).sum() + function(h) + function(h[0, 0], k[1, 1], 0.3)  # noqa: E731
    else:
        text, made = f"1e-5*{name}(2 + sin(h[0, 0]))", lambda h: 1e-5 * function(2 + fn.sin(h[0, 0]))
    one, other = (problem_of(attention, 3, **{"metrics.one": metric}) for metric in (text, made))
    assert one.hash == other.hash


NAMES, ARRAYS = field_names(*Sizes(2, 2, 1).symbols())
OWN = {name: Symbol(name, real=True) for name in "az"}
ALIKE = [
    ("(h0_0 - k0_0)**2/2", "0.5*(k0_0 - h0_0)**2"),
    ("-(h0_0 + k0_0)*k1_0", "-k1_0*(k0_0 + h0_0)"),
    ("2*(h0_0 - a*k0_0)*tanh(k1_0)", "tanh(k1_0)*(2*h0_0 - 2*a*k0_0)"),
    ("(0.3*h0_0 - 0.6*h1_0)**3", "-27*(0.2*h1_0 - 0.1*h0_0)**3"),
    ("sum((h @ h.T - eye(L))**2)", "d = eye(L) - h @ h.T\nsum(d*d)"),
    ("softmax(h)[0, 1]*k0_0", "k[0, 0]*softmax(h[0, :])[1]"),
    ("softmax(h.T @ h + 3)[1, 0]", "softmax(h.T @ h)[1, 0]"),
    ("tanh(h0_0 + k0_0) - 2*z*(h0_0 + k0_0)", "s = h0_0 + k0_0\n-2*s*z + tanh(s)"),
    ("abs(h0_0)/(1 + a**2)", "(a**2 + 1)**(-1)*abs(h[0, 0])"),
    ("h0_0 - h0_0 + 2*k0_0 - z", "2*k0_0 - z"),
]
TWO_LAYERS = """
first = softmax(a*h[:, 0:1] @ h[:, 0:1].T, causal=True) - 2*eye(L)
output = softmax(-(first @ h[:, 1:2]) @ (first @ h[:, 1:2]).T)
label = (c[0] + 0.3*c[1])*sign(k0_0 - k1_0 + noise[0, 1])
-label*sum(output) + 3.14159265358979*tanh(output[0, 0] - (first @ first)[1, 0])**2
"""


def read(text):
    return parse_formula(text, NAMES | OWN, ARRAYS)


def test_other_expressions_have_other_fingerprints():
    texts = [one for one, _ in ALIKE]
    for old, new in (
        ("h0_0", "h1_0"), ("tanh", "sinh"), ("**2", "**4"), ("**3", "**(7/2)"), ("0.6", "0.61"), ("2*", "3*"),
        ("-", "+"), ("[0, 1]", "[1, 0]"), ("abs", "relu"), ("a*", "1/3*"), ("(1 +", "(2 +"),
    ):  # fmt: skip
        texts += [changed for one, _ in ALIKE if (changed := one.replace(old, new)) != one]
    texts += ["0", "1", "h0_0", "-h0_0", "2*h0_0", "h0_0**2", "1/2", "0.1", "0.10000000000000001", "max(h0_0, -a*k0_0)"]
    expressions = {read(text): text for text in texts}
    assert len(expressions) > 35
    for (one, text), (other, its) in combinations(expressions.items(), 2):
        assert fingerprint(one) != fingerprint(other) or (one - other).expand() == 0, (text, its)


@pytest.mark.parametrize("text", [*(one for pair in ALIKE for one in pair), TWO_LAYERS])
def test_a_printed_expression_comes_back(text):
    """As of a function whose value it is, though the text has common parts as definitions."""
    expression = read(text)
    given = {str(x): x for x in expression.free_symbols}
    printed = formula_of(eval(f"lambda {', '.join(given)}: value", {"value": expression}), given)
    assert fingerprint(read(printed)) == fingerprint(expression)


@pytest.mark.usefixtures("own_scores")
def test_formulas_registered_and_imported_scores_agree(monkeypatch):
    def row(logits):
        weights = [log(1 + exp(v)) ** 2 + Max(v, 0) + abs(v) + Heaviside(v) for v in logits]
        return [w / (3 + sum(weights)) for w in weights]

    made = ModuleType("row_functions_of_a_user")
    monkeypatch.setattr(made, "squared", row, raising=False)
    monkeypatch.setitem(sys.modules, made.__name__, made)
    ap.register_score("squared", lambda z: [2 * v for v in z])
    ap.register_score("squared", row)  # again replaces
    weight = "(softplus(z)**2 + relu(z) + abs(z) + (1 + sign(z))/2)"
    point = np.array([0.7, -1.4, 0.2])
    weights = np.log1p(np.exp(point)) ** 2 + np.maximum(point, 0) + abs(point) + (point > 0)
    z = [Symbol(f"z{b}", real=True) for b in range(3)]
    for name in (f"{weight}/(3 + sum({weight}))", "squared", f"{made.__name__}:squared"):
        entries = row_entries(resolve(name, 3), z)
        found = [float(entry.subs(dict(zip(z, point, strict=True)))) for entry in entries]
        np.testing.assert_allclose(found, weights / (3 + weights.sum()), rtol=1e-12, err_msg=name)
    values = row_entries(resolve("z/(L + 1)", 3), z)
    assert [entry.subs(dict(zip(z, point, strict=True))) for entry in values] == pytest.approx([*(point / 4)])


@pytest.mark.parametrize("name", SCORES)
def test_scores_are_shift_invariant_as_declared(name):
    score = SCORES[name]
    z, shift = [Symbol(f"z{b}", real=True) for b in range(4 if score.null_logit else 3)], Symbol("c", real=True)
    point = {**dict(zip(z, (0.3, -1.2, 0.8, 0.1), strict=False)), shift: 2.7}
    moved = zip(score.row([x + shift for x in z]), score.row(z), strict=True)
    assert (max(abs(float((a - b).subs(point))) for a, b in moved) < 1e-14) == score.shift_invariant


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda z: [*z[:-1], 2 * z[-1]], "its entries are no formula of their own logit and of sums over the row"),
        (lambda z: [x / len(z) for x in z], "its entries are no formula of their own logit"),
        (lambda z: z[:1], "returns 1 entries for 2 logits"),
        (lambda z: [1 / x for x in z], "is not a finite number at logits"),
    ],
)
def test_a_function_that_is_no_score_is_refused(function, says):
    with pytest.raises(ProblemError, match=re.escape(says)):
        ap.Problem().with_fields({"teacher.score": function})


def loops(h):
    x = h[0, 0]
    while x > 1:
        x = x / 2
    return x


REFUSED = {
    "branches": (lambda h, k: max(k[0, 0], h[0, 0]), "has no truth value for symbols"),
    "loops": (loops, "branches on h0_0 > 1 in x > 1"),
    "takes NumPy's function": (lambda h: np.exp(h).sum(), "take exp of attnphase.functions."),
    "asks for a sign": (lambda h, k: h[0, 0] * (1 if fn.sign(k[1, 0]) == 1 else -1), "for numbers it returns another"),
    "draws": (lambda h: RNG.normal() * h[0, 0], "for numbers it returns another value than for symbols"),
    "branches on clusters": (lambda h, c: (h[0, 0] - (2 if c[1] == 1 else 3)) ** 2, "for tokens in cluster 1"),
    "branches on some": (lambda h, c: h[0, 0] if c[0] == 0 and c[2] == 1 else h[1, 0], "in the clusters 0, 0, 1"),
    "broadcasts": (lambda h, k: ((h[:, 0] - k[:, :1]) ** 2).sum(), "of which NumPy makes a matrix of shape (3, 3)"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_function_that_symbols_do_not_show_is_refused(name):
    function, says = REFUSED[name]
    with pytest.raises(ProblemError) as caught:
        problem_of(function, 3)
    assert says in str(caught.value)


def test_the_sizes_of_a_loss_are_those_of_its_problem():
    loss = {"kind": "expression", "expression": "sum(abs(h))"}
    one, two, three = (ap.Problem.from_dict({"tokens": {"length": n}, "loss": loss}) for n in (1, 2, 3))
    assert one.with_fields({"tokens.length": 3}) == three
    shared, before = three.loss, three.loss.form
    assert before != one.loss.form
    assert ap.Problem(tokens=two.tokens, loss=shared).loss.form == two.loss.form
    assert shared.form == before
