"""Bayes-optimal errors of teachers of rank 3, whose labels have noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ncx2, norm

import attnphase as ap
from attnphase import Problem
from attnphase.errors import ProblemError
from attnphase.facts.labels import FieldLaws, LabelFacts
from attnphase.theories.bayes_optimal.channel import Fields
from attnphase.theories.bayes_optimal.importance import Noisy
from attnphase.theories.bayes_optimal.model import model_of
from attnphase.theories.bayes_optimal.solving import Start, solve_bayes_optimal
from attnphase.theories.bayes_optimal.symmetries import all_rotations, column_images, turns
from attnphase.theories.bayes_optimal.thresholds import _weak_recovery
from derivations.models.labels import labels_of_formula


def problem(length, noise, rank=3, sigma=1.0, **fields):
    attention = (
        {"kind": "expression", "expression": "sum((h - k - noise[0, 0])**2)"} if length == 1 else {"kind": "attention"}
    )
    return Problem.from_dict(
        {
            "tokens": {"length": length, "sigma": sigma},
            "teacher": {"rank": rank, "noise": noise} | fields,
            "student": {"rank": rank},
            "positions": {"kind": "none"},
            "loss": attention,
        }
    )


def test_labels_of_three_columns_without_noise_are_refused():
    with pytest.raises(ProblemError, match=r"teacher\.rank must be 1 or 2 for labels without noise, not 3: set"):
        ap.bayes_optimal(problem(2, 0.0), 0.5)
    with pytest.raises(ProblemError, match=r"teacher\.rank must be at most 3 for this theory, not 4"):
        ap.bayes_optimal(problem(2, 0.1, 4), 0.5)


def test_the_images_of_three_columns_are_a_group_of_orthogonal_matrices():
    images = np.array(turns(3, 8))
    assert len(images) == 24
    assert images[0] == pytest.approx(np.eye(3), abs=1e-12)
    assert images @ images.mT == pytest.approx(np.broadcast_to(np.eye(3), images.shape), abs=1e-12)
    products = np.einsum("aij,bjk->abik", images, images).reshape(-1, 1, 9)
    assert np.abs(products - images.reshape(-1, 9)).max(axis=-1).min(axis=1).max() < 1e-12
    assert np.abs(images + np.eye(3)).max(axis=(1, 2)).min() < 1e-12


def test_rotations_are_found_where_all_of_them_leave_labels_unchanged():
    """A norm has all; one of two columns has signs alone; a determinant has no reflections."""
    norms = images_of("[sum(k[0]**2), sum(k[1]**2)]", 3)
    assert all_rotations(norms)
    assert len(norms) == 24
    two = images_of("[sum(k[0, :2]**2), sum(k[1, :2]**2)]", 3)
    assert len(two) == 16  # exchanges of two columns, and all signs
    determinants = images_of("k[0, 0]*k[1, 1] - k[0, 1]*k[1, 0]", 2)
    assert not all_rotations(determinants)
    assert {round(np.linalg.det(image)) for image in determinants} == {1}


@pytest.mark.parametrize("size", [1e-7, 1.0, 3e6])
def test_rotations_and_signs_depend_on_no_unit_and_no_constant(size):
    """Labels of norms have all rotations; a bump beyond ten deviations that is not even leaves them the others."""
    for rank in (2, 3):
        bent = f"{10 * size} - k[0, 0]"
        for unit, constant in ((1.0, 0.0), (1e-9, 1e6), (1e8, -1e20)):
            norm = f"{constant} + {unit}*sqrt({size**2} + sum(k[0]**2) + 2*sum(k[1]**2))"
            assert all_rotations(images_of(norm, rank, size))
            for part in (f"relu(-({bent}))", f"exp(k[0, 0]/{size} - 9)"):
                found = np.array(images_of(f"{norm} + {1e-3 * unit}*{part}", rank, size))
                assert (found[:, 0, 0] == 1).all()
                assert len(found) == {2: 2, 3: 8}[rank]


def images_of(text, rank, size=1.0):
    laws = FieldLaws(np.zeros((1, 2 * rank)), np.full((1, 2 * rank), size))
    return column_images(LabelFacts([labels_of_formula(text, 2, rank)], [1.0], laws), rank, 8)


def softmax_labels(k):
    """``.6 softmax(k k^T)``, written again."""
    logits = k @ k.mT
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return (0.6 * weights / weights.sum(axis=-1, keepdims=True)).reshape(len(k), -1)


def test_the_posterior_of_noisy_scores_against_weighted_draws_of_the_prior():
    """Six fields of unequal variances, where two thirds of the draws would be too few without images."""
    noise, V = 0.004, np.array([np.diag([0.2, 0.15, 0.1]), np.diag([0.1, 0.2, 0.12])])
    random, count = np.random.default_rng(11), 6
    omega = 0.4 * random.standard_normal((count, 2, 3))
    k = omega + (random.standard_normal((*omega.shape[:2], 1, 3)) @ np.sqrt(V))[..., 0, :]
    z = random.standard_normal((count, 4))
    sets = 16
    several = [np.repeat(x, sets, axis=0)[None] for x in (omega, k, z)]
    fields = Fields(several[0], several[1], V, several[2])
    channel = Noisy(softmax_labels, 4, 2, 3, noise, turns(3, 8))
    found = channel.posterior(fields)
    assert found.mean is not None
    finer = channel.given(fields).mean  # of what message passing takes errors are half as large
    assert finer is not None
    scatters = [x[0].reshape(count, sets, -1).std(axis=1).mean() for x in (finer, found.mean)]
    assert scatters[0] < 0.7 * scatters[1]
    deviation = (random.standard_normal((400_000, 2, 1, 3)) @ np.sqrt(V))[..., 0, :]
    for n in range(count):
        label = softmax_labels(k[n][None]) + np.sqrt(noise) * z[n]
        exponent = -((softmax_labels(omega[n] + deviation) - label) ** 2).sum(axis=1) / (2 * noise)
        weights = np.exp(exponent)
        mean = np.einsum("n,nli->li", weights, deviation) / weights.sum()
        second = np.einsum("n,nli,nlj->lij", weights, deviation, deviation) / weights.sum()
        own = slice(n * sets, (n + 1) * sets)
        rest = 1 / np.sqrt((weights.sum() ** 2) / (weights**2).sum())  # error of these draws, in deviations
        for ours, theirs, scale in (
            (found.mean[0, own], mean, 0.4),
            (found.spread[0, own], second - np.einsum("li,lj->lij", mean, mean), 0.2),
        ):
            error = np.hypot(ours.std(axis=0, ddof=1) / np.sqrt(sets), rest * scale)
            assert (np.abs(ours.mean(axis=0) - theirs) < 4.5 * error).all()
            assert error.max() < 0.06 * np.sqrt(scale)
        # the noise's own misfit, whose mean is known, stands in place of this node's
        log = np.log(weights.mean()) - 2 * np.log(2 * np.pi * noise) - 2 + (z[n] ** 2).sum() / 2
        logs = found.log_evidence[0, own]
        assert abs(logs.mean() - log) < 4.5 * np.hypot(logs.std(ddof=1) / np.sqrt(sets), rest)


def test_linear_labels_of_three_columns_have_a_closed_form():
    """``q_hat = alpha B^T (B V B^T + Delta)^-1 B`` and ``V = (1/rho + q_hat)^-1``."""
    B, noise, alpha, rho = np.array([[1.0, 0.5, 0.0], [0.0, 1.0, 0.2], [0.3, 0.0, -0.7]]), 0.3, 0.8, 0.81
    V = rho * np.eye(3)
    for _ in range(200):
        V = np.linalg.inv(np.eye(3) / rho + alpha * B.T @ np.linalg.solve(B @ V @ B.T + noise * np.eye(3), B))
    one = problem(1, noise, sigma=0.9)
    text = "[k[0, 0] + 0.5*k[0, 1], k[0, 1] + 0.2*k[0, 2], 0.3*k[0, 0] - 0.7*k[0, 2]]"
    point = solve_bayes_optimal(model_of(one, text), alpha, Start.uninformed, max_nodes=2**9)
    assert point.V[0] == pytest.approx(V, abs=4 * float(point.errors["V"].max()) + 1e-4)
    assert float(point.errors["V"].max()) < 0.005


def squared_length_by_quadrature(V, q, noise):
    """Gain of one token's field, with ``y = |k|^2 + noise``: what the angle to omega has is a Langevin function.

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
        chance, mean = both.sum(axis=1), both @ along
        told = mean / np.maximum(chance, 1e-200) - length
        total += weight * (chance * told**2).sum() * (y[1] - y[0])
    return total


