"""The counting task: sequences, how often each symbol occurs, and the sizes of the model that counts."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnphase.errors import ProblemError
from attnphase.experiments.data import generator

__all__ = ["HistogramSizes", "Sequences", "Stream", "counts", "draw_sequences"]

_LARGEST = 10**9  # what is beyond is a slip of the keyboard


class Stream:
    """Independent streams of random numbers of one seed."""

    SEQUENCES, SPLIT, WEIGHTS, NOISE, FROZEN_ORDER, UNFROZEN_ORDER, EXAMPLES, SCORE = range(100, 108)


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
        for name, (smallest, largest) in limits.items():
            value = getattr(self, name)
            whole = isinstance(value, Integral) and not isinstance(value, bool)
            if not (whole and smallest <= int(value) <= largest):
                span = f"from {smallest} to {largest}"
                raise ProblemError(name, f"{name} must be a whole number {span}, not {value!r}.")
            object.__setattr__(self, name, int(value))  # NumPy's whole numbers cannot be written to a checkpoint
        if self.model_dimension % 2:
            raise ProblemError(
                "model_dimension",
                f"model_dimension must be even, as half of it is semantic and half positional, not"
                f" {self.model_dimension}.",
            )
        share = self.training_share
        if not (isinstance(share, float) and 0 < share < 1):
            raise ProblemError("training_share", f"training_share must lie between 0 and 1, not {share!r}.")
        if not 0 < self.training_count < self.sequences:
            raise ProblemError(
                "training_share",
                f"training_share = {share:g} of {self.sequences} sequences leaves none to train on or none to test.",
            )

    @property
    def training_count(self) -> int:
        """Number of training sequences."""
        return round(self.training_share * self.sequences)


@dataclass(frozen=True, eq=False)
class Sequences:
    """Sequences of several runs.

    Attributes
    ----------
    symbols : (R, N, L) tensor
        Numbers below T.
    counts : (R, N, L) tensor
        How often the symbol at each place occurs in its sequence.
    """

    symbols: Tensor
    counts: Tensor


def counts(symbols: Tensor) -> Tensor:
    """The target ``y_i = sum_j 1(x_j = x_i)``.

    Parameters
    ----------
    symbols : (..., L) tensor

    Returns
    -------
    (..., L) tensor
        Whole numbers between 1 and L.
    """
    return (symbols[..., :, None] == symbols[..., None, :]).sum(-1)


def draw_sequences(sizes: HistogramSizes, seed: int, runs: int, device: torch.device) -> tuple[Sequences, Sequences]:
    """Uniform sequences, split at random into those to train on and those to test on.

    Parameters
    ----------
    sizes : HistogramSizes
    seed : int
        Run k of a seed has the same sequences, whatever the mechanism and the number of runs.
    runs : int
    device : torch.device

    Returns
    -------
    training, test : Sequences
    """
    shuffled: list[NDArray[np.int64]] = []
    for run in range(runs):
        symbols = generator(seed, run, Stream.SEQUENCES).integers(sizes.alphabet, size=(sizes.sequences, sizes.length))
        shuffled.append(symbols[generator(seed, run, Stream.SPLIT).permutation(sizes.sequences)])
    symbols = torch.from_numpy(np.stack(shuffled)).to(device)
    parts = symbols[:, : sizes.training_count], symbols[:, sizes.training_count :]
    training, test = (Sequences(part.contiguous(), counts(part)) for part in parts)
    return training, test
