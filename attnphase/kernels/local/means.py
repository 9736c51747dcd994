"""Entry points for the theory around the search: fields and targets of nodes, and moments of what was found."""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array
from attnphase.kernels.local.values import Draws, FieldLaw, Solution

from .compiled import compiled, entry
from .layouts import DRAWS, FIELD_LAW, SOLUTION, array
from .local_problem import COLUMNS, LABEL_FIELDS, LENGTH, NOISE, TEACHER_RANK, teacher_target

__all__ = ["fields_at", "moments_of", "targets_at"]

STUDENT, TEACHER = LENGTH * COLUMNS, LENGTH * TEACHER_RANK


@compiled
def turn(draws: Draws, law: FieldLaw, n: int, a: int, turned: Array) -> None:
    """``(xi, zeta)`` of a token at a node."""
    for i in range(COLUMNS + TEACHER_RANK):
        student, teacher = 0.0, 0.0
        for j in range(COLUMNS):
            student += law.turns[a, i, j] * draws.normals[n, a * COLUMNS + j]
        for j in range(TEACHER_RANK):
            teacher += law.turns[a, i, COLUMNS + j] * draws.normals[n, STUDENT + a * TEACHER_RANK + j]
        turned[i] = draws.signs[0] * student + draws.signs[1] * teacher


@entry(DRAWS, FIELD_LAW, array(3), array(3))
def fields_at(draws: Draws, law: FieldLaw, centers: Array, teacher_fields: Array) -> None:
    """``omega`` (N, L, r), and the teacher's fields about their mean with the noise behind them, (N, L, label fields).

    What else labels are made of has no variance.
    """
    turned = np.empty(COLUMNS + TEACHER_RANK)
    for n in range(draws.normals.shape[0]):
        for a in range(LENGTH):
            turn(draws, law, n, a, turned)
            for i in range(COLUMNS):
                field = law.means[a, i]
                for j in range(COLUMNS):
                    field += law.roots[a, i, j] * turned[j]
                for j in range(TEACHER_RANK):
                    field += law.lifts[a, i, j] * turned[COLUMNS + j]
                centers[n, a, i] = field
            for i in range(TEACHER_RANK):
                field = 0.0
                for j in range(TEACHER_RANK):
                    field += law.teacher_roots[a, i, j] * turned[COLUMNS + j]
                teacher_fields[n, a, i] = field
            for i in range(NOISE):
                noise = draws.normals[n, STUDENT + TEACHER + a * NOISE + i]
                teacher_fields[n, a, TEACHER_RANK + i] = law.noise[a] * noise
            for i in range(TEACHER_RANK + NOISE, LABEL_FIELDS):
                teacher_fields[n, a, i] = 0.0


@entry(DRAWS, FIELD_LAW, array(3), SOLUTION, array(4), array(2))
def moments_of(
    draws: Draws, law: FieldLaw, teacher_fields: Array, found: Solution, moments: Array, energies: Array
) -> None:
    """Add the weighted moments of every replicate's nodes.

    ``moments`` (S, L, r, 1 + 2 r + t) are those of ``g`` with 1, ``g``, ``xi`` and ``k``; ``energies`` (S, 2) the
    envelope and the loss.
    """
    _, _, weights, first, shares = draws
    points, turned = weights.shape[0], np.empty(COLUMNS + TEACHER_RANK)
    for n in range(teacher_fields.shape[0]):
        replicate, point = divmod(first + n, points)
        weight = weights[point] * (shares[n] if shares.shape[0] > 0 else 1.0)
        energies[replicate, 0] += weight * found.energies[n, 0]
        energies[replicate, 1] += weight * found.losses[n]
        for a in range(LENGTH):
            turn(draws, law, n, a, turned)
            for i in range(COLUMNS):
                weighted = weight * found.residuals[n, a, i]
                moments[replicate, a, i, 0] += weighted
                for j in range(COLUMNS):
                    moments[replicate, a, i, 1 + j] += weighted * found.residuals[n, a, j]
                    moments[replicate, a, i, 1 + COLUMNS + j] += weighted * turned[j]
                for j in range(TEACHER_RANK):
                    moments[replicate, a, i, 1 + 2 * COLUMNS + j] += weighted * teacher_fields[n, a, j]


@entry(array(3), array(2), array(1), array(3))
def targets_at(teacher_fields: Array, mixing: Array, parameters: Array, targets: Array) -> None:
    """Teacher's target of every sample, (N, L, L) (or (N, L, t) for a scalar loss)."""
    for sample in range(teacher_fields.shape[0]):
        teacher_target(teacher_fields[sample], mixing, parameters, targets[sample])
