"""Derivatives along a field against differences of solves and closed forms, and the best value of a field."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

import numpy as np
import pytest
from click.testing import CliRunner

import attnphase as ap
from attnphase.cli.commands import main
from attnphase.errors import ProblemError
from attnphase.fixed_points.sensitivity import sensitivity_at
from attnphase.fixed_points.setting import Setting
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.fixed_points.traced import Ending, traced
from attnphase.fixed_points.transitions import Search
from attnphase.fixed_points.tuning import optimum_at
from attnphase.processes.progress import silent

SETTINGS = SolverSettings(tolerance=1e-9, threads=1, stability=False, identity=False)
ONE_TOKEN = {"tokens.length": 1, "teacher.mixing": None, "positions.kind": "none"}
RIDGE = ap.Problem().with_fields(
    {**ONE_TOKEN, "loss.kind": "square", "tokens.sigma": 0.7, "teacher.noise": 0.37, "regularizer.strength": 0.53}
)
HINGE = ap.Problem().with_fields({**ONE_TOKEN, "loss.kind": "hinge", "tokens.sigma": 0.72})
LOGISTIC = ap.Problem().with_fields(
    {**ONE_TOKEN, "loss.kind": "logistic", "tokens.sigma": 0.83, "regularizer.strength": 0.13}
)
ATTENTION = ap.Problem.paper(omega=0.27)
SAMPLED = ATTENTION.with_fields({"integration.rule": "sobol", "integration.nodes": 128})
NAMES = ("q", "V", "theta", "test_error", "training_loss", "weight_norm")


def moved(point, field, value):
    """The point at another value of the field, under the same rule."""
    problem = point.problem if field == "alpha" else point.problem.with_fields({field: value})
    return solve_point(
        problem, value if field == "alpha" else point.alpha, point.branch, start=point, settings=SETTINGS
    )


@pytest.mark.parametrize(("problem", "alpha"), [(ATTENTION, 1.9), (SAMPLED, 1.9), (LOGISTIC, 1.7)])
@pytest.mark.parametrize("field", ["regularizer.strength", "tokens.sigma", "alpha"])
def test_derivatives_are_those_of_solves(problem, alpha, field):
    point = solve_point(problem, alpha, settings=SETTINGS)
    found = sensitivity_at(point, field, SETTINGS)
    value = alpha if field == "alpha" else attrgetter(field)(problem)

    def difference(share):
        ends = [moved(point, field, value * (1 + side * share)) for side in (1, -1)]
        upper, lower = ({name: np.asarray(one.values[name]) for name in NAMES} for one in ends)
        return {name: (upper[name] - lower[name]) / (2 * share * value) for name in NAMES}

    near, far = difference(4e-3), difference(8e-3)
    for name in NAMES:
        exact, error = (4 * near[name] - far[name]) / 3, np.asarray(found.errors[name])
        # the nodes are the same: the stated error is that of other nodes, which is larger
        assert (np.abs(found.values[name] - exact) < 2e-5 * np.abs(exact) + 0.1 * error).all(), name
        assert (error < (0.2 if problem is SAMPLED else 0.03) * np.abs(exact)).all(), name


def ridge(strength, sigma, noise, alpha):
    """Test error of one token's ridge regression, from V, theta and q of the fixed point."""
    gamma = sigma**2
    V = np.roots([strength, strength + gamma * alpha - gamma, -gamma]).max()
    hat, R = alpha / (1 + V), 1 / (strength + gamma * alpha / (1 + V))
    theta, share = gamma**2 * R * hat, gamma**2 * R**2 * alpha / (1 + V) ** 2
    q = (share * (gamma + noise - 2 * theta) + gamma**3 * R**2 * hat**2) / (1 - share)
    return gamma - 2 * theta + q


