"""Trained parameters of a loss, such as a bias: their stationarity, and what their values cost.

The objective divided by d is ``alpha E[M] + (lambda/2) |W|^2 / d + r(b)``.  By the envelope theorem its derivative in b
is ``alpha E[dloss/db] + r'(b)`` at the proximal points.  A step of the map divides it by the curvature at fixed fields.
The root does not depend on that, nor does whatever is derived from the whole map's Jacobian.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnphase.arrays import Array
from attnphase.lazy import loaded_on_use

with loaded_on_use(__name__):
    import sympy

    from derivations.models import formulas, model

__all__ = ["TrainedPenalties"]


@dataclass(frozen=True)
class TrainedPenalties:
    """What the values of trained parameters add to the objective divided by d, a function of each.

    Attributes
    ----------
    functions : tuple of tuples
        The function of every parameter, with its first and second derivative.
    """

    functions: tuple[tuple[Any, Any, Any], ...]

    @classmethod
    def of(cls, trained: Mapping[str, str]) -> TrainedPenalties:
        """Those of a problem's ``loss.trained``."""
        found = []
        for name, text in trained.items():
            b = model.parameter_symbol(name)
            formula = formulas.parse_formula(text, {name: b})
            found.append(tuple(sympy.lambdify(b, one) for one in (formula, formula.diff(b), formula.diff(b, 2))))
        return cls(tuple(found))

    def value(self, trained: Array) -> float:
        """Their sum at given values (p,)."""
        return float(sum(function(b) for (function, _, _), b in zip(self.functions, trained, strict=True)))

    def next(self, alpha: float, trained: Array, slopes: Array, curvatures: Array) -> Array:
        """Newton's step from values (p,), by each replicate's mean slopes and by all replicates' curvature: (1, S, p).

        A curvature that is negative counts by its size: Newton's step would lead to a maximum.

        Parameters
        ----------
        alpha : float
            Sample complexity.
        trained : (p,) array
        slopes, curvatures : (S, p) arrays
            ``E[dloss/db]`` and ``E[d2loss/db2]`` at fixed fields.
        """
        own = [(slope(b), bend(b)) for (_, slope, bend), b in zip(self.functions, trained, strict=True)]
        slope, bend = np.reshape(own, (-1, 2)).astype(float).T
        stiffness = np.abs(alpha * curvatures.mean(axis=0) + bend)
        moved: Array = trained - (alpha * slopes + slope) / stiffness
        return moved[None]
