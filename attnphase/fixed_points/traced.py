"""A branch along a field: traced once, from a point where it is known, as far as it goes on either side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy as np
from scipy.interpolate import CubicHermiteSpline, PchipInterpolator

from attnphase.arrays import Array
from attnphase.fixed_points.continuation import (
    VANISHED,
    family_of,
    jumps,
    on_edge,
    short_of,
    solved_start,
    started,
    system_of,
)
from attnphase.fixed_points.extended import Extended, held, no_growth
from attnphase.fixed_points.family import Family
from attnphase.fixed_points.optimum import METRICS
from attnphase.fixed_points.probe import probe
from attnphase.fixed_points.run import Run
from attnphase.fixed_points.setting import Setting
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.threshold import Outcome, Threshold
from attnphase.integration.refinement import Refinement
from attnphase.integration.rules import Rule
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Callback
from attnphase.solvers.arclength import CurvePoint, Steps, corrected, trace
from attnphase.state_evolution.assignments import informed_starts, nearest_start
from attnphase.state_evolution.branches import Branch
from attnphase.state_evolution.onset import has_symmetric_point
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.starts import initial_overlaps, vanishes
from attnphase.state_evolution.system import System

__all__ = ["Ending", "Traced", "amplitude_index", "rule_of", "rules_of", "steps_along", "traced", "uninformed"]

_DIVISIONS = 4  # halvings of a range in which a branch is looked for
_FEWEST = 2  # points of a trace that may have left its branch at once
_ROUGHLY = 1e-3  # residual from which Newton's method goes on
_BACK = 0.2  # in the logarithm of the field: so far a curve is followed behind a fold
MOST_NODES = 2**16  # placed by chance: with more a threshold takes minutes


class Ending(StrEnum):
    """Why a branch goes no further."""

    edge = "edge"  # the range ends
    fold = "fold"  # the field turns back
    onset = "onset"  # the order parameter vanishes
    stuck = "stuck"  # no step leads on


@dataclass(frozen=True, eq=False)
class Traced:
    """A branch over a field.

    Attributes
    ----------
    branch : str
    family : Family
    index : int
        Of the coordinate that is the order parameter.
    points : sequence of CurvePoint
        By the rising field, from one end of the branch, or the edge of the range, to the other.
    behind : (sequence of CurvePoint, sequence of CurvePoint)
        Behind a fold at either end.
    ends : (Ending, Ending)
    """

    branch: str
    family: Family
    index: int
    points: Sequence[CurvePoint]
    behind: tuple[Sequence[CurvePoint], Sequence[CurvePoint]]
    ends: tuple[Ending, Ending]

    @cached_property
    def along(self) -> Array:
        """Last entries of the points' places: the field, or its logarithm."""
        return np.array([one.place[-1] for one in self.points])

    @property
    def between(self) -> tuple[float, float]:
        """Lowest and highest value of the field."""
        return self.family.value(self.along[0]), self.family.value(self.along[-1])

    @cached_property
    def losses(self) -> CubicHermiteSpline:
        """Training loss over the field; its slope by the logarithm of alpha is that of its energy term alone."""
        losses, slopes = self.metric("training_loss"), self.metric("energy")
        if self.family.setting.field != "alpha":
            slopes = self.curve("training_loss").derivative()(self.along)
        return CubicHermiteSpline(self.along, losses, slopes)

    def curve(self, name: str) -> PchipInterpolator:
        """What is measured over the field."""
        return PchipInterpolator(self.along, self.metric(name))

    def metric(self, name: str) -> Array:
        """What is measured at the points."""
        return np.array([one[name] for one in self._measured])

    @cached_property
    def _measured(self) -> list[dict[str, float]]:
        found = []
        for point in self.points:
            x, value = self.family.split(point.place)
            map_ = self.family.map_at(value)
            known = None if map_ is None else map_.measure(x, pooled=True)
            if map_ is None or known is None or map_.last is None:
                raise ArithmeticError("a traced point lies outside the domain")
            losses = {"training_loss": map_.free_entropy(x), "energy": map_.alpha * float(map_.last.envelope.mean())}
            found.append({name: float(known[name][0]) for name in METRICS} | losses)
        return found

    def place(self, along: float) -> Array:
        """Where the branch is about, by those of its points."""
        coordinates = np.array([one.place[:-1] for one in self.points])
        return np.append(PchipInterpolator(self.along, coordinates)(along), along)


def rules_of(problem: Problem, settings: SolverSettings) -> Refinement:
    """The rules of a search for thresholds: those of a solve."""
    return system_of(Setting(problem, 1.0), settings).refinement_of_solve(min(settings.max_nodes, MOST_NODES))


def rule_of(rules: Refinement) -> Rule:
    """The first one; along lines with all minima searched from all starts, so that every look is careful."""
    rule = rules.first()
    return rule if rule.lines is None else replace(rule, lines=replace(rule.lines, thorough=True))


