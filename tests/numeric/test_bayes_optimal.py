"""The Bayes-optimal limit: numbers with independent sources, and what must hold of any posterior."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import root_scalar
from scipy.stats import norm

import attnphase as ap
from attnphase.errors import ProblemError
from attnphase.integration.rules import sobol
from attnphase.problem.problem import Problem
from attnphase.theories.bayes_optimal.channel import Fields, Preimages, draw_sets
from attnphase.theories.bayes_optimal.importance import Noisy
from attnphase.theories.bayes_optimal.lattices import FieldLaw, LabelPlane, label_plane, lattice_means
from attnphase.theories.bayes_optimal.model import model_of
from attnphase.theories.bayes_optimal.solving import Start, solve_bayes_optimal
from attnphase.theories.bayes_optimal.thresholds import _weak_recovery, bayes_optimal_thresholds
from attnphase.theories.bayes_optimal.two_points import TwoPoints

pytestmark = pytest.mark.filterwarnings("error")

ROOT = Path(__file__).parents[2]
PAPER = Problem.paper(omega=0.3)
ONE = {"tokens": {"length": 1, "sigma": 0.7}, "loss": {"kind": "square"}}


def one_token(**fields):
    return Problem.from_dict(ONE).with_fields({name.replace("__", "."): value for name, value in fields.items()})


def z_score(value, error, expected):
    return abs(value - expected) / error


# --- the paper's teacher ----------------------------------------------------------------------


def overlap_by_gauss(alpha, rho=0.25, order=90):
    """q/rho for L = 2, t = 1 without noise: omega is turned into (r, 0), so that three Gauss rules do the integral.

    Only ``E |k|^2 sech^2(k omega / V)`` is needed, and is invariant under rotations of the two tokens.
    """
    x, w = np.polynomial.hermite_e.hermegauss(order)
    u, of_u = np.polynomial.laguerre.laggauss(order)
    w = w / w.sum()

    def image(V):
        r = np.sqrt(2 * u * (rho - V))[:, None, None]
        first, second = r + math.sqrt(V) * x[:, None], math.sqrt(V) * x[None, None, :]
        first = first.reshape(len(u), len(x), 1)
        odds = np.clip(first * r / V, -300, 300)
        spread = np.einsum("a,b,c,abc", of_u, w, w, (first**2 + second**2) / np.cosh(odds) ** 2)
        return rho / (1 + rho * alpha * (2 / V - spread / V**2))

    low, high = 0.02 * rho, (1 - 1e-3) * rho
    return 1 - root_scalar(lambda V: image(V) - V, bracket=(low, high)).root / rho


@pytest.mark.parametrize("alpha", [0.35, 0.4])
def test_the_paper_s_teacher_against_gauss_rules(alpha):
    point = solve_bayes_optimal(model_of(PAPER), alpha, Start.uninformed)
    expected = overlap_by_gauss(alpha)
    assert point.overlap == pytest.approx(expected, rel=1e-5)  # of the Gauss rules
    assert point.errors["overlap"] < 1e-9
    # the table of the theory, to its last digit
    assert expected == pytest.approx({0.35: 0.4187, 0.4: 0.5918}[alpha], abs=3e-4)
    assert point.test_error == pytest.approx({0.35: 0.001635, 0.4: 0.001296}[alpha], abs=8e-6)


def test_both_starts_lead_to_the_same_point_and_to_recovery_from_one_half_on():
    model = model_of(PAPER)
    both = [solve_bayes_optimal(model, 0.42, start, max_nodes=2**14) for start in Start]
    assert both[0].overlap == pytest.approx(both[1].overlap, abs=1e-6)
    known = solve_bayes_optimal(model, 0.55, Start.uninformed, max_nodes=2**14)
    assert known.recovered
    assert (known.overlap, known.test_error) == (1.0, 0.0)
    unknown = solve_bayes_optimal(model, 0.15, Start.uninformed, max_nodes=2**14)
    assert unknown.overlap == 0.0
    assert math.isnan(known.free_entropy)


def test_the_prediction_of_nothing_is_the_linear_predictor_s():
    """Without any label the posterior's prediction is the mean of T, which is what a linear map has."""
    ds = ap.bayes_optimal(PAPER, 0.1, start="uninformed", settings=ap.SolverSettings(max_nodes=2**14))
    assert float(ds.test_error[0, 0]) == pytest.approx(float(ds.linear_test_error[0, 0]), rel=0.01)
    # (1 - omega)^2 c, with the paper's constant
    assert float(ds.linear_test_error[0, 0]) == pytest.approx(0.7**2 * 0.0040232, rel=1e-4)


