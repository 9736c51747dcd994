"""The counting task: sequences, and how often each symbol occurs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnphase.experiments.data import generator
from attnphase.experiments.histogram.settings import HistogramSizes

__all__ = ["HistogramSizes", "Sequences", "Stream", "counts", "draw_sequences"]


class Stream:
    """Independent streams of random numbers of one seed."""

    SEQUENCES, SPLIT, WEIGHTS, NOISE, FROZEN_ORDER, UNFROZEN_ORDER, EXAMPLES, SCORE = range(100, 108)


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
