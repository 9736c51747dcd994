"""Laws of the entries of the teacher's weights: their declaration, rows under them, and the Bayes-optimal limit."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import integrate
from scipy.optimize import brentq, minimize_scalar

import attnphase as ap
from attnphase.errors import ProblemError
from attnphase.pages.page import derive
from attnphase.problem import Problem
from attnphase.problem.teacher_priors import EntryLaw
from attnphase.spectrum.measure import Spectrum
from attnphase.state_evolution.overlaps import Conjugates
from attnphase.state_evolution.spread import Spread
from attnphase.state_evolution.symmetries import teacher_unchanged
from attnphase.state_evolution.system import System
from attnphase.theories.bayes_optimal.model import model_of
from attnphase.theories.bayes_optimal.row_mixtures import RowMixture
from attnphase.theories.bayes_optimal.thresholds import bayes_optimal_thresholds
from derivations.printing.setting import vector

pytestmark = pytest.mark.filterwarnings("error")

RADEMACHER: dict[str, Any] = {"teacher.prior": "rademacher"}
SPARSE: dict[str, Any] = {"teacher.prior": "gauss-bernoulli", "teacher.prior_density": 0.23}
SKEWED: dict[str, Any] = {
    "teacher.prior": "atoms",
    "teacher.prior_values": [-0.5, 2.0],
    "teacher.prior_probabilities": [0.8, 0.2],
}
POSITIVE: dict[str, Any] = SKEWED | {"teacher.prior_values": [0.0, 1.4], "teacher.prior_probabilities": [0.7, 0.3]}
PRIORS = {"rademacher": RADEMACHER, "sparse": SPARSE, "skewed": SKEWED, "positive": POSITIVE}
ONE = Problem.from_dict({"tokens": {"length": 1, "sigma": 0.8}, "loss": {"kind": "square"}, "teacher": {"noise": 0.3}})


def law_of(fields):
    return ONE.with_fields(fields).teacher.law


# --- the declaration ------------------------------------------------------------------------------


def test_the_default_is_not_written_and_has_the_old_hash():
    """So that stored datasets keep their problem."""
    assert Problem().with_fields({"teacher.prior": "gaussian"}).to_toml() == Problem().to_toml()
    assert "prior" not in Problem().to_toml()
    assert Problem().hash == "62805d6474c85932"
    hashes = {ONE.with_fields(prior).hash for prior in ({}, *PRIORS.values(), SPARSE | {"teacher.prior_density": 0.3})}
    assert len(hashes) == 6
    again = Problem.from_toml(ONE.with_fields(SKEWED).to_toml())
    assert again == ONE.with_fields(SKEWED)
    assert ONE.with_fields(SPARSE).with_fields(RADEMACHER) == ONE.with_fields(RADEMACHER)


@pytest.mark.parametrize(
    ("fields", "named", "words"),
    [
        ({"teacher.prior": "laplace"}, "teacher.prior", 'must be "gaussian", "rademacher", "gauss-bernoulli" or'),
        ({"teacher.prior": "gauss-bernoulli"}, "teacher.prior_density", "needs teacher.prior_density: give it"),
        ({"teacher.prior_density": 0.3}, "teacher.prior_density", 'set teacher.prior = "gauss-bernoulli", or remove'),
        (SPARSE | {"teacher.prior_density": 0.0}, "teacher.prior_density", "must be a number from 1e-6 to 1"),
        (SPARSE | {"teacher.prior_density": 1.1}, "teacher.prior_density", "must be a number from 1e-6 to 1"),
        ({"teacher.prior": "atoms", "teacher.prior_values": [0, 1]}, "teacher.prior_probabilities", "give it"),
        (SKEWED | {"teacher.prior_values": [1.0, 1.0]}, "teacher.prior_values", "different numbers: give each once"),
        (SKEWED | {"teacher.prior_values": [0, 1, 2]}, "teacher.prior_probabilities", "has 2 numbers, but"),
        (SKEWED | {"teacher.prior_probabilities": [0.8, 0.1]}, "teacher.prior_probabilities", "sum to 1, but sum to"),
        (SKEWED | {"teacher.prior_probabilities": [1.0, 0.0]}, "teacher.prior_probabilities", "probabilities above 0"),
        (SKEWED | {"teacher.prior_values": list(range(17))}, "teacher.prior_values", "two to 16 numbers"),
    ],
)
def test_wrong_declarations_name_the_field(fields, named, words):
    with pytest.raises(ProblemError) as refused:
        ONE.with_fields(fields)
    assert refused.value.field == named
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def written(folder, text):
    """A problem file that names a file of atoms beside it."""
    (folder / "law.csv").write_text(text)
    path = folder / "problem.toml"
    path.write_text(
        'tokens = {length = 1, sigma = 0.8}\nloss = {kind = "square"}\n'
        'teacher = {noise = 0.3, prior = "atoms", prior_values = "law.csv"}\n'
    )
    return path


def test_atoms_come_from_a_file_and_stay_in_the_problem(tmp_path, monkeypatch):
    skewed = ap.load_problem(written(tmp_path, "probability,value\n.8,-.5\n.2,2\n"))
    assert skewed == ONE.with_fields(SKEWED)
    assert skewed.hash == ONE.with_fields(SKEWED).hash
    assert Problem.from_toml(skewed.to_toml()) == skewed  # the file is not needed any more
    monkeypatch.chdir(tmp_path)
    named = {"teacher.prior": "atoms", "teacher.prior_values": "law.csv"}
    assert ONE.with_fields(named) == skewed
    assert skewed.with_fields(named | {"teacher.prior_probabilities": None}) == skewed


@pytest.mark.parametrize(
    ("text", "named", "words"),
    [
        ("", "values", "the header of"),
        ("value,weight\n1,1\n", "values", "must be value,probability."),
        ("value,probability\n1,.5\n2\n", "values", "atom 1 of"),
        ("value,probability\n1,.5\n2,x\n", "values", "has a wrong entry"),
        ("value,probability\n1,.5\n1,.5\n", "values", "different numbers"),
        ("value,probability\n1,.5\n2,.4\n", "probabilities", "must sum to 1"),
        ("value,probability\n" + "1,.05\n" * 20, "values", "two to 16 numbers"),
    ],
)
def test_refused_files_of_atoms(tmp_path, text, named, words):
    path = written(tmp_path, text)
    with pytest.raises(ProblemError, match=re.escape(words)) as refused:
        ap.load_problem(path)
    assert refused.value.field == f"teacher.prior_{named}"
    with pytest.raises(ProblemError, match="are in the file that"):
        ONE.with_fields(SKEWED | {"teacher.prior_values": str(tmp_path / "law.csv")})


def test_what_gives_or_correlates_the_weights_is_refused():
    atoms = [{"weight": 1.0, "variances": [0.3, 0.3], "teacher": [1.0]}]
    clusters = {"tokens.kind": "mixture", "tokens.clusters": [{"mean": [1.3]}, {"mean": [-0.7]}]}
    many = [{"weight": 1 / 9000, "variances": [0.3 + 1e-5 * i, 0.3]} for i in range(9000)]
    for fields, words in (
        ({"tokens.spectrum": atoms}, "teacher in the atoms of tokens.spectrum"),
        ({"positions.teacher": [[0.3], [-0.3]]}, "positions.teacher does not"),
        (clusters | {"tokens.mean_teacher": [[0.4]]}, "tokens.mean_teacher does not"),
        ({"tokens.spectrum": many, "teacher.rank": 3}, "72000 components"),
    ):
        with pytest.raises(ProblemError, match=words) as refused:
            Problem().with_fields(RADEMACHER | fields)
        assert refused.value.field == "teacher.prior"


@pytest.mark.parametrize("fields", PRIORS.values(), ids=PRIORS)
def test_entries_that_are_drawn_have_the_moments(fields):
    law, count = law_of(fields), 200_000
    drawn = law.draw(np.random.default_rng(3), (count, 2))
    squares = np.array(law.variances) + np.square(law.means)
    fourth = np.dot(law.probabilities, 3 * squares**2 - 2 * np.power(law.means, 4))
    assert drawn.mean() == pytest.approx(law.mean, abs=4 * np.sqrt(law.variance / count))
    second = law.variance + law.mean**2
    assert (drawn**2).mean() == pytest.approx(second, abs=4 * np.sqrt(fourth / count))
    assert (drawn.prod(axis=1)).mean() == pytest.approx(law.mean**2, abs=4 * second / np.sqrt(count))
    assert law.is_even == np.isclose(np.dot(law.probabilities, np.power(law.means, 3)), 0)


# --- state evolution ------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [RADEMACHER, SPARSE, SKEWED], ids=["rademacher", "sparse", "skewed"])
def test_a_ridge_asks_for_second_moments_alone(fields):
    """Of entries with mean zero and variance one: also 1RSB and the flow, which read the measure's points."""
    changed = Problem().with_fields(fields)
    for one, other in zip(Spectrum.of(changed).points(), Spectrum.of(Problem()).points(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-14, atol=1e-15)
    theirs, ours = (ap.solve(problem, alpha=2.1, branch="semantic") for problem in (Problem(), changed))
    for name in ("q", "theta", "V", "test_error", "training_loss"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-9, atol=1e-12)


def test_the_components_of_a_row_have_its_moments():
    """On two atoms with encodings and two columns: shares, eigenvalues, and which component has which moments."""
    levels = {"kind": "two-level", "variances": [0.3, 0.6], "fraction": 0.4}
    problem = Problem().with_fields({"tokens.spectrum": levels, "teacher.rank": 2} | POSITIVE)
    whole = Spectrum.of(problem)
    parts = whole.gaussian
    assert len(parts.weights) == 8
    for gamma in (0.3, 0.6):
        a, here = whole.gamma[0] == gamma, parts.gamma[0] == gamma
        assert parts.weights[here].sum() == pytest.approx(whole.weights[a].sum())
        mean = np.einsum("a,aij->ij", parts.weights[here], parts.second_moments[here]) / parts.weights[here].sum()
        np.testing.assert_allclose(mean, whole.second_moments[a][0], rtol=0, atol=1e-14)
    assert whole.rho[0] == pytest.approx(np.array([[0.588, 0.1764], [0.1764, 0.588]]) * 0.48)


def soft_thresholds(law, gamma, strength, q_hat, theta_hat, V_hat):
    """q, theta and the share of nonzero weights of the lasso in one column, by quadrature over the source."""
    q = theta = density = 0.0
    for p, m, v in zip(law.probabilities, law.means, law.variances, strict=True):
        deviation = np.sqrt(gamma * q_hat + (gamma * theta_hat) ** 2 * v)
        gain = gamma * theta_hat * v / deviation**2

        def of(b, p=p, m=m, deviation=deviation, gain=gain):
            z = (b - gamma * theta_hat * m) / deviation
            w = np.sign(b) * max(abs(b) - strength, 0) / (gamma * V_hat)
            density = p * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) / deviation
            return density * np.array([w * w, w * (m + gain * deviation * z), float(w != 0)])

        ends = [-30, -strength, strength, 30]
        for low, high in itertools.pairwise(ends):
            parts = integrate.quad_vec(of, low, high, epsabs=1e-12, epsrel=1e-11)[0]
            q, theta, density = q + gamma * parts[0], theta + gamma * parts[1], density + parts[2]
    return q, theta, density


