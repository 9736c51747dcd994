"""Sums over fields on a lattice, direction by direction, in machine code: a field has labels in a small window only.

Arrays have labels first, then what is summed, then what is known along the directions that are summed already: after n
of them ``(Y, 1 + n, W_n ... W_1)`` holds the sum of one and of the deviations along each.
"""

from __future__ import annotations

from math import exp, log
from typing import Any

import numpy as np
from numba import njit

from attnphase.arrays import Array

__all__ = ["entropy_and_gains", "sums_over_fields"]

_compiled: Any = njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
_NEGLIGIBLE = 1e-12  # share of a field, over the largest


@_compiled
def _near(shares: Array, least: float) -> tuple[int, int]:
    """The stretch of what is known where a field has a share."""
    first, last = 0, len(shares)
    while first < last and shares[first] <= least:
        first += 1
    while last > first and shares[last - 1] <= least:
        last -= 1
    return first, last


@_compiled
def _joined(sums: Array, shares: Array, moved: Array, least: float, total: Array) -> None:
    """Add one field's sums (Y, Q, W') along a further direction to the total (Y, Q + 1, W W')."""
    first, last = _near(shares, least)
    labels, count, before = sums.shape
    for y in range(labels):
        for v in range(first, last):
            base = v * before
            for i in range(count):
                for w in range(before):
                    total[y, i, base + w] += shares[v] * sums[y, i, w]
            for w in range(before):
                total[y, count, base + w] += moved[v] * sums[y, 0, w]


@_compiled
def _first_direction(
    places: Array,
    numbers: tuple[int, int],
    width: float,
    reach: float,
    axis: tuple[Array, Array],
    line: Array,
    touched: Array,
    listed: Array,
) -> int:
    """Sum over the first direction into ``line`` (Y, 2 W), of labels that are touched alone: they are listed, counted.

    ``axis`` is shares (K, W), and both they and the moved ones (K, 2 W).
    """
    shares, both = axis
    known, least, chances, found = shares.shape[1], _NEGLIGIBLE * shares.max(), np.empty(numbers[1]), 0
    for k in range(shares.shape[0]):
        x, z = places[k, 0], places[k, 1]
        low, high = max(int(np.ceil(z - reach)), 0), min(int(np.floor(z + reach)) + 1, numbers[1])
        first, last = _near(shares[k], least)
        for j in range(low, high):
            chances[j] = exp(-width * (z - j) ** 2)
        for i in range(max(int(np.ceil(x - reach)), 0), min(int(np.floor(x + reach)) + 1, numbers[0])):
            chance = exp(-width * (x - i) ** 2)
            for j in range(low, high):
                y = i * numbers[1] + j
                if not touched[y]:
                    touched[y], listed[found] = True, y
                    found += 1
                    line[y] = 0.0
                value = chance * chances[j]
                if first == 0 and last == known:  # one loop, which fills registers better
                    for w in range(2 * known):
                        line[y, w] += value * both[k, w]
                    continue
                for w in range(first, last):
                    line[y, w] += value * both[k, w]
                for w in range(known + first, known + last):
                    line[y, w] += value * both[k, w]
    return found


@_compiled
def sums_over_fields(
    places: Array,
    numbers: tuple[int, int],
    width: float,
    reach: float,
    axes: tuple[tuple[Array, Array], ...],
    depth: int,
) -> Array:
    """Sums over the fields for every label, (Y, 1 + n, W).

    Parameters
    ----------
    places : (K_1, K_2, K_3, K_4, 2) array
        Labels without noise, in steps of the lattice of labels, from its first one.
    numbers : (int, int)
        Of labels along their two entries, Y all together.
    width : float
        A label x steps away has the likelihood ``exp(-width x^2)``.
    reach : float
        Steps from which on it has none.
    axes : four pairs of (K, W) arrays
        Shares of the fields given what is known, and these times what a field differs from the known one.  Of a
        direction that is none there is one field, whose share is one.
    depth : int
        Directions n, two to four.
    """
    (s1, m1), (s2, m2), (s3, m3), (s4, m4) = axes
    labels, w1, w2 = numbers[0] * numbers[1], s1.shape[1], s2.shape[1]
    least = [_NEGLIGIBLE * s1.max(), _NEGLIGIBLE * s2.max(), _NEGLIGIBLE * s3.max(), _NEGLIGIBLE * s4.max()]
    both = np.concatenate((s1, m1), axis=1)
    line, touched, listed = np.zeros((labels, 2 * w1)), np.zeros(labels, np.bool_), np.empty(labels, np.int64)
    plane = np.zeros((labels, 3, w1 * w2))
    solid = np.zeros((labels if depth > 2 else 1, 4, w1 * w2 * s3.shape[1]))
    whole = np.zeros((labels if depth > 3 else 1, 5, w1 * w2 * s3.shape[1] * s4.shape[1]))
    for k4 in range(s4.shape[0]):
        if depth > 3 and k4 > 0:
            solid[:] = 0.0
        for k3 in range(s3.shape[0]):
            if depth > 2 and k3 + k4 > 0:
                plane[:] = 0.0
            for k2 in range(s2.shape[0]):
                along = places[:, k2, k3, k4]
                found = _first_direction(along, numbers, width, reach, (s1, both), line, touched, listed)
                first, last = _near(s2[k2], least[1])
                for n in range(found):
                    y = listed[n]
                    touched[y] = False
                    for v in range(first, last):
                        share, moved, base = s2[k2, v], m2[k2, v], v * w1
                        for w in range(w1):
                            plane[y, 0, base + w] += share * line[y, w]
                            plane[y, 1, base + w] += share * line[y, w1 + w]
                            plane[y, 2, base + w] += moved * line[y, w]
            if depth > 2:
                _joined(plane, s3[k3], m3[k3], least[2], solid)
        if depth > 3:
            _joined(solid, s4[k4], m4[k4], least[3], whole)
    return plane if depth == 2 else solid if depth == 3 else whole


@_compiled
def entropy_and_gains(sums: Array, weights: Array, least: float, gains: Array) -> float:
    """Of ``Z`` and its deviations: the sum of ``Z log Z``, and to (n, n) gains that of products of two over ``Z``.

    Parameters
    ----------
    sums : (Y, 1 + n, W) array
        As of `sums_over_fields`.
    weights : (W,) array
        Of what is known.
    least : float
        Z from which on it is looked at.
    gains : (n, n) array
        Its lower triangle is added to.
    """
    entropy = 0.0
    size = sums.shape[1] - 1
    for y in range(len(sums)):
        for w in range(len(weights)):
            density = sums[y, 0, w]
            if density < least:
                continue
            entropy += weights[w] * density * log(density)
            share = weights[w] / density
            for i in range(size):
                moved = share * sums[y, 1 + i, w]
                for j in range(i + 1):
                    gains[i, j] += moved * sums[y, 1 + j, w]
    return entropy
