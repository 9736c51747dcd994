"""Formulas of problem files are read as arithmetic and nothing else."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sympy import Symbol, lambdify

from derivations.models.formulas import FUNCTIONS, FormulaError, parse_formula, parse_row_formula

X, Y = Symbol("x", real=True), Symbol("y", real=True)
NUMERIC = {
    "Modulus": abs,
    "Relu": lambda x: max(0.0, x),
    "Sign": lambda x: (x > 0) - (x < 0),
    "Sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "Softplus": lambda x: math.log1p(math.exp(x)),
}

# the same formulas, evaluated as they are built: (text, function of x and y)
UNARY = {
    "exp": math.exp,
    "tanh": math.tanh,
    "sinh": math.sinh,
    "cosh": math.cosh,
    "sin": math.sin,
    "cos": math.cos,
    "abs": abs,
    "relu": lambda a: max(a, 0.0),
    "sigmoid": lambda a: 1 / (1 + math.exp(-a)),
    "softplus": lambda a: math.log1p(math.exp(a)),
    "sign": lambda a: float((a > 0) - (a < 0)),
    "sqrt": math.sqrt,
    "log": math.log,
}
BINARY = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}


def _unary(name, inner):
    text, function = inner
    # roots and logarithms of positive numbers only
    if name in ("sqrt", "log"):
        return f"{name}(({text})**2 + 0.75)", lambda x, y: UNARY[name](function(x, y) ** 2 + 0.75)
    return f"{name}({text})", lambda x, y: UNARY[name](function(x, y))


def _binary(sign, left, right):
    return f"(({left[0]}) {sign} ({right[0]}))", lambda x, y: BINARY[sign](left[1](x, y), right[1](x, y))


def _extreme(name, left, right):
    function = max if name == "max" else min
    return f"{name}({left[0]}, {right[0]})", lambda x, y: function(left[1](x, y), right[1](x, y))


def _power(inner, exponent):
    return f"({inner[0]})**{exponent}", lambda x, y: inner[1](x, y) ** exponent


LEAVES = st.one_of(
    st.just(("x", lambda x, y: x)),
    st.just(("y", lambda x, y: y)),
    st.integers(2, 9).map(lambda n: (str(n), lambda x, y: float(n))),
    st.floats(0.1, 4.0).map(lambda n: round(n, 3)).map(lambda n: (repr(n), lambda x, y: n)),
)
FORMULAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(_unary, st.sampled_from(sorted(UNARY)), inner),
        st.builds(_binary, st.sampled_from(sorted(BINARY)), inner, inner),
        st.builds(_extreme, st.sampled_from(["max", "min"]), inner, inner),
        st.builds(_power, inner, st.integers(2, 3)),
        inner.map(lambda f: (f"-({f[0]})", lambda x, y: -f[1](x, y))),
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=80)
@given(formula=FORMULAS, x=st.floats(-1.7, 1.9), y=st.floats(-2.1, 1.3))
def test_random_formulas_mean_what_they_say(formula, x, y):
    text, function = formula
    try:
        expected = function(x, y)
        shifted = function(x * (1 + 1e-9) + 1e-9, y * (1 - 1e-9) - 1e-9)
    except (ZeroDivisionError, OverflowError):
        assume(False)
    assume(math.isfinite(expected) and abs(expected) < 1e6)
    # neither at a jump nor where rounding decides
    assume(abs(shifted - expected) < 1e-5 * (1 + abs(expected)))
    try:
        read = parse_formula(text, {"x": X, "y": Y})
    except FormulaError as error:
        # a constant part that SymPy finds to be 1/0 and floating point does not, or one of many functions
        assume("not a finite real number" not in str(error) and "functions and powers" not in str(error))
        raise
    value = lambdify((X, Y), read, [NUMERIC, "math"])(x, y)
    assert abs(value - expected) < 1e-6 * (1 + abs(expected))


def test_every_function_of_the_grammar_is_in_the_random_formulas():
    assert set(FUNCTIONS) == {*UNARY, "max", "min"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("x +", "is not a formula"),
        ("x; y", "is not a formula"),
        ("x = 3", "is not a formula"),
        ("x.real", "'x.real' cannot stand"),
        ("x.__class__.__mro__", "cannot stand"),
        ("x[0]", "'x[0]' cannot stand"),
        ("[x]", "cannot stand"),
        ("(x, y)", "cannot stand"),
        ("{x: y}", "cannot stand"),
        ("lambda q: q", "cannot stand"),
        ("(lambda: x)()", "cannot stand"),
        ("'text'", "cannot stand"),
        ("f'{x}'", "cannot stand"),
        ("x < y", "'x < y' cannot stand"),
        ("x and y", "cannot stand"),
        ("not x", "cannot stand"),
        ("x if y else x", "cannot stand"),
        ("(q := x)", "cannot stand"),
        ("[q for q in x]", "cannot stand"),
        ("True * x", "'True' cannot stand"),
        ("None", "cannot stand"),
        ("2j * x", "'2j' cannot stand"),
        ("x // y", "cannot stand"),
        ("x % y", "cannot stand"),
        ("x @ y", "cannot stand"),
        ("~x", "cannot stand"),
        ("abs(x=y)", "cannot stand"),
        ("__import__('os')", 'unknown function "__import__"'),
        ("eval(x)", 'unknown function "eval"'),
        ("sum(x)", 'unknown function "sum"'),
        ("q + x", 'unknown name "q": the names are x, y'),
        ("exp", 'unknown name "exp"'),
        ("abs(x, y)", 'gives "abs" 2 arguments'),
        ("max(x)", 'gives "max" 1 arguments'),
        ("max(*x)", 'gives "max" 1 arguments'),
        ("x**y", "powers must be numbers"),
        ("x**65", "at most 64"),
        ("x**-65.5", "at most 64"),
        ("3**(2**7)", "at most 64"),
        ("((9**64)**64)**64 * x", "too large a number"),
        ("1e999 * x", "too large a number"),
        ("x**(0/0)", "'0 / 0' is not a finite real number"),
        ("x + 1/0", "'1 / 0' is not a finite real number"),
        ("log(0) * x", "'log(0)' is not a finite real number"),
        ("sqrt(-2) * x", "'sqrt(-2)' is not a finite real number"),
        ("x**sqrt(-1)", "is not a finite real number"),
        ("(-3)**(1/3) * x", "is not a finite real number"),
        ("tanh(0.3+" * 19 + "y-y" + ")" * 19 + "*x", "more than 8 functions and powers"),
        ("x*(" + "+".join(f"cos({n})" for n in range(2, 99)) + ")", "more than 8 functions and powers"),
        ("2.5E-4711*x", "too near to zero"),
        ("x - 0.00_7e-999", "too near to zero"),
        ("3e-301*x", "too near to zero"),
        ("2e-170*x*3e-170", "too near to zero"),
        ("-" * 1500 + "x", "nested"),
        ("+".join(["x"] * 900), "nested"),
        ("x" + "+x" * 1001, "longer than 2000"),
    ],
)
def test_everything_else_is_refused(text, words):
    with pytest.raises(FormulaError) as caught:
        parse_formula(text, {"x": X, "y": Y})
    assert words in str(caught.value)
    assert str(caught.value).endswith(".")


def test_zero_may_be_written_with_any_exponent():
    assert parse_formula("x + 0.0e-4711*y + .0", {"x": X, "y": Y}) == X


@pytest.mark.parametrize("name", ["z", "L"])
def test_a_row_formula_with_a_number_of_many_functions_is_refused(name):
    number = "sigmoid(0.1+" * 17 + f"{name}/{name}" + ")" * 17
    with pytest.raises(FormulaError, match="more than 8 functions and powers"):
        parse_row_formula(f"{number}*z", [X, Y])


def test_text_is_required():
    with pytest.raises(FormulaError, match="empty"):
        parse_formula(3, {"x": X})  # type: ignore[arg-type]


def test_decimals_become_fractions():
    assert (parse_formula("0.3*x - 3*x/10", {"x": X})) == 0


def test_a_root_of_a_square_is_differentiated_without_delta_functions():
    second = parse_formula("sqrt(x**2)", {"x": X}).diff(X, 2)
    assert second == 0


@settings(deadline=None, max_examples=25)
@given(point=st.lists(st.floats(-1.6, 1.8), min_size=3, max_size=3))
def test_sums_run_over_the_row(point):
    z = [Symbol(f"z{b}", real=True) for b in range(3)]
    row = parse_row_formula("exp(0.7*z)/(L + sum(exp(0.7*z) * z**2)) - z", z)
    total = 3 + sum(math.exp(0.7 * v) * v**2 for v in point)
    for entry, v in zip(row, point, strict=True):
        value = float(entry.subs(dict(zip(z, point, strict=True))).evalf())
        assert abs(value - (math.exp(0.7 * v) / total - v)) < 1e-12


def test_sums_within_sums_bind_the_inner_logit():
    z = [Symbol(f"z{b}", real=True) for b in range(2)]
    row = parse_row_formula("sum(z * sum(z + 2))", z)
    assert all((entry - (z[0] + z[1]) * (z[0] + z[1] + 4)).expand() == 0 for entry in row)
