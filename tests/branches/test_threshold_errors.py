"""What a threshold's error is made of, under which rule it is sought, and where its branches are traced.

Not public: datasets hold one error of each threshold, and no trace.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from solving import settings

import attnphase as ap
from attnphase.fixed_points.extended import Extended, _finer, displaced, equal_losses, held
from attnphase.fixed_points.family import rule_of, rules_of
from attnphase.fixed_points.setting import Setting
from attnphase.fixed_points.traced import Ending, traced
from attnphase.fixed_points.transitions import Search
from attnphase.integration.rules import Rule
from attnphase.processes.progress import silent
from attnphase.solvers.arclength import Corrected, corrected

PAPER = ap.Problem.paper(omega=0.3)


def parts_of(problem, branch, between):
    parts = traced(Setting(problem, 1.0), branch, between, settings(), silent)
    assert isinstance(parts, list)
    return parts


def crossing_of(rule: Rule) -> tuple[Extended, Corrected]:
    """The losses' crossing under one rule."""
    parts = [parts_of(PAPER, branch, (1.2, 1.3))[0] for branch in ("semantic", "positional")]
    system = Extended([part.family for part in parts], equal_losses).under(rule)
    z = np.append(np.concatenate([part.place(np.log(1.255))[:-1] for part in parts]), np.log(1.255))
    jacobian = system.derivative(z)
    assert jacobian is not None
    return system, corrected(system, z, None, jacobian, settings().tolerance)


def test_of_several_crossings_the_last_counts():
    line: Any = SimpleNamespace(along=np.linspace(0.0, 12.0, 25), branch="semantic")
    search: Any = SimpleNamespace(_are_one=lambda *_: False, root=lambda lines, condition, at, between: at)
    found: Any = Search._falls(search, [line], equal_losses, np.cos, (1.0, np.exp(11.0)))
    assert found == pytest.approx(2.5 * np.pi)


def test_another_rule_displaces_a_crossing_as_it_was_told_to():
    """To first order, against the crossing that it has itself."""
    rules = rules_of(PAPER, settings())
    system, found = crossing_of(rule_of(rules))
    told = displaced(system, found, rules)
    assert max(np.abs(told)) > 3e-3
    for gauge, shift in list(zip(rules.gauges(rule_of(rules), 0.0), told, strict=True))[:2]:
        assert crossing_of(gauge)[1].place[-1] - found.place[-1] == pytest.approx(shift, rel=0.1, abs=2e-6)


def test_replicates_move_both_losses_of_a_crossing():
    few = PAPER.with_fields({"integration.rule": "sobol", "integration.nodes": 256})
    system, found = crossing_of(rule_of(rules_of(few, settings())))
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


def test_no_tensor_rule_refines_a_threshold_where_minimisers_jump():
    """Tokens in clusters have no lines; a tensor rule, which needs few fields, knows no jump."""
    clusters = {
        "tokens.kind": "mixture",
        "tokens.clusters": [{"sigma": 0.5}, {"sigma": 0.45}],
        "tokens.law": {"kind": "same", "probability": 0.8},
    }
    problem = PAPER.with_fields(clusters)
    rules, part = rules_of(problem, settings()), parts_of(problem, "semantic", (1.2, 1.25))[0]
    place, index = part.points[0].place, part.index
    system = Extended([part.family], held(part.family, index, float(place[index])))
    finer = _finer(system, Corrected(place, 0.0, 0, np.eye(len(place))), rules, 0.01, np.array([0.01]))
    assert rules.name == "auto"
    assert finer is not None
    assert finer.name == "sobol"


def test_a_branch_is_traced_whose_order_parameter_is_far_below_that_of_its_start():
    """At alpha = 8, where the search begins, the iteration leaves this branch at once."""
    fields = {"tokens.sigma": 0.3908, "regularizer.strength": 0.01396, "teacher.mixing": [[0.3, 0.7], [0.8, 0.2]]}
    (part,) = parts_of(ap.Problem.paper(omega=0.1273).with_fields(fields), "positional", (0.2, 8.0))
    assert part.between == pytest.approx((0.9859, 8.0), rel=1e-2)
    assert part.ends == (Ending.onset, Ending.edge)
