"""Order parameters and their conjugates: two types, so that they cannot be swapped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array

__all__ = [
    "VANISHING",
    "Conjugates",
    "Overlaps",
    "norm_entries",
    "norm_matrix",
    "packed_scales",
    "packed_steps",
    "whole_and_without",
    "without_each",
]


VANISHING = 1e-6
"""Share of their natural size below which order parameters count as zero."""


@cache
def _triangle(size: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows and columns of the independent entries of a symmetric matrix."""
    return np.triu_indices(size)


@cache
def _places(size: int) -> NDArray[np.intp]:
    """Which of the independent entries of a symmetric matrix stands where, (r, r)."""
    rows, columns = _triangle(size)
    places = np.empty((size, size), dtype=np.intp)
    places[rows, columns] = places[columns, rows] = np.arange(len(rows))
    return places


def norm_entries(matrix: Array) -> Array:
    """The independent entries (..., n) of symmetric matrices (..., r, r), in the order of `norm_names`."""
    entries: Array = matrix[..., *_triangle(matrix.shape[-1])]
    return entries


def norm_matrix(entries: Array, columns: int) -> Array:
    """Inverse of `norm_entries`."""
    return entries.take(_places(columns), axis=-1)


_NONE = np.zeros(0)


@dataclass(frozen=True, eq=False)
class Overlaps:
    """Order parameters (6), with r student columns and teacher rank t.

    Equation (P1) of the replica-symmetric page.

    They are carried by L sites: the tokens, or for mixture tokens the pairs of a token and one of its clusters.

    Attributes
    ----------
    q : (L, r, r) array
        ``W^T Sigma_l W / d``, symmetric positive semidefinite.
    V : (L, r, r) array
        Rescaled variance, symmetric positive definite.
    m : (L, r, 1) array
        ``W^T p_l / sqrt(d)``.
    theta : (L, r, t) array
        ``W^T Sigma_l Q_star / d``.
    trained : (p,) array
        What belongs to no site: the trained parameters of the loss, and the entries of Q = W^T W / d if it takes Q.
    norms : int
        Number of the last of these that are entries of Q.
    """

    q: Array
    V: Array
    m: Array
    theta: Array
    trained: Array = field(default_factory=lambda: _NONE)
    norms: int = field(default=0, kw_only=True)

    @property
    def by_name(self) -> dict[str, Array]:
        """The overlaps, without trained parameters."""
        return {"q": self.q, "V": self.V, "m": self.m, "theta": self.theta}

    def beside(self, conjugates: Conjugates) -> dict[str, Array]:
        """Under the names of the derived equations, with the sites of conjugates, and an axis for replicates."""
        found = {name: one[:, None] for name, one in self.by_name.items()}
        if not conjugates.Q_hat.size:
            return found
        Q = norm_matrix(self.trained[-self.norms :], self.q.shape[-1])[None, None]
        others = {name: Q if name == "q" else 0 * one[:1] for name, one in found.items()}
        return {name: np.concatenate([one, others[name]]) for name, one in found.items()}

    def feasible(self, rho: Array) -> bool:
        """Whether q and V are positive definite and the teacher's covariance ``rho`` (L, t, t) allows theta.

        Of several overlaps, whose number stands before the token axis, whether that holds for all of them.
        The joint covariance of student and teacher fields, ``(q, theta; theta^T, rho)``, must be positive semidefinite.
        """
        if not np.isfinite(self.q.sum() + self.V.sum() + self.m.sum() + self.theta.sum()):
            return False
        if (self.V if self.V.shape[-1] == 1 else np.linalg.eigvalsh(self.V)).min() <= 0:
            return False
        columns = self.q.shape[-1]
        if columns == rho.shape[-1] == 1:
            q, theta, own = self.q, self.theta, rho
            lowest = (q + own) / 2 - np.hypot((q - own) / 2, theta)
            return bool(lowest.min() >= -1e-10 * rho.max())
        joint = np.empty((*self.q.shape[:-2], columns + rho.shape[-1], columns + rho.shape[-1]))
        joint[..., :columns, :columns], joint[..., columns:, columns:] = self.q, rho
        joint[..., :columns, columns:], joint[..., columns:, :columns] = self.theta, self.theta.mT
        scale = np.trace(rho, axis1=-2, axis2=-1).max()
        return bool(np.linalg.eigvalsh(joint).min() >= -1e-10 * scale)

    def possible(self, rho: Array) -> Overlaps:
        """The overlaps with ``q - theta rho^-1 theta^T`` positive semidefinite: iterations stop beside its edge.

        They are left as they are where it is.
        """
        told = self.theta @ np.linalg.pinv(rho) @ self.theta.mT
        values, vectors = np.linalg.eigh(self.q - told)
        if values.min() >= 0:
            return self
        return replace(self, q=told + (vectors * np.maximum(values, 0.0)[..., None, :]) @ vectors.mT)

    def vanish(self, rho: Array, unit: Array | float = 1.0) -> bool:
        """Whether all weights, in a unit of theirs, are zero as far as residuals tell.

        Then q is below what these are held against.
        """
        floor, *_ = _floors(rho)
        return bool((np.abs(self.q) < floor * np.multiply.outer(unit, unit)).all())

    @property
    def has_signal(self) -> bool:
        """Whether m or theta differs from zero."""
        return bool(self.m.any() or self.theta.any())

    @classmethod
    def stacked(cls, many: Sequence[Overlaps]) -> Overlaps:
        """Several overlaps, whose number stands before the token axis."""
        entries = zip(*((o.q, o.V, o.m, o.theta, o.trained) for o in many), strict=True)
        return cls(*(np.array(each) for each in entries), norms=many[0].norms)

    def replicate(self, s: int) -> Overlaps:
        """One of the replicates that stand behind the token axis."""
        return Overlaps(
            self.q[:, s],
            self.V[:, s],
            self.m[:, s],
            self.theta[:, s],
            self.trained[s] if self.trained.size else _NONE,
            norms=self.norms,
        )

    def changed(self, g: Array) -> Overlaps:
        """Overlaps of the weights ``W g^T``, with g (..., r, r) of the site, of every replicate, or of all."""
        trained = self.trained_of(g) if self.norms else self.trained
        return Overlaps(g @ self.q @ g.mT, g @ self.V @ g.mT, g @ self.m, g @ self.theta, trained, norms=self.norms)

    def trained_of(self, g: Array) -> Array:
        """What is trained, and Q of the weights ``W g^T``, with g (..., r, r): (..., p)."""
        Q = norm_matrix(self.trained[..., len(self.trained.T) - self.norms :], g.shape[-1])
        found = norm_entries(g @ Q @ g.mT)
        rest = self.trained[..., : len(self.trained.T) - self.norms]
        return np.concatenate([np.broadcast_to(rest, (*found.shape[:-1], rest.shape[-1])), found], axis=-1)

    def rate_of_trained(self, A: Array) -> Array:
        """How `trained_of` changes along the turns ``exp(A t)`` at t = 0, with A antisymmetric."""
        rate = 0 * self.trained
        if self.norms:
            Q = norm_matrix(self.trained[-self.norms :], len(A))
            rate[-self.norms :] = norm_entries(A @ Q - Q @ A)
        return rate

    def pack(self) -> Array:
        """Independent entries as one vector: upper triangles of q and V, then m, theta, and what is trained.

        Of several overlaps, whose number stands before the token axis, one row each.
        """
        rows, columns = _triangle(self.q.shape[-1])
        several = self.q.shape[:-3]
        count = self.trained.shape[-1]
        trained = np.broadcast_to(self.trained, (*several, count)) if count else np.zeros((*several, 0))
        parts = self.q[..., rows, columns], self.V[..., rows, columns], self.m, self.theta, trained
        return np.concatenate([part.reshape(*several, -1) for part in parts], axis=-1)

    @classmethod
    def unpack(cls, vector: Array, length: int, columns: int, teacher_rank: int, norms: int = 0) -> Overlaps:
        """Inverse of `pack`, also of several rows (..., P); the last `norms` numbers are entries of Q."""
        several, entries = vector.shape[:-1], columns * (columns + 1) // 2
        triangle, places = length * entries, _places(columns)
        q, V = (
            vector[..., first : first + triangle].reshape(*several, length, entries).take(places, axis=-1)
            for first in (0, triangle)
        )
        rest = vector[..., 2 * triangle :].copy()
        m = rest[..., : length * columns].reshape(*several, length, columns, 1)
        last = length * columns * (1 + teacher_rank)
        theta = rest[..., length * columns : last].reshape(*several, length, columns, teacher_rank)
        return cls(q, V, m, theta, rest[..., last:], norms=norms)

    def untold(self, rho: Array) -> float:
        """Smallest share of the students' variance q that remains given the teacher's fields.

        It is that of ``q - theta rho^-1 theta^T`` over all sites and directions of the columns: one where nothing is
        learned. Where it is small, a change of q or theta by 1 % may change the remaining variance by all of it.
        """
        told = self.theta @ np.linalg.pinv(rho) @ self.theta.mT
        sizes, axes = np.linalg.eigh(self.q)
        lengths = np.sqrt(np.where(sizes > VANISHING * sizes.max(axis=-1, keepdims=True), sizes, np.inf))
        shares = np.linalg.eigvalsh(axes.mT @ told @ axes / (lengths[..., None] * lengths[..., None, :]))
        return float(np.clip(1 - shares.max(), VANISHING, 1.0))

    def scales(self, rho: Array) -> Array:
        """Size of every packed entry's block, for relative residuals.

        Blocks that vanish (q, m and theta of the trivial point, theta of the positional branch) are measured against a
        millionth of their natural size, set by the teacher's variance.
        """
        return packed_scales(self.pack(), self.q.shape[-1], rho, self.norms)


