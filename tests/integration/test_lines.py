"""What nodes along lines have to be: long and fine enough, cut where minima exchange, none of the heavy ones left out.

Not public: nodes, cuts and maps; a wrong one would make `solve` slow, or its error larger, before a number is wrong.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from models import model
from one_map import CLUSTERS
from scipy.stats import chi2, norm

from attnphase.integration.kinds import RULES
from attnphase.integration.lines import LineOrders, between, heaviest, stretched
from attnphase.integration.rules import lines, tensor
from attnphase.kernels.local.constants import Starts
from attnphase.problem.problem import Problem
from attnphase.state_evolution import directions, line_rules
from attnphase.state_evolution import lines as along
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.system import System


def map_at(fields, alpha, q, V, m, theta, orders) -> tuple[Any, Overlaps]:
    """A map evaluated once at a point of two tokens, and the point; numbers of both tokens or of each."""
    system = System.of(model("paper", fields))
    shaped = (np.broadcast_to(np.array(value, float), 2).reshape(2, 1, 1).copy() for value in (q, V, m, theta))
    x = Overlaps(*shaped)
    map_ = StateEvolution(Channel(system, lines(4, 2, orders)), alpha, system.sector_of(x))
    map_.lift = True
    assert map_(map_.pack(x)) is not None
    return map_, x


def weight_missed(map_, x):
    """Of nodes at which a full search finds a lower minimum."""
    fresh = map_.channel.evaluate(map_.alpha, x, Starts.REFRESH, map_.minima).minima
    return map_.channel.rule.weights[fresh.energies[:, 0] < map_.minima.energies[:, 0] - 1e-9].sum()


FINE = LineOrders((20, 10), (4,), defect=1e-7)
POSITIONAL = {"teacher.omega": 0.3}, 1.24, 0.047, 14.96, [0.2523, -0.2523], 0.0, FINE
SEMANTIC = {"teacher.omega": 0.3}, 0.8, 0.0567, 26.5, 0.0, 0.0593, FINE
UNEVEN = {"teacher.omega": 0.2}, 1.7, [0.09, 0.07], [11.0, 13.0], [0.1, -0.15], [0.11, 0.08], FINE
FEW = LineOrders((12, 12), (3,))
CUT = {"teacher.omega": 0.2, "tokens.sigma": 0.793}, 1.5, 0.807, 18.15, [0.324, -0.324], 0.0, FEW
THIRD = {"teacher.omega": 0.3, "tokens.sigma": 0.68}, 1.5, 0.74, 64.0, 0.0, 0.0, FEW


@pytest.mark.parametrize(
    ("point", "most"),
    [
        pytest.param(POSITIONAL, 1e-7, id="positional"),
        pytest.param(SEMANTIC, 1e-7, id="semantic"),
        pytest.param(UNEVEN, 1e-7, id="uneven"),
        pytest.param(CUT, 1e-6, id="at a node where a piece is cut"),
        pytest.param(THIRD, 1e-6, id="where two others are equally low"),
    ],
)
def test_no_minimum_is_missed_and_few_problems_are_solved_in_vain(point, most, monkeypatch):
    """Jumps are located before there are nodes, and pieces are cut at jumps or where Phi bends."""
    solved, of_places = [], along.LocalProblems.solved

    def counted(self, where, places, *others):
        solved.append(places.size)
        return of_places(self, where, places, *others)

    monkeypatch.setattr(along.LocalProblems, "solved", counted)
    map_, x = map_at(*point)
    if point in (POSITIONAL, SEMANTIC):
        assert sum(solved) <= 1.55 * map_.channel.rule.size
        assert len(solved) <= 36
    assert weight_missed(map_, x) <= most


def test_minimisers_of_other_ends_find_lower_minima(monkeypatch):
    """Where descents from zero alone have missed some: each is a trial point for the others."""
    found, of_ends, trials = [], along.LocalProblems.ends, along.LocalProblems.trials

    def ends(self, edges):
        solution = of_ends(self, edges)
        found.append(solution.energies[:, 0].copy())
        return solution

    def none(self, omega, solution, alike):
        return np.zeros(len(omega), dtype=int), np.full(len(omega), np.inf)

    class FromZero:
        COLD, WARM, REFRESH = Starts.FROM_ZERO, Starts.WARM, Starts.REFRESH

    monkeypatch.setattr(along.LocalProblems, "ends", ends)
    for starts, tried in ((Starts, trials), (FromZero, none), (FromZero, trials)):
        monkeypatch.setattr(along, "Starts", starts)
        monkeypatch.setattr(along.LocalProblems, "trials", tried)
        map_at(*SEMANTIC)
    lowest, alone, with_others = found
    missed = [float((energies > lowest + 1e-9).mean()) for energies in (alone, with_others)]
    assert 0 < missed[1] < 0.5 * missed[0]


def test_minima_that_no_end_of_a_piece_tells_of_are_found_when_it_is_asked_for():
    """Where a third minimum is lowest between two ends; all nodes are searched from then on."""
    fields = {"teacher.omega": 0.5938, "tokens.sigma": 1.289}
    map_, x = map_at(fields, 1.5, 1.737, 35.47, [0.2764, -0.2764], 0.0, FEW)
    packed, before, missed = map_.pack(x), map_.last.conjugates.V_hat, weight_missed(map_, x)
    assert missed > 2e-5
    assert not map_.spot_check(packed, 0.99 * missed)
    assert map_.spot_check(packed, 1.01 * missed)
    assert map_(packed, refresh=True) is not None
    assert map_.spot_check(packed)
    assert weight_missed(map_, x) == 0
    assert map_.channel.rule.lines.thorough
    assert np.abs(map_.last.conjugates.V_hat - before).max() > 1e-5 * np.abs(before).max()


def jump_of(map_, x, step):
    """How far images of points along a step lie from a parabola, relative to them."""
    steps = np.arange(24.0)
    images = np.array([map_(x + each * step) for each in steps])
    trend = np.polynomial.polynomial.polyfit(steps, images, 2)
    return (np.abs(images - np.polynomial.polynomial.polyval(steps, trend).T) / np.abs(images[0])).max()


def test_the_map_is_smooth_under_every_rule_that_a_solve_begins_with():
    """Though nodes jump: by less than solves converge to, whatever error is asked for.

    By M' alone a piece's defect vanishes beside the last point, for V that is 1e-4 larger, and images jump by 7e-5.
    """
    asked = Problem.paper().with_fields({"integration.standard_error": 0.2}).integration
    first = RULES["lines"](asked, (4, 2), True, 2**18).first().lines
    strong = {"tokens.sigma": 1.2, "regularizer.strength": 0.017, "teacher.omega": 0.3}
    for point in ((*SEMANTIC[:-1], first), (strong, 1.95, 1.29, 7.4, 0.0, 0.0, first)):
        map_, overlaps = map_at(*point)
        x = map_.pack(overlaps)
        assert jump_of(map_, x, 1e-6 * x) < 1e-7
    orders = LineOrders((12, 12), (3,), defect=1e-6, dropped=1e-3)
    map_, overlaps = map_at({"teacher.omega": 0.42}, 1.26875, 0.07598721, 21.18547268, 0.0, 0.1037671, orders)
    x = map_.pack(overlaps)
    assert jump_of(map_, x, 1.3e-5 * x * np.array([0.0, 1.0, 0.0])) < 1e-7


def test_every_configuration_of_clusters_has_its_own_nodes():
    """Of one number, each with the weight of the normal law, at every evaluation anew."""
    system = System.of(model("paper", CLUSTERS))
    x = Overlaps(*(np.tile(v, 2).reshape(4, 1, 1) for v in ((0.26, 0.9), (1.5, 5.0), (0.2, -0.09), (0.35, 1.2))))
    map_ = StateEvolution(Channel(system, lines(4, 2, FEW)), 1.5, system.sector_of(x))
    map_.lift = True
    for factor in (1.0, 1.001):
        map_(factor * map_.pack(x))
    own = map_.channel.rule.own
    assert len(own) == 3  # of the four, two are made of each other
    for one in own:
        assert one.own == ()
        assert one.size == map_.channel.rule.size
        assert one.weights.sum() == pytest.approx(1, abs=1e-5)
    assert not any(np.array_equal(one.nodes, other.nodes) for one, other in pairwise(own))


@pytest.mark.parametrize("defect", [3e-5, 2e-7])
def test_lines_are_as_long_and_have_as_many_nodes_as_their_defect_needs(defect):
    """Half a line has its part of the law's variance to the defect, and the next fewer nodes do not."""
    orders = LineOrders((8,), (), defect=defect)
    assert chi2.sf(orders.reach**2, 3) == pytest.approx(defect, rel=2e-2)
    off = []
    for count in (orders.nodes - 1, orders.nodes):
        x, w = np.polynomial.legendre.leggauss(count)
        s = orders.reach / 2 * (1 + x)
        law = orders.reach * w * norm.pdf(s)
        parts = law @ s**2 - chi2.cdf(orders.reach**2, 3), law.sum() - 2 * norm.cdf(orders.reach) + 1
        off.append(np.abs(parts).max())
    assert off[1] < 1.1 * defect < off[0]
    assert LineOrders((4,), (), defect=1e-20).nodes < 40  # no more precise than sums are


