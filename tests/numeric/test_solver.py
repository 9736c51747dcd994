"""Fixed-point methods on maps that are known, integration rules, global proximal points, and the hard fixed points."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import chi2, ortho_group

from attnphase.data.build import from_points
from attnphase.data.validate import validate_dataset
from attnphase.data.variables import POINT_VARIABLES
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.fixed_points.verdict import SLOPES
from attnphase.integration.rules import SIGNS, Rule, gauss_hermite, published_rule, sobol
from attnphase.kernels.local.constants import Starts
from attnphase.problem.problem import Problem
from attnphase.solvers.differences import finite_difference_jacobian
from attnphase.solvers.iteration import (
    Anderson,
    Damped,
    FixedPoint,
    Method,
    Newton,
    Status,
    iterate,
)
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.map import NEAR_DEGENERATE
from attnphase.state_evolution.overlaps import Conjugates, Overlaps, packed_steps
from attnphase.state_evolution.proximal import Minima, ProximalProblem
from attnphase.state_evolution.sector import Sector
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.state_evolution.system import System

FEW = settings(deadline=None, max_examples=15)
ONE_THREAD = SolverSettings(threads=1)
COARSE = {"integration.rule": "sobol", "integration.nodes": 256}


# --- fixed-point iteration on toy maps --------------------------------------------------------------------------------


def ones(x: np.ndarray) -> np.ndarray:
    return np.ones_like(x)


def linear_map(eigenvalues, seed=3):
    """``F(x) = x* + A (x - x*)`` with a normal-free A, its fixed point and a start."""
    rng = np.random.default_rng(seed)
    size = len(eigenvalues)
    basis = ortho_group.rvs(size, random_state=rng) if size > 1 else np.ones((1, 1))
    basis = basis @ np.diag(rng.uniform(0.6, 1.6, size))
    A = basis @ np.diag(eigenvalues) @ np.linalg.inv(basis)
    target = rng.normal(size=size)
    return lambda x: target + A @ (x - target), target, target + rng.normal(size=size)


def run(evaluate, start, method: Method, tolerance=1e-10, max_maps=400, scales=ones, **asked) -> FixedPoint:
    return iterate(evaluate, start, scales, method, tolerance=tolerance, max_maps=max_maps, **asked)


@FEW
@given(slow=st.floats(0.7, 0.95), fast=st.floats(-0.5, 0.3), damping=st.floats(0.15, 0.6))
def test_damped_iteration_converges_at_the_predicted_rate(slow, fast, damping):
    """An eigenvalue e contracts by ``1 - (1 - damping) (1 - e)``, and the slowest one decides."""
    evaluate, target, start = linear_map([slow, fast])
    found = run(evaluate, start, Damped(damping), 1e-9, 3000)
    rate = 1 - (1 - damping) * (1 - slow)
    assert found.status is Status.converged
    np.testing.assert_allclose(found.point, target, atol=1e-9 / (1 - slow) * 3)
    tail = np.array(found.history[-4:])
    np.testing.assert_allclose(tail[1:] / tail[:-1], rate, rtol=1e-3)


def test_bounded_entries_move_by_no_more_than_their_size():
    """Where an image lies farther than its start is large, the step is shorter; where it does not, it is as without."""
    point, scale = np.array([0.3, -2.0, 0.1]), np.array([0.5, 2.0, 0.1])
    for image, share in (([4.3, 1.0, 8.1], 0.125), ([1.4, 1.0, 8.1], 0.2)):
        moved = Damped(0.8, (0, 1)).step(point, np.array(image), scale, lambda x: x)
        np.testing.assert_allclose(moved, point + share * (np.array(image) - point), rtol=1e-12)


@FEW
@given(eigenvalue=st.floats(-7.0, -3.05))
def test_damping_tames_an_eigenvalue_below_minus_three(eigenvalue):
    """Undamped, and at damping one half, the iteration runs away; at 0.8 it converges down to an eigenvalue of -9."""
    evaluate, target, start = linear_map([eigenvalue, 0.4])
    for damping in (0.0, 0.5):
        lost = run(evaluate, start, Damped(damping), max_maps=40)
        assert lost.status is Status.iteration_limit
        assert lost.maps == 40
        growth = (1 - damping) * (1 - eigenvalue) - 1
        assert growth > 1
        assert lost.history[-1] / lost.history[-2] == pytest.approx(growth, rel=1e-3)
    found = run(evaluate, start, Damped(0.8))
    assert found.status is Status.converged
    np.testing.assert_allclose(found.point, target, atol=1e-8)


@FEW
@given(
    eigenvalues=st.lists(st.floats(-5.0, 0.8), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
    mixing=st.floats(0.2, 0.7),
)
def test_anderson_is_exact_on_linear_maps(eigenvalues, seed, mixing):
    """After as many differences as there are dimensions the extrapolated point is the fixed point."""
    evaluate, target, start = linear_map(eigenvalues, seed)
    found = run(evaluate, start, Anderson(mixing=mixing), 1e-7)
    assert found.status is Status.converged
    assert found.maps <= len(eigenvalues) + 3
    np.testing.assert_allclose(found.point, target, atol=1e-5)


def test_anderson_with_a_short_memory_still_converges_where_undamped_steps_do_not():
    evaluate, target, start = linear_map([-3.7, -1.2, 0.75, 0.35, 0.6, -0.4, 0.1])
    assert run(evaluate, start, Damped(0.0), max_maps=60).status is Status.iteration_limit
    found = run(evaluate, start, Anderson(memory=3), max_maps=100)
    assert found.status is Status.converged
    np.testing.assert_allclose(found.point, target, atol=1e-8)


def test_a_known_value_does_not_stand_in_for_a_side():
    """Where both sides of the first step lie outside the domain a smaller one is taken, with the value given or not."""

    def evaluate(x):
        return np.array([x[0] ** 2, x[1]]) if abs(x[0] - 0.5) < 2e-3 else None

    point = np.array([0.5, 0.2])
    for centre in (None, evaluate(point)):
        jacobian = finite_difference_jacobian(evaluate, point, np.ones(2), centre=centre)
        np.testing.assert_allclose(jacobian, [[1.0, 0.0], [0.0, 1.0]], atol=2e-4)


def test_newton_solves_a_linear_map_in_one_step():
    eigenvalues = [-3.7, 0.9, 0.35]
    evaluate, target, start = linear_map(eigenvalues)
    found = run(evaluate, start, Newton())
    assert found.maps == 1 + 2 * len(eigenvalues) + 1
    np.testing.assert_allclose(found.point, target, atol=1e-10)
    jacobian = finite_difference_jacobian(evaluate, start, np.full(3, 0.3))
    np.testing.assert_allclose(np.sort(np.linalg.eigvals(jacobian)), eigenvalues[:1] + eigenvalues[:0:-1], atol=1e-10)
    assert run(evaluate, start, Newton(jacobian)).maps == 2


def test_newton_step_is_quadratic():
    """On a quadratic map, where central differences are exact: the error after one step is quadratic in that before."""
    rng = np.random.default_rng(8)
    A, B, target = rng.normal(size=(3, 3)), rng.normal(size=(3, 3, 3)), rng.normal(size=3)

    def evaluate(x):
        d = x - target
        return target + A @ d + np.einsum("ijk,j,k->i", B, d, d)

    direction = np.array([0.5, -0.7, 0.3])
    before = np.logspace(-1.5, -4, 6)
    after = [
        np.linalg.norm(
            Newton().step(target + e * direction, evaluate(target + e * direction), np.ones(3), evaluate) - target
        )
        for e in before
    ]
    slope = np.polyfit(np.log(before[1:]), np.log(after[1:]), 1)[0]
    assert slope == pytest.approx(2, abs=0.05)


def test_newton_with_broyden_updates_converges_superlinearly():
    """From the neighbourhood of a fixed point that repels the undamped map: one Jacobian serves all steps."""
    rng = np.random.default_rng(4)
    A, target = 2.1 * rng.normal(size=(3, 3)), rng.normal(size=3)
    shift = np.arccos(np.array([0.3, -0.6, 0.7]))

    def evaluate(x):
        return target + np.cos(A @ (x - target) + shift) - np.cos(shift)

    assert np.abs(np.linalg.eigvals(-np.sin(shift)[:, None] * A)).max() > 1.5
    found = run(evaluate, target + np.array([0.02, -0.03, 0.01]), Newton(), 1e-13, 60)
    assert found.status is Status.converged
    np.testing.assert_allclose(found.point, target, atol=1e-11)
    assert len(found.history) <= 9
    ratios = np.array(found.history[1:]) / np.array(found.history[:-1])
    assert ratios[-1] < 0.1 * ratios[0] < 0.05


@pytest.mark.parametrize("make", [Damped, Anderson, Newton])
def test_methods_do_not_depend_on_the_units_of_the_variables(make):
    """With scales that follow the units the residuals are the same numbers."""
    A = np.array([[-0.3, 0.5, 0.1], [0.2, 0.35, -0.4], [0.15, -0.2, 0.6]])
    units = np.array([3e-5, 0.7, 4e4])

    def plain(x):
        return A @ np.tanh(x) + 0.3

    start = np.array([0.9, -0.5, 0.4])
    a = run(plain, start, make(), 1e-9)
    b = run(lambda x: units * plain(x / units), units * start, make(), 1e-9, scales=lambda x: units)
    assert a.status is Status.converged
    np.testing.assert_allclose(b.history, a.history, rtol=1e-3, atol=1e-12)
    np.testing.assert_allclose(b.point / units, a.point, atol=1e-8)


def test_stopping_rule_is_the_undamped_residual():
    """Steps of a heavily damped iteration are far below the tolerance long before the point is a fixed point."""
    evaluate, target, start = linear_map([0.85, 0.2])
    tolerance, damping = 1e-3, 0.9998
    early = run(evaluate, start, Damped(damping), tolerance, 50)
    assert (1 - damping) * early.history[0] < tolerance
    assert early.status is Status.iteration_limit
    found = run(evaluate, start, Damped(damping), tolerance, 10**6)
    assert found.status is Status.converged
    assert found.residual == np.abs(evaluate(found.point) - found.point).max() <= tolerance
    assert np.array_equal(found.image, evaluate(found.point))
    assert np.abs(found.point - target).max() < tolerance / (1 - 0.85) * 2


def test_residual_is_relative_to_the_scales():
    evaluate, _, start = linear_map([0.5, 0.3])
    scales = np.array([0.04, 7.0])
    found = run(evaluate, start, Damped(0.3), 1e-6, scales=lambda x: scales)
    assert found.residual == np.max(np.abs(evaluate(found.point) - found.point) / scales)


def test_iteration_limit_returns_the_best_point_met():
    """A diverging iteration hands back where it was closest, and counts every map, those of a Jacobian too."""
    evaluate, _, start = linear_map([-3.4, -2.2])
    seen = []
    found = run(evaluate, start, Damped(0.0), max_maps=9, report=lambda maps, residual: seen.append((maps, residual)))
    assert found.status is Status.iteration_limit
    assert np.array_equal(found.point, start)
    assert found.residual == found.history[0] == min(found.history)
    assert seen == list(zip(range(1, 10), found.history, strict=True))
    counted = run(lambda x: np.cos(x) * 2.3, np.array([0.2, 0.9]), Newton(), 1e-15, 3)
    assert counted.maps == 1 + 4 + 1


def test_an_iteration_ends_where_no_more_is_wanted():
    """At the first such point, which need not be the best one, with its image; what rests there has converged."""
    evaluate, _, start = linear_map([-1.7, -1.3])
    asked = []

    def enough(x, image):
        asked.append((x, image))
        return len(asked) == 4

    found = run(evaluate, start, Damped(0.0), max_maps=9, until=enough)
    assert found.status is Status.iteration_limit
    assert found.maps == len(found.history) == 4
    assert np.array_equal(found.point, asked[3][0])
    assert np.array_equal(found.image, evaluate(found.point))
    assert found.residual == found.history[3] > min(found.history)
    evaluate, fixed, _ = linear_map([0.5, 0.3])
    assert run(evaluate, fixed, Damped(0.3), until=lambda x, image: True).status is Status.converged


def test_start_outside_the_domain():
    start = np.array([-0.2, 0.4])
    found = run(lambda x: None if x[0] < 0 else 0.5 * x, start, Damped(0.0))
    assert found.status is Status.left_domain
    assert found.maps == 1
    assert found.residual == np.inf
    assert np.array_equal(found.point, start)


@pytest.mark.parametrize(
    ("make", "slope"), [(lambda: Damped(0.0), -0.9), (lambda: Anderson(mixing=1.0), -0.9), (lambda: Anderson(), -9.0)]
)
def test_domain_guard_shortens_steps(make, slope):
    """The image of the start lies outside the domain, the fixed point inside."""
    evaluated = []

    def evaluate(x):
        inside = bool(-0.5 < x[0] < 1)
        evaluated.append(inside)
        return slope * x if inside else None

    found = run(evaluate, np.array([0.9, 0.3]), make(), 1e-9)
    assert found.status is Status.converged
    assert evaluated[:2] == [True, False]
    assert found.maps == len(evaluated)  # maps that failed count as well
    np.testing.assert_allclose(found.point, 0, atol=1e-9)


def test_iteration_that_cannot_stay_in_the_domain_says_so():
    """No fixed point inside: the best point is returned, and it is inside."""
    found = run(lambda x: None if x[0] > 1.3 else x + 0.7 - 0.1 * x, np.array([0.4]), Damped(0.0))
    assert found.status is Status.left_domain
    assert found.point[0] <= 1.3
    assert found.residual == min(found.history)


def test_finite_differences_at_the_edge_of_the_domain():
    """One-sided where one side is outside, smaller steps where both are, and an error where nothing helps."""

    def slope(width, point=0.0):
        return finite_difference_jacobian(
            lambda x: None if not -width[0] <= x[0] <= width[1] else np.sin(2.3 * x),
            np.array([point]),
            np.array([1.0]),
        )

    centred = slope((1, 1), 0.3)
    assert centred[0, 0] == pytest.approx(2.3 * math.cos(0.69), rel=1e-4)
    assert slope((1, 0.304), 0.303)[0, 0] == pytest.approx(2.3 * math.cos(2.3 * 0.303), rel=2e-2)
    assert slope((1e-3, 1e-3))[0, 0] == pytest.approx(2.3, rel=1e-6)
    with pytest.raises(ArithmeticError, match="domain"):
        slope((0, 0))


# --- overlaps and their symmetric subspaces ---------------------------------------------------------------------------


def random_overlaps(length, columns, rank, seed):
    rng = np.random.default_rng(seed)
    q, V = rng.normal(size=(2, length, columns, columns + 2))
    return Overlaps(
        q @ q.mT, V @ V.mT + 0.2, rng.normal(size=(length, columns, 1)), rng.normal(size=(length, columns, rank))
    )


SIZES = {"length": st.integers(1, 4), "columns": st.integers(1, 4), "rank": st.integers(1, 3)}


@FEW
@given(**SIZES, seed=st.integers(0, 10**6))
def test_pack_and_unpack_are_inverse(length, columns, rank, seed):
    x = random_overlaps(length, columns, rank, seed)
    vector = x.pack()
    assert vector.shape == (length * (columns * (columns + 1) + columns + columns * rank),)
    y = Overlaps.unpack(vector, length, columns, rank)
    for name in ("q", "V", "m", "theta"):
        np.testing.assert_array_equal(getattr(y, name), np.asarray(getattr(x, name)), err_msg=name)
    assert np.array_equal(y.pack(), vector)
    assert x.scales(np.stack([np.eye(rank)] * length)).shape == vector.shape
    # every entry of the vector is independent
    columns_of = [Overlaps.unpack(unit, length, columns, rank).pack() for unit in np.eye(len(vector))]
    assert np.array_equal(np.stack(columns_of), np.eye(len(vector)))


def test_scales_are_those_of_the_blocks():
    """Every block is measured by its largest entry; one that vanishes by a millionth of its natural size."""
    rho = np.full((2, 1, 1), 0.36)
    x = Overlaps(
        np.array([[[0.2]], [[0.07]]]), np.array([[[11.0]], [[3.0]]]), np.zeros((2, 1, 1)), np.full((2, 1, 1), 0.1)
    )
    assert np.array_equal(x.scales(rho), [0.2, 0.2, 11, 11, 0.6e-6, 0.6e-6, 0.1, 0.1])


def test_steps_are_those_of_the_columns():
    """Beside a column of variance 20 one of .3 is changed by shares of .3; what is no covariance has its scale."""
    rho, diagonal = np.full((1, 1, 1), 0.36), np.array([20.0, 0.3])
    q = np.sqrt(diagonal[:, None] * diagonal) * [[1, -0.2], [-0.2, 1]]
    x = Overlaps(q[None], np.diag([0.6, 0.0])[None], np.zeros((1, 2, 1)), np.array([[[1.1], [0.4]]]))
    steps, scales = packed_steps(x.pack(), 2, rho), x.scales(rho)
    assert steps == pytest.approx([20, np.sqrt(6), 0.3, 0.6, 0.6, 0.6, *scales[6:]], rel=1e-12)


def test_feasible_overlaps():
    x = Overlaps(*(np.array(v).reshape(1, 1, 1) for v in (0.3, 4.0, -0.2, 0.29)))
    rho = np.array([[[0.31]]])
    assert x.feasible(rho)
    assert not replace(x, theta=np.array([[[0.31]]])).feasible(rho)  # theta^2 > q rho
    assert not replace(x, V=np.array([[[-0.1]]])).feasible(rho)
    assert not replace(x, V=np.zeros((1, 1, 1))).feasible(rho)
    assert not replace(x, q=np.array([[[-0.1]]])).feasible(rho)
    assert not replace(x, m=np.array([[[np.nan]]])).feasible(rho)
    # the trivial point, and the edge where the teacher's field is known
    assert replace(x, q=np.zeros((1, 1, 1)), theta=np.zeros((1, 1, 1))).feasible(rho)
    assert replace(x, theta=np.sqrt(0.3 * rho)).feasible(rho)


def sector_of(problem, branch):
    start = initial_overlaps(problem, branch)
    return Sector.of(start, System.of(problem).symmetries), start


RANK_TWO = Problem.paper(omega=0.34).with_fields({"student.rank": 2, "teacher.rank": 2, **COARSE})


@pytest.mark.parametrize("problem", [Problem.paper(), RANK_TWO, RANK_TWO.with_fields({"student.tied": False})])
@pytest.mark.parametrize("branch", ["semantic", "positional", "uninformed"])
def test_sector_is_a_projection_that_keeps_the_start(problem, branch):
    sector, start = sector_of(problem, branch)
    kept = sector.unpack(sector.pack(start))
    for name in ("q", "V", "m", "theta"):
        np.testing.assert_allclose(getattr(kept, name), getattr(start, name), atol=1e-15)
    x = random_overlaps(2, problem.columns, problem.teacher.rank, 5)
    once = sector.unpack(sector.pack(x))
    np.testing.assert_allclose(sector.pack(once), sector.pack(x), rtol=1e-14)
    # the mean over the group is the same projection
    conjugates = sector.symmetrized(Conjugates(*(v[:, None] for v in (x.q, x.V, x.m, x.theta))))
    for name in ("q", "V", "m", "theta"):
        np.testing.assert_allclose(getattr(conjugates, f"{name}_hat")[:, 0], getattr(once, name), atol=1e-14)
    # what a branch's symmetry forbids is exactly zero, and equal tokens are exactly equal
    assert np.array_equal(once.q[0], once.q[1])
    if branch != "positional":
        assert not once.m.any()
        assert not conjugates.m_hat.any()
    if branch != "semantic":
        assert not once.theta.any()
        assert not conjugates.theta_hat.any()
    if branch == "uninformed" and problem.student.tied:
        np.testing.assert_array_equal(once.q, once.q[:, :1, :1] * np.eye(problem.columns))


def test_sector_without_symmetry_is_the_whole_space():
    x = random_overlaps(2, 2, 1, 7)
    one, minus = np.eye(2), np.diag([-1.0, 1.0])
    elements = [(order, A, np.eye(1), np.eye(0)) for order in ((0, 1), (1, 0)) for A in (one, minus)]
    sector = Sector.of(x, tuple(elements))
    np.testing.assert_array_equal(sector.basis, np.eye(len(x.pack())))
    identity = (((0, 1), np.eye(1), np.eye(1), np.eye(0)),)
    without_signs = Sector.of(initial_overlaps(Problem.paper(), "semantic"), identity)
    assert without_signs.basis.shape == (8, 8)


def test_sector_errors_are_those_of_the_entries():
    sector, _ = sector_of(Problem.paper(), "positional")
    errors = sector.errors(np.array([0.1, 0.2, 0.3]))
    assert np.array_equal(errors.q.ravel(), [0.1, 0.1])
    assert np.array_equal(errors.V.ravel(), [0.2, 0.2])
    assert np.array_equal(errors.m.ravel(), [0.3, 0.3])  # m_2 = -m_1, with the same error
    assert not errors.theta.any()


# --- integration rules ------------------------------------------------------------------------------------------------


def mean(rule: Rule, function) -> np.ndarray:
    """Mean per replicate, over the sign changes of a symmetric rule."""
    signed = []
    for xi, zeta in rule.signs:
        nodes = rule.nodes.copy()
        nodes[..., : rule.student_dimensions] *= xi
        nodes[..., rule.student_dimensions :] *= zeta
        signed.append(function(nodes) @ rule.weights)
    return np.mean(signed, axis=0)


def moment(powers) -> float:
    """Product of moments of the standard normal law."""
    return math.prod(0.0 if p % 2 else float(math.prod(range(p - 1, 0, -2))) for p in powers)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("order", [2, 3, 6])
def test_gauss_hermite_moments_are_exact_up_to_their_degree(order, symmetric):
    rule = gauss_hermite(3, 2, symmetric, order)
    assert rule.weights.sum() == pytest.approx(1, abs=1e-14)
    for powers in itertools.product(range(2 * order), repeat=3):
        value = mean(rule, lambda x, p=powers: np.prod(x ** np.array(p), axis=-1))[0]
        assert value == pytest.approx(moment(powers), rel=1e-11, abs=1e-11 * moment([2 * (p // 2 + 1) for p in powers]))
    above = mean(rule, lambda x: x[..., 0] ** (2 * order))[0]
    # the first moment it misses, by order!
    assert above == pytest.approx(moment([2 * order]) - math.factorial(order), rel=1e-11)


def test_gauss_hermite_converges_as_its_error_term_says():
    """``E f - Q_n f = n! f^(2n)(y)/(2n)!`` for some y; for ``f = exp(a x)`` that is ``a^(2n) n!/(2n)! exp(a y)``."""
    a = 0.83
    for order in range(2, 9):
        error = math.exp(a**2 / 2) - mean(gauss_hermite(1, 1, False, order), lambda x: np.exp(a * x[..., 0]))[0]
        leading = a ** (2 * order) * math.factorial(order) / math.factorial(2 * order)
        assert 0.9 < error / leading < 1.6
    # a jump, which the proximal point has, is another matter: the error falls like 1/sqrt(n)
    orders = np.array([12, 24, 48, 96, 192])
    jump = [mean(gauss_hermite(1, 1, False, n), lambda x: np.where(x[..., 0] > 0.0, 1.0, 0.0))[0] for n in orders + 1]
    slope = np.polyfit(np.log(orders), np.log(np.abs(np.array(jump) - 0.5)), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.05)


def test_published_rule_has_degree_seven_in_each_plane():
    whole, orbits = published_rule(False), published_rule(True)
    assert whole.size == 144
    assert orbits.size < 144 / 2
    for rule in (whole, orbits):
        assert rule.weights.sum() == pytest.approx(1, abs=1e-14)
        for a, b, c, d in itertools.product(range(8), repeat=4):
            if a + b > 7 or c + d > 7:
                continue
            value = mean(rule, lambda x, p=(a, b, c, d): np.prod(x ** np.array(p), axis=-1))[0]
            assert value == pytest.approx(moment((a, b, c, d)), rel=1e-11, abs=1e-10)
        for powers in ((8, 0, 0, 0), (0, 0, 6, 2)):
            value = mean(rule, lambda x, p=powers: np.prod(x ** np.array(p), axis=-1))[0]
            assert abs(value / moment(powers) - 1) > 1e-2


def rough(x):
    """No symmetry, a jump and a kink."""
    return np.exp(0.4 * x[..., 0] - 0.3 * x[..., 2]) + np.abs(x[..., 1] + 0.2) * (x[..., 3] > 0.15)


@pytest.mark.parametrize("order", [4, 5])
def test_orbits_of_the_signs_carry_the_whole_rule(order):
    """Half a grid with four signs is the grid, multiplicities of nodes at zero included."""
    whole, orbits = gauss_hermite(4, 2, False, order), gauss_hermite(4, 2, True, order)
    assert orbits.size < whole.size / 2
    assert orbits.signs == SIGNS
    assert mean(orbits, rough)[0] == pytest.approx(mean(whole, rough)[0], rel=1e-13)
    assert mean(published_rule(True), rough)[0] == pytest.approx(mean(published_rule(False), rough)[0], rel=1e-13)


@pytest.mark.parametrize("points", [64, 512])
def test_sobol_standard_errors_are_calibrated(points):
    """Deviations of 30 seeds from the exact mean, in reported standard errors, have variance near one.

    With 16 replicates the ratio follows Student's law with 15 degrees of freedom, whose variance is 15/13.
    """
    a = np.array([0.6, -0.4, 0.5, 0.3])
    exact = math.exp(a @ a / 2) + 0.5 * math.erfc(0.7 / math.sqrt(2))
    scores = []
    for seed in range(30):
        replicates = mean(sobol(4, 2, False, points, 16, seed), lambda x: np.exp(x @ a) + (x[..., 1] > 0.7))
        scores.append((replicates.mean() - exact) / (replicates.std(ddof=1) / 4))
    low, high = chi2.ppf([5e-4, 1 - 5e-4], len(scores))
    assert low < np.sum(np.square(scores)) / (15 / 13) < high
    assert abs(np.mean(scores)) < 3.3 * math.sqrt(15 / 13 / len(scores))


def test_sobol_points_beat_independent_ones():
    """The scatter of smooth means falls faster than N^-1/2, and nodes are finite and reproducible."""

    def spread(n):
        return mean(sobol(4, 2, True, n, 16, 3), lambda x: np.cos(x.sum(axis=-1))).std(ddof=1)

    assert math.log(spread(64) / spread(4096)) / math.log(64) > 0.7
    rule = sobol(4, 2, True, 64, 5, 11)
    assert rule.nodes.shape == (5, 64, 4)
    assert np.isfinite(rule.nodes).all()
    sobol.cache_clear()
    assert np.array_equal(sobol(4, 2, True, 64, 5, 11).nodes, rule.nodes)
    assert not np.array_equal(sobol(4, 2, True, 64, 5, 12).nodes, rule.nodes)
    # replicates do not share points
    assert len(np.unique(rule.nodes[..., 0])) == 5 * 64


# --- proximal points --------------------------------------------------------------------------------------------------

# the paper's setting, where the local problem is not convex (V is 10 to 30), and its relatives
PAPER = Problem.paper(omega=0.3).with_fields(COARSE)
NONCONVEX = {
    "tied, semantic": (PAPER, 1.24, "semantic"),
    "tied, semantic, few samples": (PAPER, 0.6, "semantic"),
    "tied, positional": (PAPER, 1.24, "positional"),
    "untied": (PAPER.with_fields({"student.tied": False}), 1.24, "semantic"),
    "rank two": (RANK_TWO, 1.24, "semantic"),
    "large sigma": (PAPER.with_fields({"tokens.sigma": 1.1}), 0.9, "semantic"),
}


class Local:
    """Local problems at a solved point: centers, teacher fields and energies, one replicate without symmetry."""

    def __init__(self, problem: Problem, x: Overlaps, points: int, seed: int = 1) -> None:
        length, columns, rank = x.theta.shape
        system = System.of(problem)
        rule = sobol(length * (columns + rank), length * columns, False, points, 1, seed)
        self.V, self.points = x.V, points
        self.omega, self.k, *_ = Channel(system, rule).nodes_at(x)
        self.proximal = ProximalProblem(system)
        self.factor = np.linalg.cholesky(x.V)

    def minimise(self, starts: Starts, previous: Minima | None = None):
        return self.proximal.minimise(self.omega, self.k, self.V, ((0, 1),), starts, previous)

    def energy(self, h: np.ndarray) -> np.ndarray:
        """``Psi`` at fields (n, L, r) of all nodes, from the loss alone."""
        d = h - self.omega[0, 0, 0]
        quadratic = np.einsum("nli,lij,nlj->n", d, np.linalg.inv(self.V), d) / 2
        return quadratic + self.proximal.losses(h[None, None, None], self.k)[0, 0, 0]

    def random_fields(self, rng: np.random.Generator, starts: int) -> np.ndarray:
        """Uniform in the ball that holds every minimum: ``|u|^2/2 <= Psi(0) = loss(omega)``; (n, starts, L, r)."""
        length, columns = self.V.shape[:2]
        size = length * columns
        u = rng.normal(size=(self.points, starts, size))
        radius = np.sqrt(2 * self.proximal.losses(self.omega, self.k)[0, 0, 0])[:, None, None]
        u *= radius * rng.random((self.points, starts, 1)) ** (1 / size) / np.linalg.norm(u, axis=-1, keepdims=True)
        u = u.reshape(self.points, starts, length, columns)
        return self.omega[0, 0, 0][:, None] + np.einsum("lij,nslj->nsli", self.factor, u)


@pytest.fixture(scope="module")
def solved():
    """Overlaps at the fixed point of a case."""
    found: dict[str, tuple[Problem, Overlaps]] = {}

    def at(name: str) -> tuple[Problem, Overlaps]:
        if name not in found:
            problem, alpha, branch = NONCONVEX[name]
            point = solve_point(problem, alpha, branch, settings=ONE_THREAD)
            assert point.status is Status.converged
            found[name] = problem, point.restart.overlaps
        return found[name]

    return at


@pytest.mark.slow
@pytest.mark.parametrize("name", NONCONVEX)
def test_proximal_points_are_global_minima(name, solved):
    """No descent from 40 random starts in the ball that holds all minima ends lower, on any of 2048 nodes."""
    local = Local(*solved(name), points=2048)
    points, minima = local.minimise(Starts.COLD)
    assert minima.unsolved == 0
    energy = points.envelope[0, 0, 0]
    rng = np.random.default_rng(6)
    lowest, second = np.full(local.points, np.inf), np.full(local.points, np.inf)
    for _ in range(20):
        starts = np.ascontiguousarray(local.random_fields(rng, 2))
        found, ends = local.minimise(Starts.WARM, Minima(starts, np.tile([0.3, 0.4], (local.points, 1)), minima.steps))
        lowest = np.minimum(lowest, found.envelope[0, 0, 0])
        elsewhere = np.abs(ends.fields - minima.fields[:, :1]).max(axis=(2, 3)) > 1e-3
        gaps = np.where(elsewhere, ends.energies - energy[:, None], np.inf)
        second = np.minimum(second, gaps.min(axis=1))
    assert (energy - lowest).max() < 1e-12
    # this was no idle search: there are other minima, and a cold pass knows those that nearly win
    assert np.isfinite(second).any()
    missed = (second < NEAR_DEGENERATE) & (minima.gap >= NEAR_DEGENERATE)
    assert missed.sum() <= 0.2 * (second < NEAR_DEGENERATE).sum()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tied, semantic, few samples", "untied", "rank two"])
def test_proximal_points_against_an_independent_minimiser(name, solved):
    """The same with scipy's BFGS on the loss alone, on nodes whose two lowest minima are closest, and on two others."""
    local = Local(*solved(name), points=1024)
    points, minima = local.minimise(Starts.COLD)
    chosen = np.unique(np.concatenate([np.argsort(minima.gap)[:4], [17, 404]]))
    rng = np.random.default_rng(9)
    starts = local.random_fields(rng, 40)
    shape, inverse = local.V.shape[:2], np.linalg.inv(local.V)
    for node in chosen:
        omega, k = local.omega[:, :, :, node : node + 1], local.k[:, :, :, node : node + 1]

        def energy(flat, omega=omega, k=k):
            h = flat.reshape(1, 1, 1, 1, *shape)
            d = (h - omega)[0, 0, 0, 0]
            return np.einsum("li,lij,lj->", d, inverse, d) / 2 + local.proximal.losses(h, k).item()

        best = min(minimize(energy, h.ravel(), tol=1e-9).fun for h in starts[node])
        assert points.envelope[0, 0, 0, node] == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("name", ["tied, positional", "untied"])
