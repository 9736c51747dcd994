"""Equality of values in many digits, whatever their unit and the constant that is added to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpmath import log10, mp, mpf, workdps
from numpy.typing import NDArray

__all__ = ["DIGITS", "SAME", "exact", "same", "values_in_digits"]

Array = NDArray[np.float64]
Exact = NDArray[np.object_]
"""Numbers of mpmath."""

DIGITS = 40
"""In which facts are decided."""
SAME = mpf(10) ** -20
"""Share of the values' spread by which those that are the same may differ: half of the digits are left to rounding."""
_ROUNDING = 8  # last digits, which rounding and what cancels within an expression may take
_MOST_DIGITS = 200  # numbers in formulas are at most 1e60


def exact(values: Any) -> Exact:
    """The same numbers for mpmath."""
    found: Exact = np.vectorize(lambda x: mpf(float(x)), otypes=[object])(np.asarray(values, dtype=float))
    return found


def values_in_digits(function: Callable[[], Exact]) -> tuple[Exact, int]:
    """The values (N, M) of a function, in as many digits as tell them apart, and how many these are.

    A constant that is large beside the differences of the values takes digits, which are added.
    """
    digits = DIGITS
    while True:
        with workdps(digits):
            values = function()
            lost = max((_lost(column) for column in values.T), default=0)
        needed = min(DIGITS + lost, _MOST_DIGITS)
        if needed <= digits:
            return values, digits
        digits = needed


def _lost(values: Exact) -> int:
    """Digits that a constant takes of values; none where they do not differ."""
    spread, size = max(values) - min(values), max(map(abs, values))
    if spread <= size * mpf(10) ** (_ROUNDING - mp.dps):  # a constant has taken all of them, or is all there is
        return int(mp.dps) if size else 0
    return max(int(log10(size / spread)) - _ROUNDING, 0)


def same(values: Exact, images: Exact, groups: NDArray[np.intp] | None = None, digits: int = DIGITS) -> bool:
    """Whether values and their images are equal: to 1e-20 of the values' spread, the differences between points.

    A difference that rounding may make counts as none.

    Parameters
    ----------
    values, images : (N, M) arrays of mpf
        Of M functions at N points.
    groups : (N,) array of int, optional
        Points whose spread counts together: a function may be far larger in one group than in another.
    digits : int
        In which they were computed, see `values_in_digits`.
    """
    places = np.zeros(len(values), dtype=int) if groups is None else groups
    with workdps(digits):
        for column, others in zip(values.T, images.T, strict=True):
            rounding = max(map(abs, column), default=mpf(0)) * mpf(10) ** (_ROUNDING - digits)
            for group in set(places.tolist()):
                own, its = column[places == group], others[places == group]
                both = [*own, *its]
                allowed = max(SAME * (max(both) - min(both)), _of_size(both, rounding, digits))
                if any(abs(a - b) > allowed for a, b in zip(own, its, strict=True)):
                    return False
    return True


def _of_size(values: list[Any], rounding: Any, digits: int) -> Any:
    """What rounding may make of a difference of some values: of them alone, if they are smaller than others."""
    return min(rounding, max(map(abs, values)) * mpf(10) ** (_ROUNDING - digits))
