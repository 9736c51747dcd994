"""Branches of fixed points: continuation in the sample complexity, and the thresholds between branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from attnphase import arguments
from attnphase.errors import ProblemError
from attnphase.fixed_points.iteration import Status
from attnphase.fixed_points.settings import SolverSettings, omegas, sample_complexities
from attnphase.fixed_points.solver import SMALL_SIGNAL, BranchPoint, probe, solve_point
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Tell, progress_line, silent, within
from attnphase.spectrum.measure import Spectrum
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.starts import informed_signal, initial_overlaps

__all__ = ["Threshold", "absences", "absent", "crossing", "follow", "thresholds"]


def follow(
    problem: Problem,
    alphas: Sequence[float],
    branch: str,
    *,
    settings: SolverSettings | None = None,
    on_point: Callable[[BranchPoint], None] | None = None,
    tell: Tell = silent,
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
    tell : callable, optional
        Is told how far each iteration is.

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
        point = solve_point(problem, alphas[index], branch, start=start, settings=settings, tell=tell)
        if isinstance(start, BranchPoint) and not _lost(start) and point.status is not Status.converged:
            fresh = solve_point(problem, alphas[index], branch, settings=settings, tell=tell)
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


_ZERO = 3.0  # standard errors within which an order parameter counts as zero
_ORDER_PARAMETERS = {"semantic": ("theta",), "positional": ("m",), "uninformed": (), "mixed": ("m", "theta")}


def absent(ds: xr.Dataset, problem: Problem) -> xr.DataArray:
    """Where a branch does not exist: what makes a fixed point one of that branch vanishes at the one that was found.

    Parameters
    ----------
    ds : xarray.Dataset
        Points, of one branch or of several.
    problem : Problem
        Whose points they are; where a field is swept, any of its problems.

    Returns
    -------
    xarray.DataArray
        Over the swept dimensions.
    """
    found = xr.zeros_like(ds["status"], dtype=bool)
    for branch in map(str, np.atleast_1d(ds["branch"].to_numpy())):
        for name in _ORDER_PARAMETERS[branch]:
            found = found | ((ds["branch"] == branch) & _vanishes(ds, name, problem, branch))
    return found


def _vanishes(ds: xr.Dataset, name: str, problem: Problem, branch: str) -> xr.DataArray:
    """Whether every entry of m or theta is zero: exactly, or within its error where the iteration converged."""
    size, error = abs(ds[name]), ds[f"{name}_stderr"].fillna(0.0)
    # an error as large as the branch's own order parameter says nothing
    small = SMALL_SIGNAL * float(np.abs(getattr(initial_overlaps(problem, branch), name)).max())
    allowed = xr.where(ds["status"] == Status.converged, np.minimum(_ZERO * error, small), 0.0)
    inner = [dim for dim in size.dims if dim not in ds["status"].dims]
    # clusters that a token does not have are NaN, and a point that was not computed is nothing but NaN
    return ((size <= allowed) | size.isnull()).all(inner) & size.notnull().any(inner)


def absences(ds: xr.Dataset, problem: Problem) -> dict[str, str]:
    """A sentence for every branch that does not exist at one sample complexity, by the branch's name; see `absent`."""
    sentences = {}
    for branch in map(str, np.atleast_1d(ds["branch"].to_numpy())):
        point = ds.sel(branch=branch) if "branch" in ds.dims else ds
        zero = [name for name in _ORDER_PARAMETERS[branch] if bool(_vanishes(point, name, problem, branch))]
        if zero:
            what, own = " and ".join(f"{name} = 0" for name in zero), "its error" if len(zero) == 1 else "their errors"
            found = "uninformed"
            if branch == "mixed" and len(zero) == 1:
                found = "semantic" if zero == ["m"] else "positional"
            sentences[branch] = f"{branch}: {what} within {own}; no such branch here: this is the {found} point."
    return sentences


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
_SCANNED = 15  # sample complexities
_REFINED_POINTS = 4096  # per replicate: the same nodes for all alpha, so that the difference is smooth
_REFINED_SOLVES = 12  # of one omega, as a rule
_REFINED_COST = 10  # of one of them, in solves of the scan; for the progress only


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
    omega: float | Sequence[float],
    *,
    alpha: tuple[float, float] = (0.2, 3.0),
    settings: SolverSettings | None = None,
    on_step: Callable[[], None] | None = None,
    progress: bool = False,
) -> xr.Dataset:
    """Thresholds of the phase diagram, with standard errors.

    ``alpha_c``: the training losses of the semantic and the positional branch cross. ``alpha_l``: the test error of the
    semantic branch falls below that of the linear baseline.

    Parameters
    ----------
    problem : Problem
        Its ``teacher.omega`` is replaced.
    omega : float or sequence of float
        Distinct, from 0 to 1.
    alpha : (float, float)
        Range searched.
    settings : SolverSettings, optional
    on_step : callable, optional
        Called after each omega.
    progress : bool
        Show a bar on standard error.

    Returns
    -------
    xarray.Dataset
        ``alpha_c``, ``alpha_l`` and ``alpha_c_stderr``, ``alpha_l_stderr`` over ``omega``; NaN where the range holds no
        crossing.

    Raises
    ------
    ProblemError
        An argument is wrong; the message names it.
    """
    from attnphase.data.build import from_thresholds

    arguments.instance("problem", problem, Problem)
    omega = omegas("omega", omega)
    low, high = _range(alpha)
    settings = None if settings is None else arguments.instance("settings", settings, SolverSettings)
    if on_step is not None:
        arguments.function("on_step", on_step)
    found: dict[str, list[Threshold]] = {"alpha_c": [], "alpha_l": []}
    problems = [problem.with_fields({"teacher.omega": value}) for value in omega]
    alphas = np.linspace(low, high, _SCANNED)
    cost = 2 * len(alphas) + _REFINED_SOLVES * _REFINED_COST
    with progress_line(progress, "solving", total=cost * len(problems)) as line:
        for i, one in enumerate(problems):

            def advance(steps: float, end: float = cost * (i + 1)) -> None:
                line.done = min(line.done + steps, end)

            tell = within(f"omega = {one.teacher.omega:g}", line.tell)
            at_loss, at_baseline = _thresholds_of(one, alphas, settings, advance, tell)
            line.done = cost * (i + 1)
            found["alpha_c"].append(at_loss)
            found["alpha_l"].append(at_baseline)
            if on_step is not None:
                on_step()
    values = {name: [t.alpha for t in thresholds_] for name, thresholds_ in found.items()}
    errors = {name: [t.standard_error for t in thresholds_] for name, thresholds_ in found.items()}
    return from_thresholds(problem, omega, values, errors, "sobol")


