"""Bayes-optimal message passing on the instances of an experiment: iterated, and measured.

Without damping, state evolution tracks it from the start.  Where it has come to the overlaps of the fixed point, single
weights may go round at finite d; damping then brings runs to rest, the more of it the longer they go round.  Before, it
would keep them where nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.data.variable import RunStatus
from attnphase.experiments.data import Instance, Stream, generator
from attnphase.experiments.measure import REPLICATES, conditional_nodes, overlaps_of
from attnphase.experiments.products import fields_of, pull_back
from attnphase.experiments.settings import TrainingSettings
from attnphase.processes.threads import each
from attnphase.theories.bayes_optimal.message_passing import Labelled, frame, read_labels, refresh_rows
from attnphase.theories.bayes_optimal.model import PosteriorModel
from attnphase.theories.bayes_optimal.readout import Fresh

__all__ = ["Passed", "measure_passed", "pass_messages"]

_INFORMED, _UNINFORMED = 1e-2, 1e-2  # share that is not known; standard deviation of weights, over the prior's
_PLAIN = ("change", "steps", "status", "seen", "settled", "share", "before")  # of a run's state, what is no array
_SETTLED = 0.03  # relative change of sizes between two looks at which a run counts as settled
_KNOWN = 1e-12  # share of the fields' variance that counts as nothing
_LARGEST = 100.0  # root mean square of a step over that of the prior: weights that run away
_LOOK = 20  # steps between two looks
_LATE = 100  # steps after which sizes that do not settle count as going round
_SHRUNK, _SMALLEST = 0.8, 1 / 8  # change between two looks that needs no shorter steps, and the shortest


@dataclass(eq=False)
class _Run:
    """The iterates of one run, and what they need.

    Attributes
    ----------
    instance : Instance
    model : PosteriorModel
    number : int
        Of the run in its batch.
    samples : Labelled
    weights, c : (d, t) and (d, t, t) arrays
        Posterior means and covariances of the rows.
    residual : (n, L, t) array
    change : float
        Root mean square of the last step over that of the prior.
    steps : int
    status : int
        `RunStatus`, or -1 while it goes on.
    seen : (float, float)
        Size of the estimate at the last look at it, and of what is unknown.
    settled : bool
        Whether they had changed little since the look before.
    share : float
        Of a damped step that is taken: halved when steps do not shrink.
    before : float
        The change at the last look.
    overlaps : list of float
        The trajectory.
    """

    instance: Instance
    model: PosteriorModel
    number: int
    samples: Labelled
    weights: Array
    c: Array
    residual: Array
    change: float = math.inf
    steps: int = 0
    status: int = -1
    seen: tuple[float, float] = (0.0, 0.0)
    settled: bool = False
    share: float = 1.0
    before: float = math.inf
    overlaps: list[float] = field(default_factory=list)

    @classmethod
    def start(cls, instance: Instance, model: PosteriorModel, number: int, name: str) -> _Run:
        """At a named start."""
        geometry, run, samples = instance.geometries[number], instance.runs[number], instance.samples
        k = samples.teacher_fields[number].double().cpu().numpy()
        normals = generator(instance.seed, run, Stream.NOISE).standard_normal((len(k), model.channel.label_dimensions))
        labelled = Labelled(k, normals, samples.sites[number].cpu().numpy())
        covariance = np.linalg.inv(model.prior.precision[0])
        noise = generator(instance.seed, run, Stream.START).standard_normal(geometry.teacher.shape)
        noise = noise @ np.linalg.cholesky(covariance).T
        if name == "informed":  # a posterior that knows all but a little
            weights = (1 - _INFORMED) * geometry.teacher + math.sqrt(_INFORMED * (1 - _INFORMED)) * noise
            c = _INFORMED * covariance
        else:
            weights, c = model.prior.mean[0] + _UNINFORMED * noise, covariance
        c = np.broadcast_to(c, (len(weights), *c.shape)).copy()
        return cls(instance, model, number, labelled, weights, c, np.zeros_like(k))

    @property
    def V(self) -> Array:
        """Covariance of what is unknown of the sites' fields, (P, t, t)."""
        gamma = self.instance.geometries[self.number].gamma
        return np.einsum("pd,dij->pij", gamma, self.c) / gamma.shape[1]

    @property
    def known(self) -> bool:
        """Whether nothing is left to learn, as far as numbers go."""
        return bool(
            (np.trace(self.V, axis1=1, axis2=2) < _KNOWN * np.trace(self.model.prior.rho, axis1=1, axis2=2)).all()
        )

    def step(self, damping: float) -> None:
        """One iteration; of what has settled so much of the old iterate is kept, or more where it goes round."""
        s, geometry = self.number, self.instance.geometries[self.number]
        n, length, t = self.residual.shape
        tokens, d = self.instance.samples.tokens[s : s + 1], geometry.dimension
        V, precision = self.V, self.model.prior.precision[0]
        weights = torch.as_tensor(self.weights[None], dtype=tokens.dtype, device=tokens.device)
        fields = fields_of(tokens, weights).double().cpu().numpy().reshape(n, length, t)
        # the tokens have the student's encodings in them, which the teacher does not see
        omega = fields - geometry.positions @ self.weights / d
        omega -= np.einsum("nlij,nlj->nli", V[self.samples.sites], self.residual)
        keep = 1 - (1 - damping) * self.share if self.settled or self.steps >= _LATE else 0.0
        residual, responses = read_labels(self.model, self.samples, omega, V)
        self.residual = keep * self.residual + (1 - keep) * residual
        slopes = torch.as_tensor(self.residual.reshape(1, -1, t), dtype=tokens.dtype, device=tokens.device)
        pulled = pull_back(tokens, slopes)[0].double().cpu().numpy()
        pulled -= geometry.positions.T @ self.residual.sum(axis=0) / d
        mixture = self.model.prior.mixture
        new, c = refresh_rows(precision, geometry.gamma, responses, pulled, self.weights, mixture)
        prior = math.sqrt(np.trace(np.linalg.inv(precision)) / t)
        # of the whole step, so that damping does not loosen what counts as rest
        self.change = float(np.sqrt(((new - self.weights) ** 2).mean())) / prior
        new, c = (keep * old + (1 - keep) * one for old, one in ((self.weights, new), (self.c, c)))
        if self.change > _LARGEST:
            self.change = math.nan
        elif math.isfinite(self.change):
            self.weights, self.c = new, c
        self.steps += 1
        if self.steps % _LOOK == 0:
            sizes = float((self.weights**2).sum()), float(np.trace(self.V, axis1=1, axis2=2).sum())
            if (self.settled or self.steps >= _LATE) and self.change > _SHRUNK * self.before:
                self.share = max(self.share / 2, _SMALLEST)
            self.before = self.change
            self.settled = all(abs(x - y) <= _SETTLED * x for x, y in zip(sizes, self.seen, strict=True))
            self.seen = sizes

    def end(self, settings: TrainingSettings) -> None:
        """Say how the run ended, if it did; in plain numbers, which checkpoints may hold."""
        if not math.isfinite(self.change):
            self.status = int(RunStatus.diverged)
        elif self.change <= float(settings.tolerance or 0.0) or self.known:
            self.status = int(RunStatus.converged)
        elif self.steps >= int(settings.steps or 0):
            self.status = int(RunStatus.unsettled if self.settled else RunStatus.step_limit)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        arrays = {name: torch.as_tensor(getattr(self, name).copy()) for name in ("weights", "c", "residual")}
        return arrays | {name: getattr(self, name) for name in _PLAIN} | {"overlaps": [*self.overlaps]}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        for name in ("weights", "c", "residual"):
            setattr(self, name, state[name].numpy())
        for name in _PLAIN:
            setattr(self, name, state[name])
        self.overlaps = [*state["overlaps"]]

    def overlap(self) -> float:
        """Share of the fields' variance that is known."""
        found = overlaps_of(self.instance, self.number, self.weights)
        turn = frame(self.model, found.theta)
        return float(np.trace((turn.T @ found.theta).sum(axis=0)) / np.trace(found.rho.sum(axis=0)))


