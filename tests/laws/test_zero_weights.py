"""Where all weights vanish: their loss is that of h = 0, and they rest beside a kink of the penalty.

Not public: whether zero weights rest is asked before a solve.
"""

from typing import Any

import numpy as np
import pytest
from models import model

import attnphase as ap
from attnphase.state_evolution.overlaps import Conjugates
from attnphase.state_evolution.rest import rests
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.state_evolution.system import System

QUICK = ap.SolverSettings(threads=1, stability=False)
PAPER = model("paper", {"teacher.omega": 0.27, "integration.rule": "sobol", "integration.nodes": 256})
LASSO = {"regularizer.kind": "lasso", "regularizer.strength": 0.07}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def loss_of_zero_weights(problem: ap.Problem, alpha: float) -> float:
    """``alpha E Tr[(1/2 - T) D (1/2 - T)^T] / 2`` with two tokens: scores are 1/2 at h = 0. By Gauss-Hermite nodes."""
    x, w = np.polynomial.hermite_e.hermegauss(60)
    weights = np.outer(w, w).ravel() / (2 * np.pi)
    variance = float(problem.tokens.sigma) ** 2  # pyright: ignore[reportArgumentType]
    k = np.sqrt(variance) * np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1).reshape(-1, 2)
    logits = k[:, :, None] * k[:, None, :]
    scores = np.exp(logits - logits.max(axis=-1, keepdims=True))
    scores /= scores.sum(axis=-1, keepdims=True)
    targets = (1 - problem.teacher.omega) * scores + problem.teacher.omega * problem.mixing_matrix
    return alpha * float(weights @ (variance * (0.5 - targets) ** 2).sum(axis=(1, 2))) / 2


VANISHING: dict[str, tuple[dict[str, Any], Any]] = {
    "small tokens, semantic": ({"tokens.sigma": 0.037}, "semantic"),
    "small tokens, positional": ({"tokens.sigma": 0.037, "regularizer.strength": 0.02}, "positional"),
    "a strong ridge": ({"regularizer.strength": 60.0}, "uninformed"),
    "a strong ridge of an untied student": ({"regularizer.strength": 41.0, "student.tied": False}, "uninformed"),
    "a lasso": (LASSO, "semantic"),
    "an elastic net": (LASSO | {"regularizer.kind": "elastic-net", "regularizer.ridge": 0.013}, "positional"),
    "a group lasso of an untied student": (
        LASSO | {"regularizer.kind": "group-lasso", "student.tied": False},
        "semantic",
    ),
    "a lasso of an untied student": (LASSO | {"student.tied": False}, "uninformed"),
}


@pytest.mark.parametrize("name", VANISHING)
def test_weights_that_vanish_are_flagged_and_have_the_loss_of_none(name: str) -> None:
    """The loss gains less from small weights than the penalty costs; beside a kink every weight is exactly zero."""
    fields, branch = VANISHING[name]
    problem, alpha = PAPER.with_fields(fields), 1.4
    point = ap.solve(problem, alpha, branch, settings=QUICK)
    assert (point.status.item(), point.zero_weights.item()) == (0, 1)
    assert np.diagonal(point.q.values, axis1=-2, axis2=-1).min() >= 0
    expected, error = loss_of_zero_weights(problem, alpha), 4 * point.training_loss_stderr.item()
    assert abs(point.training_loss.item() - expected) < error + 1e-9 * expected < 0.1 * expected
    assert abs(point.test_error.item() - expected / alpha) < error / alpha + 1e-9 * expected  # 2 E[loss] / L
    if "lasso" in name or "net" in name:
        for key in ("q", "V", "m", "theta", "q_hat", "m_hat", "theta_hat", "density", "weight_norm"):
            assert not point[key].any(), key


