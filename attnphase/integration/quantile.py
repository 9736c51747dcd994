"""Quantiles of the normal law, those of `scipy.special.ndtri`, whose package takes a quarter of a second to import.

Algorithm AS 241 of M. J. Wichura, Applied Statistics 37 (1988) 477: ratios of polynomials, to 16 digits.
"""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array

__all__ = ["normal_quantile"]

_HALF_WIDTH = 0.425  # of the middle about 1/2
_FAR = 5.0  # sqrt(-log p) where the far tail begins
_BLOCK = 8192  # that all numbers of a block stay in the cache

# numerator and denominator, constants first
_MIDDLE = np.array(
    [
        (3.3871328727963666080e0, 1.0),
        (1.3314166789178437745e2, 4.2313330701600911252e1),
        (1.9715909503065514427e3, 6.8718700749205790830e2),
        (1.3731693765509461125e4, 5.3941960214247511077e3),
        (4.5921953931549871457e4, 2.1213794301586595867e4),
        (6.7265770927008700853e4, 3.9307895800092710610e4),
        (3.3430575583588128105e4, 2.8729085735721942674e4),
        (2.5090809287301226727e3, 5.2264952788528545610e3),
    ]
)
_TAIL = np.array(
    [
        (1.42343711074968357734e0, 1.0),
        (4.63033784615654529590e0, 2.05319162663775882187e0),
        (5.76949722146069140550e0, 1.67638483018380384940e0),
        (3.64784832476320460504e0, 6.89767334985100004550e-1),
        (1.27045825245236838258e0, 1.48103976427480074590e-1),
        (2.41780725177450611770e-1, 1.51986665636164571966e-2),
        (2.27238449892691845833e-2, 5.47593808499534494600e-4),
        (7.74545014278341407640e-4, 1.05075007164441684324e-9),
    ]
)
_FAR_TAIL = np.array([
    (6.65790464350110377720e0, 1.0),
    (5.46378491116411436990e0, 5.99832206555887937690e-1),
    (1.78482653991729133580e0, 1.36929880922735805310e-1),
    (2.96560571828504891230e-1, 1.48753612908506148525e-2),
    (2.65321895265761230930e-2, 7.86869131145613259100e-4),
    (1.24266094738807843860e-3, 1.84631831751005468180e-5),
    (2.71155556874348757815e-5, 1.42151175831644588870e-7),
    (2.01033439929228813265e-7, 2.04426310338993978564e-15),
])  # fmt: skip


def normal_quantile(probability: Array) -> Array:
    """Where the normal distribution function has given values.

    Parameters
    ----------
    probability : array
        Between 0 and 1, without the ends.

    Returns
    -------
    array
        Of the same shape.
    """
    flat = np.ravel(probability).astype(float, copy=False)
    quantile = np.empty_like(flat)
    for start in range(0, flat.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        quantile[part] = _quantile(flat[part])
    return quantile.reshape(np.shape(probability))


def _quantile(probability: Array) -> Array:
    centred = probability - 0.5
    quantile = centred * _ratio(_MIDDLE, _HALF_WIDTH**2 - centred**2)
    (outside,) = np.nonzero(np.abs(centred) > _HALF_WIDTH)
    p = probability[outside]
    depth = np.sqrt(-np.log(np.minimum(p, 1 - p)))
    tail = _ratio(_TAIL, depth - 1.6)
    far = depth > _FAR
    tail[far] = _ratio(_FAR_TAIL, depth[far] - _FAR)
    quantile[outside] = np.copysign(tail, centred[outside])
    return quantile


def _ratio(coefficients: Array, x: Array) -> Array:
    numerator, denominator = (np.full_like(x, c) for c in coefficients[-1])
    for top, bottom in coefficients[-2::-1]:
        numerator *= x
        numerator += top
        denominator *= x
        denominator += bottom
    return numerator / denominator
