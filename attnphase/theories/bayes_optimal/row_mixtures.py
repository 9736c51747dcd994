"""What a noisy source tells of a row of the teacher's weights whose entries have a law that is no Gaussian.

The row w is a mixture of Gaussians, and the source is ``B = S w + S^(1/2) z``.  Given B each component is a Gaussian of
its own, with closed forms.  What remains is which component it is: of any two, j and k, sums over B have the factor
``p(B) r_j r_k = sqrt(p_j p_k N_j N_k) sqrt(r_j r_k)`` of the components' posterior probabilities r.  The root of two
Gaussians is a Gaussian, and its norm is as small as the components are apart, so that also what is all but known has a
small relative error.  The trapezoidal rule sums such analytic functions with an error that falls exponentially.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attnphase.arrays import Array
from attnphase.problem.teacher_priors import EntryLaw

__all__ = ["RowMixture"]

_DIGITS, _FEWER_DIGITS = 37.0, 16.0  # logarithms of the errors of sums over one variable, and over two
_NEGLIGIBLE = 1e-20  # norm of two components, over that of the two that are nearest
_AT_ONCE = 2**21  # numbers of a block


@dataclass(frozen=True, eq=False)
class RowMixture:
    """The components of a row of t independent entries.

    Attributes
    ----------
    entry : EntryLaw
    probabilities : (K,) array
    means, variances : (K, t) arrays
    """

    entry: EntryLaw
    probabilities: Array
    means: Array
    variances: Array

    @classmethod
    def of(cls, entry: EntryLaw, columns: int) -> RowMixture:
        """A row of so many entries."""
        return cls(entry, *entry.of_rows(columns))

    def posterior(self, noise: Array, source: Array) -> tuple[Array, Array]:
        """Mean (N, t) and covariance (N, t, t) of rows with S (N, t, t), given their sources (N, t)."""
        logs, means = (x[:, 0] for x in self._components(noise, source[:, None]))
        shares, spreads = np.exp(logs), self._spreads(noise)
        mean = np.einsum("nk,nki->ni", shares, means)
        apart = means - mean[:, None]
        return mean, np.einsum("nk,nkij->nij", shares, spreads + apart[..., :, None] * apart[..., None, :])

    def unknown(self, noise: Array) -> tuple[Array, Array]:
        """What sources leave unknown of rows, for S (A, t, t).

        Returns
        -------
        covariance : (A, t, t) array
            Mean covariance of the posterior.
        information : (A,) array
            Mutual information of a row and its source: ``E w^T S w/2`` less the mean of
            ``log E_w exp[B^T w - w^T S w/2]``.
        """
        columns = self.means.shape[1]
        diagonals = np.einsum("aii->ai", noise)
        if columns > 1 and not (noise - diagonals[:, :, None] * np.eye(columns)).any():
            spread, information = RowMixture.of(self.entry, 1).unknown(diagonals.reshape(-1, 1, 1))
            covariance = spread.reshape(-1, columns, 1) * np.eye(columns)
            return covariance, information.reshape(-1, columns).sum(axis=1)
        covariance = np.einsum("k,akij->aij", self.probabilities, self._spreads(noise))
        volume = np.linalg.slogdet(self._stretched(noise))[1]
        information = (volume / 2 - np.log(self.probabilities)) @ self.probabilities
        for part, found in self._over_pairs(noise):
            covariance[part] += found[0]
            information[part] -= found[1]
        return covariance, information

    def _stretched(self, noise: Array) -> Array:
        """``I + C_k S`` for the components' covariances C, (..., K, t, t)."""
        return np.eye(self.means.shape[1]) + self.variances[:, :, None] * noise[..., None, :, :]

    def _spreads(self, noise: Array) -> Array:
        """Covariances of the components given the source, (..., K, t, t)."""
        spreads = np.linalg.solve(self._stretched(noise), self.variances[:, :, None] * np.eye(self.means.shape[1]))
        return np.asarray((spreads + spreads.mT) / 2, float)

    def _components(self, noise: Array, sources: Array) -> tuple[Array, Array]:
        """Logarithms of their probabilities (A, N, K) and means (A, N, K, t), given sources (A, N, t)."""
        pulled = np.einsum("aij,kj->aki", noise, self.means)
        rest = sources[:, :, None] - pulled[:, None]
        moved = np.einsum("akij,ankj->anki", self._spreads(noise), rest)
        linear = sources @ self.means.T - np.einsum("ki,aki->ak", self.means, pulled)[:, None] / 2
        volume = np.linalg.slogdet(self._stretched(noise))[1][:, None]
        logs = np.log(self.probabilities) + linear + ((rest * moved).sum(axis=-1) - volume) / 2
        logs -= logs.max(axis=-1, keepdims=True)
        return logs - np.log(np.exp(logs).sum(axis=-1, keepdims=True)), self.means + moved

    def _over_pairs(self, noise: Array) -> Iterator[tuple[slice, tuple[Array, Array]]]:
        """Blocks of the atoms with what a pair of components adds there, see `_summed`."""
        size, rank = self.means.shape
        root = _root(noise)
        # in units of the noise a source is N(root m_k, 1 + root C_k root)
        within = np.eye(rank) + root[:, None] @ (self.variances[:, :, None] * root[:, None])
        places = np.einsum("aij,kj->aki", root, self.means)
        pairs = [_Pair(j, k, places, within) for j, k in itertools.combinations(range(size), 2)]
        largest = np.max([pair.norm for pair in pairs], axis=0, initial=0.0)
        for pair in pairs:
            weight = pair.norm * np.sqrt(self.probabilities[pair.first] * self.probabilities[pair.second])
            if (pair.norm <= _NEGLIGIBLE * largest).all():
                continue
            nodes, shares = self._rule(noise, root, pair)
            block = max(_AT_ONCE // (len(shares) * size * rank**2), 1)
            for start in range(0, len(noise), block):
                part = slice(start, start + block)
                sources = pair.at(nodes, part) @ root[part]
                yield part, self._summed(noise[part], sources, pair, weight[part, None] * shares)

    def _summed(self, noise: Array, sources: Array, pair: _Pair, weights: Array) -> tuple[Array, Array]:
        """What a pair adds to the covariance, and the entropy of which of the two it is."""
        logs, means = self._components(noise, sources)
        one, other = logs[..., pair.first], logs[..., pair.second]
        both = weights * np.exp((one + other) / 2)
        apart = means[..., pair.first, :] - means[..., pair.second, :]
        # -sum_k r_k log r_k = sum_(j < k) r_j r_k [f(r_j) + f(r_k)], f(r) = -log r / (1 - r)
        entropies = sum(-log / np.maximum(-np.expm1(log), 1e-300) for log in (one, other))
        entropies = np.where(np.minimum(one, other) > -1e-15, 2.0, entropies)
        covariance: Array = (both[..., None] * apart).mT @ apart
        return covariance, np.einsum("an,an->a", both, entropies)

    def _rule(self, noise: Array, root: Array, pair: _Pair) -> tuple[Array, Array]:
        """Nodes and weights of a standard normal, so fine that no logarithm of ``r_j / r_k`` is too steep for them."""
        rank = root.shape[-1]
        digits = _DIGITS if rank == 1 else _FEWER_DIGITS
        reach = np.sqrt(2 * digits)
        # the logarithm has the gradient mu_j - mu_k in B, which is linear in B
        corners = np.array(list(itertools.product((-reach, reach), repeat=rank)))
        means = self._components(noise, pair.at(corners) @ root)[1]
        apart = means[:, :, :, None] - means[:, :, None]
        steep = np.abs(np.einsum("aij,ajk,ancbk->ancbi", pair.root, root, apart)).max(axis=(0, 1, 2, 3))
        # poles of sqrt(r_j r_k) are pi / steep away, and the normal density is one of a Gaussian
        steps = 1 / (reach / (2 * np.pi) + steep * digits / (2 * np.pi**2))
        axes = [step * np.arange(-np.ceil(reach / step), np.ceil(reach / step) + 1) for step in steps]
        nodes = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, rank)
        nodes = nodes[(nodes**2).sum(axis=1) <= reach**2]
        weights = np.exp(-(nodes**2).sum(axis=1) / 2)
        return nodes, weights * np.prod(steps / np.sqrt(2 * np.pi))


