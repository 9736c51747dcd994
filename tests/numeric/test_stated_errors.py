"""Stated standard errors against the scatter that they are to describe, on both sides.

A stated error is held against deviations from the truth over many cheap draws or seeds: mean squares are compared in
the interval that chance allows (0.01 % on either side), computed from the degrees of freedom of both.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from attnphase.checks.deviations import Limit, Measured
from attnphase.fixed_points import crossings
from attnphase.fixed_points.crossings import (
    Sample,
    _by_secants,
    _refined,
    baseline_difference,
    bracketed,
    crossing,
    loss_difference,
    sample_of,
    thresholds_of,
)
from attnphase.fixed_points.iteration import Status
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.run import Run
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.fixed_points.threshold import Outcome, Threshold
from attnphase.integration.rules import sobol
from attnphase.problem.problem import Problem
from attnphase.processes.progress import silent
from attnphase.state_evolution.branches import Identity
from attnphase.state_evolution.errors import Response, residual_errors, standard_errors
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.replicates import variations
from attnphase.state_evolution.sector import Sector
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.state_evolution.system import System

PAPER = Problem.paper(omega=0.33)
COARSE = PAPER.with_fields({"integration.rule": "sobol", "integration.nodes": 256})
Array = NDArray[np.float64]


def assert_calibrated(deviations: Array, errors: Array, replicates: int | None = None) -> None:
    """Whether deviations (N, ...) from the truth have the size of the stated errors (N, ...).

    `replicates` is the number of which each error was made; None where errors are known exactly.
    """
    count = len(deviations)
    ratio = (np.asarray(deviations) ** 2).mean(axis=0) / (np.asarray(errors) ** 2).mean(axis=0)
    if replicates is None:
        low, high = stats.chi2.ppf([1e-4, 1 - 1e-4], count) / count
    else:
        low, high = stats.f.ppf([1e-4, 1 - 1e-4], count, count * (replicates - 1))
    assert np.all((low < ratio) & (ratio < high)), (low, ratio, high)


# --- thresholds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [1.13, 1.5, 1.86])
@pytest.mark.parametrize("noise", [(0.02, 0.02), (0.03, 0.006), (0.006, 0.03)])
def test_error_of_a_crossing(at, noise):
    """Straight lines with known noise at the ends, unequal or not, and the crossing anywhere between them."""
    generator = np.random.default_rng(3)
    grid, slope = np.array([1.0, 2.0]), -1.7
    draws = [slope * (grid - at) + generator.normal(0.0, noise) for _ in range(2000)]
    found = [crossing(grid.tolist(), d.tolist(), list(noise)) for d in draws]
    assert all(one.found for one in found)
    assert_calibrated(np.array([one.alpha - at for one in found]), np.array([one.standard_error for one in found]))


def test_the_last_crossing_counts():
    """At small alpha all branches merge, and the difference is noise."""
    alpha = [0.2, 0.4, 0.6, 0.8, 1.0, 1.2]
    difference = [1e-6, -2e-6, 3e-6, 0.4, 0.1, -0.2]
    found = crossing(alpha, difference, [1e-3] * 6)
    assert found.alpha == pytest.approx(1.0 + 0.2 / 3, rel=1e-12)


def test_no_crossing_is_known_beside_an_unknown_difference():
    found = crossing([1.0, 2.0, 3.0, 4.0], [0.4, np.nan, -0.2, -0.5], [1e-3] * 4)
    assert not found.found


def a_point(values: dict[str, float], errors: dict[str, float]) -> BranchPoint:
    return cast("BranchPoint", SimpleNamespace(values=values, errors=errors))


def test_errors_of_differences_are_those_of_both():
    generator = np.random.default_rng(8)
    losses, baselines = [], []
    for _ in range(500):
        noise = generator.normal(0.0, [3e-4, 4e-4, 5e-4, 2e-4])
        semantic = a_point(
            {"training_loss": 0.02 + noise[0], "test_error": 0.03 + noise[2], "linear_test_error": 0.025 + noise[3]},
            {"training_loss": 3e-4, "test_error": 5e-4, "linear_test_error": 2e-4},
        )
        positional = a_point({"training_loss": 0.021 + noise[1]}, {"training_loss": 4e-4})
        losses.append(loss_difference(semantic, positional))
        baselines.append(baseline_difference(semantic))
    for found, true in ((losses, -0.001), (baselines, 0.005)):
        values, errors = np.array(found).T
        assert_calibrated(values - true, errors)


@pytest.mark.parametrize("curvature", [0.7, -0.7])
def test_refined_thresholds_follow_a_bent_difference(curvature):
    """Secants go on until they move by less than the error: the first is off by many of them."""
    found, first = refined(curvature, (1.27, 1.36))
    assert abs(first.alpha - 1.3) > 20 * first.standard_error
    assert abs(found.alpha - 1.3) < 0.2 * found.standard_error
    assert found.standard_error == pytest.approx(1e-5, rel=0.5)


def test_a_threshold_that_still_moves_has_that_in_its_error():
    """A difference so bent that a few secants do not end: where it is, is known no better than the interval left."""
    low, high = (Sample(x, -(x - 1.3) - 9 * (x - 1.3) ** 3, 1e-5) for x in (0.9, 3.0))
    found = _by_secants(low, high, lambda x: Sample(x, -(x - 1.3) - 9 * (x - 1.3) ** 3, 1e-5))
    assert 1e-5 < abs(found.alpha - 1.3) < 3 * found.standard_error < high.alpha - low.alpha


def test_both_ends_of_a_bent_difference_move():
    """Secants of a convex difference stop at one side of its root: the interval would stay 0.8 wide, its error 0.23."""
    low, high = (Sample(x, -(x - 1.3) - 3 * (x - 1.3) ** 3, 1e-5) for x in (1.2, 2.1))
    found = _by_secants(low, high, lambda x: Sample(x, -(x - 1.3) - 3 * (x - 1.3) ** 3, 1e-5))
    assert abs(found.alpha - 1.3) < found.standard_error < 0.01


def test_a_point_that_did_not_converge_leaves_the_interval_about_it():
    """Of a uniform place in an interval of 0.12 the standard deviation is 0.12 / sqrt(12)."""
    found = _by_secants(Sample(1.24, 0.06, 1e-6), Sample(1.36, -0.06, 1e-6), lambda x: Sample(x, np.nan, np.nan, OPEN))
    assert found.alpha == pytest.approx(1.3)
    assert found.standard_error == pytest.approx(0.12 / 12**0.5, rel=1e-3)


def refined(curvature: float, bracket: tuple[float, float]) -> tuple[Threshold, Threshold]:
    """The refined crossing of a parabola at 1.3 with exact errors of 1e-5, and that of its first secant."""

    def measure(problem: Problem, alpha: float) -> Sample:
        assert problem in (COARSE, PAPER)
        return Sample(alpha, -(alpha - 1.3) - curvature * (alpha - 1.3) ** 2, 1e-5)

    low, high = (measure(COARSE, x) for x in bracket)
    first = crossing(bracket, (low.value, high.value), (1e-5, 1e-5))
    return _refined((COARSE, PAPER), (low, high), measure), first


def test_more_nodes_search_the_whole_bracket_and_nothing_beyond():
    """Few nodes see the crossing at 1.45, more nodes at 1.35, and none of them may look outside 1.3 to 1.6."""

    def measure(problem: Problem, alpha: float, end: float = 1.35, few: float = 1.45) -> Sample:
        assert 1.3 <= alpha <= 1.6
        return Sample(alpha, (few if problem == COARSE else end) - alpha, 1e-4)

    rules = COARSE, PAPER
    bracket = measure(COARSE, 1.3), measure(COARSE, 1.6)
    assert _refined(rules, bracket, measure).alpha == pytest.approx(1.35, abs=1e-10)
    # the first estimate's surroundings reach over the bracket's end
    at_the_end = replace(bracket[0], value=0.003), replace(bracket[1], value=-0.297)
    assert _refined(rules, at_the_end, partial(measure, few=1.303)).alpha == pytest.approx(1.35, abs=1e-10)
    found = _refined(rules, bracket, lambda problem, alpha: measure(problem, alpha, 1.25))
    assert found.outcome is Outcome.unsettled
    assert not found.found


# --- where thresholds may come from -----------------------------------------------------------------------------------


MERGED = Threshold.absent(Outcome.no_branch, "there is no semantic branch")
OPEN = Threshold.absent(Outcome.unsettled, "whether there is a semantic branch is not decided")


def a_line(*, begins: float, falls_at: float, open_up_to: float = 0.0, jump: float = 0.0) -> Any:
    """A difference that falls by one a unit of alpha, with the branch's points below `begins` merged, at -jump."""

    def sample(alpha: float) -> Sample:
        assert 0.4 <= alpha <= 40
        flaw = MERGED if alpha < begins else OPEN if alpha < open_up_to else None
        value = falls_at - alpha if alpha >= begins else max(falls_at - begins - jump, 0.0)
        return Sample(alpha, value, 1e-3, flaw)

    return sample


