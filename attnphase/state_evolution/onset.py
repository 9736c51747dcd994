"""Where a branch leaves the uninformed point: by what factor one map enlarges a small m or theta there.

Differences of the sampled map do not tell. A node whose minimiser jumps is met by a step with a probability of the
step's size, so that the derivative at a point misses every jump, and a small step meets few. Here the nodes stay where
they are and their weights are differentiated instead: m and theta enter the law of the fields alone, and the derivative
of a Gaussian density is the density times a polynomial. This sees all jumps, and its replicates tell its error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Conjugates, Overlaps

__all__ = ["Multiplier", "multiplier_at", "odd_coordinates"]

_SMALLEST = 1e-4  # share of the teacher's variance below which a direction of q has no density to differentiate
_PROBE = 1e-2  # of the source's scatter: where the regulariser is no ridge, the prior is linear in small sources only


@dataclass(frozen=True, eq=False)
class Multiplier:
    """Leading eigenvalue of ``d(m, theta)' / d(m, theta)`` at an uninformed point.

    Attributes
    ----------
    replicates : (S,) array
        To first order in what tells the replicates from their mean.
    """

    replicates: Array

    @property
    def value(self) -> float:
        """Above 1 the uninformed point is unstable, and an informed branch has left it."""
        return float(self.replicates.mean())

    @property
    def stderr(self) -> float:
        """Standard error of the value; the point's own is not part of it."""
        return float(self.replicates.std(ddof=1) / np.sqrt(len(self.replicates)))


def multiplier_at(map_: StateEvolution, x: Array) -> Multiplier | None:
    """The multiplier at a point of the map's sector with m = theta = 0.

    Parameters
    ----------
    map_ : StateEvolution
        Under a randomised rule, of a sector in which m or theta may differ from zero.
    x : (D,) array

    Returns
    -------
    Multiplier or None
        None where weights have a direction without any scatter, as Q - K of an untied student, or outside the domain.
    """
    overlaps = map_.channel.floored(map_.unpack(x))
    rho = map_.system.spectrum.rho
    smallest = np.linalg.eigvalsh(overlaps.q).min() / np.trace(rho, axis1=-2, axis2=-1).mean()
    if smallest < _SMALLEST or map_(x) is None:
        return None
    on_m, on_theta = _density_derivatives(map_, overlaps)
    assert map_.last is not None
    hats = map_.last.conjugates.mean()
    columns = []
    for j in odd_coordinates(map_):
        unit = map_.unpack(np.eye(len(x))[j])
        m_hat = map_.alpha * np.einsum("saibj,bj->asi", on_m, unit.m[..., 0])[..., None]
        theta_hat = map_.alpha * np.einsum("saikbju,bju->asik", on_theta, unit.theta)
        columns.append(_through_prior(map_, hats, m_hat, theta_hat))
    matrices = np.stack(columns, axis=-1)
    values, vectors = np.linalg.eig(matrices.mean(axis=0))
    leading = int(np.real(values).argmax())
    dual = np.linalg.pinv(vectors)
    return Multiplier(np.real(np.einsum("i,sij,j->s", dual[leading], matrices, vectors[:, leading])))


def odd_coordinates(map_: StateEvolution) -> NDArray[np.int64]:
    """Coordinates of the map's sector that are entries of m or theta, (Z,) of int."""
    size = map_.sector.basis.shape[1]
    units = [map_.unpack(row) for row in np.eye(size)]
    return np.array([i for i, unit in enumerate(units) if unit.m.any() or unit.theta.any()], dtype=np.int64)


def _density_derivatives(map_: StateEvolution, overlaps: Overlaps) -> tuple[Array, Array]:
    """``dE[g]/dm`` (S, P, r, P, r) and ``d(theta_hat / alpha)/d theta`` (S, P, r, t, P, r, t), per replicate."""
    channel, system = map_.channel, map_.system
    assert map_.minima is not None
    kernels, rule = system.kernels, channel.rule
    sites, r, t = len(overlaps.q), kernels.columns, kernels.teacher_rank
    on_m = np.zeros((rule.replicates, sites, r, sites, r))
    on_theta = np.zeros((rule.replicates, sites, r, t, sites, r, t))
    inverse_q, inverse_rho = np.linalg.inv(overlaps.q), np.linalg.inv(system.spectrum.rho)
    inverse_V = np.linalg.inv(overlaps.V)
    # of mirror images one is solved, and its moments of even order are those of all
    fields = map_.minima.fields[:, 0].reshape(len(channel.configurations), rule.size, kernels.length, r)
    shape = (*rule.nodes.shape[:2], kernels.length)
    law = channel.law(overlaps)
    for c, (here, probability) in enumerate(zip(channel.configurations, channel.probabilities, strict=True)):
        omega, k = np.empty((rule.size, kernels.length, r)), np.empty((rule.size, kernels.length, t))
        parts = type(law)(*(np.ascontiguousarray(part[here]) for part in law))
        kernels.fields_at(channel.draws(0), parts, omega, k)
        g = np.einsum("lij,nlj->nli", inverse_V[here], fields[c] - omega).reshape(*shape, r)
        score = np.einsum("lij,nlj->nli", inverse_q[here], omega).reshape(*shape, r)
        dual = np.einsum("lij,nlj->nli", inverse_rho[here], k).reshape(*shape, t)
        k = k.reshape(*shape, t)
        shift = probability * np.einsum("n,snai,snbj->saibj", rule.weights, g, score)
        turn = probability * np.einsum(
            "n,snai,snak,snbj,snbu->saikbju", rule.weights, g, dual, score, dual, optimize=True
        )
        for a, b in np.ndindex(kernels.length, kernels.length):
            on_m[:, here[a], :, here[b], :] += shift[:, a, :, b]
            on_theta[:, here[a], :, :, here[b]] += turn[:, a, :, :, b]
            if a == b:
                on_theta[:, here[a], :, :, here[a]] -= np.einsum(
                    "sij,ku->sikju", shift[:, a, :, a], inverse_rho[here[a]]
                )
    return on_m, on_theta


def _through_prior(map_: StateEvolution, hats: Conjugates, m_hat: Array, theta_hat: Array) -> Array:
    """Images (S, Z) of small sources of every replicate, at the conjugates of all."""
    count = m_hat.shape[1]
    largest = max(float(np.abs(m_hat).max()), float(np.abs(theta_hat).max()), 1e-300)
    small = _PROBE * float(np.sqrt(np.abs(hats.q_hat).max())) / largest
    q_hat, V_hat = (np.repeat(values, count, axis=1) for values in (hats.q_hat, hats.V_hat))
    together = map_.sector.symmetrized(Conjugates(q_hat, V_hat, small * m_hat, small * theta_hat))
    images = map_.prior.of_replicates(together, lift=True)
    assert images is not None
    odd = odd_coordinates(map_)
    return np.stack([map_.pack(replace(image, q=0 * image.q, V=0 * image.V))[odd] for image in images]) / small