def test_residual_envelope_and_loss_belong_to_the_proximal_point(name, solved):
    """``M = Psi(prox)``, ``g = V^-1 (prox - omega)``, and no direction leads down."""
    local = Local(*solved(name), points=256)
    points, minima = local.minimise(Starts.COLD)
    prox = minima.fields[:, 0]
    assert (minima.energies[:, 0] <= minima.energies[:, 1]).all()
    np.testing.assert_allclose(local.energy(prox), points.envelope[0, 0, 0], rtol=1e-10)
    np.testing.assert_allclose(local.proximal.losses(prox[None, None, None], local.k), points.loss, rtol=1e-10)
    g = np.einsum("lij,nlj->nli", np.linalg.inv(local.V), prox - local.omega[0, 0, 0])
    np.testing.assert_allclose(points.residual[0, 0, 0], g, atol=1e-9)
    rng = np.random.default_rng(2)
    for _ in range(5):
        step = 1e-3 * rng.normal(size=prox.shape)
        assert np.all(local.energy(prox + step) > points.envelope[0, 0, 0] - 1e-13)


@pytest.mark.parametrize("name", ["tied, semantic, few samples", "tied, positional", "rank two"])
def test_warm_passes_find_what_cold_ones_find(name, solved):
    """At a neighbouring point, by descents from the two lowest minima; a fresh search beside them can only be lower."""
    problem, x = solved(name)
    before = Local(problem, x, points=2048)
    _, known = before.minimise(Starts.COLD)
    moved = replace(x, q=1.004 * x.q, V=0.995 * x.V, m=1.003 * x.m, theta=0.998 * x.theta)
    after = Local(problem, moved, points=2048)
    cold, warm, refreshed = (
        after.minimise(starts, known)[0].envelope for starts in (Starts.COLD, Starts.WARM, Starts.REFRESH)
    )
    assert np.abs(refreshed - cold).max() < 1e-12
    assert (warm - cold).min() > -1e-12
    assert np.mean(warm - cold > 1e-12) < 2e-3
    # and at the same point nothing changes at all
    np.testing.assert_allclose(
        before.minimise(Starts.WARM, known)[0].envelope, before.minimise(Starts.COLD)[0].envelope, rtol=1e-12
    )


