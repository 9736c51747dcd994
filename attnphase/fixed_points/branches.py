"""Branches of fixed points: continuation in the sample complexity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from attnphase.fixed_points.deadline import Deadline
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import merged_point, solve_point
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Callback, silent
from attnphase.solvers.iteration import Status
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
    callback: Callback = silent,
) -> list[BranchPoint]:
    """One branch over a list of sample complexities, each point started from its neighbour.

    The line begins at the largest alpha, where the informed branches are most stable, and goes downwards; each point
    begins on the parabola through the last three. A neighbour that did not converge is not continued: the next point
    then starts afresh.

    Parameters
    ----------
    alphas : sequence of float
        In any order.
    on_point : callable, optional
        Called with every point as it is solved.
    callback : callable, optional
        Is called with how far each iteration is.

    Returns
    -------
    list of BranchPoint
        In the order of `alphas`.
    """
    settings = settings or SolverSettings()
    points: dict[int, BranchPoint] = {}
    earlier: BranchPoint | None = None
    before: BranchPoint | None = None
    previous: BranchPoint | None = None
    for index in sorted(range(len(alphas)), key=lambda i: -alphas[i]):
        deadline = Deadline.of(settings)
        start: BranchPoint | None = None
        point: BranchPoint | None = None
        # overlaps that have left the domain lead nowhere
        beside = None if previous is None or previous.status is Status.left_domain else previous
        if beside is not None and Branch.named(branch).is_informed and _lost(beside):
            # the branch ended above this alpha; it may exist again below
            if _merged(beside):
                # whether it does, the curve tells at the uninformed point, which is found at once
                uninformed = _uninformed(beside)
                point = merged_point(problem, alphas[index], branch, uninformed, settings, callback, deadline)
        elif beside is not None:
            start = _extrapolated(earlier, before, beside, alphas[index])
        if point is None:
            point = solve_point(
                problem, alphas[index], branch, start=start, settings=settings, callback=callback, deadline=deadline
            )
        lost = start is not None and _lost(start) and point.status is not Status.left_domain
        ended = point.status is Status.converged or deadline.passed
        if start is not None and not lost and not ended:
            fresh = solve_point(problem, alphas[index], branch, settings=settings, callback=callback, deadline=deadline)
            point = fresh if fresh.residual < point.residual or np.isnan(point.residual) else point
        earlier, before, previous = before, previous, point
        points[index] = replace(point, restart=replace(point.restart, rule=None, minima=None))
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


def _extrapolated(
    earlier: BranchPoint | None, before: BranchPoint | None, previous: BranchPoint, alpha: float
) -> BranchPoint:
    """The previous point with its overlaps on the parabola through the last three, where those belong together.

    Otherwise on the line through the last two, or where even that is not feasible as they are.
    """
    known = [previous]
    for point in (before, earlier):
        if point is None or _lost(point) or point.alpha in [one.alpha for one in known]:
            break
        known.append(point)
    while len(known) > 1:
        moved = _through(known, alpha)
        if moved.feasible(measure_of(previous.problem).rho) and np.linalg.eigvalsh(moved.q).min() > 0:
            return replace(previous, restart=replace(previous.restart, overlaps=moved))
        known.pop()
    return previous


def _through(points: Sequence[BranchPoint], alpha: float) -> Overlaps:
    """Overlaps at an alpha, on the polynomial through those of the points."""
    weights = [
        float(np.prod([(alpha - other.alpha) / (point.alpha - other.alpha) for other in points if other is not point]))
        for point in points
    ]
    entries = zip(
        *((o.q, o.V, o.m, o.theta, o.trained) for o in (point.restart.overlaps for point in points)), strict=True
    )
    moved = (np.tensordot(weights, np.stack(each), axes=1) for each in entries)
    return Overlaps(*moved, norms=points[0].restart.overlaps.norms)
