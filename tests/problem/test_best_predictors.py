"""The best constant, pooled, positional and linear predictors, against closed forms and least squares on samples.

Not public: `predictors.FEWEST`, without which a bias of few nodes could not be seen.
"""

from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from calibration import assert_calibrated
from numpy.typing import NDArray
from scipy import stats

import attnphase as ap
from attnphase.state_evolution import predictors

Array = NDArray[np.float64]
NOISE = 0.15
LOSS = {"kind": "expression", "expression": "(h0_0 - k0_0 - noise0_0)**2/2"}


def assert_right(found: Any, exact: float, error: float = 0.0, most: float = 2e-3) -> None:
    both = np.hypot(found.standard_error, error)
    assert abs(found.error - exact) < 4 * both < 4 * most * exact


class Moments:
    """Of coordinates x and a label y, summed over the clusters' configurations."""

    def __init__(self, size: int) -> None:
        self.xx, self.xy, self.x, self.y, self.yy = np.zeros((size, size)), np.zeros(size), np.zeros(size), 0.0, NOISE

    def add(self, p: float, mean: Array, covariance: Array, slope: Array, value: float, at: Array) -> None:
        """The label is value plus the slope times what varies; the coordinates' mean is at."""
        value += float(slope @ mean)
        self.x, self.y = self.x + p * at, self.y + p * value
        self.xx += p * (covariance + np.outer(at, at))
        self.xy += p * (covariance @ slope + at * value)
        self.yy += p * (slope @ covariance @ slope + value**2)

    def left(self, pool: Array) -> float:
        """The label's variance beside what linear functions of pooled coordinates explain."""
        xx, xy = (pool @ (self.xx - np.outer(self.x, self.x)) @ pool.T), pool @ (self.xy - self.x * self.y)
        return float(self.yy - self.y**2 - xy @ np.linalg.lstsq(xx, xy, rcond=1e-12)[0])


def pools(tokens: int, coordinates: int) -> dict[str, Array]:
    size = tokens * coordinates
    return {"constant": np.zeros((1, size)), "pooled": np.tile(np.eye(coordinates), tokens), "linear": np.eye(size)}


SIGMAS, MEANS, WEIGHTS, OVERLAPS = (0.8, 1.3), (0.4, 1.7), (0.5, 0.3, 0.2), (0.6, 0.35)
SPIKED = ap.Problem(
    tokens={
        "kind": "mixture",
        "length": 3,
        "clusters": [{"sigma": s, "mean": [m]} for s, m in zip(SIGMAS, MEANS, strict=True)],
        "law": {"kind": "single-location", "weights": WEIGHTS},
        "mean_teacher": [[one] for one in OVERLAPS],
    },
    teacher={"rank": 2, "noise": NOISE},
    loss=LOSS,
)
SPIKED_LABEL = "c @ k[:, 1] + 0.7*c[0] - 0.4*k[1, 0] + noise[1, 2]"


def spiked_errors() -> dict[str, float]:
    """From the moments of all tokens along both columns and the rest of the spike."""
    spike, moments = np.array([*OVERLAPS, np.sqrt(1 - sum(one**2 for one in OVERLAPS))]), Moments(9)
    for relevant, p in enumerate(WEIGHTS):
        c = np.eye(3)[relevant].astype(int)
        mean, slope = np.outer(np.array(MEANS)[c], spike).ravel(), np.zeros((3, 3))
        slope[relevant, 1], slope[1, 0] = 1.0, -0.4
        moments.add(p, mean, np.diag(np.repeat(np.array(SIGMAS)[c] ** 2, 3)), slope.ravel(), 0.7 * c[0], mean)
    return {kind: moments.left(pool) for kind, pool in pools(3, 3).items()}


@pytest.mark.parametrize("kind", ["constant", "pooled", "linear"])
def test_tokens_with_a_spike(kind: Any):
    """Of clusters that differ in sigma, at unequal locations; the spike overlaps with both columns of the teacher."""
    errors = spiked_errors()
    assert errors["linear"] < 0.97 * errors["pooled"] < 0.9 * errors["constant"]
    assert_right(ap.best_predictor(SPIKED, SPIKED_LABEL, kind), errors[kind])


