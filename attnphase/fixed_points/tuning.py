"""The value of a field at which a metric of a branch is smallest: a scan, then the root of its total derivative."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile
from math import ceil, exp, hypot, inf, isfinite, log, nan
from typing import TypeAlias

from scipy.optimize import root_scalar

from attnphase.arrays import Array
from attnphase.fixed_points.optimum import LOWEST, Place
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.sensitivity import sensitivity_at
from attnphase.fixed_points.setting import Setting
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.processes.progress import Tell, silent
from attnphase.solvers.iteration import Status
from attnphase.spectrum.measure import measure_of
from attnphase.state_evolution.branches import Branch, Identity
from attnphase.state_evolution.starts import branches_of, informed_signal

__all__ = ["Optimum", "optimum_at", "scan_values"]

_FEWEST, _PER_DECADE = 9, 2  # values of a scan
_HALVINGS = 6  # of the gap in which a branch ends, as many as `thresholds` makes
_ENOUGH = 0.25  # of a derivative's error: a root as near as that adds 3 % to it
_CLEAR = 10.0  # errors by which two derivatives differ that tell a slope to a tenth


@dataclass(frozen=True, eq=False)
class Optimum:
    """Where a metric is smallest at one sample complexity.

    Attributes
    ----------
    value, value_error : float
        Of the field; NaN where it is not known.
    metric, metric_error : float
        There.
    place : Place
    solves : int
        Points that were solved.
    looks : sequence of Look
        These, by rising value of the field.
    """

    value: float
    value_error: float
    metric: float
    metric_error: float
    place: Place
    solves: int
    looks: Sequence[Look]


@dataclass(frozen=True, eq=False)
class Look:
    """One solved value of the field.

    Attributes
    ----------
    at : float
        The field's value, or its logarithm.
    point : BranchPoint
    metric, metric_error : float
    slope, slope_error : float
        Total derivative of the metric, by ``at``.
    loss_slope : float
        Likewise of the training loss.
    """

    at: float
    point: BranchPoint
    metric: float
    metric_error: float
    slope: float
    slope_error: float
    loss_slope: float

    @property
    def loss(self) -> float:
        """The training loss, by which branches are compared."""
        return float(self.point.values["training_loss"])

    @property
    def good(self) -> bool:
        """Whether it is a converged point of the branch, with a derivative."""
        on_branch = self.point.on_branch is Identity.on_branch or not Branch.named(self.point.branch).is_informed
        return self.point.status is Status.converged and on_branch and isfinite(self.slope)

    @property
    def merged(self) -> bool:
        """Whether it is known that there is no branch."""
        return self.point.on_branch is Identity.merged

    def fits(self, rho: Array) -> bool:
        """Whether its overlaps are possible beside those of a teacher."""
        return self.point.restart.overlaps.feasible(rho)

    @property
    def strength(self) -> float:
        """Square of the order parameter, which vanishes linearly at an onset."""
        return informed_signal(self.point.restart.overlaps, self.point.branch) ** 2


Candidate: TypeAlias = tuple[Look, float, float, Place]
"""A minimum: the look there or next to it, its value or logarithm, the error of that, and where it lies."""


@dataclass(eq=False)
class _Line:
    """Looks at one sample complexity, each started from the nearest one, or from its like at a neighbouring alpha."""

    setting: Setting
    branch: str
    metric: str
    settings: SolverSettings
    logarithmic: bool
    tell: Tell
    beside: Sequence[Look] = ()
    looks: dict[float, Look] = field(default_factory=dict)

    def value(self, at: float) -> float:
        """The field's value."""
        return exp(at) if self.logarithmic else at

    def look(self, at: float) -> Look:
        """What is there."""
        if at in self.looks:
            return self.looks[at]
        here = self.setting.at(self.value(at))
        rho = measure_of(here.problem).rho
        known = [one for one in (*self.looks.values(), *self.beside) if one.good and one.fits(rho)]
        known = [one for one in known if one.point.branch == self.branch]
        start = min(known, key=lambda one: abs(one.at - at)).point if known else None
        point = self._solved(here, start)
        if start is not None and not (point.status is Status.converged and point.on_branch is Identity.on_branch):
            fresh = self._solved(here, None)
            point = fresh if fresh.status is Status.converged else point
        found = sensitivity_at(point, self.setting.field, self.settings)
        unit = self.value(at) if self.logarithmic else 1.0
        slope, error = (unit * float(known.get(self.metric, nan)) for known in (found.values, found.errors))
        metric, spread = (float(known[self.metric]) for known in (point.values, point.errors))
        loss_slope = unit * float(found.values.get("training_loss", nan))
        self.looks[at] = Look(at, point, metric, spread, slope, error, loss_slope)
        return self.looks[at]

    def _solved(self, here: Setting, start: BranchPoint | None) -> BranchPoint:
        return solve_point(here.problem, here.alpha, self.branch, start=start, settings=self.settings, tell=self.tell)

    def root(self, low: float, high: float) -> tuple[Look, float]:
        """A minimum between two looks, and its error, both by ``at``."""

        def slope(at: float) -> float:
            here = self.look(at)
            if not here.good:
                raise ArithmeticError("a point on the way to the optimum is not on the branch")
            return 0.0 if abs(here.slope) <= _ENOUGH * here.slope_error else here.slope

        here = self.look(root_scalar(slope, bracket=(low, high), method="brentq", xtol=self.settings.tolerance).root)
        others = [one for one in self.looks.values() if one.good and low <= one.at <= high and one is not here]
        clear = [one for one in others if abs(one.slope - here.slope) > _CLEAR * max(one.slope_error, here.slope_error)]
        other = min(clear or others, key=lambda one: abs(one.at - here.at))
        bend = abs((other.slope - here.slope) / (other.at - here.at))
        return here, (here.slope_error**2 + here.slope**2) ** 0.5 / bend if bend else nan

    def crossing(self, other: _Line, low: float, high: float) -> list[Candidate]:
        """The minimum where another branch takes over as that of lower loss; none if the metric has turned before."""

        def difference(at: float) -> float:
            mine, theirs = self.look(at), other.look(at)
            if not (mine.good and theirs.good):
                raise ArithmeticError("one of two branches that cross ends before")
            return mine.loss - theirs.loss

        rising = self.looks[low].slope > 0
        at = root_scalar(difference, bracket=(low, high), method="brentq", xtol=self.settings.tolerance).root
        mine, theirs = self.look(at), other.look(at)
        if (mine.slope > 0) is not rising:
            return []
        errors = [float(one.point.errors["training_loss"]) for one in (mine, theirs)]
        error = hypot(*errors) / abs(mine.loss_slope - theirs.loss_slope)
        return [(mine, at, error, Place.at_crossing)]

    def end(self, on: Look, off: Look) -> list[Candidate]:
        """The minimum at the end of the branch, between a look on it and one that is not; none if it lies before it."""
        before, rising, near = on, on.slope > 0, off
        for _ in range(_HALVINGS):
            middle = self.look((on.at + near.at) / 2)
            if middle.good:
                before, on = on, middle
            else:  # next to the end it may not be decided whether there is a branch
                near, off = middle, middle if middle.merged or not off.merged else off
        if (on.slope > 0) is not rising:
            return []
        # anywhere in the gap with equal right
        at, error = (on.at + off.at) / 2, abs(off.at - on.at) / 12**0.5
        if not off.merged:
            return [(on, at, error, Place.not_converged)]
        # the squared order parameter, as it falls from the point before, vanishes at an onset: in twice the gap, since
        # beside an end points are judged with errors; at a fold it hardly falls in the gap
        fall = (on.strength - before.strength) / (on.at - before.at) if before is not on else 0.0
        vanishes = on.strength + 2 * fall * (off.at - on.at) <= 0
        return [(on, at, error, Place.at_onset if vanishes else Place.at_branch_end)]


