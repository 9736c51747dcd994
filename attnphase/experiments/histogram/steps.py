"""One step of every run, the batches it sees, and the errors on test sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from attnphase.experiments.data import generator
from attnphase.experiments.histogram.task import Sequences
from attnphase.experiments.histogram.transformer import Parameters, logits

__all__ = ["TESTED_AT_ONCE", "batches", "step", "test_errors"]

TESTED_AT_ONCE = 1000
"""Sequences of a run."""


def batches(training: Sequences, size: int, seed: int, stream: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The training sequences of every run in an order of its own, batch by batch.

    Parameters
    ----------
    training : Sequences
    size : int
        Of a batch; the last may be smaller.
    seed, stream, epoch : int
        Decide the order.

    Yields
    ------
    symbols, counts : (R, size, L) tensors
    """
    runs, count = training.symbols.shape[:2]
    orders = [generator(seed, run, stream, epoch).permutation(count) for run in range(runs)]
    order = torch.from_numpy(np.stack(orders)).to(training.symbols.device)
    run = torch.arange(runs, device=order.device)[:, None]
    for chosen in order.split(size, 1):
        yield training.symbols[run, chosen], training.counts[run, chosen]


def step(
    parameters: Callable[[], Parameters], optimizer: torch.optim.Optimizer, symbols: Tensor, target: Tensor
) -> Tensor:
    """One step of every run, each by its own mean cross-entropy per token.

    Parameters
    ----------
    parameters : callable
        The full form of what the optimiser moves.
    optimizer : torch.optim.Optimizer
    symbols, target : (R, n, L) tensors

    Returns
    -------
    (R) tensor
        The losses before the step.
    """
    scores = logits(parameters(), symbols)
    losses = cross_entropy(scores.mT, target.reshape(len(symbols), -1), reduction="none").mean(1)
    optimizer.zero_grad()
    losses.sum().backward()
    optimizer.step()
    return losses.detach()


def test_errors(full: Parameters, test: Sequences) -> tuple[Tensor, Tensor]:
    """Cross-entropy and share of right counts, per token, of every run, each (R)."""
    runs, count = test.symbols.shape[:2]
    loss = torch.zeros(runs, dtype=torch.float64)
    right = torch.zeros(runs, dtype=torch.float64)
    with torch.no_grad():
        for begin in range(0, count, TESTED_AT_ONCE):
            part = slice(begin, begin + TESTED_AT_ONCE)
            scores, target = logits(full, test.symbols[:, part]), test.counts[:, part].reshape(runs, -1)
            losses = cross_entropy(scores.mT, target, reduction="none")
            loss += losses.double().sum(1).cpu()
            right += (scores.argmax(-1) == target).sum(1).cpu()
    tokens = test.counts[0].numel()
    return loss / tokens, right / tokens
