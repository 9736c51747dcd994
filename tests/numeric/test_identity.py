"""Whether a point is on the branch whose name it bears."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attnphase.arrays import Array
from attnphase.data.absence import absences, absent, doubts, undecided
from attnphase.data.build import from_points
from attnphase.data.text import points_table
from attnphase.data.validate import validate_dataset
from attnphase.figures.theory import fig2
from attnphase.fixed_points import classification
from attnphase.fixed_points.branches import follow
from attnphase.fixed_points.measuring import SolvedPoint, branch_point, measured_at
from attnphase.fixed_points.run import Run
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import merged_point, solve_point
from attnphase.fixed_points.trial_amplitudes import Sweep, Trial, _top, beside_held, growth_with_error
from attnphase.integration.refinement import REPLICATES
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import FixedPoint, Status
from attnphase.state_evolution.branches import Identity
from attnphase.state_evolution.errors import Response, response_at
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.sector import Sector
from attnphase.state_evolution.starts import initial_overlaps, without_signal
from attnphase.state_evolution.system import System

SETTINGS = SolverSettings(threads=1, tolerance=1e-6)


def paper(omega: float, nodes: int, seed: int = 0, sigma: float = 0.5) -> Problem:
    integration = {"integration.rule": "sobol", "integration.nodes": nodes, "integration.seed": seed}
    return Problem.paper(omega=omega).with_fields({**integration, "tokens.sigma": sigma})


def the_map(problem: Problem, alpha: float, branch: str, points: int) -> StateEvolution:
    system = System.of(problem, 1)
    sector = Sector.of(initial_overlaps(problem, branch), system.symmetries)
    return Run(system, alpha, SETTINGS, sector).map(system.refinement(2**18).sobol(points))


# --- the growth at a trial amplitude ----------------------------------------------------------------------------------


def swept(map_: StateEvolution, x: Array, amplitudes: list[float], jacobian: Array | None = None) -> list[Trial]:
    """Trials at some amplitudes, and no tops."""
    sweep = Sweep(map_, np.zeros((len(x), len(x))) if jacobian is None else jacobian, (1e-3, 1e-6), lambda: False)
    sweep.along(x, amplitudes, 1.0)
    return sweep.trials


@pytest.mark.parametrize("rule", ["auto", "sobol"])
@pytest.mark.parametrize(("branch", "alpha", "amplitude"), [("semantic", 1.3, 0.02), ("positional", 0.7, 0.03)])
def test_a_small_order_parameter_grows_as_the_multiplier_says(branch, alpha, amplitude, rule):
    """The map itself at a small amplitude, whose nodes move, against the derivative of the weights of nodes at rest."""
    problem = Problem.paper(omega=0.27).with_fields({"tokens.sigma": 0.55, "integration.rule": rule})
    point = solve_point(problem, alpha, "uninformed", settings=SETTINGS)
    system = System.of(problem, 1)
    informed = initial_overlaps(problem, branch)
    run = Run(system, alpha, SETTINGS, system.sector_of(informed))
    assert point.restart.rule is not None
    map_ = run.map(point.restart.rule)
    rest = map_.pack(point.restart.overlaps)
    known = growth_with_error(map_, rest, [])
    assert known is not None
    x = rest.copy()
    x[map_.sector.odd] = map_.pack(informed)[map_.sector.odd]
    (trial,) = swept(map_, x, [amplitude])
    assert known[0] > 0.2
    assert trial.growth == pytest.approx(known[0], rel=0.1)
    assert (known[1] > 0) == (rule == "sobol")


@pytest.mark.parametrize(("branch", "omega", "alpha"), [("positional", 0.6, 2.1), ("semantic", 0.2, 2.6)])
def test_the_growths_error_is_that_of_the_amplitude_over_the_slope(branch, omega, alpha):
    """Along a branch it moves the order parameter as derivatives say; with q and V held it is several times as much."""
    fields = {"regularizer.kind": "elastic-net", "regularizer.strength": 0.01, "regularizer.ridge": 0.005}
    problem, name = paper(omega, 1024).with_fields(fields), "m" if branch == "positional" else "theta"
    point = solve_point(problem, alpha, branch, settings=replace(SETTINGS, stability=False))
    map_ = the_map(problem, alpha, branch, 1024)
    x = map_.pack(point.restart.overlaps)
    map_(x, refresh=True)
    here = growth_with_error(map_, x, [])
    amplitude = float(np.linalg.norm(x[map_.sector.odd]))
    jacobian = beside_held(response_at(map_, x, map_.channel.rule).jacobian, map_.sector.odd)
    below, above = swept(map_, x, [0.93 * amplitude, 1.07 * amplitude], jacobian)
    assert here is not None
    assert abs(here[0]) < 1e-3
    relative = float(np.max(point.errors[name]) / np.max(np.abs(point.values[name])))
    assert here[1] * 0.14 / (below.growth - above.growth) == pytest.approx(relative, rel=0.35)


def test_the_top_of_the_curve_is_looked_for_where_a_fold_may_hide():
    def trial(amplitude: float) -> Trial:
        return Trial(amplitude, np.array([amplitude]), -0.2 - 30 * (amplitude**2 - 0.23**2) ** 2)

    assert _top([trial(a) for a in (0.4, 0.3, 0.16, 0.1)], -9.0, 1e-3) == pytest.approx(0.23, rel=1e-9)
    assert _top([trial(a) for a in (0.4, 0.35, 0.3)], -0.1, 1e-3) is None  # it falls throughout
    assert _top([trial(a) for a in (0.4, 0.35, 0.3)], -5.0, 1e-3) is not None  # and more at rest
    # hardly higher, which counts for more where the growth is nearly zero
    near = [trial(a) for a in (0.4, 0.235, 0.1)]
    assert _top(near, -9.0, 1e-2) is None
    assert _top(near, -9.0, 1e-6) == pytest.approx(0.23, rel=1e-9)


def test_derivatives_of_one_sector_in_another():
    """Those without an order parameter act on what both have as they are, and on nothing else."""
    problem = paper(0.27, 64)
    informed = initial_overlaps(problem, "semantic")
    symmetries = System.of(problem, 1).symmetries
    own, without = Sector.of(informed, symmetries), Sector.of(without_signal(informed), symmetries)
    assert own.basis.shape[1] > without.basis.shape[1]
    matrix = np.random.default_rng(3).normal(size=2 * (without.basis.shape[1],))
    taken = own.taken_over(matrix, without)
    rest = own.pack(without_signal(informed))
    there = without.unpack(matrix @ without.pack(without_signal(informed)))
    np.testing.assert_allclose(taken @ rest, own.pack(there), rtol=1e-12)
    np.testing.assert_allclose(taken @ (own.pack(informed) - rest), 0.0, atol=1e-12)
    np.testing.assert_allclose(own.taken_over(taken, own), taken, rtol=1e-12)


# --- which points stand -----------------------------------------------------------------------------------------------


class Form:
    """A map of one odd coordinate, in place of a state evolution's."""

    def __init__(self, form: str, mu: float) -> None:
        self.form, self.mu, self.alpha = form, mu, 1.0
        self.channel = SimpleNamespace(rule=SimpleNamespace(lines=True))
        self.sector = SimpleNamespace(odd=np.array([0]))

    def __call__(self, x: Array, **_: Any) -> Array:
        return x * (1 + self.mu - x**2) if self.form == "onset" else x + self.mu - (x - 1) ** 2

    def scales(self, x: Array) -> Array:
        return np.ones_like(x)

    def adopt_from(self, other: Any) -> None:
        pass

    def unpack(self, x: Array) -> Any:
        return SimpleNamespace(feasible=lambda rho: True)


