"""Bayes-optimal errors of labels that depend on clusters of which the tokens tell nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

import attnphase as ap
from attnphase import Problem
from attnphase.errors import ProblemError
from attnphase.theories.bayes_optimal.importance import Noisy
from attnphase.theories.bayes_optimal.labels import Labels
from attnphase.theories.bayes_optimal.model import model_of
from attnphase.theories.bayes_optimal.solving import Start, solve_bayes_optimal

FLIPPED: dict[str, Any] = {
    "tokens": {
        "kind": "mixture",
        "length": 1,
        "clusters": [{"sigma": 0.9}, {"sigma": 0.9}],
        "law": {"kind": "independent", "weights": [0.85, 0.15]},
    },
    "loss": {"kind": "expression", "expression": "relu(1 - h*(1 - 2*c)*sign(k))"},
}
SHARES, NOISE, RHO = (0.65, 0.35), 0.2, 0.81
LOCATED: dict[str, Any] = {
    "tokens": {
        "kind": "mixture",
        "length": 2,
        "clusters": [{"sigma": 0.9}, {"sigma": 0.9}],
        "law": {"kind": "single-location", "weights": [*SHARES]},
    },
    "teacher": {"noise": NOISE},
    "positions": {"kind": "none"},
    "loss": {
        "kind": "expression",
        "expression": "(h[0, 0] + h[1, 0] - c[0]*k[0, 0] - c[1]*k[1, 0] - noise[0, 0])**2",
    },
}


def reached(data, alpha, channel=None, max_nodes=2**11):
    return solve_bayes_optimal(model_of(Problem.from_dict(data), channel), alpha, Start.uninformed, max_nodes=max_nodes)


def test_signs_that_a_hidden_cluster_flips_against_quadrature():
    """``q_hat = alpha E sum_y (dP_y/domega)^2 / P_y`` with ``P_+ = .15 + .7 Phi(omega/sqrt(V))``."""
    x, w = np.polynomial.hermite_e.hermegauss(101)
    alpha, q = 1.6, 0.3 * RHO
    for _ in range(200):
        V = RHO - q
        at = x * math.sqrt(q / V)
        slope, plus = 0.7 * norm.pdf(at) / math.sqrt(V), 0.15 + 0.7 * norm.cdf(at)
        q_hat = alpha * (w / w.sum()) @ (slope**2 / plus + slope**2 / (1 - plus))
        q = RHO**2 * q_hat / (1 + RHO * q_hat)
    point = reached(FLIPPED, alpha)
    assert isinstance(model_of(Problem.from_dict(FLIPPED)).channel, Labels)
    assert abs(point.overlap - q / RHO) < 4 * point.errors["overlap"] < 0.02
    # the sign without noise is what the cluster has flipped
    wrong = 0.15 + 0.7 * math.acos(math.sqrt(q / RHO)) / math.pi
    assert point.test_error == pytest.approx(wrong, abs=0.006)
    assert reached(FLIPPED, alpha, "(1 - 2*c)*sign(k)").overlap == pytest.approx(point.overlap, rel=1e-9)
    likely = reached(FLIPPED, alpha, "1/(1 + exp(-y*(1 - 2*c)*60*k))")
    assert likely.overlap == pytest.approx(point.overlap, abs=0.01)


def located_gain(V):
    """``E (<k_l> - omega_l)^2`` of both tokens with ``y = k_e + noise``: which token it is has two Gaussian odds."""
    x, w = np.polynomial.hermite_e.hermegauss(48)
    w = w / w.sum()
    first, second = np.sqrt(RHO - V) * np.array(np.meshgrid(x, x, indexing="ij"))
    width, y = math.sqrt(V + NOISE), np.linspace(-9, 9, 1501)
    chances = [p * norm.pdf(y, one[..., None], width) for p, one in zip(SHARES, (first, second), strict=True)]
    total = np.maximum(chances[0] + chances[1], 1e-300)
    gains = []
    for chance, one in zip(chances, (first, second), strict=True):
        told = chance / total * (y - one[..., None]) * V / (V + NOISE)
        gains.append(w @ (total * told**2).sum(axis=-1) @ w * (y[1] - y[0]))
    return np.array(gains)


def test_one_of_two_tokens_in_a_noisy_label_against_quadrature():
    """At a given V, and the overlap that follows; a fresh label's error has the location in it."""
    model = model_of(Problem.from_dict(LOCATED))
    assert isinstance(model.channel, Noisy)
    assert sorted(model.channel.shares) == sorted(SHARES)
    V = 0.45 * RHO
    found = model.evolution(256).moments(np.full((4, 1, 1), V))
    each = found.gain[:, :, 0, 0].reshape(16, 2, 2).sum(axis=-1)  # over the clusters of each token
    assert (np.abs(each.mean(axis=0) - located_gain(V)) < 4 * each.std(axis=0, ddof=1) / 4).all()
    assert each.std(axis=0, ddof=1).max() / 4 < 0.03 * located_gain(V).max()
    alpha, V = 2.3, 0.5 * RHO
    for _ in range(60):
        V = RHO / (1 + RHO * alpha * located_gain(V).sum() / V**2)
    point = reached(LOCATED, alpha, max_nodes=2**12)
    assert abs(point.overlap - (1 - V / RHO)) < 4 * point.errors["overlap"] < 0.03
    expected = V + (RHO - V) * (1 - np.square(SHARES).sum())
    assert abs(point.test_error - expected) < 4 * point.errors["test_error"] < 0.03
    assert abs(point.nishimori) < 4 * point.errors["nishimori"]
    # what noise alone leaves of a label's entropy is not known without an integral
    assert 0 < point.mutual_information < 1


def test_a_cluster_that_no_label_depends_on_changes_nothing():
    """``0*c`` and two clusters against one token without clusters, by the same formula."""
    plain = {"tokens": {"length": 1, "sigma": 0.9}, "teacher": {"noise": 0.3}, "loss": {"kind": "square"}}
    mixed = FLIPPED | {"teacher": {"noise": 0.3}, "loss": {"kind": "square"}}
    expected = reached(plain, 0.9, "k + k**3/5")
    assert reached(mixed, 0.9, "k + k**3/5 + 0*c").overlap == pytest.approx(expected.overlap, rel=1e-6)


def changed(data, **tokens):
    return data | {"tokens": data["tokens"] | tokens}


@pytest.mark.parametrize(
    ("data", "channel", "field", "words"),
    [
        (changed(FLIPPED, clusters=[{"sigma": 0.9}, {"sigma": 0.5}]), None, "tokens.clusters", "clusters that differ"),
        (
            changed(LOCATED, clusters=[{"sigma": 0.9, "mean": [0.0]}, {"sigma": 0.9, "mean": [1.2]}]),
            None,
            "tokens.clusters",
            "gives token 0 clusters that differ",
        ),
        (LOCATED | {"teacher": {"noise": 0.0}}, "c[0]*k[0, 0] + c[1]*k[1, 0]", "teacher.noise", "or noise: set"),
        ({"tokens": {"length": 1}, "loss": {"kind": "square"}}, "c*k", "channel", 'unknown name "c"'),
    ],
)
def test_clusters_of_which_tokens_tell_are_refused_by_name(data, channel, field, words):
    if field == "teacher.noise":
        data = data | {"loss": {"kind": "expression", "expression": "(h[0, 0] + h[1, 0] - k[0, 0])**2"}}
    with pytest.raises(ProblemError) as refused:
        ap.bayes_optimal(Problem.from_dict(data), 0.5, channel=channel)
    assert refused.value.field == field
    assert words in str(refused.value)
