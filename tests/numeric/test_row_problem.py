"""The problem of one row of weights: minimisers by their optimality, quadrature by closed forms."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.special import erfc

from attnphase.problem import Regularizer
from attnphase.rows.kinds import REGULARIZERS
from attnphase.rows.means import row_moments
from attnphase.rows.operator import load_prox
from attnphase.rows.piecewise import piecewise_moments
from attnphase.rows.prox import newton_prox
from attnphase.rows.quadrature import gaussian_nodes, quadrature_moments

MODULE = "proximal_operators_of_a_row_test"


def huber(v, step):
    """Of 0.4 w^2 up to 0.5, linear beyond."""
    return np.where(np.abs(v) <= 0.5 + 0.4 * step, v / (1 + 0.8 * step), v - 0.4 * step * np.sign(v))


def huber_slope(w):
    return np.clip(0.8 * w, -0.4, 0.4)


@pytest.fixture(scope="module", autouse=True)
def module():
    made = ModuleType(MODULE)
    made.huber = huber  # type: ignore[attr-defined]
    made.soft = lambda v, step: np.sign(v) * np.maximum(np.abs(v) - 0.37 * step, 0.0)  # type: ignore[attr-defined]
    sys.modules[MODULE] = made
    yield
    del sys.modules[MODULE]
    load_prox.cache_clear()


def interval(slope, jumps=()):
    """Bounds of the subdifferential of a penalty on single weights."""

    def bounds(w):
        low = high = slope(w)
        for place, left, right in jumps:
            at = w == place
            low, high = np.where(at, left, low), np.where(at, right, high)
        return low, high

    return bounds


# regulariser, and the subdifferential of the penalty with the quadratic part
KINDS = {
    "ridge": (Regularizer(kind="ridge", strength=0.7), interval(lambda w: 0.7 * w)),
    "lasso": (Regularizer(kind="lasso", strength=0.6), interval(lambda w: 0.6 * np.sign(w), ((0, -0.6, 0.6),))),
    "elastic-net": (
        Regularizer(kind="elastic-net", strength=0.5, ridge=0.3),
        interval(lambda w: 0.5 * np.sign(w) + 0.3 * w, ((0, -0.5, 0.5),)),
    ),
    "smooth": (
        Regularizer(kind="expression", expression="0.4*sqrt(w**2 + 0.1)"),
        interval(lambda w: 0.4 * w / np.sqrt(w**2 + 0.1)),
    ),
    "steep": (
        Regularizer(kind="expression", expression="0.3*w**4 + 0.2*exp(w)", ridge=0.2),
        interval(lambda w: 1.2 * w**3 + 0.2 * np.exp(w) + 0.2 * w),
    ),
    "kinks": (
        Regularizer(kind="expression", expression="0.3*abs(w) + 0.6*relu(w - 0.5) + 0.4*relu(-w - 1)", ridge=0.1),
        interval(
            lambda w: 0.3 * np.sign(w) + 0.6 * (w > 0.5) - 0.4 * (w < -1) + 0.1 * w,
            ((0, -0.3, 0.3), (0.5, 0.35, 0.95), (-1, -0.8, -0.4)),
        ),
    ),
    "dead zone": (
        Regularizer(kind="expression", expression="0.9*relu(abs(w) - 0.6)"),
        interval(lambda w: 0.9 * np.sign(w) * (abs(w) > 0.6), ((0.6, 0, 0.9), (-0.6, -0.9, 0))),
    ),
    "prox": (
        Regularizer(kind="prox", prox=f"{MODULE}:huber", ridge=0.15),
        interval(lambda w: huber_slope(w) + 0.15 * w),
    ),
    "prox with a kink": (
        Regularizer(kind="prox", prox=f"{MODULE}:soft", ridge=0.25),
        interval(lambda w: 0.37 * np.sign(w) + 0.25 * w, ((0, -0.37, 0.37),)),
    ),
}

CHOSEN = {kind: regularizer for kind, (regularizer, _) in KINDS.items()} | {
    kind: Regularizer(kind=kind, strength=0.8, ridge=0.35 if "ridge" in form.keys else 0.0)
    for kind, form in REGULARIZERS.items()
    if kind not in KINDS and not form.own
}


def draw(seed, r, batch=7, stiffness=1.0):
    """Anisotropic curvatures (batch, r, r) and sources (batch, r)."""
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(batch, r, r))
    curvature = mixing @ np.swapaxes(mixing, -1, -2) + rng.uniform(0.1, 2.3, size=(batch, 1, 1)) * np.eye(r)
    return stiffness * curvature, rng.normal(size=(batch, r)) * rng.uniform(0.2, 3.1, size=(batch, 1))


SEEDS = st.integers(0, 2**32 - 1)
COLUMNS = st.sampled_from([1, 2, 3])


@pytest.mark.parametrize("kind", sorted(KINDS))
@settings(deadline=None, max_examples=12)
@given(seed=SEEDS, r=COLUMNS)
def test_minimisers_are_stationary(kind, seed, r):
    regularizer, bounds = KINDS[kind]
    curvature, source = draw(seed, r)
    w = regularizer.rows(r).minimise(curvature, source)
    force = source - (curvature @ w[..., None])[..., 0]
    # kinks other than 0 are met exactly too
    low, high = bounds(w)
    scale = 1 + abs(source).max()
    assert (force >= low - 1e-9 * scale).all()
    assert (force <= high + 1e-9 * scale).all()


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS, r=COLUMNS)
def test_group_lasso_is_stationary(seed, r):
    curvature, source = draw(seed, r)
    w = Regularizer(kind="group-lasso", strength=0.8, ridge=0.35).rows(r).minimise(curvature, source)
    norm = np.linalg.norm(w, axis=-1, keepdims=True)
    force = source - (curvature @ w[..., None])[..., 0] - 0.35 * w
    zero = norm[:, 0] == 0
    assert np.array_equal(zero, np.linalg.norm(source, axis=-1) <= 0.8)
    assert_allclose(force[~zero], 0.8 * (w / np.where(norm == 0, 1, norm))[~zero], rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", sorted(CHOSEN))
@settings(deadline=None, max_examples=10)
@given(seed=SEEDS, r=COLUMNS)
def test_no_other_row_costs_less(kind, seed, r):
    regularizer = CHOSEN[kind].rows(r)
    curvature, source = draw(seed, r)
    w = regularizer.minimise(curvature, source)

    def cost(rows):
        return (
            regularizer.penalty(rows)
            + np.einsum("...i,nij,...j->...n", rows, curvature, rows).diagonal(axis1=-2, axis2=-1) / 2
            - (source * rows).sum(axis=-1)
        )

    rng = np.random.default_rng(seed)
    # the penalty of an operator is tabulated to about 1e-7
    slack = 1e-6 if CHOSEN[kind].kind == "prox" else 1e-10
    for size in (0.03, 0.3, 2.0):
        other = w + size * rng.normal(size=w.shape)
        assert (cost(other) - cost(w) >= -slack).all()


@settings(deadline=None, max_examples=25)
@given(seed=SEEDS, r=COLUMNS)
def test_ridge_is_a_linear_system(seed, r):
    curvature, source = draw(seed, r)
    found = Regularizer(kind="ridge", strength=0.7).rows(r).minimise(curvature, source)
    direct = np.stack([np.linalg.inv(c + 0.7 * np.eye(r)) @ b for c, b in zip(curvature, source, strict=True)])
    assert_allclose(found, direct, rtol=0, atol=1e-11)


@settings(deadline=None, max_examples=15)
@given(seed=SEEDS, r=COLUMNS)
def test_limits_of_the_elastic_net(seed, r):
    curvature, source = draw(seed, r)

    def solved(**parts):
        return Regularizer(**parts).rows(r).minimise(curvature, source)

    lasso, ridge = solved(kind="lasso", strength=0.6), solved(kind="ridge", strength=0.9)
    margin = np.linalg.eigvalsh(curvature).min()
    # shifts are at most (strength or ridge of the part that vanishes) times the rest over the smallest curvature
    assert_allclose(
        solved(kind="elastic-net", strength=0.6, ridge=1e-7), lasso, rtol=0, atol=1.1e-7 * abs(lasso).max() * r / margin
    )
    assert_allclose(
        solved(kind="elastic-net", strength=1e-7, ridge=0.9), ridge, rtol=0, atol=1.1e-7 * r / (0.9 + margin)
    )


@settings(deadline=None, max_examples=15)
@given(seed=SEEDS)
def test_group_lasso_of_one_column_is_the_elastic_net(seed):
    curvature, source = draw(seed, 1)
    group = Regularizer(kind="group-lasso", strength=0.6, ridge=0.2).rows(1)
    single = Regularizer(kind="elastic-net", strength=0.6, ridge=0.2).rows(1)
    assert_allclose(group.minimise(curvature, source), single.minimise(curvature, source), rtol=1e-13)


@settings(deadline=None, max_examples=15)
@given(seed=SEEDS, r=COLUMNS)
def test_formulas_and_operators_agree_with_the_shipped_kind(seed, r):
    curvature, source = draw(seed, r)
    found = [
        regularizer.rows(r).minimise(curvature, source)
        for regularizer in (
            Regularizer(kind="elastic-net", strength=0.37, ridge=0.25),
            Regularizer(kind="expression", expression="0.37*abs(w) + w**2/8"),
            KINDS["prox with a kink"][0],
        )
    ]
    assert_allclose(found[1], found[0], rtol=0, atol=1e-10)
    assert_allclose(found[2], found[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("r", [2, 3])
def test_small_weights_are_as_accurate_as_large_ones(r):
    """A change of the weights' unit by a power of two changes nothing, whatever rows are solved together."""
    unit = 2.0**-20
    curvature, source = draw(8, r)
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


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_rows_broadcast(kind):
    regularizer = KINDS[kind][0].rows(2)
    curvature, source = draw(4, 2)
    both = regularizer.minimise(curvature[:, None], source[None])
    assert both.shape == (7, 7, 2)
    assert_allclose(both[2, 5], regularizer.minimise(curvature[2], source[5]), rtol=0, atol=1e-11)


