"""A cheap look whether a branch exists, before it is solved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnphase.arrays import Array
from attnphase.fixed_points.deadline import NEVER, Deadline
from attnphase.fixed_points.run import Run, system_of
from attnphase.fixed_points.settings import SolverSettings
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Anderson, Status
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.starts import SMALL_SIGNAL, informed_signal, initial_overlaps

__all__ = ["probe"]

_GONE = 0.1  # share of an informed start's order parameter from which on down there is no branch
_SECOND_LOOK = 25  # maps among the lowest minima


@np.errstate(all="ignore")  # what overflows leaves the domain
def probe(
    problem: Problem, alpha: float, branch: str, settings: SolverSettings, end: Deadline = NEVER
) -> Overlaps | None:
    """A cheap look whether the branch exists: where its informed start leads on the coarse rule, None if nowhere.

    It leads nowhere once the order parameter is small and its image smaller still. What a rule of few nodes holds on to
    in the minima on its way may be nowhere near their lowest: it is followed on among these for a while, to where it
    leads then, if it comes to rest.
    """
    informed = initial_overlaps(problem, branch)
    system = system_of(problem, settings)
    rough = replace(settings, tolerance=1e-3, max_maps=75)
    run = Run(system, alpha, rough, system.sector_of(informed), deadline=end)
    map_ = run.map(system.refinement(settings.max_nodes).first())
    full = informed_signal(informed, branch)

    def signal(x: Array) -> float:
        return informed_signal(map_.unpack(x), branch) / full

    found = run.coarse(
        map_, map_.pack(informed), rough.tolerance, lambda x, image: signal(image) < signal(x) < SMALL_SIGNAL
    )
    if found.status is not Status.converged or signal(found.point) <= SMALL_SIGNAL:
        return None

    shrunk = 0

    def gone(x: Array, image: Array) -> bool:
        nonlocal shrunk
        shrunk = shrunk + 1 if signal(image) < signal(x) < _GONE else 0
        return shrunk == 2  # by steps this long it may be small once, and come back

    map_ = run.map(map_.channel.rule)
    map_.thorough = True
    run.grant(_SECOND_LOOK)
    last = run.iterate(map_, found.point, Anderson(), _SECOND_LOOK, rough.tolerance, gone)
    if last.status is not Status.converged:
        return None if shrunk == 2 else map_.unpack(found.point)
    return map_.unpack(last.point) if signal(last.point) > SMALL_SIGNAL else None
