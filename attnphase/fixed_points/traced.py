"""A branch along alpha: traced once, from a point where it is known, as far as it goes on either side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from math import exp, log

import numpy as np
from scipy.interpolate import CubicHermiteSpline, PchipInterpolator

from attnphase.arrays import Array
from attnphase.fixed_points.continuation import VANISHED, family_of, jumps, started, system_of
from attnphase.fixed_points.extended import Extended, held, no_growth
from attnphase.fixed_points.family import Family
from attnphase.fixed_points.probe import probe
from attnphase.fixed_points.run import Run
from attnphase.fixed_points.setting import Setting
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.threshold import Outcome, Threshold
from attnphase.integration.refinement import Refinement
from attnphase.integration.rules import Rule
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Tell
from attnphase.solvers.arclength import CurvePoint, Steps, corrected, trace
from attnphase.state_evolution.assignments import informed_starts, nearest_start
from attnphase.state_evolution.branches import Branch
from attnphase.state_evolution.onset import has_symmetric_point
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.starts import initial_overlaps

__all__ = ["Ending", "Traced", "along_alpha", "amplitude_index", "rule_of", "rules_of", "traced", "uninformed"]

_DIVISIONS, _SMALL = 4, 3  # halvings of a range in which a branch is looked for, and places of a small one
_ROUGHLY = 1e-3  # residual from which Newton's method goes on
_BACK = 0.2  # in the logarithm of alpha: so far a curve is followed behind a fold
MOST_NODES = 2**16  # placed by chance: with more a threshold takes minutes


class Ending(StrEnum):
    """Why a branch goes no further."""

    edge = "edge"  # the range ends
    fold = "fold"  # alpha turns back
    onset = "onset"  # the order parameter vanishes
    stuck = "stuck"  # no step leads on


@dataclass(frozen=True, eq=False)
class Traced:
    """A branch over alpha.

    Attributes
    ----------
    branch : str
    family : Family
        Whose field is the logarithm of alpha.
    index : int
        Of the coordinate that is the order parameter.
    points : sequence of CurvePoint
        By rising alpha, from one end of the branch, or a step outside of the range, to the other.
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
    def logarithms(self) -> Array:
        """Of alpha, at the points."""
        return np.array([one.place[-1] for one in self.points])

    @property
    def between(self) -> tuple[float, float]:
        """Lowest and highest alpha."""
        return exp(self.logarithms[0]), exp(self.logarithms[-1])

    @cached_property
    def losses(self) -> CubicHermiteSpline:
        """Training loss over the logarithm of alpha, whose slope is that of its energy term alone."""
        losses, slopes, _ = np.transpose(self._measured)
        return CubicHermiteSpline(self.logarithms, losses, slopes)

    @cached_property
    def test_errors(self) -> PchipInterpolator:
        """Test error over the logarithm of alpha."""
        return PchipInterpolator(self.logarithms, [test_error for _, _, test_error in self._measured])

    @cached_property
    def _measured(self) -> list[tuple[float, float, float]]:
        """Training loss, its slope and the test error at the points."""
        found = []
        for point in self.points:
            x, alpha = self.family.split(point.place)
            map_ = self.family.map_at(alpha)
            known = None if map_ is None else map_.measure(x, pooled=True)
            if map_ is None or known is None or map_.last is None:
                raise ArithmeticError("a traced point lies outside the domain")
            energy = alpha * float(map_.last.envelope.mean())
            found.append((map_.free_entropy(x), energy, float(known["test_error"][0])))
        return found

    def place(self, logarithm: float) -> Array:
        """Where the branch is about, by those of its points."""
        coordinates = np.array([one.place[:-1] for one in self.points])
        return np.append(PchipInterpolator(self.logarithms, coordinates)(logarithm), logarithm)


def rules_of(problem: Problem, settings: SolverSettings) -> Refinement:
    """The rules of a search for thresholds: those of a solve."""
    return system_of(Setting(problem, 1.0), settings).refinement_of_solve(min(settings.max_nodes, MOST_NODES))


def rule_of(rules: Refinement) -> Rule:
    """The first one; along lines with all minima searched from all starts, so that every look is careful."""
    rule = rules.first()
    return rule if rule.lines is None else replace(rule, lines=replace(rule.lines, thorough=True))


def traced(
    problem: Problem, branch: str, between: tuple[float, float], settings: SolverSettings, tell: Tell
) -> list[Traced] | Threshold:
    """The parts of a branch in a range of alpha, by rising alpha: of several there is a gap between two.

    Returns
    -------
    list of Traced, or Threshold
        Without a branch, why there is none.
    """
    parts: list[Traced] = []
    alphas = _places(between)
    for alpha in alphas:
        if any(part.between[0] <= alpha <= part.between[1] for part in parts):
            continue
        tell(f"looking for the {branch} branch at alpha = {alpha:.4g}")
        overlaps = probe(problem, alpha, branch, settings)
        start = None if overlaps is None else _start(problem, branch, alpha, overlaps, settings)
        if start is not None:
            parts.append(_through(branch, *start, between, tell))
    if parts:
        return sorted(parts, key=lambda part: part.logarithms[0])
    # with a small order parameter, as beside an onset
    for alpha in alphas[:_SMALL]:
        if not _grows(problem, branch, alpha, settings):
            continue
        start = _start(problem, branch, alpha, _roughly(problem, branch, alpha, settings), settings)
        if start is not None:
            return [_through(branch, *start, between, tell)]
        reason = f"a small order parameter grows at alpha = {alpha:.4g}, but the {branch} branch was not found there"
        return Threshold.absent(Outcome.unsettled, reason)
    where = f"from alpha = {between[0]:.4g} to {between[1]:.4g}"
    return Threshold.absent(Outcome.no_branch, f"the {branch} branch was found nowhere {where}")


