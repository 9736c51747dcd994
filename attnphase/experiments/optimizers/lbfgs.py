"""L-BFGS, for smooth regularisers."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from attnphase.experiments.data import Instance
from attnphase.experiments.optimizers.interface import Optimizer, Progress
from attnphase.experiments.risk import Risk
from attnphase.experiments.settings import TrainingSettings
from attnphase.problem.units import Units, power_of_two
from attnphase.processes.threads import each

__all__ = ["Lbfgs"]

_STEPS = 10  # iterations between two looks from outside
_MEMORY = 20


class Lbfgs(Optimizer):
    """L-BFGS with a strong Wolfe line search; every run has a line search of its own."""

    stride = _STEPS

    def __init__(self, risk: Risk, weights: Tensor, tolerance: float) -> None:
        self.risk, self.weights = risk, weights.clone()
        self.least = tolerance * risk.gradient_size(weights)
        runs = range(len(weights))
        self._descents = [_Descent(risk.of_runs(slice(s, s + 1)), weights[s : s + 1]) for s in runs]
        self._last = each(risk.threads, _Descent.look, self._descents)
        self._stuck = [False for _ in runs]  # rounding hides the risk's slope from the line search

    @classmethod
    def start(cls, instance: Instance, risk: Risk, weights: Tensor, settings: TrainingSettings) -> Self:
        """With its tolerance."""
        return cls(risk, weights, settings.tolerance or 0.0)

    def step(self) -> Progress:
        """A few iterations of every run that is not at its minimum yet."""
        before, seen = self.weights.clone(), list(self._last)
        least = self.weights.new_zeros(len(seen)) if self.least is None else self.least
        going = [s for s, stuck in enumerate(self._stuck) if not stuck and seen[s][1] > least[s]]
        ends = each(self.risk.threads, lambda s: self._descents[s].go_on(float(least[s])), going)
        for s, end in zip(going, ends, strict=True):
            weights = self._descents[s].weights[0]
            self._last[s], self._stuck[s] = end, torch.equal(self.weights[s], weights)
            self.weights[s] = weights
        return Progress(torch.stack([v for v, _ in seen]), torch.stack([n for _, n in seen]), before)

    def state(self) -> dict[str, Any]:
        """Weights and the memories of curvature."""
        solvers = [descent.solver.state_dict() for descent in self._descents]
        return {"weights": self.weights, "solvers": solvers, "stuck": self._stuck}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.weights, self._stuck = state["weights"].clone(), list(state["stuck"])
        for s, descent in enumerate(self._descents):
            descent.put(self.weights[s : s + 1])
            descent.solver.load_state_dict(state["solvers"][s])
        self._last = each(self.risk.threads, _Descent.look, self._descents)


class _Descent:
    """One run: its weights (1, d, r) in units of their columns, and torch's solver that moves them in place.

    The solver compares steps, slopes and their products with fixed numbers: risk and weights have their natural sizes
    for it. These are powers of two, which cost no digit.
    """

    def __init__(self, risk: Risk, weights: Tensor) -> None:
        # small labels make the unit of all columns smaller: a unit for each takes attention ten times as many steps
        known = torch.as_tensor(Units.of(risk.loss.problem).weights).to(weights)
        shares = risk.units(weights)[0] / known
        small = shares[shares < 1]
        unit = known * (small.max() if small.numel() else 1.0)
        self._size = torch.as_tensor(power_of_two(unit.double().cpu().numpy())).to(weights)
        self._energy = float(risk.curvature(weights) * self._size.max() ** 2)
        self._scaled = weights / self._size
        self.solver = torch.optim.LBFGS(
            [self._scaled],
            max_iter=_STEPS,
            max_eval=10 * _STEPS,
            history_size=_MEMORY,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )
        self._risk = risk
        self._known: tuple[Tensor, Tensor, Tensor] | None = None  # scaled weights, value, gradient, evaluated last

    @property
    def weights(self) -> Tensor:
        """Where it is, (1, d, r)."""
        return self._scaled * self._size

    def put(self, weights: Tensor) -> None:
        """Go on from other weights."""
        self._scaled.copy_(weights / self._size)

    def _evaluate(self) -> tuple[Tensor, Tensor]:
        """Value (1,) and gradient (1, d, r); a search ends, and the next begins, where one was evaluated last."""
        if self._known is None or not torch.equal(self._known[0], self._scaled):
            self._known = (self._scaled.clone(), *self._risk.smooth(self.weights))
        return self._known[1:]

    def look(self) -> tuple[Tensor, Tensor]:
        """Risk and stationarity, without an axis."""
        value, gradient = self._evaluate()
        return value[0], self._risk.stationarity(self.weights, gradient)[0]

    def go_on(self, least: float) -> tuple[Tensor, Tensor]:
        """A few iterations, to a gradient far below the least; what there is at their end.

        A line search compares values. Next to the minimum their differences are lost in rounding: those of the
        quadratic function with the same gradients, which is the risk there, take their place.
        """
        before, unit = self._scaled.clone(), self._size / self._energy
        slope = self._evaluate()[1] * unit
        # the tolerance of torch is on the largest entry of the gradient
        self.solver.param_groups[0]["tolerance_grad"] = 0.01 * least * float(unit.max())

        def by_values() -> float:
            value, gradient = self._evaluate()
            self._scaled.grad = gradient * unit
            return float(value) / self._energy

        def by_slopes() -> float:
            self._scaled.grad = self._evaluate()[1] * unit
            return float(((slope + self._scaled.grad) * (self._scaled - before)).sum() / 2)

        self.solver.step(by_values)
        if torch.equal(before, self._scaled):
            self.solver.step(by_slopes)
        return self.look()