@FEW
@given(seed=st.integers(0, 10**6), width=st.floats(0.05, 20.0), omega=st.floats(0.1, 0.9), mixing=st.floats(0.2, 2.0))
def test_proximal_points_of_one_linear_token_in_closed_form(seed, width, omega, mixing):
    """At L = 1 with linear scores ``Psi = (h-w)^2/(2V) + s/2 (h^2 - T)^2``: the lowest real root of a cubic."""
    problem = Problem().with_fields(
        {
            "tokens.length": 1,
            "tokens.sigma": 0.8,
            "teacher.score": "linear",
            "student.score": "linear",
            "teacher.omega": omega,
            "teacher.mixing": [[mixing]],
        }
    )
    rng = np.random.default_rng(seed)
    centers, k = rng.normal(size=(2, 1, 1, 1, 60, 1, 1))
    local = ProximalProblem(System.of(problem))
    points, _ = local.minimise(centers, k, np.full((1, 1, 1), width), ((0, 1),), Starts.COLD, None)
    variance = 0.8**2
    for w, teacher, envelope, g in zip(
        centers.ravel(), k.ravel(), points.envelope.ravel(), points.residual.ravel(), strict=True
    ):
        T = (1 - omega) * teacher**2 + omega * mixing
        roots = np.roots([2 * variance, 0, 1 / width - 2 * variance * T, -w / width])
        real = roots[np.abs(roots.imag) < 1e-7].real
        energies = (real - w) ** 2 / (2 * width) + variance / 2 * (real**2 - T) ** 2
        assert envelope == pytest.approx(energies.min(), rel=1e-9, abs=1e-12)
        if len(energies) == 1 or np.diff(np.sort(energies))[0] > 1e-6:  # else either root is right
            assert g == pytest.approx((real[energies.argmin()] - w) / width, rel=1e-6, abs=1e-8)


