"""Shares of a sweep: each is solved by one process at a time, on any machine that has the folder of finished lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import filelock

from attnphase.errors import DatasetError, ProblemError
from attnphase.files.reading import reason
from attnphase.sweeps.cost import balanced, seconds_of
from attnphase.sweeps.line import Line
from attnphase.sweeps.store import Hints, Store

__all__ = ["share_for_us", "shares_of", "writing"]

_WAIT = 0.5  # seconds between two looks at a lock that another process holds


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
    lock = filelock.FileLock(folder / f"{name}.lock")
    with writing(folder):
        folder.mkdir(exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            what = name.replace("-", " ")
            print(f"attnphase: another process solves {what} of {folder}; waiting for it.", file=sys.stderr)
            lock.acquire(poll_interval=_WAIT)
    try:
        store = Store(folder, hints)
        store.tidy_after(lines)
        yield store
    finally:
        if os.name == "posix":  # while it is held: who takes it next makes a file of its own
            Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say of a folder what the operating system refuses, and why."""
    try:
        yield
    except OSError as error:
        raise DatasetError(f"{folder}: the folder cannot be written to: {reason(error)}.") from None
