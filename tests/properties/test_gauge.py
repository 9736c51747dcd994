"""Changes of the student's columns that no loss sees, and the ridge's choice among them."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import expm
from scipy.stats import ortho_group

from attnphase.arrays import Array
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.integration.rules import sobol
from attnphase.kernels.local.constants import Starts
from attnphase.problem.problem import Problem
from attnphase.state_evolution.branches import Identity
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Conjugates
from attnphase.state_evolution.replicates import packed_images
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.state_evolution.system import System

QUICK = SolverSettings(threads=1, stability=False)
UNTIED = Problem().with_fields(
    {
        "student.tied": False,
        "teacher.omega": 0.14,
        "tokens.sigma": 0.67,
        "regularizer.strength": 0.012,
        "integration.rule": "sobol",
        "integration.nodes": 256,
    }
)
START = initial_overlaps(UNTIED, "semantic")
RANK_TWO = UNTIED.with_fields({"student.rank": 2, "teacher.rank": 2, "tokens.sigma": [0.61, 0.52]})


def solved(problem: Problem, alpha: float, **given: object) -> BranchPoint:
    point = solve_point(problem, alpha, "semantic", settings=QUICK, **given)  # pyright: ignore[reportArgumentType]
    assert point.status == 0
    assert np.abs(point.values["theta"]).min(axis=0).max() > 0.1
    return point


def tied_by_loss(problem: Problem) -> np.ndarray:
    """Generators of the loss, turns and stretches alike, as rows."""
    gauge = System.of(problem).gauge
    return np.concatenate([gauge.turns, gauge.stretches]).reshape(-1, problem.columns**2)


@pytest.mark.parametrize("problem", [UNTIED, RANK_TWO])
def test_generators_are_those_of_inverse_changes(problem: Problem) -> None:
    """softmax(h_Q h_K^T) depends on Q K^T alone: (Q, K) -> (Q M, K M^-T), so X = diag(Y, -Y^T) for every Y."""
    r = problem.student.rank
    expected = []
    for i in range(r):
        for j in range(r):
            Y = np.zeros((r, r))
            Y[i, j] = 1.0
            expected.append(np.block([[Y, np.zeros((r, r))], [np.zeros((r, r)), -Y.T]]).ravel())
    found = tied_by_loss(problem)
    assert len(found) == r * r
    # orthonormal rows span the same space where all expected ones are their own projections
    assert np.allclose(np.array(expected) @ found.T @ found, expected, atol=1e-9)


def test_generators_of_tied_weights_are_turns() -> None:
    """softmax(h h^T) is unchanged by rotations alone; by nothing continuous with one column."""
    tied = System.of(RANK_TWO.with_fields({"student.tied": True})).gauge
    assert np.allclose(np.abs(tied.turns), [[[0, np.sqrt(0.5)], [np.sqrt(0.5), 0]]])
    assert len(tied.stretches) == 0
    assert tied_by_loss(UNTIED.with_fields({"student.tied": True})).size == 0


def test_a_regularizer_of_its_own_keeps_its_stretches() -> None:
    """The lasso's stationary scale is |Q|_1 = |K|_1, and it does not rotate."""
    fields = {"regularizer.kind": "lasso", "regularizer.strength": 0.01}
    gauge = System.of(RANK_TWO.with_fields(fields)).gauge
    assert len(gauge.turns) == len(gauge.stretches) == 0


def test_balancing_is_the_least_norm() -> None:
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
    least = np.trace(balanced)
    for _ in range(20):
        other = expm(np.einsum("i,iab->ab", rng.normal(0, 0.3, len(gauge.stretches)), gauge.stretches))
        assert np.trace(other @ balanced @ other) > least


def test_norms_are_those_of_the_weights() -> None:
    """Of isotropic tokens q_l = sigma_l^2 W^T W / d, whatever the conjugates."""
    rng = np.random.default_rng(4)
    factors = rng.normal(size=(2, 2, 3, 4, 6))
    q_hat, V_hat = factors @ factors.mT
    hats = Conjugates(q_hat, V_hat, rng.normal(size=(2, 3, 4, 1)), rng.normal(size=(2, 3, 4, 2)))
    prior = System.of(RANK_TWO).prior
    images = prior.of_replicates(hats)
    assert images is not None
    variances = np.array(RANK_TWO.tokens.sigma)[:, None, None] ** 2
    assert np.allclose(images.q / variances, prior.norms(hats)[:, None], rtol=1e-12)


