"""Nodes of rules that integrate one direction of the student's fields along lines, jumps located.

The outer nodes are those of the teacher's fields and of the labels' noise, and across the line those of the other
directions of the student's fields given these.  Where the nodes of a line are depends on where its minimiser jumps, and
is found at every point anew: `attnphase.state_evolution.lines`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import erf, erfc, exp, pi, prod, sqrt

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array

__all__ = ["LineOrders", "between", "evenly_spaced", "heaviest", "orbits", "stretched"]

_STEEP = -2.7, 1.9  # of exp(t - exp(-t)): 2e-8 of a standard deviation beside a break, and 5.8 away from it
_STEEP_BOTH = 2.7  # likewise between two breaks: 1e-10 of their distance beside each
_REACH = 7.0  # of stretched nodes: beyond lie 1e-10 of the variance
_SAME = 1e-9  # relative, of weights that are the same but for rounding
_FARTHEST, _PRECISE = 38.0, 1e-3  # of lines: the density is a double below; their length need not be more precise
_ROUNDING = 1e-13  # of sums of some dozen numbers: no rule is more precise
_WIDTH = 3.0  # of the part in the middle in which these are nearly evenly spaced: .3 % of the law lie outside


@dataclass(frozen=True)
class LineOrders:
    """How many nodes a rule of lines has in each direction, in the order of `directions_of`.

    Attributes
    ----------
    latent : (L t + N,) tuple
        Nodes of the teacher's fields in every direction; where labels jump along the first one, of each part of it.
        Behind them those of the labels' noise, in the directions that the student's fields depend on.
    across : (L r - 1,) tuple
        Gauss-Hermite nodes of the student's fields given these, in every direction but the first.
    panels : int
        Parts of a line that are looked at alike, an even number: a piece in which all is odd about a jump in its middle
        has no defect that tells of the jump.
    defect : float
        Of the pieces of a line, relative to what panels add to E[g . d s] on average: a piece with a larger one is cut.
        The length of lines and the nodes of each piece follow from it.
    dropped : float
        Share of the variance that those nodes of `latent` have that are left out: those of least weight.
    thorough : bool
        Whether the nodes of a piece are searched from all starts, and not from the minima at its ends alone.
    shifted : int, optional
        Of which of the directions of `latent` the nodes lie half a spacing further.  Where many nodes leave little
        of an error, it then has the opposite sign: the truth lies in the middle.
    """

    latent: tuple[int, ...]
    across: tuple[int, ...]
    panels: int = 2
    defect: float = 1e-5
    dropped: float = 0.0
    shifted: int | None = None
    thorough: bool = False

    @property
    def reach(self) -> float:
        """Of lines, in standard deviations: beyond lies as much of the variance as the defect."""
        return _reach(self.defect)

    @property
    def nodes(self) -> int:
        """Gauss-Legendre nodes in each smooth piece: on half a line the variance is right to the defect."""
        return _nodes(self.defect)

    @property
    def size(self) -> int:
        """Nodes without symmetries, jumps and breaks."""
        return prod(self.latent) * prod(self.across) * self.panels * self.nodes


@lru_cache
def _reach(share: float) -> float:
    """Beyond so many standard deviations lies such a share of a normal law's variance."""
    left, right = 0.0, _FARTHEST
    while right - left > _PRECISE:
        middle = (left + right) / 2
        outside = erfc(middle / sqrt(2)) + middle * exp(-(middle**2) / 2) * sqrt(2 / pi)
        left, right = (middle, right) if outside > share else (left, middle)
    return right


@lru_cache
def _nodes(defect: float) -> int:
    """The fewest with which half a line has its part of the law, and of its variance, to the defect."""
    half, count = _reach(defect) / 2, 1
    within = erf(half * sqrt(2)), 1 - defect
    while True:
        x, w = np.polynomial.legendre.leggauss(count)
        places = half * (1 + x)
        law = half * w * np.exp(-(places**2) / 2) * sqrt(2 / pi)
        if max(abs(law.sum() - within[0]), abs(law @ places**2 - within[1])) <= max(defect, _ROUNDING):
            return count
        count += 1


