"""A branch along a field: traced once, from a point where it is known, as far as it goes on either side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy as np
from scipy.interpolate import CubicHermiteSpline, PchipInterpolator

from attnphase.arrays import Array
from attnphase.errors import ProblemError
from attnphase.fixed_points.extended import Extended, held, no_growth
from attnphase.fixed_points.family import Family, family_of, informed_at, jumps, started
from attnphase.fixed_points.optimum import METRICS
from attnphase.fixed_points.run import Run, system_of
from attnphase.fixed_points.setting import Setting
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.fixed_points.threshold import Outcome, Threshold
from attnphase.integration.refinement import SINGLE_POINTS
from attnphase.processes.progress import Callback
from attnphase.solvers.arclength import CurvePoint, Steps, corrected, trace
from attnphase.solvers.iteration import FixedPoint, Status
from attnphase.state_evolution.assignments import informed_starts
from attnphase.state_evolution.branches import Branch
from attnphase.state_evolution.copies import RESOLVED
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.metrics import metric_means
from attnphase.state_evolution.onset import has_symmetric_point
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.starts import SMALL_SIGNAL, informed_signal, initial_overlaps, vanishes
from attnphase.state_evolution.system import System

__all__ = [
    "VANISHED",
    "Ending",
    "Start",
    "Traced",
    "solved_start",
    "start_on",
    "steps_along",
    "traced",
    "uninformed",
    "walk",
]

VANISHED = 0.02  # an order parameter below this, relative to that of the trace's start, ends a branch
_DIVISIONS = 4  # halvings of a range in which a branch is looked for
_FEWEST = 2  # points of a trace that may have left its branch at once
_ROUGHLY = 1e-3  # residual from which Newton's method goes on
_COARSE = 1e-2  # relative error of q of the solve that a trace begins at
_BACK = 0.2  # in the logarithm of the field: so far a curve is followed behind a fold


class Ending(StrEnum):
    """Why a curve goes no further, or a branch."""

    edge = "at the edge of the range"
    fold = "where the field turns back"
    onset = "where the order parameter vanishes"
    weightless = "where the weights vanish"
    recovered = "at the edge of the exact recovery of the teacher"
    most = "after as many points as allowed"
    stuck = "where no step leads on"


@dataclass(frozen=True, eq=False)
class Start:
    """A point that a branch is traced from.

    Attributes
    ----------
    branch : str
    family : Family
    place : (D + 1,) array
    amplitudes : sequence of int
        The coordinate of each order parameter of the branch that its informed start has most of.
    """

    branch: str
    family: Family
    place: Array
    amplitudes: Sequence[int]

    @property
    def leasts(self) -> dict[int, float]:
        """The order parameters at which the branch ends, by their coordinates: zero where no symmetry ends it."""
        system = system_of(self.family.setting.problem, self.family.settings)
        ends = Branch.named(self.branch).is_informed and _may_vanish(system)
        return {index: VANISHED * float(self.place[index]) if ends else 0.0 for index in self.amplitudes}


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
        """What is measured at the points; a test metric of the user's own by the name that datasets have for it."""
        if name.startswith("metric_"):
            own = name.removeprefix("metric_")
            if not np.isfinite(self._own_metrics[own]).all():
                raise ProblemError(
                    f"metrics.{own}",
                    f"metrics.{own} grows so fast that its square has no mean on the branch: let it grow less.",
                )
            return self._own_metrics[own]
        return np.array([one[name] for one in self._measured])

    @cached_property
    def _own_metrics(self) -> dict[str, Array]:
        """The problem's test metrics at the points, at the same points of the samples."""
        rows = []
        for point in self.points:
            x, value = self.family.split(point.place)
            map_ = self.family.map_at(value)
            if map_ is None:
                raise ArithmeticError("a traced point lies outside the domain")
            law, overlaps = map_.system.sample_law, map_.unpack(x)
            rows.append(metric_means(map_.system.problem, law, overlaps, SINGLE_POINTS)[:, 0].mean(axis=0))
        return dict(zip(self.family.setting.problem.metrics, np.array(rows).T, strict=True))

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
        overlaps = _sought(here, branch, between, settings, callback)
        if overlaps is None:
            continue
        start = start_on(family_of(here, branch, overlaps, between, settings), branch, overlaps)
        if start is not None:
            parts.append(_through(start, between, callback))
    if parts:
        return sorted(parts, key=lambda part: part.along[0])
    # with a small order parameter, as beside an onset
    lost: str | None = None
    for value in values:
        here = setting.at(value)
        if Branch.named(branch).is_informed and not _grows(here, branch, between, settings):
            continue
        overlaps = _roughly(here, branch, between, settings)
        start = start_on(family_of(here, branch, overlaps, between, settings), branch, overlaps)
        if start is not None and len((part := _through(start, between, callback)).points) > _FEWEST:
            return [part]
        where = f"{name} = {value:.4g}"
        lost = lost or f"a small order parameter grows at {where}, but the {branch} branch was not found there"
    _, map_, start = _at_start(setting.at(values[0]), branch, between, settings)
    map_.lift = True
    if map_(start) is None:
        lost = f"the {branch} branch was not looked for, as its start cannot be evaluated"
    if lost is not None:
        return Threshold.absent(Outcome.unsettled, lost)
    where = f"from {name} = {between[0]:.4g} to {between[1]:.4g}"
    return Threshold.absent(Outcome.no_branch, f"the {branch} branch was found nowhere {where}")


