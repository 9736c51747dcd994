"""Channels whose posterior is a set of weighted draws for every node."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.integration.rules import sobol
from attnphase.theories.bayes_optimal.channel import SETS, Fields, Posterior, outer

__all__ = ["Drawn", "Draws", "log_normal", "log_sum", "paired_normals", "two_moments", "two_of_pairs"]


@dataclass(frozen=True, eq=False)
class Draws:
    """Draws from the posterior of every node: fields (B, n, F), weights (B, n) that sum to one, and log Z (B,)."""

    fields: Array
    weights: Array
    log_evidence: Array


class Drawn(ABC):
    """A channel that draws from the posterior of every node.

    Attributes
    ----------
    draws : int
        For each component that is drawn from; components stand one behind another, and halves of each are drawn by
        themselves.
    """

    draws: int

    @abstractmethod
    def in_parts(self, fields: Fields) -> Iterator[tuple[slice, Draws]]:
        """Slices of the nodes in a row, and the draws for them."""

    def halves(self, count: int) -> NDArray[np.bool_]:
        """Of so many draws in a row, which are in the second half of what their component draws."""
        return np.arange(count) // (self.draws // 2) % 2 == 1

    def given(self, fields: Fields) -> Posterior:
        """See `Channel`."""
        return self.posterior(fields)

    def posterior(self, fields: Fields) -> Posterior:
        """See `Channel`."""
        shape = fields.omega.shape
        spread, gain, alignment = (np.empty((*shape, shape[-1])) for _ in range(3))
        evidence, means = np.empty(shape[:2]), np.empty(shape)
        flat = [a.reshape(-1, *a.shape[2:]) for a in (spread, gain, alignment, evidence, means)]
        omega, k = (a.reshape(-1, *shape[2:]) for a in (fields.omega, fields.k))
        for part, drawn in self.in_parts(fields):
            center = (drawn.weights[:, None] @ drawn.fields).reshape(-1, *shape[2:])
            about = drawn.fields.reshape(*drawn.fields.shape[:2], *shape[2:]) - center[:, None]
            mean, square, spread_, log = self._without_bias(drawn.weights, about, center - omega[part])
            flat[0][part], flat[1][part] = spread_, square
            flat[2][part] = outer(mean, k[part] - omega[part])
            flat[3][part], flat[4][part] = drawn.log_evidence + log, mean
        return Posterior(spread, gain, alignment, evidence, means)

    def _without_bias(self, weights: Array, about: Array, known: Array) -> tuple[Array, Array, Array, Array]:
        """Mean of ``k - omega``, its square, the posterior's covariance, and what is to be added to ``log Z``.

        Ratios of means over n draws are wrong by a multiple of 1/n: twice the value of all draws less the mean value of
        the two halves, whose errors are independent, is not.

        Parameters
        ----------
        weights : (B, n) array
            They sum to one.
        about : (B, n, L, t) array
            Draws less their mean.
        known : (B, L, t) array
            This mean less omega.
        """
        shape = about.shape
        squares = (about[..., :, None] * about[..., None, :]).reshape(*shape[:2], -1)
        flat = about.reshape(*shape[:2], -1)
        second = self.halves(shape[1])
        values = []
        for half in (second, ~second):
            share = weights[:, half]
            total = np.maximum(share.sum(axis=1), 1e-300)
            share = (share / total[:, None])[:, None]
            mean = (share @ flat[:, half]).reshape(known.shape)
            spread = (share @ squares[:, half]).reshape(*known.shape, shape[-1]) - outer(mean, mean)
            values.append((known + mean, outer(known + mean, known + mean), spread, np.log(2 * total)))
        whole = (weights[:, None] @ squares).reshape(*known.shape, shape[-1])
        all_draws = (known, outer(known, known), whole, np.zeros(len(known)))
        mean, square, spread, log = (2 * x - (y + z) / 2 for x, y, z in zip(all_draws, *values, strict=True))
        return mean, square, spread, log


def two_moments(fields: Array, weights: Array) -> tuple[Array, Array]:
    """Mean (B, F) and second moments (B, F, F) of draws (B, n, F)."""
    weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
    weighted = weights[..., None] * fields
    return weighted.sum(axis=1), weighted.mT @ fields


def log_normal(draws: Array, center: Array, root: Array, unit: float) -> Array:
    """Logarithm of normal densities (B, n) in a unit of the fields, without the constant of their dimension."""
    white = (draws - center[:, None]) @ np.linalg.inv(root).mT
    return -np.einsum("bni,bni->bn", white, white) / 2 - np.linalg.slogdet(root / unit)[1][:, None]


def log_sum(logs: list[Array]) -> Array:
    """Logarithm of the sum of exponentials."""
    highest = np.maximum.reduce(logs)
    return highest + np.log(sum(np.exp(one - highest) for one in logs))


@lru_cache(maxsize=8)
def two_of_pairs(dimensions: int, draws: int, seed: int) -> Array:
    """Sets of normals for the draws of two components, (sets, 2 n, F).

    They are in opposite pairs: where weights change little over a component, errors of the two cancel.  Halves are
    drawn by themselves: those of one sequence make up for each other's errors, which are to be told.
    """
    halves = [sobol(dimensions, 0, False, draws // 2, SETS, seed + 7919 + i).nodes for i in (0, 1)]
    parts = [np.split(half, 2, axis=1) for half in halves]
    return np.concatenate([sign * half[c] for c in (0, 1) for half in parts for sign in (1, -1)], axis=1)


@lru_cache(maxsize=8)
def paired_normals(dimensions: int, draws: int, signs: tuple[int, ...], seed: int) -> Array:
    """Sets of normals for the draws of all components, (sets, n, F).

    Where labels are even, so are all draws together at ``omega = 0``: the posterior's mean is zero there by symmetry,
    and theirs exactly.  So the prior has normals in pairs, and peaks on opposite sides have opposite ones.  Each half
    of what a component draws is a stretch of a Sobol sequence, and spread out by itself.
    """
    base = sobol(dimensions, 0, False, draws, SETS, seed + 7919).nodes
    quarter = draws // 4
    pairs = [base[:, i * quarter : (i + 1) * quarter] for i in (0, 1)]
    prior = [half for pair in pairs for half in (pair, -pair)]
    return np.concatenate([*prior, *(sign * base for sign in signs)], axis=1)
