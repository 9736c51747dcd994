"""One trajectory with standard errors: integrated in time under a first rule, and corrected to others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from attnphase.arrays import Array
from attnphase.errors import SolverError
from attnphase.integration.refinement import COARSE_POINTS
from attnphase.integration.rules import Rule
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Advance, Callback, silent, uncounted
from attnphase.state_evolution.errors import relative_error
from attnphase.state_evolution.sizes import Sizes
from attnphase.state_evolution.starts import sized_rows
from attnphase.state_evolution.system import System
from attnphase.theories.sgd_flow.corrections import KnownWay, Moved, corrected, known_way, of_replicates
from attnphase.theories.sgd_flow.directions import EVEN, growth
from attnphase.theories.sgd_flow.rates import Dynamics
from attnphase.theories.sgd_flow.settings import FlowSettings, FlowStatus
from attnphase.theories.sgd_flow.slopes import (
    Gauge,
    first_rule,
    gauges_of,
    is_smooth,
    next_rule,
    replicates_of,
    system_of,
)

__all__ = ["Integrated", "Trajectory", "error_of", "follow_flow", "integrated", "measured", "started"]

_FLOOR = 1e-12  # absolute tolerance, of the natural sizes at the beginning; and the least speed that is told from rest
_LARGEST = 1e4  # of the weights' square over its start's and the teacher's, from which on they run away
_LOOSE = 0.003  # of the standard error that is asked for: what another rule's way may miss as a correction
_BLURRED = 10.0  # times the speed, by which eigenvalues, over the pace, that are zero at a point at rest may be wrong


@dataclass(frozen=True, eq=False)
class Integrated:
    """States (T, D) at times (T,); after the end the last one, or NaN where the weights run away.

    ``growth`` is the largest eigenvalue of the rates' Jacobian where it is at rest, per unit of ``eta tau``; ``path``
    and ``steps`` are the states at all times and the steps that were made, where the time is over in one go.
    """

    times: Array
    states: Array
    status: FlowStatus
    end: float
    growth: float = math.nan
    path: Callable[[Array], Array] | None = None
    steps: Array = field(default_factory=lambda: np.empty(0))


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


class _Path(NamedTuple):
    """States (T, D) at times (T,), and the steps of their integration."""

    at: Callable[[Array], Array]
    steps: Array


class _Leg(NamedTuple):
    """A part of the way: what is recorded of it, how and when it ended, and where; no status where it moves again.

    ``path`` has the states at all times; None where it did not leave.
    """

    times: Array
    states: Array
    status: FlowStatus | None
    end: float
    last: Array
    path: _Path | None = None


def integrated(
    dynamics: Dynamics, state: Array, times: Array | None = None, advance: Advance = uncounted
) -> Integrated:
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
    advance : callable, optional
        Takes the share of the time that is over.

    Raises
    ------
    SolverError
        The steps became too small for double precision.
    """
    settings, slow = dynamics.settings, dynamics.settings.at_rest
    least = max(EVEN, _BLURRED * slow)
    largest = dynamics.rows.overlaps(state)[1] + dynamics.natural_norm
    legs = [_leg(dynamics, state, 0.0, slow, _LARGEST * largest, times, advance)]
    while True:
        end = legs[-1]
        if end.status is FlowStatus.at_rest:
            even = least * dynamics.pace(end.last)
            rate, gone = growth(dynamics, end.last, even)
            status = FlowStatus.at_saddle if rate > even else FlowStatus.at_rest
            if rate <= even or gone <= settings.tolerance or slow <= _FLOOR or end.end >= settings.until:
                break
            slow /= 10
        elif end.status is None:
            slow = settings.at_rest
        else:
            status, rate = end.status, math.nan
            break
        ahead = None if times is None else times[times > end.end]
        legs.append(_leg(dynamics, end.last, end.end, slow, _LARGEST * largest, ahead, advance))
    reached, known = (np.concatenate([getattr(leg, name) for leg in legs]) for name in ("times", "states"))
    if times is None:
        return Integrated(reached, known, status, end.end, rate)
    states = np.full((len(times), len(state)), end.last if end.status is FlowStatus.at_rest else math.nan)
    states[: len(known)] = known
    if end.path is None or status is not FlowStatus.completed or len(legs) > 1:
        return Integrated(times, states, status, end.end, rate)
    return Integrated(times, states, status, end.end, rate, end.path.at, end.path.steps)


