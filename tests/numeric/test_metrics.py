"""Test metrics of the user's own: closed forms, drawn fields, stated errors, refusals, and where they are reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import xarray as xr
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import norm

import attnphase as ap
from attnphase.checks.comparison import compare
from attnphase.data.build import from_points, from_runs
from attnphase.data.variables import EXPERIMENT_VARIABLES, with_own
from attnphase.errors import CompareError, ProblemError
from attnphase.fixed_points import metric_slopes
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.kernels.key import ModelKey
from attnphase.problem.metrics import Metrics
from attnphase.problem.problem import Problem
from attnphase.state_evolution import metrics
from attnphase.state_evolution.metrics import metric_means
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.system import System
from attnphase.sweeps.refinement import line_of_parts
from derivations.models.bounds import growth_of
from derivations.models.metrics import metric_expression, metric_function
from tests.numeric.test_sample_law import tilted
from tests.numeric.test_stated_errors import assert_calibrated

Array = NDArray[np.float64]
SETTINGS = SolverSettings(threads=1, stability=False)
SIGMA = 0.83
LOGISTIC = Problem.from_dict(
    {
        "tokens": {"length": 1, "sigma": SIGMA},
        "loss": {"kind": "logistic"},
        "regularizer": {"strength": 0.17},
        "metrics": {"wrong": "(1 - sign(h*k))/2", "square": "(h - k)**2", "loss": "softplus(-sign(k)*h)"},
    }
)


OVERLAPS = Overlaps(*(np.full((1, 1, 1), x) for x in (0.9, 1.1, 0.0, 0.45)))


def closed_forms(values: Mapping[str, Any]) -> dict[str, float]:
    """Of two jointly Gaussian fields: the angle between the weights, and a second moment."""
    q, theta = values["q"].item(), values["theta"].item()
    angle = float(np.arccos(theta / (SIGMA * np.sqrt(q))) / np.pi)
    return {"wrong": angle, "square": q - 2 * theta + SIGMA**2, "loss": values["test_error"] / 2}


@pytest.mark.parametrize("alpha", [0.9, 3.7])
def test_binary_classification_has_a_closed_form(alpha: float):
    """And a metric that is the loss is the test error: for one token half of it."""
    point = solve_point(LOGISTIC, alpha, "semantic", settings=SETTINGS)
    for name, expected in closed_forms(point.values).items():
        error = point.errors[f"metric_{name}"]
        assert abs(point.values[f"metric_{name}"] - expected) < 3.5 * error, name
        assert error < 2e-3 * expected, name


@pytest.mark.parametrize(("rule", "nodes", "asked"), [("sobol", 16, 2e-4), ("lines", None, 0.02)])
def test_stated_errors_of_metrics(rule: str, nodes: int | None, asked: float):
    """By few nodes of the map, whose errors they propagate, and by few points of their own."""
    exact = closed_forms(solve_point(LOGISTIC, 1.9, "semantic", settings=SETTINGS).values)
    names = [f"metric_{name}" for name in exact]
    deviations, errors = [], []
    for seed in range(16):
        changes = {"rule": rule, "nodes": nodes, "seed": seed, "standard_error": asked}
        problem = LOGISTIC.with_fields({f"integration.{key}": value for key, value in changes.items()})
        point = solve_point(problem, 1.9, "semantic", settings=SETTINGS)
        deviations.append([point.values[name] - value for name, value in zip(names, exact.values(), strict=True)])
        errors.append([point.errors[name] for name in names])
    assert_calibrated(np.array(deviations), np.array(errors), 16)
    # of few nodes of the map, or of few points of the metric: the other part is below 3e-4
    assert np.sqrt((np.array(errors)[:, 0] ** 2).mean()) > 1e-3 * exact["wrong"]


def means_by_chance(trial: int, points: int, *stream: int) -> Array:
    """Means (16, 3, 2) about zero whose errors are about those asked for at the first number of points, and sizes."""
    rng = np.random.default_rng((trial, points, *stream))
    deviation = 4 * 1e-3 * np.sqrt(1024 / points) * np.array([1.1, 1.3])
    return np.stack([deviation * rng.normal(size=(16, 2)), np.ones((16, 2)), np.zeros((16, 2))], axis=1)


@pytest.mark.parametrize("which", ["means", "slopes"])
def test_points_that_suffice_by_chance_do_not_make_errors_small(which: str, monkeypatch: pytest.MonkeyPatch):
    """Of normal replicates; errors of the points that ended the search are a tenth too small."""
    problem = LOGISTIC.with_fields({"metrics.loss": None, "integration.standard_error": 1e-3})
    system = System.of(problem)
    deviations, errors = [], []
    for trial in range(2000):
        if which == "means":
            monkeypatch.setattr(metrics, "metric_means", lambda *args, trial=trial: means_by_chance(trial, *args[3:]))
            values, rows = metrics._fine_enough(system, OVERLAPS, 2**22)
            errors.append(np.sqrt((rows**2).sum(axis=0)))
        else:
            line = SimpleNamespace(
                family=SimpleNamespace(map_at=lambda value: SimpleNamespace(system=system)),
                value=1.0,
                size=lambda step: 1.0,
                means=lambda distance, points, trial=trial: means_by_chance(trial, points),
                difference=lambda step, *args, trial=trial: (means_by_chance(trial, *args)[:, 0], 0.0, (1.0, -1.0)),
            )
            values, _, _ = metric_slopes._fine_enough(cast("metric_slopes.Line", line), 2**22)
            errors.append(values.std(axis=0, ddof=1) / 4)
        deviations.append(values.mean(axis=0))
    assert_calibrated(np.array(deviations), np.array(errors), 16)
    assert 0.5e-3 < np.mean(errors) < 1e-3


PAIRS = [{"sigma": 0.9, "mean": [0.4]}, {"sigma": 0.7, "mean": [-0.5]}]
MIXED = Problem.from_dict(
    {
        "tokens": {
            "kind": "mixture",
            "clusters": PAIRS,
            "law": {"kind": "table", "table": [[0.15, 0.25], [0.2, 0.4]]},
            "mean_teacher": [[0.6]],
        },
        "teacher": {"noise": 0.3},
        "student": {"tied": False},
        "metrics": {
            "attended": "(1 + sign(h0_0*(h0_1 - h1_1))*(2*c1 - 1))/2",
            "noisy": "(h1_1 - k0_0 + noise1_0)**2*(1 + c0)",
            "noise": "noise0_1**4 - noise0_0*noise0_1",
        },
    }
)


def overlaps_of_mixture(rng: np.random.Generator) -> Overlaps:
    """Of two columns at four sites, without symmetry."""
    root = rng.normal(size=(4, 2, 2)) * 0.3 + 1.2 * np.eye(2)
    theta = np.array([0.81, 0.49, 0.81, 0.49])[:, None, None] * [[0.5], [-0.3]]
    return Overlaps(root @ root.mT, root @ root.mT, rng.normal(size=(4, 2, 1)), theta)


def test_means_are_those_of_drawn_fields():
    """Untied, in clusters with means along the teacher and with noise: names, sites, orders and scales."""
    rng = np.random.default_rng(3)
    system, overlaps, count = System.of(MIXED), overlaps_of_mixture(rng), 300_000
    law = system.sample_law
    clusters = rng.choice(4, size=count, p=[0.15, 0.25, 0.2, 0.4])
    c = np.stack([clusters // 2, clusters % 2], axis=1)
    h, k = np.empty((count, 2, 2)), np.empty((count, 2))
    for token in (0, 1):
        site = 2 * token + c[:, token]
        gamma = np.array([0.81, 0.49])[c[:, token]]
        teacher = np.sqrt(gamma) * rng.normal(size=count)
        for own in (2 * token, 2 * token + 1):
            here = site == own
            slope = overlaps.theta[own, :, 0] / law.clean_rho[own].item()
            covariance = overlaps.q[own] - np.outer(slope, overlaps.theta[own, :, 0])
            drawn = rng.multivariate_normal(overlaps.m[own, :, 0], covariance, size=here.sum())
            h[here, token] = drawn + teacher[here, None] * slope
        k[:, token] = teacher + 0.6 * np.array([0.4, -0.5])[c[:, token]]
    noise = np.sqrt(0.3) * rng.normal(size=(count, 2, 2))
    expected = {
        "attended": (1 + np.sign(h[:, 0, 0] * (h[:, 0, 1] - h[:, 1, 1])) * (2 * c[:, 1] - 1)) / 2,
        "noise": noise[:, 0, 1] ** 4 - noise[:, 0, 0] * noise[:, 0, 1],
        "noisy": (h[:, 1, 1] - k[:, 0] + noise[:, 1, 0]) ** 2 * (1 + c[:, 0]),
    }
    means = metric_means(MIXED, law, overlaps, 1024)
    for i, (name, samples) in enumerate(expected.items()):
        values, size = means[:, 0, i], means[:, 1, i].mean()
        errors = samples.std() / np.sqrt(count), values.std(ddof=1) / 4
        assert abs(values.mean() - samples.mean()) < 4 * np.hypot(*errors), name
        assert np.hypot(*errors) < 0.01 * size, name
        assert size == pytest.approx(np.abs(samples).mean(), rel=0.02)


def test_a_law_that_is_not_gaussian():
    """Its weights count, and a square of the fields has two moments of k."""
    problem = Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": 1.3},
            "loss": {"kind": "square"},
            "metrics": {"own": "(h - 0.4*k)**2 + h", "cube": "k**3"},
        }
    )
    system, law = tilted(problem, (0.4,), 0.12)
    overlaps = Overlaps(*(np.full((1, 1, 1), x) for x in (0.6, 1.4, 0.25, 0.3)))
    (cube, own), rho = metric_means(problem, law, overlaps, 4096)[:, 0].mean(axis=0), 1.69
    first, second, third = (law.mean(0, power) * rho ** (power / 2) for power in (1, 2, 3))
    slope = 0.3 / rho - 0.4
    square = 0.25**2 + 2 * 0.25 * slope * first + slope**2 * second + 0.6 - 0.3**2 / rho
    assert own == pytest.approx(square + 0.25 + 0.3 / rho * first, rel=1e-3)
    assert cube == pytest.approx(third, rel=1e-2)
    assert system.sample_law is law


# --- without a variance -----------------------------------------------------------------------------------------------


def gaussian_squares(*factors: tuple[str, float]) -> dict[str, str]:
    """Exponentials of c x^2 for fields x of some variances, just with a variance (4 c var(x) < 1) and just without."""
    return {
        f"{x}_{verdict}": f"exp({share / (4 * variance)}*{x}**2)"
        for x, variance in factors
        for verdict, share in (("has", 0.9), ("not", 1.1))
    }


def assert_without_variance(means: Array, names: list[str]) -> None:
    for name, column in zip(names, means[:, 0].T, strict=True):
        assert np.isnan(column).all() == name.endswith("_not"), name
        assert np.isfinite(column).all() == name.endswith("_has"), name


def test_metrics_without_a_variance_have_no_number():
    """Whatever field they grow with, in whatever cluster; and those that only grow as fast on the way have one."""
    others = {"exp_has": "exp(3*abs(h))", "power_has": "h**24", "far_has": "relu(abs(h) - 2)", "zero_has": "0*h"}
    others |= {"tanh_has": "tanh(exp(h**2))", "scale_has": "1e-200*h", "apart_not": "exp(h**2 - 4*k**2)"}
    problem = LOGISTIC.with_fields({f"metrics.{name}": None for name in LOGISTIC.metrics})
    problem = problem.with_fields(
        {f"metrics.{k}": v for k, v in (gaussian_squares(("h", 0.9), ("k", SIGMA**2)) | others).items()}
    )
    law = System.of(problem).sample_law
    assert_without_variance(metric_means(problem, law, OVERLAPS, 256), list(problem.metrics))

    overlaps = overlaps_of_mixture(np.random.default_rng(5))
    found = gaussian_squares(("h1_1", overlaps.q[3, 1, 1]), ("k0_0", 0.81), ("noise1_0", 0.3))
    found = {name: text if name[0] != "h" else f"c1*{text}" for name, text in found.items()}
    problem = replace(MIXED, metrics=Metrics.of(found))
    law = System.of(problem).sample_law
    assert_without_variance(metric_means(problem, law, overlaps, 256), list(problem.metrics))


@example(far=35.0, steep=8.0, q=1.0, size=1.0, of=False)  # grows all the way to where growth is tried
@settings(max_examples=5)
@given(
    far=st.floats(3, 60), steep=st.floats(0.3, 400), q=st.floats(0.02, 40), size=st.floats(1e-3, 1e3), of=st.booleans()
)
def test_bounded_metrics_have_a_number_however_far_out_they_change(
    far: float, steep: float, q: float, size: float, of: bool
):
    """A share of wrong labels under a margin of so many deviations is ``Phi(-margin)``."""
    deviation = SIGMA if of else np.sqrt(q)
    margin = f"({'k' if of else 'h'} - {far * deviation})"
    formulas = {
        "step": f"{size}*(1 + sign({margin}))/2",
        "sigmoid": f"sigmoid({steep}*{margin})**2",
        "square": f"relu({margin})**2",
        "ramp": f"exp(-relu(-{15 / deviation}*{margin}))",
        "log": f"log(1 + relu({margin}))*(1 + sign({margin}))",
    }
    problem = replace(LOGISTIC, metrics=Metrics.of(formulas))
    overlaps = replace(OVERLAPS, q=np.full((1, 1, 1), q), theta=np.full((1, 1, 1), 0.3 * SIGMA * np.sqrt(q)))
    means = metric_means(problem, System.of(problem).sample_law, overlaps, 1024)
    assert np.isfinite(means).all()
    values, _, jumps = means[..., list(problem.metrics).index("step")].T / size
    error = np.hypot(values.std(ddof=1) / 4, np.sqrt(jumps.mean() / len(jumps) / size))
    assert abs(values.mean() - norm.sf(far)) <= 4 * error < 1e-3


def test_what_changes_far_out_may_have_no_variance():
    """Zero out to 18 deviations, or growing as a square's exponential only beyond; and in steps of a bounded size."""
    formulas = {"cut_not": "exp(h**2)*(1 + sign(h - 17))", "cut_has": "exp(0.2*h**2)*(1 + sign(h - 17))"}
    formulas |= {"below_has": "exp(-h**2)*sign(h - 20)", "sum_not": "tanh(h) + exp(k**2)"}
    problem = replace(LOGISTIC, metrics=Metrics.of(formulas))
    means = metric_means(problem, System.of(problem).sample_law, OVERLAPS, 256)
    assert_without_variance(means, list(problem.metrics))


