"""Adam, for smooth regularisers."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor

from attnphase.experiments.data import Instance
from attnphase.experiments.optimizers.interface import Optimizer, Progress
from attnphase.experiments.risk import Risk
from attnphase.experiments.settings import TrainingSettings
from attnphase.problem.units import power_of_two

__all__ = ["Adam"]


class Adam(Optimizer):
    """Adam on the ridge-regularised risk; every entry of every run has its own moments, so that batches do not mix.

    Adam adds a fixed number to the roots of the gradient's squares. Gradients are therefore divided by their natural
    size at the start: by a power of two, which costs no digit.
    """

    def __init__(self, risk: Risk, weights: Tensor, learning_rate: float) -> None:
        self.risk, self.weights = risk, weights.clone()
        self._unit = torch.as_tensor(power_of_two(risk.sizes(weights)[1].cpu().numpy())).to(weights)
        self._adam = torch.optim.Adam([self.weights], lr=learning_rate)

    @classmethod
    def start(cls, instance: Instance, risk: Risk, weights: Tensor, settings: TrainingSettings) -> Self:
        """With its learning rate."""
        return cls(risk, weights, settings.learning_rate or math.nan)

    def step(self) -> Progress:
        """One step."""
        before = self.weights.clone()
        value, gradient = self.risk.smooth(before)
        self.weights.grad = gradient / self._unit[:, None, :]
        self._adam.step()
        return Progress(value, self.risk.stationarity(before, gradient), before)

    def state(self) -> dict[str, Any]:
        """Weights and moments."""
        return {"weights": self.weights, "adam": self._adam.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.weights.copy_(state["weights"])
        self._adam.load_state_dict(state["adam"])