@pytest.mark.parametrize("lattices", [True, False])
def test_the_squared_length_of_three_columns_against_quadrature(lattices):
    """The label ``|k|^2`` of one token: sums over lattices of three fields, and draws with their images."""
    noise, rho, share = 0.5, 0.64, 0.55
    model = model_of(problem(1, noise, sigma=0.8), "sum(k**2)")
    assert isinstance(model.channel, Noisy)
    assert model.channel.sums is not None
    if not lattices:
        model = replace(model, channel=replace(model.channel, sums=None))
    V = (1 - share) * rho
    gains = np.trace(model.evolution(16 if lattices else 512).moments(V * np.eye(3)[None]).gain[:, 0], axis1=1, axis2=2)
    error = gains.std(ddof=1) / np.sqrt(len(gains))
    expected = squared_length_by_quadrature(V, rho - V, noise)
    assert gains.mean() == pytest.approx(expected, abs=4 * error + 1e-4 * expected)
    assert error < 0.02 * expected


def test_a_start_that_knows_nothing_keeps_all_rotations():
    """Few nodes have none of them; the share is that at which quadrature has this alpha, near weak recovery."""
    noise, rho, alpha = 0.5, 0.64, 3.4
    model = model_of(problem(1, noise, sigma=0.8), "sum(k**2)")
    assert isinstance(model.channel, Noisy)
    model = replace(model, channel=replace(model.channel, sums=None))
    point = solve_bayes_optimal(model, alpha, Start.uninformed, max_nodes=2048)
    assert point.status == 0
    assert point.q[0] == pytest.approx(point.q[0, 0, 0] * np.eye(3), abs=1e-6)
    error = point.errors["overlap"]
    assert error < 0.15 * point.overlap

    def alpha_at(share):
        V = (1 - share) * rho
        return (1 / V - 1 / rho) * 3 * V**2 / squared_length_by_quadrature(V, rho - V, noise)

    assert alpha_at(point.overlap - 4 * error) < alpha < alpha_at(point.overlap + 4 * error)


def test_weak_recovery_of_the_squared_length_of_three_columns():
    """``E[u u^T - 1 | y] = g(y) 1`` with the standardised field u, so that ``1/alpha = E g^2``."""
    noise, rho = 0.5, 0.64
    s = np.linspace(1e-9, 60, 6001)
    density = np.sqrt(s) * np.exp(-s / 2) / np.sqrt(2 * np.pi)
    density /= density.sum()
    y = np.linspace(-5, 45, 2001)
    both = norm.pdf(y[:, None], rho * s, np.sqrt(noise)) * density
    chance = both.sum(axis=1)
    expected = 1 / ((both @ (s / 3 - 1)) ** 2 / np.maximum(chance, 1e-200)).sum() / (y[1] - y[0])
    found = _weak_recovery(model_of(problem(1, noise, sigma=0.8), "sum(k**2)").evolution(16))
    assert abs(found.alpha - expected) < 4 * found.standard_error < 0.05 * expected
