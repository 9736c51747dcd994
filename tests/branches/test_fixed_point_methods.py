"""Damped, Anderson and Newton iterations on maps with closed forms: rates, residuals, limits and domains.

Not public: a solve chooses its method and its maps; their rates and limits are known for other maps alone.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ortho_group

from attnphase.solvers.differences import finite_difference_jacobian
from attnphase.solvers.iteration import Anderson, Damped, FixedPoint, Method, Newton, Status, iterate

FEW = settings(deadline=None, max_examples=15)


def linear_map(eigenvalues, seed=3):
    """``F(x) = x* + A (x - x*)`` with a normal-free A, its fixed point and a start."""
    rng = np.random.default_rng(seed)
    size = len(eigenvalues)
    basis = ortho_group.rvs(size, random_state=rng) if size > 1 else np.ones((1, 1))
    basis = basis @ np.diag(rng.uniform(0.6, 1.6, size))
    A = basis @ np.diag(eigenvalues) @ np.linalg.inv(basis)
    target = rng.normal(size=size)
    return lambda x: target + A @ (x - target), target, target + rng.normal(size=size)


def run(evaluate, start, method: Method, tolerance=1e-10, max_maps=400, scales=np.ones_like, **asked) -> FixedPoint:
    return iterate(evaluate, start, scales, method, tolerance=tolerance, max_maps=max_maps, **asked)


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


def test_the_residual_is_undamped_and_relative_to_the_scales():
    """Steps of a heavily damped iteration are far below the tolerance long before the point is a fixed point."""
    evaluate, _, start = linear_map([0.85, 0.2])
    scales, tolerance = np.array([0.4, 7.0]), 1e-3
    early = run(evaluate, start, Damped(0.9995), tolerance, 50, lambda x: scales)
    assert 0.0005 * early.history[0] < tolerance
    assert early.status is Status.iteration_limit
    found = run(evaluate, start, Damped(0.9995), tolerance, 10**6, lambda x: scales)
    assert found.status is Status.converged
    assert found.residual == np.max(np.abs(evaluate(found.point) - found.point) / scales) <= tolerance
    assert np.array_equal(found.image, evaluate(found.point))


def test_an_iteration_that_runs_out_returns_the_best_point_met():
    """And counts every map, those of a Jacobian too."""
    evaluate, _, start = linear_map([-3.4, -2.2])
    seen = []
    found = run(evaluate, start, Damped(0.0), max_maps=9, report=lambda maps, residual: seen.append((maps, residual)))
    assert found.status is Status.iteration_limit
    assert np.array_equal(found.point, start)
    assert found.residual == found.history[0] == min(found.history)
    assert seen == list(zip(range(1, 10), found.history, strict=True))
    assert run(lambda x: np.cos(x) * 2.3, np.array([0.2, 0.9]), Newton(), 1e-15, 3).maps == 1 + 4 + 1


def test_an_iteration_ends_where_no_more_is_wanted():
    """At the first such point, which need not be the best one, with its image; what rests there has converged."""
    evaluate, _, start = linear_map([-1.7, -1.3])
    asked = []

    def enough(x, image):
        asked.append((x, image))
        return len(asked) == 4

    found = run(evaluate, start, Damped(0.0), max_maps=9, until=enough)
    assert (found.status, found.maps) == (Status.iteration_limit, 4)
    assert np.array_equal(found.point, asked[3][0])
    assert np.array_equal(found.image, evaluate(found.point))
    assert found.residual == found.history[3] > min(found.history)
    evaluate, fixed, _ = linear_map([0.5, 0.3])
    assert run(evaluate, fixed, Damped(0.3), until=lambda x, image: True).status is Status.converged


def test_differences_are_derivatives_up_to_the_edge_of_the_domain():
    """One-sided where one side is outside, smaller steps where both are, and an error where nothing helps."""

    def slope(below, above, point=0.0, known=False):
        def evaluate(x):
            return None if not -below <= x[0] <= above else np.sin(2.3 * x)

        at = np.array([point])
        return finite_difference_jacobian(evaluate, at, np.ones(1), centre=evaluate(at) if known else None)[0, 0]

    assert slope(1, 1, 0.3) == pytest.approx(2.3 * math.cos(0.69), rel=1e-4)
    assert slope(1, 0.304, 0.303) == pytest.approx(2.3 * math.cos(2.3 * 0.303), rel=2e-2)
    for known in (False, True):
        assert slope(1e-3, 1e-3, known=known) == pytest.approx(2.3, rel=1e-5)
    with pytest.raises(ArithmeticError, match="domain"):
        slope(0, 0)