def test_sampled_conjugates_obey_the_invariance() -> None:
    """``E[M]`` does not change when all overlaps are stretched: nor to first order, which conjugates say."""
    rng = np.random.default_rng(6)
    system = System.of(RANK_TWO)
    factor = rng.normal(size=(2, 4, 7))
    start = initial_overlaps(RANK_TWO, "semantic")
    x = replace(start, q=start.q + 0.02 * factor @ factor.mT, V=start.V + factor @ factor.mT)
    rule = sobol(12, 8, True, 64, 4, 3)
    channel = Channel(system, rule)
    hats = channel.evaluate(1.6, x, Starts.COLD).conjugates
    floored = channel.floored(x)
    q, V, m, theta = (one[:, None] for one in (floored.q, floored.V, floored.m, floored.theta))
    change = q @ hats.V_hat - V @ hats.q_hat - m @ hats.m_hat.mT - theta @ hats.theta_hat.mT
    Y = rng.normal(size=(2, 2))
    X = np.block([[Y + Y.T, np.zeros((2, 2))], [np.zeros((2, 2)), -Y - Y.T]])
    size = np.abs(np.einsum("ab,lsba->ls", np.abs(X), np.abs(V @ hats.q_hat))).sum(axis=0)
    assert (np.abs(np.einsum("ab,lsba->s", X, change)) < 1e-12 * size).all()


def test_multipliers_balance_norms_from_afar() -> None:
    """Noise of queries a thousand times that of keys: a whole Newton step would leave the domain."""
    rng, prior = np.random.default_rng(8), System.of(RANK_TWO).prior
    sizes = np.diag([40.0, 30.0, 0.03, 0.02])
    noise, curvature = rng.normal(size=(2, 2, 3, 4, 6))
    hats = Conjugates(
        sizes @ noise @ noise.mT @ sizes,
        curvature @ curvature.mT,
        rng.normal(size=(2, 3, 4, 1)),
        rng.normal(size=(2, 3, 4, 2)),
    )
    norms = prior.norms(prior.balanced(hats, System.of(RANK_TWO).gauge))
    assert np.allclose(norms[:, :2, :2], norms[:, 2:, 2:], rtol=1e-9)


def test_images_of_replicates_are_those_that_are_measured() -> None:
    """Beside a fixed point, where multipliers are not zero."""
    map_ = StateEvolution(
        Channel(System.of(UNTIED), sobol(8, 4, True, 64, 4, 5)), 2.1, System.of(UNTIED).sector_of(START)
    )
    x = map_.pack(START)
    measured = map_.measure(x)
    assert measured is not None
    np.testing.assert_allclose(map_.images(), packed_images(measured, map_), rtol=1e-9)


@pytest.mark.parametrize("seed", [1, 4])
@pytest.mark.parametrize(("problem", "alpha"), [(UNTIED, 2.7), (RANK_TWO, 2.2)])
def test_queries_and_keys_have_the_same_norms_at_a_fixed_point(problem: Problem, alpha: float, seed: int) -> None:
    """The risk's slope along (Q M, K M^-T) is the ridge's, lambda (Q^T Q - K^T K): zero at every stationary point."""
    point = solved(problem.with_fields({"integration.seed": seed}), alpha)
    r, q = problem.student.rank, point.values["q"]
    assert np.abs(q[:, :r, :r] - q[:, r:, r:]).max() < 1e-8


@pytest.mark.parametrize(("problem", "alpha"), [(UNTIED, 3.1), (RANK_TWO, 2.6)])
def test_a_weak_ridge_balances_no_worse_than_a_strong_one(problem: Problem, alpha: float) -> None:
    """Its slope alone would return a stretch by a share of strength / alpha a map: slowly, and with large errors."""
    point = solved(problem.with_fields({"regularizer.strength": 2.3e-4, "integration.nodes": 64}), alpha)
    r, q = problem.student.rank, point.values["q"]
    assert np.abs(q[:, :r, :r] - q[:, r:, r:]).max() < 1e-12
    assert (point.errors["q"] < 0.05 * np.abs(q).max()).all()
    assert np.abs(point.values["map_eigenvalue"][0]) < 2
    assert point.values["map_eigenvalue"].max() < 0.9
    assert point.values["free_energy_gap"] < 1e-9
    assert point.on_branch is Identity.on_branch


