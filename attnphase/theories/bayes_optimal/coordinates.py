"""Coordinates in which both ends of the Bayes-optimal map are resolved: nothing known, and all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnphase.arrays import Array
from attnphase.theories.bayes_optimal.evolution import joined

__all__ = ["Coordinates"]

_LEAST_REACH = -1.0  # logarithm of a share of V that every channel is followed to


@dataclass(frozen=True, eq=False)
class Coordinates:
    """V as the entries of the logarithm of ``rho^(-1/2) V rho^(-1/2)``, down to what the channel resolves."""

    rho: Array
    resolution: float = 0.0

    @property
    def least(self) -> float:
        """Logarithm of the least share of V."""
        largest = float(np.trace(self.rho, axis1=1, axis2=2).max()) / self.rho.shape[-1]
        return min(float(np.log(max(self.resolution / largest, 1e-300))), _LEAST_REACH)

    def inside(self, x: Array) -> Array:
        """The place, or the nearest one at which V is resolved."""
        values, vectors = np.linalg.eigh(self.logs(x))
        if values.min() >= self.least:
            return x
        return joined((vectors * np.maximum(values, self.least)[..., None, :]) @ vectors.mT)

    def root(self) -> Array:
        """Of rho."""
        values, vectors = np.linalg.eigh(self.rho)
        return (vectors * np.sqrt(values)[:, None, :]) @ vectors.mT

    def of(self, V: Array) -> Array:
        """The place of V."""
        inverse = np.linalg.inv(self.root())
        values, vectors = np.linalg.eigh(inverse @ V @ inverse)
        logs = np.clip(np.log(np.clip(values, 1e-300, 1.0)), self.least, 0.0)
        return joined((vectors * logs[..., None, :]) @ vectors.mT)

    def shares(self, x: Array) -> Array:
        """Eigenvalues of ``rho^(-1/2) V rho^(-1/2)``, (P, t)."""
        return np.exp(np.minimum(np.linalg.eigvalsh(self.logs(x)), 0.0))

    def logs(self, x: Array) -> Array:
        """The logarithm's matrices (P, t, t)."""
        t = self.rho.shape[-1]
        i, j = np.triu_indices(t)
        logs = np.zeros((len(self.rho), t, t))
        logs[:, i, j] = logs[:, j, i] = x.reshape(len(self.rho), -1)
        return logs

    def matrices(self, x: Array) -> Array:
        """V at a place.  Nothing known is the boundary of the domain, which is kept off by rounding errors."""
        values, vectors = np.linalg.eigh(self.logs(x))
        shares = np.exp(np.minimum(values, -1e-14))
        root = self.root()
        V = root @ ((vectors * shares[..., None, :]) @ vectors.mT) @ root
        return (V + V.mT) / 2
