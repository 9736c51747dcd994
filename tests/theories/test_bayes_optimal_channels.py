"""What single labels tell of their fields, by several methods and by hand, and what keeps columns alike.

Not public: at the fixed point errors of a channel at given overlaps, and of its response to them, partly cancel; a
dear channel is only affordable at a single point, and a curve takes ten seconds.
"""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from learner import committee_image, of_formula
from models import model
from scipy.stats import ncx2, norm

import attnphase as ap
from attnphase.facts.labels import FieldLaws, LabelFacts
from attnphase.integration.rules import sobol
from attnphase.theories.bayes_optimal import fibres, specialisation
from attnphase.theories.bayes_optimal.channel import Fields, Preimages, Signs, draw_sets
from attnphase.theories.bayes_optimal.crossing import AllKnown, Branches, PointAtShare, crossing
from attnphase.theories.bayes_optimal.importance import Noisy
from attnphase.theories.bayes_optimal.lattices import FieldLaw, LabelPlane, label_plane, lattice_means
from attnphase.theories.bayes_optimal.model import model_of
from attnphase.theories.bayes_optimal.one_sign import SignSums
from attnphase.theories.bayes_optimal.readout import SignError
from attnphase.theories.bayes_optimal.solving import Start, solve_bayes_optimal
from attnphase.theories.bayes_optimal.specialisation import Growth, Sector, growth
from attnphase.theories.bayes_optimal.symmetries import all_rotations, column_images, turns
from attnphase.theories.bayes_optimal.thresholds import _weak_recovery
from attnphase.theories.bayes_optimal.two_points import TwoPoints
from derivations.models.labels import labels_of_formula

PAPER = ap.Problem.paper(omega=0.3)
ONE = of_formula(sigma=0.7, noise=0.3)


def close(ours: Any, theirs: Any, errors: float = 4.5, least: float = 1e-12) -> bool:
    """Tell whether numbers are within standard errors of means over replicates, the first axis."""
    return bool((np.abs(theirs.mean(axis=0) - ours) <= errors * theirs.std(axis=0, ddof=1) / 4 + least).all())


@pytest.mark.parametrize(
    ("channel", "sums", "center", "q", "V"),
    [
        pytest.param(Preimages(True), TwoPoints(True), [0.3, -0.2, 0.1], [0.3, 0.1, 0.5], [0.2, 0.4, 0.1], id="scores"),
        pytest.param(Preimages(False), TwoPoints(False), [0.3, -0.2], [0.3, 0.1], [0.2, 0.4], id="one to one"),
        pytest.param(Signs(0.0), SignSums(0.0), [0.3], [0.1], [0.4], id="sign, wide"),
        pytest.param(Signs(0.35), SignSums(0.35), [-0.4], [0.6], [0.05], id="noisy sign"),
        pytest.param(Signs(0.0), SignSums(0.0), [0.0], [0.9], [1e-3], id="sign, narrow"),
    ],
)
def test_sums_over_one_variable_have_the_moments_of_draws(channel, sums, center, q, V):
    """Fields with means and different variances: covariance, gain and evidence, and two offsets alike."""
    size = len(q)
    normals = sobol(2 * size, 0, False, 8192, 16, 3).nodes
    omega = np.array(center) + np.sqrt(q) * normals[..., :size]
    k = omega + np.sqrt(V) * normals[..., size:]
    fields = Fields(omega[..., None], k[..., None], np.array(V)[:, None, None], np.zeros((16, 8192, 1)))
    drawn, law = channel.posterior(fields), FieldLaw(np.eye(size), np.array(center), np.sqrt(q), np.sqrt(V))
    found, other = (sums.means(law, 256, np.random.default_rng(seed)) for seed in (1, 2))
    assert found.spread == pytest.approx(other.spread, abs=1e-12)
    for ours, theirs in (
        (np.diag(found.spread), drawn.spread), (np.diag(found.gain), drawn.gain),
        (np.diag(found.gain), drawn.alignment), (np.array([found.log_evidence]), drawn.log_evidence[..., None]),
    ):  # fmt: skip
        assert close(ours, theirs.reshape(16, 8192, -1).mean(axis=1))


def test_replicates_share_no_draws():
    """Else their scatter would not hold the error that the draws have, whatever the number of nodes."""
    sets = [set(one) for one in draw_sets(16, 50).reshape(16, 50)]
    assert sum(map(len, sets)) == len(set.union(*sets))


