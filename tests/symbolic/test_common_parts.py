"""Shared subexpressions against the expressions they are taken out of."""

from typing import Any

from sympy import Mul, Rational, exp, symbols

from derivations.algebra.common_parts import common_parts
from derivations.codegen.lifting import straight_line


def test_numbers_times_sums_stay_sums():
    """Where a sum stands beside a number times it: SymPy's own `cse` multiplies the terms of the last one here."""
    a, b, c = symbols("a b c", real=True)
    part = Rational(2, 5)
    sums = a + b, a + b + c
    whole = [*(exp(Mul(part, x, evaluate=False)) for x in sums), *(exp(part * x) for x in sums)]
    values: dict[Any, Any] = {a: 0.31, b: 0.72, c: -0.23}
    known = dict(values)
    shared, left = common_parts(whole, "y")
    for name, value in shared:
        known[name] = value.subs(known)
    for one, expected in zip(left, whole, strict=True):
        assert abs(one.subs(known) - expected.subs(values)) < 1e-12
    known = dict(values)
    for one in straight_line({f"out{n}": value for n, value in enumerate(whole)}):
        value: Any = one.value
        known[one.place] = value.subs(known)
    found = [known[place] for place in known if str(place).startswith("out")]
    assert max(abs(x - y.subs(values)) for x, y in zip(found, whole, strict=True)) < 1e-12
    assert shared
