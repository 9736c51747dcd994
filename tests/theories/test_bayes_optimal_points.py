"""Bayes-optimal fixed points against closed forms, against quadratures of this file and against published numbers."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learner import learned, of_formula, of_hidden_location
from models import model
from scipy.integrate import quad
from scipy.optimize import root_scalar
from scipy.stats import norm

import attnphase as ap

PAPER = ap.Problem.paper(omega=0.3)
X, W = np.polynomial.hermite_e.hermegauss(90)
W = W / W.sum()


def one_token(**fields: object) -> ap.Problem:
    return model("square", {"tokens.sigma": 0.7, **{name.replace("__", "."): one for name, one in fields.items()}})


def overlap_by_gauss(alpha: float, rho: float = 0.25) -> float:
    """Compute q/rho for L = 2, t = 1 without noise, with omega turned into (r, 0).

    Only ``E |k|^2 sech^2(k omega / V)`` is needed, which rotations of the two tokens leave unchanged.
    """
    u, of_u = np.polynomial.laguerre.laggauss(90)

    def image(V: float) -> float:
        r = np.sqrt(2 * u * (rho - V))[:, None, None]
        first, second = r + math.sqrt(V) * X[:, None], math.sqrt(V) * X
        odds = np.clip(first * r / V, -300, 300)
        spread = np.einsum("a,b,c,abc", of_u, W, W, (first**2 + second**2) / np.cosh(odds) ** 2)
        return rho / (1 + rho * alpha * (2 / V - spread / V**2))

    return 1 - root_scalar(lambda V: image(V) - V, bracket=(0.02 * rho, (1 - 1e-3) * rho)).root / rho


@pytest.mark.parametrize(("alpha", "overlap", "error"), [(0.35, 0.4187, 0.001635), (0.4, 0.5918, 0.001296)])
def test_overlap_of_the_paper_teacher_is_that_of_gauss_rules_and_of_the_table(alpha, overlap, error):
    point = learned(PAPER, alpha)
    assert float(point.overlap) == pytest.approx(overlap_by_gauss(alpha), rel=1e-5)
    assert float(point.overlap) == pytest.approx(overlap, abs=3e-4)
    assert float(point.test_error) == pytest.approx(error, abs=8e-6)
    assert float(point.overlap_stderr) < 1e-9


def test_errors_fall_from_the_linear_predictor_to_nothing_at_one_half():
    """The linear predictor has ``(1 - omega)^2`` times the paper's constant; published training has .0014 at 2."""
    ds = ap.bayes_optimal(PAPER, [0.1, 0.2, 0.3, 0.4, 0.47, 0.55], settings=ap.SolverSettings(max_nodes=2**14))
    errors, linear = ds.test_error[0].to_numpy(), ds.linear_test_error[0].to_numpy()
    assert linear == pytest.approx(np.full(6, 0.7**2 * 0.0040232), rel=1e-4)
    assert errors[0] == pytest.approx(linear[0], rel=0.01)
    assert (np.diff(errors) < 0).all()
    assert errors[3] < 0.001404
    assert ds.overlap[0].to_numpy()[[0, 5]].tolist() == [0.0, 1.0]
    assert ds.overlap_stderr[0].to_numpy()[[0, 5]].tolist() == [0.0, 0.0]
    assert ds.recovered[0].to_numpy().tolist() == [0] * 5 + [1]
    assert ds.overlap[1, 3:].to_numpy() == pytest.approx(ds.overlap[0, 3:].to_numpy(), abs=1e-6)


@pytest.mark.parametrize("narrow", [0.5, 0.3])
def test_clusters_that_are_alike_are_no_clusters(narrow):
    """Without noise the scale of the fields, here of the second cluster, changes no share that is known."""
    problem = PAPER.with_fields(
        {"tokens.kind": "mixture", "tokens.sigma": None, "tokens.clusters": [[{"sigma": 0.5}, {"sigma": narrow}]] * 2}
    )
    expected = learned(PAPER, 0.4, nodes=2**14)
    point = learned(problem, 0.4, nodes=2**14)
    rho = np.tile([0.25, narrow**2], (2, 1))
    assert point.q.to_numpy() / rho == pytest.approx(np.full((2, 2), float(expected.overlap)), rel=1e-4)


