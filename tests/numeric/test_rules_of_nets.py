"""Nets for the nodes of the teacher's fields: what they are made of, and whether their errors are true."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from attnphase.errors import ProblemError
from attnphase.fixed_points.measuring import gauges_at
from attnphase.fixed_points.run import Run
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.integration.kinds import RULES
from attnphase.integration.nets import NetOrders, net_nodes
from attnphase.integration.rules import nets
from attnphase.problem.problem import Problem
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.directions import directions_of
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.replicates import variations
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.state_evolution.system import System

BANDED = [[0.6, 0.3, 0.1], [0.3, 0.4, 0.3], [0.1, 0.3, 0.6]]
THREE = Problem.from_dict(
    {
        "tokens": {"length": 3},
        "teacher": {"omega": 0.5, "mixing": BANDED},
        "integration": {"rule": "nets"},
    }
)
TWO_COLUMNS = Problem.paper().with_fields({"teacher.rank": 2, "student.rank": 2})
QUICK = SolverSettings(threads=1, stability=False, identity=False)


def test_each_node_has_a_net_of_its_own():
    """Of every one of its dimensions one point lies in each of as many equal intervals; all weights are kept."""
    weights = np.array([0.02, 0.4, 0.003, 0.3, 0.277])
    latent, normals, shares = net_nodes(weights, NetOrders((5,), 300, (3, 1)), 3)
    assert shares.sum() == pytest.approx(1, abs=1e-14)
    for node, weight in enumerate(weights):
        own = latent == node
        assert shares[own].sum() == pytest.approx(weight, rel=1e-12)
        count = int(own.sum())
        for column in norm.cdf(normals[own]).T:
            assert sorted(np.floor(column * count).astype(int)) == list(range(count))
    sizes = np.bincount(latent)
    assert sizes[1] > sizes[0] > sizes[2]
    other = net_nodes(weights, NetOrders((5,), 300, (3, 2)), 3)[1]
    assert not np.isclose(normals, other).any()


def orders_of(rule):
    assert rule is not None
    assert rule.nets is not None
    return rule.nets


def map_of(problem, branch, orders, group=None):
    system = System.of(problem)
    sector = system.sector_of(initial_overlaps(problem, branch))
    kernels = system.kernels
    student, teacher = (kernels.length * n for n in (kernels.columns, kernels.teacher_rank))
    rule = nets(student + teacher, student, orders)
    return StateEvolution(Channel(system, rule), 1.3, sector if group is None else replace(sector, group=group))


def hats(map_, x):
    map_(x)
    found = map_.last.conjugates
    return np.concatenate([values.ravel() for values in (found.q_hat, found.V_hat, found.m_hat, found.theta_hat)])


def test_symmetries_spare_nodes_and_change_no_mean():
    """By the scatter of six scramblings each: of all nodes, and of those that symmetries do not make of each other."""
    identity = System.of(THREE).sector_of(initial_overlaps(THREE, "semantic")).group[:1]
    spared = map_of(THREE, "semantic", NetOrders((5, 5, 5), 2**13, (0, 0)))
    whole = map_of(THREE, "semantic", NetOrders((5, 5, 5), 2**13, (0, 0)), identity)
    latents = [len(np.unique(one.channel.rule.nodes[0, :, 3:], axis=0)) for one in (spared, whole)]
    assert latents[1] == 125
    assert latents[0] < 0.4 * latents[1]
    x = spared.pack(initial_overlaps(THREE, "semantic"))
    of_each = []
    for group in (None, identity):
        maps = [map_of(THREE, "semantic", NetOrders((5, 5, 5), 2**13, (1, n)), group) for n in range(6)]
        of_each.append(np.stack([hats(one, x) for one in maps]))
    (mean, other), errors = ([rows.mean(axis=0) for rows in of_each], [rows.std(axis=0, ddof=1) for rows in of_each])
    apart = np.abs(mean - other) / np.hypot(*errors) * np.sqrt(6)
    seen = np.hypot(*errors) > 1e-12 * np.abs(mean).max()
    assert apart[seen].max() < 4.5  # of 24 numbers


def test_the_first_coordinate_of_a_net_is_along_the_direction_that_matters_most():
    """There alone the points of every net are even; of a token alone no coordinate is."""
    orders = NetOrders((5, 5, 5), 2**12, (0, 0))
    normals = map_of(THREE, "semantic", orders).channel.rule.nodes[0]
    latent = np.unique(normals[:, 3:], axis=0, return_inverse=True)[1].ravel()
    largest = normals[latent == np.bincount(latent).argmax(), :3]
    first, count = directions_of(System.of(THREE)).student[:, 0], len(largest)
    assert np.abs(first).max() < 0.9  # several tokens share it

    def filled(values):
        return len(np.unique(np.floor(norm.cdf(values) * count)))

    assert filled(largest @ first) == count > 100
    assert max(filled(values) for values in largest.T) < 0.8 * count


def test_gauges_differ_in_their_points_or_in_the_teachers_fields_too():
    """Three of a sort; none shares the points of another, or of the rule."""
    rules = RULES["nets"](THREE.integration, (6, 3), True, 2**18)
    first = rules.first()
    gauges = [orders_of(gauge) for gauge in rules.gauges(first, 0.1)]
    assert {(one.latent, one.shifted) for one in gauges[:3]} == {(orders_of(first).latent, False)}
    assert len({(one.latent, one.shifted) for one in [*gauges[3:], orders_of(first)]}) == 4
    assert len({one.seed for one in [*gauges, orders_of(first)]}) == 7
    assert {one.points for one in gauges} == {orders_of(first).points}
    assert rules.alike == len(gauges)


def test_distances_to_gauges_that_tell_the_same_error_are_averaged():
    """Of two the mean square; of one of each sort the sum of squares."""
    own, *others = (map_of(THREE, "semantic", NetOrders((8, 8, 8), 2**10, (0, n))) for n in range(3))
    x = own.pack(initial_overlaps(THREE, "semantic"))
    images = np.array([map_(x) for map_ in (own, *others)], dtype=float)
    right = images[1:] - images[0]
    np.testing.assert_allclose(variations(own, x, others).images, right, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(variations(own, x, others, alike=2).images, right / np.sqrt(2), rtol=1e-12, atol=1e-14)


def test_the_next_rule_has_more_of_what_leaves_the_larger_error():
    """More points where other points move the result as far as other fields of the teacher do; else more of these."""
    rules = RULES["nets"](THREE.integration, (6, 3), True, 2**18)
    first = rules.first()
    alike, apart = np.array([3.0, 3.0, 3.0, 2.0, 4.0, 3.0]), np.array([1.0, 1.0, 1.0, 3.0, 3.0, 3.0])
    assert rules.next(first, 5e-4, 0.1, 1e-3 * alike) is None
    finer = orders_of(rules.next(first, 4e-3, 0.1, 1e-3 * alike))
    assert finer.latent == orders_of(first).latent
    assert finer.points > orders_of(first).points
    finer = orders_of(rules.next(first, 4e-3, 0.1, 1e-3 * apart))
    assert finer.latent == tuple(count + 2 for count in orders_of(first).latent)
    assert finer.points == orders_of(first).points
    small = RULES["nets"](THREE.integration, (6, 3), True, 2**13)
    assert small.next(small.first(), 4e-3, 0.1, 1e-3 * alike) is None


@pytest.mark.parametrize(
    ("problem", "branch", "alpha", "right"),
    [
        # by 16 scramblings of 65536 Sobol points in all fields together, errors 1e-4
        (THREE, "positional", 1.24, {"q": (0.0885509, 6e-6), "V": (10.6236, 8e-4), "test_error": (0.00547742, 3e-7)}),
        (TWO_COLUMNS, "semantic", 2.0, {"q": (0.105067, 8e-6), "V": (17.4171, 5e-3), "test_error": (0.0031707, 9e-7)}),
    ],
)
def test_stated_errors_hold(problem, branch, alpha, right):
    """Three seeds, against other points in all fields together: none off by four errors, and none overstated much."""
    off = []
    for seed in (1, 2, 3):
        problem = problem.with_fields({"integration.seed": seed, "integration.rule": "nets"})
        point = solve_point(problem, alpha, branch, settings=QUICK)
        assert point.rule == "nets"
        for name, (value, error) in right.items():
            place = np.unravel_index(np.abs(point.values[name]).argmax(), np.shape(point.values[name]))
            stated = np.hypot(np.asarray(point.errors[name])[place], error)
            off.append((abs(np.asarray(point.values[name])[place]) - value) / stated)
            assert stated < 1e-2 * value
    assert np.abs(off).max() < 4
    assert np.sqrt(np.mean(np.square(off))) > 0.25


def test_auto_takes_lines_where_they_have_few_nodes():
    """Nets are taken where they are asked for alone: measured, points in all fields together take as long or less."""
    automatic = Problem.paper().integration
    chosen = [
        RULES["auto"](automatic, dimensions, True, 2**18).of_solve(has_lines=True).name
        for dimensions in ((4, 2), (6, 3), (8, 4), (12, 6))
    ]
    assert chosen == ["lines", "auto", "auto", "auto"]
    assert RULES["auto"](automatic, (4, 2), True, 2**18).of_solve(has_lines=False).name == "auto"


def test_a_wrong_number_of_nodes_is_refused():
    """In one sentence that says what there may be."""
    with pytest.raises(ProblemError, match=r"must be from 8 to 256 nodes for each of the teacher's fields"):
        THREE.with_fields({"integration.nodes": 7})
    labels = Problem.from_dict(
        {"tokens": {"length": 1}, "loss": {"kind": "expression", "expression": "(h0_0 - sign(abs(k0_0) - 1.1))**2"}}
    )
    with pytest.raises(ProblemError, match='"nets" needs a label that jumps or bends on parallel planes'):
        labels.with_fields({"integration.rule": "nets"})


def test_gauges_know_their_minima_once_they_were_evaluated():
    """A point measured again is compared with the same maps, another rule with others; errors stay what they were."""
    problem = THREE.with_fields({"integration.standard_error": 0.02})
    map_ = map_of(problem, "semantic", NetOrders((8, 8, 8), 2**12, (0, 0)))
    system, x = map_.system, map_.pack(initial_overlaps(problem, "semantic"))
    rules, run = system.refinement_of_solve(2**14), Run(system, map_.alpha, QUICK, map_.sector)
    assert map_(x) is not None
    first = gauges_at(run, rules, map_)
    cold = variations(map_, x, first, alike=rules.alike)
    away = x * (1 + 1e-6 * np.arange(len(x)))
    assert map_(away) is not None
    again = gauges_at(run, rules, map_)
    assert all(one is other for one, other in zip(first, again, strict=True))
    warm = variations(map_, away, again, alike=rules.alike)
    np.testing.assert_allclose(warm.images, cold.images, atol=1e-3 * np.abs(cold.images).max())
    finer = map_of(problem, "semantic", NetOrders((8, 8, 8), 2**13, (0, 0)))
    assert finer(x) is not None
    assert gauges_at(run, rules, finer)[0] is not first[0]
    # under the nodes of a map that has been evaluated another one has the same nodes, whose minima it can take
    beside = StateEvolution(Channel(system, map_.channel.rule), map_.alpha, map_.sector)
    beside.adopt_from(map_)
    assert beside.minima is map_.minima


def test_nets_grow_by_what_the_error_needs():
    """Not by a power of two: what more points than needed cost is more than they bring."""
    rules = RULES["nets"](THREE.integration, (6, 3), False, 2**18)
    rule = nets(6, 3, NetOrders((8, 8, 8), 2**13, (0, 0)))
    error = 3 * THREE.integration.standard_error
    finer = rules.next(rule, error, 0.0, np.array([error, error, error, 0.0, 0.0, 0.0]))
    assert 4 * 2**13 < orders_of(finer).points < 5 * 2**13
