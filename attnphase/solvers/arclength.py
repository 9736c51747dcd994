"""Curves of roots of ``G(x, p) = 0``: a predictor along the tangent, a corrector across it, steps that adapt.

The curve is parametrised by its own length, so that a fold, where ``p`` turns back, is a point like any other.
Everything is in variables of order one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np

from attnphase.arrays import Array

__all__ = ["CurvePoint", "Implicit", "Steps", "corrected", "tangent_of", "trace", "turned_back"]

_FEW, _MANY = 8, 10  # evaluations of a corrector by which a step grows, and of Newton's method between two looks
_LOOKS = 4  # careful ones
_STRAIGHT, _BENT = 0.98, 0.85  # cosines between two tangents by which a step grows, and by which it is halved
_CAREFUL = 0.25  # share of the first step from which on a bend, or a jump of G, is taken for the curve's own
_REACH = 0.5  # largest entry of a Newton step, or share of one that is large


class Implicit(Protocol):
    """``G`` at a place ``(x, p)``, (D + 1,), of D equations, or of as many as unknowns; None outside the domain."""

    def quick(self, place: Array) -> Array | None:
        """``G`` (D,), by what is known from the place before."""
        ...

    def careful(self, place: Array) -> Array | None:
        """``G`` (D,), anew."""
        ...

    def derivative(self, place: Array) -> Array | None:
        """``dG/d(x, p)``, (D, D + 1)."""
        ...


@dataclass(frozen=True)
class Steps:
    """How a curve is traced.

    Attributes
    ----------
    first, smallest, largest : float
        Lengths of a step, in variables of order one, and relative to a variable that has grown larger.
    tolerance : float
        On the largest entry of ``G``.
    loose : float
        Likewise, of a place beside which ``G`` jumps over zero.
    most : int
        Points after which a trace ends.
    """

    first: float = 0.1
    smallest: float = 1e-3
    largest: float = 0.4
    tolerance: float = 1e-8
    loose: float = 1e-3
    most: int = 400


@dataclass(frozen=True, eq=False)
class Corrected:
    """A root in a plane.

    Attributes
    ----------
    place : (D + 1,) array
    residual : float
        Largest entry of ``G`` by a careful look; infinite if the domain was left.
    evaluations : int
    jacobian : (D, D + 1) array
        ``dG/d(x, p)`` as Broyden's formula has left it.
    """

    place: Array
    residual: float
    evaluations: int
    jacobian: Array


@dataclass(eq=False)
class CurvePoint:
    """A point of a curve; who reads a trace may put better derivatives into a point before the next one is taken.

    Attributes
    ----------
    place : (D + 1,) array
        ``(x, p)``.
    tangent : (D + 1,) array
        Of length one, in the direction of travel.
    jacobian : (D, D + 1) array
        ``dG/d(x, p)``, as correctors on the way have learnt it.
    """

    place: Array
    tangent: Array
    jacobian: Array


def tangent_of(jacobian: Array, along: Array) -> Array:
    """The direction in which ``G`` does not change, on the side of ``along``."""
    null = np.linalg.svd(jacobian)[2][-1]
    return null if null @ along >= 0 else -null


def corrected(curve: Implicit, guess: Array, across: Array | None, jacobian: Array, tolerance: float) -> Corrected:
    """The root nearest to a guess in the plane through it that ``across`` is normal to; of as many equations, none.

    Newton's method with the given derivatives, kept up to date by Broyden's formula: quickly, until a careful look
    agrees.
    """
    matrix = np.vstack([jacobian, *([] if across is None else [across])])
    count = len(jacobian)
    place, total = guess, 0
    best, size = guess, np.inf
    for _ in range(_LOOKS):
        place, quick = _newton(curve, matrix, count, place, guess, tolerance)
        value = curve.careful(place)
        total += quick + 1
        if value is None:
            break
        if np.abs(value).max() < size:
            best, size = place, float(np.abs(value).max())
        if size <= tolerance:
            break
    return Corrected(best, size, total, matrix[:count])


def _newton(
    curve: Implicit, matrix: Array, count: int, start: Array, guess: Array, tolerance: float
) -> tuple[Array, int]:
    """The best place that quick looks find, and their number; the first ``count`` rows of ``matrix`` are kept up."""
    place, value = start, curve.quick(start)
    if value is None:
        return start, 1
    best, size = place, float(np.abs(value).max())
    for number in range(1, _MANY):
        if np.abs(value).max() <= tolerance or not np.isfinite(matrix).all():
            return best, number
        try:  # by elimination no rounding leads out of a plane on the edge of the domain
            step = np.linalg.solve(matrix, np.append(-value, matrix[count:] @ (guess - place)))
        except np.linalg.LinAlgError:
            return best, number
        step *= min(1.0, _REACH / max(float(np.abs(step / np.maximum(1.0, np.abs(place))).max()), 1e-300))
        image = curve.quick(place + step)
        if image is None:
            return best, number + 1
        change = image - value - matrix[:count] @ step
        matrix[:count] += np.outer(change, step) / max(float(step @ step), 1e-300)
        place, value = place + step, image
        if np.abs(value).max() < size:
            best, size = place, float(np.abs(value).max())
    return best, _MANY


def trace(curve: Implicit, start: Array, along: Array, steps: Steps) -> Iterator[CurvePoint]:
    """The points of a curve one after another, from a root on.

    Parameters
    ----------
    curve : Implicit
    start : (D + 1,) array
        A root.
    along : (D + 1,) array
        On which side the curve is followed.
    steps : Steps

    Yields
    ------
    CurvePoint
        The start first. The trace ends by itself where no step leads on, and with a point at which it comes back along
        itself.
    """
    jacobian = curve.derivative(start)
    if jacobian is None:
        return
    points = [CurvePoint(start, tangent_of(jacobian, along), jacobian)]
    yield points[0]
    length = steps.first
    while len(points) < steps.most and turned_back(points, steps) is None:
        found = _advanced(curve, points[-1], length, steps)
        if found is None:
            return
        here, length = found
        points.append(here)
        yield here


def turned_back(points: Sequence[CurvePoint], steps: Steps) -> int | None:
    """The number of the point where a trace turned round, if its last step goes back on what it had come along before.

    Where single nodes change their minima G jumps, and so do the tangents by which the direction of travel is known. On
    a part that was traced before, the curve is as far from the chord between two points as their tangents bend, and
    roots are known as well as G jumps. Two sides of a fold lie further apart wherever they run against each other.
    """
    if len(points) < 3:
        return None
    here = points[-1].place
    travel = here - points[-2].place
    for i, (a, b) in enumerate(pairwise(points[:-1])):
        chord, offset = b.place - a.place, here - a.place
        length = float(np.linalg.norm(chord))
        share = float(chord @ offset) / length**2
        if not 0 <= share <= 1 or travel @ chord > -_BENT * length * np.linalg.norm(travel):
            continue
        sagitta = length * np.arccos(min(1.0, float(a.tangent @ b.tangent))) / 8  # of an arc of this chord and angle
        if np.linalg.norm(offset - share * chord) <= sagitta + steps.loose:
            return i + 1 + int(np.argmax([np.linalg.norm(one.place - here) for one in points[i + 1 :]]))
    return None


def _advanced(curve: Implicit, here: CurvePoint, length: float, steps: Steps) -> tuple[CurvePoint, float] | None:
    """The next point and the length of the step after it; None where no step leads on."""
    learnt = True
    while length >= steps.smallest:
        found = _stepped(curve, here, length, steps, careful=length <= _CAREFUL * steps.first)
        if found is not None:
            point, easy = found
            return point, min(1.5 * length, steps.largest) if easy else length
        if learnt and (jacobian := curve.derivative(here.place)) is not None:
            here, learnt = replace(here, jacobian=jacobian, tangent=tangent_of(jacobian, here.tangent)), False
        length /= 2
    for leap in (steps.first, steps.largest, 2 * steps.largest):  # over a place where G jumps
        found = _stepped(curve, here, leap, steps, careful=True)
        if found is not None:
            return found[0], steps.first
    return None


def _stepped(
    curve: Implicit, here: CurvePoint, length: float, steps: Steps, *, careful: bool
) -> tuple[CurvePoint, bool] | None:
    """One step, and whether it was easy; None if it did not end on the curve, or too far away."""
    units = np.append(np.maximum(1.0, np.abs(here.place[:-1])), 1.0)
    along = here.tangent / units / np.linalg.norm(here.tangent / units)
    found = corrected(curve, here.place + length * along * units, along / units, here.jacobian, steps.tolerance)
    place, chord = found.place, (found.place - here.place) / units
    moved = float(np.linalg.norm(chord))
    if found.residual > (steps.loose if careful else steps.tolerance) or moved > 2 * length:
        return None
    # a tangent that is far from the step it led to was none: learnt derivatives have lost the curve
    learnt = length >= _BENT * moved
    jacobian = found.jacobian if learnt else curve.derivative(place)
    if jacobian is None:
        return None
    tangent = tangent_of(jacobian * units, along)
    cosine = float(tangent @ along) if learnt else float(tangent @ chord) / moved
    if cosine < _BENT and not careful:
        return None
    tangent = tangent * units / np.linalg.norm(tangent * units)
    return CurvePoint(place, tangent, jacobian), found.evaluations <= _FEW and cosine >= _STRAIGHT
