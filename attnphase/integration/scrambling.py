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
from attnphase.integration.quantile import normal_quantile
from attnphase.lazy import loaded_on_use

with loaded_on_use(__name__):
    from scipy import stats

__all__ = ["scrambled_normals", "scrambled_sobol"]

_BITS = 30
_LEAST = 2.0**-40  # probability of a normal, below all but the first point of a sequence
_PLACES = np.arange(_BITS - 1, -1, -1)  # of the bits of a number, the highest first


def scrambled_normals(dimensions: int, points: int, random: np.random.Generator) -> Array:
    """The points of `scrambled_sobol`, (points, dimensions), mapped to the normal law."""
    # a scrambled point can round to 0, where the quantile is infinite
    return normal_quantile(np.clip(scrambled_sobol(dimensions, points, random), _LEAST, 1 - _LEAST))


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
        return stats.qmc.Sobol(dimensions, scramble=True, rng=random).random(points)
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