# --- fixed points that are hard to find -------------------------------------------------------------------------------


def state_map(problem: Problem, alpha: float, branch: str, points: int = 256):
    """The undamped map of a branch's sector as a function of packed overlaps, put together from its parts."""
    system = System.of(problem)
    kernels, spectrum = system.kernels, system.spectrum
    sector = Sector.of(initial_overlaps(problem, branch), system.symmetries)
    student, rank = kernels.length * kernels.columns, kernels.teacher_rank
    rule = sobol(student + kernels.length * rank, student, True, points, 16, problem.integration.seed)
    channel = Channel(system, rule)

    def evaluate(x):
        overlaps = sector.unpack(x)
        if not overlaps.feasible(spectrum.rho):
            return None
        conjugates = sector.symmetrized(channel.evaluate(alpha, overlaps, Starts.COLD).conjugates).mean()
        image = system.prior.overlaps(conjugates)
        return None if image is None else sector.pack(image)

    return evaluate, sector, lambda x: sector.scales(x, spectrum.rho)


@pytest.mark.slow
def test_positional_point_at_alpha_two_repels_the_undamped_map():
    """The solver finds it, and the undamped map runs away from its very neighbourhood."""
    point = solve_point(PAPER, 2.0, "positional", settings=ONE_THREAD)
    assert point.status is Status.converged
    assert abs(point.values["m"][0, 0]) == pytest.approx(0.2582, abs=4 * np.hypot(point.errors["m"][0, 0], 2e-4))
    evaluate, sector, scales = state_map(PAPER, 2.0, "positional")
    x = sector.pack(point.restart.overlaps)
    image = evaluate(x)
    assert image is not None
    assert np.abs((image - x) / scales(x)).max() < 1e-6  # the map put together here has the solver's fixed point
    jacobian = finite_difference_jacobian(evaluate, x, scales(x))
    assert np.linalg.eigvals(jacobian).real.min() < -3
    start = x * (1 + 1e-3 * np.array([1.0, -0.7, 0.4]))
    lost = run(evaluate, start, Damped(0.0), 1e-5, 12, scales)
    assert lost.status is not Status.converged
    assert max(lost.history) > 20 * lost.history[0]
    assert run(evaluate, start, Damped(0.8), 1e-4, 60, scales).status is Status.converged