def test_large_sources_of_a_steep_penalty_are_solved():
    # Newton steps down an exponential would be too many
    regularizer, bounds = KINDS["steep"]
    source = np.linspace(-41.3, 38.9, 801)[:, None]
    w = regularizer.rows(1).minimise(np.array([[0.9]]), source)
    assert_allclose(bounds(w)[0] + 0.9 * w, source, rtol=0, atol=1e-11)


def test_penalties_and_margin():
    w = np.array([[0.3, -1.2], [-0.4, 2.5]])
    squares, norms, sizes = (w**2).sum(axis=1), np.linalg.norm(w, axis=1), abs(w).sum(axis=1)
    for parts, expected in (
        ({"kind": "ridge", "strength": 0.7}, 0.35 * squares),
        ({"kind": "lasso", "strength": 0.7}, 0.7 * sizes),
        ({"kind": "elastic-net", "strength": 0.7, "ridge": 0.3}, 0.7 * sizes + 0.15 * squares),
        ({"kind": "group-lasso", "strength": 0.7, "ridge": 0.3}, 0.7 * norms + 0.15 * squares),
        ({"kind": "expression", "expression": "w**4", "ridge": 0.3}, (w**4).sum(axis=1) + 0.15 * squares),
    ):
        assert_allclose(Regularizer(**parts).rows(2).penalty(w), expected, rtol=1e-13)
    indefinite = np.array([[0.4, 0.9], [0.9, 0.4]])
    assert abs(KINDS["elastic-net"][0].rows(2).margin(indefinite) - (-0.5 + 0.3)) < 1e-13


