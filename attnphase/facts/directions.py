"""Which directions of the labels' noise a loss sees."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array

__all__ = ["SEEN", "moments_of_slopes"]

_SLOPE = 1e-9  # of the largest among points of one size
SEEN = _SLOPE**2
"""Share of the largest eigenvalue of such moments above which a direction counts as seen."""
_ROUNDING = 1e-15 / _SLOPE  # of the losses: beside smaller slopes what a direction has may be rounding


def moments_of_slopes(slopes: Array, losses: Array, groups: NDArray[np.intp]) -> tuple[Array, Array]:
    """Second moments (E, E) of slopes at points of all sizes, each size by its own largest slope, and of ordinary size.

    A direction is not seen if it has no slope at points of any size.  Double precision decides: whatever rounding makes
    of a slope counts as seen, which costs dimensions of an integration and changes no number.

    Parameters
    ----------
    slopes : (E, N) array
        Of every entry of the noise at points of several sizes, those of ordinary size first.
    losses : (N,) array
        Sizes of the losses whose differences these are.
    groups : (N,) array of int
    """
    usable = np.isfinite(slopes).all(axis=0) & np.isfinite(losses)
    found = list[Array]()
    for group in np.unique(groups):
        here = usable & (groups == group)
        largest = np.abs(slopes[:, here]).max(initial=0.0)
        if largest > _ROUNDING * losses[here].max(initial=0.0):
            scaled = slopes[:, here] / largest
            found.append(scaled @ scaled.T)
    none = np.zeros((len(slopes), len(slopes)))
    return sum(found, none), found[0] if found else none
