"""The problem of one row of weights: minimisers by their optimality, means by closed forms, SciPy and draws.

Not public: a penalty acts through `attnphase.rows` and `Prior` alone, and a solve shows few of its cases.
"""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import model
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.special import erfc
from scipy.stats import norm

import attnphase as ap
from attnphase.kernels.compiler import Kernels
from attnphase.problem import Regularizer
from attnphase.rows.copies import row_spread
from attnphase.rows.kind import RegularizerKind
from attnphase.rows.kinds import REGULARIZERS
from attnphase.rows.piecewise import piecewise_moments
from attnphase.rows.prox import newton_prox
from attnphase.rows.quadrature import gaussian_nodes, quadrature_moments
from attnphase.rows.regularizer import RowRegularizer
from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.prior import Prior
from attnphase.state_evolution.starts import initial_overlaps


def huber(v: Any, step: Any) -> Any:
    """Of 0.4 w^2 up to 0.5, linear beyond."""
    return np.where(np.abs(v) <= 0.5 + 0.4 * step, v / (1 + 0.8 * step), v - 0.4 * step * np.sign(v))


def soft(v: Any, step: Any) -> Any:
    return np.sign(v) * np.maximum(np.abs(v) - 0.37 * step, 0.0)


# penalty, its slope with the quadratic part between kinks, and (kink, slope on the left, on the right)
KINDS: dict[str, tuple[Regularizer, Any, tuple[tuple[float, float, float], ...]]] = {
    "ridge": (Regularizer(kind="ridge", strength=0.7), lambda w: 0.7 * w, ()),
    "lasso": (Regularizer(kind="lasso", strength=0.6), lambda w: 0.6 * np.sign(w), ((0, -0.6, 0.6),)),
    "elastic net": (
        Regularizer(kind="elastic-net", strength=0.5, ridge=0.3),
        lambda w: 0.5 * np.sign(w) + 0.3 * w,
        ((0, -0.5, 0.5),),
    ),
    "smooth formula": (
        Regularizer(kind="expression", expression="0.4*sqrt(w**2 + 0.1)"),
        lambda w: 0.4 * w / np.sqrt(w**2 + 0.1),
        (),
    ),
    "kinks": (
        Regularizer(kind="expression", expression="0.3*abs(w) + 0.6*relu(w - 0.5) + 0.4*relu(-w - 1)", ridge=0.1),
        lambda w: 0.3 * np.sign(w) + 0.6 * (w > 0.5) - 0.4 * (w < -1) + 0.1 * w,
        ((0, -0.3, 0.3), (0.5, 0.35, 0.95), (-1, -0.8, -0.4)),
    ),
    "dead zone": (
        Regularizer(kind="expression", expression="0.9*relu(abs(w) - 0.6)"),
        lambda w: 0.9 * np.sign(w) * (abs(w) > 0.6),
        ((0.6, 0, 0.9), (-0.6, -0.9, 0)),
    ),
    "operator": (
        Regularizer(kind="prox", prox=f"{__name__}:huber", ridge=0.15),
        lambda w: np.clip(0.8 * w, -0.4, 0.4) + 0.15 * w,
        (),
    ),
    "operator with a kink": (
        Regularizer(kind="prox", prox=f"{__name__}:soft", ridge=0.25),
        lambda w: 0.37 * np.sign(w) + 0.25 * w,
        ((0, -0.37, 0.37),),
    ),
}
GROUP = Regularizer(kind="group-lasso", strength=0.5, ridge=0.35)
CHOSEN = {name: kind[0] for name, kind in KINDS.items()} | {"group lasso": GROUP}
SEEDS, COLUMNS = st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 3])


def draw(seed: int, r: int, batch: int = 7) -> tuple[Any, Any]:
    """Anisotropic curvatures (batch, r, r) and sources (batch, r)."""
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(batch, r, r))
    curvature = mixing @ mixing.mT + rng.uniform(0.1, 2.3, size=(batch, 1, 1)) * np.eye(r)
    return curvature, rng.normal(size=(batch, r)) * rng.uniform(0.2, 3.1, size=(batch, 1))


def gaussians(seed: int, r: int, batch: int) -> tuple[Any, Any, Any]:
    """Means, symmetric roots and curvatures, some of them nearly singular."""
    curvature, mean = draw(seed, r, batch)
    values, vectors = np.linalg.eigh(draw(seed + 1, r, batch)[0])
    return mean, (vectors * np.sqrt(values)[:, None]) @ vectors.mT, curvature


def force_at(curvature: Any, source: Any, w: Any) -> Any:
    return source - (curvature @ w[..., None])[..., 0]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8)
