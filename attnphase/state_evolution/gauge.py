"""Linear changes of the student's columns that leave the loss unchanged, and the ridge's choice among them.

A loss of ``h_Q h_K^T`` alone does not change under ``(Q, K) -> (Q M, K M^-T)``. Antisymmetric generators turn the
columns and keep all norms; symmetric ones stretch the columns. The ridge is stationary along a stretch X if
``Tr X W^T W = 0``, so that ``Q^T Q = K^T K``: the least norm among weights of one loss (Kempf and Ness, 1979).

Along some directions n of the columns the loss may not change at all, as a cross-entropy does not with the sum of its
logits. Then W n = 0 at the ridge's minimum: no stretch of n is stationary, and none is needed. These are `idle`.

Columns with ridges of their own, ``sum_i lambda_i |W_i|^2``, are columns of one ridge in units of their own,
``u_i = s_i W_i`` with ``s_i^2`` proportional to ``lambda_i``: a generator X of W is ``s X s^-1`` of u. What of the
generators is antisymmetric or symmetric there counts.

A sampled map obeys this only up to its integration error, which a small slope of the ridge turns into a large
imbalance. `Channel` therefore makes the sampled conjugates obey the loss's invariance, so that fixed points have the
least norm, and `Prior.balanced` keeps all points on the way there by multipliers that vanish at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from attnphase.arrays import Array
from attnphase.kernels.compiler import Kernels
from attnphase.state_evolution.overlaps import Overlaps, norm_entries, norm_matrix

__all__ = ["ROUNDING", "ROUNDS", "Gauge", "gauge_of"]

_STEP = 2e-3  # of the differences, whose error is of its fourth power: 1e-11
_ACCURATE = 1e-7  # relative difference of two steps, beyond which there is a kink between them
_VANISHES = 1e-7  # share of the largest singular value below which a change does nothing, by far the differences' error
ROUNDING = 1e-14  # of a slope, as a share of what has it
ROUNDS = 20  # of Newton's method, which doubles the digits: from a ratio of 1e6 on it takes twelve


@dataclass(frozen=True, eq=False)
class Gauge:
    """Generators of the changes of columns ``h -> h exp(X)^T`` that leave a loss unchanged.

    Attributes
    ----------
    turns : (T, r, r) array
        Antisymmetric ones, of columns times `sizes`.
    stretches : (S, r, r) array
        Symmetric ones, likewise.
    sizes : (r,) array or None
        Roots of the columns' ridges, relative to their geometric mean; None where all have the same.
    idle : (r, r) array or None
        Change of columns times `sizes` that leaves out all directions in which the loss is constant; None without any.
    """

    turns: Array
    stretches: Array
    sizes: Array | None = None
    idle: Array | None = None

    @property
    def changes(self) -> Array:
        """The stretches X of the columns themselves."""
        return self._of_columns(self.stretches)

    @property
    def pulls(self) -> Array:
        """The symmetric ``Lambda X``: the ridges are stationary along X if ``Tr Lambda X W^T W = 0``."""
        return self.stretches if self.sizes is None else self.stretches * self.sizes * self.sizes[:, None]

    @property
    def free(self) -> Array:
        """The turns X of the columns themselves."""
        return self._of_columns(self.turns)

    def in_units(self, overlaps: Overlaps) -> Overlaps:
        """Overlaps of the columns times `sizes`."""
        return overlaps if self.sizes is None else overlaps.changed(np.diag(self.sizes))

    @property
    def useful(self) -> Array | None:
        """The change of the columns themselves that leaves out idle directions."""
        return None if self.idle is None else self._of_columns(self.idle)

    def _of_columns(self, change: Array) -> Array:
        """A change (..., r, r) of the columns times `sizes`, as one of the columns themselves."""
        return change if self.sizes is None else change * self.sizes / self.sizes[:, None]

    def of_regularizer(self, *, quadratic: bool, rotates: bool) -> Gauge:
        """The turns that a regulariser does not see either, and the stretches if it is the ridge, which chooses."""
        none = np.zeros((0, *self.turns.shape[1:]))
        return replace(
            self,
            turns=self.turns if rotates else none,
            stretches=self.stretches if quadratic else none,
            idle=self.idle if quadratic else None,
        )

    def left_by(self, reflections: Sequence[Array]) -> Gauge:
        """The turns that a group of changes of columns leaves free: their means over it."""
        means = np.mean([A @ self.turns @ A.T for A in reflections], axis=0).reshape(len(self.turns), -1)
        _, sizes, rows = np.linalg.svd(means, full_matrices=False)
        turns = rows[sizes > _VANISHES].reshape(-1, *self.turns.shape[1:])
        return replace(self, turns=turns, stretches=self.stretches[:0])

    def turned(self, overlaps: Overlaps, target: Overlaps, reflections: Sequence[Array] = ()) -> Overlaps:
        """Overlaps turned, and perhaps reflected, so that m and theta are as near to those of others as they can be."""
        return overlaps.changed(self.turn(overlaps, target, reflections)) if len(self.turns) else overlaps

    def turn(self, overlaps: Overlaps, target: Overlaps, reflections: Sequence[Array] = ()) -> Array:
        """The matrix (r, r) that `turned` changes columns by."""
        mixed = np.einsum("lij,lkj->ik", overlaps.m, target.m) + np.einsum("lij,lkj->ik", overlaps.theta, target.theta)
        if self.sizes is not None:
            mixed = mixed * self.sizes * self.sizes[:, None]
        ways = [self._nearest(A @ mixed) @ A for A in (np.eye(len(mixed)), *reflections)]
        # rounded, so that of ways that fit alike the first is taken
        best = max(ways, key=lambda way: round(float(np.trace(way @ mixed) / _size(mixed)), 9))
        return self._of_columns(best)

    def _nearest(self, mixed: Array) -> Array:
        """The turn A of the largest ``Tr A C``, which has no other local maximum, by Newton's method."""
        way = np.eye(len(mixed))
        squares = np.einsum("iab,jbc->ijac", self.turns, self.turns)
        for _ in range(ROUNDS):
            slope = np.einsum("iab,ba->i", self.turns, way @ mixed)
            if np.abs(slope).max() <= ROUNDING * _size(mixed):
                break
            bend = np.einsum("ijab,ba->ij", squares, way @ mixed)
            values, vectors = np.linalg.eigh((bend + bend.T) / 2)
            # uphill, too, where the function still bends upwards; by no more than a right angle
            step = vectors @ (vectors.T @ slope / np.maximum(np.abs(values), ROUNDING * _size(mixed)))
            step *= min(1.0, np.pi / 2 / float(np.linalg.norm(step)))
            way = _exponential(np.einsum("i,iab->ab", step, self.turns)) @ way
        return way

    def balancing(self, norms: Array) -> Array:
        """The change g, (..., r, r), that makes ``g N g^T`` stationary along all stretches.

        It is positive definite of columns times `sizes`.

        Parameters
        ----------
        norms : (..., r, r) array
            ``W^T W / d``.
        """
        columns = norms.shape[-1]
        if self.sizes is not None:
            norms = norms * self.sizes * self.sizes[:, None]
        change = np.broadcast_to(np.eye(columns), norms.shape)
        size = np.trace(norms, axis1=-2, axis2=-1)
        squares = np.einsum("iab,jbc->ijac", self.stretches, self.stretches)
        least = np.finfo(float).tiny + 1e-12 * size[..., None, None] * np.eye(len(self.stretches))
        for _ in range(ROUNDS):
            slope = np.einsum("iab,...ba->...i", self.stretches, norms)
            if (np.abs(slope) <= ROUNDING * size[..., None]).all():
                break
            # Tr e^X N e^X = Tr N + 2 Tr X N + 2 Tr X^2 N + ...
            bend = np.einsum("ijab,...ba->...ij", squares, norms)
            bend = (bend + bend.mT) / 2 + least
            generator = np.einsum(
                "...i,iab->...ab", np.linalg.solve(bend, -slope[..., None])[..., 0] / 2, self.stretches
            )
            values, vectors = np.linalg.eigh(generator)
            step = (vectors * np.exp(values)[..., None, :]) @ vectors.mT
            change, norms = step @ change, step @ norms @ step
        # a product of positive definite changes is one up to a turn, which is taken out again
        values, vectors = np.linalg.eigh(change.mT @ change)
        return self._of_columns((vectors * np.sqrt(values)[..., None, :]) @ vectors.mT)