COLUMNS = np.array([[0.7, -0.4], [0.2, 0.9], [-1.1, 0.3]])
GAUSSIAN = ap.Problem(
    tokens={"length": 3, "spectrum": {"kind": "power-law", "exponent": 1.3, "variance": 0.6, "atoms": 5}},
    positions={"teacher": [[0.3, -0.2], [-0.2, 0.1], [-0.1, 0.1]]},
    teacher={"rank": 2, "noise": NOISE},
    loss={"kind": "expression", "expression": "(h0_0 - b*k0_0 - noise0_0)**2/2", "parameters": {"b": 0.7}},
)


def gaussian_label(k: Any, noise: Any, b: Any) -> Any:
    return (COLUMNS * k).sum() / 0.7 * b + noise[0, 0] + k[0, 0] * k[1, 1]


@pytest.mark.parametrize("kind", ["constant", "pooled", "positional", "linear"])
def test_gaussian_tokens(kind: Any):
    """Of one covariance, where the best positional predictor is a singular vector; encodings do not matter."""
    rho = ap.Spectrum.of(GAUSSIAN).rho[0]
    slopes = COLUMNS @ np.linalg.cholesky(rho)
    shares = {
        "constant": 0.0,
        "pooled": (slopes.sum(axis=0) ** 2).sum() / 3,
        "positional": np.linalg.svd(slopes)[1][0] ** 2,
        "linear": (slopes**2).sum(),
    }
    exact = NOISE + rho[0, 0] * rho[1, 1] + shares["linear"] - shares[kind]
    assert_right(ap.best_predictor(GAUSSIAN, gaussian_label, kind), exact)
    assert shares["pooled"] < 0.5 * shares["positional"] < 0.45 * shares["linear"]


@pytest.mark.parametrize("at", [0.5, 0.0])
@pytest.mark.parametrize("kind", ["constant", "linear"])
def test_a_label_that_jumps_in_one_field(kind: Any, at: float):
    """At zero all scramblings of Sobol points have half of their points on each side."""
    problem = ap.Problem(tokens={"length": 1, "sigma": 0.8}, loss={"kind": "square"})
    exact = 1 - float(2 * stats.norm.cdf(at / 0.8) - 1) ** 2
    if kind == "linear":
        exact -= float(2 * stats.norm.pdf(at / 0.8)) ** 2
    found = ap.best_predictor(problem, f"sign(k + {at})", kind)
    assert_right(found, exact, most=3e-3)
    assert found.standard_error > 2e-4


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


def problem_of(own: Geometry, **law: str) -> ap.Problem:
    atoms = [
        {"weight": 1 / DIMENSION, "variances": v, "means": m, "positions": p, "teacher": t}
        for v, m, p, t in zip(*(x.tolist() for x in own), strict=True)
    ]
    tokens = {"kind": "mixture", "clusters": [[{}] * 2] * 2, "law": {"kind": "table", "table": CHANCES.tolist()}}
    return ap.Problem(
        tokens=tokens | {"spectrum": atoms} | law,
        positions={"kind": "spectrum"},
        teacher={"rank": 2, "noise": NOISE},
        loss=LOSS,
    )


@pytest.mark.parametrize("kind", ["constant", "pooled", "linear"])
def test_least_squares_in_all_coordinates(kind: Any):
    """Of a label that is linear given the clusters, so that all moments of the tokens are known."""
    own, moments, root = geometry(), Moments(2 * DIMENSION), np.sqrt(DIMENSION)
    for (first, second), p in np.ndenumerate(CHANCES):
        sites = [first, 2 + second]
        mean = (own.means.T[sites] / root).ravel()
        slope = (np.array([[1.0, 0.5 * first], [-0.8 * second, 0.7]]) @ own.teacher.T / root).ravel()
        at = mean + (own.positions.T / root).ravel()
        moments.add(p, mean, np.diag(own.gamma.T[sites].ravel()), slope, 0.9 * second, at)
    label = "k0_0 + c0*k0_1/2 - 0.8*c1*k1_0 + 0.7*k1_1 + 0.9*c1 + noise1_0"
    assert_right(ap.best_predictor(problem_of(own), label, kind), moments.left(pools(2, DIMENSION)[kind]), most=3e-4)


