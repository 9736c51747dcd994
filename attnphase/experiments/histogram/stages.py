"""The two stages of training: frozen halves with Adam, then everything free with plain gradient descent."""

from __future__ import annotations

import os
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from attnphase.errors import ExperimentError
from attnphase.experiments.checkpoint import Checkpoint
from attnphase.experiments.data import TORCH_DTYPES
from attnphase.experiments.histogram.settings import (
    MECHANISMS,
    FrozenPlan,
    HistogramSizes,
    UnfrozenPlan,
    checkpoint_path,
    present_checkpoints,
)
from attnphase.experiments.histogram.steps import TESTED_AT_ONCE, batches, step, test_errors
from attnphase.experiments.histogram.task import Stream, draw_sequences
from attnphase.experiments.histogram.transformer import (
    Parameters,
    absorbed,
    initial_parameters,
    with_noise,
)
from attnphase.experiments.memory import available_memory, check_fits
from attnphase.kernels.torch.device import callers_torch_set_aside, device_of
from attnphase.processes.interruption import interruptions_deferred
from attnphase.processes.progress import progress_line

__all__ = ["BETAS", "Trained", "check_same", "load_trained", "train_histogram", "unfreeze_histogram"]

BETAS = (0.9, 0.98)
"""Of Adam."""

_LOOK = 25  # batches between two updates of the progress bar


@dataclass(frozen=True)
class Trained:
    """All that a folder holds of the runs of one mechanism.

    Attributes
    ----------
    mechanism : {"positional", "semantic"}
    runs, seed : int
    sizes : HistogramSizes
    dtype : torch.dtype
    task : dict
        Everything that the numbers of the first stage depend on.
    stages : dict
        What is finished, by stage ("frozen", "unfrozen"): ``parameters`` in the full form; ``training_loss``,
        ``test_loss`` and ``accuracy``, each (R, epochs); ``diverged``, epoch or -1 (R); ``seconds``; ``settings``.
    """

    mechanism: str
    runs: int
    seed: int
    sizes: HistogramSizes
    dtype: torch.dtype
    task: dict[str, Any]
    stages: dict[str, dict[str, Any]]

    @property
    def initial(self) -> Parameters:
        """Weights from which training started, in the full form."""
        return absorbed(initial_parameters(self.sizes, self.seed, self.runs, self.dtype), self.mechanism)

    def noisy(self) -> Parameters:
        """Weights from which the second stage started."""
        return with_noise(self.stages["frozen"]["parameters"], self.stages["unfrozen"]["settings"]["noise"], self.seed)


@callers_torch_set_aside()
def train_histogram(
    folder: str | os.PathLike[str],
    mechanism: str = "both",
    runs: int = 3,
    epochs: int = 200,
    seed: int = 0,
    *,
    sizes: HistogramSizes | None = None,
    batch: int = 32,
    learning_rate: float = 1e-3,
    device: str = "cpu",
    dtype: str = "float32",
    progress: bool = False,
) -> None:
    """Train the frozen forms with Adam.

    Parameters
    ----------
    folder : path-like
        Is made if needed; each mechanism has a checkpoint there, which is written after every epoch.  If it is there
        already, training goes on from it, with the same numbers as without the interruption.
    mechanism : {"both", "positional", "semantic"}
    runs : int
        Random sequences, initial weights and orders of training.
    epochs : int
        In all; more than were made before makes the missing ones.
    seed : int
        From which all random numbers follow.
    sizes : HistogramSizes, optional
        The paper's by default.
    batch : int
        Sequences of a step.
    learning_rate : float
    device : str
        "cpu" or "cuda".
    dtype : {"float32", "float64"}
    progress : bool
        Whether a bar with loss and accuracy is shown on standard error.

    Raises
    ------
    ProblemError
        A wrong argument.
    ExperimentError
        A checkpoint is damaged or belongs to other settings, the runs do not fit into memory, or there is no such
        device.
    """
    plan = FrozenPlan.of(
        folder, mechanism, runs, epochs, seed, sizes=sizes, batch=batch, learning_rate=learning_rate, device=device,
        dtype=dtype, progress=progress,
    )  # fmt: skip
    place = device_of(plan.device)
    _check_memory(plan.sizes, plan.runs, plan.batch, place)
    plan.folder.mkdir(parents=True, exist_ok=True)
    kept = {name: _frozen(plan, name) for name in plan.mechanisms}
    _make_epochs(_Frozen, kept, {"epochs": plan.epochs}, place, plan.progress)


