"""Weak recovery of the Bayes-optimal limit: closed forms, and an integral over labels done another way."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from attnphase.problem.problem import Problem
from attnphase.theories.bayes_optimal.importance import Noisy
from attnphase.theories.bayes_optimal.model import model_of
from attnphase.theories.bayes_optimal.thresholds import BayesOptimalThreshold, _weak_recovery

pytestmark = pytest.mark.filterwarnings("error")


def weak_recovery(model) -> BayesOptimalThreshold:
    return _weak_recovery(model.evolution(64))


def one_token(rank: int = 1, **fields: Any) -> Problem:
    problem = Problem.from_dict({"tokens": {"length": 1, "sigma": 0.7}, "loss": {"kind": "square"}})
    if rank > 1:
        loss = {"loss.kind": "expression", "loss.expression": "(h0_0 - k0_0)**2 + k0_1**2"}
        problem = problem.with_fields({"teacher.rank": rank, **loss})
    return problem.with_fields(fields)


def labels(k, omega):
    """Score matrices of fields (n, 2) up to a constant, (n, 4)."""
    products = k[:, :, None] * k[:, None]
    exponents = np.exp(products - products.max(axis=2, keepdims=True))
    return ((1 - omega) * exponents / exponents.sum(axis=2, keepdims=True)).reshape(-1, 4)


@pytest.mark.parametrize(("omega", "sigma", "noise", "seed"), [(0.15, 0.6, 0.4, 3), (0.5, 0.8, 0.08, 4)])
def test_noisy_labels_against_draws_of_labels_and_a_gauss_rule_of_fields(omega, sigma, noise, seed):
    """``1/alpha = E sum G_lm^2``, with 20000 random labels and the posterior's moments by 48 x 48 Gauss nodes."""
    x, w = np.polynomial.hermite_e.hermegauss(48)
    u = np.stack(np.meshgrid(x, x), axis=-1).reshape(-1, 2)
    weights = np.outer(w, w).ravel()
    random = np.random.default_rng(seed)
    true = random.standard_normal((20000, 2))
    seen = labels(sigma * true, omega) + math.sqrt(noise) * random.standard_normal((20000, 4))
    values = labels(sigma * u, omega)
    moments = np.concatenate([np.ones((len(u), 1)), (u[:, :, None] * u[:, None]).reshape(-1, 4)], axis=1)
    squares = []
    for part in np.split(seen, 20):
        exponent = (part @ values.T - (values**2).sum(axis=1) / 2) / noise
        sums = (np.exp(exponent - exponent.max(axis=1, keepdims=True)) * weights) @ moments
        squares.append(((sums[:, 1:] / sums[:, :1] - np.eye(2).ravel()) ** 2).sum(axis=1))
    inverse = np.concatenate(squares)
    problem = Problem.paper(omega=omega).with_fields({"tokens.sigma": sigma, "teacher.noise": noise})
    found = weak_recovery(model_of(problem))
    assert abs(1 / found.alpha - inverse.mean()) < 4 * inverse.std() / math.sqrt(len(inverse))
    assert found.standard_error < 1e-6 * found.alpha


def test_labels_that_are_drawn_have_no_bias():
    """The fallback of the lattices, where both do: a square of drawn moments is 10 % too large here."""
    problem = Problem.paper(omega=0.15).with_fields({"tokens.sigma": 0.6, "teacher.noise": 0.4})
    channel = model_of(problem).channel
    assert isinstance(channel, Noisy)
    root = 0.6 * np.eye(2)
    ours, theirs = (one.operator for one in (channel.response(root, 0), channel._drawn_response(root, 0)))
    expected, each = (np.einsum("sijij->s", one) for one in (ours, theirs))
    assert abs(each.mean() - expected.mean()) < 4 * each.std(ddof=1) / math.sqrt(len(each))
    assert each.std(ddof=1) / math.sqrt(len(each)) < 0.05 * expected.mean()


def test_an_even_sign_in_closed_form():
    """``sign(|k| - a)`` with a in deviations of k: ``G = 2 a phi(a) / P`` for one label, minus that for the other."""
    edge = 0.9
    found = weak_recovery(model_of(one_token(), f"sign(abs(k0_0) - {0.7 * edge!r})"))
    share = 2 * norm.sf(edge)
    expected = share * (1 - share) / (2 * edge * norm.pdf(edge)) ** 2
    assert found.alpha == pytest.approx(expected, rel=1e-9)


def test_the_sign_of_a_product_seen_with_probability():
    """Given the sign of ``k_0 k_1`` its mean is ``2/pi`` of the variances; a label right by .9 tells .8 of that."""
    found = weak_recovery(model_of(one_token(rank=2), "(1 + 0.8*y*sign(k0_0*k0_1))/2"))
    assert abs(found.alpha - (math.pi / 1.6) ** 2) < 4 * found.standard_error
    assert found.standard_error < 2e-3 * found.alpha


def test_labels_that_are_not_even_are_learned_from_at_once():
    assert weak_recovery(model_of(one_token(), "sign(k0_0 - 0.3) + sign(k0_0 + 0.3)")).alpha == 0.0
    assert weak_recovery(model_of(one_token(1, **{"teacher.noise": 0.4}), "k + k**2")).alpha == 0.0
