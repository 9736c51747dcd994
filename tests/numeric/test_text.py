"""What people read: numbers with errors, and tables that lose nothing where the terminal is narrow."""

import io
import os
import re
import sys
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from command import run
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from made_up import made_up_point

import attnphase as ap
from attnphase.checks.comparison import Comparison, Quantity
from attnphase.checks.deviations import Limit, Measured
from attnphase.checks.report import Check, Report
from attnphase.data.absence import absences, absent
from attnphase.data.build import from_points
from attnphase.data.counts import status_counts
from attnphase.data.text import (
    Table,
    format_value,
    pairs_text,
    points_table,
    runs_table,
    terminal_width,
    thresholds_table,
    wrapped,
)
from attnphase.data.variables import POINT_VARIABLES
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.verdict import IDENTITIES
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.branches import Identity
from attnphase.sweeps.points import solved

COARSE = ["--set", "integration.rule=sobol", "--set", "integration.nodes=16"]
EXPERIMENTS = Path(__file__).parents[2] / "data" / "experiments"


@pytest.fixture(autouse=True)
def no_columns(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="module")
def points():
    problem = Problem.paper(omega=0.3).with_fields({"integration.rule": "sobol", "integration.nodes": 16})
    return solved(problem, 1.6, "all", SolverSettings())


def columns_of(block):
    """Cells of an aligned block by (row, column), taken apart by hand: at least two blanks stand between columns."""
    head, *rows = [re.split(r" {2,}", line.strip()) for line in block.splitlines()]
    return {(row[0], name): cell for row in rows for name, cell in zip(head[1:], row[1:], strict=True)}


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.114807, 0.00005, "0.11481(5)"),
        (12.672, 0.0131, "12.672(13)"),
        (0.2, 0.0996, "0.20(10)"),
        (-0.245, 0.007, "-0.245(7)"),
        (1234.0, 26.0, "1230(30)"),
        (0.0, 0.0, "0"),
        (1e-17, 1e-18, "0"),
        (0.5, 1e-17, "0.5"),
        (0.5, float("nan"), "0.5"),
        (float("nan"), 0.1, "–"),
        (5.1e-5, 2.6e-5, "5(3)e-5"),
        (0.0, 0.002, "0.000(2)"),
    ],
)
def test_numbers_carry_their_error(value, error, text):
    assert format_value(value, error) == text


# --- layout -----------------------------------------------------------------------------------------------------------

SMALL = Table(
    ("alpha = 1.7", "first", "second", "third"),
    (("q[1]", "0.114(5)", "0.2", "–"), ("status", "converged", "left_domain", "converged")),
    by_column=True,
)
RECORDS = Table(
    ("start", "d", "alpha", "loss", "z", "status"),
    (("semantic", "90", "1.7", "0.114(5)", "+2.1", "3 converged, 1 diverged"),),
    labels=3,
    left=(0, 5),
    joined=(4,),
)


def test_a_table_that_fits_is_aligned():
    whole = (
        "alpha = 1.7      first       second      third\n"
        "q[1]          0.114(5)          0.2          –\n"
        "status       converged  left_domain  converged"
    )
    assert SMALL.text() == SMALL.text(46) == whole
    assert RECORDS.text() == (
        "start      d  alpha      loss     z  status\nsemantic  90    1.7  0.114(5)  +2.1  3 converged, 1 diverged"
    )


def test_a_wider_table_is_split_into_blocks_with_the_labels():
    assert SMALL.text(45) == (
        "alpha = 1.7      first       second\n"
        "q[1]          0.114(5)          0.2\n"
        "status       converged  left_domain\n"
        "\n"
        "alpha = 1.7      third\n"
        "q[1]                 –\n"
        "status       converged"
    )