@pytest.mark.parametrize("counts", [(14, 8), (9, 7, 6)])
def test_the_lightest_nodes_are_left_out(counts):
    """They have less than a given share of the variance, with the next one more; the symmetry stays."""
    places, weights = tensor([stretched(n, n == 9) for n in counts])
    share = 3e-3
    kept, of_kept = heaviest(places, weights, share)
    assert len(kept) < 0.8 * len(places)
    assert of_kept.sum() == pytest.approx(1)
    is_kept = (places[:, None] == kept).all(axis=2).any(axis=1)
    assert weights[~is_kept].max() < weights[is_kept].min()
    variances = weights * (places**2).sum(axis=1)
    left = variances[~is_kept].sum()
    assert left <= share * variances.sum() < left + variances[np.isclose(weights, weights[is_kept].min())].sum()


def test_nodes_beside_a_break_are_not_left_out():
    """However light they are: in this direction none is, in the others those that are far from all breaks."""
    loss = {"kind": "expression", "expression": "(h0_0 + h1_0 - sign(k0_0 + 0.7*k1_0 - 0.3))**2/2"}
    found = directions.directions_of(
        System.of(Problem.from_dict({"tokens": {"length": 2, "sigma": 0.9}, "loss": loss}))
    )
    np.testing.assert_allclose(found.latent[:, 0], np.array([1, 0.7]) / np.hypot(1, 0.7), rtol=1e-12)
    assert found.breaks == pytest.approx((0.3 / np.hypot(1, 0.7) / 0.9,))
    orders = LineOrders((9, 10), (3,), dropped=1e-3)
    zeta, _, weights = line_rules._latent_nodes(found, orders, (2, 1, 0), ())
    ahead, across = (zeta.reshape(-1, 2) @ found.latent).T
    expected = np.sort(np.round(between(found.breaks, 9, False)[0], 12))
    np.testing.assert_allclose(np.unique(np.round(ahead, 12)), expected)
    assert 4 < len(np.unique(np.round(across, 9))) < 10
    assert weights.sum() == pytest.approx(1, abs=1e-3)