def packed_scales(packed: Array, columns: int, rho: Array, norms: int = 0) -> Array:
    """`Overlaps.scales` of packed overlaps (P,) with so many student columns, and entries of Q."""
    length, rank = rho.shape[:2]
    starts, block = _blocks(length, columns, rank, len(packed), norms)
    floors = _floors(rho) + (VANISHING,) * (len(starts) - 4)  # trained parameters have a natural size of one
    return np.maximum(np.maximum.reduceat(np.abs(packed), starts), floors)[block]


def packed_steps(packed: Array, columns: int, rho: Array, norms: int = 0) -> Array:
    """What changes of packed overlaps (P,) are relative to: of q and V their columns' sizes, where these are smaller.

    Beside a larger column a share of the block's size may be all of a smaller one's variance.
    """
    scales, row = packed_scales(packed, columns, rho, norms), columns * (columns + 1) // 2
    covariances = packed[: 2 * rho.shape[0] * row].reshape(-1, row).take(_places(columns), axis=-1)
    roots = np.sqrt(np.einsum("nii->ni", covariances).clip(0))
    sizes = norm_entries(roots[:, :, None] * roots[:, None, :]).ravel()
    scales[: len(sizes)] = np.where(sizes > 0, np.minimum(sizes, scales[: len(sizes)]), scales[: len(sizes)])
    return scales


