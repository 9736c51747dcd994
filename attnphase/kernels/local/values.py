"""What goes into the minimiser and what comes out: named tuples of arrays, which Numba compiles.

The one module of this package that is not copied for a model: to Numba the tuples of a copy would be others than those
of the callers, so all copies import these.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array

__all__ = ["Draws", "Energy", "FieldLaw", "Found", "Kinks", "Nodes", "SampleNodes", "Solution", "Workspace"]


class Draws(NamedTuple):
    """Some of the nodes of a rule, under one sign change.

    Attributes
    ----------
    normals : (N, L (r + t)) array, with noise (N, L (r + t + noise))
        The student's, then the teacher's, then the noise's, each token by token.
    signs : (2,) array
        Of the student's and the teacher's; the noise keeps its sign.
    weights : (n,) array
        Of the points of every replicate.
    first : int
        Place of the first node among those of all replicates.
    shares : (N,) or (0,) array
        By which the weights are multiplied; none where all are one.
    """

    normals: Array
    signs: Array
    weights: Array
    first: int
    shares: Array


class FieldLaw(NamedTuple):
    """How the local fields of one sample's tokens are made of normals ``(xi, zeta)``, the teacher's fields first.

    Attributes
    ----------
    roots, lifts, teacher_roots : (L, r, r), (L, r, t) and (L, t, t) arrays
        ``k = teacher_root zeta`` and ``omega = m + lift zeta + root xi``.
    turns : (L, r + t, r + t) array
        Orthogonal: what makes ``(xi, zeta)`` of the normals that a rule has as its nodes.
    means : (L, r) array
        Of ``omega``.
    noise : (L,) array
        Standard deviation of the noise on a row of the labels.
    """

    roots: Array
    lifts: Array
    teacher_roots: Array
    turns: Array
    means: Array
    noise: Array


class Nodes(NamedTuple):
    """Local problems of the theory, which share the diagonal of D.

    Attributes
    ----------
    centers : (N, L, r) array
        ``omega`` of every node.
    teacher_fields : (N, L, t) array, with noise (N, L, t + noise)
    factor : (L, r, r) array
        Lower Cholesky factor of V.
    mixing, parameters, variance : (L, L), (4 + r,) and (L,) arrays
        Parameters of the loss: the matrix A; omega, the temperatures of student and teacher, and units, see
        `attnphase.kernels.key.model_numbers`; the diagonal of D.
    """

    centers: Array
    teacher_fields: Array
    factor: Array
    mixing: Array
    parameters: Array
    variance: Array


class SampleNodes(NamedTuple):
    """Local problems of samples at finite d, with their own targets and Gram matrices.

    Attributes
    ----------
    centers : (N, L, r) array
        ``omega`` of every sample.
    teacher_fields : (N, L, t) array
    targets : (N, L, x) array
        The matrix C, or what the loss takes as its target.
    grams : (N, L, L) array
        Gram matrices, where the loss uses them.
    sites : (N, L) array of int
        Of every token.
    factors : (P, r, r) array
        Lower Cholesky factors of V of every site.
    parameters : (4 + r,) array
    """

    centers: Array
    teacher_fields: Array
    targets: Array
    grams: Array
    sites: NDArray[np.int64]
    factors: Array
    parameters: Array


class Solution(NamedTuple):
    """Minima of N local problems, which are written into these arrays.

    Attributes
    ----------
    minima : (N, 2, L, r) array, in and out
        Lowest and second lowest; those of the last pass are what a warm one starts from.
    energies : (N, 2) array, in and out
        Their values of ``Psi``; both the same if only one minimum was found.
    losses : (N,) array, out
        Loss at the lowest minimum.
    residuals : (N, L, r) array, out
        ``g = V^-1 (prox - omega)``, computed as minus the gradient of the loss, which needs no division.
    flags : (N,) array of int, out
        Newton steps, negative where the gradient did not reach its tolerance, RUNAWAY where a descent found no bottom.
    """

    minima: Array
    energies: Array
    losses: Array
    residuals: Array
    flags: NDArray[np.int64]

    def part(self, nodes: slice) -> Solution:
        """The same arrays for some of the nodes."""
        minima, energies, losses, residuals, flags = self
        return Solution(minima[nodes], energies[nodes], losses[nodes], residuals[nodes], flags[nodes])


class Energy(NamedTuple):
    """What the energy ``Psi`` of a sample depends on, its centre aside.

    Attributes
    ----------
    target : (L, x) array
        What the teacher makes of its fields.
    variance : (L,) or (L, L) array
        The diagonal of D, or the Gram matrix.
    factor : (L, r, r) array
        Lower Cholesky factor C of V.
    parameters : (4 + r,) array
    """

    target: Array
    variance: Array
    factor: Array
    parameters: Array


class Found(NamedTuple):
    """Where the minima of one sample are written: ``minima`` (2, L, r), ``energies`` (2,) and ``residual`` (L, r)."""

    minima: Array
    energies: Array
    residual: Array


class Kinks(NamedTuple):
    """What `along_kinks` keeps of m kinks at the point where its descent is.

    Attributes
    ----------
    table : (4, m) array
        Its rows are the next four.
    multipliers : (m,) array
        Of the kinks in the minimum of the model: -1 or 1 on a side, between them at the kink.
    arguments, signs, weights, normals : (m,), (m,), (m,) and (m, L r) arrays
        As the local problem fills them in.
    offsets, uncorrected, slopes : (m,), (m,) and (m, L r) arrays
        Arguments, what they were before they were corrected, and their derivatives in u, times the weights.
    scaled : (m, L r) array
        The slopes in the metric of the curvature.
    step : (L r,) array
    lower, change : (m, m) and (m,) arrays
        Of the multipliers that move together.
    base, last : (L r,) and (m, L r) arrays
        Points in u: the one from which `at_kinks` seeks a kink, and those at which it last found each of them.
    kept : (m,) array of bool
        Kinks on which the point sought lies.
    """

    table: Array
    multipliers: Array
    arguments: Array
    signs: Array
    weights: Array
    normals: Array
    offsets: Array
    uncorrected: Array
    slopes: Array
    scaled: Array
    step: Array
    lower: Array
    change: Array
    base: Array
    last: Array
    kept: NDArray[np.bool_]


class Workspace(NamedTuple):
    """Arrays that one descent after another writes into; see `along_kinks` and `search` for what they hold."""

    u: Array
    h: Array
    gradient: Array
    hessian: Array
    contracted: Array
    slope: Array
    curvature: Array
    lower: Array
    trial: Array
    best: Array
    other: Array
    kinks: Kinks