def test_more_samples_are_never_worse_and_training_is_never_better():
    """The published trained student at alpha = 2 has .0014; the posterior has that at a fifth of the samples."""
    ds = ap.bayes_optimal(PAPER, [0.2, 0.3, 0.4, 0.47], start="uninformed", settings=ap.SolverSettings(max_nodes=2**16))
    errors = ds.test_error.squeeze("start").to_numpy()
    assert (np.diff(errors) < 0).all()
    assert errors[0] < float(ds.linear_test_error[0, 0])
    assert errors[2] < 0.001404


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_weak_recovery_of_a_field_known_up_to_its_sign(length):
    """``alpha = 1/(L (L + 1))``: ``E (k_l k_m - delta_lm)^2`` is two on the diagonal and one beside it.

    The channel knows no score, so that no model of this length is compiled.
    """
    base = model_of(PAPER).evolution(128, 16)
    prior = replace(base.prior, gamma=np.full((length, 1), 0.64), rho=np.full((length, 1, 1), 0.64))
    tokens = np.arange(length)
    law = replace(base.law, configurations=tokens[None], tokens=tokens, means=np.zeros((1, length, 1)))
    evolution = replace(base, prior=prior, law=law)
    operators, first = evolution.growth()
    each = np.array([np.linalg.eigvals(one).real.max() for one in operators])
    assert each == pytest.approx(length * (length + 1), rel=1e-12)
    assert first.max() == 0.0


def weak_recovery_on_a_grid(omega, sigma, noise):
    """Of two tokens: rows of the score matrix sum to one, so that labels are two numbers with half of the noise."""
    k = np.linspace(-6, 6, 81)
    first, second = (x.ravel() for x in np.meshgrid(k, k))
    law = np.exp(-(first**2 + second**2) / 2)
    law /= law.sum()
    both = sigma**2 * np.array([first * first, first * second, second * second])
    attended = 1 / (1 + np.exp(both[1] - both[0])), 1 / (1 + np.exp(both[1] - both[2]))
    a, b = ((1 - omega) * x + 0.6 * omega for x in attended)
    deviation = math.sqrt(noise / 2)
    y, z = (np.linspace(x.min() - 6 * deviation, x.max() + 6 * deviation, 60) for x in (a, b))
    near_a, near_b = (
        np.exp(-((at[:, None] - x) ** 2) / noise) / (deviation * math.sqrt(2 * math.pi)) for at, x in ((y, a), (z, b))
    )
    chance, *moments = (
        np.einsum("yk,zk->yz", near_a * law * f, near_b)
        for f in (np.ones_like(first), first**2 - 1, second**2 - 1, first * second)
    )
    squares = moments[0] ** 2 + moments[1] ** 2 + 2 * moments[2] ** 2
    return 1 / ((squares / np.maximum(chance, 1e-200)).sum() * (y[1] - y[0]) * (z[1] - z[0]))


@pytest.mark.parametrize(("omega", "sigma", "noise"), [(0.2, 0.6, 0.5), (0.45, 0.5, 0.08)])
def test_weak_recovery_under_noise_against_a_grid(omega, sigma, noise):
    """Few draws of the posterior have squares that are too large, which would be a threshold that is too low."""
    problem = Problem.paper(omega=omega).with_fields({"tokens.sigma": sigma, "teacher.noise": noise})
    found = _weak_recovery(model_of(problem).evolution(64))
    assert found.alpha == pytest.approx(weak_recovery_on_a_grid(omega, sigma, noise), rel=1e-5)  # of the grid
    assert found.standard_error < 1e-6 * found.alpha


def test_the_paper_s_teacher_has_no_jump():
    found = bayes_optimal_thresholds(model_of(PAPER), max_nodes=2**14)
    assert found["weak_recovery"].alpha == pytest.approx(1 / 6, rel=1e-12)
    assert math.isnan(found["algorithmic"].alpha)
    assert found["perfect_recovery"].alpha == pytest.approx(0.5, abs=1e-6)


# --- channels of one token --------------------------------------------------------------------


def test_phase_retrieval():
    """Weak recovery 1/2, algorithmic 1.1285 and information-theoretic 1, from Barbier et al., arXiv:1708.03395."""
    found = bayes_optimal_thresholds(model_of(one_token(), "absolute"), max_nodes=2**15)
    assert found["weak_recovery"].alpha == pytest.approx(0.5, rel=1e-12)
    assert found["algorithmic"].alpha == pytest.approx(1.1285, abs=4 * found["algorithmic"].standard_error + 5e-5)
    assert found["information_theoretic"].alpha == pytest.approx(1.0, abs=1e-4)
    model = model_of(one_token(), "absolute")
    below, above = (
        solve_bayes_optimal(model, 1.06, start, max_nodes=2**14) for start in (Start.uninformed, Start.informed)
    )
    assert not below.recovered
    assert above.recovered


@pytest.mark.parametrize(("alpha", "error"), [(1, 0.25437), (2, 0.17453), (3, 0.12985), (5, 0.08394), (10, 0.04357)])
def test_the_sign_channel(alpha, error):
    """Generalisation errors of the Bayes-optimal perceptron."""
    point = solve_bayes_optimal(model_of(one_token(), "sign"), float(alpha), Start.uninformed, max_nodes=2**15)
    assert point.test_error == pytest.approx(error, abs=1.5e-5)
    assert point.test_error == pytest.approx(math.acos(math.sqrt(point.overlap)) / math.pi, rel=2e-3)


