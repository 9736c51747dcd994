"""Scrambled Sobol points, bit by bit those of `scipy.stats.qmc.Sobol`, whose package takes half a second to import.

The scrambling is Matousek's: a random lower triangular matrix over the field of two elements for each dimension, and a
digital shift.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.integration.direction_numbers import DIRECTIONS

__all__ = ["scrambled_sobol"]

_BITS = 30
_PLACES = np.arange(_BITS - 1, -1, -1)  # of the bits of a number, the highest first


def scrambled_sobol(dimensions: int, points: int, random: np.random.Generator) -> Array:
    """The first points of a scrambled Sobol sequence, (points, dimensions), from 0 to below 1.

    Parameters
    ----------
    dimensions : int
        Those beyond the table of direction numbers are drawn by SciPy, which has 21201 of them.
    points : int
        At most 2**30.
    random : numpy.random.Generator
    """
    if dimensions > 1 + len(DIRECTIONS):
        from scipy.stats import qmc

        return qmc.Sobol(dimensions, scramble=True, rng=random).random(points)
    own = random.spawn(1)[0]  # as SciPy does
    shift = own.integers(2, size=(dimensions, _BITS), dtype=np.uint32) @ (1 << np.arange(_BITS))
    lower = np.tril(own.integers(2, size=(dimensions, _BITS, _BITS), dtype=np.uint32)).astype(np.int64)
    lower[:, range(_BITS), range(_BITS)] = 1
    bits = np.einsum("dpk,djk->jdp", lower, _direction_bits(dimensions)) % 2
    steps = (bits << _PLACES).sum(axis=-1)
    counts = np.arange(1, points)
    changed = np.log2(counts & -counts).astype(int)  # the bit that Gray's code changes from one point to the next
    return np.bitwise_xor.accumulate(np.concatenate([shift[None], steps[changed]]), axis=0) / 2.0**_BITS


@lru_cache(maxsize=16)
def _direction_bits(dimensions: int) -> NDArray[np.int64]:
    """Bits of the direction numbers, (dimensions, numbers, bits)."""
    numbers = [[1] * _BITS]
    for inner, first in DIRECTIONS[: dimensions - 1]:
        degree, row = len(first), list(first)
        for j in range(degree, _BITS):
            number = row[j - degree] ^ row[j - degree] << degree
            for k in range(1, degree):
                if inner >> (degree - 1 - k) & 1:
                    number ^= row[j - k] << k
            row.append(number)
        numbers.append(row)
    return (np.array(numbers) << _PLACES)[..., None] >> _PLACES & 1
