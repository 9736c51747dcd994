"""How long a sweep still takes: said once it can be, and then nearly right, on a clock of its own."""

from types import SimpleNamespace
from typing import Any

import pytest

from attnphase.processes import progress
from attnphase.processes.progress import ProgressLine
from attnphase.sweeps.pool import Work
from attnphase.sweeps.store import Store

POINTS, OMEGAS = 25, 26


class PricedLine:
    """Stands for a line; its points only take time: the first the most, and those of the other half more."""

    def __init__(self, clock, price):
        self.clock, self.price, self.alphas = clock, price, tuple(range(1, POINTS + 1))
        self.label = ""

    def solve(self, on_point):
        for i in range(POINTS):
            self.clock.now += self.price * (4.0 if i == 0 else 0.5 if i < POINTS // 2 else 1.5)
            on_point(None)


@pytest.fixture
def clock(monkeypatch):
    own = SimpleNamespace(now=0.0)
    own.monotonic = lambda: own.now
    monkeypatch.setattr(progress, "time", own)
    return own


class Watched(ProgressLine):
    """Keeps how much was done, when, and the time that was said to be left."""

    said: list[tuple[float, float, float | None]]

    def reach(self, done):
        super().reach(done)
        self.said.append((done, progress.time.monotonic(), self.left))


def solved(clock, prices):
    lines: list[Any] = [PricedLine(clock, price) for price in prices]
    work = Work(lines, Store(None), {})
    shown = Watched("sweeping", work.points, 0, "points")
    shown.said = []
    work.solve(1, shown)
    assert len(work.finished) == len(lines)
    return shown.said


def test_the_time_left_is_right_from_the_start(clock):
    """One branch costs three times the other, and more in the middle of the omegas.

    Branch after branch, the rate of the cheap one would halve the time; from a few points it would be wrong by more.
    """
    semantic = [0.1 + 0.05 * (10 < i < 16) for i in range(OMEGAS)]
    said = solved(clock, semantic + [3 * price for price in semantic])
    end = said[-1][1]
    first = next(i for i, (_, _, left) in enumerate(said) if left is not None)
    assert first <= POINTS + 1  # one line
    early = [left / (end - now) for done, now, left in said[first:] if left is not None and done <= 0.15 * len(said)]
    assert early == pytest.approx([1.0] * len(early), rel=0.5)
    later = [left / (end - now) for done, now, left in said if left is not None and 0.15 < done / len(said) < 0.9]
    assert len(later) > len(said) / 2
    assert later == pytest.approx([1.0] * len(later), rel=0.2)


def test_a_short_sweep_says_nothing_before_a_quarter(clock):
    said = solved(clock, [0.1, 0.1])
    assert [done for done, _, left in said if left is None] == list(range(1, 14))


def test_lines_are_taken_from_all_of_the_grid():
    """Each once; and any tenth of them holds lines of every quarter."""
    lines: list[Any] = [SimpleNamespace(alphas=(1.0,))] * 104
    finished: dict[int, Any] = {3: None, 50: None}
    order = Work(lines, Store(None), finished).mixed
    assert sorted(order) == [i for i in range(104) if i not in (3, 50)]
    for begin in range(0, 90, 10):
        assert {i // 26 for i in order[begin : begin + 10]} == {0, 1, 2, 3}
