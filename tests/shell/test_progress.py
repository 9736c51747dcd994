"""The one line that says what is done and how long it takes: on a terminal, in a log, and nowhere where all is quiet.

Not public: the line's clock is set by hand, as no test is to wait, and lines of a sweep only take time.
"""

import io
import re
import sys
from types import SimpleNamespace

import pytest
from by_formula import FEW

import attnphase as ap
from attnphase.processes import progress
from attnphase.processes.progress import ProgressLine, progress_line
from attnphase.sweeps.cost import balanced
from attnphase.sweeps.pool import Work
from attnphase.sweeps.store import Store

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


class Stream(io.StringIO):
    """Standard error, which is told when something is written."""

    def __init__(self, terminal):
        super().__init__()
        self.isatty = lambda: terminal


@pytest.fixture
def clock(monkeypatch):
    own = SimpleNamespace(now=1000.0)
    own.monotonic = lambda: own.now
    monkeypatch.setattr(progress, "time", own)
    return own


@pytest.mark.parametrize("end", [None, KeyboardInterrupt], ids=["done", "interrupted"])
@pytest.mark.parametrize("where", ["terminal", "log", "quiet", "closed"])
def test_the_line_is_shown_where_it_is_seen_and_taken_away(monkeypatch, capsys, where, end):
    for name in ("SILENT", "REFRESH", "PLAIN", "LOOK"):
        monkeypatch.setattr(progress, name, 0.001)
    monkeypatch.setenv("TERM", "xterm")
    stream = None if where == "closed" else Stream(where == "terminal")
    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(end or ZeroDivisionError), progress_line(where != "quiet", "solving", total=8) as line:
        line.at(2, "omega = 0.3")
        while where in ("terminal", "log") and "omega = 0.3" not in stream.getvalue():
            pass
        print("a result")
        raise end or ZeroDivisionError
    assert capsys.readouterr().out == "a result\n"
    told = stream.getvalue() if stream else ""
    assert told.count(HIDE) == told.count(SHOW) == (where == "terminal")
    assert ("25%" in told) == (where in ("terminal", "log"))
    assert where != "log" or re.match(r"(attnphase: 25%, omega = 0\.3 \(\d s\)\n)+", told)


@pytest.mark.parametrize("quiet", [True, False])
def test_a_solve_counts_its_maps_unless_quiet(monkeypatch, quiet):
    said = []
    monkeypatch.setattr(progress, "SILENT", 60.0)
    monkeypatch.setattr(
        ProgressLine, "callback", lambda line, text, steps=0.0, most=0.0: said.append((text, steps, most))
    )
    point = ap.solve(ap.Problem.paper().with_fields(FEW), 1.8, "positional", progress=not quiet)
    maps = [
        (int(text.split(": ")[1].split()[0]), steps, most) for text, steps, most in said if " maps, residual " in text
    ]
    assert maps[-1][0] == int(point["iterations"])
    assert all(count == steps < most for count, steps, most in maps)


def test_what_is_counted_is_said_with_its_rate_and_the_time_left(clock):
    """What was there before the line, or before counting, began is counted, but not as if it had been done since."""
    line = ProgressLine("sweeping", 20, 8, "points")
    clock.now += 10  # compiling, and the first two points
    line.reach(10)
    assert line.left is None
    clock.now += 4
    line.reach(16)
    assert line.plain == "80%, sweeping: 16/20 points, 1.5 points/s, 3 s left (14 s)"


def test_a_long_run_is_estimated_once_by_what_was_counted(clock):
    """First from below, then by the first that is done; what is compiled once counts for neither."""
    said: list[str] = []
    line = ProgressLine("solving", 40, 0, "points", announce=said.append)
    line.callback("compiling the kernels of this model, once")
    clock.now += 30
    line.estimate()
    line.callback("semantic")
    for _ in range(7):
        clock.now += 2
        line.estimate()
    assert said == ["none of 40 points is done after 10 s: all of them may take 6 min 40 s or more"]
    line.reach(1)
    clock.now += 3
    line.estimate()
    rest = "39 of 40 points are left, which take about 9 min 6 s, if the rest costs what the first part did"
    assert said[1:] == [rest]


def test_the_time_left_of_a_sweep_is_right_from_the_start(clock):
    """One branch costs three times the other, and more in the middle of the omegas; lines are taken from all over."""

    class Priced:
        alphas, label = tuple(range(25)), ""

        def __init__(self, price):
            self.price = price

        def solve(self, on_point):
            for i in range(25):
                clock.now += self.price * (4.0 if i == 0 else 0.5 if i < 12 else 1.5)
                on_point(None)

    class Watched(ProgressLine):
        def reach(self, done):
            super().reach(done)
            said.append((done, clock.now, self.left))

    said: list = []
    semantic = [0.1 + 0.05 * (10 < i < 16) for i in range(26)]
    lines: list = [Priced(price) for price in semantic + [3 * price for price in semantic]]
    work = Work(lines, Store(None), {})
    work.solve(1, Watched("sweeping", work.points, 0, "points"))
    end, most = said[-1][1], len(said)
    ratios = [(done / most, left / (end - now)) for done, now, left in said if left is not None and done < 0.9 * most]
    assert len(ratios) > 0.85 * most
    assert all(abs(ratio - 1) < (0.5 if share <= 0.15 else 0.2) for share, ratio in ratios)


@pytest.mark.parametrize("parts", [5, 10, 20, 25])
def test_blocks_cost_alike_also_by_a_field_that_the_estimate_does_not_know(parts):
    """Of 20 by 10 lines, which the estimate takes for alike, those of the last value cost ten times the first's."""
    found = balanced([1.0] * 200, parts)
    assert sorted(i for part in found for i in part) == list(range(200))
    loads = [sum(1.0 + i % 10 for i in part) for part in found]
    assert max(loads) < 1.35 * 1100 / parts
