"""Points at which facts are asked: fields of a problem's own size, smaller and larger ones, and between all kinks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array

__all__ = ["SCALES", "Block", "Points", "points_of"]

SCALES = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Of fields, in their standard deviations: beyond the last a normal variable has a probability of 1e-197."""
_OWN = SCALES.index(1.0)
_EACH = 3  # points of one size: two tell a spread, and a third coincidences
_LINES, _STEPS = 4, 48  # random lines along which kinks are looked for, and points on each of their sides
_MOST_CELLS = 256  # between kinks, at which a fact is asked in double precision
_MOST_EXACT = 24  # and in many digits

Kinks = Callable[[Array], Array]
"""Of points (N, F), the arguments (N, K) of all functions that have a kink or a jump where these vanish."""


@dataclass(frozen=True, eq=False)
class Block:
    """Fields that have one size: the student's, the teacher's, the noise.

    Attributes
    ----------
    means, deviations : (F,) arrays
    """

    means: Array
    deviations: Array


@dataclass(frozen=True, eq=False)
class Points:
    """Where a fact is asked.

    Attributes
    ----------
    values : (N, F) array
    groups : (N,) array of int
        Points of one size, within which values are compared with what they vary by.
    exact : (n,) array of int
        Places of the points at which it is asked in many digits; at all of them it is in double precision.
    """

    values: Array
    groups: NDArray[np.intp]
    exact: NDArray[np.intp]

    def subset(self, places: NDArray[np.intp]) -> Points:
        """Some of them, in their order."""
        new = {old: new for new, old in enumerate(places.tolist())}
        exact = np.array([new[one] for one in self.exact.tolist() if one in new], dtype=np.intp)
        return Points(self.values[places], self.groups[places], exact)


def points_of(blocks: Sequence[Block], kinks: Kinks | None = None, *, each: int = _EACH, seed: int = 20) -> Points:
    """Random points of all sizes, of all blocks alike and of each beside others of ordinary size, and between kinks.

    Those of ordinary size are the first.

    Parameters
    ----------
    blocks : sequence of Block
    kinks : callable, optional
    each : int
        Points of every size.
    seed : int
    """
    generator = np.random.default_rng(seed)
    means, deviations = (np.concatenate([getattr(one, name) for one in blocks]) for name in ("means", "deviations"))
    widths = [len(one.means) for one in blocks]
    used = [place for place, width in enumerate(widths) if width]
    sizes = [[scale] * len(blocks) for scale in SCALES]
    sizes.insert(0, sizes.pop(_OWN))
    if len(used) > 1:
        sizes += [
            [scale if place == own else 1.0 for place in range(len(blocks))]
            for own in used
            for scale in SCALES
            if scale != 1.0
        ]
    normals = generator.standard_normal((len(sizes), each, len(means)))
    scales = np.array([np.repeat(one, widths) for one in sizes])
    values = (means + deviations * scales[:, None] * normals).reshape(-1, len(means))
    groups = np.repeat(np.arange(len(sizes)), each)
    exact = np.arange(len(values))
    if kinks is None or not len(means):
        return Points(values, groups, exact)
    between, own = _between(kinks, means, deviations, generator)
    chosen = np.unique(np.linspace(0, len(between) - 1, min(_MOST_EXACT, len(between))).round().astype(int))
    return Points(
        np.concatenate([values, between]),
        np.concatenate([groups, own]),
        np.concatenate([exact, len(values) + chosen]).astype(np.intp),
    )


def _between(
    kinks: Kinks, means: Array, deviations: Array, generator: np.random.Generator
) -> tuple[Array, NDArray[np.intp]]:
    """Points in the cells between kinks that random lines cross, and the group of points of their size."""
    side = np.geomspace(SCALES[0], SCALES[-1], _STEPS)
    along = np.concatenate([-side[::-1], [0.0], side])
    normals = deviations * generator.standard_normal((_LINES, len(means)))

    def at(line: NDArray[np.intp], t: Array) -> Array:
        return means + normals[line] * t[:, None]

    found, sizes = list[Array](), list[float]()
    for line, roots in enumerate(_roots(lambda line, t: kinks(at(line, t)), along)):
        if len(roots):
            ends = np.concatenate([[along[0]], roots, [along[-1]]])
            middles = (ends[1:] + ends[:-1]) / 2
            found.append(at(np.full(len(middles), line), middles))
            sizes += np.abs(middles).tolist()
    if not found:
        return np.empty((0, len(means))), np.empty(0, dtype=np.intp)
    points = np.concatenate(found)
    chosen = np.unique(np.linspace(0, len(points) - 1, min(_MOST_CELLS, len(points))).round().astype(int))
    ordered = np.array([SCALES[_OWN], *(one for one in SCALES if one != 1.0)])  # as groups are
    apart = np.abs(np.log(np.maximum(sizes, 1e-300))[:, None] - np.log(ordered))
    return points[chosen], apart.argmin(axis=1)[chosen]


def _roots(kinks: Callable[[NDArray[np.intp], Array], Array], along: Array) -> list[Array]:
    """Where along every line the arguments of kinks change their signs, in order, by bisection of all at once."""
    with np.errstate(all="ignore"):
        each = np.repeat(np.arange(_LINES), len(along))
        negative = np.signbit(kinks(each, np.tile(along, _LINES))).reshape(_LINES, len(along), -1)
        line, place, which = np.nonzero(negative[:, 1:] != negative[:, :-1])
        low, high, sign = along[place], along[place + 1], negative[line, place, which]
        for _ in range(52 if len(line) else 0):
            middle = (low + high) / 2
            left = np.signbit(kinks(line, middle)[np.arange(len(which)), which]) == sign
            low, high = np.where(left, middle, low), np.where(left, high, middle)
    return [np.unique((low + high)[line == one] / 2) for one in range(_LINES)]
