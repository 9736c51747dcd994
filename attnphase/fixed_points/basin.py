"""From a start far away to the fixed point of a solve's first rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnphase.arrays import Array
from attnphase.fixed_points.derivatives import derivatives_at
from attnphase.fixed_points.run import FEW_MAPS, Run
from attnphase.integration.refinement import COARSE_POINTS, Refinement
from attnphase.solvers.differences import finite_difference_jacobian
from attnphase.solvers.iteration import Damped, FixedPoint, Newton, Status
from attnphase.state_evolution.errors import Response
from attnphase.state_evolution.map import StateEvolution

__all__ = ["found_on_first"]

_MOST_OF_FEW = 30  # maps: where few points take more they lead elsewhere
_ROUGHLY = 1e-2  # residual up to which few points lead into a basin


def found_on_first(run: Run, rules: Refinement, map_: StateEvolution, x: Array) -> tuple[FixedPoint, Response | None]:
    """The fixed point of a first rule, far from its start, and derivatives next to it if any were needed."""
    if run.maps:  # another rule has led here
        # points that jump may have no fixed point, and more follow them
        follows = map_.channel.rule.randomised and rules.next(map_.channel.rule, np.inf, 1.0) is not None
        found = run.unless_stalled(map_, x) if follows else run.persistent(map_, x)
        if found.status is not Status.left_domain:
            return found, None
    rule, near = map_.channel.rule, None
    if rule.lines is not None and not run.spent and not map_.prior.at_rest:
        near = _found_by_few(run, rules, map_, x)
    elif rule.randomised and run.compares:
        near = _found_by_newton(run, rules, map_, x)
    return near or (run.coarse(map_, x), None)


def _found_by_newton(
    run: Run, rules: Refinement, map_: StateEvolution, x: Array
) -> tuple[FixedPoint, Response | None] | None:
    """A point that is only compared, to a node's weight, by Newton's method: its derivatives serve again."""
    rough = run.coarse(map_, x, _ROUGHLY)
    if rough.status is not Status.converged or run.spent:
        return rough, None
    response = derivatives_at(run, rules, map_, rough.point)
    if not response.known:
        return None
    found = run.newton(map_, rough.point, response.jacobian)
    return (found, response) if found.status is Status.converged else None


def _found_by_few(
    run: Run, rules: Refinement, map_: StateEvolution, x: Array
) -> tuple[FixedPoint, Response | None] | None:
    """The fixed point of lines next to that of few Sobol points, whose maps cost a fifth on the way into the basin.

    None if there is none so near: then the lines have the say.
    """
    begin = replace(run, settings=replace(run.settings, max_maps=min(run.settings.max_maps, _MOST_OF_FEW)))
    points = begin.map(rules.sobol(COARSE_POINTS))
    few = begin.coarse(points, x, _ROUGHLY)
    if run.late:
        run.maps = begin.maps
        return run.iterate(map_, few.point, Damped(), 1), None
    if few.status is not Status.converged:
        return None  # and what it took is not counted
    run.maps = begin.maps
    try:
        rough = finite_difference_jacobian(points, few.point, points.scales(few.point), centre=few.image)
    except ArithmeticError:
        return None
    near = run.iterate(map_, few.point, Newton(rough), 2)
    response = derivatives_at(run, rules, map_, near.point)
    if not response.known:
        return None
    odd = map_.sector.odd
    found = run.iterate(map_, near.point, Newton(response.jacobian.copy()), 2 * FEW_MAPS)
    lost = np.linalg.norm(found.point[odd]) < np.linalg.norm(few.point[odd]) / 2
    return None if lost or found.status is not Status.converged else (found, response)