@pytest.mark.parametrize("fields", PRIORS.values(), ids=PRIORS)
def test_rows_of_a_lasso_against_quadrature(fields):
    problem = ONE.with_fields({"regularizer.kind": "lasso", "regularizer.strength": 0.37} | fields)
    system, (q_hat, theta_hat, V_hat) = System.of(problem), (0.83, 1.7, 1.9)
    hats = Conjugates(*(np.full((1, 1, 1, 1), x) for x in (q_hat, V_hat, 0.0, theta_hat)))
    image = system.prior.overlaps(hats)
    assert image is not None
    q, theta, density = soft_thresholds(problem.teacher.law, 0.64, 0.37, q_hat, theta_hat, V_hat)
    assert image.q.item() == pytest.approx(q, rel=1e-9)
    assert image.theta.item() == pytest.approx(theta, rel=1e-9)
    assert system.prior.density(hats).item() == pytest.approx(density, rel=1e-9)
    # a row's response is 1 / (gamma V_hat) where it is not zero
    expected = 0.64**2 * density / (0.64 * V_hat) ** 2
    assert Spread(system, hats).linear.item() == pytest.approx(expected, rel=5e-4)


def test_the_ridge_as_any_other_regulariser():
    """Its closed form holds for the rows' second moments, which the components have together."""
    problem = ONE.with_fields(SKEWED | {"teacher.prior_values": [-0.7, 2.3]})
    system = System.of(problem)
    hats = Conjugates(*(np.full((1, 1, 1, 1), x) for x in (0.83, 1.9, 0.0, 1.7)))
    rows = problem.with_fields({"regularizer.kind": "expression", "regularizer.expression": "0.005*w**2"}).rows
    general = replace(system.prior, rows=rows, strength=0.0, spectrum=system.spectrum.gaussian)
    closed, found = (prior.overlaps(hats) for prior in (system.prior, general))
    assert isinstance(closed, type(found))
    for name in ("q", "theta", "V"):
        np.testing.assert_allclose(getattr(found, name), getattr(closed, name), rtol=1e-8)


