"""Test errors of the posterior's prediction for a fresh sample whose label nobody saw, against labels without noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.integration.rules import sobol
from attnphase.theories.bayes_optimal.channel import SETS, blocks, draw_sets
from attnphase.theories.bayes_optimal.evolution import Evolution

__all__ = ["Fresh", "LabelError", "Readout", "ScoreError", "SignError", "SquareError"]


@dataclass(frozen=True, eq=False)
class Fresh:
    """Fresh samples of one run at finite d, of one configuration of clusters.

    Attributes
    ----------
    omega, k : (B, L, t) arrays
        Fields as the learner has them, and as they are.
    draws : two (B, L, t) arrays
        Independent draws of what the learner takes the fields for, ``N(omega, V)``.
    V : (L, t, t) array
    gram : (B, L, L) array
        ``x x^T / d``.
    """

    omega: Array
    k: Array
    draws: tuple[Array, Array]
    V: Array
    gram: Array


class Readout(Protocol):
    """What is counted as an error."""

    @property
    def drawn(self) -> bool:
        """Whether its means are over Sobol nodes."""
        ...

    def of_samples(self, fresh: Fresh) -> Array:
        """Test error of every sample at finite d, (B,); its mean over the draws is exact."""
        ...

    def error(self, evolution: Evolution, V: Array) -> Array:
        """Test error of every replicate at V, (S,)."""
        ...


@dataclass(frozen=True)
class ScoreError:
    """``(1/L) E Tr[(T(k) - <T>) D (T(k) - <T>)^T]`` of the teacher's score matrices.

    Equation (S5) of the Bayes-optimal page.

    The deviation from the mean given omega has the law of the difference of two draws over the root of two.
    """

    target: Callable[[Array], Array]
    variances: Array
    drawn = True

    def error(self, evolution: Evolution, V: Array) -> Array:
        """See `Readout`."""
        length = evolution.law.configurations.shape[1]

        def sample_mean(integrand: Callable[[Array, Array], Array]) -> Array:
            total = np.zeros(evolution.replicates)
            for sites, probability, means in evolution.cases:
                first, second = (self._targets(k, length) for k in _two_draws(evolution, V, sites, means))
                values = integrand((first - second) / np.sqrt(2), np.diag(self.variances[sites])[None, None])
                total = total + probability * values.mean(axis=1)
            return total

        return evolution.maps.test_error(sample_mean, length)

    def of_samples(self, fresh: Fresh) -> Array:
        """See `Readout`: the product of two errors with predictions by one draw each."""
        length = fresh.k.shape[1]
        true, *drawn = (self._targets(k[None], length)[0] for k in (fresh.k, *fresh.draws))
        first, second = (true - one for one in drawn)
        return np.asarray(np.einsum("nij,njk,nik->n", first, fresh.gram, second), float) / length

    def _targets(self, k: Array, length: int) -> Array:
        return self.target(np.ascontiguousarray(k.reshape(-1, *k.shape[2:]))).reshape(*k.shape[:2], length, length)


@dataclass(frozen=True)
class SquareError:
    """``E |f(k) - <f>|^2`` of a label of one or several entries.

    Attributes
    ----------
    target : callable
        Of fields (B, L, t), the labels (B, C M) for each of C choices of clusters that nobody sees.
    shares : tuple of float
        Their probabilities.
    """

    target: Callable[[Array], Array]
    shares: tuple[float, ...] = (1.0,)
    drawn = True

    def _labels(self, k: Array) -> tuple[Array, Array]:
        """Mean of the label of fields (B, L, t) over the clusters, (B, M), and its variance, (B,)."""
        values = self.target(np.ascontiguousarray(k)).reshape(len(k), len(self.shares), -1)
        mean = np.einsum("c,bcm->bm", self.shares, values)
        return mean, np.einsum("c,bcm->b", self.shares, (values - mean[:, None]) ** 2)

    def error(self, evolution: Evolution, V: Array) -> Array:
        """See `Readout`."""
        total = np.zeros(evolution.replicates)
        for sites, probability, means in evolution.cases:
            draws = _two_draws(evolution, V, sites, means)
            shape = draws[0].shape[:2]
            (first, own), (second, other) = (self._labels(k.reshape(-1, *k.shape[2:])) for k in draws)
            errors = ((first - second) ** 2).sum(axis=-1) + own + other
            total += probability * errors.reshape(shape).mean(axis=1) / 2
        return total

    def of_samples(self, fresh: Fresh) -> Array:
        """See `Readout`: the product of two errors with predictions by one draw each."""
        (true, hidden), *drawn = (self._labels(k) for k in (fresh.k, *fresh.draws))
        first, second = (true - one for one, _ in drawn)
        return np.asarray((first * second).sum(axis=1) + hidden, float)


@dataclass(frozen=True)
class SignError:
    """Probability that the sign of the posterior's mean is wrong."""

    drawn = False

    def error(self, evolution: Evolution, V: Array) -> Array:
        """See `Readout`: that of a half-plane under two correlated normal numbers, Owen's function."""
        from scipy.special import owens_t

        total = 0.0
        for sites, probability, means in evolution.cases:
            rho, unknown = evolution.rho[sites][0, 0, 0], V[sites][0, 0, 0]
            odds = np.sqrt(unknown / (rho - unknown)) if unknown < rho else np.inf
            total += probability * 2 * float(owens_t(abs(means[0, 0]) / np.sqrt(rho), odds))
        return np.full(evolution.replicates, total)

    def of_samples(self, fresh: Fresh) -> Array:
        """See `Readout`."""
        return np.where(fresh.k[:, 0, 0] * fresh.omega[:, 0, 0] < 0, 1.0, 0.0)