@pytest.mark.parametrize(
    ("begins", "falls_at", "outcome"),
    [
        (0.9, 1.27, Outcome.located),
        (1.24, 1.27, Outcome.located),  # the branch begins between two samples of the scan, as does the crossing
        (1.27, 0.8, Outcome.no_branch),  # it begins below zero already
        (0.2, 50.0, Outcome.outside_range),
        (0.2, 0.3, Outcome.outside_range),
        (50.0, 0.9, Outcome.no_branch),
    ],
)
def test_a_bracket_lies_on_the_branch_and_in_the_range(begins, falls_at, outcome):
    sample = a_line(begins=begins, falls_at=falls_at)
    for top in (4.0, 8.0, 40.0):
        found = bracketed([sample(x) for x in np.geomspace(0.4, top, 9).tolist()], sample)
        if isinstance(found, Threshold):
            assert found.outcome is outcome
            assert found.reason
            assert not found.found
            continue
        low, high = found
        assert outcome is Outcome.located
        assert begins <= low.alpha < falls_at < high.alpha <= top
        assert low.value > 0 > high.value
        assert low.flaw is high.flaw is None


def test_a_crossing_where_the_branch_is_not_decided_is_unsettled():
    """The loss is lower where the branch is known; where it is higher, none may be there."""
    sample = a_line(begins=1.0, falls_at=1.2, open_up_to=1.3)
    found = bracketed([sample(x) for x in np.geomspace(0.4, 4.0, 9).tolist()], sample)
    assert isinstance(found, Threshold)
    assert found.outcome is Outcome.unsettled
    assert found.reason