def _leg(
    dynamics: Dynamics,
    state: Array,
    begin: float,
    slow: float,
    largest: float,
    times: Array | None,
    advance: Advance,
) -> _Leg:
    """From a state until no overlap moves by more than ``slow`` of itself, or the weights' square is too large."""
    from scipy.integrate import solve_ivp  # a tenth of a second to import, which who is refused should not wait

    settings, rows = dynamics.settings, dynamics.rows
    clock = dynamics.clock(state)  # the first step and the order of errors know the unit of time

    def rate(t: float, y: Array) -> Array:
        advance(t / clock / settings.until)
        return dynamics.rate(y) / clock

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
            rate,
            (begin * clock, settings.until * clock),
            state,
            t_eval=None if times is None else times * clock,
            dense_output=times is not None,
            events=[event for event, _ in watched],
            rtol=settings.tolerance,
            atol=_FLOOR * dynamics.sizes(state),
        )
    at, states = np.asarray(found.t, dtype=float) / clock, np.reshape(np.transpose(found.y), (-1, len(state)))
    if found.status == 0:
        return _Leg(at, states, FlowStatus.completed, settings.until, states[-1], _in_time(found.sol, clock))
    if found.status == 1:
        which = next(i for i, when in enumerate(found.t_events) if len(when))
        end, last = float(found.t_events[which][0]) / clock, found.y_events[which][0]
        return _Leg(at, states, (FlowStatus.at_rest, FlowStatus.diverged, None)[which], end, last)
    raise SolverError(
        f"the integration in time stopped at {at[-1] if len(at) else begin:g}: {found.message.rstrip('.')};"
        " lower the learning rate, or raise the tolerance."
    )


def _in_time(path: Any, clock: float) -> _Path | None:
    """What was integrated in a time that is `clock` times as fast."""
    return None if path is None else _Path(lambda t: path(t * clock).T, path.ts / clock)


def follow_flow(
    problem: Problem, start: Sizes, settings: FlowSettings, callback: Callback = silent, advance: Advance = uncounted
) -> Trajectory:
    """A trajectory under rules that are refined until q is as accurate as the problem's ``integration`` asks.

    `advance` takes the share of the time that is over under the first of them; the others are corrections to it.

    Raises
    ------
    ProblemError
        The start has a part that the problem has no direction for.
    SolverError
        The integration in time failed.
    """
    system = system_of(problem, callback)
    rules, smooth = system.refinement(settings.max_nodes), is_smooth(system)
    rule = first_rule(rules, smooth)
    ways = _Ways.of(system, start, settings, rule, advance)
    while True:
        callback(f"following under {rule.size} nodes")
        found = _under(ways, rule, gauges_of(rules, rule, smooth), callback)
        rho = system.spectrum.rho
        known = np.isfinite(found.values["q"]).all(axis=(1, 2, 3))
        pairs = zip(found.errors["q"][known], found.values["q"][known], strict=True)
        error = max((relative_error(e, q, rho) for e, q in pairs), default=0.0)
        finer = next_rule(rules, rule, error, smooth)
        if finer is None:
            return found
        rule = finer


class _Followed(NamedTuple):
    """What one rule makes of a start: the way, what is recorded of it, and the rates that were asked for.

    ``moved`` says how it was corrected from another way, and is None where it was integrated.
    """

    dynamics: Dynamics
    way: Integrated
    values: dict[str, Array]
    numbers: Array
    evaluations: int
    moved: Moved | None = None