@pytest.mark.slow
@pytest.mark.parametrize("method", ["damped", "anderson", "newton"])
def test_methods_find_the_same_fixed_point(method):
    problem = PAPER.with_fields({"teacher.omega": 0.27})
    point = solve_point(problem, 2.1, "semantic", settings=SolverSettings(method, threads=1))
    evaluate, sector, scales = state_map(problem, 2.1, "semantic")
    x = sector.pack(point.restart.overlaps)
    image = evaluate(x)
    assert point.status is Status.converged
    assert point.residual <= 1e-7
    assert image is not None
    assert np.abs((image - x) / scales(x)).max() < 2e-7


@pytest.mark.slow
def test_trivial_point():
    """Strongly regularised, the semantic start ends at W = 0, not at 0/0; the positional branch is lower."""
    problem = Problem.paper(omega=0.3, strength=0.1)
    with np.errstate(all="raise", under="ignore"):
        trivial = solve_point(problem, 2.0, "semantic", settings=ONE_THREAD)
    assert trivial.status is Status.converged
    values = trivial.values
    assert np.abs(values["q"]).max() < 1e-6
    assert np.abs(values["theta"]).max() < 1e-6
    assert not values["m"].any()
    assert values["weight_norm"] < 1e-5
    # no weights: the training loss is alpha times that of h = 0, which is the test error's
    assert values["training_loss"] == pytest.approx(2.0 * values["test_error"] * 2 / 2, rel=1e-6)
    # the map has two coordinates there, so that it has no third eigenvalue
    known = [values[each.name] for each in POINT_VARIABLES if each.name in values and not each.optional]
    assert all(np.isfinite(v).all() for v in (*known, *trivial.errors.values()))
    positional = solve_point(problem, 2.0, "positional", settings=ONE_THREAD)
    assert positional.status is Status.converged
    assert np.abs(positional.values["m"]).min() > 0.1  # training agrees with it, in the tests of agreement
    error = np.hypot(positional.errors["training_loss"], trivial.errors["training_loss"])
    assert positional.values["training_loss"] < values["training_loss"] - 10 * error


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_near_perfect_recovery(alpha):
    """Large tokens saturate the scores: everything stays finite and the point is found."""
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        point = solve_point(Problem.paper(omega=0.3, sigma=1.0), alpha, "semantic", settings=ONE_THREAD)
    assert point.status is Status.converged
    assert all(np.isfinite(v).all() for v in (*point.values.values(), *point.errors.values()))
    assert point.values["unsolved_nodes"] == 0
    cosine = point.values["theta"][0, 0, 0] / math.sqrt(point.values["q"][0, 0, 0])
    assert cosine > 0.94
    assert point.values["free_energy_gap"] < 1e-8