def _size(matrix: Array) -> float:
    return float(np.abs(matrix).max()) or 1.0


def _exponential(antisymmetric: Array) -> Array:
    """Of an antisymmetric matrix, i times which is Hermitian."""
    values, vectors = np.linalg.eigh(1j * antisymmetric)
    result: Array = np.real((vectors * np.exp(-1j * values)) @ vectors.conj().T)
    return result


@lru_cache(maxsize=32)
def gauge_of(
    kernels: Kernels,
    clusters: tuple[tuple[float, ...], ...] = ((),),
    norms: int = 0,
    ridges: tuple[float, ...] | None = None,
) -> Gauge:
    """The generators of a loss: the changes of columns along which it has no slope at random fields.

    A user's own loss needs no declaration.  It has to hold for all numbers of the tokens' clusters.  Of a loss whose
    last numbers are so many entries of Q these are turns alone, which change Q too.
    """
    length, r = kernels.length, kernels.columns
    if r == 1:
        return Gauge(np.zeros((0, 1, 1)), np.zeros((0, 1, 1)))
    generator = np.random.default_rng(22)
    samples = 3 * r * r + 10  # three equations for every unknown, where kinks may cost a few
    h = generator.normal(0.1, 1.2, (samples, length, r))
    label = np.concatenate(
        [
            generator.normal(-0.2, 0.9, (samples, length, kernels.teacher_rank)),
            generator.normal(0.1, 0.6, (samples, length, kernels.noise_columns)),
        ],
        axis=-1,
    )
    numbers = np.reshape(clusters, (len(clusters), length, kernels.cluster_columns)).repeat(samples, axis=0)
    h, label = (np.tile(values, (len(clusters), 1, 1)) for values in (h, label))
    label = np.concatenate([label, numbers], axis=-1)
    samples = len(h)
    mixing = generator.uniform(0.2, 0.8, (length, length))
    variance = generator.uniform(0.3, 0.9, length)
    units = np.eye(length * r).reshape(-1, length, r)

    def slopes(step: float, numbers: Array) -> Array:
        """Along every field, by four points, (samples, L, r)."""
        points = [h[:, None] + side * step * units for side in (-2.0, -1.0, 1.0, 2.0)]
        fields = np.ascontiguousarray(np.concatenate(points, axis=1).reshape(-1, length, r))
        labels = np.ascontiguousarray(np.repeat(label, 4 * len(units), axis=0))
        losses = np.empty(len(fields))
        kernels.losses_at(fields, labels, mixing, numbers, variance, losses)
        return _slope(losses.reshape(samples, 4, length, r), step)

    def pulls(step: float, numbers: Array) -> Array:
        """``dloss = Tr[P dQ]/2`` likewise, (samples, r, r)."""
        values = np.empty((samples, 4, norms))
        for side, entry in np.ndindex(4, norms):
            moved, losses = numbers.copy(), np.empty(samples)
            moved[entry - norms] += (-2.0, -1.0, 1.0, 2.0)[side] * step
            kernels.losses_at(h, label, mixing, moved, variance, losses)
            values[:, side, entry] = losses
        return norm_matrix(_slope(values, step), r) * (1 + np.eye(r))

    def equations_at(numbers: Array) -> Array:
        """The slopes along all changes at some numbers, where they are known, (samples, r^2)."""
        coarse, fine = slopes(_STEP, numbers), slopes(_STEP / 2, numbers)
        smooth = np.abs(coarse - fine).max(axis=(1, 2)) <= _ACCURATE * np.abs(fine).max()
        found = np.einsum("nla,nlb->nab", fine, h)
        if norms:
            found = found + pulls(_STEP / 2, numbers) @ norm_matrix(numbers[-norms:], r)
        return found[smooth].reshape(-1, r * r)

    several = [kernels.some_numbers]
    for _ in range(2 if norms else 0):
        root = generator.normal(size=(r, r))
        several.append(np.append(several[0][:-norms], norm_entries(root @ root.T)))
    equations = np.concatenate([equations_at(numbers) for numbers in several])
    if len(equations) < r * r or not equations.any():  # kinks everywhere, or steps: slopes tell nothing
        return Gauge(np.zeros((0, r, r)), np.zeros((0, r, r)))
    _, sizes, rows = np.linalg.svd(equations, full_matrices=False)
    found = _exact(rows[sizes <= _VANISHES * sizes.max()]).reshape(-1, r, r)
    roots = None if ridges is None else np.sqrt(np.array(ridges) / np.exp(np.mean(np.log(ridges))))
    found = found if roots is None else found * roots[:, None] / roots
    turns, stretches = _parts(found)
    if norms:
        return Gauge(turns, stretches[:0], roots)
    idle = _idle(found)
    turns, stretches = _others(turns, idle), _others(stretches, idle)
    return Gauge(turns, stretches, roots, np.eye(r) - idle if idle.any() else None)