@pytest.mark.parametrize(
    ("text", "power"),
    [
        ("tanh(h**2*k)*sign(h) + sigmoid(exp(h))", 0.0),
        ("1/(1 + h**2) + exp(-h**2 - abs(k))", 0.0),
        ("h**2*abs(k)*cos(h) + 3", 3.0),
        ("log(2 + h**6)", 1.0),
        ("relu(h)**1.5 + 1/(1 + exp(h))", 1.5),
        ("h*exp(3*abs(h) - k)", np.inf),
        ("exp(h**2)", None),
        ("h/k", None),
        ("log(abs(h))", None),
        ("cosh(h*k)", None),
    ],
)
def test_rules_bound_how_fast_a_formula_grows(text: str, power: float | None):
    """And no larger field contradicts them: sizes at 1e3, over the power of the radius, exceed no others by much."""
    expression, symbols = metric_expression(text, 1, 1, 1)
    found = growth_of(expression, {*symbols.student, *symbols.teacher})
    assert found == power
    assert growth_of(expression, set()) == 0
    if power is not None and np.isfinite(power):
        function, angles, none = metric_function((text,), 1, 1, 1), np.linspace(0, 2 * np.pi, 97), np.zeros(1)
        sizes = []
        for radius in (30.0, 1e3):
            h, k = (radius * turn(angles)[None, None] for turn in (np.cos, np.sin))
            values, _ = function(h, k, np.zeros((1, 97)), none, none[:0])
            sizes.append(np.abs(values).max() / (1 + radius) ** power)
        assert sizes[1] < 2 * sizes[0]