def test_a_formula_of_the_label_is_the_channel_of_that_name():
    """The sign as a formula, and the logistic likelihood at a large slope, against the sign in closed form."""
    exact = solve_bayes_optimal(model_of(one_token(), "sign"), 2.0, Start.uninformed, max_nodes=2**13)
    for text in ("sign(k)", "1/(1 + exp(-60*y*k))"):
        point = solve_bayes_optimal(model_of(one_token(), text), 2.0, Start.uninformed, max_nodes=2**11)
        assert point.overlap == pytest.approx(exact.overlap, abs=0.01), text
        assert point.test_error == pytest.approx(exact.test_error, abs=0.005), text


def linear_with_noise(alpha, noise, gammas, weights):
    """Share known, evidence and information of ``y = k + noise``, Gaussian throughout, by one root."""
    rho = weights @ gammas
    V = root_scalar(
        lambda V: weights @ (gammas / (1 + gammas * alpha / (noise + V))) - V, bracket=(1e-12, rho), xtol=1e-14
    ).root
    q_hat = alpha / (noise + V)
    prior = weights @ (gammas * q_hat - np.log1p(gammas * q_hat)) / 2
    evidence = -0.5 * math.log(2 * math.pi * math.e * (noise + V))
    phi = -q_hat * (rho - V) / 2 + prior + alpha * evidence
    return 1 - V / rho, phi, -0.5 * math.log(2 * math.pi * math.e * noise) - phi / alpha


def test_linear_labels_with_noise_on_a_spectrum():
    """The importance sampling, the spectral mean, the free entropy and the information, all against closed forms."""
    atoms = [{"weight": 0.3, "variances": [0.9]}, {"weight": 0.7, "variances": [0.2]}]
    problem = one_token(teacher__noise=0.17).with_fields({"tokens.spectrum": atoms})
    point = solve_bayes_optimal(model_of(problem), 1.3, Start.uninformed, max_nodes=2**12)
    share, phi, information = linear_with_noise(1.3, 0.17, np.array([0.9, 0.2]), np.array([0.3, 0.7]))
    assert point.overlap == pytest.approx(share, abs=4 * point.errors["overlap"] + 1e-4)
    assert point.free_entropy == pytest.approx(phi, abs=4 * point.errors["free_entropy"] + 1e-4)
    assert point.mutual_information == pytest.approx(information, abs=4 * point.errors["mutual_information"] + 1e-4)
    # a fresh label's error is what is left of the field
    assert point.test_error == pytest.approx(0.41 * (1 - share), rel=0.03)


def test_the_error_is_the_derivative_of_the_information():
    """I-MMSE: ``dI/d(1/Delta)`` a sample is half the error of a *seen* label, here ``V Delta/(V + Delta)``."""
    noise, step, gammas, weights = 0.17, 1e-5, np.array([0.49]), np.ones(1)
    above, below = (linear_with_noise(1.3, 1 / (1 / noise + s * step), gammas, weights)[2] for s in (1, -1))
    point = solve_bayes_optimal(model_of(one_token(teacher__noise=noise)), 1.3, Start.uninformed, max_nodes=2**12)
    V = float(point.V.item())
    assert (above - below) / (2 * step) == pytest.approx(V * noise / (V + noise) / 2, rel=5e-3)


# --- noise: importance sampling against a grid ------------------------------------------------


def scores(k):
    """The paper's score matrices, written again."""
    field = k[..., 0]
    logits = field[:, :, None] * field[:, None, :]
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    mixing = np.array([[0.6, 0.4], [0.4, 0.6]])
    return (0.7 * weights / weights.sum(axis=-1, keepdims=True) + 0.3 * mixing).reshape(len(k), -1)


@pytest.mark.parametrize(("noise", "V"), [(3e-4, 0.06), (0.03, 0.17), (0.8, 0.11)])
def test_the_posterior_of_noisy_labels_against_a_grid(noise, V):
    random = np.random.default_rng(4)
    count, rho = 12, 0.25
    omega = math.sqrt(rho - V) * random.standard_normal((1, count, 2, 1))
    k = omega + math.sqrt(V) * random.standard_normal(omega.shape)
    z = random.standard_normal((1, count, 4))
    channel = Noisy(scores, 4, 2, 1, noise, (((1.0,),), ((-1.0,),)), draws=256)
    found = channel.posterior(Fields(omega, k, np.full((2, 1, 1), V), z))
    grid = np.linspace(-6.5, 6.5, 521)
    spreads, means, logs = [], [], []
    for n in range(count):
        sides = [omega[0, n, l, 0] + math.sqrt(V) * grid for l in range(2)]
        places = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2)
        label = scores(k[0, n][None]) + math.sqrt(noise) * z[0, n]
        exponent = -((scores(places[..., None]) - label) ** 2).sum(axis=1) / (2 * noise)
        exponent -= ((places - omega[0, n, :, 0]) ** 2).sum(axis=1) / (2 * V)
        weights = np.exp(exponent - exponent.max())
        logs.append(exponent.max() + math.log(weights.sum() * (grid[1] - grid[0]) ** 2 / (2 * math.pi)))
        weights /= weights.sum()
        means.append(weights @ places)
        spreads.append(weights @ places**2 - means[-1] ** 2)
    assert found.spread[0, :, :, 0, 0] == pytest.approx(np.array(spreads), abs=0.05 * V)
    assert found.spread[0].mean() == pytest.approx(np.mean(spreads), rel=0.02)
    assert found.mean is not None
    assert (found.mean + omega)[0, :, :, 0] == pytest.approx(np.array(means), abs=0.12 * math.sqrt(V))
    # the noise's own misfit, whose mean is known, stands in place of this node's
    expected = np.array(logs) - 2 * math.log(2 * math.pi * noise) - 2 + (z[0] ** 2).sum(axis=1) / 2
    assert found.log_evidence[0] == pytest.approx(expected, abs=0.12)