@pytest.mark.parametrize(("alpha", "ridge"), [(4.2, 1.2e-4), (3.1, 2.3e-3)])
def test_a_point_stands_next_to_exact_recovery(alpha, ridge):
    """There q is hardly more than theta^2 / rho: all the eight errors on one side lie beyond the edge of the domain."""
    problem = Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": 2.4},
            "loss": {"kind": "square"},
            "regularizer": {"strength": ridge},
        }
    )
    point = solve_point(problem, alpha, "semantic", settings=SETTINGS)
    q, theta = (float(getattr(point.restart.overlaps, name).squeeze()) for name in ("q", "theta"))
    assert q - theta**2 / 2.4**2 < 1e-5 * q
    assert point.on_branch is Identity.on_branch


@pytest.mark.parametrize("form", ["onset", "fold"])
def test_a_point_stands_where_four_errors_leave_it(form, monkeypatch):
    """At an onset, a (1 + mu - a^2), and at a fold, a + mu - (a - 1)^2, there is a branch for positive mu."""
    for errors, expected in ((3.9, False), (4.1, True)):
        error = 1e-3
        mu = errors * error
        if form == "onset":
            a, slope = np.sqrt(mu), -2 * mu
        else:
            a, slope = 1 + np.sqrt(mu), -2 * np.sqrt(mu)
        map_ = Form(form, mu)
        monkeypatch.setattr(classification, "StateEvolution", lambda *_, map_=map_: map_)
        monkeypatch.setattr(classification, "Channel", lambda *_: None)
        system = SimpleNamespace(
            reflects=form == "onset", prior=SimpleNamespace(even=True), spectrum=SimpleNamespace(rho=None)
        )
        run: Any = SimpleNamespace(system=system, settings=SimpleNamespace(tolerance=1e-12))
        moved = SimpleNamespace(images=np.array([[error * (a if form == "onset" else 1.0)]]))
        found = SimpleNamespace(point=np.array([a]))
        place: Any = SimpleNamespace(map_=map_, found=found, measured=SimpleNamespace(moved=moved))
        rules: Any = SimpleNamespace(is_few=lambda rule: False)
        inverse, along = np.array([[-1 / slope]]), np.array([1 / a])
        assert classification._is_bracketed(run, rules, place, inverse, along) is expected, errors


