"""Instances, the risk through Gram matrices, test errors: against direct computations with n x L x d tensors."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch", reason="experiments need PyTorch")

import torch
from torch import Tensor

from attnphase.errors import ExperimentError
from attnphase.experiments.data import Instance, Stream, draw_geometry, draw_instance, draw_samples, generator
from attnphase.experiments.measure import exact_test_errors, linear_errors, overlaps_of, sampled_test_errors
from attnphase.experiments.products import fields_of, pull_back
from attnphase.experiments.risk import Risk
from attnphase.experiments.settings import TrainingSettings
from attnphase.experiments.starts import initial_weights
from attnphase.experiments.threads import threads_for_runs
from attnphase.experiments.training import train
from attnphase.kernels.torch.loss import LocalLoss
from attnphase.problem.problem import Problem

PAPER = Problem.paper(omega=0.27)
MIXTURE = PAPER.with_fields(
    {
        "tokens.kind": "mixture",
        "tokens.clusters": [[{"sigma": 0.45, "mean": [0.7]}, {"sigma": 0.6, "mean": [-0.4]}]] * 2,
        "tokens.law": {"kind": "same", "probability": 0.8},
        "tokens.mean_teacher": [[0.6]],
    }
)
LEVELS = [{"weight": 0.25, "variances": [0.9, 0.9]}, {"weight": 0.75, "variances": [0.12, 0.12]}]
MODELS = {
    "paper": PAPER,
    "untied": PAPER.with_fields({"student.tied": False}),
    "ranks 2, 2": PAPER.with_fields({"student.rank": 2, "teacher.rank": 2}),
    "three tokens, causal": PAPER.with_fields(
        {
            "tokens.length": 3,
            "tokens.sigma": [0.5, 0.7, 0.4],
            "teacher.mixing": None,
            "positions.kind": "gram",
            "positions.gram": [[1.1, 0.2, -0.3], [0.2, 0.7, 0.1], [-0.3, 0.1, 0.9]],
            "student.causal": True,
        }
    ),
    "temperature, sigmoid": PAPER.with_fields({"student.score": "sigmoid", "student.temperature": 0.6}),
    "mixture": MIXTURE,
    "anisotropic": PAPER.with_fields({"tokens.sigma": None, "tokens.spectrum": LEVELS}),
    "values": PAPER.with_fields({"loss.kind": "values", "loss.width": 2}),
    "logistic": Problem().with_fields(
        {"tokens.length": 1, "teacher.mixing": None, "positions.kind": "none", "loss.kind": "logistic"}
    ),
    "noise": PAPER.with_fields({"teacher.noise": 0.3, "tokens.sigma": [0.5, 0.8]}),
    "mixture with noise": MIXTURE.with_fields({"teacher.noise": 0.07}),
    "known clusters": MIXTURE.with_fields(
        {"loss.kind": "expression", "loss.expression": "softplus((1 - 2*c0)*h0_0) + (h1_0 - (c1 - 0.3*c0)*k1_0)**2/2"}
    ),
}
WITH_ATTENTION = [name for name, model in MODELS.items() if model.loss.kind == "attention"]


def instance_of(problem: Problem, dimension: int = 24, count: int = 37, runs: tuple[int, ...] = (0, 3)) -> Instance:
    return draw_instance(problem, dimension, count, 11, runs, LocalLoss(problem))


def weights_for(instance: Instance) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    shape = (len(instance.runs), instance.dimension, instance.problem.columns)
    return 0.4 + 0.8 * torch.randn(shape, generator=generator, dtype=torch.float64)


def scores(logits: Tensor, score: str, temperature: float, causal: bool) -> Tensor:
    logits = logits / temperature
    if causal:
        logits = logits + torch.full(logits.shape[-2:], -torch.inf, dtype=logits.dtype).triu(1)
    return torch.softmax(logits, dim=-1) if score == "softmax" else torch.sigmoid(logits)


def direct_risk(instance: Instance, s: int, weights: Tensor) -> Tensor:
    """The risk of one run from its n x L x d tokens, as equation (3) is written."""
    problem, d = instance.problem, instance.dimension
    length = problem.tokens.length
    geometry = instance.geometries[s]
    shifted = instance.samples.tokens[s].view(-1, length, d)
    x = shifted - torch.as_tensor(geometry.positions) / math.sqrt(d)
    teacher = torch.as_tensor(geometry.teacher)[:, : problem.teacher.rank]
    k = x @ teacher / math.sqrt(d)
    rank = problem.student.rank
    h = shifted @ weights / math.sqrt(d)
    left = h[..., :rank]
    right = left if problem.student.tied else h[..., rank : 2 * rank]
    student, ideal = problem.student, problem.teacher
    S = scores(left @ right.mT, student.score, student.temperature, student.causal)
    T = scores(k @ k.mT, ideal.score, ideal.temperature, ideal.causal)
    T = (1 - ideal.omega) * T + ideal.omega * torch.as_tensor(np.array(problem.mixing_matrix))
    normal = generator(instance.seed, instance.runs[s], Stream.NOISE).standard_normal(T.shape)
    T = T + math.sqrt(ideal.noise) * torch.as_tensor(normal)
    loss = (T @ x - S @ shifted).square().sum() / (2 * d)
    return loss + cast("float", problem.regularizer.strength) / 2 * weights.square().sum()


@pytest.mark.parametrize("name", WITH_ATTENTION)
def test_risk_and_gradient_are_those_of_the_tokens(name):
    instance = instance_of(MODELS[name])
    weights = weights_for(instance)
    risk = Risk.of(instance)
    values, gradients = risk.smooth(weights)
    for s in range(2):
        one = weights[s].clone().requires_grad_()
        direct = direct_risk(instance, s, one)
        direct.backward()
        assert one.grad is not None
        assert float(values[s]) == pytest.approx(float(direct.detach()), rel=1e-10)
        torch.testing.assert_close(gradients[s], one.grad, rtol=1e-10, atol=1e-10 * float(one.grad.abs().max()))
    torch.testing.assert_close(risk.value(weights), values, rtol=1e-13, atol=0)


@pytest.mark.parametrize("name", ["values", "logistic"])
def test_gradients_of_other_losses_are_derivatives(name):
    instance = instance_of(MODELS[name])
    weights, risk = weights_for(instance), Risk.of(instance)
    _, gradient = risk.smooth(weights)
    direction = torch.randn(weights.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for step, tolerance in ((1e-3, 1e-4), (1e-4, 1e-6)):
        slope = (risk.value(weights + step * direction) - risk.value(weights - step * direction)) / (2 * step)
        torch.testing.assert_close(slope, (gradient * direction).sum(dim=(1, 2)), rtol=tolerance, atol=tolerance)


def test_values_and_logistic_losses_are_the_formulas():
    instance = instance_of(MODELS["values"])
    weights, d = weights_for(instance), instance.dimension
    x = instance.samples.tokens[0].view(-1, 2, d)
    pure = x - torch.as_tensor(instance.geometries[0].positions) / math.sqrt(d)
    h = x @ weights[0] / math.sqrt(d)
    k = pure @ torch.as_tensor(instance.geometries[0].teacher) / math.sqrt(d)
    S = torch.softmax(h[..., :1] @ h[..., :1].mT, dim=-1)
    T = 0.73 * torch.softmax(k[..., :1] @ k[..., :1].mT, dim=-1)
    T = T + 0.27 * torch.as_tensor(np.array(PAPER.mixing_matrix))
    direct = (T @ k[..., 1:] - S @ h[..., 1:]).square().sum(dim=(1, 2)) / 2
    torch.testing.assert_close(Risk.of(instance).sample_losses(weights)[0], direct, rtol=1e-12, atol=1e-14)

    instance = instance_of(MODELS["logistic"])
    weights = weights_for(instance)
    x = instance.samples.tokens[0]
    h, k = x @ weights[0] / math.sqrt(d), x @ torch.as_tensor(instance.geometries[0].teacher) / math.sqrt(d)
    direct = torch.nn.functional.softplus(-torch.sign(k) * h)[:, 0]
    torch.testing.assert_close(Risk.of(instance).sample_losses(weights)[0], direct, rtol=1e-12, atol=1e-14)

    instance = instance_of(MODELS["known clusters"])
    weights, samples, teacher = weights_for(instance), instance.samples, instance.geometries[1].teacher
    x = samples.tokens[1].view(-1, 2, d)
    pure = x - torch.as_tensor(instance.geometries[1].positions) / math.sqrt(d)
    h, k = (x @ weights[1] / math.sqrt(d))[..., 0], (pure @ torch.as_tensor(teacher) / math.sqrt(d))[..., 0]
    c = (samples.sites[1] - torch.tensor([0, 2])).double()  # of two clusters for each token
    assert c.min() == 0 < c.max() == 1
    direct = torch.nn.functional.softplus((1 - 2 * c[:, 0]) * h[:, 0])
    direct = direct + (h[:, 1] - (c[:, 1] - 0.3 * c[:, 0]) * k[:, 1]).square() / 2
    torch.testing.assert_close(Risk.of(instance).sample_losses(weights)[1], direct, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", list(MODELS))
def test_exact_and_sampled_test_errors_agree(name):
    """At a dimension where the limit's formula would be wrong by many standard errors."""
    instance = instance_of(MODELS[name], dimension=18, runs=(1, 2, 5))
    weights = 0.7 * weights_for(instance)
    exact, quadrature = exact_test_errors(instance, weights)
    sampled, errors = sampled_test_errors(instance, weights, 20000)
    z = (exact - sampled) / np.hypot(quadrature, errors)
    assert np.all(np.abs(z) < 3.5), z
    assert np.all(quadrature < errors)