# ---------------------------------------------------------------------------------------------------------- quadrature


def averages(regularizer, mean, root, curvature):
    """E w, E w w^T, P(w != 0), E w z^T, each with a leading axis of atoms."""
    z, weights = gaussian_nodes(regularizer, mean, root, curvature)
    w = regularizer.minimise(curvature[:, None], mean[:, None] + np.einsum("aij,anj->ani", root, z))
    return (
        np.einsum("an,ani->ai", weights, w),
        np.einsum("an,ani,anj->aij", weights, w, w),
        np.einsum("an,ani->ai", weights, ~regularizer.zeros(w)),
        np.einsum("an,ani,anj->aij", weights, w, z),
    )


def soft_moments(mean, root, stiffness, strength):
    """Closed forms at one column: w = soft(mean + root z, strength) / stiffness."""
    total = np.zeros(4)
    for side in (1, -1):
        shift = (side * mean - strength) / root
        tail = erfc(-shift / np.sqrt(2)) / 2
        peak = np.exp(-(shift**2) / 2) / np.sqrt(2 * np.pi)
        total += [
            side * root * (shift * tail + peak) / stiffness,
            root**2 * ((1 + shift**2) * tail + shift * peak) / stiffness**2,
            tail,
            root * tail / stiffness,
        ]
    return total


