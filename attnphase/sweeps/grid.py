"""Grids of problems on all cores: interrupted without loss, taken up again, never computed twice.

A task is a *line*: one problem, one branch, all values of alpha, solved by continuation.  Lines run in processes of
their own; each finished one is written at once to ``<output>.parts/``, under a hash of everything it depends on.
Beside the lines lies a description of each sweep that they were made for, so that another one can say what differs.  A
line is removed when the finished file holds it, or when the user discards it, and never else.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import operator
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import islice, product
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import filelock
import numpy as np
import xarray as xr

from attnphase import arguments
from attnphase.data.build import from_lines, from_points
from attnphase.data.files import load_dataset, save_dataset
from attnphase.data.reading import spacing
from attnphase.errors import DatasetError, ProblemError, SolverError, SpectrumError, SweepError
from attnphase.files.writing import check_output, write_file
from attnphase.fixed_points.branches import follow
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings, sample_complexities
from attnphase.kernels.compiler import ModelKey, kernels_for, tell_if_compiling
from attnphase.problem.problem import Problem
from attnphase.processes.interruption import interruptions_deferred, interruptions_kept_from_children
from attnphase.processes.progress import progress_line
from attnphase.state_evolution.branches import BRANCHES
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.state_evolution.system import check_affordable

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
_WINDOW = (
    4  # lines that wait in the pool, for each worker: a look at all of a large grid's would take longer than a line
)
_MAX_WORKERS = 1024
_MAX_LINES, _MAX_POINTS = 10**6, 10**7
_DIFFERENCES = 4  # named in a message


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

    @cached_property
    def key(self) -> str:
        """Hash of all that decides about the line's numbers, this program's source and the user's own included."""
        settings = replace(self.settings, threads=None)
        parts = [self.problem.to_toml(), self.branch, repr(self.alphas), repr(settings), _source_hash(), self.functions]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]

    @cached_property
    def functions(self) -> str:
        """What the functions are that the problem has by name only; empty if there is none."""
        prox = self.problem.regularizer.prox
        return ModelKey.of(self.problem).functions + ("" if prox is None else _module_hash(prox.partition(":")[0]))

    def solve(self, on_point: Callable[[BranchPoint], None] | None = None) -> xr.Dataset:
        """The line's dataset over alpha."""
        points = follow(self.problem, self.alphas, self.branch, settings=self.settings, on_point=on_point)
        return from_points(points, {"alpha": self.alphas}, problem=self.problem, title=f"Branch line: {self.label}")


