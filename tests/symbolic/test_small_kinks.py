"""Kinks that are small beside the slope around them, and what is no convex penalty though nearly one."""

from __future__ import annotations

import numpy as np
import pytest
from sympy import Symbol

from derivations.models.attention import AttentionModel, Student, Teacher
from derivations.models.formulas import FormulaError, parse_formula
from derivations.models.regularizers import ConvexPenalty, RegularizerError


@pytest.mark.parametrize(("steepness", "jump"), [(5.0, 0.02), (50.0, 0.01), (0.3, 1e-4)])
def test_a_small_kink_on_a_steep_slope_is_found(steepness, jump):
    """``a w^2 + b |w - 1|/2`` has the slope 2a at its kink, which jumps by b there."""
    (kink,) = ConvexPenalty.of(f"{steepness}*w**2 + {jump / 2}*abs(w - 1)").kinks
    place, left, right = kink
    assert place == pytest.approx(1.0, abs=1e-9)
    assert right - left == pytest.approx(jump, rel=1e-3)
    assert (left + right) / 2 == pytest.approx(2 * steepness, rel=1e-4)


def test_a_steep_slope_is_no_kink():
    assert ConvexPenalty.of("sqrt(w**2 + 1e-12)").kinks == ()


@pytest.mark.parametrize(
    "text", ["w**2 + 0.3*cos(4*w)", "0.1*w**2 - 0.03*sqrt(w**2 + 0.01)", "abs(w) - 0.3*abs(w - 1)"]
)
def test_a_slope_that_falls_a_little_is_refused(text):
    with pytest.raises(RegularizerError, match="not convex"):
        ConvexPenalty.of(text)


@pytest.mark.parametrize("power", ["65", "1e6", "-80"])
def test_large_powers_are_refused(power):
    with pytest.raises(FormulaError, match="at most 64"):
        parse_formula(f"w**({power})", {"w": Symbol("w", real=True)})
    assert parse_formula("w**64", {"w": Symbol("w", real=True)}).has(Symbol("w", real=True))


@pytest.mark.parametrize(
    ("rank", "tied", "teacher", "values", "lift"),
    [(2, True, 1, 0, (0, 0)), (3, False, 2, 0, (0, 1, 0, 0, 1, 0)), (2, False, 3, 1, (0, 1, 0, 1, 3))],
)
def test_columns_are_lifted_from_those_of_the_teacher(rank, tied, teacher, values, lift):
    """Query and key column c start at the same teacher column, value columns at the teacher's values."""
    model = AttentionModel(2, Student(rank=rank, tied=tied), Teacher(rank=teacher), values)
    assert model.lift == lift
    assert np.all(np.array(lift) < model.teacher_rank)