def test_densities_count_for_the_variance_of_metrics():
    """Points of a density ``exp(a k^2)`` are of twice the variance, and their weights fall: 8 (a + c) var(k) < 3."""
    a, variance = 0.3, SIGMA**2
    density = f"{np.sqrt(1 - 2 * a * variance)}*exp({a}*k**2)"
    limit = 3 / (8 * variance) - a
    chosen = {"k_has": 0.95 * limit, "k_not": 1.05 * limit}
    problem = Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": SIGMA, "density": density},
            "loss": {"kind": "logistic"},
            "metrics": {name: f"exp({c}*k**2)" for name, c in chosen.items()},
        }
    )
    means = metric_means(problem, System.of(problem).sample_law, OVERLAPS, 1024)
    assert_without_variance(means, list(problem.metrics))
    expected = np.sqrt((1 - 2 * a * variance) / (1 - 2 * (a + chosen["k_has"]) * variance))
    assert means[:, 0, 0].mean() == pytest.approx(expected, rel=0.03)


def test_samplers_count_for_the_variance_of_metrics():
    """Fields that grow as k^3, far out of which a metric is no number."""
    problem = Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": SIGMA, "sampler": "k + k**3/10"},
            "loss": {"kind": "logistic"},
            "metrics": {"square_not": "exp(h**2)", "line_not": "exp(2*h)", "power_has": "h**2*k**4"},
        }
    )
    means = metric_means(problem, System.of(problem).sample_law, OVERLAPS, 256)
    assert_without_variance(means, list(problem.metrics))


