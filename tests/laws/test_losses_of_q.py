"""Losses of Q = WᵀW/d: linear ones are ridges, quadratic ones have closed forms, and risks at finite d are formulas.

Not public: which changes of columns a loss of Q leaves, no result says.  Gauss-Hermite nodes are exact for regression.
"""

import numpy as np
import pytest

import attnphase as ap
from attnphase.state_evolution.gauge import gauge_of
from attnphase.state_evolution.symmetries import loss_symmetries
from attnphase.state_evolution.system import System

SETTINGS = ap.SolverSettings(threads=1, stability=False, identity=False)
STABLE = ap.SolverSettings(threads=1, identity=False)
ALPHA = 1.7
TERMS = "square*(h - k)**2/2 + linear*Q + size*Q**2"
GENERAL = "p = tanh(h[0])\n-h[0]@p + p@Q@p/2 + 0.2*Q[0, 0] - 0.15*Q[0, 1]*p[0]**2"
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def of_terms(strength: float, **numbers: float) -> ap.Problem:
    """Regression of tokens of two levels, for which q is not Q."""
    levels = [{"weight": 0.3, "variances": [0.9]}, {"weight": 0.7, "variances": [0.35]}]
    given = {"square": 1.0, "linear": 0.0, "size": 0.0} | numbers
    return ap.Problem.from_dict(
        {
            "tokens": {"length": 1, "spectrum": levels},
            "positions": {"kind": "none"},
            "regularizer": {"strength": strength},
            "loss": {"kind": "expression", "expression": TERMS, "parameters": given},
            "integration": {"rule": "gauss-hermite", "nodes": 2},
        }
    )


def autoencoder(strength: float = 0.8, columns: int = 1, loss: str = "p = tanh(h[0])\n-h[0]@p + p@Q@p/2") -> ap.Problem:
    clusters = [{"sigma": 1.1, "mean": [-1.3]}, {"sigma": 1.1, "mean": [1.3]}]
    return ap.Problem.from_dict(
        {
            "tokens": {"kind": "mixture", "length": 1, "clusters": clusters},
            "positions": {"kind": "none"},
            "student": {"rank": columns},
            "regularizer": {"strength": strength},
            "loss": {"kind": "expression", "expression": loss},
            "integration": {"rule": "sobol", "nodes": 256},
        }
    )


@pytest.mark.long
def test_a_linear_loss_of_q_is_a_ridge() -> None:
    """c Q adds 2 alpha c to lambda, also where tokens are anisotropic and q is not Q."""
    written, ridge = (
        ap.solve(of_terms(strength, linear=c), ALPHA, settings=STABLE)
        for c, strength in ((0.13, 0.21), (0.0, 0.21 + 2 * ALPHA * 0.13))
    )
    for name in ("q", "V", "theta", "q_hat", "V_hat", "training_loss", "weight_norm", "replicon"):
        np.testing.assert_allclose(written[name], ridge[name], rtol=1e-6, err_msg=name)
    assert written.parameter.values.tolist() == ["Q0_0"]
    assert written.trained.item() == pytest.approx(ridge.weight_norm.item(), rel=1e-6)
    assert ridge.weight_norm.item() != pytest.approx(ridge.q.item(), rel=0.1)


@pytest.mark.long
def test_a_loss_of_every_entry_of_q_has_its_closed_form() -> None:
    """Regression of two columns on k and 0.4 k under Tr[D Q] is that under the ridge lambda + 2 alpha D."""
    strength, D, y, gamma = 0.3, np.array([[0.11, -0.035], [-0.035, 0.06]]), np.array([[1.0], [0.4]]), 0.7
    loss = "(k - h0_0)**2/2 + (0.4*k - h0_1)**2/2 + 0.11*Q[0, 0] - 0.07*Q[1, 0] + 0.06*Q1_1"
    problem = ap.Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": float(np.sqrt(gamma))},
            "positions": {"kind": "none"},
            "student": {"rank": 2},
            "regularizer": {"strength": strength},
            "loss": {"kind": "expression", "expression": loss},
            "integration": {"rule": "gauss-hermite", "nodes": 2},
        }
    )
    point = ap.solve(problem, ALPHA, settings=SETTINGS).squeeze()
    q, V, theta = np.eye(2), np.eye(2), y / 2
    for _ in range(600):
        V_hat = ALPHA * np.linalg.inv(np.eye(2) + V)
        rest = gamma * y @ y.T - theta @ y.T - y @ theta.T + q
        R = np.linalg.inv(strength * np.eye(2) + 2 * ALPHA * D + gamma * V_hat)
        b = gamma * V_hat @ y
        new = gamma * R @ (gamma * V_hat @ rest @ V_hat / ALPHA + b @ b.T) @ R
        q, V, theta = (q + new) / 2, gamma * R, gamma * R @ b
    for name, expected in (("q", q), ("V", V), ("theta", theta)):
        np.testing.assert_allclose(point[name].values.reshape(expected.shape), expected, rtol=2e-6, err_msg=name)
    np.testing.assert_allclose(point.trained, (q / gamma)[[0, 0, 1], [0, 1, 1]], rtol=2e-6)


