"""Sizes and settings of the histogram task, and where its runs are kept; checked without torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnphase import arguments
from attnphase.arguments import device_name
from attnphase.errors import ExperimentError, ProblemError
from attnphase.experiments.settings import DTYPES

__all__ = [
    "MECHANISMS",
    "FrozenPlan",
    "HistogramSizes",
    "UnfrozenPlan",
    "checkpoint_path",
    "mechanisms_of",
    "present_checkpoints",
]

MECHANISMS = ("positional", "semantic")
"""What the query and key matrices see of an embedding in the two frozen forms."""

_LARGEST = 10**9  # what is beyond is a slip of the keyboard


@dataclass(frozen=True)
class HistogramSizes:
    """Sizes of the task and of the model.

    Attributes
    ----------
    length : int
        L, symbols of a sequence, up to 100.
    alphabet : int
        T, symbols to choose from, up to 1000.
    model_dimension : int
        Length of an embedding; even, as the semantic and the positional half are of one size.
    hidden : int
        Units of the hidden layer.
    sequences : int
        Drawn in all.
    training_share : float
        Share of them that is trained on.

    Raises
    ------
    ProblemError
        A size is out of range.
    """

    length: int = 10
    alphabet: int = 15
    model_dimension: int = 64
    hidden: int = 128
    sequences: int = 50_000
    training_share: float = 0.7

    def __post_init__(self) -> None:
        # pairs of places and of symbols are counted in tables
        limits = {"length": (2, 100), "alphabet": (2, 1000)}
        limits |= {"model_dimension": (2, _LARGEST), "hidden": (1, _LARGEST), "sequences": (2, _LARGEST)}
        plain: dict[str, Any] = {
            name: arguments.whole(name, getattr(self, name), *span) for name, span in limits.items()
        }
        plain["training_share"] = arguments.number(
            "training_share", self.training_share, lambda x: 0 < x < 1, "a number between 0 and 1"
        )
        for name, value in plain.items():  # NumPy's numbers cannot be written to a checkpoint
            object.__setattr__(self, name, value)
        if self.model_dimension % 2:
            raise ProblemError(
                "model_dimension",
                f"model_dimension must be even, as half of it is semantic and half positional, not"
                f" {self.model_dimension}.",
            )
        if not 0 < self.training_count < self.sequences:
            raise ProblemError(
                "training_share",
                f"training_share = {self.training_share:g} of {self.sequences} sequences leaves none to train on or"
                " none to test.",
            )

    @property
    def training_count(self) -> int:
        """Number of training sequences."""
        return round(self.training_share * self.sequences)


@dataclass(frozen=True)
class FrozenPlan:
    """All arguments of `stages.train_histogram`, checked; see there."""

    folder: Path
    mechanisms: tuple[str, ...]
    runs: int
    epochs: int
    seed: int
    sizes: HistogramSizes
    batch: int
    learning_rate: float
    device: str
    dtype: str
    progress: bool

    @classmethod
    def of(
        cls,
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
    ) -> FrozenPlan:
        """From the arguments of `stages.train_histogram`.

        Raises
        ------
        ProblemError
            One is wrong.
        ExperimentError
            Where the folder should be is something else.
        """
        path = arguments.path("folder", folder)
        if path.exists() and not path.is_dir():
            raise ExperimentError(f"{path}: this is not a folder; name another.")
        return cls(
            folder=path,
            mechanisms=mechanisms_of(mechanism),
            runs=arguments.whole("runs", runs, 1, _LARGEST),
            seed=arguments.whole("seed", seed, 0, 2**63 - 1),
            sizes=HistogramSizes() if sizes is None else arguments.instance("sizes", sizes, HistogramSizes),
            batch=arguments.whole("batch", batch, 1, _LARGEST),
            dtype=arguments.word("dtype", dtype, DTYPES),
            **_of_a_stage(epochs, learning_rate, device, progress),
        )


@dataclass(frozen=True)
class UnfrozenPlan:
    """All arguments of `stages.unfreeze_histogram`, checked; see there."""

    checkpoints: dict[str, Path]
    epochs: int
    noise: float
    learning_rate: float
    device: str
    force: bool
    progress: bool

    @classmethod
    def of(
        cls,
        folder: str | os.PathLike[str],
        mechanism: str = "both",
        epochs: int = 100,
        *,
        noise: float = 1e-3,
        learning_rate: float = 1e-3,
        device: str = "cpu",
        force: bool = False,
        progress: bool = False,
    ) -> UnfrozenPlan:
        """From the arguments of `stages.unfreeze_histogram`.

        Raises
        ------
        ProblemError
            One is wrong.
        ExperimentError
            There are no such runs in the folder.
        """
        settings: dict[str, Any] = {
            "noise": arguments.number("noise", noise, lambda x: x >= 0, "a finite, not negative number"),
            "force": arguments.flag("force", force),
            **_of_a_stage(epochs, learning_rate, device, progress),
        }
        return cls(checkpoints=present_checkpoints(folder, mechanisms_of(mechanism)), **settings)


def _of_a_stage(epochs: Any, learning_rate: Any, device: Any, progress: Any) -> dict[str, Any]:
    """The arguments of either stage, checked."""
    return {
        "epochs": arguments.whole("epochs", epochs, 1, _LARGEST),
        "learning_rate": arguments.number("learning_rate", learning_rate, lambda x: x > 0, "a positive number"),
        "device": device_name(device),
        "progress": arguments.flag("progress", progress),
    }


def mechanisms_of(mechanism: Any) -> tuple[str, ...]:
    """The mechanisms that a name stands for.

    Raises
    ------
    ProblemError
        It stands for none.
    """
    name = arguments.word("mechanism", mechanism, (*MECHANISMS, "both"))
    return MECHANISMS if name == "both" else (name,)


def checkpoint_path(folder: Path, mechanism: str) -> Path:
    """Where the runs of a mechanism are kept."""
    return folder / f"{mechanism}.checkpoint"


def present_checkpoints(folder: str | os.PathLike[str], mechanisms: tuple[str, ...]) -> dict[str, Path]:
    """Checkpoints of some mechanisms; one that was asked for alone must be there.

    Raises
    ------
    ProblemError
        `folder` is no path.
    ExperimentError
        There is no such folder, or none of them in it.
    """
    path = arguments.path("folder", folder)
    if not path.is_dir():
        raise ExperimentError(f"{path}: there is no such folder; name that of attnphase histogram train.")
    there = {name: checkpoint_path(path, name) for name in mechanisms if checkpoint_path(path, name).exists()}
    if not there:
        raise ExperimentError(
            f"{path}: there are no {' or '.join(mechanisms)} runs here; train them first, with attnphase histogram"
            " train."
        )
    return there
