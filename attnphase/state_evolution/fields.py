"""Local fields of samples as they are made of normals, and moments of what is found there."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    normals : (N, L (r + t + noise)) array
        The student's, then the teacher's, then the noise's, each token by token.
    signs : (2,) tuple
        Of the student's and the teacher's; the noise keeps its sign.
    shares : (N,) or (0,) array
        By which the weights are multiplied; none where all are one.
    """

    normals: Array
    signs: tuple[int, int]
    shares: Array

    def fields(self, law: FieldLaw, columns: int) -> tuple[Array, Array]:
        """``omega`` (N, L, r), and the teacher's fields about their mean with the noise behind them, (N, L, columns).

        What else labels are made of has no variance.
        """
        count, width = self.normals.shape
        tokens, places, signs = _places(*law.lifts.shape, self.signs)
        L, r, t = law.lifts.shape
        student, labels = np.zeros((width, L, r)), np.zeros((width, L, columns))
        student[places, tokens] = (np.concatenate([law.roots, law.lifts], axis=-1) @ law.turns * signs).mT
        labels[places, tokens, :t] = (law.teacher_roots @ law.turns[:, r:] * signs).mT
        noise = np.arange(L * (r + t), width).reshape(L, -1)
        labels[noise, tokens, t + np.arange(noise.shape[1])] = law.noise[:, None]
        omega = self.normals @ student.reshape(width, -1) + law.means.ravel()
        return omega.reshape(count, L, r), (self.normals @ labels.reshape(width, -1)).reshape(count, L, columns)

    def moments(self, law: FieldLaw, k: Array, residuals: Array, weights: Array, some: slice) -> Array:
        """Sums over n of some S n nodes of ``g`` with 1, ``g``, ``xi`` and ``k``: (S, L, r, 1 + 2 r + t).

        With the weights (S, n).
        """
        L, r, t = law.lifts.shape
        _, places, signs = _places(L, r, t, self.signs)
        g, k, normals = (values[some].reshape(*weights.shape, -1) for values in (residuals, k, self.normals))
        weighted = (g * weights[..., None]).mT
        of_one = (weights[:, None] @ g).reshape(-1, L, r, 1)
        of_g, of_k = (
            np.einsum("slrlc->slrc", (weighted @ values).reshape(-1, L, r, L, values.shape[-1] // L))
            for values in (g, k)
        )
        of_normals = np.take_along_axis(
            (weighted @ normals).reshape(-1, L, r, normals.shape[-1]), places[None, :, None], -1
        )
        of_xi = of_normals * signs @ law.turns[:, :r].mT
        return np.concatenate([of_one, of_g, of_xi, of_k[..., :t]], axis=-1)


@cache
def _places(L: int, r: int, t: int, signs: tuple[int, int]) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
    """Every token's number (L, 1), the places of its normals among those of all, (L, r + t), and their signs."""
    student, teacher = np.arange(L * r).reshape(L, r), np.arange(L * r, L * (r + t)).reshape(L, t)
    places = np.concatenate([student, teacher], axis=1)
    return np.arange(L)[:, None], places, np.repeat(np.array(signs, dtype=float), [r, t])
