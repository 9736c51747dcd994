"""Stated standard errors against the scatter that they are to describe, on both sides.

A stated error is held against deviations from the truth over many cheap draws or seeds: mean squares are compared in
the interval that chance allows (0.01 % on either side), computed from the degrees of freedom of both.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from attnphase.checks.deviations import Limit, Measured
from attnphase.fixed_points.crossings import (
    crossing,
)
from attnphase.fixed_points.run import Run
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.integration.rules import sobol
from attnphase.problem.problem import Problem
from attnphase.solvers.differences import response_to
from attnphase.solvers.iteration import Status
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
            norms=0,
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
    return Response(LinearMap.jacobian, measured, np.ones(len(measured.T)), 256)


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
    none = Response(np.zeros((2, 2)), np.zeros((6, 2)), np.ones(2), 256)
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


def test_nearly_degenerate_samples_are_counted_along_lines_too():
    """256 points in each of 16 replicates find .00420(15) of the samples; nodes of lines meet almost none of them."""
    problem = Problem.paper(omega=0.3)
    point = solve_point(problem, 0.5, "positional", settings=SolverSettings(stability=False, identity=False))
    share, error = (float(of["second_minimum_share"]) for of in (point.values, point.errors))
    assert point.rule == "lines"
    assert 0 < error < 3e-3
    assert abs(share - 0.0042) < 4 * np.hypot(error, 1.5e-4)
    assert share > 2 * error


def test_responses_are_those_of_other_units():
    """Where a token's standard deviation is 30 coordinates have sizes from 1e-3 to 1e6, and none has no response."""
    jacobian, changes = np.array([[0.6, 0.2], [-0.3, 0.7]]), np.array([[0.02, -0.05], [0.01, 0.03]])
    right = np.linalg.solve(np.eye(2) - jacobian, changes.T).T
    for units in (np.array([1e-7, 3e6]), np.array([2e8, 1e-6])):
        found = response_to(changes * units, jacobian * units[:, None] / units, units)
        np.testing.assert_allclose(found / units, right, rtol=1e-9)


def test_errors_of_a_formula_are_those_of_the_loss_that_it_is():
    """At a standard deviation of 30 and a ridge of 1e-3 V has the size 2e5: its stated error was 1e-10."""
    one_token = {"tokens": {"length": 1, "sigma": 30.0}, "regularizer": {"strength": 1e-3}}
    losses = {"kind": "logistic"}, {"kind": "expression", "expression": "softplus(-sign(k0_0)*h0_0)"}
    known, formula = (solve_point(Problem.from_dict({**one_token, "loss": loss}), 2.0) for loss in losses)
    for name in ("q", "V", "theta", "training_loss", "test_error"):
        assert formula.errors[name] == pytest.approx(known.errors[name], rel=0.05), name


def test_derivatives_by_few_points_do_not_enlarge_errors():
    """Columns of size 20 and 1 that keep 3 % and 1 % of their variance given the teacher's fields: single-location.

    Of 1024 points per replicate the derivatives' noise made of errors of .3 % some of 1 to 30 %.
    """
    formula = "first = (1 + sign(k[0, 0] - k[1, 0]))/2\n"
    formula += "(first*k[0, 1] + (1 - first)*k[1, 1] + noise[0, 0] - softmax(h[:, 0]) @ h[:, 1])**2/2"
    changes: dict[str, Any] = {"tokens.sigma": 1.0, "positions.kind": "none", "regularizer.strength": 0.02}
    changes |= {"teacher.rank": 2, "teacher.noise": 0.1, "student.rank": 2}
    changes |= {"loss.kind": "expression", "loss.expression": formula, "integration.rule": "sobol"}
    problem, settings = Problem().with_fields(changes), SolverSettings(max_nodes=2**16, identity=False, stability=False)
    points = [
        solve_point(problem.with_fields({"integration.seed": seed}), 20.0, settings=settings) for seed in range(6)
    ]
    assert all(point.status is Status.converged for point in points)
    q = np.array([point.values["q"][0].diagonal() for point in points])
    errors = np.array([point.errors["q"][0].diagonal() for point in points])
    scatter = q.std(axis=0, ddof=1)
    assert (scatter < 0.02 * q.mean(axis=0)).all()
    assert (errors.max(axis=0) < 4 * scatter).all()
    assert (errors.min(axis=0) > scatter / 4).all()
