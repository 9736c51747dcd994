"""One application of the Bayes-optimal map: from what is unknown of the fields, V, through the channel to V again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.integration.rules import sobol
from attnphase.state_evolution.sample_law import SampleLaw
from attnphase.theories.bayes_optimal.channel import Channel, Fields, blocks
from attnphase.theories.bayes_optimal.equations import BayesOptimalEquations
from attnphase.theories.bayes_optimal.lattices import FieldLaw, Sums
from attnphase.theories.bayes_optimal.row_mixtures import RowMixture
from attnphase.theories.bayes_optimal.symmetries import all_rotations

__all__ = ["Evolution", "Moments", "WeightPrior", "joined", "positive"]

_RECOVERED = -20.0  # logarithm of the share of V below which the fields are known: 2e-9
_KNOWN = 1e-20  # share of V where the fields count as known: of their deviations rounding leaves six digits
_UNDERFLOW = 1e-100  # share of rho that is always left of weights that are nearly known, so that 1 / V^2 is a number


@dataclass(frozen=True, eq=False)
class WeightPrior:
    """The law of the rows of the teacher's weights under the measure.

    Attributes
    ----------
    weights : (A,) array
    gamma : (P, A) array
    mean : (A, t) array
        What the encodings and the clusters' means tell of a row.
    precision : (A, t, t) array
    rho : (P, t, t) array
        Covariance of the sites' fields.
    mixture : RowMixture or None
        The law of a row where it is not Gaussian; `mean` and `precision` are then those of its first two moments.
    """

    weights: Array
    gamma: Array
    mean: Array
    precision: Array
    rho: Array
    mixture: RowMixture | None = None

    def arguments(self) -> dict[str, Any]:
        """Under the names that the generated equations have."""
        return {
            "gamma": self.gamma[..., None, None],
            "prior_mean": self.mean[..., None],
            "prior_precision": self.precision,
            "spectral_mean": lambda values: np.einsum("a,aij->ij", self.weights, self._all(values)),
        }

    def _all(self, values: Array) -> Array:
        return np.broadcast_to(values, (len(self.weights), *np.shape(values)[-2:]))

    @property
    def is_discrete(self) -> bool:
        """Whether weights have finitely many values."""
        return self.mixture is not None and self.mixture.entry.is_discrete

    def noise(self, q_hat: Array) -> Array:
        """``Lambda = sum_s gamma_s q_hat_s`` on every atom, (A, t, t)."""
        return np.einsum("pa,pij->aij", self.gamma, q_hat)


@dataclass(frozen=True, eq=False)
class Moments:
    """Means over the nodes, for each of S replicates; of a site only samples count whose token is in its cluster.

    Attributes
    ----------
    spread, gain, alignment : (S, P, t, t) arrays
        As in `Posterior`.
    log_evidence : (S,) array
    """

    spread: Array
    gain: Array
    alignment: Array
    log_evidence: Array

    def beside(self, others: Moments) -> Moments:
        """With those of other replicates."""
        pairs = zip(vars(self).values(), vars(others).values(), strict=True)
        return Moments(*(np.concatenate(pair) for pair in pairs))

    def moved_by(self, first: Moments) -> Moments:
        """All of them moved by as much as those of the first replicate, which are given alone."""
        pairs = zip(vars(self).values(), vars(first).values(), strict=True)
        return Moments(*(every + (one - every[:1]) for every, one in pairs))


@dataclass(frozen=True, eq=False)
class Evolution:
    """The state evolution of a learner who knows the model.

    Attributes
    ----------
    maps : BayesOptimalEquations
    prior : WeightPrior
    channel : Channel
    law : SampleLaw
        Of the samples, Gaussian.
    points, replicates : int
        Nodes in every replicate, and their number.
    seed : int
    first : int
        How many replicates of lattices are left out.
    """

    maps: BayesOptimalEquations
    prior: WeightPrior
    channel: Channel
    law: SampleLaw
    points: int
    replicates: int
    seed: int
    first: int = 0

    @property
    def rho(self) -> Array:
        """Covariance of the sites' fields, (P, t, t)."""
        return self.prior.rho

    def recovers(self, most: float, least: float) -> bool:
        """Whether everything is known where shares of V have at most one logarithm, and a least one is resolved.

        Of weights with a density, a channel that is not exact leaves something.  Of finitely many values it leaves
        exponentially little, which is nothing where it is less than what is resolved.
        """
        if self.prior.is_discrete and most <= least + 1e-9:
            return True
        return self.channel.exact and most < _RECOVERED

    @property
    def samples(self) -> int:
        """Sobol nodes of a replicate."""
        return self.points if self.channel.sums is None else self.channel.sums.samples

    @cached_property
    def round(self) -> bool:
        """Whether a lattice's sums know no direction of the columns: then a start that knows none leads to none."""
        turned = all_rotations(self.channel.images) and self.channel.sums is not None and self.prior.mixture is None
        return turned and not self.prior.mean.any() and not any(means.any() for *_, means in self.cases)

    @cached_property
    def cases(self) -> list[tuple[NDArray[np.int64], float, Array]]:
        """Of every configuration of clusters the sites of the tokens, the probability, and the fields' means (L, t)."""
        law, rank = self.law, self.rho.shape[1]
        return list(zip(law.configurations, law.probabilities.tolist(), law.means[..., :rank], strict=True))

    @cached_property
    def occupation(self) -> Array:
        """Probability that a site's cluster is the one that its token is in, (P,)."""
        return np.array([self.law.probabilities[here].sum() for here in self.law.holding])

    @cached_property
    def _normals(self) -> Array:
        dimensions = 2 * self.law.configurations.shape[1] * self.rho.shape[1] + self.channel.noise_dimensions
        return sobol(dimensions, 0, False, self.samples, self.replicates, self.seed).nodes

    def fields(self, V: Array, sites: NDArray[np.int64], means: Array) -> Fields:
        """Nodes at ``q = rho - V``, for a configuration."""
        known, rest, noise = np.split(self._normals, [means.size, 2 * means.size], axis=-1)
        omega, k = self.drawn(V, sites, means, known, rest)
        return Fields(omega, k, V[sites], noise)

    def drawn(self, V: Array, sites: NDArray[np.int64], means: Array, known: Array, *rest: Array) -> tuple[Array, ...]:
        """Of normals (S, N, L t) what is known of the fields at ``q = rho - V``, and fields given that."""
        roots, of_rest = _root(self.rho - V)[sites], np.linalg.cholesky(V)[sites]
        first, *others = (z.reshape(*z.shape[:2], *means.shape) for z in (known, *rest))
        omega = np.einsum("lij,snlj->snli", roots, first) + means
        return omega, *(omega + np.einsum("lij,snlj->snli", of_rest, z) for z in others)

    @cached_property
    def _latest(self) -> dict[bytes, Moments]:
        return {}

    def moments(self, V: Array) -> Moments:
        """What the channel gives at V, (P, t, t); kept until another V is asked for."""
        key = V.tobytes()
        found = self._latest.get(key)
        if found is None:
            found = self._moments(V)
            self._latest.clear()
            self._latest[key] = found
        return found

    def _moments(self, V: Array) -> Moments:
        shape = (self.replicates, *self.rho.shape)
        spread, gain, alignment = (np.zeros(shape) for _ in range(3))
        evidence = np.zeros(self.replicates)
        for sites, probability, means in self.cases:
            if self.channel.sums is None:
                given = self.channel.posterior(self.fields(V, sites, means))
                found = given.spread.mean(axis=1), given.gain.mean(axis=1), given.alignment.mean(axis=1)
                logs = given.log_evidence.mean(axis=1)
            else:
                spreads, gains, logs = self._over_lattices(self.channel.sums, V, sites, means)
                found = spreads, gains, gains
            for total, values in zip((spread, gain, alignment), found, strict=True):
                total[:, sites] += probability * values
            evidence += probability * logs
        # of a token that is not in a site's cluster nothing is learned: its posterior is the prior
        spread += ((1 - self.occupation)[:, None, None] * V)[None]
        return Moments(spread, gain, alignment, evidence)

    def _over_lattices(
        self, sums: Sums, V: Array, sites: NDArray[np.int64], means: Array
    ) -> tuple[Array, Array, Array]:
        """Spread and gain of every token, (S, L, t, t), and the mean logarithm of the evidence."""
        length, rank = len(sites), self.rho.shape[1]
        variances, turns = np.linalg.eigh(V[sites])  # of what is known they are the same: rho is a multiple of one
        known = np.einsum("lij,lik,lkj->lj", turns, (self.rho - V)[sites], turns).clip(0)
        law = FieldLaw(
            blocks(turns),
            means.ravel(),
            *(np.sqrt(x).ravel() for x in (known, variances)),
            round=self.round,
        )
        spreads, gains = (np.empty((self.replicates, length, rank, rank)) for _ in range(2))
        logs = np.empty(self.replicates)
        for s in range(self.replicates):
            random = np.random.default_rng([self.seed, self.first + s])
            found = sums.means(law, self.points, random)
            for values, whole in ((spreads, found.spread), (gains, found.gain)):
                values[s] = np.einsum("lilj->lij", whole.reshape(length, rank, length, rank))
            logs[s] = found.log_evidence
        if self.round:  # what a lattice prefers is no direction of the weights
            spreads, gains = (
                np.trace(x, axis1=2, axis2=3)[..., None, None] * np.eye(rank) / rank for x in (spreads, gains)
            )
        return spreads, gains, logs

    def conjugates(self, alpha: float, V: Array, moments: Moments) -> Array:
        """The conjugate of every replicate, (S, P, t, t).

        Equations (S3)-(S4) of the Bayes-optimal page.

        By the residuals as far as labels tell little of what is unknown, and by the posterior's covariance as far as
        they tell all of it: two sums with one mean, each where it is small and so is its error, column by column.
        """
        inverse = np.linalg.inv(V)
        left, told = (np.einsum("pij,pji->i", inverse, x.mean(axis=0)) for x in (moments.spread, moments.gain))
        share = left / (left + told)
        share = (share[:, None] + share) / 2
        by_spread = self.maps.conjugates_from_spreads(alpha, moments.spread, V)
        by_residual = self.maps.conjugates_from_residuals(alpha, inverse @ moments.gain @ inverse)
        q_hat = share * by_residual + (1 - share) * by_spread
        return (q_hat + q_hat.mT) / 2

    def overlaps(self, q_hat: Array) -> tuple[Array, Array]:
        """Overlap q and what it leaves, V, of a conjugate.

        Equations (S1)-(S2) of the Bayes-optimal page.
        """
        if (mixture := self.prior.mixture) is not None:
            unknown, _ = mixture.unknown(self.prior.noise(q_hat))
            V = np.einsum("a,pa,aij->pij", self.prior.weights, self.prior.gamma, unknown) + _UNDERFLOW * self.rho
            return self.rho - V, V
        q, V = self.maps.overlaps_from_conjugates(**self.prior.arguments(), q_hat=q_hat)
        return (q + q.mT) / 2, (V + V.mT) / 2

    def images(self, alpha: float, V: Array, moments: Moments) -> tuple[Array, Array]:
        """V after one application of the map, and that of every replicate."""
        q_hat = self.conjugates(alpha, V, moments)
        return self.overlaps(positive(q_hat.mean(axis=0)))[1], np.stack([self.overlaps(positive(x))[1] for x in q_hat])

    def image(self, alpha: float, V: Array, moments: Moments | None = None) -> Array:
        """V after one application of the map."""
        moments = self.moments(V) if moments is None else moments
        pooled = Moments(*(a.mean(axis=0, keepdims=True) for a in vars(moments).values()))
        return self.overlaps(positive(self.conjugates(alpha, V, pooled)[0]))[1]

    def free_entropy(self, alpha: float, V: Array, moments: Moments) -> Array:
        """The free entropy of every replicate, with the overlaps and conjugates of all, (S,).

        Equation (R4) of the Bayes-optimal page.
        """
        q_hat = positive(self.conjugates(alpha, V, moments).mean(axis=0))
        q = self.rho - V
        terms = self.maps.free_entropy_terms(
            alpha=alpha,
            **self.prior.arguments() | {"spectral_mean": self._scalar_mean},
            q_hat=q_hat,
            q=q,
            observation_entropy=moments.log_evidence,
        )
        if (mixture := self.prior.mixture) is not None:  # Tr[rho q_hat]/2 moves from one to the other, and cancels
            information = mixture.unknown(self.prior.noise(q_hat))[1]
            terms |= {"overlap": np.einsum("pij,pji->", V, q_hat) / 2, "prior": -self.prior.weights @ information}
        return sum(np.asarray(term) for term in terms.values()) + np.zeros(self.replicates)

    def told(self, V: Array) -> float:
        """The share of what is unknown before a label that the label tells: a half where it is as large as noise."""
        inverse, moments = np.linalg.inv(V), self.moments(V)
        left, told = (float(np.einsum("pij,spji->", inverse, x)) for x in (moments.spread, moments.gain))
        return told / (left + told)

    def noise_entropies(self) -> Array:
        """``E log P_out(Y | k)``, the mean logarithm of the evidence where the fields are known, of every replicate."""
        known = self.channel.noise_entropy
        if known is not None:
            return np.full(self.replicates, known)
        return self.moments(_KNOWN * self.rho).log_evidence

    def _scalar_mean(self, values: Array) -> Array:
        values = np.broadcast_to(values, (len(self.prior.weights), 1, 1))
        return np.einsum("a,aij->ij", self.prior.weights, values)

    def growth(self) -> tuple[Array, Array]:
        """The linear operator of the overlap at ``q = 0`` for ``alpha = 1``, and the size of ``E[k | Y]`` there.

        Returns
        -------
        operator : (S, P t^2, P t^2) array
            ``q -> q``; the inverse of its largest eigenvalue is the weak-recovery threshold.
        first : (S,) array
            Mean square of the first moments over that of the fields: zero if nothing is learned at first order.
        """
        P, t = self.rho.shape[:2]
        covariances = np.linalg.inv(self.prior.precision)
        # q_s = int dnu gamma_s gamma_u C q_hat_u C
        spectral = np.einsum("a,sa,ua,aij,akl->sikujl", *(
            self.prior.weights, self.prior.gamma, self.prior.gamma, covariances, covariances))  # fmt: skip
        channel, first = 0.0, 0.0
        for sites, probability, _ in self.cases:
            root = blocks(np.asarray(np.linalg.cholesky(self.rho[sites]), float))
            found, inverse = self.channel.response(root, self.seed), np.linalg.inv(root)
            of_tokens = np.einsum("xi,yj,zk,wl,sxyzw->sijkl", *[inverse] * 4, found.operator, optimize=True)
            whole = of_tokens.reshape(-1, *(len(sites), t) * 4)
            own = np.zeros((len(whole), P, t, t, P, t, t))
            for a, s in enumerate(sites):
                for b, u in enumerate(sites):
                    own[:, s, :, :, u, :, :] += np.einsum("ricjd->rijcd", whole[:, a, :, b, :, a, :, b, :])
            channel, first = channel + probability * own, first + probability * found.first
        operator = np.einsum("sikujl,rujlvmn->rsikvmn", spectral, channel)
        return operator.reshape(len(operator), P * t * t, -1), np.asarray(first)


def joined(values: Array) -> Array:
    """Symmetric matrices (..., P, t, t) as rows of their entries on and above the diagonal, (..., P t (t + 1) / 2)."""
    i, j = np.triu_indices(values.shape[-1])
    return values[..., i, j].reshape(*values.shape[:-3], -1)


def _root(matrix: Array) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(np.clip(values, 0, None))[..., None, :]) @ vectors.mT


def positive(q_hat: Array) -> Array:
    """The nearest conjugate without negative eigenvalues, which the error of few nodes may bring."""
    values, vectors = np.linalg.eigh(q_hat)
    return (vectors * np.clip(values, 0, None)[..., None, :]) @ vectors.mT
