"""Fixed points that plain iteration loses, or that lie next to nothing or next to the teacher."""

import numpy as np
import pytest
from models import model
from solving import size, solved, word

PAPER = model("paper", {"teacher.omega": 0.3, "integration.rule": "sobol", "integration.nodes": 256})


def test_the_positional_point_that_repels_the_undamped_map_is_found():
    """An independent solver has m = .2582(2), and an eigenvalue of the map below -3 (docs/stability.md)."""
    ds = solved(PAPER, 2.0, "positional", stability=True)
    assert word(ds) == "converged"
    assert abs(size(ds, "m") - 0.2582) < 4 * np.hypot(size(ds, "m_stderr"), 2e-4)
    assert float(ds.map_eigenvalue[0]) < -3
    assert float(ds.map_eigenvalue_imag[0]) == 0


def test_a_student_without_weights_has_finite_numbers_and_a_higher_loss():
    """Strongly regularised, the semantic start ends at W = 0, not at 0/0: the loss is that of h = 0."""
    problem = PAPER.with_fields({"regularizer.strength": 0.1})
    trivial, positional = (solved(problem, 2.0, branch, stability=True) for branch in ("semantic", "positional"))
    assert word(trivial) == word(positional) == "converged"
    assert max(size(trivial, name) for name in ("q", "theta", "m", "weight_norm")) < 1e-5
    assert float(trivial.training_loss) == pytest.approx(2.0 * float(trivial.test_error), rel=1e-6)
    assert all(np.isfinite(trivial[name]).all() for name in ("q_stderr", "V", "V_hat", "q_hat", "replicon"))
    assert size(positional, "m") > 0.1
    error = np.hypot(trivial.training_loss_stderr, positional.training_loss_stderr)
    assert float(positional.training_loss - trivial.training_loss) < -10 * float(error)


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_near_perfect_recovery_is_found(alpha):
    """Large tokens saturate the scores: everything stays finite."""
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        ds = solved(model("paper", {"teacher.omega": 0.3, "tokens.sigma": 1.0}), alpha)
    assert word(ds) == "converged"
    assert int(ds.unsolved_nodes) == 0
    assert float(ds.theta[0, 0, 0]) / float(ds.q[0, 0, 0]) ** 0.5 > 0.94
    assert abs(float(ds.free_energy_gap)) < 1e-8


def test_the_positional_branch_goes_on_to_many_samples():
    """The map's eigenvalue grows with alpha; by climbing and from the branch's own start, the point is the same."""
    point, m = None, [0.2]
    for alpha in (2.0, 4.0, 8.0):
        point = solved(PAPER, alpha, "positional", point)
        assert word(point) == "converged"
        assert size(point, "m") > m[-1]
        m.append(size(point, "m"))
    assert size(solved(PAPER, 8.0, "positional"), "m") == pytest.approx(m[-1], rel=1e-5)