def a_point(problem: Problem, alpha: float, branch: str) -> tuple[Run, Any, SolvedPoint]:
    """A point on its branch, and what it is judged by."""
    system = System.of(problem, 1)
    run = Run(system, alpha, SETTINGS, system.sector_of(initial_overlaps(problem, branch)))
    rules = system.refinement_of_solve(2**18)
    map_ = run.map(rules.first())
    x = map_.pack(solve_point(problem, alpha, branch, settings=SETTINGS).restart.overlaps)
    found = run.newton(map_, x, response_at(map_, x, map_.channel.rule).jacobian)
    response = response_at(map_, found.point, rules.of_derivatives(map_.channel.rule))
    return run, rules, SolvedPoint(map_, found, measured_at(run, rules, map_, found, response), response)


@pytest.mark.parametrize(("errors", "expected"), [(3.8, False), (4.2, True)])
def test_derivatives_whose_errors_reach_a_singular_map_leave_it_open(errors, expected):
    """An eigenvalue may not be one within four errors of the derivatives, which the replicates tell."""
    problem = Problem.paper(omega=0.27).with_fields({"tokens.sigma": 0.55})
    run, rules, place = a_point(problem, 1.4, "semantic")
    system = np.eye(len(place.found.point)) - place.response.jacobian
    noise = system[None] / len(system) / errors
    judged = replace(place, response=replace(place.response, noise=noise))
    assert classification._stands(run, rules, judged, ("theta",)) is expected


def test_replicates_tell_the_errors_of_derivatives():
    """Against the scatter of derivatives under other seeds."""
    problems = [paper(0.27, 256, seed, sigma=0.55) for seed in range(12)]
    maps = [the_map(problem, 1.4, "semantic", 256) for problem in problems]
    x = maps[0].pack(initial_overlaps(problems[0], "semantic"))
    found = [response_at(map_, x, map_.channel.rule) for map_ in maps]
    seen = np.std([one.jacobian for one in found], axis=0, ddof=1)
    told = np.sqrt(np.mean([(one.noise**2).sum(axis=0) for one in found], axis=0))
    assert isinstance(found[0], Response)
    assert ((seen < 2 * told) & (told < 2 * seen)).all()


# --- identities -------------------------------------------------------------------------------------------------------


