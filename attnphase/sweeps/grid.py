"""Grids of problems on all cores: interrupted without loss, taken up again, never computed twice.

A task is a *line*: one problem, one branch, all values of alpha, solved by continuation.  Lines run in processes of
their own; each finished one is written at once to ``<output>.parts/``, under a hash of everything it depends on.
Beside the lines lies a description of each sweep that they were made for, so that another one can say what differs.  A
line is removed when the finished file holds it, or when the user discards it, and never else; while it is removed, no
other process works in the folder (`attnphase.sweeps.locks`).
"""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing.spawn import get_preparation_data
from numbers import Real
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import xarray as xr

from attnphase import arguments
from attnphase.arrays import Numbers
from attnphase.data.boundaries import with_boundaries
from attnphase.data.build import from_lines
from attnphase.data.files import save_dataset
from attnphase.data.outcomes import of_sweep, warned
from attnphase.errors import ProblemError, SweepError
from attnphase.files.writing import check_dataset
from attnphase.fixed_points.settings import SolverSettings, check_affordable, sample_complexities, solver_settings
from attnphase.kernels.compiler import are_intact, kernels_for
from attnphase.kernels.key import ModelKey
from attnphase.problem.entries import value_of
from attnphase.problem.problem import Problem
from attnphase.processes.progress import COMPILING, ProgressLine, progress_line
from attnphase.processes.threads import available_cores
from attnphase.state_evolution.branches import BRANCHES, Branches, BranchName
from attnphase.state_evolution.starts import branches_of, initial_overlaps
from attnphase.sweeps.cluster import cluster_at
from attnphase.sweeps.description import Description
from attnphase.sweeps.line import Line
from attnphase.sweeps.locks import at_the_door
from attnphase.sweeps.places import check_scheduler, check_shard
from attnphase.sweeps.pool import STARTED_AGAIN, Work
from attnphase.sweeps.refinement import check_refinable, line_of_parts, solved_at_boundaries
from attnphase.sweeps.shares import share_for_us, shares_of
from attnphase.sweeps.store import SHARED, Store, finished_result, marked, open_store, parts_folder

__all__ = [
    "Solve",
    "axes_of",
    "check_caller",
    "joined",
    "lines_of",
    "number_of_workers",
    "on_processes",
    "solved_lines",
    "sweep",
]

Solve = Callable[[Work, ProgressLine], None]
"""Solves what is to do, and says how far it is."""

_MAX_WORKERS = 1024
_MAX_LINES, _MAX_POINTS = 10**6, 10**7


def sweep(
    problem: Problem,
    alpha: Numbers,
    omega: Numbers | None = None,
    branch: Branches | Sequence[BranchName] = ("semantic", "positional"),
    *,
    fields: Mapping[str, Any] | None = None,
    settings: SolverSettings | None = None,
    refine: bool = False,
    workers: int | None = None,
    scheduler: str | None = None,
    shard: str | None = None,
    output: str | os.PathLike[str] | None = None,
    resume: bool | Literal["fitting"] = False,
    force: bool = False,
    progress: bool | None = None,
) -> xr.Dataset:
    """Solve a problem on a grid of branches, field values and sample complexities.

    Parameters
    ----------
    problem : Problem
        Gives all fields that the grid does not vary.
    alpha : float or sequence of float
        Sample complexities n/d, positive and distinct.
    omega : float or sequence of float, optional
        Values of the field ``teacher.omega``; by default the problem's own.
    branch : {"semantic", "positional", "uninformed", "mixed", "all"} or sequence of str
        One branch or several; "all": every branch that `problem` has.
    fields : mapping, optional
        Values of further fields of the problem, by their name in the TOML: numbers, words or truth values. Fields that
        change the sizes of the order parameters are refused.
    settings : SolverSettings, optional
        Settings for every point.
    refine : bool
        Solve a coarse lattice, and all points next to a boundary: where training losses of two branches cross, or a
        branch crosses the linear predictor or merges with the uninformed point. Other points are ``not_computed``.
    workers : int, optional
        Number of processes; by default one for each core, or 1 if the main program is a script from standard input.
        With 1, everything runs in this process.  New processes import the main program (``spawn``), so a script must
        call this under ``if __name__ == "__main__":``.
    scheduler : str, optional
        Address of a live Dask cluster, such as "tcp://10.0.0.1:8786", whose workers solve the lines instead.
    shard : str, optional
        "K/N": solve the K-th of N shares of equal estimated cost, and keep its lines in ``<output>.parts/``; other
        points are ``not_computed``.  When all shares are solved, the same call with `resume` instead writes the output.
    output : path-like, optional
        netCDF file for the result.  Finished lines are kept in ``<output>.parts/`` until it is written.
    resume : bool or "fitting"
        True: use the finished lines of this sweep, if it was interrupted; a finished output is returned as it is.
        "fitting": use fitting lines of another sweep to the same output too; its other lines stay.
    force : bool
        Replace an existing output, and without `resume` remove finished lines.
    progress : bool, optional
        Show a bar with rate and remaining time on standard error. By default only compiling is shown.

    Returns
    -------
    xarray.Dataset
        The variables of `solve` over branch, omega, further fields and alpha; see ``docs/schema.md``.

    Raises
    ------
    ProblemError
        An argument or a swept value is wrong.
    DatasetError
        The output cannot be written, or ``<output>.parts/`` contains lines of another sweep, or lines without `resume`.
    SweepError
        A line failed, workers died three times, or the scheduler cannot be reached.
    MissingExtraError
        A scheduler is given, but dask.distributed is not installed.
    """
    if scheduler is None:
        check_caller(workers)
    problem = arguments.instance("problem", problem, Problem)
    settings = solver_settings(settings)
    options = _Options.of(refine, workers, scheduler, output, resume, force, progress)
    options = replace(options, shard=check_shard(shard))
    lines, swept = lines_of(problem, axes_of(problem, alpha, omega, branch, fields), settings)
    return warned(_swept(problem, lines, swept, options), lambda ds: of_sweep(ds, problem))