LABELS: dict[str, tuple[bool, str, Any]] = {
    "a jump": (
        False,
        "sign(k0_0 + k1_1/2 - 0.3)*(1 + c1) + k0_1",
        lambda k, c, noise: np.sign(k[:, 0, 0] + k[:, 1, 1] / 2 - 0.3) * (1 + c[:, 1]) + k[:, 0, 1],
    ),
    "a curve, under a density": (
        True,
        "c0*tanh(2*k1_0) + k0_1*k1_1/2 + 2*c1*noise0_1*k0_0",
        lambda k, c, noise: (
            c[:, 0] * np.tanh(2 * k[:, 1, 0]) + k[:, 0, 1] * k[:, 1, 1] / 2 + 2 * c[:, 1] * noise * k[:, 0, 0]
        ),
    ),
}


@pytest.mark.parametrize("name", LABELS)
def test_least_squares_on_samples(name: str):
    """Of labels that are not linear."""
    own, (weighted, text, label) = geometry(), LABELS[name]
    random, root = np.random.default_rng(12), np.sqrt(DIMENSION)
    c = np.stack(np.divmod(random.choice(4, size=SAMPLES, p=CHANCES.ravel()), 2), axis=1)
    sites = c + np.array([0, 2])
    x = np.sqrt(own.gamma.T[sites]) * random.normal(size=(SAMPLES, 2, DIMENSION))
    apart = x @ own.teacher / root
    x += own.means.T[sites] / root
    k = x @ own.teacher / root
    x += own.positions.T / root
    law, weights, middle = dict[str, str](), np.ones(SAMPLES), own.teacher.T @ own.means / DIMENSION
    if weighted:
        tilts = [
            f"tanh(k{token}_{token} - ({low!r}) - c{token}*({high - low!r}))"
            for token in (0, 1)
            for low, high in [middle[token, 2 * token : 2 * token + 2].tolist()]
        ]
        law = {"density": f"1 + 0.9*{'*'.join(tilts)}"}
        weights = 1 + 0.9 * np.tanh(apart[:, 0, 0]) * np.tanh(apart[:, 1, 1])
    y = label(k, c, np.sqrt(NOISE) * random.normal(size=SAMPLES))
    found, inputs = {}, {"constant": x[:, :0, 0], "pooled": x.mean(axis=1), "linear": x.reshape(SAMPLES, -1)}
    for kind, values in inputs.items():
        design = np.column_stack([np.ones(SAMPLES), values])
        gram = design.T @ (weights[:, None] * design)
        rest = y - design @ np.linalg.lstsq(gram, design.T @ (weights * y), rcond=None)[0]
        squares = weights * rest**2 / weights.mean()
        mean = squares.sum() / (SAMPLES - design.shape[1])
        found[kind] = ap.best_predictor(problem_of(own, **law), text, cast("Any", kind))
        error = (squares - mean * weights / weights.mean()).std() / np.sqrt(SAMPLES)
        assert_right(found[kind], mean, error, 8e-3)
    assert found["linear"].error < 0.96 * found["pooled"].error < 0.94 * found["constant"].error


def test_stated_errors_of_best_predictors(monkeypatch: pytest.MonkeyPatch):
    """By 256 nodes, to which 20 coefficients fit: no bias is left, and errors are as large as the deviations."""
    monkeypatch.setattr(predictors, "FEWEST", 256)
    problem = ap.Problem(
        tokens={"length": 5, "sigma": 1.0},
        teacher={"rank": 4},
        loss={"kind": "expression", "expression": "(h0_0 - k0_0)**2/2"},
    )
    seeds = [problem.with_fields({"integration.seed": seed}) for seed in range(64)]
    found = [ap.best_predictor(one, "sin(sum(k)) + k[2, 3]", "linear", nodes=256) for one in seeds]
    # E sin(s)^2, and no part of it along s, whose variance is 20
    deviations = np.array([one.error - (1 - np.exp(-40)) / 2 for one in found])
    assert abs(deviations.mean()) < 4 * deviations.std(ddof=1) / 8 < 0.04
    assert_calibrated(deviations, [one.standard_error for one in found], 16)


def test_the_error_of_r_squared_is_that_of_a_ratio():
    random, known = np.random.default_rng(5), ap.best_predictor(GAUSSIAN, "b", "linear")
    constant = type(known)(1.4, 0.02)
    value, stated = constant.r_squared(0.5, 0.015)
    ratios = 1 - random.normal(0.5, 0.015, 400_000) / random.normal(1.4, 0.02, 400_000)
    assert value == pytest.approx(1 - 0.5 / 1.4, rel=1e-14)
    assert stated == pytest.approx(ratios.std(), rel=0.01)
    assert constant.r_squared(constant.error)[0] == 0
