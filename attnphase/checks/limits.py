"""Limits with a known answer that a problem is in, or can be written as."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attnphase.arrays import Array
from attnphase.checks.case import Case
from attnphase.checks.report import NOT_REACHED, Check
from attnphase.errors import ProblemError
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.solver import solve_point
from attnphase.integration.rules import Rule
from attnphase.kernels.local.constants import Starts
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Callback, within
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.overlaps import Overlaps

__all__ = ["reductions"]

_COARSE = 1e-2  # relative error of q
_OF_GAUSSIAN = {"ridge regression", "one cluster is a Gaussian", "equal clusters are a Gaussian"}

Reduction = Callable[[Case, Callback], Check]


def reductions(case: Case, callback: Callback) -> Iterator[Check]:
    """A problem against those that it is equal to in a limit, or against closed forms."""
    from derivations.replica.limits import Facts, reductions_of

    problem, spectrum = case.problem, case.system.spectrum
    weights, _ = problem.spectrum_atoms()
    count = spectrum.sites
    facts = Facts(
        length=problem.tokens.length,
        squared=problem.loss.form.is_squared,
        bilinear=problem.loss.form.has_grams,
        ridge=problem.regularizer.form.quadratic,
        temperature=problem.student.temperature,
        mixture=problem.tokens.has_clusters,
        isotropic=len(weights) == 1 and not spectrum.mean.any() and problem.tokens.spectrum is None,
        teacher_mean=bool(spectrum.teacher_means.any()),
        correlated=bool(spectrum.second_moments[:, :count, count:].any()),
    )
    found = reductions_of(facts)
    if not found:
        yield Check.left_out("reductions", "no limit with a known answer applies")
    for reduction in found:
        place = f"reduction: {reduction.name}"
        callback(place)
        if reduction.name in _OF_GAUSSIAN and not case.system.sample_law.gaussian:
            yield Check.left_out(place, "not tried: it is known of Gaussian fields alone")
            continue
        yield _REDUCTIONS[reduction.name](case, within(place, callback))


def _ridge_regression(case: Case, _: Callback) -> Check:
    from derivations.replica.limits import ridge_regression

    problem, point = case.problem, case.point
    values = {"alpha": point.alpha, "lambda": case.system.prior.least_ridge, "gamma": float(problem.site_variances[0])}
    values["Delta"] = problem.teacher.noise
    worst = 0.0
    for name, expression in ridge_regression().items():
        exact = float(expression.subs({s: values[str(s)] for s in expression.free_symbols}))
        error = float(np.max(point.errors.get(name, 0.0)))
        worst = max(worst, abs(float(np.ravel(point.values[name])[0]) - exact) / (5 * error + 1e-6 * abs(exact)))
    return Check.below("reduction: ridge regression", worst, 1.0, "closed form, in units of 5 standard errors + 1e-6")


def _general_route(case: Case, _: Callback) -> Check:
    problem, prior, at = case.problem, case.system.prior, case.point.restart.overlaps
    hats = case.channel_at(at).evaluate(case.point.alpha, at, Starts.COLD).conjugates.mean()
    closed = prior.overlaps(hats, lift=True)
    general = replace(prior, rows=problem.rows).overlaps(hats, lift=True)
    limit = 1e-8 if problem.columns == 1 else 1e-5 if problem.columns == 2 else 2e-2
    name = "reduction: ridge as a general regulariser"
    if closed is None or general is None:
        return Check.left_out(name, "no image on the checking nodes")
    scale = closed.scales(case.system.spectrum.rho)
    worst = float(np.max(np.abs(closed.pack() - general.pack()) / scale))
    return Check.below(name, worst, limit, f"overlaps of one map, relative; {problem.columns} columns")


def _same_map(name: str, changes: dict[str, Any], detail: str) -> Reduction:
    """Two problems that are one: the same image of the same overlaps, and the same losses.

    Not their solutions: from different starts two iterations on few nodes may settle beside each other.
    """

    def compare(case: Case, _: Callback) -> Check:
        fields = {key: value(case.problem) if callable(value) else value for key, value in changes.items()}
        try:
            other = case.turned(case.problem.with_fields(fields))
        except ProblemError as error:
            return Check.left_out(name, f"not tried: {error}")
        clusters = len(other.problem.sites) // len(case.problem.sites)
        start = case.point.restart.overlaps
        rule = case.channel_at(start).rule
        ours, theirs = applied(case, start, rule), applied(other, _repeated(start, clusters), rule)
        if ours is None or theirs is None:
            return Check.left_out(name, "no image on the checking nodes")
        expected = _repeated(ours[0], clusters)
        moved = np.abs(expected.pack() - theirs[0].pack()) / expected.scales(other.system.spectrum.rho)
        losses = np.abs(ours[1] - theirs[1]) / np.maximum(np.abs(ours[1]), 1e-12)
        return Check.below(name, float(max(moved.max(), losses.max())), 1e-9, detail)

    return compare


def _repeated(x: Overlaps, clusters: int) -> Overlaps:
    """The overlaps of every token as those of each of its clusters."""
    names = ("q", "V", "m", "theta")
    return replace(x, **{name: np.repeat(getattr(x, name), clusters, axis=0) for name in names})


def applied(case: Case, x: Overlaps, rule: Rule) -> tuple[Overlaps, Array] | None:
    """Image of overlaps under a problem's map on given nodes, with the mean envelope and the mean loss at omega."""
    channel = Channel(case.system, rule).at(x)
    passed = channel.evaluate(case.point.alpha, x, Starts.COLD)
    image = case.system.prior.overlaps(passed.conjugates.mean(), lift=True)
    if image is None:
        return None
    return image, np.array([passed.envelope.mean(), channel.loss_at_omega(x).mean()])