def scan_values(between: tuple[float, float]) -> list[float]:
    """Values of a field that a scan looks at, evenly spaced: their logarithms if all are positive."""
    low, high = between
    if low <= 0:
        return [low + (high - low) * i / (_FEWEST - 1) for i in range(_FEWEST)]
    low, high = log(low), log(high)
    count = max(_FEWEST, 1 + ceil(_PER_DECADE * (high - low) / log(10)))
    return [low + (high - low) * i / (count - 1) for i in range(count)]


def optimum_at(
    setting: Setting,
    branch: str,
    metric: str,
    between: tuple[float, float],
    settings: SolverSettings,
    *,
    beside: Sequence[Look] = (),
    tell: Tell = silent,
) -> Optimum:
    """The value of a field in a range at which a metric of a branch is smallest.

    Parameters
    ----------
    setting : Setting
        The problem, the sample complexity and the field.
    branch : str
        Or `LOWEST`.
    metric : str
        One of `METRICS`.
    beside : sequence of Look
        Of a neighbouring sample complexity, to start from.
    """
    asked = replace(settings, stability=False, identity=True)  # a minimum must be known to lie on the branch
    names = branches_of(setting.problem) if branch == LOWEST else [branch]
    positive = between[0] > 0
    lines = {name: _Line(setting, name, metric, asked, positive, tell, beside) for name in names}
    seen = [_lowest(lines, at) for at in scan_values(between)]
    candidates: list[Candidate] = []
    for forwards, looks in ((True, seen), (False, seen[::-1])):
        for here, beyond in zip(looks, (looks[i:] for i in range(1, len(looks) + 1)), strict=True):
            if here.good and (here.slope < 0) is forwards:
                candidates += _downhill(lines, here, beyond)
    candidates += [one for line in lines.values() for one in _minima(line)]
    candidates = [one for one in candidates if one[-1] is Place.at_crossing or _lowest(lines, one[0].at) is one[0]]
    looks = [line.looks[at] for line in lines.values() for at in sorted(line.looks)]
    if not candidates:
        place = Place.no_branch if all(look.merged for look in looks) else Place.not_converged
        return Optimum(nan, nan, nan, nan, place, len(looks), looks)
    best, at, error, place = min(candidates, key=lambda one: one[0].metric)
    value = exp(at) if positive else at
    scale = value if positive else 1.0
    return Optimum(value, scale * error, best.metric, best.metric_error, place, len(looks), looks)


