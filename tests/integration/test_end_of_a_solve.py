"""What decides that a solve may end: fresh searches, the next rules, and what is said of the result.

Not public: maps whose minima a test changes, and rules by their orders; `solve` shows neither.
"""

import re
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from models import model
from one_map import QUICK

import attnphase as ap
from attnphase.fixed_points.measuring import gauges_at
from attnphase.fixed_points.run import Run
from attnphase.fixed_points.setting import Setting
from attnphase.fixed_points.solver import _decays, _is_lower
from attnphase.fixed_points.traced import _sought
from attnphase.integration.kinds import Automatic
from attnphase.integration.refinement import Refinement
from attnphase.integration.rules import Rule
from attnphase.kernels.compiler import kernels_for
from attnphase.processes.progress import ProgressLine, silent
from attnphase.solvers.iteration import FixedPoint, Status
from attnphase.state_evolution.branches import ERRORS, Identity
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.map import NEAR_DEGENERATE, StateEvolution
from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.proximal import Minima
from attnphase.state_evolution.sector import Sector
from attnphase.state_evolution.starts import informed_signal, initial_overlaps
from attnphase.state_evolution.system import System

SETTINGS = ap.SolverSettings(**QUICK)
FEW = model("paper", {"teacher.omega": 0.36, "integration.rule": "sobol", "integration.nodes": 64})


def run_of(problem, alpha):
    system = System.of(problem)
    return Run(system, alpha, SETTINGS, Sector.of(initial_overlaps(problem, "semantic"), system.symmetries))


def in_two_minima() -> tuple[Run, Any, Any, Any]:
    """A run, and its map evaluated where many nodes have two minima, and the point."""
    run = run_of(FEW, 0.7)
    map_ = run.map(run.system.refinement(2**18).sobol(64))
    x = map_.pack(Overlaps(*(np.full((2, 1, 1), value) for value in (0.09, 30.0, 0.0, 0.1))))
    return run, map_, x, map_(x)


def test_a_converged_point_is_searched_afresh():
    """Nodes that sit in their second minimum look converged; the fresh search finds the lowest, and goes on."""
    run, map_, x, _ = in_two_minima()
    right = map_.minima
    two = np.flatnonzero(np.isfinite(right.gap))
    assert len(two) > 10
    assert (np.diff(right.energies)[two] > 0).all()  # one minimum is no second minimum
    fields, energies = right.fields.copy(), right.energies.copy()
    fields[two, 0], energies[two, 0] = fields[two, 1], energies[two, 1]
    map_.adopt(Minima(fields, energies, right.steps))
    image, went_on = map_(x), []
    np.testing.assert_allclose(map_.minima.energies[two, 0], energies[two, 0], rtol=1e-12)  # a warm pass stays

    def again(point):
        went_on.append(point)
        np.testing.assert_allclose(map_.minima.energies[:, 0], right.energies[:, 0], rtol=1e-10)
        return FixedPoint(point, point, 0.0, 1, Status.iteration_limit)

    found = run.verified(map_, FixedPoint(x, image, 1e-12, 3, Status.converged), 1e-3, again)
    assert len(went_on) == 1
    assert found.status is Status.iteration_limit


def test_a_spot_check_sees_what_it_missed():
    """A minimum lower by a millionth in one node, and nearly degenerate ones more than the root of their number."""
    _, map_, x, _ = in_two_minima()
    minima = map_.minima
    assert map_.spot_check(x)
    lower = minima.energies.copy()
    lower[5, 0] += 1e-6
    lower[5, 1] = max(lower[5])
    near = np.flatnonzero((minima.gap < NEAR_DEGENERATE) & (np.arange(len(minima.energies)) % 64 % 5 == 0))
    assert 4 < len(near) < 9
    lost = [minima.energies.copy() for _ in range(2)]
    for number, energies in zip((2, 3), lost, strict=True):
        energies[near[:number], 1] = energies[near[:number], 0]
    for energies, enough in ((lower, False), (lost[0], True), (lost[1], False)):
        map_.adopt(Minima(minima.fields, energies, minima.steps))
        assert map_.spot_check(x) is enough


def test_a_map_is_evaluated_once_at_a_point(monkeypatch):
    """Unless it is to search afresh, or was lifted there."""
    _, map_, x, first = in_two_minima()
    evaluate, asked = Channel.evaluate, []
    monkeypatch.setattr(Channel, "evaluate", lambda self, *args: asked.append(args) or evaluate(self, *args))
    map_(x.copy())[:] = np.nan  # what is handed out is the caller's own
    assert np.array_equal(first, map_(x))
    assert not asked
    map_(x, refresh=True)
    map_.lift = True
    map_(x)
    map_(x * (1 + 1e-12))
    assert len(asked) == 3


