"""Ctrl-C and the order to end, answered where nothing is half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interruptions_deferred"]


@contextmanager
def interruptions_deferred() -> Iterator[Callable[[], bool]]:
    """A function that says whether Ctrl-C was pressed, or the process told to end, since.

    An optimiser must not be interrupted within a step, where its state is half that of the next one; and an exception
    that is raised in a destructor, or in a callback of the garbage collector, is lost.  A second Ctrl-C does not wait.
    """
    asked = threading.Event()

    def handler(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    # other handlers are the caller's own affair, and only the main thread may set one
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    main = threading.current_thread() is threading.main_thread()
    ours = {number: old for number, old in defaults.items() if main and signal.getsignal(number) is old}
    for number in ours:
        signal.signal(number, handler)
    try:
        yield asked.is_set
    finally:
        for number, old in ours.items():
            signal.signal(number, old)
