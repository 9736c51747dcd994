"""Order parameters and their conjugates: two types, so that they cannot be swapped."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array

__all__ = ["Conjugates", "Overlaps"]


@cache
def _triangle(size: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows and columns of the independent entries of a symmetric matrix."""
    return np.triu_indices(size)


@dataclass(frozen=True, eq=False)
class Overlaps:
    """Order parameters (6), with r student columns and teacher rank t.

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
    """

    q: Array
    V: Array
    m: Array
    theta: Array

    def feasible(self, rho: Array) -> bool:
        """Whether q and V are positive definite and the teacher's covariance ``rho`` (L, t, t) allows theta.

        The joint covariance of student and teacher fields, ``(q, theta; theta^T, rho)``, must be positive semidefinite.
        """
        if not all(np.isfinite(x).all() for x in (self.q, self.V, self.m, self.theta)):
            return False
        if np.linalg.eigvalsh(self.V).min() <= 0:
            return False
        joint = np.block([[self.q, self.theta], [self.theta.mT, rho]])
        scale = np.trace(rho, axis1=-2, axis2=-1).max()
        return bool(np.linalg.eigvalsh(joint).min() >= -1e-10 * scale)

    @property
    def has_signal(self) -> bool:
        """Whether m or theta differs from zero."""
        return bool(self.m.any() or self.theta.any())

    def replicate(self, s: int) -> Overlaps:
        """One of the replicates that stand behind the token axis."""
        return Overlaps(self.q[:, s], self.V[:, s], self.m[:, s], self.theta[:, s])

    def pack(self) -> Array:
        """Independent entries as one vector: upper triangles of q and V, then m and theta."""
        rows, columns = _triangle(self.q.shape[-1])
        return np.concatenate(
            [self.q[:, rows, columns].ravel(), self.V[:, rows, columns].ravel(), self.m.ravel(), self.theta.ravel()]
        )

    @classmethod
    def unpack(cls, vector: Array, length: int, columns: int, teacher_rank: int) -> Overlaps:
        """Inverse of `pack`."""
        rows, cols = _triangle(columns)
        triangle = length * len(rows)
        matrices = []
        for part in (vector[:triangle], vector[triangle : 2 * triangle]):
            matrix = np.zeros((length, columns, columns))
            matrix[:, rows, cols] = part.reshape(length, -1)
            matrix[:, cols, rows] = part.reshape(length, -1)
            matrices.append(matrix)
        rest = vector[2 * triangle :]
        m = rest[: length * columns].reshape(length, columns, 1)
        theta = rest[length * columns :].reshape(length, columns, teacher_rank)
        return cls(matrices[0], matrices[1], m.copy(), theta.copy())

    def scales(self, rho: Array) -> Array:
        """Size of every packed entry's block, for relative residuals.

        Blocks that vanish (q, m and theta of the trivial point, theta of the positional branch) are measured against a
        millionth of their natural size, set by the teacher's variance.
        """
        natural = np.trace(rho, axis1=-2, axis2=-1).mean() / rho.shape[-1]
        pieces = []
        # floor for |theta| follows from |theta|^2 <= q rho; m has the size of sqrt(q); V is held against the loss's
        # curvature, of the teacher's size: it vanishes where a sparse regulariser makes all weights zero
        for block, floor in (
            (self.q, natural),
            (self.V, 1 / natural),
            (self.m, np.sqrt(natural)),
            (self.theta, natural),
        ):
            size = np.abs(block).max() if block.size else 0.0
            pieces.append(max(size, 1e-6 * floor))
        counts = [
            self.q.shape[0] * len(_triangle(self.q.shape[-1])[0]),
            self.V.shape[0] * len(_triangle(self.V.shape[-1])[0]),
            self.m.size,
            self.theta.size,
        ]
        return np.repeat(pieces, counts)


@dataclass(frozen=True, eq=False)
class Conjugates:
    """Conjugates of the order parameters; a replicate axis S may stand behind the token axis.

    Attributes
    ----------
    q_hat, V_hat : (L, S, r, r) arrays
    m_hat : (L, S, r, 1) array
    theta_hat : (L, S, r, t) array
    """

    q_hat: Array
    V_hat: Array
    m_hat: Array
    theta_hat: Array

    def mean(self) -> Conjugates:
        """Mean over the replicates, axis kept."""
        return Conjugates(
            *(x.mean(axis=1, keepdims=True) for x in (self.q_hat, self.V_hat, self.m_hat, self.theta_hat))
        )

    def replicate(self, s: int) -> Conjugates:
        """One replicate, axis kept."""
        return Conjugates(*(x[:, s : s + 1] for x in (self.q_hat, self.V_hat, self.m_hat, self.theta_hat)))
