"""Sample complexities at which branches cross: scanned, bracketed and refined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, takewhile

import numpy as np

from attnphase.fixed_points.branches import follow
from attnphase.fixed_points.iteration import Status
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.fixed_points.threshold import NOT_FOUND, Outcome, Threshold
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Tell
from attnphase.state_evolution.branches import Identity
from attnphase.state_evolution.starts import informed_signal
from attnphase.state_evolution.system import System

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
        Values and standard errors; NaN where unknown, and no crossing is known beside such a one.
    """
    a, d, e = (np.asarray(x, dtype=float) for x in (alpha, difference, error))
    known = np.isfinite(d) & np.isfinite(e)
    changes = np.flatnonzero(known[:-1] & known[1:] & (d[:-1] > 0) & (d[1:] <= 0))
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
_HALVINGS = 6  # of a gap between two of them on a logarithmic scale, down to 1/64 of it
_SECANTS = 4
_REFINED_POINTS = 4096  # per replicate: the same nodes for all alpha, so that the difference is smooth
_REFINED_SOLVES = 12  # of one omega, as a rule
_REFINED_COST = 10  # of one of them, in solves of the scan; for the progress only
_CLEAR = 3.0  # standard errors: chance gives one of 700 differences the wrong sign by as much


@dataclass(frozen=True)
class Sample:
    """The difference of two quantities at one sample complexity.

    Attributes
    ----------
    alpha : float
    value, error : float
        The difference and its standard error; NaN where a point did not converge.
    flaw : Threshold or None
        Why no threshold may rest on it; None where each point is converged and on its own branch.
    all_merged : bool
        Whether the points of both its branches are the uninformed one, so that there is no difference.
    """

    alpha: float
    value: float
    error: float
    flaw: Threshold | None = None
    all_merged: bool = False

    @property
    def sign(self) -> int:
        """Of the difference, zero where it is within its error."""
        return int(np.sign(self.value)) if abs(self.value) > _CLEAR * self.error else 0


def sample_of(points: Sequence[BranchPoint], difference: Callable[..., tuple[float, float]]) -> Sample:
    """A difference of the points of some branches at one sample complexity, and whether it may be relied on."""
    flaws = [flaw for flaw in map(_flaw, points) if flaw is not None]
    # that there is no branch is known, whatever else is not
    flaws.sort(key=lambda flaw: flaw.outcome is not Outcome.no_branch)
    converged = all(point.status is Status.converged for point in points)
    value, error = difference(*points) if converged else (np.nan, np.nan)
    all_merged = len(points) > 1 and [flaw.outcome for flaw in flaws] == [Outcome.no_branch] * len(points)
    return Sample(points[0].alpha, value, error, flaws[0] if flaws else None, all_merged)


def _flaw(point: BranchPoint) -> Threshold | None:
    """Why a point is not known to be one of its branch; None where it is."""
    at = f"at alpha = {point.alpha:.4g}"
    if point.status is not Status.converged:
        return Threshold.absent(Outcome.unsettled, f"the {point.branch} point {at} did not converge")
    if point.on_branch is Identity.merged:
        return Threshold.absent(Outcome.no_branch, f"there is no {point.branch} branch {at}")
    if point.on_branch is not Identity.on_branch or informed_signal(point.restart.overlaps, point.branch) == 0:
        return Threshold.absent(Outcome.unsettled, f"whether there is a {point.branch} branch {at} is not decided")
    return None


def bracketed(samples: Sequence[Sample], sample: Callable[[float], Sample]) -> tuple[Sample, Sample] | Threshold:
    """The samples between which a difference falls through zero at the largest alpha.

    Where a branch ends between two samples, the gap is halved until the crossing is met or the end is known.

    Parameters
    ----------
    samples : sequence of Sample
        By rising alpha.
    sample : callable
        The difference at another alpha.

    Returns
    -------
    The two samples without flaws, the first positive and the second negative; or why there are none.
    """
    known = [one for one in samples if one.flaw or one.sign]
    hidden: list[Threshold] = []
    for i, (low, high) in reversed(list(enumerate(pairwise(known)))):
        found = None
        if low.flaw is None and high.flaw is None:
            found = (low, high) if low.sign > high.sign else None
        elif high.flaw is None and high.sign < 0:
            found = _in_gap(high, known[i::-1], sample)
        elif low.flaw is None and low.sign > 0:
            found = _in_gap(low, known[i + 1 :], sample)
        elif low.flaw and high.flaw and low.sign > 0:
            after = next((one for one in known[i + 1 :] if one.sign), None)
            if after is not None and after.flaw and after.sign < 0:
                found = _among_flaws(low, after, sample)
        if isinstance(found, Threshold):
            hidden.append(found)
        elif found is not None:
            return found
    if not hidden and all(one.flaw for one in known):
        return _no_samples(samples)
    if hidden:
        return min(hidden, key=lambda found: found.outcome is not Outcome.unsettled)
    first, last = samples[0], samples[-1]
    for end, low, high in ((first, first, known[0]), (last, known[-1], last)):
        if end.flaw is None and not end.sign and low.sign >= high.sign:
            reason = f"the difference at alpha = {end.alpha:.4g}, where the range ends, is within its error"
            return Threshold.absent(Outcome.unsettled, reason)
    reason = f"the difference falls through zero nowhere from alpha = {first.alpha:.4g} to {last.alpha:.4g}"
    return Threshold.absent(Outcome.outside_range, reason)


