"""Shares of a sweep: each is solved by one process at a time, on any machine that has the folder of finished lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attnphase.errors import ProblemError
from attnphase.sweeps.cost import balanced, seconds_of
from attnphase.sweeps.line import Line
from attnphase.sweeps.locks import locked
from attnphase.sweeps.store import Hints, Store

__all__ = ["share_for_us", "shares_of"]


def shares_of(lines: Sequence[Line], count: int, name: str) -> tuple[tuple[int, ...], ...]:
    """The numbers of the lines in each of so many shares of equal estimated cost, which follow from the lines alone.

    Raises
    ------
    ProblemError
        There are fewer lines than shares; the message calls them `name`.
    """
    if count > len(lines):
        what = f"{name} must be at most {len(lines)}, the number of lines that the sweep has, not {count}"
        raise ProblemError(name, f"{what}: a line, one branch over all alpha, is not divided.")
    return tuple(map(tuple, balanced([seconds_of(line) for line in lines], count)))


@contextmanager
def share_for_us(folder: Path, name: str, lines: Sequence[Line], hints: Hints) -> Iterator[Store]:
    """The finished lines of a folder while a share of them is this process's alone; waits while another one has it."""
    store = Store(folder, hints)
    with locked(folder, f"{name}.lock", lambda alone: store.tidy(lines) if alone else None):
        yield store