def test_where_blocks_would_hold_one_column_every_value_has_a_line():
    assert SMALL.text(34) == (
        "alpha = 1.7, first\nq[1] = 0.114(5)\nstatus = converged\n\n"
        "alpha = 1.7, second\nq[1] = 0.2\nstatus = left_domain\n\n"
        "alpha = 1.7, third\nq[1] = –\nstatus = converged"
    )
    # a number says by its head what it is; z belongs to the loss before it
    assert RECORDS.text(34) == (
        "semantic, d = 90, alpha = 1.7\nloss = 0.114(5), z = +2.1\nstatus = 3 converged, 1 diverged"
    )
    assert RECORDS.text(20) == (
        "semantic, d = 90,\n  alpha = 1.7\nloss = 0.114(5)\n  z = +2.1\nstatus = 3\n  converged, 1\n  diverged"
    )


WORDS = st.text("abc0.()", min_size=1, max_size=9)


@st.composite
def tables(draw):
    columns, rows = draw(st.integers(2, 8)), draw(st.integers(1, 4))
    labels = draw(st.integers(1, min(3, columns - 1)))
    joined = draw(st.sets(st.integers(labels + 1, columns - 1))) if columns > labels + 1 else set()
    cells = st.lists(WORDS, min_size=columns, max_size=columns)
    left, by_column = draw(st.sets(st.integers(0, columns - 1))), labels == 1 and draw(st.booleans())
    body = tuple(tuple(draw(cells)) for _ in range(rows))
    return Table(tuple(draw(cells)), body, labels, tuple(left), tuple(sorted(joined)), by_column)


@hypothesis_settings(max_examples=150, deadline=None)
@given(tables(), st.integers(12, 90))
def test_no_width_cuts_a_value_or_is_exceeded(table, width):
    text = table.text(width)
    assert "…" not in text
    # cells are of at most nine characters: none is too long for a line of its own
    assert max(map(len, text.splitlines())) <= width
    words = text.replace(",", " ").split()
    for row in table.rows:
        for cell in row[table.labels :]:
            assert words.count(cell) >= sum(r[table.labels :].count(cell) for r in table.rows), (cell, text)


def test_paragraphs_are_broken_between_words():
    text = "one two-three four\n  five"
    assert wrapped(text, None) == wrapped(text, 18) == text
    assert wrapped(text, 15) == "one two-three\n    four\n  five"
    assert wrapped("0.123456789(12) x", 6) == "0.123456789(12)\n    x"  # longer than the terminal, and yet whole
    pairs = [("points", "12 converged"), ("files", "a.nc, b.png " * 4)]
    assert pairs_text(pairs) == f"points  12 converged\nfiles   {'a.nc, b.png ' * 4}"
    below = pairs_text(pairs, 44).splitlines()
    assert below[1] == "files   a.nc, b.png a.nc, b.png a.nc, b.png"
    assert below[2] == "        a.nc, b.png"
    assert pairs_text(pairs, 20).splitlines()[:3] == ["points", "        12 converged", "files"]


def test_the_width_is_that_of_a_terminal(monkeypatch):
    assert terminal_width() is None  # pytest holds standard output
    monkeypatch.setenv("COLUMNS", "61")
    assert terminal_width() == 61
    monkeypatch.setenv("COLUMNS", "0")
    assert terminal_width() is None
    monkeypatch.delenv("COLUMNS")

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((97, 30)))
    assert terminal_width() == 97
    monkeypatch.setattr(sys, "stdout", None)  # closed by the shell
    assert terminal_width() is None


# --- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [60, 40, 20])
def test_points_say_the_same_at_every_width(points, width):
    whole = columns_of(points_table(points).text())
    shown = (one for one in POINT_VARIABLES if not one.name.endswith("_hat") and one.name not in IDENTITIES)
    assert len(whole) == 3 * sum(prod({"token": 2, "eigenvalue": 3}.get(dim, 1) for dim in one.dims) for one in shown)
    assert whole["status", "positional"] == "converged"
    text = points_table(points).text(width)
    found = {}
    for block in text.split("\n\n"):
        if width == 60:
            found |= columns_of(block)
        else:
            lines = re.sub(r"\n +", " ", block).splitlines()
            assert lines[0].startswith("alpha = 1.6, ")
            branch = lines[0].split(", ")[1]
            found |= {(name, branch): cell for name, cell in (line.split(" = ") for line in lines[1:])}
    assert found == whole
    assert max(map(len, text.splitlines())) <= max(width, len("second_minimum_share ="))


