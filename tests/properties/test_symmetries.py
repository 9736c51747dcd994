"""Symmetries of the replica-symmetric theory, and exact relations between problems, at solved points.

Solutions see different samples, so that they agree in standard errors, unless nodes are transformed with the problem.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
from models import model

import attnphase as ap

COMMON = {
    "tokens.sigma": [0.47, 0.58],
    "positions.gram": [[1.1, -0.9], [-0.9, 0.95]],
    "teacher.omega": 0.34,
    "teacher.mixing": [[0.64, 0.31], [0.43, 0.58]],
    "regularizer.strength": 0.013,
    "integration.rule": "sobol",
    "integration.nodes": 256,
}
THREE = {
    "tokens.sigma": [0.45, 0.62, 0.53],
    "positions.gram": [[1.1, -0.4, 0.1], [-0.4, 0.8, -0.2], [0.1, -0.2, 0.9]],
    "teacher.mixing": [[0.6, 0.3, 0.1], [0.25, 0.5, 0.25], [0.2, 0.2, 0.6]],
}
PAIR, RANK_TWO, LINEAR = (model(name, COMMON) for name in ("paper", "rank 2", "linear"))
TRIPLE = model("three tokens", COMMON | THREE)


def changed(problem: ap.Problem, order: Sequence[int] = (0, 1), c: float = 1.0) -> ap.Problem:
    """With tokens renamed, tokens and encodings times c, and the ridge as in units of an energy c^2."""
    places = np.ix_(order, order)
    return problem.with_fields(
        {
            "tokens.sigma": (c * np.array(problem.tokens.sigma))[list(order)].tolist(),
            "positions.gram": (c**2 * problem.positions_gram)[places].tolist(),
            "teacher.mixing": problem.mixing_matrix[places].tolist(),
            "regularizer.strength": c**4 * cast("float", problem.regularizer.strength),
        }
    )


def solved(problem: ap.Problem, alpha: float, branch: Any = "semantic", **settings: Any) -> Any:
    point = ap.solve(problem, alpha, branch, settings=ap.SolverSettings(threads=1, **settings))
    assert (int(point.status), int(point.unsolved_nodes)) == (0, 0)
    return point


@pytest.mark.parametrize(
    ("problem", "alpha", "branch", "order"),
    [(PAIR, 1.8, "semantic", [1, 0]), (PAIR, 1.8, "positional", [1, 0]), (TRIPLE, 2.5, "semantic", [2, 0, 1])],
)
def test_permuted_problems_have_permuted_fixed_points(problem, alpha, branch, order):
    """The solver integrates over the same nodes for both, which are other samples after renaming the tokens."""
    permuted = changed(problem, order)
    a, b = solved(problem, alpha, branch), solved(permuted, alpha, branch)
    for name in ("q", "V", "m", "theta", "training_loss", "test_error", "weight_norm"):
        (x, dx), (y, dy) = ((one[name].to_numpy(), one[f"{name}_stderr"].to_numpy()) for one in (a, b))
        if x.ndim:
            x, dx = x[order], dx[order]
        if name == "m":  # the gauge: the sign of W
            x, y = np.abs(x), np.abs(y)
        assert (np.abs(x - y) <= 3.5 * np.hypot(dx, dy)).all(), name


def test_exact_symmetries_of_the_paper_setting_stay_exact():
    """Equal tokens, m = 0 on the semantic and theta = 0 on the positional branch, not only within errors."""
    problem = ap.Problem.paper(omega=0.34).with_fields({"integration.rule": "sobol", "integration.nodes": 256})
    semantic, positional = solved(problem, 1.7), solved(problem, 1.7, "positional")
    for point in (semantic, positional):
        assert np.array_equal(point.q[0], point.q[1])
        assert np.array_equal(point.V[0], point.V[1])
    assert np.array_equal(semantic.theta[0], semantic.theta[1])
    assert np.array_equal(positional.m[0], -positional.m[1])
    assert not semantic.m.any()
    assert not positional.theta.any()


LOSSES = ("training_loss", "test_error")


@pytest.mark.parametrize(
    ("problem", "branch", "c", "powers", "accuracy"),
    [
        pytest.param(
            PAIR.with_fields({"teacher.omega": 1.0}), "positional", 1.37,
            {"q": 0, "V": -2, "m": 0, "q_hat": 4, "V_hat": 2, "m_hat": 2, "weight_norm": -2} | dict.fromkeys(LOSSES, 2),
            1e-6, id="a positional target",  # the channel adds 1e-8 of rho to q, and rho means nothing here
        ),
        pytest.param(
            LINEAR, "semantic", 1.23,
            {"q": 2, "V": -4, "theta": 2, "q_hat": 10, "V_hat": 4, "m_hat": 5, "theta_hat": 4, "weight_norm": 0,
             "linear_test_error": 6, **dict.fromkeys(LOSSES, 6)},
            1e-8, id="linear scores",
        ),
    ],
)  # fmt: skip
def test_solved_points_obey_the_scaling_law_of_tokens(problem, branch, c, powers, accuracy):
    """At omega = 1 the teacher has no scale; linear scores let it be moved into the mixing matrix, as ``A -> c^2 A``.

    All fields are multiplied by c then, logits by c^2, and the loss by c^2 times c^4, so that ``lambda -> c^6 lambda``.
    """
    bigger = changed(problem, c=c)
    if problem is LINEAR:
        strength = c**6 * cast("float", LINEAR.regularizer.strength)
        mixing = (c**2 * LINEAR.mixing_matrix).tolist()
        bigger = bigger.with_fields({"regularizer.strength": strength, "teacher.mixing": mixing})
    a, b = (solved(one, 1.6, branch, tolerance=1e-11) for one in (problem, bigger))
    assert float(np.abs(a.q).max()) > 1e-3
    for name, power in powers.items():
        expected = c**power * a[name].to_numpy()
        bound = accuracy * np.abs(expected).max()
        np.testing.assert_allclose(b[name], expected, rtol=0, atol=bound, err_msg=name)


@pytest.mark.parametrize(("problem", "branch"), [(PAIR, "semantic"), (PAIR, "positional"), (RANK_TWO, "semantic")])
def test_a_positional_target_leaves_no_semantic_overlap(problem, branch):
    """So theta = 0 on every branch, also on the one that starts at Q_star."""
    point = solved(problem.with_fields({"teacher.omega": 1.0}), 1.9, branch)
    assert float(np.abs(point.q).max()) > 1e-3
    assert float(np.abs(point.theta).max()) < 1e-12
    assert float(np.abs(point.theta_hat).max()) < 1e-12


def test_a_semantic_target_is_learnt_completely():
    """At omega = 0 nothing but the ridge keeps W from Q_star: the test error falls like alpha^-2.

    The tail is a + b/alpha^2 + c/alpha^3 with a = 0: what is left at infinity, in standard errors and in size.
    """
    alphas = np.array([1.3, 5.5, 8.7, 14.0, 22.0])
    points = [solved(PAIR.with_fields({"teacher.omega": 0.0}), alpha) for alpha in alphas]
    error, spread = (np.array([float(p[name]) for p in points]) for name in ("test_error", "test_error_stderr"))
    assert np.all(error[:-1] - error[1:] > 5 * np.hypot(spread[:-1], spread[1:]))
    slope = np.diff(np.log(error)) / np.diff(np.log(alphas))
    assert -2.4 < slope[-1] < -2
    weights = 1 / spread[-4:]
    design = alphas[-4:, None] ** np.array([0.0, -2.0, -3.0]) * weights[:, None]
    covariance = np.linalg.inv(design.T @ design)
    left = (covariance @ design.T @ (error[-4:] * weights))[0]
    assert abs(left) < 3 * np.sqrt(covariance[0, 0]) < 0.1 * error[-1]
    assert error[-1] < 2e-3 * float(points[0].linear_test_error)
