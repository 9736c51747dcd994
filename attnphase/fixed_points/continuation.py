"""A branch followed along any one field of its problem, through folds onto its unstable part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import root_scalar

from attnphase.arrays import Array
from attnphase.errors import NotFoundError, ProblemError
from attnphase.fixed_points.extended import FLAT
from attnphase.fixed_points.family import Family, family_of, share_of_node, started
from attnphase.fixed_points.measuring import SolvedPoint, branch_point, measured_at
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.run import Run
from attnphase.fixed_points.setting import Setting
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.traced import Ending, Start, solved_start, start_on, steps_along, walk
from attnphase.integration.rules import Rule
from attnphase.processes.progress import Callback, silent
from attnphase.solvers.arclength import CurvePoint, Steps, corrected, tangent_of, turned_back
from attnphase.solvers.iteration import FixedPoint, Status
from attnphase.state_evolution.branches import ERRORS
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.starts import branches_of, vanishes

__all__ = ["Curve", "Followed", "fine_enough", "follow_field", "on_curve"]

_LARGEST, _MOST = 0.2, 200  # length of a step, with the field in units of half the range, and points on a side


@dataclass(frozen=True, eq=False)
class Followed:
    """A point of a followed branch.

    Attributes
    ----------
    point : BranchPoint
    value, value_error : float
        Of the field; the error is that of the place where the curve is met at right angles.
    signal : float
        The coordinate that is the order parameter, in its errors where the curve is met at right angles; infinite if
        none was named.
    held : (N,) array
        By what other nodes, and the rest of the iteration, displace the field where the order parameter is held, as at
        a fold: the squares add up to the variance. Empty if no order parameter was named.
    eigenvalue : float
        Largest real part of an eigenvalue of the map's Jacobian among points that share the branch's symmetries.
    unstable : int
        How many have a real part above one.
    arclength : float
        From the start of the curve, in units of the start's overlaps and of half the range.
    turn : bool
        Whether the field turns back here, by more than its error.
    """

    point: BranchPoint
    value: float
    value_error: float
    signal: float
    held: Array
    eigenvalue: float
    unstable: int
    arclength: float = 0.0
    turn: bool = False


@dataclass(frozen=True, eq=False)
class Curve:
    """A followed branch.

    Attributes
    ----------
    points : tuple of Followed
        By rising arc length, which is negative on the side where the field falls first.
    ends : (Ending, Ending)
        Why it goes no further on either side.
    """

    points: tuple[Followed, ...]
    ends: tuple[Ending, Ending]


@np.errstate(all="ignore")  # what overflows leaves the domain
def follow_field(
    setting: Setting,
    branch: str,
    between: tuple[float, float],
    *,
    start: Overlaps | None = None,
    settings: SolverSettings | None = None,
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
    NotFoundError
        Whether it does is not decided.
    """
    settings = settings or SolverSettings()
    overlaps = start if start is not None else solved_start(setting, branch, settings, callback)
    begun: Start | None = None
    if overlaps is not None and not vanishes(setting.problem, overlaps, branch):
        family = family_of(setting, branch, overlaps, between, settings)
        half = (family.along(between[1]) - family.along(between[0])) / 2
        begun = start_on(replace(family, span=half * family.span), branch, overlaps)
    if begun is None:
        name = setting.field
        others = " or ".join(one for one in branches_of(setting.problem) if one != branch)
        remedy = f", or follow the {others} branch" if overlaps is None else setting.problem.loss.trained_remedy
        raise ProblemError(
            name,
            f"there is no {branch} branch at {name} = {setting.value:g}: start the curve where there is one{remedy}.",
        )
    family, place = fine_enough(begun.family, begun.place)
    first = on_curve(family, place, np.eye(len(place))[-1], branch, begun.amplitudes[0])
    if any(begun.leasts.values()) and first[1].signal <= ERRORS:
        finer = "more integration.nodes" if family.rule.randomised else "a smaller integration.standard_error"
        raise NotFoundError(
            f"whether there is a {branch} branch at {setting.field} = {setting.value:g} is not decided, as its order"
            f" parameter is zero within {ERRORS:g} standard errors: start elsewhere, or ask for {finer}."
        )
    begun, covered = replace(begun, family=family, place=place), [setting.value]

    def told(found: Followed) -> None:
        covered.append(found.value)
        if advance is not None:
            advance((max(covered) - min(covered)) / (between[1] - between[0]))
        callback(f"{branch}, {setting.field} = {found.value:.4g}, {family.maps} maps")

    (down, low_end), (up, high_end) = (_side(begun, sign, between, first, told) for sign in (-1.0, 1.0))
    both = [*reversed(down[1:]), *up]
    places, values = (np.array(each) for each in zip(*((at.place[:-1], one.value) for at, one in both), strict=True))
    along = 2 * np.diff(values) / (between[1] - between[0])
    lengths = np.cumsum([0.0, *np.hypot(np.linalg.norm(np.diff(places, axis=0), axis=1), along)])
    lengths -= lengths[len(down) - 1]
    rows = [replace(one, arclength=float(at)) for (_, one), at in zip(both, lengths, strict=True)]
    return Curve(_with_turns(rows), (low_end, high_end))