def traced(
    setting: Setting, branch: str, between: tuple[float, float], settings: SolverSettings, callback: Callback
) -> list[Traced] | Threshold:
    """The parts of a branch in a range of the field, by its rising value: of several there is a gap between two.

    Returns
    -------
    list of Traced, or Threshold
        Without a branch, why there is none.
    """
    parts: list[Traced] = []
    values, name = _places(between), setting.field
    for value in values:
        if any(part.along[0] <= part.family.along(value) <= part.along[-1] for part in parts):
            continue
        callback(f"looking for the {branch} branch at {name} = {value:.4g}")
        here = setting.at(value)
        overlaps = _sought(here, branch, settings, callback)
        start = None if overlaps is None else _start(here, branch, overlaps, between, settings)
        if start is not None:
            parts.append(_through(branch, *start, between, callback))
    if parts:
        return sorted(parts, key=lambda part: part.along[0])
    # with a small order parameter, as beside an onset
    lost: str | None = None
    for value in values:
        here = setting.at(value)
        if Branch.named(branch).is_informed and not _grows(here, branch, between, settings):
            continue
        start = _start(here, branch, _roughly(here, branch, between, settings), between, settings)
        if start is not None and len((part := _through(branch, *start, between, callback)).points) > _FEWEST:
            return [part]
        where = f"{name} = {value:.4g}"
        lost = lost or f"a small order parameter grows at {where}, but the {branch} branch was not found there"
    if lost is not None:
        return Threshold.absent(Outcome.unsettled, lost)
    where = f"from {name} = {between[0]:.4g} to {between[1]:.4g}"
    return Threshold.absent(Outcome.no_branch, f"the {branch} branch was found nowhere {where}")


def _sought(setting: Setting, branch: str, settings: SolverSettings, callback: Callback) -> Overlaps | None:
    """Where an informed start leads, of several the one that has the lowest loss there; None if nowhere."""
    system = system_of(setting, settings)
    if len(informed_starts(system, branch)) == 1 and _may_vanish(system):
        return probe(setting.problem, setting.alpha, branch, settings)
    found = solved_start(setting, branch, replace(settings, stability=False, identity=False), callback)
    return None if vanishes(setting.problem, found, branch) else found


def _may_vanish(system: System) -> bool:
    """Whether a symmetry lets an order parameter vanish; without one it may become small, but the branch goes on."""
    return system.reflects and system.prior.even


def _grows(setting: Setting, branch: str, between: tuple[float, float], settings: SolverSettings) -> bool:
    """Whether a small order parameter of a branch that has one alone grows at the uninformed point."""
    family, place = uninformed(setting, between, settings)
    x, value = family.split(place)
    map_ = family.map_at(value)
    if map_ is None or map_(x) is None or not has_symmetric_point(map_):
        return False
    names = Branch.named(branch).order_parameters
    return len(names) == 1 and bool(no_growth(names[0])([map_], [x]).mean() > 0)


def uninformed(setting: Setting, between: tuple[float, float], settings: SolverSettings) -> tuple[Family, Array]:
    """The maps about the uninformed point, and roughly its place, under the first rule of the search."""
    overlaps = _roughly(setting, "uninformed", between, settings)
    family = _along_field(setting, "uninformed", overlaps, between, settings)
    return family, family.place(overlaps, setting.value)


def _roughly(setting: Setting, branch: str, between: tuple[float, float], settings: SolverSettings) -> Overlaps:
    """Where an informed start leads under the first rule of the search, so near that Newton's method goes on."""
    start = initial_overlaps(setting.problem, branch)
    family = _along_field(setting, branch, start, between, settings)
    map_ = family.map_at(setting.value)
    assert map_ is not None
    found = Run(map_.system, setting.alpha, settings, family.sector).coarse(map_, map_.pack(start), _ROUGHLY)
    return map_.unpack(found.point)


def _places(between: tuple[float, float]) -> list[float]:
    """Where a branch is looked for: at the ends of a range, then in its middle, and so on."""
    shares = [1.0, 0.0, *(share for k in range(1, _DIVISIONS) for share in np.arange(1, 2**k, 2) / 2**k)]
    (low, high), even = between, between[0] <= 0
    return [float(low + (high - low) * share if even else low * (high / low) ** share) for share in shares]


def _through(
    branch: str, family: Family, place: Array, index: int, between: tuple[float, float], callback: Callback
) -> Traced:
    """The branch on both sides of a point."""
    sides, value = [], family.split(place)[1]
    ends = Branch.named(branch).is_informed and _may_vanish(system_of(family.setting, family.settings))
    least = VANISHED * place[index] if ends else 0.0
    for sign, edge in ((-1, between[0]), (1, between[1])):
        callback(f"{branch} branch {'down' if sign < 0 else 'up'} from {family.setting.field} = {value:.4g}")
        sides.append(_side(family, place, sign, family.along(edge), index, least))
    (down, low_end, low_behind), (up, high_end, high_behind) = sides
    points, behind = [*reversed(down), *up[1:]], (low_behind, high_behind)
    return Traced(branch, family, index, points, behind, (low_end, high_end))


