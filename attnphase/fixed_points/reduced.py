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
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.fixed_points.iteration import Anderson, Damped, FixedPoint, Method, Newton, Status, iterate
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.onset import growth_within

__all__ = [
    "Level",
    "at_rest",
    "growth_noise",
    "highest_zero",
    "level_at",
    "levels_at",
    "shrinking_down_to",
    "with_displacements",
]

_TOLERANCE = 1e-3  # of what settles at a level: the growth there is known no better
_TOPS = 2
_NEAR = 0.03  # share of its amplitude by which a top must be off the highest level
_BY_CHANCE = 2.0  # standard errors
_EDGE = 1.1  # by what the odd coordinates may be enlarged, unless they lie at the edge of the domain
_SECANTS = 3  # steps to a zero, behind which Newton's method takes over
_REACH = 1.0  # share of themselves by which even coordinates are moved ahead at most
_FAR = 0.1  # share of itself by which a level may settle beside where its minima have been searched for
_UNSETTLED = 20  # tolerances: what has not come to rest tells nothing


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
    jacobian : (D, D) array or None
        Of what settles, as Newton's method left it, beside the one that it was given of the others; None where another
        method was needed.
    """

    amplitude: float
    point: Array
    images: Array
    growth: Array
    jacobian: Array | None = None

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


def at_rest(map_: StateEvolution, x: Array, jacobian: Array | None = None) -> Level | None:
    """The uninformed point near ``x``, and the multiplier less one as its growth; None where there is no multiplier.

    A Jacobian of the map somewhere near spares evaluations.
    """
    odd = map_.sector.odd
    found, newton = _settled(map_, x, _moved_to(map_, x, odd, 0.0, jacobian), odd, jacobian)
    if found is None or found.residual > _UNSETTLED * _TOLERANCE:
        return None
    multiplier = growth_within(map_, found.point)
    return None if multiplier is None else Level(0.0, found.point, map_.images(), multiplier.replicates - 1, newton)


def level_at(map_: StateEvolution, x: Array, amplitude: float, jacobian: Array | None = None) -> Level | None:
    """The level of an amplitude, from a point ``x`` whose odd coordinates do not vanish; None outside the domain.

    Its growth is unknown, NaN, where the others do not settle. A Jacobian of the map somewhere near spares evaluations.
    """
    odd = map_.sector.odd
    start = _moved_to(map_, x, odd, amplitude, jacobian)
    map_(start, refresh=True)
    found, newton = _settled(map_, x, start, odd, jacobian)
    if found is None:
        return None
    # minima that are known are followed over the little that is left to settle
    far = np.max(np.abs(found.point - start) / map_.scales(found.point)) > _FAR
    image = map_(found.point, refresh=bool(far))
    if image is None:
        return None
    point, images = found.point, map_.images()
    along = point[odd] / amplitude
    growth = (image[odd] @ along) / amplitude - 1
    if found.residual > _UNSETTLED * _TOLERANCE:
        if not map_.unpack(_scaled(point, odd, _EDGE * amplitude)).feasible(map_.system.spectrum.rho):
            return None
        growth = np.nan
    growth = growth + (images - images.mean(axis=0))[:, odd] @ along / amplitude
    return Level(amplitude, point, images, growth, newton)


def levels_at(
    map_: StateEvolution,
    x: Array,
    amplitudes: Sequence[float],
    jacobian: Array | None = None,
    coarser: Sequence[Level] = (),
) -> list[Level]:
    """Levels of falling amplitudes, each from the one before, and where the growth has a top between them, that one.

    Those outside the domain are left out. A level of the same amplitude under a coarser rule is a better start.
    """
    found: list[Level] = []
    settled = {level.amplitude: level for level in coarser if np.isfinite(level.value)}
    for amplitude in amplitudes:
        start = next((level for level in reversed(found) if np.isfinite(level.value)), None)
        start = settled.get(amplitude, start)
        own = None if start is None else start.jacobian
        level = level_at(map_, x if start is None else start.point, amplitude, jacobian if own is None else own)
        if level is not None:
            found.append(level)
    for _ in range(_TOPS):
        top = _top(found)
        level = None if top is None else level_at(map_, *top)
        if level is None:
            break
        found.append(level)
        found.sort(key=lambda one: -one.amplitude)
    return found


def shrinking_down_to(
    map_: StateEvolution, x: Array, amplitudes: Sequence[float], errors: float, jacobian: Array | None = None
) -> Level | None:
    """The last of falling amplitudes down to which the odd coordinates shrink, beyond so many errors at each.

    None if they do not at the first one.
    """
    found: Level | None = None
    for amplitude in amplitudes:
        level = level_at(map_, x if found is None else found.point, amplitude, jacobian)
        if level is None or not level.falls_short(errors):
            break
        found = level
    return found


def highest_zero(
    map_: StateEvolution, x: Array, amplitudes: Sequence[float], jacobian: Array | None = None
) -> Array | None:
    """A point near the largest amplitude at which the growth ends; None if it is nowhere seen to end.

    Amplitudes fall, from one at which the odd coordinates shrink: at small ones chance decides about the growth.
    """
    above: Level | None = None
    for amplitude in amplitudes:
        level = level_at(map_, x, amplitude, jacobian)
        if level is None or np.isnan(level.value):
            continue
        x = level.point
        if level.value > 0:
            return None if above is None else _between(map_, level, above, jacobian)
        above = level
    return None


def _between(map_: StateEvolution, below: Level, above: Level, jacobian: Array | None) -> Array:
    """A point near the zero of the growth between two levels."""
    for _ in range(_SECANTS):
        share = below.value / (below.value - above.value)
        amplitude = below.amplitude + share * (above.amplitude - below.amplitude)
        level = level_at(map_, below.point, amplitude, jacobian)
        if level is None or np.isnan(level.value):
            break
        below, above = (level, above) if level.value > 0 else (below, level)
    return min((below, above), key=lambda level: abs(level.value)).point


def _top(levels: Sequence[Level]) -> tuple[Array, float, Array | None] | None:
    """The highest level between lower ones, where the parabola through the three has its top, and a Jacobian there."""
    known = [level for level in levels if np.isfinite(level.value)]
    inner = range(1, len(known) - 1)
    tops = [i for i in inner if all(_lies_above(known[i], known[i + side]) for side in (-1, 1))]
    if not tops:
        return None
    i = max(tops, key=lambda j: known[j].value)
    if known[i].value > 0:
        return None  # nothing is asked for any more
    (a, b, c), (f, g, h) = zip(*((level.amplitude, level.value) for level in known[i - 1 : i + 2]), strict=True)
    upper, lower = (b - a) ** 2 * (g - h) - (b - c) ** 2 * (g - f), (b - a) * (g - h) - (b - c) * (g - f)
    top = b - upper / (2 * lower)
    return None if abs(top - b) < _NEAR * b else (known[i].point, top, known[i].jacobian)


def _lies_above(level: Level, other: Level) -> bool:
    """Whether a level is higher than another, by more than chance."""
    change = level.growth - other.growth
    return float(change.mean()) > _BY_CHANCE * float(change.std(ddof=1)) / np.sqrt(len(change))


def growth_noise(map_: StateEvolution, x: Array, jacobian: Array) -> float:
    """Standard error of the growth at a fixed point with an order parameter, with derivatives of the map there.

    What settles follows a replicate's map, which takes back a part of what that does to the order parameter.
    """
    map_(x)
    odd, images = map_.sector.odd, map_.images()
    amplitude = float(np.linalg.norm(x[odd]))
    growth = (images - images.mean(axis=0))[:, odd] @ x[odd] / amplitude**2
    level, _ = with_displacements(Level(amplitude, x, images, growth), jacobian, odd)
    return level.stderr


def with_displacements(level: Level, jacobian: Array, odd: NDArray[np.int64]) -> tuple[Level, Array]:
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


def _settled(
    map_: StateEvolution, before: Array, x: Array, odd: NDArray[np.int64], jacobian: Array | None = None
) -> tuple[FixedPoint | None, Array | None]:
    """Everything but the odd coordinates' norm at rest, or as near as it came, from ``x``; None outside the domain.

    With it the Jacobian by which Newton's method brought it there, None if that was another method. The one given is
    of the point ``before``, which may have another amplitude.
    """
    norm = float(np.linalg.norm(x[odd]))

    def constrained(point: Array) -> Array | None:
        image = map_(point)
        if image is None:
            return None
        size = float(np.linalg.norm(image[odd]))
        turned = image[odd] * np.copysign(norm / size, image[odd] @ point[odd]) if norm and size else point[odd]
        return _with(image, odd, turned)

    found = FixedPoint(x, x, np.inf, 0, Status.left_domain)
    # where the map turns far over, small steps first
    methods: list[tuple[Method, int]] = [(Anderson(mixing=0.3), 15), (Damped(0.85), 20), (Anderson(mixing=0.15), 25)]
    if jacobian is not None:
        held = jacobian.copy()
        held[odd], held[:, odd] = 0.0, 0.0
        methods.insert(0, (Newton(held), 8))
    for method, maps in methods:
        start = found.point if np.isfinite(found.residual) else x
        found = iterate(constrained, start, map_.scales, method, tolerance=_TOLERANCE, max_maps=maps)
        if found.residual <= _UNSETTLED * _TOLERANCE:
            return found, _learnt(jacobian, method, odd, norm / (float(np.linalg.norm(before[odd])) or 1.0))
    return found if np.isfinite(found.residual) else None, None


def _learnt(given: Array | None, method: Method, odd: NDArray[np.int64], share: float) -> Array | None:
    """What Newton's method knows at its end of what settles, and of the rest what was given.

    Across the parities derivatives are odd functions of the amplitude, which now is a share of what it was.
    """
    if given is None or not isinstance(method, Newton) or method.jacobian is None:
        return None
    learnt, even = given.copy(), np.setdiff1d(np.arange(len(given)), odd)
    learnt[np.ix_(even, even)] = method.jacobian[np.ix_(even, even)]
    learnt[np.ix_(even, odd)] *= share
    learnt[np.ix_(odd, even)] *= share
    return learnt


def _moved_to(
    map_: StateEvolution, x: Array, odd: NDArray[np.int64], amplitude: float, jacobian: Array | None
) -> Array:
    """The point with its odd coordinates at an amplitude, and the others about where they settle then.

    They are even in the amplitude, and derivatives at ``x`` tell how they answer to it there.
    """
    plain, norm = _scaled(x, odd, amplitude), float(np.linalg.norm(x[odd]))
    if jacobian is None or not norm or not np.isfinite(jacobian).all():
        return plain
    even = np.setdiff1d(np.arange(len(x)), odd)
    system = np.eye(len(even)) - jacobian[np.ix_(even, even)]
    answer = np.linalg.lstsq(system, jacobian[np.ix_(even, odd)] @ x[odd], rcond=1e-10)[0]
    moved = plain.copy()
    moved[even] += ((amplitude / norm) ** 2 - 1) / 2 * answer
    # further than so a parabola does not reach
    near = np.abs(moved - plain) <= _REACH * np.abs(plain)
    return moved if near.all() and map_.unpack(moved).feasible(map_.system.spectrum.rho) else plain


def _scaled(x: Array, odd: NDArray[np.int64], amplitude: float) -> Array:
    """The point with its odd coordinates at an amplitude."""
    norm = float(np.linalg.norm(x[odd]))
    return _with(x, odd, x[odd] * (amplitude / norm) if norm else 0 * x[odd])


def _with(x: Array, odd: NDArray[np.int64], values: Array) -> Array:
    copy = x.copy()
    copy[odd] = values
    return copy
