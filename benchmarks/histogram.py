"""Time a training step of the histogram task against the same transformer written plainly, with a data loader.

Both are measured in turn in one process, in blocks of steps; the ratio of the medians is what counts.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import chain, repeat

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from attnphase.experiments.histogram.settings import HistogramSizes
from attnphase.experiments.histogram.steps import batches, step
from attnphase.experiments.histogram.task import Sequences, Stream, draw_sequences
from attnphase.experiments.histogram.transformer import absorbed, initial_parameters

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="*", default=[1, 3, 10], help="Runs trained at once.")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sizes = HistogramSizes()
    training, _ = draw_sequences(sizes, 0, max(options.runs), torch.device("cpu"))
    ways = {"plain": (1, plain_step(sizes, training))}
    for runs in options.runs:
        part = Sequences(training.symbols[:runs].clone(), training.counts[:runs].clone())
        ways[f"{runs} at once"] = (runs, own_step(sizes, part))
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.repeats):
        for name, (runs, way) in ways.items():
            begin = time.perf_counter()
            for _ in range(_BLOCK):
                way()
            times[name].append((time.perf_counter() - begin) / _BLOCK / runs)
    print(f"batches of {_BATCH} sequences, float32, {options.threads} threads")
    plain = statistics.median(times["plain"])
    for name, measured in times.items():
        each = statistics.median(measured)
        print(f"{name:<12} {1e3 * each:6.2f} ms a step and run, ratio {plain / each:.2f}")


if __name__ == "__main__":
    main()