@pytest.mark.parametrize(("rho", "V", "mean"), [(0.8, 0.3, -0.5), (0.4, 0.4, 0.5), (1.3, 1e-4, 0.9)])
def test_error_of_a_sign_is_the_integral(rho, V, mean):
    """``E Phi(-|omega| / sqrt(V))`` by a fine sum over what is known, with a mean of the fields."""
    case = np.zeros(1, int), 1.0, np.full((1, 1), mean)
    evolution: Any = SimpleNamespace(rho=np.full((1, 1, 1), rho), cases=[case], replicates=4)
    x = np.linspace(-9, 9, 200_001)
    expected = norm.pdf(x) @ norm.cdf(-np.abs(mean + np.sqrt(rho - V) * x) / np.sqrt(V)) * (x[1] - x[0])
    assert SignError().error(evolution, np.full((1, 1, 1), V)) == pytest.approx(np.full(4, expected), rel=2e-5)


@pytest.mark.parametrize(
    ("B", "noise", "turn", "q", "V", "accuracy"),
    [
        pytest.param(
            [[0.7, -0.3], [0.2, 0.9], [-0.5, 0.4]], 0.3, [[0.8, -0.6], [0.6, 0.8]], [0.25, 0.09], [0.4225, 0.16], 1e-6,
            id="two fields and an entry of noise alone",
        ),
        pytest.param(
            [[0.7, -0.3, 0.5], [0.2, 0.9, -0.4]], 0.9, np.eye(3), [0.09, 0.04, 0.0625], [0.36, 0.25, 0.49], 1e-5,
            id="three fields",
        ),
    ],
)  # fmt: skip
def test_lattices_of_linear_labels_have_their_closed_form(B, noise, turn, q, V, accuracy):
    B, turn = np.array(B), np.array(turn)
    law = FieldLaw(turn, np.array([0.2, -0.1, 0.3])[: len(q)], np.sqrt(q), np.sqrt(V))
    plane = label_plane(lambda k: k @ B.T, np.sqrt(np.add(q, V)), noise)
    assert plane is not None
    found = lattice_means(plane, law, 0.8 if len(q) == 2 else 1.2, np.random.default_rng(1))
    V = (turn * V) @ turn.T
    seen = B @ V @ B.T + noise * np.eye(len(B))
    assert found.gain == pytest.approx(V @ B.T @ np.linalg.solve(seen, B @ V), abs=accuracy)
    assert found.log_evidence == pytest.approx(-np.linalg.slogdet(2 * math.pi * math.e * seen)[1] / 2, abs=accuracy)


def test_labels_with_many_waves_are_too_dear_for_lattices_also_under_strong_noise():
    few, many = (model_of(of_formula(2, 2, noise=1.5), f"sin({waves}*sum(k))").rule for waves in (2, 20))
    assert (few.split()[0], many) == ("lattices", "sobol")


def test_columns_that_turn_into_one_another_are_summed_over_a_length():
    """Two tokens of rank 2: gain of each token and evidence as without that, at a quarter of the places."""
    plane = model_of(model("rank 2", {"teacher.noise": 0.1, "teacher.omega": 0.3})).channel.sums
    assert isinstance(plane, LabelPlane)
    law = FieldLaw(np.eye(4), np.zeros(4), np.full(4, 0.3), np.full(4, 0.4), round=True)
    found = lattice_means(plane, law, 1.25, np.random.default_rng(1))
    whole = lattice_means(plane, replace(law, round=False), 1.25, np.random.default_rng(2))
    gains, expected = (np.diag(one.gain).reshape(2, 2).sum(axis=1) for one in (found, whole))
    assert gains == pytest.approx(expected, rel=1e-4)
    assert found.log_evidence == pytest.approx(whole.log_evidence, abs=1e-4)


@pytest.mark.parametrize("V", [0.9e-4, 1e-4, 3e-7])
def test_what_labels_tell_little_of_a_field_is_linear_in_it(V):
    """The gain ``V^2 / (Delta + V)`` by coarse lattices too, also where those of fields and knowledge agree."""
    plane = model_of(of_formula(sigma=0.7, noise=0.1), "k").channel.sums
    assert isinstance(plane, LabelPlane)
    law = FieldLaw(np.eye(1), np.zeros(1), np.sqrt([1 - V]), np.sqrt([V]))
    found = [plane.means(law, 2, np.random.default_rng([7, seed])).gain.item() for seed in range(4)]
    assert found == pytest.approx([V**2 / (0.1 + V)] * 4, rel=5e-3)


