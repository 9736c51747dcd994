"""The progress bar of experiments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(shown: bool, total: float, text: str) -> Iterator[Callable[[float, str], None]]:
    """A bar on standard error with a text and the time left.

    Yields
    ------
    callable
        Takes how much of `total` is done, and the text.
    """
    if not shown:
        yield lambda done, text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(text, total=total)
        yield lambda done, text: bar.update(task, completed=done, description=text)
