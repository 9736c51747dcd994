"""The regularisers that need no function of the user's own."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from attnphase.arrays import Array
from attnphase.rows.kind import Given, RegularizerKind
from attnphase.rows.regularizer import RowRegularizer

__all__ = ["ElasticNet", "GroupLasso", "Lasso", "Ridge"]


_SOFT_THRESHOLD = r"\operatorname{sign}(B) \max\left(|B| - s, 0\right)"


class Ridge(RegularizerKind):
    """``"ridge"``: (strength/2) w^2, the paper's; the columns may have strengths of their own."""

    name = "ridge"
    keys = ("strength",)
    also = ("l2", "tikhonov", "weight_decay")
    symbols: ClassVar = {"strength": r"\lambda"}
    quadratic = True
    rotates = True
    instead_of_ridge = "regularizer.strength"
    example: ClassVar = {}

    def rows(self, given: Given, columns: int) -> RowRegularizer:
        """See `RegularizerKind`."""
        ridge = np.array(given.strength) if isinstance(given.strength, tuple) else float(given.strength)
        return RowRegularizer(self.name, ridge, np.zeros_like, lambda v, step: v, quadratic=True)

    def latex(self, given: Given) -> None:
        """See `RegularizerKind`."""
        return


class Lasso(RegularizerKind):
    """``"lasso"``: strength |w|."""

    name = "lasso"
    keys = ("strength",)
    also = ("l1",)
    penalty = r"s \lVert w \rVert_1"
    minimizer = _SOFT_THRESHOLD
    instead_of_ridge = 'regularizer.kind = "elastic-net"'
    example: ClassVar = {"strength": 0.006}

    def rows(self, given: Given, columns: int) -> RowRegularizer:
        """See `RegularizerKind`."""
        return _absolute(self.name, given)


class ElasticNet(Lasso):
    """``"elastic-net"``: strength |w| + (ridge/2) w^2."""

    name = "elastic-net"
    keys = ("strength", "ridge")
    also = ("l1_l2",)
    example: ClassVar = {"strength": 0.002, "ridge": 0.01}


class GroupLasso(RegularizerKind):
    """``"group-lasso"``: strength ||w|| + (ridge/2) ||w||^2 of the whole row."""

    name = "group-lasso"
    keys = ("strength", "ridge")
    penalty = r"s \lVert w \rVert_2"
    minimizer = _SOFT_THRESHOLD
    rotates = True
    example: ClassVar = {"strength": 0.002, "ridge": 0.01}

    def rows(self, given: Given, columns: int) -> RowRegularizer:
        """See `RegularizerKind`."""
        # in one column the norm is the absolute value
        return _absolute(self.name, given, rowwise=columns > 1)


def _absolute(name: str, given: Given, *, rowwise: bool = False) -> RowRegularizer:
    assert isinstance(given.strength, float), "a list of them is refused"
    strength = given.strength

    def soft(v: Array, step: Array) -> Array:
        return np.sign(v) * np.maximum(np.abs(v) - strength * step, 0.0)

    kinks = ((0.0, -strength, strength),)
    return RowRegularizer(
        name, float(given.ridge), lambda w: strength * np.abs(w), soft, kinks, rowwise=rowwise, linear=True
    )