def test_replicates_share_no_draws():
    """Else their scatter would not hold the error that the draws have, whatever the number of nodes."""
    sets = [set(one) for one in draw_sets(16, 50).reshape(16, 50)]
    assert sum(map(len, sets)) == len(set.union(*sets))


@pytest.mark.parametrize("even", [True, False])
def test_two_points_summed_over_one_variable_against_their_draws(even):
    """Fields with means and different variances: covariance, gain and evidence, and Nishimori of the draws."""
    q, V, center = np.array([0.3, 0.1, 0.5]), np.array([0.2, 0.4, 0.1]), np.array([0.3, -0.2, 0.1])
    normals = sobol(6, 0, False, 4096, 16, 3).nodes
    omega = center + np.sqrt(q) * normals[..., :3]
    k = omega + np.sqrt(V) * normals[..., 3:]
    fields = Fields(omega[..., None], k[..., None], V[:, None, None], np.zeros((16, 4096, 0)))
    drawn = Preimages(even).posterior(fields)
    law = FieldLaw(np.eye(3), center, np.sqrt(q), np.sqrt(V))
    found, other = (TwoPoints(even).means(law, 256, np.random.default_rng(seed)) for seed in (1, 2))
    assert found.spread == pytest.approx(other.spread, abs=1e-13)
    for ours, theirs in (
        (np.diag(found.spread), drawn.spread), (np.diag(found.gain), drawn.gain),
        (np.diag(found.gain), drawn.alignment), (np.array([found.log_evidence]), drawn.log_evidence[..., None]),
    ):  # fmt: skip
        each = theirs.reshape(16, 4096, -1).mean(axis=1)
        assert (np.abs(each.mean(axis=0) - ours) <= 4.5 * each.std(axis=0, ddof=1) / 4 + 1e-12).all()


def test_columns_that_turn_into_one_another_are_summed_over_a_length():
    """Two tokens of rank 2: gain of each token and evidence as without that, at a quarter of the places."""
    model = model_of(PAPER.with_fields({"teacher.noise": 0.1, "teacher.rank": 2, "student.rank": 2}))
    plane = model.channel.sums
    assert isinstance(plane, LabelPlane)
    law = FieldLaw(np.eye(4), np.zeros(4), np.full(4, 0.3), np.full(4, 0.4), round=True)
    found = lattice_means(plane, law, 1.25, np.random.default_rng(1))
    whole = lattice_means(plane, replace(law, round=False), 1.25, np.random.default_rng(2))
    gains, expected = (np.diag(one.gain).reshape(2, 2).sum(axis=1) for one in (found, whole))
    assert gains == pytest.approx(expected, rel=1e-4)
    assert found.log_evidence == pytest.approx(whole.log_evidence, abs=1e-4)


def test_little_noise_is_no_noise():
    """At Delta = 1e-10 no number overflows, and the posterior is that of two points."""
    random = np.random.default_rng(5)
    omega = 0.3 * random.standard_normal((1, 400, 2, 1))
    V = np.full((2, 1, 1), 0.16)
    k = omega + 0.4 * random.standard_normal(omega.shape)
    fields = Fields(omega, k, V, random.standard_normal((1, 400, 4)))
    noisy = Noisy(scores, 4, 2, 1, 1e-10, (((1.0,),), ((-1.0,),))).posterior(fields)
    exact = Preimages(True).posterior(fields)
    assert noisy.spread.mean() == pytest.approx(exact.spread.mean(), rel=0.01)


def test_noise_keeps_from_recovery_and_delays_it():
    """Weak recovery moves up with the noise, and the Nishimori identity holds at the fixed point."""
    model = model_of(PAPER.with_fields({"teacher.noise": 0.01}))
    operators, _ = model.evolution(128).growth()
    threshold = 1 / np.linalg.eigvals(operators.mean(axis=0)).real.max()
    assert 0.3 < threshold < 0.55
    point = solve_bayes_optimal(model, 0.9, Start.uninformed, max_nodes=2**12)
    assert 0.2 < point.overlap < 0.95
    assert 0 < point.mutual_information < 2 * math.log1p(0.01 / 0.01)


def test_a_few_draws_give_the_square_of_a_mean_without_bias():
    """Draws of N(0, 1) with weights exp(a x), whose mean is a: its square has a bias of order 1/n."""
    channel = model_of(one_token(teacher__noise=0.3), "k + k**3/4").channel
    assert isinstance(channel, Noisy)
    generator, a = np.random.default_rng(3), 0.7
    draws = generator.standard_normal((40000, 64))
    weights = np.exp(a * draws)
    weights /= weights.sum(axis=1, keepdims=True)
    center = (weights * draws).sum(axis=1)
    about = (draws - center[:, None])[..., None, None]
    _, square, _, _ = replace(channel, draws=32)._without_bias(weights, about, center[:, None, None])
    for values, low, high in ((square.ravel(), -4, 4), (center**2, 7, 99)):
        assert low < (values.mean() - a**2) / (values.std(ddof=1) / 200) < high