@pytest.mark.parametrize(("alpha", "error"), [(1, 0.25437), (2, 0.17453), (3, 0.12985), (5, 0.08394), (10, 0.04357)])
def test_generalisation_error_of_the_perceptron_is_the_published_one(alpha, error):
    point = learned(one_token(), alpha, "sign", nodes=2**15)
    assert float(point.test_error) == pytest.approx(error, abs=1.5e-5)
    assert float(point.test_error) == pytest.approx(math.acos(math.sqrt(point.overlap)) / math.pi, rel=2e-3)


def test_free_entropy_of_a_sign_is_that_of_its_evidence_by_quadrature():
    """Without noise the mutual information is minus the evidence ``E_omega sum_y Z log Z``."""
    point = learned(one_token(), 1.7, "sign", nodes=2**14)
    q, V, q_hat = (float(point[name]) for name in ("q", "V", "q_hat"))

    def entropy(x: float) -> float:
        p = norm.cdf(math.sqrt(q / V) * x)
        return float(norm.pdf(x) * sum(v * math.log(v) for v in (p, 1 - p) if v > 1e-300))

    phi = -q * q_hat / 2 + (0.49 * q_hat - math.log1p(0.49 * q_hat)) / 2 + 1.7 * quad(entropy, -12, 12)[0]
    assert float(point.free_entropy) == pytest.approx(phi, abs=5e-5)
    assert float(point.mutual_information) == pytest.approx(-phi / 1.7, abs=5e-5)


def linear_with_noise(alpha: float, noise: float, gammas: np.ndarray, weights: np.ndarray) -> tuple[float, ...]:
    """Compute V, evidence and information of ``y = k + noise``, Gaussian throughout, by one root."""
    rho = weights @ gammas
    V = root_scalar(
        lambda V: weights @ (gammas / (1 + gammas * alpha / (noise + V))) - V, bracket=(1e-12, rho), xtol=1e-14
    ).root
    q_hat = alpha / (noise + V)
    phi = -q_hat * (rho - V) / 2 + weights @ (gammas * q_hat - np.log1p(gammas * q_hat)) / 2
    phi -= alpha * math.log(2 * math.pi * math.e * (noise + V)) / 2
    return V, phi, -0.5 * math.log(2 * math.pi * math.e * noise) - phi / alpha


@settings(max_examples=4)
@given(
    noise=st.floats(0.02, 0.6),
    alpha=st.sampled_from([0.4, 1.3, 2.5, 30.0, 1e4, 1e6]),
    first=st.floats(0.1, 0.8), second=st.floats(0.1, 0.8),
    channel=st.sampled_from(["linear", "k"]),
)  # fmt: skip
def test_linear_labels_on_any_spectrum_have_their_closed_form(noise, alpha, first, second, channel):
    """Share, free entropy, information and error, by sums and, as a formula, by lattices; and I-MMSE.

    ``dI/d(1/Delta)`` of a sample is half the error of a seen label, ``V Delta/(V + Delta)``.
    """
    atoms = [{"weight": 0.4, "variances": [first]}, {"weight": 0.6, "variances": [second]}]
    problem = one_token(teacher__noise=noise, tokens__sigma=None, tokens__spectrum=atoms)
    point = learned(problem, alpha, channel, nodes=2**12)
    gammas, weights = np.array([first, second]), np.array([0.4, 0.6])
    V, phi, information = linear_with_noise(alpha, noise, gammas, weights)
    rho = weights @ gammas
    for name, expected in (("overlap", 1 - V / rho), ("free_entropy", phi), ("mutual_information", information)):
        assert abs(float(point[name]) - expected) < 4 * float(point[f"{name}_stderr"]) + 1e-4, name
    assert float(point.test_error) == pytest.approx(V, rel=0.03)
    assert float(point.V) == pytest.approx(V, rel=1e-3, abs=4 * float(point.V_stderr))
    step = 1e-5
    above, below = (linear_with_noise(alpha, 1 / (1 / noise + s * step), gammas, weights)[2] for s in (1, -1))
    V = float(point.V)
    assert (above - below) / (2 * step) == pytest.approx(V * noise / (V + noise) / 2, rel=5e-3)