@pytest.mark.long
@pytest.mark.parametrize(("strength", "alpha"), [(0.1, 3.0), (2.5, 0.6)])
def test_an_autoencoder_is_solved_from_small_weights(strength: float, alpha: float) -> None:
    """With lambda + Q_hat in place of the multiplier that holds Q, weights would grow without bound."""
    problem = autoencoder(strength).with_fields({"metrics.size": "Q + 0*h"})
    found = ap.solve(problem, alpha, "positional", settings=SETTINGS).squeeze()
    assert found.status.item() == 0
    assert (abs(found.m).max().item() > 1) == (strength < 1)  # where there is enough data for the means
    assert found.free_energy_gap.item() < 1e-6
    for name in ("trained", "metric_size"):
        assert found[name].item() == pytest.approx(found.weight_norm.item(), rel=1e-6)


SQUARES, BENT = "tanh(h[0])@tanh(h[0])", "sqrt(1 + h[0]@h[0])"
LEFT = {  # loss: changes of signs and order of both columns, and turns
    "p = tanh(h[0])\np@Q@p": (8, 0),
    f"{SQUARES} + Q[0, 0] + Q[1, 1]": (8, 0),
    f"{SQUARES} + Q[0, 0]": (4, 0),
    f"({SQUARES})*(1 + Q[0, 1])": (4, 0),
    f"{BENT} + h[0]@Q@h[0]": (8, 1),
    f"{BENT} + Q[0, 0]": (4, 0),
}


@pytest.mark.parametrize("loss", LEFT)
def test_columns_change_together_with_q(loss: str) -> None:
    """An entry of Q breaks the exchange of columns, an off-diagonal one single signs; turns change Q too."""
    system = System.of(autoencoder(columns=2, loss=loss))
    assert (len(loss_symmetries(system.loss)) // 2, len(gauge_of(system.loss).turns)) == LEFT[loss]


def test_the_risk_at_finite_d_and_its_gradient() -> None:
    """Against the formula of the samples' own tokens, and central differences."""
    torch = pytest.importorskip("torch")
    from attnphase.experiments.data import draw_instance
    from attnphase.experiments.risk import Risk
    from attnphase.kernels.torch.loss import LocalLoss

    problem, d, n = autoencoder(0.8, 2, GENERAL), 24, 31
    instance = draw_instance(problem, d, n, 3, (0, 1), LocalLoss(problem))
    risk = Risk.of(instance)
    weights = torch.randn((2, d, 2), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    values, gradients = risk.smooth(weights)
    for run in range(2):
        W = weights[run].numpy()
        h = risk.fields(weights).reshape(2, n, 2)[run].numpy()
        p, Q = np.tanh(h), W.T @ W / d
        sizes = np.einsum("ni,ij,nj->n", p, Q, p) / 2 - (h * p).sum(axis=1)
        losses = sizes + 0.2 * Q[0, 0] - 0.15 * Q[0, 1] * p[:, 0] ** 2
        assert float(values[run]) == pytest.approx(losses.sum() + 0.4 * (W**2).sum(), rel=1e-10)
    direction = torch.randn(weights.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    slope = (risk.value(weights + 1e-5 * direction) - risk.value(weights - 1e-5 * direction)) / 2e-5
    torch.testing.assert_close(slope, (gradients * direction).sum(dim=(1, 2)), rtol=1e-8, atol=0)


@pytest.mark.long
def test_training_meets_theory() -> None:
    problem = autoencoder(0.8).with_fields({"integration.rule": "auto", "integration.nodes": None})
    theory = ap.solve(problem, 5.0, "positional")
    runs = ap.simulate(problem, 5.0, "positional", dimension=[250, 500], seeds=12, optimizer="lbfgs", test_samples=0)
    limits = {one.name: one.limit for one in ap.compare(theory, runs).quantities}
    assert {"training_loss", "weight_norm", "q[1,1,1,1]", "m[1,1,1]"} <= limits.keys()
    assert all(limit is None or abs(limit.z) < 4 for limit in limits.values())
    assert ap.check(problem, 5.0, "positional", experiment=False).passed
