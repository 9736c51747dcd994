"""Derivatives where a field can only grow, or only fall: differences of second order, right to their stated errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial.hermite_e import hermegauss
from scipy.special import ndtr

import attnphase as ap
from attnphase.fixed_points.metric_slopes import Line
from attnphase.problem.problem import Problem

ALPHA, STRENGTH = 2.0, 0.05


@settings(max_examples=30)
@given(st.lists(st.floats(-2, 2), min_size=3, max_size=3), st.floats(-3, 3), st.floats(1e-3, 0.5))
def test_every_difference_is_exact_for_parabolas(coefficients: list[float], value: float, step: float):
    nothing: Any = SimpleNamespace()
    line = Line(nothing, np.zeros(1), np.ones(1), value, np.ones(1))
    parabola = np.polynomial.Polynomial(coefficients)
    sides = []
    for stencil in line.stencils(step):
        slope = sum(weight * parabola(value + distance) for distance, weight in stencil)
        assert slope == pytest.approx(parabola.deriv()(value), abs=1e-9 / line.size(step))
        sides.append({np.sign(distance) for distance, _ in stencil})
    assert sides == [{1, -1}, {0, 1}, {0, -1}]


def logistic_ridge(noise: float) -> dict[str, float]:
    """The replica equations of logistic regression on labels sign(k + sqrt(noise) z), by quadrature over omega."""
    x, weights = hermegauss(120)
    weights = 2 * weights / weights.sum()  # both labels
    q, theta, V = 1.0, 0.5, 2.0
    while True:
        spread = np.sqrt(1 - theta**2 / q + noise)
        argument = theta / np.sqrt(q) * x / spread
        label, slope = ndtr(argument), np.exp(-(argument**2) / 2) / np.sqrt(2 * np.pi) / spread
        h = np.sqrt(q) * x
        for _ in range(50):
            p = 1 / (1 + np.exp(h))
            h = h - ((h - np.sqrt(q) * x) / V - p) / (1 / V + p * (1 - p))
        p = 1 / (1 + np.exp(h))
        curvature = p * (1 - p) / (1 + V * p * (1 - p))
        new_V = 1 / (STRENGTH + ALPHA * weights @ (label * curvature))
        m = ALPHA * weights @ (slope * p)
        new = np.array([(m**2 + ALPHA * weights @ (label * p**2)) * new_V**2, m * new_V, new_V])
        step = np.abs(new - (q, theta, V)).max()
        q, theta, V = (np.array([q, theta, V]) + new) / 2
        if step < 1e-12:
            loss = ALPHA * weights @ (label * np.log1p(np.exp(-h))) + STRENGTH / 2 * q
            return {"q": q, "theta": theta, "training_loss": loss}


def test_the_derivative_in_the_noise_at_no_noise():
    problem = Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": 1.0},
            "positions": {"kind": "none"},
            "regularizer": {"strength": STRENGTH},
            "loss": {"kind": "logistic"},
        }
    )
    ds = ap.sensitivity(problem, ALPHA, field="teacher.noise").squeeze()
    step = 1e-3
    values = [logistic_ridge(i * step) for i in range(4)]
    for name in ("q", "theta", "training_loss"):
        at = [one[name] for one in values]
        slope = (-11 * at[0] + 18 * at[1] - 9 * at[2] + 2 * at[3]) / (6 * step)
        assert abs(ds[name].item() - at[0]) < 4 * ds[f"{name}_stderr"].item() + 1e-6
        assert abs(ds[f"d_{name}"].item() - slope) < 3 * ds[f"d_{name}_stderr"].item() + 1e-6, name
    assert ds.d_training_loss_stderr.item() < 1e-4


@pytest.mark.parametrize("omega", [0.0, 1.0])
def test_the_derivative_in_omega_at_both_ends(omega: float):
    """Of the training loss, from solves on the side that there is."""
    problem = Problem.paper(omega=omega).with_fields({"integration.rule": "sobol", "integration.nodes": 64})
    branch, inwards = ("semantic", 1) if omega == 0 else ("positional", -1)
    ds = ap.sensitivity(problem, 1.5, "teacher.omega", branch).squeeze()
    step = 0.004
    at = [
        ap.solve(
            problem.with_fields({"teacher.omega": omega + inwards * i * step}),
            1.5,
            branch,
            settings=ap.SolverSettings(tolerance=1e-10),
        )
        for i in range(4)
    ]
    found = [float(one.squeeze().training_loss) for one in at]
    slope = inwards * (-11 * found[0] + 18 * found[1] - 9 * found[2] + 2 * found[3]) / (6 * step)
    error = ds.d_training_loss_stderr.item()
    assert abs(ds.d_training_loss.item() - slope) < 4 * error + 1e-6
    assert error < 0.1 * abs(slope) + 1e-3