def test_lattices_of_linear_labels_against_the_closed_form():
    """``Y = B k + noise`` of two fields: gain and evidence are Gaussian; the third entry is noise alone."""
    B = np.array([[0.7, -0.3], [0.2, 0.9], [-0.5, 0.4]])
    noise, turn = 0.3, np.array([[0.8, -0.6], [0.6, 0.8]])
    law = FieldLaw(turn, np.array([0.2, -0.1]), np.array([0.5, 0.3]), np.array([0.65, 0.4]))
    plane = label_plane(lambda k: k @ B.T, np.array([1.1, 0.8]), noise)
    assert plane is not None
    assert plane.rest == 1
    found = lattice_means(plane, law, 0.8, np.random.default_rng(1))
    V = (turn * law.unknown**2) @ turn.T
    seen = B @ V @ B.T + noise * np.eye(3)
    assert found.gain == pytest.approx(V @ B.T @ np.linalg.solve(seen, B @ V), rel=1e-6)
    assert found.log_evidence == pytest.approx(-np.linalg.slogdet(2 * math.pi * math.e * seen)[1] / 2, abs=1e-6)


def test_lattices_of_three_fields_against_the_closed_form():
    """Two linear labels of three fields, of which little is known: each sum over a direction is in its place."""
    B = np.array([[0.7, -0.3, 0.5], [0.2, 0.9, -0.4]])
    unknown, noise = np.array([0.6, 0.5, 0.7]), 0.9
    law = FieldLaw(np.eye(3), np.array([0.2, -0.1, 0.3]), np.array([0.3, 0.2, 0.25]), unknown)
    plane = label_plane(lambda k: k @ B.T, np.full(3, 0.7), noise)
    assert plane is not None
    found = lattice_means(plane, law, 1.2, np.random.default_rng(1))
    V = np.diag(unknown**2)
    seen = B @ V @ B.T + noise * np.eye(2)
    assert found.gain == pytest.approx(V @ B.T @ np.linalg.solve(seen, B @ V), abs=1e-5)
    assert found.log_evidence == pytest.approx(-np.linalg.slogdet(2 * math.pi * math.e * seen)[1] / 2, abs=1e-5)


@pytest.mark.parametrize(("noise", "share"), [(0.04, 0.35), (0.6, 0.8)])
def test_lattices_agree_with_draws_of_the_posterior(noise, share):
    """Gain, covariance and evidence of the paper's score matrices, by two methods that share the labels alone."""
    model = model_of(PAPER.with_fields({"teacher.noise": noise}))
    assert isinstance(model.channel, Noisy)
    drawn = replace(model, channel=replace(model.channel, sums=None)).evolution(512)
    V = (1 - share) * model.prior.rho
    ours, theirs = model.evolution(512).moments(V), drawn.moments(V)
    for name in ("gain", "spread", "log_evidence"):
        found, draws = (getattr(one, name).reshape(len(one.gain), -1) for one in (ours, theirs))
        errors = draws.std(axis=0, ddof=1) / 4 + found.std(axis=0, ddof=1) / 2
        assert (np.abs(found.mean(axis=0) - draws.mean(axis=0)) < 4 * errors).all(), name
    # what is left of the lattices' error is far below
    assert (ours.gain.std(axis=0) < 1e-3 * ours.gain.mean(axis=0)).all()


def test_a_map_by_lattices_against_one_of_many_draws_at_small_noise():
    """Where blocks of fields, patches of what is known and windows of labels are many."""
    model = model_of(PAPER.with_fields({"teacher.noise": 0.002}))
    assert isinstance(model.channel, Noisy)
    drawn = replace(model, channel=replace(model.channel, sums=None)).evolution(1024)
    V = 0.45 * model.prior.rho
    ours, theirs = model.evolution(32, 2).moments(V), drawn.moments(V)
    found, draws = ours.gain.mean(axis=0).ravel(), theirs.gain.reshape(16, -1)
    assert found == pytest.approx(draws.mean(axis=0), abs=4 * float(draws.std(axis=0, ddof=1).max()) / 4)
    assert ours.log_evidence.mean() == pytest.approx(
        theirs.log_evidence.mean(), abs=4 * theirs.log_evidence.std(ddof=1) / 4
    )


def test_noisy_labels_of_one_token_are_summed_where_they_are_smooth():
    """The label k + k^3/4 under noise against draws of its posterior; kinks keep the draws."""
    problem = one_token(teacher__noise=0.2)
    model = model_of(problem, "k + k**3/4")
    assert isinstance(model.channel, Noisy)
    assert model.channel.sums is not None
    drawn = replace(model, channel=replace(model.channel, sums=None)).evolution(512)
    V = 0.6 * model.prior.rho
    found, draws = model.evolution(128).moments(V).gain.mean(), drawn.moments(V).gain.ravel()
    assert z_score(found, draws.std(ddof=1) / 4, draws.mean()) < 4
    for kinked in ("absolute", "abs(k) + k/2"):
        channel = model_of(problem, kinked).channel
        assert isinstance(channel, Noisy)
        assert channel.sums is None