@lru_cache
def _source_hash() -> str:
    """Of both packages' modules: lines of another version are not taken up."""
    digest = hashlib.sha256()
    for package in ("attnphase", "derivations"):
        for source in sorted((Path(__file__).parents[2] / package).rglob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()


@lru_cache
def _module_hash(name: str) -> str:
    """Of the source of a module of the user's own, which making the problem has imported."""
    path = getattr(sys.modules.get(name), "__file__", None)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""


def sweep(
    problem: Problem,
    alpha: float | Sequence[float] | np.ndarray,
    omega: float | Sequence[float] | np.ndarray | None = None,
    branches: str | Sequence[str] = ("semantic", "positional"),
    *,
    fields: Mapping[str, Any] | None = None,
    settings: SolverSettings | None = None,
    workers: int | None = None,
    output: str | os.PathLike[str] | None = None,
    resume: bool | Literal["fitting"] = False,
    force: bool = False,
    progress: bool = False,
) -> xr.Dataset:
    """Solve a problem on a grid.

    Parameters
    ----------
    problem : Problem
        What the grid does not vary.
    alpha : float or sequence of float
        Sample complexities, positive and distinct.
    omega : float or sequence of float, optional
        Weights of the teacher's positional part, shorthand for the field ``teacher.omega``.
    branches : str or sequence of str
        Among "semantic", "positional", "uninformed", "mixed".
    fields : mapping, optional
        Values of further fields of the problem, by their name in the TOML: numbers, words or truth values, one or
        several for each.
    settings : SolverSettings, optional
        How every point is solved.
    workers : int, optional
        Processes; one for every core by default.  With 1, everything runs in this process.
    output : path-like, optional
        netCDF file for the result.  Finished lines lie in ``<output>.parts/`` until it is written.
    resume : bool or "fitting"
        True: take up the finished lines of this sweep, which was interrupted; an output that holds it already is
        returned as it is.  "fitting": take up what fits of another sweep to the same output too; other lines stay.
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
        An argument or a swept value is wrong.
    DatasetError
        The output cannot be written; or finished lines lie beside it, and neither `resume` nor `force` is given, or
        they belong to another sweep.
    SweepError
        A line failed, or workers died three times.

    Notes
    -----
    Workers are started afresh (``spawn``), so a script must call this under ``if __name__ == "__main__":``.
    """
    # while a starting worker imports the user's script, that is __mp_main__ and not yet __main__
    if sys.modules.get("__mp_main__") is not sys.modules["__main__"] and workers != 1:
        raise SweepError(f"sweep was called while a worker process was starting: {_GUARD}.")
    problem = arguments.instance("problem", problem, Problem)
    how = "write SolverSettings(tolerance=1e-6)"
    settings = SolverSettings() if settings is None else arguments.instance("settings", settings, SolverSettings, how)
    processes = available_cores() if workers is None else arguments.whole("workers", workers, 1, _MAX_WORKERS)
    path = None if output is None else arguments.path("output", output)
    if not isinstance(resume, bool | np.bool_) and not (isinstance(resume, str) and resume == "fitting"):
        raise ProblemError("resume", f'resume must be True, False or "fitting", not {arguments.shown(resume)}.')
    if resume and path is None:
        raise ProblemError("resume", "resume needs output, the file of the sweep that was interrupted: give both.")
    force, progress = arguments.flag("force", force), arguments.flag("progress", progress)
    swept = _grid(alpha, omega, branches, fields)
    lines, swept = _lines(problem, swept, settings)
    description = _Description.of(problem, swept, lines)
    store = nullcontext(_Store(None))
    if path is not None:
        if resume and not force and path.is_file():
            return _finished(path, description)
        store = _open_store(check_output(path, force), description, lines, resume, force)
    with store as parts:
        finished = parts.load(lines)
        with progress_line(progress, "loading the kernels") as shown:
            for kernel_problem in {ModelKey.of(line.problem): line.problem for line in lines}.values():
                tell_if_compiling(kernel_problem, shown.tell)
                kernels_for(kernel_problem)  # compiled once, here; workers load them from the cache
        with _progress(progress, lines, finished) as report:
            todo = [i for i in range(len(lines)) if i not in finished]
            _run(lines, todo, finished, processes, parts, report)
        ds = from_lines([finished[i] for i in range(len(lines))], swept, problem=problem)
        ds.attrs |= {"sweep": description.text, "sweep_hash": description.hash}
        if path is not None:
            save_dataset(ds, path, force)
            parts.clear(lines, description)
    return ds


def _finished(path: Path, description: _Description) -> xr.Dataset:
    """The result of a sweep that is taken up although it is done."""
    try:
        ds = load_dataset(path)
    except DatasetError as error:
        raise DatasetError(f"{error} Use --force (force=True) to replace it, or choose another name.") from None
    if ds.attrs.get("sweep_hash") != description.hash:
        before = _Description.parse(ds.attrs.get("sweep"))
        differences = description.differences(before) if before is not None else []
        what = f"another sweep: {_listed(differences)}" if differences else "something else than a finished sweep"
        raise DatasetError(
            f"{path}: the file exists and holds {what}; use --force (force=True) to replace it, or choose another name."
        )
    print(f"attnphase: {path} holds this sweep already; nothing is computed.", file=sys.stderr)
    return ds


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parts_folder(output: str | os.PathLike[str]) -> Path:
    """Where the finished lines of an unfinished sweep lie."""
    path = Path(output)
    return path.with_name(f"{path.name}.parts")


# -------------------------------------------------------------------------------------------------------------- tasks


def _grid(alpha: Any, omega: Any, branches: Any, fields: Any) -> dict[str, list[Any]]:
    """Values along each dimension, in their order."""
    given = (
        {} if fields is None else arguments.mapping("fields", fields, "a mapping from fields of the problem to values")
    )
    for name, argument in (("alpha", "alpha"), ("branch", "branches")):
        if name in given:
            raise ProblemError(
                name, f"{name} is not a field of the problem: give it as the argument {argument} of sweep."
            )
    if "teacher.omega" in given and omega is not None:
        raise ProblemError("teacher.omega", "teacher.omega is given twice: as omega and among the fields.")
    varied = [values for values in (omega, branches, *given.values()) if values is not None]
    lines = math.prod(map(_count, varied))
    if lines > _MAX_LINES or lines * _count(alpha) > _MAX_POINTS:
        raise ProblemError(
            "alpha",
            f"the grid has {lines * _count(alpha)} points in {lines} lines, but may have {_MAX_POINTS} in {_MAX_LINES}:"
            " sweep it in parts.",
        )
    swept: dict[str, list[Any]] = {"branch": list(arguments.words("branches", branches, BRANCHES))}
    if omega is not None:
        swept["teacher.omega"] = list(arguments.numbers("omega", omega, lambda _: True, "a number from 0 to 1"))
    for name, values in given.items():
        swept[name] = [_sweepable(name, value) for value in arguments.items(name, values)]
        if len(set(swept[name])) < len(swept[name]):
            raise ProblemError(name, f"{name} has a value twice: give every value once.")
    swept["alpha"] = list(sample_complexities("alpha", alpha))
    return swept


def _count(values: Any) -> int:
    """How many values there are, before anything is made of them."""
    several = isinstance(values, Sized) and not isinstance(values, str) and getattr(values, "ndim", 1) == 1
    return len(values) if several else 1


def _sweepable(name: str, value: Any) -> Any:
    if not isinstance(value, str | Real):
        shown = arguments.shown(value)
        raise ProblemError(name, f"{name} cannot be swept over {shown}: only numbers, words and truth values can.")
    return value


def _lines(
    problem: Problem, swept: Mapping[str, list[Any]], settings: SolverSettings
) -> tuple[list[Line], dict[str, list[Any]]]:
    """All lines in the order that `from_lines` expects, and the swept values as the problems have them."""
    names = [name for name in swept if name not in ("branch", "alpha")]
    changes = [dict(zip(names, values, strict=True)) for values in product(*(swept[name] for name in names))]
    problems = [problem.with_fields(one) if one else problem for one in changes]
    _check_sizes(problem, problems, changes)
    # a number does not decide whether a branch exists, a word, a count or a truth value may
    kinds = {
        tuple(v for name, v in one.items() if not (isinstance(v, float) or name.startswith("integration."))): changed
        for one, changed in zip(changes, problems, strict=True)
    }
    for changed in problems:
        check_affordable(changed)
    alphas = tuple(swept["alpha"])
    lines = []
    for branch in swept["branch"]:
        for changed in kinds.values():
            initial_overlaps(changed, branch)  # a branch that the problem cannot have is refused before the work begins
        for one, changed in zip(changes, problems, strict=True):
            lines.append(Line(changed, branch, alphas, settings, _label(branch, one)))
    taken = {name: [*values] for name, values in swept.items()}
    for name in names:  # whole numbers of a field of real ones
        read = {one[name]: operator.attrgetter(name)(changed) for one, changed in zip(changes, problems, strict=True)}
        taken[name] = [read[v] if isinstance(read[v], Real) else v for v in swept[name]]
    return lines, taken


def _label(branch: str, changes: Mapping[str, Any]) -> str:
    values = (
        f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}" for name, value in changes.items()
    )
    return ", ".join([branch, *values])


