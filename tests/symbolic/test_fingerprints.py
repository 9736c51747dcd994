"""Hashes of models: equal for the same expressions, whatever they are written like, and else different."""

import re
from itertools import combinations
from typing import Any

import pytest
from sympy import Symbol

import attnphase as ap
from attnphase import functions as fn
from attnphase.checks.matching import at_problem
from attnphase.data.reading import problem_of
from attnphase.errors import CompareError, DatasetError, ProblemError
from attnphase.problem.problem import Problem
from attnphase.problem.toml import digest_of
from derivations.models.fingerprints import fingerprint
from derivations.models.formulas import parse_formula
from derivations.models.scalar import Sizes, field_names
from derivations.models.traced import formula_of

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
]
TWO_OF_EACH = """
first = softmax(a*h[:, 0:1] @ h[:, 0:1].T, causal=True) - 2*eye(L)
output = softmax(-(first @ h[:, 1:2]) @ (first @ h[:, 1:2]).T)
label = (c[0] + 0.3*c[1])*sign(k0_0 - k1_0 + noise[0, 1])
-label*sum(output) + 3.14159265358979*tanh(output[0, 0] - (first @ first)[1, 0])**2
"""


def read(text: str) -> Any:
    return parse_formula(text, NAMES | OWN, ARRAYS)


@pytest.mark.parametrize("pair", ALIKE, ids=[one for one, _ in ALIKE])
def test_the_same_expression_has_the_same_fingerprint(pair: tuple[str, str]):
    one, other = map(read, pair)
    assert fingerprint(one) == fingerprint(other)


def test_other_expressions_have_others():
    texts = [one for one, _ in ALIKE]
    for old, new in (
        ("h0_0", "h1_0"), ("tanh", "sinh"), ("**2", "**4"), ("**3", "**(7/2)"), ("0.6", "0.61"), ("2*", "3*"),
        ("-", "+"), ("[0, 1]", "[1, 0]"), ("abs", "relu"), ("a*", "1/3*"), ("(1 +", "(2 +"),
    ):  # fmt: skip
        texts += [changed for one, _ in ALIKE if (changed := one.replace(old, new)) != one]
    texts += [
        "0",
        "1",
        "h0_0",
        "-h0_0",
        "2*h0_0",
        "h0_0**2",
        "1/2",
        "0.1",
        "0.10000000000000001",
        "relu(h0_0)",
        "max(h0_0, -a*k0_0)",
    ]
    expressions = {read(text): text for text in texts}
    assert len(expressions) > 35
    for (one, text), (other, its) in combinations(expressions.items(), 2):
        assert fingerprint(one) != fingerprint(other) or (one - other).expand() == 0, (text, its)


@pytest.mark.parametrize("text", [*(one for pair in ALIKE for one in pair), TWO_OF_EACH])
def test_a_printed_expression_comes_back(text: str):
    """As of a function whose value it is, though the text has common parts as definitions."""
    expression = read(text)
    symbols = {str(x): x for x in expression.free_symbols}
    code = f"lambda {', '.join(symbols)}: value"
    printed = formula_of(eval(code, {"value": expression}), symbols)
    assert fingerprint(read(printed)) == fingerprint(expression)


# --- problems ---------------------------------------------------------------------------------------------------------


def problem_of_two(**fields: Any) -> Problem:
    clusters = [{"sigma": 0.9, "mean": [0.0]}, {"sigma": 0.8, "mean": [1.4]}]
    tokens = {"kind": "mixture", "length": 2, "clusters": clusters, "law": {"kind": "single-location"}}
    given = {
        "tokens": tokens,
        "positions": {"kind": "none"},
        "loss": {"kind": "expression", "expression": "(h0_0 - h1_0 - a*k0_0)**2/2 + b**2", "parameters": LOSS},
    }
    return Problem.from_dict(given).with_fields(fields)


def by_hand(h, k, a, b):
    return (fn.tanh(a * h[0, 0]) - k[0, 0]) ** 2 / 2 + b * k[1, 0] * (k[0, 0] + h[1, 0])


LOSS = {"a": 1.3, "b": 0.2}
WRITTEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
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
def test_equal_models_have_equal_hashes(name: str):
    one, other = (problem_of_two(**fields) for fields in WRITTEN[name])
    assert one.hash == other.hash
    for again in (one, other):
        assert Problem.from_data(again.to_toml(), one.hash).hash == one.hash
        assert Problem.from_data(again.to_toml(), digest_of(again.to_toml())) == again  # of older data