def _lowest(lines: Mapping[str, _Line], at: float) -> Look:
    """The look of lowest training loss there among the branches that exist, or else any."""
    looks = [line.look(at) for line in lines.values()]
    return min(looks, key=lambda one: one.loss if one.good else inf)


def _downhill(lines: Mapping[str, _Line], here: Look, beyond: Sequence[Look]) -> list[Candidate]:
    """The minimum at what ends the way downhill from a look: the range, another branch, or the end of its own."""
    line = lines[here.point.branch]
    if not beyond:
        return [(here, here.at, 0.0, Place.at_edge)]
    if beyond[0].good and beyond[0].point.branch == here.point.branch:
        return []
    own = [line.looks[one.at] for one in beyond]
    if not own[0].good:
        return line.end(here, _first_merged(own))
    try:
        return line.crossing(lines[beyond[0].point.branch], here.at, beyond[0].at)
    except ArithmeticError:
        return [(here, here.at, nan, Place.not_converged)]


def _first_merged(looks: Sequence[Look]) -> Look:
    """The first look of which it is known that there is no branch, or else the very first one."""
    off = takewhile(lambda look: not look.good, looks)
    return next((look for look in off if look.merged), looks[0])


def _minima(line: _Line) -> list[Candidate]:
    """All minima between two neighbouring looks on the branch."""
    looks = [line.looks[at] for at in sorted(line.looks)]
    found: list[Candidate] = []
    for left, right in pairwise(looks):
        if left.good and right.good and left.slope <= 0 < right.slope:
            try:
                look, error = line.root(left.at, right.at)
                found.append((look, look.at, error, Place.inside))
            except ArithmeticError:
                continue
    return found
