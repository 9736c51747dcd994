"""From observations to the posterior of the teacher's fields: what a channel gives, and channels with closed forms.

A channel takes nodes: fields ``omega`` that the learner knows, the true fields ``k ~ N(omega, V)``, and normals for
the noise of the observation.  It returns what the state evolution is made of, node by node.  `Preimages` is for labels
without noise that leave a sign of the fields undetermined, or nothing; `Signs` for the sign of one field.
`importance` and `labels`, beside this file, have those whose posterior is an integral.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.theories.bayes_optimal.lattices import Sums
from attnphase.theories.bayes_optimal.one_sign import SignSums, given_sign
from attnphase.theories.bayes_optimal.response import Response, of_preimages
from attnphase.theories.bayes_optimal.two_points import TwoPoints

__all__ = [
    "SETS",
    "SIGNS",
    "Channel",
    "Fields",
    "Posterior",
    "Preimages",
    "Signs",
    "blocks",
    "draw_sets",
    "outer",
]

_RESOLUTION = 1e-30  # share of a field's variance, whose inverse squared is a number
_LOG_TWO_PI = float(np.log(2 * np.pi))


@dataclass(frozen=True, eq=False)
class Fields:
    """Nodes of one configuration of clusters: S replicates of N.

    Attributes
    ----------
    omega, k : (S, N, L, t) arrays
        With the means that clusters give the teacher's fields.
    V : (L, t, t) array
        Covariance of ``k`` given ``omega``.
    noise : (S, N, M) array
        Standard normals for the observation.
    """

    omega: Array
    k: Array
    V: Array
    noise: Array

    @property
    def deviation(self) -> Array:
        """``k - omega``."""
        return self.k - self.omega


@dataclass(frozen=True, eq=False)
class Posterior:
    """What the observations of nodes say; means over the observation where it was summed over.

    Equation (O1) of the Bayes-optimal page.

    Attributes
    ----------
    spread : (S, N, L, t, t) array
        Covariance of every token's field given observation and omega.
    gain : (S, N, L, t, t) array
        ``(<k> - omega)(<k> - omega)^T``.
    alignment : (S, N, L, t, t) array
        ``(<k> - omega)(k - omega)^T`` with the true field: of equal mean (Nishimori).
    log_evidence : (S, N) array
        ``log Z``; for observations without noise up to a constant of the channel.
    mean : (S, N, L, t) array or None
        ``<k> - omega``; None where all labels were summed over.
    """

    spread: Array
    gain: Array
    alignment: Array
    log_evidence: Array
    mean: Array | None = None


class Channel(Protocol):
    """An observation of the teacher's fields."""

    @property
    def noise_dimensions(self) -> int:
        """Number M of normals that an observation takes."""
        ...

    @property
    def exact(self) -> bool:
        """Whether labels tell the fields up to a sign: then the evidence is a density on them, and has no scale."""
        ...

    @property
    def coarsest(self) -> int:
        """Nodes in a replicate of the rule to begin with: few where each is an integral."""
        ...

    @property
    def most(self) -> int:
        """Nodes of all replicates at which a solve ends, if its user does not want fewer."""
        ...

    @property
    def tolerance(self) -> float:
        """Relative residual at which an iteration ends: larger where the sampled map has small jumps."""
        ...

    @property
    def resolution(self) -> float:
        """Variance of a field below which the channel's integrals see nothing; zero where there is none."""
        ...

    @property
    def sums(self) -> Sums | None:
        """By which all integrals are done, None where they are drawn."""
        ...

    @property
    def noise_entropy(self) -> float | None:
        """``E log P_out(Y | k)`` where it is known without an integral."""
        ...

    @property
    def label_dimensions(self) -> int:
        """Number of normals that one label takes, also where the state evolution sums over all of them."""
        ...

    @property
    def images(self) -> tuple[tuple[tuple[float, ...], ...], ...]:
        """Orthogonal matrices of the columns that leave labels unchanged; all do if one is no signed permutation."""
        ...

    def posterior(self, fields: Fields) -> Posterior:
        """What the observations of nodes say."""
        ...

    def given(self, fields: Fields) -> Posterior:
        """What one label of every node says, which its field and its normals make; with ``mean``."""
        ...

    def response(self, root: Array, seed: int) -> Response:
        """What labels tell where nothing is known, of fields (F,) with a root of their covariance."""
        ...


SETS = 256
"""Sets of draws from the posterior for channels that need them: sixteen for each of sixteen replicates."""

SIGNS = ((1.0,),), ((-1.0,),)
"""The orthogonal matrices of one column."""

_IN_TURN = 16  # sets that the nodes of a replicate take


def draw_sets(replicates: int, nodes: int) -> NDArray[np.int64]:
    """Which set of draws every node takes, (S N,): replicates share none, so that their scatter holds these errors."""
    own = np.arange(replicates)[:, None] * _IN_TURN + np.arange(nodes) % _IN_TURN
    return (own % SETS).ravel()