def test_signs_of_one_column_are_no_symmetry_of_a_skewed_law():
    spectra = {name: System.of(ONE.with_fields(fields)) for name, fields in PRIORS.items()}
    flip, same = -np.eye(1), np.eye(1)
    kept = {name for name, system in spectra.items() if teacher_unchanged(system.spectrum, system.sample_law, flip)}
    assert kept == {"rademacher", "sparse"}
    assert all(teacher_unchanged(system.spectrum, system.sample_law, same) for system in spectra.values())


# --- rows given a source --------------------------------------------------------------------------


def row_by_quadrature(law, noise):
    """Mean variance of an entry given ``noise w + sqrt(noise) z``, and the information, by SciPy over the source."""
    p, m, v = map(np.array, (law.probabilities, law.means, law.variances))
    deviations = np.sqrt(1 + v * noise)

    def of(y):
        z = (y - np.sqrt(noise) * m) / deviations
        densities = p * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) / deviations
        total = densities.sum()
        if total < 1e-300:
            return np.zeros(2)
        r, b = densities / total, np.sqrt(noise) * y
        means, spreads = (m + v * b) / (1 + v * noise), v / (1 + v * noise)
        variance = r @ (spreads + (means - r @ means) ** 2)
        return total * np.array([variance, -np.log(total) - (1 + np.log(2 * np.pi)) / 2])

    reach = np.sqrt(noise) * np.abs(m).max() + 13 * deviations.max()
    ends = np.unique(np.concatenate([np.linspace(-reach, reach, 61), np.linspace(-9, 9, 61)]))
    parts = [integrate.quad_vec(of, a, b, epsabs=1e-15, epsrel=1e-10)[0] for a, b in itertools.pairwise(ends)]
    return np.sum(parts, axis=0)


