"""Trained parameters of a loss, such as a bias: their stationarity, and what their values cost.

The objective divided by d is ``alpha E[M] + (lambda/2) |W|^2 / d + r(b)``.  By the envelope theorem its derivative in b
is ``alpha E[dM/db] + r'(b)``, and ``dM/db`` that of the loss at the proximal point.  Where kinks of the loss hold this
point, their multipliers stand for their signs, see `attnphase.kernels.local.trained`.

A step of the map divides the derivative by ``alpha E[d2M/db2] + r''(b)``, the curvature at fixed order parameters.  The
root does not depend on that, nor does whatever is derived from the whole map's Jacobian.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnphase.arrays import Array
from attnphase.facts.expressions import Expressions
from attnphase.lazy import loaded_on_use
from attnphase.problem.loss import Loss

with loaded_on_use(__name__):
    import sympy

    from derivations.models import formulas, functions, model

__all__ = ["TrainedPenalties", "newton_step"]

_UNITS = (1e-3, 1.0, 1e3)  # of trained parameters, whose size nobody knows: facts are asked from 1e-5 to 3e4


@dataclass(frozen=True)
class TrainedPenalties:
    """What the values of trained parameters add to the objective divided by d, a function of each.

    Attributes
    ----------
    functions : tuple of tuples
        The function of every parameter, with its first and second derivative.
    total : Expressions
        Their sum as an expression of the parameters.
    """

    functions: tuple[tuple[Any, Any, Any], ...]
    total: Expressions

    @classmethod
    def of(cls, loss: Loss) -> TrainedPenalties:
        """Those of a problem's ``loss.trained``, and behind them zero for every entry of Q: the weights pay for it."""
        found, terms, symbols = [], list[Any](), list[Any]()
        for name, text in {**(loss.trained or {}), **dict.fromkeys(loss.norms, "0")}.items():
            b = model.parameter_symbol(name)
            formula = formulas.parse_formula(text, {name: b})
            symbols.append(b)
            terms.append(formula)
            orders = formula, formula.diff(b), formula.diff(b, 2)
            value, slope, bend = (sympy.lambdify(b, one, [functions.NUMPY_FUNCTIONS, "numpy"]) for one in orders)
            found.append((value, slope, bend))
        return cls(tuple(found), Expressions((sum(terms),), tuple(symbols)))

    def values(self, trained: Array) -> Array:
        """Their sum at given values (..., p): (...)."""
        return self._all(0, trained).sum(axis=-1)

    def slopes(self, trained: Array) -> Array:
        """First derivatives, (..., p)."""
        return self._all(1, trained)

    def curvatures(self, trained: Array) -> Array:
        """Second derivatives, (..., p)."""
        return self._all(2, trained)

    def unchanged(self, change: Array) -> bool:
        """Whether their sum is the same for all values ``b`` and ``C b``."""
        if np.array_equal(change, np.eye(len(change))):
            return True
        centre = np.zeros(len(change))
        return all(
            self.total.unchanged(change, self.total.asked(self.total.points(centre, centre + unit))) for unit in _UNITS
        )

    def _all(self, order: int, trained: Array) -> Array:
        found = np.empty(trained.shape)
        for j, functions in enumerate(self.functions):
            found[..., j] = functions[order](trained[..., j])
        return found


def newton_step(slopes: Array, curvature: Array, most: float = np.inf) -> Array:
    """The way down from slopes (..., p) by a curvature (..., p, p), as far as the slopes lower the objective by `most`.

    Along a direction in which the curvature is negative it counts by its size: Newton's step would lead to a maximum.
    """
    values, vectors = np.linalg.eigh(curvature)
    along = (slopes[..., None, :] @ vectors)[..., 0, :]
    with np.errstate(divide="ignore", invalid="ignore"):  # in a flat direction it leads outside the domain
        along = along / np.maximum(np.abs(values), along**2 / most)
        step: Array = -(vectors @ along[..., None])[..., 0]
    return step
