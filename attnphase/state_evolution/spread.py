"""What noise in the sources that copies of a solution do not share makes of their weights, docs/stability.md."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnphase.arrays import Array
from attnphase.rows.copies import row_responses, row_spread
from attnphase.state_evolution.overlaps import Conjugates
from attnphase.state_evolution.prior import symmetric
from attnphase.state_evolution.system import System

__all__ = ["Spread", "at_most"]


@dataclass(frozen=True, eq=False)
class Spread:
    """The rows of two copies of the weights, at a fixed point.

    Attributes
    ----------
    system : System
    conjugates : Conjugates
        Of one point, or of S, as replicates.
    """

    system: System
    conjugates: Conjugates

    def of_noise(self, noise: Array) -> Array:
        """Covariance of the fields that copies have apart if their sources have this noise apart, (P, S, r, r) both.

        Every replicate of the noise at a point of its own, or all at one.
        """
        prior = self.system.prior
        spectrum = prior.spectrum
        apart = np.einsum("pa,psij->asij", spectrum.gamma, noise)
        if prior.rows is None:
            spread = self._resolvent @ apart @ self._resolvent
        else:
            given = [np.broadcast_to(x, (*apart.shape[:2], *x.shape[2:])) for x in self._sources]
            mean, root, curvature = (x.reshape(-1, *x.shape[2:]) for x in given)
            own = at_most(apart.reshape(root.shape), root @ root)
            spread = row_spread(prior.rows, mean, root, curvature, own).reshape(apart.shape)
        return np.einsum("a,pa,asij->psij", spectrum.weights, spectrum.gamma, spread)

    @cached_property
    def linear(self) -> Array:
        """The linear part of `of_noise`, (S, P, r, r, P, r, r)."""
        spectrum = self.system.prior.spectrum
        gammas = np.einsum("a,pa,qa->pqa", spectrum.weights, spectrum.gamma, spectrum.gamma)
        return np.einsum("pqa,asijkl->spijqkl", gammas, self._squares)

    @cached_property
    def _squares(self) -> Array:
        """``E dw/dB (x) dw/dB`` on every atom, (A, S, r, r, r, r)."""
        prior = self.system.prior
        if prior.rows is None:
            return np.einsum("asik,asjl->asijkl", self._resolvent, self._resolvent)
        mean, root, curvature = self._sources
        flat = row_responses(prior.rows, *(x.reshape(-1, *x.shape[2:]) for x in (mean, root, curvature)))
        return flat.reshape(*mean.shape[:2], *flat.shape[1:])

    @cached_property
    def _sources(self) -> tuple[Array, Array, Array]:
        """Means, roots of the covariance and curvatures of the rows' sources, (A, S, ...)."""
        prior = self.system.prior
        sources, atoms = prior.sources(self.conjugates), len(prior.spectrum.weights)
        mean, root, curvature = (
            x.reshape(atoms, -1, *x.shape[1:]) for x in (sources.mean, sources.root, sources.curvature)
        )
        return mean, root, curvature

    @cached_property
    def _resolvent(self) -> Array:
        """``R`` of the ridge on every atom, (A, S, r, r)."""
        return self.system.prior.resolvent(self.conjugates)


def at_most(matrices: Array, bound: Array) -> Array:
    """Symmetric matrices without what they exceed positive definite ones by; NaN where they overflow."""
    values, vectors = np.linalg.eigh(bound)
    root = np.sqrt(np.clip(values, 1e-300, None))[..., None, :]
    inverse, root = (vectors / root) @ vectors.mT, (vectors * root) @ vectors.mT
    relative = symmetric(inverse @ matrices @ inverse)
    if not np.isfinite(relative).all():
        return np.full(matrices.shape, np.nan)
    shares, axes = np.linalg.eigh(relative)
    return symmetric(root @ ((axes * np.clip(shares, 0.0, 1.0)[..., None, :]) @ axes.mT) @ root)
