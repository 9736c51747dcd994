"""Optimisers of the empirical risk that take gradients: gradient descent, Adam, L-BFGS, accelerated proximal gradient.

Each holds the weights of a batch of runs, makes one step at a time and can be saved between any two of them; what it
does in a step depends on nothing else, so that a run that goes on from a checkpoint makes the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from attnphase.experiments.risk import Risk

__all__ = ["Adam", "Fista", "GradientDescent", "Lbfgs", "Optimizer", "Progress"]

_LBFGS_STEPS = 10  # iterations between two looks from outside
_LBFGS_MEMORY = 20
_SHRINK, _GROW = 0.5, 1.05  # of a proximal gradient step


@dataclass(frozen=True, eq=False)
class Progress:
    """What a step saw before it moved: ``R`` (S,) and ``|nabla R| / sqrt(d)`` (S,), at weights (S, d, r)."""

    value: Tensor
    stationarity: Tensor
    weights: Tensor


class Optimizer(Protocol):
    """One way to make the risk small.

    Attributes
    ----------
    weights : (S, d, r) tensor
    stride : int
        Iterations that one call of `step` makes.
    """

    weights: Tensor
    stride: int

    def step(self) -> Progress:
        """Evaluate and move."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything the next steps depend on, as tensors and plain values."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        ...


class GradientDescent:
    """Full-batch gradient descent; with a regulariser that is not smooth, the proximal gradient."""

    stride = 1

    def __init__(self, risk: Risk, weights: Tensor, learning_rate: float) -> None:
        self.risk, self.weights = risk, weights
        self.rate = learning_rate
        self._steps = weights.new_full((len(weights),), learning_rate)

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


class Adam:
    """Adam on the ridge-regularised risk; every entry of every run has its own moments, so that batches do not mix."""

    stride = 1

    def __init__(self, risk: Risk, weights: Tensor, learning_rate: float) -> None:
        self.risk, self.weights = risk, weights.clone()
        self._adam = torch.optim.Adam([self.weights], lr=learning_rate)

    def step(self) -> Progress:
        """One step."""
        before = self.weights.clone()
        value, gradient = self.risk.smooth(before)
        self.weights.grad = gradient
        self._adam.step()
        return Progress(value, self.risk.stationarity(before, gradient), before)

    def state(self) -> dict[str, Any]:
        """Weights and moments."""
        return {"weights": self.weights, "adam": self._adam.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.weights.copy_(state["weights"])
        self._adam.load_state_dict(state["adam"])


class Lbfgs:
    """L-BFGS with a strong Wolfe line search, one run after the other, since each has a line search of its own."""

    stride = _LBFGS_STEPS

    def __init__(self, risk: Risk, weights: Tensor, tolerance: float) -> None:
        self.risk, self.weights = risk, weights.clone()
        self._tolerance = tolerance
        self._singles = [_single(risk, s) for s in range(len(weights))]
        self._variables = [self.weights[s : s + 1].clone() for s in range(len(weights))]
        self._solvers = [self._solver(variable) for variable in self._variables]
        self._last = [self._evaluate(s) for s in range(len(weights))]
        self._stuck = [False] * len(weights)  # rounding hides the risk's slope from the line search

    def _solver(self, variable: Tensor) -> torch.optim.LBFGS:
        # the tolerance of torch is on the largest entry of the gradient
        return torch.optim.LBFGS(
            [variable],
            max_iter=_LBFGS_STEPS,
            max_eval=10 * _LBFGS_STEPS,
            history_size=_LBFGS_MEMORY,
            tolerance_grad=0.01 * self._tolerance,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )

    def _evaluate(self, s: int) -> tuple[Tensor, Tensor]:
        value, gradient = self._singles[s].smooth(self._variables[s])
        return value[0], self._singles[s].stationarity(self._variables[s], gradient)[0]

    def step(self) -> Progress:
        """A few iterations of every run that is not at its minimum yet."""
        before = self.weights.clone()
        seen = self._last
        self._last = list(seen)
        for s, variable in enumerate(self._variables):
            if self._stuck[s] or not seen[s][1] > self._tolerance:
                continue

            def closure(s: int = s, variable: Tensor = variable) -> Tensor:
                value, gradient = self._singles[s].smooth(variable)
                variable.grad = gradient
                return value[0]

            _minimise(self._solvers[s], closure)
            self._last[s] = self._evaluate(s)
            self._stuck[s] = torch.equal(self.weights[s], variable[0])
            self.weights[s] = variable[0]
        return Progress(torch.stack([v for v, _ in seen]), torch.stack([n for _, n in seen]), before)

    def state(self) -> dict[str, Any]:
        """Weights and the memories of curvature."""
        solvers = [solver.state_dict() for solver in self._solvers]
        return {"weights": self.weights, "solvers": solvers, "stuck": self._stuck}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.weights, self._stuck = state["weights"].clone(), list(state["stuck"])
        for s, variable in enumerate(self._variables):
            variable.copy_(self.weights[s : s + 1])
            self._solvers[s].load_state_dict(state["solvers"][s])
        self._last = [self._evaluate(s) for s in range(len(self._variables))]


def _minimise(solver: torch.optim.LBFGS, closure: Callable[[], Tensor]) -> None:
    solver.step(closure)  # type: ignore[arg-type]  # torch wants a float or a tensor, as it is


def _single(risk: Risk, s: int) -> Risk:
    """The risk of one run of a batch."""
    fields = {name: getattr(risk.samples, name)[s : s + 1] for name in risk.samples.__dataclass_fields__}
    return Risk(type(risk.samples)(**fields), risk.loss)


class Fista:
    """Accelerated proximal gradient with restarts and step sizes by backtracking, for regularisers with kinks."""

    stride = 1

    def __init__(self, risk: Risk, weights: Tensor, learning_rate: float) -> None:
        self.risk, self.weights = risk, weights
        runs = len(weights)
        self._point = weights  # extrapolated
        self._momentum = weights.new_ones(runs)
        self._steps = weights.new_full((runs,), learning_rate)

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
