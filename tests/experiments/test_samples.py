"""What training runs draw at finite d, and their risk and its gradient against n x L x d tokens.

Not public: samples, teachers and the risk stay inside `ap.simulate`, whose results would show a wrong law late only.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch", reason="experiments need PyTorch")

import torch
from instances import instance_of, weights_for
from torch import Tensor
from torch.nn.functional import softplus

import attnphase as ap
from attnphase.experiments.data import Instance, Stream, draw_geometry, generator
from attnphase.experiments.measure import exact_test_errors, linear_errors, sampled_test_errors
from attnphase.experiments.risk import Risk
from attnphase.experiments.settings import TrainingSettings
from attnphase.experiments.starts import initial_weights
from attnphase.experiments.training import train

PAPER = ap.Problem.paper(omega=0.27)
MIXTURE = PAPER.with_fields(
    {
        "tokens.kind": "mixture",
        "tokens.clusters": [[{"sigma": 0.45, "mean": [0.7]}, {"sigma": 0.6, "mean": [-0.4]}]] * 2,
        "tokens.law": {"kind": "same", "probability": 0.8},
        "tokens.mean_teacher": [[0.6]],
    }
)
GRAM = [[1.1, 0.2, -0.3], [0.2, 0.7, 0.1], [-0.3, 0.1, 0.9]]
CAUSAL = PAPER.with_fields(
    {
        "tokens.length": 3,
        "tokens.sigma": [0.5, 0.7, 0.4],
        "teacher.mixing": None,
        "positions.kind": "gram",
        "positions.gram": GRAM,
        "student.causal": True,
    }
)
LEVELS = [{"weight": 0.25, "variances": [0.9, 0.9]}, {"weight": 0.75, "variances": [0.12, 0.12]}]
LEVELLED = PAPER.with_fields({"tokens.sigma": None, "tokens.spectrum": LEVELS})
ATTENTION = {
    "paper": PAPER,
    "untied": PAPER.with_fields({"student.tied": False}),
    "ranks 2, 2": PAPER.with_fields({"student.rank": 2, "teacher.rank": 2}),
    "three tokens, causal": CAUSAL,
    "temperature, sigmoid": PAPER.with_fields({"student.score": "sigmoid", "student.temperature": 0.6}),
    "mixture": MIXTURE,
    "anisotropic": LEVELLED,
    "noise": PAPER.with_fields({"teacher.noise": 0.3, "tokens.sigma": [0.5, 0.8]}),
    "mixture with noise": MIXTURE.with_fields({"teacher.noise": 0.07}),
}


def scores(logits: Tensor, of: ap.Problem, side: str) -> Tensor:
    score, temperature, causal = (getattr(getattr(of, side), name) for name in ("score", "temperature", "causal"))
    logits = logits / temperature
    if causal:
        logits = logits + torch.full(logits.shape[-2:], -torch.inf, dtype=logits.dtype).triu(1)
    return torch.softmax(logits, dim=-1) if score == "softmax" else torch.sigmoid(logits)


def tokens_of(instance: Instance, s: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens with encodings and without, and the teacher's fields, made of the tokens."""
    d, geometry = instance.dimension, instance.geometries[s]
    shifted = instance.samples.tokens[s].view(-1, instance.problem.tokens.length, d)
    x = shifted - torch.as_tensor(geometry.positions) / math.sqrt(d)
    return shifted, x, x @ torch.as_tensor(geometry.teacher) / math.sqrt(d)


@pytest.mark.parametrize("name", ATTENTION)
def test_risk_and_gradient_are_those_of_the_tokens(name):
    """Of each run, as equation (3) is written, with the noise of its labels."""
    problem = ATTENTION[name]
    instance = instance_of(problem)
    weights, risk = weights_for(instance), Risk.of(instance)
    values, gradients = risk.smooth(weights)
    for s in range(2):
        one, (shifted, x, k) = weights[s].clone().requires_grad_(), tokens_of(instance, s)
        h, rank = shifted @ one / math.sqrt(24), problem.student.rank
        right = h[..., :rank] if problem.student.tied else h[..., rank:]
        T = (1 - problem.teacher.omega) * scores(k @ k.mT, problem, "teacher")
        T = T + problem.teacher.omega * torch.as_tensor(np.array(problem.mixing_matrix))
        normal = generator(11, instance.runs[s], Stream.NOISE).standard_normal(T.shape)
        T = T + math.sqrt(problem.teacher.noise) * torch.as_tensor(normal)
        S = scores(h[..., :rank] @ right.mT, problem, "student")
        direct = (T @ x - S @ shifted).square().sum() / 48 + 0.01 / 2 * one.square().sum()
        direct.backward()
        assert one.grad is not None
        assert float(values[s]) == pytest.approx(float(direct.detach()), rel=1e-10)
        torch.testing.assert_close(gradients[s], one.grad, rtol=1e-10, atol=1e-10 * float(one.grad.abs().max()))
    torch.testing.assert_close(risk.value(weights), values, rtol=1e-13, atol=0)