@pytest.mark.parametrize("start", ["uninformed", "informed"])
def test_a_sign_is_learned_as_one_over_the_number_of_samples(start):
    """The published limit of alpha times the perceptron's error is .4417."""
    points = [learned(one_token(), alpha, "sign", start) for alpha in (1e4, 1e5, 1e6)]
    assert [(int(one.status), int(one.recovered)) for one in points] == [(0, 0)] * 3
    assert [float(one.alpha * one.test_error) for one in points] == pytest.approx([0.4417] * 3, abs=5e-5)


@pytest.mark.parametrize(
    ("problem", "channel", "alpha", "status"),
    [
        pytest.param(one_token(), "sign(k)", 1e4, 2, id="draws that miss where a sign changes"),
        pytest.param(PAPER, None, 0.501, 0, id="all is recovered"),
        pytest.param(PAPER, None, 0.503, 0, id="all is recovered for certain"),
    ],
)
def test_an_end_that_no_integral_resolves_is_no_fixed_point(problem, channel, alpha, status):
    with pytest.warns(UserWarning, match="not converged") if status else np.errstate():
        point = learned(problem, alpha, channel)
    assert (int(point.status), int(point.recovered)) == (status, int(not status))


@pytest.mark.parametrize(
    ("B", "noise", "nodes"),
    [
        pytest.param([[1.0, 0.5], [0.0, 1.0], [0.3, -0.7]], 0.3, 2**12, id="two tokens"),
        pytest.param([[1.0, 0.5, -0.7]], 0.9, 2**5, id="three tokens"),
    ],
)
def test_linear_labels_of_several_fields_have_their_closed_form(B, noise, nodes):
    """``q_hat = alpha B^T (B V B^T + Delta)^-1 B`` and ``V = (1/rho + q_hat)^-1``."""
    text = [" + ".join(f"{b}*k[{token}, 0]" for token, b in enumerate(row)) for row in B]
    B, alpha, q = np.array(B), 0.8, 0.5
    for _ in range(200):
        total = alpha * np.trace(B.T @ np.linalg.inv(B @ B.T * (1 - q) + noise * np.eye(len(B))) @ B)
        q = total / (1 + total)
    point = learned(of_formula(B.shape[1], noise=noise), alpha, f"[{', '.join(text)}]", nodes=nodes)
    assert (int(point.status), float(point.overlap)) == (0, pytest.approx(q, rel=1e-5))


def test_the_label_of_a_loss_is_what_the_student_is_compared_with():
    """It is 2 k + z: a linear one with a quarter of the noise, for two tokens; terms without h are none."""
    one = learned(of_formula(2, loss="sum((h - 2*k - noise[:, :1])**2) + k[0, 0]**4", noise=0.4), 0.7, nodes=2**12)
    other = learned(of_formula(noise=0.1), 1.4, "linear", nodes=2**12)
    assert float(one.overlap) == pytest.approx(float(other.overlap), rel=1e-4)


FLIPPED = {
    "tokens": {
        "kind": "mixture",
        "length": 1,
        "clusters": [{"sigma": 0.9}, {"sigma": 0.9}],
        "law": {"kind": "independent", "weights": [0.85, 0.15]},
    },
    "loss": {"kind": "expression", "expression": "relu(1 - h*(1 - 2*c)*sign(k))"},
}


