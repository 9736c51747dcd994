"""Measurements of weights: test errors against fresh samples, stated errors, metrics, least squares, memory.

Not public: these numbers are asked for of weights that are no minimum, on samples that `ap.simulate` does not return.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("torch", reason="experiments need PyTorch")

import torch
from instances import instance_of, weights_for

import attnphase as ap
from attnphase.errors import ExperimentError
from attnphase.experiments import measure
from attnphase.experiments.data import Instance, Samples, Stream, draw_samples, generator
from attnphase.experiments.measure import exact_test_errors, linear_errors, measured_metrics, sampled_test_errors
from attnphase.experiments.memory import MemoryNeed, runs_that_fit
from attnphase.experiments.risk import Risk
from tests.experiments.test_samples import ATTENTION, CAUSAL, LOSSES, ONE, PAPER, TWO

METRIC = {"metrics.product": "h[0, 0]*k[0, 0] - k[1, 0]**2"}
PAIRED = "(h[0, 0] + h[1, 0]/2 - tanh(k[0, 0]) + k[1, 0]/3 - 0.2*c[0])**2/2"
ALONE = {"loss.kind": "expression", "loss.expression": "(h[0, 0] - tanh(k[0, 0]) - 0.4)**2/2", "tokens.sigma": 0.9}
ALONE |= {"tokens.density": "1 + tanh(2*k[0, 0])*b", "tokens.parameters": {"b": 0.8}}
BENT = {"tokens.sampler": "k + bend*(1 + c[0])*(k + k[::-1])**3", "tokens.parameters": {"bend": 0.03, "tilt": 0.6}}
STRETCHED = {"tokens.sampler": "k*(1 + abs(k[::-1]))", "tokens.sigma": 1.1}
LAWS = {
    "a density": ap.Problem().with_fields(ONE | ALONE | {"metrics.product": "h[0, 0]*k[0, 0]"}),
    "a sampler": PAPER.with_fields(STRETCHED | METRIC),
    "both, of clusters": TWO.with_fields({"loss.kind": "expression", "loss.expression": PAIRED} | METRIC | BENT),
}


def fresh_samples(instance: Instance, count: int, seed: int = 77) -> Samples:
    streams = (Stream.TEST_CLUSTERS, Stream.TEST_TOKENS)
    return draw_samples(instance.problem, instance.geometries, count, seed, instance.runs, instance.loss, streams)


@pytest.mark.parametrize("name", [*ATTENTION, *LOSSES])
def test_exact_test_errors_are_those_of_fresh_samples(name):
    """At a dimension where the limit's formula would be wrong by many standard errors."""
    instance = instance_of(ATTENTION[name] if name in ATTENTION else LOSSES[name][0], 18, runs=(1, 2, 5))
    weights = 0.7 * weights_for(instance)
    (exact, quadrature), (sampled, errors) = (
        exact_test_errors(instance, weights),
        sampled_test_errors(instance, weights, 10000),
    )
    z = (exact - sampled) / np.hypot(quadrature, errors)
    assert np.all(np.abs(z) < 3.5), z
    assert np.all(quadrature < errors)


@pytest.mark.parametrize("name", LAWS)
def test_test_errors_and_metrics_know_the_law_of_the_fields(name):
    instance = instance_of(LAWS[name], 40, 3000, (0, 1), 7)
    weights, samples = instance.stacked("teacher") + 0.3, instance.samples
    (exact, error), (sampled, its) = exact_test_errors(instance, weights), sampled_test_errors(instance, weights, 3000)
    assert (np.abs(exact - sampled) < 4 * np.hypot(error, its)).all()
    gaussian = instance_of(LAWS[name].with_fields({"tokens.density": None, "tokens.sampler": None}), 40, 10, (0, 1), 7)
    assert (np.abs(exact - exact_test_errors(gaussian, weights)[0]) > 8 * error).all()  # the law matters
    length = LAWS[name].tokens.length
    for run, (value, uncertain) in enumerate(zip(*measured_metrics(instance, weights), strict=True)):
        k = samples.teacher_fields[run, :, :, 0].double().numpy()
        h = (samples.tokens[run].double() @ weights[run, :, 0] / 40**0.5).numpy().reshape(len(k), length)
        seen = h[:, 0] * k[:, 0] - (k[:, 1] ** 2 if length > 1 else 0)
        assert abs(seen.mean() - value[0]) < 4 * np.hypot(uncertain[0], seen.std() / len(k) ** 0.5)


