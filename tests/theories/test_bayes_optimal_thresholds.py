"""Bayes-optimal thresholds against closed forms, published numbers, and potentials of one scalar channel.

Of the potentials a weight is seen as ``sqrt(L) w + z``. With L, alpha is known on the curve of fixed points:
``alpha = L (D + E)`` for labels with noise D on the field and the mean squared error E of the weight, and
``alpha = L/G`` for the sign of such a field. The free entropy is the label's part less the weight's information.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from learner import learned, of_formula, threshold_of, weak_recovery_of_cells
from models import model
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_ndtr, ndtr
from scipy.stats import norm

import attnphase as ap

Law = Sequence[tuple[float, float, float]]  # components of a weight's law: probability, mean, variance
SIGNS: Law = ((0.5, -1.0, 0.0), (0.5, 1.0, 0.0))
LEGENDRE = np.polynomial.legendre.leggauss(40)


def of_two_cells(edge: float) -> float:
    share = 2 * norm.sf(edge)
    return float(share * (1 - share) / (2 * edge * norm.pdf(edge)) ** 2)


@pytest.mark.parametrize(
    ("problem", "channel", "expected"),
    [
        pytest.param(ap.Problem.paper(omega=0.3), None, 1 / 6, id="scores of two tokens"),
        pytest.param(of_formula(), "absolute", 1 / 2, id="phase retrieval"),
        pytest.param(of_formula(sigma=0.7), "sign(abs(k0_0) - 0.63)", of_two_cells(0.9), id="an even sign"),
        pytest.param(
            of_formula(sigma=10.0), "sign(abs(k0_0) - 12) + 2*sign(abs(k0_0) - 35)",
            weak_recovery_of_cells([1.2, 3.5]), id="a rare label",
        ),
        pytest.param(of_formula(), "sign(k0_0 - 0.3) + sign(k0_0 + 0.3)", 0.0, id="an odd label"),
        pytest.param(of_formula(noise=0.4), "k + k**2", 0.0, id="a label with an odd part"),
    ],
)  # fmt: skip
def test_weak_recovery_has_its_closed_form(problem, channel, expected):
    alpha, error, _ = threshold_of(problem, "weak_recovery", channel, 2**10)
    assert abs(alpha - expected) <= 4 * error + 1e-9 * expected
    assert error < 0.02 * (expected or 1)


def test_phase_retrieval_has_its_published_thresholds():
    """Barbier et al., arXiv:1708.03395: it jumps at 1.1285, and the free entropies cross at 1."""
    alpha, error, _ = threshold_of(of_formula(sigma=0.7), "algorithmic", "absolute", 2**15)
    assert alpha == pytest.approx(1.1285, abs=4 * error + 5e-5)
    assert threshold_of(of_formula(), "information_theoretic", "absolute", 2**15)[0] == pytest.approx(1.0, abs=1e-4)
    below, above = (learned(of_formula(), 1.06, "absolute", one, 2**14) for one in ("uninformed", "informed"))
    assert (int(below.recovered), int(above.recovered)) == (0, 1)


def test_scores_of_two_tokens_are_recovered_at_one_half_without_a_jump():
    few = ap.SolverSettings(max_nodes=2**14)
    ds = ap.bayes_optimal(ap.Problem.paper(omega=0.3), 0.1, start="uninformed", thresholds=True, settings=few)
    assert math.isnan(ds.algorithmic)
    assert float(ds.perfect_recovery) == pytest.approx(0.5, abs=1e-6)


@pytest.mark.slow
def test_the_committee_tells_its_members_apart_at_the_published_alpha_and_does_not_jump():
    """Aubin et al., arXiv:1806.05451: about 2.05. The symmetric curve, which no learner follows, goes on to 270."""
    few = ap.SolverSettings(max_nodes=256)
    ds = ap.bayes_optimal(
        of_formula(rank=2), 0.1, channel="sign(k0_0) + sign(k0_1)", start="uninformed", thresholds=True, settings=few
    )
    assert abs(float(ds.specialisation) - 2.05) < 3 * float(ds.specialisation_stderr) < 0.3
    assert float(ds.specialisation_stderr) > 1e-3
    for name in ("algorithmic", "information_theoretic"):
        assert math.isnan(ds[name])
        assert ds[name].attrs["statement"].startswith("no jump: what is known grows steadily with alpha")


def nodes(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return composite Gauss-Legendre nodes and weights."""
    low, high = edges[:-1, None], edges[1:, None]
    x, w = LEGENDRE
    return ((high - low) / 2 * x + (low + high) / 2).ravel(), ((high - low) / 2 * w).ravel()


def weight_at(law: Law, snr: float) -> tuple[float, float]:
    """Return the mean squared error of a weight and its information in the scalar channel."""
    p, mean, variance = np.array(law).T
    deviations = np.sqrt(1 + snr * variance)
    y, w = nodes(np.unique((np.sqrt(snr) * mean[:, None] + deviations[:, None] * np.arange(-12, 13)).ravel()))
    logs = np.log(p / deviations)[:, None] - ((y - np.sqrt(snr) * mean[:, None]) / deviations[:, None]) ** 2 / 2
    shares = np.exp(logs - logs.max(axis=0))
    density = logs.max(axis=0) + np.log(shares.sum(axis=0)) - np.log(2 * np.pi) / 2
    shares /= shares.sum(axis=0)
    means = (mean[:, None] + np.sqrt(snr) * variance[:, None] * y) / (1 + snr * variance[:, None])
    unknown = (shares * (variance / (1 + snr * variance))[:, None]).sum(axis=0)
    for j in range(len(p)):
        for k in range(j):
            unknown = unknown + shares[j] * shares[k] * (means[j] - means[k]) ** 2
    of_y = w * np.exp(density)
    return float(of_y @ unknown), float(-(of_y @ density) - np.log(2 * np.pi * np.e) / 2)


