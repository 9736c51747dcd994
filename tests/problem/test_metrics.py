"""Metrics of the user's own: closed forms, drawn fields, stated errors, no number without a variance, derivatives.

Not public: `_fine_enough`, twice, for points that suffice by chance: its two thousand trials would be solves.
"""

from collections.abc import Callable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import xarray as xr
from calibration import assert_calibrated
from models import model
from numpy.typing import NDArray
from scipy import integrate
from scipy.stats import norm

import attnphase as ap
from attnphase.errors import CompareError, ProblemError
from attnphase.fixed_points import metric_slopes
from attnphase.state_evolution import metrics
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.system import System

Array = NDArray[np.float64]
pytestmark = pytest.mark.filterwarnings("ignore::attnphase.errors.AttnphaseWarning")
SETTINGS = ap.SolverSettings(threads=1, stability=False, identity=False)
SIGMA = 0.83
OWN = {"wrong": "(1 - sign(h*k))/2", "square": "(h - k)**2", "loss": "softplus(-sign(k)*h)"}


def logistic(own: Mapping[str, str] = OWN, **fields: Any) -> ap.Problem:
    named = {f"metrics.{name}": text for name, text in own.items()}
    return model("logistic", {"tokens.sigma": SIGMA, "regularizer.strength": 0.17, **named, **fields})


LOGISTIC = logistic()


def solved(problem: ap.Problem, alpha: float = 1.9) -> xr.Dataset:
    return ap.solve(problem, alpha, "semantic", settings=SETTINGS)


def closed_forms(ds: xr.Dataset) -> dict[str, float]:
    """Of two jointly Gaussian fields: the angle between the weights, and a second moment; one token's loss."""
    q, theta = ds.q.item(), ds.theta.item()
    angle = float(np.arccos(theta / (SIGMA * np.sqrt(q))) / np.pi)
    return {"wrong": angle, "square": q - 2 * theta + SIGMA**2, "loss": ds.test_error.item() / 2}


@pytest.mark.parametrize(("rule", "nodes", "asked"), [("sobol", 16, 2e-4), ("lines", None, 0.02)])
def test_stated_errors_of_metrics(rule: str, nodes: int | None, asked: float):
    """By few nodes of the map, whose errors they propagate, and by few points of their own."""
    exact = closed_forms(solved(LOGISTIC))
    deviations, errors = [], []
    for seed in range(16):
        changes = {"rule": rule, "nodes": nodes, "seed": seed, "standard_error": asked}
        ds = solved(LOGISTIC.with_fields({f"integration.{key}": value for key, value in changes.items()}))
        deviations.append([ds[f"metric_{name}"].item() - value for name, value in exact.items()])
        errors.append([ds[f"metric_{name}_stderr"].item() for name in exact])
    assert_calibrated(deviations, errors, 16)
    # of few nodes of the map, or of few points of the metric: the other part is below 3e-4
    assert np.sqrt((np.array(errors)[:, 0] ** 2).mean()) > 1e-3 * exact["wrong"]


def by_chance(trial: int, points: int, *stream: int) -> Array:
    """Means (16, 3, 2) about zero whose errors are about those asked for at the first number of points, and sizes."""
    rng = np.random.default_rng((trial, points, *stream))
    deviation = 4 * 1e-3 * np.sqrt(1024 / points) * np.array([1.1, 1.3])
    return np.stack([deviation * rng.normal(size=(16, 2)), np.ones((16, 2)), np.zeros((16, 2))], axis=1)