def test_eigenvalues_over_seeds() -> None:
    """Nodes drawn anew change the leading eigenvalue by little, with nearly all of the teacher known."""
    found = [
        solved(UNTIED.with_fields({"integration.seed": seed}), 2.7).values["map_eigenvalue"][0] for seed in range(4)
    ]
    assert np.std(found) < 0.1 * abs(np.mean(found))


def test_a_turned_start_changes_no_error_and_no_eigenvalue() -> None:
    """(Q, K) -> (Q O, K O) leaves the risk as it is, signs and exchanges of columns included."""
    start = initial_overlaps(RANK_TWO, "semantic")
    first = solved(RANK_TWO, 2.2, start=start)
    for seed in range(3):
        both: Array = np.kron(np.eye(2), ortho_group.rvs(2, random_state=seed)).astype(np.float64)
        other = solved(RANK_TWO, 2.2, start=start.changed(both))
        assert np.allclose(other.values["map_eigenvalue"], first.values["map_eigenvalue"], rtol=1e-6)
        for name in ("training_loss", "test_error", "weight_norm"):
            assert np.isclose(other.values[name], first.values[name], rtol=1e-9)
            assert np.isclose(other.errors[name], first.errors[name], rtol=1e-6)
    # a stretch of the start does not, either
    M = np.array([[1.1, 0.2], [-0.1, 0.8]])
    stretch = np.block([[M, np.zeros((2, 2))], [np.zeros((2, 2)), np.linalg.inv(M).T]])
    other = solved(RANK_TWO, 2.2, start=start.changed(stretch))
    assert np.allclose(other.values["map_eigenvalue"], first.values["map_eigenvalue"], rtol=1e-6)


def test_a_start_is_turned_alike_in_other_units() -> None:
    """m and theta pull the columns different ways; with tokens five times as large both still weigh the same."""
    rng, c = np.random.default_rng(12), 5.0
    start = initial_overlaps(RANK_TWO, "semantic")
    pulled, target = (
        replace(start, m=rng.normal(size=start.m.shape), theta=rng.normal(size=start.theta.shape)) for _ in range(2)
    )
    larger = System.of(RANK_TWO.with_fields({"tokens.sigma": [c * 0.61, c * 0.52]}))
    scaled = (replace(one, q=c**2 * one.q, m=c * one.m, theta=c**2 * one.theta) for one in (pulled, target))
    expected, found = System.of(RANK_TWO).in_gauge(pulled, target), larger.in_gauge(*scaled)
    assert np.allclose(found.m, c * expected.m, rtol=1e-9)
    assert np.allclose(found.theta, c**2 * expected.theta, rtol=1e-9)


def test_signs_of_the_start_change_no_error_and_no_eigenvalue() -> None:
    first, other = (solved(UNTIED, 2.7, start=START.changed(sign * np.eye(2))) for sign in (1, -1))
    assert np.allclose(other.values["theta"], -first.values["theta"], rtol=1e-9)
    assert np.allclose(other.values["map_eigenvalue"], first.values["map_eigenvalue"], rtol=1e-9)
    for name, error in first.errors.items():
        assert np.allclose(other.errors[name], error, rtol=1e-6, atol=1e-14, equal_nan=True), name


def test_a_change_in_idle_directions_is_no_stretch() -> None:
    """A loss of one sum of two columns, beside a third one: what only changes these otherwise is left out."""
    problem = Problem().with_fields(
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
    assert not len(found.stretches)
    assert not len(found.turns)
    # of W: at the least ridge of w = W_0 + 2 W_1 the columns are in proportion to (1/0.2, 2/0.8)
    assert found.useful is not None
    np.testing.assert_allclose(found.useful @ [1 / 0.2, 2 / 0.8, 0.0], [1 / 0.2, 2 / 0.8, 0.0], atol=1e-9)
    np.testing.assert_allclose(found.useful @ np.array([[2.0, -1.0, 0.0], [0.0, 0.0, 1.0]]).T, 0.0, atol=1e-9)
