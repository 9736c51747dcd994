"""The best constant, pooled, positional and linear predictors, against closed forms and least squares on samples."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

import attnphase as ap
from attnphase.errors import ProblemError
from attnphase.problem.problem import Problem
from attnphase.spectrum.measure import Spectrum
from attnphase.state_evolution import predictors
from attnphase.state_evolution.axes import matrix_root
from attnphase.state_evolution.predictors import BestPredictor, PredictorKind, best_predictor
from tests.numeric.test_stated_errors import assert_calibrated

Array = NDArray[np.float64]


def explained(moments: Array, with_label: Array) -> float:
    """Of the label's variance, by coordinates with such covariances."""
    return float(with_label @ np.linalg.lstsq(moments, with_label, rcond=1e-12)[0])


def assert_right(found: BestPredictor, exact: float, error: float = 0.0, most: float = 2e-3):
    assert abs(found.error - exact) < 4 * np.hypot(found.standard_error, error)
    assert np.hypot(found.standard_error, error) < most * exact


# --- closed forms -----------------------------------------------------------------------------------------------------

SIGMAS, MEANS, WEIGHTS, NOISE, OVERLAPS = (0.8, 1.3), (0.4, 1.7), (0.5, 0.3, 0.2), 0.15, (0.6, 0.35)
SPIKED = Problem.from_dict(
    {
        "tokens": {
            "kind": "mixture",
            "length": 3,
            "clusters": [{"sigma": s, "mean": [m]} for s, m in zip(SIGMAS, MEANS, strict=True)],
            "law": {"kind": "single-location", "weights": WEIGHTS},
            "mean_teacher": [[one] for one in OVERLAPS],
        },
        "teacher": {"rank": 2, "noise": NOISE},
        "loss": {"kind": "expression", "expression": "(h0_0 - k0_0 - noise0_0)**2/2"},
    }
)
SPIKED_LABEL = "c @ k[:, 1] + 0.7*c[0] - 0.4*k[1, 0] + noise[1, 2]"


def spiked_errors() -> dict[str, float]:
    """From the moments of all tokens along both columns and the rest of the spike."""
    spike = np.array([*OVERLAPS, np.sqrt(1 - sum(one**2 for one in OVERLAPS))])
    xx, xy, x, y, yy = np.zeros((9, 9)), np.zeros(9), np.zeros(9), 0.0, NOISE
    for relevant, p in enumerate(WEIGHTS):
        c = np.eye(3)[relevant].astype(int)
        mean = np.outer(np.array(MEANS)[c], spike).ravel()
        covariance = np.diag(np.repeat(np.array(SIGMAS)[c] ** 2, 3))
        slope = np.zeros((3, 3))
        slope[relevant, 1], slope[1, 0] = 1.0, -0.4
        value = slope.ravel() @ mean + 0.7 * c[0]
        x, y = x + p * mean, y + p * value
        xx += p * (covariance + np.outer(mean, mean))
        xy += p * (covariance @ slope.ravel() + mean * value)
        yy += p * (slope.ravel() @ covariance @ slope.ravel() + value**2)
    variance, xy, xx = yy - y**2, xy - x * y, xx - np.outer(x, x)
    pool = np.tile(np.eye(3), 3)
    pooled = explained(pool @ xx @ pool.T, pool @ xy)
    return {"constant": variance, "pooled": variance - pooled, "linear": variance - explained(xx, xy)}


@pytest.mark.parametrize("kind", ["constant", "pooled", "linear"])
def test_tokens_with_a_spike(kind: PredictorKind):
    """Of clusters that differ in sigma, at unequal locations; the spike overlaps with both columns of the teacher."""
    errors = spiked_errors()
    assert errors["linear"] < 0.97 * errors["pooled"] < 0.9 * errors["constant"]
    assert_right(best_predictor(SPIKED, SPIKED_LABEL, kind), errors[kind])


COLUMNS = np.array([[0.7, -0.4], [0.2, 0.9], [-1.1, 0.3]])
GAUSSIAN = Problem.from_dict(
    {
        "tokens": {"length": 3, "spectrum": {"kind": "power-law", "exponent": 1.3, "variance": 0.6, "atoms": 5}},
        "positions": {"teacher": [[0.3, -0.2], [-0.2, 0.1], [-0.1, 0.1]]},
        "teacher": {"rank": 2, "noise": NOISE},
        "loss": {
            "kind": "expression",
            "expression": "(a*h0_0 - b*k0_0 - noise0_0)**2/2",
            "parameters": {"a": 1, "b": 0.7},
        },
    }
)


