"""What is followed in time: the rows of the weights, by the projections of their directions.

Given the projections (tau, pi) of a direction, its row is Gaussian.  The mean is linear in them, so that its values at
points with their second moments tell it; the covariance is one matrix an atom of the covariances' spectrum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.kernels.equations import flow
from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.system import System

__all__ = ["Rows"]


@dataclass(frozen=True, eq=False)
class Rows:
    """The state of the dynamics as a vector: means of the rows (A', r), and upper triangles of covariances (A, r, r).

    Attributes
    ----------
    ridge : float or (r,) array
        Strength lambda of the weight decay, of all columns or of each.
    columns : int
        Number r.
    weights : (A' + A,) array
        Of the points, then of the atoms.
    gamma, tau : (P, A' + A, 1, 1) arrays
    pi : (A' + A, t, 1) array
        The atoms' tau and pi are zero: a mean over the points and the atoms has that over the noise in it.
    points : int
        Number A'.
    atom : (A',) array of int
        Of every point.
    """

    ridge: float | Array
    columns: int
    weights: Array
    gamma: Array
    tau: Array
    pi: Array
    points: int
    atom: NDArray[np.intp]

    @classmethod
    def of(cls, system: System) -> Rows:
        """Those of a problem with a ridge."""
        spectrum = system.spectrum
        weights, gamma, tau, pi = spectrum.points()
        # a point that has no projections only ever holds the noise, which the atoms have
        seen = tau.any(axis=0) | pi.any(axis=1)
        atoms = len(spectrum.weights)
        atom = np.repeat(np.arange(atoms), len(weights) // atoms)
        return cls(
            ridge=system.prior.strength,
            columns=system.kernels.columns,
            weights=np.concatenate([weights[seen], spectrum.weights]),
            gamma=np.concatenate([gamma[:, seen], spectrum.gamma], axis=1)[:, :, None, None],
            tau=np.concatenate([tau[:, seen], np.zeros((len(tau), atoms))], axis=1)[:, :, None, None],
            pi=np.concatenate([pi[seen], np.zeros((atoms, pi.shape[1]))])[:, :, None],
            points=int(seen.sum()),
            atom=atom[seen],
        )

    def start(self, signal: Array, scatter: Array) -> Array:
        """The state of rows that are ``signal (tau, pi)`` plus noise of covariance ``scatter``.

        Parameters
        ----------
        signal : (r, P + t) or (A, r, P + t) array
            Of all atoms, or of each.
        scatter : (r, r) or (A, r, r) array
        """
        projections = np.concatenate([self.tau[:, : self.points, 0, 0].T, self.pi[: self.points, :, 0]], axis=1)
        atoms = len(self.weights) - self.points
        signals, scatters = (np.broadcast_to(x, (atoms, *x.shape[-2:])) for x in (signal, scatter))
        return self.pack(signals[self.atom] @ projections[..., None], scatters)

    def pack(self, means: Array, covariances: Array) -> Array:
        """The vector of means (A', r, 1) and covariances (A, r, r)."""
        i, j = _upper(self.columns)
        return np.concatenate([means.ravel(), covariances[:, i, j].ravel()])

    def unpack(self, state: Array) -> tuple[Array, Array]:
        """Means and covariances of a vector."""
        r = self.columns
        means, triangles = state[: self.points * r], state[self.points * r :]
        i, j = _upper(r)
        covariances = np.empty((len(self.weights) - self.points, r, r))
        covariances[:, i, j] = covariances[:, j, i] = triangles.reshape(-1, len(i))
        return means.reshape(-1, r, 1), covariances

    def clipped(self, state: Array) -> Array:
        """The state with covariances that are positive semidefinite: negative eigenvalues are zero."""
        means, covariances = self.unpack(state)
        values, vectors = np.linalg.eigh(covariances)
        if values.min() >= 0:
            return state
        return self.pack(means, (vectors * np.clip(values, 0.0, None)[:, None]) @ vectors.mT)

    def overlaps(self, state: Array) -> tuple[Overlaps, float]:
        """Order parameters, with V = I, which the dynamics does not have, and ``|W|^2 / d``.

        Equations (Q4)-(Q6) of the dynamics page.
        """
        overlaps, norm, _ = self.measured(state)
        return overlaps, norm

    def measured(self, state: Array) -> tuple[Overlaps, float, float]:
        """The same, and the ridge in the risk over d."""
        means, covariances = self.unpack(state)
        q, m, theta, norm, penalty = flow().overlaps(
            ridge=self.ridge,
            spectral_mean=self._mean,
            gamma=self.gamma,
            tau=self.tau,
            pi=self.pi,
            w=np.concatenate([means, np.zeros((len(covariances), self.columns, 1))]),
            C=np.concatenate([np.zeros((self.points, self.columns, self.columns)), covariances]),
        )
        V = np.broadcast_to(np.eye(self.columns), q.shape)
        return Overlaps((q + q.mT) / 2, np.ascontiguousarray(V), m, theta), float(norm), float(penalty)

    def column_sizes(self, state: Array) -> Array:
        """Root mean squares of the columns' weights, (r,)."""
        means, covariances = self.unpack(state)
        squares = np.concatenate([means[:, :, 0] ** 2, np.einsum("aii->ai", covariances)])
        return np.sqrt(np.maximum(self.weights @ squares, 0.0))

    def rate(self, state: Array, conjugates: Conjugates, eta: float, samples: float) -> Array:
        """How the state moves; ``samples`` of a step may be infinite.

        Equations (R4)-(R5) of the dynamics page.
        """
        means, covariances = self.unpack(state)
        hats: dict[str, Any] = {
            name: getattr(conjugates, name)[:, 0] for name in ("q_hat", "V_hat", "m_hat", "theta_hat")
        }
        points, V_hat = slice(self.points), hats["V_hat"]
        moved = flow().mean_rate(
            eta=eta,
            ridge=self.ridge,
            gamma=self.gamma[:, points],
            tau=self.tau[:, points],
            pi=self.pi[points],
            w=means,
            V_hat=V_hat,
            m_hat=hats["m_hat"],
            theta_hat=hats["theta_hat"],
        )
        atoms = self.gamma[:, self.points :]
        spread = flow().scatter_rate(
            eta=eta, s=samples, ridge=self.ridge, gamma=atoms, C=covariances, q_hat=hats["q_hat"], V_hat=V_hat
        )
        return self.pack(moved, spread)

    def moved(self, state: Array, rate: Array) -> Overlaps:
        """Rates of the order parameters for a rate of the state; those of V are zero.

        Equations (Q1)-(Q3) of the dynamics page.
        """
        means, _covariances = self.unpack(state)
        forward, gain = self.unpack(rate)
        # q is quadratic in the means and linear in the covariances: a difference is its derivative
        sides = [self.overlaps(self.pack(means + s * forward, s * gain))[0] for s in (1.0, -1.0)]
        return Overlaps(*((getattr(sides[0], name) - getattr(sides[1], name)) / 2 for name in ("q", "V", "m", "theta")))

    def _mean(self, values: Array) -> Array:
        """Over points and atoms."""
        return (self.weights @ values.reshape(len(self.weights), -1)).reshape(values.shape[1:])


@cache
def _upper(columns: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Places of a matrix's upper triangle; made once, as they are asked for at every evaluation of the rates."""
    i, j = np.triu_indices(columns)
    return i, j