def by_values(h: Tensor, k: Tensor, _c: Tensor) -> Tensor:
    S, T = (torch.softmax(x[..., :1] @ x[..., :1].mT, dim=-1) for x in (h, k))
    T = 0.73 * T + 0.27 * torch.as_tensor(np.array(PAPER.mixing_matrix))
    return (T @ k[..., 1:] - S @ h[..., 1:]).square().sum(dim=(1, 2)) / 2


def by_clusters(h: Tensor, k: Tensor, c: Tensor) -> Tensor:
    own = c[:, 1] - 0.3 * c[:, 0]
    return softplus((1 - 2 * c[:, 0]) * h[:, 0, 0]) + (h[:, 1, 0] - own * k[:, 1, 0]).square() / 2


FORMULA = "softplus((1 - 2*c0)*h0_0) + (h1_0 - (c1 - 0.3*c0)*k1_0)**2/2"
ONE = {"tokens.length": 1, "teacher.mixing": None, "positions.kind": "none"}
LOSSES = {
    "values": (PAPER.with_fields({"loss.kind": "values", "loss.width": 2}), by_values),
    "logistic": (
        ap.Problem().with_fields({**ONE, "loss.kind": "logistic"}),
        lambda h, k, _: softplus(-torch.sign(k) * h)[:, 0, 0],
    ),
    "known clusters": (MIXTURE.with_fields({"loss.kind": "expression", "loss.expression": FORMULA}), by_clusters),
}


