"""Whether arrays of a problem are equal, relative to their own size: rounding differs, and no unit matters."""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array
from attnphase.spectrum.measure import Spectrum

__all__ = ["ROUNDING", "same_arrays", "same_moments"]

ROUNDING = 1e-12
"""Relative difference of numbers that were computed in different ways."""


def same_arrays(one: Array, other: Array, size: Array | float | None = None) -> bool:
    """Whether two arrays of one unit are equal, to a share of their largest entry, or of a size that is given."""
    unit = np.abs(one).max(initial=0.0) if size is None else size
    return bool((np.abs(one - other) <= ROUNDING * unit).all())


def same_moments(spectrum: Spectrum, mean: Array, covariance: Array) -> bool:
    """Whether moments of (tau, pi) are those of a measure: to a share of each entry's own deviations.

    Parameters
    ----------
    spectrum : Spectrum
    mean, covariance : (A, P + t) and (A, P + t, P + t) arrays
    """
    squares = np.diagonal(spectrum.covariance, axis1=1, axis2=2) + spectrum.mean**2
    size = np.sqrt(squares.max(axis=0))
    return same_arrays(mean, spectrum.mean, size) and same_arrays(covariance, spectrum.covariance, size * size[:, None])
