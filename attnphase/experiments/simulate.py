"""Experiments as a function: every argument is checked before torch is loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnphase import arguments
from attnphase.experiments.optimizers.kinds import suited
from attnphase.experiments.plan import Plan
from attnphase.lazy import loaded_on_use
from attnphase.problem import Problem

with loaded_on_use(__name__):
    from attnphase.experiments import runs

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["simulate"]


def simulate(
    problem: Problem,
    alpha: float | Sequence[float],
    start: str | Sequence[str] | Any = None,
    dimension: int | Sequence[int] = 1000,
    seeds: int = 8,
    optimizer: str | None = None,
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
    progress: bool = False,
) -> xr.Dataset:
    """Train students on random instances of a problem at finite d.

    Parameters
    ----------
    problem : Problem
    alpha : float or sequence of float
        Sample complexities; n = alpha d, rounded.
    start : str, sequence of str, sizes, or array
        Where training starts: "semantic" (at the teacher; by default), "positional" (along the encodings), "uninformed"
        (small random weights), "mixed" (rank 2: a column of each), an array (d, r) or (seeds, d, r), or sizes as of
        `attnphase.flow`: "semantic=0.3,noise=0.6".  Of "bayes-gamp" "uninformed" (by default) or "informed".
    dimension, seeds : int
        d, one or a sequence of them, and the number of instances at every point of the grid.
    optimizer : {"lbfgs", "gd", "adam", "fista", "gamp", "bayes-gamp", "sgd"}, optional
        By default "lbfgs", or "fista" where the regulariser is not a ridge.
    seed : int
        From which all random numbers follow.  The same instance is trained from every start.
    steps, tolerance, learning_rate, damping, trajectory, batch, channel : optional
        As in ``experiments.settings.TrainingSettings``.  "sgd" sees n samples once, `batch` of them in a step.
    test_samples : int
        Fresh samples for the sampled test error; 0 for none.
    device, dtype : str
        "cpu" or "cuda"; "float64" or "float32".
    checkpoint, checkpoint_interval : path-like and float, optional
        File that keeps what has been computed, from which the experiment goes on if it is there already, and seconds
        between two writes of it.
    progress : bool
        Whether a bar with the loss and the time left is shown on standard error.

    Returns
    -------
    xarray.Dataset
        Schema ``experiments``, of "bayes-gamp" ``posterior``: over start, dimension, alpha, seed, with a ``status``.

    Raises
    ------
    ProblemError
        A wrong argument, or one that the problem does not allow.
    ExperimentError
        The runs do not fit into memory, there is no such device, or a checkpoint cannot be used.
    CacheError
        The cache folder of compiled code is not the user's own.
    MissingExtraError
        PyTorch is not installed.
    """
    optimizer = suited("lbfgs", arguments.instance("problem", problem, Problem)) if optimizer is None else optimizer
    plan = Plan.of(
        alpha, start, dimension, seeds, optimizer, seed=seed, steps=steps, tolerance=tolerance,
        learning_rate=learning_rate, damping=damping, trajectory=trajectory, batch=batch, channel=channel,
        test_samples=test_samples, device=device, dtype=dtype, checkpoint=checkpoint,
        checkpoint_interval=checkpoint_interval, progress=progress,
    )  # fmt: skip
    plan.check(problem)
    return runs.run_plan(problem, plan)
