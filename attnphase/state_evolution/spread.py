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
        With a replicate axis of length one.
    """

    system: System
    conjugates: Conjugates

    def of_noise(self, noise: Array) -> Array:
        """Covariance of the fields that copies have apart if their sources have this noise apart, (P, S, r, r) both."""
        spectrum, prior = self.system.spectrum, self.system.prior
        apart = np.einsum("pa,psij->asij", spectrum.gamma, noise)
        if prior.rows is None:
            response = self._resolvent[:, None]
            spread = response @ apart @ response
        else:
            sources = prior.sources(self.conjugates)
            whole = sources.root @ sources.root
            given = sources.mean, sources.root, sources.curvature
            each = [row_spread(prior.rows, *given, at_most(one, whole)) for one in np.moveaxis(apart, 1, 0)]
            spread = np.stack(each, axis=1)
        return np.einsum("a,pa,asij->psij", spectrum.weights, spectrum.gamma, spread)

    @cached_property
    def linear(self) -> Array:
        """The linear part of `of_noise`, (P, r, r, P, r, r)."""
        spectrum = self.system.spectrum
        return np.einsum("a,pa,qa,aijkl->pijqkl", spectrum.weights, spectrum.gamma, spectrum.gamma, self._squares)

    @cached_property
    def _squares(self) -> Array:
        """``E dw/dB (x) dw/dB`` on every atom, (A, r, r, r, r)."""
        prior = self.system.prior
        if prior.rows is None:
            return np.einsum("aik,ajl->aijkl", self._resolvent, self._resolvent)
        sources = prior.sources(self.conjugates)
        return row_responses(prior.rows, sources.mean, sources.root, sources.curvature)

    @cached_property
    def _resolvent(self) -> Array:
        """``R`` of the ridge on every atom, (A, r, r)."""
        curvature = np.einsum("pa,pij->aij", self.system.spectrum.gamma, self.conjugates.V_hat[:, 0])
        return np.linalg.inv(curvature + self.system.prior.strength * np.eye(curvature.shape[-1]))


def at_most(matrices: Array, bound: Array) -> Array:
    """Symmetric matrices without what they exceed positive definite ones by."""
    values, vectors = np.linalg.eigh(bound)
    root = np.sqrt(np.clip(values, 1e-300, None))[..., None, :]
    inverse, root = (vectors / root) @ vectors.mT, (vectors * root) @ vectors.mT
    shares, axes = np.linalg.eigh(symmetric(inverse @ matrices @ inverse))
    return symmetric(root @ ((axes * np.clip(shares, 0.0, 1.0)[..., None, :]) @ axes.mT) @ root)