@given(seed=SEEDS, r=COLUMNS)
def test_minimisers_are_stationary(kind: str, seed: int, r: int) -> None:
    """Kinks are met exactly; in one column the minimiser is broadcast, and a formula's large sources are solved too."""
    regularizer, slope, jumps = KINDS[kind]
    curvature, source = draw(seed, r)
    w = regularizer.rows(r).minimise(curvature, source)
    force, low = force_at(curvature, source, w), slope(w)
    high = low
    for place, left, right in jumps:
        low, high = np.where(w == place, left, low), np.where(w == place, right, high)
    scale = 1e-9 * (1 + abs(source).max())
    assert (force >= low - scale).all()
    assert (force <= high + scale).all()
    both = regularizer.rows(r).minimise(curvature[:, None], source[None])
    assert_allclose(both[2, 5], regularizer.rows(r).minimise(curvature[2], source[5]), rtol=0, atol=1e-10)


@settings(max_examples=20)
@given(seed=SEEDS, r=COLUMNS)
def test_a_group_lasso_is_stationary(seed: int, r: int) -> None:
    curvature, source = draw(seed, r)
    w = GROUP.rows(r).minimise(curvature, source)
    size = np.linalg.norm(w, axis=-1, keepdims=True)
    zero, force = size[:, 0] == 0, force_at(curvature, source, w) - 0.35 * w
    assert np.array_equal(zero, np.linalg.norm(source, axis=-1) <= 0.5)
    assert_allclose(force[~zero], 0.5 * (w / np.where(size == 0, 1, size))[~zero], rtol=0, atol=1e-9)


@pytest.mark.parametrize("r", [2, 3])
def test_small_weights_are_as_accurate_as_large_ones(r: int) -> None:
    """A change of the weights' unit by a power of two changes nothing, whatever rows are solved together."""
    unit, (curvature, source) = 2.0**-20, draw(8, r)
    large, small = (Regularizer(kind="lasso", strength=s).rows(r).minimise for s in (0.6, 0.6 * unit))
    found = small(curvature, unit * source)
    np.testing.assert_array_equal(found, unit * large(curvature, source))
    both = small(np.concatenate([curvature] * 2), np.concatenate([unit * source, source]))
    assert_allclose(both[:7], found, rtol=1e-11)
    v, step = np.linspace(-4.1, 3.9, 81), 0.8
    near, far = (
        newton_prox(lambda w, c=c: c * np.tanh(w / c), lambda w, c=c: 1 - np.tanh(w / c) ** 2) for c in (1.0, unit**2)
    )
    assert_allclose(far(unit**2 * v, step), unit**2 * near(v, step), rtol=1e-14)


FORMULAS = {
    "0.2*abs(w) + w**4": True,
    "0.2*abs(w) + 0.1*w": True,
    "0.2*abs(w) + 0.2*w": False,
    "0.2*abs(w - 1)": False,
    "0.2*abs(w + 1)": False,
    "0.2*sqrt(w**2 + 0.1)": False,
}
HOLDING = [(Regularizer(kind="expression", expression=text), held) for text, held in FORMULAS.items()]
HOLDING += [(kind[0], 0 in {place for place, *_ in kind[2]}) for kind in KINDS.values()] + [(GROUP, True)]


@pytest.mark.parametrize(("regularizer", "held"), HOLDING, ids=lambda x: x.expression or x.kind if x != bool(x) else "")
def test_a_weight_stays_at_zero_if_zero_is_inside_the_slopes_there(regularizer: Regularizer, held: bool) -> None:
    rows, small = regularizer.rows(2), np.array([[1e-7, -1e-7]]) * (1e-2 if held else 1)
    assert rows.holds_zero == held
    assert (rows.minimise(np.eye(2)[None], small) == 0).all() == held


def averages(rows: Any, mean: Any, root: Any, curvature: Any) -> tuple[Any, ...]:
    """E w, E w w^T, P(w != 0), E w z^T over the nodes, each with a leading axis of atoms."""
    z, weights = gaussian_nodes(rows, mean, root, curvature)
    assert_allclose(np.einsum("an,ani,anj->aij", weights, z, z)[0], np.eye(z.shape[2]), rtol=0, atol=1e-10)
    w = rows.minimise(curvature[:, None], mean[:, None] + np.einsum("aij,anj->ani", root, z))
    second, response = (np.einsum("an,ani,anj->aij", weights, w, x) for x in (w, z))
    return np.einsum("an,ani->ai", weights, w), second, np.einsum("an,ani->ai", weights, ~rows.zeros(w)), response