@dataclass(frozen=True, eq=False)
class Passed:
    """Runs where they ended.

    Attributes
    ----------
    runs : tuple
    """

    runs: tuple[_Run, ...]

    @property
    def status(self) -> NDArray[np.int64]:
        """`RunStatus` of every run."""
        return np.array([run.status for run in self.runs])

    @property
    def steps(self) -> NDArray[np.int64]:
        """Of every run."""
        return np.array([run.steps for run in self.runs])


def pass_messages(
    instance: Instance,
    model: PosteriorModel,
    start: str,
    settings: TrainingSettings,
    *,
    resume: dict[str, Any] | None = None,
    keep: Callable[[Callable[[], dict[str, Any]]], None] | None = None,
    on_step: Callable[[int, float], None] | None = None,
) -> Passed:
    """Iterate a batch of runs, each to its own end.

    Parameters
    ----------
    instance : Instance
    model : PosteriorModel
        Of the instance's problem.
    start : {"uninformed", "informed"}
    settings : TrainingSettings
    resume, keep, on_step
        As of ``attnphase.experiments.training.train``.
    """
    runs = tuple(_Run.start(instance, model, s, start) for s in range(len(instance.runs)))
    if resume is not None:
        for run, state in zip(runs, resume["runs"], strict=True):
            run.restore(state)
    damping, every = settings.damping or 0.0, settings.trajectory

    def advance(run: _Run) -> None:
        if every and run.steps % every == 0:
            run.overlaps.append(run.overlap())
        run.step(damping)
        run.end(settings)

    while going := [run for run in runs if run.status < 0]:
        each(instance.threads, advance, going)
        if on_step is not None:
            on_step(max(run.steps for run in runs), math.nan)
        if keep is not None:
            keep(partial(_state, runs))
    return Passed(runs)


