"""Where the free entropies of the fixed point next to full knowledge and of the others cross.

Along the curve of fixed points alpha rises and falls in turn.  Points where it rises are stable: every stretch of these
is a branch, which the plain iteration leads to.  The derivative of the free entropy in alpha grows with what is known,
so that the last branch crosses the highest of the others once: above it the informed fixed point is Bayes-optimal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from attnphase.arrays import Array
from attnphase.state_evolution.branches import ERRORS

__all__ = [
    "PRECISION",
    "AllKnown",
    "Branches",
    "PointAtShare",
    "branches",
    "crossing",
    "remainder",
    "root",
    "scatter",
]

PRECISION = 1e-10
"""Relative precision of the sample complexity of a point, as a root."""

_JUMP = 1e-3  # relative change of alpha that counts, where it has errors that replicates share
_MOST_HALVINGS = 8  # of steps along the curve: alpha turns by the third power of a step that hides two turns
_MOST_LEFT = 0.9  # of a step of alpha, in the next one
_FLAT = 0.3  # of the square root of alpha's relative error, which hides a turning point up to there
_NEAR = 1e-5  # relative distance of a point, whose square is the error of a line
_MOST_SEARCHED, _MOST_STEPS, _ROUNDS = 25, 12, 2


@dataclass(frozen=True, eq=False)
class PointAtShare:
    """A fixed point with a given share known.

    Attributes
    ----------
    rest, alpha : float
        The share that is unknown: next to full knowledge the other one has no digits of it.
    alphas : (S,) array
        Of the replicates by themselves.
    free_entropies, slopes : (S,) arrays
        Of the replicates, with the derivative in alpha: the mean logarithm of the evidence.
    V : (P, t, t) array
    told : float
        Share of what is unknown before a label that the label tells.
    precision : float
        Relative error of the sample complexity that all replicates have in common.
    certain : bool
        Whether it has no other one: V is a single number, and means are sums.
    """

    rest: float
    alpha: float
    alphas: Array
    free_entropies: Array
    slopes: Array
    V: Array
    told: float
    precision: float = PRECISION
    certain: bool = False

    @property
    def share(self) -> float:
        """The share that is known."""
        return 1 - self.rest

    @property
    def odds(self) -> float:
        """Logarithm of the share that is known over that which is not."""
        return float(np.log1p(-self.rest) - np.log(self.rest))

    @property
    def share_text(self) -> str:
        """The share that is known, for readers."""
        return f"{self.share:.4g}" if self.rest > 1e-2 else f"1 - {self.rest:.2g}"

    @property
    def slope(self) -> float:
        """Mean derivative of the free entropy."""
        return float(self.slopes.mean())

    @property
    def error(self) -> float:
        """Standard error of the sample complexity."""
        return float(np.hypot(scatter(self.alphas), self.precision * self.alpha))

    def change_that_counts(self, other: PointAtShare) -> float:
        """By how much alpha must differ from that of another point to be told from it."""
        least = ERRORS * self.precision if self.certain else _JUMP
        return max(least * other.alpha, ERRORS * scatter(self.alphas - other.alphas))


At = Callable[[float, Array], PointAtShare]
"""The fixed point with a share unknown, from V near it."""


@dataclass(frozen=True, eq=False)
class AllKnown:
    """Weights of finitely many values, of which exponentially little is unknown.

    Attributes
    ----------
    entropy : float
        Free entropy without labels: the mean logarithm of the probability of a row.
    slopes : (S,) array
        Derivative in alpha of every replicate.
    """

    entropy: float
    slopes: Array

    def free_entropies(self, alpha: float) -> Array:
        """Of the replicates, (S,)."""
        return self.entropy + alpha * self.slopes


@dataclass(frozen=True, eq=False)
class Branches:
    """A curve of fixed points in stretches on which alpha rises.

    Attributes
    ----------
    stable : list of list of PointAtShare
        The more is known, the later; the first begins where the curve does.
    summits : list of PointAtShare
        Where alpha is largest between two of them: the ends of all but the last, or of all.
    end : PointAtShare
        The last point that was looked at.
    limit : tuple of float
        The sample complexity there, and its error as that of the one where everything is known.
    """

    stable: list[list[PointAtShare]]
    summits: list[PointAtShare]
    end: PointAtShare
    limit: tuple[float, float]

    @property
    def falls_to_the_end(self) -> bool:
        """Whether alpha falls as far as the curve was looked at."""
        return len(self.summits) == len(self.stable)


def branches(at: At, curve: list[PointAtShare], origin: PointAtShare) -> Branches:
    """The branches of a curve, with its turning points.

    Parameters
    ----------
    at : callable
    curve : list of PointAtShare
        The more is known, the later.
    origin : PointAtShare
        The point without labels.
    """
    end, left = curve[-1], remainder(curve)
    curve = _closer(at, curve)
    places = _turns(curve)
    turns = [_refined(at, curve, place, 1.0 if number % 2 else -1.0) for number, place in enumerate(places)]
    ends = [-np.inf, *(turn.odds for turn in turns), np.inf]
    stable = []
    for first in range(0, len(ends) - 1, 2):
        inner = [point for point in curve if ends[first] < point.odds < ends[first + 1]]
        stable.append([*turns[max(first - 1, 0) : first], *inner, *turns[first : first + 1]])
    stable[0].insert(0, origin)
    return Branches(stable, turns[::2], end, (end.alpha, float(np.hypot(end.error, left))))


def _closer(at: At, curve: list[PointAtShare]) -> list[PointAtShare]:
    """The curve with more points where it may turn and turn back within a step: where alpha hardly changes.

    The cubic through four points, steepest at its ends, says whether its slope may vanish between them.
    """
    for _ in range(_MOST_HALVINGS):
        odds, alphas = np.array([[point.odds, point.alpha] for point in curve]).T
        slopes, steps = np.diff(alphas) / np.diff(odds), set[int]()
        for i in range(1, len(slopes) - 1):
            sizes = slopes[i - 1 : i + 2] * np.sign(slopes[i])
            four = curve[i - 1 : i + 3]
            seen = any(abs(after.alpha - one.alpha) > after.change_that_counts(one) for one, after in pairwise(four))
            if seen and 0 < sizes[1] < min(sizes[0], sizes[2]):
                cube, square, line, _ = np.polyfit(odds[i - 1 : i + 3] - odds[i], alphas[i - 1 : i + 3], 3)
                least = line - square**2 / (3 * cube)
                steps |= {i - 1, i, i + 1} if least * np.sign(slopes[i]) < sizes[1] / 2 else set()
        if not steps:
            break
        new = [at(_rest((odds[i] + odds[i + 1]) / 2), curve[i].V) for i in sorted(steps)]
        curve = sorted([*curve, *new], key=lambda point: point.odds)
    return curve


def _turns(curve: list[PointAtShare]) -> list[int]:
    """Points at which alpha turns by more than its error, first from rising to falling, then back, and so on."""
    found, extreme, rising = list[int](), 0, True
    for place, point in enumerate(curve):
        before = curve[extreme]
        change = (point.alpha - before.alpha) * (1 if rising else -1)
        if change >= 0:
            extreme = place
        elif -change > point.change_that_counts(before):
            found.append(extreme)
            extreme, rising = place, not rising
    return found


def remainder(curve: list[PointAtShare]) -> float:
    """How far alpha goes on beyond the end of a curve, where each step is the same part of the one before."""
    last, before = (abs(b.alpha - a.alpha) for a, b in ((curve[-2], curve[-1]), (curve[-3], curve[-2])))
    ratio = min(last / before, _MOST_LEFT) if before else 0.0
    return last * ratio / (1 - ratio)


def _refined(at: At, curve: list[PointAtShare], place: int, sign: float) -> PointAtShare:
    """The turning point near a point of the curve: alpha is largest there for the sign -1, smallest for 1."""
    here = curve[place]
    if not 0 < place < len(curve) - 1:
        return here
    error = here.error / here.alpha  # of a turning point it is the square of that of its place
    found: Any = minimize_scalar(
        lambda odds: sign * at(_rest(odds), here.V).alpha,
        bounds=(curve[place - 1].odds, curve[place + 1].odds),
        method="bounded",
        options={"xatol": _FLAT * np.sqrt(error), "maxiter": _MOST_SEARCHED},
    )
    turn = at(_rest(found.x), here.V)
    return turn if sign * turn.alpha < sign * here.alpha else here


def crossing(at: At, found: Branches, known: AllKnown | None, exact: bool) -> tuple[float, float, str]:
    """The sample complexity above which the informed fixed point has the highest free entropy, its error and a remark.

    Parameters
    ----------
    at : callable
    found : Branches
        Of a curve with a summit.
    known : AllKnown or None
        Of weights with finitely many values, and labels that do not tell the fields exactly.
    exact : bool
        Whether labels tell the fields, so that the free entropy has no bound beyond the curve's end.
    """
    others = found.stable if found.falls_to_the_end else found.stable[:-1]
    last = [] if found.falls_to_the_end else found.stable[-1]
    top, end = max(point.alpha for point in found.summits), found.end

    def of_others(alpha: float) -> tuple[float, list[PointAtShare]]:
        there = [one for one in others if one[0].alpha <= alpha <= one[-1].alpha]
        return max(((_entropy(one, alpha), one) for one in there), key=lambda pair: pair[0])

    def beyond(alpha: float) -> bool:
        return known is not None and (not last or alpha > end.alpha)

    def difference(alpha: float) -> float:
        whole = known.free_entropies(alpha).mean() if known and beyond(alpha) else _entropy(last, alpha)
        return of_others(alpha)[0] - float(whole)

    if exact and not last:
        return *found.limit, "from here on everything known has the higher free entropy"
    low = max(others[0][0].alpha, last[0].alpha if last else 0.0)
    high = top if known else min(top, end.alpha)
    if not last and known is None:
        return np.nan, np.nan, f"alpha falls as far as fixed points were looked at, to a share of {end.share_text}"
    if low >= high or difference(low) < 0 or difference(high) > 0:
        if exact:
            return *found.limit, "from here on everything known has the higher free entropy"
        seen = f"between alpha = {low:.6g} and {high:.6g}, up to a share of {end.share_text}"
        return np.nan, np.nan, f"no crossing of the free entropies was found {seen}"
    alpha, step, errors = root(difference, low, high), 0.0, np.zeros(1)
    slope = 1.0
    for _ in range(_ROUNDS):
        below = _at_alpha(at, of_others(alpha)[1], alpha)
        lower = below.free_entropies + below.slopes * (alpha - below.alpha)
        if known is not None and beyond(alpha):
            upper, steeper = known.free_entropies(alpha), float(known.slopes.mean())
            ends = known.free_entropies(end.alpha) - end.free_entropies
            rest = abs(float(ends.mean())) if last else 0.0
        else:
            over = _at_alpha(at, last, alpha)
            upper, steeper, rest = over.free_entropies + over.slopes * (alpha - over.alpha), over.slope, 0.0
        slope = max(steeper - below.slope, 1e-12)
        step = float((lower - upper).mean()) / slope
        common = end.precision * max(alpha, abs(float(lower.mean())) / slope)  # of two that hardly differ
        errors = np.array([scatter(lower - upper) / slope, rest / slope, common])
        alpha = min(max(alpha + step, low), high)  # few nodes may lead beyond, by less than the error
    which = of_others(alpha)[1]
    statement = "the free entropies cross"
    if which is not others[0]:
        statement += ", that of a third fixed point, of which there is more known than of the uninformed one"
    return alpha, float(np.linalg.norm([*errors, step])), statement


def _rest(odds: float) -> float:
    return float(1 / (1 + np.exp(odds)))


def _at_alpha(at: At, branch: list[PointAtShare], alpha: float) -> PointAtShare:
    """The point of a branch at a sample complexity, or one so near that its free entropy is linear up to there.

    New points are added to the branch.
    """
    place = int(np.searchsorted([point.alpha for point in branch[1:-1]], alpha))
    ends = before, after = branch[place : place + 2]
    new = list[PointAtShare]()

    def excess(odds: float) -> float:
        found = next((end for end in ends if end.odds == odds), None)
        if found is None:
            new.append(found := at(_rest(odds), before.V))
        return 0.0 if abs(found.alpha - alpha) < _NEAR * alpha else found.alpha - alpha

    if before.alpha > 0 and before.alpha < alpha < after.alpha and excess(before.odds) and excess(after.odds):
        brentq(excess, before.odds, after.odds, maxiter=_MOST_STEPS, disp=False)
    branch[place + 1 : place + 1] = sorted(new, key=lambda point: point.odds)
    near = before if before.alpha == 0 and alpha < after.alpha else None
    return near or min((*ends, *new), key=lambda point: abs(point.alpha - alpha))


def _entropy(points: list[PointAtShare], alpha: float) -> float:
    """Free entropy at a sample complexity, by cubic interpolation with its known slopes."""
    from scipy.interpolate import CubicHermiteSpline

    ordered = sorted(points, key=lambda point: point.alpha)
    x = np.array([point.alpha for point in ordered])
    keep = np.concatenate([[True], np.diff(x) > 1e-12])
    values = [float(point.free_entropies.mean()) for point in ordered]
    slopes = [point.slope for point in ordered]
    return float(CubicHermiteSpline(x[keep], np.array(values)[keep], np.array(slopes)[keep])(alpha))


def root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function is zero between two values at which its signs differ."""
    return float(brentq(function, low, high, xtol=PRECISION))  # pyright: ignore[reportArgumentType]


def scatter(values: Array) -> float:
    """Standard error of the mean of replicates."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))