@settings(deadline=None, max_examples=60)
@given(
    mean=st.floats(-3.1, 2.9),
    root=st.floats(0.02, 3.3),
    stiffness=st.floats(0.1, 4.0),
    strength=st.floats(0.05, 2.5),
    ridge=st.floats(0.02, 1.8),
)
def test_lasso_moments_of_one_column(mean, root, stiffness, strength, ridge):
    for regularizer, total in (
        (Regularizer(kind="lasso", strength=strength), stiffness),
        (Regularizer(kind="elastic-net", strength=strength, ridge=ridge), stiffness + ridge),
        (Regularizer(kind="group-lasso", strength=strength, ridge=ridge), stiffness + ridge),
    ):
        found = averages(regularizer.rows(1), np.array([[mean]]), np.array([[[root]]]), np.array([[[stiffness]]]))
        expected = soft_moments(mean, root, total, strength)
        scale = np.array([1, (1 + abs(mean) + root) / total, 1, 1]) * np.array(
            [(1 + abs(mean) + root) / total] * 2 + [1, 1 + root / total]
        )
        assert (abs(np.array([x.item() for x in found]) - expected) < 1e-10 * scale).all()


@pytest.mark.parametrize("kind", sorted(CHOSEN))
def test_moments_of_one_column_by_adaptive_quadrature(kind):
    regularizer = CHOSEN[kind].rows(1)
    accuracy = 5e-5 if CHOSEN[kind].kind == "prox" else 1e-10
    for mean, root, stiffness in ((0.3, 1.4, 0.9), (-1.7, 0.6, 2.2)):
        found = averages(regularizer, np.array([[mean]]), np.array([[[root]]]), np.array([[[stiffness]]]))

        def weight(z, mean=mean, root=root, stiffness=stiffness):
            return regularizer.minimise(np.array([[stiffness]]), np.array([mean + root * z]))[0]

        # places where w has kinks in z
        splits = sorted(
            (slope + (stiffness + float(regularizer.ridge)) * place - mean) / root
            for place, left, right in regularizer.kinks
            for slope in (left, right)
        )
        edges = np.clip([-9.0, *splits, *np.arange(-8.5, 9), 9.0], -9, 9)
        edges.sort()
        for value, power in ((found[0], (1, 0)), (found[1], (2, 0)), (found[3], (1, 1))):

            def integrand(z, power=power, weight=weight):
                return weight(z) ** power[0] * z ** power[1] * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)

            pieces = (quad(integrand, a, b, epsabs=1e-13, epsrel=1e-11)[0] for a, b in pairwise(edges) if b > a)
            assert abs(value.item() - sum(pieces)) < accuracy


