"""Quantiles of the normal law, bit by bit those of `scipy.special.ndtri`, whose package takes long to import.

The rational approximations are those of the Cephes library (S. L. Moshier, ``ndtri.c``), which SciPy has too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from attnphase.arrays import Array

__all__ = ["normal_quantiles"]

_MANY = 2**16  # numbers from which on SciPy's compiled code saves more than it takes to import
_TAIL = 0.13533528323661269189  # exp(-2)
_SQRT_2PI = 2.50662827463100050242

# near the median: a rational function of (p - 1/2)^2, the highest power first
_MIDDLE = (
    (-59.9633501014107895267, 98.0010754185999661536, -56.6762857469070293439, 13.9312609387279679503,
     -1.23916583867381258016),
    (1.0, 1.95448858338141759834, 4.67627912898881538453, 86.3602421390890590575, -225.462687854119370527,
     200.260212380060660359, -82.0372256168333339912, 15.9056225126211695515, -1.18331621121330003142),
)  # fmt: skip
# in the tails: of 1/x, with x = sqrt(-2 log p) below 8
_OUTER = (
    (4.05544892305962419923, 31.5251094599893866154, 57.1628192246421288162, 44.0805073893200834700,
     14.6849561928858024014, 2.18663306850790267539, -0.140256079171354495875, -0.0350424626827848203418,
     -0.000857456785154685413611),
    (1.0, 15.7799883256466749731, 45.3907635128879210584, 41.3172038254672030440, 15.0425385692907503408,
     2.50464946208309415979, -0.142182922854787788574, -0.0380806407691578277194, -0.000933259480895457427372),
)  # fmt: skip


def normal_quantiles(probabilities: Array) -> Array:
    """Where the normal distribution function has these values, which lie from 2**-40 to 1 - 2**-40.

    Many at once are handed to SciPy.
    """
    if probabilities.size >= _MANY:
        from scipy.special import ndtri

        return ndtri(probabilities)
    upper = probabilities > 1.0 - _TAIL
    lower = np.where(upper, 1.0 - probabilities, probabilities)
    middle = lower > _TAIL
    quantiles = np.empty_like(probabilities)
    centred = lower[middle] - 0.5
    square = centred * centred
    quantiles[middle] = (centred + centred * _ratio(_MIDDLE, square)) * _SQRT_2PI
    x = np.sqrt(-2.0 * _log(lower[~middle]))
    inverse = 1.0 / x
    size = x - _log(x) / x - _ratio(_OUTER, inverse)
    quantiles[~middle] = np.where(upper[~middle], size, -size)
    return quantiles


def _log(values: Array) -> Array:
    """The C library's logarithm, which SciPy takes; NumPy's own may differ in the last bit."""
    return np.array([math.log(value) for value in values.tolist()])


def _ratio(coefficients: tuple[Sequence[float], Sequence[float]], x: Array) -> Array:
    """``x`` times one polynomial over another."""
    return x * _polynomial(coefficients[0], x) / _polynomial(coefficients[1], x)


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    """By Horner's rule, the highest power first."""
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value