def test_points_are_relied_on_if_converged_and_on_their_branch():
    def a_point(status: Status, identity: Identity, theta: float, branch: str = "semantic") -> BranchPoint:
        overlaps = initial_overlaps(PAPER, branch)
        overlaps = replace(overlaps, theta=overlaps.theta * theta, m=overlaps.m * theta)
        values = {"training_loss": 0.1}
        restart = SimpleNamespace(overlaps=overlaps)
        point = SimpleNamespace(alpha=1.5, status=status, on_branch=identity, branch=branch, restart=restart)
        point.values, point.errors = values, values
        return cast("BranchPoint", point)

    good = a_point(Status.converged, Identity.on_branch, 1.0)
    expected = [
        (Status.converged, Identity.on_branch, 1.0, None),
        (Status.converged, Identity.merged, 0.0, Outcome.no_branch),
        (Status.converged, Identity.not_decided, 1.0, Outcome.unsettled),
        (Status.converged, Identity.on_branch, 0.0, Outcome.unsettled),  # it says so, and has no order parameter
        (Status.iteration_limit, Identity.on_branch, 1.0, Outcome.unsettled),
        (Status.left_domain, Identity.merged, 1.0, Outcome.unsettled),
    ]
    for status, identity, theta, outcome in expected:
        other = a_point(status, identity, theta, "positional")
        for points in ((good, other), (other, good)):
            found = sample_of(points, loss_difference)
            assert (found.flaw and found.flaw.outcome) == outcome
            assert np.isnan(found.value) == (status is not Status.converged)