def fine_averages(regularizer, mean, root, curvature, count=900):
    """The same on a fine midpoint grid of the plane, whose error at kinks falls with the square of the spacing."""
    edge = 8.2
    line = (np.arange(count) + 0.5) / count * 2 * edge - edge
    z = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
    weights = np.exp(-(z**2).sum(axis=1) / 2)
    weights /= weights.sum()
    w = regularizer.minimise(curvature, mean + z @ root.T)
    return weights @ w, (w * weights[:, None]).T @ w, (w * weights[:, None]).T @ z


PLANE = (np.array([0.4, -0.7]), np.array([[0.9, 0.0], [-0.5, 0.7]]), np.array([[1.3, 0.5], [0.5, 0.8]]))


@pytest.mark.parametrize("kind", ["group-lasso", "smooth"])
def test_moments_of_two_columns(kind):
    chosen = Regularizer(kind="group-lasso", strength=0.5, ridge=0.2) if kind == "group-lasso" else KINDS[kind][0]
    regularizer = chosen.rows(2)
    mean, root, curvature = PLANE
    first, second, _, response = averages(regularizer, mean[None], root[None], curvature[None])
    count = 200
    for value, expected in zip((first, second, response), fine_averages(regularizer, *PLANE, count=count), strict=True):
        assert_allclose(value[0], expected, rtol=0, atol=ACCURACY_OF_THE_PLANE)


ACCURACY_OF_THE_PLANE = 1e-5


@pytest.mark.parametrize("r", [2, 3])
def test_uncorrelated_columns_are_independent_lassos(r):
    mean, scale, stiffness = (
        np.array([0.4, -0.7, 1.1])[:r],
        np.array([0.9, 0.6, 1.3])[:r],
        np.array([1.3, 0.7, 0.9])[:r],
    )
    regularizer = KINDS["lasso"][0].rows(r)
    first, second, density, response = averages(regularizer, mean[None], np.diag(scale)[None], np.diag(stiffness)[None])
    expected = np.array([soft_moments(*parts, 0.6) for parts in zip(mean, scale, stiffness, strict=True)])
    accuracy = 2e-5 if r == 2 else 3e-3
    assert_allclose(first[0], expected[:, 0], rtol=0, atol=accuracy)
    assert_allclose(np.diag(second[0]), expected[:, 1], rtol=0, atol=accuracy)
    assert_allclose(np.diag(response[0]), expected[:, 3], rtol=0, atol=accuracy)
    # a jump, so that its rule is of lower order
    assert_allclose(density[0], expected[:, 2], rtol=0, atol=5e-3)