def gaussian_label(k: Any, noise: Any, b: Any) -> Any:
    return (COLUMNS * k).sum() / 0.7 * b + noise[0, 0] + k[0, 0] * k[1, 1]


@pytest.mark.parametrize("kind", ["constant", "pooled", "positional", "linear"])
def test_gaussian_tokens(kind: PredictorKind):
    """Of one covariance, where the best positional predictor is a singular vector; encodings do not matter."""
    rho = Spectrum.of(GAUSSIAN).rho[0]
    slopes = COLUMNS @ matrix_root(rho)
    rest = NOISE + rho[0, 0] * rho[1, 1]
    shares = {
        "constant": 0.0,
        "pooled": (slopes.sum(axis=0) ** 2).sum() / 3,
        "positional": np.linalg.svd(slopes)[1][0] ** 2,
        "linear": (slopes**2).sum(),
    }
    exact = rest + shares["linear"] - shares[kind]
    assert_right(best_predictor(GAUSSIAN, gaussian_label, kind), exact)
    assert shares["pooled"] < 0.5 * shares["positional"] < 0.45 * shares["linear"]


@pytest.mark.parametrize("at", [0.5, 0.0])
@pytest.mark.parametrize("kind", ["constant", "linear"])
def test_a_label_that_jumps(kind: PredictorKind, at: float):
    """In a single field; at zero all scramblings of Sobol points have half of their points on each side."""
    sigma = 0.8
    problem = Problem.from_dict({"tokens": {"length": 1, "sigma": sigma}, "loss": {"kind": "square"}})
    exact = 1 - float(2 * stats.norm.cdf(at / sigma) - 1) ** 2
    if kind == "linear":
        exact -= float(2 * stats.norm.pdf(at / sigma)) ** 2
    found = best_predictor(problem, f"sign(k + {at})", kind)
    assert_right(found, exact, most=3e-3)
    assert found.standard_error > 2e-4


# --- least squares in all coordinates of finite d, for each of which the measure has an atom --------------------------

DIMENSION, SAMPLES = 11, 200_000
CHANCES = np.array([[0.12, 0.08], [0.13, 0.67]])


class Geometry(NamedTuple):
    """Variances and ``sqrt(d)`` means of the sites, ``sqrt(d)`` encodings, and the teacher, by coordinate."""

    gamma: Array
    means: Array
    positions: Array
    teacher: Array


def geometry() -> Geometry:
    """Covariances that commute and have nothing else in common; every vector has components of its own."""
    random = np.random.default_rng(11)
    gamma = 4.0 * random.uniform(size=(DIMENSION, 4)) ** 3 * [1.0, 0.3, 0.8, 0.2]
    gamma[:2, :2] = 0.0  # on two coordinates the first token has no variance in either cluster, but two means
    means, positions, teacher = (0.9 * random.normal(size=(DIMENSION, count)) for count in (4, 2, 2))
    return Geometry(gamma, means, positions, teacher)


def problem_of(own: Geometry, density: str | None = None) -> Problem:
    tokens = {"kind": "mixture", "clusters": [[{}] * 2] * 2, "law": {"kind": "table", "table": CHANCES.tolist()}}
    tokens["spectrum"] = [
        {"weight": 1 / DIMENSION, "variances": v, "means": m, "positions": p, "teacher": t}
        for v, m, p, t in zip(*(x.tolist() for x in own), strict=True)
    ]
    return Problem.from_dict(
        {
            "tokens": tokens | ({} if density is None else {"density": density}),
            "positions": {"kind": "spectrum"},
            "teacher": {"rank": 2, "noise": NOISE},
            "loss": {"kind": "expression", "expression": "(h0_0 - k0_0 - noise0_0)**2/2"},
        }
    )


