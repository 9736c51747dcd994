"""Labels with noise: in closed forms, by two ways through the code, and where nothing may change."""

from typing import Any

import numpy as np
import pytest
from models import model
from ridge import ridge_regression

import attnphase as ap

pytestmark = pytest.mark.filterwarnings("ignore::attnphase.errors.AttnphaseWarning")
SETTINGS = ap.SolverSettings(threads=1, stability=False, identity=False)
GAMMA, DELTA, RIDGE, ALPHA = 0.49, 0.31, 0.13, 1.6
ONE = {"tokens.sigma": 0.7, "regularizer.strength": RIDGE, "teacher.noise": DELTA}
WRITTEN = {"loss.parameters.quantile": 0, "loss.parameters.square": 1, "integration.standard_error": 3e-3}


@pytest.mark.parametrize(
    "problem", [model("square", ONE), model("kinks", ONE | WRITTEN)], ids=["in the field", "beside"]
)
def test_ridge_regression_by_either_way(problem: ap.Problem):
    """Noise as variance of the field, and as a number of its own, are ridge regression with noise."""
    ds = ap.solve(problem, ALPHA, "semantic", settings=SETTINGS)
    known = ridge_regression(ALPHA, RIDGE, DELTA, [GAMMA])
    for name in ("q", "V", "theta", "test_error", "training_loss", "weight_norm"):
        exact, error = known[name], ds[f"{name}_stderr"].item()
        assert error < 0.01 * exact
        assert abs(ds[name].item() - exact) < 4 * error + 1e-6 * exact, name


def test_a_student_that_is_held_at_zero_pays_for_the_noise():
    """At ``W = 0`` the loss is quadratic in the noise, ``alpha L Delta Tr D / 2`` more, and the test error the same.

    So is that of the best linear predictor, which is a predictor of the labels' mean.
    """
    strong: dict[str, Any] = {"regularizer.strength": 1e4, "tokens.sigma": [0.5, 0.8], "teacher.omega": 0.27}
    strong |= {"integration.rule": "sobol", "integration.nodes": 64}
    clean, noisy = (
        ap.solve(model(name, strong | noise), 1.3, "uninformed", settings=SETTINGS)
        for name, noise in (("paper", {}), ("noisy", {"teacher.noise": 0.013}))
    )
    expected = 1.3 * 2 * 0.013 * (0.25 + 0.64) / 2
    for name, more in (("training_loss", expected), ("test_error", 0.0), ("linear_test_error", 0.0)):
        error = np.hypot(clean[f"{name}_stderr"].item(), noisy[f"{name}_stderr"].item())
        assert abs(noisy[name].item() - clean[name].item() - more) < 4 * error + 1e-12 < 0.12 * expected, name
