"""Runs on all cores: they are independent, so that whole runs, and not parts of one operation, are shared out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch

__all__ = ["each", "threads_for_runs"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@contextmanager
def threads_for_runs() -> Iterator[int]:
    """Take torch's threads from its operations, and tell how many they were.

    Threads that share one small operation wait for each other, and where another process has a core they wait long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def each(threads: int, function: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Results of a function that calls no other pool, of all items in their order."""
    items = list(items)
    if threads <= 1 or len(items) <= 1:
        return [function(item) for item in items]
    return list(_pool(threads).map(function, items))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """One pool a process: a step may take less time than starting threads."""
    return ThreadPoolExecutor(threads, thread_name_prefix="attnphase")
