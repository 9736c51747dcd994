"""Means over a row's noise: in closed form where the regulariser has one, by nodes otherwise."""

from __future__ import annotations

from attnphase.arrays import Array
from attnphase.rows.moments import RowMoments
from attnphase.rows.piecewise import piecewise_moments
from attnphase.rows.quadrature import quadrature_moments
from attnphase.rows.regularizer import RowRegularizer

__all__ = ["row_moments"]


def row_moments(regularizer: RowRegularizer, mean: Array, root: Array, curvature: Array) -> RowMoments:
    """The moments of N rows' minimisers; arguments as of `attnphase.rows.quadrature.quadrature_moments`."""
    closed = regularizer.linear and not regularizer.rowwise and mean.shape[1] <= 2
    return (piecewise_moments if closed else quadrature_moments)(regularizer, mean, root, curvature)
