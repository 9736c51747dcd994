"""What training runs draw and how it is measured: runs that stay where they start, against other quadratures."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import xarray as xr
from calibration import assert_calibrated
from models import MIXTURE
from scipy.special import log_expit, softmax
from still_runs import attention, fitted, quadrature, still, weights_for

pytest.importorskip("torch", reason="experiments need PyTorch")

import attnphase as ap

PAPER = ap.Problem.paper(omega=0.27)
GRAM = [[1.1, 0.2, -0.3], [0.2, 0.7, 0.1], [-0.3, 0.1, 0.9]]
THREE = {"tokens.length": 3, "tokens.sigma": [0.5, 0.7, 0.4], "teacher.mixing": None, "student.causal": True}
CAUSAL = PAPER.with_fields(THREE | {"positions.kind": "gram", "positions.gram": GRAM})
LEVELLED = PAPER.with_fields({"tokens.spectrum": {"kind": "two-level", "variances": [0.9, 0.12], "fraction": 0.25}})
BARE = PAPER.with_fields(MIXTURE | {"positions.kind": "none"})
ONE: dict[str, Any] = {"tokens.length": 1, "teacher.mixing": None, "positions.kind": "none"}
SAME = {(0, 0): 0.4, (0, 1): 0.1, (1, 0): 0.1, (1, 1): 0.4}


def by_formula(text: str, **fields: Any) -> ap.Problem:
    """A problem whose loss is a formula."""
    return ap.Problem().with_fields({"loss.kind": "expression", "loss.expression": text, **fields})


ATTENTION = {
    "the paper's": PAPER,
    "untied": PAPER.with_fields({"student.tied": False}),
    "two columns each": PAPER.with_fields({"student.rank": 2, "teacher.rank": 2}),
    "three tokens, causal": CAUSAL,
    "a sigmoid with a temperature": PAPER.with_fields({"student.score": "sigmoid", "student.temperature": 0.6}),
    "anisotropic tokens": LEVELLED,
    "a mixture": BARE,
    "outputs": PAPER.with_fields({"loss.kind": "values", "loss.width": 2}),
}
KNOWN = "softplus((1 - 2*c0)*h0_0) + (h1_0 - (c1 - 0.3*c0)*k1_0)**2/2"
HALVES: dict[str, tuple[ap.Problem, Any]] = {
    **{name: (problem, attention(problem)) for name, problem in ATTENTION.items()},
    "a logistic loss": (
        ap.Problem().with_fields({**ONE, "loss.kind": "logistic", "regularizer.strength": 0.2}),
        lambda h, k, *_: -log_expit(np.sign(k) * h)[:, 0, 0],
    ),
    "known clusters": (
        by_formula(KNOWN, **MIXTURE | {"positions.kind": "none"}),
        lambda h, k, c, _: (
            -log_expit((2 * c[0] - 1) * h[:, 0, 0]) + (h[:, 1, 0] - (c[1] - 0.3 * c[0]) * k[:, 1, 0]) ** 2 / 2
        ),
    ),
}


@pytest.mark.parametrize("name", HALVES)
def test_test_errors_are_those_of_the_formula_of(name):
    """At a dimension of 50 000, where the encodings' own share of a token is nothing."""
    problem, formula = HALVES[name]
    shape: Any = {"dimension": 50_000, "seeds": 2, "alpha": 2e-4}
    runs = still(problem, weights_for(problem, 50_000), **shape).squeeze("start")
    teacher = still(problem, "semantic", **shape).squeeze("start")
    law = SAME if problem.tokens.kind == "mixture" else {(0,) * problem.tokens.length: 1.0}
    for s in range(2):
        expected = (
            2 / problem.tokens.length * quadrature(problem, formula, runs.isel(seed=s), teacher.isel(seed=s), law)
        )
        assert runs["test_error"][s].item() == pytest.approx(expected, rel=4e-3)


def bent(k: Any, c: Any) -> tuple[Any, Any]:
    return k + 0.03 * (1 + c[0]) * (k + k[:, ::-1]) ** 3, np.ones(len(k))


def tilted(k: Any, c: Any) -> tuple[Any, Any]:
    return k, 1 + (c[0] - c[1]) * np.tanh(k[:, 0, 0] - k[:, 1, 0]) * 0.6


