"""Grids of problems on all cores: interrupted without loss, taken up again, never computed twice.

A task is a *line*: one problem, one branch, all values of alpha, solved by continuation.  Lines run in processes of
their own; each finished one is written at once to ``<output>.parts/``, under a hash of everything it depends on.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import numpy as np
import xarray as xr

from attnphase.branches import follow
from attnphase.compiled import ModelKey, kernels_for, tell_if_compiling
from attnphase.dataset import check_output, from_lines, from_points, load_dataset, save_dataset
from attnphase.errors import DatasetError, ProblemError, SweepError
from attnphase.interruption import interruptions_deferred
from attnphase.problem import Problem
from attnphase.progress import progress_line
from attnphase.solve import BranchPoint, SolverSettings
from attnphase.starts import BRANCHES, initial_overlaps

if TYPE_CHECKING:
    from ctypes import Array as SharedArray
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

__all__ = ["Line", "parts_folder", "sweep"]

_GUARD = 'in a script, the call of sweep must stand under if __name__ == "__main__":'
_RETRIES = 2
_GRACE = 3.0  # seconds that workers have to end by themselves after an interruption
_POLL = 0.2  # seconds between two looks at the workers' counters
_PLAIN_REPORT = 10.0  # seconds between two lines of progress where there is no terminal


@dataclass(frozen=True)
class Line:
    """One problem, one branch, all sample complexities.

    Attributes
    ----------
    problem : Problem
    branch : str
    alphas : tuple of float
    settings : SolverSettings
    label : str
        For people: the branch and the swept fields.
    """

    problem: Problem
    branch: str
    alphas: tuple[float, ...]
    settings: SolverSettings
    label: str

    @property
    def key(self) -> str:
        """Hash of all that decides about the line's numbers, this program's source included."""
        settings = replace(self.settings, threads=None)
        text = "\n".join([self.problem.to_toml(), self.branch, repr(self.alphas), repr(settings), _source_hash()])
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def solve(self, on_point: Callable[[BranchPoint], None] | None = None) -> xr.Dataset:
        """The line's dataset over alpha."""
        points = follow(self.problem, self.alphas, self.branch, settings=self.settings, on_point=on_point)
        return from_points(points, {"alpha": self.alphas}, problem=self.problem, title=f"Branch line: {self.label}")