def _slope(values: Array, step: float) -> Array:
    """Derivative by values at -2, -1, 1 and 2 steps, along the second axis."""
    found: Array = (values[:, 0] - 8 * values[:, 1] + 8 * values[:, 2] - values[:, 3]) / (12 * step)
    return found


def _exact(rows: Array) -> Array:
    """Other rows of the same span, reduced, where differences left nearly whole numbers for whole ones."""
    reduced = rows.copy()
    for i in range(len(reduced)):
        free = np.abs(reduced[i:]).max(axis=0)
        column = int(np.argmax(free > 0.5 * free.max()))
        best = i + int(np.abs(reduced[i:, column]).argmax())
        reduced[[i, best]] = reduced[[best, i]]
        reduced[i] /= reduced[i, column]
        others = np.arange(len(reduced)) != i
        reduced[others] -= reduced[others, column, None] * reduced[i]
    whole = np.round(reduced)
    return np.where(np.abs(reduced - whole) <= _VANISHES, whole, reduced)


def _idle(found: Array) -> Array:
    """Projection (r, r) on the directions n of columns with all ``n a^T`` in the span of some matrices."""
    r = found.shape[-1]
    flat = np.linalg.qr(found.reshape(-1, r * r).T)[0].T.reshape(-1, r, r)
    shares, vectors = np.linalg.eigh(np.einsum("iab,icb->ac", flat, flat) / r)
    idle = vectors[:, shares > 1 - _VANISHES]
    return idle @ idle.T


