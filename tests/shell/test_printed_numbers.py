"""What people read: numbers with their errors, in tables that lose nothing where the terminal is narrow.

Not public: `format_value` and `Table`, by which all commands print.
"""

import re

import numpy as np
import pytest
from by_formula import FEW
from command import run
from hypothesis import given, settings
from hypothesis import strategies as st

import attnphase as ap
from attnphase.data.text import Table, format_value


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.114807, 0.00005, "0.11481(5)"),
        (12.672, 0.0131, "12.672(13)"),
        (0.2, 0.0996, "0.20(10)"),
        (-0.245, 0.007, "-0.245(7)"),
        (1234.0, 26.0, "1230(30)"),
        (1e-17, 1e-18, "0"),
        (0.5, 1e-17, "0.5"),
        (0.5, np.nan, "0.5"),
        (np.nan, 0.1, "–"),
        (5.1e-5, 2.6e-5, "5(3)e-5"),
        (0.0, 0.002, "0.000(2)"),
    ],
)
def test_numbers_carry_their_error(value, error, text):
    assert format_value(value, error) == text


@st.composite
def tables(draw):
    columns, rows = draw(st.integers(2, 8)), draw(st.integers(1, 4))
    labels = draw(st.integers(1, min(3, columns - 1)))
    joined = draw(st.sets(st.integers(labels + 1, columns - 1))) if columns > labels + 1 else set()
    cells = st.lists(st.text("abc0.()", min_size=1, max_size=9), min_size=columns, max_size=columns)
    left, by_column = draw(st.sets(st.integers(0, columns - 1))), labels == 1 and draw(st.booleans())
    body = tuple(tuple(draw(cells)) for _ in range(rows))
    return Table(tuple(draw(cells)), body, labels, tuple(left), tuple(sorted(joined)), by_column)


@settings(max_examples=100)
@given(tables(), st.integers(12, 90))
def test_no_width_cuts_a_value_or_is_exceeded(table, width):
    text = table.text(width)
    assert max(map(len, text.splitlines())) <= width  # no cell is too long for a line of its own
    words = text.replace(",", " ").split()
    for row in table.rows:
        for cell in row[table.labels :]:
            assert words.count(cell) >= sum(one[table.labels :].count(cell) for one in table.rows), (cell, text)


@pytest.mark.parametrize("width", [None, 40])
def test_a_solve_prints_every_number_with_its_error_at_every_width(monkeypatch, width):
    if width:
        monkeypatch.setenv("COLUMNS", str(width))
    fields = [word for name, value in FEW.items() for word in ("--set", f"{name}={value}")]
    told = run("solve", "--alpha", 1.6, "--branch", "all", *fields).stdout
    ds = ap.solve(ap.Problem.paper().with_fields(FEW), 1.6, "all", progress=False)
    assert width is None or max(map(len, told.splitlines())) <= width
    for name in ("q", "theta", "V"):
        for value, error in zip(ds[name].to_numpy().ravel(), ds[f"{name}_stderr"].to_numpy().ravel(), strict=True):
            assert format_value(value, error) in re.split(r"[\s,]+", told)