@lru_cache
def _source_hash() -> str:
    """Of both packages' modules: lines of another version are not taken up."""
    digest = hashlib.sha256()
    for package in ("attnphase", "derivations"):
        for source in sorted((Path(__file__).parents[1] / package).glob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()


def sweep(
    problem: Problem,
    alpha: Sequence[float] | np.ndarray,
    omega: Sequence[float] | np.ndarray | None = None,
    branches: Sequence[str] = ("semantic", "positional"),
    *,
    fields: Mapping[str, Sequence[Any]] | None = None,
    settings: SolverSettings | None = None,
    workers: int | None = None,
    output: str | os.PathLike[str] | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool = False,
) -> xr.Dataset:
    """Solve a problem on a grid.

    Parameters
    ----------
    problem : Problem
        What the grid does not vary.
    alpha : sequence of float
        Sample complexities, positive and distinct.
    omega : sequence of float, optional
        Weights of the teacher's positional part, shorthand for the field ``teacher.omega``.
    branches : sequence of str
        Among "semantic", "positional", "uninformed".
    fields : mapping, optional
        Values of further fields of the problem, by their name in the TOML.
    settings : SolverSettings, optional
        How every point is solved.
    workers : int, optional
        Processes; one for every core by default.  With 1, everything runs in this process.
    output : path-like, optional
        netCDF file for the result.  Finished lines lie in ``<output>.parts/`` until it is written.
    resume : bool
        Take up the finished lines of an interrupted sweep to the same output.
    force : bool
        Replace an existing output, and without `resume` discard finished lines.
    progress : bool
        Show a bar with rate and remaining time on standard error.

    Returns
    -------
    xarray.Dataset
        Dimensions branch, omega, further fields, alpha; see ``docs/schema.md``.

    Raises
    ------
    ProblemError
        A swept value is wrong.
    DatasetError
        The output cannot be written, or finished lines lie beside it and neither `resume` nor `force` is given.
    SweepError
        A line failed, or workers died three times.

    Notes
    -----
    Workers are started afresh (``spawn``), so a script must call this under ``if __name__ == "__main__":``.
    """
    # while a starting worker imports the user's script, that is __mp_main__ and not yet __main__
    if sys.modules.get("__mp_main__") is not sys.modules["__main__"] and workers != 1:
        raise SweepError(f"sweep was called while a worker process was starting: {_GUARD}.")
    if workers is not None and workers < 1:
        raise ProblemError("workers", f"workers must be at least 1, but it is {workers}.")
    settings = settings or SolverSettings()
    swept = _grid(alpha, omega, branches, fields or {})
    lines = _lines(problem, swept, settings)
    store = nullcontext(_Store(None))
    if output is not None:
        store = _open_store(check_output(output, force), resume, force)
    with store as parts:
        finished = parts.load(lines)
        with progress_line(progress, "loading the kernels") as shown:
            for kernel_problem in {ModelKey.of(line.problem): line.problem for line in lines}.values():
                tell_if_compiling(kernel_problem, shown.tell)
                kernels_for(kernel_problem)  # compiled once, here; workers load them from the cache
        with _progress(progress, lines, finished) as report:
            todo = [i for i in range(len(lines)) if i not in finished]
            _run(lines, todo, finished, workers or available_cores(), parts, report)
        ds = from_lines([finished[i] for i in range(len(lines))], swept, problem=problem)
        if output is not None:
            save_dataset(ds, output, force)
            parts.clear()
    return ds


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parts_folder(output: str | os.PathLike[str]) -> Path:
    """Where the finished lines of an unfinished sweep lie."""
    path = Path(output)
    return path.with_name(f"{path.name}.parts")


# -------------------------------------------------------------------------------------------------------------- tasks


def _grid(alpha: Any, omega: Any, branches: Any, fields: Mapping[str, Any]) -> dict[str, list[Any]]:
    for name in ("alpha", "branch"):
        if name in fields:
            raise ProblemError(name, f"{name} is not a field of the problem: give it as the argument of sweep.")
    if "teacher.omega" in fields and omega is not None:
        raise ProblemError("teacher.omega", "teacher.omega is given twice: as omega and among the fields.")
    swept = {"branch": [branches] if isinstance(branches, str) else list(branches)}
    if omega is not None:
        swept["teacher.omega"] = np.asarray(omega, dtype=float).ravel().tolist()
    swept |= {name: list(values) for name, values in fields.items()}
    swept["alpha"] = np.asarray(alpha, dtype=float).ravel().tolist()
    for name, values in swept.items():
        if not values:
            raise ProblemError(name, f"{name} has no values: give at least one.")
        if any(isinstance(value, list | tuple | dict) for value in values):
            raise ProblemError(name, f"{name} cannot be swept: its values are not single numbers or words.")
        if len(set(values)) < len(values):
            raise ProblemError(name, f"{name} has a value twice: give every value once.")
    for name in swept["branch"]:
        if name not in BRANCHES:
            raise ProblemError("branch", f'branch must be one of {", ".join(BRANCHES)}, but it is "{name}".')
    for value in swept["alpha"]:
        if not (np.isfinite(value) and value > 0):
            raise ProblemError("alpha", f"alpha must be a positive number, but it is {value:g}.")
    return swept


def _lines(problem: Problem, swept: Mapping[str, list[Any]], settings: SolverSettings) -> list[Line]:
    """In the order that `from_lines` expects."""
    names = [name for name in swept if name not in ("branch", "alpha")]
    lines = []
    for branch, *values in product(swept["branch"], *(swept[name] for name in names)):
        changes = dict(zip(names, values, strict=True))
        label = ", ".join([branch, *(f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}"
                                     for name, value in changes.items())])  # fmt: skip
        changed = problem.with_fields(changes) if changes else problem
        initial_overlaps(changed, branch)  # a branch that the problem cannot have is refused before the work begins
        lines.append(Line(changed, branch, tuple(swept["alpha"]), settings, label))
    shapes = {_shape(line.problem)[:3] for line in lines}
    if len(shapes) > 1:
        raise ProblemError("tokens.length", "a sweep cannot change the order parameters' sizes: sweep each size alone.")
    return lines


def _shape(problem: Problem) -> tuple[Any, ...]:
    """What kernels and array shapes depend on."""
    student, teacher = problem.student, problem.teacher
    return (problem.tokens.length, problem.columns, teacher.rank, student.tied, student.score, teacher.score)


# ------------------------------------------------------------------------------------------------------------ running