def soft_moments(mean: float, root: float, stiffness: float, strength: float) -> Any:
    """Closed forms at one column: w = soft(mean + root z, strength) / stiffness."""
    total = np.zeros(4)
    for side in (1, -1):
        shift = (side * mean - strength) / root
        tail, peak = erfc(-shift / np.sqrt(2)) / 2, norm.pdf(shift)
        first, second = root * (shift * tail + peak), root**2 * ((1 + shift**2) * tail + shift * peak)
        total += [side * first / stiffness, second / stiffness**2, tail, root * tail / stiffness]
    return total


@pytest.mark.parametrize("kind", CHOSEN)
def test_moments_of_one_column_by_adaptive_quadrature(kind: str) -> None:
    rows, accuracy = CHOSEN[kind].rows(1), 5e-5 if CHOSEN[kind].kind == "prox" else 1e-10
    mean, root, stiffness = -1.7, 0.6, 2.2
    first, second, _, response = averages(rows, np.array([[mean]]), np.array([[[root]]]), np.array([[[stiffness]]]))
    bends = [(slope + (stiffness + float(rows.ridge)) * at - mean) / root for at, *ends in rows.kinks for slope in ends]
    edges = np.sort(np.clip([-9.0, *bends, *np.arange(-8.5, 9), 9.0], -9, 9))

    def integrand(z: float, power: int, other: int) -> float:
        w = rows.minimise(np.array([[stiffness]]), np.array([mean + root * z]))[0]
        return float(w**power * z**other * norm.pdf(z))

    for value, powers in ((first, (1, 0)), (second, (2, 0)), (response, (1, 1))):
        pieces = (quad(integrand, *ends, args=powers, epsabs=1e-13, epsrel=1e-11)[0] for ends in pairwise(edges))
        assert abs(value.item() - sum(pieces)) < accuracy


@pytest.mark.parametrize("kind", ["group lasso", "smooth formula"])
def test_moments_of_two_columns_are_those_of_a_grid(kind: str) -> None:
    rows, edge, count = CHOSEN[kind].rows(2), 8.2, 200
    mean, root, curvature = (
        np.array([0.4, -0.7]),
        np.array([[0.9, 0.0], [-0.5, 0.7]]),
        np.array([[1.3, 0.5], [0.5, 0.8]]),
    )
    line = (np.arange(count) + 0.5) / count * 2 * edge - edge
    z = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
    weights = np.exp(-(z**2).sum(axis=1) / 2)
    w, weights = rows.minimise(curvature, mean + z @ root.T), weights / weights.sum()
    first, second, _, response = averages(rows, mean[None], root[None], curvature[None])
    for value, expected in ((first, weights @ w), (second, (w.T * weights) @ w), (response, (w.T * weights) @ z)):
        assert_allclose(value[0], expected, rtol=0, atol=1e-5)


# kinks away from zero, of different slopes: not even, so that nothing cancels
SEVERAL_KINKS = replace(KINDS["kinks"][0].rows(1), linear=True)


@pytest.mark.parametrize("kind", ["lasso", "elastic net", "kinks"])
@pytest.mark.parametrize("r", [1, 2])
def test_closed_forms_are_the_quadrature(kind: str, r: int) -> None:
    """A piece too many or too few, a wrong end, a kink's share or a penalty's constant that is forgotten."""
    rows = SEVERAL_KINKS if kind == "kinks" else KINDS[kind][0].rows(r)
    given_ones = gaussians(21 + r, r, 40 if r == 1 else 3)
    found, expected = piecewise_moments(rows, *given_ones), quadrature_moments(rows, *given_ones)
    for name, value in vars(expected).items():
        # the plane's nodes do not end at kinks
        size = 1e-11 if r == 1 else 5e-3 if name == "density" else 1e-3
        assert_allclose(getattr(found, name), value, rtol=0, atol=size * np.abs(value).max() + 1e-12, err_msg=name)


def test_far_from_all_sources_weights_keep_their_digits() -> None:
    """``E (z - a)_+^2`` for a = 9, where one minus a distribution function has no digit left."""
    rows, one = Regularizer(kind="lasso", strength=9.0).rows(1), np.ones((1, 1, 1))
    found = piecewise_moments(rows, np.zeros((1, 1)), one, one)
    assert found.density.item() == pytest.approx(erfc(9 / np.sqrt(2)), rel=1e-12, abs=0)
    assert found.second.item() == pytest.approx(soft_moments(0.0, 1.0, 1.0, 9.0)[1], rel=1e-9, abs=0)