def test_what_lattices_are_not_for():
    scale = np.full(2, 0.5)
    assert label_plane(lambda k: k[:, :2], np.full(5, 0.5), 0.1) is None  # five fields
    assert label_plane(lambda k: np.stack([*k.T, k[:, 0] * k[:, 1]], axis=1), scale, 0.1) is None  # no plane
    assert label_plane(lambda k: k, scale, 1e-7) is None  # too many places
    assert not isinstance(model_of(PAPER).channel.sums, LabelPlane)


# --- what must hold of any problem ------------------------------------------------------------


@pytest.mark.parametrize("problem", [PAPER, one_token()], ids=["scores", "absolute"])
def test_the_free_entropy_is_stationary(problem):
    """Moved by a tenth from the fixed point, it changes to second order only."""
    model = model_of(problem, "absolute" if problem.tokens.length == 1 else None)
    alpha = 0.4 if problem is PAPER else 0.9
    point = solve_bayes_optimal(model, alpha, Start.uninformed, max_nodes=2**16)
    evolution = model.evolution(4096)

    def entropy(V):
        return float(evolution.free_entropy(alpha, V, evolution.moments(V)).mean())

    middle, above, below = entropy(point.V), entropy(1.05 * point.V), entropy(0.95 * point.V)
    slope, curvature = (above - below) / 0.1, (above - 2 * middle + below) / 0.05**2
    assert abs(slope) < 0.1 * abs(curvature) * 0.05 + 2e-3


def test_uncovered_problems_are_refused():
    for noise in (0.0, 0.2):
        with pytest.raises(ProblemError, match=r"teacher\.omega = 1: labels do not depend on the teacher's weights"):
            model_of(PAPER.with_fields({"teacher.omega": 1.0, "teacher.noise": noise}))
    with pytest.raises(ProblemError, match=r"teacher\.rank must be 1 or 2"):
        model_of(PAPER.with_fields({"teacher.rank": 3}))
    with pytest.raises(ProblemError, match='channel = "sign" is for one token'):
        model_of(PAPER, "sign")
    for text, words in (
        ("k +", "channel must be"),
        ("k**3 - k", "teacher.noise = 0"),
        ("y*k", "from 0 to 1"),
        ("3", "does not depend on k"),
        ("0*k + y", "does not depend on k"),
        ("sqrt(k)", "no finite number for some k"),
    ):
        with pytest.raises(ProblemError, match=words):
            model_of(one_token(), text)


def test_the_dataset_is_labelled_and_round_trips(tmp_path):
    ds = ap.bayes_optimal(PAPER, [0.3, 0.6], settings=ap.SolverSettings(max_nodes=2**11), thresholds=False)
    ap.validate_dataset(ds)
    ap.save_dataset(ds, tmp_path / "limits.nc")
    again = ap.load_dataset(tmp_path / "limits.nc")
    assert again.test_error.dims == ("start", "alpha")
    assert again.recovered.values.tolist() == [[0, 1], [0, 1]]
    assert float(again.q_stderr[0, 0, 0, 0, 0]) > 0
    assert again.attrs["schema"] == "bayes_optimal"


def test_the_sign_s_evidence_by_quadrature():
    """The mutual information of a noiseless sign is minus the evidence, ``E_omega sum_y Z log Z``, done by SciPy."""
    point = solve_bayes_optimal(model_of(one_token(), "sign"), 1.7, Start.uninformed, max_nodes=2**14)
    q, V = (float(a.item()) for a in (point.q, point.V))

    def entropy(x):
        p = norm.cdf(math.sqrt(q / V) * x)
        return norm.pdf(x) * sum(v * math.log(v) for v in (p, 1 - p) if v > 1e-300)

    evidence = quad(entropy, -12, 12)[0]
    q_hat = float(point.q_hat.item())
    phi = -q * q_hat / 2 + (0.49 * q_hat - math.log1p(0.49 * q_hat)) / 2 + 1.7 * evidence
    assert point.free_entropy == pytest.approx(phi, abs=5e-5)
    assert point.mutual_information == pytest.approx(-phi / 1.7, abs=5e-5)


def test_the_page_runs_and_says_what_it_prints(capsys):
    text = (ROOT / "docs" / "bayes_optimal_numbers.md").read_text(encoding="utf-8")
    namespace: dict = {}
    for source, printed in re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL):
        exec(compile(source, "bayes_optimal_numbers.md", "exec"), namespace)
        assert capsys.readouterr().out == printed


def test_the_committee_tells_its_members_apart_above_two():
    """Aubin et al., arXiv:1806.05451: two hidden signs are learned one by one from about alpha = 2.05 on."""
    fields = {"teacher.rank": 2, "loss.kind": "expression", "loss.expression": "(h0_0 - k0_0)**2 + k0_1**2"}
    evolution = model_of(one_token().with_fields(fields), "sign(k0_0) + sign(k0_1)").evolution(32)
    rho = evolution.rho
    apart = {}
    for alpha in (1.8, 2.5):
        V = rho - rho[0, 0, 0] * np.array([[[0.46, 0.29], [0.29, 0.46]]])
        for _ in range(30):
            V = evolution.image(alpha, V)
        q = (rho - V)[0] / rho[0, 0, 0]
        apart[alpha] = (q[0, 0] + q[1, 1]) / 2 - q[0, 1]
    assert apart[1.8] < 0.02
    assert 0.1 < apart[2.5] < 0.4