def _sought(
    setting: Setting, branch: str, between: tuple[float, float], settings: SolverSettings, callback: Callback
) -> Overlaps | None:
    """Where an informed start leads, of several the one that has the lowest loss there; None if nowhere.

    It leads nowhere once the order parameter is small and its image smaller still. Whether there is a point near by
    `start_on` tells, which searches all minima.
    """
    system, informed = system_of(setting.problem, settings), initial_overlaps(setting.problem, branch)
    if len(informed_starts(system, branch)) > 1 or not _may_vanish(system):
        return solved_start(setting, branch, settings, callback)
    small = SMALL_SIGNAL * informed_signal(informed, branch)

    def shrinks(x: Overlaps, image: Overlaps) -> bool:
        return informed_signal(image, branch) < informed_signal(x, branch) < small

    led, found = _led(setting, branch, between, settings, shrinks)
    gone = found.status is not Status.converged or informed_signal(led, branch) <= small
    return None if gone else led


def solved_start(setting: Setting, branch: str, settings: SolverSettings, callback: Callback) -> Overlaps | None:
    """Overlaps of the branch at a value of the field, by a coarse solve; None if there is none."""
    rough = {"integration.standard_error": max(_COARSE, setting.problem.integration.standard_error)}
    quick = replace(settings, stability=False, identity=False)  # a trace says what is on a branch
    point = solve_point(setting.problem.with_fields(rough), setting.alpha, branch, settings=quick, callback=callback)
    found = point.restart.overlaps
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
    """The maps about the uninformed point, and roughly its place, under the first rule."""
    overlaps = _roughly(setting, "uninformed", between, settings)
    family = family_of(setting, "uninformed", overlaps, between, settings)
    return family, family.place(overlaps, setting.value)


def _roughly(setting: Setting, branch: str, between: tuple[float, float], settings: SolverSettings) -> Overlaps:
    """Where an informed start leads under the first rule, so near that Newton's method goes on."""
    return _led(setting, branch, between, settings, lambda overlaps, image: False)[0]


def _led(
    setting: Setting,
    branch: str,
    between: tuple[float, float],
    settings: SolverSettings,
    until: Callable[[Overlaps, Overlaps], bool],
) -> tuple[Overlaps, FixedPoint]:
    """Likewise, or to where `until` says of a point and its image that they are enough; and how the iteration ended."""
    run, map_, start = _at_start(setting, branch, between, settings)

    def enough(x: Array, image: Array) -> bool:
        return until(map_.unpack(x), map_.unpack(image))

    found = run.coarse(map_, start, _ROUGHLY, enough)
    return map_.unpack(found.point), found


