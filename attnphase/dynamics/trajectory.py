"""One trajectory with standard errors: integrated in time under all nodes of a rule, and under parts of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from attnphase.arrays import Array
from attnphase.dynamics.directions import EVEN, growth
from attnphase.dynamics.rates import Dynamics
from attnphase.dynamics.settings import FlowSettings, FlowStatus
from attnphase.dynamics.slopes import first_rule, gauges_of, is_smooth, next_rule, replicates_of, system_of
from attnphase.errors import SolverError
from attnphase.integration.rules import Rule
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Tell, silent
from attnphase.state_evolution.errors import relative_error
from attnphase.state_evolution.sector import Sector
from attnphase.state_evolution.sizes import Sizes
from attnphase.state_evolution.starts import sized_rows
from attnphase.state_evolution.system import System

__all__ = ["Integrated", "Trajectory", "error_of", "follow_flow", "integrated", "measured", "started"]

_FLOOR = 1e-12  # absolute tolerance: the smallest start that is followed accurately has about its root as its size
_LARGEST = 1e4  # of the weights' square over its start's and the teacher's, from which on they run away
_LOOSE = 0.1  # of the standard error that is asked for: tolerance in time of the replicates
_BLURRED = 10.0  # times the speed, by which eigenvalues that are zero at a point at rest may be wrong beside it


@dataclass(frozen=True, eq=False)
class Integrated:
    """States (T, D) at times (T,); after the end the last one, or NaN where the weights run away.

    ``growth`` is the largest eigenvalue of the rates' Jacobian where it is at rest, per unit of ``eta tau``.
    """

    times: Array
    states: Array
    status: FlowStatus
    end: float
    growth: float = math.nan


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A trajectory in the limit of high dimension.

    Attributes
    ----------
    problem : Problem
    start : Sizes
    settings : FlowSettings
    times : (T,) array
        ``tau = steps / d``; of gradient flow ``eta tau``.
    values, errors : dict of str to array
        ``q``, ``m``, ``theta``, ``weight_norm``, ``population_risk`` and ``test_error``, (T, ...).
    status : FlowStatus
    end : float
        When it ended.
    growth : float
        Largest eigenvalue of the rates' Jacobian at the end, per unit of ``eta tau``; NaN unless it is at rest.
    state : (D,) array
        Where it ended.
    rule : Rule
    evaluations : int
        Of the rates under all nodes.
    """

    problem: Problem
    start: Sizes
    settings: FlowSettings
    times: Array
    values: dict[str, Array]
    errors: dict[str, Array]
    status: FlowStatus
    end: float
    growth: float
    state: Array
    rule: Rule
    evaluations: int


class _Leg(NamedTuple):
    """A part of the way: what is recorded of it, how and when it ended, and where; no status where it moves again."""

    times: Array
    states: Array
    status: FlowStatus | None
    end: float
    last: Array


def integrated(dynamics: Dynamics, state: Array, times: Array | None = None) -> Integrated:
    """Follow the dynamics from a state, until the time is over or it is at rest.

    Where it is slow the eigenvalues of the rates' Jacobian tell rest from passing by a saddle: if one grows, and the
    state has left the saddle along it by more than the integration's tolerance, it is followed to a tenth of the speed,
    or until it moves again.

    Parameters
    ----------
    dynamics : Dynamics
    state : (D,) array
    times : (T,) array, optional
        What is recorded; left out, the steps that the integration makes.

    Raises
    ------
    SolverError
        The steps became too small for double precision.
    """
    settings, slow = dynamics.settings, dynamics.settings.at_rest
    least = max(EVEN, _BLURRED * slow)
    largest = dynamics.rows.overlaps(state)[1] + np.trace(dynamics.system.spectrum.rho, axis1=1, axis2=2).max()
    legs = [_leg(dynamics, state, 0.0, slow, _LARGEST * largest, times)]
    while True:
        end = legs[-1]
        if end.status is FlowStatus.at_rest:
            rate, gone = growth(dynamics, end.last, least)
            status = FlowStatus.at_saddle if rate > least else FlowStatus.at_rest
            if rate <= least or gone <= settings.tolerance or slow <= _FLOOR or end.end >= settings.until:
                break
            slow /= 10
        elif end.status is None:
            slow = settings.at_rest
        else:
            status, rate = end.status, math.nan
            break
        ahead = None if times is None else times[times > end.end]
        legs.append(_leg(dynamics, end.last, end.end, slow, _LARGEST * largest, ahead))
    reached, known = (np.concatenate([getattr(leg, name) for leg in legs]) for name in ("times", "states"))
    if times is None:
        return Integrated(reached, known, status, end.end, rate)
    states = np.full((len(times), len(state)), end.last if end.status is FlowStatus.at_rest else math.nan)
    states[: len(known)] = known
    return Integrated(times, states, status, end.end, rate)