def a_point_of(branch: str, alpha: float, *, status: Status = Status.converged, merged: bool = False) -> BranchPoint:
    """The semantic loss falls below the positional one at 1.3, as its test error does below the baseline's."""
    loss = (1.3 - alpha if branch == "semantic" else 0.0) + 1.0
    values = {"training_loss": loss, "test_error": loss, "linear_test_error": 1.0}
    identity = Identity.merged if merged else Identity.on_branch
    point = SimpleNamespace(alpha=alpha, branch=branch, status=status, on_branch=identity, values=values)
    point.errors, point.restart = dict.fromkeys(values, 1e-6), SimpleNamespace(overlaps=initial_overlaps(PAPER, branch))
    return cast("BranchPoint", point)


def test_crossings_start_from_points_of_the_branch_and_again_where_that_fails(monkeypatch):
    """The branches begin at 1.2, and no start leads to a point there but the branch's own."""
    monkeypatch.setattr(crossings, "_SCANNED", 3)
    started = []

    def follow(problem: Problem, alphas: list[float], branch: str, **_: Any) -> list[BranchPoint]:
        return [a_point_of(branch, alpha, merged=alpha < 1.2) for alpha in alphas]

    def solve(problem: Problem, alpha: float, branch: str, *, start: Any = None, **_: Any) -> BranchPoint:
        if start is None:
            return a_point_of(branch, alpha, merged=alpha < 1.2)
        started.append(start)
        return a_point_of(branch, alpha, status=Status.iteration_limit)

    monkeypatch.setattr(crossings, "follow", follow)
    monkeypatch.setattr(crossings, "solve_point", solve)
    for found in thresholds_of(PAPER, (0.9, 2.0), None, lambda _: None, silent):
        assert found.outcome is Outcome.located
        assert found.alpha == pytest.approx(1.3, abs=1e-6)
    assert all(start.on_branch is Identity.on_branch for start in started)


def test_thresholds_do_not_depend_on_the_range(monkeypatch):
    """At 0.9 and 1.1 times alpha_c other nodes see the semantic loss above the positional one, and below it."""
    monkeypatch.setattr(crossings, "_SCAN_POINTS", 64)
    monkeypatch.setattr(crossings, "_REFINED_POINTS", 256)
    problem = Problem.paper(omega=0.22)
    results = []
    for top, scanned in ((1.7, 3), (23.0, 9)):
        monkeypatch.setattr(crossings, "_SCANNED", scanned)
        between = (0.85, top)
        found = thresholds_of(problem, between, None, lambda _: None, silent)
        results.append(found)
    for one, other in zip(*results, strict=True):
        assert one.outcome is other.outcome is Outcome.located
        assert abs(one.alpha - other.alpha) < 0.2 * min(one.standard_error, other.standard_error)
    fields = {"integration.rule": "sobol", "integration.nodes": 256, "integration.seed": 9}
    for factor, sign in ((0.9, 1), (1.1, -1)):
        alpha = factor * found[0].alpha
        points = [solve_point(problem.with_fields(fields), alpha, name) for name in ("semantic", "positional")]
        value, error = loss_difference(*points)
        assert sign * value > 3 * error


