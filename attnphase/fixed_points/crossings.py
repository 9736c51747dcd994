"""Sample complexities at which branches cross: scanned, bracketed and refined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from attnphase.fixed_points.branches import follow
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.fixed_points.threshold import NOT_FOUND, Threshold
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Tell

__all__ = [
    "baseline_difference",
    "crossing",
    "loss_difference",
    "thresholds_of",
    "usual_cost",
]


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
_SCANNED = 15  # sample complexities
_REFINED_POINTS = 4096  # per replicate: the same nodes for all alpha, so that the difference is smooth
_REFINED_SOLVES = 12  # of one omega, as a rule
_REFINED_COST = 10  # of one of them, in solves of the scan; for the progress only


def _refined(
    problem: Problem, bracket: tuple[float, float], difference: Callable[[Problem, float], tuple[float, float]]
) -> Threshold:
    """Secant steps inside a bracket, with many fixed nodes, or those of a rule that has no others.

    Where the steps run out before they have settled, the last one is part of the error.
    """
    fine = problem
    if problem.integration.form.refines:
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


def usual_cost() -> float:
    """What `thresholds_of` advances by, as a rule, in solves of the scan."""
    return 2 * _SCANNED + _REFINED_SOLVES * _REFINED_COST


def thresholds_of(
    problem: Problem,
    between: tuple[float, float],
    settings: SolverSettings | None,
    advance: Callable[[float], None],
    tell: Tell,
) -> tuple[Threshold, Threshold]:
    """Where the losses of the semantic and the positional branch cross, and the semantic one passes the baseline.

    Parameters
    ----------
    problem : Problem
    between : (float, float)
        Range of sample complexities searched.
    settings : SolverSettings or None
        Of the refinement; the scan's tolerance is its own.
    advance : callable
        Is told how much more is done, see `usual_cost`.
    tell : callable
        Is told what is being done.
    """
    alphas = np.linspace(*between, _SCANNED)
    rough = problem.with_fields({"integration.rule": "sobol", "integration.nodes": _SCAN_POINTS})
    # a crossing asks for no order parameters
    exact = replace(settings or SolverSettings(), stability=False, identity=False)
    quick = replace(exact, tolerance=1e-6, max_maps=100)
    semantic, positional = (
        follow(rough, list(alphas), branch, settings=quick, on_point=lambda _: advance(1), tell=tell)
        for branch in ("semantic", "positional")
    )
    by_loss = [loss_difference(s, p) for s, p in zip(semantic, positional, strict=True)]
    by_baseline = [baseline_difference(s) for s in semantic]

    def at(points: list[BranchPoint], x: float) -> BranchPoint:
        return points[int(np.abs(alphas - x).argmin())]

    def refined(fine: Problem, x: float, branch: str, scan: list[BranchPoint]) -> BranchPoint:
        point = solve_point(fine, x, branch, start=at(scan, x), settings=exact, tell=tell)
        advance(_REFINED_COST)
        return point

    def loss_at(fine: Problem, x: float) -> tuple[float, float]:
        return loss_difference(refined(fine, x, "semantic", semantic), refined(fine, x, "positional", positional))

    def baseline_at(fine: Problem, x: float) -> tuple[float, float]:
        return baseline_difference(refined(fine, x, "semantic", semantic))

    results = []
    for scan, difference in ((by_loss, loss_at), (by_baseline, baseline_at)):
        first = crossing(list(alphas), [d for d, _ in scan], [e for _, e in scan])
        if not first.found:
            results.append(NOT_FOUND)
            continue
        half = max(4 * first.standard_error, 0.02 * first.alpha)
        results.append(_refined(problem, (first.alpha - half, first.alpha + half), difference))
    return results[0], results[1]
