"""The value of a field at which a metric of a branch is smallest.

Branches are traced over the field. Along one, or along those of lowest training loss, the metric is smallest where its
total derivative vanishes, or where something ends: the range, a branch, or a branch's loss being the lowest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from math import nan
from typing import TypeAlias

import numpy as np
from scipy.interpolate import CubicHermiteSpline, CubicSpline, PchipInterpolator
from scipy.optimize import root_scalar

from attnphase.errors import ProblemError
from attnphase.fixed_points.extended import equal_losses
from attnphase.fixed_points.optimum import LOWEST, OptimumStatus
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.sensitivity import sensitivity_at
from attnphase.fixed_points.setting import Setting
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.fixed_points.threshold import Outcome, Threshold
from attnphase.fixed_points.traced import Ending, Traced, traced
from attnphase.fixed_points.transitions import OTHER, Search
from attnphase.processes.progress import Callback, silent
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.branches import Branch
from attnphase.state_evolution.starts import branches_of

__all__ = ["Optimum", "optimum_at"]


@dataclass(frozen=True, eq=False)
class Optimum:
    """Where a metric is smallest at one sample complexity.

    Attributes
    ----------
    value, value_error : float
        Of the field; NaN where it is not known.
    metric, metric_error : float
        There.
    place : OptimumStatus
    rules : sequence of str
        By which the value and the metric were found.
    solves : int
        Points that were traced or solved.
    """

    value: float
    value_error: float
    metric: float
    metric_error: float
    place: OptimumStatus
    rules: Sequence[str] = ()
    solves: int = 0


_Stop: TypeAlias = tuple[float, Traced, float, Callable[[], tuple[OptimumStatus, Threshold]]]
"""A metric as traced, of which part, at which last entry of a place it may be the smallest, and how that is located."""


@np.errstate(all="ignore")  # what overflows leaves the domain
def optimum_at(
    setting: Setting,
    branch: str,
    metric: str,
    between: tuple[float, float],
    settings: SolverSettings,
    *,
    callback: Callback = silent,
) -> Optimum:
    """The value of a field in a range at which a metric of a branch is smallest.

    Parameters
    ----------
    setting : Setting
        The problem, the sample complexity and the field.
    branch : str
        Or `LOWEST`.
    metric : str
        One of `METRICS`, or a test metric of the problem by the name that datasets have for it.
    """
    names = branches_of(setting.problem) if branch == LOWEST else [branch]
    settings = replace(settings, stability=False, identity=False)  # a trace says what is on a branch
    try:
        lines = [traced(setting, name, between, settings, callback) for name in names]
        parts = [part for line in lines if isinstance(line, list) for part in line if len(part.points) > 1]
        if all(isinstance(line, Threshold) and line.outcome is Outcome.no_branch for line in lines):
            return Optimum(nan, nan, nan, nan, OptimumStatus.no_branch)
        return _Tuned(setting, metric, between, settings, parts, callback).optimum()
    except (ArithmeticError, np.linalg.LinAlgError):
        return Optimum(nan, nan, nan, nan, OptimumStatus.not_converged)


@dataclass(frozen=True, eq=False)
class _Tuned:
    """Traced branches over a range of the field."""

    setting: Setting
    metric: str
    between: tuple[float, float]
    settings: SolverSettings
    parts: Sequence[Traced]
    callback: Callback
    points: dict[tuple[str, float], BranchPoint] = field(default_factory=dict)

    @cached_property
    def search(self) -> Search:
        """By which extended systems are solved."""
        return Search.of(self.setting.inside(self.between).problem, self.settings)

    def optimum(self) -> Optimum:
        """The lowest of all stops that are there."""
        stops = [one for part in self.parts for one in (*self.minima(part), *self.crossings(part), *self.ends(part))]
        best: Optimum | None = None
        for metric, part, at, locate in sorted(stops, key=lambda one: one[0]):
            if best is not None and not metric < best.metric:
                break
            if not self.is_lowest(part, at):
                continue
            self.callback(f"locating the optimum near {self.setting.field} = {part.family.value(at):.4g}")
            place, found = locate()
            if found.outcome is Outcome.outside_range:  # a minimum may lie beyond the edge
                continue
            optimum = self.judged(part, at, place, found)
            best = optimum if best is None or optimum.metric < best.metric else best
        best = best or Optimum(nan, nan, nan, nan, OptimumStatus.not_converged)
        return replace(best, solves=sum(len(part.points) for part in self.parts) + len(self.points))

    def judged(self, part: Traced, at: float, place: OptimumStatus, found: Threshold) -> Optimum:
        """The optimum that was located, with the metric that a solve finds there, if it leads to what was traced."""
        if found.found:
            at, merged = part.family.along(found.alpha), place is OptimumStatus.at_onset
            point, family, i = self.solved(part, at, merged=merged), part.family, part.index
            size = float(family.sector.pack(point.restart.overlaps)[i] / family.scale[i] / part.place(at)[i])
            if point.status is Status.converged and (point.branch == "uninformed" or abs(size - 1) <= OTHER):
                metric, error = (float(of[self.metric]) for of in (point.values, point.errors))
                # the metric moves with the value that is located, at a minimum to second order only
                if place is not OptimumStatus.inside:
                    along = np.clip(at, part.along[0], part.along[-1])
                    slope = float(part.curve(self.metric).derivative()(along)) / family.unit(at)
                    error = float(np.hypot(error, slope * found.standard_error))
                rules = sorted({point.rule, found.rule} - {""})
                return Optimum(found.alpha, found.standard_error, metric, error, place, rules)
        return Optimum(part.family.value(at), nan, nan, nan, OptimumStatus.not_converged)

    def solved(self, part: Traced, at: float, *, merged: bool = False) -> BranchPoint:
        """The point of a part, or the uninformed one; beyond the part's end that at its end."""
        branch, start = part.branch, None
        if merged or not Branch.named(branch).is_informed:
            branch = "uninformed"
        else:
            at = float(np.clip(at, part.along[0], part.along[-1]))
            start = part.family.sector.unpack(part.family.split(part.place(at))[0])
        if (key := (branch, round(at, 12))) not in self.points:
            here, asked = self.setting.at(part.family.value(at)), {"settings": self.settings, "callback": self.callback}
            self.points[key] = solve_point(here.problem, here.alpha, branch, start=start, **asked)
        return self.points[key]

    def is_lowest(self, part: Traced, at: float) -> bool:
        """Whether a part exists at a value of the field, and no other has a lower training loss there."""
        alike = self.settings.tolerance
        there = [one for one in self.parts if one.along[0] - alike <= at <= one.along[-1] + alike]
        loss = float(part.losses(at))
        return part in there and all(loss <= one.losses(at) + alike * abs(loss) for one in there)

    def minima(self, part: Traced) -> list[_Stop]:
        """Minima along the curve, over whose length the metric is smooth even at a fold."""
        places = np.array([one.place for one in part.points])
        lengths = np.append(0.0, np.linalg.norm(np.diff(places, axis=0), axis=1).cumsum())
        curve, along = CubicSpline(lengths, part.metric(self.metric)), PchipInterpolator(lengths, part.along)
        roots = [at for at in curve.derivative().roots(extrapolate=False) if curve(at, 2) > 0]
        found = [(float(curve(one)), float(along(one))) for one in roots]
        return [(metric, part, at, partial(self.minimum, part, at)) for metric, at in found]

    def minimum(self, part: Traced, at: float) -> tuple[OptimumStatus, Threshold]:
        """The root of the metric's total derivative, between points of the curve where it changes its sign."""
        looks: dict[float, tuple[float, float]] = {}

        def slope(at: float) -> float:
            """Zero where the smallest known error leaves the sign open."""
            if at not in looks:
                if (found := self.slope(part, at)) is None:
                    raise ArithmeticError("no derivative is known on the way to a minimum")
                looks[at] = found
            value, least = looks[at][0], min(error for _, error in looks.values())
            return value if abs(value) > least else 0.0

        low, high = (part.family.along(end) for end in self.between)
        grid = np.unique(np.clip(part.along, low, high)).tolist()
        right = min(max(int(np.searchsorted(grid, at)), 1), len(grid) - 1)
        # nodes that jump may have the least traced value beside the minimum
        while right < len(grid) and slope(grid[right]) < 0:
            right += 1
        left = right - 1
        while left >= 0 and slope(grid[left]) > 0:
            left -= 1
        if left < 0 or right == len(grid):
            return OptimumStatus.inside, Threshold.absent(Outcome.outside_range)
        ends, accuracy = (grid[left], grid[left + 1]), self.settings.tolerance
        root = float(root_scalar(slope, bracket=ends, method="brentq", xtol=accuracy).root)
        values, errors = np.transpose(list(looks.values()))
        bend, _ = np.polyfit(list(looks), values, 1, w=1 / errors)
        error = float(np.hypot(*looks[root]) / abs(bend))
        return OptimumStatus.inside, Threshold(part.family.value(root), part.family.unit(root) * error)

    def slope(self, part: Traced, at: float) -> tuple[float, float] | None:
        """The metric's total derivative along a part, with its error; None where it is not known."""
        found = sensitivity_at(self.solved(part, at), self.setting.field, self.settings)
        if not found.values:
            return None
        value, error = (part.family.unit(at) * float(of[self.metric]) for of in (found.values, found.errors))
        return value, error

    def crossings(self, part: Traced) -> list[_Stop]:
        """Where the training losses of a part and of another branch cross."""
        found: list[_Stop] = []
        for other in self.parts:
            low, high = max(part.along[0], other.along[0]), min(part.along[-1], other.along[-1])
            if other.branch == part.branch or low >= high:
                continue
            grid = np.unique(np.clip([*part.along, *other.along], low, high))
            gap = CubicHermiteSpline(grid, *(part.losses(grid, k) - other.losses(grid, k) for k in (0, 1)))
            for at in map(float, gap.roots(extrapolate=False)):
                locate = partial(self.search.root, [part, other], equal_losses, at, self.between)
                metric = float(part.curve(self.metric)(at))
                found.append((metric, part, at, lambda locate=locate: (OptimumStatus.at_crossing, locate())))
        return found

    def ends(self, part: Traced) -> list[_Stop]:
        """Where the range ends, or a part at a fold or an onset."""
        curve, ends = part.curve(self.metric), product(self.parts, (0, -1))
        places = [(float(one.along[side]), partial(self.end, one, side)) for one, side in ends]
        return [(float(curve(at)), part, at, locate) for at, locate in places]

    def edge(self, part: Traced, side: int) -> Threshold:
        """An edge of the range; its error reaches to where the metric certainly rises, as errors let it fall before."""
        inwards, edge, reach = (1 if side == 0 else -1), self.between[side], 0.0
        for at in map(float, part.along[::inwards]):
            try:
                found = self.slope(part, at)
            except ProblemError:  # the edge itself has no neighbours: a noise of zero is none
                continue
            certain = found is None or found[1] == 0 or inwards * found[0] > found[1]
            if reach > 0 or not certain:
                reach = abs(part.family.value(at) - edge) or np.finfo(float).tiny
            if certain:
                break
        return Threshold(edge, reach)

    def end(self, part: Traced, side: int) -> tuple[OptimumStatus, Threshold]:
        """The edge of the range, the fold at which a part ends, or where a small order parameter grows no more."""
        if part.ends[side] is Ending.edge or not Branch.named(part.branch).is_informed:
            # uninformed points are everywhere, but the curve ends where their weights vanish
            return OptimumStatus.at_edge, self.edge(part, side)
        names, search = Branch.named(part.branch).order_parameters, self.search
        if part.ends[side] is Ending.fold:
            found = search.turn(part, side)
            if found.outcome is not Outcome.continuous:
                return OptimumStatus.at_branch_end, found
        if part.ends[side] is Ending.stuck or len(names) != 1:
            return OptimumStatus.not_converged, Threshold.absent(Outcome.unsettled)
        here, (back, beyond) = self.setting.at(part.between[side]), (self.between[side + 1], self.between[side])
        found = search.growth(names[0], here, self.between, beyond, rising=False)
        if found.outcome is Outcome.outside_range:  # a few nodes let the branch go on too far
            found = search.growth(names[0], here, self.between, back, rising=True)
        return OptimumStatus.at_onset, found