def test_a_few_draws_give_the_square_of_a_mean_without_bias():
    """Draws of N(0, 1) with weights exp(a x), whose mean is a: its square has a bias of order 1/n."""
    channel = model_of(ONE, "k + k**3/4").channel
    assert isinstance(channel, Noisy)
    draws, a = np.random.default_rng(3).standard_normal((40000, 64)), 0.7
    weights = np.exp(a * draws)
    weights /= weights.sum(axis=1, keepdims=True)
    center = (weights * draws).sum(axis=1)
    about = (draws - center[:, None])[..., None, None]
    _, square, _, _ = replace(channel, draws=32)._without_bias(weights, about, center[:, None, None])
    for values, low, high in ((square.ravel(), -4, 4), (center**2, 7, 99)):
        assert low < (values.mean() - a**2) / (values.std(ddof=1) / 200) < high


def softmax_labels(k: np.ndarray) -> np.ndarray:
    """``.6 softmax(k k^T)``, written again."""
    logits = k @ k.mT
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return (0.6 * weights / weights.sum(axis=-1, keepdims=True)).reshape(len(k), -1)


@pytest.mark.parametrize("rank", [1, 3])
def test_the_posterior_of_noisy_scores_is_that_of_weighted_draws_of_the_prior(rank):
    """Fields of unequal variances: mean, covariance, evidence, and half the error of what message passing takes."""
    V = np.array([np.diag([0.2, 0.15, 0.1]), np.diag([0.1, 0.2, 0.12])])[:, :rank, :rank]
    random, count, sets, noise = np.random.default_rng(11), 6, 16, 0.004
    omega = 0.4 * random.standard_normal((count, 2, rank))
    k = omega + (random.standard_normal((*omega.shape[:2], 1, rank)) @ np.sqrt(V))[..., 0, :]
    z = random.standard_normal((count, 4))
    omegas, ks, zs = (np.repeat(x, sets, axis=0)[None] for x in (omega, k, z))
    channel, fields = Noisy(softmax_labels, 4, 2, rank, noise, turns(rank, 8)), Fields(omegas, ks, V, zs)
    found, finer = channel.posterior(fields), channel.given(fields).mean
    assert found.mean is not None
    assert finer is not None
    if rank == 3:
        scatters = [x[0].reshape(count, sets, -1).std(axis=1).mean() for x in (finer, found.mean)]
        assert scatters[0] < 0.7 * scatters[1]
    deviation = (random.standard_normal((400_000, 2, 1, rank)) @ np.sqrt(V))[..., 0, :]
    for n in range(count):
        label = softmax_labels(k[n][None]) + np.sqrt(noise) * z[n]
        weights = np.exp(-((softmax_labels(omega[n] + deviation) - label) ** 2).sum(axis=1) / (2 * noise))
        mean = np.einsum("n,nli->li", weights, deviation) / weights.sum()
        second = np.einsum("n,nli,nlj->lij", weights, deviation, deviation) / weights.sum()
        rest = 1 / np.sqrt((weights.sum() ** 2) / (weights**2).sum())  # error of these draws, in deviations
        own = slice(n * sets, (n + 1) * sets)
        for ours, theirs, scale in (
            (found.mean[0, own], mean, 0.4),
            (found.spread[0, own], second - np.einsum("li,lj->lij", mean, mean), 0.2),
        ):
            assert close(theirs, ours, 4.5, 4.5 * rest * scale)
            assert ours.std(axis=0, ddof=1).max() / 4 + rest * scale < 0.08 * np.sqrt(scale)
        # the noise's own misfit, whose mean is known, stands in place of this node's
        log = np.log(weights.mean()) - 2 * np.log(2 * np.pi * noise) - 2 + (z[n] ** 2).sum() / 2
        assert close(log, found.log_evidence[0, own], 4.5, 4.5 * rest)