@dataclass(frozen=True)
class LabelError:
    """Probability that the most probable label is wrong.

    Attributes
    ----------
    probabilities : callable
        Of labels without noise (..., Y), of fields (..., L t).
    """

    probabilities: Callable[[Array], Array]
    drawn = True

    def error(self, evolution: Evolution, V: Array) -> Array:
        """See `Readout`: the first draw says how probable labels are, others which is the most probable one."""
        total, size = np.zeros(evolution.replicates), evolution.law.configurations.shape[1] * V.shape[1]
        sets = sobol(size, 0, False, 256, SETS, evolution.seed + 31).nodes
        for sites, probability, means in evolution.cases:
            fields = evolution.fields(V, sites, means)
            omega = fields.omega.reshape(-1, size)
            about = sets @ blocks(np.asarray(np.linalg.cholesky(V[sites]), float)).T
            highest, which = np.empty(len(omega)), draw_sets(*fields.omega.shape[:2])
            for first in range(0, len(omega), 1024):
                part = slice(first, first + 1024)
                draws = omega[part, None] + about[which[part]]
                highest[part] = self.probabilities(draws).mean(axis=1).max(axis=-1)
            total += probability * (1 - highest.reshape(fields.omega.shape[:2]).mean(axis=1))
        return total

    def of_samples(self, fresh: Fresh) -> Array:
        """See `Readout`."""
        k, omega = (x.reshape(len(x), -1) for x in (fresh.k, fresh.omega))
        root = blocks(np.asarray(np.linalg.cholesky(fresh.V), float))
        about = sobol(k.shape[1], 0, False, 256, SETS, 31).nodes @ root.T
        wrong = 1 - self.probabilities(k)
        which, told = np.arange(len(wrong)) % SETS, np.empty(len(wrong), dtype=np.int64)
        for first in range(0, len(wrong), 1024):
            part = slice(first, first + 1024)
            told[part] = self.probabilities(omega[part, None] + about[which[part]]).mean(axis=1).argmax(axis=-1)
        return np.take_along_axis(wrong, told[:, None], axis=1)[:, 0]


def _two_draws(evolution: Evolution, V: Array, sites: NDArray[np.int64], means: Array) -> tuple[Array, Array]:
    """Two independent fields of the same sample given what is known of it, (S, N, L, t) each."""
    seed = evolution.seed + 1
    normals = sobol(3 * means.size, 0, False, evolution.samples, evolution.replicates, seed).nodes
    return evolution.drawn(V, sites, means, *np.split(normals, 3, axis=-1))[1:]  # pyright: ignore[reportReturnType]
