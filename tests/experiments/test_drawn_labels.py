"""Labels that are drawn with a probability given the teacher's field: against quadrature, and against training."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import expit, ndtr

import attnphase as ap
from attnphase.functions import cos, sigmoid, sign, softplus

ALPHA, RIDGE, SIGMA = 2.7, 0.13, 0.9


def probit(h, k, noise):
    """``P(y = 1 | k) = Phi(k / sqrt(0.6))``, by noise of variance 0.6."""
    return softplus(-sign(k[0, 0] + noise[0, 0]) * h[0, 0])


def logistic(h, k, noise, b=1.7):
    """``P(y = 1 | k) = 1 / (1 + exp(-b k))``, by noise of variance 1."""
    label = sign(cos(2 * np.pi * noise[0, 0]) - cos(np.pi * sigmoid(b * k[0, 0])))
    return softplus(-label * h[0, 0])


def problem_of(loss, noise: float, error: float) -> ap.Problem:
    return ap.Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": SIGMA},
            "positions": {"kind": "none"},
            "teacher": {"noise": noise},
            "regularizer": {"strength": RIDGE},
            "loss": {"kind": "expression", "expression": loss},
            "integration": {"standard_error": error},
            "metrics": {"wrong": f"(1 - {wrong_of(loss)}*sign(h0_0))/2"},
        }
    )


def wrong_of(loss) -> str:
    """The label in a formula."""
    if loss is probit:
        return "sign(k + noise)"
    return f"sign(cos({2 * np.pi!r}*noise) - cos({np.pi!r}*sigmoid(1.7*k)))"


def by_quadrature(probability: Callable[[np.ndarray], np.ndarray]) -> dict[str, float]:
    """The fixed point of the scalar equations, where both labels have their probability at every node."""
    x, w = np.polynomial.hermite_e.hermegauss(70)
    w, rho, label = w / w.sum(), SIGMA**2, np.array([1.0, -1.0])
    k, xi = SIGMA * x[:, None, None], x[None, :, None]
    one = probability(k[..., 0])
    weights = np.stack([one, 1 - one], axis=-1) * w[:, None, None] * w[None, :, None]
    q, V, theta, h, image = 1.0, 1.0, 0.5, np.zeros(1), (0.0, 0.0, 0.0)
    for _ in range(300):
        omega = theta / rho * k + np.sqrt(q - theta**2 / rho) * xi + 0 * label
        h = omega if h.size == 1 else h
        for _ in range(4):  # from those before
            falls = expit(-label * h)
            h = h - (h - omega - V * label * falls) / (1 + V * falls * (1 - falls))
        g, bend = (h - omega) / V, expit(h) * expit(-h)
        V_hat = ALPHA * (weights * bend / (1 + V * bend)).sum()
        q_hat, theta_hat = ALPHA * (weights * g**2).sum(), ALPHA * (weights * g * k).sum() / rho + V_hat * theta / rho
        R = 1 / (RIDGE + rho * V_hat)
        image = rho * R**2 * (rho * q_hat + (rho * theta_hat) ** 2), rho * R, rho * R * rho * theta_hat
        q, V, theta = (0.5 * old + 0.5 * new for old, new in zip((q, V, theta), image, strict=True))
    assert np.abs(np.array(image) - (q, V, theta)).max() < 1e-9
    wrong = ndtr(-label * (theta / rho * k[:, 0]) / np.sqrt(q - theta**2 / rho))
    both = np.stack([one[:, 0], 1 - one[:, 0]], axis=-1) * w[:, None]
    return {"q": q, "V": V, "theta": theta, "metric_wrong": float((both * wrong).sum())}


LABELS = {
    "probit": (probit, 0.6, lambda k: ndtr(k / np.sqrt(0.6))),
    "logistic": (logistic, 1.0, lambda k: expit(1.7 * k)),
}


@pytest.mark.parametrize("name", LABELS)
def test_drawn_labels_are_those_of_quadrature(name: str):
    loss, noise, probability = LABELS[name]
    point = ap.solve(
        problem_of(loss, noise, 2e-3), alpha=ALPHA, branch="semantic", settings=ap.SolverSettings(threads=1)
    )
    assert int(point.status) == 0
    for key, value in by_quadrature(probability).items():
        own, error = point[key].item(), point[f"{key}_stderr"].item()
        assert abs(own - value) <= 4 * error, key
        assert error < 0.01 * abs(value), key


def test_students_are_trained_on_drawn_labels():
    pytest.importorskip("torch")
    problem = problem_of(logistic, 1.0, 0.01)
    theory = ap.solve(problem, alpha=ALPHA, branch="semantic", settings=ap.SolverSettings(threads=1))
    runs = ap.simulate(
        problem, alpha=ALPHA, start="semantic", dimension=300, seeds=8, optimizer="lbfgs", tolerance=1e-6
    )
    compared = {"training_loss", "q[1,1,1]", "theta[1,1,1]", "metric_wrong"}
    found = {row.name: row for row in ap.compare(theory, runs).quantities if row.name in compared}
    assert found.keys() == compared
    assert all(abs(row.z) < 4 for row in found.values())
