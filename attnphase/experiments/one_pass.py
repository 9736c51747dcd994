"""One-pass stochastic gradient descent: every step takes fresh samples, for a batch of runs in one tensor.

Samples are drawn in blocks, which every run has streams of its own for, so that its numbers depend on nothing else, and
an interrupted run goes on at the beginning of a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnphase.arrays import Array
from attnphase.data.variables import RunStatus
from attnphase.experiments.data import Instance, Samples, Stream, draw_samples
from attnphase.experiments.measure import exact_test_errors, noise_losses, noisy_losses, overlaps_of
from attnphase.experiments.settings import TrainingSettings
from attnphase.experiments.training import Trained

__all__ = ["BLOCK", "descend", "population_risks"]

BLOCK = 256  # samples of a run that are drawn at once
_FIRST_FRESH = 64  # number of the first stream of a block; those of other samples are below


@dataclass(frozen=True, eq=False)
class _Descent:
    """What the steps of a batch of runs need.

    Attributes
    ----------
    instance : Instance
    settings : TrainingSettings
    steps : int
    """

    instance: Instance
    settings: TrainingSettings
    steps: int

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return int(self.settings.batch or 1)

    @property
    def at_once(self) -> int:
        """Steps of a block."""
        return max(BLOCK // self.batch, 1)

    def block(self, number: int) -> Samples:
        """Fresh samples of all runs."""
        instance, offset = self.instance, _FIRST_FRESH * (number + 1)
        streams = offset + Stream.CLUSTERS, offset + Stream.TOKENS, offset + Stream.NOISE
        count = self.at_once * self.batch
        geometries, runs = instance.geometries, instance.runs
        return draw_samples(
            instance.problem, geometries, count, instance.seed, runs, instance.loss, streams, instance.threads
        )

    def step(self, weights: Tensor, samples: Samples, number: int) -> None:
        """Move the weights (S, d, r) by the mean gradient of the samples of one step of a block, in place."""
        problem, loss, d = self.instance.problem, self.instance.loss, self.instance.dimension
        rate, runs, columns = float(self.settings.learning_rate or math.nan), len(weights), weights.shape[2]
        part = slice(number * self.batch, (number + 1) * self.batch)
        length = problem.tokens.length
        tokens = samples.tokens[:, part.start * length : part.stop * length]
        h = torch.bmm(tokens, weights).div_(math.sqrt(d)).reshape(-1, length, columns)
        targets, grams = samples.targets[:, part].flatten(0, 1), samples.grams[:, part].flatten(0, 1)
        _, slopes = loss.gradients(h, targets, grams)
        pull = torch.bmm(tokens.mT, slopes.reshape(runs, -1, columns))
        decay = torch.as_tensor(problem.rows.ridge * rate / d, dtype=weights.dtype, device=weights.device)
        weights.mul_(1 - decay).sub_(pull, alpha=rate / (self.batch * math.sqrt(d)))


def descend(
    instance: Instance,
    weights: Tensor,
    settings: TrainingSettings,
    count: int,
    *,
    resume: dict[str, Any] | None = None,
    keep: Callable[[Callable[[], dict[str, Any]]], None] | None = None,
    on_step: Callable[[int, float], None] | None = None,
) -> Trained:
    """Pass once over so many fresh samples.

    Equation (S1) of the dynamics page.

    Parameters
    ----------
    instance : Instance
        Of which the geometries are used, and not the samples.
    weights : (S, d, r) tensor
        Start.
    settings : TrainingSettings
    count : int
        Samples n; there are n / batch steps.
    resume, keep, on_step
        As of ``attnphase.experiments.training.train``; between two blocks.
    """
    gained = noise_losses(instance)
    descent = _Descent(instance, settings, count // int(settings.batch or 1))
    runs, first, every = len(weights), 0, settings.trajectory
    trained = Trained(weights.clone(), np.full(runs, -1), np.zeros(runs, dtype=np.int64), np.zeros(runs, dtype=bool))
    current = weights.clone()
    if resume is not None:
        trained, first = Trained.restored(resume["trained"], weights.device), resume["block"]
        current = resume["weights"].to(weights.device)
    for block in range(first, -(-descent.steps // descent.at_once)):
        samples = descent.block(block)
        for number in range(min(descent.at_once, descent.steps - block * descent.at_once)):
            if every and (block * descent.at_once + number) % every == 0:
                _record(trained, instance, current, gained)
            descent.step(current, samples, number)
        made = min((block + 1) * descent.at_once, descent.steps)
        finite = torch.isfinite(current).all(dim=2).all(dim=1)
        going = torch.as_tensor(trained.status < 0, device=current.device)
        trained.weights = torch.where((finite & going)[:, None, None], current, trained.weights)
        trained.steps[trained.status < 0] = made
        trained.status[(~finite & going).cpu().numpy()] = RunStatus.diverged
        if on_step is not None:
            on_step(made, math.nan)
        if keep is not None:
            keep(partial(_state, current, trained, block + 1))
    if every and descent.steps % every == 0:
        _record(trained, instance, current, gained)
    trained.status[trained.status < 0] = RunStatus.completed
    return trained


def _state(weights: Tensor, trained: Trained, block: int) -> dict[str, Any]:
    return {"weights": weights.clone(), "trained": trained.state(), "block": block}


def population_risks(instance: Instance, weights: Tensor, errors: Array, gained: Array) -> Array:
    """Mean loss of a fresh sample, with the noise of its labels, and the ridge, (S,).

    Parameters
    ----------
    instance : Instance
    weights : (S, d, r) tensor
    errors, gained : (S,) arrays
        Exact test errors, and what `attnphase.experiments.measure.noise_losses` says.
    """
    problem = instance.problem
    norms = weights.square().sum(dim=1).double().cpu().numpy() / instance.dimension
    paid = (problem.rows.ridge / 2 * norms).sum(axis=1)
    if problem.teacher.noise and not problem.loss.form.noise_is_quadratic:
        return noisy_losses(instance, weights) + paid
    return problem.tokens.length / 2 * errors + gained + paid


def _record(trained: Trained, instance: Instance, weights: Tensor, gained: Array) -> None:
    """One record of the trajectory; NaN for runs that have run away."""
    going = (trained.status < 0) & torch.isfinite(weights).all(dim=2).all(dim=1).cpu().numpy()
    safe = torch.where(torch.as_tensor(going, device=weights.device)[:, None, None], weights, 0.0)
    overlaps = [overlaps_of(instance, s, w) for s, w in enumerate(safe.double().cpu().numpy())]
    values = {name: np.stack([getattr(o, name) for o in overlaps]) for name in ("q", "m", "theta")}
    errors = exact_test_errors(instance, safe)[0]
    unknown = np.full(len(weights), np.nan)
    values |= {"test_error": errors, "training_loss": population_risks(instance, safe, errors, gained)}
    values |= {"V": np.full(values["q"].shape, np.nan), "gradient_norm": unknown}
    for name, array in values.items():
        kept = np.where(going.reshape(-1, *(1,) * (array.ndim - 1)), array, np.nan)
        trained.trajectory.setdefault(f"trajectory_{name}", []).append(kept)