def _frozen(plan: FrozenPlan, mechanism: str) -> Checkpoint:
    """What is there of the runs of a mechanism, if they may be trained as planned."""
    task = {"mechanism": mechanism, "runs": plan.runs, "seed": plan.seed, **asdict(plan.sizes)}
    task |= {"batch": plan.batch, "learning_rate": plan.learning_rate, "dtype": plan.dtype}
    kept = Checkpoint(checkpoint_path(plan.folder, mechanism), task)
    kept.load()
    _check_epochs(kept, plan.epochs)
    for other in set(MECHANISMS) - set(plan.mechanisms):
        if checkpoint_path(plan.folder, other).exists():
            check_same(plan.folder, Checkpoint.read(checkpoint_path(plan.folder, other)).task, task)
    return kept


def _make_epochs(
    stage: type[_Stage], kept: dict[str, Checkpoint], settings: dict[str, Any], device: torch.device, progress: bool
) -> None:
    """Make the missing epochs of a stage, one mechanism after the other."""
    epochs = settings["epochs"]
    with progress_line(progress, "drawing sequences", epochs * len(kept)) as line:
        for i, (name, one) in enumerate(kept.items()):
            made = one.finished.get(stage.name)
            if made is None or made["epoch"] < epochs:
                runs = stage(name, one, settings, device)
                runs.run(lambda done, text, i=i: line.at(i * epochs + done, text))
            line.at((i + 1) * epochs, f"{name}, {stage.name}: {epochs} epochs are made")


@callers_torch_set_aside()
def unfreeze_histogram(
    folder: str | os.PathLike[str],
    mechanism: str = "both",
    epochs: int = 100,
    *,
    noise: float = 1e-3,
    learning_rate: float = 1e-3,
    device: str = "cpu",
    force: bool = False,
    progress: bool = False,
) -> None:
    """Free every weight of trained runs, disturb them, and train on with plain gradient descent.

    Parameters
    ----------
    folder : path-like
        Of `train_histogram`.
    mechanism : {"both", "positional", "semantic"}
        "both" takes what is there.
    epochs : int
        In all; more than were made before makes the missing ones.
    noise : float
        Standard deviation of the noise on embeddings, query and key.
    learning_rate : float
    device : str
        "cpu" or "cuda".
    force : bool
        Whether runs that were unfrozen with other settings, or for longer, are unfrozen anew.
    progress : bool
        Whether a bar with loss and accuracy is shown on standard error.

    Raises
    ------
    ProblemError
        A wrong argument.
    ExperimentError
        There is nothing to unfreeze, or training has not ended; a checkpoint is damaged; no such device.
    """
    plan = UnfrozenPlan.of(
        folder, mechanism, epochs, noise=noise, learning_rate=learning_rate, device=device, force=force,
        progress=progress,
    )  # fmt: skip
    place = device_of(plan.device)
    settings = {"epochs": plan.epochs, "noise": plan.noise, "learning_rate": plan.learning_rate}
    kept = {name: Checkpoint.read(path) for name, path in plan.checkpoints.items()}
    for name, one in kept.items():
        _sizes(one, name)
        _check_unfrozen(one, settings, plan.force)
    _make_epochs(_Unfrozen, kept, settings, place, plan.progress)


def _check_unfrozen(kept: Checkpoint, settings: dict[str, Any], force: bool) -> None:
    """Refuse runs that cannot be unfrozen with these settings; `force` drops what was unfrozen with others."""
    if "frozen" not in kept.finished or (kept.running and kept.running["stage"] == "frozen"):
        raise ExperimentError(f"{kept.path}: training has not ended; run the command that began it once more first.")
    state = _state(kept, "unfrozen")
    if state is None:
        return
    epochs = settings["epochs"]
    other = next((key for key in ("noise", "learning_rate") if state["settings"][key] != settings[key]), None)
    if force and (other or epochs < state["epoch"]):
        kept.running = None
        kept.finished.pop("unfrozen", None)
    elif other:
        raise ExperimentError(
            f"{kept.path}: these runs were unfrozen with another value of {other} ({state['settings'][other]}); use"
            " --force (force=True) to unfreeze them anew."
        )
    elif epochs < state["epoch"]:
        raise ExperimentError(
            f"{kept.path}: {state['epoch']} epochs were made already, more than the {epochs} asked for; use --force"
            " (force=True) to unfreeze the runs anew."
        )


