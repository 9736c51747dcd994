"""Finitely many labels: the posterior of a sample's fields by draws from the prior, summed over all labels.

Of one field whose jumps are known the posterior has a closed form, so that no label is too rare for draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnphase.arrays import Array
from attnphase.integration.rules import sobol
from attnphase.theories.bayes_optimal.channel import SETS, Fields, Posterior, blocks, draw_sets, outer
from attnphase.theories.bayes_optimal.response import Response, of_cells, of_labels, of_labels_drawn

__all__ = ["Labels"]

_AT_ONCE = 2**18  # draws
_RESOLUTION = 1e-6  # share of a field's variance
_LEAST = 1e-300  # probability of a label, whose logarithm is taken


@dataclass(frozen=True)
class Labels:
    """Labels with given probabilities ``P(y | k)``.

    Attributes
    ----------
    probabilities : callable
        Of fields (..., L t), the probabilities (..., Y).
    rank : int
    images : tuple of (t, t) nested tuples
        Orthogonal matrices of the columns that leave the probabilities unchanged; the identity is the first.
    draws : int
        For every node; a power of two.
    seed : int
    length : int
        Number L of tokens.
    variance : float
        Of a field.
    jumps : tuple of float or None
        Where probabilities of a single field jump, between which they are constant; None if that is not known.
    """

    probabilities: Callable[[Array], Array]
    rank: int
    images: tuple[tuple[tuple[float, ...], ...], ...]
    draws: int = 256
    seed: int = 0
    length: int = 1
    variance: float = 1.0
    jumps: tuple[float, ...] | None = None
    noise_dimensions, label_dimensions = 0, 1
    sums = noise_entropy = None
    exact = False
    coarsest, most, tolerance = 16, 2**15, 1e-4

    @property
    def resolution(self) -> float:
        """See `Channel`."""
        return _RESOLUTION * self.variance

    def posterior(self, fields: Fields) -> Posterior:
        """See `Channel`."""
        shape, size = fields.omega.shape[:2], self.length * self.rank
        count = shape[0] * shape[1]
        if self.jumps is not None:
            values = _over_labels(*self._between_jumps(fields.omega.reshape(count), fields.V))
            gain, spread, evidence = (one.reshape(*shape, *one.shape[1:]) for one in values)
            spread, gain = spread[..., None, :, :], gain[..., None, :, :]
            return Posterior(spread, gain, gain, evidence)
        spread, gain = np.zeros((count, size, size)), np.zeros((count, size, size))
        evidence = np.zeros(count)
        for part, about, likelihood in self._in_parts(fields):
            half = about.shape[1] // 2  # drawn by itself
            parts = [
                _over_labels(*_given(about[:, some], likelihood[:, some])) for some in (slice(half), slice(half, None))
            ]
            whole = _over_labels(*_given(about, likelihood))
            # ratios of means are wrong by a multiple of one over the number of draws, this is not
            values = (2 * x - (y + z) / 2 for x, y, z in zip(whole, *parts, strict=True))
            gain[part], spread[part], evidence[part] = values
        gain, spread = (self._of_tokens(a.reshape(*shape, size, size)) for a in (gain, spread))
        return Posterior(spread, gain, gain, evidence.reshape(shape))

    def given(self, fields: Fields) -> Posterior:
        """See `Channel`: a normal says which label is drawn."""
        from scipy.special import ndtr

        shape, size = fields.omega.shape[:2], self.length * self.rank
        shares = np.cumsum(self.probabilities(fields.k.reshape(-1, size)), axis=-1)
        # the last share is one up to rounding
        label = (ndtr(fields.noise[..., 0].reshape(-1, 1)) > shares[:, :-1]).sum(axis=-1)
        count = len(label)
        mean, second, chances = np.zeros((count, size)), np.zeros((count, size, size)), np.zeros(count)
        if self.jumps is not None:
            every, rows = self._between_jumps(fields.omega.reshape(count), fields.V), np.arange(count)
            chances, mean, second = (x[rows, label] for x in every)
        else:
            for part, about, likelihood in self._in_parts(fields):
                own = np.take_along_axis(likelihood, label[part, None, None], axis=-1)
                chances[part], mean[part], second[part] = (x[:, 0] for x in _given(about, own))
        mean = mean.reshape(*shape, self.length, self.rank)
        second = self._of_tokens(second.reshape(*shape, size, size))
        square, log = outer(mean, mean), np.log(np.maximum(chances, _LEAST)).reshape(shape)
        return Posterior(second - square, square, outer(mean, fields.deviation), log, mean)

    def response(self, root: Array, seed: int) -> Response:
        """See `Channel`."""
        if self.jumps is not None:
            chance, mean, second = (x[0] for x in self._between_jumps(np.zeros(1), root[None] ** 2))
            return of_cells(chance, mean / root[0, 0], second / root[0, 0] ** 2)
        exact = self.length * self.rank <= 2
        return (of_labels if exact else of_labels_drawn)(self.probabilities, root, seed)

    def _of_tokens(self, values: Array) -> Array:
        """The tokens' blocks (..., L, t, t) of matrices (..., F, F)."""
        shape = (*values.shape[:-2], self.length, self.rank, self.length, self.rank)
        return np.einsum("...lilj->...lij", values.reshape(shape))

    @cached_property
    def _of_cells(self) -> Array:
        """Probabilities (C, Y) of the labels in the cells between jumps."""
        jumps, beyond = np.array(self.jumps), np.sqrt(self.variance)
        middles = (jumps[1:] + jumps[:-1]) / 2
        return self.probabilities(np.concatenate([jumps[:1] - beyond, middles, jumps[-1:] + beyond])[:, None])

    def _between_jumps(self, omega: Array, V: Array) -> tuple[Array, Array, Array]:
        """As `_given`, of a single field with the law ``N(omega, V)``: normal laws that are cut off at jumps."""
        from scipy.special import ndtr

        deviation = float(np.sqrt(V.item()))
        u = (np.array(self.jumps) - omega[:, None]) / deviation
        density = np.pad(np.exp(-(u**2) / 2) / np.sqrt(2 * np.pi), ((0, 0), (1, 1)))
        ends = np.pad(u, ((0, 0), (1, 1)), constant_values=((0, 0), (-np.inf, np.inf)))
        low, high = ends[:, :-1], ends[:, 1:]
        chances = np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))  # tails without cancellation
        squares = chances - np.diff(np.pad(u, ((0, 0), (1, 1))) * density)
        weight, mean, second = (x @ self._of_cells for x in (chances, -np.diff(density), squares))
        share = np.maximum(weight, _LEAST)
        mean, second = deviation * mean / share, deviation**2 * second / share
        return weight, mean[..., None], second[..., None, None]

    @cached_property
    def _normals(self) -> Array:
        """Sets of normals for the draws, (sets, n, t), of which each half has all symmetries of the labels.

        Where columns are told apart by little, so are means over such draws: without, their noise would be larger. The
        halves are drawn by themselves: those of one sequence make up for each other's errors, which are to be told.
        """
        group = [np.kron(np.eye(self.length), np.array(image)) for image in self.images]
        count = 2 ** max(int(np.log2(self.draws // 2 / len(group))), 4)
        halves = [sobol(self.length * self.rank, 0, False, count, SETS, self.seed + 7919 + i).nodes for i in (0, 1)]
        return np.concatenate([half @ element.T for half in halves for element in group], axis=1)

    def _in_parts(self, fields: Fields) -> Iterator[tuple[slice, Array, Array]]:
        """Slices of the nodes in a row, draws of ``k - omega`` for them and the likelihoods of these, (B, n, Y)."""
        omega = fields.omega.reshape(-1, self.length * self.rank)
        values, vectors = np.linalg.eigh(fields.V)  # a root that commutes with what leaves V unchanged
        centered = self._normals @ blocks((vectors * np.sqrt(values)[:, None]) @ vectors.mT)
        sets = draw_sets(*fields.omega.shape[:2])
        nodes = max(_AT_ONCE // centered.shape[1], 1)
        for first in range(0, len(omega), nodes):
            part = slice(first, first + nodes)
            about = centered[sets[part]]
            yield part, about, self.probabilities(omega[part, None] + about)


def _given(about: Array, likelihood: Array) -> tuple[Array, Array, Array]:
    """Probability of every label (B, Y), and first and second moments of the draws given it."""
    draws, rank = about.shape[1:]
    weight = likelihood.mean(axis=1)
    share = (likelihood / np.maximum(weight, _LEAST)[:, None] / draws).mT
    square = (about[..., :, None] * about[..., None, :]).reshape(len(about), draws, rank * rank)
    return weight, share @ about, (share @ square).reshape(*weight.shape, rank, rank)


def _over_labels(weight: Array, mean: Array, second: Array) -> tuple[Array, Array, Array]:
    """Sums over labels, with their probabilities: square of the mean, covariance, logarithm of the probability."""
    square = outer(mean, mean)
    gain, spread = (np.einsum("by,byij->bij", weight, x) for x in (square, second - square))
    return gain, spread, (weight * np.log(np.maximum(weight, _LEAST))).sum(axis=-1)
