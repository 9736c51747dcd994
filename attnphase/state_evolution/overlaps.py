"""Order parameters and their conjugates: two types, so that they cannot be swapped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array

__all__ = ["Conjugates", "Overlaps", "Sector"]

_Element = tuple[list[int], NDArray[Any], NDArray[Any]]


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

    def pack(self) -> Array:
        """Independent entries as one vector: upper triangles of q and V, then m and theta."""
        rows, columns = np.triu_indices(self.q.shape[-1])
        return np.concatenate(
            [self.q[:, rows, columns].ravel(), self.V[:, rows, columns].ravel(), self.m.ravel(), self.theta.ravel()]
        )

    @classmethod
    def unpack(cls, vector: Array, length: int, columns: int, teacher_rank: int) -> Overlaps:
        """Inverse of `pack`."""
        rows, cols = np.triu_indices(columns)
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
            self.q.shape[0] * len(np.triu_indices(self.q.shape[-1])[0]),
            self.V.shape[0] * len(np.triu_indices(self.V.shape[-1])[0]),
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


@dataclass(frozen=True, eq=False)
class Sector:
    """The linear space of order parameters that share a starting point's exact symmetries.

    The map commutes with the problem's symmetries, so it never leaves this space; working inside it keeps exact zeros
    exact, averages equivalent entries of a sampled map, and shortens the Jacobian.

    Attributes
    ----------
    basis : (P, D) array
        Orbits of packed entries as columns, with entries -1, 0, 1.
    group : tuple
        The symmetries: (order of the sites, (r, r) student matrix, (t, t) teacher matrix).
    length, columns, teacher_rank : int
    """

    basis: Array
    group: tuple[_Element, ...]
    length: int
    columns: int
    teacher_rank: int

    @classmethod
    def of(cls, start: Overlaps, symmetries: tuple[tuple[tuple[int, ...], Array, Array], ...]) -> Sector:
        """The sector of a starting point.

        Those of the problem's symmetries that leave the start unchanged define the sector. A semantic start has m = 0
        this way, a positional one theta = 0, and an uninformed one q proportional to the identity; and no direction is
        left along which W -> W O could drift.

        Parameters
        ----------
        start : Overlaps
        symmetries : tuple of (order of the sites, (r, r) array, (t, t) array)
            From `symmetries.problem_symmetries`, the identity among them.
        """
        length, columns, teacher_rank = start.theta.shape
        candidates = (([*order], A, B) for order, A, B in symmetries)
        group = tuple(element for element in candidates if _unchanged(start, element))
        size = len(start.pack())
        basis, covered = [], np.zeros(size, dtype=bool)
        for i in range(size):
            if covered[i]:
                continue
            unit = Overlaps.unpack(np.eye(size)[i], length, columns, teacher_rank)
            mean = np.mean([_transformed(unit, element).pack() for element in group], axis=0)
            orbit = np.sign(np.where(np.abs(mean) > 1e-12, mean, 0.0))
            covered |= orbit != 0
            if orbit[i] > 0:
                basis.append(orbit)
        return cls(np.stack(basis, axis=1), group, length, columns, teacher_rank)

    def pack(self, overlaps: Overlaps) -> Array:
        """Coordinates (D,) of the projection on the sector."""
        return (self.basis.T @ overlaps.pack()) / np.abs(self.basis).sum(axis=0)

    def unpack(self, vector: Array) -> Overlaps:
        """Overlaps with the given coordinates."""
        return Overlaps.unpack(self.basis @ vector, self.length, self.columns, self.teacher_rank)

    def symmetrized(self, conjugates: Conjugates) -> Conjugates:
        """Mean over the group: a sampled mean obeys the symmetries only up to its error."""
        images = []
        for order, A, B in self.group:
            c = Conjugates(
                *(x[order] for x in (conjugates.q_hat, conjugates.V_hat, conjugates.m_hat, conjugates.theta_hat))
            )
            images.append((A @ c.q_hat @ A.T, A @ c.V_hat @ A.T, A @ c.m_hat, A @ c.theta_hat @ B.T))
        return Conjugates(*(_exact_mean(parts) for parts in zip(*images, strict=True)))

    def scales(self, vector: Array, rho: Array) -> Array:
        """As `Overlaps.scales`, for the coordinates."""
        first = np.abs(self.basis).argmax(axis=0)
        return self.unpack(vector).scales(rho)[first]

    def errors(self, vector: Array) -> Overlaps:
        """Standard errors of the coordinates as those of the entries."""
        return Overlaps.unpack(np.abs(self.basis) @ vector, self.length, self.columns, self.teacher_rank)


def _exact_mean(values: Sequence[Array]) -> Array:
    """Mean in which opposite values cancel exactly: the largest is added to the smallest."""
    ordered = np.sort(np.stack(values), axis=0)
    return ((ordered + ordered[::-1]) / 2).mean(axis=0)


def _transformed(overlaps: Overlaps, element: _Element) -> Overlaps:
    order, A, B = element
    return Overlaps(
        A @ overlaps.q[order] @ A.T, A @ overlaps.V[order] @ A.T, A @ overlaps.m[order], A @ overlaps.theta[order] @ B.T
    )


def _unchanged(overlaps: Overlaps, element: _Element) -> bool:
    image = _transformed(overlaps, element)
    return all(
        np.allclose(getattr(image, name), getattr(overlaps, name), rtol=1e-9, atol=1e-12)
        for name in ("q", "V", "m", "theta")
    )