def test_metrics_see_noise_clusters_and_both_columns():
    clusters = {
        "tokens.kind": "mixture",
        "tokens.clusters": [{"sigma": 0.9, "mean": [1.4]}, {"sigma": 0.7, "mean": [-0.8]}],
        "tokens.law": {"kind": "table", "table": [[0.15, 0.25], [0.2, 0.4]]},
        "tokens.mean_teacher": [[0.6]],
    }
    metrics = {"metrics.sign": "c1*sign(h0_0*(h0_1 - h1_1))", "metrics.square": "(h1_1 - k0_0 + noise1_0)**2*(1 + c0)"}
    fields = clusters | {"teacher.noise": 0.3, "student.tied": False, **metrics}
    instance, count = instance_of(ap.Problem().with_fields(fields), 11, 30, (0, 1), 5), 40_000
    weights = weights_for(instance)
    values, errors = measured_metrics(instance, weights)
    fresh = fresh_samples(instance, count, 5)
    h = (fresh.tokens @ weights / np.sqrt(11)).reshape(2, count, 2, 2).numpy()
    k, c = fresh.teacher_fields[..., 0].numpy(), fresh.sites.numpy() - [0, 2]
    noise = np.sqrt(0.3) * np.random.default_rng(4).normal(size=(2, count))
    signs = c[..., 1] * np.sign(h[..., 0, 0] * (h[..., 0, 1] - h[..., 1, 1]))
    sampled = np.stack([signs, (h[..., 1, 1] - k[..., 0] + noise) ** 2 * (1 + c[..., 0])], axis=-1)
    own = sampled.std(axis=1) / np.sqrt(count)
    assert np.all(np.abs(values - sampled.mean(axis=1)) < 4 * np.hypot(errors, own))
    assert np.all(np.abs(values[0] - values[1]) > 5 * own[0])  # the runs are told apart
    assert np.all(errors < own)


def test_sampled_test_errors_are_not_those_of_the_training_samples():
    instance = instance_of(PAPER, 18, 30, (0, 1), 5)
    weights = weights_for(instance)
    training = Risk.of(instance).sample_losses(weights).mean(dim=1).numpy()
    fresh, errors = sampled_test_errors(instance, weights, instance.samples.count)
    assert np.all(np.abs(fresh - training) > 1e-6)
    many, few = sampled_test_errors(instance, weights, 3000)
    assert np.all(np.abs(many - exact_test_errors(instance, weights)[0]) < 4 * few)
    assert np.all(few < errors)


def test_the_stated_error_of_the_exact_test_error_is_its_scatter(monkeypatch):
    """Quadratures of 32 seeds on few nodes, about one on many, by the F distribution."""
    instance = instance_of(PAPER.with_fields({"tokens.sigma": [0.7, 0.5]}), 18, 30, (0,), 5)
    weights = weights_for(instance)
    true = exact_test_errors(instance, weights)[0].item()
    monkeypatch.setattr(measure, "POINTS", 32)
    others = [
        Instance(instance.problem, 1000 + seed, (0,), instance.geometries, instance.samples, instance.loss)
        for seed in range(32)
    ]
    values, errors = np.array([np.ravel(exact_test_errors(other, weights)) for other in others]).T
    low, high = stats.f.ppf([1e-4, 1 - 1e-4], 32, 32 * 7)
    assert low < np.mean((values - true) ** 2) / np.mean(errors**2) < high


@pytest.mark.parametrize(
    ("problem", "d", "n"),
    [
        (CAUSAL, 20, 60),
        (CAUSAL.with_fields({"teacher.noise": 0.4}), 20, 60),
        (LAWS["a sampler"], 40, 6000),
    ],
    ids=["three tokens", "noise", "a sampler"],
)
def test_the_linear_predictor_is_least_squares(problem, d, n):
    """Result 5.1: fitted on the training samples, noise included, and tested without it on fresh ones."""
    instance = instance_of(problem, d, n, (0,))
    positions, length = torch.as_tensor(instance.geometries[0].positions), problem.tokens.length
    normal = generator(11, 0, Stream.NOISE).standard_normal((n, length, length))

    def tokens_and_labels(samples: Samples, drawn: np.ndarray | float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        x = samples.tokens[0].view(-1, length, d) - positions / d**0.5
        y = (instance.loss.targets(samples.teacher_fields[0], samples.sites[0]).numpy() + drawn) @ x.numpy()
        return x.numpy().swapaxes(0, 1).reshape(length, -1), y.swapaxes(0, 1).reshape(length, -1)

    x, y = tokens_and_labels(instance.samples, problem.teacher.noise**0.5 * normal)
    fit = y @ np.linalg.pinv(x)
    x, y = tokens_and_labels(fresh_samples(instance, 30000))
    losses = ((y - fit @ x) ** 2).sum(axis=0).reshape(-1, d).sum(axis=1) / (length * d)
    assert abs(linear_errors(instance)[0] - losses.mean()) < 3.5 * losses.std() / len(losses) ** 0.5


def test_some_memory_is_left_free_and_little_of_it_trains_few_runs_at_a_time():
    """Runs may take 60 % of what is free, less what the program itself needs."""
    need = MemoryNeed(2**30, 0)
    assert runs_that_fit(need, 100, 10 * 2**30 + 500 * 2**20, dimension=10, count=10, length=2) == 6
    with pytest.raises(ExperimentError, match=r"the largest n L d that fits is about \d"):
        runs_that_fit(need, 8, 2**30, dimension=1000, count=2000, length=2)
    tokens = 2000 * 2 * 1000 * 8
    of_lbfgs, of_gamp = (MemoryNeed.of(PAPER, 1000, 2000, name, 0, 8).total for name in ("lbfgs", "gamp"))
    assert tokens <= of_lbfgs < 1.5 * tokens < of_gamp
