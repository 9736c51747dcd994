"""Which points of a grid a boundary passes, found from few of them: lattices that are divided where it does.

A class of a point is +1 or -1, or 0 where it has none; a boundary lies between neighbours of which one is +1 and the
other -1. What a coarse lattice has alike on all sides is taken to be alike within. On the finest one both ends of every
step that a boundary crosses are looked at, so that it is followed on where the coarse ones have missed a part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

__all__ = ["ClassesOf", "points_at_boundaries"]

ClassesOf = Callable[[NDArray[np.bool_]], NDArray[np.int8]]
"""Looks at points, a mask (things, *sizes), and returns the classes of all points seen so far, (kinds, *sizes)."""

_FEWEST = 13  # values of an axis on the first lattice, if it has so many
_WIDEST = 8  # steps of the grid that its neighbours are apart there, at most


def points_at_boundaries(
    sizes: Sequence[int], divided: Sequence[bool], needed: NDArray[np.bool_], classes_of: ClassesOf
) -> NDArray[np.bool_]:
    """Look at the points of a grid where a class changes, and at a coarse lattice of the others.

    Parameters
    ----------
    sizes : sequence of int
        Of the grid's axes, each in its natural order.
    divided : sequence of bool
        Whether an axis has an order, along which what lies between two values is like them; of the others every value
        is looked at by itself.
    needed : (kinds, things) array of bool
        Which of the things that can be looked at somewhere must be, for the class of a kind.
    classes_of : callable

    Returns
    -------
    (things, *sizes) array of bool
        What was looked at.
    """
    steps = [_lattices(size) if one else [np.arange(size)] for size, one in zip(sizes, divided, strict=True)]
    seen = np.zeros((needed.shape[1], *sizes), dtype=bool)
    seen[(slice(None), *np.ix_(*(lattices[0] for lattices in steps)))] = True
    known = classes_of(seen.copy()).copy()

    def look(where: NDArray[np.bool_]) -> None:
        """Look at what kinds need at places, (kinds, *sizes)."""
        nonlocal known
        fresh = np.tensordot(needed.T.astype(int), where.astype(int), 1).astype(bool) & ~seen
        seen[fresh] = True
        known = np.where(_told(seen, needed), classes_of(fresh), known)

    for level in range(1, max(map(len, steps))):
        coarse, fine = ([lattices[min(k, len(lattices) - 1)] for lattices in steps] for k in (level - 1, level))
        high, low = _around(known, coarse, fine)
        here = (slice(None), *np.ix_(*fine))
        told = _told(seen, needed)
        known[here] = np.where(told[here], known[here], _alike(high, low))
        passed = np.zeros_like(told)
        passed[here] = (high > 0) & (low < 0)
        look(passed & ~told)
    while (missing := _crossed(known, divided) & ~_told(seen, needed)).any():
        look(missing)
    return seen


def _told(seen: NDArray[np.bool_], needed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Where the class of a kind has been seen, (kinds, *sizes)."""
    return np.stack([seen[things].all(0) for things in needed])


def _lattices(size: int) -> list[NDArray[np.intp]]:
    """Places on an axis, each list with the middles between those of the one before; the last one has all."""
    count = min(size, max(_FEWEST, -(-(size - 1) // _WIDEST) + 1))
    found = [np.unique(np.linspace(0, size - 1, count).round().astype(np.intp))]
    while len(found[-1]) < size:
        last = found[-1]
        found.append(np.union1d(last, (last[1:] + last[:-1]) // 2))
    return found


def _around(
    known: NDArray[np.int8], coarse: Sequence[NDArray[np.intp]], fine: Sequence[NDArray[np.intp]]
) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """The highest and the lowest class among the corners of the coarse cell, side or edge that a fine point lies in."""
    below = [c[np.searchsorted(c, f, side="right") - 1] for c, f in zip(coarse, fine, strict=True)]
    above = [c[np.searchsorted(c, f, side="left")] for c, f in zip(coarse, fine, strict=True)]
    corners = [known[(slice(None), *np.ix_(*one))] for one in product(*zip(below, above, strict=True))]
    return np.maximum.reduce(corners), np.minimum.reduce(corners)


def _alike(high: NDArray[np.int8], low: NDArray[np.int8]) -> NDArray[np.int8]:
    """The class that all corners have which have one."""
    return np.where(high > 0, high, low)


def _crossed(known: NDArray[np.int8], divided: Sequence[bool]) -> NDArray[np.bool_]:
    """Both ends of every step along an axis that a boundary of a kind crosses, (kinds, *sizes)."""
    found = np.zeros(known.shape, dtype=bool)
    for axis in (axis for axis, one in enumerate(divided, 1) if one):
        first, second = (np.moveaxis(known, axis, 0)[part] for part in (slice(None, -1), slice(1, None)))
        ends = np.moveaxis(found, axis, 0)
        ends[:-1] |= first * second < 0
        ends[1:] |= first * second < 0
    return found
