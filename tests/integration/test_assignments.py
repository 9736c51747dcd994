"""Which of the teacher's fields a column of the student learns, where the loss does not treat its columns alike.

The teacher's own weights have no loss, so that the minimum of the regularised risk is at most ``lambda |Q_star|^2/2d``,
lambda with two columns: a bound that needs no solver.

Not public: `traced`, which `thresholds` begins with.
"""

import numpy as np
import pytest
from one_map import QUICK

import attnphase as ap
from attnphase.fixed_points.setting import Setting
from attnphase.fixed_points.traced import traced
from attnphase.processes.progress import silent

SETTINGS = ap.SolverSettings(**QUICK)
ORDERS = (0, 1), (1, 0)
pytestmark = pytest.mark.long  # a model of its own


def modulated(second):
    """One token with the label ``tanh(k_0) k_1``; ``second`` is the column of the student that stands for k_1."""
    return ap.Problem().with_fields(
        {
            "tokens.length": 1,
            "tokens.sigma": 1.03,
            "positions.kind": "none",
            "student.rank": 2,
            "teacher.rank": 2,
            "regularizer.strength": 0.018,
            "loss.kind": "expression",
            "loss.expression": "(plain*tanh(h0_0)*h0_1 + (1 - plain)*tanh(h0_1)*h0_0 - tanh(k0_0)*k0_1)**2",
            "loss.parameters": {"plain": float(second)},
            "integration.rule": "sobol",
            "integration.nodes": 128,
        }
    )


def test_the_names_of_the_columns_change_nothing():
    """A formula that calls the columns the other way round has the same solution, with its columns exchanged."""
    points = [ap.solve(modulated(order[1]), 4.3, settings=SETTINGS) for order in ORDERS]
    of_columns = zip(points, ORDERS, strict=True)
    thetas, errors = np.swapaxes(
        [[one[name].values[0][[*order]] for name in ("theta", "theta_stderr")] for one, order in of_columns], 0, 1
    )
    assert all(int(one["status"]) == 0 and one["training_loss"] < 0.018 for one in points)
    assert all((np.diagonal(theta) > 0.7).all() for theta in thetas)
    assert (np.abs(thetas[1] - thetas[0]) <= 4 * np.hypot(*errors) + 1e-12).all()
    beside = ap.solve(modulated(0), 4.5, start=points[1], settings=SETTINGS)  # a neighbour keeps its assignment
    assert (np.abs(beside["theta"].values[0][[1, 0], [0, 1]]) > 0.7).all()


@pytest.mark.parametrize("order", ORDERS)
def test_the_assignment_of_lowest_loss_is_traced(order):
    problem = modulated(order[1])
    parts = traced(Setting(problem, 4.3, "regularizer.strength"), "semantic", (0.015, 0.018), SETTINGS, silent)
    loss = float(parts[-1].losses(np.log(0.018)))
    assert loss == pytest.approx(float(ap.solve(problem, 4.3, settings=SETTINGS)["training_loss"]), rel=1e-3)
    assert loss < 0.018
