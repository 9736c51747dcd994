"""Labels with noise in a plane: integrals on lattices, which converge faster than any power of their spacing.

Over a Gaussian law the sum over a lattice of spacing h, in standard deviations, has the error ``exp(-2 pi^2 / h^2)``:
none that is seen from h = 0.8 on.  What the fields can be, what the learner knows of them and the label itself are such
sums, each resolved on the scale on which it changes.  A replicate has lattices with random offsets, so that their
scatter shows what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise, product

import numpy as np

from attnphase.arrays import Array

__all__ = [
    "LATTICE_FEW_NODES",
    "LATTICE_NODES",
    "LATTICE_REPLICATES",
    "LATTICE_SAMPLES",
    "LATTICE_TOLERANCE",
    "FieldLaw",
    "LabelPlane",
    "LatticeMeans",
    "label_plane",
    "lattice_means",
    "spacing_of",
]

LATTICE_REPLICATES, LATTICE_NODES, LATTICE_FEW_NODES = 4, 2**14, 2**7
"""Offsets of a rule, and what is called its nodes at the finest spacing; of more than two fields."""

LATTICE_SAMPLES = 2**13
"""Sobol nodes of a replicate for means that are no sums over lattices."""

LATTICE_TOLERANCE = 1e-6
"""Relative residual that the ends of the lattices allow."""

_REACH = 5.5  # standard deviations
_FINER = 0.8  # spacing of what is known, of its deviation
_SHARPER = {1: 0.3, 2: 0.3, 3: 0.7, 4: 0.7}  # and of that of the fields, by their number: two lose their sign at once
_PATCH = 20.0  # of what is known, over the number of fields, in standard deviations of what is not
_LEAST_NODES, _WIDER = 4, 40.0  # of a patch along a direction, as long as it is no more deviations wide than so many
_BLOCK = 20  # fields along a direction
_AT_ONCE = 1 << 20  # entries of an array
_SMALL = 1 << 18  # multiplications
_SAMPLES, _TAIL = 1024, 2.0  # fields by which labels are looked at, in standard deviations
_NEGLIGIBLE = 1e-9  # singular value of labels, over the largest; weight of a node, over the largest
_MOST_WORK, _WINDOW = 1e8, 900.0  # likelihoods of a replicate's map, and labels of a block of fields
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
    """

    place: Callable[[Array], Array]
    rest: int
    span: Array
    slope: float
    noise: float

    @property
    def dimensions(self) -> int:
        """Independent entries of a label."""
        return len(self.span)

    def work(self, scale: Array) -> float:
        """Likelihoods in one replicate's map where nothing is known, for fields of these standard deviations."""
        fields = 2 * _REACH / np.minimum(1.0, np.sqrt(self.noise) / (self.slope * scale))
        labels = self.span / np.sqrt(self.noise) + 2 * _REACH
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
    _, sizes, axes = np.linalg.svd(labels - middle, full_matrices=False)
    axes = axes[sizes > _NEGLIGIBLE * sizes[0]]
    if len(axes) > 2:
        return None

    def place(k: Array) -> Array:
        return (target(k) - middle) @ axes.T

    places, moved = place(fields), [place(fields + 1e-5 * step) for step in np.eye(len(scale))]
    slopes = np.stack([(there - places) / 1e-5 for there in moved], axis=1)
    steepest = float(np.quantile(np.linalg.norm(slopes, ord=2, axis=(1, 2)), 0.9))
    found = LabelPlane(place, labels.shape[1] - len(axes), np.ptp(places, axis=0), steepest, noise)
    return found if found.work(scale) <= _MOST_WORK else None


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
    """

    basis: Array
    center: Array
    known: Array
    unknown: Array


@dataclass(frozen=True, eq=False)
class LatticeMeans:
    """Means over what is known and the label: ``E (<k> - omega)(<k> - omega)^T`` (F, F), and that of ``log Z``."""

    gain: Array
    log_evidence: float


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
    size = len(law.center)
    scales = _Scales(spacing, np.sqrt(plane.noise) / plane.slope, _SHARPER[size], _PATCH / size)
    axes = [
        _patches(*sides, scales, random) for sides in zip(law.center @ law.basis, law.known, law.unknown, strict=True)
    ]
    lines = _Lines(spacing * np.sqrt(plane.noise), plane.noise, random.random(plane.dimensions))
    gain, entropy = np.zeros((size, size)), 0.0
    heaviest = np.prod([max(one.weights.max() for one in axis) for axis in axes])
    for patch in product(*axes):
        weights = reduce(np.multiply.outer, (one.weights for one in patch)).ravel()
        if weights.max() < _NEGLIGIBLE * heaviest:
            continue
        fields = np.stack(np.meshgrid(*(one.fields for one in patch), indexing="ij"), axis=-1)
        places = plane.place(fields.reshape(-1, size) @ law.basis.T).reshape(*fields.shape[:-1], -1)
        density, *moved = _summed(lines, places, patch)
        ratios = [one / density for one in moved]
        for i in range(size):
            for j in range(i, size):
                gain[i, j] += weights @ np.einsum("wy,wy->w", moved[i], ratios[j])
        entropy += float(weights @ np.einsum("wy,wy->w", density, np.log(density)))
    cell = spacing**plane.dimensions / (2 * np.pi) ** (plane.dimensions / 2)  # of labels, with their density's norm
    gain = cell * law.basis @ (gain + np.triu(gain, 1).T) @ law.basis.T
    constant = -plane.dimensions / 2 * np.log(2 * np.pi * plane.noise)
    constant -= plane.rest / 2 * (1 + np.log(2 * np.pi * plane.noise))
    return LatticeMeans(gain, float(cell * entropy + constant))


@dataclass(frozen=True)
class _Scales:
    """Of lattices: their spacing, and in what that is counted.

    Attributes
    ----------
    spacing : float
    labels : float
        Change of a field that changes a label by its noise.
    turn : float
        Spacing of what is known, at most, in standard deviations of a field.
    extent : float
        Of a patch, in standard deviations of what is unknown.
    """

    spacing: float
    labels: float
    turn: float
    extent: float


@dataclass(frozen=True, eq=False)
class _Patch:
    """A stretch of what is known along one direction: weights (W,), the fields (K,) that go with it and their shares.

    ``shares`` (K, W) sum to one over the fields, ``moved`` are these times what a field differs from the known one.
    """

    weights: Array
    fields: Array
    shares: Array
    moved: Array


def _patches(middle: float, known: float, unknown: float, scales: _Scales, random: np.random.Generator) -> list[_Patch]:
    """Lattices along one direction."""
    step = scales.spacing * min(_FINER, scales.turn * np.hypot(known, unknown) / max(known, 1e-12))
    places = np.arange(-_REACH, _REACH + step, step) + step * (random.random() - 0.5)
    weights = np.exp(-(places**2) / 2)
    weights /= weights.sum()
    fine, offset = scales.spacing * min(unknown, scales.labels), random.random()
    found = []
    nodes = unknown / max(step * known, 1e-12)  # of what is known, to a standard deviation of what is not
    each = max(int(scales.extent * nodes), min(int(1 + _WIDER * nodes), _LEAST_NODES))
    for first in range(0, len(places), each):
        part = slice(first, first + each)
        omega = middle + known * places[part]
        ends = (omega[0] - _REACH * unknown) / fine, (omega[-1] + _REACH * unknown) / fine
        fields = fine * (np.arange(np.floor(ends[0]), np.ceil(ends[1]) + 1) + offset)
        about = fields[:, None] - omega
        shares = np.exp(-((about / unknown) ** 2) / 2)
        shares /= shares.sum(axis=0)
        found.append(_Patch(weights[part], fields, shares, shares * about))
    return found


@dataclass(frozen=True, eq=False)
class _Lines:
    """Lattices of labels (m of them) with a step and offsets, and the variance of their noise."""

    step: float
    noise: float
    offsets: Array

    def windows(self, places: Array) -> list[slice]:
        """Numbers of the labels that fields can have whose labels without noise are `places` (..., m)."""
        reach = _REACH * np.sqrt(self.noise)
        flat = places.reshape(-1, places.shape[-1])
        lowest, highest = (
            np.floor((flat.min(axis=0) - reach) / self.step),
            np.ceil((flat.max(axis=0) + reach) / self.step),
        )
        return [slice(int(low), int(high) + 1) for low, high in zip(lowest, highest, strict=True)]

    def likelihood(self, places: Array, windows: Sequence[slice]) -> Array:
        """How likely the labels of a window are, (..., y) or (..., y, y')."""
        sides = []
        for place, window, offset in zip(np.moveaxis(places, -1, 0), windows, self.offsets, strict=True):
            labels = self.step * (np.arange(window.start, window.stop) + offset)
            sides.append(np.exp(-((place[..., None] - labels) ** 2) / (2 * self.noise)))
        return sides[0] if len(sides) == 1 else sides[0][..., None] * sides[1][..., None, :]


def _summed(lines: _Lines, places: Array, patch: Sequence[_Patch]) -> list[Array]:
    """Sums over the fields for every place of what is known and label, (W, Y): of one, and of each deviation.

    A block of fields has labels in a small window only.
    """
    whole = lines.windows(places)
    sizes = [len(one.weights) for one in patch]
    total = np.zeros((1 + len(patch), *sizes, *(window.stop - window.start for window in whole)))
    for blocks in product(*(_blocks(one) for one in patch)):
        here = places[tuple(block.fields for block in blocks)]
        ends, width = lines.windows(here), _AT_ONCE // (here[..., 0].size)
        for windows in _parts(ends, width):
            likelihood = lines.likelihood(here, windows)
            found = _over_fields(likelihood.reshape(*here.shape[:-1], -1), blocks)
            inside = tuple(slice(w.start - v.start, w.stop - v.start) for w, v in zip(windows, whole, strict=True))
            for sums, part in zip(total, found, strict=True):
                target = sums[(*(block.known for block in blocks), *inside)]
                target += part.reshape(target.shape)
    density, *moved = total.reshape(1 + len(patch), int(np.prod(sizes)), -1)
    return [density.clip(_LEAST), *moved]


@dataclass(frozen=True, eq=False)
class _Block:
    """Some fields along a direction, what is known near them, and shares and moved shares (W, K)."""

    fields: slice
    known: slice
    shares: Array
    moved: Array


def _blocks(patch: _Patch) -> list[_Block]:
    """Blocks of about equal size; of fields so far from all that is known that they have no share there is none."""
    count = len(patch.fields)
    ends = np.linspace(0, count, -(-count // _BLOCK) + 1).round().astype(int).tolist()
    found = []
    for first, last in pairwise(ends):
        shares = patch.shares[first:last]
        near = np.flatnonzero(shares.max(axis=0) > _NEGLIGIBLE * patch.shares.max())
        if len(near):
            known = slice(int(near[0]), int(near[-1]) + 1)
            found.append(_Block(slice(first, last), known, shares[:, known].T, patch.moved[first:last, known].T))
    return found


def _parts(ends: Sequence[slice], most: int) -> Iterator[list[slice]]:
    """Windows cut along the first entry of the labels, of about so many labels."""
    first, *rest = ends
    width = max(most // int(np.prod([end.stop - end.start for end in rest])), 1)
    for start in range(first.start, first.stop, width):
        yield [slice(start, min(start + width, first.stop)), *rest]


def _over_fields(likelihood: Array, blocks: Sequence[_Block]) -> list[Array]:
    """Sums over a block of fields, of which `likelihood` is (K, ..., Y): of one, and of each deviation, (W, Y)."""
    found = [likelihood[None]]
    for block in blocks:
        rest = found[0].shape[2:]
        flat = [values.reshape(*values.shape[:2], -1) for values in found]
        sums = [_times(block.shares, values) for values in flat] + [_times(block.moved, flat[0])]
        found = [values.reshape(-1, *rest) for values in sums]
    return found


def _times(matrix: Array, values: Array) -> Array:
    """A matrix (W, K) by others (B, K, C), in products so small that BLAS leaves them to one thread: two are slower."""
    found = np.empty((len(values), len(matrix), values.shape[-1]))
    size = max(_SMALL // matrix.size, 1)
    for first in range(0, values.shape[-1], size):
        part = slice(first, first + size)
        np.matmul(matrix, values[..., part], out=found[..., part])
    return found
