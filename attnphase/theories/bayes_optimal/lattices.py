"""Labels with noise in a plane: integrals on lattices, which converge faster than any power of their spacing.

Over a Gaussian law the sum over a lattice of spacing h, in standard deviations, has the error ``exp(-2 pi^2 / h^2)``:
none that is seen from h = 0.8 on.  What the fields can be, what the learner knows of them and the label itself are such
sums, each resolved on the scale on which it changes.  A replicate has lattices with random offsets, so that their
scatter shows what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import product
from typing import Protocol

import numpy as np

from attnphase.arrays import Array
from attnphase.processes.threads import available_cores, each

__all__ = [
    "LATTICE_FEW_NODES",
    "LATTICE_NODES",
    "LATTICE_REPLICATES",
    "LATTICE_TOLERANCE",
    "FieldLaw",
    "LabelPlane",
    "LatticeMeans",
    "Sums",
    "axes_of",
    "label_plane",
    "lattice_means",
    "spacing_of",
]

LATTICE_REPLICATES, LATTICE_NODES, LATTICE_FEW_NODES = 4, 2**14, 2**7
"""Offsets of a rule, and what is called its nodes at the finest spacing; of more than two fields."""

LATTICE_TOLERANCE = {1: 1e-9, 2: 1e-6, 3: 1e-6, 4: 1e-6}
"""Relative residual that the ends of the lattices allow, by the number of fields."""

_REACH = {1: 7.5, 2: 5.5, 3: 5.5, 4: 5.5}  # standard deviations, by the number of fields
_FINER = {1: 0.6, 2: 0.6, 3: 0.64, 4: 0.64}  # by the number of fields, spacing of what is known, of its deviation
_SHARPER = {1: 0.22, 2: 0.22, 3: 0.56, 4: 0.56}  # and of that of the fields: two lose their sign at once
_SLOPE = {1: 1.0, 2: 1.0, 3: 0.8, 4: 0.8}  # change of a label, over its noise, to a spacing of the fields
_PATCH = {1: 20.0, 2: 10.0, 3: 15.0, 4: 20.0}  # of what is known, by the number of fields, in deviations of what is not
_LEAST_NODES, _WIDER = 4, 40.0  # of a patch along a direction, as long as it is no more deviations wide than so many
_FARTHEST = 7.0  # of a length's logarithm, where that is below a thousandth
_SAMPLES, _TAIL = 1024, 2.0  # fields by which labels are looked at, in standard deviations
_DIFFERENCE = 1e-5  # of fields, in standard deviations, for how steep labels are
_UNSEEN = 1e-12  # of what is known, over what is not
_NEGLIGIBLE = 1e-9  # weight of a node, over the largest; see also `axes_of`
_MOST_WORK, _WINDOW = 3e8, 900.0  # likelihoods of a replicate's map, and labels of a block of fields
_LEAST = 1e-290  # density of a label, whose logarithm is taken
_MOST_FIELDS = 4


@dataclass(frozen=True, eq=False)
class LabelPlane:
    """Labels of at most two independent entries.

    Attributes
    ----------
    place : callable
        Fields (B, F) to labels (B, m) in coordinates of the plane, in which the noise is what it was.
    dimensions : int
        Entries m.
    rest : int
        Entries of a label that are noise alone.
    span : (m,) array
        Between the lowest and the highest label, somewhere in the tails.
    slope : float
        How steeply they change with the fields, somewhere.
    noise : float
        Variance of a label's entry.
    threads : int
        That share the sums.
    """

    place: Callable[[Array], Array]
    rest: int
    span: Array
    slope: float
    noise: float
    threads: int = field(default_factory=available_cores)
    name, samples = "lattices", 2**13

    def means(self, law: FieldLaw, points: int, random: np.random.Generator) -> LatticeMeans:
        """See `Sums`."""
        return lattice_means(self, law, spacing_of(points), random)

    @property
    def dimensions(self) -> int:
        """Independent entries of a label."""
        return len(self.span)

    def work(self, scale: Array) -> float:
        """Likelihoods in one replicate's map where nothing is known, for fields of these standard deviations."""
        reach = _REACH[len(scale)]
        fields = 2 * reach / np.minimum(1.0, np.sqrt(self.noise) / (self.slope * scale))
        labels = self.span / np.sqrt(self.noise) + 2 * reach
        return float(fields.prod() * min(labels.prod(), _WINDOW))


