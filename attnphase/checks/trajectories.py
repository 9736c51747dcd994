"""Trajectories of one-pass SGD against the closed equations, in standard errors at every time.

Two differences are taken.  From the limit: what everybody sees, of the order 1/sqrt(d) as starts and samples scatter.
From the theory of every run's own start: the scatter of the starts is gone, and what is left of the mean is of the
order 1/d.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import count, groupby

import numpy as np
import xarray as xr

from attnphase import arguments
from attnphase.arrays import Array
from attnphase.checks.deviations import Limit, Measured
from attnphase.checks.matching import left_out
from attnphase.data.build import by_cluster
from attnphase.data.reading import counted_alone
from attnphase.data.text import Table, format_value, json_text, wrapped
from attnphase.errors import CompareError
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Advance, Callback, uncounted
from attnphase.state_evolution.sizes import Sizes
from attnphase.theories.sgd_flow.settings import FlowSettings

__all__ = ["TrajectoryComparison", "TrajectoryQuantity", "compare_trajectories"]

_RUN_NAMES = {"population_risk": "training_loss"}  # what runs call it
_NAMES = ("q", "m", "theta", "population_risk", "test_error")


@dataclass(frozen=True)
class TrajectoryQuantity:
    """One number of the theory along the runs of one start, sample complexity and dimension.

    Attributes
    ----------
    start : str
    alpha : float
    dimension : int
    runs : int
    name : str
        With indices from 1.
    times, theory, value, stderr : tuple of float
        The limit, the mean over the runs and its standard error.
    z : tuple of float
        Difference from the limit in standard errors; NaN at the start of a quantity that does not scatter.
    own, own_stderr, own_z : tuple of float
        Mean difference of the runs from the theory of their own starts, its error, and both divided.
    """

    start: str
    alpha: float
    dimension: int
    runs: int
    name: str
    times: tuple[float, ...]
    theory: tuple[float, ...]
    value: tuple[float, ...]
    stderr: tuple[float, ...]
    z: tuple[float, ...]
    own: tuple[float, ...]
    own_stderr: tuple[float, ...]
    own_z: tuple[float, ...]

    @property
    def scatter(self) -> float:
        """sqrt(d) times the runs' standard deviation at the end: the coefficient of what falls like 1/sqrt(d)."""
        return self.stderr[-1] * math.sqrt(self.runs * self.dimension)

    @property
    def shift(self) -> tuple[float, float]:
        """The coefficient of 1/d, d times the mean difference from the own starts' theory at the end; and its error."""
        return self.own[-1] * self.dimension, self.own_stderr[-1] * self.dimension

    @property
    def worst(self) -> float:
        """Largest deviation from the limit at any time, in standard errors."""
        return _largest(self.z)

    @property
    def own_worst(self) -> float:
        """Largest deviation from the own starts' theory."""
        return _largest(self.own_z)


