"""What an experiment is asked to do, checked without torch, so that a wrong argument is refused at once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnphase import arguments
from attnphase.arguments import device_name
from attnphase.arrays import Array
from attnphase.errors import ExperimentError, ProblemError
from attnphase.experiments.optimizers.kinds import OptimizerKind, OptimizerName
from attnphase.experiments.settings import DTYPES, TrainingSettings
from attnphase.extras import require_torch
from attnphase.files.checkpoints import RUNS
from attnphase.fixed_points.settings import sample_complexities
from attnphase.problem import Problem
from attnphase.state_evolution.branches import BRANCHES
from attnphase.state_evolution.sizes import Sizes
from attnphase.state_evolution.starts import initial_overlaps, sized_rows

__all__ = ["GIVEN", "Grid", "Plan", "given_weights"]

_MOST_RUNS = 10**6  # in all; what is beyond is a slip of the keyboard

GIVEN = "given"
"""Name of a start that is an array."""


@dataclass(frozen=True, eq=False)
class Grid:
    """What is run: every start, dimension and alpha for every seed.

    Attributes
    ----------
    starts : tuple of str
        Of `BRANCHES`, texts of `Sizes`, or `GIVEN` alone.
    given : (d, r) or (seeds, d, r) array, or None
    dimensions : tuple of int
    alphas : tuple of float
    seeds : int
        Runs at every place.
    seed : int
        From which all random numbers follow.
    """

    starts: tuple[str, ...]
    given: Array | None
    dimensions: tuple[int, ...]
    alphas: tuple[float, ...]
    seeds: int
    seed: int

    @classmethod
    def of(cls, alpha: Any, start: Any, dimension: Any, seeds: Any, seed: Any, kind: OptimizerKind) -> Grid:
        """From the arguments of `simulate`, for an optimiser of a kind.

        Raises
        ------
        ProblemError
            One is wrong.
        """
        if kind.posterior:
            names = (start,) if isinstance(start, str) else start
            starts, given = arguments.words("start", kind.starts[:1] if start is None else names, kind.starts), None
        else:
            starts, given = _starts(kind.starts[0] if start is None else start)
        alphas = sample_complexities("alpha", alpha)
        dimensions = arguments.wholes("dimension", dimension, 2)
        seeds, seed = arguments.whole("seeds", seeds, 1), arguments.whole("seed", seed, 0)
        grid = cls(starts, given, dimensions, alphas, seeds, seed)
        if grid.size > _MOST_RUNS:
            raise ProblemError(
                "seeds",
                f"{arguments.shown(grid.size)} runs are asked for, seeds at every start, dimension and alpha, but there"
                f" can be {_MOST_RUNS} at most: lower seeds, or take fewer values.",
            )
        if given is not None and (len(dimensions) > 1 or given.shape[-2] not in dimensions):
            raise ProblemError("start", "start is an array, which has one dimension: give that dimension alone.")
        for d in dimensions:
            for a in alphas:
                if grid.count(d, a) < 1:
                    raise ProblemError("alpha", f"alpha = {a:g} at d = {d} gives no sample (n = alpha d, rounded).")
        return grid

    def check(self, problem: Problem) -> None:
        """Refuse starts of training that a problem cannot have.

        Raises
        ------
        ProblemError
            There is no such branch.
        ExperimentError
            The start is an array of the wrong shape, or holds something that is not a finite number.
        """
        if self.given is not None:
            given_weights(self.given, (self.given.shape[-2], problem.columns), self.seeds)
        for name in self.starts if self.given is None else ():
            if name in BRANCHES:
                initial_overlaps(problem, name)
            else:
                sized_rows(problem, Sizes.of(name))

    def count(self, dimension: int, alpha: float) -> int:
        """Number n of samples."""
        return round(alpha * dimension)

    @property
    def size(self) -> int:
        """Number of runs."""
        return len(self.starts) * len(self.dimensions) * len(self.alphas) * self.seeds

    @property
    def swept(self) -> dict[str, Sequence[Any]]:
        """The dimensions of the result."""
        return {
            "start": self.starts,
            "dimension": self.dimensions,
            "alpha": self.alphas,
            "seed": tuple(range(self.seeds)),
        }

    def task(self) -> dict[str, Any]:
        """All of it as plain values, for a fingerprint."""
        given = None if self.given is None else hashlib.sha256(self.given.tobytes()).hexdigest()
        swept = {name: list(values) for name, values in self.swept.items() if name != "seed"}
        return {**swept, "given": given, "seeds": self.seeds, "seed": self.seed}


@dataclass(frozen=True, eq=False)
class Plan:
    """All arguments of `simulate` but the problem, checked; see there.

    Attributes
    ----------
    grid : Grid
    settings : TrainingSettings
    test_samples : int
    device, dtype : str
    checkpoint : Path or None
    checkpoint_interval : float
    progress : bool
    """

    grid: Grid
    settings: TrainingSettings
    test_samples: int
    device: str
    dtype: str
    checkpoint: Path | None
    checkpoint_interval: float
    progress: bool | None

    @classmethod
    def of(
        cls,
        alpha: Any,
        start: Any = None,
        dimension: Any = 1000,
        seeds: int = 8,
        optimizer: OptimizerName | None = None,
        *,
        seed: int = 0,
        steps: int | None = None,
        tolerance: float | None = None,
        learning_rate: float | None = None,
        damping: float | None = None,
        trajectory: int = 0,
        batch: int | None = None,
        channel: str | None = None,
        test_samples: int = 1000,
        device: str = "cpu",
        dtype: str = "float64",
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_interval: float = 30.0,
        progress: bool | None = None,
    ) -> Plan:
        """From the arguments of `simulate`.

        Raises
        ------
        ProblemError
            One is wrong.
        MissingExtraError
            PyTorch is not installed.
        """
        require_torch()
        optimizer = "lbfgs" if optimizer is None else optimizer  # before there is a problem that wants another
        settings = TrainingSettings(optimizer, steps, tolerance, learning_rate, damping, trajectory, batch, channel)
        samples = arguments.whole("test_samples", test_samples, 0)
        if samples == 1:
            raise ProblemError("test_samples", "test_samples must be 0, or at least 2 for a standard error.")
        return cls(
            grid=Grid.of(alpha, start, dimension, seeds, seed, settings.kind),
            settings=settings,
            test_samples=samples,
            device=device_name(device),
            dtype=arguments.word("dtype", dtype, DTYPES),
            checkpoint=None if checkpoint is None else RUNS.check(checkpoint),
            checkpoint_interval=arguments.number(
                "checkpoint_interval", checkpoint_interval, lambda x: x >= 0, "a number of seconds"
            ),
            progress=arguments.flag_or_none("progress", progress),
        )

    def check(self, problem: Problem) -> None:
        """Refuse a problem that cannot be trained like this.

        Raises
        ------
        ProblemError
            It does not allow the optimiser or a start.
        ExperimentError
            The start is an array that does not fit.
        """
        arguments.instance("problem", problem, Problem)
        if not self.settings.kind.posterior:
            self.grid.check(problem)
        self.settings.check(problem)
        fewest = self.grid.count(min(self.grid.dimensions), min(self.grid.alphas))
        if self.settings.kind.one_pass and (self.settings.batch or 1) > fewest:
            raise ProblemError(
                "batch", f"batch must be at most the number of samples, here {fewest}: no step would be made."
            )


def _starts(start: Any) -> tuple[tuple[str, ...], Array | None]:
    """Names of starts, or that of an array with the array."""
    listed = isinstance(start, Sequence) or getattr(start, "ndim", None) == 1
    if isinstance(start, str) or (listed and len(start) and all(isinstance(name, str) for name in start)):
        names = [Sizes.of(one).text if "=" in one else one for one in arguments.items("start", start)]
        known = (*BRANCHES, *(name for name in names if "=" in name))
        return arguments.words("start", names, known), None
    if isinstance(start, Sizes | Mapping):
        return (Sizes.of(start).text,), None
    try:
        array = np.asarray(start)
    except (ValueError, TypeError, RuntimeError):  # nested lists of different lengths, what is on another device
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "fiu" or array.ndim not in (2, 3):
        raise ProblemError(
            "start",
            f"start must be one of {', '.join(BRANCHES)}, several of them, or an array, not {arguments.shown(start)}.",
        )
    return (GIVEN,), array


def given_weights(array: NDArray[Any], shape: tuple[int, int], runs: int) -> Array:
    """Weights that are given for all runs, (d, r), or for each, as those of each.

    Returns
    -------
    (runs, d, r) array

    Raises
    ------
    ExperimentError
        The shape is another, or an entry is not a finite number.
    """
    if array.shape not in (shape, (runs, *shape)):
        raise ExperimentError(f"start has shape {array.shape}, but must have {shape}, or {('runs', *shape)}.")
    if not np.isfinite(array).all():
        raise ExperimentError("start has an entry that is not a finite number.")
    return np.broadcast_to(array, (runs, *shape)).copy()