def test_errors_of_thresholds_are_their_scatter_over_seeds(monkeypatch):
    """About 1.2509(6), by the independent solver of ``data/reference/converged.csv``, whose error is a small part."""
    monkeypatch.setattr(crossings, "_SCAN_POINTS", 64)
    monkeypatch.setattr(crossings, "_SCANNED", 3)
    monkeypatch.setattr(crossings, "_REFINED_POINTS", 64)
    found = []
    for seed in range(6):
        problem = Problem.paper(omega=0.3).with_fields({"integration.rule": "sobol", "integration.seed": seed})
        found.append(thresholds_of(problem, (0.9, 2.0), None, lambda _: None, silent)[0])
    assert all(one.outcome is Outcome.located for one in found)
    deviations, errors = (np.array([getattr(one, name) for one in found]) for name in ("alpha", "standard_error"))
    assert errors.min() > 0.003
    assert_calibrated(deviations - 1.2509, errors, replicates=16)


def test_thresholds_by_lines_are_those_of_many_nodes_of_other_kinds():
    """With 36 to 60 nodes of each teacher's field, evenly spaced or Gauss-Hermite: 1.25154(2) and 1.49226(2)."""
    problem = Problem.paper(omega=0.3)
    located = thresholds_of(problem, (0.9, 2.0), None, lambda _: None, silent)
    for found, truth in zip(located, (1.25154, 1.49226), strict=True):
        assert found.outcome is Outcome.located
        assert found.standard_error < 1e-3 * truth
        assert abs(found.alpha - truth) < 3 * found.standard_error


def test_errors_of_secants_hold_for_rough_differences():
    """All samples share their error, and single nodes that jump make the difference steep over small steps."""
    generator, error, found = np.random.default_rng(5), 1e-3, []
    for shift, phase in zip(generator.normal(0.0, error, 300), generator.uniform(0, 7, 300), strict=True):

        def sample(alpha: float, shift: float = shift, phase: float = phase) -> Sample:
            return Sample(alpha, 1.3 - alpha + shift + 0.5 * error * np.sin(1e5 * alpha + phase), error)

        found.append(_by_secants(sample(1.27), sample(1.34), sample))
    deviations, errors = (np.array([getattr(one, name) for one in found]) for name in ("alpha", "standard_error"))
    assert_calibrated(deviations - 1.3, errors)


# --- integration rules ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("symmetric", [False, True])
def test_replicates_of_a_sobol_rule_scatter_as_their_mean_is_wrong(symmetric):
    """``E exp(a x) = exp(a^2/2)`` in three dimensions, over 64 seeds; no two replicates are the same."""
    factors = np.array([0.7, -0.4, 0.9])
    found = []
    for seed in range(64):
        rule = sobol(3, 1, symmetric, 32, 16, seed)
        signs = np.array([[one, *(other,) * 2] for one, other in rule.signs], dtype=float)
        values = np.exp(np.einsum("ki,sni,i->ksn", signs, rule.nodes, factors)).mean(axis=0) @ rule.weights
        assert len(np.unique(values)) == 16
        found.append((values.mean() - np.exp(factors @ factors / 2), values.std(ddof=1) / 4))
    deviations, errors = np.array(found).T
    assert_calibrated(deviations, errors, 16)


def test_replicates_of_a_bent_prior_scatter_as_all_of_them_together():
    """A sparse row makes of a sixteenth of the nodes something else than a sixteenth of what it makes of all."""
    seeds, sparse = 48, {"regularizer.kind": "elastic-net", "regularizer.strength": 0.01, "regularizer.ridge": 0.002}
    images, errors = [], []
    for seed in range(seeds):
        integration = {"integration.rule": "sobol", "integration.nodes": 64, "integration.seed": seed}
        system = System.of(PAPER.with_fields(sparse | integration), 1)
        start = initial_overlaps(system.problem, "uninformed")
        here = replace(start, q=0.091 + 0 * start.q, V=13.9 + 0 * start.V)
        run = Run(system, 1.1, SolverSettings(threads=1), Sector.of(start, system.symmetries))
        map_ = run.map(system.refinement(2**18).sobol(64))
        image = map_(map_.pack(here))
        assert image is not None
        images.append(image)
        errors.append(map_.images().std(axis=0, ddof=1) / 4)
    assert len(images[0]) == 2  # q and V
    assert_calibrated((np.array(images) - np.mean(images, axis=0)) * np.sqrt(seeds / (seeds - 1)), np.array(errors), 16)