def squared_length_by_quadrature(V: float, q: float, noise: float) -> float:
    """Gain of one token's field of three columns, with ``y = |k|^2 + noise``.

    Given omega the length ``s = |k|^2`` is non-central chi squared, and ``E[k | s, omega]`` lies along omega.
    """
    x, w = np.polynomial.legendre.leggauss(24)
    chi = 2.9 + 2.9 * x
    of_chi = 2.9 * w * np.sqrt(2 / np.pi) * chi**2 * np.exp(-(chi**2) / 2)
    total = 0.0
    for length, weight in zip(np.sqrt(q) * chi, of_chi, strict=True):
        s = np.linspace(1e-6, (length + 7 * np.sqrt(V)) ** 2, 1500)
        density = ncx2.pdf(s / V, 3, length**2 / V) / V
        odds = np.sqrt(s) * length / V
        along = np.sqrt(s) * (1 / np.tanh(odds) - 1 / odds)
        y = np.linspace(-6 * np.sqrt(noise), s[-1] + 6 * np.sqrt(noise), 1200)
        both = norm.pdf(y[:, None], s, np.sqrt(noise)) * density * (s[1] - s[0])
        chance = both.sum(axis=1)
        told = both @ along / np.maximum(chance, 1e-200) - length
        total += weight * (chance * told**2).sum() * (y[1] - y[0])
    return total


def test_the_error_of_a_first_instability_is_the_scatter_of_points_and_of_their_growth(monkeypatch):
    """Replicates whose alpha at a share and growth at an alpha differ: each has its own crossing."""
    random = np.random.default_rng(6)
    shifts, lifts = 3e-4 * random.normal(size=16), 1e-3 * random.normal(size=16)

    def at_share(_, share, V):
        return SimpleNamespace(share=share, alpha=2 + share, alphas=2 + share + shifts, V=np.array([share]))

    def grown(_, alpha, V, sector):
        value = 0.7 + 1.7 * (alpha - 2)
        return Growth(value, value + lifts, 4e-4)

    monkeypatch.setattr(specialisation, "growth", grown)
    curve, whole = (at_share(None, share, None) for share in np.linspace(0.02, 0.6, 40)), SimpleNamespace(reach=0.9)
    arguments: Any = (None, None, curve, at_share, whole)
    found = specialisation.first_instability(*arguments)
    assert found is not None
    assert found[0] == pytest.approx(2 + 0.3 / 1.7, rel=1e-9)
    scatter = (shifts - lifts / 1.7).std(ddof=1) / 4
    assert found[1] == pytest.approx(np.hypot(scatter, 4e-4 / 1.7), rel=1e-6)


@pytest.mark.slow
def test_a_start_that_knows_nothing_keeps_all_rotations():
    """Few nodes have none of them; the share is that at which quadrature has this alpha, near weak recovery."""
    one = model_of(of_formula(1, 3, noise=0.5, sigma=0.8), "sum(k**2)")
    assert isinstance(one.channel, Noisy)
    one = replace(one, channel=replace(one.channel, sums=None))
    point = solve_bayes_optimal(one, 3.4, Start.uninformed, max_nodes=256)
    assert point.status == 0
    assert point.q[0] == pytest.approx(point.q[0, 0, 0] * np.eye(3), abs=1e-6)
    error = point.errors["overlap"]
    assert error < 0.2 * point.overlap

    def alpha_at(share: float) -> float:
        V = (1 - share) * 0.64
        return (1 / V - 1 / 0.64) * 3 * V**2 / squared_length_by_quadrature(V, 0.64 - V, 0.5)

    assert alpha_at(point.overlap - 4 * error) < 3.4 < alpha_at(point.overlap + 4 * error)


