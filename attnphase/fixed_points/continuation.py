"""A branch followed along any one field of its problem, through folds onto its unstable part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from attnphase.arrays import Array
from attnphase.errors import ProblemError
from attnphase.fixed_points.family import Family, scale_of
from attnphase.fixed_points.measuring import branch_point, measured_at
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.run import Run
from attnphase.fixed_points.setting import Setting
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.integration.rules import Rule
from attnphase.processes.progress import Callback, silent
from attnphase.processes.threads import available_cores
from attnphase.solvers.arclength import CurvePoint, Steps, corrected, trace, turned_back
from attnphase.solvers.iteration import FixedPoint, Status
from attnphase.state_evolution.assignments import informed_starts, nearest_start
from attnphase.state_evolution.branches import Branch
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.replicates import variations
from attnphase.state_evolution.sector import Sector
from attnphase.state_evolution.starts import informed_signal, initial_overlaps
from attnphase.state_evolution.symmetries import ProblemSymmetry
from attnphase.state_evolution.system import System

__all__ = ["Curve", "CurveSettings", "End", "Followed", "family_of", "follow_field", "followed_at", "started"]

VANISHED = 0.02  # an order parameter below this, relative to its informed start, ends a branch
_START_POINTS = 256  # nodes per replicate of the solve that a curve starts from
_ALONG_LINES = 1e-5  # residual beside which lines may jump: a hundred times what measured maps jump by
_JUMP = 20.0  # nodes that may change their minimum between two sides of a point


@dataclass(frozen=True)
class CurveSettings:
    """How a branch is followed.

    Attributes
    ----------
    most : int
        Points on either side of the start.
    points : int or None
        Sobol points in each replicate; None for what the problem's rule says.
    """

    most: int = 200
    points: int | None = None


@dataclass(frozen=True, eq=False)
class Followed:
    """A point of a followed branch.

    Attributes
    ----------
    point : BranchPoint
    value, value_error : float
        Of the field; the error is that of the place where the curve is met at right angles.
    arclength : float
        From the start of the curve, in units of the start's overlaps and of the range.
    eigenvalue : float
        Largest real part of an eigenvalue of the map's Jacobian among points that share the branch's symmetries.
    unstable : int
        How many have a real part above one.
    turn : bool
        Whether the field turns back here, by more than its error.
    """

    point: BranchPoint
    value: float
    value_error: float
    arclength: float
    eigenvalue: float
    unstable: int
    turn: bool = False


class End(StrEnum):
    """Why a curve ends."""

    edge = "at the edge of the range"
    vanished = "where the order parameter vanishes"
    most = "after as many points as allowed"
    stuck = "where no step leads on"


@dataclass(frozen=True, eq=False)
class Curve:
    """A followed branch.

    Attributes
    ----------
    points : tuple of Followed
        By rising arc length, which is negative on the side where the field falls first.
    ends : (End, End)
        Why it goes no further on either side.
    """

    points: tuple[Followed, ...]
    ends: tuple[End, End]


def _threads(settings: SolverSettings) -> int:
    return settings.threads or available_cores()


def system_of(setting: Setting, settings: SolverSettings, callback: Callback = silent) -> System:
    """The system at a value of the field."""
    return System.of(setting.problem, _threads(settings), callback)


def _symmetries(setting: Setting, between: tuple[float, float], settings: SolverSettings) -> Sequence[ProblemSymmetry]:
    """Those that the problem has all along: at the start and at a value that nothing singles out."""
    other = system_of(setting.inside(between), settings).symmetries

    def same(a: ProblemSymmetry, b: ProblemSymmetry) -> bool:
        return tuple(a[0]) == tuple(b[0]) and np.array_equal(a[1], b[1]) and np.array_equal(a[2], b[2])

    return [one for one in system_of(setting, settings).symmetries if any(same(one, two) for two in other)]


def family_of(
    setting: Setting,
    branch: str,
    start: Overlaps,
    between: tuple[float, float],
    settings: SolverSettings,
    points: int | None = None,
) -> Family:
    """The maps along a field, in the sector of a branch and in units of a start on it."""
    system = system_of(setting, settings)
    informed = nearest_start(informed_starts(system, branch), start)
    sector = Sector.of(informed, _symmetries(setting, between, settings), system.units)
    # at an end of the range the fields may have fewer dimensions: those without noise of the labels
    rules = system_of(setting.inside(between), settings).refinement(settings.max_nodes)
    rule = rules.single() if points is None or not rules.single().randomised else rules.sobol(points)
    x = sector.pack(start)
    natural = sector.scales(0 * x, system.spectrum.rho) * 1e6
    scale = scale_of(x, sector.pack(informed), natural)
    span = max((between[1] - between[0]) / 2, 1e-300)
    return Family(setting, sector, rule, settings, scale, span)


def started(family: Family, overlaps: Overlaps, value: float, tolerance: float) -> tuple[Array, float]:
    """The fixed point nearest to some overlaps at a value of the field, and its residual.

    Raises
    ------
    ArithmeticError
        It has no neighbourhood inside the domain.
    """
    place = family.place(overlaps, value)
    fixed = np.eye(len(place))[-1]
    if family.careful(place) is None or (jacobian := family.derivative(place)) is None:
        raise ArithmeticError("the start of a curve lies outside the domain of the map")
    found = corrected(family, place, fixed, jacobian, tolerance)
    return found.place, found.residual


def steps_of(family: Family, settings: SolverSettings, most: int) -> Steps:
    """Steps along the curves of a family."""
    return Steps(tolerance=0.1 * settings.tolerance, loose=jumps(family.rule), most=most)


def jumps(rule: Rule) -> float:
    """Residual of a place beside which the map may jump over zero: a node that changes its minimum moves it."""
    return _ALONG_LINES if rule.lines is not None else min(_JUMP / max(rule.size, 1), 0.02)


@np.errstate(all="ignore")  # what overflows leaves the domain
def follow_field(
    setting: Setting,
    branch: str,
    between: tuple[float, float],
    *,
    start: Overlaps | None = None,
    settings: SolverSettings | None = None,
    curve: CurveSettings | None = None,
    callback: Callback = silent,
    advance: Callable[[float], None] | None = None,
) -> Curve:
    """The curve of fixed points through one of them, in both directions, as far as the range reaches.

    Parameters
    ----------
    setting : Setting
        Where the curve starts.
    between : (float, float)
        Range of the field.
    start : Overlaps, optional
        Near a fixed point there, which need not be stable; by default the branch is solved for.
    advance : callable, optional
        Takes the share of the range that the curve has covered, after every point.

    Raises
    ------
    ProblemError
        The branch does not exist at the start.
    """
    settings, curve = settings or SolverSettings(), curve or CurveSettings()
    overlaps = start if start is not None else solved_start(setting, branch, settings, callback)
    family = family_of(setting, branch, overlaps, between, settings, curve.points)
    steps = steps_of(family, settings, curve.most)
    place, size = started(family, overlaps, setting.value, steps.tolerance)
    if size > steps.loose or _signal(family, place, branch, place) < VANISHED:
        name = setting.field
        raise ProblemError(
            name, f"there is no {branch} branch at {name} = {setting.value:g}: start the curve where there is one."
        )
    sides: list[list[Followed]] = []
    ends: list[End] = []
    for sign in (-1.0, 1.0):
        side: list[Followed] = []
        traced: list[CurvePoint] = []
        family.careful(place)
        points = trace(family, place, sign * np.eye(len(place))[-1], steps)
        for point in _within(family, points, between, steps, branch, place):
            if isinstance(point, End):
                ends.append(point)
                break
            traced.append(point)
            if (turn := turned_back(traced, steps)) is not None:
                del side[turn + 1 :]
                ends.append(End.stuck)
                break
            # the start is measured once
            found = sides[0][0] if sides and not side else followed_at(family, point, branch)
            side.append(found)
            if advance is not None:
                covered = [one.value for known in (*sides, side) for one in known]
                advance((max(covered) - min(covered)) / (between[1] - between[0]))
            callback(f"{branch}, {setting.field} = {found.value:.4g}, {family.maps} maps")
        sides.append(side)
    backwards = (replace(one, arclength=-one.arclength) for one in reversed(sides[0][1:]))
    return Curve(_with_turns([*backwards, *sides[1]]), (ends[0], ends[1]))


def _with_turns(curve: list[Followed]) -> tuple[Followed, ...]:
    """The points, marked where the field turns back by more than twice its error."""
    from scipy.signal import find_peaks  # which takes half a second

    values, errors = np.array([one.value for one in curve]), np.array([one.value_error for one in curve])
    turns: set[int] = set()
    for side in (1.0, -1.0):
        places, found = find_peaks(side * values, prominence=0.0)
        turns |= {int(i) for i, depth in zip(places, found["prominences"], strict=True) if depth > 2 * errors[i]}
    return tuple(replace(one, turn=i in turns) for i, one in enumerate(curve))


def solved_start(setting: Setting, branch: str, settings: SolverSettings, callback: Callback) -> Overlaps:
    """Overlaps of the branch where the curve starts, on few nodes."""
    nodes = {"integration.rule": "sobol", "integration.nodes": _START_POINTS}
    point = solve_point(setting.problem.with_fields(nodes), setting.alpha, branch, settings=settings, callback=callback)
    return point.restart.overlaps


def _signal(family: Family, place: Array, branch: str, start: Array) -> float:
    """The order parameter, relative to that of the informed start; one for the uninformed branch.

    What has another sign than at the start of the curve does not count: the other side of zero is another branch.
    """
    if not Branch.named(branch).is_informed:
        return 1.0
    informed = initial_overlaps(family.setting.problem, branch)
    x, reference = family.split(place)[0], family.split(start)[0]
    here = family.sector.unpack(np.where(x * reference < 0, 0.0, x))
    return informed_signal(here, branch) / informed_signal(informed, branch)


def _within(
    family: Family,
    points: Iterator[CurvePoint],
    between: tuple[float, float],
    steps: Steps,
    branch: str,
    start: Array,
) -> Iterator[CurvePoint | End]:
    """The points inside the range, the last one on its edge, as long as there is an order parameter; then the end."""
    last: CurvePoint | None = None
    count = 0
    for point in points:
        value = float(point.place[-1] * family.span)
        edge = between[0] if value < between[0] else between[1] if value > between[1] else None
        if edge is not None:
            ended = None if last is None else on_edge(family, last, point, edge / family.span, steps)
            yield from () if ended is None else (ended,)
            yield End.edge
            return
        if last is not None and _signal(family, point.place, branch, start) < VANISHED:
            yield End.vanished
            return
        yield point
        last, count = point, count + 1
    low, high = between
    ended = None if last is None else short_of(family, last, (low / family.span, high / family.span), steps)
    yield from ended or ()
    yield End.edge if ended is not None else End.most if count >= steps.most else End.stuck


def short_of(family: Family, last: CurvePoint, edges: tuple[float, float], steps: Steps) -> Sequence[CurvePoint] | None:
    """The point on the edge that the curve has no step left to, none if the last lies there; None if it is not so near.

    A field that may not leave the range stops the steps short of its edge.
    """
    edge = edges[0] if last.tangent[-1] < 0 else edges[1]
    ahead = (edge - last.place[-1]) / last.tangent[-1] if last.tangent[-1] else np.inf
    if not 0 <= ahead <= steps.first:
        return None
    ended = on_edge(family, last, replace(last, place=last.place + ahead * last.tangent), edge, steps)
    return [] if ended is None else [ended]


def on_edge(family: Family, last: CurvePoint, beyond: CurvePoint, target: float, steps: Steps) -> CurvePoint | None:
    """The point of the curve on the edge of the range, as the last entry of a place, between two others."""
    share = (target - last.place[-1]) / (beyond.place[-1] - last.place[-1])
    if not share > 1e-6:  # the last point lies there already
        return None
    guess = last.place + share * (beyond.place - last.place)
    guess[-1] = target
    found = corrected(family, guess, np.eye(len(guess))[-1], last.jacobian, steps.tolerance)
    jacobian = found.jacobian if steps.learnt else family.derivative(found.place)
    if found.residual > steps.loose or jacobian is None:
        return None
    place = np.append(found.place[:-1], target)
    moved = float(np.linalg.norm(place - last.place))
    return replace(beyond, place=place, jacobian=jacobian, arclength=last.arclength + moved)


def followed_at(family: Family, here: CurvePoint, branch: str) -> Followed:
    """Everything measured at a point of the curve where `Family.derivative` was asked for last."""
    x, value = family.split(here.place)
    map_ = family.map_at(value)
    assert map_ is not None
    image = map_(x)
    if image is None:
        raise ArithmeticError("a point of a curve lies outside the domain of the map")
    settings, response = family.settings, family.own_response()
    residual = float(np.max(np.abs(image - x) / map_.scales(x)))
    status = Status.converged if residual <= settings.tolerance else Status.iteration_limit
    found = FixedPoint(x, image, residual, family.maps, status)
    run = Run(map_.system, map_.alpha, settings, family.sector, maps=family.maps)
    rules = map_.system.refinement(settings.max_nodes)
    measured = measured_at(run, rules, map_, found, response)
    point = branch_point(run, branch, map_, found, measured, response)
    eigenvalues = np.linalg.eigvals(response.jacobian).real
    return Followed(
        point=replace(point, restart=replace(point.restart, rule=None, minima=None)),
        value=value,
        value_error=_value_error(family, here, run, map_, x),
        arclength=here.arclength,
        eigenvalue=float(eigenvalues.max()),
        unstable=int((eigenvalues > 1).sum()),
    )


def _value_error(family: Family, here: CurvePoint, run: Run, map_: StateEvolution, x: Array) -> float:
    """Standard error of the field's value at which the curve passes through the plane across it."""
    rules = map_.system.refinement(family.settings.max_nodes)
    gauges = [run.map(gauge) for gauge in rules.gauges(family.rule, map_.rough_share)]
    moved = variations(map_, x, gauges).images / family.scale
    matrix = np.vstack([here.jacobian, here.tangent])
    displaced = np.linalg.lstsq(matrix, np.vstack([-moved.T, np.zeros(len(moved))]), rcond=None)[0]
    return float(family.span * np.sqrt((displaced[-1] ** 2).sum()))
