"""Nested nodes: outer ones for what all replicas share, and at each of them inner ones for what a group shares.

The mean over a group is weighted by ``exp(-y M)``, which at a large y lives on a small part of the Gaussian.  Half of
the inner points are drawn from the Gaussian itself, half from one with mean and covariance of the weighted law as a
pass before found it, and every point is weighted by the Gaussian's density over that of the mixture, which is below
two: whatever the proposal is, the mean is right, and only its error depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnphase.arrays import Array
from attnphase.integration.quantile import normal_quantile
from attnphase.integration.rules import sobol
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.system import System

__all__ = ["OneRsbNodes", "Proposal"]

_BITS = 30
_WIDEN, _LEAST = 1.3, 0.05  # of a proposal's covariance: its tails must cover those of the weighted law


@dataclass(frozen=True, eq=False)
class Proposal:
    """Where half of the inner points are drawn.

    Attributes
    ----------
    means : (..., D) array
        For every outer node, D being the number of a node's inner normals.
    roots : (..., D, D) array
        Lower Cholesky factors of the covariances.
    """

    means: Array
    roots: Array

    @classmethod
    def of_weighted(cls, normals: Array, weights: Array) -> Proposal:
        """Mean and covariance of weighted normals (..., N1, L, r) with weights (..., N1) that sum to one."""
        flat = normals.reshape(*normals.shape[:-2], -1)
        means = np.einsum("...j,...jd->...d", weights, flat)
        about = flat - means[..., None, :]
        covariance = np.einsum("...j,...jd,...je->...de", weights, about, about, optimize=True)
        roots = np.linalg.cholesky(_WIDEN * covariance + _LEAST * np.eye(flat.shape[-1]))
        return cls(means, roots.astype(float, copy=False))


@dataclass(frozen=True, eq=False)
class OneRsbNodes:
    """A rule for what all replicas share, and so many points for what a group shares at each of its nodes.

    Equation (L1) of the 1RSB page.

    Attributes
    ----------
    system : System
    outer, inner : int
        Points of the outer rule in each replicate, and inner points of each; powers of two.
    replicates : int
    """

    system: System
    outer: int
    inner: int
    replicates: int

    @cached_property
    def channel(self) -> Channel:
        """The channel under the outer rule."""
        kernels, seed = self.system.kernels, self.system.problem.integration.seed
        student, labels = (kernels.length * count for count in (kernels.columns, kernels.label_normals))
        rule = sobol(student + labels, student, self.system.reflects, self.outer, self.replicates, seed)
        return Channel(self.system, rule)

    @property
    def size(self) -> int:
        """Local problems of a pass, mirror images not counted."""
        return self.replicates * self.outer * self.inner

    @cached_property
    def _standard(self) -> tuple[Array, Array]:
        """Standard normals of the two halves, (S, N, N1/2, D): a Sobol sequence with a digital shift at every node."""
        from scipy.special import ndtr

        kernels, seed = self.system.kernels, self.system.problem.integration.seed
        size = kernels.length * kernels.columns
        own = np.random.SeedSequence([seed, size, self.outer, self.inner])
        generator = np.random.default_rng(own)
        sequence = sobol(size, size, False, self.inner // 2, self.replicates, int(own.generate_state(1)[0])).nodes
        places = np.round(ndtr(sequence) * 2.0**_BITS).astype(np.int64)[:, None]

        def half() -> Array:
            shifts = generator.integers(2**_BITS, size=(self.replicates, self.outer, 1, size))
            return normal_quantile(((places ^ shifts) % 2**_BITS + 0.5) / 2.0**_BITS)

        return half(), half()

    def inner_points(self, proposal: Proposal | None) -> tuple[Array, Array]:
        """Inner normals and their shares.

        Parameters
        ----------
        proposal : Proposal or None
            With the leading axes (C, signs, S, N); None for the Gaussian itself.

        Returns
        -------
        normals : (C, signs, S, N, N1, L, r) array
            C = signs = 1 without a proposal.
        shares : (C, signs, S, N, N1) array
            Sum to one.
        """
        kernels = self.system.kernels
        first, second = (half[None, None] for half in self._standard)
        if proposal is None:
            points = np.concatenate([first, second], axis=-2)
            shares = np.full(points.shape[:-1], 1 / self.inner)
        else:
            drawn = proposal.means[..., None, :] + np.einsum("...de,...je->...jd", proposal.roots, second)
            points = np.concatenate([np.broadcast_to(first, drawn.shape), drawn], axis=-2)
            about = points - proposal.means[..., None, :]
            scaled = np.einsum("...de,...je->...jd", np.linalg.inv(proposal.roots), about)
            spread = np.log(np.diagonal(proposal.roots, axis1=-2, axis2=-1)).sum(axis=-1)
            # logarithm of the proposal's density over the Gaussian's
            ratio = ((points**2).sum(axis=-1) - (scaled**2).sum(axis=-1)) / 2 - spread[..., None]
            shares = 2 / (1 + np.exp(np.minimum(ratio, 700.0)))
            shares /= shares.sum(axis=-1, keepdims=True)
        points = _standardised(points, shares)
        return points.reshape(*points.shape[:-1], kernels.length, kernels.columns), shares

    def halved(self) -> tuple[slice, slice]:
        """Which inner points are a rule of the same kind with half of the points: of either half the first half."""
        return slice(0, self.inner // 4), slice(self.inner // 2, self.inner // 2 + self.inner // 4)


def _standardised(points: Array, shares: Array) -> Array:
    """Points (..., N1, D) moved so that they have mean zero and covariance one under their shares, as the law has.

    Stein's form divides a mean with ``xi_1`` by the root of the gap: what the points' mean is off by would not vanish
    with it.
    """
    about = points - np.einsum("...j,...jd->...d", shares, points)[..., None, :]
    covariance = np.einsum("...j,...jd,...je->...de", shares, about, about, optimize=True)
    inverse = np.linalg.inv(np.linalg.cholesky(covariance))
    return np.asarray(np.einsum("...de,...je->...jd", inverse, about))