@pytest.mark.parametrize("alpha", [0.6, 2.3])
def test_errors_of_derivatives_hold_for_ridge_regression(alpha):
    point = solve_point(RIDGE, alpha, settings=SETTINGS)
    place = {"strength": 0.53, "sigma": 0.7, "noise": 0.37, "alpha": alpha}
    assert float(point.values["test_error"]) == pytest.approx(ridge(**place), rel=1e-4)
    fields = {"strength": "regularizer.strength", "sigma": "tokens.sigma", "noise": "teacher.noise", "alpha": "alpha"}
    for key, field in fields.items():
        found, h = sensitivity_at(point, field, SETTINGS), 1e-4
        upper, lower = (ridge(**{**place, key: place[key] * (1 + side * h)}) for side in (1, -1))
        exact, error = (upper - lower) / (2 * h * place[key]), float(found.errors["test_error"])
        assert abs(found.values["test_error"] - exact) < 3 * error + 1e-7, field
        assert error < 2e-4 * abs(exact), field


def test_errors_of_derivatives_hold_for_other_nodes():
    """Under Sobol points against a rule whose errors are a hundred times smaller."""
    exact = solve_point(ATTENTION.with_fields({"integration.standard_error": 1e-5}), 1.9, settings=SETTINGS)
    deviations = []
    for seed in (1, 2, 3):
        point = solve_point(SAMPLED.with_fields({"integration.seed": seed}), 1.9, settings=SETTINGS)
        for field in ("regularizer.strength", "tokens.sigma", "alpha"):
            here, there = (sensitivity_at(one, field, SETTINGS) for one in (point, exact))
            for name in ("q", "V", "theta", "test_error", "training_loss"):
                off = np.ravel(here.values[name])[0] - np.ravel(there.values[name])[0]
                deviations.append(off / np.ravel(here.errors[name])[0])
    assert 0.5 < np.sqrt(np.mean(np.square(deviations))) < 2


@pytest.mark.parametrize("alpha", [5.5, 8.0])
def test_derivatives_hold_where_the_teachers_fields_tell_nearly_all(alpha):
    """Of the students' variance 3 to 6 % are not told: differences may not be larger."""
    problem = ap.Problem.from_dict(
        {"tokens": {"length": 1, "sigma": 1.0}, "loss": {"kind": "logistic"}, "regularizer": {"strength": 0.01}}
    )
    sampled = problem.with_fields({"integration.rule": "sobol"})
    one, two = (solve_point(each, alpha, settings=SETTINGS) for each in (problem, sampled))
    overlaps = one.restart.overlaps
    assert overlaps.untold(np.ones((1, 1, 1))) == pytest.approx(1 - (overlaps.theta**2 / overlaps.q).item(), rel=1e-9)
    assert overlaps.untold(np.ones((1, 1, 1))) < 0.07
    for field, by in (("regularizer.strength", one.values["weight_norm"] / 2), ("alpha", None)):
        exact, found = (sensitivity_at(each, field, SETTINGS) for each in (one, two))
        for name in ("training_loss", "q", "theta"):
            value, error = (np.ravel(x[name])[0] for x in (found.values, found.errors))
            wanted, own = (np.ravel(x[name])[0] for x in (exact.values, exact.errors))
            assert abs(value - wanted) < 4 * np.hypot(error, own) + 2e-3 * abs(wanted), (field, name)
        if by is not None:
            assert found.values["training_loss"] == pytest.approx(by, rel=2e-3)
    assert two.values["map_eigenvalue"] == pytest.approx(one.values["map_eigenvalue"], abs=0.02)


@pytest.mark.parametrize("problem", [ATTENTION, LOGISTIC])
def test_the_training_loss_has_the_explicit_derivative_alone(problem):
    """It is a minimum over the weights: only ``(strength / 2) |W|^2 / d`` depends on the strength directly."""
    point = solve_point(problem, 1.9, settings=SETTINGS)
    found = sensitivity_at(point, "regularizer.strength", SETTINGS)
    assert found.values["training_loss"] == pytest.approx(point.values["weight_norm"] / 2, rel=5e-5)