def spacing_of(points: int) -> float:
    """Of the lattices, from the number of points that a rule by nodes has: 1.5 of 16 and 0.9 of 1024 of them."""
    return float(1.5 * (16 / points) ** 0.125)


def label_plane(target: Callable[[Array], Array], scale: Array, noise: float) -> LabelPlane | None:
    """The plane in which labels lie, if there is one, and the sums over lattices are affordable.

    Parameters
    ----------
    target : callable
        Fields (B, F) to labels (B, M); smooth.
    scale : (F,) array
        Standard deviations of the fields.
    noise : float
        Variance of a label's entry.
    """
    if len(scale) > _MOST_FIELDS:
        return None
    fields = _TAIL * scale * np.random.default_rng(7).standard_normal((_SAMPLES, len(scale)))
    labels = target(fields)
    middle = labels.mean(axis=0)
    axes = axes_of(labels - middle, noise)
    if len(axes) > 2:
        return None

    def place(k: Array) -> Array:
        return (target(k) - middle) @ axes.T

    steps = _DIFFERENCE * np.diag(scale)
    places, moved = place(fields), [place(fields + step) for step in steps]
    slopes = np.stack([(there - places) / step.sum() for there, step in zip(moved, steps, strict=True)], axis=1)
    steepest = float(np.quantile(np.linalg.norm(slopes, ord=2, axis=(1, 2)), 0.9))
    found = LabelPlane(place, labels.shape[1] - len(axes), np.ptp(places, axis=0), steepest, noise)
    return found if found.work(scale) <= _MOST_WORK else None


def axes_of(labels: Array, noise: float) -> Array:
    """Directions (m, M) along which labels vary by more than rounding.

    A direction is left out where labels are small beside their largest entry and beside the noise: beside one of the
    two alone they may tell of the fields.

    Parameters
    ----------
    labels : (B, M) array
        Less their mean.
    noise : float
        Variance of a label's entry.
    """
    _, sizes, axes = np.linalg.svd(labels, full_matrices=False)
    return axes[sizes > _NEGLIGIBLE * min(sizes[0], np.sqrt(noise * len(labels)))]


@dataclass(frozen=True, eq=False)
class FieldLaw:
    """Normal laws of what is known of the fields and of what is not, independent along the directions of one basis.

    Attributes
    ----------
    basis : (F, F) array
        Orthogonal; its columns are the directions.
    center : (F,) array
        Mean of the fields.
    known, unknown : (F,) array
        Standard deviations along the directions.
    round : bool
        The first two directions are those of one token, and turning the columns of all tokens alike changes none of the
        means that are asked for: what is known of this token is summed over its length alone.
    """

    basis: Array
    center: Array
    known: Array
    unknown: Array
    round: bool = False


@dataclass(frozen=True, eq=False)
class LatticeMeans:
    """Means over what is known and the label.

    Attributes
    ----------
    gain, spread : (F, F) arrays
        ``E (<k> - omega)(<k> - omega)^T`` and the posterior's covariance, on the blocks of the tokens.
    log_evidence : float
        Mean of ``log Z``.
    """

    gain: Array
    spread: Array
    log_evidence: float


class Sums(Protocol):
    """All means of a channel as sums with random offsets, over lattices or over one variable."""

    @property
    def name(self) -> str:
        """What a dataset calls them."""
        ...

    @property
    def samples(self) -> int:
        """Sobol nodes of a replicate for means that are no such sums."""
        ...

    def means(self, law: FieldLaw, points: int, random: np.random.Generator) -> LatticeMeans:
        """Those of one replicate, the finer the more points it is said to have."""
        ...


