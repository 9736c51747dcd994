"""Directions of a sample's fields in the order in which they matter, for rules that treat them unlike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from attnphase.arrays import Array
from attnphase.integration.rules import sobol
from attnphase.kernels.local.constants import Starts
from attnphase.state_evolution.channel import Channel, matrix_root
from attnphase.state_evolution.starts import branches_of, initial_overlaps
from attnphase.state_evolution.system import System

__all__ = ["Directions", "directions_of"]

_POINTS = 256  # that tell which directions matter: a rule is exact in any
_LEFT = 1e-6  # of a direction that those before span: less is rounding
_ALIKE = 1e-6  # eigenvalues that differ by less, relative to the largest, belong to one space


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
        Where, in standard deviations.
    """

    student: Array
    latent: Array
    breaks: tuple[float, ...]


@lru_cache(maxsize=32)
def directions_of(system: System) -> Directions:
    """The directions of a problem, the same for all its points."""
    tokens, columns = _by_motion(system)
    latent, breaks = _across_planes(system, _pairs(tokens, np.eye(system.kernels.teacher_rank)))
    return Directions(_pairs(tokens, columns), latent, breaks)


def _pairs(tokens: Array, columns: Array) -> Array:
    """Every direction over the tokens with every one over the columns, the former slower."""
    return np.kron(tokens, columns).astype(float, copy=False)


def _across_planes(system: System, basis: Array) -> tuple[Array, tuple[float, ...]]:
    """Directions of the teacher's fields that begin with the normal of the label's planes, and where these lie."""
    planes = system.problem.loss.form.label_planes
    assert planes is not None  # else the rule is refused
    slopes, offsets = planes
    if not slopes:
        return basis, ()
    length, rank = system.kernels.length, system.kernels.teacher_rank
    sites = system.cluster_law[0][0]
    normal = np.zeros((length, rank))
    for place, slope in slopes.items():
        normal[place] = slope
    roots, means = matrix_root(system.rho[sites]), system.spectrum.teacher_means[sites]
    scaled = np.einsum("lij,li->lj", roots, normal).ravel()
    size = float(np.linalg.norm(scaled))
    found = [scaled / size]
    for one in basis.T:
        rest = one - sum(other * (other @ one) for other in found)
        if np.linalg.norm(rest) > _LEFT and len(found) < len(basis):
            found.append(rest / np.linalg.norm(rest))
    return np.stack(found, axis=1), tuple(float(offset - (normal * means).sum()) / size for offset in offsets)


def _by_motion(system: System) -> tuple[Array, Array]:
    """Directions over the tokens (L, L) and over the student's columns (r, r).

    The first are those along which the proximal point moves most: the eigenvectors of ``E[g g^T]`` at the starts of all
    branches, for students of unit covariance, averaged over the problem's symmetries and over the columns, or the
    tokens.
    """
    problem, kernels = system.problem, system.kernels
    length, columns = kernels.length, kernels.columns
    total = np.zeros((length, columns, length, columns))
    dimensions = length * (columns + kernels.label_fields)
    rule = sobol(dimensions, length * columns, False, _POINTS, 1, problem.integration.seed)
    channel = Channel(system, rule)
    for branch in branches_of(problem):
        overlaps = initial_overlaps(problem, branch)
        omega, k, _, _ = channel.fields(overlaps)
        shifted = k + system.label_means[channel.configurations][:, None, None, None]
        points, _ = channel.proximal.minimise(omega, shifted, overlaps.V, ((0, 1),), Starts.COLD, None)
        roots = channel.law(overlaps).roots[channel.configurations]
        moved = np.einsum("clij,csnmli->csnmlj", roots, points.residual[:, :1])
        of_branch = np.einsum("c,csnmlj,csnmpi->ljpi", channel.probabilities, moved, moved)
        total += of_branch / np.trace(of_branch.reshape(length * columns, -1))
    images = [
        np.einsum("ai,lipj,bj->lapb", A, total[list(order)][:, :, list(order)], A) for order, A, _ in system.symmetries
    ]
    total = np.mean(images, axis=0)
    over_tokens, over_columns = np.einsum("lapa->lp", total), np.einsum("lalb->ab", total)
    return _eigenvectors(over_tokens), _eigenvectors(over_columns)


def _eigenvectors(matrix: Array) -> Array:
    """Of a symmetric matrix, those of the largest eigenvalue first; in spaces of several the same on every machine.

    There they are what is left of differences of two unit vectors, and of unit vectors, one after another.
    """
    size = len(matrix)
    enough = 0.5 / np.sqrt(size)  # of a unit vector; the one with most of itself left has twice as much at least
    values, vectors = np.linalg.eigh(matrix)
    values, vectors = values[::-1], vectors[:, ::-1]
    units = np.eye(size)
    wanted = [units[i] - units[j] for i in range(size) for j in range(i + 1, size)] + list(units)
    found: list[Array] = []
    begin = 0
    while begin < size:
        end = begin + 1
        while end < size and values[begin] - values[end] <= _ALIKE * values[0]:
            end += 1
        space = vectors[:, begin:end]
        for one in wanted:
            if len(found) == end:
                break
            rest = space @ (space.T @ one)
            for other in found[begin:]:
                rest = rest - other * (other @ rest)
            if np.linalg.norm(rest) > enough * np.linalg.norm(one):
                found.append(rest / np.linalg.norm(rest))
        begin = end
    return np.stack(found, axis=1)
