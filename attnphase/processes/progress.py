"""What is being done, for people who wait: one line on standard error.

On a terminal and in a notebook it is live, appears after a second and is gone in the end. Elsewhere, as in a log, a
plain line is printed every ten seconds. Unless something else is asked for, it appears only while a model is compiled.
What takes more than a minute is estimated in a sentence, as soon as something is done; where nothing is done for ten
seconds, from below at first.
"""

from __future__ import annotations

import html
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from attnphase.arguments import flag_or_none
from attnphase.lazy import loaded_on_use

with loaded_on_use(__name__):
    from IPython import display as notebook  # pyright: ignore[reportMissingImports]
    from rich import console as consoles
    from rich import progress as bars
    from rich import table as tables
    from rich import text as texts

__all__ = ["COMPILING", "Advance", "Callback", "ProgressLine", "progress_line", "silent", "uncounted", "within"]

Advance = Callable[[float], None]
"""Takes how much is done, in the unit of what is counted."""

COMPILING = "compiling the kernels of this model, once"

SILENT = 1.0  # seconds in which what is quick ends without a word
PLAIN = 10.0  # seconds between two lines where nothing can be live
_SOON = 3.0  # seconds of counting after which the whole is estimated
WAITED = 10.0  # seconds without a count after which the whole is estimated from below
_LONG = 60.0  # seconds of a whole that is worth an estimate
REFRESH = 0.1  # of a live line
NOTEBOOK = 0.5  # likewise; every update is a message to the browser
LOOK = 0.5  # seconds between two looks at whether the whole can be estimated


class Callback(Protocol):
    """Takes a few words on what is being done; called often, from within a computation.

    An iteration adds how many steps it has made, and how many it makes at most.
    """

    def __call__(self, text: str, steps: float = 0.0, most: float = 0.0, /) -> None:
        """Say it."""


def silent(text: str, steps: float = 0.0, most: float = 0.0, /) -> None:
    """Tell nobody."""


def uncounted(done: float) -> None:
    """Count nothing."""


def within(place: str, callback: Callback) -> Callback:
    """Tell with the place before the text; silent if `callback` is."""
    return callback if callback is silent else lambda text, *steps: callback(f"{place}: {text}", *steps)


