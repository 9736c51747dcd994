"""Derivatives along a field against differences of solves and closed forms, and the best value of a field."""

from operator import attrgetter
from typing import Any

import numpy as np
import pytest
from models import model
from ridge import ridge_regression
from solving import settings, solved, word

import attnphase as ap

RIDGE = {"loss.parameters.quantile": 0.0, "loss.parameters.square": 1.0, "regularizer.strength": 0.53}
NOISY_RIDGE = model("kinks", RIDGE | {"tokens.sigma": 0.7, "teacher.noise": 0.37})
HINGE = model("kinks", {"tokens.sigma": 0.72, "loss.parameters.quantile": 0.0, "loss.parameters.hinge": 1.0})
LOGISTIC = model("logistic", {"tokens.sigma": 0.83, "regularizer.strength": 0.13})
ATTENTION = ap.Problem.paper(omega=0.27)
SAMPLED = ATTENTION.with_fields({"integration.rule": "sobol", "integration.nodes": 128})
NAMES = ("q", "V", "theta", "test_error", "training_loss", "weight_norm")

pytestmark = pytest.mark.filterwarnings("ignore::attnphase.errors.AttnphaseWarning")


def slopes_of(problem: ap.Problem, alpha: float, field: str) -> Any:
    return ap.sensitivity(problem, alpha, field, settings=settings(tolerance=1e-9, identity=False))


@pytest.mark.parametrize(("problem", "alpha"), [(ATTENTION, 1.9), (SAMPLED, 1.9), (LOGISTIC, 1.7)])
@pytest.mark.parametrize("field", ["regularizer.strength", "tokens.sigma", "alpha"])
def test_derivatives_are_those_of_solves(problem, alpha, field):
    ds = slopes_of(problem, alpha, field)
    value = alpha if field == "alpha" else attrgetter(field)(problem)

    def difference(share):
        ends = [
            solved(problem, value * at, tolerance=1e-9, identity=False)
            if field == "alpha"
            else solved(problem.with_fields({field: value * at}), alpha, tolerance=1e-9, identity=False)
            for at in (1 + share, 1 - share)
        ]
        return {name: (ends[0][name] - ends[1][name]).values / (2 * share * value) for name in NAMES}

    near, far = difference(4e-3), difference(8e-3)
    for name in NAMES:
        exact, error = (4 * near[name] - far[name]) / 3, ds[f"d_{name}_stderr"].values
        # the nodes are the same: the stated error is that of other nodes, which is larger
        assert (np.abs(ds[f"d_{name}"].values - exact) < 1e-4 * np.abs(exact) + 0.1 * error).all(), name
        assert (error < (0.2 if problem is SAMPLED else 0.03) * np.abs(exact)).all(), name


@pytest.mark.parametrize(
    ("key", "field"),
    [("strength", "regularizer.strength"), ("sigma", "tokens.sigma"), ("noise", "teacher.noise"), ("alpha", "alpha")],
)
def test_errors_of_derivatives_hold_for_ridge_regression(key, field):
    place, h = {"strength": 0.53, "sigma": 0.7, "noise": 0.37, "alpha": 2.3}, 1e-4

    def test_error(sigma, **others):
        return ridge_regression(gamma=[sigma**2], **others)["test_error"]

    ds = slopes_of(NOISY_RIDGE, 2.3, field)
    assert ds.q.item() - 2 * ds.theta.item() + 0.49 == pytest.approx(test_error(**place), rel=1e-4)
    upper, lower = (test_error(**place | {key: place[key] * (1 + side * h)}) for side in (1, -1))
    exact, error = (upper - lower) / (2 * h * place[key]), ds.d_q_stderr.item() + 2 * ds.d_theta_stderr.item()
    own = ds.d_q.item() - 2 * ds.d_theta.item() + (2 * 0.7 if key == "sigma" else 0)
    assert abs(own - exact) < 3 * error + 1e-6
    assert error < 2e-3 * abs(exact)