PAIRED = by_formula(
    "(h[0, 0] + h[1, 0]/2 - tanh(k[0, 0]) + k[1, 0]/3 - 0.2*c[0])**2/2",
    **{"tokens.kind": "mixture", "tokens.clusters": [{"sigma": 0.9, "mean": [-0.4]}, {"sigma": 1.3, "mean": [0.7]}]},
    **{"tokens.law": {"kind": "independent", "weights": [0.6, 0.4]}, "positions.kind": "none"},
    **{"metrics.product": "h[0, 0]*k[0, 0] - k[1, 0]**2 + c[1]*h[1, 0]"},
)
ALONE = by_formula("(h - tanh(k) - 0.4)**2/2", **ONE, **{"tokens.sigma": 0.9, "metrics.product": "h*k"})
BEND, TILT = "k + bend*(1 + c[0])*(k + k[::-1])**3", "1 + (c[0] - c[1])*tanh(k[0, 0] - k[1, 0])*tilt"
APART = {(0, 0): 0.36, (0, 1): 0.24, (1, 0): 0.24, (1, 1): 0.16}


def under(problem: ap.Problem, sampler: str | None, density: str | None, **numbers: float) -> ap.Problem:
    return problem.with_fields({"tokens.sampler": sampler, "tokens.density": density, "tokens.parameters": numbers})


LAWS: dict[str, tuple[ap.Problem, Any, Mapping[Any, float]]] = {
    "Gaussian fields of clusters": (PAIRED, None, APART),
    "a density that tells tokens apart": (under(PAIRED, None, TILT, tilt=0.6), tilted, APART),
    "a sampler that couples tokens": (under(PAIRED, BEND, None, bend=0.03), bent, APART),
    "a density of fields that a sampler made": (
        under(PAIRED, BEND, TILT, bend=0.03, tilt=0.6),
        lambda k, c: tilted(bent(k, c)[0], c),
        APART,
    ),
    "signs, of which one is likelier": (
        under(ALONE, "sign(k)", "1 + b*k", b=0.6),
        lambda k, _: (np.sign(k), 1 + 0.6 * np.sign(k[:, 0, 0])),
        {(0,): 1.0},
    ),
}


@pytest.mark.parametrize("name", LAWS)
def test_losses_and_metrics_of_students_are_those_under(name):
    """Of the training samples, of fresh ones and of the quadrature of `simulate`, by a quadrature of one's own."""
    problem, own, law = LAWS[name]

    def loss(h: Any, k: Any, c: Any, _: Any) -> Any:
        rest = h[:, 0, 0] - np.tanh(k[:, 0, 0])
        return (rest + (h[:, 1, 0] / 2 + k[:, 1, 0] / 3 - 0.2 * c[0] if len(c) > 1 else -0.4)) ** 2 / 2

    def metric(h: Any, k: Any, c: Any, _: Any) -> Any:
        return h[:, 0, 0] * k[:, 0, 0] - (k[:, 1, 0] ** 2 - c[1] * h[:, 1, 0] if len(c) > 1 else 0)

    length, start = problem.tokens.length, "semantic=0.8,noise=0.5"
    runs = still(problem, start, 40, 2, test_samples=4000).squeeze("start")
    teacher = still(problem, "semantic", 40, 2, 0.1).squeeze("start")
    for s in range(2):
        run = runs.isel(seed=s)
        mean, of_metric = (quadrature(problem, f, run, teacher.isel(seed=s), law, own) for f in (loss, metric))
        error, own_error = (run[f"test_error{kind}_stderr"].item() * length / 2 for kind in ("_sampled", ""))
        assert run["metric_product"].item() == pytest.approx(of_metric, abs=4 * run["metric_product_stderr"].item())
        assert run["test_error"].item() * length / 2 == pytest.approx(mean, abs=4 * own_error + 5e-3 * mean)
        assert run["test_error_sampled"].item() * length / 2 == pytest.approx(mean, abs=4 * error)
        assert fitted(problem, runs)[s] == pytest.approx(mean, abs=4 * error)  # of as many training samples


NOISY = {  # what noise adds to the mean loss
    "noise on labels": (PAPER.with_fields({"teacher.noise": 0.3, "tokens.sigma": [0.5, 0.8]}), 0.3 * (0.25 + 0.64)),
    "noise on labels of a mixture": (
        PAPER.with_fields(MIXTURE | {"teacher.noise": 0.07}),
        0.07 * (0.45**2 + 0.6**2 + (0.7**2 + 0.4**2) / 18),
    ),
}


