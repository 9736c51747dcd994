"""Accelerated proximal gradient, for regularisers with kinks."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor

from attnphase.experiments.data import Instance
from attnphase.experiments.optimizers.interface import Optimizer, Progress
from attnphase.experiments.risk import Risk
from attnphase.experiments.settings import TrainingSettings

__all__ = ["Fista"]

_SHRINK, _GROW = 0.5, 1.05  # of a step


class Fista(Optimizer):
    """Accelerated proximal gradient with restarts and step sizes by backtracking, for regularisers with kinks."""

    def __init__(self, risk: Risk, weights: Tensor, learning_rate: float) -> None:
        self.risk, self.weights = risk, weights
        runs = len(weights)
        self._point = weights  # extrapolated
        self._momentum = weights.new_ones(runs)
        self._steps = learning_rate / risk.curvature(weights)

    @classmethod
    def start(cls, instance: Instance, risk: Risk, weights: Tensor, settings: TrainingSettings) -> Self:
        """With its learning rate."""
        return cls(risk, weights, settings.learning_rate or math.nan)

    def step(self) -> Progress:
        """One accelerated step; the momentum is dropped where it points uphill."""
        before, point = self.weights, self._point
        value, gradient = self.risk.smooth(point)
        new, change = point, torch.zeros_like(point)
        for _ in range(60):
            step = self._steps[:, None, None]
            new = self.risk.proximal_step(point - step * gradient, self._steps)
            change = new - point
            bound = value + (gradient * change).sum(dim=(1, 2)) + (change**2 / (2 * step)).sum(dim=(1, 2))
            rounding = 1e-12 * value.abs()
            reached, slope = self.risk.smooth(new)
            # values decide until they cannot, then the gradient's change does
            high = reached > bound + rounding
            steep = (change * (slope - gradient)).sum(dim=(1, 2)) > (change**2 / step).sum(dim=(1, 2))
            small = (bound - value).abs() <= 100 * rounding
            bad = torch.where(small, steep, high) & torch.isfinite(reached)
            if not bad.any():
                break
            self._steps = torch.where(bad, _SHRINK * self._steps, self._steps)
        momentum = (1 + torch.sqrt(1 + 4 * self._momentum**2)) / 2
        uphill = ((point - new) * (new - before)).sum(dim=(1, 2)) > 0
        factor = torch.where(uphill, 0.0, (self._momentum - 1) / momentum)
        self._momentum = torch.where(uphill, 1.0, momentum)
        self.weights, self._point = new, new + factor[:, None, None] * (new - before)
        size = (change / self._steps[:, None, None]).square().sum(dim=(1, 2)).sqrt() / math.sqrt(self.risk.dimension)
        self._steps = _GROW * self._steps
        return Progress(value + self.risk.sharp(point), size, new)

    def state(self) -> dict[str, Any]:
        """Weights, momentum and step sizes."""
        return {
            "weights": self.weights,
            "point": self._point,
            "momentum": self._momentum,
            "steps": self._steps,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.weights, self._point = state["weights"], state["point"]
        self._momentum, self._steps = state["momentum"], state["steps"]
