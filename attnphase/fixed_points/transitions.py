"""Thresholds of the phase diagram: where two traced branches cross, where one begins, where an order parameter grows.

A branch is traced once along alpha; what is sought is bracketed by its points and then found as the root of an
extended system, under finer rules until its error is small enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from math import exp, log
from typing import Any, TypeVar

import numpy as np
from scipy.optimize import root_scalar

from attnphase.arrays import Array
from attnphase.fixed_points.extended import (
    OF_CROSSINGS,
    Condition,
    Extended,
    equal_losses,
    equal_test_error,
    fold,
    located,
    loss_of_zero,
    loss_without_weights,
    no_growth,
)
from attnphase.fixed_points.family import jumps, rules_of
from attnphase.fixed_points.run import system_of
from attnphase.fixed_points.setting import Setting
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.threshold import Outcome, Threshold
from attnphase.fixed_points.traced import VANISHED, Ending, Traced, steps_along, traced, uninformed
from attnphase.integration.refinement import Refinement
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Callback, silent
from attnphase.solvers.arclength import corrected, trace
from attnphase.state_evolution.baseline import linear_test_error
from attnphase.state_evolution.branches import ERRORS
from attnphase.state_evolution.onset import has_symmetric_point
from attnphase.state_evolution.rest import rests
from attnphase.state_evolution.sector import images, scales_of
from attnphase.state_evolution.starts import branches_of, initial_overlaps

__all__ = ["CROSSINGS", "TRANSITIONS", "Search", "thresholds_of"]

CROSSINGS = ("alpha_c", "alpha_l")
"""Where the losses of the semantic and the positional branch cross, and the semantic one passes the baseline."""

TRANSITIONS = ("spinodal_semantic", "spinodal_positional", "onset_theta", "onset_m")
"""Where branches begin at a fold, and where a small order parameter begins to grow."""

Found = TypeVar("Found")

OTHER = 0.5  # share of itself by which the order parameter at a root may differ from that of the traced branch


@np.errstate(all="ignore")  # what overflows leaves the domain
def thresholds_of(
    problem: Problem,
    crossings: tuple[float, float],
    ends: tuple[float, float] | None,
    settings: SolverSettings,
    advance: Callable[[], None] = lambda: None,
    callback: Callback = silent,
) -> dict[str, Threshold]:
    """The thresholds of a problem.

    Parameters
    ----------
    problem : Problem
    crossings : (float, float)
        Range of sample complexities that is searched for `CROSSINGS`.
    ends : (float, float) or None
        Likewise for `TRANSITIONS`; None if they are not asked for.
    settings : SolverSettings
    advance : callable, optional
        Is called after each branch and each threshold.
    callback : callable, optional
        Is called with what is being done.
    """
    whole = crossings if ends is None else (min(crossings[0], ends[0]), max(crossings[1], ends[1]))
    search, found = Search.of(problem, settings), {}
    lines: dict[str, list[Traced] | Threshold] = {}
    for branch in ("semantic", "positional"):
        if branch in branches_of(problem):
            lines[branch] = _attempt(partial(traced, Setting(problem, whole[0]), branch, whole, settings, callback))
        else:
            lines[branch] = Threshold.absent(Outcome.no_branch, f"the problem has no {branch} branch")
        advance()
    system = system_of(problem, settings)
    baseline, _ = linear_test_error(system)
    callback("crossing of the losses")
    found["alpha_c"] = _attempt(partial(search.losses, [lines["semantic"], lines["positional"]], crossings))
    advance()
    callback("passing of the baseline")
    found["alpha_l"] = _attempt(partial(search.passing, lines["semantic"], baseline, crossings))
    advance()
    if rests(system, initial_overlaps(problem, "uninformed")):
        for branch, line in lines.items():
            callback(f"{branch} branch beside zero weights")
            found[f"zero_{branch}"] = _attempt(partial(search.emerging, line, crossings))
    if ends is None:
        return found
    for branch, line in lines.items():
        callback(f"fold of the {branch} branch")
        found[f"spinodal_{branch}"] = _attempt(partial(search.spinodal, line, ends))
        advance()
    for name in ("theta", "m"):
        callback(f"onset of {name}")
        found[f"onset_{name}"] = _attempt(partial(search.onset, name, ends))
        advance()
    return found


def _attempt(search: Callable[[], Found]) -> Found | Threshold:
    """What a search finds; where it leaves the domain of the maps on the way, that it has not ended."""
    try:
        return search()
    except (ArithmeticError, np.linalg.LinAlgError) as error:
        return Threshold.absent(Outcome.unsettled, f"the search did not end: {error}")


@dataclass(frozen=True, eq=False)
class Search:
    """What all searches of one problem share.

    Attributes
    ----------
    problem : Problem
    settings : SolverSettings
    rules : Refinement
        Of the problem, from which a threshold takes as fine ones as it needs.
    """

    problem: Problem
    settings: SolverSettings
    rules: Refinement

    @classmethod
    def of(cls, problem: Problem, settings: SolverSettings) -> Search:
        """That of a problem."""
        return cls(problem, settings, rules_of(problem, settings))

    def losses(self, lines: Sequence[list[Traced] | Threshold], between: tuple[float, float]) -> Threshold:
        """Where the loss of the first branch falls below that of the second."""
        known = [line for line in lines if isinstance(line, list)]
        if len(known) < len(lines):
            return next(line for line in lines if isinstance(line, Threshold))
        return _last(
            [
                self._falls([first, second], equal_losses, _difference(first, second), between)
                for first, second in product(*known)
            ]
        )

    def passing(self, line: list[Traced] | Threshold, baseline: float, between: tuple[float, float]) -> Threshold:
        """Where the test error of a branch falls below a baseline."""
        if np.isnan(baseline):
            return Threshold.absent(Outcome.outside_range, "the linear predictor is not defined for this loss")
        if isinstance(line, Threshold):
            return line
        condition = equal_test_error(baseline)
        return _last([self._falls([part], condition, _excess(part, baseline), between) for part in line])

    def emerging(self, line: list[Traced] | Threshold, between: tuple[float, float]) -> Threshold:
        """Where the training loss of a branch falls below that of zero weights."""
        if isinstance(line, Threshold):
            return line
        condition = loss_without_weights(self.settings.tolerance)
        return _last([self._falls([part], condition, self._gain(part), between) for part in line])

    def _gain(self, line: Traced) -> Callable[[Any], Any]:
        """Of the training loss of a branch over that of zero weights, over the logarithm of alpha."""

        @cache
        def of_zero(at: float) -> float:
            x, value = line.family.split(line.place(at))
            map_ = line.family.map_at(value)
            if map_ is None:
                raise ArithmeticError("a traced point lies outside the domain")
            return float(loss_of_zero(map_, map_.unpack(x), self.settings.tolerance).mean())

        return lambda at: line.losses(at) - np.vectorize(of_zero, otypes=[float])(at)

    def _falls(
        self,
        lines: Sequence[Traced],
        condition: Condition,
        difference: Callable[[Any], Any],
        between: tuple[float, float],
    ) -> Threshold:
        """Where a difference along branches falls through zero at the largest alpha of a range."""
        low, high = (log(end) for end in between)
        lower = max(lines, key=lambda one: one.along[0])
        upper = min(lines, key=lambda one: one.along[-1])
        first, last = max(low, lower.along[0]), min(high, upper.along[-1])
        if first >= last:
            return Threshold.absent(Outcome.no_branch, "at no alpha of the search do the branches exist together")
        inner = np.concatenate([[first, last], *(line.along for line in lines)])
        grid = np.unique(inner[(inner >= first) & (inner <= last)])
        values = difference(grid)
        falls = np.flatnonzero((values[:-1] > 0) & (values[1:] <= 0))
        same = ""
        for i in falls[::-1]:
            at = float(root_scalar(difference, bracket=(grid[i], grid[i + 1]), method="brentq").root)
            if not self._are_one(lines, at):
                return self.root(lines, condition, at, between)
            same = f"{lines[0].family.setting.field} = {lines[0].family.value(at):.4g}"
        if same:
            both = " and ".join(line.branch for line in lines)
            return Threshold.absent(Outcome.no_branch, f"{both} are one solution, as at {same}")
        for line, at, value, side in ((lower, first, values[0], 0), (upper, last, values[-1], -1)):
            # where a branch ends inside the range, what might have changed sign behind its end has not
            ended = line.along[side] == at and line.ends[side] is not Ending.edge
            if ended and np.sign(value) == (1 if side else -1):
                where = f"the {line.branch} branch ends at alpha = {line.between[side]:.4g}"
                if line.ends[side] is Ending.stuck:
                    return Threshold.absent(
                        Outcome.unsettled, f"a crossing may exist, but no step leads on where {where}"
                    )
                return Threshold.absent(Outcome.no_branch, f"{where}, before the difference changes its sign")
        return _nowhere(exp(grid[0]), exp(grid[-1]))

    def _are_one(self, lines: Sequence[Traced], at: float) -> bool:
        """Whether two branches are one solution there, up to a symmetry and four of the errors that are asked for."""
        if len(lines) < 2:
            return False
        found = []
        for line in lines:
            x, value = line.family.split(line.place(at))
            map_ = line.family.map_at(value)
            if map_ is None:
                return False
            found.append(map_.unpack(x))
        system = system_of(lines[0].family.setting.problem, self.settings)
        scale = scales_of(found[0], system.units, system.spectrum.rho)
        apart = images(found[1], system.symmetries).pack() - found[0].pack()
        return bool((np.abs(apart / scale).max(axis=-1) <= ERRORS * self.problem.integration.standard_error).any())

    def root(self, lines: Sequence[Traced], condition: Condition, at: float, between: tuple[float, float]) -> Threshold:
        """The root of the extended system next to where the traced branches have it."""
        system = Extended([line.family for line in lines], condition, OF_CROSSINGS)
        places = [line.place(at) for line in lines]
        z = np.append(np.concatenate([place[:-1] for place in places]), at)
        root, found = self._located(system, z)
        where = f"{lines[0].family.setting.field} = {lines[0].family.value(at):.4g}"
        unsettled = Threshold.absent(
            Outcome.unsettled, f"the branches were not found again near {where}, where they seem to cross"
        )
        if root is None:
            return unsettled
        for line, place, there in zip(lines, places, system.places(root), strict=True):
            if abs(there[line.index] / place[line.index] - 1) > OTHER:
                return unsettled
        if not between[0] <= found.alpha <= between[1]:
            return _nowhere(*between)
        return found

    def spinodal(self, line: list[Traced] | Threshold, between: tuple[float, float]) -> Threshold:
        """The fold at the lower end of a branch."""
        if not self.problem.integration.form.refines:
            reason = f"the rule {self.problem.integration.rule} has no replicates to take an error from"
            return Threshold.absent(Outcome.no_replicates, reason)
        if isinstance(line, Threshold):
            return line
        part = line[0]
        ending, lowest, branch = part.ends[0], part.between[0], part.branch
        if ending is Ending.edge or lowest < between[0]:
            reason = f"the {branch} branch is there at alpha = {between[0]:.4g} already, where the range begins"
            return Threshold.absent(Outcome.outside_range, reason)
        if ending is Ending.onset:
            return Threshold.absent(Outcome.continuous, "the order parameter vanishes where the branch begins")
        if ending is Ending.stuck or len(part.points) < 2:
            reason = f"no step leads on along the {branch} branch below alpha = {lowest:.4g}"
            return Threshold.absent(Outcome.unsettled, reason)
        found = self.turn(part, 0)
        sizes = [abs(one.place[part.index]) for one in (*part.points, *part.behind[0])]
        if found.outcome is Outcome.continuous and min(sizes) > 2 * VANISHED * max(sizes):
            reason = f"too few nodes to tell whether the {branch} branch has a fold at alpha = {lowest:.4g}"
            return Threshold.absent(Outcome.unsettled, reason)
        return found

    def onset(self, name: str, between: tuple[float, float]) -> Threshold:
        """The lowest alpha above which a small m or theta grows under the map, at the point without one."""
        if not self.problem.integration.form.refines:
            reason = f"the rule {self.problem.integration.rule} has no replicates to take an error from"
            return Threshold.absent(Outcome.no_replicates, reason)
        found = self.growth(name, Setting(self.problem, between[0]), between, between[1], rising=True)
        if found.outcome is not Outcome.outside_range:
            return found
        where = "from alpha = {:.4g} to {:.4g}".format(*between)
        return Threshold.absent(Outcome.outside_range, f"a small {name} begins to grow nowhere {where}")

    def growth(
        self, name: str, setting: Setting, between: tuple[float, float], end: float, *, rising: bool
    ) -> Threshold:
        """Where the growth of a small m or theta first passes one, on the way from a value of the field to another."""
        family, place = uninformed(setting, between, self.settings)
        what, side = f"{setting.field} = {setting.value:.4g}", 1 if rising else -1
        if (jacobian := family.derivative(place)) is None:
            return Threshold.absent(Outcome.unsettled, f"there is no uninformed point at {what}")
        field = np.eye(len(place))[-1]
        start = corrected(family, place, field, jacobian, self.settings.tolerance)
        if start.residual > jumps(family.rule):
            return Threshold.absent(Outcome.unsettled, f"the uninformed point was not found at {what}")
        if (map_ := family.map_at(setting.value)) is None or not has_symmetric_point(map_):
            return Threshold.absent(Outcome.no_symmetry, f"m and theta do not vanish by symmetry at {what}")
        system, edge = Extended([family], no_growth(name)), family.along(end)
        sign, before = float(np.sign(edge - start.place[-1])), None
        for point in trace(family, start.place, sign * field, steps_along(family)):
            value = system.careful(point.place)
            growth = np.nan if value is None else side * float(value[-1])
            if before is not None and before[1] <= 0 < growth:
                share = before[1] / (before[1] - growth)
                return self._growth_near(system, before[0] + share * (point.place - before[0]), between)
            if sign * (point.place[-1] - edge) >= 0:
                return Threshold.absent(Outcome.outside_range)
            before = point.place, growth
        return Threshold.absent(Outcome.unsettled, f"no step leads on along the uninformed points beyond {what}")

    def turn(self, part: Traced, side: int) -> Threshold:
        """The fold at an end of a branch: the first, or the last, which is -1."""
        points = part.points if side == 0 else part.points[::-1]
        places = [one.place for one in (points[1], points[0], *part.behind[side])]
        limits = self.settings.tolerance, jumps(part.family.rule)
        return fold(part.family, places, points[0].jacobian, part.index, self.rules, limits)

    def _growth_near(self, system: Extended, z: Array, between: tuple[float, float]) -> Threshold:
        root, found = self._located(system, z)
        if root is None:
            where = f"{system.families[0].setting.field} = {system.families[0].value(z[-1]):.4g}"
            reason = f"the growth passes one near {where}, but was not found there again"
            return Threshold.absent(Outcome.unsettled, reason)
        return found if between[0] <= found.alpha <= between[1] else Threshold.absent(Outcome.outside_range)

    def _located(self, system: Extended, z: Array) -> tuple[Array | None, Threshold]:
        return located(system, z, self.rules, self.settings.tolerance, jumps(system.rule))


def _difference(first: Traced, second: Traced) -> Callable[[Any], Any]:
    """Of the training losses of two branches, over the logarithm of alpha."""
    return lambda at: first.losses(at) - second.losses(at)


def _excess(line: Traced, baseline: float) -> Callable[[Any], Any]:
    """Of the test error of a branch over a baseline, over the logarithm of alpha."""
    test_errors = line.curve("test_error")
    return lambda at: test_errors(at) - baseline


def _nowhere(low: float, high: float) -> Threshold:
    where = f"from alpha = {low:.4g} to {high:.4g}"
    return Threshold.absent(Outcome.outside_range, f"the difference falls through zero nowhere {where}")


def _last(found: Sequence[Threshold]) -> Threshold:
    """Of those on several parts of branches the one at the largest alpha; an unsettled one hides that there is none."""
    order = (Outcome.located, Outcome.unsettled, Outcome.outside_range, Outcome.no_branch)
    return min(found, key=lambda one: (order.index(one.outcome), -one.alpha))