def _others(part: Array, idle: Array) -> Array:
    """Of an orthonormal basis of changes, one without those among idle directions."""
    if not idle.any():
        return part
    rest = (part - idle @ part @ idle).reshape(len(part), idle.size)
    _, sizes, rows = np.linalg.svd(rest, full_matrices=False)
    return rows[sizes > 1e-3].reshape(-1, *idle.shape)


def _parts(found: Array) -> tuple[Array, Array]:
    """Orthonormal antisymmetric and symmetric matrices in the span of some."""
    r = found.shape[-1]
    parts = []
    flat = np.linalg.qr(found.reshape(-1, r * r).T)[0].T
    for sign in (-1.0, 1.0):
        # X with X^T = sign X is what lies in the span and, transposed, in it again
        part = (found + sign * found.mT).reshape(-1, r * r) / 2
        inside = np.linalg.norm(part - part @ flat.T @ flat, axis=1).max(initial=0.0) <= np.sqrt(_VANISHES)
        if not inside:  # not all of them: those that their transposes take away
            other = flat.reshape(-1, r, r) - sign * flat.reshape(-1, r, r).mT
            axes, lengths, _ = np.linalg.svd(other.reshape(-1, r * r))
            part = axes.T[np.append(lengths, np.zeros(len(axes)))[: len(axes)] <= np.sqrt(_VANISHES)] @ flat
        _, sizes, rows = np.linalg.svd(part, full_matrices=False)
        parts.append(rows[sizes > 1e-3].reshape(-1, r, r))
    return parts[0], parts[1]
