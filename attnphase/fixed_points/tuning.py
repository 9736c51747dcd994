"""The value of a field at which a metric of a branch is smallest: a scan, then the root of its total derivative."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil, exp, isfinite, log, nan

from scipy.optimize import root_scalar

from attnphase.fixed_points.iteration import Status
from attnphase.fixed_points.optimum import Place
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.sensitivity import sensitivity_at
from attnphase.fixed_points.setting import Setting
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.processes.progress import Tell, silent
from attnphase.state_evolution.branches import Branch, Identity
from attnphase.state_evolution.starts import informed_signal

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
    """

    at: float
    point: BranchPoint
    metric: float
    metric_error: float
    slope: float
    slope_error: float

    @property
    def good(self) -> bool:
        """Whether it is a converged point of the branch, with a derivative."""
        on_branch = self.point.on_branch is Identity.on_branch or not Branch.named(self.point.branch).is_informed
        return self.point.status is Status.converged and on_branch and isfinite(self.slope)

    @property
    def merged(self) -> bool:
        """Whether it is known that there is no branch."""
        return self.point.status is Status.converged and self.point.on_branch is Identity.merged

    @property
    def strength(self) -> float:
        """Square of the order parameter, which vanishes linearly at an onset."""
        return informed_signal(self.point.restart.overlaps, self.point.branch) ** 2


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
        known = [one for one in (*self.looks.values(), *self.beside) if one.good]
        start = min(known, key=lambda one: abs(one.at - at)).point if known else None
        point = self._solved(here, start)
        if start is not None and not (point.status is Status.converged and point.on_branch is Identity.on_branch):
            fresh = self._solved(here, None)
            point = fresh if fresh.status is Status.converged else point
        found = sensitivity_at(point, self.setting.field, self.settings)
        unit = self.value(at) if self.logarithmic else 1.0
        slope, error = (unit * float(known.get(self.metric, nan)) for known in (found.values, found.errors))
        metric, spread = (float(known[self.metric]) for known in (point.values, point.errors))
        self.looks[at] = Look(at, point, metric, spread, slope, error)
        return self.looks[at]

    def _solved(self, here: Setting, start: BranchPoint | None) -> BranchPoint:
        return solve_point(
            here.problem, here.alpha, self.branch, start=start, settings=self.settings, tell=self.tell
        )  # fmt: skip

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

    def end(self, on: Look, off: Look) -> tuple[Look, Look, Look]:
        """Looks beside the end of the branch: the last two on it, and the first one that is not."""
        before = on
        for _ in range(_HALVINGS):
            middle = self.look((on.at + off.at) / 2)
            if middle.good:
                before, on = on, middle
            else:
                off = middle
        return before, on, off


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
    metric : str
        One of `METRICS`.
    beside : sequence of Look
        Of a neighbouring sample complexity, to start from.
    """
    line = _Line(setting, branch, metric, replace(settings, stability=False), between[0] > 0, tell, beside)
    scan = scan_values(between)
    for at in scan:
        line.look(at)
    # of a branch that ends with a falling metric, what is beside its end
    ends: dict[float, tuple[Look, Look, Look]] = {}
    for left, right in pairwise([line.looks[at] for at in scan]):
        if left.good and not right.good and left.slope < 0:
            found = line.end(left, right)
            ends[found[1].at] = found
        elif right.good and not left.good and right.slope > 0:
            found = line.end(right, left)
            ends[found[1].at] = found
    candidates = [(look, error, Place.inside) for look, error in _minima(line)]
    candidates += [_at_end(*looks) for looks in ends.values() if (looks[2].at - looks[1].at) * looks[1].slope < 0]
    first, last = line.looks[scan[0]], line.looks[scan[-1]]
    candidates += [(first, 0.0, Place.at_edge)] if first.good and first.slope > 0 else []
    candidates += [(last, 0.0, Place.at_edge)] if last.good and last.slope < 0 else []
    looks = [line.looks[at] for at in sorted(line.looks)]
    if not candidates:
        return Optimum(nan, nan, nan, nan, Place.not_converged, len(looks), looks)
    best, error, place = min(candidates, key=lambda one: one[0].metric)
    value = line.value(best.at)
    scale = value if line.logarithmic else 1.0
    return Optimum(value, scale * error, best.metric, best.metric_error, place, len(looks), looks)


def _minima(line: _Line) -> list[tuple[Look, float]]:
    """All minima between two neighbouring looks on the branch, with their errors."""
    looks = [line.looks[at] for at in sorted(line.looks)]
    found = []
    for left, right in pairwise(looks):
        if left.good and right.good and left.slope <= 0 < right.slope:
            try:
                found.append(line.root(left.at, right.at))
            except ArithmeticError:
                continue
    return found


def _at_end(before: Look, on: Look, off: Look) -> tuple[Look, float, Place]:
    """The minimum at the end of a branch, anywhere in the gap with equal right."""
    error = abs(off.at - on.at) / 12**0.5
    if not off.merged:
        return on, error, Place.not_converged
    # the squared order parameter, as it falls from the point before
    fall = (on.strength - before.strength) / (on.at - before.at)
    is_onset = before is not on and on.strength + fall * (off.at - on.at) <= 0
    return on, error, Place.at_onset if is_onset else Place.at_branch_end