def test_nets_of_another_symmetry_have_other_minima():
    """Of three tokens the uninformed point has more symmetries than the branch, and so fewer nodes."""
    problem = Problem.from_dict({"tokens": {"length": 3}, "teacher": {"omega": 0.5}})
    point = solve_point(problem, 1.3, "positional", settings=replace(SETTINGS, stability=False))
    assert point.status is Status.converged
    assert point.on_branch is not Identity.on_branch


@pytest.mark.parametrize(
    ("omega", "alpha", "branch", "expected"),
    [
        # at omega = .3 theta begins to grow at .7200(6), m at .05746(5)
        (0.3, 0.71, "semantic", Identity.merged),
        (0.3, 0.7192, "semantic", Identity.not_decided),
        (0.3, 0.72, "semantic", Identity.on_branch),  # by a tenth of the error, which alone leaves it open
        (0.3, 0.73, "semantic", Identity.on_branch),
        (0.3, 0.05, "positional", Identity.merged),
        (0.3, 0.065, "positional", Identity.on_branch),
        (0.3, 0.2, "semantic", Identity.merged),  # most trial amplitudes lie outside the domain
        # m vanishes between these two
        (0.1, 1.25, "positional", Identity.on_branch),
        (0.1, 1.3, "positional", Identity.merged),
    ],
)
def test_a_branch_is_there_from_its_onset_on(omega, alpha, branch, expected):
    point = solve_point(Problem.paper(omega=omega), alpha, branch, settings=replace(SETTINGS, stability=False))
    assert point.status is Status.converged
    assert point.on_branch is expected
    order = "theta" if branch == "semantic" else "m"
    assert (np.abs(point.values[order]).max() > 0) == (expected is Identity.on_branch)


@pytest.mark.parametrize(("alpha", "expected"), [(7.25, Identity.merged), (7.35, Identity.on_branch)])
def test_a_branch_above_its_fold_is_itself_and_below_it_is_not(alpha, expected):
    """Between them it begins with m = .255; at 7.25 the growth exceeds -.001 within .01 of that amplitude alone."""
    problem = Problem.paper(omega=0.3).with_fields({"tokens.sigma": 0.6})
    point = solve_point(problem, alpha, "positional", settings=replace(SETTINGS, stability=False))
    assert point.status is Status.converged
    assert point.on_branch is expected
    assert (np.abs(point.values["m"]).max() > 0.25) == (expected is Identity.on_branch)


@pytest.mark.parametrize(("alpha", "expected"), [(1.9, Identity.on_branch), (1.95, Identity.merged)])
def test_a_branch_that_few_nodes_cannot_follow_to_its_end_is_decided_by_more(alpha, expected):
    """At omega = .22 the positional branch ends between 1.92 and 1.935, where coarse rules move its fold by .04."""
    problem = Problem.paper(omega=0.22).with_fields({"integration.standard_error": 1e-2})
    point = solve_point(problem, alpha, "positional", settings=replace(SETTINGS, stability=False))
    assert point.status is Status.converged
    assert point.on_branch is expected


@pytest.mark.parametrize(("alpha", "branch"), [(0.4, "positional"), (1.1, "semantic")])
def test_a_line_from_the_uninformed_point_finds_the_branch_above(alpha, branch):
    """Where a small order parameter grows there is a branch, wherever the solve began."""
    problem = Problem.paper(omega=0.27).with_fields({"tokens.sigma": 0.55})
    settings = replace(SETTINGS, stability=False)
    start = without_signal(initial_overlaps(problem, branch))
    point, informed = (solve_point(problem, alpha, branch, start=one, settings=settings) for one in (start, None))
    assert point.on_branch is informed.on_branch is Identity.on_branch
    order = "theta" if branch == "semantic" else "m"
    error = np.hypot(np.max(point.errors[order]), np.max(informed.errors[order]))
    assert abs(np.abs(point.values[order]).max() - np.abs(informed.values[order]).max()) < 4 * error


def test_what_does_not_settle_at_a_trial_amplitude_leaves_it_open(monkeypatch):
    """As on a map of stairs: it has neither left the domain nor come to rest."""
    problem, alpha = Problem.paper(omega=0.3), 0.05
    assert solve_point(problem, alpha, "positional", settings=SETTINGS).on_branch is Identity.merged
    monkeypatch.setattr("attnphase.fixed_points.trial_amplitudes.MAPS_OF_NEWTON", 1)
    monkeypatch.setattr("attnphase.fixed_points.trial_amplitudes.MAPS_OF_ANDERSON", 1)
    assert solve_point(problem, alpha, "positional", settings=SETTINGS).on_branch is Identity.not_decided