def test_a_metric_next_to_one_without_a_variance_has_no_number_instead_of_no_error():
    problem = LOGISTIC.with_fields({f"metrics.{name}": None for name in LOGISTIC.metrics})
    q = ap.solve(problem, 1.9, "semantic").q.item()
    found = ap.solve(problem.with_fields({"metrics.next": f"exp({0.9999 / (4 * q)}*h**2)"}), 1.9, "semantic")
    assert np.isnan([found.metric_next, found.metric_next_stderr]).all()


def test_what_becomes_of_a_metric_without_a_variance():
    """No number, also no derivative, and no less precise other metrics; nothing can minimise it."""
    problem = LOGISTIC.with_fields(
        {"metrics.no": "exp(h**2)", "metrics.loss": None, "integration.standard_error": 2e-4}
    )
    found = ap.sensitivity(problem, 1.9, field="regularizer.strength", settings=SETTINGS)
    alone = ap.sensitivity(
        problem.with_fields({"metrics.no": None}), 1.9, field="regularizer.strength", settings=SETTINGS
    )
    for name in ("metric_no", "metric_no_stderr", "d_metric_no", "d_metric_no_stderr"):
        assert np.isnan(found[name].item())
    for name in ("metric_wrong", "metric_wrong_stderr", "d_metric_wrong", "d_metric_wrong_stderr"):
        assert found[name].item() == alone[name].item()
    with pytest.raises(ProblemError, match=r"^metrics\.no grows so fast") as refused:
        ap.tune(problem, field="regularizer.strength", metric="no", alpha=[1.9], between=(0.1, 0.3))
    assert refused.value.field == "metrics.no"