@pytest.mark.parametrize(
    ("sigma", "noise", "alpha"), [(0.7, 0.37, [0.6, 2.3]), (1.3, 0.37, [0.6, 2.3]), (0.7, 1.1e-5, [1.4, 1.7])]
)
def test_the_best_ridge_is_the_noise(sigma, noise, alpha):
    """Weights of variance one and labels with noise Delta: the posterior's mean is the ridge of strength Delta.

    Noise that is small beside the teacher's variance counts, no variance that the program adds.
    """
    problem = RIDGE.with_fields({"tokens.sigma": sigma, "teacher.noise": noise})
    ds = ap.validate_dataset(ap.tune(problem, alpha=alpha, between=(0.03 * noise, 30 * noise)))
    assert ds["status"].attrs["flag_meanings"].split()[0] == "inside"
    assert (ds["status"] == 0).all()
    error = ds["optimum_stderr"].to_numpy()
    assert (np.abs(ds["optimum"].to_numpy() - noise) < 3 * error).all()
    assert (error < 8e-4 * noise).all()
    exact = [ridge(noise, sigma, noise, one) for one in alpha]
    np.testing.assert_allclose(ds["metric"], exact, rtol=1e-4)


def trace_of(problem, alpha, between, branch, over):
    parts = traced(Setting(problem, alpha, over), branch, between, SETTINGS, silent)
    assert isinstance(parts, list)
    return parts


def place_of(problem, alpha, between, branch="semantic", metric="test_error", over="regularizer.strength"):
    problem = problem.with_fields({"integration.standard_error": 3e-3})
    settings = replace(SETTINGS, tolerance=1e-7, identity=True)
    return optimum_at(Setting(problem, alpha, over), branch, metric, between, settings)


def test_an_optimum_at_an_edge():
    for between, edge in (((0.6, 3.0), 0.6), ((0.01, 0.2), 0.2)):
        found = place_of(RIDGE, 1.3, between)
        assert (found.place.name, found.value) == ("at_edge", pytest.approx(edge))


def test_an_edge_that_errors_do_not_tell_from_an_optimum_inside():
    """The test error at the best ridge differs by 1e-13 from that at the edge, below the error of its slope."""
    problem = RIDGE.with_fields({"tokens.sigma": 1.07, "teacher.noise": 1.3e-7})
    found = place_of(problem, 1.7, (1e-8, 1e-5))
    assert found.place.name == "at_edge"
    assert abs(found.value - 1.3e-7) < found.value_error < 1e-5
    assert place_of(problem, 1.7, (2e-5, 1e-3)).value_error == 0


@pytest.mark.parametrize("between", [(0.9, 2.9), (1e-3, 9.3)])
def test_an_order_parameter_that_no_symmetry_takes_away_may_be_small(between):
    """The norm falls with the ridge, and theta with it to 1 % of its start's, but the branch goes on."""
    problem = LOGISTIC.with_fields({"tokens.sigma": 0.5, "teacher.noise": 0.3})
    found = place_of(problem, 1.5, between, metric="weight_norm")
    truth = solve_point(problem.with_fields({"regularizer.strength": between[1]}), 1.5, settings=SETTINGS)
    assert found.place.name == "at_edge"
    assert found.value == between[1]
    assert found.metric == pytest.approx(truth.values["weight_norm"], rel=1e-3)


def test_an_optimum_at_an_onset():
    """Weights shrink until the branch leaves no more of them, and theta is zero."""
    found = place_of(ATTENTION, 2.0, (0.06, 0.12), metric="weight_norm")
    assert found.place.name == "at_onset"
    assert found.value_error < 0.05 * found.value
    below, above = (
        solve_point(
            ATTENTION.with_fields({"regularizer.strength": found.value + side * 4 * found.value_error}),
            2.0,
            settings=replace(SETTINGS, identity=True),
        )
        for side in (-1, 1)
    )
    assert (below.on_branch.name, above.on_branch.name) == ("on_branch", "merged")