def test_the_command_line_asks_for_the_width(points, monkeypatch):
    arguments = ["solve", "--alpha", 1.6, "--branch", "all", *COARSE]
    assert run(*arguments).stdout == f"{points_table(points).text()}\n"
    monkeypatch.setenv("COLUMNS", "44")
    assert run(*arguments).stdout == f"{points_table(points).text(44)}\n"


def test_runs_are_means_with_errors_at_every_width():
    runs = ap.load_dataset(EXPERIMENTS / "fig7-runs.nc")
    here = runs.sel(start="semantic", dimension=56).squeeze("alpha")
    error = here["test_error"].to_numpy()
    wanted = format_value(error.mean(), error.std(ddof=1) / np.sqrt(len(error)))
    whole = runs_table(runs).text().splitlines()
    assert [line.split()[0] for line in whole[1:]].count("semantic") == 4
    line = next(line for line in whole if re.match(r"semantic +56 +1\.5 ", line))
    assert wanted in line.split()
    assert line.endswith(f"{len(error)} completed")
    for width in (80, 60, 40, 20):
        text = runs_table(runs).text(width)
        assert max(map(len, text.splitlines())) <= width
        assert wanted in text.split()
    block = next(b for b in runs_table(runs).text(40).split("\n\n") if b.startswith("semantic, d = 56, alpha = 1.5\n"))
    assert f"test_error = {wanted}" in block.splitlines()


def test_thresholds_have_a_line_for_each_omega():
    ds = xr.Dataset(
        {
            "alpha_c": ("omega", [1.2522, np.nan]),
            "alpha_c_stderr": ("omega", [0.0013, np.nan]),
            "alpha_l": ("omega", [1.4922, 1.2773]),
            "alpha_l_stderr": ("omega", [0.0006, 0.0007]),
        },
        coords={"omega": [0.3, 0.25]},
    )
    table = thresholds_table(ds)
    assert table.text(80) == "omega     alpha_c    alpha_l\n  0.3  1.2522(13)  1.4922(6)\n 0.25           –  1.2773(7)"
    assert table.text(20).startswith("omega = 0.3\nalpha_c = 1.2522(13)\n")


def quantity(name, limit):
    measured = tuple(Measured(d, 8, 0.00394 / d, 0.00015, 0.0, -2.43) for d in (100, 200, 400))
    return Quantity("semantic", 2.0, name, 0.0035905, 4e-7, "converged", measured, limit)


def test_comparisons_keep_a_value_and_its_deviation_together():
    limit = Limit(0.00382, 0.00014, 0.012, 0.02, 0.0, 1.72, 1.0, 1)
    comparison = Comparison(
        Problem(), (quantity("training_loss", limit), quantity("q[1,1,1]", None)), (), xr.Dataset(), xr.Dataset()
    )
    natural = comparison.text()
    assert re.search(r"theory +d = 100 +z +d = 200 +z +d = 400 +z +a of a \+ b/d +z +b\n", natural)
    assert max(map(len, natural.splitlines())) > 100
    for width in (80, 60):
        text = comparison.text(width)
        assert max(map(len, text.splitlines())) <= width
        for line in text.splitlines():
            assert not re.match(r" *(z|b)\b", line), text  # no block begins with a column that means nothing alone
        assert text.count("0.0035905(4)") == 2
        assert text.count("-2.4") == 6
    narrow = comparison.text(40)
    assert "\nd = 200\ntraining_loss = 0.00002(15), z = -2.4\n" in narrow
    assert "training_loss = 0.00382(14), z = +1.7" not in narrow  # b would not fit behind
    assert "training_loss = 0.00382(14)\n  z = +1.7\n  b = 0.01(2)\n" in narrow
    assert "the worst deviates by 2.4;\n    with 8 runs" in narrow
    assert narrow.endswith("itself uncertain by 27%.")