@pytest.mark.parametrize("kind", ["constant", "pooled", "linear"])
def test_least_squares_in_all_coordinates(kind: PredictorKind):
    """Of a label that is linear given the clusters, so that all moments of the tokens are known."""
    own, size = geometry(), 2 * DIMENSION
    xx, xy, x, y, yy = np.zeros((size, size)), np.zeros(size), np.zeros(size), 0.0, NOISE
    for (first, second), p in np.ndenumerate(CHANCES):
        sites = [first, 2 + second]
        mean = (own.means.T[sites] / np.sqrt(DIMENSION)).ravel()
        columns = np.array([[1.0, 0.5 * first], [-0.8 * second, 0.7]])
        slope = (columns @ own.teacher.T / np.sqrt(DIMENSION)).ravel()
        covariance = np.diag(own.gamma.T[sites].ravel())
        value = slope @ mean + 0.9 * second
        mean += (own.positions.T / np.sqrt(DIMENSION)).ravel()
        x, y = x + p * mean, y + p * value
        xx += p * (covariance + np.outer(mean, mean))
        xy += p * (covariance @ slope + mean * value)
        yy += p * (slope @ covariance @ slope + value**2)
    variance, xy, xx = yy - y**2, xy - x * y, xx - np.outer(x, x)
    pool = {"constant": np.zeros((1, size)), "pooled": np.tile(np.eye(DIMENSION), 2), "linear": np.eye(size)}[kind]
    exact = variance - explained(pool @ xx @ pool.T, pool @ xy)
    label = "k0_0 + c0*k0_1/2 - 0.8*c1*k1_0 + 0.7*k1_1 + 0.9*c1 + noise1_0"
    assert_right(best_predictor(problem_of(own), label, kind), exact, most=3e-4)


LABELS = {
    "a jump": "sign(k0_0 + k1_1/2 - 0.3)*(1 + c1) + k0_1",
    "curved": "c0*tanh(2*k1_0) + k0_1*k1_1/2 + 2*c1*noise0_1*k0_0",
}


