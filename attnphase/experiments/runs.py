"""Experiments on a grid of starts, dimensions and sample complexities, over many seeds, as a labelled dataset."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from attnphase.arrays import Array
from attnphase.data.build import by_cluster, from_runs
from attnphase.data.variables import EXPERIMENT_VARIABLES, TRAJECTORY_VARIABLES, RunStatus, with_own
from attnphase.experiments.checkpoint import Checkpoint
from attnphase.experiments.data import TORCH_DTYPES, Instance, check_dimension, draw_instance
from attnphase.experiments.measure import (
    density,
    exact_test_errors,
    linear_errors,
    measured_metrics,
    noise_losses,
    overlaps_of,
    sampled_test_errors,
)
from attnphase.experiments.memory import MemoryNeed, available_memory, check_results, runs_that_fit
from attnphase.experiments.one_pass import BLOCK, descend, population_risks
from attnphase.experiments.plan import Grid, Plan
from attnphase.experiments.posterior import Passed, measure_passed, pass_messages
from attnphase.experiments.products import compile_passes
from attnphase.experiments.risk import Risk
from attnphase.experiments.settings import TrainingSettings
from attnphase.experiments.starts import initial_weights
from attnphase.experiments.threads import threads_for_runs
from attnphase.experiments.training import Trained, record_stride, train
from attnphase.kernels.compiler import sample_kernels_for, tell_if_compiling
from attnphase.kernels.torch.device import callers_torch_set_aside, device_of
from attnphase.kernels.torch.loss import LocalLoss
from attnphase.problem import Problem
from attnphase.processes.interruption import Asked, interruptions_deferred
from attnphase.processes.progress import progress_line
from attnphase.sweeps.kept import task_of
from attnphase.theories.bayes_optimal.dataset import from_posterior_runs
from attnphase.theories.bayes_optimal.message_passing import check_passing
from attnphase.theories.bayes_optimal.model import PosteriorModel, model_of
from attnphase.theories.bayes_optimal.variables import POSTERIOR_VARIABLES

__all__ = ["run_plan"]

_LARGEST_GROUP = 64  # runs that are trained as one tensor program


@callers_torch_set_aside()
def run_plan(problem: Problem, plan: Plan) -> xr.Dataset:
    """Train all that a plan asks for, which suits the problem, and measure it.

    Raises
    ------
    ExperimentError
        The runs do not fit into memory, there is no such device, or a checkpoint cannot be used.
    CacheError
        The cache folder of compiled code is not the user's own.
    """
    grid, settings = plan.grid, plan.settings
    for dimension in grid.dimensions:  # before anything is generated
        check_dimension(problem, dimension)
    with progress_line(plan.progress, "generating the local problem"):
        loss = LocalLoss(problem, device_of(plan.device), TORCH_DTYPES[plan.dtype])
        if loss.device.type == "cpu":
            compile_passes()
    task = task_of(problem, grid=grid.task(), settings=asdict(settings), dtype=plan.dtype)
    task |= {"test_samples": plan.test_samples, "device": loss.device.type}
    kept = Checkpoint(plan.checkpoint, task, plan.checkpoint_interval)
    if kept.load():
        warnings.warn(f"{kept.path}: going on from this checkpoint ({len(kept.finished)} runs are done).", stacklevel=4)
    posterior = None
    if settings.kind.posterior:
        with progress_line(plan.progress, "loading the kernels") as line:
            tell_if_compiling(problem, line.callback)
            posterior = model_of(problem, settings.channel)
        check_passing(posterior)
    experiment = _Experiment(problem, grid, settings, loss, plan.test_samples, kept, posterior)
    experiment.plan()
    drawing = progress_line(
        plan.progress, "drawing samples", grid.size, before="where runs converge before their last step"
    )
    with threads_for_runs() as threads, drawing as line:
        experiment.threads = threads if loss.device.type == "cpu" else 1
        if settings.kind.message_passing:
            tell_if_compiling(problem, line.callback, finite=True)
            sample_kernels_for(problem)  # compiled once, here
        with interruptions_deferred() as interrupted:
            experiment.run(line.at, interrupted)
    return experiment.dataset()


@dataclass(frozen=True)
class _Group:
    """Runs that are trained together: from one start, at one dimension and alpha."""

    start: str
    dimension: int
    alpha: float
    runs: tuple[int, ...]

    def key(self, run: int) -> str:
        """Name of one run in a checkpoint."""
        return f"{self.start} {self.dimension} {self.alpha!r} {run}"


@dataclass(eq=False)
class _Experiment:
    """All groups of a grid, one after the other."""

    problem: Problem
    grid: Grid
    settings: TrainingSettings
    loss: LocalLoss
    test_samples: int
    kept: Checkpoint
    posterior: PosteriorModel | None = None
    threads: int = 1

    def plan(self) -> None:
        """Decide how many runs are held at once, before the first is drawn.

        A resumed experiment keeps the old plan: sums of rounded numbers may depend on what shares a batch.
        """
        longest = max(self._steps(d, a) for d in self.grid.dimensions for a in self.grid.alphas)
        records = 1 + longest // record_stride(self.settings) if self.settings.trajectory else 0
        check_results(self.problem, self.grid.size, records, available_memory(torch.device("cpu")))
        free = available_memory(self.loss.device)
        for d in self.grid.dimensions:
            for a in self.grid.alphas:
                count, problem = self._drawn(d, a), self.problem
                need = MemoryNeed.of(
                    problem, d, count, self.settings.optimizer, self.test_samples, self.loss.dtype.itemsize
                )
                fit = runs_that_fit(
                    need,
                    min(self.grid.seeds, _LARGEST_GROUP),
                    free,
                    dimension=d,
                    count=count,
                    length=problem.tokens.length,
                    tests=self.test_samples,
                )
                self.kept.plan.setdefault(f"{d} {a!r}", fit)

    def _steps(self, dimension: int, alpha: float) -> int:
        """Steps that a run makes at most."""
        if self.settings.kind.one_pass:
            return self.grid.count(dimension, alpha) // int(self.settings.batch or 1)
        return int(self.settings.steps or 0)

    def _drawn(self, dimension: int, alpha: float) -> int:
        """Samples that are held at once."""
        count = self.grid.count(dimension, alpha)
        return min(count, max(BLOCK, int(self.settings.batch or 1))) if self.settings.kind.one_pass else count

    def run(self, report: Callable[[float, str], None], interrupted: Asked) -> None:
        """Train all that is not finished.

        `report` takes the number of runs done and a text; what `interrupted` returns is raised, after what there is
        was kept.
        """
        for d in self.grid.dimensions:
            for a in self.grid.alphas:
                size = self.kept.plan[f"{d} {a!r}"]
                for begin in range(0, self.grid.seeds, size):
                    runs = tuple(range(begin, min(begin + size, self.grid.seeds)))
                    groups = [_Group(start, d, a, runs) for start in self.grid.starts]
                    todo = [g for g in groups if g.key(runs[0]) not in self.kept.finished]
                    if todo:
                        one_pass = self.settings.kind.one_pass
                        count = 1 if one_pass else self.grid.count(d, a)
                        instance = draw_instance(self.problem, d, count, self.grid.seed, runs, self.loss, self.threads)
                        linear = np.full(len(runs), np.nan) if one_pass else linear_errors(instance)
                        for group in todo:
                            self._run_group(group, instance, linear, report, interrupted)

    def _run_group(
        self,
        group: _Group,
        instance: Instance,
        linear: Array,
        report: Callable[[float, str], None],
        interrupted: Asked,
    ) -> None:
        kept, base = self.kept, len(self.kept.finished)
        place = f"{group.start}, d = {group.dimension}, alpha = {group.alpha:g}"
        resume = None
        if kept.running is not None and kept.running["group"] == group.key(group.runs[0]):
            resume = kept.running["state"]

        def keep(state: Callable[[], dict[str, Any]]) -> None:
            stopped = interrupted()
            if stopped or kept.due():
                kept.running = {"group": group.key(group.runs[0]), "state": state()}
                kept.write()
            if stopped:
                raise stopped

        def on_step(step: int, loss: float) -> None:
            done = base + len(group.runs) * min(step / max(self._steps(group.dimension, group.alpha), 1), 1.0)
            report(done, f"{place}: step {step}" + (f", R/d {loss:.6f}" if np.isfinite(loss) else ""))

        report(base, place)
        steady: dict[str, Any] = {"resume": resume, "keep": keep, "on_step": on_step}
        risk = Risk.of(instance)
        if self.posterior is not None:
            trained = pass_messages(instance, self.posterior, group.start, self.settings, **steady)
        elif self.settings.kind.one_pass:
            count = self.grid.count(group.dimension, group.alpha)
            trained = descend(instance, self._initial(instance, group.start), self.settings, count, **steady)
        else:
            trained = train(instance, risk, self._initial(instance, group.start), self.settings, **steady)
        for run, status, steps in zip(group.runs, trained.status, trained.steps, strict=True):
            if status == RunStatus.diverged:
                warnings.warn(
                    f"{place}, seed {run}: diverged at step {steps}; its last finite weights are measured.",
                    stacklevel=2,
                )
        if isinstance(trained, Passed):
            measured = measure_passed(trained, linear)
        else:
            measured = self._measure(instance, risk, trained, linear)
        for run, values in zip(group.runs, measured, strict=True):
            kept.finished[group.key(run)] = {name: torch.as_tensor(v) for name, v in values.items()}
        kept.running = None
        report(len(kept.finished), place)
        kept.write()
        if stopped := interrupted():
            raise stopped

    def _initial(self, instance: Instance, start: str) -> Tensor:
        """Weights from which runs start."""
        whole = self.grid.given
        if whole is None:
            return initial_weights(instance, start)
        if whole.ndim == 3 and len(whole) == self.grid.seeds:
            whole = whole[list(instance.runs)]
        return initial_weights(instance, whole)

    def _measure(self, instance: Instance, risk: Risk, trained: Trained, linear: Array) -> list[dict[str, Any]]:
        """Every variable of the schema for every run."""
        d = instance.dimension
        value, gradient = risk.smooth(trained.weights)
        total = (value + risk.sharp(trained.weights)).double().cpu().numpy()
        norms = risk.stationarity(trained.weights, gradient).double().cpu().numpy()
        parameters = risk.trained(trained.weights)
        exact, exact_error = exact_test_errors(instance, trained.weights, parameters)
        if self.settings.kind.one_pass:  # its samples are gone: the risk is that of fresh ones
            total = d * population_risks(instance, trained.weights, exact, noise_losses(instance))
            norms = np.full(len(total), np.nan)
        fresh = fresh_error = np.full(len(instance.runs), np.nan)
        if self.test_samples:
            fresh, fresh_error = sampled_test_errors(instance, trained.weights, self.test_samples, parameters)
        metrics, metric_errors = measured_metrics(instance, trained.weights, parameters)
        results = []
        for s, weights in enumerate(trained.weights.double().cpu().numpy()):
            overlaps = overlaps_of(instance, s, weights)
            results.append(
                {
                    "q": overlaps.q,
                    "V": np.full(overlaps.q.shape, np.nan) if trained.variances is None else trained.variances[s],
                    "m": overlaps.m,
                    "theta": overlaps.theta,
                    "trained": parameters[s],
                    "test_error": exact[s],
                    "test_error_stderr": exact_error[s],
                    "test_error_sampled": fresh[s],
                    "test_error_sampled_stderr": fresh_error[s],
                    "training_loss": total[s] / d,
                    "weight_norm": (weights**2).sum() / d,
                    "density": density(weights),
                    "linear_test_error": linear[s],
                    "gradient_norm": norms[s],
                    "replicon": np.nan if trained.replicon is None else trained.replicon[s],
                    "steps": trained.steps[s],
                    "status": trained.status[s],
                    **{f"metric_{name}": metrics[s, i] for i, name in enumerate(self.problem.metrics)},
                    **{f"metric_{name}_stderr": metric_errors[s, i] for i, name in enumerate(self.problem.metrics)},
                    **{name: np.stack([r[s] for r in records]) for name, records in trained.trajectory.items()},
                }
            )
        return results

    def dataset(self) -> xr.Dataset:
        """All results, labelled."""
        grid, problem = self.grid, self.problem
        order = [
            self.kept.finished[_Group(start, d, a, ()).key(run)]
            for start in grid.starts
            for d in grid.dimensions
            for a in grid.alphas
            for run in range(grid.seeds)
        ]
        sizes = tuple(len(values) for values in grid.swept.values())
        passed, record = self.settings.kind.posterior, list[int]()
        own = [*with_own(EXPERIMENT_VARIABLES, problem)]
        variables = [one for one in POSTERIOR_VARIABLES if one.name in order[0]] if passed else own
        if self.settings.trajectory:
            variables += () if passed else TRAJECTORY_VARIABLES
            longest = max(len(values["trajectory_overlap" if passed else "trajectory_q"]) for values in order)
            record = [i * record_stride(self.settings) for i in range(longest)]
        columns: dict[str, NDArray[Any]] = {}
        for variable in variables:
            for name in (variable.name, variable.stderr) if variable.has_stderr else (variable.name,):
                rows = [self._spread(name, values[name].numpy(), len(record)) for values in order]
                stacked = np.stack(rows).astype(variable.dtype)
                columns[name] = stacked.reshape(sizes + stacked.shape[1:])
        precision = str(self.loss.dtype).removeprefix("torch.")
        rule = f"{self.settings.description}, {precision}, torch {torch.__version__} on {self.loss.device.type}"
        if passed:
            return from_posterior_runs(
                problem, grid.swept, columns, rule=rule, seed=grid.seed, record=record, channel=self.settings.channel
            )
        return from_runs(problem, grid.swept, columns, rule=rule, seed=grid.seed, record=record)

    def _spread(self, name: str, values: Array, records: int) -> Array:
        """A run's variable over token and cluster; trajectories padded with NaN."""
        problem = self.problem
        if not name.startswith("trajectory_"):
            return by_cluster(problem, name, values)
        name = name.removeprefix("trajectory_")
        padded = np.full((records, *values.shape[1:]), np.nan)
        padded[: len(values)] = values
        return np.stack([by_cluster(problem, name, one) for one in padded])