def test_a_long_check_goes_on_below_its_beginning():
    long = "errors fall like N^-0.72 (Monte Carlo: N^-0.5), from 4.4e-02 relative"
    checks = (Check("fixed point", True, 3.3e-9, 1e-7, "status converged"), Check("rate", False, -0.2, -0.35, long))
    report = Report(Problem(), 1.5, "semantic", checks)
    natural = report.text()
    assert natural.splitlines() == [
        "semantic branch, alpha = 1.5",
        "    ok  fixed point  3.3e-09 (limit 1.0e-07); status converged",
        f"FAILED  rate         -2.0e-01 (limit -3.5e-01); {long}",
        "1 of 2 checks failed",
    ]
    assert report.text(80).splitlines()[2:5] == [
        "FAILED  rate         -2.0e-01 (limit -3.5e-01); errors fall like N^-0.72 (Monte",
        "                     Carlo: N^-0.5), from 4.4e-02 relative",
        "1 of 2 checks failed",
    ]
    narrow = report.text(40)
    assert max(map(len, narrow.splitlines())) <= 40
    assert " ".join(narrow.split()) == " ".join(natural.split())


# --- branches that do not exist ---------------------------------------------------------------------------------------


def point(branch, m, theta, status=0, error=0.002):
    tokens = ("token",)
    return xr.Dataset(
        {
            "status": ((), status),
            "m": (tokens, m),
            "m_stderr": (tokens, [error] * len(m)),
            "theta": (tokens, theta),
            "theta_stderr": (tokens, [error] * len(theta)),
        },
        coords={"branch": branch},
    )


@pytest.mark.parametrize(
    ("branch", "m", "theta", "status", "missing"),
    [
        ("positional", [0.0059, -0.0059], [0.0, 0.0], 0, True),  # just below three standard errors
        ("positional", [0.0061, -0.0061], [0.0, 0.0], 0, False),
        ("positional", [0.001, -0.0061], [0.0, 0.0], 0, False),  # one entry is enough
        ("positional", [0.0, 0.0], [0.3, 0.3], 0, True),
        ("positional", [0.001, -0.001], [0.0, 0.0], 1, False),  # on its way: nobody knows
        ("positional", [0.0, 0.0], [0.0, 0.0], 1, True),  # started without it
        ("positional", [np.nan, 0.2], [0.0, 0.0], 0, False),
        ("positional", [np.nan, np.nan], [np.nan, np.nan], 3, False),  # not computed
        ("semantic", [0.0, 0.0], [0.3, 0.3], 0, False),
        ("semantic", [0.3, -0.3], [0.005, 0.005], 0, True),
        ("uninformed", [0.0, 0.0], [0.0, 0.0], 0, False),
        ("mixed", [0.3, -0.3], [0.3, 0.3], 0, False),
        ("mixed", [0.3, -0.3], [0.001, 0.0], 0, True),
        ("mixed", [0.001, 0.0], [0.3, 0.3], 0, True),
    ],
)
def test_a_branch_needs_its_order_parameter(branch, m, theta, status, missing):
    problem = Problem().with_fields({"student.rank": 2})
    assert bool(absent(point(branch, m, theta, status), problem)) is missing


@pytest.mark.parametrize("error", [np.nan, 0.07])  # unknown, or so large that it says nothing
def test_such_an_error_excuses_nothing(error):
    """The positional branch has m of about 0.2 at these parameters: see the README."""
    ds = point("positional", [0.19, -0.19], [0.0, 0.0], error=error)
    assert not bool(absent(ds, Problem()))
    # of a branch whose own m is larger, this is small
    spread = Problem().with_fields({"positions.gram": [[100.0, -100.0], [-100.0, 100.0]]})
    assert bool(absent(ds, spread)) is (error == 0.07)


def solved_point(problem, branch, m, theta, on_branch=Identity.on_branch):
    values = {"m": np.array([m, -m]), "theta": np.array([theta, theta])}
    errors = {name: np.full(2, 0.002) for name in values}
    nothing: Any = None  # nobody goes on from here
    return BranchPoint(problem, 1.6, branch, values, errors, Status.converged, 0.0, 1, "sobol", 64, nothing, on_branch)


