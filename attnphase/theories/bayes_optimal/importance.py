"""Labels with Gaussian noise: the posterior of the fields by importance sampling from a mixture that fits it.

The posterior of a node's fields, ``N(k; omega, V) N(Y; T(k), Delta)``, has a peak near every image of the true fields
under the symmetries of the labels, as sharp as the noise is small, and the shape of the prior where it is large.  Draws
come from a normal law around the true fields' peak, and from the prior, in equal shares.  All images of a draw have its
label, and count as draws too; their weights are over the density of the mixture, in the mean over the images.  All is
done with logarithms of densities relative to the largest.

Where labels depend on clusters that nobody sees, the density of a label is a mixture over these, and each has a peak.

A node's draws are one of a few scrambled Sobol sets of its replicate, so that the scatter of the replicates holds their
errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.integration.rules import sobol
from attnphase.theories.bayes_optimal.channel import Fields, Posterior, blocks, draw_sets
from attnphase.theories.bayes_optimal.drawn import Drawn, Draws, log_normal, log_sum, two_moments, two_of_pairs
from attnphase.theories.bayes_optimal.lattices import LATTICE_FEW_NODES, LATTICE_NODES, LATTICE_TOLERANCE, Sums
from attnphase.theories.bayes_optimal.response import Response, of_noisy_labels

__all__ = ["Noisy", "Target"]

Target = Callable[[Array], Array]
"""Labels (B, C M) of fields (B, L, t), for each of C choices of clusters that nobody sees."""

_AT_ONCE = 2**18  # draws, with their images
_DIFFERENCE = 1e-5  # of a field's deviation, for derivatives of labels: where a peak is, not what the posterior is
_NEWTON_STEPS = 2
_HIGHEST_RISE = 700.0  # whose exponential is a number
_RESOLUTION, _RESOLUTION_OF_DRAWS = 1e-12, 1e-4  # over the noise: what is learned against rounding, and draws' errors
# where nothing is known; draws with their images
_RESPONSE_NODES, _RESPONSE_REPLICATES, _RESPONSE_DRAWS = 1024, 16, 256
_FEW_FIELDS, _FINER = 4, 4  # of six, runs with 32 and 64 draws leave the fixed point, and with 128 stay there
_INFLATION = 1.15  # of a peak's standard deviations, for tails that are not normal


@dataclass(frozen=True, eq=False)
class _Nodes:
    """Nodes in a row: omega, k (B, F), labels Y (B, 1, M) and half the square of their noise over Delta (B,).

    With precision and root (F, F) of the prior.
    """

    omega: Array
    k: Array
    labels: Array
    misfit: Array
    precision: Array
    root: Array


@dataclass(frozen=True)
class Noisy(Drawn):
    """Labels ``T(k) + sqrt(Delta) z``.

    Attributes
    ----------
    target : Target
    size : int
        Entries M of a label.
    length, rank : int
    noise : float
        Delta, above zero.
    images : tuple of (t, t) nested tuples
        A group of orthogonal matrices of the columns that leave the labels unchanged; the identity is the first.
    draws : int
        From the prior, and from the peak, for each node; a power of two.
    seed : int
    sums : Sums, optional
        Where it is given, draws are for what is no mean over labels.
    shares : tuple of float
        Probabilities of the choices of clusters that nobody sees.
    scale : float
        Standard deviation of a field.
    slope : float
        That of a label, over that of a field.
    """

    target: Target
    size: int
    length: int
    rank: int
    noise: float
    images: tuple[tuple[tuple[float, ...], ...], ...]
    draws: int = 32
    seed: int = 0
    sums: Sums | None = None
    shares: tuple[float, ...] = (1.0,)
    scale: float = 1.0
    slope: float = 1.0
    exact = False

    @property
    def coarsest(self) -> int:
        """See `Channel`."""
        if self.sums is None:
            return 16
        return 2 if self.length * self.rank > 1 else 64  # of one field a lattice costs next to nothing

    @property
    def most(self) -> int:
        """See `Channel`."""
        if self.sums is not None:
            return LATTICE_NODES if self.length * self.rank <= 2 else LATTICE_FEW_NODES
        return 2**15 if self.rank == 1 else 2**12  # images of all draws make a node dear

    @property
    def tolerance(self) -> float:
        """See `Channel`."""
        return 1e-7 if self.sums is None else LATTICE_TOLERANCE[self.length * self.rank]

    @property
    def resolution(self) -> float:
        """See `Channel`: draws in pairs have no error of first order."""
        paired = self.sums is not None or len(self.images) > 1
        share = _RESOLUTION if paired else _RESOLUTION_OF_DRAWS
        return share * self.noise / max(self.slope**2, float(np.finfo(float).tiny))

    @property
    def noise_entropy(self) -> float | None:
        """See `Channel`."""
        if len(self.shares) > 1:
            return None
        return -self.size / 2 * float(1 + np.log(2 * np.pi * self.noise))

    @property
    def noise_dimensions(self) -> int:
        """See `Channel`: the last one says which clusters there are."""
        return self.size + (len(self.shares) > 1)

    @property
    def label_dimensions(self) -> int:
        """See `Channel`."""
        return self.noise_dimensions

    def given(self, fields: Fields) -> Posterior:
        """See `Channel`: of many fields, errors of few draws drive message passing away from its fixed point."""
        finer = _FINER if self.length * self.rank > _FEW_FIELDS else 1
        return replace(self, draws=finer * self.draws).posterior(fields)

    def response(self, root: Array, seed: int) -> Response:
        """See `Channel`."""
        found = None
        if len(self.shares) == 1:
            found = of_noisy_labels(lambda k: self._labels(k)[..., 0, :], root, self.noise, seed)
        return self._drawn_response(root, seed) if found is None else found

    def _drawn_response(self, root: Array, seed: int) -> Response:
        """By importance sampling: of the two factors one is that of the true field."""
        size = len(root)
        normals = sobol(size + self.noise_dimensions, 0, False, _RESPONSE_NODES, _RESPONSE_REPLICATES, seed + 17).nodes
        u, noise = np.split(normals, [size], axis=-1)
        k = (u @ root.T).reshape(*u.shape[:2], self.length, self.rank)
        V = np.einsum("lilj->lij", (root @ root.T).reshape((self.length, self.rank) * 2))
        fields = Fields(np.zeros_like(k), k, V, noise)
        inverse, one = np.linalg.inv(root), np.eye(size)
        flat = k.reshape(-1, size)
        operator, first = np.empty((len(flat), size**4)), np.empty(len(flat))
        draws = max(_RESPONSE_DRAWS // len(self.images), self.draws)
        finer = replace(self, draws=draws)
        for part, drawn in finer.in_parts(fields):
            white = drawn.fields @ inverse.T
            half = finer.halves(white.shape[1])
            parts = (slice(None), half, ~half)
            whole, *halves = (two_moments(white[:, some], drawn.weights[:, some]) for some in parts)
            # ratios of means over n draws are wrong by a multiple of 1/n, this is not
            mean, second = (2 * x - (y + z) / 2 for x, y, z in zip(whole, *halves, strict=True))
            true = np.einsum("bi,gji->bgj", flat[part], self._group) @ inverse.T  # every image has the label
            G, of_true = second - one, true.mT @ true / true.shape[1] - one
            both = np.einsum("bij,bkl->bijkl", G, of_true)
            operator[part] = ((both + both.transpose(0, 3, 4, 1, 2)) / 2).reshape(len(true), -1)
            first[part] = (mean * true.mean(axis=1)).mean(axis=1)
        shape = (_RESPONSE_REPLICATES, -1)
        return Response(
            operator.reshape(*shape, size**4).mean(axis=1).reshape(-1, size, size, size, size),
            first.reshape(shape).mean(axis=1),
        )

    def in_parts(self, fields: Fields) -> Iterator[tuple[slice, Draws]]:
        """Slices of the nodes in a row, and the draws for them."""
        size = self.length * self.rank
        omega, k = (a.reshape(-1, size) for a in (fields.omega, fields.k))
        root, precision = (blocks(np.asarray(part(fields.V), float)) for part in (np.linalg.cholesky, np.linalg.inv))
        noise = fields.noise.reshape(-1, self.noise_dimensions)
        chosen = self._chosen(noise[:, self.size :])
        noise = noise[:, : self.size]
        sets = draw_sets(*fields.omega.shape[:2])
        step = max(_AT_ONCE // ((1 + len(self.shares)) * self.draws * len(self.images)), 1)
        for first in range(0, len(k), step):
            part = slice(first, first + step)
            clean = np.take_along_axis(self._labels(k[part]), chosen[part, None, None], axis=1)
            labels = clean + np.sqrt(self.noise) * noise[part, None]
            nodes = _Nodes(omega[part], k[part], labels, (noise[part] ** 2).sum(axis=1) / 2, precision, root)
            yield part, self._drawn(nodes, sets[part])

    def _labels(self, k: Array) -> Array:
        """Labels of fields (..., F), for each choice of clusters: (..., C, M)."""
        flat = np.ascontiguousarray(k.reshape(-1, self.length, self.rank))
        return self.target(flat).reshape(*k.shape[:-1], len(self.shares), self.size)

    def _chosen(self, normals: Array) -> NDArray[np.int64]:
        """Which clusters there are, by normals (B, 1), or (B, 0) where there is no choice."""
        from scipy.special import ndtr

        if not normals.shape[1]:
            return np.zeros(len(normals), np.int64)
        return (ndtr(normals) > np.cumsum(self.shares)[:-1]).sum(axis=1)

    def _log_likelihood(self, k: Array, nodes: _Nodes) -> Array:
        """Of the labels, for fields (B, n, F), up to the norm of the noise, (B, n)."""
        misfit = ((self._labels(k) - nodes.labels[:, None]) ** 2).sum(axis=-1) / (2 * self.noise)
        return log_sum([np.log(share) - misfit[..., c] for c, share in enumerate(self.shares)])

    @cached_property
    def _group(self) -> Array:
        """The images as matrices of all fields, (G, F, F)."""
        return np.array([blocks(np.broadcast_to(g, (self.length, *g.shape))) for g in np.array(self.images)])

    def _drawn(self, nodes: _Nodes, sets: NDArray[np.int64]) -> Draws:
        count, size = nodes.k.shape
        of_prior, of_peaks = np.split(two_of_pairs(size, self.draws, self.seed)[sets], 2, axis=1)
        peaks = [self._peak(nodes.k, nodes, case) for case in range(len(self.shares))]
        prior = nodes.omega, np.broadcast_to(nodes.root, (count, size, size))
        laws = [prior, *((center, _INFLATION * root) for center, root in peaks)]
        normals = [of_prior, *(of_peaks for _ in peaks)]
        first = np.concatenate([at[:, None] + z @ of.mT for (at, of), z in zip(laws, normals, strict=True)], axis=1)
        images = (first[:, None] @ self._group.mT).reshape(count, -1, size)
        shape = count, len(self._group), first.shape[1]
        densities = [log_normal(images, *law, self.scale).reshape(shape) for law in laws]
        mixture = log_sum([*log_sum(densities).swapaxes(0, 1)]) - np.log(shape[1])
        logs = (densities[0] + (self._log_likelihood(first, nodes) - mixture)[:, None]).reshape(count, -1)
        highest = logs.max(axis=1, keepdims=True)
        weights = np.exp(logs - highest)
        total = weights.sum(axis=1, keepdims=True)
        # the noise's own misfit is known in the mean: taken out node by node, the mean has a smaller error
        constant = -self.size / 2 * (1 + np.log(2 * np.pi * self.noise)) + nodes.misfit
        evidence = highest[:, 0] + np.log(total[:, 0] / (self.draws * shape[1])) + constant
        return Draws(images, weights / total, evidence)

    def _peak(self, start: Array, nodes: _Nodes, case: int) -> tuple[Array, Array]:
        """A peak of the posterior near a start, by Gauss and Newton, and the root of its covariance there.

        The start is the true field, a draw of the posterior itself.  A step that leads uphill is cut the shorter the
        higher it leads: so where the mixture lies, and the map with it, depends continuously on V.
        """
        center, cost = start, self._cost(start, nodes, case)
        for _ in range(_NEWTON_STEPS):
            step = self._step(center, nodes, case)[0]
            rise = np.maximum(self._cost(center + step, nodes, case) - cost, 0.0)
            center = center + step * np.exp(-np.minimum(rise, _HIGHEST_RISE))[:, None]
            cost = self._cost(center, nodes, case)
        curvature = self._step(center, nodes, case)[1]
        return center, np.asarray(np.linalg.inv(np.linalg.cholesky(curvature)).mT, float)

    def _cost(self, k: Array, nodes: _Nodes, case: int) -> Array:
        about = k - nodes.omega
        misfit = ((self._labels(k)[..., case, :] - nodes.labels[:, 0]) ** 2).sum(axis=-1)
        return misfit / (2 * self.noise) + np.einsum("bi,ij,bj->b", about, nodes.precision, about) / 2

    def _step(self, k: Array, nodes: _Nodes, case: int) -> tuple[Array, Array]:
        """The Gauss-Newton step and the curvature that it takes the posterior to have."""
        size = k.shape[1]
        step = _DIFFERENCE * self.scale
        moved = step * np.eye(size)
        slope = self._labels(k[:, None] + moved) - self._labels(k[:, None] - moved)
        slope = slope[..., case, :] / (2 * step)  # (B, F, M)
        curvature = nodes.precision + slope @ slope.mT / self.noise
        residual = (nodes.labels[:, 0] - self._labels(k)[..., case, :])[..., None]
        force = (slope @ residual)[..., 0] / self.noise - (k - nodes.omega) @ nodes.precision
        return np.asarray(np.linalg.solve(curvature, force[..., None])[..., 0], float), curvature