def _grows(problem: Problem, branch: str, alpha: float, settings: SolverSettings) -> bool:
    """Whether a small order parameter of a branch grows at the uninformed point."""
    family, place = uninformed(problem, alpha, settings)
    map_ = family.map_at(alpha)
    if map_ is None or map_(family.split(place)[0]) is None or not has_symmetric_point(map_):
        return False
    (name,) = Branch.named(branch).order_parameters
    return bool(no_growth(name)([map_], [family.split(place)[0]]).mean() > 0)


def uninformed(problem: Problem, alpha: float, settings: SolverSettings) -> tuple[Family, Array]:
    """The maps about the uninformed point, and roughly its place, under the first rule of the search."""
    overlaps = _roughly(problem, "uninformed", alpha, settings)
    rule = rule_of(rules_of(problem, settings))
    family = along_alpha(problem, "uninformed", overlaps, alpha, settings, rule)
    return family, family.place(overlaps, alpha)


def _roughly(problem: Problem, branch: str, alpha: float, settings: SolverSettings) -> Overlaps:
    """Where an informed start leads under the first rule of the search, so near that Newton's method goes on."""
    start = initial_overlaps(problem, branch)
    family = along_alpha(problem, branch, start, alpha, settings, rule_of(rules_of(problem, settings)))
    map_ = family.map_at(alpha)
    assert map_ is not None
    found = Run(map_.system, alpha, settings, family.sector).coarse(map_, map_.pack(start), _ROUGHLY)
    return map_.unpack(found.point)


def _places(between: tuple[float, float]) -> list[float]:
    """Where a branch is looked for: at the ends of a range, then in its middle, and so on."""
    shares = [1.0, 0.0, *(share for k in range(1, _DIVISIONS) for share in np.arange(1, 2**k, 2) / 2**k)]
    return [float(between[0] * (between[1] / between[0]) ** share) for share in shares]


def _through(branch: str, family: Family, place: Array, index: int, between: tuple[float, float], tell: Tell) -> Traced:
    """The branch on both sides of a point."""
    sides, alpha = [], family.split(place)[1]
    for sign, edge in ((-1, between[0]), (1, between[1])):
        tell(f"{branch} branch {'down' if sign < 0 else 'up'} from alpha = {alpha:.4g}")
        sides.append(_side(family, place, sign, log(edge), index))
    (down, low_end, low_behind), (up, high_end, high_behind) = sides
    points, behind = [*reversed(down), *up[1:]], (low_behind, high_behind)
    return Traced(branch, family, index, points, behind, (low_end, high_end))


def _steps(family: Family) -> Steps:
    """Steps along the logarithm of alpha."""
    tolerance, loose = family.settings.tolerance, jumps(family.rule)
    return Steps(first=0.1, smallest=1e-3, largest=0.4, tolerance=tolerance, loose=loose, learnt=True)


def _start(
    problem: Problem, branch: str, alpha: float, overlaps: Overlaps, settings: SolverSettings
) -> tuple[Family, Array, int] | None:
    """The maps about a point, its place, and the coordinate that is its order parameter, from overlaps near it.

    None where there is no such point under the rule of the search.
    """
    family = along_alpha(problem, branch, overlaps, alpha, settings, rule_of(rules_of(problem, settings)))
    index, steps = amplitude_index(family, branch, overlaps), _steps(family)
    try:
        place, size = started(family, overlaps, alpha, steps.tolerance)
    except ArithmeticError:
        return None
    before = family.place(overlaps, alpha)[index]
    vanished = place[index] * before < VANISHED * before**2
    return None if size > steps.loose or vanished else (family, place, index)


def _side(
    family: Family, start: Array, sign: int, edge: float, index: int
) -> tuple[list[CurvePoint], Ending, list[CurvePoint]]:
    """The points on one side of a start, up to the first one outside of the range, or to the branch's end.

    Behind a fold also those up to where the order parameter vanishes, or where the curve has come back far.
    """
    points: list[CurvePoint] = []
    behind: list[CurvePoint] = []
    steps, least = _steps(family), VANISHED * start[index]
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
        points.append(point)
        if sign * (point.place[-1] - edge) >= 0:
            return points, Ending.edge, []
    else:
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


def along_alpha(
    problem: Problem, branch: str, overlaps: Overlaps, alpha: float, settings: SolverSettings, rule: Rule
) -> Family:
    """The maps along the logarithm of alpha, in the sector of a branch and in units of a point on it."""
    family = family_of(Setting(problem, alpha), branch, overlaps, (0.5 * alpha, 1.5 * alpha), settings)
    return replace(family, rule=rule, span=1.0, logarithmic=True, measuring=False)


def amplitude_index(family: Family, branch: str, overlaps: Overlaps) -> int:
    """The coordinate of the branch's order parameters that the informed start next to some overlaps has most of."""
    informed = nearest_start(informed_starts(system_of(family.setting, family.settings), branch), overlaps)
    names = Branch.named(branch).order_parameters
    signal = replace(informed, q=0 * informed.q, V=0 * informed.V)
    for name in {"m", "theta"} - {names[0]}:
        signal = replace(signal, **{name: 0 * getattr(signal, name)})
    return int(np.abs(family.sector.pack(signal)).argmax())
