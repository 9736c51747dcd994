"""What the equations ask of a row: means over its Gaussian noise, (100)-(106)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from attnphase.arrays import Array

__all__ = ["RowMoments"]


@dataclass(frozen=True, eq=False)
class RowMoments:
    """Means over the sources ``B ~ N(mean, S)`` of N rows' problems.

    Attributes
    ----------
    first : (N, r) array
        ``E w``.
    second : (N, r, r) array
        ``E w w^T``.
    response : (N, r, r) array
        ``E dw/dB``, which is ``E[w (B - mean)^T] S^-1`` by Stein's lemma.
    penalty : (N,) array
        ``E r(w)``, the quadratic part included.
    density : (N,) array
        Share of the weights that are not zero.
    """

    first: Array
    second: Array
    response: Array
    penalty: Array
    density: Array

    @classmethod
    def of_zero(cls, rows: int, columns: int) -> RowMoments:
        """Those of weights that are zero whatever the sources."""
        vector, matrix, number = np.zeros((rows, columns)), np.zeros((rows, columns, columns)), np.zeros(rows)
        return cls(vector, matrix, matrix, number, number)

    @classmethod
    def of_parts(cls, parts: Iterable[RowMoments]) -> RowMoments:
        """Those of some rows after those of others."""
        return cls(*(np.concatenate(values) for values in zip(*(vars(one).values() for one in parts), strict=True)))

    def minimum(self, mean: Array, covariance: Array, curvature: Array) -> Array:
        """``E min_w r(w) + 1/2 w^T Lambda w - B^T w``, with the mean and covariance of B and Lambda: (N,)."""
        quadratic = 0.5 * (curvature * self.second).sum(axis=(-2, -1))
        linear = (mean * self.first).sum(axis=-1) + (covariance * self.response).sum(axis=(-2, -1))
        return self.penalty + quadratic - linear