def _at_start(
    setting: Setting, branch: str, between: tuple[float, float], settings: SolverSettings
) -> tuple[Run, StateEvolution, Array]:
    """An iteration under the first rule: its stages, its map, and the informed start."""
    start, system = initial_overlaps(setting.problem, branch), system_of(setting.problem, settings)
    family = family_of(setting, branch, start, between, settings)
    run = Run(system, setting.alpha, settings, family.sector)
    map_ = run.map(family.rules.first())
    return run, map_, map_.pack(start)


def _places(between: tuple[float, float]) -> list[float]:
    """Where a branch is looked for: at the ends of a range, then in its middle, and so on."""
    shares = [1.0, 0.0, *(share for k in range(1, _DIVISIONS) for share in np.arange(1, 2**k, 2) / 2**k)]
    (low, high), even = between, between[0] <= 0
    return [float(low + (high - low) * share if even else low * (high / low) ** share) for share in shares]


def _through(start: Start, between: tuple[float, float], callback: Callback) -> Traced:
    """The branch on both sides of a point."""
    branch, family = start.branch, start.family
    sides, value = [], family.split(start.place)[1]
    for sign in (-1, 1):
        callback(f"{branch} branch {'down' if sign < 0 else 'up'} from {family.setting.field} = {value:.4g}")
        sides.append(_side(start, sign, between))
    (down, low_end, low_behind), (up, high_end, high_behind) = sides
    points, behind = [*reversed(down), *up[1:]], (low_behind, high_behind)
    return Traced(branch, family, start.amplitudes[0], points, behind, (low_end, high_end))


def steps_along(family: Family) -> Steps:
    """Steps along a field."""
    return Steps(tolerance=family.settings.tolerance, loose=jumps(family.rule))


def start_on(family: Family, branch: str, overlaps: Overlaps) -> Start | None:
    """The fixed point near overlaps at the family's setting; None where there is none with an order parameter."""
    amplitudes, steps = _amplitudes(family, branch, overlaps), steps_along(family)
    guess = family.place(overlaps, family.setting.value)
    try:
        place, size = started(family, guess, steps.tolerance)
    except ArithmeticError:
        return None
    vanished = any(place[i] * guess[i] < VANISHED * guess[i] ** 2 for i in amplitudes)
    return None if size > steps.loose or vanished else Start(branch, family, place, amplitudes)


def _side(start: Start, sign: int, between: tuple[float, float]) -> tuple[list[CurvePoint], Ending, list[CurvePoint]]:
    """The points on one side of a start, up to the edge of the range or to the branch's end.

    Behind a fold also those up to where the order parameter has its least size, or where the curve has come back far.
    """
    points: list[CurvePoint] = []
    behind: list[CurvePoint] = []
    end = Ending.stuck
    for one in walk(start, sign, between, steps_along(start.family)):
        if isinstance(one, Ending):
            end = one if one in {Ending.edge, Ending.onset} else Ending.stuck
        elif behind or (points and sign * (one.place[-1] - points[-1].place[-1]) < 0):
            behind.append(one)
            if sign * (points[-1].place[-1] - one.place[-1]) > _BACK:
                break
        else:
            points.append(one)
    return points, Ending.fold if behind else end, behind


