"""Branches of fixed points: continuation in the sample complexity, and the thresholds between branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from attnphase.errors import ProblemError
from attnphase.fixed_point import Status
from attnphase.overlaps import Overlaps
from attnphase.problem import Problem
from attnphase.solve import BranchPoint, SolverSettings, probe, solve_point
from attnphase.spectrum import Spectrum
from attnphase.starts import informed_signal, initial_overlaps

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Threshold", "crossing", "follow", "thresholds"]


def follow(
    problem: Problem,
    alphas: Sequence[float],
    branch: str,
    *,
    settings: SolverSettings | None = None,
    on_point: Callable[[BranchPoint], None] | None = None,
) -> list[BranchPoint]:
    """One branch over a list of sample complexities, each point started from its neighbour.

    The line begins at the largest alpha, where the informed branches are most stable, and goes downwards. A neighbour
    that did not converge is not continued: the next point then starts afresh.

    Parameters
    ----------
    alphas : sequence of float
        In any order.
    on_point : callable, optional
        Called with every point as it is solved.

    Returns
    -------
    list of BranchPoint
        In the order of `alphas`.
    """
    settings = settings or SolverSettings()
    points: dict[int, BranchPoint] = {}
    before: BranchPoint | None = None
    previous: BranchPoint | None = None
    for index in sorted(range(len(alphas)), key=lambda i: -alphas[i]):
        start: BranchPoint | Overlaps | None = None
        if previous is not None and branch != "uninformed" and _lost(previous):
            # the branch ended above this alpha; it may exist again below
            start = probe(problem, alphas[index], branch, settings) or _uninformed(previous)
        elif previous is not None:
            start = _extrapolated(before, previous, alphas[index])
        point = solve_point(problem, alphas[index], branch, start=start, settings=settings)
        if isinstance(start, BranchPoint) and not _lost(start) and point.status is not Status.converged:
            fresh = solve_point(problem, alphas[index], branch, settings=settings)
            point = fresh if fresh.residual < point.residual else point
        before, previous = previous, point
        points[index] = replace(point, restart=replace(point.restart, rule=None, minima=None))
        if on_point is not None:
            on_point(points[index])
    return [points[i] for i in range(len(alphas))]


_COLLAPSED = 0.02  # an order parameter below this, relative to its start, is taken for zero


def _lost(point: BranchPoint) -> bool:
    """Whether a point of an informed branch has lost its order parameter, or was not found."""
    return point.status is not Status.converged or informed_signal(
        point.restart.overlaps, point.branch
    ) < _COLLAPSED * informed_signal(initial_overlaps(point.problem, point.branch), point.branch)


def _uninformed(point: BranchPoint) -> BranchPoint:
    """A collapsed point with m = theta = 0 exactly, to be continued among such points."""
    overlaps = point.restart.overlaps
    zeroed = replace(overlaps, m=0 * overlaps.m, theta=0 * overlaps.theta)
    return replace(point, restart=replace(point.restart, overlaps=zeroed))


def _extrapolated(before: BranchPoint | None, previous: BranchPoint | None, alpha: float) -> BranchPoint | None:
    """The previous point with its overlaps moved along the line through the last two, where that is feasible."""
    if before is None or previous is None or before.alpha == previous.alpha:
        return previous
    step = (alpha - previous.alpha) / (previous.alpha - before.alpha)
    old, new = before.restart.overlaps, previous.restart.overlaps
    moved = Overlaps(
        *(b + step * (b - a) for a, b in ((old.q, new.q), (old.V, new.V), (old.m, new.m), (old.theta, new.theta)))
    )
    if not moved.feasible(Spectrum.of(previous.problem).rho) or np.linalg.eigvalsh(moved.q).min() <= 0:
        return previous
    return replace(previous, restart=replace(previous.restart, overlaps=moved))


@dataclass(frozen=True)
class Threshold:
    """A sample complexity at which a difference of two quantities changes sign.

    Attributes
    ----------
    alpha : float
        Where; NaN if there is no sign change in the range searched.
    standard_error : float
        The difference's standard error over its slope; NaN likewise.
    """

    alpha: float
    standard_error: float

    @property
    def found(self) -> bool:
        """Whether there is a sign change."""
        return bool(np.isfinite(self.alpha))


NOT_FOUND = Threshold(float("nan"), float("nan"))


def crossing(alpha: Sequence[float], difference: Sequence[float], error: Sequence[float]) -> Threshold:
    """Where a sampled difference changes from positive to negative, by linear interpolation.

    The change at the largest alpha counts: at small alpha all branches merge and the difference is noise around zero.

    Parameters
    ----------
    alpha : sequence of float
        Increasing.
    difference, error : sequences of float
        Values and standard errors; NaN where unknown.
    """
    a, d, e = (np.asarray(x, dtype=float) for x in (alpha, difference, error))
    known = np.isfinite(d) & np.isfinite(e)
    a, d, e = a[known], d[known], e[known]
    changes = np.flatnonzero((d[:-1] > 0) & (d[1:] <= 0))
    if len(changes) == 0:
        return NOT_FOUND
    i = int(changes[-1])
    slope = (d[i + 1] - d[i]) / (a[i + 1] - a[i])
    weight = -d[i] / (d[i + 1] - d[i])
    spread = np.hypot((1 - weight) * e[i], weight * e[i + 1])
    return Threshold(float(a[i] + weight * (a[i + 1] - a[i])), float(spread / abs(slope)))


def loss_difference(semantic: BranchPoint, positional: BranchPoint) -> tuple[float, float]:
    """Training loss of the semantic minus that of the positional branch, and its standard error."""
    values = semantic.values["training_loss"] - positional.values["training_loss"]
    return values, float(np.hypot(semantic.errors["training_loss"], positional.errors["training_loss"]))


def baseline_difference(semantic: BranchPoint) -> tuple[float, float]:
    """Test error of the semantic branch minus that of the linear baseline, and its standard error."""
    value = semantic.values["test_error"] - semantic.values["linear_test_error"]
    return value, float(np.hypot(semantic.errors["test_error"], semantic.errors["linear_test_error"]))


_SCAN_POINTS = 256  # per replicate, for the scan that brackets a threshold
_REFINED_POINTS = 4096  # per replicate: the same nodes for all alpha, so that the difference is smooth


def _refined(
    problem: Problem, bracket: tuple[float, float], difference: Callable[[Problem, float], tuple[float, float]]
) -> Threshold:
    """Secant steps inside a bracket, with many fixed nodes.

    Where the steps run out before they have settled, the last one is part of the error.
    """
    fine = problem.with_fields({"integration.rule": "sobol", "integration.nodes": _REFINED_POINTS})
    low, high = bracket
    ends = [(x, *difference(fine, x)) for x in bracket]
    moved = 0.0
    threshold = NOT_FOUND
    for _ in range(4):
        ends.sort()
        found = crossing([x for x, _, _ in ends], [d for _, d, _ in ends], [e for _, _, e in ends])
        if not found.found:
            # the scan's bracket was noise: the change lies just outside
            low, high = low - (high - low), high + (high - low)
            if low <= 0:
                return threshold
            ends += [(x, *difference(fine, x)) for x in (low, high)]
            continue
        if threshold.found:
            moved = abs(found.alpha - threshold.alpha)
            if moved < 0.1 * found.standard_error:
                return found
        threshold = found
        ends.append((found.alpha, *difference(fine, found.alpha)))
    return replace(threshold, standard_error=float(np.hypot(threshold.standard_error, moved)))


def thresholds(
    problem: Problem,
    omega: Sequence[float],
    *,
    alpha: tuple[float, float] = (0.2, 3.0),
    settings: SolverSettings | None = None,
    on_step: Callable[[], None] | None = None,
) -> xr.Dataset:
    """Thresholds of the phase diagram, with standard errors.

    ``alpha_c``: the training losses of the semantic and the positional branch cross. ``alpha_l``: the test error of the
    semantic branch falls below that of the linear baseline.

    Parameters
    ----------
    problem : Problem
        Its ``teacher.omega`` is replaced.
    omega : sequence of float
    alpha : (float, float)
        Range searched.
    settings : SolverSettings, optional
    on_step : callable, optional
        Called after each omega.

    Returns
    -------
    xarray.Dataset
        ``alpha_c``, ``alpha_l`` and ``alpha_c_stderr``, ``alpha_l_stderr`` over ``omega``; NaN where the range holds no
        crossing.
    """
    from attnphase.dataset import from_thresholds

    low, high = alpha
    if not (0 < low < high and np.isfinite(high)):
        raise ProblemError("alpha", f"alpha must be an increasing pair of positive numbers, not {alpha}.")
    if len(omega) == 0:
        raise ProblemError("omega", "omega must hold at least one value.")
    found: dict[str, list[Threshold]] = {"alpha_c": [], "alpha_l": []}
    problems = [problem.with_fields({"teacher.omega": float(value)}) for value in omega]
    for one in problems:
        at_loss, at_baseline = _thresholds_of(one, np.linspace(low, high, 15), settings)
        found["alpha_c"].append(at_loss)
        found["alpha_l"].append(at_baseline)
        if on_step is not None:
            on_step()
    values = {name: [t.alpha for t in thresholds_] for name, thresholds_ in found.items()}
    errors = {name: [t.standard_error for t in thresholds_] for name, thresholds_ in found.items()}
    return from_thresholds(problem, omega, values, errors, "sobol")


def _thresholds_of(
    problem: Problem, alphas: np.ndarray, settings: SolverSettings | None
) -> tuple[Threshold, Threshold]:
    rough = problem.with_fields({"integration.rule": "sobol", "integration.nodes": _SCAN_POINTS})
    quick = replace(settings or SolverSettings(), tolerance=1e-6, max_maps=100)
    semantic = follow(rough, list(alphas), "semantic", settings=quick)
    positional = follow(rough, list(alphas), "positional", settings=quick)
    by_loss = [loss_difference(s, p) for s, p in zip(semantic, positional, strict=True)]
    by_baseline = [baseline_difference(s) for s in semantic]

    def at(points: list[BranchPoint], x: float) -> BranchPoint:
        return points[int(np.abs(alphas - x).argmin())]

    def loss_at(fine: Problem, x: float) -> tuple[float, float]:
        s = solve_point(fine, x, "semantic", start=at(semantic, x), settings=settings)
        p = solve_point(fine, x, "positional", start=at(positional, x), settings=settings)
        return loss_difference(s, p)

    def baseline_at(fine: Problem, x: float) -> tuple[float, float]:
        return baseline_difference(solve_point(fine, x, "semantic", start=at(semantic, x), settings=settings))

    results = []
    for scan, difference in ((by_loss, loss_at), (by_baseline, baseline_at)):
        first = crossing(list(alphas), [d for d, _ in scan], [e for _, e in scan])
        if not first.found:
            results.append(NOT_FOUND)
            continue
        half = max(4 * first.standard_error, 0.02 * first.alpha)
        results.append(_refined(problem, (first.alpha - half, first.alpha + half), difference))
    return results[0], results[1]
