"""Fixed points by lines and by scrambled points agree within their errors, and with closed forms."""

from typing import Any

import numpy as np
import pytest
from models import model
from one_map import CLUSTERS, QUICK
from ridge import ridge_regression

import attnphase as ap

SETTINGS = ap.SolverSettings(**QUICK, max_nodes=2**17)
POINT = ("q", "V", "m", "theta")
QUANTITIES = [*POINT, *(f"{name}_hat" for name in POINT), "test_error", "training_loss", "weight_norm"]
COARSE = {"integration.standard_error": 3e-3}
UNEVEN = {"teacher.noise": 0.011, "tokens.sigma": [0.5, 0.6], "integration.standard_error": 8e-3}
BANDED = {"teacher.mixing": [[0.6, 0.3, 0.1], [0.3, 0.4, 0.3], [0.1, 0.3, 0.6]], "positions.kind": "none"}
OF_MEAN = CLUSTERS | {"tokens.mean_teacher": [[0.3]], "teacher.omega": 0.3}
CASES: dict[str, tuple[ap.Problem, float, Any]] = {
    "positional": (model("paper", {"teacher.omega": 0.31}), 1.24, "positional"),
    "semantic": (model("paper", {"teacher.omega": 0.28}), 1.6, "semantic"),
    "uneven, noisy": (model("noisy", UNEVEN), 2.5, "semantic"),
    "untied": (model("untied", {"teacher.omega": 0.3}), 2.2, "semantic"),
    "three tokens": (model("three tokens", {"teacher.omega": 0.5, **BANDED, **COARSE}), 1.7, "semantic"),
    "clusters": (model("paper", {**OF_MEAN, **COARSE}), 1.5, "semantic"),
}


@pytest.mark.parametrize("name", CASES)
def test_lines_agree_with_scrambled_points(name):
    """They share no node, no start and no order of integration."""
    problem, alpha, branch = CASES[name]
    found = [
        ap.solve(problem.with_fields({"integration.rule": rule}), alpha, branch=branch, settings=SETTINGS)
        for rule in ("lines", "sobol")
    ]
    assert [one.attrs["rule"] for one in found] == ["lines", "sobol"]
    for one in found:
        assert int(one["status"]) == 0
        assert (one["q_stderr"] <= 0.01 * np.abs(one["q"]).max()).all()
    one, other = found
    for each in QUANTITIES:
        spread = np.hypot(one[f"{each}_stderr"], other[f"{each}_stderr"])
        assert (np.abs(one[each] - other[each]) <= 4 * spread + 1e-9).all(), each


def test_points_take_over_from_lines_that_have_cost_as_much():
    """Strong fields: minima change in many places, and the error of lines falls slowly; q is the benchmark's."""
    fields = {"tokens.sigma": 1.209, "regularizer.strength": 0.01691, "integration.standard_error": 5e-3}
    point = ap.solve(model("paper", fields | {"teacher.omega": 0.3}), 1.949, branch="uninformed", settings=SETTINGS)
    assert (point.attrs["rule"], int(point["status"])) == ("sobol", 0)
    q, error = float(point["q"][0, 0, 0]), float(point["q_stderr"][0, 0, 0])
    assert error < 5e-3 * 1.017
    assert abs(q - 1.01620) < 4 * error


@pytest.mark.parametrize(
    ("sigma", "strength", "noise", "alpha"),
    [
        pytest.param(0.9, 0.04, 0.3, 1.6, id="square"),
        pytest.param(0.7, 2e-7, 0.4, 1.0, id="interpolation peak"),
        pytest.param(0.8, 1e-8, 0.3, 1.0, id="sharp peak"),
    ],
)
@pytest.mark.parametrize("tolerance", [1e-7, 1e-4])
def test_lines_are_ridge_regression_within_their_errors(sigma, strength, noise, alpha, tolerance):
    """At a peak the fixed point is a thousand residuals away: it is iterated on, and the rest is in the errors."""
    fields = {"tokens.sigma": sigma, "regularizer.strength": strength, "teacher.noise": noise}
    problem = model("square", {**fields, "integration.rule": "lines", "integration.standard_error": 1e-6})
    point = ap.solve(problem, alpha, settings=ap.SolverSettings(**QUICK, tolerance=tolerance))
    assert (point.attrs["rule"], int(point["status"])) == ("lines", 0)
    for name, expected in ridge_regression(alpha, strength, noise, (sigma**2,)).items():
        error = float(np.ravel(point[f"{name}_stderr"])[0])
        assert abs(np.ravel(point[name])[0] - expected) <= 3 * error + 1e-9 * abs(expected), name
    assert np.ravel(point["q_stderr"] / point["q"])[0] < (1e-6 if tolerance < 1e-5 else 1e-2)