BOUNDED = "tanh(h0_0 - k0_0 + 0.5*noise0_1)**2*(1 + c1) + (h1_0 - 0.4*k1_0)**2/2"
SAME = {"kind": "same", "probability": 0.7}


def test_the_loss_as_a_metric_is_the_test_error():
    """Of labels without noise; with noise it is more. By the nodes of the map and by others."""
    tokens = {"kind": "mixture", "clusters": PAIRS, "law": SAME}
    clean = BOUNDED.replace(" + 0.5*noise0_1", "")
    whole = {"tokens": tokens, "teacher": {"noise": 0.3}, "loss": {"kind": "expression", "expression": BOUNDED}}
    whole |= {"metrics": {"clean": clean, "noisy": BOUNDED}, "integration": {"standard_error": 5e-3}}
    point = ap.solve(Problem.from_dict(whole), 1.7, "semantic", settings=SolverSettings(stability=False))
    error = np.hypot(point.test_error_stderr, point.metric_clean_stderr)
    assert abs(point.metric_clean - point.test_error) < 3.5 * error
    assert error < 0.02 * point.test_error
    assert point.metric_noisy > point.metric_clean + 10 * point.metric_noisy_stderr


# --- where they are reported ------------------------------------------------------------------------------------------


def test_datasets_have_a_variable_for_each(tmp_path: Path):
    problem = Problem(metrics={"b_2": "h0_0**2", "A": "sign(h0_0*k0_0)"})
    grid = ap.sweep(problem, alpha=[1.2, 1.7], omega=[0.25], branch=("semantic",), workers=1)
    ap.save_dataset(grid, tmp_path / "grid.nc")
    loaded = ap.load_dataset(tmp_path / "grid.nc")
    xr.testing.assert_identical(loaded, grid)
    one = ap.solve(problem.with_fields({"teacher.omega": 0.25}), 1.7)
    for name in ("metric_A", "metric_b_2"):
        assert loaded[name].dims == ("branch", "omega", "alpha")
        assert bool((loaded[f"{name}_stderr"] < 5e-3 * abs(loaded[name])).all())
        assert loaded[name].attrs["ancillary_variables"] == f"{name}_stderr"
        apart = loaded[name].sel(alpha=1.7).item() - one[name].item()
        assert abs(apart) < 4 * np.hypot(loaded[f"{name}_stderr"].sel(alpha=1.7).item(), one[f"{name}_stderr"].item())
    with pytest.raises(ap.errors.DatasetError, match='"metric_B" is not part of the schema'):
        ap.validate_dataset(loaded.rename(metric_A="metric_B"))


