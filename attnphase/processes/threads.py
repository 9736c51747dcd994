"""Threads that share a pass: compiled code releases the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

__all__ = ["in_threads"]

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def in_threads(run: Callable[[_Task], _Result], tasks: Iterable[_Task], threads: int) -> list[_Result]:
    """What ``run`` gives for every task, in their order; no task may share out its own work in turn."""
    tasks = list(tasks)
    if threads <= 1 or len(tasks) <= 1:
        return [run(task) for task in tasks]
    return list(_pool(threads).map(run, tasks))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """One pool a process: starting threads would cost more than a small pass."""
    return ThreadPoolExecutor(threads, thread_name_prefix="attnphase")
