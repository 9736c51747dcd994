"""Where a fixed point that its symmetry keeps becomes unstable: columns are told apart, or further ones are learned."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from attnphase.arrays import Array
from attnphase.theories.bayes_optimal.coordinates import Coordinates
from attnphase.theories.bayes_optimal.crossing import PointAtShare
from attnphase.theories.bayes_optimal.evolution import Evolution, joined
from attnphase.theories.bayes_optimal.labels import Labels

__all__ = ["KICK", "Growth", "Sector", "first_instability", "growth", "told_apart"]

KICK = 0.1  # by which the columns are told apart, relative to what is known

_STEP, _STEP_OF_JUMPS = 0.004, 0.05  # of what is unknown; where draws have labels that jump
_EVERY = 3  # points of a curve that are looked at
_REFINED = 3  # further points
_APART = 0.1  # odds on both sides of the point that is found, whose logarithm is taken
_ALIKE = 0.1  # what q may differ by from its image under a symmetry that it has; one that it breaks is no small matter
_UNKNOWN = 1e-2  # share of a direction of which nothing is known, over the largest


@dataclass(frozen=True, eq=False)
class Sector:
    """What the symmetries of the labels keep of a point: those that q has, and directions of which nothing is known.

    Attributes
    ----------
    rho : (P, t, t) array
    group : (G, t, t) array
    known : (t, t) array
        Projects on the other directions.
    """

    rho: Array
    group: Array
    known: Array

    @classmethod
    def of(cls, evolution: Evolution, V: Array) -> Sector:
        """That of a point.

        A direction stays unknown if a symmetry turns it round and leaves what is known as it is.
        """
        q = evolution.rho - V
        images = np.array(evolution.channel.images)
        group = np.array([g for g in images if np.abs(g @ q @ g.T - q).max() <= _ALIKE * np.abs(q).max()])
        values, vectors = np.linalg.eigh(q.sum(axis=0))
        known = np.eye(len(values))
        for value, way in zip(values, vectors.T, strict=True):
            turned = any(np.abs(g @ way + way).max() < _ALIKE for g in group)
            if value < _UNKNOWN * values[-1] and turned:
                known -= np.outer(way, way)
        return cls(evolution.rho, group, known)

    @property
    def trivial(self) -> bool:
        """Whether it keeps nothing."""
        rank = self.rho.shape[1]
        kept = np.abs(np.abs(np.einsum("gii->g", self.group)) - rank).max() > _ALIKE  # others than one and its opposite
        return not kept and bool(np.trace(self.known) > rank - _ALIKE)

    @property
    def reach(self) -> float:
        """Share of the fields' variance that can be known in it."""
        return float(np.trace(self.known @ self.rho.sum(axis=0)) / np.trace(self.rho.sum(axis=0)))

    def hold(self, V: Array) -> Array:
        """V without what the sector does not hold."""
        return self.rho - self.held(self.rho - V)

    def held(self, q: Array) -> Array:
        """The part of q, or of a change of it, that the sector holds."""
        q = self.known @ q @ self.known
        return np.asarray(np.mean([g @ q @ g.T for g in self.group], axis=0))

    def has(self, V: Array) -> bool:
        """Whether it holds a point."""
        return bool(np.abs(self.hold(V) - V).max() <= _ALIKE * np.abs(self.rho - V).max())


def told_apart(rho: Array) -> Array:
    """V of another known share in every direction, none of them an axis."""
    root, rank = Coordinates(rho).root(), rho.shape[-1]
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((rank, rank)))[0]
    shares = np.arange(1, rank + 1) / (rank + 1)
    return root @ ((turn * shares) @ turn.T) @ root


@dataclass(frozen=True, eq=False)
class Growth:
    """Largest eigenvalue of the map's Jacobian at a fixed point.

    Attributes
    ----------
    value : float
    each : (S,) array
        What replicates make of it.
    truncation : float
        Error that the size of the differences leaves.
    """

    value: float
    each: Array
    truncation: float


