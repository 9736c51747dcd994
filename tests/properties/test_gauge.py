"""Changes of the student's columns that no loss sees, and the ridge's choice among them.

Not public: a solved point shows one gauge; which changes a loss does not see, and what balances them, are the system's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from models import model
from scipy.linalg import expm

import attnphase as ap
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.solver import solve_point
from attnphase.integration.rules import sobol
from attnphase.kernels.local.constants import Starts
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.overlaps import Conjugates
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.state_evolution.system import System

FIELDS = {"teacher.omega": 0.14, "tokens.sigma": [0.61, 0.52], "regularizer.strength": 0.012}
FIELDS |= {"integration.rule": "sobol", "integration.nodes": 256}
UNTIED, TIED = model("untied", FIELDS), model("rank 2", FIELDS)
RANK_TWO = TIED.with_fields({"student.tied": False})
START = initial_overlaps(UNTIED, "semantic")


def solved(problem: ap.Problem, alpha: float, **given: Any) -> BranchPoint:
    point = solve_point(problem, alpha, "semantic", settings=ap.SolverSettings(threads=1, stability=False), **given)
    assert point.status == 0
    assert np.abs(point.values["theta"]).min(axis=0).max() > 0.1
    return point


@pytest.mark.parametrize("problem", [UNTIED, RANK_TWO], ids=["one column", "two columns"])
def test_generators_of_untied_weights_are_those_of_inverse_changes(uncompiled, problem):
    """softmax(h_Q h_K^T) depends on Q K^T alone: (Q, K) -> (Q M, K M^-T), so X = diag(Y, -Y^T) for every Y."""
    r, gauge, zero = problem.student.rank, System.of(problem).gauge, np.zeros((problem.student.rank,) * 2)
    found = np.concatenate([gauge.turns, gauge.stretches]).reshape(-1, problem.columns**2)
    expected = np.array(
        [np.block([[Y.reshape(r, r), zero], [zero, -Y.reshape(r, r).T]]).ravel() for Y in np.eye(r * r)]
    )
    assert len(found) == r * r
    # orthonormal rows span the same space where all expected ones are their own projections
    assert np.allclose(expected @ found.T @ found, expected, atol=1e-9)


def test_generators_of_tied_weights_are_turns_and_a_lasso_has_none():
    """softmax(h h^T) is unchanged by rotations alone; by nothing continuous with one column."""
    tied = System.of(TIED).gauge
    assert np.allclose(np.abs(tied.turns), [[[0, np.sqrt(0.5)], [np.sqrt(0.5), 0]]])
    assert len(tied.stretches) == 0
    for other in (model("paper", FIELDS), TIED.with_fields({"regularizer.kind": "lasso"})):
        gauge = System.of(other).gauge
        assert len(gauge.turns) == len(gauge.stretches) == 0


def test_a_change_in_idle_directions_is_no_stretch(uncompiled):
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


def test_balancing_is_the_least_norm(uncompiled):
    """Of one column each, by m^4 = N_KK / N_QQ; of two, Tr e^X N e^X is least there among random stretches."""
    norms = np.array([[[0.7, 0.2], [0.2, 0.09]], [[0.03, -0.01], [-0.01, 5.0]]])
    ratio = (norms[:, 1, 1] / norms[:, 0, 0]) ** 0.25
    expected = np.einsum("ni,ij->nij", np.stack([ratio, 1 / ratio], axis=1), np.eye(2))
    assert np.allclose(System.of(UNTIED).gauge.balancing(norms), expected, rtol=1e-12)
    rng, gauge = np.random.default_rng(3), System.of(RANK_TWO).gauge
    W = rng.normal(size=(4, 6))
    change = gauge.balancing(W @ W.T)
    balanced = change @ W @ W.T @ change
    assert np.allclose(balanced[:2, :2], balanced[2:, 2:], rtol=1e-10)
    for _ in range(20):
        other = expm(np.einsum("i,iab->ab", rng.normal(0, 0.3, len(gauge.stretches)), gauge.stretches))
        assert np.trace(other @ balanced @ other) > np.trace(balanced)


def test_sampled_conjugates_obey_the_invariance_and_multipliers_balance_norms():
    """``E[M]`` does not change when overlaps are stretched; queries may be a thousand times as large as keys."""
    system, rng = System.of(UNTIED), np.random.default_rng(8)
    channel = Channel(system, sobol(6, 4, True, 64, 4, 3))
    hats, floored = channel.evaluate(1.6, START, Starts.COLD).conjugates, channel.floored(START)
    q, V, m, theta = (one[:, None] for one in (floored.q, floored.V, floored.m, floored.theta))
    change = q @ hats.V_hat - V @ hats.q_hat - m @ hats.m_hat.mT - theta @ hats.theta_hat.mT
    along = np.einsum("a,lsaa->s", np.array([1.0, -1.0]), change)
    assert (np.abs(along) < 1e-12 * np.abs(V @ hats.q_hat).sum(axis=(0, 2, 3))).all()
    noise, curvature = rng.normal(size=(2, 2, 3, 2, 6))
    sizes = np.diag([40.0, 0.03])
    signal = rng.normal(size=(2, 3, 2, 1)), rng.normal(size=(2, 3, 2, 1))
    far = Conjugates(sizes @ noise @ noise.mT @ sizes, curvature @ curvature.mT, *signal)
    norms = system.prior.norms(system.prior.balanced(far, system.gauge))
    assert np.allclose(norms[:, 0, 0], norms[:, 1, 1], rtol=1e-9)


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
    assert point.values["free_energy_gap"] < 1e-9
    assert point.on_branch.name == "on_branch"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(-np.eye(2), id="signs"),
        pytest.param(np.diag([1.25, 0.8]), id="a stretch"),
    ],
)
def test_a_changed_start_changes_no_error_and_no_eigenvalue(change):
    first, other = solved(UNTIED, 2.7, start=START), solved(UNTIED, 2.7, start=START.changed(change))
    assert np.allclose(np.abs(other.values["theta"]), np.abs(first.values["theta"]), rtol=1e-6)
    for name in ("training_loss", "test_error", "weight_norm", "map_eigenvalue"):
        assert np.allclose(other.values[name], first.values[name], rtol=1e-6), name
        assert np.allclose(other.errors.get(name, 0), first.errors.get(name, 0), rtol=1e-4, atol=1e-14, equal_nan=True)
