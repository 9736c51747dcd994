"""Full-batch gradient descent, proximal where the regulariser is not smooth."""

from __future__ import annotations

import math
from typing import Any, Self

from torch import Tensor

from attnphase.experiments.data import Instance
from attnphase.experiments.optimizers.interface import Optimizer, Progress
from attnphase.experiments.risk import Risk
from attnphase.experiments.settings import TrainingSettings

__all__ = ["GradientDescent"]


class GradientDescent(Optimizer):
    """Full-batch gradient descent; with a regulariser that is not smooth, the proximal gradient."""

    def __init__(self, risk: Risk, weights: Tensor, learning_rate: float) -> None:
        self.risk, self.weights = risk, weights
        self.rate = learning_rate
        self._steps = weights.new_full((len(weights),), learning_rate)

    @classmethod
    def start(cls, instance: Instance, risk: Risk, weights: Tensor, settings: TrainingSettings) -> Self:
        """With its learning rate."""
        return cls(risk, weights, settings.learning_rate or math.nan)

    def step(self) -> Progress:
        """One step against the gradient."""
        before = self.weights
        value, gradient = self.risk.smooth(before)
        self.weights = self.risk.proximal_step(before - self.rate * gradient, self._steps)
        moved = self.weights - before
        size = (moved / self.rate).square().sum(dim=(1, 2)).sqrt() / math.sqrt(self.risk.dimension)
        return Progress(value + self.risk.sharp(before), size, before)

    def state(self) -> dict[str, Any]:
        """The weights."""
        return {"weights": self.weights}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.weights = state["weights"]