@dataclass(eq=False)
class _Ways:
    """Ways from one start under several rules.

    The first one is integrated, and if it only ends with the time, the others are corrections of it; where that does
    not do, they are integrated by themselves.
    """

    start: Sizes
    settings: FlowSettings
    whole: Dynamics
    state: Array
    advance: Advance
    kept: dict[int, _Followed] = field(default_factory=dict)  # of tensor rules, by their order: gauges of the next
    first: _Followed | None = None
    known: KnownWay | None = None

    @classmethod
    def of(cls, system: System, start: Sizes, settings: FlowSettings, rule: Rule, advance: Advance) -> _Ways:
        return cls(start, settings, *started(system, start, settings, rule), advance)

    @property
    def times(self) -> Array:
        """That are recorded."""
        return np.linspace(0.0, self.settings.until, self.settings.records)

    def under(self, rule: Rule, *, integrate: bool = False) -> _Followed:
        """The way under a rule."""
        if not rule.randomised and rule.order in self.kept:
            return self.kept[rule.order]
        dynamics = self._dynamics(rule)
        moved = None
        if self.first is None or self.known is None or integrate:
            found = self._integrated(dynamics)
        else:
            asked = self.whole.system.problem.integration.standard_error
            moved = corrected(self.known, dynamics, self.times, max(self.settings.tolerance, _LOOSE * asked))
            found = self._integrated(dynamics) if moved is None else self._moved(dynamics, moved)
        if self.first is None:
            self.first = found
            coarse = self._dynamics(self.whole.system.refinement(self.settings.max_nodes).sobol(COARSE_POINTS))
            self.known = known_way(found.way.path, found.way.steps, dynamics, coarse)
        if not rule.randomised:
            self.kept[rule.order] = found
        return found

    def of_replicates(self, found: _Followed) -> list[dict[str, Array]] | None:
        """What is recorded under every replicate, to first order in what it moves; None if that is too far."""
        moved = found.moved
        if moved is None and found is self.first and self.known is not None:
            moved = Moved.nowhere(self.known, self.times)
        pushed = None if moved is None else of_replicates(moved, self.times)
        if pushed is None:
            return None
        return [
            measured(found.dynamics, states, found.numbers + beside) for states, beside in zip(*pushed, strict=True)
        ]

    def _dynamics(self, rule: Rule) -> Dynamics:
        return Dynamics.of(self.whole.system, rule, self.settings, self.whole.sector)

    def _integrated(self, dynamics: Dynamics) -> _Followed:
        way = integrated(dynamics, self.state, self.times, self.advance if self.first is None else uncounted)
        numbers = _numbers(dynamics, way.states)
        return _Followed(dynamics, way, measured(dynamics, way.states, numbers), numbers, dynamics.evaluations)

    def _moved(self, dynamics: Dynamics, moved: Moved) -> _Followed:
        assert self.first is not None
        way = Integrated(self.times, moved.states, FlowStatus.completed, self.settings.until)
        numbers = self.first.numbers + moved.shifts
        return _Followed(dynamics, way, measured(dynamics, way.states, numbers), numbers, dynamics.evaluations, moved)


def _under(ways: _Ways, rule: Rule, gauges: Sequence[Gauge], callback: Callback) -> Trajectory:
    """A trajectory under one rule, with its errors by replicates, or by the gauges of a rule without them."""
    main, parts = ways.under(rule), [gauge.rule for gauge in gauges] or replicates_of(rule)
    others = None if gauges else ways.of_replicates(main)
    if others is None:
        others = []
        for number, part in enumerate(parts):
            callback(f"following under {rule.size} nodes, error {number + 1} of {len(parts)}")
            others.append(ways.under(part, integrate=not gauges).values)
    errors = {name: error_of(value, [other[name] for other in others], gauges) for name, value in main.values.items()}
    return Trajectory(
        problem=ways.whole.system.problem,
        start=ways.start,
        settings=ways.settings,
        times=ways.times,
        values=main.values,
        errors=errors,
        status=main.way.status,
        end=main.way.end,
        growth=main.way.growth,
        state=main.way.states[np.isfinite(main.way.states).all(axis=1)][-1],
        rule=rule,
        evaluations=main.evaluations,
    )


def started(system: System, start: Sizes, settings: FlowSettings, rule: Rule) -> tuple[Dynamics, Array]:
    """The dynamics in the symmetry of its start, and the start's state."""
    dynamics = Dynamics.of(system, rule, settings)
    state = dynamics.rows.start(*sized_rows(system.problem, start))
    dynamics.sector = system.sector_of(dynamics.rows.overlaps(state)[0])
    return dynamics, state


def measured(dynamics: Dynamics, states: Array, numbers: Array | None = None) -> dict[str, Array]:
    """What is recorded of states (T, D), of loss and test error (T, 2) if these are known; NaN where they are."""
    rows = dynamics.rows
    records: list[dict[str, Any]] = []
    for state, (loss, error) in zip(states, _numbers(dynamics, states) if numbers is None else numbers, strict=True):
        overlaps, norm, penalty = rows.measured(state)
        records.append(
            {
                "q": overlaps.q,
                "m": overlaps.m[..., 0],
                "theta": overlaps.theta,
                "weight_norm": norm,
                "population_risk": loss + penalty,
                "test_error": error,
            }
        )
    return {name: np.array([record[name] for record in records]) for name in records[0]}


def _numbers(dynamics: Dynamics, states: Array) -> Array:
    """Loss and test error of states, (T, 2); NaN where they are."""
    nothing = np.full(2, math.nan)
    return np.stack([dynamics.numbers(state) if np.isfinite(state).all() else nothing for state in states])


def error_of(value: Array, others: list[Array], gauges: Sequence[Gauge]) -> Array:
    """Standard error of a value by its distances from those of gauges, or by those of replicates if there are none."""
    if not gauges:
        return np.std(others, axis=0, ddof=1) / math.sqrt(len(others))
    distances = [gauge.share * np.abs(other - value) for gauge, other in zip(gauges, others, strict=True)]
    return np.max(distances, axis=0)