def test_refined_sweeps_leave_metrics_out_where_they_solve_nothing():
    solved = from_points([solve_point(LOGISTIC, 1.9, "semantic", settings=SETTINGS)], {"alpha": [1.9]})
    line = line_of_parts([(np.array([1]), solved)], 3, solved)
    for name in ("metric_wrong", "metric_wrong_stderr"):
        np.testing.assert_array_equal(line[name], [np.nan, solved[name].item(), np.nan])


def test_metrics_change_no_kernel_and_no_other_problem():
    with_one = Problem(metrics={"x": "h0_0"})
    assert ModelKey.of(with_one) == ModelKey.of(Problem())
    assert with_one.hash != Problem().hash
    assert "metrics" not in Problem().to_toml()
    assert Problem.from_toml(with_one.to_toml()) == with_one
    assert with_one.with_fields({"metrics.x": None}) == Problem()
    two = Problem(metrics={"b": "1", "a": "c0"} | {"a": "k1_0"})
    assert dict(two.metrics) == {"a": "k1_0", "b": "1"}
    assert two.hash == Problem(metrics={"a": "k1_0", "b": "1"}).hash


def runs_of(problem: Problem, value: float) -> xr.Dataset:
    """Made-up runs, all metrics of which are about a value."""
    rng, sizes = np.random.default_rng(1), {"token": 2, "row": 1, "col": 1, "teacher": 1}
    columns: dict[str, Array] = {}
    for one in with_own(EXPERIMENT_VARIABLES, problem):
        shape = (1, 1, 1, 4, *(sizes[dim] for dim in one.dims))
        columns[one.name] = (0 * rng.normal(size=shape)).astype(one.dtype)
        if one.has_stderr:
            columns[one.stderr] = np.full(shape, 1e-4)
        if one.name.startswith("metric_"):
            columns[one.name] = value + 0.01 * rng.normal(size=shape)
    swept = {"start": ["semantic"], "dimension": [100], "alpha": [1.7], "seed": range(4)}
    return from_runs(problem, swept, columns, rule="lbfgs", seed=0)