def lattice_means(plane: LabelPlane, law: FieldLaw, spacing: float, random: np.random.Generator) -> LatticeMeans:
    """The sums of one replicate.

    How likely a label is does not depend on what is known, and given that the fields are independent along the
    directions: so they are summed over one direction after the other, for a patch of what is known at a time.

    Parameters
    ----------
    plane : LabelPlane
    law : FieldLaw
    spacing : float
        Of the lattices, in the scales on which what is summed changes.
    random : numpy.random.Generator
        For the offsets.
    """
    from attnphase.theories.bayes_optimal.field_sums import (
        entropy_and_gains,
        sums_over_fields,
    )  # machine code, of which others need none

    size = len(law.center)
    labels = _SLOPE[size] * np.sqrt(plane.noise) / plane.slope
    scales = _Scales(spacing, _FINER[size], _SHARPER[size], labels, _PATCH[size], _REACH[size])
    axes = [_patches(side, scales, random) for side in _sides(law, scales, random)]
    step, offsets = spacing * np.sqrt(plane.noise), np.zeros(2)
    offsets[: plane.dimensions] = random.random(plane.dimensions)
    heaviest = np.prod([max(one.weights.max() for one in axis) for axis in axes])
    reach = scales.reach / spacing

    def sums_of(patch: tuple[_Patch, ...]) -> tuple[Array, float]:
        """Gains and ``Z log Z`` of a patch."""
        gain = np.zeros((max(size, 2),) * 2)
        weights = reduce(np.multiply.outer, (one.weights for one in reversed(patch))).ravel()
        if weights.max() < _NEGLIGIBLE * heaviest:
            return gain, 0.0
        fields = np.stack(np.meshgrid(*(one.fields for one in patch), indexing="ij"), axis=-1)
        places = np.zeros((*fields.shape[:-1], *(1,) * (_MOST_FIELDS - size), 2))
        places.reshape(-1, 2)[:, : plane.dimensions] = plane.place(fields.reshape(-1, size) @ law.basis.T) / step
        places -= offsets
        ends = [getattr(places, end)(axis=(0, 1, 2, 3)) for end in ("min", "max")]
        wide = reach * (np.arange(2) < plane.dimensions)
        first, last = np.ceil(ends[0] - wide), np.floor(ends[1] + wide)
        numbers = int(last[0] - first[0]) + 1, int(last[1] - first[1]) + 1
        sums = sums_over_fields(places - first, numbers, spacing**2 / 2, reach, _four(patch), max(size, 2))
        return gain, entropy_and_gains(sums, weights, _LEAST, gain)

    # in the order of the patches, whichever ends first
    found = each(plane.threads, sums_of, product(*axes))
    gain, entropy = np.sum([one for one, _ in found], axis=0), sum(one for _, one in found)
    gain = gain[:size, :size]
    cell = spacing**plane.dimensions / (2 * np.pi) ** (plane.dimensions / 2)  # of labels, with their density's norm
    gain = cell * law.basis @ (gain + np.tril(gain, -1).T) @ law.basis.T
    constant = -plane.dimensions / 2 * np.log(2 * np.pi * plane.noise)
    constant -= plane.rest / 2 * (1 + np.log(2 * np.pi * plane.noise))
    spread = (law.basis * law.unknown**2) @ law.basis.T - gain  # by the law of total variance
    return LatticeMeans(gain, spread, float(cell * entropy + constant))


@dataclass(frozen=True)
class _Scales:
    """Of lattices: their spacing, and in what that is counted.

    Attributes
    ----------
    spacing : float
    known, turn : float
        Spacings of what is known, in its standard deviations and in those of a field: the smaller counts.
    labels : float
        A change of a field that changes labels by about their noise: with what is unknown, how wide its posterior is.
    extent : float
        Of a patch, in standard deviations of what is unknown.
    reach : float
        Of all lattices, in standard deviations.
    """

    spacing: float
    known: float
    turn: float
    labels: float
    extent: float
    reach: float


