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
from attnphase.facts.generators import free_changes
from attnphase.facts.losses import Loss
from attnphase.state_evolution.overlaps import Overlaps

__all__ = ["ROUNDING", "ROUNDS", "Gauge", "gauge_of"]

_VANISHES = 1e-7  # of an orthonormal basis, what is left of a change that lies in the span of others: by far rounding
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
    loss: Loss, clusters: tuple[tuple[float, ...], ...] = ((),), ridges: tuple[float, ...] | None = None
) -> Gauge:
    """The generators of a loss: the changes of columns along which it has no slope, which `free_changes` finds.

    A user's own loss needs no declaration.  It has to hold for all numbers of the tokens' clusters.  Of a loss whose
    last numbers are so many entries of Q these are turns alone, which change Q too.
    """
    r = loss.kernels.columns
    if r == 1:
        return Gauge(np.zeros((0, 1, 1)), np.zeros((0, 1, 1)))
    found = free_changes(loss, clusters)
    if not len(found):
        return Gauge(np.zeros((0, r, r)), np.zeros((0, r, r)))
    roots = None if ridges is None else np.sqrt(np.array(ridges) / np.exp(np.mean(np.log(ridges))))
    found = found if roots is None else found * roots[:, None] / roots
    turns, stretches = _parts(found)
    if loss.norms:
        return Gauge(turns, stretches[:0], roots)
    idle = _idle(found)
    turns, stretches = _others(turns, idle), _others(stretches, idle)
    return Gauge(turns, stretches, roots, np.eye(r) - idle if idle.any() else None)


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
