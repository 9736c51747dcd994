"""Labels without noise that leave a continuum of fields: given some fields, the label gives the others.

The fields with one label are a surface.  A chart of it has free fields s, and the label gives the others, w(s), exactly
or up to one sign.  The posterior has the density ``N(s, w(s); omega, V) / |dy/dw|`` in s.  Draws of s come from the
prior and from normal laws around the true field and its images, in equal shares; w follows by Newton's method.  Where
dy/dw vanishes, few draws of a chart stand for much of the surface: so all charts draw, and weights are over the density
of all their draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.integration.rules import sobol
from attnphase.theories.bayes_optimal.channel import Fields, blocks, draw_sets
from attnphase.theories.bayes_optimal.drawn import Drawn, Draws, log_normal, log_sum, paired_normals
from attnphase.theories.bayes_optimal.preimages import log_volume, solve_fields
from attnphase.theories.bayes_optimal.response import Response

__all__ = ["Fibres"]

_AT_ONCE = 2**16  # draws
_WIDER = 2.0  # variance of draws around the true field, itself a draw, over that of the posterior there
_STEEPEST = 1e200  # curvature where the label does not tell the solved fields
_ROUNDING = 1e-9  # a million times that of products with orthogonal matrices
_NONE = -1e300  # logarithm of the weight of a draw without fields
_LOG_TWO_PI = float(np.log(2 * np.pi))
RESPONSE_NODES, _RESPONSE_REPLICATES, _RESPONSE_DRAWS = 2048, 8, 64


@dataclass(frozen=True, eq=False)
class _Chart:
    """Places of the fields that are solved for and of the free ones; images whose free fields differ, their signs."""

    solved: list[int]
    free: list[int]
    turns: list[Array]
    signs: tuple[int, ...]


@dataclass(frozen=True)
class Fibres(Drawn):
    """Labels without noise that give some fields, exactly or up to one sign, if the others are given.

    Attributes
    ----------
    both : callable
        Of fields (..., F), entries of the label (..., M) and their derivatives (..., M, F).
    length, rank : int
    charts : tuple of tuples of int
        Places of the fields w that the label gives, for every chart.
    even : bool
        Whether ``-w`` has the label of ``w``.
    images : tuple of (t, t) nested tuples
        Orthogonal matrices of the columns that leave the labels unchanged; the identity is the first.
    draws : int
        From the prior, and around every image, for each node; a power of two.
    seed : int
    scale : float
        Standard deviation of a field.
    slope : float
        That of a label, over that of a field.
    """

    both: Callable[[Array], tuple[Array, Array]]
    length: int
    rank: int
    charts: tuple[tuple[int, ...], ...]
    even: bool
    images: tuple[tuple[tuple[float, ...], ...], ...]
    draws: int = 64
    seed: int = 0
    scale: float = 1.0
    slope: float = 1.0
    noise_dimensions = label_dimensions = 0
    sums = noise_entropy = None
    exact = True
    coarsest, most, tolerance, resolution = 16, 2**13, 1e-4, 0.0

    def _free(self, solved: tuple[int, ...]) -> list[int]:
        """Places of a chart's free fields."""
        return [i for i in range(self.length * self.rank) if i not in solved]

    def _turns(self, free: list[int]) -> tuple[list[Array], tuple[int, ...]]:
        """Images (F, F) whose free fields differ, and the signs of the normals of their draws.

        Draws around the opposite of an image are the opposite ones.
        """
        k = np.random.default_rng(1).standard_normal(self.length * self.rank)
        turns, places, signs = list[Array](), list[Array](), list[int]()
        for image in self.images:
            turn = blocks(np.broadcast_to(np.array(image), (self.length, self.rank, self.rank)))
            place = (turn @ k)[free]
            if any(_same(place, other) for other in places):
                continue
            opposite = [sign for sign, other in zip(signs, places, strict=True) if _same(place, -other)]
            turns.append(turn)
            signs.append(-opposite[0] if opposite else 1)
            places.append(place)
        return turns, tuple(signs)

    def in_parts(self, fields: Fields) -> Iterator[tuple[slice, Draws]]:
        """See `Drawn`."""
        size = self.length * self.rank
        omega, k = (a.reshape(-1, size) for a in (fields.omega, fields.k))
        V, sets = blocks(fields.V), draw_sets(*fields.omega.shape[:2])
        charts = [_Chart(list(solved), free := self._free(solved), *self._turns(free)) for solved in self.charts]
        step = max(_AT_ONCE // sum((1 + len(chart.turns)) * self.draws for chart in charts), 1)
        for first in range(0, len(k), step):
            part = slice(first, first + step)
            yield part, self._drawn(omega[part], k[part], V, sets[part], charts)

    def _drawn(self, omega: Array, k: Array, V: Array, sets: NDArray[np.int64], charts: list[_Chart]) -> Draws:
        precision = np.asarray(np.linalg.inv(V), float)
        laws = [self._laws(omega, k, V, precision, chart) for chart in charts]
        drawn = [self._on_chart(k, sets, chart, law) for chart, law in zip(charts, laws, strict=True)]
        fields, found = (np.concatenate(part, axis=1) for part in zip(*drawn, strict=True))
        slope, densities = self.both(fields)[1], list[Array]()
        for chart, law in zip(charts, laws, strict=True):
            volume = log_volume(slope[..., chart.solved] / self.slope)
            densities += [log_normal(fields[..., chart.free], *one, self.scale) + volume for one in law]
        base = -log_sum(densities)
        if self.even:
            fields, base, found = (np.concatenate(pair, axis=1) for pair in (
                (fields, np.concatenate([_mirrored(one, chart.solved) for (one, _), chart in
                                         zip(drawn, charts, strict=True)], axis=1)),
                (base, base), (found, found)))  # fmt: skip
        about = fields - omega[:, None]
        distance = np.einsum("bni,ij,bnj->bn", about, precision, about)
        logs = np.where(found & np.isfinite(base), base - distance / 2, _NONE)
        highest = logs.max(axis=1, keepdims=True)
        weights = np.exp(logs - highest)
        total = weights.sum(axis=1, keepdims=True)
        constant = -len(self.charts[0]) / 2 * _LOG_TWO_PI - np.linalg.slogdet(V)[1] / 2
        return Draws(fields, weights / total, highest[:, 0] + np.log(total[:, 0] / self.draws) + constant)

    def _laws(self, omega: Array, k: Array, V: Array, precision: Array, chart: _Chart) -> list[tuple[Array, Array]]:
        """Centers (B, m) and roots (B, m, m) of the normal laws that a chart's free fields are drawn from."""
        prior = np.asarray(np.linalg.cholesky(V[np.ix_(chart.free, chart.free)]), float)
        laws = [(omega[:, chart.free], np.broadcast_to(prior, (len(k), *prior.shape)))]
        for turn in chart.turns:
            image = k @ turn.T
            laws.append((image[:, chart.free], self._root(image, precision, chart)))
        return laws

    def _on_chart(
        self, k: Array, sets: NDArray[np.int64], chart: _Chart, laws: list[tuple[Array, Array]]
    ) -> tuple[Array, NDArray[np.bool_]]:
        """Fields (B, n, F) with the labels of k, and which of them were found."""
        normals = paired_normals(len(chart.free), self.draws, chart.signs, self.seed)[sets]
        parts = [normals[:, c * self.draws : (c + 1) * self.draws] for c in range(len(laws))]
        s = np.concatenate([c[:, None] + z @ root.mT for (c, root), z in zip(laws, parts, strict=True)], axis=1)
        starts = np.stack([k, *(k @ turn.T for turn in chart.turns)], axis=1)
        fields = np.repeat(starts, self.draws, axis=1)
        fields[..., chart.free] = s
        label = np.repeat(self.both(k)[0], fields.shape[1], axis=0)
        flat, found = solve_fields(self.both, fields.reshape(-1, k.shape[1]), label, chart.solved)
        flat[~found] = k[0]
        return flat.reshape(fields.shape), found.reshape(fields.shape[:2])

    def _root(self, image: Array, precision: Array, chart: _Chart) -> Array:
        """Root of the covariance of draws around fields of the same label."""
        slope = self.both(image)[1]
        along = np.zeros((*image.shape, len(chart.free)))  # how all fields move with the free ones
        along[:, chart.free] = np.eye(len(chart.free))
        along[:, chart.solved] = -np.linalg.pinv(slope[..., chart.solved]) @ slope[..., chart.free]
        curvature = np.nan_to_num(along.mT @ precision @ along / _WIDER, posinf=_STEEPEST)
        values, vectors = np.linalg.eigh(curvature)
        return vectors / np.sqrt(np.clip(values, np.finfo(float).tiny, None))[:, None]

    def response(self, root: Array, seed: int) -> Response:
        """See `Channel`: of two sums with one mean, each where it is small, as for the conjugates.

        One is that of the squares of ``G = E[X | Y]``, the other that of ``X = u u^T - I`` less its variance.
        """
        size = len(root)
        u = sobol(size, 0, False, RESPONSE_NODES, _RESPONSE_REPLICATES, seed + 17).nodes
        k = (u @ root.T).reshape(*u.shape[:2], self.length, self.rank)
        V = np.einsum("lilj->lij", (root @ root.T).reshape((self.length, self.rank) * 2))
        inverse, (i, j) = np.linalg.inv(root), np.triu_indices(size)
        finer = replace(self, draws=_RESPONSE_DRAWS)
        told = np.empty((RESPONSE_NODES * _RESPONSE_REPLICATES, len(i), len(i)))
        all_told, first = np.empty_like(told), np.empty(len(told))
        for part, drawn in finer.in_parts(Fields(np.zeros_like(k), k, V, k[..., 0, :0])):
            white = drawn.fields @ inverse.T
            X = white[..., i] * white[..., j] - (i == j)
            weighted = drawn.weights[..., None] * X
            all_told[part] = weighted.mT @ X
            half = finer.halves(X.shape[1])
            found = [
                _squares(white[:, some], X[:, some], drawn.weights[:, some]) for some in (slice(None), half, ~half)
            ]
            told[part], first[part] = (2 * x - (y + z) / 2 for x, y, z in zip(*found, strict=True))
        told, all_told, first = (
            x.reshape(_RESPONSE_REPLICATES, RESPONSE_NODES, *x.shape[1:]).mean(axis=1) for x in (told, all_told, first)
        )
        known = np.diag(1.0 + (i == j))  # moments of normal numbers
        share = np.einsum("sii->i", told) / np.einsum("sii->i", all_told)
        found = told + (share[:, None] + share) / 2 * (known - all_told)
        place = np.empty((size, size), np.int64)
        place[i, j] = place[j, i] = np.arange(len(i))
        return Response(found[:, place[:, :, None, None], place], first)


def _same(one: Array, other: Array) -> bool:
    """Whether images of one vector of order one are equal but for rounding."""
    return float(np.abs(one - other).max(initial=0.0)) < _ROUNDING


def _squares(white: Array, X: Array, weights: Array) -> tuple[Array, Array]:
    """Products of means of X given the label, and the mean square of those of the fields."""
    share = weights / np.maximum(weights.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    G, mean = ((share[:, None] @ x)[:, 0] for x in (X, white))
    return G[:, :, None] * G[:, None], (mean**2).mean(axis=1)


def _mirrored(fields: Array, solved: list[int]) -> Array:
    """Fields with the other sign of those that are solved for."""
    other = fields.copy()
    other[..., solved] *= -1
    return other