def test_compared_metrics_have_one_formula():
    """Others do not keep theory and runs apart, and what else the problems have does."""
    ours = Problem(metrics={"kept": "(1 - sign(h0_0*k0_0))/2", "changed": "h0_0**2", "own": "k0_0"})
    theirs = Problem(metrics={"kept": "(1 - sign(h0_0*k0_0))/2", "changed": "h1_0**2"})
    theory = ap.solve(ours, 1.7, settings=SolverSettings(stability=False))
    found = compare(theory, runs_of(theirs, theory.metric_kept.item() + 0.5))
    (kept,) = (one for one in found.quantities if one.name.startswith("metric_"))
    assert (kept.name, kept.theory) == ("metric_kept", theory.metric_kept.item())
    assert kept.z > 20
    with pytest.raises(CompareError, match=r"regularizer\.strength"):
        compare(theory, runs_of(theirs.with_fields({"regularizer.strength": 0.02}), 0.1))


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metrics", "field", "sentence"),
    [
        ({"x": "wrong-sign"}, "metrics.x", "must be a formula of a sample's fields, but it uses the unknown name"),
        ({"x": "h9_0"}, "metrics.x", 'unknown name "h9_0": the names are h, k, noise, h0_0, h1_0, k0_0'),
        ({"x": "h0_0 +"}, "metrics.x", "is not a formula"),
        ({"x": "erf(h0_0)"}, "metrics.x", 'unknown function "erf"'),
        ({"x": "log(h0_0**2)"}, "metrics.x", "must be a finite number for all fields, but is not finite at h0_0 = 0"),
        ({"x": "c0*h0_0"}, "metrics.x", "but tokens have none"),
        ({"x": 3}, "metrics.x", "must be a formula as a text, or a function, but it is 3"),
        ({"x y": "h0_0"}, "metrics", 'the name "x y"'),
        ({"é": "h0_0"}, "metrics", "ASCII"),
        ({"x_stderr": "h0_0"}, "metrics", 'not end in "_stderr"'),
        ({f"x{i}": "1" for i in range(65)}, "metrics", "65 entries"),
        ("h0_0", "metrics", "must be a table"),
    ],
)
def test_what_is_no_metric_is_refused(metrics: Any, field: str, sentence: str):
    with pytest.raises(ProblemError, match=r"^metrics") as refused:
        Problem(metrics=metrics)
    assert refused.value.field == field
    assert sentence in str(refused.value)
    assert str(refused.value).count(". ") == 0


def test_a_cluster_in_which_a_metric_is_infinite():
    with pytest.raises(ProblemError, match=r"metrics\.x must be a finite number .* c0 = 1, c1 = 0, h0_0 = 0"):
        MIXED.with_fields({"metrics.x": "c1/(1 - c0 + c0*abs(h0_0)) + (1 - c1)/(1 - c0 + c0*h0_0**2)"})


def test_what_metrics_are_not_for():
    problem = Problem(metrics={"x": "h0_0**2"})
    with pytest.raises(ProblemError, match=r"metrics\.x cannot be swept"):
        ap.sweep(problem, alpha=[1.0], fields={"metrics.x": ["h0_0", "h1_0"]})
    with pytest.raises(ProblemError, match=r'metric must be .*not "metrics\.x"'):
        ap.tune(problem, metric="metrics.x", alpha=1.0)
    with pytest.raises(ProblemError, match=r'"metrics" is a section: set one of its keys, such as "metrics\.error"'):
        problem.with_fields({"metrics": {}})