@pytest.mark.parametrize("name", LOSSES)
def test_other_losses_are_their_formulas_and_gradients_their_derivatives(name):
    problem, formula = LOSSES[name]
    instance = instance_of(problem)
    weights, risk = weights_for(instance), Risk.of(instance)
    shifted, _, k = tokens_of(instance, 1)
    firsts = torch.tensor([problem.sites.index((token, 0)) for token in range(problem.tokens.length)])
    c = (instance.samples.sites[1] - firsts).double()
    expected = formula(shifted @ weights[1] / math.sqrt(24), k, c)
    torch.testing.assert_close(risk.sample_losses(weights)[1], expected, rtol=1e-12, atol=1e-14)
    _, gradient = risk.smooth(weights)
    way = torch.randn(weights.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    slope = (risk.value(weights + 1e-4 * way) - risk.value(weights - 1e-4 * way)) / 2e-4
    torch.testing.assert_close(slope, (gradient * way).sum(dim=(1, 2)), rtol=1e-6, atol=1e-6)


def test_an_infinity_stays_in_its_own_run():
    instance = instance_of(PAPER, n=38)
    weights = weights_for(instance)
    weights[1, 5] = math.inf
    values, gradients = Risk.of(instance).smooth(weights)
    assert values.isfinite().tolist() == [True, False]
    assert gradients.isfinite().flatten(1).all(dim=1).tolist() == [True, False]


def test_numbers_do_not_depend_on_threads(monkeypatch):
    """Bit for bit, with several runs in a part and a part that is not full; a part of other runs would be seen."""
    monkeypatch.setattr("attnphase.experiments.risk.TOGETHER", 100)  # two runs of 37 samples
    one, three = (instance_of(MIXTURE, runs=(0, 3, 4, 5, 8), threads=threads) for threads in (1, 3))
    weights = weights_for(one)
    torch.testing.assert_close(Risk.of(one).smooth(weights)[0], Risk.of(one).value(weights), rtol=1e-13, atol=0)
    for name in ("gd", "lbfgs"):
        ends = [
            train(i, Risk.of(i), initial_weights(i, "semantic"), TrainingSettings(name, steps=20)).weights
            for i in (one, three)
        ]
        assert torch.equal(*ends), name
    for measured in (exact_test_errors, lambda i, w: sampled_test_errors(i, w, 50), lambda i, _: [linear_errors(i)]):
        for numbers, same in zip(measured(one, weights), measured(three, weights), strict=True):
            np.testing.assert_array_equal(numbers, same)


def test_encodings_means_and_variances_are_exactly_those_of_the_problem():
    geometry = draw_geometry(CAUSAL, 50, 4, 1)
    np.testing.assert_allclose(geometry.positions @ geometry.positions.T / 50, GRAM, atol=1e-12)
    np.testing.assert_allclose(geometry.gamma, np.repeat([[0.25], [0.49], [0.16]], 50, axis=1))
    means, geometry = np.array([0.7, -0.4, 0.7, -0.4]), draw_geometry(MIXTURE, 50, 4, 1)
    np.testing.assert_allclose(geometry.means @ geometry.means.T / 50, np.outer(means, means), atol=1e-12)
    variances, counts = np.unique(draw_geometry(LEVELLED, 41, 0, 0).gamma[0], return_counts=True)
    np.testing.assert_allclose(variances, [0.12, 0.9])
    assert counts.tolist() == [31, 10]


def test_tokens_have_their_clusters_and_variances():
    """In standard errors; the tokens' clusters are the same with probability .8."""
    instance = instance_of(MIXTURE, 30, 6000, (2,))
    sites = instance.samples.sites[0].numpy()
    first, second = sites[:, 0], sites[:, 1] - 2
    assert abs((first == second).mean() - 0.8) < 4 * math.sqrt(0.8 * 0.2 / 6000)
    _, x, k = tokens_of(instance, 0)
    np.testing.assert_allclose(instance.samples.teacher_fields[0], k, atol=1e-12)
    for site, sigma in ((0, 0.45), (1, 0.6)):
        rest = x.numpy()[first == site, 0] - instance.geometries[0].means[site] / math.sqrt(30)
        assert abs(rest.var() / sigma**2 - 1) < 4 * math.sqrt(2 / rest.size)


def test_teachers_have_their_law_and_normal_ones_are_as_before():
    sparse = {"teacher.prior": "gauss-bernoulli", "teacher.rank": 2}
    signs, some, whole, plain = (
        draw_geometry(PAPER.with_fields(fields), 400, 0, 1)
        for fields in (
            {"teacher.prior": "rademacher"},
            sparse | {"teacher.prior_density": 0.3},
            sparse | {"teacher.prior_density": 1.0},
            {"teacher.rank": 2},
        )
    )
    assert set(signs.teacher.ravel()) == {-1.0, 1.0}
    assert (some.teacher != 0).mean(axis=0) == pytest.approx(0.3, abs=0.1)  # of each column by itself
    assert (some.teacher != 0).all(axis=1).mean() == pytest.approx(0.09, abs=0.06)
    assert (some.teacher**2).mean() == pytest.approx(1.0, abs=0.3)
    np.testing.assert_array_equal(whole.teacher, plain.teacher)
    np.testing.assert_array_equal(some.positions, plain.positions)


def test_starts_are_the_papers():
    """Teacher and unit encoding, normal numbers of deviation .1 where neither has a direction, or what is given."""
    instance = instance_of(PAPER.with_fields({"student.rank": 2}), 400, 2, tuple(range(6)))
    geometry, mixed = instance.geometries[0], initial_weights(instance, "mixed")[0].numpy()
    np.testing.assert_array_equal(mixed[:, 0], geometry.teacher[:, 0])
    along = geometry.positions[0] / np.linalg.norm(geometry.positions[0])
    assert abs(mixed[:, 1] @ along) == pytest.approx(1, abs=1e-12)
    semantic = initial_weights(instance, "semantic")[0].numpy()
    np.testing.assert_array_equal(semantic[:, 0], geometry.teacher[:, 0])
    uninformed = initial_weights(instance, "uninformed")
    for drawn in (uninformed, torch.as_tensor(semantic[:, 1:])):
        assert float(drawn.std()) == pytest.approx(0.1, abs=5 * 0.1 / math.sqrt(2 * drawn.numel()))
    given = np.arange(800.0).reshape(400, 2)
    np.testing.assert_array_equal(initial_weights(instance, given)[1], given)


TWO = ap.Problem.from_dict(
    {
        "tokens": {
            "kind": "mixture",
            "clusters": [{"sigma": 0.9, "mean": [-0.4]}, {"sigma": 1.3, "mean": [0.7]}],
            "law": {"kind": "independent", "weights": [0.6, 0.4]},
            "density": "1 + (c[0] - c[1])*tanh(k[0, 0] - k[1, 0])*tilt",
            "parameters": {"tilt": 0.6},
        },
        "positions": {"kind": "none"},
    }
)


def test_fields_have_their_density_and_the_rest_of_a_token_its_law():
    """In standard errors, against a quadrature; and a direction across the teacher."""
    instance = instance_of(TWO, 40, 6000, (0,), 5)
    geometry, sites = instance.geometries[0], instance.samples.sites[0].numpy()
    _, x, k = (array.numpy() for array in tokens_of(instance, 0))
    teacher, k = geometry.teacher[:, 0], k[..., 0]
    np.testing.assert_allclose(instance.samples.teacher_fields[0, ..., 0], k, rtol=1e-5, atol=1e-5)
    rho, middle = geometry.gamma @ teacher**2 / 40, geometry.means @ teacher / 40
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    for pair in np.unique(sites, axis=0):
        own = k[(sites == pair).all(axis=1)]
        a, b = np.meshgrid(*(middle[site] + np.sqrt(rho[site]) * nodes for site in pair), indexing="ij")
        c = [TWO.sites[site][1] for site in pair]
        law = np.outer(weights, weights) * (1 + (c[0] - c[1]) * np.tanh(a - b) * 0.6)
        for value, there in ((own[:, 0], a), (own[:, 1], b), (own[:, 0] * own[:, 1], a * b), (own[:, 0] ** 2, a**2)):
            assert abs(value.mean() - (law * there).sum() / law.sum()) < 4 * value.std() / math.sqrt(len(value))
    way, gamma = np.random.default_rng(3).normal(size=40), geometry.gamma[0]
    way -= gamma * teacher * (way @ teacher) / (gamma @ teacher**2)
    across = (x[(sites == 0).any(axis=1), 0] - geometry.means[0] / math.sqrt(40)) @ (way / gamma)
    variance = (way**2 / gamma).sum()
    assert abs(across.mean()) < 4 * math.sqrt(variance / len(across))
    assert across.var() == pytest.approx(variance, abs=4 * variance * math.sqrt(2 / len(across)))


def test_tokens_move_along_the_teacher_to_the_fields_of_the_sampler():
    """Each from the Gaussian tokens of the same numbers, whose components across the teacher they keep."""
    plain = TWO.with_fields({"tokens.density": None})
    sampler = {"tokens.sampler": "k + bend*(1 + c[0])*(k + k[::-1])**3", "tokens.parameters": {"bend": 0.03}}
    moved, still = (instance_of(one, 40, 200, (0,), 5) for one in (plain.with_fields(sampler), plain))
    geometry, sites = moved.geometries[0], moved.samples.sites[0].numpy()
    (_, x, k), (_, y, before) = (tuple(a.numpy() for a in tokens_of(one, 0)) for one in (moved, still))
    cluster = np.array([c for _, c in TWO.sites])[sites[:, 0]][:, None, None]
    expected = before + 0.03 * (1 + cluster) * (before + before[:, ::-1]) ** 3
    np.testing.assert_allclose(k, expected, rtol=1e-4, atol=1e-4)
    along = geometry.gamma[sites] * geometry.teacher[:, 0]
    step = (expected - before)[..., 0] / (along * geometry.teacher[:, 0]).mean(axis=2)
    np.testing.assert_allclose(x, y + step[..., None] * along / math.sqrt(40), rtol=1e-4, atol=1e-4)
    assert np.abs(step).max() > 1


def test_fields_are_weighed_after_they_are_made():
    """One sign is likelier than the other by the density, of which each sample takes one field."""
    law = {"tokens.sampler": "sign(k)", "tokens.density": "1 + b*k", "tokens.parameters": {"b": 0.6}}
    k = instance_of(ap.Problem().with_fields(ONE | law), 40, 6000, (0,)).samples.teacher_fields.double().numpy()
    np.testing.assert_allclose(np.abs(k), 1, rtol=1e-5)
    assert abs(k.mean() - 0.6) < 4 * math.sqrt((1 - 0.36) / 6000)
