"""What people read: numbers with their errors, in tables that lose nothing where the terminal is narrow.

Not public: `format_value` and `Table`, by which all commands print.
"""

import re

import numpy as np
import pytest
from by_formula import FEW
from command import run

import attnphase as ap
from attnphase.data.text import format_value


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