@pytest.mark.parametrize("which", ["means", "slopes"])
def test_points_that_suffice_by_chance_do_not_make_errors_small(which: str, monkeypatch: pytest.MonkeyPatch):
    """Of normal replicates; errors of the points that ended the search are a tenth too small."""
    system = System.of(logistic({"wrong": OWN["wrong"], "square": OWN["square"]}))
    overlaps = Overlaps(*(np.full((1, 1, 1), x) for x in (0.9, 1.1, 0.0, 0.45)))
    deviations, errors = [], []
    for trial in range(2000):
        if which == "means":
            monkeypatch.setattr(metrics, "metric_means", lambda *args, trial=trial: by_chance(trial, *args[3:]))
            values, rows = metrics._fine_enough(system, overlaps, 2**22)
            errors.append(np.sqrt((rows**2).sum(axis=0)))
        else:
            line = SimpleNamespace(
                family=SimpleNamespace(map_at=lambda value: SimpleNamespace(system=system)),
                value=1.0,
                size=lambda step: 1.0,
                means=lambda distance, points, trial=trial: by_chance(trial, points),
                difference=lambda step, *args, trial=trial: (by_chance(trial, *args)[:, 0], 0.0, (1.0, -1.0)),
            )
            values, _, _ = metric_slopes._fine_enough(cast("metric_slopes.Line", line), 2**22)
            errors.append(values.std(axis=0, ddof=1) / 4)
        deviations.append(values.mean(axis=0))
    assert_calibrated(deviations, errors, 16)
    assert 0.5e-3 < np.mean(errors) < 1e-3


SIGMAS, MEANS, TABLE = np.array([0.9, 0.7]), np.array([0.4, -0.5]), np.array([[0.15, 0.25], [0.2, 0.4]])
MIXTURE: dict[str, Any] = {
    "tokens.kind": "mixture",
    "tokens.clusters": [{"sigma": s, "mean": [m]} for s, m in zip(SIGMAS, MEANS, strict=True)],
    "tokens.law": {"kind": "table", "table": TABLE.tolist()},
    "tokens.mean_teacher": [[0.6]],
    "positions.kind": "none",
    "regularizer.strength": 0.3,
    "integration.standard_error": 5e-3,
}
UNTIED = model("untied", MIXTURE)
NOISY = model("noisy", MIXTURE | {"teacher.noise": 0.3})
SITES = {
    "columns and clusters": (
        UNTIED,
        {
            "attended": "(1 + sign(h0_0*(h0_1 - h1_1))*(2*c1 - 1))/2",
            "apart": "(h1_1 - k0_0)**2*(1 + c0)",
            "all": "h0_0*h0_1*c0 - h1_0",
        },
        lambda h, k, noise, c: (
            (1 + np.sign(h[:, 0, 0] * (h[:, 0, 1] - h[:, 1, 1])) * (2 * c[:, 1] - 1)) / 2,
            (h[:, 1, 1] - k[:, 0]) ** 2 * (1 + c[:, 0]),
            h[:, 0, 0] * h[:, 0, 1] * c[:, 0] - h[:, 1, 0],
        ),
    ),
    "entries of the noise": (
        NOISY,
        {"noisy": "(h1_0 - k0_0 + noise1_0)**2*(1 + c0)", "noise": "noise0_1**4 - noise0_0*noise0_1 + h0_0**2"},
        lambda h, k, noise, c: (
            (h[:, 1, 0] - k[:, 0] + noise[:, 1, 0]) ** 2 * (1 + c[:, 0]),
            noise[:, 0, 1] ** 4 - noise[:, 0, 0] * noise[:, 0, 1] + h[:, 0, 0] ** 2,
        ),
    ),
}