def blocks(matrices: Array) -> Array:
    """The tokens' matrices (L, t, t) as one of all fields."""
    length, rank = matrices.shape[:2]
    whole = np.zeros((length, rank, length, rank))
    for token in range(length):
        whole[token, :, token] = matrices[token]
    return whole.reshape(length * rank, length * rank)


def outer(first: Array, second: Array) -> Array:
    """``a b^T`` token by token."""
    return first[..., :, None] * second[..., None, :]


@dataclass(frozen=True)
class Preimages:
    """Labels without noise, from which the fields follow up to a sign that all have in common, or exactly.

    Attributes
    ----------
    even : bool
        Whether ``-k`` has the label of ``k``.
    """

    even: bool
    noise_dimensions = label_dimensions = 0
    noise_entropy = None
    exact = True
    coarsest, most, tolerance, resolution = 128, 2**13, 1e-9, 0.0

    @property
    def sums(self) -> TwoPoints:
        """See `Channel`."""
        return TwoPoints(self.even)

    @property
    def images(self) -> tuple[tuple[tuple[float, ...], ...], ...]:
        """See `Channel`."""
        return SIGNS if self.even else SIGNS[:1]

    def given(self, fields: Fields) -> Posterior:
        """See `Channel`."""
        return self.posterior(fields)

    def posterior(self, fields: Fields) -> Posterior:
        """See `Channel`: two points, with the densities of ``k`` and ``-k``."""
        omega, k = fields.omega, fields.k
        whitened = np.einsum("lij,snlj->snli", np.linalg.inv(fields.V), k)
        size = k.shape[2] * k.shape[3]
        normal = -0.5 * (size * _LOG_TWO_PI + np.linalg.slogdet(fields.V)[1].sum())
        deviation = fields.deviation
        distance = np.einsum("snli,lij,snlj->sn", deviation, np.linalg.inv(fields.V), deviation)
        log_density = normal - distance / 2
        if not self.even:
            known = outer(deviation, deviation)
            return Posterior(np.zeros_like(known), known, known, log_density, deviation)
        twice = 2 * np.einsum("snli,snli->sn", whitened, omega)  # log of the odds of k against -k
        small = np.exp(-np.abs(twice))
        uncertain = 4 * small / (1 + small) ** 2  # 1 - tanh^2, precise where it is tiny
        mean = np.tanh(twice / 2)[..., None, None] * k - omega
        return Posterior(
            uncertain[..., None, None, None] * outer(k, k),
            outer(mean, mean),
            outer(mean, deviation),
            log_density + np.logaddexp(0, -twice),
            mean,
        )

    def response(self, root: Array, seed: int) -> Response:
        """See `Channel`: at ``omega = 0`` both signs are equally likely."""
        return of_preimages(len(root), self.even)


@dataclass(frozen=True)
class Signs:
    """The sign of one token's field of one column with noise of variance ``noise`` on it: the probit channel.

    Attributes
    ----------
    noise : float
    variance : float
        Of the field.
    """

    noise: float
    variance: float = 1.0
    noise_dimensions, label_dimensions = 0, 1
    images = (((1.0,),),)
    exact = False
    coarsest, most, tolerance = 128, 2**13, 1e-9

    @property
    def resolution(self) -> float:
        """See `Channel`."""
        return _RESOLUTION * self.variance

    @property
    def sums(self) -> SignSums:
        """See `Channel`."""
        return SignSums(self.noise)

    @property
    def noise_entropy(self) -> float | None:
        """See `Channel`: without noise the field tells the sign."""
        return None if self.noise else 0.0

    def posterior(self, fields: Fields) -> Posterior:
        """See `Channel`: a normal law cut off at one point, and the mean over both labels."""
        omega, V = fields.omega[..., 0, 0], fields.V[0, 0, 0]
        probability, mean, spread, logs = zip(
            *(given_sign(label, omega, V, self.noise) for label in (1, -1)), strict=True
        )

        def over_labels(values: tuple[Array, ...]) -> Array:
            return np.sum([p * v for p, v in zip(probability, values, strict=True)], axis=0)

        gain = over_labels(tuple(m**2 for m in mean))[..., None, None, None]
        # given omega, the true field has the posterior's mean under every label
        return Posterior(over_labels(spread)[..., None, None, None], gain, gain, over_labels(logs))

    def given(self, fields: Fields) -> Posterior:
        """See `Channel`."""
        omega, V = fields.omega[..., 0, 0], fields.V[0, 0, 0]
        label = np.where(fields.k[..., 0, 0] + np.sqrt(self.noise) * fields.noise[..., 0] >= 0, 1, -1)
        _, mean, spread, logs = given_sign(label, omega, V, self.noise)
        mean, spread = mean[..., None, None], spread[..., None, None, None]
        return Posterior(spread, outer(mean, mean), outer(mean, fields.deviation), logs, mean)

    def response(self, root: Array, seed: int) -> Response:
        """See `Channel`: the square of the field tells nothing of its sign, nor the sign of it."""
        variance = float(root[0, 0]) ** 2
        return Response(np.zeros((2, 1, 1, 1, 1)), np.full(2, 2 / np.pi * variance / (variance + self.noise)))