def walk(start: Start, sign: float, between: tuple[float, float], steps: Steps) -> Iterator[CurvePoint | Ending]:
    """The points of a curve on one side of its start, and why it ends; it turns back at folds.

    The last point lies on an edge of the range, or where an order parameter has its least size.

    Raises
    ------
    ArithmeticError
        No derivative is known at the start.
    """
    family, leasts = start.family, start.leasts
    low, high = (family.along(end) for end in between)
    last: CurvePoint | None = None
    count = 0
    for point in trace(family, start.place, sign * np.eye(len(start.place))[-1], steps):
        if last is not None:
            size = point.place * start.place
            small = next((i for i, least in leasts.items() if size[i] <= least * start.place[i]), None)
            if small is not None:
                ended = _of_size(family, last, point, small, leasts[small], steps)
                if ended is None or low <= ended.place[-1] <= high:
                    yield from () if ended is None else (ended,)
                    yield Ending.onset
                    return
                point = ended
            if not low < point.place[-1] < high:
                edge = low if point.place[-1] <= low else high
                if abs(last.place[-1] - edge) > steps.tolerance:
                    yield _on_edge(family, last, point, edge, steps) or point
                yield Ending.edge
                return
        yield point
        last, count = point, count + 1
    if last is None:
        raise ArithmeticError(f"no derivative is known where a branch begins at {family.value(start.place[-1]):.4g}")
    ended = _short_of(family, last, (low, high), steps)
    yield from ended or ()
    yield Ending.edge if ended is not None else Ending.most if count >= steps.most else _stuck(start, last, steps)


def _stuck(start: Start, last: CurvePoint, steps: Steps) -> Ending:
    """Why no step leads on from a point, where the equations tell."""
    family, (index, *_) = start.family, start.amplitudes
    x, value = family.split(last.place)
    overlaps, map_ = family.sector.unpack(x), family.map_at(value)
    assert map_ is not None
    theta, rho = overlaps.theta, map_.system.sample_law.rho
    left = np.trace(overlaps.q - theta @ np.linalg.solve(rho, theta.mT), axis1=-2, axis2=-1).sum()
    if left < RESOLVED * np.trace(overlaps.q, axis1=-2, axis2=-1).sum():
        return Ending.recovered
    ahead = -last.place[index] / last.tangent[index]
    if not Branch.named(start.branch).is_informed and 0 <= ahead <= steps.first:  # beyond it q would be negative
        return Ending.weightless
    return Ending.stuck


def _short_of(
    family: Family, last: CurvePoint, edges: tuple[float, float], steps: Steps
) -> Sequence[CurvePoint] | None:
    """The point on the edge that the curve has no step left to, none if the last lies there; None if it is not so near.

    A field that may not leave the range stops the steps short of its edge.
    """
    edge = edges[0] if last.tangent[-1] < 0 else edges[1]
    ahead = (edge - last.place[-1]) / last.tangent[-1] if last.tangent[-1] else np.inf
    if not 0 <= ahead <= steps.first:
        return None
    ended = _on_edge(family, last, replace(last, place=last.place + ahead * last.tangent), edge, steps)
    return [] if ended is None else [ended]


def _on_edge(family: Family, last: CurvePoint, beyond: CurvePoint, target: float, steps: Steps) -> CurvePoint | None:
    """The point of the curve on the edge of the range, as the last entry of a place, between two others."""
    share = (target - last.place[-1]) / (beyond.place[-1] - last.place[-1])
    if not share > 1e-6:  # the last point lies there already
        return None
    guess = last.place + share * (beyond.place - last.place)
    guess[-1] = target
    found = corrected(family, guess, np.eye(len(guess))[-1], last.jacobian, steps.tolerance)
    if found.residual > steps.loose:
        return None
    return replace(beyond, place=np.append(found.place[:-1], target), jacobian=found.jacobian)


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


def _amplitudes(family: Family, branch: str, overlaps: Overlaps) -> list[int]:
    """The coordinate of each order parameter that the informed start next to some overlaps has most of."""
    informed = informed_at(family.setting, branch, overlaps, family.settings)
    nothing = replace(informed, q=0 * informed.q, V=0 * informed.V, m=0 * informed.m, theta=0 * informed.theta)
    names = Branch.named(branch).order_parameters or ("q",)
    alone = (replace(nothing, **{name: getattr(informed, name)}) for name in names)
    return [int(np.abs(family.sector.pack(one)).argmax()) for one in alone]