def _in_gap(
    good: Sample, beyond: Sequence[Sample], sample: Callable[[float], Sample]
) -> tuple[Sample, Sample] | Threshold:
    """The samples about a crossing between a clear sample and one with a flaw; or why there are none.

    Parameters
    ----------
    beyond : sequence of Sample
        Those on the other side of the gap, the nearest first.
    """
    sign, clear, bad = good.sign, good, beyond[0]
    flawed = list(takewhile(lambda one: one.flaw is not None, beyond))  # the nearest first
    for _ in range(_HALVINGS):
        here = sample(float(np.sqrt(good.alpha * bad.alpha)))
        if here.flaw is not None:
            bad = here
            flawed.insert(0, here)
        elif here.sign == -sign:
            return (here, clear) if sign < 0 else (clear, here)
        else:
            good, clear = here, here if here.sign else clear
    # where the branches merge before the difference changes sign, it changes sign nowhere
    changes = any(one.sign == -sign for one in takewhile(lambda one: one.sign != sign, flawed))
    assert bad.flaw is not None
    ends = [one.flaw for one in flawed if one.flaw is not None and one.flaw.outcome is Outcome.no_branch]
    if ends and not (changes and (good is not clear or bad.flaw.outcome is Outcome.unsettled)):
        return ends[0]
    low, high = sorted((clear.alpha, bad.alpha))
    reason = f"a crossing may lie between alpha = {low:.4g} and {high:.4g}, but {bad.flaw.reason}"
    return Threshold.absent(Outcome.unsettled, reason)


def _among_flaws(low: Sample, high: Sample, sample: Callable[[float], Sample]) -> tuple[Sample, Sample] | Threshold:
    """The same between a positive and a negative sample that both have flaws: a branch may begin before one ends."""
    for _ in range(_HALVINGS):
        here = sample(float(np.sqrt(low.alpha * high.alpha)))
        if here.flaw is None and here.sign:
            return _in_gap(here, [low if here.sign < 0 else high], sample)
        if here.flaw is None:
            break
        if here.all_merged:
            return here.flaw
        low, high = (here, high) if here.value > 0 else (low, here)
    between = f"between alpha = {low.alpha:.4g} and {high.alpha:.4g}"
    reason = f"a crossing may lie {between}, where the branches or their difference are not known well enough"
    return Threshold.absent(Outcome.unsettled, reason)


def _no_samples(samples: Sequence[Sample]) -> Threshold:
    """Why there is no threshold where no sample can be relied on."""
    flaws = [one.flaw for one in samples if one.flaw is not None]
    if not flaws:
        return Threshold.absent(Outcome.unsettled, "the difference is within its error at each alpha of the search")
    doubtful = [flaw for flaw in flaws if flaw.outcome is Outcome.unsettled]
    changes = any(low.sign > high.sign for low, high in pairwise(one for one in samples if one.sign))
    if doubtful and (changes or len(doubtful) == len(flaws)):
        return doubtful[0]
    return Threshold.absent(Outcome.no_branch, "at no alpha of the search are the branches known to exist")


def _root(low: Sample, high: Sample) -> float:
    """Where the line through two samples is zero."""
    return low.alpha + low.value / (low.value - high.value) * (high.alpha - low.alpha)


def _by_secants(low: Sample, high: Sample, sample: Callable[[float], Sample]) -> Threshold:
    """The crossing between a positive and a negative sample, by secants that never leave the interval.

    All samples have the same nodes, hence one error. It is divided by the slope between the first two samples: between
    samples that lie within their error of zero the slope is chance. Where the steps run out, the crossing lies anywhere
    between the last two with equal right. An end that stays twice counts half (the Illinois rule), so that both move.
    """
    slope = (low.value - high.value) / (high.alpha - low.alpha)
    error = width = np.inf
    weights, stayed = {"low": 1.0, "high": 1.0}, ""
    for _ in range(_SECANTS):
        weighed = (replace(end, value=weights[name] * end.value) for name, end in (("low", low), ("high", high)))
        here = sample(_root(*weighed))
        if np.isnan(here.value):  # not converged: between its neighbours, which are, the crossing lies anywhere
            error, width = max(low.error, high.error) / slope, high.alpha - low.alpha
            break
        if here.flaw is not None:
            return _doubtful(here.flaw)
        low, high, new, stays = (here, high, "low", "high") if here.value > 0 else (low, here, "high", "low")
        weights[new], weights[stays] = 1.0, weights[stays] / 2 if stays == stayed else 1.0
        stayed = stays
        error, width = here.error / slope, high.alpha - low.alpha
        if abs(_root(low, high) - here.alpha) < 0.1 * error:
            width = 0.0
            break
    return Threshold(_root(low, high), float(np.sqrt(error**2 + width**2 / 12)))