@dataclass(frozen=True)
class TrajectoryComparison:
    """All quantities of trajectories beside the theory's.

    Attributes
    ----------
    problem : Problem
    quantities : tuple of TrajectoryQuantity
    excluded : tuple of str
        Runs that were not counted, one sentence each.
    theory, experiment : xarray.Dataset
    """

    problem: Problem
    quantities: tuple[TrajectoryQuantity, ...]
    excluded: tuple[str, ...]
    theory: xr.Dataset
    experiment: xr.Dataset

    @cached_property
    def fits(self) -> dict[tuple[str, str], Limit]:
        """By start and quantity, where there are several dimensions: ``a + b/d`` of the difference from own starts.

        At the end of the trajectories of largest alpha, of which others are beginnings; its z is that of a, which is
        zero where the theory holds.
        """
        found: dict[tuple[str, str], Limit] = {}
        largest = max((q.alpha for q in self.quantities), default=0.0)
        for key in dict.fromkeys((q.start, q.name) for q in self.quantities):
            ends = [q for q in self.quantities if (q.start, q.name, q.alpha) == (*key, largest)]
            if not ends:
                continue
            rows = [Measured(q.dimension, q.runs, q.own[-1], q.own_stderr[-1], q.own[-1], q.own_z[-1]) for q in ends]
            same_end = max(q.times[-1] for q in ends) - min(q.times[-1] for q in ends) < 0.5
            fit = Limit.of(rows, 0.0, 0.0) if same_end else None
            if fit is not None:
                found[key] = fit
        return found

    @property
    def worst(self) -> float:
        """Largest deviation in standard errors; NaN if nothing has one.

        Of what the fits have for large d; of starts without fits, of the runs from the limit at any time.
        """
        return _largest([*(fit.z for fit in self.fits.values()), *(q.worst for q in self._without_fits)])

    @property
    def _without_fits(self) -> list[TrajectoryQuantity]:
        """Those of starts that have no fit."""
        fitted = {start for start, _ in self.fits}
        return [q for q in self.quantities if q.start not in fitted]

    def within(self, limit: float = 3.0) -> bool:
        """Whether every deviation that is known is at most `limit` standard errors, and at least one is known."""
        limit = arguments.number("limit", limit, lambda x: x > 0, "a positive number")
        return self.worst <= limit

    def text(self, width: int | None = None) -> str:
        """A table for every start, alpha and dimension: the ends of trajectories, the worst deviation on the way."""
        lines: list[str] = []
        for (start, alpha, d), group in groupby(self.quantities, key=lambda q: (q.start, q.alpha, q.dimension)):
            block = [*group]
            head = f"{start}, alpha = {alpha:g}, d = {d}, {block[0].runs} runs, time {block[0].times[-1]:g}"
            lines += ["", wrapped(head, width), _table(block).text(width)]
        fits = self.fits
        if fits:
            lines += ["", wrapped("difference from the theory of the runs' own starts at the end, a + b/d", width)]
            lines.append(_fit_table(fits).text(width))
        lines += ["", *(wrapped(sentence, width) for sentence in self.excluded)] if self.excluded else [""]
        if not self.quantities:
            end = "there are not two runs to compare."
        else:
            rest = self._without_fits
            whole = ["limits for large d"] if fits else []
            whole += [f"{len(rest)} quantities at all times"] if rest else []
            end = f"{' and '.join(whole)}: the worst deviates by {self.worst:.1f} standard errors."
        lines.append(wrapped(end, width))
        return "\n".join(lines).strip("\n")

    def to_json(self) -> str:
        """One JSON object; numbers that are not finite are null."""
        whole = {
            "problem_hash": self.problem.hash,
            "worst": self.worst,
            "excluded": list(self.excluded),
            "quantities": [asdict(quantity) for quantity in self.quantities],
        }
        return json_text(whole)

    def __str__(self) -> str:
        return self.text()


def _largest(values: Sequence[float]) -> float:
    return max((abs(value) for value in values if math.isfinite(value)), default=math.nan)


def _table(block: Sequence[TrajectoryQuantity]) -> Table:
    rows = []
    for q in block:
        shift, error = q.shift
        rows.append(
            (
                q.name,
                f"{q.theory[-1]:.6g}",
                format_value(q.value[-1], q.stderr[-1]),
                f"{q.z[-1]:+.1f}",
                f"{q.worst:.1f}",
                f"{q.own_worst:.1f}",
                f"{q.scatter:.2g}",
                format_value(shift, error),
            )
        )
    heads = ("", "limit", "runs", "z", "worst z", "own start", "sqrt(d) scatter", "d shift")
    return Table(heads, tuple(rows))


def _fit_table(fits: Mapping[tuple[str, str], Limit]) -> Table:
    several = len({start for start, _ in fits}) > 1
    rows = []
    for (start, name), fit in fits.items():
        label = f"{start}: {name}" if several else name
        slope = format_value(fit.slope, fit.slope_stderr)
        rows.append((label, format_value(fit.value, fit.stderr), f"{fit.z:+.1f}", slope))
    return Table(("", "a", "z", "b"), tuple(rows))