def committee_overlap(alpha):
    """q of ``sign(k_0) + sign(k_1)`` by Gauss rules: ``q_hat = alpha E sum_y grad P(y) grad P(y)^T / P(y)``."""
    x, w = np.polynomial.hermite_e.hermegauss(36)
    u, of_u = np.polynomial.legendre.leggauss(60)
    first, second = (a.ravel() for a in np.meshgrid(x, x, indexing="ij"))
    law, q = np.outer(w, w).ravel() / w.sum() ** 2, np.array([[0.5, 0.2], [0.2, 0.5]])
    for _ in range(200):
        V = np.eye(2) - q
        s, slope = math.sqrt(V[0, 0]), V[0, 1] / V[0, 0]
        rest = math.sqrt(V[1, 1] - slope * V[0, 1])

        def both_positive(omega, s=s, slope=slope, rest=rest):
            low = np.maximum(0.0, omega[:, :1] - 9 * s)
            half = np.maximum(omega[:, :1] + 9 * s - low, 1e-9) / 2
            k = low + half * (1 + u)
            after = norm.cdf((omega[:, 1:] + slope * (k - omega[:, :1])) / rest)
            gradient = [
                norm.pdf(omega[:, i] / s) / s * norm.cdf((omega[:, 1 - i] - slope * omega[:, i]) / rest) for i in (0, 1)
            ]
            return (norm.pdf(k, omega[:, :1], s) * after * half) @ of_u, np.stack(gradient)

        values, vectors = np.linalg.eigh(q)
        omega = np.stack([first, second], axis=1) @ ((vectors * np.sqrt(values)) @ vectors.T)
        (p, of_p), (m, of_m) = both_positive(omega), both_positive(-omega)
        labels = ((p, of_p), (m, -of_m), (np.maximum(1 - p - m, 1e-12), of_m - of_p))
        q_hat = alpha * sum((law / np.maximum(one, 1e-300) * d) @ d.T for one, d in labels)
        new = q_hat @ np.linalg.inv(np.eye(2) + q_hat)
        if np.abs(new - q).max() < 1e-6:
            return new
        q = new
    raise AssertionError("no fixed point")


@pytest.mark.slow
def test_a_start_that_knows_nothing_leads_to_where_the_columns_are_told_apart():
    """The point that does not tell them apart is a fixed point too, and unstable here."""
    expected = committee_overlap(2.35)
    problem = Problem.from_dict({"tokens": {"length": 1, "sigma": 1.0}, "teacher": {"rank": 2}})
    point = solve_bayes_optimal(model_of(problem, "sign(k0_0) + sign(k0_1)"), 2.35, Start.uninformed, max_nodes=2**14)
    assert point.status == 0
    assert (np.abs(point.q[0] - expected) < 4 * point.errors["q"][0]).all()
    assert (point.errors["q"] < 0.02).all()
    assert expected[0, 0] - expected[0, 1] > 0.1


def test_clusters_that_are_alike_are_no_clusters():
    """Sites that share a law get the overlap of the problem without them; one that is wider by a factor, by its square.

    Without noise nothing depends on the fields' scale, so that the share known does not either.
    """
    expected = solve_bayes_optimal(model_of(PAPER), 0.4, Start.uninformed, max_nodes=2**14)
    for narrow in (0.5, 0.3):
        clusters = [[{"sigma": 0.5}, {"sigma": narrow}]] * 2
        problem = Problem.from_dict({"tokens": {"kind": "mixture", "length": 2, "clusters": clusters}})
        point = solve_bayes_optimal(model_of(problem), 0.4, Start.uninformed, max_nodes=2**14)
        assert point.q.ravel() / point.rho.ravel() == pytest.approx([expected.overlap] * 4, rel=1e-4)


def test_what_encodings_and_means_tell_is_known_before_any_label():
    """Weights that overlap by .6 with a known mean: 36 % of their variance, and the sign, are known at once."""
    clusters = [[{"sigma": 0.5, "mean": [1.5]}, {"sigma": 0.5, "mean": [-1.5]}]] * 2
    problem = Problem.from_dict(
        {"tokens": {"kind": "mixture", "length": 2, "clusters": clusters, "mean_teacher": [[0.6]]}}
    )
    model = model_of(problem)
    evolution = model.evolution(128)
    q, V = evolution.overlaps(np.zeros_like(evolution.rho))
    assert q.ravel() / 0.25 == pytest.approx([0.36] * 4)
    assert V.ravel() / 0.25 == pytest.approx([0.64] * 4)
    assert solve_bayes_optimal(model, 0.1, Start.uninformed, max_nodes=2**14).overlap > 0.37