@pytest.mark.slow
def test_coarse_rule_leaves_maps_for_the_finer_ones():
    """With 1024 nodes this map is a staircase on which Anderson cannot reach 1e-7; the finer rule needs ten maps."""
    problem = RANK_TWO.with_fields(
        {
            "tokens.sigma": [0.47, 0.58],
            "positions.gram": [[1.1, -0.9], [-0.9, 0.95]],
            "teacher.omega": 1.0,
            "teacher.mixing": [[0.64, 0.31], [0.43, 0.58]],
            "regularizer.strength": 0.013,
        }
    )
    point = solve_point(problem, 2.4, "uninformed", settings=ONE_THREAD)
    assert point.status is Status.converged


AT_OMEGA_ONE = PAPER.with_fields(
    {
        "tokens.sigma": [0.47, 0.58],
        "positions.gram": [[1.1, -0.9], [-0.9, 0.95]],
        "teacher.omega": 1.0,
        "teacher.mixing": [[0.64, 0.31], [0.43, 0.58]],
        "regularizer.strength": 0.013,
    }
)


@pytest.mark.slow
@pytest.mark.parametrize(("problem", "alphas"), [(PAPER, (2.0, 4.0, 8.0)), (AT_OMEGA_ONE, (1.7, 2.4, 6.0))])
def test_positional_branch_continues_to_many_samples(problem, alphas):
    """Climbing from few samples, where the informed start works: the branch goes on, and m grows."""
    point, m = None, []
    for alpha in alphas:
        point = solve_point(problem, alpha, "positional", start=point, settings=ONE_THREAD)
        assert point.status is Status.converged
        m.append(np.abs(point.values["m"]).max())
    assert 0.2 < m[0] < m[1] < m[2]


