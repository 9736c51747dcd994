"""Two copies of the replica-symmetric solution: their equations from those of one step, and the linear part.

Not public: the copies' equations have no page of their own.
"""

import numpy as np
import pytest
from toys import ATOMS, LOG_COSH

from derivations.codegen.arrays import ArrayPrinter
from derivations.replica.ansatz import ONE_RSB
from derivations.replica.chain import derive_free_entropy
from derivations.replica.moments import SampleLoss
from derivations.replica.one_rsb import derive_one_rsb_saddle_point
from derivations.replica.quadrature import Toy, evaluate
from derivations.replica.saddle_point import derive_saddle_point
from derivations.replica.stability import at_no_tilt, derive_copies, derive_replicon

VALUES = {
    **{"q_0": 0.53, "q_1": 0.83, "q": 0.83, "V": 0.47, "m": -0.36, "theta": 0.52, "rho": 1.17, "alpha": 0.71},
    **{"ridges": 0.43, "q_hat_0": 0.19, "q_hat_1": 0.31, "q_hat": 0.31, "V_hat": 0.61, "m_hat": 0.38},
    **{"theta_hat": -0.57, "y": 0.0, "C_hat": 0.12},
}
TOY = Toy(VALUES, ATOMS, loss=SampleLoss(LOG_COSH), step=0.5, reach=7.0)
ONE = {e.unknown.name: e for e in derive_one_rsb_saddle_point(derive_free_entropy(LOG_COSH, ONE_RSB))}
SYMMETRIC = {e.unknown.name: e for e in derive_saddle_point(derive_free_entropy(LOG_COSH))}


@pytest.mark.parametrize("name", ["V", "m", "theta", "q_hat_1", "m_hat", "theta_hat", "V_hat"])
def test_without_a_tilt_groups_are_copies_of_the_symmetric_solution(name):
    """At y = 0 every equation but those of the gap is the replica-symmetric one, whatever groups share."""
    expected = evaluate(SYMMETRIC[name.removesuffix("_1")].right_hand_side, TOY)
    for q_0 in (0.3, 0.53):
        found = evaluate(at_no_tilt(ONE[name].right_hand_side), TOY.given(q_0=q_0))
        assert found == pytest.approx(expected, rel=1e-6)


def test_q_1_is_the_symmetric_q_at_the_gap_that_belongs_to_the_conjugates():
    """q_0 and the rest of q_1 add up to the symmetric q of ``q_hat_1``, whatever part of it groups share."""
    for q_hat_0 in (0.05, 0.19, 0.31):
        toy = TOY.given(q_hat_0=q_hat_0)
        q_0 = evaluate(at_no_tilt(ONE["q_0"].right_hand_side), toy)
        gap = evaluate(derive_copies().gap, toy.given(C_hat=toy.values["q_hat_1"] - q_hat_0))
        assert q_0 + gap == pytest.approx(evaluate(SYMMETRIC["q"].right_hand_side, toy), rel=1e-12)


def prox(omega, k):
    """Where ``h - omega + V loss'(h, k) = 0``."""
    V, h = VALUES["V"], omega + 0 * k
    for _ in range(12):
        slope = 1.3 * np.tanh(1.3 * h - 0.8 * k + 0.2)
        h = h - (h - omega + V * slope) / (1 + V * (1.69 - slope**2))
    return h


def normal(points):
    x = np.linspace(-7, 7, points)
    weights = np.exp(-(x**2) / 2)
    return x, weights / weights.sum()


def teacher(overlap, xi, zeta):
    theta, rho = VALUES["theta"], VALUES["rho"]
    return theta / np.sqrt(overlap) * xi + np.sqrt(rho - theta**2 / overlap) * zeta


def test_the_noise_of_copies_is_half_the_squared_difference_of_two():
    """``E [<g g> - <g><g>]`` against a quadrature with two copies, written out."""
    (x, weights), (z, of_copy) = normal(31), normal(21)
    shared, zeta, first, second = np.meshgrid(x, x, z, z, indexing="ij", sparse=True)
    k = teacher(VALUES["q_0"], shared, zeta)
    common = VALUES["m"] + np.sqrt(VALUES["q_0"]) * shared
    omega, other = (common + np.sqrt(VALUES["q_1"] - VALUES["q_0"]) * own for own in (first, second))
    square = (((prox(omega, k) - omega) - (prox(other, k) - other)) / VALUES["V"]) ** 2
    mean = np.einsum("abcd,a,b,c,d->", square, weights, weights, of_copy, of_copy)
    assert evaluate(derive_copies().noise, TOY) == pytest.approx(VALUES["alpha"] / 2 * mean, rel=1e-6)


def test_the_linear_part_is_that_of_a_small_gap():
    """Section 8 of the theory from section 13: the generated equation against ``C_hat/D`` as q_0 -> q_1."""

    def growth(gap):
        return evaluate(derive_copies().noise, TOY.given(q_0=VALUES["q_1"] - gap)) / gap

    x, weights = normal(61)
    xi, zeta = np.meshgrid(x, x, indexing="ij")
    omega, k = VALUES["m"] + np.sqrt(VALUES["q"]) * xi, teacher(VALUES["q"], xi, zeta)
    hessian = 1.69 / np.cosh(1.3 * prox(omega, k) - 0.8 * k + 0.2) ** 2
    names = {
        "alpha": VALUES["alpha"],
        "response": (-hessian / (1 + VALUES["V"] * hessian))[..., None, None],
        "D_stacked": np.ones((1, 1)),
        "blocks": lambda matrix, size: matrix,
        "site_mean": lambda values: np.einsum("abij,a,b->ij", values, weights, weights),
        "r": 1,
    }
    one, half, quarter = (growth(gap) for gap in (0.02, 0.01, 0.005))
    limit = (8 * quarter - 6 * half + one) / 3  # of a polynomial of degree 2
    printed = eval(ArrayPrinter().doprint(derive_replicon()), names)
    assert limit == pytest.approx(printed.item(), rel=1e-6)
