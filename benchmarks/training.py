"""Time full-batch gradients of the risk against reading the tokens twice, and batches of runs on one and on all cores.

    python benchmarks/training.py

The bound is the time of ``x v`` and ``x^T u`` by BLAS with a vector each, however many columns the student has: two
passes over the tokens.  A plain sum over them, twice, is printed too.  All are measured in turn, on one thread, as
seconds of this thread's processor, so that other programs disturb little; the ratio of the medians counts, and the
middle half of the single rounds' ratios is its spread.  What several threads gain is seconds of the clock, and wants a
quiet machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from attnphase.experiments.data import draw_instance
from attnphase.experiments.optimizers.gradient_descent import GradientDescent
from attnphase.experiments.optimizers.lbfgs import Lbfgs
from attnphase.experiments.risk import Risk
from attnphase.experiments.starts import initial_weights
from attnphase.experiments.threads import threads_for_runs
from attnphase.kernels.torch.loss import LocalLoss
from attnphase.paper.catalogue import EXPERIMENTS
from attnphase.problem.problem import Problem

_NAMES = ("fig2", "correlated", "rank2", "untied", "values")
_BLOCK = 3


def in_turn(
    ways: dict[str, Callable[[], object]], repeats: int, clock: Callable[[], float], block: int = _BLOCK
) -> dict[str, list[float]]:
    """Milliseconds of every way in every round; blocks of a few, as training makes them."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            way()
            begin = clock()
            for _ in range(block):
                way()
            times[name].append(1e3 * (clock() - begin) / block)
    return times


def ratio(times: dict[str, list[float]], above: str, below: str) -> str:
    """Ratio of medians, with the range of the rounds' middle half."""
    rounds = [a / b for a, b in zip(times[above], times[below], strict=True)]
    low, _, high = statistics.quantiles(rounds, n=4)
    return f"{statistics.median(times[above]) / statistics.median(times[below]):5.2f} ({low:.2f}-{high:.2f})"


def gradient(name: str, problem: Problem, options: argparse.Namespace) -> str:
    """A line on the gradient of one run."""
    d, count = options.dimension, round(options.alpha * options.dimension)
    instance = draw_instance(problem, d, count, 0, (0,), LocalLoss(problem))
    risk, weights = Risk.of(instance), initial_weights(instance, "semantic")
    tokens = instance.samples.tokens[0]
    v, u = torch.randn(d, dtype=tokens.dtype), torch.randn(len(tokens), dtype=tokens.dtype)
    ways: dict[str, Callable[[], object]] = {
        "sums": lambda: (tokens.sum(), tokens.sum()),
        "bound": lambda: (tokens @ v, tokens.T @ u),
        "step": lambda: risk.smooth(weights),
    }
    times = in_turn(ways, options.repeats, time.thread_time)
    shown = "".join(f"{statistics.median(times[way]):9.2f}" for way in ways)
    return f"{name:<12}{problem.columns:>3}{shown}   {ratio(times, 'step', 'bound')}"


def batches(problem: Problem, options: argparse.Namespace, threads: int) -> list[str]:
    """Lines on what threads gain for a batch."""
    d, count = options.dimension, round(options.alpha * options.dimension)
    runs = tuple(range(options.seeds))
    instance = draw_instance(problem, d, count, 0, runs, LocalLoss(problem))
    start, lines = initial_weights(instance, "semantic"), []
    for name in ("gd", "lbfgs"):

        def step(threads: int, name: str = name) -> None:
            risk = Risk(instance.samples, instance.loss, threads)
            optimizer = GradientDescent(risk, start, 0.15) if name == "gd" else Lbfgs(risk, start, 1e-8)
            optimizer.step()

        ways: dict[str, Callable[[], object]] = {"one": lambda: step(1), "all": lambda: step(threads)}
        times = in_turn(ways, options.repeats, time.perf_counter, 1)
        shown = "".join(f"{statistics.median(times[way]):9.1f}" for way in ways)
        lines.append(f"{name:<15}{shown}   {ratio(times, 'one', 'all')}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dimension", type=int, default=1000)
    parser.add_argument("--alpha", type=float, default=2.0)
    parser.add_argument("--seeds", type=int, default=8, help="runs of a batch")
    parser.add_argument("--repeats", type=int, default=11)
    options = parser.parse_args()
    if min(options.dimension - 9, options.alpha, options.seeds, options.repeats - 1) <= 0:
        parser.error("dimension must be at least 10, repeats at least 2, alpha and seeds positive")
    problems = {name: EXPERIMENTS[name].problems[""] for name in _NAMES}
    with threads_for_runs() as threads:
        print(f"d = {options.dimension}, alpha = {options.alpha:g}, float64; milliseconds on one thread")
        print(f"{'problem':<12}{'r':>3}{'sums':>9}{'bound':>9}{'step':>9}   step / bound")
        for name, problem in problems.items():
            print(gradient(name, problem, options))
        print(f"a step of {options.seeds} runs of untied, milliseconds on 1 and {threads} threads")
        print(f"{'':<15}{'one':>9}{'all':>9}   one / all")
        for line in batches(problems["untied"], options, threads):
            print(line)


if __name__ == "__main__":
    main()