def test_two_uncorrelated_columns_are_independent_lassos_to_all_digits() -> None:
    """The lines' direction, the corners where panels end, and the noise across the lines."""
    mean, scale, stiffness = np.array([0.4, -0.7]), np.array([0.9, 0.03]), np.array([1.3, 0.002])
    found = piecewise_moments(KINDS["lasso"][0].rows(2), mean[None], np.diag(scale)[None], np.diag(stiffness)[None])
    own = np.array([soft_moments(*parts, 0.6) for parts in zip(mean, scale, stiffness, strict=True)])
    assert_allclose(found.first[0], own[:, 0], rtol=1e-10)
    assert_allclose(np.diag(found.second[0]), own[:, 1], rtol=1e-10)
    assert_allclose(found.second[0, 0, 1], own[:, 0].prod(), rtol=1e-10)
    assert_allclose(np.diag(found.response[0]), own[:, 3] / scale, rtol=1e-10)
    assert_allclose(found.density[0], own[:, 2].mean(), rtol=1e-10)


ONE = ap.Problem().with_fields(
    {"tokens.length": 1, "tokens.sigma": 0.7, "positions.kind": "none", "teacher.mixing": None}
)


def prior_of(regularizer: Regularizer, columns: int) -> Prior:
    rows = regularizer.rows(columns)
    kernels = cast("Kernels", SimpleNamespace(columns=columns, ridge=None, separable=None))
    return Prior(kernels, ap.Spectrum.of(ONE), rows.ridge, rows)


def hats(q: list[float], V: list[float]) -> Conjugates:
    """Columns that know nothing of each other, of the positions and of the teacher."""
    nothing = np.zeros((1, 1, len(q), 1))
    return Conjugates(np.diag(q)[None, None], np.diag(V)[None, None], nothing, nothing.copy())


def test_the_density_counts_weights_and_not_rows() -> None:
    """``w_c`` is not zero where its source, of variance gamma q_hat, is larger than the lasso's strength."""
    prior, q = prior_of(Regularizer(kind="lasso", strength=0.3), 2), [0.5, 0.1]
    shares = np.array([2 * norm.sf(0.3 / np.sqrt(0.49 * x)) for x in q])
    assert prior.density(hats(q, [0.8, 1.3])).item() == pytest.approx(shares.mean(), abs=2e-3)


def test_the_minimum_of_a_row() -> None:
    """``E min_w s|w| + r w^2/2 + L w^2/2 - B w = -E (|B| - s)_+^2 / (2 (L + r))``, in closed form."""
    solved = prior_of(KINDS["elastic net"][0], 1).arguments(hats([0.6], [0.9]))
    found = solved["spectral_mean"](solved["row_minimum"][..., None, None]).item()
    spread, stiffness = np.sqrt(0.49 * 0.6), 0.49 * 0.9 + 0.3
    assert found == pytest.approx(-soft_moments(0.0, spread, stiffness, 0.5)[1] * stiffness / 2, rel=1e-8)


@pytest.mark.parametrize("columns", [1, 2])
def test_points_have_the_moments_of_rows_that_are_drawn(columns: int) -> None:
    """Of w, tau and pi on two atoms in each of three replicates: a wrong root, share, sign or order of axes."""
    regularizer = Regularizer(kind="elastic-net", strength=0.2, ridge=0.3)
    prior = replace(prior_of(regularizer, columns), spectrum=ap.Spectrum.two_level((0.4, 1.1), 0.3))
    spectrum, rows, draws = prior.spectrum, regularizer.rows(columns), np.random.default_rng(2)
    factors = draws.normal(size=(2, 2, 3, columns, columns))
    q_hat, V_hat = 0.3 * factors @ factors.swapaxes(-1, -2)
    m_hat, theta_hat = draws.normal(size=(2, 2, 3, columns, 1))
    solved = prior.arguments(Conjugates(q_hat, V_hat, m_hat, theta_hat))
    mean_over, w = solved["spectral_mean"], solved["w"]
    found = [mean_over(solved["gamma"][0] * (w @ x)) for x in (w.mT, solved["pi"].mT)]
    found.append(mean_over(solved["tau"][1] * w))
    count = 100_000
    for s in range(3):
        expected: list[Any] = [0.0, 0.0, 0.0]
        for atom, weight in enumerate(spectrum.weights):
            gamma = spectrum.gamma[:, atom]
            noise, curvature, slope = (np.einsum("l,lij->ij", gamma, x[:, s]) for x in (q_hat, V_hat, theta_hat))
            tau_pi = draws.multivariate_normal(spectrum.mean[atom], spectrum.covariance[atom], count)
            b = tau_pi @ np.hstack([m_hat[0, s], m_hat[1, s], slope]).T
            drawn = rows.minimise(curvature, b + draws.multivariate_normal(np.zeros(columns), noise, count))
            products = gamma[0] * drawn.T @ drawn, gamma[0] * drawn.T @ tau_pi[:, 2:], drawn.T @ tau_pi[:, 1:2]
            expected = [x + weight * y / count for x, y in zip(expected, products, strict=True)]
        for value, mean in zip(found, expected, strict=True):
            assert_allclose(value[s], mean, rtol=0, atol=0.02 * np.abs(mean).max())