@dataclass(frozen=True, eq=False)
class _Patch:
    """A stretch of what is known along one direction: weights (W,), the fields (K,) that go with it and their shares.

    ``shares`` (K, W) sum to one over the fields, ``moved`` are these times what a field differs from the known one.
    """

    weights: Array
    fields: Array
    shares: Array
    moved: Array


def _four(patch: Sequence[_Patch]) -> tuple[tuple[Array, Array], ...]:
    """Shares and moved shares of four directions: along what is none there is one field."""
    none = np.ones((1, 1)), np.zeros((1, 1))
    return (*((one.shares, one.moved) for one in patch), *(none for _ in range(_MOST_FIELDS - len(patch))))


@dataclass(frozen=True, eq=False)
class _Side:
    """One direction: the middle, deviations of what is known and what is not, and a lattice of what is known.

    ``places`` (W,) are in deviations of what is known, their weights sum to one.
    """

    middle: float
    known: float
    unknown: float
    places: Array
    weights: Array


def _line(step: float, reach: float, random: np.random.Generator) -> tuple[Array, Array]:
    """Places and weights of a normal number."""
    places = np.arange(-reach, reach + step, step) + step * (random.random() - 0.5)
    weights = np.exp(-(places**2) / 2)
    return places, weights / weights.sum()


def _ray(step: float, reach: float, random: np.random.Generator) -> tuple[Array, Array]:
    """Of the length of two normal numbers: a lattice in s of ``log(1 + e^s)``, so that its end at zero is far away."""
    s = np.arange(-_FARTHEST, reach + step, step) + step * (random.random() - 0.5)
    places = np.logaddexp(0, s)
    weights = places * np.exp(-(places**2) / 2) / (1 + np.exp(-s))
    return places, weights / weights.sum()


def _sides(law: FieldLaw, scales: _Scales, random: np.random.Generator) -> Iterator[_Side]:
    """All directions."""
    middles = (law.center @ law.basis).tolist()
    for number, (middle, known, unknown) in enumerate(zip(middles, law.known, law.unknown, strict=True)):
        step = scales.spacing * min(
            scales.known, scales.turn * np.hypot(known, unknown) / max(known, _UNSEEN * unknown)
        )
        if law.round and number == 1:  # the other column of the first token, which a turn of both makes zero
            yield _Side(middle, 0.0, float(unknown), np.zeros(1), np.ones(1))
            continue
        lattice = _ray if law.round and number == 0 else _line
        yield _Side(middle, float(known), float(unknown), *lattice(float(step), scales.reach, random))


def _patches(side: _Side, scales: _Scales, random: np.random.Generator) -> list[_Patch]:
    """Stretches of what is known along one direction, with the fields about them."""
    places, unknown = side.places, side.unknown
    step = float(places[-1] - places[-2]) if len(places) > 1 else 1.0
    fine, offset = scales.spacing / np.hypot(1 / unknown, 1 / scales.labels), random.random()
    found = []
    nodes = unknown / max(
        step * side.known, _UNSEEN * unknown
    )  # of what is known, to a standard deviation of what is not
    each = max(int(scales.extent * nodes), min(int(1 + _WIDER * nodes), _LEAST_NODES))
    for first in range(0, len(places), each):
        part = slice(first, first + each)
        omega = side.middle + side.known * places[part]
        ends = (omega[0] - scales.reach * unknown) / fine, (omega[-1] + scales.reach * unknown) / fine
        fields = fine * (np.arange(np.floor(ends[0]), np.ceil(ends[1]) + 1) + offset)
        about = fields[:, None] - omega
        shares = np.exp(-((about / unknown) ** 2) / 2)
        shares /= shares.sum(axis=0)
        # where labels tell little, what they tell is linear in the fields: these moments with them are made exact
        about -= (shares * about).sum(axis=0)
        about *= unknown**2 / (shares * about**2).sum(axis=0)
        found.append(_Patch(side.weights[part], fields, shares, shares * about))
    return found
