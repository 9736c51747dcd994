"""Stationary points of the dynamics, stable or not, and the eigenvalues of the rates' Jacobian there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.integration.rules import Rule
from attnphase.problem.problem import Problem
from attnphase.problem.units import power_of_two
from attnphase.processes.progress import Advance, Callback, silent, uncounted
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.sizes import Sizes
from attnphase.state_evolution.symmetries import ProblemSymmetry
from attnphase.theories.sgd_flow.directions import EVEN, eigenvalues
from attnphase.theories.sgd_flow.rates import Dynamics
from attnphase.theories.sgd_flow.settings import FlowSettings
from attnphase.theories.sgd_flow.slopes import Gauge, first_rule, gauges_of, is_smooth, replicates_of, system_of
from attnphase.theories.sgd_flow.trajectory import error_of, measured, started

__all__ = ["StationaryPoint", "stationary_points"]

_AT_REST = 1e-7  # speed, over the pace, at which a search has found a point
_ATTEMPTS = 3
_CLIPPED = 1e-9  # of its natural size, by which what is found may miss a covariance
_SAME = 1e-3  # share of itself by which the overlaps of two points differ that are one


@dataclass(frozen=True, eq=False)
class StationaryPoint:
    """A point where nothing moves.

    Attributes
    ----------
    values, errors : dict of str to array
        As of a `attnphase.theories.sgd_flow.trajectory.Trajectory` at one time, with ``eigenvalue`` (D,).
    eigenvalues : (D,) complex array
        By falling real part.
    residual : float
        The speed that is left, over the pace.
    pace : float
        The point's own unit of rates.
    rule : Rule
    found : int
        Searches that ended here or at a mirror image.
    """

    values: dict[str, Any]
    errors: dict[str, Any]
    eigenvalues: NDArray[np.complex128]
    residual: float
    pace: float
    rule: Rule
    found: int

    @property
    def unstable(self) -> int:
        """Directions that grow."""
        return int((self.eigenvalues.real > EVEN * self.pace).sum())


def stationary_points(
    problem: Problem,
    settings: FlowSettings,
    starts: Sequence[Sizes],
    callback: Callback = silent,
    advance: Advance = uncounted,
) -> list[StationaryPoint]:
    """All stationary points that searches from these starts lead to, by rising risk.

    Every search is a root search in the symmetry of its start, so that it ends at unstable points too. `advance` takes
    the number of searches that were begun before each.
    """
    system = system_of(problem, callback)
    rules, smooth = system.refinement(settings.max_nodes), is_smooth(system)
    rule = first_rule(rules, smooth)
    found: list[tuple[Dynamics, Array, Overlaps]] = []
    counts: list[int] = []
    for i, start in enumerate(starts):
        advance(i)
        callback(f"searching from {start.text}")
        dynamics, state = started(system, start, settings, rule)
        root = _root(dynamics, state)
        if root is None:
            continue
        overlaps = dynamics.rows.overlaps(root)[0]
        sizes = dynamics.overlap_sizes(root)
        same = [i for i, (_, _, known) in enumerate(found) if _is_image(overlaps, known, sizes, system.symmetries)]
        if same:
            counts[same[0]] += 1
            continue
        found.append((dynamics, root, overlaps))
        counts.append(1)
    gauges = gauges_of(rules, rule, smooth)
    points = [_measured(d, root, gauges, n) for (d, root, _), n in zip(found, counts, strict=True)]
    return sorted(points, key=lambda point: float(point.values["population_risk"]))


def _root(dynamics: Dynamics, state: Array) -> Array | None:
    """A state where nothing moves; None where the search ends elsewhere."""
    from scipy.optimize import root

    rows = dynamics.rows
    for _ in range(_ATTEMPTS):
        sizes, clock = power_of_two(dynamics.sizes(state)), dynamics.clock(state)

        def moved(x: Array, sizes: Array = sizes, clock: float = clock) -> Array:
            return dynamics.rate(sizes * x) / (clock * sizes)

        # rotations of the columns leave the rates unchanged, so that their Jacobian may be singular
        x = sizes * root(moved, state / sizes, method="lm", options={"ftol": 1e-14, "xtol": 1e-14}).x
        if not np.isfinite(x).all():
            return None
        state = rows.clipped(x)
        if (np.abs(x - state) <= _CLIPPED * dynamics.sizes(state)).all():
            return state if dynamics.speed(state) < _AT_REST else None
    return None


def _is_image(
    overlaps: Overlaps, known: Overlaps, sizes: dict[str, float], symmetries: Sequence[ProblemSymmetry]
) -> bool:
    """Whether two points, the first with overlaps of these sizes, are one up to an exact symmetry of the problem."""

    def near(order: Any, A: Any, B: Any, _: Any) -> bool:
        order = [*order]
        moved = {
            "q": A @ overlaps.q[order] @ A.T,
            "m": A @ overlaps.m[order],
            "theta": A @ overlaps.theta[order] @ B.T,
        }
        return all(
            float(np.abs(here - getattr(known, name)).max()) <= _SAME * sizes[name] for name, here in moved.items()
        )

    return any(near(*symmetry) for symmetry in symmetries)


def _measured(dynamics: Dynamics, state: Array, gauges: Sequence[Gauge], found: int) -> StationaryPoint:
    """A point with its errors: where the root lies under parts of the nodes, or under the gauges."""
    rule, values = dynamics.channel.rule, _record(dynamics, state)
    others = []
    for part in [gauge.rule for gauge in gauges] or replicates_of(rule):
        own = Dynamics.of(dynamics.system, part, dynamics.settings, dynamics.sector)
        root = _root(own, state)
        if root is not None:
            others.append(_record(own, root))
    errors = {name: _error(value, [other[name] for other in others], gauges) for name, value in values.items()}
    speed, pace = dynamics.speed(state), dynamics.pace(state)
    return StationaryPoint(values, errors, eigenvalues(dynamics, state), speed, pace, rule, found)


def _record(dynamics: Dynamics, state: Array) -> dict[str, Any]:
    values = {name: value[0] for name, value in measured(dynamics, state[None]).items()}
    return values | {"eigenvalue": eigenvalues(dynamics, state).real}


def _error(value: Any, others: list[Any], gauges: Sequence[Gauge]) -> Any:
    """NaN where a replicate or a gauge has no such point."""
    if len(others) < (len(gauges) or 2):
        return np.full(np.shape(value), math.nan)
    return error_of(value, others, gauges)
