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
    parts = traced(Setting(problem, 4.3, "regularizer.strength"), "semantic", (0.015, 0.018), SETTINGS, silent)
    assert isinstance(parts, list)
    loss = float(parts[-1].losses(np.log(0.018)))
    assert loss == pytest.approx(float(ap.solve(problem, 4.3, settings=SETTINGS)["training_loss"]), rel=1e-3)
    assert loss < 0.018