def evenly_spaced(count: int, shifted: bool) -> tuple[Array, Array]:
    """Nodes and weights (n,) for the normal law: the middles of as many cells; the shifted ones lie where these meet.

    They are for few nodes.  Beyond ``sqrt(2 n)`` lies less than exp(-n), which falls with their number as their error.
    """
    reach = np.sqrt(2 * count)
    places, _ = _evenly(-reach, reach, count, shifted)
    weights = np.exp(-(places**2) / 2)
    return places, weights / weights.sum()


def stretched(count: int, shifted: bool) -> tuple[Array, Array]:
    """Likewise, evenly spaced in t of ``z = w sinh(t / w)``: a dozen nodes reach beyond all that counts.

    Steps grow outwards, where the density leaves little to see.
    """
    reach = _WIDTH * np.arcsinh(_REACH / _WIDTH)
    t, _ = _evenly(-reach, reach, count, shifted)
    places = _WIDTH * np.sinh(t / _WIDTH)
    weights = np.cosh(t / _WIDTH) * np.exp(-(places**2) / 2)
    return places, weights / weights.sum()


def between(breaks: Sequence[float], count: int, shifted: bool) -> tuple[Array, Array]:
    """Nodes and weights for the normal law where the integrand is smooth between breaks: so many in each part.

    They are evenly spaced in a variable that goes to infinity at every break, so that nodes crowd there on all scales
    (the double-exponential rule of Takahasi and Mori): nothing need be known of how fast the integrand falls beside it.
    """
    if not breaks:
        return stretched(count, shifted)
    t, spacing = _evenly(_STEEP[0], _STEEP[1], count, shifted)
    steep = np.exp(t - np.exp(-t))  # from a break to infinity
    parts = [(breaks[0] - steep[::-1], (steep * (1 + np.exp(-t)) * spacing)[::-1])]
    u, width = _evenly(-_STEEP_BOTH, _STEEP_BOTH, count, shifted)
    inside, slope = np.tanh(np.pi / 2 * np.sinh(u)), np.pi / 2 * np.cosh(u) / np.cosh(np.pi / 2 * np.sinh(u)) ** 2
    for left, right in pairwise(breaks):
        parts.append(((left + right) / 2 + (right - left) / 2 * inside, (right - left) / 2 * slope * width))
    parts.append((breaks[-1] + steep, steep * (1 + np.exp(-t)) * spacing))
    places, lengths = (np.concatenate(one) for one in zip(*parts, strict=True))
    return places, lengths * np.exp(-(places**2) / 2) / np.sqrt(2 * np.pi)


def heaviest(places: Array, weights: Array, dropped: float) -> tuple[Array, Array]:
    """All nodes (n, D) but those of least weight that have such a share of the variance.

    Their weight goes to the others.  Nodes of the same weight, as images of each other have, stay together.
    """
    order = np.argsort(weights)
    variances = np.cumsum((weights * (places**2).sum(axis=1))[order])
    first = min(np.searchsorted(variances, dropped * variances[-1], side="right"), len(order) - 1)
    kept = weights >= (1 - _SAME) * weights[order[first]]
    return places[kept], weights[kept] * (weights.sum() / weights[kept].sum())


def _evenly(first: float, last: float, count: int, shifted: bool) -> tuple[Array, float]:
    spacing = (last - first) / count
    steps = np.arange(count + shifted, dtype=float) + (0.0 if shifted else 0.5)
    return first + spacing * steps, spacing


def orbits(nodes: Array, images: list[Array], tolerance: float = 1e-9) -> tuple[NDArray[np.int64], Array]:
    """One node of each orbit under those of a group's elements that permute the nodes, and how many the orbit has.

    Parameters
    ----------
    nodes : (n, D) array
    images : list of (n, D) arrays
        The nodes under every element of the group.
    """
    multipliers = np.random.default_rng(0).integers(2**62, size=nodes.shape[1]) * 2 + 1

    def keys(rows: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        rounded = np.round(rows / tolerance).astype(np.int64)
        return rounded, (rounded * multipliers).sum(axis=1)  # modulo 2**64

    own, hashes = keys(nodes)
    order = np.argsort(hashes)
    first = np.arange(len(nodes))
    for image in images:
        rounded, wanted = keys(image)
        places = order[np.searchsorted(hashes[order], wanted).clip(max=len(order) - 1)]
        if np.array_equal(own[places], rounded):
            first = np.minimum(first, places)
    # these elements are a group, so that the least of all images is the same for a whole orbit
    chosen, counts = np.unique(first, return_counts=True)
    return chosen, counts.astype(float)
