"""What every optimiser of the empirical risk is: the weights of a batch of runs, moved one step at a time.

It can be saved between any two steps; what it does in one depends on nothing else, so that a run that goes on from a
checkpoint makes the same numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor

from attnphase.arrays import Array
from attnphase.experiments.data import Instance
from attnphase.experiments.risk import Risk
from attnphase.experiments.settings import TrainingSettings

__all__ = ["Optimizer", "Progress"]


@dataclass(frozen=True, eq=False)
class Progress:
    """What a step saw before it moved: ``R`` (S,) and ``|nabla R| / sqrt(d)`` (S,), at weights (S, d, r)."""

    value: Tensor
    stationarity: Tensor
    weights: Tensor


class Optimizer(ABC):
    """One way to make the risk small.

    Attributes
    ----------
    stride : int
        Iterations that one call of `step` makes.
    wanders : bool
        Whether overlaps may settle while the weights do not, so that they are looked at.
    risk : Risk
    weights : (S, d, r) tensor
    least : (S,) tensor or None
        ``|nabla R| / sqrt(d)`` up to which a run is at its minimum; None where it makes all its steps.
    """

    stride: ClassVar[int] = 1
    wanders: ClassVar[bool] = False
    risk: Risk
    weights: Tensor
    least: Tensor | None = None

    @classmethod
    @abstractmethod
    def start(cls, instance: Instance, risk: Risk, weights: Tensor, settings: TrainingSettings) -> Self:
        """The optimiser at its start: the training risk of an instance, weights (S, d, r)."""

    @abstractmethod
    def step(self) -> Progress:
        """Evaluate and move."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Everything the next steps depend on, as tensors and plain values."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""

    def variances(self) -> Array | None:
        """Variances V (S, P, r, r) of the last step; None where there are none."""
        return None

    def replicon(self) -> Array | None:
        """Spectral radius of the linearised iteration, (S,); None where it has no meaning."""
        return None
