"""Lines where minima are many, and where the student's fields hardly spread about what the teacher's tell of them."""

from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import expit

import attnphase as ap
from attnphase.errors import ProblemError
from attnphase.integration.kinds import RULES
from attnphase.integration.lines import LineOrders
from attnphase.integration.rules import lines
from attnphase.problem.problem import Problem
from attnphase.state_evolution.system import System
from tests.numeric.test_rules_of_lines import conjugates, flat, map_of, orders_of, overlaps_of, scalar, weight_missed


def test_minima_that_no_end_of_a_piece_tells_of_are_found_when_it_is_asked_for():
    """Where a third minimum is lowest between two ends; all nodes are searched from then on."""
    system = System.of(Problem.paper(omega=0.5938).with_fields({"tokens.sigma": 1.289}))
    overlaps = overlaps_of(system.problem, [1.737], [35.47], [0.2764], [0.0])
    found = map_of(system, 1.5, overlaps, LineOrders((12, 12), (3,)))
    x = found.pack(overlaps)
    before = conjugates(found, overlaps)
    missed = weight_missed(found, overlaps)
    assert missed > 2e-5
    assert not found.spot_check(x, 0.99 * missed)
    assert found.spot_check(x, 1.01 * missed)
    assert found(x, refresh=True) is not None
    assert found.spot_check(x)
    assert weight_missed(found, overlaps) == 0
    after = conjugates(found, overlaps)
    assert orders_of(found.channel.rule).thorough
    assert np.abs(flat(after) - flat(before)).max() > 1e-4 * np.abs(flat(after)).max()


def test_too_many_lines_are_refused_before_they_are_laid():
    problem = Problem.from_dict({"tokens": {"length": 6}})
    with pytest.raises(ProblemError, match="would take more than 4194304 lines for 6 fields of the teacher and 6 of"):
        RULES["lines"](problem.integration, (12, 6), True, 2**18).first()


def test_where_not_all_directions_can_be_finer_that_of_the_largest_error_is():
    """All of these would be too many nodes; a smaller error asked for must not lead to a larger one."""
    rules = RULES["lines"](Problem.paper().integration, (4, 2), True, 3750)
    orders = orders_of(rules.first())
    parts = np.array([0.1, 0.2, 0.3, 0.5, 0.4, 0.1, 0.2])  # two gauges of each direction, and one of the lines
    finer = orders_of(rules.next(rules.first(), 0.5, 0.0, parts))
    assert finer.latent[1] > orders.latent[1]
    assert (finer.latent[0], finer.across) == (orders.latent[0], orders.across)
    assert finer.defect == orders.defect


def test_what_is_no_solve_takes_the_nodes_of_auto():
    """Rules of solves have a single node, zero, before a point is known: under it a flow would tell wrong numbers."""
    problem = Problem.paper(omega=0.37)
    of_auto = System.of(problem).refinement(2**12)
    named = System.of(problem.with_fields({"integration.rule": "lines", "integration.nodes": 9}))
    assert named.refinement_of_solve(2**12).name == "lines"
    np.testing.assert_array_equal(named.refinement(2**12).first().nodes, of_auto.first().nodes)
    ways = [ap.sgd_flow(one, "semantic=0.3,noise=0.4", 0.9, 1.5, records=3) for one in (problem, named.problem)]
    np.testing.assert_array_equal(ways[0].test_error, ways[1].test_error)


def test_lines_of_no_defect_are_as_precise_as_sums_are():
    """Else more and more nodes would be tried for ever."""
    orders = LineOrders((4,), (), defect=1e-20)
    assert orders.nodes < 40
    assert orders.reach > 9


@pytest.mark.parametrize("spread", [1e-3, 1e-6, 1e-9, 0.0])
def test_the_response_near_perfect_learning_is_that_of_the_smooth_derivative(spread):
    """Stein's form divides by the spread: it must not lose digits as that goes to zero."""
    problem = scalar(loss={"kind": "logistic"})
    system = System.of(problem)
    rho, V = system.spectrum.rho[0, 0, 0], 3.7
    theta = 1.6 * rho
    overlaps = overlaps_of(problem, [theta**2 / rho + spread * rho], [V], [0.0], [theta])
    V_hat = conjugates(map_of(system, 1.0, overlaps, LineOrders((24,), (), defect=1e-9)), overlaps).V_hat
    nodes, weights = np.polynomial.legendre.leggauss(400)
    k = np.sqrt(rho) * 4 * (1 + nodes)  # the label's two signs are mirror images

    def derivative(omega):
        prox: Any = brentq(lambda h: h - omega - V * expit(-h), omega, omega + V)
        curvature = expit(prox) * expit(-prox)
        return curvature / (1 + V * curvature)

    density = np.exp(-(k**2) / (2 * rho)) * weights
    smooth = density @ [derivative(theta / rho * x) for x in k] / density.sum()
    assert V_hat.item() == pytest.approx(smooth, rel=1e-7 + spread)


def test_points_take_over_from_lines_that_have_cost_as_much():
    """Strong fields: minima change in many places, and the error of lines falls slowly; the benchmark's point 20."""
    fields = {"tokens.sigma": 1.209, "regularizer.strength": 0.01691, "integration.standard_error": 5e-3}
    point = ap.solve(Problem.paper(omega=0.3).with_fields(fields), 1.949, branch="uninformed")
    assert (point.attrs["rule"], int(point["status"])) == ("sobol", 0)
    q, error = float(point["q"][0, 0, 0]), float(point["q_stderr"][0, 0, 0])
    assert error < 5e-3 * 1.017
    assert abs(q - 1.01620) < 4 * error


def test_points_that_have_taken_over_are_refined_as_points():
    """And lines never become points by themselves: at their node limit these may have a larger error."""
    asked, dimensions = Problem.paper().integration, (4, 2)
    rules = RULES["auto"](asked, dimensions, True, 2**16).of_solve(has_lines=True)
    last, parts = lines(*dimensions, LineOrders((60, 60), (6,), defect=1e-9)), np.full(7, 0.3)
    assert rules.next(last, 0.5, 0.0, parts) is None
    points = rules.sobol(256)
    more = rules.next(points, 0.5, 0.5, None)
    assert more is not None
    assert more.randomised
    assert more.order > 256
    assert rules.next(points, 1e-4, 0.5, None) is None
    assert rules.gauges(points, 0.5) == ()