def test_zero_weights_at_rest_are_those_of_training() -> None:
    """And their metrics are those of h = 0: the mean of ``k_0^2 + h_0^2`` is the tokens' variance."""
    problem = PAPER.with_fields(LASSO | {"metrics.size": "k0_0**2 + h0_0**2"})
    point = ap.solve(problem, 1.3, "semantic", settings=QUICK)
    variance = float(problem.tokens.sigma) ** 2  # pyright: ignore[reportArgumentType]
    assert point.zero_weights.item() == 1
    assert abs(point.metric_size.item() - variance) < 4 * point.metric_size_stderr.item() < 0.03 * variance
    beside = ap.solve(problem, 1.4, "semantic", start=point, settings=QUICK)
    assert beside.training_loss.item() == pytest.approx(1.4 / 1.3 * point.training_loss.item(), rel=1e-9)
    slope = ap.sensitivity(problem, 1.3, field="alpha", settings=QUICK).squeeze()
    error = 4 * slope.d_training_loss_stderr.item() + 1e-8
    assert abs(slope.d_training_loss.item() - loss_of_zero_weights(problem, 1)) < error
    runs = ap.simulate(problem, 1.3, dimension=40, seeds=2, test_samples=0)
    assert not runs.weight_norm.any()


def test_a_column_without_weights_has_a_small_V_beside_another() -> None:
    """No source moves it, and the local problem needs a positive one."""
    prior = System.of(model("rank 2", LASSO)).prior
    q_hat, V_hat = (np.broadcast_to(np.diag(x), (2, 1, 2, 2)) for x in ([0.5, 0.0], [0.8, 1.3]))
    image: Any = prior.overlaps(Conjugates(q_hat, V_hat, np.zeros((2, 1, 2, 1)), np.zeros((2, 1, 2, 2))))
    assert 0 < np.linalg.eigvalsh(image.V).min() < 1e-9 < image.V[:, 0, 0].min()


def slopes(kind: str, a: float, b: float, g: float) -> ap.Problem:
    loss = {"loss.kind": "expression", "loss.expression": "a*abs(h) + b*h*sign(k) + g*h**2*k**2"}
    fields = {"loss.parameters": {"a": a, "b": b, "g": g}, "regularizer.kind": kind, "regularizer.strength": 1.7}
    return model("square", loss | fields | {"integration.rule": "sobol", "integration.nodes": 1})


def test_at_a_kink_of_the_loss_zero_weights_have_no_loss() -> None:
    settings = ap.SolverSettings(threads=1, stability=False, identity=False, max_nodes=16)
    point = ap.solve(slopes("lasso", 1.0, 0.5, 0.7), 1.9, settings=settings)
    assert (point.zero_weights.item(), point.V.any().item()) == (1, False)
    assert abs(point.training_loss.item()) < 1e-15


@pytest.mark.parametrize(("a", "b"), [(1.3, 1.2), (1.3, -1.4), (0.4, 0.7), (-0.5, 0.3), (0.6, -0.1)])
def test_zero_weights_rest_where_zero_is_a_slope_of_the_loss(a: float, b: float) -> None:
    """Slopes at h = 0 lie between b - a and b + a for k > 0: zero is one of a minimum for |b| <= a."""
    for kind in ("lasso", "ridge"):
        problem = slopes(kind, a, b, 0.8)
        assert rests(System.of(problem), initial_overlaps(problem, "uninformed")) == (kind != "ridge" and abs(b) <= a)


@pytest.mark.long
def test_thresholds_beside_zero_weights() -> None:
    """At ``zero_semantic`` the branch has the loss of zero weights, ``alpha 3 rho^2 / 4``; it begins at less alpha."""
    loss = {"kind": "expression", "expression": "(h**2 - k**2)**2/4 + g*h**2", "parameters": {"g": 0.5}}
    problem = ap.Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": 0.83},
            "positions": {"kind": "none"},
            "loss": loss,
            "regularizer": {"kind": "lasso", "strength": 1.5},
            "integration": {"standard_error": 3e-3},
        }
    )
    ds = ap.thresholds(problem, alpha=(3.9, 6.5), transitions=True)
    begin, equal = ds.spinodal_semantic.item(), ds.zero_semantic.item()
    assert 3.9 < begin < 0.9 * equal
    assert 0 < ds.zero_semantic_stderr.item() < 1e-3 * equal
    below, above, there = (ap.solve(problem, a, settings=QUICK).squeeze() for a in (0.97 * begin, 1.03 * begin, equal))
    zero = 3 * 0.83**4 / 4
    assert (below.zero_weights.item(), above.zero_weights.item()) == (1, 0)
    assert above.training_loss.item() > 1.02 * zero * 1.03 * begin
    error = np.hypot(there.training_loss_stderr.item(), 0.5 * zero * ds.zero_semantic_stderr.item())
    assert abs(there.training_loss.item() - zero * equal) < 4 * error < 2e-3 * zero * equal