def test_a_sentence_says_what_was_found_instead():
    problem = Problem().with_fields({"student.rank": 2})
    cases = {
        (
            "positional",
            0.0,
            0.0,
        ): "positional: m = 0 within its error; no such branch here: this is the uninformed point.",
        (
            "semantic",
            0.0,
            0.001,
        ): "semantic: theta = 0 within its error; no such branch here: this is the uninformed point.",
        ("mixed", 0.3, 0.0): "mixed: theta = 0 within its error; no such branch here: this is the positional point.",
        ("mixed", 0.0, 0.3): "mixed: m = 0 within its error; no such branch here: this is the semantic point.",
        ("mixed", 0.0, 0.0): (
            "mixed: m = 0 and theta = 0 within their errors; no such branch here: this is the uninformed point."
        ),
    }
    for (branch, m, theta), sentence in cases.items():
        assert absences([solved_point(problem, branch, m, theta, Identity.merged)]) == {branch: sentence}
    assert absences([solved_point(problem, "semantic", 0.0, 0.3)]) == {}
    merged = solved_point(problem, "semantic", 0.3, 0.0, Identity.merged)
    both = absences([merged, solved_point(problem, "positional", 0.3, 0.0)])
    assert list(both) == ["semantic"]


def test_solve_and_sweep_say_where_a_branch_is_missing(tmp_path):
    """Below alpha about 0.6 theta of the semantic branch vanishes: see the README."""
    arguments = ["solve", "--alpha", 0.4, "--branch", "semantic"]
    sentence = "attnphase: semantic: theta = 0 within its error; no such branch here: this is the uninformed point.\n"
    result = run(*arguments)
    assert result.stderr == sentence
    assert result.stdout.startswith("alpha = 0.4")
    assert result.stdout.splitlines()[0].endswith(" semantic*")
    result = run(*arguments, "--json")
    assert result.stderr == sentence
    assert run(*arguments, "--json", "--quiet").stderr == ""
    line = ["sweep", "--alpha", "0.4,1.8", "--branch", "semantic", "--workers", 1, "-o", tmp_path / "x.nc"]
    ended = "2 converged; no semantic branch at 1 point; replica symmetry fails at 1 point"
    assert run(*line).stdout == f"{tmp_path / 'x.nc'}: {ended}\n"


def test_what_is_doubtful_is_said_in_one_order(monkeypatch):
    """What is missing, what is not decided, then where replica symmetry fails: not of what is missing."""
    problem = Problem()
    identities = {
        "semantic": Identity.not_decided,
        "positional": Identity.merged,
        "uninformed": Identity.on_branch,
    }
    points = [
        replace(made_up_point(problem, 1.6, branch, overlap_gap=0.53), on_branch=identity)
        for branch, identity in identities.items()
    ]
    monkeypatch.setattr("attnphase.sweeps.points.solved", lambda *_, **__: points)
    result = run("solve", "--alpha", 1.6, "--branch", "all")
    assert result.stdout.splitlines()[0].split() == ["alpha", "=", "1.6", "semantic?", "positional*", "uninformed"]
    said = [" ".join(line.split()[1:4]) for line in result.stderr.splitlines()]
    assert said == [
        "positional: m =",
        "semantic: whether this",
        "semantic: overlap_gap =",
        "uninformed: overlap_gap =",
    ]
    ds = from_points(points, {"branch": list(identities), "alpha": [1.6]})
    assert status_counts(ds, problem) == (
        "3 converged; no positional branch at 1 point; semantic branch not decided at 1 point;"
        " replica symmetry fails at 3 points"
    )


def test_solve_says_where_replica_symmetry_fails():
    """The positional branch at omega = .1: training has |m| .22 at alpha = 1.17, the theory .14."""
    arguments = ["solve", "--alpha", 1.17, "--branch", "positional", "--set", "teacher.omega=0.1"]
    result = run(*arguments)
    assert re.fullmatch(
        r"attnphase: positional: overlap_gap = [\d.()]+ is above 0.2: replica symmetry fails here, and training may end"
        r" elsewhere.\n",
        result.stderr,
    )
    assert run(*arguments, "--no-stability").stderr == ""
    assert run(*arguments, "--quiet").stderr == ""
