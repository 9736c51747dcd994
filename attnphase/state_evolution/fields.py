"""Local fields of samples as they are made of normals, and moments of what is found there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnphase.arrays import Array

__all__ = ["Draws", "FieldLaw"]


class FieldLaw(NamedTuple):
    """How the local fields of one sample's tokens are made of normals ``(xi, zeta)``, the teacher's fields first.

    Attributes
    ----------
    roots, lifts, teacher_roots : (L, r, r), (L, r, t) and (L, t, t) arrays
        ``k = teacher_root zeta`` and ``omega = m + lift zeta + root xi``.
    turns : (L, r + t, r + t) array
        Orthogonal: what makes ``(xi, zeta)`` of the normals that a rule has as its nodes.
    means : (L, r) array
        Of ``omega``.
    noise : (L,) array
        Standard deviation of the noise on a row of the labels.
    """

    roots: Array
    lifts: Array
    teacher_roots: Array
    turns: Array
    means: Array
    noise: Array


class Draws(NamedTuple):
    """Some of the nodes of a rule, under one sign change.

    Attributes
    ----------
    normals : (L, N, r + t) array
        The student's, then the teacher's, of every token.
    noise : (L, N, noise) array
    shares : (N,) or (0,) array
        By which the weights are multiplied; none where all are one.
    """

    normals: Array
    noise: Array
    shares: Array

    def fields(self, law: FieldLaw, columns: int) -> tuple[Array, Array]:
        """``omega`` (N, L, r), and the teacher's fields about their mean with the noise behind them, (N, L, columns).

        What else labels are made of has no variance.
        """
        r = law.roots.shape[-1]
        student = np.concatenate([law.roots, law.lifts], axis=-1) @ law.turns
        omega = self.normals @ student.mT + law.means[:, None]
        k = self.normals @ (law.teacher_roots @ law.turns[:, r:]).mT
        known = np.concatenate([k, law.noise[:, None, None] * self.noise], axis=-1)
        whole = np.zeros((known.shape[1], len(known), columns))
        whole[..., : known.shape[-1]] = known.swapaxes(0, 1)
        return np.ascontiguousarray(omega.swapaxes(0, 1)), whole

    def moments(self, law: FieldLaw, k: Array, residuals: Array, weights: Array, some: slice) -> Array:
        """Sums over some nodes, with their weights, of ``g`` with 1, ``g``, ``xi`` and ``k``: (L, r, 1 + 2 r + t)."""
        _, r, t = law.lifts.shape
        g, normals = residuals[some].swapaxes(0, 1), self.normals[:, some]
        ones, teacher = np.ones((*g.shape[:2], 1)), k[some, :, :t].swapaxes(0, 1)
        sums = (g * weights[:, None]).mT @ np.concatenate([ones, g, normals, teacher], axis=-1)
        known, of_k = 1 + r, 1 + 2 * r + t
        of_xi = sums[..., known:of_k] @ law.turns[:, :r].mT
        return np.concatenate([sums[..., :known], of_xi, sums[..., of_k:]], axis=-1)