def check_caller(workers: Any) -> None:
    """End this process, a worker that is starting, if the user's script which it imports starts workers again."""
    if workers == 1 or multiprocessing.current_process().name == "MainProcess":
        return
    # while a starting worker imports the user's script, that is __mp_main__ and not yet __main__
    if sys.modules.get("__mp_main__") is not sys.modules["__main__"]:
        raise SystemExit(STARTED_AGAIN)


def number_of_workers(workers: Any) -> int:
    """The processes that an argument asks for, or one for every core.

    Raises
    ------
    ProblemError
        It is no whole number from 1 on.
    SweepError
        It is above 1, and the main program is no file, which every worker imports first.
    """
    number = available_cores() if workers is None else arguments.whole("workers", workers, 1, _MAX_WORKERS)
    if number == 1:  # also in a worker that imports the user's script, where the next line fails
        return 1
    # where multiprocessing sends no file, as from a notebook, workers import none
    program = Path(get_preparation_data("").get("init_main_from_path", __file__))
    if program.is_file():
        return number
    what = f"worker processes cannot import the main program, {program.name}, which is not a file"
    if workers is not None:
        raise SweepError(f"{what}: write the script to a file, or give workers=1.")
    warnings.warn(f"{what}: the sweep runs in this process alone.", stacklevel=4)
    return 1


@dataclass(frozen=True)
class _Options:
    """What of a grid is solved, how, and where the result goes, checked."""

    refine: bool
    workers: int
    scheduler: str | None
    output: Path | None
    resume: bool | str
    force: bool
    progress: bool | None
    shard: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.shard is not None and self.output is None:
            raise ProblemError("shard", "shard needs output, beside which its lines are kept: give both.")
        if self.shard is not None and (self.refine or self.force):
            raise ProblemError("shard", "shard goes neither with refine nor with force: leave them out.")

    @classmethod
    def of(cls, refine: Any, workers: Any, scheduler: Any, output: Any, resume: Any, force: Any, progress: Any) -> Self:
        """From the arguments of `sweep`."""
        address, processes = check_scheduler(scheduler, workers), number_of_workers(workers)
        path = None if output is None else arguments.path("output", output)
        if not isinstance(resume, bool | np.bool_) and not (isinstance(resume, str) and resume == "fitting"):
            raise ProblemError("resume", f'resume must be True, False or "fitting", not {arguments.shown(resume)}.')
        if resume and path is None:
            raise ProblemError("resume", "resume needs output, the file of the sweep that was interrupted: give both.")
        return cls(
            arguments.flag("refine", refine),
            processes,
            address,
            path,
            resume if isinstance(resume, str) else bool(resume),
            arguments.flag("force", force),
            arguments.flag_or_none("progress", progress),
        )


def _swept(problem: Problem, lines: list[Line], swept: dict[str, list[Any]], options: _Options) -> xr.Dataset:
    """The result, from the finished lines and those that are solved now."""
    path, force, refine = options.output, options.force, options.refine
    if refine:
        check_refinable(swept)
    description = Description.of(problem, swept, lines, refine)
    if path is not None and options.shard is not None:
        return _share(problem, lines, swept, description, options, check_dataset(path), *options.shard)
    if path is not None and (finished := _finished(path, description, options)) is not None:
        return finished
    opened = nullcontext(Store(None)) if path is None else open_store(path, description, lines, options.resume, force)
    # a scheduler that nobody reaches is known before finished lines are discarded
    with _hands(options) as solve, opened as store:
        if path is not None and (finished := _finished(path, description, options)) is not None:
            return finished  # by another process, before this one had the folder
        if refine:
            lines, solved = solved_at_boundaries(
                lines, swept, lambda some, what: solved_lines(some, store, solve, options.progress, what)
            )
        else:
            solved = solved_lines(lines, store, solve, options.progress)
        ds = joined(problem, swept, description, solved)
        if path is not None:
            save_dataset(ds, path, force=force)
            store.clear(lines, description)
    return ds