def _doubtful(flaw: Threshold) -> Threshold:
    """Why a crossing between two points of the branches is not known, where a point between them has a flaw."""
    return Threshold.absent(Outcome.unsettled, f"a crossing may exist, but {flaw.reason}")


def _refined(
    rules: tuple[Problem, Problem], bracket: tuple[Sample, Sample], measure: Callable[[Problem, float], Sample]
) -> Threshold:
    """The crossing inside a bracket of the scan, with the second of its `_rules`."""
    rough, fine = rules
    first = _by_secants(bracket[0], bracket[1], partial(measure, rough))
    outer = [one.alpha for one in bracket]
    inner = list(outer)
    if first.found:
        half = max(4 * first.standard_error, 0.02 * first.alpha)
        inner = [max(outer[0], first.alpha - half), min(outer[1], first.alpha + half)]

    def opposed(end: Sample, sign: int) -> bool:
        # a rule without replicates has no chance in it
        return (np.sign(end.value) if rough is fine else end.sign) == sign

    ends = [measure(fine, alpha) for alpha in inner]
    for i, sign in enumerate((1, -1)):
        # the first estimate was noise: the change lies elsewhere in the bracket
        if not opposed(ends[i], sign) and inner[i] != outer[i]:
            ends[i] = measure(fine, outer[i])
    for end, sign in zip(ends, (1, -1), strict=True):
        if end.flaw is not None:
            return _doubtful(end.flaw)
        if not opposed(end, sign):
            reason = f"the difference at alpha = {end.alpha:.4g}, where the branches end, is within its error"
            return Threshold.absent(Outcome.unsettled, reason)
    return _by_secants(ends[0], ends[1], partial(measure, fine))


def _rules(problem: Problem, settings: SolverSettings) -> tuple[Problem, Problem]:
    """The problem with the nodes of the scan, and with those of the refinement; with its own if it has no others.

    Its own are those of the refinement, too, where they are lines: the difference is smooth, and no number random.
    """
    if not problem.integration.form.refines:
        return problem, problem
    rough, fine = (
        problem.with_fields({"integration.rule": "sobol", "integration.nodes": nodes})
        for nodes in (_SCAN_POINTS, _REFINED_POINTS)
    )
    own = System.of(problem).refinement_of_solve(settings.max_nodes)
    return rough, problem if own.name == "lines" else fine


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
    # a crossing asks for no replicon, but on which branch its points are
    exact = replace(settings or SolverSettings(), stability=False, identity=True)
    (rough, fine), alphas = _rules(problem, exact), np.geomspace(*between, _SCANNED).tolist()
    quick = replace(exact, tolerance=1e-6)
    scan = [
        follow(rough, alphas, branch, settings=quick, on_point=lambda _: advance(1), tell=tell)
        for branch in ("semantic", "positional")
    ]

    def located(lines: list[list[BranchPoint]], difference: Callable[..., tuple[float, float]]) -> Threshold:
        def measure(one: Problem, alpha: float) -> Sample:
            points = []
            for line in lines:
                near = sorted(line, key=lambda point: abs(point.alpha - alpha))
                start = next((point for point in near if _flaw(point) is None), None)
                asked, cost = (quick, 1) if one == rough else (exact, _REFINED_COST)
                point = solve_point(one, alpha, line[0].branch, start=start, settings=asked, tell=tell)
                if start is not None and point.status is not Status.converged:
                    point = solve_point(one, alpha, line[0].branch, settings=asked, tell=tell)
                points.append(point)
                advance(cost)
            return sample_of(points, difference)

        def clear(one: Sample) -> Sample:
            # more nodes tell a sign that few leave open
            return one if one.flaw or one.sign else measure(fine, one.alpha)

        samples = [sample_of(points, difference) for points in zip(*lines, strict=True)]
        bracket = bracketed([clear(one) for one in samples], lambda alpha: clear(measure(rough, alpha)))
        return bracket if isinstance(bracket, Threshold) else _refined((rough, fine), bracket, measure)

    baseline = scan[0][0].values["linear_test_error"]
    at_loss = located(scan, loss_difference)
    if np.isnan(baseline):
        return at_loss, Threshold.absent(Outcome.outside_range, "the linear predictor is not defined for this loss")
    return at_loss, located(scan[:1], baseline_difference)
