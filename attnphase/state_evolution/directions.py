"""Directions of a sample's fields in the order in which they matter, for rules that treat them unlike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from attnphase.arrays import Array
from attnphase.integration.rules import sobol
from attnphase.kernels.local.constants import Starts
from attnphase.state_evolution.axes import eigenvectors, matrix_root
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.starts import branches_of, initial_overlaps
from attnphase.state_evolution.system import System

__all__ = ["Directions", "directions_of"]

_POINTS = 256  # that tell which directions matter: a rule is exact in any


@dataclass(frozen=True, eq=False)
class Directions:
    """Orthonormal directions of a sample's standard normal fields, as columns.

    Attributes
    ----------
    student : (L r, L r) array
        The first is that along which the proximal point moves most.
    latent : (L t, L t) array
        Of the teacher's fields; the first is the one along which labels jump, if they do.
    breaks : tuple of float
        Where, in standard deviations, with noise in the fields and without.
    noise : (L n, N) array
        Of the labels' noise, if the loss takes it apart: those that the student's fields depend on.
    """

    student: Array
    latent: Array
    breaks: tuple[float, ...]
    noise: Array


@lru_cache(maxsize=1024)
def directions_of(system: System, configuration: int = 0) -> Directions:
    """The directions of a problem in one of its configurations of clusters, the same for all its points."""
    tokens, columns = _by_motion(system.whole)
    basis = _pairs(tokens, np.eye(system.kernels.teacher_rank))
    latent, breaks = system.sample_law.split(configuration, basis)
    return Directions(_pairs(tokens, columns), latent, breaks, system.noise_directions[configuration])


def _pairs(tokens: Array, columns: Array) -> Array:
    """Every direction over the tokens with every one over the columns, the former slower."""
    return np.kron(tokens, columns).astype(float, copy=False)


@lru_cache(maxsize=32)
def _by_motion(system: System) -> tuple[Array, Array]:
    """Directions over the tokens (L, L) and over the student's columns (r, r).

    The first are those along which the proximal point moves most: the eigenvectors of ``E[g g^T]`` at the starts of all
    branches, for students of unit covariance, averaged over the problem's symmetries and over the columns, or the
    tokens.
    """
    problem, kernels = system.problem, system.kernels
    length, columns = kernels.length, kernels.columns
    total = np.zeros((length, columns, length, columns))
    dimensions = length * (columns + kernels.label_normals)
    rule = sobol(dimensions, length * columns, False, _POINTS, 1, problem.integration.seed)
    channel = Channel(system, rule)
    for branch in branches_of(problem):
        overlaps = initial_overlaps(problem, branch)
        omega, k, _, floored, shares = channel.nodes_at(overlaps)
        shifted = k + system.sample_law.means[:, None, None, None]
        orbit = channel.representatives(overlaps)
        points, _ = channel.proximal.minimise(omega, shifted, overlaps.V, orbit, Starts.COLD, None)
        roots = matrix_root(floored.q)[channel.configurations]
        moved = np.einsum("clij,csnmli->csnmlj", roots, points.residual)
        weighted = moved * shares[..., None, None]
        of_branch = np.einsum("c,csnmlj,csnmpi->ljpi", channel.probabilities, weighted, moved)
        total += of_branch / np.trace(of_branch.reshape(length * columns, -1))
    token_of = system.sample_law.tokens
    # a symmetry exchanges all sites of a token with those of another
    of_tokens = [
        (token_of[list(order)][np.unique(token_of, return_index=True)[1]], A) for order, A, *_ in system.symmetries
    ]
    total = np.mean([np.einsum("ai,lipj,bj->lapb", A, total[p][:, :, p], A) for p, A in of_tokens], axis=0)
    over_tokens, over_columns = np.einsum("lapa->lp", total), np.einsum("lalb->ab", total)
    return eigenvectors(over_tokens)[1], eigenvectors(over_columns)[1]
