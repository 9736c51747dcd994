"""Which of the teacher's fields a column of the student learns, where the loss does not treat its columns alike.

The teacher's own weights have no loss, so that the minimum of the regularised risk is at most ``lambda |Q_star|^2/2d``,
lambda with two columns: a bound that needs no solver.
"""

from typing import Any

import numpy as np
import pytest

from attnphase.fixed_points.continuation import follow_field
from attnphase.fixed_points.family import family_of
from attnphase.fixed_points.setting import Setting
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.fixed_points.threshold import Threshold
from attnphase.fixed_points.traced import Ending, start_on, traced
from attnphase.problem.problem import Problem
from attnphase.processes.progress import silent
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.assignments import informed_starts
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.state_evolution.system import System

QUICK = SolverSettings(threads=1, stability=False, identity=False)
RANK_TWO = {"student.rank": 2, "teacher.rank": 2}
FEW = {"integration.rule": "sobol", "integration.nodes": 128}


def of_expression(expression: str, **fields: Any) -> Problem:
    own = {"positions.kind": "none", "loss.kind": "expression", "loss.expression": expression}
    return Problem().with_fields({**RANK_TWO, **FEW, **own, **fields})


def modulated(first: int, second: int, **fields: Any) -> Problem:
    """One token with the label ``tanh(k_0) k_1``; numbers say which columns of the student stand for these."""
    assert {first, second} == {0, 1}
    expression = "(plain*tanh(h0_0)*h0_1 + (1 - plain)*tanh(h0_1)*h0_0 - tanh(k0_0)*k0_1)**2"
    own = {
        "loss.parameters": {"plain": float(second)},
        "tokens.length": 1,
        "tokens.sigma": 1.03,
        "regularizer.strength": 0.018,
    }
    return of_expression(expression, **own, **fields)


def two_layers(skip: float, first: int, second: int) -> str:
    """The square of two layers of softmax attention with skips, whose logits alone count, less the teacher's."""

    def rows(name: str, one: int, two: int) -> tuple[str, str]:
        a, b, c, d = f"{name}0_{one}", f"{name}1_{one}", f"{name}0_{two}", f"{name}1_{two}"
        # of two tokens, u_0 = (c + A_00) h_0 + (1 - A_00) h_1 with A_00 = sigmoid(z_0 (z_0 - z_1))
        u = f"({skip}*{c} + {d} + sigmoid({a}*({a} - {b}))*({c} - {d}))"
        v = f"({skip}*{d} + {c} + sigmoid({b}*({b} - {a}))*({d} - {c}))"
        return f"sigmoid({u}*({u} - {v}))", f"sigmoid({v}*({v} - {u}))"

    (s, t), (y, z) = rows("h", first, second), rows("k", 0, 1)
    return f"({s} - {y})**2 + ({t} - {z})**2"


@pytest.mark.parametrize(
    "fields",
    [{}, RANK_TWO, {"student.tied": False}, {**RANK_TWO, "student.tied": False}],
)
@pytest.mark.parametrize("branch", ["semantic", "positional", "uninformed"])
def test_columns_of_attention_can_be_exchanged(fields: dict[str, Any], branch: str, uncompiled: None) -> None:
    """So that one start is enough, the same one as ever."""
    problem = Problem.paper(omega=0.3).with_fields(fields)
    starts = informed_starts(System.of(problem), branch)
    assert len(starts) == 1
    assert np.array_equal(starts[0].pack(), initial_overlaps(problem, branch).pack())


def test_every_assignment_has_a_start() -> None:
    """Two columns that cannot be exchanged: both orders, with q above what the teacher's fields tell of theta."""
    problem = modulated(0, 1)
    starts = informed_starts(System.of(problem), "semantic")
    orders = {tuple(np.abs(start.theta[0]).argmax(axis=1)) for start in starts}
    assert orders == {(0, 1), (1, 0)}
    variance = float(problem.tokens.sigma) ** 2  # pyright: ignore[reportArgumentType]
    for start in starts:
        assert np.linalg.eigvalsh(start.q[0] - start.theta[0] @ start.theta[0].T / variance).min() > 0


def test_the_names_of_the_columns_change_nothing() -> None:
    """A formula that calls the columns the other way round has the same solution, with its columns exchanged."""
    plain, exchanged = (solve_point(modulated(*order), 4.3, settings=QUICK) for order in ((0, 1), (1, 0)))
    for point, order in ((plain, [0, 1]), (exchanged, [1, 0])):
        assert point.status is Status.converged
        assert point.values["training_loss"] < 0.018
        theta, error = point.values["theta"][0][order], point.errors["theta"][0][order]
        assert (np.diagonal(theta) > 0.7).all()
        spread = np.hypot(error, plain.errors["theta"][0])
        assert (np.abs(theta - plain.values["theta"][0]) <= 4 * spread + 1e-12).all()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_assignment_of_lowest_loss_is_traced(order: tuple[int, int]) -> None:
    problem = modulated(*order)
    parts = traced(Setting(problem, 4.3, "regularizer.strength"), "semantic", (0.015, 0.018), QUICK, silent)
    assert not isinstance(parts, Threshold)
    loss = float(parts[-1].losses(np.log(0.018)))
    assert loss == pytest.approx(solve_point(problem, 4.3, settings=QUICK).values["training_loss"], rel=1e-3)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_curves_and_folds_know_the_columns_and_their_signs(order: tuple[int, int]) -> None:
    """The size that folds are sought over is one of theta, whichever column has it; a mirror image is followed."""
    problem = modulated(*order)
    overlaps = solve_point(problem, 4.3, settings=QUICK).restart.overlaps
    for signs in ((1.0, 1.0), (-1.0, -1.0)):
        start = overlaps.changed(np.diag(signs))
        family = family_of(Setting(problem, 4.3), "semantic", start, (4.2, 4.4), QUICK)
        begun = start_on(family, "semantic", start)
        assert begun is not None
        size = np.eye(len(begun.place))[begun.amplitudes[0]][:-1]
        along = family.sector.unpack(size)
        assert not along.q.any()
        assert np.abs(along.theta * start.theta).max() > 0.7
        curve = follow_field(Setting(problem, 4.3), "semantic", (4.2, 4.4), start=start, settings=QUICK)
        assert curve.ends == (Ending.edge, Ending.edge)
        for one in curve.points:
            assert (np.sign(one.point.values["theta"]) == np.sign(start.theta)).all()


def test_a_neighbour_keeps_its_assignment() -> None:
    problem = modulated(1, 0)
    first = solve_point(problem, 4.3, settings=QUICK)
    beside = solve_point(problem, 4.5, start=first, settings=QUICK)
    assert beside.status is Status.converged
    assert (np.abs(beside.values["theta"][0][[1, 0], [0, 1]]) > 0.7).all()


@pytest.mark.slow
def test_no_layer_is_lost() -> None:
    """From a start with much noise the second layer ends without the first one: a point above the bound."""
    fields = {"tokens.length": 2, "tokens.sigma": 1.0, "regularizer.strength": 0.011}
    problem = of_expression(two_layers(0.9, 0, 1), **fields)
    point = solve_point(problem, 4.2, settings=QUICK)
    assert point.status is Status.converged
    assert point.values["training_loss"] + 4 * point.errors["training_loss"] < 0.011
    assert (np.diagonal(point.values["theta"][0]) > 0.7).all()
