"""Experiments as a function: every argument is checked before torch is loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnphase import arguments
from attnphase.arrays import Numbers, Wholes
from attnphase.experiments.optimizers.kinds import OptimizerName, suited
from attnphase.experiments.plan import Plan
from attnphase.experiments.settings import DtypeName
from attnphase.lazy import loaded_on_use
from attnphase.problem import Problem

with loaded_on_use(__name__):
    from attnphase.data import outcomes
    from attnphase.experiments import runs

if TYPE_CHECKING:
    import torch
    import xarray as xr
    from numpy.typing import NDArray

    from attnphase.state_evolution.sizes import SizesLike

__all__ = ["simulate"]


def simulate(
    problem: Problem,
    alpha: Numbers,
    start: SizesLike | Sequence[Any] | NDArray[Any] | torch.Tensor | None = None,
    dimension: Wholes = 1000,
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
    dtype: DtypeName = "float64",
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_interval: float = 30.0,
    progress: bool | None = None,
) -> xr.Dataset:
    """Train students on random instances of a problem at finite d.

    Parameters
    ----------
    problem : Problem
    alpha : float or sequence of float
        Sample complexities; n = alpha d, rounded.
    start : str, sequence of str, sizes, or array
        Initial weights: "semantic" (the teacher; the default), "positional" (along the encodings), "uninformed" (random
        entries of standard deviation 0.1), "mixed" (first column semantic, others positional), an array (d, r) or
        (seeds, d, r), or sizes as in `attnphase.sgd_flow`: "semantic=0.3,noise=0.6".  For "bayes-gamp": "uninformed"
        (the default) or "informed".
    dimension : int or sequence of int
        Dimension d of the tokens.
    seeds : int
        Number of instances at every point of the grid.
    optimizer : {"lbfgs", "gd", "adam", "fista", "gamp", "bayes-gamp", "sgd"}, optional
        By default "lbfgs", or "fista" if the regulariser is not a ridge.
    seed : int
        Seed of all random numbers.  All starts train on the same instances.
    steps, tolerance, learning_rate, damping, trajectory, batch, channel : optional
        As in ``experiments.settings.TrainingSettings``.  "sgd" uses each of n samples once, `batch` of them in a step.
    test_samples : int
        Fresh samples for the sampled test error; 0 for none.
    device, dtype : str
        "cpu" or "cuda"; "float64" or "float32".
    checkpoint, checkpoint_interval : path-like and float, optional
        File that saves the state; if it exists, the experiment continues from it. Seconds between two writes.
    progress : bool, optional
        Show a bar with the loss and the remaining time on standard error. By default only compiling is shown.

    Returns
    -------
    xarray.Dataset
        Kind ``experiments`` (for "bayes-gamp" ``posterior``): overlaps, losses, test errors and ``status`` of every run
        over start, dimension, alpha and seed.

    Raises
    ------
    ProblemError
        An argument is wrong, or the problem does not allow it.
    ExperimentError
        A run does not fit into memory, the device does not exist, or the checkpoint cannot be used.
    CacheError
        Other users can write to the cache folder of compiled code.
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
    return outcomes.warned(runs.run_plan(problem, plan), outcomes.of_runs)