def _run(
    lines: Sequence[Line],
    todo: Sequence[int],
    finished: dict[int, xr.Dataset],
    workers: int,
    parts: _Store,
    report: _Report,
) -> None:
    """Solve the lines `todo` into `finished`."""
    workers = min(workers, len(todo))
    failures: dict[int, BaseException] = {}
    if workers <= 1:
        for i in todo:
            try:
                finished[i] = lines[i].solve(lambda _: report.advance())
            except Exception as error:
                failures[i] = error
            else:
                parts.save(lines[i], finished[i])
        _raise_failures(lines, failures, parts)
        return
    remaining = list(todo)
    for attempt in range(_RETRIES + 1):
        try:
            _run_pool(lines, remaining, finished, failures, workers, parts, report)
            break
        except BrokenProcessPool:
            remaining = [i for i in todo if i not in finished and i not in failures]
            # the usual reason is that memory ran out, so that fewer workers may do
            workers = max(1, workers // 2)
            if attempt < _RETRIES:
                report.say(f"a worker process died; {len(remaining)} lines are tried again by {workers} workers.")
    else:
        raise SweepError(
            f"worker processes died {_RETRIES + 1} times, perhaps because memory ran out ({_GUARD});"
            f" {len(remaining)} of {len(lines)} lines are unfinished, the first is {lines[remaining[0]].label}"
            f"{parts.kept()}."
        )
    _raise_failures(lines, failures, parts)


def _raise_failures(lines: Sequence[Line], failures: Mapping[int, BaseException], parts: _Store) -> None:
    if not failures:
        return
    first = min(failures)
    others = f" (and {len(failures) - 1} more lines failed)" if len(failures) > 1 else ""
    cause = failures[first]
    reason = str(cause).rstrip(".") or type(cause).__name__
    raise SweepError(f"the line {lines[first].label} failed: {reason}{others}{parts.kept()}.") from cause


def _run_pool(
    lines: Sequence[Line],
    todo: Sequence[int],
    finished: dict[int, xr.Dataset],
    failures: dict[int, BaseException],
    workers: int,
    parts: _Store,
    report: _Report,
) -> None:
    context = multiprocessing.get_context("spawn")
    # Nothing is ever sent through this pipe.  It closes when this process closes it, or dies of whatever cause, and
    # then the workers end: no orphans, and no wait for running lines after Ctrl-C.
    reader, writer = context.Pipe(duplex=False)
    counters = context.RawArray("q", len(lines))  # points done in each line; no lock that a dying worker could hold
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, context, _prepare_worker, (reader, counters))
    base = report.done
    try:
        futures: dict[Future[xr.Dataset], int] = {pool.submit(_solve_line, i, _on_one_core(lines[i])): i for i in todo}
        pending = set(futures)
        with interruptions_deferred() as interrupted:
            while pending:
                done, pending = wait(pending, _POLL, FIRST_COMPLETED)
                if interrupted():
                    raise KeyboardInterrupt
                report.set(base + sum(counters))
                for future in done:
                    i = futures[future]
                    error = future.exception()
                    if isinstance(error, BrokenProcessPool):
                        raise error
                    if error is not None:
                        failures[i] = error
                        continue
                    finished[i] = future.result()
                    parts.save(lines[i], finished[i])
        report.set(base + sum(counters))
        pool.shutdown()
    except BaseException:
        writer.close()
        pool.shutdown(wait=False, cancel_futures=True)
        _end(set(multiprocessing.active_children()) - others)
        # points of unfinished lines are lost
        report.set(base + sum(len(lines[i].alphas) for i in todo if i in finished))
        raise
    finally:
        writer.close()
        reader.close()


def _end(workers: set[BaseProcess]) -> None:
    """Wait a moment for workers that saw the pipe close; one that was still starting up is terminated."""
    deadline = time.monotonic() + _GRACE
    for worker in workers:
        worker.join(max(deadline - time.monotonic(), 0))
        if worker.is_alive():
            worker.terminate()
            worker.join()


def _on_one_core(line: Line) -> Line:
    return replace(line, settings=replace(line.settings, threads=1))


_counters: SharedArray[Any] | None = None


def _prepare_worker(reader: Connection, counters: SharedArray[Any]) -> None:
    global _counters  # the only way for a pool's initializer to hand something to the tasks
    _counters = counters
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides

    def end_with_parent() -> None:
        try:
            reader.recv_bytes()
        except (EOFError, OSError):
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _solve_line(index: int, line: Line) -> xr.Dataset:
    def count(_: BranchPoint) -> None:
        if _counters is not None:
            _counters[index] += 1

    return line.solve(count)


# ----------------------------------------------------------------------------------------------------- finished lines