@pytest.mark.parametrize("name", [*HALVES, *NOISY])
def test_training_risk_and_test_errors_are_those_of_the_same_law(name):
    """At a dimension where the limit's formula would be wrong by many standard errors."""
    problem, gain = (HALVES[name][0], 0.0) if name in HALVES else NOISY[name]
    length = problem.tokens.length
    runs = still(problem, weights_for(problem, 18), 18, 12, test_samples=6000).squeeze("start")
    exact, sampled = runs["test_error"].to_numpy(), runs["test_error_sampled"].to_numpy()
    errors = runs["test_error_sampled_stderr"].to_numpy()
    assert (np.abs(exact - sampled) < 4 * np.hypot(errors, runs["test_error_stderr"])).all()
    rest = fitted(problem, runs) - length / 2 * exact
    assert abs(rest.mean() - gain) < 4 * rest.std(ddof=1) / math.sqrt(12)
    assert rest.std(ddof=1) < 0.3 * (length / 2 * exact.mean() + gain)
    assert (runs["test_error_stderr"] < errors).all()


def test_fresh_samples_are_not_those_of_training():
    runs = still(PAPER, weights_for(PAPER, 18), 18, 3, 2.0, test_samples=36)
    assert (np.abs(fitted(PAPER, runs, 2.0) / runs["test_error_sampled"] - 1) > 1e-6).all()


@pytest.mark.parametrize("name", [*HALVES, *NOISY])
def test_a_step_lowers_the_risk_by_its_rate_times_the_gradient_s_square(name):
    """Risks at both ends of a short step of gradient descent, by Richardson's extrapolation to steps of no length."""
    problem = HALVES[name][0] if name in HALVES else NOISY[name][0]
    start = weights_for(problem, 24, 2)
    here = still(problem, start, 24, 2, 2.0)
    falls = []
    for rate in (2e-4, 1e-4):
        there = still(problem, start, 24, 2, 2.0, learning_rate=rate)
        falls.append(((here["training_loss"] - there["training_loss"]) / rate).to_numpy().ravel())
    np.testing.assert_allclose(2 * falls[1] - falls[0], here["gradient_norm"].to_numpy().ravel() ** 2, rtol=1e-5)


def test_encodings_means_and_spectra_are_exactly_those_of_the_problem():
    """Three columns along principal directions see all products of three encodings; constant weights see variances."""
    problem = CAUSAL.with_fields({"student.rank": 3})
    m = still(problem, "positional", 50, 2, 1.0)["m"].squeeze("start").to_numpy()
    np.testing.assert_allclose(50 * m @ m.mT, [GRAM] * 2, atol=1e-12)
    m = still(BARE, "positional", 50, 2, 1.0)["m"].squeeze("start").to_numpy()[..., 0]
    expected = np.outer([0.7, -0.4], [0.7, -0.4])
    np.testing.assert_allclose(50 * m[..., None] * m[..., None, :], [[expected] * 2] * 2, atol=1e-12)
    assert still(PAPER, "positional", 50, 2, 1.0)["weight_norm"].to_numpy() == pytest.approx(1 / 50, rel=1e-12)
    q = still(LEVELLED, np.ones((41, 1)), 41, 2, 1.0)["q"].to_numpy()
    np.testing.assert_allclose(q, (10 * 0.9 + 31 * 0.12) / 41, rtol=1e-12)


def test_teachers_have_the_law_of_their_entries():
    """Whose sizes students show that start there; normal teachers are the same whether a law is named."""
    kink = {"regularizer.kind": "lasso", "regularizer.strength": 5.0}  # zeros stay zeros
    sparse = kink | {"teacher.prior": "gauss-bernoulli", "teacher.rank": 2, "student.rank": 2}
    signs, some, whole, plain = (
        still(PAPER.with_fields(fields), "semantic", 400, 40, 0.1)
        for fields in (
            {"teacher.prior": "rademacher"},
            sparse | {"teacher.prior_density": 0.3},
            sparse | {"teacher.prior_density": 1.0},
            kink | {"teacher.rank": 2, "student.rank": 2},
        )
    )
    np.testing.assert_allclose(signs["q"], 0.25, rtol=1e-12)
    assert some["density"].to_numpy() == pytest.approx(0.3, abs=4 * math.sqrt(0.21 / 800))
    assert some["weight_norm"].to_numpy() == pytest.approx(2.0, abs=4 * math.sqrt(2 * 9 / 400))
    both = some["q"][0, :, 0, 0, 1].to_numpy() / 0.25
    assert 400 * (both**2).mean() == pytest.approx(1.0, abs=4 * math.sqrt(2 / 40))  # each column for itself
    np.testing.assert_array_equal(whole["q"], plain["q"])
    np.testing.assert_allclose(plain["q"], plain["theta"], rtol=1e-8)