def test_signs_that_a_hidden_cluster_flips_have_the_overlap_of_quadrature():
    """``q_hat = alpha E sum_y (dP_y/domega)^2 / P_y`` with ``P_+ = .15 + .7 Phi(omega/sqrt(V))``."""
    alpha, rho, problem = 1.6, 0.81, ap.Problem.from_dict(FLIPPED)
    q = 0.3 * rho
    for _ in range(200):
        V = rho - q
        at = X * math.sqrt(q / V)
        slope, plus = 0.7 * norm.pdf(at) / math.sqrt(V), 0.15 + 0.7 * norm.cdf(at)
        q_hat = alpha * W @ (slope**2 / plus + slope**2 / (1 - plus))
        q = rho**2 * q_hat / (1 + rho * q_hat)
    point = learned(problem, alpha, nodes=2**11)
    assert abs(float(point.overlap) - q / rho) < 4 * float(point.overlap_stderr) < 0.02
    wrong = 0.15 + 0.7 * math.acos(math.sqrt(q / rho)) / math.pi
    assert float(point.test_error) == pytest.approx(wrong, abs=0.006)
    said = learned(problem, alpha, "(1 - 2*c)*sign(k)", nodes=2**11)
    assert float(said.overlap) == pytest.approx(float(point.overlap), rel=1e-9)
    likely = learned(problem, alpha, "1/(1 + exp(-y*(1 - 2*c)*60*k))", nodes=2**11)
    assert float(likely.overlap) == pytest.approx(float(point.overlap), abs=0.01)


def test_one_of_two_tokens_in_a_noisy_label_has_the_overlap_of_quadrature():
    """Which token it is has two Gaussian odds; a fresh label's error has the location in it."""
    shares, noise, rho, alpha = (0.65, 0.35), 0.2, 0.81, 2.3
    x, w = np.polynomial.hermite_e.hermegauss(48)
    w, y = w / w.sum(), np.linspace(-9, 9, 501)

    def gain(V: float) -> float:
        both = np.sqrt(rho - V) * np.array(np.meshgrid(x, x, indexing="ij"))
        width = math.sqrt(V + noise)
        chances = [p * norm.pdf(y, one[..., None], width) for p, one in zip(shares, both, strict=True)]
        total = np.maximum(chances[0] + chances[1], 1e-300)
        told = [
            chance / total * (y - one[..., None]) * V / (V + noise) for chance, one in zip(chances, both, strict=True)
        ]
        return sum(w @ (total * one**2).sum(axis=-1) @ w * (y[1] - y[0]) for one in told)

    V = 0.4 * rho
    for _ in range(25):
        V = rho / (1 + rho * alpha * gain(V) / V**2)
    point = learned(of_hidden_location(shares, (0.9, 0.9), noise), alpha, nodes=2**11)
    assert abs(float(point.overlap) - (1 - V / rho)) < 4 * float(point.overlap_stderr) < 0.03
    expected = V + (rho - V) * (1 - np.square(shares).sum())
    assert abs(float(point.test_error) - expected) < 4 * float(point.test_error_stderr) < 0.03
    assert abs(float(point.nishimori)) < 4 * float(point.nishimori_stderr)
    both = math.sqrt(rho) * np.array(np.meshgrid(x, x, indexing="ij"))[..., None]
    chance = sum(p * norm.pdf(y, one, math.sqrt(noise)) for p, one in zip(shares, both, strict=True))
    known = w @ (chance * np.log(np.maximum(chance, 1e-300))).sum(axis=-1) @ w * (y[1] - y[0])
    information = known - float(point.free_entropy) / alpha
    assert abs(float(point.mutual_information) - information) < 4 * float(point.mutual_information_stderr) < 0.03


@pytest.mark.long
def test_labels_that_determine_two_columns_are_learned_from_without_an_error():
    """The logarithm of the fields' variance falls steadily, until an extrapolated step of it underflows."""
    point = ap.bayes_optimal(model("rank 2"), 1.5, settings=ap.SolverSettings(max_nodes=256))
    assert point.status.values.ravel().tolist() == [0, 0]
    assert point.recovered.values.ravel().tolist() == [1, 1]
    assert abs(point.test_error.values).max() < 1e-6
