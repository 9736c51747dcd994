"""Theory against experiment: differences in standard errors, and the finite-size correction in d.

Overlaps are compared in the theory's frame: each run is brought there by the symmetry of the model that takes its m and
theta closest to the theory's.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import xarray as xr

from attnphase import arguments
from attnphase.arrays import Array
from attnphase.checks.alignment import Frame
from attnphase.checks.deviations import Limit, Measured
from attnphase.checks.matching import at_problem, left_out, point_at, problem_of_runs
from attnphase.checks.posterior import RunsOwnFrame, branches_of_limit
from attnphase.checks.trajectories import compare_trajectories
from attnphase.data.reading import counted_alone, problem_of
from attnphase.data.text import Table, format_value, json_text, wrapped
from attnphase.data.validate import validate_kind
from attnphase.errors import CompareError
from attnphase.problem.problem import Problem
from attnphase.processes.progress import progress_line
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.starts import has_directions

__all__ = ["Comparison", "Quantity", "compare"]

_LARGEST = 1e100
_ROUNDING = 1e-12  # relative to the largest entry


@dataclass(frozen=True)
class Quantity:
    """One number of the theory and what experiments say about it.

    Attributes
    ----------
    start : str
        Branch of the theory, and start of the runs.
    alpha : float
    name : str
        With indices from 1: ``m[2,1]`` is token 2, column 1.
    theory, theory_stderr : float
    theory_status : str
    measured : tuple of Measured
        By dimension.
    limit : Limit or None
        None with one dimension, or without standard errors.
    """

    start: str
    alpha: float
    name: str
    theory: float
    theory_stderr: float
    theory_status: str
    measured: tuple[Measured, ...]
    limit: Limit | None

    @property
    def z(self) -> float:
        """Deviation in standard errors: of the limit where there is one, otherwise of the largest dimension."""
        return self.limit.z if self.limit is not None else self.measured[-1].z


@dataclass(frozen=True)
class Comparison:
    """All quantities of an experiment beside the theory's.

    Attributes
    ----------
    problem : Problem
    quantities : tuple of Quantity
    excluded : tuple of str
        Runs that were not counted and quantities that were left out, one sentence each.
    theory, experiment : xarray.Dataset
        What was compared; of the theory, the part that belongs to the experiment.
    """

    problem: Problem
    quantities: tuple[Quantity, ...]
    excluded: tuple[str, ...]
    theory: xr.Dataset
    experiment: xr.Dataset

    @property
    def worst(self) -> float:
        """Largest deviation in standard errors; NaN if nothing has one."""
        known = [abs(quantity.z) for quantity in self.quantities if math.isfinite(quantity.z)]
        return max(known, default=math.nan)

    def within(self, limit: float = 3.0) -> bool:
        """Whether every deviation that is known is at most `limit` standard errors, and at least one is known."""
        limit = arguments.number("limit", limit, lambda x: x > 0, "a positive number")
        return self.worst <= limit

    def text(self, width: int | None = None) -> str:
        """A table for every start and alpha.

        Parameters
        ----------
        width : int or None
            Columns of the terminal; None for no limit.
        """
        lines: list[str] = []
        for title, block in self._blocks():
            lines += ["", wrapped(title, width), block.text(width)]
        lines += ["", *(wrapped(sentence, width) for sentence in self.excluded)] if self.excluded else [""]
        lines.append(wrapped(self._end(), width))
        return "\n".join(lines).strip("\n")

    def __repr__(self) -> str:
        """One line; the tables are `text`."""
        return f"<Comparison of problem {self.problem.hash}: {self._end()}>"

    def _repr_html_(self) -> str:
        blocks = [f"<p>{html.escape(title)}</p>{block.html()}" for title, block in self._blocks()]
        return "".join([*blocks, *(f"<p>{html.escape(one)}</p>" for one in (*self.excluded, self._end()))])

    def _blocks(self) -> Iterator[tuple[str, Table]]:
        """A title and a table for every start and alpha."""
        for key in dict.fromkeys((q.start, q.alpha) for q in self.quantities):
            block = [q for q in self.quantities if (q.start, q.alpha) == key]
            note = "" if block[0].theory_status == Status.converged.name else f" (theory: {block[0].theory_status})"
            yield f"{key[0]}, alpha = {key[1]:g}{note}", _table(block)

    def _end(self) -> str:
        """How many quantities agree."""
        known = [q for q in self.quantities if math.isfinite(q.z)]
        if not self.quantities:
            return "there is no run to compare."
        if not known:
            return "no quantity has a standard error: run more than one seed."
        far = sum(abs(q.z) > 3 for q in known)
        extrapolated = sum(q.limit is not None for q in known)
        share = "" if extrapolated == len(known) else f", {extrapolated} of them"
        where = f"{share} in the limit of large d" if extrapolated else ""
        compared = f"{len(known)} quantities compared{where}, {far} further than 3 standard errors"
        fewest = min(one.runs for q in known for one in q.measured if one.runs > 1)
        uncertain = f"with {fewest} runs, a standard error is itself uncertain by {1 / math.sqrt(2 * (fewest - 1)):.0%}"
        return f"{compared}; the worst deviates by {self.worst:.1f}; {uncertain}."

    def to_json(self) -> str:
        """One JSON object; numbers that are not finite are null."""
        whole = {
            "problem_hash": self.problem.hash,
            "worst": self.worst,
            "excluded": list(self.excluded),
            "quantities": [{**asdict(quantity), "z": quantity.z} for quantity in self.quantities],
        }
        return json_text(whole)

    def __str__(self) -> str:
        return self.text()


def _table(block: Sequence[Quantity]) -> Table:
    heads, joined = ["", "theory"], []
    for one in block[0].measured:
        heads += [f"d = {one.dimension}", "z"]
        joined.append(len(heads) - 1)
    fitted = any(q.limit is not None for q in block)
    if fitted:
        heads += ["a of a + b/d", "z", "b"]
        joined += [len(heads) - 2, len(heads) - 1]
    rows = []
    for q in block:
        row = [q.name, format_value(q.theory, q.theory_stderr)]
        for one in q.measured:
            row += [format_value(one.value, one.stderr), _z(one.z)]
        if q.limit is not None:
            row += [format_value(q.limit.value, q.limit.stderr), _z(q.limit.z)]
            row += [format_value(q.limit.slope, q.limit.slope_stderr)]
        elif fitted:
            row += ["–", "–", "–"]
        rows.append(tuple(row))
    return Table(tuple(heads), tuple(rows), joined=tuple(joined), by_column=True)


def _z(value: float) -> str:
    return f"{value:+.1f}" if math.isfinite(value) else "–"


def compare(
    theory: xr.Dataset, experiment: xr.Dataset, *, problem: Problem | None = None, progress: bool | None = None
) -> Comparison | Any:  # a TrajectoryComparison, of which who compares points need not know
    """Compare experiments with theory, in standard errors.

    Parameters
    ----------
    theory : xarray.Dataset
        Kind ``points``, from `attnphase.solve` or `attnphase.sweep`: its branches include the experiment's starts, and
        its grid the experiment's sample complexities.  Kind ``sgd_flow``, from `attnphase.sgd_flow`, with the
        experiment's starts, for trajectories of ``sgd``.  Kind ``bayes_optimal``, from `attnphase.bayes_optimal`, for
        ``bayes-gamp``.
    experiment : xarray.Dataset
        Kind ``experiments`` or ``posterior``, from `attnphase.simulate`.
    problem : Problem, optional
        The experiment's problem.  It is needed if a score or a proximal operator is a function of a module, because a
        dataset never makes the program import a module.
    progress : bool, optional
        Show the progress on standard error, if the call takes longer than a second. By default only compiling is shown.

    Returns
    -------
    Comparison or TrajectoryComparison
        Deviations of all quantities that both datasets have and whose theory is not NaN.  Entries of an overlap with
        the same numbers, as tokens of one law have, are compared once; m only if there are directions for it.

    Raises
    ------
    CompareError
        The datasets belong to different problems, the theory lacks a branch or a sample complexity, or `problem` is not
        the experiment's, or is needed and not given.
    DatasetError
        A dataset does not follow its schema.
    ProblemError
        `progress` is neither True nor False.
    """
    arguments.flag_or_none("progress", progress)
    of_theory = theory.attrs.get("schema") if isinstance(theory, xr.Dataset) else None
    of_theory = of_theory if of_theory in ("sgd_flow", "bayes_optimal") else "points"
    of_runs = "posterior" if of_theory == "bayes_optimal" else "experiments"
    for ds, kind, what in ((theory, of_theory, "theory"), (experiment, of_runs, "experiment")):
        if not isinstance(ds, xr.Dataset):
            raise CompareError(f"the {what} must be an xarray.Dataset, not {arguments.shown(ds)}: load it first.")
        validate_kind(f"the {what}", ds, kind, CompareError)
    problem = problem_of_runs(experiment, problem)
    missing = [name for name in ("start", "dimension", "alpha", "seed") if name not in experiment["status"].dims]
    if missing:
        experiment = experiment.expand_dims(missing)
    if of_theory == "bayes_optimal":
        theory = branches_of_limit(theory, experiment)
    theory = at_problem(theory, problem)
    if of_theory == "sgd_flow":
        with progress_line(progress, "following the runs' own starts", experiment["status"].size, unit="runs") as line:
            return compare_trajectories(theory, experiment, problem, line.callback, line.reach)
    frame = RunsOwnFrame()
    if of_theory == "points":
        with progress_line(progress, "loading the kernels") as line:
            frame = Frame.of(problem, line.callback)
    formulas = problem_of(theory).metrics.items() & problem.metrics.items()  # one name may have two formulas
    metrics = sorted({f"metric_{name}" for name, _ in formulas} & {*theory} & {*experiment})
    overlaps = (name for name in frame.overlaps if name != "m" or has_directions(problem))
    names = (*frame.scalars, *metrics, *overlaps)
    quantities: list[Quantity] = []
    excluded: list[str] = []
    for start in map(str, experiment["start"].to_numpy()):
        for alpha in experiment["alpha"].to_numpy().tolist():
            point = point_at(theory, start, alpha)
            runs = experiment.sel(start=start, alpha=alpha)
            excluded += left_out(runs, start, alpha)
            quantities += _quantities(point, runs, frame, names, start, alpha, excluded)
    return Comparison(problem, tuple(quantities), tuple(excluded), theory, experiment)


def _quantities(
    point: xr.Dataset,
    runs: xr.Dataset,
    frame: Frame | RunsOwnFrame,
    names: Sequence[str],
    start: str,
    alpha: float,
    excluded: list[str],
) -> Iterator[Quantity]:
    """What can be compared; sentences about what cannot go to `excluded`."""
    dimensions = [int(d) for d in runs["dimension"].to_numpy()]
    scalars = [name for name in names if name not in frame.overlaps]
    known = [name for name in names if name in point]
    _check_sizes(point, [*known, *(f"{name}_stderr" for name in known)], f"the theory at {start}, alpha = {alpha:g}")
    samples: list[dict[str, Array]] = []
    for d in dimensions:
        here = counted_alone(runs.sel(dimension=d).transpose("seed", ...))
        _check_sizes(here, names, f"the runs of {start}, alpha = {alpha:g}, d = {d}")
        samples.append({name: here[name].to_numpy() for name in scalars} | frame.aligned(point, here))
    status = Status(int(point["status"])).name
    told: dict[str, list[Array]] = {name: [] for name in names}
    for name in names:
        source = "test_error" if name == "test_error_sampled" else name
        theory, error = point[source].to_numpy(), point[f"{source}_stderr"].to_numpy()
        for index in _entries(name, np.shape(theory)):
            values = [sample[name][(slice(None), *index)] for sample in samples]
            if not np.isfinite(theory[index]) or all(np.isnan(v).all() for v in values):
                continue  # the problem, or the optimiser, does not have it
            if not all(np.isfinite(v).all() for v in values):
                excluded.append(f"{start}, alpha = {alpha:g}: {name} is not a number in some runs: left out.")
                break
            if name == "density" and theory[index] == 1:
                continue  # a ridge has no zeros
            entries = [str(i + 1) for i in index]
            if name == "trained":
                entries = [str(point["parameter"].to_numpy()[index])]
                if entries[0] in frame.left_out:
                    continue  # no frame turns them, and q or the norm tells the same
            label = f"{name}[{','.join(entries)}]" if index else name
            exact = float(theory[index]), float(np.nan_to_num(error[index]))
            numbers = np.concatenate([exact, *values])
            rounding = _ROUNDING * max(float(np.nanmax(np.abs(x), initial=0)) for x in (theory, *values))
            if any(np.abs(numbers - other).max() <= rounding for other in told[name]):
                continue  # as tokens of one law have
            told[name].append(numbers)
            measured = tuple(Measured.of(d, v, *exact) for d, v in zip(dimensions, values, strict=True) if len(v))
            if measured:
                limit = Limit.of(measured, *exact)
                yield Quantity(start, alpha, label, *exact, status, measured, limit)


def _check_sizes(ds: xr.Dataset, names: Sequence[str], what: str) -> None:
    """Refuse numbers that nobody computed, and whose squares are none."""
    for name in names:
        values = np.abs(ds[name].to_numpy()) if name in ds else np.zeros(0)
        if bool((values > _LARGEST).any()):
            raise CompareError(f"{what} cannot be compared: {name} is {np.nanmax(values):.1g} there.")


def _entries(name: str, shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for index in np.ndindex(*shape):
        if name in ("q", "V") and index[-1] < index[-2]:
            continue  # symmetric
        yield index
