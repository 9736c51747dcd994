"""The sign of one field: its posterior's moments, and all means over what is known as sums over one variable.

Given what is known, ``omega``, the sign has the probability ``Phi(y x)`` with ``x = omega / tau``, ``tau^2`` the
variance of the field and of its noise together.  Summed over the sign, all that is asked for are functions of x that
are analytic in ``|Im x| < 2.8`` and fall as ``exp(-x^2 / 2)``, under a Gaussian law of x: a lattice that is as fine as
the narrower of the two has no error that is seen, however little is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnphase.arrays import Array
from attnphase.theories.bayes_optimal.lattices import FieldLaw, LatticeMeans

__all__ = ["SignSums", "given_sign"]

_LOG_TWO_PI = float(np.log(2 * np.pi))
_END = 9.0  # where both have fallen to 1e-17


@dataclass(frozen=True)
class SignSums:
    """Sums for the sign of one token's field of one column.

    Attributes
    ----------
    noise : float
        Variance of what is added to the field before its sign is taken.
    """

    noise: float
    name, samples = "sums over one variable", 2**7

    def means(self, law: FieldLaw, points: int, random: np.random.Generator) -> LatticeMeans:
        """See `attnphase.theories.bayes_optimal.lattices.Sums`."""
        from scipy.special import log_ndtr, ndtr

        known, unknown, center = float(law.known[0]), float(law.unknown[0]), float(law.center[0])
        V = unknown**2
        tau = float(np.hypot(unknown, np.sqrt(self.noise)))
        step = 2 * _END / points
        places = step * (np.arange(points) + random.random()) - _END
        if known > tau:  # a lattice of x
            x = places
            weights = step * tau / known * np.exp(-(((x * tau - center) / known) ** 2) / 2 - _LOG_TWO_PI / 2)
        else:  # of what is known, in its standard deviations
            x = (center + known * places) / tau
            weights = step * np.exp(-(places**2) / 2 - _LOG_TWO_PI / 2)
        logs = log_ndtr(x), log_ndtr(-x)
        told = (V / tau) ** 2 * weights @ np.exp(-(x**2) - _LOG_TWO_PI - logs[0] - logs[1])
        gain = np.array([[told]])
        return LatticeMeans(gain, V - gain, float(weights @ (ndtr(x) * logs[0] + ndtr(-x) * logs[1])))


def given_sign(label: Any, omega: Array, V: float, noise: float) -> tuple[Array, Array, Array, Array]:
    """Probability of a sign, mean and variance of ``k - omega`` given it, and the logarithm of the probability.

    Parameters
    ----------
    label : int or array of int
        1 or -1.
    omega : array
        Known part of the field.
    V, noise : float
        Variances of the rest of the field, and of what is added to it before its sign is taken.
    """
    from scipy.special import log_ndtr

    total = V + noise
    x = label * omega / np.sqrt(total)
    log_probability = log_ndtr(x)
    ratio = np.exp(-(x**2) / 2 - _LOG_TWO_PI / 2 - log_probability)
    mean = label * V / np.sqrt(total) * ratio
    return np.exp(log_probability), mean, V - V**2 / total * ratio * (x + ratio), log_probability