def _finished(path: Path, description: Description, options: _Options) -> xr.Dataset | None:
    """The result that is taken up although it is done; None where the output can be written."""
    if options.resume and not options.force and path.is_file():
        return finished_result(path, description)
    check_dataset(path, options.force)
    return None


def _share(
    problem: Problem,
    lines: list[Line],
    swept: dict[str, list[Any]],
    description: Description,
    options: _Options,
    path: Path,
    number: int,
    shares: int,
) -> xr.Dataset:
    """The result as far as one share of the lines makes it, which are kept."""
    numbers, name = shares_of(lines, shares, "shard")[number - 1], f"share-{number}-of-{shares}"
    mine = [lines[i] for i in numbers]
    with _hands(options) as solve, share_for_us(parts_folder(path), name, mine, SHARED) as store:
        check_dataset(path)  # which another process may have written before this one had the folder
        with at_the_door(parts_folder(path)):
            store.claim(description, lines, options.resume == "fitting")
        found = dict(zip(numbers, solved_lines(mine, store, solve, options.progress), strict=True))
    rest = line_of_parts([], len(swept["alpha"]), found[numbers[0]])
    return from_lines([found.get(i, rest) for i in range(len(lines))], swept, problem=problem)


def joined(
    problem: Problem, swept: Mapping[str, list[Any]], description: Description, lines: Sequence[xr.Dataset]
) -> xr.Dataset:
    """The result of a sweep from those of all its lines."""
    ds = from_lines(lines, swept, problem=problem)
    return marked(with_boundaries(ds) if description.entries.get("refine") else ds, description)


def _hands(options: _Options) -> AbstractContextManager[Solve]:
    """What solves the lines."""
    return nullcontext(on_processes(options.workers)) if options.scheduler is None else cluster_at(options.scheduler)


def on_processes(workers: int) -> Solve:
    """Lines are solved by so many processes."""
    return lambda work, shown: work.solve(workers, shown)


def solved_lines(
    lines: Sequence[Line], store: Store, solve: Solve, progress: bool | None, what: str = "sweeping"
) -> list[xr.Dataset]:
    """Every line's result: what the store holds, and the rest solved now."""
    work = Work(lines, store, store.load(lines))
    with progress_line(progress, "loading the kernels") as shown:
        for kernel_problem in {ModelKey.of(line.problem): line.problem for line in lines}.values():
            if not are_intact(kernel_problem):
                shown.callback(COMPILING)
                kernels_for(kernel_problem)  # compiled once, here; workers load them from the cache
    if progress and work.finished:
        print(f"{len(work.finished)} of {len(lines)} lines are finished already", file=sys.stderr)
    with progress_line(progress, what, work.points, work.points_done, "points") as shown:
        solve(work, shown)
    return [work.finished[i] for i in range(len(lines))]


def axes_of(problem: Problem, alpha: Any, omega: Any, branch: Any, fields: Any) -> dict[str, list[Any]]:
    """Values along each dimension, in their order."""
    given = (
        {} if fields is None else arguments.mapping("fields", fields, "a mapping from fields of the problem to values")
    )
    for name in ("alpha", "branch"):
        if name in given:
            raise ProblemError(name, f"{name} is not a field of the problem: give it as the argument {name}.")
    if "teacher.omega" in given and omega is not None:
        raise ProblemError("teacher.omega", "teacher.omega is given twice: as omega and among the fields.")
    varied = [values for values in (omega, branch, *given.values()) if values is not None]
    lines = math.prod(map(_count, varied))
    if lines > _MAX_LINES or lines * _count(alpha) > _MAX_POINTS:
        raise ProblemError(
            "alpha",
            f"the grid has {lines * _count(alpha)} points in {lines} lines, but may have {_MAX_POINTS} in {_MAX_LINES}:"
            " sweep it in parts.",
        )
    names = arguments.words("branch", branch, (*BRANCHES, "all"))
    if "all" in names and len(names) > 1:
        raise ProblemError("branch", '"all" names every branch: give it alone.')
    swept: dict[str, list[Any]] = {"branch": branches_of(problem) if names == ("all",) else [*names]}
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
    if name.startswith("metrics."):
        raise ProblemError(name, f"{name} cannot be swept: give every formula a name of its own in metrics.")
    if not isinstance(value, str | Real):
        shown = arguments.shown(value)
        raise ProblemError(name, f"{name} cannot be swept over {shown}: only numbers, words and truth values can.")
    return value


def lines_of(
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
        read = {one[name]: value_of(changed, name) for one, changed in zip(changes, problems, strict=True)}
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
