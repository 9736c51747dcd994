"""Ctrl-C and the order to end, answered where nothing is half done."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = [
    "Asked",
    "OrderedToEnd",
    "exit_code",
    "interruptions_deferred",
    "interruptions_kept",
    "interruptions_kept_from_children",
]


class OrderedToEnd(KeyboardInterrupt):
    """The order to end, SIGTERM, where it is answered as Ctrl-C is."""


Asked = Callable[[], "type[KeyboardInterrupt] | None"]
"""What is to be raised since Ctrl-C was pressed, or the process told to end; None until then."""


def exit_code(interruption: BaseException | None) -> int:
    """The exit code of a command that an interruption ends: 128 and the signal's number, as shells have it."""
    return 128 + (signal.SIGTERM if isinstance(interruption, OrderedToEnd) else signal.SIGINT)


@contextmanager
def interruptions_deferred() -> Iterator[Asked]:
    """A function that returns what to raise once Ctrl-C was pressed, or the process told to end; raised in the end.

    An optimiser must not be interrupted within a step, where its state is half that of the next one; and an exception
    that is raised in a destructor, or in a callback of the garbage collector, is lost.  A second Ctrl-C does not wait.
    """
    asked: list[type[KeyboardInterrupt]] = []
    raised = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: OrderedToEnd}

    def handler(number: int, frame: FrameType | None) -> None:
        asked.append(raised[signal.Signals(number)])
        if len(asked) > 1:
            raise asked[-1]

    # other handlers are the caller's own affair, and only the main thread may set one
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    main = threading.current_thread() is threading.main_thread()
    ours = {number: old for number, old in defaults.items() if main and signal.getsignal(number) is old}
    for number in ours:
        signal.signal(number, handler)
    try:
        yield lambda: asked[0] if asked else None
    finally:
        for number, old in ours.items():
            signal.signal(number, old)
    if asked:
        raise asked[0]


@contextmanager
def interruptions_kept() -> Iterator[None]:
    """Ctrl-C as ever, but raised again where it was lost in a callback of compiled code, or left something half done.

    Numba's compiler and loader call back from machine code, which drops an exception and goes on, or fails.
    """
    main = threading.current_thread() is threading.main_thread()
    if not (main and signal.getsignal(signal.SIGINT) is signal.default_int_handler):
        yield
        return
    asked = threading.Event()
    loud = sys.unraisablehook

    def handler(number: int, frame: FrameType | None) -> None:
        asked.set()
        raise KeyboardInterrupt

    def lost(event: sys.UnraisableHookArgs) -> None:
        if event.exc_type is not KeyboardInterrupt:
            loud(event)

    signal.signal(signal.SIGINT, handler)
    sys.unraisablehook = lost
    try:
        yield
    except Exception:
        if asked.is_set():
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = loud
    if asked.is_set():
        raise KeyboardInterrupt


@contextmanager
def interruptions_kept_from_children() -> Iterator[None]:
    """Processes begun within it never hear of Ctrl-C, which a terminal sends to the whole group.

    They could otherwise be interrupted before their first own line, while they load modules.  This process hears it in
    the end.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
