"""Stated standard errors against the scatter that they are to describe, on both sides, and against other rules.

Not public: errors of a linear map, crossings and fits of drawn numbers, whose scatter `solve` would take hours to show.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from calibration import assert_calibrated
from models import model
from one_map import QUICK, label_channel, logistic_pull
from scipy import optimize

import attnphase as ap
from attnphase.checks.deviations import Limit, Measured
from attnphase.fixed_points.crossings import crossing
from attnphase.fixed_points.derivatives import still_known
from attnphase.solvers.differences import response_to
from attnphase.state_evolution.errors import Response, standard_errors
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.replicates import variations

SETTINGS = ap.SolverSettings(**QUICK, tolerance=1e-6)


SPARSE = {"regularizer.kind": "elastic-net", "regularizer.strength": 0.01, "regularizer.ridge": 0.002}


@pytest.mark.parametrize(
    ("fields", "alpha"), [pytest.param({}, 1.7, id="ridge"), pytest.param(SPARSE, 2.6, id="sparse rows")]
)
def test_seeds_scatter_as_their_errors_say_about_what_lines_give(fields, alpha):
    """Solved points of few nodes, for every kind of quantity."""
    problem, count = model("paper", {"teacher.omega": 0.33, **fields}), 16
    fine = {"integration.rule": "lines", "integration.standard_error": 1e-4}
    lines = ap.solve(problem.with_fields(fine), alpha, settings=SETTINGS)
    few = {"integration.rule": "sobol", "integration.nodes": 256}
    seeds = [problem.with_fields({**few, "integration.seed": seed}) for seed in range(count)]
    points = [ap.solve(one, alpha, start=lines, settings=SETTINGS) for one in seeds]
    assert all(int(point["status"]) == 0 for point in points)
    for name in ("q", "V", "theta", "q_hat", "V_hat", "theta_hat", "test_error", "training_loss", "weight_norm"):
        values, errors = (np.array([np.ravel(one[key])[0] for one in points]) for key in (name, f"{name}_stderr"))
        assert_calibrated(values - values.mean(), errors, 16, lost=1)
        own = float(np.ravel(lines[f"{name}_stderr"])[0])
        spread = np.hypot(own, np.sqrt(np.mean(errors**2) / count))
        bias = 3 * np.mean(errors**2) / abs(values.mean())  # of second order in the scatter
        assert abs(values.mean() - np.ravel(lines[name])[0]) < 4 * spread + bias, name


def own_logistic(point, sigma, strength, alpha):
    """The fixed point (q, V, theta) of logistic regression near another one, by own quadrature."""

    def image(x):
        q, V, theta = np.exp(x)
        hats = label_channel(alpha, logistic_pull, lambda margin: 0 * margin, (q, V, 0.0, theta), sigma**2)
        R = sigma**2 / (strength + sigma**2 * hats["V_hat"])
        signal = sigma**2 * hats["theta_hat"]
        return np.log([R**2 * (hats["q_hat"] + signal * hats["theta_hat"]), R, R * signal]) - x

    found = optimize.root(image, np.log(point), tol=1e-10)
    assert found.success
    return np.exp(found.x)


@pytest.mark.parametrize("rule", ["auto", "sobol", "gauss-hermite"])
@pytest.mark.parametrize(("sigma", "strength", "alpha"), [(1.2, 0.3, 7.0), (1.1, 0.15, 9.0)])
def test_logistic_regression_is_within_its_errors(sigma, strength, alpha, rule):
    fields = {"tokens.sigma": sigma, "regularizer.strength": strength, "integration.rule": rule}
    point = ap.solve(model("logistic", fields), alpha, settings=SETTINGS)
    assert int(point["status"]) == 0
    values, errors = (np.array([point[n + end].item() for n in ("q", "V", "theta")]) for end in ("", "_stderr"))
    assert (np.abs(values - own_logistic(values, sigma, strength, alpha)) <= 4 * errors).all()
    assert (errors < 2e-3 * values).all() or rule == "gauss-hermite"


def test_nearly_degenerate_samples_are_counted_along_lines_too():
    """256 points in each of 16 replicates find .00420(15) of the samples; nodes of lines meet almost none of them."""
    point = ap.solve(
        model("paper", {"teacher.omega": 0.3}), 0.5, branch="positional", settings=ap.SolverSettings(**QUICK)
    )
    share, error = float(point["second_minimum_share"]), float(point["second_minimum_share_stderr"])
    assert point.attrs["rule"] == "lines"
    assert 0 < error < 3e-3
    assert abs(share - 0.0042) < 4 * np.hypot(error, 1.5e-4)
    assert share > 2 * error


@pytest.mark.long
def test_derivatives_by_few_points_do_not_enlarge_errors():
    """Columns of size 20 and 1 that keep 3 % and 1 % of their variance given the teacher's fields: single-location.

    Of 1024 points per replicate the derivatives' noise made of errors of .3 % some of 1 to 30 %.
    """
    formula = "first = (1 + sign(k[0, 0] - k[1, 0]))/2\n"
    formula += "(first*k[0, 1] + (1 - first)*k[1, 1] + noise[0, 0] - softmax(h[:, 0]) @ h[:, 1])**2/2"
    fields = {"tokens.sigma": 1.0, "positions.kind": "none", "regularizer.strength": 0.02, "teacher.rank": 2}
    fields |= {"teacher.noise": 0.1, "student.rank": 2, "loss.kind": "expression", "loss.expression": formula}
    problem, settings = ap.Problem().with_fields(fields), ap.SolverSettings(**QUICK, max_nodes=2**16)
    seeds = [{"integration.rule": "sobol", "integration.seed": seed} for seed in range(6)]
    points = [ap.solve(problem.with_fields(seed), 20.0, settings=settings) for seed in seeds]
    assert all(int(point["status"]) == 0 for point in points)
    q, errors = (np.array([np.diagonal(point[name][0]) for point in points]) for name in ("q", "q_stderr"))
    scatter = q.std(axis=0, ddof=1)
    assert (scatter < 0.02 * q.mean(axis=0)).all()
    assert (errors.max(axis=0) < 4 * scatter).all()
    assert (errors.min(axis=0) > scatter / 4).all()


class LinearMap:
    """``F_s(x) = f + J x + noise_s`` with a measured ``E_s = e + A x + noise'_s``: q and theta of one token."""

    jacobian, slope, start = np.array([[0.6, -0.3], [0.5, -1.4]]), np.array([[1.3, -0.7]]), np.array([0.1, 0.2])
    alpha = 1.7

    def __init__(self, noise, *, randomised=True):
        self.noise = noise
        self.sector = SimpleNamespace(
            errors=lambda e: Overlaps(*(np.reshape(x, (1, 1, 1)) for x in (e[0], 0, 0, e[1]))),
            pack_all=lambda many: np.stack([many.q.ravel(), many.theta.ravel()], axis=1),
            norms=0,
        )
        self.channel = SimpleNamespace(rule=SimpleNamespace(randomised=randomised))
        self.last = SimpleNamespace(envelope=noise[:, 3])

    def pack(self, overlaps):
        return np.array([overlaps.q.item(), overlaps.theta.item()])

    def measure(self, x):
        image = self.start + self.jacobian @ x + self.noise[:, :2]
        one, (q, theta) = np.ones((len(self.noise), 1, 1, 1)), image.T[..., None, None, None]
        energy = 0.4 + (self.slope @ x).item() + self.noise[:, 2]
        of_point = {"q": q, "V": one, "m": one[..., 0], "theta": theta}
        return of_point | {"test_error": energy, "training_loss": self.noise[:, 3]}

    def solution(self):
        """The fixed point of the mean map, and what is measured at it."""
        mean = self.noise.mean(axis=0)
        x = np.linalg.solve(np.eye(2) - self.jacobian, self.start + mean[:2])
        return x, 0.4 + (self.slope @ x).item() + mean[2]