@dataclass
class _Store:
    """Finished lines on disk, one netCDF file each; without a folder, nowhere."""

    folder: Path | None

    def _path(self, line: Line) -> Path:
        assert self.folder is not None
        return self.folder / f"line-{line.key}.nc"

    def load(self, lines: Sequence[Line]) -> dict[int, xr.Dataset]:
        """Lines finished by an earlier run; a damaged file is removed, and said so."""
        if self.folder is None:
            return {}
        finished = {}
        for i, line in enumerate(lines):
            path = self._path(line)
            if not path.exists():
                continue
            try:
                finished[i] = load_dataset(path)
            except DatasetError as error:
                print(f"attnphase: warning: a finished line is computed again: {error}", file=sys.stderr)
                path.unlink()
        return finished

    def save(self, line: Line, ds: xr.Dataset) -> None:
        if self.folder is not None:
            save_dataset(ds, self._path(line), force=True)

    def kept(self) -> str:
        """The end of an error message: what became of the finished lines."""
        if self.folder is None:
            return ""
        return f"; finished lines are kept in {self.folder}: run again with --resume (resume=True)"

    def clear(self) -> None:
        """Remove the finished lines, once the whole result is written."""
        if self.folder is None:
            return
        for path in (*self.folder.glob("line-*.nc"), *self.folder.glob(".line-*.part")):
            path.unlink()


@contextmanager
def _open_store(output: Path, resume: bool, force: bool) -> Iterator[_Store]:
    """The folder of finished lines, for this process alone; removed if it is empty in the end."""
    folder = parts_folder(output)
    store = _Store(folder)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise DatasetError(f"{folder}: the folder cannot be created: {error.strerror or error}.") from None
    lock = filelock.FileLock(folder / "lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise DatasetError(f"{output}: another sweep writes to this file; wait for it, or choose another.") from None
    try:
        if any(folder.glob("line-*.nc")) and not resume:
            if not force:
                raise DatasetError(
                    f"{folder}: finished lines of an interrupted sweep are there;"
                    " use --resume (resume=True) to take them up, or --force (force=True) to discard them."
                )
            store.clear()
        yield store
    finally:
        lock.release()
        if not any(path.name != "lock" for path in folder.iterdir()):
            (folder / "lock").unlink(missing_ok=True)
            folder.rmdir()


# ----------------------------------------------------------------------------------------------------------- progress


@dataclass
class _Report:
    """Counts points; this one shows nothing."""

    total: int
    done: int = 0

    def advance(self) -> None:
        self.set(self.done + 1)

    def set(self, done: int) -> None:
        self.done = done

    def say(self, sentence: str) -> None:
        print(f"attnphase: warning: {sentence}", file=sys.stderr)


@dataclass
class _PlainReport(_Report):
    """A line every few seconds, for logs."""

    _history: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._history.append((time.monotonic(), self.done))

    def set(self, done: int) -> None:
        super().set(done)
        now = time.monotonic()
        last, shown = self._history[-1]
        if done == shown or (now - last < _PLAIN_REPORT and done < self.total):
            return
        # the rate of the last half minute: the first points wait for the workers to start
        begin, first = self._history[-3:][0]
        self._history.append((now, done))
        rate = (done - first) / (now - begin)
        left = f"{(self.total - done) / rate:.0f} s left" if rate > 0 else "time left unknown"
        print(f"{done}/{self.total} points, {rate:.1f} points/s, {left}", file=sys.stderr, flush=True)


@contextmanager
def _progress(shown: bool, lines: Sequence[Line], finished: Mapping[int, Any]) -> Iterator[_Report]:
    total = sum(len(line.alphas) for line in lines)
    done = sum(len(lines[i].alphas) for i in finished)
    if not shown:
        yield _Report(total, done)
        return
    if done:
        print(f"{len(finished)} of {len(lines)} lines are finished already", file=sys.stderr)
    if not sys.stderr.isatty():
        yield _PlainReport(total, done)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    rate = TextColumn("{task.fields[rate]}")
    columns = (TextColumn("points"), BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn(), TextColumn("left"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("points", total=total, completed=done, rate="")
        begin = time.monotonic()

        @dataclass
        class BarReport(_Report):
            def set(self, done: int) -> None:
                super().set(done)
                speed = bar.tasks[0].speed or bar.tasks[0].finished_speed
                bar.update(task, completed=done, rate=f"{speed:.1f} points/s" if speed else "")

            def say(self, sentence: str) -> None:
                bar.console.print(f"attnphase: warning: {sentence}")

        yield BarReport(total, done)
        bar.update(task, rate=f"{(total - done) / max(time.monotonic() - begin, 1e-9):.1f} points/s")