def _leg(dynamics: Dynamics, state: Array, begin: float, slow: float, largest: float, times: Array | None) -> _Leg:
    """From a state until no overlap moves by more than ``slow`` of itself, or the weights' square is too large."""
    from scipy.integrate import solve_ivp  # a tenth of a second to import, which who is refused should not wait

    settings, rows = dynamics.settings, dynamics.rows

    def rest(_: float, y: Array) -> float:
        return dynamics.speed(y) - slow

    def runaway(_: float, y: Array) -> float:
        return 1.0 if dynamics.is_lost(y) else rows.overlaps(y)[1] - largest

    def moving(_: float, y: Array) -> float:
        return dynamics.speed(y) - 2 * settings.at_rest

    watched = [(rest, -1.0), (runaway, 1.0), (moving, 1.0)]
    if slow == settings.at_rest:
        watched.pop()
    for event, direction in watched:
        setattr(event, "terminal", True)  # noqa: B010, as solve_ivp reads it
        setattr(event, "direction", direction)  # noqa: B010
    if rest(begin, state) <= 0:
        here = np.zeros(int(times is None))
        return _Leg(here + begin, np.repeat(state[None], len(here), axis=0), FlowStatus.at_rest, begin, state)
    with np.errstate(over="ignore", invalid="ignore"):
        found: Any = solve_ivp(
            lambda _, y: dynamics.rate(y),
            (begin, settings.until),
            state,
            t_eval=times,
            events=[event for event, _ in watched],
            rtol=settings.tolerance,
            atol=_FLOOR,
        )
    at, states = np.asarray(found.t, dtype=float), np.reshape(np.transpose(found.y), (-1, len(state)))
    if found.status == 0:
        return _Leg(at, states, FlowStatus.completed, settings.until, states[-1])
    if found.status == 1:
        which = next(i for i, when in enumerate(found.t_events) if len(when))
        end, last = float(found.t_events[which][0]), found.y_events[which][0]
        return _Leg(at, states, (FlowStatus.at_rest, FlowStatus.diverged, None)[which], end, last)
    raise SolverError(
        f"the integration in time stopped at {at[-1] if len(at) else begin:g}: {found.message.rstrip('.')};"
        " lower the learning rate, or raise the tolerance."
    )


def follow_flow(problem: Problem, start: Sizes, settings: FlowSettings, tell: Tell = silent) -> Trajectory:
    """A trajectory under rules that are refined until q is as accurate as the problem's ``integration`` asks.

    Raises
    ------
    ProblemError
        The start has a part that the problem has no direction for.
    SolverError
        The integration in time failed.
    """
    system = system_of(problem, tell)
    rules, smooth = system.refinement(settings.max_nodes), is_smooth(system)
    rule = first_rule(rules, smooth)
    followed: dict[int, _Followed] = {}  # under tensor rules, by their order: the gauges of the next
    while True:
        tell(f"following under {rule.size} nodes")
        found = _under(system, start, settings, rule, gauges_of(rules, rule, smooth), followed, tell)
        rho = system.spectrum.rho
        known = np.isfinite(found.values["q"]).all(axis=(1, 2, 3))
        pairs = zip(found.errors["q"][known], found.values["q"][known], strict=True)
        error = max((relative_error(e, q, rho) for e, q in pairs), default=0.0)
        finer = next_rule(rules, rule, error, smooth)
        if finer is None:
            return found
        rule = finer