@pytest.mark.parametrize(
    ("problem", "channel", "alpha", "evidence"),
    [
        pytest.param(PAPER, None, 0.4, None, id="scores"),
        pytest.param(of_formula(sigma=0.7), "absolute", 0.9, None, id="a length"),
        pytest.param(PAPER.with_fields({"teacher.noise": 0.1}), None, 8.0, 3e-5, id="noisy scores"),
    ],
)
def test_the_free_entropy_is_stationary_and_has_the_evidence_as_its_slope(problem, channel, alpha, evidence):
    """``dPhi/dalpha = E log Z``; moved by a twentieth from the fixed point, Phi changes to second order only."""
    one = model_of(problem, channel)
    below, point, above = (
        solve_bayes_optimal(one, alpha * x, Start.uninformed, max_nodes=2**11) for x in (0.975, 1, 1.025)
    )
    evolution = one.evolution(point.nodes // 4 if evidence else 4096)

    def entropy(V: np.ndarray) -> float:
        return float(evolution.free_entropy(alpha, V, evolution.moments(V)).mean())

    middle, more, less = entropy(point.V), entropy(1.05 * point.V), entropy(0.95 * point.V)
    slope, curvature = (more - less) / 0.1, (more - 2 * middle + less) / 0.05**2
    assert abs(slope) < 0.1 * abs(curvature) * 0.05 + 2e-3
    change = (above.free_entropy - below.free_entropy) / (0.05 * alpha)
    expected = evolution.moments(point.V).log_evidence.mean()
    assert change == pytest.approx(expected, abs=evidence or 2e-2 * abs(expected))


def test_nothing_known_is_no_end_where_the_first_map_learns():
    """A channel that loses what it has learned by few draws: its return to nothing is not believed."""
    one: Any = model_of(of_formula(sigma=0.7), "1/(1 + exp(-y*k))")
    few = replace(one, channel=replace(one.channel, draws=16))
    point = solve_bayes_optimal(few, 1e6, Start.uninformed, max_nodes=2**10)
    assert (point.status.name, point.recovered) == ("left_domain", False)


def noisy_scores_on_a_grid(omega: float = 0.2, sigma: float = 0.6, noise: float = 0.5) -> float:
    """Of two tokens: rows of the score matrix sum to one, so that labels are two numbers with half of the noise."""
    k = np.linspace(-6, 6, 81)
    first, second = (x.ravel() for x in np.meshgrid(k, k))
    law = np.exp(-(first**2 + second**2) / 2)
    law /= law.sum()
    both = sigma**2 * np.array([first * first, first * second, second * second])
    attended = 1 / (1 + np.exp(both[1] - both[0])), 1 / (1 + np.exp(both[1] - both[2]))
    a, b = ((1 - omega) * x for x in attended)
    deviation = math.sqrt(noise / 2)
    y, z = (np.linspace(x.min() - 6 * deviation, x.max() + 6 * deviation, 60) for x in (a, b))
    near_a, near_b = (norm.pdf(at[:, None], x, deviation) for at, x in ((y, a), (z, b)))
    chance, *moments = (
        np.einsum("yk,zk->yz", near_a * law * f, near_b)
        for f in (np.ones_like(first), first**2 - 1, second**2 - 1, first * second)
    )
    squares = moments[0] ** 2 + moments[1] ** 2 + 2 * moments[2] ** 2
    return 1 / ((squares / np.maximum(chance, 1e-200)).sum() * (y[1] - y[0]) * (z[1] - z[0]))


def squared_length_on_a_grid(rho: float = 0.64, noise: float = 0.5) -> float:
    """Of three columns: ``E[u u^T - 1 | y] = g(y) 1`` with the standardised field u, so that ``1/alpha = E g^2``."""
    s, y = np.linspace(1e-9, 60, 6001), np.linspace(-5, 45, 2001)
    law = np.sqrt(s) * np.exp(-s / 2)
    both = norm.pdf(y[:, None], rho * s, np.sqrt(noise)) * law / law.sum()
    return 1 / ((both @ (s / 3 - 1)) ** 2 / np.maximum(both.sum(axis=1), 1e-200)).sum() / (y[1] - y[0])


TWO_LAYERS = """
first = skip*eye(L) + softmax(h[:, :1] @ h[:, :1].T)
u = first @ h[:, 1:]
v = (skip*eye(L) + softmax(k[:, :1] @ k[:, :1].T)) @ k[:, 1:]
sum((softmax(u @ u.T) - softmax(v @ v.T))**2)/2
"""


def two_layers(skip: float) -> ap.Problem:
    return of_formula(2, 2, TWO_LAYERS, skip=skip)


PRODUCT = "(1 + 0.8*y*sign(k0_0*k0_1))/2"
OTHER = {"teacher.omega": 0.2, "tokens.sigma": 0.6, "teacher.noise": 0.5}


@pytest.mark.parametrize(
    ("problem", "channel", "expected", "error"),
    [
        pytest.param(PAPER.with_fields(OTHER), None, noisy_scores_on_a_grid, 1e-5, id="noisy scores"),
        pytest.param(of_formula(1, 2, sigma=0.7), PRODUCT, (math.pi / 1.6) ** 2, 2e-3, id="the sign of a product"),
        pytest.param(
            of_formula(1, 3, noise=0.5, sigma=0.8), "sum(k**2)", squared_length_on_a_grid, 0.0125, id="a squared length"
        ),
        pytest.param(two_layers(1.0), None, 0.18551, 5e-3, id="two layers, by an independent program"),
        pytest.param(two_layers(4.0), None, 0.16914, 5e-3, id="far layers, by an independent program"),
        pytest.param(model("rank 2", {"teacher.omega": 0.2}), None, 0.4, 0.03, id="scores of two columns"),
        pytest.param(of_formula(2), "k[0, 0] + k[1, 0]**3", 0.0, 1.0, id="an odd label without noise"),
        pytest.param(of_formula(2), "sinh(2.24*k[0, 0]) - 0.6*sinh(2.24*k[1, 0])", 0.0, 1.0, id="24 steps of Newton's"),
    ],
)  # fmt: skip
def test_weak_recovery_is_that_of_an_integral_over_labels(monkeypatch, problem, channel, expected, error):
    monkeypatch.setattr(fibres, "RESPONSE_NODES", 256)
    found, expected = (
        _weak_recovery(model_of(problem, channel).evolution(16)),
        float(expected if isinstance(expected, float) else expected()),
    )
    assert abs(found.alpha - expected) < 4 * found.standard_error + 1e-3 * error + 6e-6
    assert found.standard_error <= error * expected


def test_where_nothing_known_and_all_known_cross_does_not_depend_on_the_next_point():
    """Both free entropies are linear: ``-3 alpha = -log(2) - alpha``."""
    one, V = np.ones(4), np.ones((1, 1, 1))
    origin = PointAtShare(1.0, 0.0, 0.0 * one, 0.0 * one, -3.0 * one, V, 0.5)
    summit = PointAtShare(0.9, 0.5, 0.5 * one, -1.4 * one, -2.0 * one, V, 0.5)
    found, known = Branches([[origin, summit]], [summit], summit, (0.5, 0.0)), AllKnown(-math.log(2), -one)
    assert crossing(lambda *_: summit, found, known, exact=False)[0] == pytest.approx(math.log(2) / 2, rel=1e-9)


def nodes(k: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Fields:
    """Copies of one node, each with its own set of draws."""
    return Fields(np.tile(omega, (1, 16, 1, 1)), np.tile(k, (1, 16, 1, 1)), V, np.zeros((1, 16, 0)))


def test_the_posterior_of_two_layers_is_that_of_a_sum_over_the_first():
    """Section 15: ``N(z_1) sum_± N(± A^-1 u) / |det A|`` on a grid of z_1."""
    skip, q = 0.7, np.array([0.3, 0.6])
    channel: Any = model_of(two_layers(skip)).channel
    channel = replace(channel, draws=512)
    random, grid, logs = np.random.default_rng(5), np.linspace(-6.5, 6.5, 500), []
    z = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1).reshape(-1, 2)

    def first(z: np.ndarray) -> np.ndarray:
        a, b = (1 / (1 + np.exp(-z[..., i] * (z[..., i] - z[..., 1 - i]))) for i in (0, 1))
        return np.stack([np.stack([skip + a, 1 - a], -1), np.stack([1 - b, skip + b], -1)], -2)

    A = first(z)
    for _ in range(3):
        omega = random.standard_normal((2, 2)) * np.sqrt(q)
        k = omega + random.standard_normal((2, 2)) * np.sqrt(1 - q)
        u = first(k[:, 0]) @ k[:, 1]
        w = np.linalg.solve(A, np.broadcast_to(u, z.shape)[..., None])[..., 0]
        prior = norm.pdf(z, omega[:, 0], math.sqrt(0.7)).prod(axis=1) / np.abs(np.linalg.det(A))
        two = [norm.pdf(sign * w, omega[:, 1], math.sqrt(0.4)).prod(axis=1) for sign in (1, -1)]
        weights = prior * (two[0] + two[1])
        mean = np.stack([weights @ z, (prior * (two[0] - two[1])) @ w], axis=1) / weights.sum()
        second = np.stack([weights @ z**2, weights @ w**2], axis=1) / weights.sum()
        found = channel.posterior(nodes(k, omega, np.stack([np.diag(1 - q)] * 2)))
        assert close(mean - omega, found.mean[0], 4, 1e-3)
        assert found.mean[0].std(axis=0).max() < 0.012
        assert close(second - mean**2, np.einsum("nlii->nli", found.spread[0]), 16, 1e-3)
        slopes = np.array([[2 * u[0] - u[1], -u[0]], [-u[1], 2 * u[1] - u[0]]])  # of the label's logits by u
        logs.append(found.log_evidence.mean() - np.log(weights.sum()) + np.linalg.slogdet(slopes)[1])
    assert np.ptp(logs) < 0.02  # the evidence is a density in other coordinates of the label


def test_a_chart_on_which_saturated_scores_keep_newton_from_fields_is_left_out():
    channel: Any = model_of(two_layers(4.0)).channel
    assert channel.charts == ((1, 3),)


def images_of(text: str, rank: int, size: float = 1.0) -> Any:
    laws = FieldLaws(np.zeros((1, 2 * rank)), np.full((1, 2 * rank), size))
    return column_images(LabelFacts([labels_of_formula(text, 2, rank)], [1.0], laws), rank, 8)


def test_a_sign_must_leave_the_labels_of_every_hidden_cluster():
    laws, turn = FieldLaws(np.zeros((1, 1)), np.ones((1, 1))), -np.eye(1)
    for second, same in (("cosh(k0_0)", True), ("k0_0**3 + k0_0**2", False)):
        facts = LabelFacts([labels_of_formula(text, 1, 1) for text in ("k0_0**2", second)], [0.4, 0.6], laws)
        assert facts.unchanged(turn) is facts.alike(turn) is same


BENT = "sqrt(1 + sum(k[0]**2) + 2*sum(k[1]**2)) + 0.001*relu(k[0, 0] - 10)"


@pytest.mark.parametrize(
    ("text", "rank", "count", "rotations"),
    [
        pytest.param("[sum(k[0]**2), sum(k[1]**2)]", 3, 24, True, id="norms"),
        pytest.param("[sum(k[0, :2]**2), sum(k[1, :2]**2)]", 3, 16, False, id="norms of two of three columns"),
        pytest.param("k[0, 0]*k[1, 1] - k[0, 1]*k[1, 0]", 2, None, False, id="a determinant"),
        pytest.param(BENT, 2, 2, False, id="a norm and a bend beyond ten deviations"),
        pytest.param(BENT, 3, 8, False, id="a norm of three columns and a bend"),
    ],
)
def test_symmetries_of_labels_are_all_there_are(text, rank, count, rotations):
    found = np.array(images_of(text, rank))
    assert len(found) == (count or len(found))
    assert all_rotations(images_of(text, rank)) is rotations
    if count is None:
        assert {round(np.linalg.det(image)) for image in found} == {1}
    if text == BENT:
        assert (found[:, 0, 0] == 1).all()
    products = np.einsum("aij,bjk->abik", found, found).reshape(-1, 1, rank**2)
    assert np.abs(products - found.reshape(-1, rank**2)).max(axis=-1).min(axis=1).max() < 1e-12
    assert found @ found.mT == pytest.approx(np.broadcast_to(np.eye(rank), found.shape), abs=1e-12)


@pytest.mark.slow
def test_growth_of_the_committee_is_that_of_directions_which_break_its_symmetry():
    """Along the one that it keeps the map has another derivative: one near weak recovery."""
    alpha, apart = 2.05, np.array([[1, -1], [-1, 1]]) / 2
    q = np.full((2, 2), 0.36)
    for _ in range(30):
        q = committee_image(alpha, q)
    one, two = (np.sum(apart * committee_image(alpha, q + h * apart)) / h for h in (0.002, 0.001))
    committee: Any = model_of(of_formula(1, 2), "sign(k0_0) + sign(k0_1)")
    evolution = replace(committee.evolution(64), channel=replace(committee.channel, draws=2048))
    sector = Sector.of(evolution, np.eye(2)[None] - q)
    assert sector.reach == pytest.approx(0.5)
    found = growth(evolution, alpha, np.eye(2)[None] - q, sector)
    error = math.hypot(found.each.std(ddof=1) / 4, found.truncation)
    assert abs(found.value - (2 * two - one)) < 2 * error < 0.1
    evolution = model_of(two_layers(1)).evolution(32)
    V = evolution.rho - np.diag([0.0, 0.003])  # where the second layer is about to be learned
    assert growth(evolution, 0.198, V, Sector.of(evolution, V)).value < 0.3
