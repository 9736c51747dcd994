"""Total derivatives of everything measured at a fixed point, in alpha or a field of the problem.

At the fixed point ``x(p) = F(x; p)`` the implicit function theorem gives ``x' = J x' + dF/dp``. The right side is the
derivative of F along the tangent ``(x', 1)``, and so is the total derivative of all that is measured: both are
differences of one map along the tangent, at the same nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnphase.arrays import Array
from attnphase.errors import ProblemError
from attnphase.fixed_points.family import Family, family_of, gauge_along
from attnphase.fixed_points.metric_slopes import Line, metric_slopes
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.run import system_of
from attnphase.fixed_points.setting import Setting
from attnphase.fixed_points.settings import SolverSettings
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.errors import propagate, response_at, standard_errors
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.replicates import Variations, flatten, packed_images, restore, variations
from attnphase.state_evolution.rest import rests

__all__ = ["Sensitivity", "sensitivity_at"]

_SMOOTH_STEP = 1e-8 ** (1 / 3)  # of central differences of a map that is smooth to 1e-8: noise 1e-8 / h is h^2
_STEP = 1e-2  # of a map that jumps, see `finite_difference_jacobian`
_TURNS = 3  # each leaves of the tangent's error the relative error of J, 1e-2 at most


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """Derivatives at a point of a branch.

    Attributes
    ----------
    point : BranchPoint
    setting : Setting
        Which number the derivatives are in, and its value.
    values, errors : dict of str to array or float
        By the names of what is measured; empty where they are not known.
    """

    point: BranchPoint
    setting: Setting
    values: dict[str, Any]
    errors: dict[str, Any]


@dataclass(frozen=True, eq=False)
class _End:
    """The map at one end of a difference along the tangent, and the end's weight."""

    weight: float
    map_: StateEvolution
    x: Array

    @property
    def joint(self) -> Array:
        """The image and everything measured, (D + E,)."""
        measured = self.map_.quantities(self.x, pooled=True)
        if measured is None:
            raise ArithmeticError("an end of the difference lies outside the domain of the map")
        return np.concatenate([packed_images(measured, self.map_)[0], flatten(measured)[0]])


@dataclass(frozen=True, eq=False)
class _Difference:
    """A derivative along the tangent, by values at its ends."""

    ends: tuple[_End, ...]

    def of(self, values: Sequence[Array]) -> Array:
        """The difference of values at the ends."""
        return np.sum([end.weight * value for end, value in zip(self.ends, values, strict=True)], axis=0)

    @property
    def slope(self) -> Array:
        """Of the image and of everything measured, (D + E,)."""
        return self.of([end.joint for end in self.ends])


@np.errstate(all="ignore")  # what overflows leaves the domain
def sensitivity_at(point: BranchPoint, field: str, settings: SolverSettings) -> Sensitivity:
    """The total derivatives at a solved point; none where it has not converged, or no difference has both its ends."""
    setting = Setting(point.problem, point.alpha, field)
    unknown = Sensitivity(point, setting, {}, {})
    if point.status is not Status.converged:
        return unknown
    try:
        return _derivatives(point, setting, settings)
    except (ArithmeticError, np.linalg.LinAlgError):
        return unknown


def _family(point: BranchPoint, setting: Setting, settings: SolverSettings) -> Family:
    """The maps along the field under the point's own rule, in a sector of symmetries that all of them have."""
    unit, refused = abs(setting.value) or 1.0, None
    for step in (_STEP * unit, -_STEP * unit):
        try:
            near = setting.value, setting.value + step
            family = family_of(setting, point.branch, point.restart.overlaps, near, settings)
            break
        except ProblemError as error:  # the field may not go this way
            refused = error
    else:
        raise ProblemError(setting.field, f"{setting.field} can have no value beside its own: {refused}")
    problems = setting.problem, setting.at(near[1]).problem
    here, beside = (system_of(one, settings).refinement(settings.max_nodes) for one in problems)
    if here.dimensions != beside.dimensions:
        name, value = setting.field, setting.value
        raise ProblemError(name, f"{name} = {value:g} has fields of its own: differentiate in {name} at another value.")
    turns = len(system_of(setting.problem, settings).gauge.turns)
    if len(gauge_along(setting, near, settings).turns) < turns:
        name, value = setting.field, setting.value
        raise ProblemError(
            name,
            f"{name} = {value:g} leaves turns of the student's columns free, which other values choose among:"
            f" differentiate in {name} at another value.",
        )
    rule, overlaps = point.restart.rule, point.restart.overlaps
    at_rest = point.zero_weights and rests(system_of(setting.problem, settings), overlaps)
    rule = family.rule if rule is None else rule
    return replace(family, rule=rule, minima=point.restart.minima, at_rest=at_rest)


