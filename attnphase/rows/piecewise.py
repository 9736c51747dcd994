"""Means over a row's noise where the penalty is linear between its kinks: w is then affine on polygons of sources.

A weight is either at a kink, or free on a piece between two of them. Given which, the free weights and the slopes of
those at kinks are affine in the source, and bounded: so much of a line of sources belongs to that choice as lies in one
interval, on which Gaussian moments of w are known.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from attnphase.arrays import Array
from attnphase.lazy import loaded_on_use
from attnphase.rows.moments import RowMoments
from attnphase.rows.quadrature import REACH, panels
from attnphase.rows.regularizer import RowRegularizer

with loaded_on_use(__name__):
    from scipy import special

__all__ = ["piecewise_moments"]

_PANELS, _ORDER = 3, 20  # of lines between two corners: no side is steep, so that means along them vary like a Gaussian
_FAR = 40.0  # beyond so many standard deviations lies nothing


@dataclass(frozen=True, eq=False)
class _Choices:
    """Where each weight may be: C choices for r weights.

    Attributes
    ----------
    free : (C, r) array
        One where the weight lies between kinks, zero where it is at one.
    place, slope, constant : (C, r) arrays
        Of the kink, zero if free; of the penalty ``constant + slope w``.
    low, high : (C, r) arrays
        Bounds of the free weight, or of the penalty's slope at the kink.
    """

    free: Array
    place: Array
    slope: Array
    constant: Array
    low: Array
    high: Array


@lru_cache(maxsize=16)
def _choices(regularizer: RowRegularizer, columns: int) -> _Choices:
    places, left, right = np.array(sorted(regularizer.kinks)).T
    slopes, ends = np.append(left[0], right), np.concatenate([[-np.inf], places, [np.inf]])
    values = regularizer.value(places)
    constants = np.append(values[0], values) - slopes * np.append(places[0], places)
    pieces = [(1.0, 0.0, *one) for one in zip(slopes, constants, ends[:-1], ends[1:], strict=True)]
    kinks = [(0.0, p, 0.0, *one) for p, *one in zip(places, values, left, right, strict=True)]
    return _Choices(*np.array(list(product(pieces + kinks, repeat=columns))).transpose(2, 0, 1))


def piecewise_moments(regularizer: RowRegularizer, mean: Array, root: Array, curvature: Array) -> RowMoments:
    """The moments of one or two columns; arguments as of `quadrature_moments`.

    One column: closed forms. Two columns: closed forms on parallel lines of sources, which are integrated by panels of
    Gauss-Legendre nodes that end at the polygons' corners, accurate to 1e-10.
    """
    r = mean.shape[1]
    choices = _choices(regularizer, r)
    curvature = curvature + regularizer.ridge * np.eye(r)
    if r == 1:
        return _moments_on_lines(choices, regularizer.ridge, mean[:, None], root[..., 0], np.ones((1, 1)), curvature)
    return RowMoments.of_parts(
        _moments_on_lines(choices, regularizer.ridge, *_lines(regularizer, *row), row[2])
        for row in zip(mean[:, None], root[:, None], curvature[:, None], strict=True)
    )


def _moments_on_lines(
    choices: _Choices, ridge: float | Array, starts: Array, along: Array, weights: Array, curvature: Array
) -> RowMoments:
    """Over sources ``starts + z along``, z standard normal: starts (N, J, r), along (N, r), weights (N, J)."""
    free = choices.free
    fixed = 1.0 - free
    # of the free weights and of the slopes of the others, y = T^-1 (B - offset)
    system = curvature[:, None] * free[:, None, :] + fixed[:, None, :] * np.eye(free.shape[1])
    inverse = np.linalg.inv(system)
    offset = choices.slope + choices.place @ curvature
    centre = np.einsum("ncij,nkcj->nkci", inverse, starts[:, :, None] - offset[:, None])
    slope = (inverse @ along[:, None, :, None])[:, None, ..., 0]
    ends = np.sort(np.stack([(choices.low - centre) / slope, (choices.high - centre) / slope]), axis=0)
    lower = ends[0].max(axis=-1).clip(-_FAR, _FAR)
    mass, first, second = _truncated(lower, np.maximum(lower, ends[1].min(axis=-1).clip(-_FAR, _FAR)))
    mass, first, second = (weights[..., None] * x for x in (mass, first, second))
    # w = c + d z
    c, d = free * centre + choices.place, free * slope
    means = c * mass[..., None] + d * first[..., None]
    products: Any = np.einsum("nkci,nkcj->nij", means, c)
    products += np.einsum("nkci,nkcj->nij", c * first[..., None] + d * second[..., None], np.broadcast_to(d, c.shape))
    total, average = mass.sum(axis=1), means.sum(axis=1)
    penalty = (choices.constant.sum(axis=1) * total).sum(axis=1) + (choices.slope * average).sum(axis=(1, 2))
    return RowMoments(
        first=average.sum(axis=1),
        second=products,
        response=np.einsum("nc,ci,ncij->nij", total, free, inverse),
        penalty=penalty + (ridge / 2 * np.diagonal(products, axis1=1, axis2=2)).sum(axis=1),
        density=total @ ((free != 0) | (choices.place != 0)).mean(axis=1),
    )


def _truncated(lower: Array, upper: Array) -> tuple[Array, Array, Array]:
    """``E[1], E[z], E[z^2]`` of a standard normal z between two ends."""
    # on the left of zero, where no digits are lost
    mirrored = lower > 0
    mass = special.ndtr(np.where(mirrored, -lower, upper)) - special.ndtr(np.where(mirrored, -upper, lower))
    low, high = (np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi) for x in (lower, upper))
    return mass, low - high, mass + lower * low - upper * high


def _lines(regularizer: RowRegularizer, mean: Array, root: Array, curvature: Array) -> tuple[Array, Array, Array]:
    """Parallel lines of sources in the plane, none of which runs along a side of a polygon."""
    inverse = np.linalg.inv(root)
    # sides lie along the axes and the curvature's columns; amid the widest gap they are 22.5 degrees away or more
    sides = inverse @ np.concatenate([np.broadcast_to(np.eye(2), curvature.shape), curvature], axis=2)
    angles = np.sort(np.arctan2(sides[:, 1], sides[:, 0]) % np.pi, axis=1)
    gaps = np.diff(angles, axis=1, append=angles[:, :1] + np.pi)
    widest = gaps.argmax(axis=1)[:, None]
    angle = np.take_along_axis(angles + gaps / 2, widest, axis=1)[:, 0]
    along, across = np.stack([np.cos(angle), np.sin(angle)], axis=1), np.stack([-np.sin(angle), np.cos(angle)], axis=1)
    places, left, right = np.array(regularizer.kinks).T
    kinks = np.array(list(product(places, repeat=2)))
    slopes = np.array([list(product(*ends)) for ends in product(zip(left, right, strict=True), repeat=2)])
    corners = (kinks @ curvature)[:, :, None] + slopes - mean[:, None, None]
    cuts = np.einsum("ni,nij,nkcj->nkc", across, inverse, corners).reshape(len(mean), -1).clip(-REACH, REACH)
    ends = np.full((len(mean), 1), REACH)
    z, weights = panels(np.concatenate([-ends, cuts, ends], axis=1), _PANELS, _ORDER)
    starts = mean[:, None] + z[..., None] * (root @ across[..., None]).mT
    return starts, (root @ along[..., None])[..., 0], weights