# --- propagation through the fixed point ------------------------------------------------------------------------------


class LinearMap:
    """``F_s(x) = f + J x + noise_s`` with a measured ``E_s = e + A x + noise'_s``: what `standard_errors` needs.

    Two coordinates stand for q and theta of one token; V and m are fixed.
    """

    jacobian = np.array([[0.6, -0.3], [0.5, -1.4]])
    slope = np.array([[1.3, -0.7]])

    def __init__(self, noise: Array, alpha: float = 1.7, randomised: bool = True) -> None:
        self.noise, self.alpha = noise, alpha
        self.sector = SimpleNamespace(
            errors=lambda e: Overlaps(*(np.reshape(x, (1, 1, 1)) for x in (e[0], 0, 0, e[1]))),
            pack_all=lambda many: np.stack([many.q.ravel(), many.theta.ravel()], axis=1),
        )
        self.channel = SimpleNamespace(rule=SimpleNamespace(randomised=randomised))
        self.last = SimpleNamespace(envelope=noise[:, 3])

    def pack(self, overlaps: Overlaps) -> Array:
        return np.array([overlaps.q.item(), overlaps.theta.item()])

    def measure(self, x: Array) -> dict[str, Array]:
        image = np.array([0.1, 0.2]) + self.jacobian @ x + self.noise[:, :2]
        one = np.ones((len(self.noise), 1, 1, 1))
        return {
            "q": image[:, 0, None, None, None],
            "V": one,
            "m": one[..., 0],
            "theta": image[:, 1, None, None, None],
            "test_error": 0.4 + (self.slope @ x).item() + self.noise[:, 2],
            "training_loss": self.noise[:, 3],
        }

    def solution(self) -> tuple[Array, float]:
        """The fixed point of the mean map, and what is measured at it."""
        mean = self.noise.mean(axis=0)
        x = np.linalg.solve(np.eye(2) - self.jacobian, np.array([0.1, 0.2]) + mean[:2])
        return x, 0.4 + (self.slope @ x).item() + mean[2]


def response() -> Response:
    measured = np.zeros((6, 2))
    measured[4] = LinearMap.slope
    return Response(LinearMap.jacobian, measured, 256)


def stated(map_: LinearMap, other: LinearMap | None = None) -> dict[str, Any]:
    x, _ = map_.solution()
    one, two = cast("StateEvolution", map_), [] if other is None else [cast("StateEvolution", other)]
    return standard_errors(one, map_.measure(x), response(), variations(one, x, two))


# maps and measurements of one replicate go together
MIXED = np.array([[1.0, 0, 0, 0], [0.8, 0.6, 0, 0], [-0.5, 0.3, 0.7, 0], [0.2, 0.1, 0.4, 0.9]])


def test_replicates_displace_the_fixed_point_and_what_is_measured_at_it():
    """Over draws of 16 replicates the fixed points of the mean maps scatter as the errors say."""
    generator = np.random.default_rng(2)
    true, measured = LinearMap(np.zeros((16, 4))).solution()
    deviations, errors = [], []
    for _ in range(400):
        map_ = LinearMap(1e-3 * generator.normal(size=(16, 4)) @ MIXED.T)
        x, test_error = map_.solution()
        found = stated(map_)
        deviations.append([*(x - true), test_error - measured, map_.alpha * map_.noise[:, 3].mean()])
        errors.append([found["q"].item(), found["theta"].item(), found["test_error"], found["training_loss"]])
    assert_calibrated(np.array(deviations), np.array(errors), 16)