def drawn(own: Geometry, weighted: bool) -> tuple[str | None, Array, Array, NDArray[np.int64], Array]:
    """A density, and samples: tokens x + p, fields k, clusters c and weights."""
    random = np.random.default_rng(12)
    chosen = random.choice(4, size=SAMPLES, p=CHANCES.ravel())
    c = np.stack([chosen // 2, chosen % 2], axis=1)
    sites = c + np.array([0, 2])
    x = np.sqrt(own.gamma.T[sites]) * random.normal(size=(SAMPLES, 2, DIMENSION))
    apart = x @ own.teacher / np.sqrt(DIMENSION)
    x += own.means.T[sites] / np.sqrt(DIMENSION)
    k = x @ own.teacher / np.sqrt(DIMENSION)
    x += own.positions.T / np.sqrt(DIMENSION)
    if not weighted:
        return None, x, k, c, np.ones(SAMPLES)
    middle = own.teacher.T @ own.means / DIMENSION
    tilts = [
        f"tanh(k{token}_{token} - ({low!r}) - c{token}*({high - low!r}))"
        for token in (0, 1)
        for low, high in [middle[token, 2 * token : 2 * token + 2].tolist()]
    ]
    return f"1 + 0.9*{'*'.join(tilts)}", x, k, c, 1 + 0.9 * np.tanh(apart[:, 0, 0]) * np.tanh(apart[:, 1, 1])


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("weighted", [False, True], ids=["gaussian", "density"])
def test_least_squares_on_samples(label: str, weighted: bool):
    """Of labels that are not linear, with a density of k or without."""
    own = geometry()
    density, x, k, c, weights = drawn(own, weighted)
    noise = np.sqrt(NOISE) * np.random.default_rng(13).normal(size=SAMPLES)
    y = {
        "a jump": np.sign(k[:, 0, 0] + k[:, 1, 1] / 2 - 0.3) * (1 + c[:, 1]) + k[:, 0, 1],
        "curved": c[:, 0] * np.tanh(2 * k[:, 1, 0]) + k[:, 0, 1] * k[:, 1, 1] / 2 + 2 * c[:, 1] * noise * k[:, 0, 0],
    }[label]
    inputs: dict[PredictorKind, Any] = {
        "constant": x[:, :0, 0],
        "pooled": x.mean(axis=1),
        "linear": x.reshape(SAMPLES, -1),
    }
    found = {}
    for kind, values in inputs.items():
        design = np.column_stack([np.ones(SAMPLES), values])
        gram = design.T @ (weights[:, None] * design)
        rest = y - design @ np.linalg.lstsq(gram, design.T @ (weights * y), rcond=None)[0]
        squares = weights * rest**2 / weights.mean()
        mean = squares.sum() / (SAMPLES - design.shape[1])
        found[kind] = best_predictor(problem_of(own, density), LABELS[label], kind)
        error = (squares - mean * weights / weights.mean()).std() / np.sqrt(SAMPLES)
        assert_right(found[kind], mean, error, 8e-3)
    assert found["linear"].error < 0.96 * found["pooled"].error < 0.94 * found["constant"].error


# --- stated errors ----------------------------------------------------------------------------------------------------


def test_stated_errors(monkeypatch: pytest.MonkeyPatch):
    """By 256 nodes, to which 20 coefficients fit: no bias is left, and errors are as large as the deviations."""
    monkeypatch.setattr(predictors, "FEWEST", 256)
    problem = Problem.from_dict(
        {
            "tokens": {"length": 5, "sigma": 1.0},
            "teacher": {"rank": 4},
            "loss": {"kind": "expression", "expression": "(h0_0 - k0_0)**2/2"},
        }
    )
    seeds = [problem.with_fields({"integration.seed": seed}) for seed in range(64)]
    found = [best_predictor(one, "sin(sum(k)) + k[2, 3]", "linear", nodes=256) for one in seeds]
    # E sin(s)^2, and no part of it along s, whose variance is 20
    deviations = np.array([one.error - (1 - np.exp(-40)) / 2 for one in found])
    assert abs(deviations.mean()) < 4 * deviations.std(ddof=1) / 8 < 0.04
    assert_calibrated(deviations, np.array([one.standard_error for one in found]), 16)


def test_more_nodes_have_a_smaller_error():
    few, same, many = (
        best_predictor(SPIKED, SPIKED_LABEL, "linear", nodes=nodes) for nodes in (2**14, 2**15 - 1, 2**18)
    )
    assert few == same
    assert many.standard_error < few.standard_error / 4
    assert_right(many, spiked_errors()["linear"], most=1e-4)


def test_the_error_of_r_squared_is_that_of_a_ratio():
    random = np.random.default_rng(5)
    constant, (error, own) = BestPredictor(1.4, 0.02), (0.5, 0.015)
    value, stated = constant.r_squared(error, own)
    ratios = 1 - random.normal(error, own, 400_000) / random.normal(1.4, 0.02, 400_000)
    assert value == pytest.approx(1 - 0.5 / 1.4, rel=1e-14)
    assert stated == pytest.approx(ratios.std(), rel=0.01)
    assert constant.r_squared(constant.error)[0] == 0


# --- what labels and kinds may be -------------------------------------------------------------------------------------

FITTED = GAUSSIAN.with_fields({"loss.trained": {"a": "a**2"}})


@pytest.mark.parametrize(
    ("problem", "label", "message"),
    [
        (GAUSSIAN, "h[0, 0]", "label has h0_0 in it: write it with k, noise, c and parameters that are not trained."),
        (FITTED, "a*k[0, 0]", "label has a in it: write it with k, noise, c and parameters that are not trained."),
        (FITTED, lambda k, a: a * k[0, 0], "label has a in it"),
        (GAUSSIAN, "c[0]", "label takes the number of a token's cluster, but tokens have none"),
        (GAUSSIAN, "1/k[0, 0]", "label must be a finite number for all fields"),
        (GAUSSIAN, "beta*k[0, 0]", "label must be a formula of a sample's fields, but"),
        (GAUSSIAN, lambda k: k, "label cannot be used: it returns an array of shape"),
        (GAUSSIAN, 3, "label must be a formula of k, noise and c, or a function of these, not 3."),
    ],
)
def test_labels_that_are_refused(problem: Problem, label: Any, message: str):
    with pytest.raises(ProblemError) as caught:
        best_predictor(problem, label, "linear")
    assert str(caught.value).startswith(message)
    assert caught.value.field == "label"


@pytest.mark.parametrize(
    "changes",
    [{"tokens.sigma": [0.5, 0.5, 0.6]}, {"tokens.density": "1 + tanh(k[0, 0])/2"}],
    ids=["covariances", "density"],
)
def test_positional_predictors_that_are_no_formula(changes: dict[str, Any]):
    with pytest.raises(ProblemError, match=r'^kind = "positional" needs Gaussian tokens that have one covariance'):
        best_predictor(GAUSSIAN.with_fields(changes), gaussian_label, "positional")
    with pytest.raises(ProblemError, match=r'^kind = "positional" needs Gaussian tokens'):
        best_predictor(SPIKED, SPIKED_LABEL, "positional")


def test_a_label_without_variance_is_known():
    found = ap.best_predictor(GAUSSIAN, "b", "linear")
    assert 0 <= found.error < 1e-12 > found.standard_error  # to rounding, whatever the order of a sum