class _Pair:
    """Two components, and the Gaussian that the root of the product of their sources' densities is, atom by atom."""

    def __init__(self, first: int, second: int, places: Array, within: Array) -> None:
        self.first, self.second = first, second
        a, b = within[:, first], within[:, second]
        inverses = np.linalg.inv(a), np.linalg.inv(b)
        half = np.linalg.inv(inverses[0] + inverses[1])
        pulled = sum((inverse @ places[:, k, :, None]) for inverse, k in zip(inverses, (first, second), strict=True))
        self.place = np.asarray((half @ pulled)[..., 0], float)
        self.root = _root(np.asarray(2 * half, float))
        apart, middle = places[:, first] - places[:, second], (a + b) / 2
        distance = np.einsum("ai,aij,aj->a", apart, np.linalg.inv(middle), apart)
        volumes = [np.linalg.slogdet(matrix)[1] for matrix in (a, b, middle)]
        self.norm = np.exp(-distance / 8 + (volumes[0] + volumes[1]) / 4 - volumes[2] / 2)

    def at(self, normals: Array, part: slice = slice(None)) -> Array:
        """Points (A, N, t) of that Gaussian, of standard normals (N, t)."""
        return self.place[part, None] + np.einsum("aij,nj->ani", self.root[part], normals)


def _root(matrices: Array) -> Array:
    values, vectors = np.linalg.eigh(matrices)
    return np.asarray((vectors * np.sqrt(np.clip(values, 0, None))[..., None, :]) @ vectors.mT, float)
