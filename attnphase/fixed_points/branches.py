"""Branches of fixed points: continuation in the sample complexity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from attnphase.fixed_points.iteration import Status
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import merged_point, probe, solve_point
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Tell, silent
from attnphase.spectrum.measure import measure_of
from attnphase.state_evolution.branches import Branch, Identity
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.starts import informed_signal, initial_overlaps, without_signal

__all__ = ["follow"]

_COLLAPSED = 0.02  # an order parameter below this, relative to its start, is taken for zero


def follow(
    problem: Problem,
    alphas: Sequence[float],
    branch: str,
    *,
    settings: SolverSettings | None = None,
    on_point: Callable[[BranchPoint], None] | None = None,
    tell: Tell = silent,
) -> list[BranchPoint]:
    """One branch over a list of sample complexities, each point started from its neighbour.

    The line begins at the largest alpha, where the informed branches are most stable, and goes downwards. A neighbour
    that did not converge is not continued: the next point then starts afresh.

    Parameters
    ----------
    alphas : sequence of float
        In any order.
    on_point : callable, optional
        Called with every point as it is solved.
    tell : callable, optional
        Is told how far each iteration is.

    Returns
    -------
    list of BranchPoint
        In the order of `alphas`.
    """
    settings = settings or SolverSettings()
    points: dict[int, BranchPoint] = {}
    before: BranchPoint | None = None
    previous: BranchPoint | None = None
    for index in sorted(range(len(alphas)), key=lambda i: -alphas[i]):
        start: BranchPoint | Overlaps | None = None
        point: BranchPoint | None = None
        if previous is not None and Branch.named(branch).is_informed and _lost(previous):
            # the branch ended above this alpha; it may exist again below
            if _merged(previous):
                # whether it does, the curve tells at the uninformed point, which is found at once
                start = _uninformed(previous)
                point = merged_point(problem, alphas[index], branch, start, settings, tell)
            if point is None or not _merged(point):
                point, start = None, probe(problem, alphas[index], branch, settings) or _uninformed(previous)
        elif previous is not None:
            start = _extrapolated(before, previous, alphas[index])
        if point is None:
            point = solve_point(problem, alphas[index], branch, start=start, settings=settings, tell=tell)
        if isinstance(start, BranchPoint) and not _lost(start) and point.status is not Status.converged:
            fresh = solve_point(problem, alphas[index], branch, settings=settings, tell=tell)
            point = fresh if fresh.residual < point.residual else point
        before, previous = previous, point
        points[index] = replace(point, restart=replace(point.restart, rule=None, minima=None, levels=()))
        if on_point is not None:
            on_point(points[index])
    return [points[i] for i in range(len(alphas))]


def _lost(point: BranchPoint) -> bool:
    """Whether a point of an informed branch has lost its order parameter, or was not found."""
    return point.status is not Status.converged or informed_signal(
        point.restart.overlaps, point.branch
    ) < _COLLAPSED * informed_signal(initial_overlaps(point.problem, point.branch), point.branch)


def _merged(point: BranchPoint) -> bool:
    """Whether it is known of a converged point that there is no branch."""
    return point.status is Status.converged and point.on_branch is Identity.merged


def _uninformed(point: BranchPoint) -> BranchPoint:
    """A collapsed point with m = theta = 0 exactly, to be continued among such points."""
    zeroed = without_signal(point.restart.overlaps)
    return replace(point, restart=replace(point.restart, overlaps=zeroed))


def _extrapolated(before: BranchPoint | None, previous: BranchPoint | None, alpha: float) -> BranchPoint | None:
    """The previous point with its overlaps moved along the line through the last two, where that is feasible."""
    if before is None or previous is None or before.alpha == previous.alpha:
        return previous
    step = (alpha - previous.alpha) / (previous.alpha - before.alpha)
    old, new = before.restart.overlaps, previous.restart.overlaps
    moved = Overlaps(
        *(b + step * (b - a) for a, b in ((old.q, new.q), (old.V, new.V), (old.m, new.m), (old.theta, new.theta)))
    )
    if not moved.feasible(measure_of(previous.problem).rho) or np.linalg.eigvalsh(moved.q).min() <= 0:
        return previous
    return replace(previous, restart=replace(previous.restart, overlaps=moved))