@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_linear_predictor_is_least_squares(noise):
    """Result 5.1: fitted on the training samples through L x L sums, tested exactly; of noise the fit alone knows."""
    problem = MODELS["three tokens, causal"].with_fields({"teacher.noise": noise})
    instance = instance_of(problem, dimension=20, count=60, runs=(0,))
    d, geometry = 20, instance.geometries[0]
    normal = torch.as_tensor(generator(11, 0, Stream.NOISE).standard_normal((60, 3, 3)))

    def tokens_and_labels(
        shifted: Tensor, fields: Tensor, drawn: Tensor | float = 0.0
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        x = shifted.view(-1, 3, d) - torch.as_tensor(geometry.positions) / math.sqrt(d)
        y = (instance.loss.targets(fields[0], torch.arange(3)) + drawn) @ x
        columns = [np.concatenate(list(array.numpy()), axis=1) for array in (x, y)]
        return columns[0], columns[1]

    samples = instance.samples
    x, y = tokens_and_labels(samples.tokens[0], samples.teacher_fields, math.sqrt(noise) * normal)
    fit = y @ np.linalg.pinv(x)
    streams = (Stream.TEST_CLUSTERS, Stream.TEST_TOKENS)
    fresh = draw_samples(problem, instance.geometries, 30000, 77, (0,), instance.loss, streams)
    x, y = tokens_and_labels(fresh.tokens[0], fresh.teacher_fields)
    losses = ((y - fit @ x) ** 2).sum(axis=0).reshape(-1, d).sum(axis=1) / (3 * d)
    z = (linear_errors(instance)[0] - losses.mean()) / (losses.std() / math.sqrt(len(losses)))
    assert abs(z) < 3.5
    assert np.isnan(linear_errors(instance_of(MODELS["values"]))).all()


# --- passes and threads -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("columns", [1, 2, 5])
def test_passes_are_products_whatever_the_number_of_tokens(columns, dtype):
    """Rows are taken four at a time: one that is left out, taken twice or from another run would be seen."""
    generator = torch.Generator().manual_seed(columns)
    for count in (1, 4, 7, 30):
        tokens = torch.randn((3, count, 37), generator=generator, dtype=dtype)
        weights = torch.randn((3, 37, columns), generator=generator, dtype=dtype)
        slopes = torch.randn((3, columns, count), generator=generator, dtype=dtype).mT  # not contiguous
        tolerance = 40 * torch.finfo(dtype).eps
        fields, pulled = fields_of(tokens, weights), pull_back(tokens, slopes)
        torch.testing.assert_close(fields, tokens @ weights / 37**0.5, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(pulled, tokens.mT @ slopes / 37**0.5, rtol=tolerance, atol=tolerance)


def test_what_is_not_finite_stays_so_and_in_its_run():
    """A run diverges by its numbers: reordered sums must not lose an infinity, or give it to another run."""
    instance = instance_of(PAPER, count=38)
    weights = weights_for(instance)
    weights[1, 5] = math.inf
    values, gradients = Risk.of(instance).smooth(weights)
    assert values.isfinite().tolist() == [True, False]
    assert gradients.isfinite().flatten(1).all(dim=1).tolist() == [True, False]


def test_numbers_do_not_depend_on_threads(monkeypatch):
    """Bit for bit, with several runs in a part and a part that is not full; a part of other runs would be seen."""
    monkeypatch.setattr("attnphase.experiments.risk.TOGETHER", 100)  # two runs of 37 samples
    runs = (0, 3, 4, 5, 8)
    instances = [draw_instance(MIXTURE, 24, 37, 11, runs, LocalLoss(MIXTURE), threads) for threads in (1, 3)]
    one, three = instances
    weights = weights_for(one)
    assert torch.equal(one.samples.tokens, three.samples.tokens)
    assert [risk.threads for risk in map(Risk.of, instances)] == [1, 3]
    for numbers, same in zip(*(Risk.of(instance).smooth(weights) for instance in instances), strict=True):
        assert torch.equal(numbers, same)
    torch.testing.assert_close(Risk.of(one).smooth(weights)[0], Risk.of(one).value(weights), rtol=1e-13, atol=0)
    starts = [initial_weights(instance, "semantic") for instance in instances]
    for name in ("gd", "lbfgs"):
        settings = TrainingSettings(name, steps=20)
        trained = [train(i, Risk.of(i), start, settings) for i, start in zip(instances, starts, strict=True)]
        assert torch.equal(trained[0].weights, trained[1].weights), name
    for measured in (exact_test_errors, lambda i, w: sampled_test_errors(i, w, 50), lambda i, _: [linear_errors(i)]):
        for numbers, same in zip(measured(one, weights), measured(three, weights), strict=True):
            np.testing.assert_array_equal(numbers, same)


def test_torchs_threads_are_given_back():
    """Also after an error: a user's own program would go on with one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with suppress(KeyError), threads_for_runs() as threads:
            assert (threads, torch.get_num_threads()) == (3, 1)
            raise KeyError
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


# --- instances --------------------------------------------------------------------------------------------------------


def test_a_run_does_not_depend_on_the_others():
    together, alone = instance_of(MIXTURE, runs=(0, 3, 4)), instance_of(MIXTURE, runs=(3,))
    for name in ("tokens", "targets", "grams", "sites", "token_products"):
        assert torch.equal(getattr(together.samples, name)[1], getattr(alone.samples, name)[0])
    np.testing.assert_array_equal(together.geometries[1].teacher, alone.geometries[0].teacher)
    other = draw_instance(MIXTURE, 24, 37, 12, (3,), LocalLoss(MIXTURE))
    assert not torch.equal(other.samples.tokens, alone.samples.tokens)


def test_vectors_have_exactly_the_products_of_the_problem():
    problem = MODELS["three tokens, causal"]
    geometry = draw_geometry(problem, 50, 4, 1)
    gram = [[1.1, 0.2, -0.3], [0.2, 0.7, 0.1], [-0.3, 0.1, 0.9]]
    np.testing.assert_allclose(geometry.positions @ geometry.positions.T / 50, gram, atol=1e-12)
    np.testing.assert_allclose(geometry.gamma, np.repeat([[0.25], [0.49], [0.16]], 50, axis=1))
    geometry = draw_geometry(MIXTURE, 50, 4, 1)
    means = np.array([0.7, -0.4, 0.7, -0.4])
    np.testing.assert_allclose(geometry.means @ geometry.means.T / 50, np.outer(means, means), atol=1e-12)


def test_spectra_fill_their_shares_of_the_coordinates():
    geometry = draw_geometry(MODELS["anisotropic"], 41, 0, 0)
    values, counts = np.unique(geometry.gamma[0], return_counts=True)
    np.testing.assert_allclose(values, [0.12, 0.9])
    assert counts.tolist() == [31, 10]


def test_tokens_have_their_law():
    """Variances, cluster shares and correlations, in standard errors."""
    instance = instance_of(MIXTURE, dimension=30, count=6000, runs=(2,))
    sites = instance.samples.sites[0].numpy()
    first, second = sites[:, 0], sites[:, 1] - 2
    same = (first == second).mean()
    # with probability .8 the second token copies the first one's cluster, else it is drawn afresh
    configurations, probabilities = MIXTURE.cluster_law
    expected = probabilities[[a == b - 2 for a, b in configurations]].sum()
    assert abs(same - expected) < 4 * math.sqrt(expected * (1 - expected) / 6000)
    x = instance.samples.tokens[0].view(-1, 2, 30).numpy() - instance.geometries[0].positions / math.sqrt(30)
    for site, sigma in ((0, 0.45), (1, 0.6)):
        rest = x[first == site, 0] - instance.geometries[0].means[site] / math.sqrt(30)
        assert abs(rest.var() / sigma**2 - 1) < 4 * math.sqrt(2 / rest.size)


def test_labels_come_from_the_teacher_without_encodings():
    instance = instance_of(PAPER)
    geometry, d = instance.geometries[0], instance.dimension
    x = instance.samples.tokens[0].view(-1, 2, d).numpy() - geometry.positions / math.sqrt(d)
    np.testing.assert_allclose(instance.samples.teacher_fields[0], x @ geometry.teacher / math.sqrt(d), atol=1e-13)
    overlaps = overlaps_of(instance, 0, geometry.teacher)
    np.testing.assert_allclose(overlaps.theta, overlaps.rho, rtol=1e-14)
    np.testing.assert_allclose(overlaps.q[0], 0.25 * (geometry.teacher**2).sum() / d, rtol=1e-13)


def test_a_dimension_without_room_is_refused():
    with pytest.raises(ExperimentError, match=r"dimension must be at least 3 here, .*, not 2\.$"):
        draw_geometry(PAPER, 2, 0, 0)