# 64 nodes have theta from 0 to .05 where 2^18 have none, and m at .16 to .21 for these seeds beside .1181
@pytest.mark.parametrize(
    ("omega", "nodes", "alpha", "branch", "truth", "seeds"),
    [
        (0.44, 256, 0.8625, "semantic", 0.0, [0, 2, 4]),
        (0.1, 64, 1.2, "positional", 0.1181, [5, 10, 11, 15, 14013]),
        (0.0, 256, 0.944, "positional", 0.0, [0, 21]),
        (0.3, 64, 0.7688, "semantic", 0.0495, [1, 26]),
    ],
)
def test_nodes_of_no_seed_claim_what_is_not_there(omega, nodes, alpha, branch, truth, seeds):
    """The last column is from lines: what is not decided claims nothing, and else holds within four errors."""
    order = "theta" if branch == "semantic" else "m"
    for seed in seeds:
        point = solve_point(paper(omega, nodes, seed), alpha, branch, settings=replace(SETTINGS, stability=False))
        assert point.status is Status.converged
        if point.on_branch is Identity.not_decided:
            continue
        assert (point.on_branch is Identity.merged) == (truth == 0)
        off = np.abs(np.abs(point.values[order]).max() - truth)
        assert off <= 4 * np.max(point.errors[order])


def test_far_from_its_end_a_branch_is_itself_and_below_it_is_not():
    for branch, alpha, expected in (
        ("semantic", 1.7, Identity.on_branch),
        ("positional", 1.7, Identity.on_branch),
        ("semantic", 0.3, Identity.merged),
        ("uninformed", 0.3, Identity.on_branch),
    ):
        assert solve_point(paper(0.33, 64), alpha, branch, settings=SETTINGS).on_branch is expected, (branch, alpha)


@pytest.mark.parametrize("branch", ["semantic", "positional", "uninformed"])
def test_a_point_that_has_not_converged_is_on_no_branch(branch):
    """Its order parameter is large and its derivatives are known, but it is no fixed point."""
    point = solve_point(paper(0.27, 64, 1, 0.55), 0.8, branch, settings=replace(SETTINGS, max_maps=9))
    assert point.status is Status.iteration_limit
    assert point.on_branch is Identity.not_decided
    assert doubts([point]) == {branch: f"{branch}: not converged, so it is not decided whether this is the branch."}


@pytest.mark.parametrize(("share", "expected"), [(1e-7, Identity.not_decided), (0.1, Identity.on_branch)])
def test_a_point_without_its_order_parameter_is_on_no_branch(share, expected):
    """A theta of 1e-7 of the start's is zero to a solver's accuracy: residuals are relative to a millionth at least."""
    problem, system = (one := paper(0.27, 16, sigma=0.55)), System.of(one, 1)
    informed = initial_overlaps(problem, "semantic")
    run = Run(system, 1.2, replace(SETTINGS, stability=False), system.sector_of(informed))
    rules = system.refinement(2**12)
    map_ = run.map(rules.sobol(16))
    x = map_.pack(replace(without_signal(informed), theta=share * informed.theta))
    image, response = map_(x), response_at(map_, x, map_.channel.rule)
    assert image is not None
    found = FixedPoint(x, image, 0.0, 1, Status.converged)
    measured = measured_at(run, rules, map_, found, response)
    point = branch_point(run, "semantic", map_, found, measured, response, Identity.on_branch)
    assert point.on_branch is expected


def test_nothing_is_decided_unasked():
    problem = paper(0.33, 64)
    for branch, expected in (("semantic", Identity.not_decided), ("uninformed", Identity.on_branch)):
        point = solve_point(problem, 1.7, branch, settings=replace(SETTINGS, identity=False))
        assert point.status is Status.converged
        assert point.on_branch is expected


