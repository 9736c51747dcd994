"""Bayes-optimal message passing at finite d: what its steps take from the theory, one run at a time.

It is Algorithm 1 with posterior means: the proximal point of a sample gives way to the posterior's mean of its fields,
that of a row of the weights to the prior's.  State evolution tracks the overlaps of the iterates with the teacher.
`attnphase.experiments.posterior` draws instances and iterates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.errors import ProblemError
from attnphase.facts.moments import same_arrays
from attnphase.theories.bayes_optimal.channel import Fields
from attnphase.theories.bayes_optimal.evolution import positive
from attnphase.theories.bayes_optimal.model import PosteriorModel
from attnphase.theories.bayes_optimal.row_mixtures import RowMixture
from attnphase.theories.bayes_optimal.symmetries import all_rotations, every_signed_permutation

__all__ = ["Labelled", "check_passing", "frame", "read_labels", "refresh_rows"]

_CERTAIN = 1e-30  # share of the prior's variance that is left of entries with finitely many values: V has an inverse


@dataclass(frozen=True, eq=False)
class Labelled:
    """Samples of one run whose labels are known, by what makes these.

    Attributes
    ----------
    k : (n, L, t) array
        True fields.
    normals : (n, M) array
        What a label takes besides.
    sites : (n, L) array of int
        Clusters of the tokens.
    """

    k: Array
    normals: Array
    sites: NDArray[np.int64]


def check_passing(model: PosteriorModel) -> None:
    """Refuse problems whose rows have not all the same prior, without a mean.

    Raises
    ------
    ProblemError
        The message names the field.
    """
    prior = model.prior
    if prior.mixture is not None:  # of rows that are all alike
        return
    if prior.mean.any() or not same_arrays(prior.precision, prior.precision[:1]):
        raise ProblemError(
            "tokens.mean_teacher",
            "optimizer bayes-gamp needs encodings and means that tell nothing of the teacher's weights: set"
            " tokens.mean_teacher and positions.teacher to zero.",
        )


def read_labels(model: PosteriorModel, samples: Labelled, omega: Array, V: Array) -> tuple[Array, Array]:
    """What labels say of their samples' fields.

    Parameters
    ----------
    model : PosteriorModel
    samples : Labelled
    omega : (n, L, t) array
        Fields as they are known without the sample's own label.
    V : (P, t, t) array
        Covariance of what is unknown of them.

    Returns
    -------
    residuals : (n, L, t) array
        ``V^-1 (<k> - omega)``.
    responses : (P, t, t) array
        Minus the sum of their derivatives by omega, over the tokens of a site.
    """
    inverse = np.linalg.inv(V)
    residuals, spread, counts = np.empty_like(omega), np.zeros_like(V), np.zeros(len(V))
    for sites in np.unique(samples.sites, axis=0):
        here = (samples.sites == sites).all(axis=1)
        fields = Fields(omega[None, here], samples.k[None, here], V[sites], samples.normals[None, here])
        found = model.channel.given(fields)
        assert found.mean is not None  # `given` has one label a node
        residuals[here] = np.einsum("lij,nlj->nli", inverse[sites], found.mean[0])
        for token, site in enumerate(sites):
            spread[site] += found.spread[0, :, token].sum(axis=0)
            counts[site] += here.sum()
    responses = inverse @ (counts[:, None, None] * V - spread) @ inverse
    return residuals, positive((responses + responses.mT) / 2)


def refresh_rows(
    precision: Array,
    gamma: Array,
    responses: Array,
    pulled: Array,
    weights: Array,
    mixture: RowMixture | None = None,
) -> tuple[Array, Array]:
    """Posterior means (d, t) and covariances (d, t, t) of the rows of the weights.

    Parameters
    ----------
    precision : (t, t) array
        Of the prior.
    gamma : (P, d) array
        Eigenvalues of the sites' covariances.
    responses : (P, t, t) array
        As of `read_labels`.
    pulled : (d, t) array
        ``x^T g / sqrt(d)`` of all residuals.
    weights : (d, t) array
        With which the fields were made.
    mixture : RowMixture, optional
        The prior where it is not Gaussian.
    """
    curvature = np.einsum("pd,pij->dij", gamma, responses) / gamma.shape[1]
    source = pulled + np.einsum("dij,dj->di", curvature, weights)
    if mixture is not None:
        means, spreads = mixture.posterior(curvature, source)
        return means, spreads + _CERTAIN * np.linalg.inv(precision)
    c = np.linalg.inv(precision + curvature)
    return np.einsum("dij,dj->di", c, source), c


def frame(model: PosteriorModel, theta: Array) -> Array:
    """The orthogonal (t, t) matrix O, one that does not change labels, that takes estimates W closest to the teacher.

    Nor does it change the law of the teacher's weights.

    Parameters
    ----------
    model : PosteriorModel
    theta : (P, t, t) array
        ``W^T Sigma_s Q_star / d``.
    """
    images = [np.array(image) for image in model.channel.images]
    total = theta.sum(axis=0)
    if (mixture := model.prior.mixture) is not None:
        if all_rotations(model.channel.images):
            images = [*every_signed_permutation(len(total))]
        images = [image for image in images if mixture.entry.is_even or image.min() >= 0]
    elif all_rotations(model.channel.images):
        left, _, right = np.linalg.svd(total)
        return np.asarray(left @ right, float)
    return max(images, key=lambda image: float(np.trace(image.T @ total)))