def steps_along(family: Family) -> Steps:
    """Steps along a field."""
    tolerance, loose = family.settings.tolerance, jumps(family.rule)
    return Steps(first=0.1, smallest=1e-3, largest=0.4, tolerance=tolerance, loose=loose, learnt=True)


def _start(
    setting: Setting, branch: str, overlaps: Overlaps, between: tuple[float, float], settings: SolverSettings
) -> tuple[Family, Array, int] | None:
    """The maps about a point, its place, and the coordinate that is its order parameter, from overlaps near it.

    None where there is no such point under the rule of the search.
    """
    family = _along_field(setting, branch, overlaps, between, settings)
    index, steps = amplitude_index(family, branch, overlaps), steps_along(family)
    try:
        place, size = started(family, overlaps, setting.value, steps.tolerance)
    except ArithmeticError:
        return None
    before = family.place(overlaps, setting.value)[index]
    vanished = place[index] * before < VANISHED * before**2
    return None if size > steps.loose or vanished else (family, place, index)


def _side(
    family: Family, start: Array, sign: int, edge: float, index: int, least: float
) -> tuple[list[CurvePoint], Ending, list[CurvePoint]]:
    """The points on one side of a start, up to the edge of the range or to the branch's end.

    Behind a fold also those up to where the order parameter has its least size, or where the curve has come back far.
    """
    points: list[CurvePoint] = []
    behind: list[CurvePoint] = []
    steps = steps_along(family)
    for point in trace(family, start, sign * np.eye(len(start))[-1], steps):
        last = (points + behind)[-1] if points else point
        if point.place[index] * start[index] <= least * start[index]:
            end = _of_size(family, last, point, index, least, steps)
            if end is not None and sign * (end.place[-1] - last.place[-1]) > 0 and not behind:
                points.append(end)
            elif end is not None:
                behind.append(end)
            break
        if behind or (points and sign * (point.place[-1] - last.place[-1]) < 0):
            behind.append(point)
            if sign * (points[-1].place[-1] - point.place[-1]) > _BACK:
                break
            continue
        if sign * (point.place[-1] - edge) >= 0:
            if points and sign * (last.place[-1] - edge) >= -steps.tolerance:  # the trace began on the edge
                return points, Ending.edge, []
            ended = on_edge(family, last, point, edge, steps) if points else None
            return [*points, ended or point], Ending.edge, []
        points.append(point)
    else:
        if not points:
            raise ArithmeticError(f"no derivative is known where a branch begins at {family.value(start[-1]):.4g}")
        if not behind and (ended := short_of(family, points[-1], (edge, edge), steps)) is not None:
            return [*points, *ended], Ending.edge, []
        return points, Ending.fold if behind else Ending.stuck, behind
    return points, Ending.fold if behind else Ending.onset, behind


def _of_size(
    family: Family, last: CurvePoint, point: CurvePoint, index: int, size: float, steps: Steps
) -> CurvePoint | None:
    """The point of the curve between two others at which the order parameter has a size."""
    share = (last.place[index] - size) / (last.place[index] - point.place[index])
    matrix = np.vstack([last.jacobian, np.eye(len(last.place))[index]])
    guess = last.place + share * (point.place - last.place)
    end = corrected(Extended([family], held(family, index, size)), guess, None, matrix, steps.tolerance)
    if end.residual > steps.loose:
        return None
    return replace(point, place=end.place, jacobian=end.jacobian[:-1])


def _along_field(
    setting: Setting, branch: str, overlaps: Overlaps, between: tuple[float, float], settings: SolverSettings
) -> Family:
    """The maps along the field, in the sector of a branch and in units of a point on it, under the search's first rule.

    The place has the logarithm of a field that is positive all along, and else the field in units of half the range.
    """
    family = family_of(setting, branch, overlaps, between, settings)
    rule, positive = rule_of(rules_of(setting.inside(between).problem, settings)), between[0] > 0
    return replace(family, rule=rule, span=1.0 if positive else family.span, logarithmic=positive, measuring=False)


def amplitude_index(family: Family, branch: str, overlaps: Overlaps) -> int:
    """The coordinate of the branch's order parameters that the informed start next to some overlaps has most of."""
    informed = nearest_start(informed_starts(system_of(family.setting, family.settings), branch), overlaps)
    kept = (Branch.named(branch).order_parameters or ("q",))[0]
    signal = informed
    for name in {"q", "V", "m", "theta"} - {kept}:
        signal = replace(signal, **{name: 0 * getattr(signal, name)})
    return int(np.abs(family.sector.pack(signal)).argmax())