def test_starts_are_the_papers():
    """Teacher and unit encoding, normal numbers of deviation .1 where neither has a direction, or what is given."""
    problem, alone = (PAPER.with_fields({"student.rank": rank, "tokens.sigma": 1.0}) for rank in (2, 1))
    starts = ["semantic", "mixed", "positional", "uninformed", "semantic=0.5,noise=0.3"]
    q = still(problem, starts, 800, 6, 0.1)["q"].isel(token=0)
    teacher = still(alone, "semantic", 800, 6, 0.1)["q"].isel(token=0).to_numpy().ravel()
    size = {start: np.diagonal(q.sel(start=start).to_numpy(), axis1=1, axis2=2) for start in starts}
    for start in ("semantic", "mixed"):
        np.testing.assert_allclose(size[start][:, 0], teacher, rtol=1e-12)
    for one in (size["mixed"][:, 1], size["positional"][:, 0]):
        np.testing.assert_allclose(one, 1 / 800, rtol=1e-12)
    for one in (size["semantic"][:, 1], size["positional"][:, 1], *size["uninformed"].T):
        assert one == pytest.approx(0.01, abs=5 * 0.01 * math.sqrt(2 / 800))
    assert size[starts[-1]].mean(axis=0) == pytest.approx([0.25 * teacher.mean() + 0.09, 0.09], abs=0.02)
    given = np.arange(1600.0).reshape(800, 2)
    np.testing.assert_allclose(still(problem, given, 800, 2, 0.1)["q"][0, 1, 1], given.T @ given / 800, rtol=1e-12)


def test_the_stated_error_of_a_test_error_is_its_scatter():
    """About ``rho - 2 theta + q`` of labels ``k``, by the quadratures of 32 seeds; shares of wrong signs too."""
    problem = ap.Problem().with_fields(
        {**ONE, "tokens.sigma": 0.8, "loss.kind": "square", "teacher.prior": "rademacher"}
    )
    problem = problem.with_fields({"metrics.wrong": "(1 - sign(h*k))/2", "metrics.never": "(1 + sign(h*k - 40))/2"})
    runs = xr.concat(
        [still(problem, "semantic=0.7,noise=0.9", 30, 1, 1.0, seed=seed) for seed in range(32)], "draw"
    ).squeeze()
    q, theta = runs["q"].to_numpy(), runs["theta"].to_numpy()
    exact = {"test_error": 0.64 - 2 * theta + q, "metric_wrong": np.arccos(theta / np.sqrt(0.64 * q)) / np.pi}
    for name, values in exact.items():
        scale = values.mean() / values  # errors grow with the value
        assert_calibrated((runs[name] - values) * scale, runs[f"{name}_stderr"] * scale, 8)
    assert (runs["metric_never"] == 0).all()
    assert ((runs["metric_never_stderr"] > 1e-6) & (runs["metric_never_stderr"] < 1e-3)).all()  # no node jumps


@pytest.mark.parametrize("noise", [0.0, 0.4], ids=["labels without noise", "labels with noise"])
def test_the_linear_predictor_is_least_squares(noise):
    """Result 5.1: its error is the scatter of the attention about its mean, and the mean's own, made of n samples."""
    problem = CAUSAL.with_fields({"teacher.noise": noise, "teacher.prior": "rademacher"})
    runs = still(problem, "semantic", 600, 48, 1 / 30)  # n = 20
    sigma = np.array([0.5, 0.7, 0.4])
    k = sigma[:, None] * np.random.default_rng(4).standard_normal((400_000, 3, 1))
    scatter = (0.73 * softmax(k @ k.mT, axis=-1)).var(axis=0)
    found = runs["linear_test_error"].to_numpy().ravel()
    expected = ((scatter + (scatter + noise) / 20) @ sigma**2).sum() / 3
    assert abs(found.mean() - expected) < 4 * found.std(ddof=1) / math.sqrt(48)