@settings(deadline=None, max_examples=3)
@given(
    omega=st.floats(0.05, 0.9), sigma=st.floats(0.3, 0.9), alpha=st.floats(0.19, 0.4), more=st.floats(0.02, 0.08),
    corner=st.floats(0.1, 0.9),
)  # fmt: skip
def test_any_teacher_of_two_tokens(omega, sigma, alpha, more, corner):
    """Without noise the share known depends on neither omega, sigma nor A; the posterior's overlaps agree (Nishimori).

    More samples are never worse, and none is worse than the linear predictor.
    """
    mixing = ((corner, 1 - corner), (0.3, 0.7))
    problem = Problem.paper(omega=omega, sigma=sigma, mixing=mixing)
    point, later = (
        solve_bayes_optimal(model_of(problem), a, Start.uninformed, max_nodes=2**14) for a in (alpha, alpha + more)
    )
    assert point.overlap == pytest.approx(overlap_by_gauss(alpha), rel=1e-4)
    assert later.overlap > point.overlap
    assert later.test_error < point.test_error
    ds = ap.bayes_optimal(problem, alpha, start="uninformed", settings=ap.SolverSettings(max_nodes=2**14))
    linear = float(ds.linear_test_error.squeeze())
    assert point.test_error < linear * 1.01 + 4 * point.errors["test_error"]


@settings(deadline=None, max_examples=3)
@given(noise=st.floats(0.02, 0.6), alpha=st.floats(0.4, 2.5), first=st.floats(0.1, 0.8), second=st.floats(0.1, 0.8))
def test_any_linear_labels(noise, alpha, first, second):
    """Overlap, information and its monotony against the closed form, for random spectra and noise."""
    atoms = [{"weight": 0.4, "variances": [first]}, {"weight": 0.6, "variances": [second]}]
    problem = one_token(teacher__noise=noise).with_fields({"tokens.spectrum": atoms})
    point = solve_bayes_optimal(model_of(problem), alpha, Start.uninformed, max_nodes=2**11)
    share, phi, information = linear_with_noise(alpha, noise, np.array([first, second]), np.array([0.4, 0.6]))
    assert z_score(point.overlap, point.errors["overlap"] + 1e-4, share) < 4.5
    assert z_score(point.free_entropy, point.errors["free_entropy"] + 1e-4, phi) < 4.5
    assert z_score(point.mutual_information, point.errors["mutual_information"] + 1e-4, information) < 4.5


def test_the_limit_over_fields_of_the_problem(tmp_path):
    """Without noise what is known depends on no omega, and the error is in proportion to (1 - omega)^2."""
    ds = ap.bayes_optimal(
        PAPER,
        [0.3, 0.4],
        fields={"teacher.omega": [0.1, 0.5]},
        start="uninformed",
        settings=ap.SolverSettings(max_nodes=2**12),
    )
    assert ds["overlap"].dims == ("start", "omega", "alpha")
    known, errors = ds["overlap"].squeeze().to_numpy(), ds["test_error"].squeeze().to_numpy()
    assert known[0] == pytest.approx(known[1], rel=1e-6)
    assert errors[0] / errors[1] == pytest.approx((0.9 / 0.5) ** 2, rel=1e-6)
    assert ds["linear_test_error"].squeeze()[0, 0] > ds["linear_test_error"].squeeze()[1, 0]
    ap.save_dataset(ds, tmp_path / "l.nc")
    assert ap.load_dataset(tmp_path / "l.nc").identical(ds)
    noisy = ap.bayes_optimal(
        PAPER,
        0.3,
        fields={"teacher.noise": [0.2, 0.4]},
        start="uninformed",
        settings=ap.SolverSettings(max_nodes=2**11),
    )
    assert noisy["noise"].attrs["latex"] == r"\Delta"
    with pytest.raises(ProblemError, match="thresholds are of one problem"):
        ap.bayes_optimal(PAPER, 0.3, fields={"teacher.omega": [0.1, 0.5]}, thresholds=True)


def test_the_free_entropy_of_noisy_labels_has_the_evidence_as_its_slope():
    """``dPhi/dalpha = E log Z``: free entropy, fixed point and evidence belong together, to the lattices' precision."""
    model = model_of(PAPER.with_fields({"teacher.noise": 0.1}))
    below, middle, above = (solve_bayes_optimal(model, a, Start.uninformed, max_nodes=2**11) for a in (7.8, 8.0, 8.2))
    slope = (above.free_entropy - below.free_entropy) / 0.4
    evidence = model.evolution(middle.nodes // 4).moments(middle.V).log_evidence.mean()
    assert slope == pytest.approx(evidence, abs=3e-5)


def test_an_informed_start_of_a_formula_does_not_end_at_nothing():
    """The sign as a formula: few nodes see the labels near all known; 0.4863 by the channel of the name."""
    problem = ap.Problem().with_fields({"tokens.length": 1, "loss.kind": "square"})
    ds = ap.bayes_optimal(problem, 1.0, channel="sign(k0_0)", settings=ap.SolverSettings(max_nodes=2**11))
    by_name = float(ap.bayes_optimal(problem, 1.0, channel="sign", start="uninformed").overlap.item())
    errors = ds.overlap_stderr.to_numpy().ravel()
    assert (errors > 0).all()
    assert (np.abs(ds.overlap.to_numpy().ravel() - by_name) < 5 * errors).all()