@pytest.mark.parametrize("alpha", [5.5, 8.0])
def test_derivatives_hold_where_the_teachers_fields_tell_nearly_all(alpha):
    """Of the students' variance 3 to 6 % are not told: differences may not be larger."""
    problem = LOGISTIC.with_fields({"tokens.sigma": 1.0, "regularizer.strength": 0.01})
    sampled = problem.with_fields({"integration.rule": "sobol"})
    for field in ("regularizer.strength", "alpha"):
        exact, found = (slopes_of(each, alpha, field) for each in (problem, sampled))
        assert 1 - exact.theta.item() ** 2 / exact.q.item() < 0.07
        for name in ("d_training_loss", "d_q", "d_theta"):
            error = np.hypot(exact[f"{name}_stderr"].item(), found[f"{name}_stderr"].item())
            assert abs((exact[name] - found[name]).item()) < 4 * error + 2e-3 * abs(exact[name].item()), name
    assert found.map_eigenvalue.values == pytest.approx(exact.map_eigenvalue.values, abs=0.02)


@pytest.mark.parametrize("problem", [ATTENTION, LOGISTIC])
def test_the_training_loss_has_the_explicit_derivative_alone(problem):
    """It is a minimum over the weights: only ``(strength / 2) |W|^2 / d`` depends on the strength directly."""
    ds = slopes_of(problem, 1.9, "regularizer.strength")
    assert float(ds.d_training_loss) == pytest.approx(float(ds.weight_norm) / 2, rel=5e-5)


def best(problem: ap.Problem, alpha: Any, between: tuple[float, float], field="regularizer.strength", **given) -> Any:
    coarse = problem.with_fields({"integration.standard_error": 3e-3})
    return ap.tune(coarse, alpha, field, between=between, settings=settings(), **given)


def place(ds: Any) -> tuple[str, float, float]:
    return word(ds), ds.optimum.item(), ds.optimum_stderr.item()


@pytest.mark.parametrize(("sigma", "noise", "alpha"), [(0.7, 0.37, [1.2, 0.6, 2.3]), (0.7, 1.1e-5, [1.4])])
def test_the_best_ridge_is_the_noise(sigma, noise, alpha):
    """Weights of variance one and labels with noise Delta: the posterior's mean is the ridge of strength Delta.

    Noise that is small beside the teacher's variance counts, no variance that the program adds.
    """
    fields = {"tokens.sigma": sigma, "teacher.noise": noise, "integration.rule": "gauss-hermite"}
    ds = ap.tune(NOISY_RIDGE.with_fields(fields), alpha=alpha, between=(0.03 * noise, 30 * noise), settings=settings())
    assert (ds.status == 0).all()
    assert (np.abs(ds.optimum - noise) < 3 * ds.optimum_stderr).all()
    assert (ds.optimum_stderr < 8e-4 * noise).all()
    assert (np.diff(ds.metric[np.argsort(alpha)]) < -0.04).all()  # fewer samples, more test error


def test_an_edge_that_errors_do_not_tell_from_an_optimum_inside():
    """The test error at the best ridge differs by 1e-13 from that at the edge, below the error of its slope.

    Rounding decides which of both is found, and the error tells that it may be the other.
    """
    problem = NOISY_RIDGE.with_fields({"tokens.sigma": 1.07, "teacher.noise": 1.3e-7})
    where, value, error = place(best(problem, 1.7, (1e-8, 1e-5)))
    assert where in ("at_edge", "inside")
    assert max(abs(value - 1.3e-7), value - 1e-8) < error < 1e-5