def growth(evolution: Evolution, alpha: float, V: Array, sector: Sector) -> Growth:
    """The largest eigenvalue of the map's Jacobian in directions that a sector does not hold.

    The map keeps the sector, so that its Jacobian leaves these directions among themselves.  Derivatives are
    extrapolated from two differences: the error is by how much this changes the finer one.

    Parameters
    ----------
    evolution : Evolution
    alpha : float
    V : (P, t, t) array
        Of a fixed point.
    sector : Sector
    """
    sites, rank = V.shape[:2]
    size = _STEP_OF_JUMPS if isinstance(evolution.channel, Labels) else _STEP
    values, vectors = np.linalg.eigh(V)
    roots = (vectors * np.sqrt(values)[:, None]) @ vectors.mT
    axes = np.linalg.eigh(sector.known)[1].T  # along or across what is known
    ways = [axes[i] + axes[j] for i, j in zip(*np.triu_indices(rank), strict=True)]
    steps = []
    for site in range(sites):
        for way in ways:  # steps at which more is known
            step = np.zeros_like(V)
            step[site] = np.outer(*[roots[site] @ way / np.linalg.norm(way)] * 2)
            steps.append(step)

    def images(at: Array) -> Array:
        return joined(evolution.images(alpha, at, evolution.moments(at))[1])

    here, basis = images(V), np.stack([joined(step) for step in steps], axis=1)
    inverse = np.linalg.inv(basis)
    breaking = np.eye(len(basis)) - inverse @ np.stack([joined(sector.held(step)) for step in steps], axis=1)
    coarse, fine = (
        breaking @ inverse @ np.stack([(here - images(V - h * step)) / h for step in steps], axis=-1) @ breaking
        for h in (2 * size, size)
    )
    jacobians = 2 * fine - coarse
    values, vectors = np.linalg.eig(jacobians.mean(axis=0))
    top = int(np.argmax(np.real(values)))
    left = np.linalg.pinv(vectors)[top]
    each, moved = (np.real(np.einsum("i,sij,j->s", left, of, vectors[:, top])) for of in (jacobians, fine - coarse))
    return Growth(float(np.real(values[top])), each, abs(float(moved.mean())))


def first_instability(
    coarse: Evolution,
    fine: Evolution,
    curve: Iterable[PointAtShare],
    at_share: Callable[[Evolution, float, Array], PointAtShare],
    sector: Sector,
) -> tuple[float, float, Array] | None:
    """The sample complexity of the first unstable point of a curve along which alpha rises, its error, and V there.

    Parameters
    ----------
    coarse, fine : Evolution
        That of the curve, and one for two points on both sides of the one that is found on it.
    curve : iterable
        Of points, of which none beyond the first unstable one is taken.
    at_share : callable
        The point at a share, from V near it.
    sector : Sector
        That the curve keeps.

    Returns
    -------
    tuple or None
        None where all points are stable, or the first one is not.
    """
    found, reach = list[tuple[PointAtShare, Growth]](), sector.reach
    for point in islice(curve, 0, None, _EVERY):
        found.append((point, growth(coarse, point.alpha, point.V, sector)))
        if found[-1][1].value > 1:
            break
    if len(found) < 2 or found[-1][1].value <= 1:
        return None
    pair = found[-2:]
    for _ in range(_REFINED):
        share = reach * _share(_between([(point.share / reach, one.value) for point, one in pair]))
        middle = at_share(coarse, share, pair[0][0].V)
        between = growth(coarse, middle.alpha, middle.V, sector)
        pair[int(between.value > 1)] = middle, between
    odds = _between([(point.share / reach, one.value) for point, one in pair])
    points = [at_share(fine, reach * _share(odds + side * _APART), pair[0][0].V) for side in (-1, 1)]
    values = [growth(fine, point.alpha, point.V, sector) for point in points]
    (low, high), (below, above) = points, values
    slope = (high.alpha - low.alpha) / (above.value - below.value)
    weight = (1 - below.value) / (above.value - below.value)
    each = [one.each - one.each.mean() for one in values]
    alphas = [point.alphas - point.alphas.mean() for point in points]
    moved = (1 - weight) * (alphas[0] - slope * each[0]) + weight * (alphas[1] - slope * each[1])
    V = low.V + weight * (high.V - low.V)
    truncation = slope * ((1 - weight) * below.truncation + weight * above.truncation)
    error = float(np.hypot(moved.std(ddof=1) / np.sqrt(len(moved)), truncation))
    return low.alpha + slope * (1 - below.value), error, V


def _odds(share: float) -> float:
    return float(np.log(share / (1 - share)))


def _share(odds: float) -> float:
    return float(1 / (1 + np.exp(-odds)))


def _between(ends: list[tuple[float, float]]) -> float:
    """The logarithm of the odds at which the growth is one, if it is linear in it; not too near to an end."""
    (low, below), (high, above) = ends
    weight = float(np.clip((1 - below) / (above - below), 0.1, 0.9))
    return _odds(low) + weight * (_odds(high) - _odds(low))
