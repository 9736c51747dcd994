"""Training runs at finite d before they are trained: what is drawn, and weights to evaluate it at."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from attnphase.experiments.data import Instance, draw_instance
from attnphase.kernels.torch.loss import LocalLoss
from attnphase.problem.problem import Problem

__all__ = ["instance_of", "weights_for"]


@lru_cache(maxsize=32)
def _loss(text: str) -> LocalLoss:
    return LocalLoss(Problem.from_toml(text))


def instance_of(
    problem: Problem, d: int = 24, n: int = 37, runs: tuple[int, ...] = (0, 3), seed: int = 11, threads: int = 1
) -> Instance:
    """Teachers and samples of some runs."""
    return draw_instance(problem, d, n, seed, runs, _loss(problem.to_toml()), threads)


def weights_for(instance: Instance, mean: float = 0.4, scale: float = 0.8) -> Tensor:
    """Drawn weights (S, d, r) that are no minimum of anything."""
    shape = (len(instance.runs), instance.dimension, instance.problem.columns)
    return mean + scale * torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