@pytest.mark.parametrize("between", [(0.9, 2.9), (0.07, 9.3)])
def test_an_order_parameter_that_no_symmetry_takes_away_may_be_small(between):
    """The norm falls with the ridge, and theta with it to 1 % of its start's, but the branch goes on."""
    problem = LOGISTIC.with_fields({"tokens.sigma": 0.5})
    ds = best(problem, 1.5, between, metric="weight_norm")
    truth = solved(problem.with_fields({"regularizer.strength": between[1]}), 1.5)
    assert place(ds)[:2] == ("at_edge", between[1])
    assert ds.metric.item() == pytest.approx(float(truth.weight_norm), rel=1e-3)


def test_an_optimum_at_an_onset():
    """Weights shrink until the branch leaves no more of them, and theta is zero."""
    ds = best(ATTENTION, 2.0, (0.06, 0.12), metric="weight_norm")
    where, value, error = place(ds)
    assert where == "at_onset"
    assert error < 0.05 * value
    below = solved(ATTENTION.with_fields({"regularizer.strength": value - 0.002}), 2.0)  # the norm begins linearly
    assert ds.metric_stderr.item() == pytest.approx(float(below.weight_norm) / 0.002 * error, rel=0.3)
    for side, expected in ((-1, "on_branch"), (1, "merged_with_uninformed")):
        there = ATTENTION.with_fields({"regularizer.strength": value + side * 4 * error})
        assert word(solved(there, 2.0), "on_branch") == expected


def test_an_optimum_at_a_crossing_of_branches():
    """Beside the crossing the positional branch has the lower loss, and the larger test error."""
    problem = ap.Problem.paper(omega=0.3)
    ds = best(problem, 1.25, (0.49, 0.53), "tokens.sigma", branch="lowest")
    where, value, error = place(ds)
    assert where == "at_crossing"
    assert 0.5 < value < 0.501
    assert error < 1e-3
    mine, other = (solved(problem.with_fields({"tokens.sigma": value}), 1.25, b) for b in ("semantic", "positional"))
    of_losses = np.hypot(mine.training_loss_stderr, other.training_loss_stderr)
    assert abs(float(mine.training_loss - other.training_loss)) < 5 * of_losses + 1e-9
    assert ds.metric.item() < 0.8 * float(other.test_error)


@pytest.mark.long
def test_an_optimum_at_a_fold():
    """The training loss falls with the strength, and the positional branch ends where the fold in alpha is 7.8."""
    problem = ap.Problem.paper(omega=0.3, sigma=0.6)
    where, value, _ = place(best(problem, 7.8, (5e-3, 0.01), branch="positional", metric="training_loss"))
    assert where == "at_branch_end"
    assert value == pytest.approx(0.006, rel=2e-3)
    for side, expected in ((1, "on_branch"), (-1, "merged_with_uninformed")):
        there = problem.with_fields({"regularizer.strength": value + side * 3e-4})
        assert word(solved(there, 7.8, "positional"), "on_branch") == expected


def test_few_points_are_traced_where_variables_grow():
    """V is inverse to small strengths: from the largest one on it grows fiftyfold."""
    curve = ap.follow(HINGE, 0.83, "regularizer.strength", (0.01, 1.0), settings=settings())
    assert curve.attrs["ends"] == "at the edge of the range, at the edge of the range"
    assert (np.diff(curve.field_value) > 0).all()
    assert curve.sizes["arclength"] < 45
    assert float(curve.V.max()) > 30 * float(curve.V.min())


def test_optima_of_sampled_rules_are_those_of_lines():
    """To the errors that they state, which cover what nodes that jump change."""
    where, truth, own = place(best(ATTENTION, 2.1, (0.5, 0.8), "tokens.sigma"))
    assert where == "inside"
    deviations = []
    for seed in (1, 2, 3):
        sampled = SAMPLED.with_fields({"integration.seed": seed, "integration.nodes": 64})
        where, value, error = place(best(sampled, 2.1, (0.5, 0.8), "tokens.sigma"))
        assert where == "inside"
        assert error < 0.03 * truth
        deviations.append((value - truth) / np.hypot(error, own))
    assert np.sqrt(np.mean(np.square(deviations))) < 2