Point = tuple[CurvePoint, Followed]
"""A point of the curve with its own derivatives, and everything measured there."""


def _side(
    start: Start,
    sign: float,
    between: tuple[float, float],
    first: Point,
    told: Callable[[Followed], None],
) -> tuple[list[Point], Ending]:
    """The points on one side of the start, which is the first, and why there are no more."""
    family, branch = start.family, start.branch
    steps = replace(steps_along(family), largest=_LARGEST, most=_MOST)
    side = [(replace(first[0], tangent=sign * first[0].tangent), first[1])]
    traced: list[CurvePoint] = []
    for point in walk(start, sign, between, steps):
        if isinstance(point, Ending):
            return side, point
        traced.append(point)
        if len(traced) == 1:  # the start
            continue
        if (turn := turned_back(traced, steps)) is not None:
            return side[: turn + 1], Ending.stuck
        try:
            here = on_curve(family, point.place, point.tangent, branch, start.amplitudes[0])
            if not family.rule.randomised and side[-1][0].tangent[-1] * here[0].tangent[-1] < 0:
                place, along = _at_fold(family, side[-1][0], here[0], steps)
                side.append(on_curve(family, place, along, branch, start.amplitudes[0]))
                traced.insert(-1, side[-1][0])
        except ArithmeticError:
            return side, Ending.stuck
        point.tangent, point.jacobian = here[0].tangent, here[0].jacobian
        side.append(here)
        told(here[1])
    return side, Ending.stuck


def _at_fold(family: Family, before: CurvePoint, after: CurvePoint, steps: Steps) -> tuple[Array, Array]:
    """The place between two others at which the field turns back, and the direction of the curve there."""
    chord, known = after.place - before.place, dict[float, tuple[Array, Array]]()

    def slope(share: float) -> float:
        if share not in known:
            guess = before.place + share * chord
            found = corrected(family, guess, chord / np.linalg.norm(chord), before.jacobian, steps.tolerance)
            if (jacobian := family.derivative(found.place)) is None:
                raise ArithmeticError("no derivative is known where a curve turns back")
            known[share] = found.place, tangent_of(jacobian, chord)
        return float(known[share][1][-1])

    if slope(0.0) * slope(1.0) < 0:  # as at the points themselves, but for what differences leave
        root_scalar(slope, bracket=(0.0, 1.0), method="brentq", xtol=FLAT)
    return known[min(known, key=lambda share: abs(known[share][1][-1]))]


def _with_turns(curve: list[Followed]) -> tuple[Followed, ...]:
    """The points, marked where the field turns back by more than twice the error of that, on both sides.

    Single nodes that change their minima make the field go to and fro, by no more than its error where the order
    parameter is held.
    """
    from scipy.signal import find_peaks  # which takes half a second

    values, turns = np.array([one.value for one in curve]), set[int]()
    for side in (1.0, -1.0):
        places, found = find_peaks(side * values, prominence=0.0)
        for i, left, right in zip(places, found["left_bases"], found["right_bases"], strict=True):
            noise = np.array([_error_between(curve[i], one) for one in curve])
            beyond = side * (values[i] - values) > 2 * noise
            if beyond[left:i].any() and beyond[i + 1 : right + 1].any():
                turns.add(int(i))
    return tuple(replace(one, turn=i in turns) for i, one in enumerate(curve))


