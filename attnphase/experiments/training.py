"""One batch of runs from its start to its end: steps, stopping, divergence, trajectories."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnphase.dataset import RunStatus
from attnphase.errors import ProblemError
from attnphase.experiments.data import Instance
from attnphase.experiments.descent import Adam, Fista, GradientDescent, Lbfgs, Optimizer
from attnphase.experiments.gamp import Gamp
from attnphase.experiments.measure import overlaps_of
from attnphase.experiments.risk import Risk
from attnphase.problem import Problem

__all__ = ["OPTIMIZERS", "Trained", "TrainingSettings", "train"]

Array = NDArray[np.float64]

OPTIMIZERS = ("gd", "adam", "lbfgs", "fista", "gamp")
"""Names of the optimisers."""

_STEPS = {"gd": 5000, "adam": 2500, "lbfgs": 2000, "fista": 5000, "gamp": 400}  # gd and adam: the paper's
_RATES = {"gd": 0.15, "adam": 0.01, "fista": 0.15}
_TOLERANCE = 1e-8
_RATED, _TOLERANT = ("gd", "adam", "fista"), ("lbfgs", "fista", "gamp")
_SMOOTH_ONLY = ("adam", "lbfgs")
_SETTLED = 0.01  # relative change of the overlaps between two looks at which GAMP's count as settled
_LOOK = 20  # steps between two looks at them


@dataclass(frozen=True)
class TrainingSettings:
    """How runs are trained.

    Attributes
    ----------
    optimizer : {"lbfgs", "gd", "adam", "fista", "gamp"}
        L-BFGS; full-batch gradient descent (proximal where the regulariser is not a ridge); Adam; accelerated proximal
        gradient; generalised approximate message passing.
    steps : int
        Largest number of steps: 2000 (lbfgs), 5000 (gd, fista), 2500 (adam), 400 (gamp) by default.
    tolerance : float or None
        On ``|nabla R| / sqrt(d)``: 1e-8 by default for lbfgs, fista and gamp.  None, the default of gd and adam, makes
        all the steps, as in the paper.
    learning_rate : float or None
        Of gd (.15 by default), adam (.01) and fista (the first step's, .15).
    damping : float
        Share of the old iterate that GAMP keeps.
    trajectory : int
        Steps between two records of the trajectory; 0 for none.
    """

    optimizer: str = "lbfgs"
    steps: int | None = None
    tolerance: float | None = None
    learning_rate: float | None = None
    damping: float | None = None
    trajectory: int = 0

    def __post_init__(self) -> None:
        name = self.optimizer
        if name not in OPTIMIZERS:
            raise ProblemError("optimizer", f'optimizer must be one of {", ".join(OPTIMIZERS)}, not "{name}".')
        for field_, value in (("steps", self.steps), ("trajectory", self.trajectory)):
            least = 1 if field_ == "steps" else 0
            whole = isinstance(value, Integral) and not isinstance(value, bool)
            if not (value is None and field_ == "steps") and not (whole and int(value or 0) >= least):
                raise ProblemError(field_, f"{field_} must be a whole number of at least {least}, not {value!r}.")
        for field_, value in (("tolerance", self.tolerance), ("learning_rate", self.learning_rate)):
            if value is not None and not (isinstance(value, Real) and 0 < value < math.inf):
                raise ProblemError(field_, f"{field_} must be a positive number, not {value!r}.")
        if self.damping is not None and not (isinstance(self.damping, Real) and 0 <= self.damping < 1):
            raise ProblemError("damping", f"damping must lie between 0 and below 1, not {self.damping!r}.")
        if self.learning_rate is not None and name not in _RATED:
            raise ProblemError("learning_rate", f"learning_rate belongs to {', '.join(_RATED)}, not to {name}.")
        if self.damping is not None and name != "gamp":
            raise ProblemError("damping", f"damping belongs to gamp, not to {name}.")
        defaults = {
            "steps": _STEPS[name],
            "tolerance": _TOLERANCE if name in _TOLERANT else None,
            "learning_rate": _RATES.get(name),
            "damping": 0.5 if name == "gamp" else None,
        }
        for field_, default in defaults.items():
            if getattr(self, field_) is None:
                object.__setattr__(self, field_, default)

    def check(self, problem: Problem) -> None:
        """Refuse a problem that the optimiser cannot train.

        Raises
        ------
        ProblemError
        """
        if problem.loss.kind == "hinge":
            raise ProblemError(
                "loss.kind",
                "loss.kind hinge has a kink, which the experiments' optimisers cannot handle; use logistic.",
            )
        if problem.regularizer.kind != "ridge" and self.optimizer in _SMOOTH_ONLY:
            raise ProblemError(
                "optimizer",
                f"optimizer {self.optimizer} needs the ridge regulariser, but regularizer.kind is"
                f" {problem.regularizer.kind}: use fista, gd or gamp.",
            )

    @property
    def record_stride(self) -> int:
        """Steps between two records; L-BFGS can be looked at between its calls only."""
        stride = Lbfgs.stride if self.optimizer == "lbfgs" else 1
        return -(-self.trajectory // stride) * stride

    @property
    def description(self) -> str:
        """The optimiser with its settings, for a dataset's attribute ``rule``."""
        given = {"steps": self.steps, "tolerance": self.tolerance, "learning_rate": self.learning_rate}
        given["damping"] = self.damping
        parts = [f"{name} {value:g}" for name, value in given.items() if value is not None]
        return f"{self.optimizer} ({'; '.join(parts)})"

    def start(self, instance: Instance, risk: Risk, weights: Tensor) -> Optimizer:
        """The optimiser at its start."""
        rate = self.learning_rate or math.nan
        if self.optimizer == "gamp":
            return Gamp(instance, risk, weights, self.damping or 0.0)
        if self.optimizer == "lbfgs":
            return Lbfgs(risk, weights, self.tolerance or 0.0)
        kinds = {"gd": GradientDescent, "adam": Adam, "fista": Fista}
        return kinds[self.optimizer](risk, weights, rate)


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
    gamp : dict of str to array
        V (S, P, r, r) and the replicon (S,) at the end of GAMP.
    """

    weights: Tensor
    status: NDArray[np.int64]
    steps: NDArray[np.int64]
    settled: NDArray[np.bool_]
    overlaps: Array | None = None
    trajectory: dict[str, list[Array]] = field(default_factory=dict)
    gamp: dict[str, Array] = field(default_factory=dict)

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
    tolerance, where it is not finite any more, or after the last step.

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
    optimizer = settings.start(instance, risk, weights)
    runs, step = len(weights), 0
    trained = Trained(weights.clone(), np.full(runs, -1), np.zeros(runs, dtype=np.int64), np.zeros(runs, dtype=bool))
    if resume is not None:
        optimizer.restore(_moved(resume["optimizer"], weights.device))
        trained, step = Trained.restored(resume["trained"], weights.device), resume["step"]
    limit, stride = int(settings.steps or 0), optimizer.stride
    every = settings.record_stride
    while step < limit and (trained.status < 0).any():
        seen = optimizer.step()
        value, size = seen.value.double().cpu().numpy(), seen.stationarity.double().cpu().numpy()
        going = trained.status < 0
        finite = np.isfinite(value) & np.isfinite(size)
        small = size <= settings.tolerance if settings.tolerance is not None else np.zeros(runs, dtype=bool)
        good = torch.as_tensor(going & finite, device=weights.device)
        trained.weights = torch.where(good[:, None, None], seen.weights, trained.weights)
        trained.status[going & finite & small] = RunStatus.converged
        trained.status[going & ~finite] = RunStatus.diverged
        trained.steps[going] = step
        if every and step % every == 0:
            _record(trained, instance, optimizer, value, size, going & finite)
        step += stride
        if step % _LOOK == 0 and isinstance(optimizer, Gamp):
            _look(trained, instance)
        left = going & finite
        if on_step is not None:
            on_step(step, float(value[left].mean()) / instance.dimension if left.any() else math.nan)
        if keep is not None:
            keep(partial(_state, optimizer, trained, step))
    _finish(trained, risk, optimizer, settings, limit)
    if isinstance(optimizer, Gamp):
        trained.gamp = {"V": optimizer.V.double().cpu().numpy(), "replicon": optimizer.replicon()}
    return trained


def _state(optimizer: Optimizer, trained: Trained, step: int) -> dict[str, Any]:
    return {"optimizer": optimizer.state(), "trained": trained.state(), "step": step}


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
    ended = np.where(size <= settings.tolerance, RunStatus.converged, RunStatus.step_limit)
    if isinstance(optimizer, Gamp):
        ended = np.where((size > settings.tolerance) & trained.settled, RunStatus.unsettled, ended)
    trained.status[left] = ended[left]


def _record(
    trained: Trained, instance: Instance, optimizer: Optimizer, value: Array, size: Array, going: NDArray[np.bool_]
) -> None:
    """One record of the trajectory; NaN for the runs that have ended."""
    weights = trained.weights.double().cpu().numpy()
    overlaps = [overlaps_of(instance, s, w) for s, w in enumerate(weights)]
    values = {name: np.stack([getattr(o, name) for o in overlaps]) for name in ("q", "m", "theta")}
    values |= {"training_loss": value / instance.dimension, "gradient_norm": size}
    values["V"] = np.full(values["q"].shape, np.nan)
    if isinstance(optimizer, Gamp):
        values["V"] = optimizer.V.double().cpu().numpy()
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
