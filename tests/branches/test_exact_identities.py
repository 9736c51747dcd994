"""Exact identities at solved points: they hold where the program is right, and are violated where it is not.

Not public: wrong conjugates and derivatives are put in by hand, and an envelope's displacements have no name outside.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from made_up import made_up_point
from models import model
from solving import settings, size, solved, word

import attnphase as ap
from attnphase.fixed_points import measuring
from attnphase.fixed_points.identities import _envelope_error, slope_violations
from attnphase.fixed_points.solver import solve_point
from attnphase.fixed_points.verdict import allowed_errors, verdict
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.errors import Response
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.replicates import Variations, flatten
from attnphase.state_evolution.system import System

NAMES = ("violation_alpha", "violation_ridge", "violation_V_hat", "violation_theta_hat")
PAPER = model("paper", {"teacher.omega": 0.27, "regularizer.strength": 0.013})
MANY_JUMPS = PAPER.with_fields({"teacher.omega": 0.53, "integration.standard_error": 3e-4})
LOGISTIC = model("logistic", {"tokens.sigma": 1.0})
SQUARE = model("square", {"tokens.sigma": 0.8, "regularizer.strength": 0.17})
NOISY = model("kinks", {"loss.parameters.square": 1.0, "loss.parameters.quantile": 0.0})
HINGE = model("kinks", {"loss.parameters.hinge": 1.0, "loss.parameters.quantile": 0.0, "regularizer.strength": 0.27})
SPARSE = model("paper", {"regularizer.kind": "elastic-net", "regularizer.strength": 0.011, "regularizer.ridge": 0.003})
UNTIED = model("untied", {"regularizer.strength": 0.021, "integration.rule": "lines"})
WELLS = NOISY.with_fields({"loss.parameters.modulus": -0.6})  # two minima

pytestmark = pytest.mark.filterwarnings("ignore::attnphase.errors.AttnphaseWarning")


def point_of(problem: ap.Problem, alpha: float, branch: str = "semantic", start: Any = None, **changes: Any) -> Any:
    return solved(problem, alpha, branch, start, **{"stability": True} | changes)


def by(problem: ap.Problem, rule: str, nodes: int | None = None) -> ap.Problem:
    return problem.with_fields({"integration.rule": rule, "integration.nodes": nodes})


@pytest.mark.parametrize(
    ("problem", "alpha", "branch", "largest"),
    [
        (PAPER, 1.87, "semantic", (1e-3, 1e-3, 1e-3, 2e-3)),
        (PAPER, 1.31, "positional", (2e-3, 2e-3, 3e-3, np.nan)),  # without the jumps V_hat is 14 % off
        (MANY_JUMPS, 1.41, "semantic", (1e-3, 1e-3, 2e-3, 3e-4)),
        (LOGISTIC, 7.3, "semantic", (3e-3, 3e-3, 1e-4, 1e-3)),  # theta_hat is the label's jump alone
        (HINGE, 2.9, "semantic", (3e-3, 4e-3, np.nan, np.nan)),
        (NOISY, 2.79, "semantic", (1e-4, 1e-4, 1e-5, 1e-5)),
        (SPARSE, 1.9, "semantic", (1e-3, np.nan, 1e-2, 1e-3)),
        (UNTIED, 2.2, "semantic", (1e-3, 1e-3, 1e-3, 1e-3)),
    ],
    ids=["semantic", "positional", "many jumps", "logistic", "hinge", "noisy square", "elastic net", "untied"],
)
def test_identities_hold_where_lines_locate_the_jumps(problem, alpha, branch, largest):
    """Would catch a wrong derivative of map, image or loss, a wrong normalisation, and a jump that is left out."""
    ds = point_of(problem, alpha, branch)
    assert word(ds, "identities") == "hold"
    for name, limit in zip(NAMES, largest, strict=True):
        assert np.isnan(limit) == np.isnan(float(ds[name])), name
        assert not abs(float(ds[name])) > limit, name


def test_a_ridge_far_below_the_data_violates_nothing():
    """A step of the ridge that is small beside it would be lost in rounding: .54 of the norm at 1e-7."""
    fields = {"tokens.sigma": 1.07, "regularizer.strength": 1.3e-7, "teacher.noise": 0.1}
    ds = point_of(NOISY.with_fields(fields), 4.9)
    assert word(ds, "identities") == "hold"
    assert abs(float(ds.violation_ridge)) < 1e-4


@pytest.mark.parametrize(("nodes", "name"), [(20, "violation_ridge"), (40, "violation_V_hat")])
def test_a_rule_beside_the_labels_jump_is_caught(nodes, name):
    """Gauss-Hermite nodes miss how narrow the integrand is beside the label's jump: V_hat is 39 and 15 % off."""
    ds = point_of(by(LOGISTIC, "gauss-hermite", nodes), 8.0)
    assert word(ds) == "converged"
    assert float(ds.violation_V_hat) > 0.05
    assert np.isnan(float(ds.violation_theta_hat))  # of the label's jump it knows nothing
    assert abs(float(ds[name])) > 4.2 * float(ds[f"{name}_stderr"])
    assert word(ds, "identities") == "violated"