def test_what_vanishes_is_held_against_its_natural_size() -> None:
    """q and theta against the teacher's variance, m against its root, V against its inverse: a millionth of each."""
    zero, natural = np.zeros((2, 1, 1)), 0.36
    scales = Overlaps(zero, zero, zero, zero).scales(np.full((2, 1, 1), natural))
    assert_allclose(scales, 1e-6 * np.repeat([natural, 1 / natural, np.sqrt(natural), natural], 2), rtol=1e-12)


@pytest.mark.filterwarnings("ignore::attnphase.errors.AttnphaseWarning")
def test_the_gap_of_two_copies_under_rows_is_that_of_the_ridge() -> None:
    """An elastic net that hardly shrinks is a ridge; its minimisers are found by other code."""
    ridge = model("paper", {"regularizer.strength": 0.002, "integration.standard_error": 1e-2})
    rows = {"regularizer.kind": "elastic-net", "regularizer.strength": 1e-7, "regularizer.ridge": 0.002}
    expected, found = (ap.solve(one, 0.8) for one in (ridge, ridge.with_fields(rows)))
    for name in ("overlap_gap", "overlap_gap_stderr", "replicon"):
        assert found[name].item() == pytest.approx(expected[name].item(), rel=2e-3), name
    assert expected.overlap_gap.item() > 0.3


def test_two_copies_of_rows_far_from_a_kink_are_apart_as_their_sources() -> None:
    """The minimisers are linear there: half their squared difference is what each has of its own."""
    root, own, curvature = np.array([[[5, 2], [2, 3]], [[0.2, 0.1], [0.1, 0.5]], [[20, 4], [4, 11]]])[:, None] / 10
    spread = row_spread(REGULARIZERS["lasso"].rows(KINDS["lasso"][0], 2), np.full((1, 2), 30.0), root, curvature, own)
    assert_allclose(spread, np.linalg.inv(curvature) @ own @ np.linalg.inv(curvature), rtol=0.03)


class Halved(RegularizerKind):
    """(strength/2) w^2, as a function of which nothing is known."""

    name = "test-halved"
    keys = ("strength", "ridge")
    penalty = r"\frac{s}{2} \sum_c w_c^2"
    example: ClassVar = {"strength": 0.01}

    def rows(self, given: Any, columns: int) -> RowRegularizer:
        s = given.strength
        return RowRegularizer(
            self.name, float(given.ridge), lambda w: s / 2 * w**2, lambda v, step: v / (1 + s * step), panels=24
        )


def test_a_new_regulariser_has_the_numbers_of_the_ridge_that_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one class, as docs/architecture.md says."""
    monkeypatch.setitem(REGULARIZERS, Halved.name, Halved())
    own = model("square", {"regularizer.kind": "test-halved", "regularizer.strength": 0.3, "teacher.noise": 0.2})
    settings = ap.SolverSettings(threads=1, stability=False, identity=False)
    one, ridge = (
        ap.solve(each, 1.7, "semantic", settings=settings)
        for each in (own, own.with_fields({"regularizer.kind": "ridge"}))
    )
    assert one["status"].item() == ridge["status"].item() == 0
    for name in ("q", "theta", "V", "training_loss"):
        error = np.hypot(one[f"{name}_stderr"].item(), ridge[f"{name}_stderr"].item())
        assert abs(one[name].item() - ridge[name].item()) < 4 * error + 1e-6
    # the unit of the weights is the root of the temperature, and starts take the penalty's curvature there
    cold = {"regularizer.strength": 0.3, "student.temperature": 0.07}
    starts = [
        initial_overlaps(ap.Problem().with_fields({"regularizer.kind": kind, **cold}), "semantic").V
        for kind in ("test-halved", "ridge")
    ]
    np.testing.assert_allclose(*starts, rtol=1e-12)
    assert ap.Problem.from_toml(own.to_toml()) == own
