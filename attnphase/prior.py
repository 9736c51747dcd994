"""Conjugates to overlaps: the mean over the spectral measure, equation (7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnphase.compiled import Kernels
from attnphase.overlaps import Conjugates, Overlaps
from attnphase.problem import Problem

__all__ = ["Spectrum", "overlaps_from_conjugates"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The spectral measure nu(gamma, tau, pi) of equation (5) as weighted atoms.

    Attributes
    ----------
    weights : (A,) array
        Sum to one.
    gamma : (L, A) array
        Eigenvalues of the tokens' covariances.
    tau : (L, A) array
        Projections of the positional encodings on the eigenvectors, times sqrt(d).
    pi : (A, t) array
        Projections of the teacher's weights.
    """

    weights: Array
    gamma: Array
    tau: Array
    pi: Array

    @classmethod
    def of(cls, problem: Problem) -> Spectrum:
        """Atoms of a problem whose encodings and teacher are independent of the covariances' eigenvectors.

        Under the ridge only second moments of (tau, pi) enter: ``E tau_l tau_k = p_l . p_k``, ``E pi pi^T = I``. They
        are carried by L + t atoms, the columns of a matrix square root, for every eigenvalue.
        """
        fractions, variances = problem.spectrum_atoms()
        length, rank = problem.tokens.length, problem.teacher.rank
        values, vectors = np.linalg.eigh(problem.positions_gram)
        root = vectors * np.sqrt(np.clip(values, 0.0, None))
        count = length + rank
        tau = np.sqrt(count) * np.concatenate([root, np.zeros((length, rank))], axis=1)
        pi = np.sqrt(count) * np.concatenate([np.zeros((length, rank)), np.eye(rank)], axis=0)
        return cls(
            weights=np.repeat(np.asarray(fractions) / count, count),
            gamma=np.repeat(np.asarray(variances).T, count, axis=1),
            tau=np.tile(tau, (1, len(fractions))),
            pi=np.tile(pi, (len(fractions), 1)),
        )

    @property
    def rho(self) -> Array:
        """``rho_l = int dnu gamma_l pi pi^T``, (L, t, t)."""
        return np.einsum("a,la,as,at->lst", self.weights, self.gamma, self.pi, self.pi)

    @property
    def token_variances(self) -> Array:
        """``rho^Sigma_l = tr Sigma_l / d``, (L,)."""
        return self.gamma @ self.weights

    def mean(self, values: Array) -> Array:
        """Mean over the atoms, which stand on the first axis."""
        return np.tensordot(self.weights, values, axes=1)

    def arguments(self) -> dict[str, Any]:
        """The arrays under the names of the generated functions, with axes (L,) A, replicate, row, column."""
        return {
            "gamma": self.gamma[:, :, None, None, None],
            "tau": self.tau[:, :, None, None, None],
            "pi": self.pi[:, None, :, None],
            "spectral_mean": self.mean,
        }


def overlaps_from_conjugates(
    kernels: Kernels, spectrum: Spectrum, ridge: float, conjugates: Conjugates, *, lift: bool = False
) -> Overlaps | None:
    """Equation (7); None where ``lambda I + sum gamma V_hat`` is not positive definite on some atom.

    Parameters
    ----------
    ridge : float
        Regulariser's strength lambda.
    conjugates : Conjugates
        With replicate axis of length one.
    lift : bool
        Outside the domain, add to V_hat what brings the smallest curvature to a tenth of lambda. Not the map any more,
        but it leads poor starts, where the loss is concave, towards larger overlaps and so into the domain.
    """
    V_hat = conjugates.V_hat
    curvature = ridge * np.eye(kernels.columns) + np.einsum("la,lsij->asij", spectrum.gamma, V_hat)
    if not np.isfinite(curvature).all():
        return None
    lowest = np.linalg.eigvalsh(curvature).min()
    if lowest <= 0:
        if not lift:
            return None
        shift = (0.1 * ridge - lowest) / spectrum.gamma.sum(axis=0).min()
        V_hat = V_hat + shift * np.eye(kernels.columns)
    q, V, m, theta = kernels.overlaps_from_conjugates(
        ridge=ridge,
        **spectrum.arguments(),
        q_hat=conjugates.q_hat,
        V_hat=V_hat,
        m_hat=conjugates.m_hat,
        theta_hat=conjugates.theta_hat,
    )
    return Overlaps(symmetric(q[:, 0]), symmetric(V[:, 0]), m[:, 0], theta[:, 0])


def symmetric(matrix: Array) -> Array:
    """Remove the rounding errors' antisymmetric part."""
    return (matrix + matrix.mT) / 2