def _error_between(one: Followed, other: Followed) -> float:
    """Of the difference of the field, of which the same nodes displace both ends."""
    if one.held.shape == other.held.shape:
        return float(np.linalg.norm(one.held - other.held))
    return float(np.hypot(np.linalg.norm(one.held), np.linalg.norm(other.held)))


def fine_enough(family: Family, place: Array) -> tuple[Family, Array]:
    """The maps under the rule that the error asked for needs at a place, and the fixed point there.

    Where chance places the nodes they are as many as those of one rule that is not refined.
    """
    rule = family.rules.single() if family.rule.randomised else family.rule
    finer: Rule | None = None if rule is family.rule else rule
    while True:
        if finer is not None:
            family = replace(family, rule=finer, minima=None)
        place, _ = started(family, place, family.settings.tolerance)
        if rule.randomised:
            return family, place
        _, solved, _ = _solved(family, place)
        found = solved.measured
        finer = family.rules.next(family.rule, found.relative_error, solved.map_.rough_share, found.parts)
        if finer is None:
            return family, place


def on_curve(family: Family, place: Array, along: Array, branch: str, index: int | None = None) -> Point:
    """Everything measured at a place of a curve, of which a coordinate may be the order parameter.

    Raises
    ------
    ArithmeticError
        It has no neighbourhood inside the domain of the map.
    """
    run, solved, jacobian = _solved(family, place)
    point = branch_point(run, branch, solved.map_, solved.found, solved.measured, solved.response)
    tangent, eigenvalues = tangent_of(jacobian, along), np.linalg.eigvals(solved.response.jacobian).real
    # where the curve meets a plane under other nodes
    moved = np.vstack([solved.measured.moved.images, solved.found.image - solved.found.point]) / family.scale

    def displaced_in(across: Array) -> Array:
        matrix, changes = np.vstack([jacobian, across]), np.vstack([-moved.T, np.zeros(len(moved))])
        found: Array = np.linalg.lstsq(matrix, changes, rcond=None)[0].astype(float, copy=False)
        return found

    errors, unit = np.linalg.norm(displaced_in(tangent), axis=1), family.unit(place[-1])

    found = Followed(
        point=replace(point, restart=replace(point.restart, rule=None, minima=None)),
        value=family.value(place[-1]),
        value_error=unit * float(errors[-1]),
        signal=np.inf if index is None else float(abs(place[index]) / errors[index]),
        held=np.empty(0) if index is None else unit * displaced_in(np.eye(len(place))[index])[-1],
        eigenvalue=float(eigenvalues.max()),
        unstable=int((eigenvalues > 1).sum()),
    )
    return CurvePoint(place, tangent, jacobian), found


def _solved(family: Family, place: Array) -> tuple[Run, SolvedPoint, Array]:
    """What is measured at a place with its errors, and ``dG/d(x, p)`` there."""
    if (known := family.response(place)) is None:
        raise ArithmeticError("a point of a curve has no neighbourhood inside the domain of the map")
    settings, (jacobian, response) = family.settings, known
    map_, found = _found(family, place)
    jumps = family.rule.randomised and found.residual > share_of_node(family.rule)
    if found.residual > settings.tolerance and not jumps:
        share = float(np.min(map_.scales(found.point) / family.scale))  # of its own units in those of the trace
        across, tolerance = tangent_of(jacobian, place), share * settings.tolerance
        map_, found = _found(family, corrected(family, place, across, jacobian, tolerance).place)
    run = Run(map_.system, map_.alpha, settings, family.sector, maps=family.maps)
    measured = measured_at(run, family.rules, map_, found, response)
    return run, SolvedPoint(map_, found, measured, response), jacobian


def _found(family: Family, place: Array) -> tuple[StateEvolution, FixedPoint]:
    """The map at a place, and whether that is its fixed point."""
    x, value = family.split(place)
    map_ = family.map_at(value)
    image = None if map_ is None else map_(x)
    if map_ is None or image is None:
        raise ArithmeticError("a point of a curve lies outside the domain of the map")
    residual = float(np.max(np.abs(image - x) / map_.scales(x)))
    status = Status.converged if residual <= family.settings.tolerance else Status.iteration_limit
    return map_, FixedPoint(x, image, residual, family.maps, status)