def compare_trajectories(
    theory: xr.Dataset, experiment: xr.Dataset, problem: Problem, callback: Callback, advance: Advance = uncounted
) -> TrajectoryComparison:
    """Hold trajectories of SGD against a dataset of kind ``sgd_flow``.

    Raises
    ------
    CompareError
        The experiment has no trajectories of SGD, or the theory lacks a start, or has another learning rate or batch.
    """
    if "trajectory_test_error" not in experiment or not experiment.attrs["rule"].startswith("sgd"):
        raise CompareError("the experiment has no trajectory of sgd: give simulate --optimizer sgd --trajectory STEPS.")
    rule = experiment.attrs["rule"]
    for name in ("learning_rate", "batch"):
        if f"{name} {float(theory[name]):g};" not in rule.replace(")", ";"):
            raise CompareError(
                f"the theory has {name} = {float(theory[name]):g}, the experiment {rule}: follow it again."
            )
    theories = theory if "start" in theory.dims else theory.expand_dims("start")
    quantities: list[TrajectoryQuantity] = []
    excluded: list[str] = []
    numbers = count(1)

    def followed() -> None:
        advance(next(numbers))

    for start in map(str, experiment["start"].to_numpy()):
        if start not in theories["start"].to_numpy().tolist():
            raise CompareError(f'the theory has no start "{start}", where the experiment starts: follow it too.')
        for alpha in experiment["alpha"].to_numpy().tolist():
            excluded += left_out(experiment.sel(start=start, alpha=alpha), start, alpha)
            for d in experiment["dimension"].to_numpy().tolist():
                callback(f"{start}, d = {d}")
                runs = counted_alone(experiment.sel(start=start, dimension=d, alpha=alpha).transpose("seed", ...))
                if runs.sizes["seed"] > 1:
                    quantities += _quantities(theories.sel(start=start), runs, problem, followed)
                elif runs.sizes["seed"] == 1:
                    excluded.append(f"{start}, alpha = {alpha:g}, d = {d}: one run has no standard error: left out.")
    return TrajectoryComparison(problem, tuple(quantities), tuple(excluded), theory, experiment)


def _quantities(
    theory: xr.Dataset, runs: xr.Dataset, problem: Problem, followed: Callable[[], None]
) -> Iterator[TrajectoryQuantity]:
    """All that is recorded, against the theory of every run; `followed` is called after each of these."""
    from scipy.interpolate import CubicSpline

    from attnphase.experiments.own_theory import own_trajectory

    d, start = int(runs["dimension"]), str(runs["start"].item())
    batch = int(theory["batch"])
    times = runs["step"].to_numpy() / d
    known = (times <= float(theory["time"][-1]) * (1 + 1e-12)) & np.isfinite(
        runs["trajectory_test_error"].to_numpy()
    ).all(axis=0)
    if known.sum() < 2:
        raise CompareError(f"the theory ends before the second record of the runs at d = {d}: follow it for longer.")
    times = times[known]
    settings = FlowSettings(float(theory["learning_rate"]), batch, float(times[-1]), at_rest=0.0)
    seed, sizes = int(runs.attrs["seed"]), Sizes.of(start)
    own: list[dict[str, Array]] = []
    for run in runs["seed"]:
        own.append(own_trajectory(problem, sizes, settings, times, d, seed, int(run)))
        followed()
    for name in _NAMES:
        measured = runs[f"trajectory_{_RUN_NAMES.get(name, name)}"].to_numpy()[:, known]
        limit = CubicSpline(theory["time"].to_numpy(), theory[name].to_numpy())(times)
        errors = CubicSpline(theory["time"].to_numpy(), theory[f"{name}_stderr"].to_numpy())(times)
        near = np.stack([np.stack([by_cluster(problem, name, v) for v in one[name]]) for one in own])
        for index in np.ndindex(*limit.shape[1:]):
            if (name == "q" and index[-1] < index[-2]) or np.isnan(limit[(slice(None), *index)]).any():
                continue  # symmetric, or a cluster that a token has not
            here = (slice(None), slice(None), *index)
            label = f"{name}[{','.join(str(i + 1) for i in index)}]" if index else name
            yield _quantity(
                (start, float(runs["alpha"]), d, label),
                times,
                limit[here[1:]],
                np.abs(errors[here[1:]]),
                measured[here],
                near[here],
            )


def _quantity(
    place: tuple[str, float, int, str], times: Array, limit: Array, error: Array, values: Array, own: Array
) -> TrajectoryQuantity:
    """From runs (S, T) and the theory of each."""
    start, alpha, dimension, name = place
    count = len(values)
    mean, stderr = values.mean(axis=0), values.std(axis=0, ddof=1) / math.sqrt(count)
    rest = values - own
    shift, shift_error = rest.mean(axis=0), rest.std(axis=0, ddof=1) / math.sqrt(count)
    # at the start runs and their theory agree but for rounding and quadrature
    settled = shift_error > 1e-6 * np.abs(own).max()
    return TrajectoryQuantity(
        start,
        alpha,
        dimension,
        count,
        name,
        *(
            tuple(map(float, x))
            for x in (
                times,
                limit,
                mean,
                stderr,
                _divided(mean - limit, np.hypot(stderr, error)),
                shift,
                shift_error,
                np.where(settled, _divided(shift, shift_error), np.nan),
            )
        ),
    )


def _divided(difference: Array, error: Array) -> Array:
    """NaN where there is no error."""
    return np.divide(difference, error, out=np.full(difference.shape, np.nan), where=error > 0)