def test_the_error_of_a_mean_is_that_of_its_replicates():
    """Without a response it is the textbook's: standard deviation over root n, with n - 1 degrees of freedom."""
    map_ = LinearMap(np.random.default_rng(4).normal(size=(5, 4)))
    none = Response(np.zeros((2, 2)), np.zeros((6, 2)), 256)
    x = np.array([0.3, -0.2])
    one = cast("StateEvolution", map_)
    found = standard_errors(one, map_.measure(x), none, variations(one, x, ()))
    expected = map_.noise.std(axis=0, ddof=1) / np.sqrt(5)
    assert found["q"].item() == pytest.approx(expected[0], rel=1e-12)
    assert found["test_error"] == pytest.approx(expected[2], rel=1e-12)
    assert found["training_loss"] == pytest.approx(map_.alpha * expected[3], rel=1e-12)


def test_a_second_rule_adds_its_own_scatter():
    """A deterministic rule is compared with replicates: where their means agree by chance, their scatter is left."""
    generator = np.random.default_rng(6)
    scatter = 1e-3 * generator.normal(size=(16, 4))
    scatter -= scatter.mean(axis=0)
    alone = LinearMap(np.zeros((1, 4)), randomised=False)
    found = stated(alone, LinearMap(scatter))
    of_replicates = stated(LinearMap(scatter))
    for name in ("q", "theta", "test_error", "training_loss"):
        assert np.allclose(found[name], of_replicates[name], rtol=1e-10, atol=0), name
        assert np.all(np.asarray(found[name]) > 0)
    # and where they do not, the distance is added in quadrature
    shift = np.array([0.02, 0.01, 0.03, 0.005])
    together = stated(alone, LinearMap(scatter + shift))
    distance = stated(alone, LinearMap(np.zeros((16, 4)) + shift))
    for name in ("q", "theta", "test_error", "training_loss"):
        expected = np.hypot(np.asarray(distance[name]), np.asarray(of_replicates[name]))
        assert np.allclose(together[name], expected, rtol=1e-10, atol=0), name


class Bounded(LinearMap):
    """A map that has no image where it is asked, unless it is lifted."""

    lift = False

    def measure(self, x: Array) -> Any:
        return super().measure(x) if self.lift else None


def test_a_second_rule_without_an_image_tells_by_its_lifted_map():
    """A point under one rule may lie outside the domain under another, which is no reason to know nothing of it."""
    alone, far = LinearMap(np.zeros((1, 4)), randomised=False), np.array([[3.0, -2.0, 0.5, 0.1]])
    expected = stated(alone, LinearMap(far, randomised=False))
    found = stated(alone, Bounded(far, randomised=False))
    for name in ("q", "theta", "test_error", "training_loss"):
        assert np.array_equal(found[name], expected[name]), name


def test_a_residual_is_carried_on_to_the_fixed_point():
    """A linear map's errors by a residual, and by a channel evaluated beside the point, are its distances."""
    map_ = LinearMap(np.zeros((1, 4)), randomised=False)
    (right, test_error), one = map_.solution(), cast("StateEvolution", map_)
    x = right + np.array([0.03, -0.02])
    measured = map_.measure(x)
    residual = np.array([measured["q"].item(), measured["theta"].item()]) - x
    found = residual_errors(one, measured, response(), residual, np.zeros(2))
    assert found["q"].item() == pytest.approx(0.03, rel=1e-9)
    assert found["theta"].item() == pytest.approx(0.02, rel=1e-9)
    assert found["test_error"] == pytest.approx(abs(measured["test_error"].item() - test_error), rel=1e-9)
    # F_0(x + f) has its fixed point where x = F_0(x) + J f
    floor = np.array([0.004, 0.001])
    moved = np.linalg.solve(np.eye(2) - map_.jacobian, np.array([0.1, 0.2]) + map_.jacobian @ floor)
    beside = residual_errors(one, measured, response(), np.zeros(2), floor)
    assert [beside["q"].item(), beside["theta"].item()] == pytest.approx(np.abs(moved - right), rel=1e-9)
    assert beside["test_error"] == pytest.approx(abs((map_.slope @ (moved + floor - right)).item()), rel=1e-9)
    # whichever signs they have, they may add up
    both = residual_errors(one, measured, response(), residual, floor)
    for name in ("q", "theta", "test_error"):
        assert np.allclose(both[name], np.abs(found[name]) + beside[name], rtol=1e-9, atol=0)


