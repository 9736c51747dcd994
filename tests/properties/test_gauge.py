"""Changes of the student's columns that no loss sees, and the ridge's choice among them.

Not public: a solved point shows one gauge; which changes a loss does not see, and what balances them, are the system's.
"""

from typing import Any

import numpy as np
import pytest
from models import model

import attnphase as ap
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.solver import solve_point
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.state_evolution.system import System

FIELDS = {"teacher.omega": 0.14, "tokens.sigma": [0.61, 0.52], "regularizer.strength": 0.012}
FIELDS |= {"integration.rule": "sobol", "integration.nodes": 256}
UNTIED = model("untied", FIELDS)
START = initial_overlaps(UNTIED, "semantic")


def solved(problem: ap.Problem, alpha: float, **given: Any) -> BranchPoint:
    point = solve_point(problem, alpha, "semantic", settings=ap.SolverSettings(threads=1, stability=False), **given)
    assert point.status == 0
    assert np.abs(point.values["theta"]).min(axis=0).max() > 0.1
    return point


def test_a_change_in_idle_directions_is_no_stretch():
    """A loss of one sum of two columns, beside a third one: what only changes these otherwise is left out."""
    problem = ap.Problem().with_fields(
        {
            "tokens.length": 1,
            "positions.kind": "none",
            "student.rank": 3,
            "regularizer.strength": [0.2, 0.8, 0.45],
            "loss.kind": "expression",
            "loss.expression": "(h[0, 0] + 2*h[0, 1] - k)**2/2",
        }
    )
    found = System.of(problem).gauge
    assert len(found.stretches) == len(found.turns) == 0
    # of W: at the least ridge of w = W_0 + 2 W_1 the columns are in proportion to (1/0.2, 2/0.8)
    assert found.useful is not None
    np.testing.assert_allclose(found.useful @ [1 / 0.2, 2 / 0.8, 0.0], [1 / 0.2, 2 / 0.8, 0.0], atol=1e-9)
    np.testing.assert_allclose(found.useful @ np.array([[2.0, -1.0, 0.0], [0.0, 0.0, 1.0]]).T, 0.0, atol=1e-9)


@pytest.mark.parametrize("strength", [0.012, 2.3e-4])
def test_queries_and_keys_have_the_same_norms_at_a_fixed_point(strength):
    """The risk's slope along (Q M, K M^-T) is the ridge's, lambda (Q^T Q - K^T K): zero at every stationary point.

    A weak ridge alone would return a stretch by a share of strength / alpha a map: slowly, and with large errors.
    """
    point = solved(UNTIED.with_fields({"regularizer.strength": strength, "integration.seed": 4}), 2.9)
    q = point.values["q"]
    assert np.abs(q[:, 0, 0] - q[:, 1, 1]).max() < 1e-8
    assert (point.errors["q"] < 0.05 * np.abs(q).max()).all()
    assert point.values["map_eigenvalue"].max() < 0.9
    assert point.values["free_energy_gap"] < 1e-8  # a tenth of the tolerance of the solve
    assert point.on_branch.name == "on_branch"


@pytest.mark.parametrize("change", [-np.eye(2), np.diag([1.25, 0.8])], ids=["signs", "a stretch"])
def test_a_changed_start_changes_no_error_and_no_eigenvalue(change):
    first, other = solved(UNTIED, 2.7, start=START), solved(UNTIED, 2.7, start=START.changed(change))
    assert np.allclose(np.abs(other.values["theta"]), np.abs(first.values["theta"]), rtol=1e-6)
    for name in ("training_loss", "test_error", "weight_norm", "map_eigenvalue"):
        assert np.allclose(other.values[name], first.values[name], rtol=1e-6), name
        assert np.allclose(other.errors.get(name, 0), first.errors.get(name, 0), rtol=1e-4, atol=1e-14, equal_nan=True)
