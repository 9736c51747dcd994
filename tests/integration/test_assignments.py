"""Which of the teacher's fields a column of the student learns, where the loss does not treat its columns alike.

The teacher's own weights have no loss, so that the minimum of the regularised risk is at most ``lambda |Q_star|^2/2d``,
lambda with two columns: a bound that needs no solver.
"""

import pytest
from one_map import QUICK

import attnphase as ap

SETTINGS = ap.SolverSettings(**QUICK)
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


@pytest.mark.parametrize("second", [0, 1])
def test_the_assignment_of_lowest_loss_is_traced(second):
    problem = modulated(second)
    best = ap.tune(problem, [4.3], between=(0.015, 0.018), metric="training_loss", settings=SETTINGS)
    alone = ap.solve(problem.with_fields({"regularizer.strength": 0.015}), 4.3, settings=SETTINGS)
    assert best["optimum"].item() == pytest.approx(0.015)
    assert best["metric"].item() == pytest.approx(float(alone["training_loss"]), rel=1e-3)
    assert best["metric"].item() < 0.015
