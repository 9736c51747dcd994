"""The one line that says what is done and how long it takes: on a terminal, in a log, and nowhere where all is quiet.

Not public: the line's clock is set by hand, as no test is to wait, and lines of a sweep only take time.
"""

import io
import re
import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest

from attnphase.processes import progress
from attnphase.processes.progress import ProgressLine, progress_line
from attnphase.sweeps.cost import balanced
from attnphase.sweeps.pool import Work
from attnphase.sweeps.store import Store

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


@pytest.fixture
def clock(monkeypatch):
    own = SimpleNamespace(now=1000.0)
    own.monotonic = lambda: own.now
    monkeypatch.setattr(progress, "time", own)
    return own


@pytest.mark.parametrize("interrupted", [False, True], ids=["done", "interrupted"])
@pytest.mark.parametrize("where", ["terminal", "log", "quiet", "closed"])
def test_the_line_is_shown_where_it_is_seen_and_taken_away(monkeypatch, capsys, where, interrupted):
    for name in ("SILENT", "REFRESH", "PLAIN", "LOOK"):
        monkeypatch.setattr(progress, name, 0.001)
    monkeypatch.setenv("TERM", "xterm")
    stream = None if where == "closed" else io.StringIO()
    if stream:
        stream.isatty = lambda: where == "terminal"
    monkeypatch.setattr(sys, "stderr", stream)
    with suppress(KeyboardInterrupt), progress_line(where != "quiet", "solving", total=8) as line:
        line.at(2, "omega = 0.3")
        while where in ("terminal", "log") and "omega = 0.3" not in stream.getvalue():
            pass
        print("a result")
        if interrupted:
            raise KeyboardInterrupt
    assert capsys.readouterr().out == "a result\n"
    told = stream.getvalue() if stream else ""
    assert told.count(HIDE) == told.count(SHOW) == (where == "terminal")
    assert ("25%" in told) == (where in ("terminal", "log"))
    assert where != "log" or re.search(r"(?m)^attnphase: 25%, omega = 0\.3 \(\d+ s\)$", told)
    assert where == "terminal" or "\x1b" not in told


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
