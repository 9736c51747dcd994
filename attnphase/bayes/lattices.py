"""Labels with noise of one or two fields: integrals on lattices, which converge faster than any power of their spacing.

Over a Gaussian law the sum over a lattice of spacing h, in standard deviations, has the error ``exp(-2 pi^2 / h^2)``:
none that is seen from h = 0.8 on.  What the fields can be, what the learner knows of them and the label itself are such
sums, each resolved on the scale on which it changes.  A replicate has lattices with random offsets, so that their
scatter shows what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from attnphase.arrays import Array

__all__ = [
    "LATTICE_NODES",
    "LATTICE_REPLICATES",
    "LATTICE_SAMPLES",
    "LATTICE_TOLERANCE",
    "LabelPlane",
    "LatticeMeans",
    "label_plane",
    "lattice_means",
    "spacing_of",
]

LATTICE_REPLICATES, LATTICE_NODES = 4, 2**14
"""Offsets of a rule, and what is called its nodes at the finest spacing."""

LATTICE_SAMPLES = 2**13
"""Sobol nodes of a replicate for means that are no sums over lattices."""

LATTICE_TOLERANCE = 1e-6
"""Relative residual that the ends of the lattices allow."""

_REACH = 5.5  # standard deviations
_FINEST = 64  # nodes along each direction of what is known, at most
_AT_ONCE = 1 << 21  # entries of an array
_SAMPLES, _TAIL = 1024, 2.0  # fields by which labels are looked at, in standard deviations
_NEGLIGIBLE = 1e-9  # singular value of labels, over the largest; weight of a node, over the largest
_MOST_WORK = 4e8  # operations of a replicate's map
_LEAST = 1e-290  # density of a label, whose logarithm is taken


@dataclass(frozen=True, eq=False)
class LabelPlane:
    """Labels of at most two independent entries.

    Attributes
    ----------
    place : callable
        Fields (B, F) to labels (B, m) in coordinates of the plane, in which the noise is what it was.
    rest : int
        Entries of a label that are noise alone.
    lowest, highest : (m,) array
        Of the labels.
    slope : float
        How steeply they change with the fields, somewhere.
    noise : float
        Variance of a label's entry.
    """

    place: Callable[[Array], Array]
    rest: int
    lowest: Array
    highest: Array
    slope: float
    noise: float

    def work(self, scale: float) -> float:
        """Operations of one replicate's map where nothing is known, for fields of this standard deviation."""
        fields = 2 * _REACH / min(1.0, np.sqrt(self.noise) / (self.slope * scale))
        labels = (self.highest - self.lowest) / np.sqrt(self.noise) + 2 * _REACH
        return float(4.0 * (2 * _REACH) ** 2 * fields**2 * labels.prod())


def spacing_of(points: int) -> float:
    """Of the lattices, from the number of points that a rule by nodes has: 1.5 of 16 and 0.9 of 1024 of them."""
    return float(1.5 * (16 / points) ** 0.125)


def label_plane(target: Callable[[Array], Array], scale: Array, noise: float) -> LabelPlane | None:
    """The plane in which labels lie, if there is one, and the sums over lattices are affordable.

    Parameters
    ----------
    target : callable
        Fields (B, F) to labels (B, M).
    scale : (F,) array
        Standard deviations of the fields.
    noise : float
        Variance of a label's entry.
    """
    if len(scale) > 2:
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
    found = LabelPlane(place, labels.shape[1] - len(axes), places.min(axis=0), places.max(axis=0), steepest, noise)
    return found if found.work(float(scale.max())) <= _MOST_WORK else None


@dataclass(frozen=True, eq=False)
class LatticeMeans:
    """Means over what is known and the label: ``E (<k> - omega)(<k> - omega)^T`` (F, F), and that of ``log Z``."""

    gain: Array
    log_evidence: float


def lattice_means(
    plane: LabelPlane, root: Array, center: Array, unknown: Array, spacing: float, random: np.random.Generator
) -> LatticeMeans:
    """The sums of one replicate.

    Parameters
    ----------
    plane : LabelPlane
    root : (F, F) array
        Symmetric, of the covariance of what is known.
    center : (F,) array
        Mean of the fields.
    unknown : (F, F) array
        Root of the covariance V of what is not.
    spacing : float
        Of the lattices, in the scales on which what is summed changes.
    random : numpy.random.Generator
        For the offsets.
    """
    size, noise = len(center), plane.noise
    largest_root = max(np.linalg.norm(root, 2), 1e-12)
    smallest_unknown = 1 / np.linalg.norm(np.linalg.inv(unknown), 2)
    step = max(spacing * min(1.0, float(smallest_unknown / largest_root)), 2 * _REACH / _FINEST)
    known, weights = _lattice(size, step, random)
    omega = center + known @ root.T
    sharpest = np.sqrt(noise) / (plane.slope * np.linalg.norm(unknown, 2))
    about, shares = _lattice(size, spacing * min(1.0, float(sharpest)), random)
    about = about @ unknown.T
    sides = [
        _line(low, high, np.sqrt(noise), spacing, random) for low, high in zip(plane.lowest, plane.highest, strict=True)
    ]
    cell = spacing ** len(sides) / (2 * np.pi) ** (len(sides) / 2)  # of the labels, with the norm of their density
    gain, entropy = np.zeros((size, size)), 0.0
    for part in _parts(len(omega), len(about) * max(map(len, sides))):
        places = plane.place((omega[part, None] + about).reshape(-1, size)).reshape(-1, len(about), len(sides))
        first, *second = (
            np.exp(-((side[:, None] - places[:, None, :, i]) ** 2) / (2 * noise)) for i, side in enumerate(sides)
        )
        second = second[0] if second else np.ones((len(places), 1, len(about)))
        second = second.mT
        density = (first * shares) @ second  # (B, y, y'), over the cell
        moved = [(first * (shares * column)) @ second for column in about.T]
        density = density.clip(_LEAST)
        weight = weights[part] * cell
        for i in range(size):
            for j in range(i, size):
                gain[i, j] += weight @ (moved[i] * moved[j] / density).sum(axis=(1, 2))
                gain[j, i] = gain[i, j]
        entropy += float(weight @ (density * np.log(density)).sum(axis=(1, 2)))
    constant = -len(sides) / 2 * np.log(2 * np.pi * noise) - plane.rest / 2 * (1 + np.log(2 * np.pi * noise))
    return LatticeMeans(gain, float(entropy + constant))


def _lattice(size: int, step: float, random: np.random.Generator) -> tuple[Array, Array]:
    """Places (n, F) of a lattice with a random offset, and the weights of a standard normal law, which sum to one."""
    axes = [np.arange(-_REACH, _REACH + step, step) + step * (random.random() - 0.5) for _ in range(size)]
    places = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, size)
    weights = np.exp(-(places**2).sum(axis=1) / 2)
    kept = weights > _NEGLIGIBLE * weights.max()
    return places[kept], weights[kept] / weights.sum()


def _line(low: float, high: float, deviation: float, spacing: float, random: np.random.Generator) -> Array:
    """Places of one entry of the labels."""
    step = spacing * deviation
    return np.arange(low - _REACH * deviation, high + _REACH * deviation + step, step) + step * (random.random() - 0.5)


def _parts(count: int, each: int) -> Iterator[slice]:
    size = max(_AT_ONCE // each, 1)
    for first in range(0, count, size):
        yield slice(first, first + size)
