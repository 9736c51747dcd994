"""Time a training step of the histogram task against the same transformer written plainly, with a data loader."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from itertools import chain, repeat

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from attnphase.experiments.histogram.settings import HistogramSizes
from attnphase.experiments.histogram.steps import batches, step
from attnphase.experiments.histogram.task import Sequences, Stream, draw_sequences
from attnphase.experiments.histogram.transformer import absorbed, initial_parameters
from benchmarks.measuring import Options, Row, clock_named, timed

__all__ = ["rows"]

_RUNS = (1, 3, 10)
"""Trained at once."""
_BATCH, _RATE, _BETAS, _BLOCK = 32, 1e-3, (0.9, 0.98), 50


class Plain(nn.Module):
    """The semantic form as one would write it first: every sequence embedded, masks on what query and key see."""

    def __init__(self, sizes: HistogramSizes) -> None:
        super().__init__()
        m = sizes.model_dimension
        self.scale = math.sqrt(m)
        self.symbols, self.places = nn.Embedding(sizes.alphabet, m // 2), nn.Embedding(sizes.length, m // 2)
        self.query, self.key = nn.Linear(m // 2, m, bias=False), nn.Linear(m // 2, m, bias=False)
        self.value, self.norm = nn.Linear(m, m, bias=False), nn.LayerNorm(m)
        self.head = nn.Sequential(nn.Linear(m, sizes.hidden), nn.ReLU(), nn.Linear(sizes.hidden, sizes.length + 1))

    def forward(self, symbols: Tensor) -> Tensor:
        """Scores of the counts, (n, L, L + 1)."""
        semantic = self.symbols(symbols)
        embedded = torch.cat([semantic, self.places.weight.expand(len(symbols), -1, -1)], -1)
        scores = self.query(semantic) @ self.key(semantic).mT / self.scale
        return self.head(self.norm(scores.softmax(-1) @ self.value(embedded)))


def plain_step(sizes: HistogramSizes, training: Sequences) -> Callable[[], None]:
    """A step of one run, with PyTorch's data loader."""
    model = Plain(sizes)
    optimizer = torch.optim.Adam(model.parameters(), lr=_RATE, betas=_BETAS)
    loader = DataLoader(TensorDataset(training.symbols[0], training.counts[0]), _BATCH, shuffle=True)
    data: Iterator[list[Tensor]] = chain.from_iterable(repeat(loader))

    def one() -> None:
        symbols, target = next(data)
        loss = nn.functional.cross_entropy(model(symbols).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return one


def own_step(sizes: HistogramSizes, training: Sequences) -> Callable[[], None]:
    """A step of as many runs as there are sequences for."""
    free = initial_parameters(sizes, 0, len(training.symbols), torch.float32)
    free = {name: value.requires_grad_() for name, value in free.items()}
    optimizer = torch.optim.Adam(free.values(), lr=_RATE, betas=_BETAS, fused=True)
    orders = (batches(training, _BATCH, 0, Stream.FROZEN_ORDER, epoch) for epoch in range(1 << 30))
    data = chain.from_iterable(orders)

    def one() -> None:
        step(lambda: absorbed(free, "semantic"), optimizer, *next(data))

    return one


def rows(options: Options) -> Iterator[Row]:
    """Seconds of a step and run, the plain model first."""
    clock = clock_named(options.clock)
    torch.set_num_threads(options.threads or os.cpu_count() or 1)
    sizes = HistogramSizes(sequences=200) if options.quick else HistogramSizes()
    block = 2 if options.quick else _BLOCK
    training, _ = draw_sequences(sizes, 0, max(_RUNS), torch.device("cpu"))
    ways = {"plain": (1, plain_step(sizes, training))}
    for runs in _RUNS:
        part = Sequences(training.symbols[:runs].clone(), training.counts[:runs].clone())
        ways[f"{runs} at once"] = (runs, own_step(sizes, part))
    detail = f"batches of {_BATCH} sequences, float32, {torch.get_num_threads()} threads"
    for name, (runs, way) in ways.items():

        def once(runs: int = runs, way: Callable[[], None] = way) -> float:
            return timed(clock, lambda: [way() for _ in range(block)]) / block / runs

        once()  # what a first step costs is no repeat
        plain = name == "plain"
        yield Row(
            f"histogram: step and run, {name}",
            "s",
            once,
            detail=detail if plain else "",
            beside=None if plain else "histogram: step and run, plain",
        )