def test_scores_and_tokens_that_are_alike():
    base = {"tokens.sigma": [0.7, 0.7], "student.score": "z/(1 + sum(z**2))"}
    one = Problem().with_fields(base)
    assert one.hash == one.with_fields({"student.score": "(1 + sum(z*z))**(-1)*z", "tokens.sigma": 0.7}).hash
    assert one.hash != one.with_fields({"student.score": "z/(2 + sum(z**2))"}).hash
    assert one.hash != one.with_fields({"tokens.sigma": [0.7, 0.8]}).hash
    assert Problem().hash != Problem().with_fields({"teacher.omega": 0.7}).hash


def centred(logits):
    shares = [z / (2 + sum(y**2 for y in logits)) for z in logits]
    return [fn.tanh(0.3 * share) - sum(shares) for share in shares]


def test_a_score_may_be_a_function():
    scores = {"student.score": centred, "teacher.score": centred}
    formula = "tanh(0.3*z/(2 + sum(z**2))) - sum(z/(2 + sum(z**2)))"
    problem = Problem().with_fields({"tokens.length": 4, **scores})
    assert problem.hash == problem.with_fields(dict.fromkeys(scores, formula)).hash
    assert Problem.from_toml(problem.to_toml()) == problem


def last(logits):
    return [*logits[:-1], 2 * logits[-1]]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (last, "its entries are no formula of their own logit and of sums over the row: give it a name"),
        (lambda logits: [z / len(logits) for z in logits], "its entries are no formula of their own logit"),
        (lambda logits: logits[:1], "returns 1 entries for 2 logits"),
        (lambda logits: [1 / z for z in logits], "is not a finite number at logits"),
    ],
)
def test_a_function_that_is_no_score_is_refused(function: Any, says: str):
    with pytest.raises(ProblemError, match=re.escape(says)) as caught:
        Problem().with_fields({"teacher.score": function})
    assert caught.value.field == "teacher.score"


def test_other_models_have_other_hashes():
    changes: list[dict[str, Any]] = [
        {}, {"loss.expression": "(h0_0 + h1_0 - a*k0_0)**2/2 + b**2"}, {"loss.parameters": {"a": 0.2, "b": 1.3}},
        {"loss.trained": {"a": "a**2"}}, {"loss.trained": {"b": "b**2"}}, {"loss.trained": {"b": "b**2/3"}},
        {"metrics.one": "h0_0"}, {"metrics.two": "h0_0"}, {"metrics.one": "h1_0"},
        {"tokens.density": "1 + tanh(k0_0)/2"}, {"tokens.density": "1 + tanh(k0_0)/3"},
        {"tokens.sampler": "k + k**3"}, {"tokens.sampler": "k + k**5"}, {"tokens.sampler": "[[k1_0], [k0_0]]"},
        {"tokens.sampler": "[[k0_0 + k0_0**3], [k1_0]]"},
        {"tokens.density": "1 + u*tanh(k0_0)", "tokens.parameters": {"u": 0.5}},
        {"regularizer.kind": "expression", "regularizer.expression": "w**2"},
        {"regularizer.kind": "expression", "regularizer.expression": "w**4"},
        {"tokens.law.probability": 0.9}, {"tokens.mean_teacher": [[0.4]]}, {"metrics.one": "c1 + noise0_1"},
        {"tokens.clusters": [{"sigma": 0.9, "mean": [0.1]}, {"sigma": 0.8, "mean": [1.4]}]},
        {"tokens.clusters": [[{"sigma": 0.9}] * 2, [{"sigma": 0.9}, {"sigma": 0.8, "mean": [1.4]}]]},
    ]  # fmt: skip
    assert len({problem_of_two(**one).hash for one in changes}) == len(changes)


def test_data_of_a_formula_belongs_to_the_function():
    tokens: dict[str, Any] = {"tokens": {"length": 1}, "positions": {"kind": "none"}}
    written, called, other = (
        Problem.from_dict({**tokens, "loss": {"kind": "expression", "expression": loss}})
        for loss in ("sqrt(1 + (h - k)**2)", lambda h, k: fn.sqrt((k - h)[0, 0] ** 2 + 1), "sqrt(2 + (h - k)**2)")
    )
    ds = ap.solve(written, 1.7, settings=ap.SolverSettings(max_maps=2, stability=False))
    assert ds.attrs["problem_hash"] == problem_of(ds).hash == called.hash
    assert at_problem(ds, called).sizes == ds.sizes
    with pytest.raises(CompareError, match=re.escape(f"loss.expression is '{written.loss.text}' in the theory")):
        at_problem(ds, other)
    for text in (other.to_toml(), written.to_toml().replace("sqrt", "sqrt(")):
        with pytest.raises(DatasetError, match="problem_hash"):
            problem_of(ds.assign_attrs(problem=text))