class _Followed(NamedTuple):
    """What one rule makes of a start: the way, what is recorded of it, and the evaluations of the rates."""

    way: Integrated
    values: dict[str, Array]
    evaluations: int


def _followed(dynamics: Dynamics, state: Array, times: Array) -> _Followed:
    way = integrated(dynamics, state, times)
    return _Followed(way, measured(dynamics, way.states), dynamics.evaluations)


def _under(
    system: System,
    start: Sizes,
    settings: FlowSettings,
    rule: Rule,
    gauges: Sequence[Rule],
    followed: dict[int, _Followed],
    tell: Tell,
) -> Trajectory:
    """A trajectory under one rule, with its errors by replicates, or by the gauges of a rule without them."""
    times = np.linspace(0.0, settings.until, settings.records)
    whole, state = started(system, start, settings, rule)
    parts = gauges or replicates_of(rule)
    every: list[_Followed] = []
    for number, part in enumerate([rule, *parts]):
        if number:
            tell(f"following under {rule.size} nodes, error {number} of {len(parts)}")
        one = followed.get(part.order) if gauges else None
        if one is None:
            own = _of_scatter(settings, system, every[0].way.status) if every and not gauges else settings
            one = _followed(Dynamics.of(system, part, own, whole.sector), state, times)
            followed |= {part.order: one} if gauges else {}
        every.append(one)
    main, others = every[0], [one.values for one in every[1:]]
    errors = {
        name: error_of(value, [other[name] for other in others], replicates=not gauges)
        for name, value in main.values.items()
    }
    return Trajectory(
        problem=system.problem,
        start=start,
        settings=settings,
        times=times,
        values=main.values,
        errors=errors,
        status=main.way.status,
        end=main.way.end,
        growth=main.way.growth,
        state=main.way.states[np.isfinite(main.way.states).all(axis=1)][-1],
        rule=rule,
        evaluations=main.evaluations,
    )


def _of_scatter(settings: FlowSettings, system: System, status: FlowStatus) -> FlowSettings:
    """How a replicate is followed: by longer steps, which its distance from the others hardly knows.

    Not where the way comes to rest: longer steps go on about that place.
    """
    if status is not FlowStatus.completed:
        return settings
    return replace(settings, tolerance=max(settings.tolerance, _LOOSE * system.problem.integration.standard_error))


def started(system: System, start: Sizes, settings: FlowSettings, rule: Rule) -> tuple[Dynamics, Array]:
    """The dynamics in the symmetry of its start, and the start's state."""
    dynamics = Dynamics.of(system, rule, settings)
    state = dynamics.rows.start(*sized_rows(system.problem, start))
    dynamics.sector = Sector.of(dynamics.rows.overlaps(state)[0], system.symmetries)
    return dynamics, state


def measured(dynamics: Dynamics, states: Array) -> dict[str, Array]:
    """What is recorded of states (T, D); NaN where they are."""
    rows = dynamics.rows
    records: list[dict[str, Any]] = []
    for state in states:
        overlaps, norm = rows.overlaps(state)
        loss = dynamics.loss(state) if np.isfinite(norm) else math.nan
        records.append(
            {
                "q": overlaps.q,
                "m": overlaps.m[..., 0],
                "theta": overlaps.theta,
                "weight_norm": norm,
                "population_risk": loss + rows.ridge / 2 * norm,
                "test_error": dynamics.test_error(state) if np.isfinite(norm) else math.nan,
            }
        )
    return {name: np.array([record[name] for record in records]) for name in records[0]}


def error_of(value: Array, others: list[Array], *, replicates: bool) -> Array:
    """Standard error of a value by those of its parts, or its distance from those of other rules.

    Of a low order the rule of two less may be as near by chance as the one between them; it is four times as far
    from the limit, at least.
    """
    if replicates:
        return np.std(others, axis=0, ddof=1) / math.sqrt(len(others))
    distances = [np.abs(other - value) / 4**number for number, other in enumerate(others)]
    return np.max(distances, axis=0)