def linear_label(law: Law, noise: float, snr: float) -> tuple[float, float]:
    """Return alpha and the free entropy of ``k + sqrt(noise) z``, up to a multiple of alpha."""
    E, information = weight_at(law, snr)
    alpha = snr * (noise + E)
    return alpha, -information - alpha / 2 * (np.log1p(E / noise) - E / (noise + E))


def sign_label(law: Law, noise: float, snr: float) -> tuple[float, float]:
    """Return the same of ``sign(k + sqrt(noise) z)``."""
    E, information = weight_at(law, snr)
    q = sum(p * (mean**2 + variance) for p, mean, variance in law) - E
    tau = np.sqrt(E + noise)
    x, w = nodes(np.linspace(-1, 1, 25) * min(12.0, 12 * np.sqrt(q) / tau))
    w = w * np.exp(-((x * tau) ** 2) / 2 / q) * tau / np.sqrt(2 * np.pi * q)
    logs = log_ndtr(x), log_ndtr(-x)
    alpha = snr * 2 * np.pi * tau**2 / (w @ (np.exp(-(x**2) - logs[0]) + np.exp(-(x**2) - logs[1])))
    return alpha, -information + E * snr / 2 + alpha * (w @ (ndtr(x) * logs[0] + ndtr(-x) * logs[1]))


def root(function: Callable[[float], float], low: float, high: float) -> float:
    found: Any = brentq(function, low, high, xtol=1e-13)
    return float(found)


def jump_and_crossing(label: Callable[..., tuple[float, float]], law: Law, noise: float) -> tuple[float, float] | None:
    """Compare the last rising stretch of the curve with the highest of the others; None where alpha only grows."""

    def alpha(log_snr: float) -> float:
        return label(law, noise, np.exp(log_snr))[0]

    curve = np.linspace(np.log(1e-3), np.log(1e13), 900)
    grid, ends = np.array([alpha(x) for x in curve]), [curve[0]]
    for i in range(1, len(grid) - 1):
        if (grid[i] - grid[i - 1]) * (grid[i + 1] - grid[i]) < 0:
            sign, bounds = np.sign(grid[i - 1] - grid[i]), (curve[i - 1], curve[i + 1])
            found: Any = minimize_scalar(
                lambda x, s=sign: s * alpha(x), bounds=bounds, method="bounded", options={"xatol": 1e-8}
            )
            ends.append(float(found.x))
    ends.append(curve[-1])
    stretches = list(zip(ends[::2], ends[1::2], strict=True))
    if len(stretches) == 1:
        return None

    def free_entropy(stretch: tuple[float, float], value: float) -> float:
        low, high = stretch
        if not alpha(low) <= value <= alpha(high):
            return -np.inf
        return label(law, noise, np.exp(root(lambda x: alpha(x) - value, low, high)))[1]

    def difference(value: float) -> float:
        return max(free_entropy(one, value) for one in stretches[:-1]) - free_entropy(stretches[-1], value)

    lowest = max(alpha(stretches[-1][0]), alpha(stretches[0][0]))
    highest = max(alpha(high) for _, high in stretches[:-1])
    inside = 1e-9 * (highest - lowest)
    return alpha(stretches[0][1]), root(difference, lowest + inside, highest - inside)


def problem_of(law: Law, noise: float, loss: str = "square") -> ap.Problem:
    p, means, variances = zip(*law, strict=True)
    if any(variances):
        teacher = {"teacher.prior": "gauss-bernoulli", "teacher.prior_density": p[0]}
    else:
        teacher = {"teacher.prior": "atoms", "teacher.prior_values": [*means], "teacher.prior_probabilities": [*p]}
    return model(loss, {"tokens.sigma": 1.0, "teacher.noise": noise, **teacher})


def check(label: Callable[..., tuple[float, float]], law: Law, noise: float, loss: str = "square") -> str:
    """Compare both thresholds within their standard errors; return the statement on the crossing."""
    ds = ap.bayes_optimal(problem_of(law, noise, loss), 0.01, start="uninformed", thresholds=True)
    right = jump_and_crossing(label, law, noise)
    for number, name in enumerate(("algorithmic", "information_theoretic")):
        found, error, statement = float(ds[name]), float(ds[f"{name}_stderr"]), ds[name].attrs["statement"]
        if right is None:
            assert math.isnan(found)
            assert statement.startswith("no jump")
        else:
            assert abs(found - right[number]) <= 5 * error, name
            assert error < 1e-5 * right[number]
    return ds.information_theoretic.attrs["statement"]


def sparse(density: float) -> Law:
    return (density, 0.0, 1 / density), (1 - density, 0.0, 0.0)


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("label", "law", "noise", "loss"),
    [
        pytest.param(linear_label, sparse(0.2), 0.03, "square", id="sparse without a jump"),
        pytest.param(linear_label, sparse(0.1), 1e-6, "square", id="sparse", marks=LONG),
        pytest.param(linear_label, sparse(0.02), 1e-2, "square", id="a window of half a percent"),
        pytest.param(linear_label, SIGNS, 1e-8, "square", id="signs, hardly any noise", marks=LONG),
        pytest.param(linear_label, SIGNS, 0.1, "square", id="a jump within a step of the curve"),
        pytest.param(linear_label, SIGNS, 0.1008, "square", id="a window of a thousandth"),
        pytest.param(sign_label, SIGNS, 1e-3, "logistic", id="perceptron"),
    ],
)
def test_thresholds_with_noise_are_those_of_the_potential(label, law, noise, loss):
    check(label, law, noise, loss)
