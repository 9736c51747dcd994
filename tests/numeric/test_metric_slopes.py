"""Derivatives of test metrics along a field, and where they are smallest: closed forms, other solves, stated errors."""

from __future__ import annotations

import numpy as np
import pytest

import attnphase as ap
from attnphase.data.derivatives import sensitivity_table
from attnphase.errors import ProblemError
from attnphase.fixed_points.sensitivity import sensitivity_at
from attnphase.fixed_points.solver import solve_point
from attnphase.problem.problem import Problem
from tests.numeric.test_metrics import LOGISTIC, SETTINGS, SIGMA
from tests.numeric.test_stated_errors import assert_calibrated


@pytest.mark.parametrize("of", ["alpha", "regularizer.strength", "tokens.sigma"])
def test_closed_forms_of_binary_classification(of: str):
    """An angle and a second moment by the derivatives of q and theta; the loss is half of the test error.

    Tokens' sigma stands in the law of samples too, so that a derivative in the overlaps alone is another.
    """
    ds = ap.sensitivity(LOGISTIC, 1.9, field=of, settings=SETTINGS)
    q, theta, dq, dtheta = (ds[name].item() for name in ("q", "theta", "d_q", "d_theta"))
    widened = float(of == "tokens.sigma")
    cosine = theta / (SIGMA * np.sqrt(q))
    rate = cosine * (dtheta / theta - dq / (2 * q) - widened / SIGMA)
    expected = {
        "wrong": -rate / np.sqrt(1 - cosine**2) / np.pi,
        "square": dq - 2 * dtheta + 2 * SIGMA * widened,
        "loss": ds.d_test_error.item() / 2,
    }
    for name, value in expected.items():
        found, error = ds[f"d_metric_{name}"].item(), ds[f"d_metric_{name}_stderr"].item()
        assert abs(found - value) < 3.5 * error, name
        assert error < (0.3 if name == "wrong" else 0.01) * abs(value), name
    labels = [row[0] for row in sensitivity_table(ds).rows]
    assert {"d_metric_wrong", "d_metric_loss"} <= set(labels)


def test_a_parameter_of_the_metric_itself():
    """The derivative in a number of the formula, which no overlap knows, is that of the mean at fixed overlaps."""
    loss = {"kind": "expression", "expression": "log(1 + exp(-sign(k)*h))", "parameters": {"beta": 1.3}}
    fields = {"loss": loss, "metrics": {"power": "beta**2*h**2 + beta*k**2"}}
    problem = Problem.from_dict({**LOGISTIC.to_dict(), **fields})
    ds = ap.sensitivity(problem, 1.9, field="loss.parameters.beta", settings=SETTINGS)
    expected = 2 * 1.3 * ds.q.item() + SIGMA**2
    assert abs(ds.d_q.item()) < 1e-9
    assert abs(ds.d_metric_power.item() - expected) < 4 * ds.d_metric_power_stderr.item() + 1e-6 * expected


def test_two_solves_have_the_slope_between_them():
    """Attention, a metric that jumps and one that bends: central differences of 20 %, in the field of the law."""
    metrics = {
        "disagree": "(1 - sign((h0_0**2 - h0_0*h1_0)*(k0_0**2 - k0_0*k1_0)))/2",
        "logits": "abs(h0_0*h1_0 - k0_0*k1_0)",
    }
    problem = Problem.from_dict(
        {"metrics": metrics, "tokens": {"sigma": 0.57}, "integration": {"standard_error": 4e-3}}
    )
    ds = ap.sensitivity(problem, 2.3, field="tokens.sigma", settings=SETTINGS)
    points = [
        solve_point(problem.with_fields({"tokens.sigma": 0.57 * factor}), 2.3, "semantic", settings=SETTINGS)
        for factor in (1.1, 0.9)
    ]
    for name in metrics:
        upper, lower = (point.values[f"metric_{name}"] for point in points)
        slope = (upper - lower) / (0.2 * 0.57)
        errors = np.hypot(*(point.errors[f"metric_{name}"] for point in points)) / (0.2 * 0.57)
        error = np.hypot(ds[f"d_metric_{name}_stderr"].item(), errors)
        assert abs(ds[f"d_metric_{name}"].item() - slope) < 3 * error + 0.02 * abs(slope), name
        assert error < 0.2 * abs(slope), name


def test_stated_errors():
    """By few nodes of the map and few points of the metrics."""
    fine = LOGISTIC.with_fields({"integration.standard_error": 1e-4})
    exact = sensitivity_at(solve_point(fine, 1.9, "semantic", settings=SETTINGS), "alpha", SETTINGS).values
    names = ["metric_square", "metric_loss"]
    deviations, errors = [], []
    for seed in range(12):
        changes = {"rule": "sobol", "nodes": 16, "seed": seed, "standard_error": 2e-2}
        problem = LOGISTIC.with_fields({f"integration.{key}": value for key, value in changes.items()})
        found = sensitivity_at(solve_point(problem, 1.9, "semantic", settings=SETTINGS), "alpha", SETTINGS)
        deviations.append([found.values[name] - exact[name] for name in names])
        errors.append([found.errors[name] for name in names])
    assert_calibrated(np.array(deviations), np.array(errors), 12)


def test_the_best_value_of_a_field_for_a_metric():
    """For the loss it is that of the test error; the angle is smallest elsewhere, where its neighbours are larger."""
    given = {"alpha": 1.9, "between": (0.003, 3.0), "settings": SETTINGS}
    best = {name: ap.tune(LOGISTIC, metric=name, **given).squeeze() for name in ("test_error", "loss", "wrong")}
    assert all(int(ds.status) == 0 for ds in best.values())
    own, other = best["loss"], best["test_error"]
    error = np.hypot(own.optimum_stderr.item(), other.optimum_stderr.item())
    assert abs(own.optimum.item() - other.optimum.item()) < 4 * error
    assert 2 * own.metric.item() == pytest.approx(other.metric.item(), rel=1e-3)
    assert own.attrs["metric"] == "loss"
    at = best["wrong"].optimum.item()
    assert at < 0.7 * other.optimum.item()

    def angle(strength: float) -> float:
        problem = LOGISTIC.with_fields({"regularizer.strength": strength})
        q, theta = (
            solve_point(problem, 1.9, "semantic", settings=SETTINGS).values[name].item() for name in ("q", "theta")
        )
        return float(np.arccos(theta / (SIGMA * np.sqrt(q))) / np.pi)

    assert angle(at) < min(angle(at / 2.5), angle(at * 2.5))
    assert best["wrong"].metric.item() == pytest.approx(angle(at), abs=4 * best["wrong"].metric_stderr.item())


def test_a_metric_that_the_problem_has_not():
    with pytest.raises(ProblemError, match="metric") as error:
        ap.tune(LOGISTIC, metric="angle", alpha=1.9)
    assert "wrong" in str(error.value)