@pytest.mark.parametrize("r", [1, 2, 3])
def test_ridge_moments(r):
    regularizer = KINDS["ridge"][0].rows(r)
    curvature, mean = draw(8, r, batch=4)
    root = np.linalg.cholesky(draw(9, r, batch=4)[0])
    first, second, _, response = averages(regularizer, mean, root, curvature)
    inverse = np.linalg.inv(curvature + 0.7 * np.eye(r))
    centre = (inverse @ mean[..., None])[..., 0]
    spread = inverse @ root
    assert_allclose(first, centre, rtol=0, atol=1e-9)
    assert_allclose(response, spread, rtol=0, atol=1e-9)
    expected = spread @ np.swapaxes(spread, 1, 2) + centre[:, :, None] * centre[:, None]
    assert_allclose(second, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_nodes_are_a_standard_gaussian(kind):
    for r in (1, 2, 3):
        curvature, mean = draw(5, r, batch=3)
        root = np.asarray(np.linalg.cholesky(curvature), dtype=np.float64)
        z, weights = gaussian_nodes(KINDS[kind][0].rows(r), mean, root, curvature)
        assert z.shape == (*weights.shape, r)
        assert_allclose(weights.sum(axis=1), np.ones(3), rtol=0, atol=1e-13)
        assert_allclose(np.einsum("an,ani->ai", weights, z), np.zeros((3, r)), rtol=0, atol=1e-12)
        covariance = np.einsum("an,ani,anj->aij", weights, z, z)
        assert_allclose(covariance, np.broadcast_to(np.eye(r), covariance.shape), rtol=0, atol=1e-11)


@pytest.mark.parametrize("root", [0.0, 1e-300, 1e-9])
def test_without_noise_the_weight_is_that_of_the_mean(root):
    for kind in ("lasso", "kinks", "prox"):
        regularizer = KINDS[kind][0].rows(1)
        curvature = np.array([[[1.3]]])
        with np.errstate(all="ignore"):
            first, second, _, _ = averages(regularizer, np.array([[1.7]]), np.array([[[root]]]), curvature)
        w = regularizer.minimise(curvature, np.array([[1.7]]))
        assert_allclose(first, w, rtol=0, atol=1e-8)
        assert_allclose(second[..., 0], w**2, rtol=0, atol=1e-8)


# -------------------------------------------------------------------------------------------------------- closed forms


def gaussians(seed, r, batch):
    """Means, symmetric roots and curvatures, some of them nearly singular."""
    curvature, mean = draw(seed, r, batch)
    values, vectors = np.linalg.eigh(draw(seed + 1, r, batch)[0])
    return mean, (vectors * np.sqrt(values)[:, None]) @ np.swapaxes(vectors, 1, 2), curvature


# kinks away from zero, of different slopes: not even, so that nothing cancels
SEVERAL_KINKS = replace(KINDS["kinks"][0].rows(1), linear=True)


@pytest.mark.parametrize("kind", ["lasso", "elastic-net", "kinks"])
def test_closed_forms_of_one_column_are_the_quadrature(kind):
    """A piece too many or too few, a wrong end, a kink's share or a penalty's constant that is forgotten."""
    regularizer = SEVERAL_KINKS if kind == "kinks" else KINDS[kind][0].rows(1)
    rows = gaussians(21, 1, 40)
    found, expected = piecewise_moments(regularizer, *rows), quadrature_moments(regularizer, *rows)
    for name, value in vars(expected).items():
        assert_allclose(getattr(found, name), value, rtol=1e-11, atol=1e-12, err_msg=name)


def test_far_from_all_sources_weights_keep_their_digits():
    """``E (z - a)_+^2`` for a = 9, where one minus a distribution function has no digit left."""
    strength, stiffness = 9.0, 1.0
    found = piecewise_moments(
        Regularizer(kind="lasso", strength=strength).rows(1), np.zeros((1, 1)), np.ones((1, 1, 1)), np.ones((1, 1, 1))
    )
    assert found.density.item() == pytest.approx(erfc(strength / np.sqrt(2)), rel=1e-12, abs=0)
    assert found.second.item() == pytest.approx(soft_moments(0.0, 1.0, stiffness, strength)[1], rel=1e-9, abs=0)


def test_two_uncorrelated_columns_are_independent_lassos_to_all_digits():
    """The lines' direction, the corners where panels end, and the noise across the lines."""
    mean, scale, stiffness = np.array([0.4, -0.7]), np.array([0.9, 0.03]), np.array([1.3, 0.002])
    rows = mean[None], np.diag(scale)[None], np.diag(stiffness)[None]
    found = piecewise_moments(KINDS["lasso"][0].rows(2), *rows)
    expected = np.array([soft_moments(*parts, 0.6) for parts in zip(mean, scale, stiffness, strict=True)])
    assert_allclose(found.first[0], expected[:, 0], rtol=1e-10)
    assert_allclose(np.diag(found.second[0]), expected[:, 1], rtol=1e-10)
    assert_allclose(found.second[0, 0, 1], expected[:, 0].prod(), rtol=1e-10)
    assert_allclose(np.diag(found.response[0]), expected[:, 3] / scale, rtol=1e-10)
    assert_allclose(found.density[0], expected[:, 2].mean(), rtol=1e-10)


@pytest.mark.parametrize("kind", ["lasso", "kinks"])
def test_closed_forms_on_lines_are_the_quadrature_of_the_plane(kind):
    """Correlated columns, of which one, both or none are at a kink, with curvatures that couple them."""
    regularizer = SEVERAL_KINKS if kind == "kinks" else KINDS[kind][0].rows(2)
    rows = gaussians(31, 2, 3)
    found, expected = piecewise_moments(regularizer, *rows), quadrature_moments(regularizer, *rows)
    for name, value in vars(expected).items():
        # the plane's nodes do not end at kinks
        atol = 5e-3 if name == "density" else 1e-3
        assert_allclose(getattr(found, name), value, rtol=0, atol=atol * np.abs(value).max(), err_msg=name)
    assert_allclose(found.response, np.swapaxes(found.response, 1, 2), rtol=0, atol=1e-12)


def test_response_of_two_columns_is_the_derivative_of_the_mean():
    """``E dw/dB = d E w / d mean``, which the shares of the pieces and w's means give apart from each other."""
    regularizer = SEVERAL_KINKS
    mean, root, curvature = gaussians(41, 2, 4)
    step = 1e-4

    def first(shift):
        return piecewise_moments(regularizer, mean + shift, root, curvature).first

    response = piecewise_moments(regularizer, mean, root, curvature).response
    slopes = [(first(step * way) - first(-step * way)) / (2 * step) for way in np.eye(2)]
    assert_allclose(response, np.stack(slopes, axis=2), rtol=0, atol=1e-7)


@pytest.mark.parametrize("kind", ["lasso", "group-lasso", "smooth"])
@pytest.mark.parametrize("r", [1, 2, 3])
def test_moments_are_of_the_regulariser_that_was_given(kind, r):
    """Closed forms are taken for rows that have them only: the norm of a row is not linear between kinks."""
    chosen = Regularizer(kind="group-lasso", strength=0.5, ridge=0.2) if kind == "group-lasso" else KINDS[kind][0]
    regularizer, rows = chosen.rows(r), gaussians(51, r, 2)
    found, expected = row_moments(regularizer, *rows), quadrature_moments(regularizer, *rows)
    assert_allclose(found.second, expected.second, rtol=0, atol=(1e-10, 1e-3, 1e-14)[r - 1] * expected.second.max())


@pytest.mark.parametrize(
    ("given_as", "held"),
    [
        ({"kind": "ridge", "strength": 0.3}, False),
        ({"kind": "lasso", "strength": 1e-6}, True),
        ({"kind": "elastic-net", "strength": 0.2, "ridge": 0.7}, True),
        ({"kind": "group-lasso", "strength": 0.2}, True),
        ({"kind": "expression", "expression": "0.2*abs(w) + w**4"}, True),
        ({"kind": "expression", "expression": "0.2*abs(w) + 0.1*w"}, True),
        ({"kind": "expression", "expression": "0.2*abs(w) + 0.2*w"}, False),
        ({"kind": "expression", "expression": "0.2*abs(w - 1)"}, False),
        ({"kind": "expression", "expression": "0.2*sqrt(w**2 + 0.1)"}, False),
        ({"kind": "prox", "prox": f"{MODULE}:soft"}, True),
        ({"kind": "prox", "prox": f"{MODULE}:huber", "ridge": 0.1}, False),
    ],
)
def test_which_penalties_hold_a_weight_at_zero(given_as, held):
    """Those of which zero is inside the slopes at zero: then small sources leave a weight there."""
    rows = Regularizer(**given_as).rows(2)
    assert rows.holds_zero == held
    small = np.array([[1e-7, -1e-7]]) * (1e-2 if held else 1)
    assert (rows.minimise(np.eye(2)[None], small) == 0).all() == held
