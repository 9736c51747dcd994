"""What decides that a solve may end: fresh searches, the ladder of rules, and what is said of the result."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from attnphase.arrays import Array
from attnphase.fixed_points.measuring import gauges_at
from attnphase.fixed_points.run import Run
from attnphase.fixed_points.setting import Setting
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import SMALL_SIGNAL, _decays, solve_point
from attnphase.fixed_points.traced import _sought
from attnphase.integration.kinds import Sobol
from attnphase.integration.refinement import Refinement
from attnphase.integration.rules import Rule
from attnphase.kernels.compiler import kernels_for
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.local.values import Nodes, Solution
from attnphase.problem.problem import Problem
from attnphase.processes.progress import silent
from attnphase.solvers.iteration import Anderson, FixedPoint, Status
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.map import NEAR_DEGENERATE, StateEvolution
from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.proximal import Minima
from attnphase.state_evolution.replicates import variations
from attnphase.state_evolution.sector import Sector
from attnphase.state_evolution.starts import informed_signal, initial_overlaps
from attnphase.state_evolution.system import System

module = import_module("attnphase.state_evolution.system")

ONE_THREAD = SolverSettings(threads=1)
FEW_NODES = SolverSettings(threads=1, max_nodes=4096)
PAPER = Problem.paper(omega=0.36)
FEW = PAPER.with_fields({"integration.rule": "sobol", "integration.nodes": 64})


def run_of(problem: Problem, alpha: float, branch: str = "semantic") -> Run:
    system = System.of(problem)
    return Run(system, alpha, ONE_THREAD, Sector.of(initial_overlaps(problem, branch), system.symmetries))


def ladder(problem: Problem, max_nodes: int = 2**18) -> Refinement:
    return problem.integration.form(problem.integration, (4, 2), True, max_nodes)


# --- fresh searches ---------------------------------------------------------------------------------------------------


def test_a_converged_point_is_searched_afresh():
    """Nodes that sit in their second minimum look converged; the fresh search finds the lowest, and goes on."""
    run = run_of(FEW, 0.7)
    map_ = run.map(ladder_of(run).sobol(64))
    x = map_.pack(TWO_MINIMA)
    map_(x)
    assert map_.minima is not None
    right = map_.minima
    two = np.flatnonzero(np.isfinite(right.gap))
    assert len(two) > 10
    fields, energies = right.fields.copy(), right.energies.copy()
    fields[two, 0], energies[two, 0] = fields[two, 1], energies[two, 1]
    map_.adopt(Minima(fields, energies, right.steps))
    image = map_(x)  # a warm pass stays where it is
    assert image is not None
    np.testing.assert_allclose(map_.minima.energies[two, 0], energies[two, 0], rtol=1e-12)
    went_on = []

    def again(point: np.ndarray) -> FixedPoint:
        went_on.append(point)
        assert map_.minima is not None
        np.testing.assert_allclose(map_.minima.energies[:, 0], right.energies[:, 0], rtol=1e-10)
        return FixedPoint(point, point, 0.0, 1, Status.iteration_limit)

    found = run.verified(map_, FixedPoint(x, image, 1e-12, 3, Status.converged), 1e-3, again)
    assert len(went_on) == 1
    assert found.status is Status.iteration_limit


def test_a_point_whose_minima_never_agree_has_not_converged(monkeypatch):
    """Every round ends well on minima that are not the lowest, and the next search finds others."""
    run = run_of(FEW, 1.4)
    map_ = run.map(ladder_of(run).sobol(64))
    x = map_.pack(initial_overlaps(FEW, "semantic"))
    map_(x)
    monkeypatch.setattr(map_, "spot_check", lambda *_: False)
    rounds = []

    def again(point: np.ndarray) -> FixedPoint:
        rounds.append(point)
        return FixedPoint(point, point, 1e-12, 1, Status.converged)

    found = run.verified(map_, again(x), 1e-3, again)
    assert found.status is Status.iteration_limit
    assert len(rounds) == 1 + 6
    # a last round that the search agrees with has converged
    rounds.clear()
    monkeypatch.setattr(map_, "spot_check", lambda *_: len(rounds) == 7)
    assert run.verified(map_, again(x), 1e-3, again).status is Status.converged


def test_a_point_is_one_of_the_map_as_it_is():
    """Since it was found, nodes outside the sample that is searched may have followed another minimum."""
    run = run_of(FEW, 0.7)
    map_ = run.map(ladder_of(run).sobol(64))
    found = run.coarse(map_, map_.pack(initial_overlaps(FEW, "semantic")), 1e-7)
    assert found.status is Status.converged
    assert map_.minima is not None
    map_(found.point, refresh=True)
    right = map_.minima
    left = np.isfinite(right.gap) & (np.arange(len(right.energies)) % 64 % 5 != 0)
    assert left.sum() > 10
    fields, energies = right.fields.copy(), right.energies.copy()
    fields[left, 0], energies[left, 0] = fields[left, 1], energies[left, 1]
    map_.adopt(Minima(fields, energies, right.steps))
    assert map_.spot_check(found.point)
    point = run.verified(map_, found, 1e-3, lambda x: run.iterate(map_, x, Anderson()))
    image = map_(point.point)
    assert image is not None
    assert np.max(np.abs(image - point.point) / map_.scales(point.point)) <= run.settings.tolerance


def test_a_spot_check_sees_a_slightly_lower_minimum():
    """Lower by a millionth in a single node of the quarter that is searched."""
    run = run_of(FEW, 1.4)
    map_ = run.map(ladder_of(run).sobol(64))
    x = map_.pack(initial_overlaps(FEW, "semantic"))
    map_(x)
    assert map_.minima is not None
    assert map_.spot_check(x)
    energies = map_.minima.energies.copy()
    energies[5, 0] += 1e-6
    map_.adopt(Minima(map_.minima.fields, energies, map_.minima.steps))
    assert not map_.spot_check(x)
    one = 1 / (2 * 16 * 13)  # two sign changes, 16 replicates, every fifth of 64 points
    assert not map_.spot_check(x, 0.99 * one)
    assert map_.spot_check(x, 1.01 * one)


def test_a_spot_check_sees_that_nearly_degenerate_minima_were_lost():
    """More than the root of their number in the sample."""
    map_ = in_two_minima()
    x, minima = map_.pack(TWO_MINIMA), map_.minima
    assert minima is not None
    assert map_.spot_check(x)
    near = np.flatnonzero((minima.gap < NEAR_DEGENERATE) & (np.arange(len(minima.energies)) % 64 % 5 == 0))
    assert 4 < len(near) < 9
    for lost, enough in ((2, True), (3, False)):
        energies = minima.energies.copy()
        energies[near[:lost], 1] = energies[near[:lost], 0]
        map_.adopt(Minima(minima.fields, energies, minima.steps))
        assert map_.spot_check(x) is enough


def test_a_smaller_rule_takes_its_minima_from_a_larger_one():
    """Its points are the first ones of each replicate; a search from all starts finds the same."""
    run = run_of(FEW, 0.7)
    few, many, other = (run.map(ladder_of(run).sobol(points)) for points in (16, 128, 32))
    x = few.pack(TWO_MINIMA)
    searched = few(x)
    many(x)
    assert few.minima is not None
    assert searched is not None
    energies = few.minima.energies
    few.adopt_from(many)
    image = few(x)
    assert image is not None
    np.testing.assert_allclose(few.minima.energies, energies, rtol=1e-12)
    np.testing.assert_allclose(image, searched, rtol=1e-9)
    many.adopt_from(other)  # which has none yet, and fewer points
    assert many.minima is None


def test_a_map_is_evaluated_once_at_a_point(monkeypatch):
    """Unless it is to search afresh, or was lifted there."""
    map_ = in_two_minima()
    x = map_.pack(TWO_MINIMA)
    first, evaluate, asked = map_(x), Channel.evaluate, []

    def counted(self: Channel, *args: object) -> object:
        asked.append(args)
        return evaluate(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Channel, "evaluate", counted)
    again = map_(x.copy())
    assert first is not None
    assert again is not None
    assert np.array_equal(first, again)
    again[:] = np.nan  # what is handed out is the caller's own
    assert np.array_equal(first, map_(x))  # type: ignore[arg-type]
    assert not asked
    map_(x, refresh=True)
    assert len(asked) == 1
    map_.lift = True
    map_(x)
    assert len(asked) == 2
    map_(x * (1 + 1e-12))
    assert len(asked) == 3


TWO_MINIMA = Overlaps(*(np.array(v).reshape(2, 1, 1) for v in ([0.09] * 2, [30.0] * 2, [0.0] * 2, [0.1] * 2)))


def in_two_minima() -> StateEvolution:
    """A map evaluated where many nodes have two minima."""
    run = run_of(FEW, 0.7)
    map_ = run.map(ladder_of(run).sobol(64))
    map_(map_.pack(TWO_MINIMA))
    return map_


def ladder_of(run: Run) -> Refinement:
    return run.system.refinement(2**18)


# --- the ladder of rules ----------------------------------------------------------------------------------------------


def rule(name: str, order: int, size: int = 16) -> Rule:
    replicates = 16 if name == "sobol" else 1
    nodes = np.zeros((replicates, size // replicates, 4))
    return Rule(name, nodes, np.ones(size // replicates), True, 2, order, name == "sobol")


@pytest.fixture
def made(monkeypatch):
    """Rules by name and order alone."""
    monkeypatch.setattr(Refinement, "sobol", lambda self, points: rule("sobol", points))
    monkeypatch.setattr(Refinement, "gauss_hermite", lambda self, order: rule("gauss-hermite", order))


def steps(problem: Problem, start: Rule, errors: list[float], minima: float = 0.01) -> list[tuple[str, int] | None]:
    found: list[tuple[str, int] | None] = []
    rules, at = ladder(problem), start
    for error in errors:
        after = rules.next(at, error, minima)
        found.append(None if after is None else (after.name, after.order))
        if after is None:
            break
        at = after
    return found


def test_sobol_rules_grow_until_the_error_asked_for(made):
    """The error falls like N^-0.85: four times the error asked for needs 8 times the points, and a hair over it 2."""
    problem = PAPER.with_fields({"integration.standard_error": 2e-3})
    assert steps(problem, rule("sobol", 256), [2.0e-3]) == [None]
    assert steps(problem, rule("sobol", 256), [2.01e-3, 1.99e-3]) == [("sobol", 512), None]
    assert steps(problem, rule("sobol", 256), [8e-3, 1e-3]) == [("sobol", 2048), None]
    # never more than may be used, and not once more when they are
    assert steps(problem, rule("sobol", 8192), [1.0, 1.0]) == [("sobol", 16384), None]


def test_gauss_hermite_where_nothing_jumps_only(made):
    problem = PAPER.with_fields({"integration.standard_error": 2e-3})
    assert steps(problem, rule("sobol", 256), [1e-2], 0.0) == [("gauss-hermite", 12)]
    assert steps(problem, rule("sobol", 64), [np.inf], 0.0) == [("gauss-hermite", 12)]
    assert steps(problem, rule("sobol", 64), [np.inf], 1e-3) == [("sobol", 512)]
    assert steps(problem, rule("gauss-hermite", 12), [1e-2], 0.0) == [("gauss-hermite", 16)]
    assert steps(problem, rule("gauss-hermite", 12), [1e-9], 1e-6) == [("sobol", 256)]
    assert steps(problem, rule("gauss-hermite", 12), [1e-9], 0.0) == [None]
    # the highest order that four dimensions afford is not the last rule, and does not lead back to the first
    assert steps(problem, rule("gauss-hermite", 36), [1e-2, 4e-3], 0.0) == [("sobol", 2048), ("sobol", 8192)]
    asked = problem.with_fields({"integration.rule": "gauss-hermite"})
    assert steps(asked, rule("gauss-hermite", 12), [1e-9], 1e-6) == [None]


def test_derivatives_are_taken_with_few_nodes(made):
    """Not with fewer of a tensor rule than the user asks for, nor of a rule that may jump.

    A low order does where the lowest of the sequence does, and may be far off where higher ones are needed.
    """
    rules = ladder(PAPER)
    asked = ladder(PAPER.with_fields({"integration.rule": "gauss-hermite"}))
    for one, at, size, under in (
        (rules, ("sobol", 64), 16, ("sobol", 256)),
        (rules, ("sobol", 2048), 16, ("sobol", 256)),
        (rules, ("gauss-hermite", 12), 32, ("gauss-hermite", 8)),
        (rules, ("gauss-hermite", 16), 32, ("sobol", 256)),
        (rules, ("gauss-hermite", 16), 16, ("gauss-hermite", 16)),
        (asked, ("gauss-hermite", 16), 32, ("gauss-hermite", 16)),
    ):
        found = one.of_derivatives(rule(*at, size))
        assert (found.name, found.order) == under


def test_what_a_rule_is_compared_with(made):
    """Orders of both parities of a smooth integrand, replicates where it may jump, nothing where there are replicates.

    Nor are there lower orders than one.
    """
    rules = ladder(PAPER)
    assert rules.gauge(rule("sobol", 256), 0.3) is None
    assert rules.gauges(rule("sobol", 256), 0.3) == ()
    others = rules.gauges(rule("gauss-hermite", 16), 0.0)
    assert [(other.name, other.order) for other in others] == [("gauss-hermite", 12), ("gauss-hermite", 13)]
    assert [other.order for other in rules.gauges(rule("gauss-hermite", 5), 0.0)] == [1, 2]
    published = ladder(PAPER.with_fields({"integration.rule": "published"}))
    for one, at, second_minima in (
        (rules, rule("gauss-hermite", 16), 1e-6),
        (rules, rule("gauss-hermite", 4), 0.0),
        (published, rule("published", 12), 0.0),
    ):
        assert [other.name for other in one.gauges(at, second_minima)] == ["sobol"]


def test_what_an_accepted_rule_is_compared_with_once(made):
    """Points of another kind; not those that have replicates, nor the published ones, whose error is the distance."""
    compared = ladder(PAPER).comparison(rule("gauss-hermite", 16))
    assert compared is not None
    assert compared.name == "sobol"
    assert ladder(PAPER).comparison(rule("sobol", 256)) is None
    assert ladder(PAPER.with_fields({"integration.rule": "published"})).comparison(rule("published", 12)) is None


def test_the_worst_entry_of_q_decides(monkeypatch):
    """Tokens of unequal variance: the relative error that refines is the largest error over the largest entry."""
    problem = PAPER.with_fields({"tokens.sigma": [0.75, 0.3], "integration.rule": "sobol"})
    seen: list[float] = []
    following = Sobol.next

    def watched(self: Sobol, at: Rule, error: float, second_minima: float, parts: Array | None = None) -> Rule | None:
        seen.append(error)
        return following(self, at, error, second_minima) if at.order < 256 else None

    monkeypatch.setattr(Sobol, "next", watched)
    point = solve_point(problem, 1.9, settings=ONE_THREAD)
    errors, q = point.errors["q"], point.values["q"]
    assert errors.max() > 1.5 * errors.min()
    stated = errors.max() / np.abs(q).max()
    # what the iteration has left is in the stated error, and asks for no more nodes
    gap = 1 - np.abs(point.values["map_eigenvalue"]).max()
    assert 0 <= stated - seen[-1] < 2 * point.residual / abs(gap)


# --- what is said of a point ------------------------------------------------------------------------------------------


def test_the_gap_is_that_of_an_unfinished_iteration():
    """The expressions of the training loss agree at fixed points: where the iteration was stopped, they do not."""
    early = solve_point(FEW, 1.6, settings=replace(ONE_THREAD, max_maps=3))
    late = solve_point(FEW, 1.6, settings=ONE_THREAD)
    assert early.status is Status.iteration_limit
    assert early.values["free_energy_gap"] > 1e-6
    assert late.values["free_energy_gap"] < 1e-9
    for point in (early, late):
        assert point.values["training_loss"] > 0


def test_unsolved_nodes_are_counted(monkeypatch):
    """A kernel that gives up on three nodes of each of the two sign changes that are searched."""
    kernels = kernels_for(FEW)

    def minimise(nodes: Nodes, starts: Starts, solution: Solution) -> None:
        kernels.minimise(nodes, starts, solution)
        solution.flags[[3, 17, 200]] *= -1  # steps, negative where the gradient did not reach its tolerance
        solution.flags[[3, 17, 200]] -= 1

    monkeypatch.setattr(module, "kernels_for", lambda problem: replace(kernels, minimise=minimise))
    point = solve_point(FEW, 1.6, settings=ONE_THREAD)
    assert point.values["unsolved_nodes"] == 6


def test_a_start_that_no_fields_can_have_is_refused():
    start = initial_overlaps(FEW, "semantic")
    wrong = replace(start, theta=2 * start.theta)
    with pytest.raises(ValueError, match="positive semidefinite joint covariance"):
        solve_point(FEW, 1.6, start=wrong, settings=ONE_THREAD)


def test_the_lift_reaches_the_domain_on_every_atom():
    """Beyond its domain the map shifts V_hat far enough for the atom that the shift moves least."""
    atoms = [{"weight": 0.5, "variances": [0.30, 0.02]}, {"weight": 0.5, "variances": [0.05, 0.90]}]
    problem = PAPER.with_fields({"tokens.sigma": None, "tokens.spectrum": atoms})
    system = System.of(problem)
    prior, spectrum = system.prior, system.spectrum
    one = np.ones((2, 1, 1, 1))
    hats = Conjugates(0.3 * one, np.array([-1.0, 0.5])[:, None, None, None], 0 * one, 0.1 * one)
    assert prior.overlaps(hats) is None
    image = prior.overlaps(hats, lift=True)
    assert image is not None
    # the curvature of the first atom, -0.28, becomes a tenth of the ridge; the second's stays positive
    shift = (0.1 * 0.01 + 0.28) / 0.32
    curvature = 0.01 + spectrum.gamma.T @ (np.array([-1.0, 0.5]) + shift)
    assert curvature[0] == pytest.approx(0.001, rel=1e-9)
    np.testing.assert_allclose(image.V[:, 0, 0], spectrum.gamma @ (spectrum.weights / curvature), rtol=1e-9)
    assert image.feasible(spectrum.rho)


def test_an_order_parameter_on_its_way_to_zero_is_told_from_one_that_grows():
    """Where it is small and its image smaller still; not where the image is larger, nor where it is large yet.

    Nor where another entry still moves by a larger share: then the order parameter may pass zero by chance.
    """
    run = run_of(FEW, 1.0)
    map_ = run.map(ladder_of(run).sobol(64))
    informed = initial_overlaps(FEW, "semantic")

    def ended(share: float, image: float, status: Status = Status.iteration_limit, q: float = 1.0) -> FixedPoint:
        ends = (
            replace(informed, theta=share * informed.theta),
            replace(informed, theta=image * informed.theta, q=q * informed.q),
        )
        return FixedPoint(map_.pack(ends[0]), map_.pack(ends[1]), 1e-3, 40, status)

    assert _decays(map_, ended(0.1, 0.08), informed, "semantic")
    assert _decays(map_, ended(0.1, 0.08, q=0.83), informed, "semantic")
    assert not _decays(map_, ended(0.1, 0.08, q=0.77), informed, "semantic")
    assert not _decays(map_, ended(0.1, 0.12), informed, "semantic")
    assert not _decays(map_, ended(0.6, 0.5), informed, "semantic")
    assert not _decays(map_, ended(0.1, 0.08, Status.converged), informed, "semantic")
    assert not _decays(map_, ended(0.0, 0.0), informed, "semantic")


def sought(problem: Problem, alpha: float) -> Overlaps | None:
    return _sought(Setting(problem, alpha, "alpha"), "semantic", (0.2, 3.0), ONE_THREAD, silent)


@pytest.mark.parametrize("problem", [FEW, PAPER], ids=["points", "lines"])
def test_an_informed_start_leads_to_a_branch_where_there_is_one(problem, monkeypatch):
    """The semantic one at alpha = 2, and none at 0.3, where no map is needed once theta is small and shrinks."""
    seen: list[float] = []
    original, full = StateEvolution.__call__, informed_signal(initial_overlaps(problem, "semantic"), "semantic")

    def recorded(self, x, **options):
        image = original(self, x, **options)
        seen.append(informed_signal(self.unpack(x), "semantic") / full)
        return image

    monkeypatch.setattr(StateEvolution, "__call__", recorded)
    assert sought(problem, 0.3) is None
    assert min(seen[:-1]) >= SMALL_SIGNAL > seen[-1] > 0.1
    seen.clear()
    found = sought(problem, 2.0)
    assert found is not None
    assert found.theta.min() > 0.1
    assert min(seen) > SMALL_SIGNAL


def test_one_minimum_is_no_second_minimum():
    minima = Minima(np.zeros((3, 2, 2, 1)), np.array([[0.1, 0.1], [0.1, 0.2], [0.3, 0.3]]), np.ones(3, dtype=np.int64))
    assert minima.gap.tolist() == [np.inf, pytest.approx(0.1), np.inf]
    assert minima.unsolved == 0


def test_few_points_that_jump_give_way_to_more():
    """Three hidden units behind attention: 4096 points have no fixed point, as some change minima at every step."""
    label = "y = tanh(2.8*softmax(k[:, :1] @ k[:, 1:2].T) @ k[:, 2:]) @ [1.5, -1.25, 1.0] + noise[:, 0]"
    found = "f = tanh(softmax(h[:, :1] @ h[:, 1:2].T) @ h[:, 2:]) @ [a0, a1, a2]"
    problem = Problem.from_dict(
        {
            "tokens": {"sigma": 1.0},
            "positions": {"kind": "none"},
            "teacher": {"rank": 5, "noise": 0.13},
            "student": {"rank": 5},
            "regularizer": {"strength": 0.11},
            "integration": {"standard_error": 0.02},
            "loss": {
                "kind": "expression",
                "expression": f"{label}\n{found}\nsum((y - f)**2)/4",
                "parameters": {"a0": 1.5, "a1": -1.25, "a2": 1.0},
                "trained": {f"a{j}": f"0.055*a{j}**2" for j in range(3)},
            },
        }
    )
    settings = SolverSettings(threads=1, max_nodes=2**15, stability=False, identity=False)
    point = solve_point(problem, 7.3, settings=settings)
    assert (point.status, point.nodes) == (Status.converged, 2**15)
    # all units have learnt from their own, and queries from queries
    assert np.diag(point.values["theta"][0]) == pytest.approx([0.969, 0.960, 1.697, 1.505, 1.330], abs=0.02)


def test_gauges_know_their_minima_once_they_were_evaluated():
    """A point measured again is compared with the same maps, another rule with others; errors stay what they were."""
    one_token = {"tokens.length": 1, "positions.kind": "none", "teacher.mixing": None, "loss.kind": "logistic"}
    problem = Problem().with_fields({**one_token, "integration.rule": "gauss-hermite"})
    system, settings = System.of(problem, 1), SolverSettings(threads=1)
    rules, informed = system.refinement(2**14), initial_overlaps(problem, "semantic")
    map_ = StateEvolution(Channel(system, rules.first()), 1.3, system.sector_of(informed))
    x, run = map_.pack(informed), Run(system, map_.alpha, settings, map_.sector)
    assert map_(x) is not None
    first = gauges_at(run, rules, map_)
    cold = variations(map_, x, first)
    away = x * (1 + 1e-6 * np.arange(len(x)))
    assert map_(away) is not None
    again = gauges_at(run, rules, map_)
    assert first
    assert all(one is other for one, other in zip(first, again, strict=True))
    warm = variations(map_, away, again)
    np.testing.assert_allclose(warm.images, cold.images, atol=1e-3 * np.abs(cold.images).max())
    finer = StateEvolution(Channel(system, rules.gauss_hermite(16)), 1.3, map_.sector)
    assert finer(x) is not None
    assert gauges_at(run, rules, finer)[0] is not first[0]