def test_seeds_scatter_as_their_errors_say():
    """Solved points of few nodes: twenty seeds about their mean, for every kind of quantity."""
    seeds, settings = 20, SolverSettings(threads=1, tolerance=1e-6)
    problems = [
        PAPER.with_fields({"integration.rule": "sobol", "integration.nodes": 256, "integration.seed": seed})
        for seed in range(seeds)
    ]
    first = solve_point(problems[0], 1.7, settings=settings)
    points = [first, *(solve_point(problem, 1.7, start=first, settings=settings) for problem in problems[1:])]
    assert all(point.status is Status.converged for point in points)
    for name in ("q", "V", "theta", "q_hat", "V_hat", "theta_hat", "test_error", "training_loss", "weight_norm"):
        values = np.stack([np.ravel(point.values[name])[0] for point in points])
        errors = np.stack([np.ravel(point.errors[name])[0] for point in points])
        ratio = values.var(ddof=1) / np.mean(errors**2)
        low, high = stats.f.ppf([1e-4, 1 - 1e-4], seeds - 1, seeds * 15)
        assert low < ratio < high, (name, ratio)


# --- comparison with experiments --------------------------------------------------------------------------------------


def test_error_of_the_limit_of_large_dimension():
    """Means at three dimensions with errors of very different size: the fitted limit and slope scatter as stated."""
    generator = np.random.default_rng(9)
    dimensions, errors = (60, 120, 240), (4e-3, 1e-3, 2e-3)
    limits = []
    for _ in range(2000):
        values = [0.3 + 1.7 / d + generator.normal(0.0, e) for d, e in zip(dimensions, errors, strict=True)]
        measured = [Measured(d, 8, v, e, v - 0.3, 0.0) for d, v, e in zip(dimensions, values, errors, strict=True)]
        limits.append(Limit.of(measured, 0.3, 0.0))
    found = [one for one in limits if one is not None]
    assert len(found) == 2000
    assert_calibrated(np.array([one.value - 0.3 for one in found]), np.array([one.stderr for one in found]))
    assert_calibrated(np.array([one.slope - 1.7 for one in found]), np.array([one.slope_stderr for one in found]))
    assert_calibrated(np.array([one.z for one in found]), np.ones(2000))
    # what the fit leaves is chi-square with one degree of freedom
    chi2 = np.array([one.chi2 for one in found])
    assert all(one.degrees_of_freedom == 1 for one in found)
    assert_calibrated(np.sqrt(chi2), np.ones(2000))


def test_error_of_a_mean_over_runs():
    generator = np.random.default_rng(10)
    runs = [Measured.of(100, generator.normal(0.7, 0.05, 6), 0.69, 0.01) for _ in range(800)]
    assert_calibrated(np.array([one.value - 0.7 for one in runs]), np.array([one.stderr for one in runs]), 6)
    differences = np.array([one.difference for one in runs])
    assert differences.mean() == pytest.approx(0.01, abs=4 * 0.05 / np.sqrt(6 * 800))
    for one in runs[:5]:
        assert one.z == pytest.approx(one.difference / np.hypot(one.stderr, 0.01), rel=1e-12)
