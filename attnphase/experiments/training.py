"""One batch of runs from its start to its end: steps, stopping, divergence, trajectories."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnphase.arrays import Array
from attnphase.data.variables import RunStatus
from attnphase.experiments.data import Instance
from attnphase.experiments.measure import overlaps_of
from attnphase.experiments.optimizers.classes import CLASSES
from attnphase.experiments.optimizers.interface import Optimizer, Progress
from attnphase.experiments.risk import Risk
from attnphase.experiments.settings import TrainingSettings

__all__ = ["Trained", "record_stride", "train"]

_SETTLED = 0.01  # relative change of the overlaps between two looks at which GAMP's count as settled
_LOOK = 20  # steps between two looks at them


@dataclass(eq=False)
class Trained:
    """Runs in work, and where they ended.

    Attributes
    ----------
    weights : (S, d, r) tensor
        Of the runs that have ended, at their end; of the others, the last finite ones.
    status : (S,) array of int
        `RunStatus`, or -1 while a run goes on.
    steps : (S,) array of int
    trajectory : dict of str to list of arrays
        By variable, (S, ...) for every record.
    overlaps : (S, ...) array or None
        At the last look at them.
    settled : (S,) array of bool
        Whether they had changed little since the look before.
    variances, replicon : (S, P, r, r) and (S,) arrays, or None
        V and the replicon at the end, of optimisers that have them.
    """

    weights: Tensor
    status: NDArray[np.int64]
    steps: NDArray[np.int64]
    settled: NDArray[np.bool_]
    overlaps: Array | None = None
    trajectory: dict[str, list[Array]] = field(default_factory=dict)
    variances: Array | None = None
    replicon: Array | None = None

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "weights": self.weights,
            "status": self.status.tolist(),
            "steps": self.steps.tolist(),
            "settled": self.settled.tolist(),
            "overlaps": None if self.overlaps is None else torch.as_tensor(self.overlaps),
            "trajectory": {k: [torch.as_tensor(a) for a in v] for k, v in self.trajectory.items()},
        }

    @classmethod
    def restored(cls, state: dict[str, Any], device: torch.device) -> Trained:
        """From a checkpoint."""
        trajectory = {k: [a.numpy() for a in v] for k, v in state["trajectory"].items()}
        status, steps = (np.array(state[name], dtype=np.int64) for name in ("status", "steps"))
        settled = np.array(state["settled"], dtype=bool)
        overlaps = None if state["overlaps"] is None else state["overlaps"].numpy()
        return cls(state["weights"].to(device), status, steps, settled, overlaps, trajectory)


def record_stride(settings: TrainingSettings) -> int:
    """Steps between two records; an optimiser can be looked at between its calls only."""
    if settings.kind.one_pass or settings.kind.posterior:
        return settings.trajectory
    stride = CLASSES[settings.optimizer].stride
    return -(-settings.trajectory // stride) * stride


def train(
    instance: Instance,
    risk: Risk,
    weights: Tensor,
    settings: TrainingSettings,
    *,
    resume: dict[str, Any] | None = None,
    keep: Callable[[Callable[[], dict[str, Any]]], None] | None = None,
    on_step: Callable[[int, float], None] | None = None,
) -> Trained:
    """Train a batch of runs.

    A run's numbers do not depend on the others of its batch: each ends by itself, where its gradient falls below the
    tolerance times its natural size, where it is not finite any more, or after the last step.

    Parameters
    ----------
    instance : Instance
    risk : Risk
    weights : (S, d, r) tensor
        Start.
    settings : TrainingSettings
    resume : dict, optional
        A state that `keep` could have.
    keep : callable, optional
        Called after every step with a function that makes the state from which the runs can go on.
    on_step : callable, optional
        Called after every step with the steps made and the mean of R / d over the runs in work.
    """
    optimizer = CLASSES[settings.optimizer].start(instance, risk, weights, settings)
    if settings.tolerance is not None:
        optimizer.least = settings.tolerance * risk.gradient_size(weights)
    runs, step = len(weights), 0
    trained = Trained(weights.clone(), np.full(runs, -1), np.zeros(runs, dtype=np.int64), np.zeros(runs, dtype=bool))
    if resume is not None:
        optimizer.restore(_moved(resume["optimizer"], weights.device))
        trained, step = Trained.restored(resume["trained"], weights.device), resume["step"]
        optimizer.least = _moved(resume["least"], weights.device)
    limit, stride = int(settings.steps or 0), optimizer.stride
    every = record_stride(settings)
    while step < limit and (trained.status < 0).any():
        seen = optimizer.step()
        value, size = seen.value.double().cpu().numpy(), seen.stationarity.double().cpu().numpy()
        going = trained.status < 0
        finite = np.isfinite(value) & np.isfinite(size)
        small = _small(optimizer, seen, going & finite, settings)
        good = torch.as_tensor(going & finite, device=weights.device)
        trained.weights = torch.where(good[:, None, None], seen.weights, trained.weights)
        trained.status[small] = RunStatus.converged
        trained.status[going & ~finite] = RunStatus.diverged
        trained.steps[going] = step
        if every and step % every == 0:
            _record(trained, instance, optimizer, value, size, going & finite)
        step += stride
        if step % _LOOK == 0 and optimizer.wanders:
            _look(trained, instance)
        left = going & finite
        if on_step is not None:
            on_step(step, float(value[left].mean()) / instance.dimension if left.any() else math.nan)
        if keep is not None:
            keep(partial(_state, optimizer, trained, step))
    _finish(trained, risk, optimizer, settings, limit)
    trained.variances, trained.replicon = optimizer.variances(), optimizer.replicon()
    return trained


def _state(optimizer: Optimizer, trained: Trained, step: int) -> dict[str, Any]:
    return {"optimizer": optimizer.state(), "trained": trained.state(), "step": step, "least": optimizer.least}


def _small(
    optimizer: Optimizer, seen: Progress, going: NDArray[np.bool_], settings: TrainingSettings
) -> NDArray[np.bool_]:
    """Which of the runs that go on are at their minimum.

    The natural size of the gradient is that of the start until a run falls below it, and then that of where it is.
    """
    small = np.zeros(len(going), dtype=bool)
    if optimizer.least is None or settings.tolerance is None:
        return small
    for s in np.flatnonzero(going & (seen.stationarity <= optimizer.least).cpu().numpy()):
        one = slice(s, s + 1)
        optimizer.least[s] = settings.tolerance * optimizer.risk.of_runs(one).gradient_size(seen.weights[one])[0]
        small[s] = bool(seen.stationarity[s] <= optimizer.least[s])
    return small


def _finish(trained: Trained, risk: Risk, optimizer: Optimizer, settings: TrainingSettings, limit: int) -> None:
    """Statuses of the runs that made all their steps."""
    going = trained.status < 0
    if not going.any():
        return
    last = optimizer.weights
    value, gradient = risk.smooth(last)
    size = risk.stationarity(last, gradient).double().cpu().numpy()
    finite = torch.isfinite(value).cpu().numpy() & np.isfinite(size)
    good = torch.as_tensor(going & finite, device=last.device)
    trained.weights = torch.where(good[:, None, None], last, trained.weights)
    trained.steps[going] = limit
    trained.status[going & ~finite] = RunStatus.diverged
    left = going & finite
    if settings.tolerance is None:
        trained.status[left] = RunStatus.completed
        return
    small = size <= settings.tolerance * risk.gradient_size(last).double().cpu().numpy()
    ended = np.where(small, RunStatus.converged, RunStatus.step_limit)
    if optimizer.wanders:
        ended = np.where(~small & trained.settled, RunStatus.unsettled, ended)
    trained.status[left] = ended[left]


def _record(
    trained: Trained, instance: Instance, optimizer: Optimizer, value: Array, size: Array, going: NDArray[np.bool_]
) -> None:
    """One record of the trajectory; NaN for the runs that have ended."""
    weights = trained.weights.double().cpu().numpy()
    overlaps = [overlaps_of(instance, s, w) for s, w in enumerate(weights)]
    values = {name: np.stack([getattr(o, name) for o in overlaps]) for name in ("q", "m", "theta")}
    values |= {"training_loss": value / instance.dimension, "gradient_norm": size}
    variances = optimizer.variances()
    values["V"] = np.full(values["q"].shape, np.nan) if variances is None else variances
    values["test_error"] = np.full(len(weights), np.nan)
    for name, array in values.items():
        kept = np.where(going.reshape(-1, *(1,) * (array.ndim - 1)), array, np.nan)
        trained.trajectory.setdefault(f"trajectory_{name}", []).append(kept)


def _look(trained: Trained, instance: Instance) -> None:
    """Whether the overlaps have stopped moving since the last look."""
    rows = []
    for s, w in enumerate(trained.weights.double().cpu().numpy()):
        o = overlaps_of(instance, s, w)
        rows.append(np.concatenate([o.q.ravel(), o.m.ravel(), o.theta.ravel()]))
    new = np.stack(rows)
    if trained.overlaps is not None:
        trained.settled = np.abs(new - trained.overlaps).max(axis=1) <= _SETTLED * np.abs(new).max(axis=1)
    trained.overlaps = new


def _moved(state: Any, device: torch.device) -> Any:
    """A state with its tensors on a device."""
    if isinstance(state, Tensor):
        return state.to(device)
    if isinstance(state, dict):
        return {key: _moved(value, device) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_moved(value, device) for value in state)
    return state
