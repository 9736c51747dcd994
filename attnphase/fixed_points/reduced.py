"""The fixed-point equations with the size of m or theta held: what is left is one curve, whose zero is the branch.

Under the symmetry ``W -> -W`` m and theta are odd, q and V even. With the amplitude ``a`` of the odd ones held, all
others settle; ``growth(a)`` is by what share one map then enlarges the odd ones. A branch is a zero of it, a continuous
onset is ``growth(0) = 0``. Near such a point the zero moves far for a small error of the map, so that a derivative at
the zero tells little; the curve with its error tells where the zero can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnphase.arrays import Array
from attnphase.fixed_points.iteration import Anderson, iterate
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.onset import multiplier_at, odd_coordinates

__all__ = ["Level", "at_rest", "displaced", "growth_noise", "level_at", "levels_at"]

_TOLERANCE = 1e-3  # of what settles at a level: the growth there is known no better
_MAPS = 12


@dataclass(frozen=True, eq=False)
class Level:
    """One amplitude of the odd coordinates.

    Attributes
    ----------
    amplitude : float
        Norm of the odd coordinates.
    point : (D,) array
        With all others settled.
    images : (S, D) array
        Of the replicates, at the point.
    growth : (S,) array
        Of the replicates; their mean is that of all.
    """

    amplitude: float
    point: Array
    images: Array
    growth: Array

    @property
    def value(self) -> float:
        """Growth by all replicates together."""
        return float(self.growth.mean())

    @property
    def stderr(self) -> float:
        """Standard error of the growth."""
        return float(self.growth.std(ddof=1) / np.sqrt(len(self.growth)))

    def exceeds(self, errors: float) -> bool:
        """Whether the odd coordinates grow here beyond so many standard errors."""
        return self.value > errors * self.stderr

    def falls_short(self, errors: float) -> bool:
        """Whether they shrink here beyond so many standard errors."""
        return self.value < -errors * self.stderr


def at_rest(map_: StateEvolution, x: Array) -> Level | None:
    """The uninformed point near ``x``, and the multiplier less one as its growth; None where there is no multiplier."""
    odd = odd_coordinates(map_)
    point = _settled(map_, _scaled(x, odd, 0.0), odd)
    multiplier = None if point is None else multiplier_at(map_, point)
    if point is None or multiplier is None:
        return None
    return Level(0.0, point, _images(map_), multiplier.replicates - 1)


def level_at(map_: StateEvolution, x: Array, amplitude: float) -> Level | None:
    """The level of an amplitude, from a point ``x`` whose odd coordinates do not vanish; None outside the domain."""
    odd = odd_coordinates(map_)
    point = _settled(map_, _scaled(x, odd, amplitude), odd)
    if point is None or map_(point, refresh=True) is None:
        return None
    assert map_.last is not None
    image = map_.image(map_.last.conjugates.mean())
    assert image is not None
    images = _images(map_)
    along = point[odd] / amplitude
    growth = (map_.pack(image)[odd] @ along) / amplitude - 1
    return Level(amplitude, point, images, growth + (images - images.mean(axis=0))[:, odd] @ along / amplitude)


def levels_at(map_: StateEvolution, x: Array, amplitudes: Sequence[float]) -> list[Level]:
    """Levels of several amplitudes, each from the one before; those outside the domain are left out."""
    found: list[Level] = []
    for amplitude in amplitudes:
        level = level_at(map_, found[-1].point if found else x, amplitude)
        if level is not None:
            found.append(level)
    return found


def growth_noise(map_: StateEvolution, x: Array) -> float:
    """Standard error of the growth at a fixed point with an order parameter; nothing is evaluated twice."""
    if map_.at is None or not np.array_equal(map_.at, x):
        map_(x)
    images, odd = _images(map_), odd_coordinates(map_)
    along = images[:, odd] @ x[odd] / (x[odd] @ x[odd])
    return float(along.std(ddof=1) / np.sqrt(len(along)))


def displaced(level: Level, jacobian: Array, odd: Array) -> tuple[Level, Array]:
    """The level with the replicates' displacements of what settles in their growth, and these (S, D).

    A replicate's map lets the others settle elsewhere, by ``(I - J)^-1 dF`` at the amplitude held.
    """
    change = level.images - level.images.mean(axis=0)
    along, held = np.zeros(len(level.point)), np.eye(len(level.point))
    if level.amplitude == 0:
        held[odd, odd] = 0.0
    else:
        along[odd] = level.point[odd] / level.amplitude
        held -= np.outer(along, along)
    moved = np.linalg.lstsq(np.eye(len(along)) - held @ jacobian @ held, held @ change.T, rcond=1e-12)[0].T
    if level.amplitude == 0:
        return level, moved
    return replace(level, growth=level.growth + moved @ (along @ jacobian) / level.amplitude), moved


def _settled(map_: StateEvolution, x: Array, odd: Array) -> Array | None:
    """Everything but the odd coordinates' norm at rest."""
    norm = float(np.linalg.norm(x[odd]))

    def constrained(point: Array) -> Array | None:
        image = map_(point)
        if image is None:
            return None
        size = float(np.linalg.norm(image[odd]))
        turned = image[odd] * np.copysign(norm / size, image[odd] @ point[odd]) if norm and size else point[odd]
        return _with(image, odd, turned)

    found = iterate(constrained, x, map_.scales, Anderson(mixing=0.5), tolerance=_TOLERANCE, max_maps=_MAPS)
    return found.point if np.isfinite(found.residual) else None


def _scaled(x: Array, odd: Array, amplitude: float) -> Array:
    """The point with its odd coordinates at an amplitude."""
    norm = float(np.linalg.norm(x[odd]))
    return _with(x, odd, x[odd] * (amplitude / norm) if norm else 0 * x[odd])


def _with(x: Array, odd: Array, values: Array) -> Array:
    copy = x.copy()
    copy[odd] = values
    return copy


def _images(map_: StateEvolution) -> Array:
    """Images of the replicates of the last evaluation."""
    assert map_.last is not None
    images = map_.prior.of_replicates(map_.last.conjugates, lift=True)
    assert images is not None
    return np.stack([map_.pack(image) for image in images])