@pytest.mark.parametrize("name", SITES)
def test_metrics_are_means_over_drawn_fields(name: str):
    """In clusters with means along the teacher: names, sites, orders and scales."""
    problem, own, function = SITES[name]
    ds = solved(problem.with_fields({f"metrics.{key}": text for key, text in own.items()}), 1.7)
    rng, count, rank = np.random.default_rng(3), 400_000, ds.sizes["row"]
    c = np.stack(np.divmod(rng.choice(4, size=count, p=TABLE.ravel()), 2), axis=1)
    h, k = np.empty((count, 2, rank)), np.empty((count, 2))
    for token in (0, 1):
        teacher = SIGMAS[c[:, token]] * rng.normal(size=count)
        k[:, token] = teacher + 0.6 * MEANS[c[:, token]]
        for cluster in (0, 1):
            here, site = c[:, token] == cluster, ds.isel(token=token, cluster=cluster)
            slope = site.theta.to_numpy()[:, 0] / SIGMAS[cluster] ** 2
            covariance = site.q.to_numpy() - np.outer(slope, site.theta.to_numpy()[:, 0])
            drawn = rng.multivariate_normal(site.m.to_numpy(), covariance, size=here.sum())
            h[here, token] = drawn + teacher[here, None] * slope
    noise = np.sqrt(0.3) * rng.normal(size=(count, 2, 2))
    for key, samples in zip(own, function(h, k, noise, c), strict=True):
        error = np.hypot(samples.std() / np.sqrt(count), ds[f"metric_{key}_stderr"].item())
        assert abs(ds[f"metric_{key}"].item() - samples.mean()) < 4 * error < 0.05 * np.abs(samples).mean(), key


def test_metrics_of_fields_that_are_not_gaussian():
    """The density's weights count: moments of k under it by quadrature, and of h by those."""
    texts = {"metrics.own": "(h - 0.4*k)**2 + h", "metrics.cube": "k**3"}
    density = {"tokens.sigma": 1.3, "tokens.density": "1 + 0.8*tanh(2*k)"}
    ds = solved(model("square", {"regularizer.strength": 0.3, **density, **texts}))

    def weighted(power: int) -> float:
        def of(k: float) -> float:
            return (1 + 0.8 * np.tanh(2 * k)) * k**power * norm.pdf(k, scale=1.3)

        return integrate.quad(of, -13, 13)[0]

    first, second, third = (weighted(power) for power in (1, 2, 3))
    m, q, theta = (ds[name].item() for name in ("m", "q", "theta"))
    slope = theta / 1.69
    own = m**2 + 2 * m * (slope - 0.4) * first + (slope - 0.4) ** 2 * second + q - theta * slope + m + slope * first
    assert abs(ds.metric_own.item() - own) < 4 * ds.metric_own_stderr.item() + 1e-6 * own < 0.01 * own
    assert abs(ds.metric_cube.item() - third) < 4 * ds.metric_cube_stderr.item() < 0.05 * third


def squares(*factors: tuple[str, float], before: str = "") -> dict[str, str]:
    """Exponentials of c x^2 for fields x of some variances, just with a variance (4 c var(x) < 1) and just without."""
    return {
        f"{x}_{verdict}": f"{before}exp({share / (4 * variance)}*{x}**2)"
        for x, variance in factors
        for verdict, share in (("has", 0.9), ("not", 1.1))
    }


@cache
def size() -> float:
    return solved(logistic({})).q.item()


