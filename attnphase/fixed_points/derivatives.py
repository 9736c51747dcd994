"""Derivatives of the map at a fixed point: by few points or by all, or a neighbour's that serve again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnphase.arrays import Array
from attnphase.fixed_points.measuring import SolvedPoint, measured_at
from attnphase.fixed_points.run import FEW_MAPS, Run
from attnphase.integration.refinement import Refinement
from attnphase.integration.rules import Rule
from attnphase.solvers.differences import response_to
from attnphase.solvers.iteration import FixedPoint, Status
from attnphase.state_evolution.branches import ERRORS
from attnphase.state_evolution.errors import Response, order_of, response_at
from attnphase.state_evolution.map import StateEvolution

__all__ = ["by_enough_points", "derivatives_at", "still_known", "with_derivatives"]

_STALE = 1.5  # factor by which an error of the map may move the point more, or less, than a neighbour's derivatives say


def derivatives_at(run: Run, rules: Refinement, map_: StateEvolution, x: Array) -> Response:
    """Derivatives at a point; unknown ones where no difference stays inside the domain."""
    run.callback("derivatives of the map")
    try:
        return response_at(map_, x, rules.of_derivatives(map_.channel.rule))
    except ArithmeticError:
        return Response.unknown(map_, x)


def with_derivatives(run: Run, rules: Refinement, solved: SolvedPoint, rule: Rule) -> SolvedPoint | None:
    """The point with derivatives taken there under a rule, or more points if it has few; None if none are better.

    Others may be of a neighbour, or by so few points that their noise decides.
    """
    map_, found, known = solved.map_, solved.found, solved.response
    if rules.is_few(rule):
        rule = rules.of_derivatives(rule)
    if known.order >= order_of(rule) and known.point is not None and np.array_equal(known.point, found.point):
        return None
    run.callback("derivatives of the map")
    try:
        response = response_at(map_, found.point, rule)
        return replace(solved, response=response, measured=measured_at(run, rules, map_, found, response))
    except ArithmeticError:
        return None


def by_enough_points(run: Run, rules: Refinement, solved: SolvedPoint) -> SolvedPoint:
    """A point whose error by points is larger than asked, with derivatives by so many that their own error is small.

    Four errors of theirs should change the errors of the point by less than these. The number of points by which they
    were taken is multiplied by the square of what is missing to that.
    """
    rule, asked, order = solved.map_.channel.rule, rules.asked.standard_error, solved.response.order
    unknown = run.compares or solved.found.status is not Status.converged
    if unknown or not rule.randomised or np.isinf(order) or solved.measured.relative_error <= asked:
        return solved
    missing = ERRORS * _noise(solved)
    if not missing >= 1 or run.late:  # or it is no number
        return solved
    points = min(order * 2.0 ** np.ceil(2 * np.log2(missing)), rule.order)
    return with_derivatives(run, rules, solved, rules.sobol(int(points))) or solved


def _noise(solved: SolvedPoint) -> float:
    """By which share of themselves errors of the derivatives change those of the point.

    A change dJ of the Jacobian changes what an error of the map moves the point by, dx, by ``(I - J)^-1 dJ dx``.
    """
    response, scale = solved.response, solved.map_.scales(solved.found.point)
    moved = response_to(solved.measured.moved.images, response.jacobian, scale)
    rows = np.einsum("sij,nj->sni", response.noise, moved).reshape(-1, len(scale))
    changed = response_to(rows, response.jacobian, scale)
    return float(np.linalg.norm(changed / scale) / np.linalg.norm(moved / scale))


def still_known(run: Run, map_: StateEvolution, found: FixedPoint, response: Response) -> Response | None:
    """Derivatives of nearby, if they still tell the errors at the point that Newton's method has found with them."""
    if map_.channel.rule.lines is not None:
        return None  # which costs little there
    if np.isinf(response.order):
        return response
    stale = found.maps > FEW_MAPS or _is_stale(run, map_, found.point, response)
    return None if stale else response


def _is_stale(run: Run, map_: StateEvolution, x: Array, response: Response) -> bool:
    """Whether an error of the map moves the point much more, or less, than derivatives of elsewhere say.

    By those that Newton's method has learnt, which tell it roughly.
    """
    own = response.jacobian
    if run.jacobian is None or run.jacobian.shape != own.shape or not np.isfinite(own).all():
        return False
    scale = map_.scales(x)
    systems = ((np.eye(len(x)) - jacobian) * scale / scale[:, None] for jacobian in (own, run.jacobian))
    told, learnt = (np.linalg.norm(np.linalg.pinv(system, rcond=1e-10), 2) for system in systems)
    return bool(not told / _STALE < learnt < told * _STALE)