def test_an_optimum_at_a_crossing_of_branches():
    """Beside the crossing the positional branch has the lower loss, and the larger test error."""
    problem = ap.Problem.paper(omega=0.3)
    found = place_of(problem, 1.25, (0.48, 0.6), "lowest", over="tokens.sigma")
    assert found.place.name == "at_crossing"
    there = problem.with_fields({"tokens.sigma": found.value})
    mine, other = (solve_point(there, 1.25, name, settings=SETTINGS) for name in ("semantic", "positional"))
    error = np.hypot(mine.errors["training_loss"], other.errors["training_loss"])
    assert abs(mine.values["training_loss"] - other.values["training_loss"]) < 5 * error + 1e-9
    assert found.metric < 0.8 * other.values["test_error"]
    assert 0.5 < found.value < 0.501
    assert found.value_error < 1e-3


def test_a_branch_that_is_nowhere_has_no_optimum():
    found = place_of(ATTENTION, 2.0, (1.0, 2.0))
    assert found.place.name == "no_branch"
    assert np.isnan([found.value, found.metric]).all()


@pytest.mark.slow
def test_an_optimum_at_a_fold():
    """The training loss falls with the strength, and the positional branch ends before the strength does."""
    problem = ap.Problem.paper(omega=0.3, sigma=0.6)
    found = place_of(problem, 7.8, (4e-3, 0.02), "positional", "training_loss")
    assert found.place.name == "at_branch_end"
    assert found.value == pytest.approx(0.006, rel=2e-3)
    # there the same fold lies at this alpha
    beside = problem.with_fields({"regularizer.strength": found.value, "integration.standard_error": 3e-3})
    line = trace_of(beside, 7.0, (7.0, 9.0), "positional", "alpha")
    fold = Search.of(beside, SETTINGS).spinodal(line, (7.0, 9.0))
    slope = -131.0  # of alpha by the strength, from differences of folds
    assert abs(fold.alpha - 7.8) < 3 * np.hypot(fold.standard_error, slope * found.value_error)
    assert fold.standard_error < 2e-3


@pytest.mark.slow
def test_a_fold_at_the_upper_end_of_a_range():
    """The positional branch ends at a largest sigma, where the fold in alpha lies at the same alpha."""
    problem = ap.Problem.paper(omega=0.3, sigma=0.6).with_fields({"integration.standard_error": 3e-3})
    (part,) = trace_of(problem, 7.8, (0.55, 0.75), "positional", "tokens.sigma")
    assert part.ends == (Ending.edge, Ending.fold)
    found = Search.of(problem, SETTINGS).turn(part, -1)
    beside = problem.with_fields({"tokens.sigma": found.alpha})
    line = trace_of(beside, 7.0, (7.0, 9.0), "positional", "alpha")
    fold = Search.of(beside, SETTINGS).spinodal(line, (7.0, 9.0))
    slope = 42.0  # of alpha by sigma, from differences of folds
    assert abs(fold.alpha - 7.8) < 3 * np.hypot(fold.standard_error, slope * found.standard_error)
    assert found.standard_error < 2e-3 * found.alpha


def test_few_points_are_traced_where_variables_grow():
    """V is inverse to small strengths: from the largest one on it grows a hundredfold."""
    (part,) = trace_of(HINGE, 0.83, (1e-3, 1.0), "semantic", "regularizer.strength")
    assert part.ends == (Ending.edge, Ending.edge)
    assert len(part.points) < 40
    assert max(np.abs(one.place).max() for one in part.points) > 30


def test_optima_of_sampled_rules_are_those_of_lines():
    """To the errors that they state, which cover what nodes that jump change."""
    best = place_of(ATTENTION, 2.1, (0.5, 0.8), over="tokens.sigma")
    assert best.place.name == "inside"
    deviations = []
    for seed in (1, 2, 3):
        sampled = SAMPLED.with_fields({"integration.seed": seed, "integration.nodes": 64})
        found = place_of(sampled, 2.1, (0.5, 0.8), over="tokens.sigma")
        assert found.place.name == "inside"
        deviations.append((found.value - best.value) / np.hypot(found.value_error, best.value_error))
        assert found.value_error < 0.03 * best.value
    assert np.sqrt(np.mean(np.square(deviations))) < 2