def test_an_order_parameter_on_its_way_to_zero_is_told_from_one_that_grows():
    """Where it is small and its image smaller still, and no other entry moves by a larger share."""
    _, map_, _, _ = in_two_minima()
    informed = initial_overlaps(FEW, "semantic")
    for share, image, q, status, expected in (
        (0.1, 0.08, 1.0, Status.iteration_limit, True),
        (0.1, 0.08, 0.83, Status.iteration_limit, True),
        (0.1, 0.08, 0.77, Status.iteration_limit, False),
        (0.1, 0.12, 1.0, Status.iteration_limit, False),
        (0.6, 0.5, 1.0, Status.iteration_limit, False),
        (0.1, 0.08, 1.0, Status.converged, False),
    ):
        ends = [replace(informed, theta=share * informed.theta)]
        ends += [replace(informed, theta=image * informed.theta, q=q * informed.q)]
        found = FixedPoint(map_.pack(ends[0]), map_.pack(ends[1]), 1e-3, 40, status)
        assert bool(_decays(map_, found, informed, "semantic")) is expected


@pytest.mark.parametrize("problem", [FEW, model("paper", {"teacher.omega": 0.36})], ids=["points", "lines"])
def test_an_informed_start_leads_to_a_branch_where_there_is_one(problem, monkeypatch):
    """The semantic one at alpha = 2, and none at 0.3, where no map is needed once theta is small and shrinks."""
    original, full, seen = (
        StateEvolution.__call__,
        informed_signal(initial_overlaps(problem, "semantic"), "semantic"),
        [],
    )

    def recorded(self, x, **options):
        image = original(self, x, **options)
        seen.append(informed_signal(self.unpack(x), "semantic") / full)
        return image

    monkeypatch.setattr(StateEvolution, "__call__", recorded)
    at = {alpha: Setting(problem, alpha, "alpha") for alpha in (0.3, 2.0)}
    assert _sought(at[0.3], "semantic", (0.2, 3.0), SETTINGS, silent) is None
    assert min(seen[:-1]) >= 0.25 > seen[-1] > 0.1
    assert cast("Any", _sought(at[2.0], "semantic", (0.2, 3.0), SETTINGS, silent)).theta.min() > 0.1


def test_the_lift_reaches_the_domain_on_every_atom():
    """Beyond its domain the map shifts V_hat far enough for the atom that the shift moves least."""
    atoms = [{"weight": 0.5, "variances": [0.30, 0.02]}, {"weight": 0.5, "variances": [0.05, 0.90]}]
    system = System.of(model("paper", {"tokens.sigma": None, "tokens.spectrum": atoms}))
    one, spectrum = np.ones((2, 1, 1, 1)), system.spectrum
    hats = Conjugates(0.3 * one, np.array([-1.0, 0.5])[:, None, None, None], 0 * one, 0.1 * one)
    assert system.prior.overlaps(hats) is None
    image: Any = system.prior.overlaps(hats, lift=True)
    # the curvature of the first atom, -0.28, becomes a tenth of the ridge; the second's stays positive
    curvature = 0.01 + spectrum.gamma.T @ (np.array([-1.0, 0.5]) + (0.1 * 0.01 + 0.28) / 0.32)
    assert curvature[0] == pytest.approx(0.001, rel=1e-9)
    np.testing.assert_allclose(image.V[:, 0, 0], spectrum.gamma @ (spectrum.weights / curvature), rtol=1e-9)