@dataclass(eq=False)
class ProgressLine:
    """What the line says.

    The rate is counted from the first that is done on: what comes before it, as compiling or starting processes, is no
    part of it.

    Attributes
    ----------
    text : str
        What is being done.
    total, done : float
        How much there is to do, and how much of it is done; without a total nobody knows.
    unit : str
        Of what is counted one by one, such as "points"; empty where `total` is only a measure.
    enough : float, optional
        How much has to be counted before its rate is taken for that of the rest; a twentieth of it by default.
    announce : callable, optional
        Takes a sentence on how long all of it takes, where that is long.
    at_once : int
        How many of what is counted are done at the same time.
    before : str
        What may end it before all is done, as a clause; empty where nothing does.
    listener : callable, optional
        Takes every text that `callback` takes.
    """

    text: str
    total: float | None = None
    done: float = 0.0
    unit: str = ""
    enough: float | None = None
    announce: Callable[[str], None] | None = None
    at_once: int = 1
    before: str = ""
    listener: Callable[[str], None] | None = None
    _begin: float = field(default_factory=lambda: time.monotonic())
    _first: tuple[float, float] | None = field(default=None, init=False)  # the time of the first count, and the count
    _ready: float = field(init=False)  # when the work began: after compiling, which is done once
    _held: float = field(init=False)  # what was done then
    _warned: bool = field(default=False, init=False)
    _steps: ProgressLine | None = field(default=None, init=False)  # of an iteration, since something else was done

    def __post_init__(self) -> None:
        self._ready, self._held = self._begin, self.done

    def callback(self, text: str, steps: float = 0.0, most: float = 0.0, /) -> None:
        """Say what is being done; of an iteration, how many steps it has made and how many it makes at most."""
        if self.text.endswith(COMPILING):
            self._ready = time.monotonic()
        self.text = text
        if self.listener is not None:
            self.listener(text)
        if not most:
            self._steps = None
            return
        if self._steps is None or steps < self._steps.done:
            self._steps = ProgressLine(text, most, steps, "steps of the iteration", before="where it converges sooner")
            self._steps._first = (time.monotonic(), steps)
        self._steps.reach(steps)

    def at(self, done: float, text: str) -> None:
        """Say how much is done, and what is being done."""
        self.reach(done)
        self.callback(text)

    def reach(self, done: float) -> None:
        """Say how much is done; less than before where some was lost, and counting begins anew."""
        if done < self.done:
            self._first = None
        elif self._first is None and done > self.done:
            self._first = (time.monotonic(), done)
        self.done = done

    def estimate(self) -> None:
        """Say how long all of it takes, once that can be said; from below while nothing is counted."""
        announce, steps, sentence = self.announce, self._steps, None
        if announce is None or self.text.endswith(COMPILING):
            return
        if steps is not None and self.total in (None, 1):  # the computation, in another thread, may set it to None
            sentence = steps._whole()
        sentence = sentence or self._whole()
        if sentence is not None:
            self.announce = None
            announce(sentence)
        elif (least := self._least()) is not None:
            self._warned = True
            announce(least)

    def _least(self) -> str | None:
        """How long it takes at least, while the first is under way."""
        if self.total is None or self._first is not None or self._warned or not self.unit:
            return None
        rest, waited = self.total - self.done, time.monotonic() - self._ready
        least = rest / self.at_once * waited
        if waited < WAITED or rest <= self.at_once or least <= _LONG:
            return None
        took = f"none of {rest:.0f} {self.unit} is done after {waited:.0f} s"
        return f"{took}: all of them may take {_duration(round(least))} or more"

    def _whole(self) -> str | None:
        """How long the rest takes, where that is long; it may still become so, for what follows may cost more."""
        if self.total is None or self._first is None:
            return None
        begin, first = self._first
        rest, counted, seconds = self.total - self.done, self.done - first, time.monotonic() - begin
        if seconds < _SOON:
            return None
        if counted <= 0:  # only the first, whose own time may have much in it that the others do not need
            counted, seconds = first - self._held, max(seconds, begin - self._ready)
            if self.at_once > 1:
                counted = max(counted, self.at_once)
        if counted <= 0 or (left := rest * seconds / counted) <= _LONG:
            return None
        what = f"{rest:.0f} of {self.total:.0f} {self.unit} are left, which take" if self.unit else "this takes"
        about, less = ("at most about", f"; less {self.before}") if self.before else ("about", "")
        return f"{what} {about} {_duration(round(left))}, if the rest costs what the first part did{less}"

    @property
    def rate(self) -> float | None:
        """What is done in a second, on average; None until that can be said."""
        begin, first = self._first or (0.0, self.done)
        return (self.done - first) / max(time.monotonic() - begin, 1e-9) if self.done > first else None

    @property
    def left(self) -> float | None:
        """Seconds that the rest takes at this rate; None until enough is done."""
        rate, (_, first) = self.rate, self._first or (0.0, self.done)
        if self.total is None or rate is None:
            return None
        enough = (self.total - first) / 20 if self.enough is None else self.enough
        return (self.total - self.done) / rate if self.done - first >= enough else None

    @property
    def words(self) -> str:
        """What is being done, and how much of what is counted."""
        if not self.unit or self.total is None:
            return self.text
        rate = self.rate
        speed = "" if rate is None else f", {rate:.1f} {self.unit}/s"
        return f"{self.text}: {self.done:.0f}/{self.total:.0f} {self.unit}{speed}"

    @property
    def elapsed(self) -> str:
        """Time since the beginning."""
        return _duration(int(time.monotonic() - self._begin))

    @property
    def plain(self) -> str:
        """All of it in one line."""
        share = f"{self.done / self.total:.0%}, " if self.total else ""
        left = self.left
        ahead = "" if left is None else f", {_duration(round(left))} left"
        return f"{share}{self.words}{ahead} ({self.elapsed})"

    def mimebundle(self) -> dict[str, str]:
        """All of it for notebooks: a bar of the browser, which is one without an end while nobody knows it."""
        end = f' value="{self.done:.6g}" max="{self.total:.6g}"' if self.total else ""
        words = html.escape(f"{self.words} ({self.clock})")
        return {"text/plain": self.plain, "text/html": f"<progress{end}></progress> {words}"}

    @property
    def clock(self) -> str:
        """The time left, or, until that is known, the time since the beginning."""
        left = self.left
        return self.elapsed if left is None else f"{_duration(round(left))} left"