@pytest.mark.parametrize("noise", [0.013, 0.7, 6.3, 41.0])
@pytest.mark.parametrize("fields", PRIORS.values(), ids=PRIORS)
def test_rows_given_a_source_against_quadrature(fields, noise):
    law = law_of(fields)
    V, information = (x.item() for x in RowMixture.of(law, 1).unknown(np.full((1, 1, 1), noise)))
    expected = row_by_quadrature(law, noise)
    # also where V is 1e-9
    np.testing.assert_allclose([V, information], expected, rtol=1e-8, atol=1e-18)


def test_components_that_are_alike_are_one():
    """A normal law in two parts, of which nothing tells which it was: also in two columns that a source mixes."""
    parts = EntryLaw((0.3, 0.7), (0.4, 0.4), (1.3, 1.3))
    noise = np.array([[[0.9, 0.5], [0.5, 2.1]], [[31.0, -7.0], [-7.0, 4.0]]])
    for columns, given in ((1, noise[:, :1, :1]), (2, noise)):
        one = np.eye(columns)
        V, information = RowMixture.of(parts, columns).unknown(given)
        error = 1e-12 if columns == 1 else 1e-6
        np.testing.assert_allclose(V, np.linalg.inv(one / 1.3 + given), rtol=error)
        np.testing.assert_allclose(information, np.linalg.slogdet(one + 1.3 * given)[1] / 2, rtol=error)


