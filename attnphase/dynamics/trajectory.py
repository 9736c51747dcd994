"""One trajectory with standard errors: integrated in time under all nodes of a rule, and under parts of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnphase.arrays import Array
from attnphase.dynamics.rates import Dynamics
from attnphase.dynamics.settings import FlowSettings, FlowStatus
from attnphase.dynamics.slopes import first_rule, is_smooth, replicates_of, system_of
from attnphase.errors import SolverError
from attnphase.integration.rules import Rule
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Tell, silent
from attnphase.state_evolution.errors import relative_error
from attnphase.state_evolution.sector import Sector
from attnphase.state_evolution.sizes import Sizes
from attnphase.state_evolution.starts import sized_rows
from attnphase.state_evolution.system import System

__all__ = ["Integrated", "Trajectory", "follow_flow", "integrated", "measured", "started"]

_FLOOR = 1e-12  # absolute tolerance: the smallest start that is followed accurately has about its root as its size
_LARGEST = 1e6  # of the weights' square over its start's and the teacher's, from which on they run away


@dataclass(frozen=True, eq=False)
class Integrated:
    """States (T, D) at times (T,); after the end the last one, or NaN where the weights run away."""

    times: Array
    states: Array
    status: FlowStatus
    end: float


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
    state: Array
    rule: Rule
    evaluations: int


def integrated(dynamics: Dynamics, state: Array, times: Array | None = None) -> Integrated:
    """Follow the dynamics from a state, until the time is over or it is at rest.

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
    from scipy.integrate import solve_ivp  # a tenth of a second to import, which who is refused should not wait

    settings, rows = dynamics.settings, dynamics.rows
    scale = rows.overlaps(state)[1] + np.trace(dynamics.system.spectrum.rho, axis1=1, axis2=2).max()

    def rest(_: float, y: Array) -> float:
        return dynamics.speed(y) - settings.at_rest

    def runaway(_: float, y: Array) -> float:
        return rows.overlaps(y)[1] - _LARGEST * scale

    for event in (rest, runaway):
        setattr(event, "terminal", True)  # noqa: B010, as solve_ivp reads it
    if rest(0.0, state) <= 0:
        known = np.zeros(1) if times is None else times
        return Integrated(known, np.repeat(state[None], len(known), axis=0), FlowStatus.at_rest, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        found: Any = solve_ivp(
            lambda _, y: dynamics.rate(y),
            (0.0, settings.until),
            state,
            t_eval=times,
            events=(rest, runaway),
            rtol=settings.tolerance,
            atol=_FLOOR,
        )
    at: Array = found.t if times is None else times
    states = np.full((len(at), len(state)), np.nan)
    states[: found.y.shape[1]] = found.y.T
    if found.status == 0:
        return Integrated(at, states, FlowStatus.completed, settings.until)
    if found.status == 1 and len(found.t_events[0]):
        states[found.y.shape[1] :] = found.y_events[0][0]
        return Integrated(at, states, FlowStatus.at_rest, float(found.t_events[0][0]))
    if found.status == 1:
        return Integrated(at, states, FlowStatus.diverged, float(found.t_events[1][0]))
    raise SolverError(
        f"the integration in time stopped at {found.t[-1] if len(found.t) else 0:g}: {found.message.rstrip('.')};"
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
    while True:
        tell(f"following under {rule.size} nodes")
        found = _under(system, start, settings, rule, rules.gauge(rule, 0.0 if smooth else 1.0), tell)
        rho = system.spectrum.rho
        known = np.isfinite(found.values["q"]).all(axis=(1, 2, 3))
        pairs = zip(found.errors["q"][known], found.values["q"][known], strict=True)
        error = max((relative_error(e, q, rho) for e, q in pairs), default=0.0)
        finer = rules.next(rule, error, 0.0 if smooth else 1.0)
        if finer is None:
            return found
        rule = finer


def _under(
    system: System, start: Sizes, settings: FlowSettings, rule: Rule, gauge: Rule | None, tell: Tell
) -> Trajectory:
    """A trajectory under one rule, with its errors by replicates, or by the gauge of a rule without them."""
    times = np.linspace(0.0, settings.until, settings.records)
    whole, state = started(system, start, settings, rule)
    main = integrated(whole, state, times)
    values = measured(whole, main.states)
    others: list[dict[str, Array]] = []
    parts = replicates_of(rule) if gauge is None else [gauge]
    for number, part in enumerate(parts):
        tell(f"following under {rule.size} nodes, error {number + 1} of {len(parts)}")
        own = Dynamics.of(system, part, settings, whole.sector)
        others.append(measured(own, integrated(own, state, times).states))
    errors = {name: _error(value, [other[name] for other in others]) for name, value in values.items()}
    return Trajectory(
        problem=system.problem,
        start=start,
        settings=settings,
        times=times,
        values=values,
        errors=errors,
        status=main.status,
        end=main.end,
        state=main.states[np.isfinite(main.states).all(axis=1)][-1],
        rule=rule,
        evaluations=whole.evaluations,
    )


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


def _error(value: Array, others: list[Array]) -> Array:
    """Standard error of a value by those of its parts, or its distance from that of another rule."""
    if len(others) == 1:
        return np.abs(others[0] - value)
    return np.std(others, axis=0, ddof=1) / math.sqrt(len(others))