def test_a_branch_is_looked_for_inside_the_domain():
    """Where theta grows from an uninformed point with next to no q, a share of the informed theta exceeds it."""
    problem = paper(0.45, 16).with_fields({"teacher.mixing": [[0.3, 0.7], [0.8, 0.2]]})
    point = solve_point(problem, 1.35, "semantic", settings=SETTINGS)
    assert point.status is Status.converged
    assert 0 < point.values["q"].max() < 1e-5


LASSO = {"regularizer.kind": "lasso", "regularizer.strength": 0.011}
NEARLY_LASSO = {"regularizer.kind": "elastic-net", "regularizer.strength": 0.01, "regularizer.ridge": 1e-4}


@pytest.mark.parametrize(
    ("omega", "fields", "alpha"), [(0.31, LASSO, 3.4), (0.85, LASSO, 2.9), (0.31, NEARLY_LASSO, 3.4)]
)
def test_a_sparse_students_positional_branch_is_met_from_its_start(omega, fields, alpha):
    """By steps as long as a ridge's m swings past zero and dies out, and the point seemed to have merged."""
    problem = paper(omega, 256).with_fields(fields)
    settings = replace(SETTINGS, stability=False)
    point = solve_point(problem, alpha, "positional", settings=settings)
    followed = follow(problem, (alpha, alpha + 0.5, 6.1), "positional", settings=settings)[0]
    assert point.status is followed.status is Status.converged
    assert point.on_branch is followed.on_branch is Identity.on_branch
    assert np.max(np.abs(point.values["m"])) > 0.2
    for name in ("q", "V", "m"):
        differences = np.abs(np.abs(point.values[name]) - np.abs(followed.values[name]))
        assert np.max(differences) < 0.5 * np.max(point.errors[name]), name


def test_a_sparse_students_branch_is_seen_where_its_curve_is_bent():
    """At one amplitude other overlaps have several values: steps as long as a ridge's meet those without a branch."""
    problem = Problem.paper(omega=0.3).with_fields({"regularizer.kind": "lasso", "regularizer.strength": 0.0058})
    point = solve_point(problem, 3.37, "positional", settings=replace(SETTINGS, stability=False))
    assert point.on_branch is Identity.on_branch
    # the curve of fixed points passes here: (3.35, .2618) at strength .006, and m grows with the penalty
    assert 0.255 < np.max(np.abs(point.values["m"])) < 0.265
    assert np.max(point.errors["m"]) < 1e-3


@pytest.mark.parametrize("strength", [0.014, 0.016])
def test_a_sparse_student_without_the_branch_is_found_merged(strength):
    """At the first the growth exceeds -.01 near its top; at the second nothing settles beside the uninformed point."""
    problem = Problem.paper(omega=0.31).with_fields(LASSO | {"regularizer.strength": strength})
    point = solve_point(problem, 1.72, "positional", settings=replace(SETTINGS, stability=False))
    assert point.status is Status.converged
    assert point.on_branch is Identity.merged


