"""What is being done, for people who wait: one line on standard error.

On a terminal and in a notebook it is live, appears after a second and is gone in the end.  Elsewhere, as in a log, a
plain line is printed every ten seconds.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attnphase.arguments import flag

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["ProgressLine", "Tell", "progress_line", "silent", "within"]

Tell = Callable[[str], None]
"""Takes a few words on what is being done.  Called often, from within a computation."""

_SILENT = 1.0  # seconds in which what is quick ends without a word
_PLAIN = 10.0  # seconds between two lines where nothing can be live
_REFRESH = 0.1  # of a live line
_NOTEBOOK = 0.5  # likewise; every update is a message to the browser


def silent(text: str) -> None:
    """Tell nobody."""


def within(place: str, tell: Tell) -> Tell:
    """Tell with the place before the text; silent if `tell` is."""
    return tell if tell is silent else lambda text: tell(f"{place}: {text}")


@dataclass(eq=False)
class ProgressLine:
    """What the line says.

    Attributes
    ----------
    text : str
        What is being done.
    total, done : float
        How much there is to do, and how much of it is done; without a total nobody knows.
    unit : str
        Of what is counted one by one, such as "points"; empty where `total` is only a measure.
    """

    text: str
    total: float | None = None
    done: float = 0.0
    unit: str = ""
    _begin: float = field(default_factory=time.monotonic)
    _first: float = field(init=False)

    def __post_init__(self) -> None:
        self._first = self.done

    def tell(self, text: str) -> None:
        """Say what is being done."""
        self.text = text

    def at(self, done: float, text: str) -> None:
        """Say how much is done, and what is being done."""
        self.done, self.text = done, text

    def reach(self, done: float) -> None:
        """Say how much is done."""
        self.done = done

    @property
    def rate(self) -> float:
        """What is done in a second, on average."""
        return (self.done - self._first) / max(time.monotonic() - self._begin, 1e-9)

    @property
    def words(self) -> str:
        """What is being done, and how much of what is counted."""
        if not self.unit or self.total is None:
            return self.text
        return f"{self.text}: {self.done:.0f}/{self.total:.0f} {self.unit}, {self.rate:.1f} {self.unit}/s"

    @property
    def elapsed(self) -> str:
        """Time since the beginning."""
        minutes, seconds = divmod(int(time.monotonic() - self._begin), 60)
        return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"

    @property
    def plain(self) -> str:
        """All of it in one line."""
        share = f"{self.done / self.total:.0%}, " if self.total else ""
        left = f", {(self.total - self.done) / self.rate:.0f} s left" if self.unit and self.total and self.rate else ""
        return f"{share}{self.words}{left} ({self.elapsed})"


@contextmanager
def progress_line(
    shown: bool, text: str, total: float | None = None, done: float = 0.0, unit: str = ""
) -> Iterator[ProgressLine]:
    """Show what is being done until the block ends, however it ends.

    Only one line can be live at a time: within the block its `tell` is handed down, and no second one is begun.

    Parameters
    ----------
    shown : bool
        Whether anything is shown at all.
    text : str
        What is being done first.
    total : float, optional
        How much there is to do; then there is a bar with the time left.
    done : float
        How much of it is done already.
    unit : str
        Of what is counted, if it is; then the line says how many there are and how fast they come.

    Raises
    ------
    ProblemError
        `shown` is neither True nor False; the message calls it progress, as the functions that take it do.
    """
    line = ProgressLine(text, total, done, unit)
    if not flag("progress", shown) or sys.stderr is None:
        yield line
        return
    over = threading.Event()
    # a thread, since a computation says nothing while it is in machine code
    watcher = threading.Thread(target=_watch, args=(line, over), daemon=True)
    watcher.start()
    try:
        yield line
    finally:
        over.set()
        watcher.join()  # which takes the line away and gives the cursor back


def _watch(line: ProgressLine, over: threading.Event) -> None:
    if over.wait(_SILENT):
        return
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if console.is_jupyter:
        _show_in_notebook(line, over)
    elif console.is_terminal and not console.is_dumb_terminal:
        _show_live(line, over, console)
    else:
        _print_plain(line, over)


def _show_live(line: ProgressLine, over: threading.Event, console: Console) -> None:
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeRemainingColumn
    from rich.table import Column
    from rich.text import Text

    class What(ProgressColumn):
        """The only column that gives way where the terminal is narrow, so that the line stays one."""

        def render(self, task: Task) -> Text:
            return Text(task.description, no_wrap=True, overflow="ellipsis")

    def fixed() -> Column:
        return Column(no_wrap=True)

    columns = (SpinnerColumn(table_column=fixed()), What(), TextColumn("{task.fields[elapsed]}"))
    if line.total is not None:
        bar, left = BarColumn(bar_width=12, table_column=fixed()), TimeRemainingColumn(table_column=fixed())
        columns = (What(), bar, TextColumn("{task.percentage:>3.0f}%"), left)
    # warnings are printed above the line; standard output is not ours
    with Progress(*columns, console=console, auto_refresh=False, transient=True, redirect_stdout=False) as live:
        task = live.add_task(line.words, total=line.total, completed=int(line.done), elapsed=line.elapsed)
        while True:
            live.update(task, description=line.words, completed=line.done, elapsed=line.elapsed)
            live.refresh()
            if over.wait(_REFRESH):
                return


def _show_in_notebook(line: ProgressLine, over: threading.Event) -> None:
    """Not by rich, which needs ipywidgets there; IPython is there where a notebook is."""
    from IPython.display import display  # pyright: ignore[reportMissingImports]

    shown = display({"text/plain": line.plain}, raw=True, display_id=True)
    while not over.wait(_NOTEBOOK):
        shown.update({"text/plain": line.plain}, raw=True)
    shown.update({"text/plain": ""}, raw=True)


def _print_plain(line: ProgressLine, over: threading.Event) -> None:
    while not over.wait(_PLAIN):
        try:
            print(f"attnphase: {line.plain}", file=sys.stderr, flush=True)
        except OSError:  # nobody reads it any more
            return