def _duration(seconds: int) -> str:
    minutes, rest = divmod(seconds, 60)
    if minutes >= 100:
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@contextmanager
def progress_line(
    shown: bool | None,
    text: str,
    total: float | None = None,
    done: float = 0.0,
    unit: str = "",
    enough: float | None = None,
    before: str = "",
) -> Iterator[ProgressLine]:
    """Show what is being done until the block ends, however it ends.

    Only one line can be live at a time: within the block its `callback` is handed down, and no second one is begun.

    Parameters
    ----------
    shown : bool or None
        Whether anything is shown at all; None, which functions have by default, where a model is compiled, and a
        terminal or a notebook shows it.
    text : str
        What is being done first.
    total : float, optional
        How much there is to do; then there is a bar with the time left.
    done : float
        How much of it is done already.
    unit : str
        Of what is counted, if it is; then the line says how many there are and how fast they come.
    enough : float, optional
        How much is counted before the time left is said; see `ProgressLine`.
    before : str
        What may end it before all is done; see `ProgressLine`.

    Raises
    ------
    ProblemError
        `shown` is no truth value; the message calls it progress, as the functions that take it do.
    """
    line = ProgressLine(text, total, done, unit, enough, before=before)
    shown = flag_or_none("progress", shown)
    if sys.stderr is None or not (shown or shown is None):
        yield line
        return
    if shown is None:
        with ExitStack() as compiling:
            line.listener = lambda said: _show_compiling(compiling, said)
            yield line
        return
    line.announce = lambda sentence: _print(f"{sentence}.")
    over = threading.Event()
    # a thread, since a computation says nothing while it is in machine code
    watcher = threading.Thread(target=_watch, args=(line, over), daemon=True)
    watcher.start()
    try:
        yield line
    finally:
        over.set()
        watcher.join()  # takes the line away and gives the cursor back


def _show_compiling(shown: ExitStack, text: str) -> None:
    """Show a line while a model is compiled, until something else is done."""
    shown.close()
    if text.endswith(COMPILING) and _is_live(consoles.Console(stderr=True)):
        shown.enter_context(progress_line(True, COMPILING))


def _is_live(output: consoles.Console) -> bool:
    """Whether a line can be taken away again."""
    return output.is_jupyter or (output.is_terminal and not output.is_dumb_terminal)


def _print(words: str) -> None:
    """Print a line; above one that is live."""
    with suppress(OSError):  # nobody reads it any more
        print(f"attnphase: {words}", file=sys.stderr, flush=True)


def _watch(line: ProgressLine, over: threading.Event) -> None:
    if over.wait(SILENT):
        return
    with _display(line) as (show, every):
        waited = 0.0
        while not over.wait(min(every, LOOK)):
            line.estimate()
            waited += min(every, LOOK)
            if waited >= every:
                show()
                waited = 0.0


@contextmanager
def _display(line: ProgressLine) -> Iterator[tuple[Callable[[], None], float]]:
    """A function that shows the line as it is now, and every how many seconds."""
    output = consoles.Console(stderr=True, highlight=False)
    if output.is_jupyter:  # not by rich, which needs ipywidgets there; IPython is there where a notebook is
        shown = notebook.display(line.mimebundle(), raw=True, display_id=True)
        assert shown is not None  # with an id there is a handle
        yield lambda: shown.update(line.mimebundle(), raw=True), NOTEBOOK
        shown.update({"text/plain": "", "text/html": ""}, raw=True)
    elif output.is_terminal and not output.is_dumb_terminal:
        # warnings are printed above the line; standard output is not ours
        options: dict[str, Any] = {"auto_refresh": False, "transient": True, "redirect_stdout": False}
        with bars.Progress(*_columns(line), console=output, **options) as live:
            task = live.add_task(line.words, total=line.total, clock=line.clock)

            def show() -> None:
                live.update(task, description=line.words, completed=line.done, clock=line.clock)
                live.refresh()

            show()
            yield show, REFRESH
    else:
        yield lambda: _print(line.plain), PLAIN


def _columns(line: ProgressLine) -> list[bars.ProgressColumn]:
    class What(bars.ProgressColumn):
        """The only column that gives way where the terminal is narrow, so that the line stays one."""

        def render(self, task: bars.Task) -> texts.Text:
            return texts.Text(task.description, no_wrap=True, overflow="ellipsis")

    def fixed() -> tables.Column:
        return tables.Column(no_wrap=True)

    clock = bars.TextColumn("{task.fields[clock]}", table_column=fixed())
    if line.total is None:
        return [bars.SpinnerColumn(table_column=fixed()), What(), clock]
    bar = bars.BarColumn(bar_width=12, table_column=fixed())
    return [What(), bar, bars.TextColumn("{task.percentage:>3.0f}%"), clock]
