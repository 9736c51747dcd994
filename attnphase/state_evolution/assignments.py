"""Informed starts of a branch where the student's columns may learn one of the teacher's fields or another."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import factorial

import numpy as np

from attnphase.arrays import Array
from attnphase.facts.moments import same_arrays
from attnphase.state_evolution.branches import Branch
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.state_evolution.symmetries import leave_loss, teacher_unchanged
from attnphase.state_evolution.system import System

__all__ = ["informed_starts", "nearest_start"]

_MOST_CANDIDATES = 4096  # as many as are tried of the loss's symmetries
_MOST_ASSIGNMENTS = 6  # all of three columns
_LITTLE = 1 / 6  # of a start's noise: a layer that sees the teacher's fields through another one has the noise of both


def informed_starts(system: System, branch: str) -> list[Overlaps]:
    """Starts of a branch, the plain one first: one alone where the loss's columns and fields can be exchanged.

    Otherwise every assignment of columns to fields that no symmetry of the loss makes another's, at most six, each with
    the plain start's noise and with a sixth of it.
    """
    problem = system.problem
    plain, rank, teacher = initial_overlaps(problem, branch), problem.student.rank, problem.teacher.rank
    if not Branch.named(branch).is_informed or factorial(rank) * factorial(teacher) > _MOST_CANDIDATES:
        return [plain]
    pairs = [
        (A, B)
        for B in _exchanges(teacher, teacher, problem.teacher_columns - teacher)
        for A in _exchanges(rank, problem.columns - problem.loss.value_columns, problem.loss.value_columns)
        if teacher_unchanged(system.spectrum, system.sample_law, B)
    ]
    if len(pairs) == 1:
        return [plain]
    kept, trained = system.penalties.unchanged, plain.trained
    symmetries = [
        (A, B)
        for A, B, C in leave_loss(system.loss, pairs, system.sample_law.clusters)
        if system.prior.unchanged(A) and kept(C) and same_arrays(C @ trained, trained)
    ]
    found: list[Overlaps] = []
    known: set[bytes] = set()
    for A, B in pairs:
        start = _exchanged(plain, A, B)
        if _key(start) in known:
            continue
        found.append(start)
        known |= {_key(_exchanged(start, *one)) for one in symmetries}
    if len(found) == 1:
        return found
    rho = system.spectrum.rho
    return [start for one in found[:_MOST_ASSIGNMENTS] for start in (one, _with_little_noise(one, rho))]


def nearest_start(starts: list[Overlaps], overlaps: Overlaps) -> Overlaps:
    """The start whose m and theta have most in common with those of some overlaps; the first of several."""

    def common(start: Overlaps) -> float:
        return float(np.sum(np.abs(start.theta * overlaps.theta)) + np.sum(np.abs(start.m * overlaps.m)))

    return max(starts, key=common)


def _exchanges(count: int, columns: int, others: int = 0) -> list[Array]:
    """Exchanges of so many columns, the same in all copies of them; what stands behind keeps its place."""
    copies = columns // count
    found = []
    for order in itertools.permutations(range(count)):
        whole = np.eye(columns + others)
        for copy in range(copies):
            rows = slice(copy * count, (copy + 1) * count)
            whole[rows, rows] = np.eye(count)[list(order)]
        found.append(whole)
    return found


def _exchanged(start: Overlaps, A: Array, B: Array) -> Overlaps:
    changed = start.changed(A)
    return replace(changed, theta=changed.theta @ B.T)


def _key(start: Overlaps) -> bytes:
    """What tells assignments apart, up to rounding."""
    scale = max(float(np.abs(start.theta).max()), float(np.abs(start.m).max())) or 1.0
    return (np.round(np.concatenate([start.m, start.theta], axis=-1) / scale, 9) + 0.0).tobytes()


def _with_little_noise(start: Overlaps, rho: Array) -> Overlaps:
    told = start.theta @ np.linalg.pinv(rho) @ start.theta.mT
    return replace(start, q=told + _LITTLE * (start.q - told))
