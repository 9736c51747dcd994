"""Where the branches start, and which symmetries a problem has."""

from __future__ import annotations

import itertools

import numpy as np

from attnphase.overlaps import Overlaps
from attnphase.problem import Problem, ProblemError

__all__ = ["BRANCHES", "informed_signal", "initial_overlaps", "token_permutations"]

BRANCHES = ("semantic", "positional", "uninformed")


def initial_overlaps(problem: Problem, branch: str) -> Overlaps:
    """Overlaps of the branch's informed start.

    Semantic: ``W`` is a multiple of the teacher's weights plus noise. Positional: along the principal directions of the
    encodings, plus noise. Uninformed: noise. Untied weights start with Q = K up to noise.

    Raises
    ------
    ProblemError
        Unknown branch, or the positional one of a problem without encodings.
    """
    if branch not in BRANCHES:
        raise ProblemError("branch", f'branch must be one of {", ".join(BRANCHES)}, not "{branch}".')
    length, columns, rank = problem.tokens.length, problem.columns, problem.student.rank
    variance = np.asarray(problem.token_variances, dtype=float)[:, None, None]
    copies = columns // rank
    identity = np.eye(columns)
    m, theta = np.zeros((length, columns, 1)), np.zeros((length, columns, problem.teacher.rank))
    if branch == "semantic":
        lift = np.zeros((rank, problem.teacher.rank))
        for column in range(min(rank, problem.teacher.rank)):
            lift[column, column] = 1.0
        signal = 0.8 * np.tile(lift, (copies, 1))
        theta = variance * signal
        q = variance * (signal @ signal.T + 0.3 * identity)
    elif branch == "positional":
        values, vectors = np.linalg.eigh(problem.positions_gram)
        values, vectors = values[::-1], vectors[:, ::-1]
        known = int((values > 1e-9 * max(values[0], 1e-300)).sum()) if values[0] > 0 else 0
        if known == 0:
            raise ProblemError(
                "positions.kind", 'the positional branch needs positional encodings: positions.kind is "none".'
            )
        signal = np.zeros((rank, length))
        for column in range(min(rank, known)):
            axis = vectors[:, column] * np.sign(vectors[np.abs(vectors[:, column]).argmax(), column])
            signal[column] = 0.2 * np.sqrt(values[column]) * axis
        m = np.tile(signal, (copies, 1)).T[:, :, None]
        directions = 0.2 * np.tile(np.eye(rank)[:, : min(rank, known)], (copies, 1))
        q = variance * (directions @ directions.T + 0.05 * identity)
    else:
        shared = np.tile(np.eye(rank), (copies, copies)) if copies > 1 else 0.0
        q = variance * (0.2 * identity + 0.1 * shared)
    V = 0.5 * variance / problem.regularizer.strength * identity
    return Overlaps(np.broadcast_to(q, (length, columns, columns)).copy(), V, m, theta)


def informed_signal(overlaps: Overlaps, branch: str) -> float:
    """Size of the order parameter that tells an informed branch from the uninformed one: theta or m."""
    return float(np.abs({"semantic": overlaps.theta, "positional": overlaps.m}.get(branch, overlaps.q)).max())


def token_permutations(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """Permutations of the tokens that leave a problem unchanged; only the identity is tried beyond five tokens."""
    length = problem.tokens.length
    if length > 5:
        return (tuple(range(length)),)
    gram, mixing = problem.positions_gram, problem.mixing_matrix
    variances = problem.spectrum_atoms()[1]
    found = []
    for permutation in itertools.permutations(range(length)):
        p = list(permutation)
        if (
            np.allclose(gram[np.ix_(p, p)], gram, rtol=1e-12, atol=1e-14)
            and np.allclose(mixing[np.ix_(p, p)], mixing, rtol=1e-12, atol=1e-14)
            and np.allclose(variances[:, p], variances, rtol=1e-12)
        ):
            found.append(permutation)
    return tuple(found)