def _check_sizes(problem: Problem, problems: Sequence[Problem], changes: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a grid whose order parameters have not one shape."""
    first = _sizes(problems[0])
    for changed, one in zip(problems, changes, strict=True):
        if changed.tokens.kind != problem.tokens.kind:
            raise ProblemError("tokens.kind", "tokens.kind cannot be swept: set it, and sweep each kind alone.")
        if _sizes(changed) != first:
            varied = [name for name, value in one.items() if value != changes[0][name]]
            sizes = f"a sweep cannot change the order parameters' sizes, as {' or '.join(varied)} does"
            raise ProblemError(varied[0], f"{sizes}: sweep each size alone.")


def _sizes(problem: Problem) -> tuple[int, ...]:
    return (problem.tokens.length, problem.columns, problem.teacher_columns)


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
    # the same numbers fail again
    for_good = any(isinstance(error, (ProblemError, SolverError, SpectrumError)) for error in failures.values())
    kept = parts.kept(for_good)
    raise SweepError(f"the line {lines[first].label} failed: {reason}{others}{kept}.") from cause


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
        waiting = iter(todo)
        futures: dict[Future[xr.Dataset], int] = {}
        with interruptions_deferred() as interrupted:
            while True:
                with interruptions_kept_from_children():  # the first task begins them
                    for i in islice(waiting, _WINDOW * workers - len(futures)):
                        futures[pool.submit(_solve_line, i, _on_one_core(lines[i]))] = i
                if not futures:
                    break
                done, _ = wait(futures, _POLL, FIRST_COMPLETED)
                if interrupted():
                    raise KeyboardInterrupt
                report.set(base + sum(counters))
                for future in done:
                    i = futures.pop(future)
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


@dataclass(frozen=True)
class _Description:
    """What a sweep is, in entries that can be compared: the values along every dimension, all else that decides.

    Attributes
    ----------
    entries : mapping
        What JSON can hold.
    """

    entries: Mapping[str, Any]

    @classmethod
    def of(cls, problem: Problem, swept: Mapping[str, list[Any]], lines: Sequence[Line]) -> Self:
        """The description of a sweep whose lines are made."""
        from attnphase import __version__

        settings = {name: value for name, value in asdict(lines[0].settings).items() if name != "threads"}
        program = {"attnphase": __version__, "source code": _source_hash()[:16]}
        functions = "\n".join(sorted({line.functions for line in lines}))
        if functions:
            program["functions of your own"] = hashlib.sha256(functions.encode()).hexdigest()[:16]
        return cls({**dict(_flat(problem.to_dict())), **swept, **settings, **program})

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """A description that was written; None for one that is damaged."""
        try:
            found = cls.parse(path.read_text(encoding="utf-8")) if path.is_file() else None
        except (OSError, ValueError):
            return None
        return found if found is not None and found.name == path.name else None

    @classmethod
    def parse(cls, text: Any) -> Self | None:
        """A description from its text; None for what is none."""
        try:
            entries = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            return None
        return cls(entries) if isinstance(entries, dict) else None

    @cached_property
    def text(self) -> str:
        """As JSON, a line for each entry."""
        entries = sorted(self.entries.items())
        return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in entries) + "\n}\n"

    @property
    def hash(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def name(self) -> str:
        """The file's name."""
        return f"sweep-{self.hash}.json"

    def differences(self, before: _Description) -> list[str]:
        """What was different, with both values."""
        names = [*self.entries, *(name for name in before.entries if name not in self.entries)]
        both = ((name, _single(before.entries.get(name)), _single(self.entries.get(name))) for name in names)
        return [f"{name} {_difference(was, now)}" for name, was, now in both if was != now]


def _flat(table: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of nested tables by their dotted names."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{place}{key}.")
        else:
            yield place + key, value


def _single(value: Any) -> Any:
    """A value that a sweep has one of, as if it were the problem's own."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _difference(was: Any, now: Any) -> str:
    before, after = _short(was), _short(now)
    if before != after:
        return f"was {before} and is {after} now"
    pairs = zip(was, now, strict=False) if isinstance(was, list) and isinstance(now, list) else ()
    changed = (f"has {_short(new)} instead of {_short(old)}" for old, new in pairs if old != new)
    return next(changed, "was another")


def _short(value: Any) -> str:
    """One value, or several as the command line takes them, in few characters."""
    if value is None:
        return "not set"
    if isinstance(value, str):
        return value if len(value) <= 40 else f"{value[:37]}..."
    if not isinstance(value, list) or any(isinstance(item, list | dict) for item in value):
        return arguments.shown(value)
    kind = spacing(value)
    if kind:
        return f"{value[0]!r}:{value[-1]!r}:{len(value)}" + (":log" if kind == "log" else "")
    if len(value) <= 6:
        return ", ".join(map(str, value))
    return f"{value[0]}, {value[1]}, ..., {value[-1]} ({len(value)} values)"


def _listed(differences: Sequence[str]) -> str:
    """The first differences, and how many more there are."""
    more = len(differences) - _DIFFERENCES
    return "; ".join(differences[:_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class _Store:
    """Finished lines on disk, one netCDF file each, and descriptions of their sweeps; without a folder, nowhere."""

    folder: Path | None

    def _files(self, *patterns: str) -> list[Path]:
        return (
            [] if self.folder is None else [path for pattern in patterns for path in sorted(self.folder.glob(pattern))]
        )

    @property
    def lines(self) -> list[Path]:
        """Files of the finished lines, of whatever sweep."""
        return self._files("line-*.nc")

    def _path(self, line: Line) -> Path:
        assert self.folder is not None
        return self.folder / f"line-{line.key}.nc"

    def load(self, lines: Sequence[Line]) -> dict[int, xr.Dataset]:
        """The finished ones by number; one that is damaged is to be computed again, and a warning says so."""
        there = {path.name for path in self.lines}
        finished = {}
        for i, line in enumerate(lines):
            if not there or self._path(line).name not in there:
                continue
            try:
                finished[i] = _checked(load_dataset(self._path(line)), line)
            except DatasetError as error:
                print(f"attnphase: warning: a finished line is computed again: {error}", file=sys.stderr)
        return finished

    def save(self, line: Line, ds: xr.Dataset) -> None:
        """Write a finished line."""
        if self.folder is not None:
            save_dataset(ds, _no_link(self._path(line)), force=True)

    def kept(self, for_good: bool = False) -> str:
        """The end of an error message: what became of the finished lines, and what to do.

        Parameters
        ----------
        for_good : bool
            Whether the same command would fail again.
        """
        if self.folder is None or (for_good and not self.lines):
            return ""
        if not self.lines:
            return "; no line is finished: run again, with --resume or without"
        what = "run again with --resume (resume=True)"
        if for_good:
            what = 'leave out what fails, and take them up with --resume-fitting (resume="fitting")'
        return f"; finished lines are kept in {self.folder}: {what}"

    def clear(self, lines: Iterable[Line], description: _Description) -> None:
        """Remove the finished lines that the whole result holds, and say how many others there are."""
        if self.folder is None:
            return
        for line in lines:
            self._path(line).unlink(missing_ok=True)
        self._remove(description.name)
        others = len(self.lines)
        if others:
            which = "line that is no part of this sweep stays" if others == 1 else "lines that are no part of it stay"
            print(f"attnphase: {others} finished {which} in {self.folder}.", file=sys.stderr)

    def discard(self) -> None:
        """Remove all finished lines, and say so."""
        count = len(self.lines)
        self._remove("line-*.nc", "sweep-*.json")
        which = f"{count} finished {'line is' if count == 1 else 'lines are'} discarded"
        print(f"attnphase: warning: {which} from {self.folder}.", file=sys.stderr)

    def claim(self, description: _Description, lines: Sequence[Line], fitting: bool) -> None:
        """Note what this sweep is, unless the finished lines belong to others.

        Raises
        ------
        DatasetError
            They do, and `fitting` is false.
        """
        assert self.folder is not None
        own = self.folder / description.name
        if _Description.read(own) is not None:
            return
        if self.lines and not fitting:
            known = [found for path in self._files("sweep-*.json") if (found := _Description.read(path)) is not None]
            nearest = min((description.differences(other) for other in known), key=len, default=None)
            if nearest != []:
                raise DatasetError(self._refusal(nearest, lines))
        write_file(_no_link(own), description.text.encode())

    def _refusal(self, differences: Sequence[str] | None, lines: Sequence[Line]) -> str:
        names = {path.name for path in self.lines}
        fitting = sum(self._path(line).name in names for line in lines)
        what = f"{self.folder}: the finished lines there do not say which sweep they belong to"
        if differences is not None:
            what = f"{self.folder}: the finished lines there belong to another sweep: {_listed(differences)}"
        fit = f"the {fitting} of {len(names)} that {'fits' if fitting == 1 else 'fit'}"
        return (
            f'{what}. Use --resume-fitting (resume="fitting") to take up {fit} and leave the others,'
            " --force (force=True) without --resume to discard them, or another output."
        )

    def tidy(self) -> None:
        """Remove what belongs to no finished line, after killed processes too."""
        self._remove(".line-*.part", ".sweep-*.part")
        if not self.lines:
            self._remove("sweep-*.json")

    def _remove(self, *patterns: str) -> None:
        for path in self._files(*patterns):
            path.unlink(missing_ok=True)


def _no_link(path: Path) -> Path:
    """A file that nobody but a sweep names: a link of this name is not the user's, and is not written through."""
    if path.is_symlink():
        path.unlink()
    return path


def _checked(ds: xr.Dataset, line: Line) -> xr.Dataset:
    """The dataset of a finished line, if it is the one that its file's name promises."""
    there = [ds.attrs.get("problem"), *(ds[name].to_numpy().tolist() for name in ("branch", "alpha") if name in ds)]
    if there != [line.problem.to_toml(), line.branch, [*line.alphas]]:
        raise DatasetError(f"the file of the line {line.label} holds another one.")
    return ds


@contextmanager
def _open_store(
    output: Path, description: _Description, lines: Sequence[Line], resume: bool | str, force: bool
) -> Iterator[_Store]:
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
        if store.lines and not resume:
            if not force:
                raise DatasetError(
                    f"{folder}: finished lines of an interrupted sweep are there;"
                    " use --resume (resume=True) to take them up, or --force (force=True) to discard them."
                )
            store.discard()
        store.claim(description, lines, resume == "fitting")
        yield store
    finally:
        store.tidy()
        empty = folder.is_dir() and all(path.name == "lock" for path in folder.iterdir())
        if empty and os.name == "posix":  # while it is held: who waits for it would have a lock that nobody sees
            (folder / "lock").unlink(missing_ok=True)
        lock.release()
        if empty:
            with suppress(OSError):  # another sweep has begun here
                if os.name != "posix":
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