@pytest.mark.parametrize(
    ("problem", "alpha", "nodes"), [(PAPER, 2.43, None), (SQUARE, 1.7, 30), (SQUARE, 1.7, 31), (LOGISTIC, 2.0, None)]
)
def test_tensor_rules_that_serve_hold(problem, alpha, nodes):
    """Where they are exact but for rounding, too, and where they resolve the residual, not its jumping derivative."""
    ds = point_of(by(problem, "gauss-hermite", nodes), alpha)
    assert abs(float(ds.violation_V_hat)) < 2 * float(ds.violation_V_hat_stderr)
    assert word(ds, "identities") == "hold"


@pytest.mark.parametrize(("alpha", "strength"), [(0.5, 1.0), (0.47, 7.3), (1.3, 0.01)])
def test_sides_that_differ_by_rounding_have_the_error_that_q_tells(alpha, strength):
    """Of a square loss both are the same: rounding over what it moves q by would be infinite, or any number."""
    problem = by(SQUARE.with_fields({"tokens.sigma": 0.5, "regularizer.strength": strength}), "gauss-hermite")
    ds = point_of(problem, alpha)
    assert abs(float(ds.violation_V_hat)) < 1e-12
    theta_hat, q_hat, V_hat = (float(ds[name].item()) for name in ("theta_hat", "q_hat", "V_hat"))
    # log q by log V_hat in the closed form; another share of it, of order one, is what the map answers
    gamma = 0.25
    slope = 2 * gamma * V_hat / (strength + gamma * V_hat)
    q = gamma**2 * (gamma * theta_hat**2 + q_hat) / (strength + gamma * V_hat) ** 2
    assert q == pytest.approx(ds.q.item(), rel=1e-6)
    assert 0.5 < problem.integration.standard_error / slope / float(ds.violation_V_hat_stderr) < 1.5


def test_jumps_across_the_lines_leave_the_lemma_open():
    """At alpha = .8 minima exchange on surfaces that lines hardly cross, at the uninformed point along the lines."""
    ds = point_of(PAPER, 0.81)
    assert float(ds.violation_V_hat_stderr) > 5 * size(ds, "V_hat_stderr") / size(ds, "V_hat")
    assert abs(float(ds.violation_V_hat)) < float(ds.violation_V_hat_stderr)
    assert np.isnan(float(point_of(PAPER, 1.87, "uninformed").violation_V_hat))
    ds = point_of(PAPER, 1.87, stability=False)
    assert np.isnan(float(ds.violation_V_hat))
    assert abs(float(ds.violation_alpha)) < 1e-3


@pytest.mark.parametrize(
    ("problem", "branch", "alpha", "near"),
    [
        (by(PAPER, "sobol", 2**6), "positional", 1.31, 0.5),
        (by(LOGISTIC, "sobol", 64), "semantic", 1.31, 0.5),
        (by(WELLS, "gauss-hermite", 12), "semantic", 2.0, 0.1),
        (NOISY, "semantic", 1.31, 0.5),
    ],
    ids=["positional", "logistic", "two minima", "lines"],
)
def test_identities_do_not_depend_on_the_way(problem, branch, alpha, near):
    """A neighbour lends its derivatives, and which minima of its nodes are known; the point is one and the same."""
    alone = point_of(problem, alpha, branch)
    line = ap.sweep(problem, [alpha, alpha + 0.6], branch=branch, settings=settings(stability=True), workers=1)
    beside = line.sel(alpha=alpha).squeeze()
    assert word(alone, "identities") == word(beside, "identities") != "violated"
    for name in NAMES:
        value, error, other = (float(x) for x in (alone[name], alone[f"{name}_stderr"], beside[name]))
        assert np.isnan(value) == np.isnan(other), name
        assert np.isnan(value) or abs(other - value) < 0.5 * error, name
        assert np.isnan(value) or float(beside[f"{name}_stderr"]) == pytest.approx(error, rel=near), name


@pytest.mark.long
def test_few_points_that_meet_no_second_minimum_do_not_deny_it():
    """.2 % of the samples have one and none of 1024 points; they decide the mean derivative by half of V_hat."""
    fields = {
        "tokens.sigma": 0.5,
        "teacher.temperature": 0.5,
        "teacher.causal": True,
        "teacher.omega": 0.3,
        "teacher.noise": 0.002,
        "teacher.mixing": [[1, 0, 0], [0.6, 0.4, 0], [0.5, 0.3, 0.2]],
        "student.causal": True,
        "regularizer.kind": "lasso",
        "regularizer.strength": 0.004,
    }
    ds = point_of(by(model("three tokens", fields), "sobol", 64), 4.6, "positional")
    assert np.isnan(float(ds.violation_V_hat))