def test_one_entry_that_is_a_sum_of_two():
    """A source that sees ``v . w`` alone is that of an entry with the values of the sum."""
    v, noise = np.array([1.0, 0.6]), np.array([0.4, 3.7])
    whole = RowMixture.of(law_of(RADEMACHER), 2).unknown(noise[:, None, None] * np.outer(v, v))
    sums = EntryLaw((0.25,) * 4, (-1.6, -0.4, 0.4, 1.6), (0.0,) * 4)
    one = RowMixture.of(sums, 1).unknown(noise[:, None, None])
    np.testing.assert_allclose(v @ whole[0] @ v, one[0].ravel(), rtol=1e-6)
    np.testing.assert_allclose(whole[1], one[1], rtol=1e-6)


def test_more_information_is_half_of_what_is_unknown():
    """In every entry of S: ``dI/dS = E Cov(w | B)/2``, along a direction of two columns."""
    mixture, step = RowMixture.of(law_of(SPARSE), 2), 1e-3
    noise, way = np.array([[[1.7, 0.6], [0.6, 0.9]]]), np.array([[0.5, -0.3], [-0.3, 1.0]])
    ends = [mixture.unknown(noise + sign * step * way)[1].item() for sign in (1, -1)]
    expected = np.einsum("aij,ij->", mixture.unknown(noise)[0], way) / 2
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(expected, rel=1e-5)


def test_the_posterior_of_a_row_by_hand():
    """Signs: every one of the four choices with its weight; a normal law: the regression."""
    noise, source = np.array([[[1.1, 0.4], [0.4, 0.8]]]), np.array([[0.7, -0.2]])
    rows = np.array([[a, b] for a in (-1, 1) for b in (-1, 1)], float)
    weights = np.exp(rows @ source[0] - np.einsum("ki,ij,kj->k", rows, noise[0], rows) / 2)
    weights /= weights.sum()
    mean, spread = RowMixture.of(law_of(RADEMACHER), 2).posterior(noise, source)
    np.testing.assert_allclose(mean[0], weights @ rows)
    np.testing.assert_allclose(spread[0], (rows * weights[:, None]).T @ rows - np.outer(mean[0], mean[0]))
    gauss = RowMixture.of(EntryLaw((1.0,), (0.3,), (1.7,)), 2).posterior(noise, source)
    inverse = np.linalg.inv(noise[0] + np.eye(2) / 1.7)
    np.testing.assert_allclose(gauss[1][0], inverse)
    np.testing.assert_allclose(gauss[0][0], inverse @ (source[0] + 0.3 / 1.7))


# --- the limit ------------------------------------------------------------------------------------


X, W = np.polynomial.hermite_e.hermegauss(200)


def gauss_mean(function):
    """Of a normal number, by Gauss-Hermite nodes that no package function shares."""
    return W @ function(X) / W.sum()


def unknown_sign(noise):
    """``1 - E tanh(noise + sqrt(noise) z)``: Tanaka's denoiser of a binary user."""
    return gauss_mean(lambda z: 2 / (1 + np.exp(2 * np.clip(noise + np.sqrt(noise) * z, -300, 300))))


@cache
def binary_users(alpha, noise, rho):
    """V/rho of Tanaka's CDMA, by its own iteration, and the free entropy there."""
    share = 1.0
    for _ in range(400):
        share = unknown_sign(rho * alpha / (noise + rho * share))
    snr = rho * alpha / (noise + rho * share)
    logs = gauss_mean(lambda z: np.logaddexp(snr + np.sqrt(snr) * z, -snr - np.sqrt(snr) * z) - np.log(2)) - snr / 2
    channel = -alpha / 2 * (np.log(2 * np.pi * (noise + rho * share)) + 1)
    return share, -(1 - share) * snr / 2 + logs + channel


@pytest.mark.parametrize(("alpha", "noise"), [(0.61, 0.34), (1.27, 0.52)])
def test_linear_labels_of_signs_are_binary_cdma(alpha, noise):
    """Tanaka, IEEE Trans. Inf. Theory 48 (2002) 2888: against an iteration of one number."""
    problem = ONE.with_fields(RADEMACHER | {"teacher.noise": noise})
    ds = ap.bayes_optimal(problem, alpha, start="uninformed")
    share, entropy = binary_users(alpha, noise, 0.64)
    assert ds["overlap"].item() == pytest.approx(1 - share, rel=1e-7)
    assert ds["free_entropy"].item() == pytest.approx(entropy, rel=1e-7)
    # the Gaussian learner knows less
    assert (
        ap.bayes_optimal(problem.with_fields({"teacher.prior": "gaussian"}), alpha)["overlap"].max() < 1 - share - 0.01
    )


