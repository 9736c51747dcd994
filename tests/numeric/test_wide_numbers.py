"""Numbers of many digits in formulas: exact fractions that pass 64 bits become doubles in generated code."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from sympy import Integer, Rational, Symbol

from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.problem.problem import Problem
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


def test_a_loss_of_decimals_of_eleven_digits_compiles():
    """``(a h - b k)^2`` is ridge regression of ``c k``, c = b/a, with the strength over ``2 a^2``; no noise.

    There ``V = 1 / (strength + alpha / (1 + V))`` and ``theta = c alpha V / (1 + V)``.
    """
    a, b, strength, alpha = 0.83719264517, 1.21864530973, 0.17, 1.6
    problem = Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": 1.0},
            "loss": {"kind": "expression", "expression": f"({a}*h0_0 - {b}*k0_0)**2"},
            "regularizer": {"strength": strength},
        }
    )
    point = solve_point(problem, alpha, settings=SolverSettings(threads=1, stability=False, identity=False))
    share = strength / (2 * a**2)
    linear = share + alpha - 1
    V = (sqrt(linear**2 + 4 * share) - linear) / (2 * share)
    assert np.ravel(point.values["theta"])[0] == pytest.approx(b / a * alpha * V / (1 + V), rel=1e-6)
