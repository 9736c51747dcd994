"""Threads of a batch: its runs are independent, so that whole runs, and not parts of one operation, are shared out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["threads_for_runs"]


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