def _derivatives(point: BranchPoint, setting: Setting, settings: SolverSettings) -> Sensitivity:
    family = _family(point, setting, settings)
    x, value = family.sector.pack(point.restart.overlaps), setting.value
    map_ = _map(family, value)
    if (image := map_(x)) is None:
        raise ArithmeticError("the point lies outside the domain of the map")
    rules = map_.system.refinement_of_solve(settings.max_nodes)
    derivatives = rules.of_derivatives(map_.channel.rule)
    response = response_at(map_, x, derivatives)  # those that the point has may be a neighbour's
    step = _STEP if family.rule.lines is None else _SMOOTH_STEP
    line = Line(family, x, np.zeros(len(x)), value, map_.scales(x))
    difference = _difference(line, step)
    for _ in range(_TURNS):
        slope = difference.slope
        turned = propagate(slope[None, : len(x)] - line.tangent, slope[None, len(x) :], response)[0][0]
        line = replace(line, tangent=line.tangent + turned)
        difference = _difference(line, step)
    slope = difference.slope
    left = slope[: len(x)] - line.tangent
    wide = _difference(line, 2 * step).slope - slope
    # how much the differences do not know: what the tangent has left, and what a step twice as long changes
    own = np.stack([np.concatenate([left, 0 * slope[len(x) :]]), wide])

    gauges = rules.gauges(map_.channel.rule, map_.rough_share)

    def varied(one: StateEvolution, at: Array) -> Variations:
        others = [StateEvolution(Channel(one.system, gauge), one.alpha, one.sector) for gauge in gauges]
        return variations(one, at, others)

    # another rule has its fixed point elsewhere, where the derivatives along the tangent are others
    here, beside = varied(map_, x), [varied(end.map_, end.x) for end in difference.ends]
    bent = [response_at(end.map_, end.x, derivatives) for end in difference.ends]
    moved = np.vstack([here.images, image - x])
    dx, _ = propagate(moved, np.zeros((len(moved), len(response.measured))), response)
    images, values = (
        np.vstack([varying := difference.of(rows), 0 * varying[:1]]) + dx @ difference.of(slopes).T
        for rows, slopes in (
            ([one.images for one in beside], [one.jacobian for one in bent]),
            ([one.values for one in beside], [one.measured for one in bent]),
        )
    )
    measured = map_.measure(x, pooled=True)
    assert measured is not None
    losses = [float(restore(row, measured)["training_loss"]) for row in own[:, len(x) :]]
    energy = np.concatenate([difference.of([one.energy for one in beside]), [0.0], losses])
    rows = Variations(np.vstack([images, own[:, : len(x)]]), np.vstack([values, own[:, len(x) :]]), energy)
    errors = standard_errors(map_, measured, response, rows)
    found = restore(propagate(left[None], slope[None, len(x) :], response)[1][0], measured)
    if setting.problem.metrics:
        more = metric_slopes(line, response, left, rows.images, dx, settings.max_nodes)
        found, errors = found | more[0], errors | more[1]
    return Sensitivity(point, setting, found, errors)


def _map(family: Family, value: float) -> StateEvolution:
    map_ = family.map_at(value)
    if map_ is None:
        raise ArithmeticError("the field cannot have this value")
    return map_


def _difference(line: Line, step: float) -> _Difference:
    """A difference along the tangent, whose ends lie inside the domain: one-sided at its edge."""
    for stencil in line.stencils(step):
        ends: list[_End] = []
        for distance, weight in stencil:
            map_, x = line.family.map_at(line.value + distance), line.x + distance * line.tangent
            if map_ is None or map_(x) is None:
                break
            ends.append(_End(weight, map_, x))
        if len(ends) == len(stencil):
            return _Difference(tuple(ends))
    raise ArithmeticError("no difference along the field stays inside the domain")
