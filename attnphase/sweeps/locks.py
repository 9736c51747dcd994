"""Who works in a folder of finished lines: one whole sweep, or any number of shares.

A whole sweep holds ``lock`` for as long as it works, a share ``share-K-of-N.lock``, a block ``block-K.lock``. All locks
are taken, tested and given back by the process that holds ``door``, one at a time. So a lock that is free stays free
until the door opens: a whole sweep begins where no share works, a share begins where no whole sweep works, and a file
that another process may be writing is removed only by a process that finds all other locks free.

The locks are those of the operating system, which frees the lock of a killed process. A process holds the door for a
few looks at the folder, never while it solves.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import filelock

from attnphase.errors import DatasetError
from attnphase.files.reading import reason

__all__ = ["WHOLE", "at_the_door", "locked", "writing"]

WHOLE = "lock"
"""The lock of a whole sweep."""

_DOOR = "door"
_SHARES = ("share-*.lock", "block-*.lock")
_WAIT = 0.5  # seconds between two looks at a lock that another process holds
_REMOVED = (errno.ENOENT, errno.ESTALE)  # the folder or the door, by another process; ESTALE from another machine


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say of a folder what the operating system refuses, and why."""
    try:
        yield
    except OSError as error:
        raise DatasetError(f"{folder}: the folder cannot be written to: {reason(error)}.") from None


@contextmanager
def locked(folder: Path, name: str, clean: Callable[[bool], None]) -> Iterator[None]:
    """The lock of a whole sweep or of a share for this process, which waits while another one has the same share's.

    Parameters
    ----------
    folder : Path
        Made, and removed if it is empty in the end.
    name : str
        `WHOLE`, or the lock of a share.
    clean : callable
        Called at the door, after the lock is taken and before it is given back, with whether nobody else works here.

    Raises
    ------
    DatasetError
        A whole sweep works there, or shares where this is a whole sweep; or the folder cannot be written to.
    """
    lock = _taken_in_turn(folder, name, clean)
    try:
        yield
    finally:
        with at_the_door(folder):
            clean(_is_alone(folder, name))
            lock.release()
            if name != WHOLE:
                (folder / name).unlink(missing_ok=True)


def _taken_in_turn(folder: Path, name: str, clean: Callable[[bool], None]) -> filelock.FileLock:
    """A lock of the folder, when the same share of another process has ended."""
    waiting = False
    while True:
        with at_the_door(folder):
            if other := _held(folder, (WHOLE, *_SHARES) if name == WHOLE else (WHOLE,)):
                who = "another sweep" if other == WHOLE else f"{_words(other)} of a sweep"
                raise DatasetError(f"{folder}: {who} writes to this folder; wait for it, or choose another output.")
            lock = filelock.FileLock(folder / name)
            if _is_taken(lock):
                clean(_is_alone(folder, name))
                return lock
        if not waiting:
            print(f"attnphase: another process solves {_words(name)} of {folder}; waiting for it.", file=sys.stderr)
        waiting = True
        time.sleep(_WAIT)


def _words(lock: str) -> str:
    """What a share is called in messages."""
    return lock.removesuffix(".lock").replace("-", " ")


def _is_alone(folder: Path, own: str) -> bool:
    return _held(folder, (WHOLE, *_SHARES), own) is None


def _held(folder: Path, patterns: tuple[str, ...], own: str | None = None) -> str | None:
    """The first lock among these that another process holds."""
    names = (path.name for pattern in patterns for path in sorted(folder.glob(pattern)) if path.name != own)
    return next((name for name in names if not _is_free(folder / name)), None)


def _is_free(path: Path) -> bool:
    lock = filelock.FileLock(path)
    free = _is_taken(lock)
    lock.release()
    return free


def _is_taken(lock: filelock.FileLock) -> bool:
    """Take a lock unless another process has it."""
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return False
    return True


@contextmanager
def at_the_door(folder: Path) -> Iterator[None]:
    """Hold the door of a folder, which is made; where nobody works in the end, what is left of locks is removed.

    Raises
    ------
    DatasetError
        The folder cannot be written to.
    """
    with writing(folder):
        door = _door(folder)
        try:
            yield
        finally:
            _leave(folder, door)


def _door(folder: Path) -> filelock.FileLock:
    """The lock of the door, which others hold for a moment."""
    while True:
        folder.mkdir(exist_ok=True)
        door = filelock.FileLock(folder / _DOOR)
        try:
            door.acquire()
        except OSError as error:  # who was the last here removed both
            if error.errno not in _REMOVED:
                raise
        else:
            return door


def _leave(folder: Path, door: filelock.FileLock) -> None:
    """Open the door, and remove what nobody needs."""
    empty = False
    if _is_alone(folder, own=""):
        for path in [path for pattern in _SHARES for path in folder.glob(pattern)]:  # of killed processes
            path.unlink(missing_ok=True)
        empty = all(path.name in (WHOLE, _DOOR) for path in folder.iterdir())
        if empty:
            (folder / WHOLE).unlink(missing_ok=True)
        if os.name == "posix":  # while it is held: who waits for it sees that it has no name, and makes another
            (folder / _DOOR).unlink(missing_ok=True)
    door.release()
    if empty:
        with suppress(OSError):  # another process has begun here
            if os.name != "posix":
                (folder / _DOOR).unlink(missing_ok=True)
            folder.rmdir()