RESPONSE = Response(
    LinearMap.jacobian, np.vstack([np.zeros((4, 2)), LinearMap.slope, np.zeros((1, 2))]), np.ones(2), 256
)
NAMES = ("q", "theta", "test_error", "training_loss")
# maps and measurements of one replicate go together
MIXED = np.array([[1.0, 0, 0, 0], [0.8, 0.6, 0, 0], [-0.5, 0.3, 0.7, 0], [0.2, 0.1, 0.4, 0.9]])


def stated(map_, *others, response=RESPONSE):
    x, _ = map_.solution()
    found = standard_errors(map_, map_.measure(x), response, variations(map_, x, others))
    return np.array([np.asarray(found[name]).item() for name in NAMES])


def test_replicates_displace_the_fixed_point_and_what_is_measured_at_it():
    """Over draws of 16 replicates the fixed points of the mean maps scatter as the errors say."""
    generator = np.random.default_rng(2)
    (true, measured), deviations, errors = LinearMap(np.zeros((16, 4))).solution(), [], []
    for _ in range(400):
        map_ = LinearMap(1e-3 * generator.normal(size=(16, 4)) @ MIXED.T)
        x, test_error = map_.solution()
        deviations.append([*(x - true), test_error - measured, map_.alpha * map_.noise[:, 3].mean()])
        errors.append(stated(map_))
    assert_calibrated(np.array(deviations), np.array(errors), 16)