def _floors(rho: Array) -> tuple[float, ...]:
    """What q, V, m and theta are held against where they vanish."""
    length, rank = rho.shape[:2]
    natural = float(np.einsum("lii->", rho)) / (length * rank)
    # floor for |theta| follows from |theta|^2 <= q rho; m has the size of sqrt(q); V is held against the loss's
    # curvature, of the teacher's size: it vanishes where a sparse regulariser makes all weights zero
    return VANISHING * natural, VANISHING / natural, VANISHING * float(np.sqrt(natural)), VANISHING * natural


@cache
def _blocks(length: int, columns: int, rank: int, count: int, norms: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where q, V, m, theta, each trained parameter and Q begin among packed overlaps, and which entry is of which."""
    triangle = length * columns * (columns + 1) // 2
    sizes = [triangle, triangle, length * columns, length * columns * rank]
    sizes += [1] * (count - sum(sizes) - norms) + ([norms] if norms else [])
    return np.cumsum([0, *sizes[:-1]]), np.repeat(np.arange(len(sizes)), sizes)


def without_each(values: Array, axis: int) -> Array:
    """Means over all replicates but one, along their axis; the values where there is one alone."""
    count = values.shape[axis]
    return (values.sum(axis=axis, keepdims=True) - values) / (count - 1) if count > 1 else values


def whole_and_without(values: Array, axis: int) -> Array:
    """The mean over all replicates and behind it those over all but one, along their axis."""
    return np.concatenate([values.mean(axis=axis, keepdims=True), without_each(values, axis)], axis=axis)


@dataclass(frozen=True, eq=False)
class Conjugates:
    """Conjugates of the order parameters; a replicate axis S may stand behind the token axis.

    Attributes
    ----------
    q_hat, V_hat : (L, S, r, r) arrays
    m_hat : (L, S, r, 1) array
    theta_hat : (L, S, r, t) array
    trained : (1, S, p) array
        Of the trained parameters, which have no conjugate: their next values, see `trained`.
    Q_hat : (1, S, r, r) array
        Of Q = W^T W / d, which a loss of Q adds to the ridge; without entries if the loss takes no Q.
    norms : (1, S, n) array
        The next values of the entries of Q, if they are not those of the images; see `norms.held`.
    at : pair of (r, r) and (n, n) arrays, optional
        Q where the conjugates were found, and second derivatives of ``alpha E[loss]`` in its entries there.
    """

    q_hat: Array
    V_hat: Array
    m_hat: Array
    theta_hat: Array
    trained: Array = field(default_factory=lambda: _NONE[None, None])
    Q_hat: Array = field(default_factory=lambda: np.zeros((1, 1, 0, 0)))
    norms: Array = field(default_factory=lambda: _NONE[None, None])
    at: tuple[Array, Array] | None = field(default=None, kw_only=True)

    @classmethod
    def of_values(cls, values: Mapping[str, Any]) -> Conjugates:
        """What was measured of them, without replicates, with an axis for one."""
        q_hat, V_hat, m_hat, theta_hat = (values[name][:, None] for name in ("q_hat", "V_hat", "m_hat", "theta_hat"))
        own = {"Q_hat": values["Q_hat"][None, None]} if "Q_hat" in values else {}
        return cls(q_hat, V_hat, m_hat[..., None], theta_hat, **own)

    @property
    def by_name(self) -> dict[str, Array]:
        """Under the names of the derived equations, which know no trained parameters.

        Q is the q of one more site, of tokens of variance one without encodings and teacher.
        """
        found = {"q_hat": self.q_hat, "V_hat": self.V_hat, "m_hat": self.m_hat, "theta_hat": self.theta_hat}
        if not self.Q_hat.size:
            return found
        Q_hat = np.broadcast_to(self.Q_hat, self.V_hat[:1].shape)
        others = {name: Q_hat if name == "V_hat" else 0 * one[:1] for name, one in found.items()}
        return {name: np.concatenate([one, others[name]]) for name, one in found.items()}

    @property
    def _parts(self) -> tuple[Array, ...]:
        return self.q_hat, self.V_hat, self.m_hat, self.theta_hat, self.trained, self.Q_hat, self.norms

    def mean(self) -> Conjugates:
        """Mean over the replicates, axis kept; without `mean`, which takes longer than the sums of so few numbers."""
        return Conjugates(*(np.add.reduce(x, axis=1, keepdims=True) / x.shape[1] for x in self._parts), at=self.at)

    def whole_and_without(self) -> Conjugates:
        """The mean, and behind it the means over all replicates but one: 1 + S replicates."""
        return Conjugates(*(whole_and_without(x, 1) for x in self._parts), at=self.at)

    def replicate(self, s: int) -> Conjugates:
        """One replicate, axis kept."""
        return Conjugates(*(x[:, s : s + 1] if x.size else x for x in self._parts), at=self.at)