@pytest.mark.parametrize("seed", [4, 6])
def test_a_point_that_converged_is_one_of_the_global_minima(seed):
    """Minima that are followed from map to map may be left behind: a search from all starts must find the same."""
    point = solve_point(paper(0.0, 256, seed), 0.8625, "positional", settings=SETTINGS)
    map_ = the_map(point.problem, 0.8625, "positional", point.nodes // REPLICATES)
    map_.adopt(point.restart.minima)
    x = map_.pack(point.restart.overlaps)
    image = map_(x, refresh=True)
    assert image is not None
    residual = np.max(np.abs(image - x) / map_.scales(x))
    assert (residual < 2e-6) == (point.status is Status.converged)


# --- errors -----------------------------------------------------------------------------------------------------------


SPARSE = {"regularizer.kind": "elastic-net", "regularizer.strength": 0.01, "regularizer.ridge": 0.002}
UNTIED = {"student.tied": False}
THREE = {
    "tokens.length": 3,
    "positions.kind": "gram",
    "positions.gram": [[1, -0.5, -0.5], [-0.5, 1, -0.5], [-0.5, -0.5, 1]],
    "teacher.mixing": [[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.3, 0.2, 0.5]],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("omega", "fields", "branch", "alpha"),
    [
        (0.4, {}, "semantic", 1.2),  # near the onset
        (0.1, {}, "positional", 0.7),  # near the end
        (0.3, {}, "positional", 2.0),  # a map that turns over
        (0.3, SPARSE, "semantic", 2.2),
        (0.3, UNTIED, "semantic", 1.4),
        (0.3, THREE, "semantic", 0.9),
    ],
)
def test_errors_are_those_of_the_seeds(omega, fields, branch, alpha):
    """Within a factor of 1.5 and what chance allows: derivatives alone, or single replicates, miss some by far."""
    seeds = 10
    problems = [paper(omega, 64, seed).with_fields(fields) for seed in range(seeds)]
    points = [solve_point(problem, alpha, branch, settings=SETTINGS) for problem in problems]
    points = [point for point in points if point.on_branch is Identity.on_branch]
    assert len(points) > seeds - 3
    for name in ("q", "V", "m", "theta", "test_error", "training_loss"):
        values = np.stack([np.abs(np.ravel(point.values[name])[0]) for point in points])
        errors = np.stack([np.ravel(point.errors[name])[0] for point in points])
        if not values.any():
            assert not errors.any()
            continue
        low, high = stats.f.ppf([1e-3, 1 - 1e-3], len(points) - 1, len(points) * 15)
        ratio = values.var(ddof=1) / np.mean(errors**2)
        assert low / 1.5**2 < ratio < high * 1.5**2, (name, ratio)


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_tables_sentences_and_figures_show_it():
    problem, alphas = paper(0.33, 64), [0.25, 0.3, 1.7]
    points = [solve_point(problem, alpha, settings=SETTINGS) for alpha in alphas]
    ds = from_points(points, {"branch": ["semantic"], "alpha": alphas})
    assert ds["on_branch"].attrs["flag_meanings"].split() == ["on_branch", "merged_with_uninformed", "not_decided"]
    assert absent(ds, problem).values.tolist() == [[True, True, False]]
    labels = {text.get_text() for text in fig2(ds).legends[0].get_texts()}
    assert "merged with the uninformed point" in labels
    assert "branch not decided" not in labels
    assert "merged_with_uninformed" in points_table(points[:1]).text()
    assert set(absences(points[:1])) == {"semantic"}
    assert doubts(points[:1]) == {}
    doubtful = [replace(points[0], on_branch=Identity.not_decided)]
    assert undecided(from_points(doubtful, {"branch": ["semantic"], "alpha": alphas[:1]})).all()
    assert absences(doubtful) == {}
    sentence = doubts(doubtful)["semantic"]
    assert sentence.startswith(
        "semantic: whether this is the branch or the uninformed point is not decided: the errors"
    )
    assert sentence.endswith("whether there is a fixed point with theta; smaller ones may tell.")
    assert points_table(doubtful, (), doubts(doubtful)).text().splitlines()[0].endswith(" semantic?")
    # a dataset of an earlier version
    earlier = validate_dataset(ds.drop_vars("on_branch"))
    assert absent(earlier, problem).values.tolist() == [[True, True, False]]
    assert not undecided(earlier).any()


def test_a_point_that_has_merged_is_the_one_that_a_solve_gives():
    """Whether it has is asked alone: where it has not, nothing is given, and the line looks for the branch."""
    problem = Problem.paper(omega=0.28).with_fields({"integration.rule": "sobol", "integration.nodes": 64})
    settings = SolverSettings(tolerance=1e-6, threads=1, stability=False)
    uninformed = solve_point(
        problem, 0.4, "semantic", start=without_signal(initial_overlaps(problem, "semantic")), settings=settings
    )
    whole = solve_point(problem, 0.35, "semantic", start=uninformed, settings=settings)
    alone = merged_point(problem, 0.35, "semantic", uninformed, settings)
    assert whole.on_branch is Identity.merged
    assert alone is not None
    assert (alone.on_branch, alone.iterations) == (whole.on_branch, whole.iterations)
    np.testing.assert_array_equal(alone.restart.overlaps.q, whole.restart.overlaps.q)
    assert merged_point(problem, 1.3, "semantic", uninformed, settings) is None
