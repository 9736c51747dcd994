"""Time a gradient of the risk through Gram matrices against the direct computation with n x L x d tensors.

A repeat is the median of a few gradients in a row, as training makes them, since the large tensors that one way frees
slow the first gradient of the other.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor

from attnphase.experiments.data import Instance, draw_instance
from attnphase.experiments.risk import Risk
from attnphase.experiments.starts import initial_weights
from attnphase.kernels.torch.loss import LocalLoss
from attnphase.problem.problem import Problem
from benchmarks.measuring import Options, Row, clock_named, timed

__all__ = ["rows"]

_BLOCK, _DIMENSION, _ALPHA = 5, 1000, 2.0


def labels_of(instance: Instance) -> Tensor:
    """The teacher's outputs y, (n, L, d)."""
    d = instance.dimension
    tokens = instance.samples.tokens[0].view(-1, instance.problem.tokens.length, d)
    positions = torch.as_tensor(instance.geometries[0].positions) / math.sqrt(d)
    return instance.loss.targets(instance.samples.teacher_fields[0], instance.samples.sites[0]) @ (tokens - positions)


def direct(instance: Instance, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Value and gradient of the loss by autograd on the tokens themselves, as equation (3) is written."""
    problem, d = instance.problem, instance.dimension
    tokens = instance.samples.tokens[0].view(-1, problem.tokens.length, d)
    weights = weights.clone().requires_grad_()
    h = tokens @ weights / math.sqrt(d)
    outputs = torch.softmax(h @ h.mT, dim=-1) @ tokens
    strength = cast("float", problem.regularizer.strength)
    value = (labels - outputs).square().sum() / (2 * d) + strength / 2 * weights.square().sum()
    (gradient,) = torch.autograd.grad(value, weights)
    return value.detach(), gradient


def rows(options: Options) -> Iterator[Row]:
    """The gradient by both ways, and how far they agree."""
    clock = clock_named(options.clock)
    torch.set_num_threads(options.threads or os.cpu_count() or 1)
    dimension = 50 if options.quick else _DIMENSION
    problem, count = Problem.paper(omega=0.3), round(_ALPHA * dimension)
    instance = draw_instance(problem, dimension, count, 0, (0,), LocalLoss(problem))
    risk, weights = Risk.of(instance), initial_weights(instance, "uninformed")
    labels = labels_of(instance)
    value, gradient = direct(instance, labels, weights[0])
    values, gradients = risk.smooth(weights)
    size = float(gradient.abs().max())
    agreement = (
        f"differs by {abs(float(values[0] / value) - 1):.0e}, "
        f"its gradient by {float((gradients[0] - gradient).abs().max()) / size:.0e}"
    )
    sizes = f"n = {count}, d = {dimension}, L = 2, {torch.get_num_threads()} threads"
    ways = {
        "direct": (lambda: direct(instance, labels, weights[0]), None, sizes),
        "Gram matrices": (lambda: risk.smooth(weights), "risk: gradient, direct", agreement),
    }
    for name, (way, beside, detail) in ways.items():

        def once(way: Callable[[], object] = way) -> float:
            return statistics.median(timed(clock, way) for _ in range(_BLOCK))

        yield Row(f"risk: gradient, {name}", "s", once, detail=detail, beside=beside)
