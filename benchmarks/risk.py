"""Time a gradient of the risk through Gram matrices against the direct computation with n x L x d tensors.

Both are measured in turn in one process, in blocks of a few gradients as training makes them, since the large tensors
that one way frees slow the first gradient of the other; the ratio of the medians is what counts.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time

import torch
from torch import Tensor

from attnphase.experiments.data import Instance, draw_instance
from attnphase.experiments.risk import Risk
from attnphase.experiments.starts import initial_weights
from attnphase.kernels.torch.loss import LocalLoss
from attnphase.problem.problem import Problem

_BLOCK = 5


def labels_of(instance: Instance) -> Tensor:
    """The teacher's outputs y, (n, L, d)."""
    d = instance.dimension
    tokens = instance.samples.tokens[0].view(-1, instance.problem.tokens.length, d)
    positions = torch.as_tensor(instance.geometries[0].positions) / math.sqrt(d)
    return instance.loss.targets(instance.samples.teacher_fields[0]) @ (tokens - positions)


def direct(instance: Instance, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Value and gradient of the loss by autograd on the tokens themselves, as equation (3) is written."""
    problem, d = instance.problem, instance.dimension
    tokens = instance.samples.tokens[0].view(-1, problem.tokens.length, d)
    weights = weights.clone().requires_grad_()
    h = tokens @ weights / math.sqrt(d)
    outputs = torch.softmax(h @ h.mT, dim=-1) @ tokens
    strength = problem.regularizer.strength or 0.0
    value = (labels - outputs).square().sum() / (2 * d) + strength / 2 * weights.square().sum()
    (gradient,) = torch.autograd.grad(value, weights)
    return value.detach(), gradient


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dimension", type=int, default=1000)
    parser.add_argument("--alpha", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    problem = Problem.paper(omega=0.3)
    count = round(options.alpha * options.dimension)
    instance = draw_instance(problem, options.dimension, count, 0, (0,), LocalLoss(problem))
    risk, weights = Risk.of(instance), initial_weights(instance, "uninformed")
    labels = labels_of(instance)
    value, gradient = direct(instance, labels, weights[0])
    values, gradients = risk.smooth(weights)
    ways = {
        "direct": lambda: direct(instance, labels, weights[0]),
        "through Gram matrices": lambda: risk.smooth(weights),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.repeats):
        for name, way in ways.items():
            for _ in range(_BLOCK):
                begin = time.perf_counter()
                way()
                times[name].append(time.perf_counter() - begin)
    print(f"n = {count}, d = {options.dimension}, L = 2, float64, {torch.get_num_threads()} threads")
    for name, measured in times.items():
        print(f"{name:<22} {1e3 * statistics.median(measured):8.2f} ms a gradient")
    ratio = statistics.median(times["direct"]) / statistics.median(times["through Gram matrices"])
    print(f"ratio {ratio:.1f}")
    print(f"relative difference of the values {abs(float(values[0] / value) - 1):.1e}")
    size = float(gradient.abs().max())
    print(f"relative difference of the gradients {float((gradients[0] - gradient).abs().max()) / size:.1e}")


if __name__ == "__main__":
    main()
