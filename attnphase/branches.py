"""Branches of fixed points: continuation in the sample complexity, and the thresholds between branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from attnphase.fixed_point import Status
from attnphase.problem import Problem, ProblemError
from attnphase.solve import BranchPoint, SolverSettings, solve_point

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Threshold", "crossing", "follow", "thresholds"]


def follow(
    problem: Problem,
    alphas: Sequence[float],
    branch: str,
    *,
    settings: SolverSettings | None = None,
    on_point: Callable[[BranchPoint], None] | None = None,
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

    Returns
    -------
    list of BranchPoint
        In the order of `alphas`.
    """
    points: dict[int, BranchPoint] = {}
    previous: BranchPoint | None = None
    for index in sorted(range(len(alphas)), key=lambda i: -alphas[i]):
        point = solve_point(problem, alphas[index], branch, start=previous, settings=settings)
        if previous is not None and point.status is not Status.converged:
            fresh = solve_point(problem, alphas[index], branch, settings=settings)
            point = fresh if fresh.residual < point.residual else point
        previous = point if point.status is Status.converged else None
        points[index] = point
        if on_point is not None:
            on_point(point)
    return [points[i] for i in range(len(alphas))]