def _range(alpha: Any) -> tuple[float, float]:
    ends = sample_complexities("alpha", alpha)
    if len(ends) != 2 or ends[0] >= ends[1]:
        raise ProblemError(
            "alpha", f"alpha must be an increasing pair of positive numbers, not {arguments.shown(alpha)}."
        )
    return ends[0], ends[1]


def _thresholds_of(
    problem: Problem,
    alphas: np.ndarray,
    settings: SolverSettings | None,
    advance: Callable[[float], None],
    tell: Tell,
) -> tuple[Threshold, Threshold]:
    rough = problem.with_fields({"integration.rule": "sobol", "integration.nodes": _SCAN_POINTS})
    quick = replace(settings or SolverSettings(), tolerance=1e-6, max_maps=100)
    semantic, positional = (
        follow(rough, list(alphas), branch, settings=quick, on_point=lambda _: advance(1), tell=tell)
        for branch in ("semantic", "positional")
    )
    by_loss = [loss_difference(s, p) for s, p in zip(semantic, positional, strict=True)]
    by_baseline = [baseline_difference(s) for s in semantic]

    def at(points: list[BranchPoint], x: float) -> BranchPoint:
        return points[int(np.abs(alphas - x).argmin())]

    def refined(fine: Problem, x: float, branch: str, scan: list[BranchPoint]) -> BranchPoint:
        point = solve_point(fine, x, branch, start=at(scan, x), settings=settings, tell=tell)
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
