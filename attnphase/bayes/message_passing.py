"""Bayes-optimal message passing at finite d: Algorithm 1 with posterior means, on one random instance.

The proximal point of a sample gives way to the posterior's mean of its fields, that of a row of the weights to the
prior's.  State evolution tracks the overlaps of the iterates with the teacher.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnphase.arrays import Array
from attnphase.bayes.channel import Fields
from attnphase.bayes.setting import Setting
from attnphase.errors import ProblemError

__all__ = ["MessagePassing", "pass_messages"]


@dataclass(frozen=True, eq=False)
class MessagePassing:
    """One run.

    Attributes
    ----------
    alignment, size : (steps, P, t, t) arrays
        ``W^T Sigma_s Q_star / d`` and ``W^T Sigma_s W / d`` after every step.
    rho : (P, t, t) array
        The teacher's own, of this instance.
    weights : (d, t) array
        At the end.
    change : float
        Root mean square of the last step, over that of the teacher.
    """

    alignment: Array
    size: Array
    rho: Array
    weights: Array
    change: float

    @property
    def overlap(self) -> float:
        """Share of the fields' variance that is known at the end; the teacher's sign is not."""
        last = np.trace(self.alignment[-1], axis1=1, axis2=2).sum()
        return float(abs(last) / np.trace(self.rho, axis1=1, axis2=2).sum())


def pass_messages(
    setting: Setting, alpha: float, dimension: int, seed: int, *, steps: int = 60, damping: float = 0.0
) -> MessagePassing:
    """Run the iteration on a random instance.

    Parameters
    ----------
    setting : Setting
        Of a channel whose labels are not summed over, and tokens without clusters' means.
    alpha : float
        Its n is ``alpha d``, rounded.
    dimension : int
    seed : int
    steps : int
    damping : float
        Share of the old weights that is kept.

    Raises
    ------
    ProblemError
        The problem has clusters, or encodings that tell of the teacher, or a channel that sums labels.
    """
    prior = setting.prior
    if setting.problem.tokens.has_clusters or prior.mean.any():
        raise ProblemError("tokens", "tokens: message passing is for tokens without clusters or known means.")
    random = np.random.default_rng([seed, dimension])
    length, t = len(prior.rho), prior.rho.shape[1]
    count = round(alpha * dimension)
    atoms = random.choice(len(prior.weights), size=dimension, p=prior.weights)
    gamma, precision = prior.gamma[:, atoms], prior.precision[atoms]  # (L, d), (d, t, t)
    teacher = np.einsum("dij,dj->di", _root_of_inverse(precision), random.standard_normal((dimension, t)))
    x = random.standard_normal((count, length, dimension)) * np.sqrt(gamma) / np.sqrt(dimension)
    k = (x @ teacher)[None]
    noise = random.standard_normal((1, count, setting.channel.noise_dimensions))
    squares = gamma / dimension  # the mean of a token's squared entries
    c = np.linalg.inv(precision)
    weights = 1e-2 * random.standard_normal((dimension, t))
    residual = np.zeros((count, length, t))
    alignments, sizes, change = [], [], np.inf
    for _ in range(steps):
        V = np.einsum("ld,dij->lij", squares, c)
        omega = x @ weights - np.einsum("lij,nlj->nli", V, residual)
        found = setting.channel.posterior(Fields(omega[None], k, V, noise))
        if found.mean is None:
            raise ProblemError("channel", "channel: message passing needs labels that are not summed over.")
        inverse = np.linalg.inv(V)
        residual = np.einsum("lij,nlj->nli", inverse, found.mean[0])
        response = inverse @ (V - found.spread[0].mean(axis=0)) @ inverse  # minus dg/domega
        A = count * np.einsum("ld,lij->dij", squares, (response + response.mT) / 2)
        B = np.einsum("nld,nli->di", x, residual) + np.einsum("dij,dj->di", A, weights)
        c = np.linalg.inv(precision + A)
        new = damping * weights + (1 - damping) * np.einsum("dij,dj->di", c, B)
        change = float(np.sqrt(((new - weights) ** 2).mean() / (teacher**2).mean()))
        weights = new
        alignments.append(np.einsum("ld,di,dj->lij", squares, weights, teacher))
        sizes.append(np.einsum("ld,di,dj->lij", squares, weights, weights))
    rho = np.einsum("ld,di,dj->lij", squares, teacher, teacher)
    return MessagePassing(np.stack(alignments), np.stack(sizes), rho, weights, change)


def _root_of_inverse(precision: Array) -> Array:
    return np.asarray(np.linalg.cholesky(np.linalg.inv(precision)), float)