def solved_side(case: Case, problem: Problem, callback: Callback) -> BranchPoint:
    """A problem at a case's alpha and branch, by its own rule: what must agree does so on few nodes."""
    coarse = problem.with_fields({"integration.standard_error": max(_COARSE, problem.integration.standard_error)})
    return solve_point(coarse, case.point.alpha, case.point.branch, settings=case.settings, callback=callback)


def _clusters(count: int) -> Callable[[Problem], list[list[dict[str, float]]]]:
    def of(problem: Problem) -> list[list[dict[str, float]]]:
        sigmas = np.sqrt(problem.site_variances)
        return [[{"sigma": float(s)}] * count for s in sigmas]

    return of


def _cooled(case: Case, callback: Callback) -> Check:
    name = "reduction: temperature"
    problem, T = case.problem, case.problem.student.temperature
    ridges = problem.regularizer.strength
    warmer = [T * one for one in ridges] if isinstance(ridges, tuple) else T * ridges
    other = problem.with_fields({"student.temperature": 1.0, "regularizer.strength": warmer})
    a, b = (solved_side(case, p, callback) for p in (problem, other))
    if not a.status is b.status is Status.converged:
        return Check.left_out(name, NOT_REACHED)
    pairs = (
        (a.values["training_loss"], b.values["training_loss"]),
        (a.values["weight_norm"], T * b.values["weight_norm"]),
    )
    worst = max(abs(float(x) - float(y)) / abs(float(x)) for x, y in pairs)
    # the two iterations start at different points and stop at the tolerance
    return Check.below(name, worst, 1e3 * case.settings.tolerance, "temperature 1 and ridge lambda T, relative")


_REDUCTIONS: dict[str, Reduction] = {
    "ridge regression": _ridge_regression,
    "ridge as a general regulariser": _general_route,
    "one cluster is a Gaussian": _same_map(
        "reduction: one cluster is a Gaussian",
        {"tokens.kind": "mixture", "tokens.sigma": None, "tokens.clusters": _clusters(1)},
        "the same map as a mixture's, relative",
    ),
    "equal clusters are a Gaussian": _same_map(
        "reduction: equal clusters are a Gaussian",
        {
            "tokens.kind": "mixture",
            "tokens.sigma": None,
            "tokens.clusters": _clusters(2),
            "tokens.law": {"kind": "independent", "weights": [0.3, 0.7]},
        },
        "the same map with two clusters of the token's own law, relative",
    ),
    "temperature": _cooled,
}