@pytest.mark.parametrize("rule", ["lines", "sobol"])
@pytest.mark.parametrize(("name", "share"), [("V_hat", 0.84), ("theta_hat", 0.84), ("q_hat", 0.53)])
def test_a_wrong_conjugate_is_caught(monkeypatch, rule, name, share):
    """A fixed point of other equations than the derivatives' and the loss's: a part of a conjugate is missing."""
    evaluate = Channel.evaluate

    def wrong(self, *given, **options):
        result = evaluate(self, *given, **options)
        conjugates = result.conjugates
        return replace(result, conjugates=replace(conjugates, **{name: share * getattr(conjugates, name)}))

    monkeypatch.setattr(Channel, "evaluate", wrong)
    fields = {"tokens.sigma": 1.787, "teacher.noise": 0.92, "regularizer.strength": 0.063}
    ds = point_of(by(NOISY.with_fields(fields), rule), 2.79)
    assert word(ds) == "converged"
    assert word(ds, "identities") == "violated"


@pytest.mark.parametrize("wrong", ["jacobian", "measured"])
def test_wrong_derivatives_violate_the_slopes(monkeypatch, wrong):
    """A map whose derivatives are 5 % off, or a loss whose derivatives are."""

    def disturbed(map_, x, response, moved, errors):
        return slope_violations(map_, x, replace(response, **{wrong: 1.05 * getattr(response, wrong)}), moved, errors)

    monkeypatch.setattr(measuring, "slope_violations", disturbed)
    ds = point_of(PAPER.with_fields({"integration.standard_error": 1e-4}), 1.87)
    assert word(ds, "identities") == "violated"
    # with the explicit derivative in place of the total one a slope is right whatever the derivatives are
    assert min(abs(float(ds[name])) for name in NAMES[:2]) > 1e-3


def test_the_envelope_moves_by_the_conjugates():
    """The error of E[M] by displacements of all coordinates, which central differences of E[M] give too."""
    problem = PAPER.with_fields({"integration.standard_error": 1e-4})
    point = solve_point(problem, 1.87, "semantic", settings=ap.SolverSettings(threads=1, stability=False))
    system, rule = System.of(problem), point.restart.rule
    sector = system.sector_of(point.restart.overlaps)
    assert rule is not None
    map_ = StateEvolution(Channel(system, rule), 1.87, sector)
    x = sector.pack(point.restart.overlaps)
    measured = map_.measure(x, pooled=True)
    assert measured is not None
    count, width = len(x), flatten(measured).shape[1]
    none = Response(np.zeros((count, count)), np.zeros((width, count)), np.ones(count), np.inf)
    for share in np.random.default_rng(12).normal(size=(3, count)):
        step, envelopes = 1e-4 * x * share, []
        for sign in (1, -1):
            map_(x + sign * step)
            assert map_.last is not None
            envelopes.append(map_.last.envelope.mean())
        map_(x)
        moved = Variations(step[None], np.zeros((1, width)), np.array([0.0]))
        own = abs(envelopes[0] - envelopes[1]) / 2
        assert _envelope_error(map_, x, none, moved) == pytest.approx(own, rel=0.01)


def test_derivatives_of_afar_are_as_inexact_as_they_are_far():
    """In units of the scales."""
    there, zero = np.array([0.3, 2.0]), np.zeros((2, 2))
    response = Response(zero, zero, np.ones(2), np.inf, point=there, inexact=1e-3)
    assert response.inexact_at(there + np.array([0.02, -0.1]), np.array([0.4, 10.0])) == pytest.approx(1e-3 + 0.05)


@pytest.mark.parametrize(
    ("alpha", "ridge", "error", "expected"),
    [
        (0.044, -0.044, 0.01, "hold"),
        (0.0, -0.045, 0.01, "violated"),
        (np.nan, np.nan, 0.01, "not_computed"),
        (0.0, np.nan, 0.01, "hold"),
        # errors as large as the sides leave both open
        (0.9, np.nan, 0.26, "not_computed"),
        (1.2, np.nan, 0.26, "violated"),
    ],
)
def test_a_verdict_counts_errors(alpha, ridge, error, expected):
    violations = {"violation_alpha": alpha, "violation_ridge": ridge}
    assert verdict(violations, {"violation_alpha": error, "violation_ridge": 0.01}).name == expected


@pytest.mark.parametrize(("replicates", "expected"), [(1, "violated"), (16, "hold")])
def test_a_scatter_of_few_replicates_may_be_too_small_by_chance(replicates, expected):
    point = made_up_point(PAPER, 1.3, "semantic", violation_alpha=0.05)
    point = replace(point, replicates=replicates, errors=point.errors | {"violation_alpha": 0.01})
    assert point.identities.name == expected


@pytest.mark.parametrize("replicates", [1, 4, 16])
def test_a_right_diagram_holds_as_a_whole(replicates):
    """Of 1300 right points with four identities 5 % of the diagrams have one that is called violated, not more."""
    rng, diagrams, bound = np.random.default_rng(5), 400, allowed_errors(replicates)
    wrong = 0
    for _ in range(diagrams):
        ratios = rng.normal(size=(1300, 4))
        if replicates > 1:  # means over their own standard errors
            ratios /= np.sqrt(rng.chisquare(replicates - 1, size=ratios.shape) / (replicates - 1))
        wrong += bool((np.abs(ratios) > bound).any())
    expected = 1 - (1 - 0.05 / 5200) ** 5200
    assert abs(wrong - diagrams * expected) < 4 * np.sqrt(diagrams * expected * (1 - expected))