def test_the_error_of_a_mean_is_that_of_its_replicates():
    """Without a response: standard deviation over root n, with n - 1 degrees of freedom."""
    map_ = LinearMap(np.random.default_rng(4).normal(size=(5, 4)))
    found = stated(map_, response=Response(np.zeros((2, 2)), np.zeros((6, 2)), np.ones(2), 256))
    expected = map_.noise.std(axis=0, ddof=1) / np.sqrt(5) * [1, 1, 1, map_.alpha]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_second_rule_adds_its_own_scatter():
    """A deterministic rule is compared with replicates: their distance and their scatter add in quadrature."""
    scatter = 1e-3 * np.random.default_rng(6).normal(size=(16, 4))
    scatter -= scatter.mean(axis=0)
    alone, shift = LinearMap(np.zeros((1, 4)), randomised=False), np.array([0.02, 0.01, 0.03, 0.005])
    of_replicates, by_chance = stated(LinearMap(scatter)), stated(alone, LinearMap(scatter))
    np.testing.assert_allclose(by_chance, of_replicates, rtol=1e-10)
    distance, together = (stated(alone, LinearMap(one + shift)) for one in (np.zeros((16, 4)), scatter))
    np.testing.assert_allclose(together, np.hypot(distance, of_replicates), rtol=1e-10)


def test_responses_are_those_of_other_units():
    """Where a token's standard deviation is 30 coordinates have sizes from 1e-3 to 1e6, and none has no response."""
    jacobian, changes = np.array([[0.6, 0.2], [-0.3, 0.7]]), np.array([[0.02, -0.05], [0.01, 0.03]])
    right = np.linalg.solve(np.eye(2) - jacobian, changes.T).T
    for units in (np.array([1e-7, 3e6]), np.array([2e8, 1e-6])):
        found = response_to(changes * units, jacobian * units[:, None] / units, units)
        np.testing.assert_allclose(found / units, right, rtol=1e-9)


@pytest.mark.parametrize("at", [1.13, 1.5, 1.86])
@pytest.mark.parametrize("noise", [(0.02, 0.02), (0.03, 0.006), (0.006, 0.03)])
def test_error_of_a_crossing(at, noise):
    """Straight lines with known noise at the ends, unequal or not, and the crossing anywhere between them."""
    generator, grid = np.random.default_rng(3), np.array([1.0, 2.0])
    draws = [-1.7 * (grid - at) + generator.normal(0.0, noise) for _ in range(2000)]
    found = [crossing(grid.tolist(), d.tolist(), list(noise)) for d in draws]
    assert_calibrated(np.array([one.alpha - at for one in found]), np.array([one.standard_error for one in found]))


def test_derivatives_of_a_neighbour_that_tell_a_fifth_of_an_error_are_taken_anew():
    """Errors of the other coordinate, which they tell, are a hundred times larger in its unit."""
    rule = SimpleNamespace(rule=SimpleNamespace(lines=None))
    map_: Any = SimpleNamespace(channel=rule, scales=lambda _: np.array([10.0, 1.0]))
    found: Any = SimpleNamespace(maps=1, point=np.zeros(2))
    for last, stale in ((0.5, False), (0.9, True)):
        run: Any = SimpleNamespace(jacobian=np.diag([0.5, last]))
        response: Any = SimpleNamespace(order=64, jacobian=np.diag([0.5, 0.5]))
        assert (still_known(run, map_, found, response) is None) == stale


def test_the_last_crossing_counts():
    """At small alpha all branches merge, and the difference is noise."""
    found = crossing([0.2, 0.4, 0.6, 0.8, 1.0, 1.2], [1e-6, -2e-6, 3e-6, 0.4, 0.1, -0.2], [1e-3] * 6)
    assert found.alpha == pytest.approx(1.0 + 0.2 / 3, rel=1e-12)


def test_error_of_the_limit_of_large_dimension():
    """Means at three dimensions with errors of very different size: the fitted limit and slope scatter as stated."""
    generator, count = np.random.default_rng(9), 2000
    dimensions, errors, limits = (60, 120, 240), (4e-3, 1e-3, 2e-3), []
    for _ in range(count):
        values = [0.3 + 1.7 / d + generator.normal(0.0, e) for d, e in zip(dimensions, errors, strict=True)]
        measured = [Measured(d, 8, v, e, v - 0.3, 0.0) for d, v, e in zip(dimensions, values, errors, strict=True)]
        limits.append(Limit.of(measured, 0.3, 0.0))
    assert_calibrated(np.array([one.value - 0.3 for one in limits]), np.array([one.stderr for one in limits]))
    assert_calibrated(np.array([one.slope - 1.7 for one in limits]), np.array([one.slope_stderr for one in limits]))
    assert_calibrated(np.array([one.z for one in limits]), np.ones(count))
    assert_calibrated(np.sqrt([one.chi2 for one in limits]), np.ones(count))  # of one degree of freedom
    runs = [Measured.of(100, generator.normal(0.7, 0.05, 6), 0.69, 0.01) for _ in range(800)]
    assert_calibrated(np.array([one.value - 0.7 for one in runs]), np.array([one.stderr for one in runs]), 6)