def load_trained(folder: str | os.PathLike[str]) -> list[Trained]:
    """The finished runs of a folder, mechanism by mechanism; one whose training has not ended is left out.

    Raises
    ------
    ExperimentError
        There are none, or none that are finished; a checkpoint is damaged, or no histogram's.
    """
    trained: list[Trained] = []
    unfinished: list[Path] = []
    for name, path in present_checkpoints(folder, MECHANISMS).items():
        kept = Checkpoint.read(path)
        sizes = _sizes(kept, name)
        if "frozen" not in kept.finished:
            unfinished.append(path)
            continue
        task = kept.task
        trained.append(
            Trained(name, task["runs"], task["seed"], sizes, TORCH_DTYPES[task["dtype"]], task, _in_full(kept, name))
        )
    if not trained:
        raise ExperimentError(
            f"{unfinished[0]}: training has not ended; run the command that began it once more first."
        )
    for path in unfinished:
        warnings.warn(f"{path}: training has not ended; these runs are left out.", stacklevel=2)
    return trained


@dataclass(eq=False)
class _Stage(ABC):
    """One stage of the runs of one mechanism, from its last finished epoch to its end.

    Attributes
    ----------
    name : str
    stream : int
        Of the random numbers that decide in which order the sequences are seen.
    mechanism : {"positional", "semantic"}
    kept : Checkpoint
    settings : dict
    device : torch.device
    """

    name: ClassVar[str]
    stream: ClassVar[int]
    mechanism: str
    kept: Checkpoint
    settings: dict[str, Any]
    device: torch.device

    def run(self, report: Callable[[float, str], None]) -> None:
        """Train; `report` takes the epochs done and a text.

        After Ctrl-C the epoch begun is dropped: its order of the sequences is drawn anew, and is the same.
        """
        task, epochs = self.kept.task, self.settings["epochs"]
        sizes = _sizes(self.kept, self.mechanism)
        training, test = draw_sequences(sizes, task["seed"], task["runs"], self.device)
        state = self._begin()
        # copies: what is kept of the stage before must not move
        free = {name: value.to(self.device, copy=True).requires_grad_() for name, value in state["parameters"].items()}
        optimizer = self._optimizer(free.values())
        if state["optimizer"]:
            optimizer.load_state_dict(state["optimizer"])
        with interruptions_deferred() as interrupted:
            while state["epoch"] < epochs:
                begin, epoch = time.monotonic(), state["epoch"]
                text = self._progress(state)
                total = torch.zeros(task["runs"], dtype=torch.float64, device=self.device)
                for i, (symbols, target) in enumerate(
                    batches(training, task["batch"], task["seed"], self.stream, epoch)
                ):
                    if interruption := interrupted():
                        raise interruption
                    if i % _LOOK == 0:
                        report(epoch + i * task["batch"] / sizes.training_count, text)
                    total += step(lambda: self._full(free), optimizer, symbols, target) * len(symbols[0])
                with torch.no_grad():
                    full = self._full(free)
                records = (total.cpu() / sizes.training_count, *test_errors(full, test))
                for name, record in zip(("training_loss", "test_loss", "accuracy"), records, strict=True):
                    state[name] = torch.cat([state[name], record[:, None]], 1)
                fresh = ~torch.isfinite(records[0] + records[1]) & (state["diverged"] < 0)
                for run in fresh.nonzero().flatten().tolist():
                    state["diverged"][run] = epoch + 1
                    warnings.warn(f"{self.mechanism}, run {run}: diverged in epoch {epoch + 1}.", stacklevel=2)
                state["parameters"] = {name: value.detach().to("cpu", copy=True) for name, value in free.items()}
                state["optimizer"] = optimizer.state_dict()
                state["epoch"] = epoch + 1
                state["seconds"] += time.monotonic() - begin
                self._keep(state)
                report(epoch + 1, self._progress(state))
            if self.kept.running is not None:  # no more epochs were asked for than were made before
                self._keep(state)

    def _begin(self) -> dict[str, Any]:
        """The state to go on from."""
        task, kept = self.kept.task, self.kept
        state = _state(kept, self.name)
        if state is not None:
            return {**state, "settings": self.settings}
        records = {name: torch.zeros(task["runs"], 0) for name in ("training_loss", "test_loss", "accuracy")}
        return {
            "stage": self.name,
            "settings": self.settings,
            "epoch": 0,
            "parameters": self._initial(),
            "optimizer": {},
            "diverged": torch.full((task["runs"],), -1),
            "seconds": 0.0,
            **{name: value.double() for name, value in records.items()},
        }

    def _keep(self, state: dict[str, Any]) -> None:
        if state["epoch"] == self.settings["epochs"]:
            self.kept.finished[self.name], self.kept.running = state, None
        else:
            self.kept.running = state  # a shorter stage that is finished stays until this one is
        self.kept.write()

    @abstractmethod
    def _initial(self) -> Parameters:
        """What is free, before the first epoch."""

    @abstractmethod
    def _optimizer(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer: ...

    @abstractmethod
    def _full(self, free: Parameters) -> Parameters:
        """The full form of what is free."""

    def _progress(self, state: dict[str, Any]) -> str:
        where = f"{self.mechanism}, {self.name}: epoch {state['epoch']}/{self.settings['epochs']}"
        if not state["epoch"]:
            return where
        loss, accuracy = (float(state[name][:, -1].mean()) for name in ("training_loss", "accuracy"))
        return f"{where}, loss {loss:.4f}, accuracy {accuracy:.4f}"


class _Frozen(_Stage):
    """Adam on the frozen form, from random weights."""

    name, stream = "frozen", Stream.FROZEN_ORDER

    def _initial(self) -> Parameters:
        sizes, task = _sizes(self.kept, self.mechanism), self.kept.task
        return initial_parameters(sizes, task["seed"], task["runs"], TORCH_DTYPES[task["dtype"]])

    def _optimizer(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=self.kept.task["learning_rate"], betas=BETAS, fused=True)

    def _full(self, free: Parameters) -> Parameters:
        return absorbed(free, self.mechanism)


class _Unfrozen(_Stage):
    """Plain gradient descent on all weights, from those of the frozen form with noise."""

    name, stream = "unfrozen", Stream.UNFROZEN_ORDER

    def _initial(self) -> Parameters:
        full = absorbed(self.kept.finished["frozen"]["parameters"], self.mechanism)
        return with_noise(full, self.settings["noise"], self.kept.task["seed"])

    def _optimizer(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.settings["learning_rate"], fused=True)

    def _full(self, free: Parameters) -> Parameters:
        return free


def _check_epochs(kept: Checkpoint, epochs: int) -> None:
    """Refuse a number of epochs that the runs of a checkpoint cannot be taken to."""
    unfrozen = _state(kept, "unfrozen") is not None
    state = _state(kept, "frozen")
    if state is None:
        return
    if epochs < state["epoch"]:
        raise ExperimentError(
            f"{kept.path}: {state['epoch']} epochs were made already, more than the {epochs} asked for; choose another"
            " folder."
        )
    if unfrozen and epochs > state["epoch"]:
        raise ExperimentError(
            f"{kept.path}: these runs are unfrozen already and cannot be trained further; choose another folder."
        )


def _in_full(kept: Checkpoint, mechanism: str) -> dict[str, dict[str, Any]]:
    """The finished stages, with the weights of both in the full form."""
    stages = {name: dict(state) for name, state in kept.finished.items()}
    stages["frozen"]["parameters"] = absorbed(stages["frozen"]["parameters"], mechanism)
    return stages


def _sizes(kept: Checkpoint, mechanism: str) -> HistogramSizes:
    """Sizes of the runs in a checkpoint."""
    names = HistogramSizes.__dataclass_fields__
    if kept.task.get("mechanism") != mechanism or not set(names) <= set(kept.task):
        raise ExperimentError(
            f"{kept.path}: this is a checkpoint of something else than {mechanism} histogram runs; name the folder of"
            " attnphase histogram train."
        )
    return HistogramSizes(**{name: kept.task[name] for name in names})


def _state(kept: Checkpoint, stage: str) -> dict[str, Any] | None:
    """Where a stage is: its epochs in work, or what is finished of it."""
    if kept.running is not None and kept.running["stage"] == stage:
        return kept.running
    return kept.finished.get(stage)


def check_same(folder: str | os.PathLike[str], theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Refuse a mechanism that is trained otherwise than the other one in its folder."""
    for name, value in ours.items():
        if name != "mechanism" and theirs.get(name) != value:
            raise ExperimentError(
                f"{folder}: {name} is {theirs.get(name)} for the {theirs.get('mechanism')} runs here and {value} for"
                f" the {ours['mechanism']} ones, which cannot stand in one report; choose another folder."
            )


def _check_memory(sizes: HistogramSizes, runs: int, batch: int, device: torch.device) -> None:
    """Refuse what does not fit, before it is drawn."""
    symbols = 3 * 2 * 8 * sizes.sequences * sizes.length  # symbols and counts; shuffling and stacking hold copies
    m, hidden = sizes.model_dimension, sizes.hidden
    weights = 8 * 8 * (3 * m * m + (sizes.alphabet + sizes.length) * m + hidden * (m + sizes.length + 2))
    per_token = sizes.length + 2 * (sizes.length + sizes.alphabet) + 4 * m + 2 * hidden
    at_once = max(TESTED_AT_ONCE, 3 * min(batch, sizes.training_count))  # a step keeps what its gradient needs
    fields = 8 * at_once * sizes.length * per_token
    need, advice = runs * (symbols + weights + fields), "; lower runs, sequences, batch or the sizes of the model"
    check_fits(f"{runs} runs of {sizes.sequences} sequences", need, available_memory(device), advice)
