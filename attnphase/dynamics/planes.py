"""Which stationary point a small start leads to, and how long it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from attnphase.arrays import Array
from attnphase.dynamics.noise import system_of
from attnphase.dynamics.rates import Dynamics
from attnphase.dynamics.settings import Basin, FlowSettings, FlowStatus
from attnphase.dynamics.slopes import first_rule, is_smooth
from attnphase.dynamics.trajectory import integrated, started
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Tell, silent
from attnphase.state_evolution.sizes import Sizes

__all__ = ["Arrival", "Plane", "follow_plane"]

_BISECTIONS = 8


@dataclass(frozen=True)
class Arrival:
    """Where a start leads.

    Attributes
    ----------
    positional_size, semantic_size : float
        Largest ``|m|`` and ``|theta|`` at the end.
    test_error : float
    plateau : float
        Time until what is found, of two things theta, has half of its size at the end; NaN where nothing is.
    basin : Basin
    status : FlowStatus
    """

    positional_size: float
    semantic_size: float
    test_error: float
    plateau: float
    basin: Basin
    status: FlowStatus


@dataclass(frozen=True, eq=False)
class Plane:
    """Starts of one size in all directions.

    Attributes
    ----------
    arrivals : tuple of Arrival
        By angle.
    boundary : float
        Angle in degrees above which the semantic point is reached; 90 where it is not from any of the angles,
        0 where it is from all, NaN where the basins are other ones.
    uncertainty : float
        Half of the interval in which it lies.
    """

    arrivals: tuple[Arrival, ...]
    boundary: float
    uncertainty: float


def follow_plane(
    problem: Problem,
    settings: FlowSettings,
    scale: float,
    noise: float,
    angles: Sequence[float],
    tell: Tell = silent,
) -> Plane:
    """Follow starts of one size from all angles, in degrees from the encodings' direction to the teacher's.

    Raises
    ------
    ProblemError
        There are no encodings.
    """
    system = system_of(problem, tell)
    rules, smooth = system.refinement(settings.max_nodes), is_smooth(system)
    rule = first_rule(rules, smooth)
    # where a start leads needs fewer nodes than where it is at every time
    rule = rules.gauge(rule, 0.0 if smooth else 1.0) or rule

    def arrive(angle: float) -> Arrival:
        tell(f"angle {angle:g}")
        # a sine of rounding size would be a part along the teacher
        along, across = (0.0 if abs(x) < 1e-15 else x for x in (math.sin(math.radians(angle)), _cosine(angle)))
        start = Sizes(semantic=scale * along, positional=scale * across, noise=noise)
        dynamics, state = started(system, start, settings, rule)
        return _arrival(dynamics, state)

    arrivals = [arrive(angle) for angle in angles]
    return Plane(tuple(arrivals), *_boundary(list(angles), arrivals, arrive))


def _cosine(angle: float) -> float:
    return math.cos(math.radians(angle))


def _arrival(dynamics: Dynamics, state: Array) -> Arrival:
    found = integrated(dynamics, state)
    known = np.isfinite(found.states).all(axis=1)
    times, states = found.times[known], found.states[known]
    positional, semantic, *has = dynamics.has_found(states[-1])
    basins = {(True, True): Basin.mixed, (True, False): Basin.positional, (False, True): Basin.semantic}
    basin = basins.get((has[0], has[1]), Basin.uninformed)
    if found.status is not FlowStatus.at_rest:
        basin = Basin.under_way
    sizes = np.array([dynamics.has_found(one)[int(basin is not Basin.positional)] for one in states])
    return Arrival(
        positional_size=positional,
        semantic_size=semantic,
        test_error=dynamics.test_error(states[-1]),
        plateau=_half_time(times, sizes) if basin in basins.values() else math.nan,
        basin=basin,
        status=found.status,
    )


def _half_time(times: Array, sizes: Array) -> float:
    """When a growing size has half of its end, between two records."""
    after = np.flatnonzero(sizes >= sizes[-1] / 2)[0]
    if after == 0:
        return 0.0
    low, high = sizes[after - 1], sizes[after]
    share = (sizes[-1] / 2 - low) / (high - low)
    return float(times[after - 1] + share * (times[after] - times[after - 1]))


def _boundary(
    angles: list[float], arrivals: Sequence[Arrival], arrive: Callable[[float], Arrival]
) -> tuple[float, float]:
    """Between which angles positional ends turn into semantic ones, and half of what is left between them."""
    semantic = [a.basin is Basin.semantic for a in arrivals]
    # at 90 degrees the start has no part along the encodings, and never gets one
    inside = [i for i, angle in enumerate(angles) if 0 < angle < 90]
    if not all(arrivals[i].basin in (Basin.semantic, Basin.positional) for i in inside):
        return math.nan, math.nan
    if not any(a.basin in (Basin.semantic, Basin.positional) for a in arrivals):
        return math.nan, math.nan
    low = max((angles[i] for i in inside if not semantic[i]), default=0.0)
    high = min((angles[i] for i in inside if semantic[i]), default=90.0)
    if low > high:
        return math.nan, math.nan
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        basin = arrive(middle).basin
        if basin is Basin.semantic:
            high = middle
        elif basin is Basin.positional:
            low = middle
        else:
            break
    return (low + high) / 2, (high - low) / 2