def test_optima_of_sampled_rules_where_the_teachers_fields_tell_nearly_all():
    fields = {**ONE_TOKEN, "loss.kind": "logistic", "tokens.sigma": 1.0, "regularizer.strength": 0.01}
    problem = ap.Problem().with_fields(fields)
    sampled = problem.with_fields({"integration.rule": "sobol"})
    best, found = (place_of(each, 8.0, (0.001, 0.02)) for each in (problem, sampled))
    assert (best.place.name, found.place.name) == ("inside", "inside")
    assert found.value == pytest.approx(best.value, abs=4 * np.hypot(found.value_error, best.value_error))
    assert found.value_error < 0.02 * found.value


def test_a_range_up_to_where_the_field_ends():
    """No steps lead beyond omega = 0 or a noise of 0; nothing is smaller than without noise."""
    found = place_of(ATTENTION, 1.96, (0.0, 0.4), over="teacher.omega")
    assert found.place.name == "inside"
    slopes = [
        sensitivity_at(
            solve_point(ap.Problem.paper(omega=found.value * factor), 1.96, settings=SETTINGS),
            "teacher.omega",
            SETTINGS,
        ).values["test_error"]
        for factor in (0.97, 1.03)
    ]
    assert slopes[0] < 0 < slopes[1]
    found = place_of(RIDGE, 1.9, (0.0, 0.5), over="teacher.noise")
    assert (found.place.name, found.value) == ("at_edge", 0.0)


def test_the_uninformed_branch_ends_nowhere():
    """Its weights vanish at a strength beyond which they stay zero."""
    found = place_of(ATTENTION, 1.9, (0.02, 0.5), "uninformed", "weight_norm")
    assert (found.place.name, found.value) == ("at_edge", 0.5)
    assert abs(found.metric) < 1e-6


def test_datasets_and_commands(tmp_path):
    path = tmp_path / "s.nc"
    fixed = ["--set", "integration.rule=sobol", "--set", "integration.nodes=64", "--no-stability"]
    args = ["solve", "--alpha", "1.9", "--branch", "all", "--sensitivity", "tokens.sigma", "-o", str(path), *fixed]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, result.output
    assert "d_test_error" in result.output
    assert "tokens.sigma = 0.5" in result.output
    ds = ap.load_dataset(path)
    assert (ds.attrs["field"], float(ds["sigma"]), ds["d_q"].dims) == ("tokens.sigma", 0.5, ds["q"].dims)
    problem = ap.Problem().with_fields({"integration.rule": "sobol", "integration.nodes": 64})
    alone = ap.sensitivity(problem, 1.9, field="tokens.sigma", settings=SolverSettings(stability=False))
    np.testing.assert_allclose(alone["d_test_error"], ds["d_test_error"].sel(branch="semantic"), rtol=1e-3)
    unconverged = ap.sensitivity(problem, 1.9, field="alpha", settings=SolverSettings(max_maps=2))
    assert int(unconverged["status"]) != 0
    assert np.isnan(unconverged["d_q"]).all()


def test_what_says_how_it_is_solved_is_no_field_to_tune_or_differentiate_in():
    problem = ap.Problem.paper(omega=0.3)
    with pytest.raises(ProblemError, match=r"integration\.standard_error says how the problem is solved"):
        ap.tune(problem, field="integration.standard_error", alpha=1.7)
    with pytest.raises(ProblemError, match=r"integration\.standard_error says how the problem is solved"):
        ap.sensitivity(problem, 1.7, field="integration.standard_error")


def test_a_range_by_default_that_the_field_cannot_have_asks_for_one():
    with pytest.raises(ProblemError, match=r"between is missing, and teacher\.omega cannot be all of 0\.003 to 30"):
        ap.tune(ap.Problem.paper(omega=0.3), field="teacher.omega", alpha=1.7)
