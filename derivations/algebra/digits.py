"""Equality of values in many digits, whatever their unit and the constant that is added to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpmath import log10, mp, mpf, workdps
from numpy.typing import NDArray

__all__ = ["DIGITS", "SAME", "exact", "null_space", "same", "values_in_digits"]

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
    """The same numbers for mpmath, for which some may be made already."""
    given = np.asarray(values)
    found = np.empty(given.shape, dtype=object)
    for place, value in np.ndenumerate(given):
        found[place] = value if isinstance(value, mpf) else mpf(float(value))
    return found


def values_in_digits(function: Callable[[], Exact], groups: NDArray[np.intp] | None = None) -> tuple[Exact, int]:
    """The values (N, M) of a function, in as many digits as tell them apart, and how many these are.

    A constant that is large beside the differences of the values takes digits, which are added: of all values, and of
    those of the first group, the points of ordinary size, as values may be far larger elsewhere.
    """
    digits = DIGITS
    while True:
        with workdps(digits):
            values = function()
            first = values if groups is None else values[groups == groups[:1]]
            lost = max((_lost(column) for part in (values, first) if len(part) for column in part.T), default=0)
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


def null_space(rows: Exact) -> Exact:
    """A reduced basis (n, F) of what all rows (N, F) vanish on, each a share of its largest entry, by elimination.

    What is less than 1e-20 after it counts as zero.
    """
    sizes = np.array([max(map(abs, row)) for row in rows])
    left = rows[sizes > 0] / sizes[sizes > 0][:, None]
    count, pivots = rows.shape[1], list[int]()
    kept = np.empty((0, count), dtype=object)
    while len(left):
        place, column = divmod(int(np.abs(left).argmax()), count)
        row = left[place]
        if abs(row[column]) <= SAME:
            break
        row = row / row[column]
        left = np.delete(left, place, axis=0)
        left = left - left[:, column, None] * row
        kept = np.concatenate([kept - kept[:, column, None] * row, row[None]])
        pivots.append(column)
    free = [column for column in range(count) if column not in pivots]
    found = np.full((len(free), count), mpf(0), dtype=object)
    for own, column in zip(found, free, strict=True):
        own[column] = mpf(1)
        own[pivots] = -kept[:, column]
        own[[abs(entry) <= SAME for entry in own]] = mpf(0)
    return found