def rule(name, order, size=16):
    replicates = 16 if name == "sobol" else 1
    nodes = np.zeros((replicates, size // replicates, 4))
    return Rule(name, nodes, np.ones(size // replicates), True, 2, order, name == "sobol")


def test_the_next_rule_by_the_error_and_whether_minima_jump(monkeypatch):
    """The error of points falls like N^-0.85; tensor rules are for smooth fields alone, and are not the last."""
    monkeypatch.setattr(Refinement, "sobol", lambda self, points: rule("sobol", points))
    monkeypatch.setattr(Refinement, "gauss_hermite", lambda self, order: rule("gauss-hermite", order))
    asked = model("paper", {"integration.standard_error": 2e-3}).integration
    rules = asked.form(asked, (4, 2), True, 2**18)
    for now, error, minima, after in (
        (("sobol", 256), 2.0e-3, 0.01, None),
        (("sobol", 256), 2.01e-3, 0.01, ("sobol", 512)),
        (("sobol", 256), 8e-3, 0.01, ("sobol", 2048)),
        (("sobol", 8192), 1.0, 0.01, ("sobol", 16384)),
        (("sobol", 16384), 1.0, 0.01, None),
        (("sobol", 256), 1e-2, 0.0, ("gauss-hermite", 12)),
        (("gauss-hermite", 12), 1e-9, 1e-6, ("sobol", 256)),
        (("gauss-hermite", 12), 1e-9, 0.0, None),
        (("gauss-hermite", 36), 1e-2, 0.0, ("sobol", 2048)),
    ):
        found = rules.next(rule(*now), error, minima)
        assert (found and (found.name, found.order)) == after
    few, many = (rules.of_derivatives(rule("gauss-hermite", 16, size)) for size in (16, 32))
    assert [(one.name, one.order) for one in (few, many)] == [("gauss-hermite", 16), ("sobol", 256)]


def test_orders_are_compared_with_points_where_minima_jump_or_orders_are_few():
    """Two orders of both parities are smooth in the same way, and wrong in the same way where a minimum jumps."""
    rules = System.of(model("logistic", {"integration.rule": "gauss-hermite"}), 1).refinement(2**14)
    of = {(order, jumps): rules.gauges(rules.gauss_hermite(order), jumps) for order in (16, 4) for jumps in (0.0, 0.2)}
    assert [one.order for one in of[16, 0.0]] == [12, 13]
    assert [one.name for key in ((16, 0.2), (4, 0.0)) for one in of[key]] == ["sobol", "sobol"]


def test_sobol_points_decide_where_orders_agree_by_chance(monkeypatch):
    """Each order is compared with itself: no distance is left, and only points of another kind can tell."""
    monkeypatch.setattr(Automatic, "of_solve", lambda self, **_: self)
    monkeypatch.setattr(Refinement, "gauges", lambda self, rule, minima: () if rule.randomised else (rule,) * 2)
    fields = {"tokens.sigma": 0.7, "regularizer.strength": 0.06, "integration.standard_error": 1e-6}
    assert ap.solve(model("logistic", fields), 6.0, settings=SETTINGS).attrs["rule"] == "sobol"


def test_a_finer_rule_is_compared_with_others_which_know_their_minima():
    problem = model("logistic", {"integration.rule": "gauss-hermite"})
    system, start = System.of(problem, 1), initial_overlaps(problem, "semantic")
    rules = system.refinement(2**14)
    map_, finer = (
        StateEvolution(Channel(system, one), 1.3, system.sector_of(start))
        for one in (rules.first(), rules.gauss_hermite(16))
    )
    run, x = Run(system, 1.3, SETTINGS, map_.sector), map_.pack(start)
    map_(x)
    first = gauges_at(run, rules, map_)
    map_(x * (1 + 1e-6 * np.arange(len(x))))
    assert all(one is other for one, other in zip(first, gauges_at(run, rules, map_), strict=True))
    finer(x)
    assert gauges_at(run, rules, finer)[0] is not first[0]


@pytest.mark.parametrize("sigma", [0.5, [0.75, 0.3]])
def test_a_solve_ends_with_the_error_that_is_asked_for(sigma):
    """The largest error over the largest entry of q, also where tokens are unequal."""
    fields = {"tokens.sigma": sigma, "teacher.omega": 0.36, "integration.rule": "sobol"}
    point = ap.solve(model("paper", fields | {"integration.standard_error": 1e-3}), 1.9, settings=SETTINGS)
    assert float(point["q_stderr"].max() / point["q"].max()) <= 1e-3
    assert int(point["nodes"]) > 4096


def test_what_is_said_of_a_point(monkeypatch):
    """The gap of the training loss's expressions is the iteration's; unsolved nodes are counted."""
    late = ap.solve(FEW, 1.6, settings=SETTINGS)
    early = ap.solve(FEW, 1.6, settings=ap.SolverSettings(**QUICK, max_maps=3))
    assert (int(early["status"]), int(late["status"])) == (1, 0)
    assert early["free_energy_gap"] > 1e-6
    assert late["free_energy_gap"] < 1e-9
    kernels, module = kernels_for(FEW), import_module("attnphase.state_evolution.system")

    def minimise(nodes, starts, solution):
        kernels.minimise(nodes, starts, solution)
        solution.flags[[3, 17, 200]] = -1 - np.abs(solution.flags[[3, 17, 200]])  # short of the gradient's tolerance

    monkeypatch.setattr(module, "kernels_for", lambda problem: replace(kernels, minimise=minimise))
    assert int(ap.solve(FEW, 1.6, settings=SETTINGS)["unsolved_nodes"]) == 6  # of both sign changes that are searched


def test_a_start_that_no_fields_can_have_is_refused():
    start = initial_overlaps(FEW, "semantic")
    with pytest.raises(ValueError, match="positive semidefinite joint covariance"):
        ap.solve(FEW, 1.6, start=replace(start, theta=2 * start.theta), settings=SETTINGS)


@pytest.mark.parametrize(("share", "lower"), [(1.1, True), (0.9, False)])
def test_a_loss_is_lower_beyond_the_errors_of_both_points(share, lower):
    def point(loss: float, error: float, **more: Any) -> Any:
        return SimpleNamespace(values={"training_loss": loss}, errors={"training_loss": error}, **more)

    other = point(0.1 + share * ERRORS * 0.005, 0.004, status=Status.converged, on_branch=Identity.on_branch)
    solved: Any = SimpleNamespace(measured=point(0.1, 0.003))
    assert bool(_is_lower(solved, other)) is lower


def test_a_line_of_progress_ends_with_the_seconds_since_it_began():
    assert re.fullmatch(r"solving \(\d+ s\)", ProgressLine("solving", None).plain)


def test_the_time_that_is_left_is_that_of_the_rest_at_the_rate_since_the_first(monkeypatch):
    line, clock = ProgressLine("solving", 20), iter([7.0, 13.0])
    monkeypatch.setattr("attnphase.processes.progress.time.monotonic", lambda: next(clock))
    line.reach(1)
    line.reach(5)
    assert line.left == pytest.approx(15 * 6 / 4)