@pytest.mark.slow
@pytest.mark.parametrize(("problem", "alpha"), [(PAPER, 8.0), (AT_OMEGA_ONE, 2.4)])
def test_positional_branch_is_found_with_many_samples(problem, alpha):
    """The map's eigenvalue grows with alpha: a start that takes full steps loses the branch."""
    point = solve_point(problem, alpha, "positional", settings=ONE_THREAD)
    assert point.status is Status.converged
    assert np.abs(point.values["m"]).max() > 0.2


@pytest.mark.slow
def test_weights_that_nearly_vanish_are_found():
    """Untied, uninformed and without any symmetry: q is a thousandth of rho, where Stein's form is nearly 0/0."""
    problem = PAPER.with_fields(
        {
            "tokens.sigma": [0.4755014532076138, 0.4488422730465303],
            "positions.gram": [
                [1.102737860190111, -0.36443817969534814],
                [-0.36443817969534814, 0.16994414822757928],
            ],
            "teacher.omega": 0.453347529348313,
            "teacher.mixing": [
                [0.5242897279299745, 0.5673226763350249],
                [0.3712169525552226, 0.5336354139329198],
            ],
            "student.tied": False,
            "regularizer.strength": 0.01680410926749505,
            "integration.seed": 5,
        }
    )
    point = solve_point(problem, 1.598875102730052, "uninformed", settings=ONE_THREAD)
    assert point.status is Status.converged
    assert 0 < np.abs(point.values["q"]).max() < 1e-3
    assert not point.values["m"].any()
    assert not point.values["theta"].any()
    assert point.values["free_energy_gap"] < 1e-8


