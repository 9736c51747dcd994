"""L-BFGS, for smooth regularisers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from attnphase.experiments.data import Instance
from attnphase.experiments.optimizers.interface import Optimizer, Progress
from attnphase.experiments.risk import Risk
from attnphase.experiments.settings import TrainingSettings

__all__ = ["Lbfgs"]

_STEPS = 10  # iterations between two looks from outside
_MEMORY = 20


class Lbfgs(Optimizer):
    """L-BFGS with a strong Wolfe line search, one run after the other, since each has a line search of its own."""

    stride = _STEPS

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
            max_iter=_STEPS,
            max_eval=10 * _STEPS,
            history_size=_MEMORY,
            tolerance_grad=0.01 * self._tolerance,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )

    def _evaluate(self, s: int) -> tuple[Tensor, Tensor]:
        value, gradient = self._singles[s].smooth(self._variables[s])
        return value[0], self._singles[s].stationarity(self._variables[s], gradient)[0]

    @classmethod
    def start(cls, instance: Instance, risk: Risk, weights: Tensor, settings: TrainingSettings) -> Self:
        """With its tolerance."""
        return cls(risk, weights, settings.tolerance or 0.0)

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
