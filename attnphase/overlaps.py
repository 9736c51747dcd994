"""Order parameters and their conjugates: two types, so that they cannot be swapped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Conjugates", "Overlaps", "Sector"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Overlaps:
    """Order parameters (6) of L tokens, with r student columns and teacher rank t.

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

    def aligned(self, reference: Overlaps, rank: int) -> Overlaps:
        """The same point in the gauge closest to a reference.

        ``W -> W O`` with orthogonal O changes nothing physical, so for rank > 1 fixed points form continuous families,
        along which a sampled map drifts. The gauge is fixed by rotating (theta, m) onto the reference's; columns
        without signal are rotated to the eigenvectors of q. Untied weights rotate Q and K together.

        Parameters
        ----------
        reference : Overlaps
        rank : int
            Columns of Q: r for tied weights, r/2 for untied ones.
        """
        if rank == 1:
            return self
        blocks = self.q.shape[-1] // rank

        def signal(overlaps: Overlaps) -> Array:
            """(rank, everything): theta and m of all tokens and blocks."""
            both = np.concatenate([overlaps.theta, overlaps.m], axis=-1)
            return both.reshape(len(both), blocks, rank, -1).transpose(2, 0, 1, 3).reshape(rank, -1)

        left, sizes, right = np.linalg.svd(signal(self) @ signal(reference).T)
        known = sizes > 1e-12 * max(sizes.max(), 1e-300)
        rest = left[:, ~known]
        if rest.shape[1]:
            within = self.q.reshape(len(self.q), blocks, rank, blocks, rank)
            covariance = np.einsum("lbibj->ij", within)
            rest = rest @ np.linalg.eigh(rest.T @ covariance @ rest)[1][:, ::-1]
        rotation = left[:, known] @ right[known] + rest @ right[~known]
        O = np.kron(np.eye(blocks), rotation)
        return Overlaps(O.T @ self.q @ O, O.T @ self.V @ O, O.T @ self.m, O.T @ self.theta)

    def scales(self, rho: Array) -> Array:
        """Size of every packed entry's block, for relative residuals.

        Blocks that vanish (q, m and theta of the trivial point, theta of the positional branch) are measured against a
        millionth of their natural size, set by the teacher's variance.
        """
        natural = np.trace(rho, axis1=-2, axis2=-1).mean() / rho.shape[-1]
        pieces = []
        # floor for |theta| follows from |theta|^2 <= q rho; m has the size of sqrt(q)
        for block, floor in ((self.q, natural), (self.V, 0.0), (self.m, np.sqrt(natural)), (self.theta, natural)):
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
        return Conjugates(*(x.mean(axis=1, keepdims=True) for x in (self.q_hat, self.V_hat, self.m_hat, self.theta_hat)))

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
    length, columns, teacher_rank : int
    """

    basis: Array
    length: int
    columns: int
    teacher_rank: int

    @classmethod
    def of(
        cls, start: Overlaps, permutations: tuple[tuple[int, ...], ...], sign_symmetric: bool, teacher_rank: int
    ) -> Sector:
        """The sector of a starting point.

        Parameters
        ----------
        start : Overlaps
        permutations : tuple of permutations
            Permutations of the tokens that leave the problem unchanged, the identity among them.
        sign_symmetric : bool
            The loss is unchanged by ``h -> -h`` and by ``k -> -k``, so that m = 0 and theta = 0 are preserved.
        """
        length, columns = start.q.shape[:2]
        actions = [a for p in permutations for a in _actions(p, sign_symmetric) if _unchanged(start, a)]
        keep_m, keep_theta = not sign_symmetric or start.m.any(), not sign_symmetric or start.theta.any()

        def projected(overlaps: Overlaps) -> Overlaps:
            images = [action(overlaps) for action in actions]
            q, V, m, theta = (
                np.mean([getattr(image, name) for image in images], axis=0) for name in ("q", "V", "m", "theta")
            )
            return Overlaps(q, V, m * keep_m, theta * keep_theta)

        size = len(start.pack())
        columns_of_projector = [
            projected(Overlaps.unpack(unit, length, columns, teacher_rank)).pack() for unit in np.eye(size)
        ]
        basis, covered = [], np.zeros(size, dtype=bool)
        for i, column in enumerate(columns_of_projector):
            if not covered[i] and column[i] > 0:
                orbit = np.sign(np.where(np.abs(column) > 1e-12, column, 0.0))
                basis.append(orbit)
                covered |= orbit != 0
        return cls(np.stack(basis, axis=1), length, columns, teacher_rank)

    def pack(self, overlaps: Overlaps) -> Array:
        """Coordinates (D,) of the projection on the sector."""
        return (self.basis.T @ overlaps.pack()) / np.abs(self.basis).sum(axis=0)

    def unpack(self, vector: Array) -> Overlaps:
        """Overlaps with the given coordinates."""
        return Overlaps.unpack(self.basis @ vector, self.length, self.columns, self.teacher_rank)

    def scales(self, vector: Array, rho: Array) -> Array:
        """As `Overlaps.scales`, for the coordinates."""
        first = np.abs(self.basis).argmax(axis=0)
        return self.unpack(vector).scales(rho)[first]

    def errors(self, vector: Array) -> Overlaps:
        """Standard errors of the coordinates as those of the entries."""
        return Overlaps.unpack(np.abs(self.basis) @ vector, self.length, self.columns, self.teacher_rank)


def _actions(permutation: tuple[int, ...], sign_symmetric: bool) -> list[Callable[[Overlaps], Overlaps]]:
    """The permutation, and where the loss allows it the permutation with ``W -> -W``."""
    order = list(permutation)

    def act(sign: float) -> Callable[[Overlaps], Overlaps]:
        return lambda o: Overlaps(o.q[order], o.V[order], sign * o.m[order], sign * o.theta[order])

    return [act(1.0), act(-1.0)] if sign_symmetric else [act(1.0)]


def _unchanged(overlaps: Overlaps, action: Callable[[Overlaps], Overlaps]) -> bool:
    image = action(overlaps)
    return all(
        np.allclose(getattr(image, name), getattr(overlaps, name), rtol=1e-9, atol=1e-12)
        for name in ("q", "V", "m", "theta")
    )