PENALTY = {"regularizer.kind": "expression", "regularizer.expression": "0.02*sqrt(w**2 + 0.3) + 0.005*w**2"}


@pytest.mark.parametrize(
    ("fields", "alpha", "branch", "settings", "status"),
    [
        ({}, 2.0, "positional", SolverSettings(threads=1, max_maps=4), Status.iteration_limit),
        # in the end the curvature of a row's problem is negative
        (PENALTY, 1.7, "semantic", SolverSettings(threads=1, max_maps=200), Status.left_domain),
    ],
)
def test_what_did_not_converge_is_kept_and_flagged(fields, alpha, branch, settings, status):
    """With every number it has, and never an exception."""
    problem = PAPER.with_fields({"integration.nodes": 64, **fields})
    point = solve_point(problem, alpha, branch, settings=settings)
    assert point.status is status
    assert point.residual > 1e-3
    assert 0 < point.iterations <= settings.max_maps + 2  # with looks at where it ended
    ds = validate_dataset(from_points([point]))
    assert ds["status"].item() == status
    # there is no stability of what is no fixed point, nor a derivative along its branch
    assert all(np.isnan(point.values[name]) for name in SLOPES)
    names = [one.name for one in POINT_VARIABLES if one.name != "residual" and not one.optional]
    assert all(np.isfinite(ds[name]).all() for name in names)