def _state(runs: tuple[_Run, ...]) -> dict[str, Any]:
    return {"runs": [run.state() for run in runs]}


def measure_passed(passed: Passed, linear: Array) -> list[dict[str, Any]]:
    """Every variable of the schema ``posterior`` for every run; with the test errors (S,) of the linear predictor."""
    instance = passed.runs[0].instance
    return each(instance.threads, lambda run: _measured(run, float(linear[run.number])), passed.runs)


def _measured(run: _Run, linear: float) -> dict[str, Any]:
    """In the frame that is closest to the teacher's, as far as labels do not tell it from others."""
    found = overlaps_of(run.instance, run.number, run.weights)
    turn = frame(run.model, found.theta)
    errors = _test_errors(run, run.weights @ turn, turn.T @ run.V @ turn)
    values = {
        "q": turn.T @ found.q @ turn,
        "theta": turn.T @ found.theta,
        "V": (not run.known) * (turn.T @ run.V @ turn),
        "overlap": run.overlap(),
        "test_error": errors.mean(),
        "test_error_stderr": errors.std(ddof=1) / math.sqrt(REPLICATES),
        "linear_test_error": linear,
        "change": run.change,
        "steps": run.steps,
        "status": run.status,
    }
    return values | ({"trajectory_overlap": np.array(run.overlaps)} if run.overlaps else {})


def _test_errors(run: _Run, weights: Array, V: Array) -> Array:
    """Test error by the replicates of the nodes, (S,); exact at finite d but for these, as of trained students."""
    instance, geometry = run.instance, run.instance.geometries[run.number]
    overlaps = overlaps_of(instance, run.number, weights)
    length, t = run.residual.shape[1:]
    total = np.zeros(REPLICATES)
    for sites, probability in zip(*instance.problem.cluster_law, strict=True):
        more = 2 * length * t
        h, k, own, _, _, normals, _ = conditional_nodes(instance, geometry, overlaps, weights, sites, more)
        omega = h - geometry.positions @ weights / geometry.dimension
        roots = np.linalg.cholesky(V[sites])
        about = np.einsum("lij,nalj->anli", roots, normals.reshape(-1, 2, length, t))
        fresh = Fresh(omega, k, (omega + about[0], omega + about[1]), V[sites], own)
        total += probability * run.model.readout.of_samples(fresh).reshape(REPLICATES, -1).mean(axis=1)
    return total