FAR = "exp(h**2)*(1 + sign(h - 17))"
HAS = {"exp_has": "exp(3*abs(h))", "power_has": "h**24", "far_has": "relu(abs(h) - 2)", "zero_has": "0*h"}
HAS |= {"tanh_has": "tanh(exp(h**2))", "scale_has": "1e-200*h", "apart_not": "exp(h**2 - 4*k**2)"}
LIMIT = 3 / (8 * SIGMA**2) - 0.3  # points of a density exp(a k^2) are wider, and weights fall: 8 (a + c) var < 3
DENSITY = {"tokens.density": f"{np.sqrt(1 - 0.6 * SIGMA**2)}*exp(0.3*k**2)"}
UNDER = {"k_has": f"exp({0.95 * LIMIT}*k**2)", "k_not": f"exp({1.05 * LIMIT}*k**2)"}
FROM = {"square_not": "exp(h**2)", "line_not": "exp(2*h)", "power_has": "h**2*k**4"}
WITHOUT: dict[str, Callable[[], tuple[ap.Problem, dict[str, str]]]] = {
    "of one token": lambda: (logistic({}), squares(("h", size()), ("k", SIGMA**2)) | HAS),
    "far out": lambda: (
        logistic({}),
        {
            "cut_not": FAR,
            "cut_has": f"exp({0.2 / size()}*h**2)*(1 + sign(h - 17))",
            "below_has": "exp(-h**2)*sign(h - 20)",
            "sum_not": "tanh(h) + exp(k**2)",
        },
    ),
    "in one cluster, of one column": lambda: (
        UNTIED,
        squares(("h1_1", solved(UNTIED, 1.7).q[1, 1, 1, 1].item()), before="c1*") | squares(("k0_0", 0.81)),
    ),
    "of the noise": lambda: (NOISY, squares(("noise1_0", 0.3))),
    "under a density": lambda: (logistic({}, **DENSITY), UNDER),
    "of a sampler": lambda: (logistic({}, **{"tokens.sampler": "k + k**3/10"}), FROM),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_metrics_without_a_variance_have_no_number(name: str):
    """Whatever they grow with; and those that only grow as fast on the way have one."""
    problem, own = WITHOUT[name]()
    alpha = 1.9 if problem.tokens.length == 1 else 1.7
    ds = solved(problem.with_fields({f"metrics.{key}": text for key, text in own.items()}), alpha)
    for key in own:
        found = np.array([ds[f"metric_{key}"].item(), ds[f"metric_{key}_stderr"].item()])
        assert np.isnan(found).all() if key.endswith("_not") else np.isfinite(found).all(), key


@pytest.mark.parametrize(
    ("far", "steep", "field"), [(35.0, 8.0, "h"), (3.3, 0.4, "k"), (58.0, 310.0, "k"), (12, 40, "h")]
)
def test_bounded_metrics_have_a_number_however_far_out_they_change(far: float, steep: float, field: str):
    """A share of wrong labels under a margin of so many deviations is ``Phi(-margin)``."""
    deviation = SIGMA if field == "k" else np.sqrt(size())
    margin = f"({field} - {far * deviation})"
    formulas = {
        "step": f"(1 + sign({margin}))/2",
        "sigmoid": f"sigmoid({steep}*{margin})**2",
        "square": f"relu({margin})**2",
        "ramp": f"exp(-relu(-{15 / deviation}*{margin}))",
        "log": f"log(1 + relu({margin}))*(1 + sign({margin}))",
    }
    ds = solved(logistic(formulas))
    assert all(np.isfinite([ds[f"metric_{key}"], ds[f"metric_{key}_stderr"]]).all() for key in formulas)
    assert abs(ds.metric_step.item() - norm.sf(far)) <= 4 * ds.metric_step_stderr.item() < 1e-3


def test_a_metric_without_a_variance_leaves_the_others_as_they_are():
    """It has no derivative and no minimum either; next to the limit it has no number instead of no error."""
    fine = {"integration.standard_error": 2e-4}
    some = {"wrong": OWN["wrong"], "square": OWN["square"]}
    found, alone = (
        ap.sensitivity(logistic(own, **fine), 1.9, field="regularizer.strength", settings=SETTINGS)
        for own in (some | {"no": "exp(h**2)"}, some)
    )
    for name in ("metric_no", "metric_no_stderr", "d_metric_no", "d_metric_no_stderr"):
        assert np.isnan(found[name].item())
    for name in ("metric_wrong", "metric_wrong_stderr", "d_metric_wrong", "d_metric_wrong_stderr"):
        assert found[name].item() == alone[name].item()
    nearly = solved(logistic({"next": f"exp({0.9999 / (4 * size())}*h**2)"}))
    assert np.isnan([nearly.metric_next, nearly.metric_next_stderr]).all()
    with pytest.raises(ProblemError, match=r"^metrics\.no grows so fast"):
        ap.tune(logistic({"no": "exp(h**2)"}), field="regularizer.strength", metric="no", alpha=1.9, between=(0.1, 0.3))


@pytest.mark.parametrize("field", ["alpha", "regularizer.strength", "tokens.sigma"])
def test_derivatives_of_metrics_have_closed_forms(field: str):
    """Sigma stands in the law of samples too, so that a derivative in the overlaps alone is another."""
    ds = ap.sensitivity(LOGISTIC, 1.9, field=field, settings=SETTINGS)
    q, theta, dq, dtheta = (ds[name].item() for name in ("q", "theta", "d_q", "d_theta"))
    widened = float(field == "tokens.sigma")
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


def test_the_derivative_in_a_number_of_the_metric_alone():
    """It is that of the mean at fixed overlaps: the loss has this number times zero."""
    clusters = [{"sigma": 0.8}, {"sigma": 1.1}]
    fields = {"tokens.clusters": clusters, "loss.parameters.line": 1.3, "metrics.power": "line**2*h**2 + line*k**2"}
    ds = ap.sensitivity(model("terms", fields), 1.9, field="loss.parameters.line", settings=SETTINGS)
    weights, variances = np.array([0.4, 0.6]), np.array([0.64, 1.21])
    expected = 2 * 1.3 * (weights @ (ds.q.to_numpy().ravel() + ds.m.to_numpy().ravel() ** 2)) + weights @ variances
    assert np.abs(ds.d_q).max() < 1e-9
    assert abs(ds.d_metric_power.item() - expected) < 4 * ds.d_metric_power_stderr.item() + 1e-6 * expected
    assert ds.d_metric_power_stderr < 0.01 * expected


def test_stated_errors_of_derivatives():
    """By few nodes of the map and few points of the metrics."""
    names, deviations, errors = ["d_metric_square", "d_metric_loss"], [], []
    exact = ap.sensitivity(LOGISTIC.with_fields({"integration.standard_error": 1e-4}), 1.9, "alpha", settings=SETTINGS)
    for seed in range(12):
        changes = {"rule": "sobol", "nodes": 16, "seed": seed, "standard_error": 2e-2}
        problem = LOGISTIC.with_fields({f"integration.{key}": value for key, value in changes.items()})
        found = ap.sensitivity(problem, 1.9, "alpha", settings=SETTINGS)
        deviations.append([found[name].item() - exact[name].item() for name in names])
        errors.append([found[f"{name}_stderr"].item() for name in names])
    assert_calibrated(deviations, errors, 12)


def test_the_best_value_of_a_field_for_a_metric():
    """The angle is smaller there than at its neighbours, and is what is stated."""
    problem = logistic({"wrong": OWN["wrong"]}, **{"integration.standard_error": 5e-3})
    best = ap.tune(problem, metric="wrong", alpha=1.9, between=(0.004, 0.1), settings=SETTINGS).squeeze()
    assert best.status == 0
    at = best.optimum.item()
    low, least, high = (
        closed_forms(solved(logistic({}, **{"regularizer.strength": x})))["wrong"] for x in (at / 2.5, at, at * 2.5)
    )
    assert least < min(low, high)
    assert best.metric.item() == pytest.approx(least, abs=4 * best.metric_stderr.item())
    assert best.metric_stderr < 0.02 * least


def test_metrics_are_compared_that_have_one_formula():
    """Others do not keep theory and runs apart, and what else the problems have does."""
    theory = solved(logistic({"kept": "(1 - sign(h*k))/2", "changed": "h**2", "own": "k"}))
    theirs = logistic({"kept": "(1 - sign(h*k))/2", "changed": "h**4"})
    runs = ap.simulate(theirs, 1.9, start="semantic", dimension=[40], seeds=2)
    found = ap.compare(theory, runs).text()
    assert "metric_kept" in found
    assert "metric_changed" not in found
    other = ap.solve(logistic({}, **{"regularizer.strength": 0.2}), 1.9, "semantic")
    with pytest.raises(CompareError, match=r"regularizer\.strength"):
        ap.compare(other, runs)