@pytest.mark.parametrize("fields", [SPARSE, SKEWED, POSITIVE], ids=["sparse", "skewed", "positive"])
def test_linear_labels_of_other_laws_against_one_step_of_their_own(fields):
    """With the quadrature above for the rows; a mean that is not zero is known before any label."""
    problem = ONE.with_fields(fields)
    ds = ap.bayes_optimal(problem, 0.7, start="uninformed")
    image = 0.64 * row_by_quadrature(problem.teacher.law, 0.64 * 0.7 / (0.3 + ds["V"].item()))[0]
    assert ds["V"].item() == pytest.approx(image, rel=1e-6)


def test_linear_labels_of_three_atoms_of_a_file_against_quadrature(tmp_path):
    """``V = E Var(w | S w + S^(1/2) z)`` with ``S = rho alpha/(noise + rho V)``, and Rademacher's file as that law."""
    signs = ap.load_problem(written(tmp_path, "value,probability\n-1,.5\n1,.5\n"))
    same = [ap.bayes_optimal(one, 0.7, start="uninformed") for one in (signs, ONE.with_fields(RADEMACHER))]
    assert same[0].overlap.item() == pytest.approx(same[1].overlap.item(), rel=1e-12)
    values, shares = np.array([-1.3, 0.2, 1.1]), np.array([0.25, 0.6, 0.15])
    lines = "".join(f"{value},{share}\n" for value, share in zip(values, shares, strict=True))
    three = ap.load_problem(written(tmp_path, "value,probability\n" + lines))
    alpha, rho, noise = 0.7, 0.64, 0.3

    def unknown(S):
        source = np.linspace(-12, 12, 4001) * np.sqrt(1 + S) * np.sqrt(S)
        densities = shares * np.exp(-((source[:, None] - S * values) ** 2) / (2 * S)) / np.sqrt(2 * np.pi * S)
        total = densities.sum(axis=1)
        means, squares = densities @ values / total, densities @ values**2 / total
        return ((squares - means**2) * total).sum() * (source[1] - source[0])

    V = shares @ values**2 - (shares @ values) ** 2
    for _ in range(200):
        V = unknown(rho * alpha / (noise + rho * V))
    point = ap.bayes_optimal(three, alpha, start="uninformed")
    assert point.V.item() == pytest.approx(rho * V, rel=1e-6)


def test_a_density_of_one_is_the_gaussian_law():
    whole = ap.bayes_optimal(ONE.with_fields(SPARSE | {"teacher.prior_density": 1.0}), 0.7)
    np.testing.assert_allclose(whole["q"], ap.bayes_optimal(ONE, 0.7)["q"], rtol=1e-12)
    nearly = ap.bayes_optimal(ONE.with_fields(SPARSE | {"teacher.prior_density": 1 - 1e-7}), 0.7)
    np.testing.assert_allclose(nearly["q"], whole["q"], rtol=1e-6)


def test_the_binary_perceptron():
    """Györgyi, PRA 41 (1990) 7097, and Barbier et al., PNAS 116 (2019) 5451: 1.245 and 1.493; then all is known."""
    problem = Problem.from_dict({"tokens": {"length": 1, "sigma": 1.0}, "loss": {"kind": "logistic"}})
    problem = problem.with_fields(RADEMACHER)
    found = bayes_optimal_thresholds(model_of(problem))
    assert found["information_theoretic"].alpha == pytest.approx(1.245, abs=1e-3)
    assert found["algorithmic"].alpha == pytest.approx(1.493, abs=1e-3)
    assert found["perfect_recovery"].alpha == found["algorithmic"].alpha
    ds = ap.bayes_optimal(problem, [1.4, 1.6])
    assert ds["recovered"].to_numpy().tolist() == [[0, 1], [1, 1]]
    assert (ds["status"] == 0).all()
    assert ds["test_error"].sel(start="informed").to_numpy() == pytest.approx(0)
    assert ds["free_entropy"].sel(start="informed").to_numpy() == pytest.approx(-np.log(2))


