"""Cores that there are, and threads that share a pass on them: compiled code releases the interpreter's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import current_thread
from typing import TypeVar

__all__ = ["available_cores", "each"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_NAME = "attnphase-pool"


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def each(threads: int, function: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Results of a function for all items, in their order; one after another where that is a thread's item itself.

    A thread that waited for others of its pool might wait for ever.
    """
    items = list(items)
    if threads <= 1 or len(items) <= 1 or current_thread().name.startswith(_NAME):
        return [function(item) for item in items]
    return list(_pool(threads).map(function, items))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """One pool a process: starting threads would cost more than a small pass."""
    return ThreadPoolExecutor(threads, thread_name_prefix=_NAME)
