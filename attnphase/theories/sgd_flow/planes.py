"""Which stationary point a small start leads to, and how long it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from attnphase.arrays import Array
from attnphase.integration.rules import Rule
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Callback, silent
from attnphase.state_evolution.sizes import Sizes
from attnphase.theories.sgd_flow.rates import Dynamics
from attnphase.theories.sgd_flow.settings import Basin, FlowSettings, FlowStatus
from attnphase.theories.sgd_flow.slopes import first_rule, gauges_of, is_smooth, replicates_of, system_of
from attnphase.theories.sgd_flow.trajectory import error_of, integrated, started

__all__ = ["Arrival", "Memory", "Plane", "follow_plane"]

BISECTIONS = 8
_SIDES = (Basin.semantic, Basin.positional)


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
        0 where it is from all, NaN where there is no such angle.
    uncertainty : float
        Half of the interval in which it lies and what the rule changes, as independent errors.
    without : str
        Why there is no boundary; empty where there is one.
    """

    arrivals: tuple[Arrival, ...]
    boundary: float
    uncertainty: float
    without: str = ""


Memory = Callable[[str, float, Callable[[], Arrival]], Arrival]
"""Where a start leads under a rule of this name, by its angle: known from before, or followed by the function."""

_Ends = Callable[[float], Basin]


def follow_plane(
    problem: Problem,
    settings: FlowSettings,
    start: Sizes,
    angles: Sequence[float],
    remembered: Memory,
    callback: Callback = silent,
) -> Plane:
    """Follow starts of one size from all angles, in degrees from the encodings' direction to the teacher's.

    Parameters
    ----------
    problem : Problem
    settings : FlowSettings
    start : Sizes
        With the size as its semantic part, which every angle shares out.
    angles : sequence of float
    remembered : callable
        Has the start of an angle followed, unless it was before.
    callback : callable, optional

    Raises
    ------
    ProblemError
        There are no encodings.
    """
    system = system_of(problem, callback)
    rules, smooth = system.refinement(settings.max_nodes), is_smooth(system)
    finest = first_rule(rules, smooth)
    gauges = gauges_of(rules, finest, smooth)

    def arrive(rule: Rule, angle: float, part: str = "") -> Arrival:
        name = f"{rule.name}, {rule.size} nodes{part}"

        def follow() -> Arrival:
            callback(f"angle {angle:g}, {name}")
            # a sine of rounding size would be a part along the teacher
            along, across = (0.0 if abs(x) < 1e-15 else x for x in (math.sin(math.radians(angle)), _cosine(angle)))
            own = Sizes(semantic=start.semantic * along, positional=start.semantic * across, noise=start.noise)
            return arrival_from(*started(system, own, settings, rule))

        return remembered(name, angle, follow)

    def ends(rule: Rule, part: str = "") -> _Ends:
        return lambda angle: arrive(rule, angle, part).basin

    # where a start leads needs fewer nodes than where it is at every time: only the boundary is looked at with all
    first, *further = [gauge.rule for gauge in gauges] or [finest]
    parts = [ends(rule) for rule in (finest, *further)]
    if not gauges:
        parts = [ends(part, f" of replicate {number}") for number, part in enumerate(replicates_of(finest), 1)]
    arrivals = [arrive(first, angle) for angle in angles]
    bracket = _bracket(list(angles), arrivals)
    if isinstance(bracket, str):
        return Plane(tuple(arrivals), math.nan, math.nan, bracket)
    low, high = _bisected(*bracket, (bracket[1] - bracket[0]) / 2**BISECTIONS, ends(first))
    middle, half = (low + high) / 2, (high - low) / 2
    intervals = [one for one in (_beside(middle, 2 * half, of_part) for of_part in parts) if one is not None]
    if len(intervals) < len(parts):
        without = f"under a finer rule starts about {middle:.2f} degrees end neither semantic nor positional"
        return Plane(tuple(arrivals), math.nan, math.nan, without)
    found = [(low + high) / 2 for low, high in intervals]
    half = max(half, *((high - low) / 2 for low, high in intervals))
    at = [np.array(place) for place in found]
    if not gauges:
        return Plane(tuple(arrivals), middle, math.hypot(half, float(error_of(at[0], at, gauges))))
    error = float(error_of(at[0], [np.array(middle), *at[1:]], gauges))
    return Plane(tuple(arrivals), found[0], math.hypot(half, error))


def _cosine(angle: float) -> float:
    return math.cos(math.radians(angle))


def arrival_from(dynamics: Dynamics, state: Array) -> Arrival:
    found = integrated(dynamics, state)
    known = np.isfinite(found.states).all(axis=1)
    times, states = found.times[known], found.states[known]
    positional, semantic, *has = dynamics.has_found(states[-1])
    basins = {(True, True): Basin.mixed, (True, False): Basin.positional, (False, True): Basin.semantic}
    basin = basins.get((has[0], has[1]), Basin.uninformed)
    if found.status not in (FlowStatus.at_rest, FlowStatus.at_saddle):
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


def _bracket(angles: list[float], arrivals: Sequence[Arrival]) -> tuple[float, float] | str:
    """Between which angles positional ends turn into semantic ones; where the basins are other ones, which."""
    semantic = [a.basin is Basin.semantic for a in arrivals]
    # at 90 degrees the start has no part along the encodings, and never gets one
    inside = [i for i, angle in enumerate(angles) if 0 < angle < 90]
    for i in inside:
        if arrivals[i].basin not in _SIDES:
            return f"the start at {angles[i]:g} degrees ends {arrivals[i].basin.name}"
    if not any(a.basin in _SIDES for a in arrivals):
        return "no start ends semantic or positional"
    low = max((angles[i] for i in inside if not semantic[i]), default=0.0)
    high = min((angles[i] for i in inside if semantic[i]), default=90.0)
    if low > high:
        return f"the start at {low:g} degrees ends positional, but that at {high:g} semantic"
    return low, high


def _bisected(low: float, high: float, width: float, ends: _Ends) -> tuple[float, float]:
    """The interval halved until it is so narrow, or a start ends elsewhere."""
    while high - low > width * (1 + 1e-9):
        middle = (low + high) / 2
        basin = ends(middle)
        if basin not in _SIDES:
            break
        low, high = (low, middle) if basin is Basin.semantic else (middle, high)
    return low, high


def _beside(middle: float, width: float, ends: _Ends) -> tuple[float, float] | None:
    """Where the boundary is under another rule, to the same width if it can be; None if it has none beside the first's.

    A start that creeps past the saddle on the boundary is at rest there as far as can be told, and mixed: it is on
    neither side, so that the interval goes on to the next starts that are.
    """
    low, high, step = middle - width / 2, middle + width / 2, width
    while low > 0 and (basin := ends(low)) in (Basin.semantic, Basin.mixed):
        low, high, step = low - step, low if basin is Basin.semantic else high, 2 * step
    step = width
    while high < 90 and (basin := ends(high)) in (Basin.positional, Basin.mixed):
        low, high, step = high if basin is Basin.positional else low, high + step, 2 * step
    low, high = max(low, 0.0), min(high, 90.0)
    if any(ends(angle) not in _SIDES for angle in (low, high) if 0 < angle < 90):
        return None
    return _bisected(low, high, width, ends)