def test_signs_are_known_from_sums_without_noise():
    """The informed start leaves so little that its square is no number."""
    problem = Problem.from_dict({"tokens": {"length": 2, "sigma": 1.0}, "positions": {"kind": "none"}})
    ds = ap.bayes_optimal(
        problem.with_fields(RADEMACHER),
        0.4,
        channel="sum(k)",
        start="informed",
        settings=ap.SolverSettings(max_nodes=512),
    )
    assert ds["recovered"].item() == 1
    assert ds["overlap"].item() == pytest.approx(1)


def test_two_fixed_points_of_binary_cdma():
    """At little noise alpha rises, falls and rises along the curve of one number, ``alpha = S (noise + V(S))``."""
    problem, noise = ONE.with_fields(RADEMACHER | {"teacher.noise": 0.02, "tokens.sigma": 1.0}), 0.02
    found = bayes_optimal_thresholds(model_of(problem))
    top: Any = minimize_scalar(
        lambda s: -s * (noise + unknown_sign(s)), bounds=(0.3, 3.0), method="bounded", options={"xatol": 1e-9}
    )
    assert found["algorithmic"].alpha == pytest.approx(-top.fun, rel=1e-5)

    def entropy(alpha, start):
        share = start
        for _ in range(400):
            share = unknown_sign(alpha / (noise + share))
        snr = alpha / (noise + share)
        logs = gauss_mean(lambda z: np.logaddexp(2 * (snr + np.sqrt(snr) * z), 0) - snr - np.sqrt(snr) * z)
        return -(1 - share) * snr / 2 + logs - np.log(2) - snr / 2 - alpha / 2 * np.log(noise + share)

    crossing = brentq(lambda alpha: entropy(alpha, 1.0) - entropy(alpha, 1e-12), 0.3, 0.5, xtol=1e-5)
    assert found["information_theoretic"].alpha == pytest.approx(crossing, abs=2e-4)  # interpolated between points
    assert "no finite number" in found["perfect_recovery"].statement


def test_a_sparse_teacher_without_noise_needs_as_many_labels_as_weights():
    problem = ONE.with_fields(SPARSE | {"teacher.noise": 0.0})
    found = bayes_optimal_thresholds(model_of(problem, "absolute"))
    assert found["information_theoretic"].alpha == pytest.approx(0.23, abs=2e-3)
    assert found["weak_recovery"].alpha == pytest.approx(0.5, rel=1e-9)  # of the first two moments alone
    known = bayes_optimal_thresholds(model_of(ONE.with_fields(POSITIVE)))["weak_recovery"]
    assert "teacher.prior" in known.statement


def test_two_columns_in_one_label_are_an_entry_with_the_sums():
    """The label ``k_1 + k_2/2 + noise`` of two columns of signs, and ``k + noise`` of entries with four values."""
    two = ONE.with_fields(
        {"loss.kind": "expression", "loss.expression": "(h0_0 - k0_0 - noise)**2", "teacher.rank": 2} | RADEMACHER
    )
    values = SKEWED | {"teacher.prior_values": [-1.5, -0.5, 0.5, 1.5], "teacher.prior_probabilities": [0.25] * 4}
    whole, one = (
        ap.bayes_optimal(problem, 0.9, channel=channel, start="uninformed")
        for problem, channel in ((two, "k0_0 + 0.5*k0_1"), (ONE.with_fields(values), "linear"))
    )
    q = whole["q"].to_numpy().reshape(2, 2)
    assert q[0, 0] + q[0, 1] + q[1, 1] / 4 == pytest.approx(one["q"].item(), rel=2e-3)
    assert whole["mutual_information"].item() == pytest.approx(one["mutual_information"].item(), rel=1e-4)


def test_pages_have_the_prior_where_there_is_one():
    plain, own = (derive(problem, limit="bayes_optimal").markdown for problem in (ONE, ONE.with_fields(SPARSE)))
    assert "Prior of the teacher" not in plain
    assert own.startswith(plain.rstrip())
    assert r"\tag{W2}" in own
    assert f"v = {vector((0.0, 1 / 0.23))}" in own
