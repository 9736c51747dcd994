"""Numbers of many digits in formulas: exact fractions that pass 64 bits become doubles in generated code."""

from __future__ import annotations

from sympy import Integer, Rational, Symbol

from derivations.codegen.ir import Assign, Function, Module
from derivations.codegen.writer import written


def test_wide_fractions_and_integers_are_written_as_doubles():
    """Compiled code has no integers from 2**63 on; 0.7648421872**8 has a denominator of 10**80."""
    x = Symbol("x")
    wide, large = Rational(7648421872, 10**10) ** 8, Integer(3) ** 60
    text = written(Module({}, (Function("f", ("x",), (Assign(x, wide * x + large),)),)))
    assert repr(7648421872**8 / 10**80) in text
    assert repr(float(3**60)) in text
    assert "ratio" not in text
    assert "ratio(1, 3)" in written(Module({}, (Function("f", ("x",), (Assign(x, x / 3),)),)))
