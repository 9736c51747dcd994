"""Repeats of everything that is measured, in turn.

A machine can be slow for some seconds, so the repeats of a figure must not follow one another: all rows are measured
once before any is measured again. pyperf and pytest-benchmark time one benchmark after the other, pyperf in processes
of its own, which here would load kernels first; both know durations alone, and give no ratios with the spread of both
sides; asv is made for the history of a repository. So the loop is written here, in a few lines.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import track

from benchmarks.record import ROOT, Clocks, Figure, Unit

__all__ = ["Clock", "Options", "Row", "clock_named", "filled", "measured", "python", "timed"]

Clock = Callable[[], float]

_FILLED = 0.02  # seconds that a repeat of something short takes at least


def cpu() -> float:
    """Seconds that all cores spent on this process and on its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def clock_named(name: Clocks) -> Clock:
    """One of `benchmarks.record.Clocks`."""
    return {"wall": time.perf_counter, "cpu": cpu}[name]


@dataclass(frozen=True)
class Options:
    """What a call asks for.

    Attributes
    ----------
    repeats : int
    threads : int or None
        Of what can use several; None for all cores.
    clock : {"wall", "cpu"}
    quick : bool
        Sizes so small that the figures mean nothing.
    full : int
        Repeats of the main job and of the thresholds; not at all if zero.
    recipe : bool
        Run the published recipe to its own stopping rule, instead of multiplying one of its maps.
    """

    repeats: int = 5
    threads: int | None = None
    clock: Clocks = "wall"
    quick: bool = False
    full: int = 0
    recipe: bool = False


@dataclass(frozen=True)
class Row:
    """Something to be measured.

    Attributes
    ----------
    name : str
    unit : {"s", "ns", "MB"}
    once : callable
        Measures it once.
    most : int or None
        Repeats of what takes long.
    detail : str
        What else is worth saying.
    outcome : callable
        What the last repeat gave, to be said after it.
    beside : str or None
        See `Figure`.
    """

    name: str
    unit: Unit
    once: Callable[[], float]
    most: int | None = None
    detail: str = ""
    outcome: Callable[[], str] = str
    beside: str | None = None

    def repeats(self, asked: int) -> int:
        """How often it is measured."""
        return asked if self.most is None else min(asked, self.most)


def measured(rows: Sequence[Row], repeats: int) -> tuple[Figure, ...]:
    """Figures of all rows, measured in turn."""
    values: dict[str, list[float]] = {row.name: [] for row in rows}
    turns = [row for turn in range(repeats) for row in rows if turn < row.repeats(repeats)]
    for row in track(turns, "measuring", console=Console(stderr=True), transient=True):
        values[row.name].append(row.once())
    return tuple(
        Figure(
            name=row.name,
            unit=row.unit,
            values=tuple(values[row.name]),
            detail=row.detail + row.outcome(),
            beside=row.beside,
        )
        for row in rows
    )


def timed(clock: Clock, run: Callable[[], object]) -> float:
    """Seconds of one call."""
    begin = clock()
    run()
    return clock() - begin


def filled(clock: Clock, run: Callable[[], object], prepare: Callable[[], object] = bool) -> float:
    """Mean seconds of as many calls as fill a repeat; what prepares each of them is not counted."""
    total, calls = 0.0, 0
    while total < _FILLED:
        prepare()
        total += timed(clock, run)
        calls += 1
    return total / calls


def python(*arguments: str, environment: dict[str, str] | None = None) -> str:
    """What a new interpreter with these arguments prints; it runs the sources beside this folder.

    Bytecode is kept beside them, whatever the environment says: as where a user has installed them.
    """
    kept = {name: value for name, value in (environment or os.environ).items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=kept, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout
