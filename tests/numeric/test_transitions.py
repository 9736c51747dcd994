"""Thresholds: against what other rules and other ways find, their errors, and why there is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import attnphase as ap
from attnphase.fixed_points.extended import Extended, _finer, displaced, equal_losses, held
from attnphase.fixed_points.family import rule_of, rules_of
from attnphase.fixed_points.setting import Setting
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.fixed_points.threshold import Outcome, Threshold
from attnphase.fixed_points.traced import Ending, traced
from attnphase.fixed_points.transitions import Search, thresholds_of
from attnphase.integration.rules import Rule
from attnphase.problem.problem import Problem
from attnphase.processes.progress import silent
from attnphase.solvers.arclength import Corrected, corrected
from attnphase.state_evolution.branches import Identity

PAPER = Problem.paper(omega=0.3)
SETTINGS = SolverSettings(threads=1)
FEW = PAPER.with_fields({"integration.rule": "sobol", "integration.nodes": 256})


def test_thresholds_by_lines_are_those_of_many_nodes_of_other_kinds():
    """With 36 to 60 nodes of each teacher's field, evenly spaced or Gauss-Hermite: 1.25154(2) and 1.49226(2)."""
    found = thresholds_of(PAPER, (0.9, 2.0), None, SETTINGS)
    for name, truth in (("alpha_c", 1.25154), ("alpha_l", 1.49226)):
        assert found[name].outcome is Outcome.located
        assert found[name].standard_error < 1e-4 * truth
        assert abs(found[name].alpha - truth) < 3 * np.hypot(found[name].standard_error, 2e-5)


@pytest.mark.parametrize("between", [(1.2, 1.3), (0.85, 1.7), (0.3, 23.0)])
def test_a_crossing_does_not_depend_on_the_range(between):
    found = thresholds_of(Problem.paper(omega=0.3), between, None, SETTINGS)["alpha_c"]
    assert found.outcome is Outcome.located
    assert found.alpha == pytest.approx(1.25158, rel=1e-4)


def test_a_branch_is_traced_whose_order_parameter_is_far_below_that_of_its_start():
    """At alpha = 8, where the search begins, the iteration leaves this branch at once."""
    fields = {"tokens.sigma": 0.3908, "regularizer.strength": 0.01396, "teacher.mixing": [[0.3, 0.7], [0.8, 0.2]]}
    problem = Problem.paper(omega=0.1273).with_fields(
        fields | {"positions.kind": "gram", "positions.gram": [[1.0, -1.0], [-1.0, 1.0]]}
    )
    parts = traced(Setting(problem, 1.0), "positional", (0.2, 8.0), SETTINGS, silent)
    assert isinstance(parts, list)
    (part,) = parts
    assert part.between == pytest.approx((0.9859, 8.0), rel=1e-2)
    assert part.ends == (Ending.onset, Ending.edge)


def test_a_crossing_has_the_same_place_in_other_units():
    """Lengths of tokens and encodings times the root of c, and the temperature times c."""
    c = 0.0791
    fields = {
        "tokens.sigma": 0.5 * c, "regularizer.strength": 0.01 * c**2, "teacher.temperature": c**2,
        "student.temperature": c**2, "positions.kind": "gram", "positions.gram": [[c**2, -(c**2)], [-(c**2), c**2]],
    }  # fmt: skip
    found = thresholds_of(PAPER.with_fields(fields), (0.9, 2.0), None, SETTINGS)
    assert found["alpha_c"].alpha == pytest.approx(1.25158, rel=1e-4)
    assert found["alpha_l"].alpha == pytest.approx(1.49234, rel=2e-4)


def test_errors_of_thresholds_are_their_scatter_over_seeds():
    """Five seeds of few points, against lines: a sum of five squares lies in this range but for one case in 500."""
    found = [
        thresholds_of(FEW.with_fields({"integration.seed": seed, "integration.nodes": 128}), (0.9, 2.0), None, SETTINGS)
        for seed in range(5)
    ]
    for name, truth in (("alpha_c", 1.25158), ("alpha_l", 1.49234)):
        z = np.array([(one[name].alpha - truth) / one[name].standard_error for one in found])
        assert all(one[name].standard_error > 5e-4 for one in found)
        assert 0.5 < (z**2).sum() < 19


def crossing_of(rule: Rule) -> tuple[Extended, Corrected]:
    """The losses' crossing under one rule."""
    lines = [traced(Setting(PAPER, 1.0), branch, (1.2, 1.3), SETTINGS, silent) for branch in ("semantic", "positional")]
    parts = [line[0] for line in lines if isinstance(line, list)]
    system = Extended([part.family for part in parts], equal_losses).under(rule)
    z = np.append(np.concatenate([part.place(np.log(1.255))[:-1] for part in parts]), np.log(1.255))
    jacobian = system.derivative(z)
    assert jacobian is not None
    return system, corrected(system, z, None, jacobian, SETTINGS.tolerance)


def test_another_rule_displaces_a_crossing_as_it_was_told_to():
    """To first order, against the crossing that it has itself: by half a per cent, and by less."""
    rules = rules_of(PAPER, SETTINGS)
    rule = rule_of(rules)
    system, found = crossing_of(rule)
    told = displaced(system, found, rules)
    for gauge, shift in list(zip(rules.gauges(rule, 0.0), told, strict=True))[:3]:
        other = crossing_of(gauge)[1]
        assert other.place[-1] - found.place[-1] == pytest.approx(shift, rel=0.1, abs=2e-6)
    assert max(np.abs(told)) > 3e-3


def test_replicates_move_both_losses_of_a_crossing():
    system, found = crossing_of(rule_of(rules_of(FEW, SETTINGS)))
    deviations = system.table(found.place)[:, -1] - system.table(found.place)[:, -1].mean()
    energies, loss = [], np.nan
    for family, place in zip(system.families, system.places(found.place), strict=True):
        x, alpha = family.split(place)
        map_ = family.map_at(alpha)
        assert map_ is not None
        assert map_(x) is not None
        assert map_.last is not None
        energies.append(alpha * (map_.last.envelope - map_.last.envelope.mean()))
        loss = map_.free_entropy(x)
    np.testing.assert_allclose(deviations * loss, energies[0] - energies[1], rtol=1e-9)
    assert np.std(energies[1]) > 0.1 * np.std(energies[0])


def test_losses_are_equal_where_they_cross():
    """Solves on both sides, each with its own error, have the order that the crossing says."""
    at = thresholds_of(Problem.paper(omega=0.22), (0.5, 2.0), None, SETTINGS)["alpha_c"].alpha
    for factor, sign in ((0.99, 1), (1.01, -1)):
        losses = [
            solve_point(Problem.paper(omega=0.22), factor * at, name, settings=replace(SETTINGS, stability=False))
            for name in ("semantic", "positional")
        ]
        gap = losses[0].values["training_loss"] - losses[1].values["training_loss"]
        assert sign * gap > 3 * np.hypot(*(one.errors["training_loss"] for one in losses))


def test_a_branch_ends_at_a_second_onset():
    """At omega = .1 the positional branch vanishes again: no solve finds it above, and each does below."""
    parts = traced(Setting(Problem.paper(omega=0.1), 1.0), "positional", (0.5, 3.0), SETTINGS, silent)
    assert not isinstance(parts, Threshold)
    (part,) = parts
    assert part.ends == (Ending.edge, Ending.onset)
    end = part.between[1]
    assert end == pytest.approx(1.289, abs=0.003)
    quick = replace(SETTINGS, stability=False)
    below, above = (solve_point(Problem.paper(omega=0.1), end + x, "positional", settings=quick) for x in (-0.05, 0.05))
    assert below.on_branch is Identity.on_branch
    assert above.on_branch is Identity.merged


def test_onsets_are_where_a_small_order_parameter_neither_grows_nor_shrinks():
    """By the yardstick of theory, section 14, from the slope of its map: .7200(6) and .05746(5)."""
    search = Search.of(PAPER, SETTINGS)
    for name, between, truth, known in (("theta", (0.4, 1.5), 0.7200, 6e-4), ("m", (0.02, 0.4), 0.05746, 5e-5)):
        found = search.onset(name, between)
        assert found.outcome is Outcome.located
        assert found.standard_error < 5e-4 * truth
        assert abs(found.alpha - truth) < 3 * np.hypot(found.standard_error, known)


def test_branches_that_are_one_solution_do_not_cross():
    """A convex problem has one solution: where rounding changes the sign of a difference, it was called alpha_c."""
    problem = Problem.from_dict(
        {
            "tokens": {
                "kind": "mixture",
                "length": 1,
                "clusters": [{"sigma": 0.9, "mean": [0.7]}, {"sigma": 1.1, "mean": [-0.4]}],
                "mean_teacher": [[0.3]],
            },
            "positions": {"kind": "none"},
            "regularizer": {"strength": 0.21},
            "loss": {"kind": "expression", "expression": "softplus((1 - 2*c)*h) + 0.3*(h - k)**2"},
            "integration": {"rule": "sobol", "standard_error": 0.01},
        }
    )
    found = [
        thresholds_of(problem.with_fields({"integration.seed": seed}), (0.8, 2.6), None, SETTINGS)["alpha_c"]
        for seed in range(4)
    ]
    assert not any(one.found for one in found)
    assert any("semantic and positional are one solution" in one.reason for one in found)


def test_thresholds_that_do_not_exist_say_why():
    found = thresholds_of(FEW, (0.9, 1.1), (0.9, 1.1), SETTINGS)
    assert {one.outcome for one in found.values()} == {Outcome.outside_range}
    assert {name: one.reason for name, one in found.items()} == {
        "alpha_c": "the difference falls through zero nowhere from alpha = 0.9 to 1.1",
        "alpha_l": "the difference falls through zero nowhere from alpha = 0.9 to 1.1",
        "spinodal_semantic": "the semantic branch is there at alpha = 0.9 already, where the range begins",
        "spinodal_positional": "the positional branch is there at alpha = 0.9 already, where the range begins",
        "onset_theta": "a small theta begins to grow nowhere from alpha = 0.9 to 1.1",
        "onset_m": "a small m begins to grow nowhere from alpha = 0.9 to 1.1",
    }
    found = thresholds_of(FEW, (0.2, 0.5), (0.2, 0.5), SETTINGS)
    for name in ("alpha_c", "alpha_l", "spinodal_semantic"):
        assert found[name].outcome is Outcome.no_branch
        assert found[name].reason == "the semantic branch was found nowhere from alpha = 0.2 to 0.5"
    published = Search.of(PAPER.with_fields({"integration.rule": "published"}), SETTINGS)
    for one in (published.onset("m", (0.1, 1.0)), published.spinodal([], (0.1, 1.0))):
        assert one.outcome is Outcome.no_replicates
        assert one.reason == "the rule published has no replicates to take an error from"
    biased = FEW.with_fields({"tokens.kind": "mixture", "tokens.clusters": [{"sigma": 0.5, "mean": [0.4]}],
                              "tokens.mean_teacher": [[0.3]]})  # fmt: skip
    onset = Search.of(biased, SETTINGS).onset("theta", (0.5, 1.0))
    assert onset.outcome is Outcome.no_symmetry
    assert onset.reason == "m and theta do not vanish by symmetry at alpha = 0.5"


def test_a_crossing_behind_the_end_of_a_branch_is_none():
    """Where the positional branch of omega = .1 ends the semantic loss is lower; it has crossed below the range."""
    found = thresholds_of(Problem.paper(omega=0.1), (0.8, 3.0), None, SETTINGS)["alpha_c"]
    assert found.outcome is Outcome.outside_range
    found = thresholds_of(Problem.paper(omega=0.1), (0.2, 0.7), None, SETTINGS)["alpha_c"]
    assert found.outcome is Outcome.outside_range


def test_a_branch_without_a_fold_begins_at_its_onset():
    found = thresholds_of(FEW.with_fields({"regularizer.strength": 0.1}), (0.02, 1.4), (0.02, 1.4), SETTINGS)
    assert found["spinodal_positional"].outcome is Outcome.continuous
    assert found["spinodal_positional"].reason == "the order parameter vanishes where the branch begins"


def test_a_fold_is_told_from_chance():
    """Of 256 points the positional curve turns back beside its onset; lines of the same problem have no fold there."""
    for problem in (FEW.with_fields({"integration.seed": 4}), PAPER):
        found = thresholds_of(problem, (0.01, 3.0), (0.01, 3.0), SETTINGS)["spinodal_positional"]
        assert found.outcome is Outcome.continuous


def test_the_dataset_names_its_rule():
    ds = ap.thresholds(PAPER, alpha=(1.2, 1.3), settings=SETTINGS)
    assert ds.attrs["rule"] == "lines"
    assert float(ds.alpha_c[0]) == pytest.approx(1.25158, rel=1e-4)


def test_a_search_that_leaves_the_domain_says_so(monkeypatch):
    """And the other thresholds are found all the same."""

    def beyond(*_):
        raise ArithmeticError("a state lies outside the domain")

    monkeypatch.setattr(Search, "losses", beyond)
    found = thresholds_of(FEW, (1.0, 2.0), None, SETTINGS)
    assert found["alpha_c"].outcome is Outcome.unsettled
    assert found["alpha_c"].reason == "the search did not end: a state lies outside the domain"
    assert found["alpha_l"].found


def test_no_tensor_rule_refines_a_threshold_where_minimisers_jump():
    """Tokens in clusters have no lines; a tensor rule, which needs few fields, knows no jump."""
    clusters = {"tokens.kind": "mixture", "tokens.clusters": [{"sigma": 0.5}, {"sigma": 0.45}],
                "tokens.law": {"kind": "same", "probability": 0.8}}  # fmt: skip
    problem = PAPER.with_fields(clusters)
    rules = rules_of(problem, SETTINGS)
    assert rules.name == "auto"
    parts = traced(Setting(problem, 1.0), "semantic", (1.2, 1.25), SETTINGS, silent)
    assert not isinstance(parts, Threshold)
    family, point = parts[0].family, parts[0].points[0]
    system = Extended([family], held(family, parts[0].index, float(point.place[parts[0].index])))
    found = Corrected(point.place, 0.0, 0, np.eye(len(point.place)))
    finer = _finer(system, found, rules, 0.01, np.array([0.01]))
    assert finer is not None
    assert finer.name == "sobol"
