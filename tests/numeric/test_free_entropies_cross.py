"""The information-theoretic threshold against potentials of one scalar channel, by quadrature that no package code has.

A weight is seen as ``sqrt(L) w + z``. With L, alpha is known on the curve of fixed points: ``alpha = L (D + E)``
for labels with noise D on the field and the mean squared error E of the weight, and ``alpha = L/G`` for the sign of
such a field. The free entropy is the label's part less the weight's information.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_ndtr, ndtr

from attnphase.problem import Problem
from attnphase.theories.bayes_optimal.lattices import FieldLaw
from attnphase.theories.bayes_optimal.linear import LinearSums
from attnphase.theories.bayes_optimal.model import model_of
from attnphase.theories.bayes_optimal.solving import Start, solve_bayes_optimal
from attnphase.theories.bayes_optimal.thresholds import bayes_optimal_thresholds

X, W = np.polynomial.legendre.leggauss(40)
SIGNS = ((0.5, -1.0, 0.0), (0.5, 1.0, 0.0))
CURVE = np.linspace(np.log(1e-3), np.log(1e13), 900)  # of log L
END = 12.0  # standard deviations


def nodes(edges):
    """Composite Gauss-Legendre nodes and weights."""
    low, high = edges[:-1, None], edges[1:, None]
    return ((high - low) / 2 * X + (low + high) / 2).ravel(), ((high - low) / 2 * W).ravel()


def weight_at(law, snr):
    """Mean squared error of a weight and its information in the scalar channel, for components (p, mean, variance)."""
    p, mean, variance = np.array(law).T
    deviations = np.sqrt(1 + snr * variance)
    at = (np.sqrt(snr) * mean[:, None] + deviations[:, None] * np.arange(-END, END + 1)).ravel()
    y, w = nodes(np.unique(at))
    logs = np.log(p / deviations)[:, None] - ((y - np.sqrt(snr) * mean[:, None]) / deviations[:, None]) ** 2 / 2
    largest = logs.max(axis=0)
    shares = np.exp(logs - largest)
    density = largest + np.log(shares.sum(axis=0)) - np.log(2 * np.pi) / 2
    shares /= shares.sum(axis=0)
    means = (mean[:, None] + np.sqrt(snr) * variance[:, None] * y) / (1 + snr * variance[:, None])
    unknown = (shares * (variance / (1 + snr * variance))[:, None]).sum(axis=0)
    for j in range(len(p)):
        for k in range(j):
            unknown = unknown + shares[j] * shares[k] * (means[j] - means[k]) ** 2
    of_y = w * np.exp(density)
    return float(of_y @ unknown), float(-(of_y @ density) - np.log(2 * np.pi * np.e) / 2)


def root(function, low, high):
    """Of a function with different signs at two values."""
    found: Any = brentq(function, low, high, xtol=1e-13)
    return float(found)


def linear_label(law, noise, snr):
    """Alpha and the free entropy of ``k + sqrt(noise) z``, up to a multiple of alpha."""
    E, information = weight_at(law, snr)
    alpha = snr * (noise + E)
    return alpha, -information - alpha / 2 * (np.log1p(E / noise) - E / (noise + E))


def sign_label(law, noise, snr):
    """The same of ``sign(k + sqrt(noise) z)``."""
    E, information = weight_at(law, snr)
    q = sum(p * (mean**2 + variance) for p, mean, variance in law) - E
    tau = np.sqrt(E + noise)
    x, w = nodes(np.linspace(-1, 1, 25) * min(END, END * np.sqrt(q) / tau))
    w = w * np.exp(-((x * tau) ** 2) / 2 / q) * tau / np.sqrt(2 * np.pi * q)
    logs = log_ndtr(x), log_ndtr(-x)
    square = w @ (np.exp(-(x**2) - logs[0]) + np.exp(-(x**2) - logs[1])) / (2 * np.pi * tau**2)
    alpha = snr / square
    return alpha, -information + E * snr / 2 + alpha * (w @ (ndtr(x) * logs[0] + ndtr(-x) * logs[1]))


@dataclass(frozen=True)
class Expected:
    """Sample complexities of the first jump and of the crossing; None where alpha only grows."""

    jump: float
    crossing: float


def expected(label, law, noise):
    """What the potential says: the last rising stretch of the curve against the highest of the others."""

    def alpha(log_snr):
        return label(law, noise, np.exp(log_snr))[0]

    grid = np.array([alpha(x) for x in CURVE])
    ends = [CURVE[0]]
    for i in range(1, len(grid) - 1):
        if (grid[i] - grid[i - 1]) * (grid[i + 1] - grid[i]) < 0:
            sign = np.sign(grid[i - 1] - grid[i])
            bounds = CURVE[i - 1], CURVE[i + 1]
            found: Any = minimize_scalar(lambda x, s=sign: s * alpha(x), bounds=bounds, method="bounded",
                                         options={"xatol": 1e-8})  # fmt: skip
            ends.append(float(found.x))
    ends.append(CURVE[-1])
    stretches = list(zip(ends[::2], ends[1::2], strict=True))
    if len(stretches) == 1:
        return None

    def free_entropy(stretch, value):
        low, high = stretch
        if not alpha(low) <= value <= alpha(high):
            return -np.inf
        return label(law, noise, np.exp(root(lambda x: alpha(x) - value, low, high)))[1]

    def difference(value):
        return max(free_entropy(one, value) for one in stretches[:-1]) - free_entropy(stretches[-1], value)

    lowest = max(alpha(stretches[-1][0]), alpha(stretches[0][0]))
    highest = max(alpha(high) for _, high in stretches[:-1])
    inside = 1e-9 * (highest - lowest)
    crossing = root(difference, lowest + inside, highest - inside)
    return Expected(alpha(stretches[0][1]), crossing)


def problem_of(law, noise, loss="square"):
    p, means, variances = zip(*law, strict=True)
    if any(variances):
        teacher = {"prior": "gauss-bernoulli", "prior_density": p[0]}
    else:
        teacher = {"prior": "atoms", "prior_values": list(means), "prior_probabilities": list(p)}
    return Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": 1.0},
            "positions": {"kind": "none"},
            "teacher": {"noise": noise, **teacher},
            "loss": {"kind": loss},
        }
    )


def check(label, law, noise, loss="square"):
    """Both thresholds within their standard errors."""
    found = bayes_optimal_thresholds(model_of(problem_of(law, noise, loss)))
    right = expected(label, law, noise)
    for name, value in (("algorithmic", right and right.jump), ("information_theoretic", right and right.crossing)):
        threshold = found[name]
        if value is None:
            assert np.isnan(threshold.alpha)
            assert threshold.statement.startswith("no jump")
        else:
            assert abs(threshold.alpha - value) <= 5 * threshold.standard_error, (name, threshold, value)
            assert threshold.standard_error < 1e-5 * value
    return found


def sparse(density):
    return (density, 0.0, 1 / density), (1 - density, 0.0, 0.0)


@pytest.mark.parametrize(
    ("label", "law", "noise", "loss"),
    [
        pytest.param(linear_label, sparse(0.1), 1e-6, "square", id="sparse"),
        pytest.param(linear_label, sparse(0.1), 1e-8, "square", id="sparse, hardly any noise"),
        pytest.param(linear_label, sparse(0.02), 1e-2, "square", id="a window of half a percent"),
        pytest.param(linear_label, ((0.05, -3.0, 0.0), (0.9, 0.0, 0.0), (0.05, 3.0, 0.0)), 2e-3, "square", id="atoms"),
        pytest.param(linear_label, SIGNS, 1e-8, "square", id="signs, hardly any noise"),
        pytest.param(linear_label, SIGNS, 0.1, "square", id="a jump within a step of the curve"),
        pytest.param(linear_label, SIGNS, 0.1008, "square", id="a window of a thousandth"),
        pytest.param(sign_label, SIGNS, 1e-3, "logistic", id="perceptron"),
    ],
)
def test_thresholds_with_noise_against_the_potential(label, law, noise, loss):
    check(label, law, noise, loss)


@settings(max_examples=4, deadline=None)
@given(
    noise=st.floats(-8.0, -1.3).map(lambda x: 10**x),
    density=st.floats(0.03, 0.3),
    value=st.floats(1.2, 4.0),
    atoms=st.booleans(),
)
def test_thresholds_of_any_noise_and_sparsity(noise, density, value, atoms):
    three = (density / 2, -value, 0.0), (1 - density, 0.0, 0.0), (density / 2, 1 / value, 0.0)
    check(linear_label, three if atoms else sparse(density), noise)


def test_a_third_fixed_point_may_have_the_higher_free_entropy():
    """Two scales of the weights: their signs are known first.  The informed point crosses what knows them alone."""
    law = tuple((0.25, value, 0.0) for value in (-10.0, -9.0, 9.0, 10.0))
    assert "third fixed point" in check(linear_label, law, 1e-3)["information_theoretic"].statement


def test_even_labels_may_tell_all_before_they_tell_a_little():
    """``k^2`` and noise, of signs: below weak recovery nothing known competes with all known, both in closed form."""
    noise = 1e-3
    found = bayes_optimal_thresholds(model_of(problem_of(SIGNS, noise), "k**2"))
    k, w = nodes(np.linspace(0, 9, 251))
    y, of_y = nodes(np.concatenate([np.linspace(-0.4, 1, 41), np.linspace(1.5, 81, 60)]))
    w = w * np.exp(-(k**2) / 2) / (np.pi * np.sqrt(noise))
    density = np.array([w @ np.exp(-((one - k**2) ** 2) / 2 / noise) for one in y])
    nothing = of_y @ (density * np.log(density))
    crossing = np.log(2) / (-np.log(2 * np.pi * np.e * noise) / 2 - nothing)
    assert crossing < 0.7 * found["weak_recovery"].alpha
    threshold = found["information_theoretic"]
    assert abs(threshold.alpha - crossing) <= 5 * threshold.standard_error
    assert threshold.standard_error < 1e-5


def test_the_sample_complexity_of_full_knowledge_has_an_error_of_what_is_left():
    """Without noise a sparse weight needs as many labels as there are weights that are not zero."""
    problem = problem_of(sparse(0.23), 0.0)
    for channel in ("absolute", "linear"):
        found = bayes_optimal_thresholds(model_of(problem, channel))["information_theoretic"]
        assert abs(found.alpha - 0.23) <= 3 * found.standard_error < 1e-7


def test_an_informed_start_is_nearer_to_the_weights_than_the_unstable_point():
    """Of hardly any noise: what is unknown at the stable point is half of that at the unstable one, 2.5e-9."""
    law, noise, alpha = sparse(0.1), 1e-12, 0.1002
    snr = root(lambda x: linear_label(law, noise, np.exp(x))[0] - alpha, np.log(6e7), np.log(1e12))
    point = solve_bayes_optimal(model_of(problem_of(law, noise)), alpha, Start.informed)
    assert point.V.item() == pytest.approx(weight_at(law, np.exp(snr))[0], rel=1e-6)


def test_a_curve_says_how_far_it_was_looked_at():
    found = bayes_optimal_thresholds(model_of(problem_of(sparse(0.2), 0.03)))
    assert found["algorithmic"].statement.startswith(
        "no jump: what is known grows steadily with alpha, up to a share of"
    )


@pytest.mark.parametrize("V", [0.7, 1e-5, 1e-17])
def test_a_noisy_field_in_closed_form(V):
    """Gain ``V^2 / (V + Delta)``, spread ``V Delta / (V + Delta)``, and the entropy of a normal number."""
    noise = 3e-6
    found = LinearSums(noise).means(FieldLaw(np.eye(1), np.zeros(1), np.sqrt([1 - V]), np.sqrt([V])), 2, None)  # pyright: ignore[reportArgumentType]
    assert found.gain.item() == pytest.approx(V / (1 + noise / V), rel=1e-14)
    assert found.spread.item() == pytest.approx(1 / (1 / V + 1 / noise), rel=1e-14)
    assert found.log_evidence == pytest.approx(-np.log(2 * np.pi * np.e * (V + noise)) / 2, rel=1e-14)
