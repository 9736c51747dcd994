"""Laws of the teacher's fields with a density given the clusters, against the same laws written otherwise."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from other_laws import configurations_left

import attnphase as ap
from attnphase.checks.consistency import check
from attnphase.checks.matching import at_problem
from attnphase.errors import ProblemError
from attnphase.experiments.settings import TrainingSettings
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status

SIGMA, SHIFT, SHARE = 0.9, 0.6, 0.7
SAME = [{"sigma": SIGMA}, {"sigma": SIGMA}]
BENT = "sqrt(1 + (h - k - k**2/3)**2)"
INDEPENDENT: dict[str, Any] = {"kind": "independent", "weights": [SHARE, 1 - SHARE]}


def problem_of(loss: str, length: int = 1, **tokens: Any) -> Problem:
    kind = "mixture" if "clusters" in tokens else "gaussian"
    return Problem.from_dict(
        {
            "tokens": {"length": length, "kind": kind, **tokens},
            "positions": {"kind": "none"},
            "regularizer": {"strength": 0.15},
            "loss": {"kind": "expression", "expression": loss},
            "integration": {"standard_error": 2e-4},
            "metrics": {"product": "h[0, 0]*k[0, 0]"},
        }
    )


def solved(problem: Problem, tolerance: float = 1e-7) -> BranchPoint:
    point = solve_point(problem, 2.3, "semantic", settings=SolverSettings(threads=1, tolerance=tolerance))
    assert point.status is Status.converged
    return point


def assert_alike(one: BranchPoint, other: BranchPoint, names: tuple[str, ...] = ("q", "V", "theta"), rel: float = 0.0):
    """Of the first site, within four errors or as much as may be left."""
    for name in (*names, "training_loss", "test_error", "weight_norm", "metric_product"):
        mine, its = (float(np.ravel(point.values[name])[0]) for point in (one, other))
        own, others = (float(np.ravel(point.errors[name])[0]) for point in (one, other))
        error = np.hypot(own, others)
        assert abs(mine - its) <= (rel * abs(mine) if rel else 4 * error + 1e-7 * abs(mine)), name
        assert error < 0.02 * abs(mine), name


def test_clusters_that_tilt_are_those_that_shift():
    """A density ``exp(b k - b^2 rho/2)`` moves the tokens of a cluster along the teacher, as a mean does."""
    loss = "softplus((1 - 2*c)*(h - k/3 + 0.2))"
    by_mean = [{"sigma": SIGMA, "mean": [s * SHIFT * SIGMA**2]} for s in (1, -1)]
    tilt = {"density": "exp((1 - 2*c)*b*k - b**2*rho/2)", "parameters": {"b": SHIFT, "rho": SIGMA**2}}
    tilted = solved(problem_of(loss, clusters=SAME, law=INDEPENDENT, **tilt))
    shifted = solved(problem_of(loss, clusters=by_mean, law=INDEPENDENT, mean_teacher=[[1.0]]))
    assert tilted.rule == shifted.rule == "lines"
    assert_alike(tilted, shifted)
    plain = solved(problem_of(loss, clusters=SAME, law=INDEPENDENT))
    assert abs(plain.values["training_loss"] / tilted.values["training_loss"] - 1) > 0.02


def test_a_density_is_relative_to_a_gaussian_of_any_mean():
    """A law far from the Gaussian of mean zero has small errors relative to one that is moved along the teacher."""
    far = {"density": "exp(b*k - b**2*rho/2)*(1 + tanh(k - b*rho)/2)", "parameters": {"b": 2.0, "rho": SIGMA**2}}
    moved = [{"sigma": SIGMA, "mean": [2 * SIGMA**2]}]
    near = {"density": "1 + tanh(k - s)/2", "parameters": {"s": 2 * SIGMA**2}, "mean_teacher": [[1.0]]}
    loss = "sqrt(1 + (h - k - k**2/9)**2)"
    one, other = solved(problem_of(loss, sigma=SIGMA, **far)), solved(problem_of(loss, clusters=moved, **near))
    for name in ("q", "V", "theta", "training_loss", "test_error", "weight_norm"):
        mine, its = (float(np.ravel(point.values[name])[0]) for point in (one, other))
        errors = [float(np.ravel(point.errors[name])[0]) for point in (one, other)]
        assert abs(mine - its) < 4 * np.linalg.norm(errors), name
    assert other.errors["test_error"] < one.errors["test_error"] / 4
    # h = theta k / rho on average
    k, s = np.linspace(-4, 8, 4001), 2 * SIGMA**2
    law = np.exp(-((k - s) ** 2) / (2 * SIGMA**2)) * (1 + np.tanh(k - s) / 2)
    for point in (one, other):  # points reach the tail of the one, too
        expected = float(np.ravel(point.values["theta"])[0]) / SIGMA**2 * (law @ k**2) / law.sum()
        assert abs(point.values["metric_product"] - expected) < 4 * point.errors["metric_product"]


def test_a_mixture_of_densities_is_one_density():
    """Of clusters that nothing but their density tells apart."""
    apart = problem_of(BENT, clusters=SAME, law=INDEPENDENT, density="1 + (1 - 2*c)*tanh(1.3*k)*0.8")
    whole = problem_of(BENT, sigma=SIGMA, density=f"1 + {(2 * SHARE - 1) * 0.8!r}*tanh(1.3*k)")
    assert_alike(solved(apart), solved(whole))


def test_no_tilt_is_the_gaussian_law():
    plain, none = problem_of(BENT, sigma=SIGMA), problem_of(BENT, sigma=SIGMA, density="1 + 1e-14*tanh(k)")
    assert_alike(solved(plain, 1e-11), solved(none, 1e-11), rel=1e-9)


def tilted(tilt: float = 0.6) -> Problem:
    """Of a loss that has no parameters."""
    tokens = {"density": "exp(tilt*k - tilt**2*rho/2)", "parameters": {"tilt": tilt, "rho": SIGMA**2}}
    return problem_of("h", sigma=SIGMA, **tokens).with_fields({"loss.kind": "logistic"})


def test_a_tilt_is_swept(tmp_path: Path):
    """To none, where the law is Gaussian, and as each value by itself."""
    places = [0.0, -0.45, 0.6]
    swept = ap.sweep(tilted(), 2.3, branch="semantic", fields={"tokens.parameters.tilt": places}, workers=1)
    plain = tilted().with_fields({"tokens.density": None})
    for i, one in enumerate([plain, tilted(-0.45), tilted(0.6)]):
        found, wanted = swept.isel({"parameters.tilt": i}).squeeze(), ap.solve(one, 2.3).squeeze()
        for name in ("q", "V", "theta", "training_loss", "test_error", "weight_norm", "metric_product"):
            np.testing.assert_allclose(found[name], wanted[name], rtol=0 if i else 1e-9, err_msg=name)
    ap.save_dataset(swept, tmp_path / "swept.nc")
    again = ap.load_dataset(tmp_path / "swept.nc")
    assert again["parameters.tilt"].attrs["field"] == "tokens.parameters.tilt"
    assert at_problem(again, tilted(-0.45)).theta.item() == swept.theta.squeeze()[1]


def test_the_slope_in_a_tilt_is_that_of_two_solves():
    field, step = "tokens.parameters.tilt", 0.05
    slopes = ap.sensitivity(tilted(), 2.3, field=field).squeeze()
    beside = [ap.solve(tilted(0.6 + side), 2.3).squeeze() for side in (step, -step)]
    for name in ("q", "theta", "training_loss", "test_error", "metric_product"):
        wanted = (beside[0][name].item() - beside[1][name].item()) / (2 * step)
        error = np.hypot(slopes[f"d_{name}_stderr"], 1e-5)  # of differences, of the order of the step's square
        assert abs(slopes[f"d_{name}"] - wanted) < 4 * error, name
    assert abs(slopes["d_test_error"]) > 100 * slopes["d_test_error_stderr"]


def test_metrics_and_labels_take_the_numbers_of_a_density():
    """As if they were typed in; and a derivative in one is that of the metric, too."""

    def missed(h: Any, k: Any, tilt: Any) -> Any:
        return ((h - tilt * k / 2) ** 2).sum() + tilt

    def with_metrics(tilt: float, **metrics: Any) -> Problem:
        return Problem.from_dict(tilted(tilt).to_dict() | {"metrics": metrics})

    named = with_metrics(0.6, text="(h - tilt*k/2)**2 + tilt", own=missed)
    typed = ap.solve(with_metrics(0.6, text="(h - 0.6*k/2)**2 + 0.6"), 2.3).squeeze()
    field, step = "tokens.parameters.tilt", 0.05
    found = ap.sensitivity(named, 2.3, field=field).squeeze()
    for name in ("metric_text", "metric_own"):
        assert found[name].item() == pytest.approx(typed.metric_text.item(), rel=1e-12)
        assert found[f"{name}_stderr"].item() == pytest.approx(typed.metric_text_stderr.item(), rel=1e-9)
    assert named.hash == with_metrics(0.6, own="tilt + (h - k*tilt/2)**2", text=missed).hash
    above, below = (ap.solve(named.with_fields({field: 0.6 + side}), 2.3).metric_text.item() for side in (step, -step))
    assert abs(found.d_metric_text - (above - below) / (2 * step)) < 4 * np.hypot(found.d_metric_text_stderr, 1e-4)
    one, other = (ap.best_predictor(tilted(), label, "constant").error for label in ("sin(tilt*k)", "sin(0.6*k)"))
    assert one == pytest.approx(other, rel=1e-12)


def test_configurations_are_alike_only_if_their_densities_are(uncompiled: None):
    formulas = "1 + c[0]*tanh(k[0, 0])/2 + c[1]*tanh(k[1, 0])/2", "1 + c[0]*tanh(k[0, 0])/2"
    assert [*configurations_left("density", formulas)] == [1, 2]


@pytest.mark.parametrize(
    ("density", "says"),
    [
        ("1.01 + (1 - 2*c)*tanh(k)/2", "must have the mean 1 over Gaussian k, but has 1.01 for the clusters (0)"),
        ("1 + c*k**2/100", "for the clusters (1)"),
        ("1 + 1.5*tanh(k)", "must be positive for all k"),
    ],
)
def test_a_density_that_is_none_is_refused(density: str, says: str):
    problem = problem_of(BENT, clusters=SAME, law=INDEPENDENT, density=density)
    for refused in (lambda: solve_point(problem, 1.0, "semantic"), lambda: ap.derive(problem)):
        with pytest.raises(ProblemError, match=r"tokens\.density") as caught:
            refused()
        assert says in str(caught.value)


@pytest.mark.parametrize(
    ("density", "says"),
    [
        ("1 + h", "tokens.density has h0_0 in it"),
        ("1 + noise", "tokens.density has noise0_0 in it"),
        ("1/k", "must be a finite number for all fields"),
        ("1 + c*k", "takes the number of a token's cluster"),
        ("1 +", "tokens.density must be a formula of a sample's fields"),
    ],
)
def test_a_formula_that_is_no_density_is_refused(density: str, says: str):
    with pytest.raises(ProblemError) as caught:
        problem_of("(h - k)**2/2", density=density)
    assert says in str(caught.value)
    assert caught.value.field == "tokens.density"


def test_what_needs_a_gaussian_law_says_so():
    problem = problem_of(BENT, density="1 + tanh(k)/2")
    TrainingSettings("lbfgs").check(problem)
    for optimizer in ("gamp", "bayes-gamp"):
        with pytest.raises(
            ProblemError, match=rf"tokens\.density does not go with optimizer {optimizer}, .*: use lbfgs"
        ):
            TrainingSettings(optimizer).check(problem)
    with pytest.raises(ProblemError, match=r'integration\.rule = "lines" needs .* smooth tokens\.density'):
        problem.with_fields({"tokens.density": "1 + sign(k)/2", "integration.rule": "lines"})
    assert solved(problem.with_fields({"tokens.density": "1 + sign(k)/2"})).rule == "sobol"


def test_checks_train_instances_of_a_density():
    pytest.importorskip("torch")
    problem = problem_of(BENT, sigma=SIGMA, density="1 + 0.8*tanh(1.3*k)").with_fields(
        {"integration.standard_error": 1e-3}
    )
    report = check(problem, 2.3, settings=SolverSettings(threads=1))
    found = next(one for one in report.checks if one.name == "experiment at finite d")
    assert found.passed, found.detail
