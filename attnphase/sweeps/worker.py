"""What a process does that solves lines for another one; it imports nothing that keeps results."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

from attnphase.fixed_points.point import BranchPoint
from attnphase.sweeps.line import Line

if TYPE_CHECKING:
    from ctypes import Array as SharedArray
    from multiprocessing.connection import Connection

__all__ = ["line_points", "prepare"]

_counters: SharedArray[Any] | None = None


def prepare(reader: Connection, counters: SharedArray[Any]) -> None:
    """Begin a worker: it ends when nobody writes to ``reader`` any more, and leaves Ctrl-C to its parent."""
    global _counters  # noqa: PLW0603  the only way for a pool's initializer to hand something to the tasks
    _counters = counters
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides

    def end_with_parent() -> None:
        try:
            reader.recv_bytes()
        except (EOFError, OSError):
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    # after all other finalizers
    Finalize(None, _end_at_once, exitpriority=-1000)


def _end_at_once() -> None:
    """End with all handlers run, but without taking modules apart: half a second, in which the sweep would wait."""
    if sys.exc_info()[0] is None:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)


def line_points(index: int, line: Line) -> list[BranchPoint]:
    """The points of a line, counted as they are solved in the place of its number."""

    def count(_: BranchPoint) -> None:
        if _counters is not None:
            _counters[index] += 1

    return line.points(count)
