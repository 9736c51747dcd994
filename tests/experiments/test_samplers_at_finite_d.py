"""Tokens whose teacher's fields are drawn, at finite d: what is drawn, what is measured, and what is trained."""

import numpy as np
import pytest
from other_laws import assert_metric_is_that_of_samples

import attnphase as ap
from attnphase.experiments.data import Stream, draw_instance, draw_samples
from attnphase.experiments.measure import exact_test_errors, linear_errors, measured_metrics, sampled_test_errors
from attnphase.kernels.torch.loss import LocalLoss
from attnphase.problem.problem import Problem
from tests.experiments.test_densities_at_finite_d import COUNT, DIMENSION, ONE, TWO

LOSS = {"loss.expression": "(h[0, 0] + h[1, 0]/2 - tanh(k[0, 0]) + k[1, 0]/3 - 0.2*c[0])**2/2"}
MADE = LOSS | {"tokens.sampler": "k + bend*(1 + c[0])*(k + k[::-1])**3", "tokens.parameters": {"bend": 0.03}}
DRAWN = TWO.with_fields({"tokens.density": None, **MADE})
BOTH = TWO.with_fields({**MADE, "tokens.parameters": {"bend": 0.03, "tilt": 0.6}})
ATTENTION = Problem.paper(omega=0.3).with_fields(
    {"tokens.sampler": "k*(1 + abs(k[::-1]))", "tokens.sigma": 1.1, "metrics.product": "h[0, 0]*k[0, 0] - k[1, 0]**2"}
)
TAIL = ONE.with_fields({"tokens.density": None, "tokens.sampler": "k + tail*k**3", "tokens.parameters": {"tail": 0.15}})
RIDGE = ONE.with_fields({"tokens.density": None, "tokens.sampler": "sign(k)", "loss.expression": "(h - k)**2/2"})


def test_tokens_move_along_the_teacher_to_the_fields_of_the_sampler():
    """Each from the Gaussian tokens of the same numbers, whose components across the teacher they keep."""
    plain = TWO.with_fields({"tokens.density": None})
    moved, still = (draw_instance(one, DIMENSION, 200, 5, (0,), LocalLoss(one)) for one in (DRAWN, plain))
    geometry, sites = moved.geometries[0], moved.samples.sites[0].numpy()
    np.testing.assert_array_equal(sites, still.samples.sites[0].numpy())
    k, before = (one.samples.teacher_fields[0].double().numpy() for one in (moved, still))
    cluster = np.array([c for _, c in TWO.sites])[sites[:, 0]][:, None, None]
    expected = before + 0.03 * (1 + cluster) * (before + before[:, ::-1]) ** 3
    np.testing.assert_allclose(k, expected, rtol=1e-4, atol=1e-4)
    x, y = (one.samples.tokens[0].double().numpy().reshape(-1, 2, DIMENSION) for one in (moved, still))
    along = geometry.gamma[sites] * geometry.teacher[:, 0]
    rho = (along * geometry.teacher[:, 0]).mean(axis=2)
    step = (expected - before)[..., 0] / rho
    np.testing.assert_allclose(x, y + step[..., None] * along / np.sqrt(DIMENSION), rtol=1e-4, atol=1e-4)
    assert np.abs(step).max() > 1


def test_fields_are_weighed_after_they_are_made():
    """One sign is likelier than the other by the density, of which each sample takes one field."""
    problem = RIDGE.with_fields({"tokens.density": "1 + b*k", "tokens.parameters": {"b": 0.6}})
    k = draw_instance(problem, DIMENSION, COUNT, 3, (0,), LocalLoss(problem)).samples.teacher_fields.double().numpy()
    np.testing.assert_allclose(np.abs(k), 1, rtol=1e-5)
    assert abs(k.mean() - 0.6) < 4 * np.sqrt((1 - 0.36) / COUNT)


@pytest.mark.parametrize("problem", [DRAWN, BOTH, ATTENTION], ids=["clusters", "with a density", "attention"])
def test_what_is_measured_is_that_of_fresh_samples(problem: Problem):
    instance = draw_instance(problem, DIMENSION, COUNT, 7, (0, 1), LocalLoss(problem))
    weights = instance.stacked("teacher") + 0.3
    (exact, error), (sampled, its) = exact_test_errors(instance, weights), sampled_test_errors(instance, weights, COUNT)
    assert (np.abs(exact - sampled) < 4 * np.hypot(error, its)).all()
    assert_metric_is_that_of_samples(instance, weights, zip(*measured_metrics(instance, weights), strict=True))


def test_the_linear_predictor_is_measured_under_the_law():
    instance = draw_instance(ATTENTION, DIMENSION, COUNT, 7, (0,), LocalLoss(ATTENTION))
    streams = Stream.TEST_CLUSTERS, Stream.TEST_TOKENS
    fresh = draw_samples(ATTENTION, instance.geometries, COUNT, 8, (0,), instance.loss, streams)
    of_tokens, of_labels = (
        one[0].double().numpy() for one in (instance.samples.token_products, instance.samples.label_products)
    )
    fit = np.linalg.solve(of_tokens.T, of_labels.T).T
    x = fresh.tokens[0].double().numpy().reshape(COUNT, 2, DIMENSION)
    x -= instance.geometries[0].positions / np.sqrt(DIMENSION)
    scores = instance.loss.targets(fresh.teacher_fields[0], fresh.sites[0]).double().numpy()
    errors = (((scores - fit) @ x) ** 2).sum(axis=(1, 2)) / (2 * DIMENSION)
    assert abs(errors.mean() - linear_errors(instance)[0]) < 4 * errors.std() / np.sqrt(COUNT)
    plain = ATTENTION.with_fields({"tokens.sampler": None})
    other = linear_errors(draw_instance(plain, DIMENSION, COUNT, 7, (0,), LocalLoss(plain)))[0]
    assert abs(errors.mean() - other) > 8 * errors.std() / np.sqrt(COUNT)


@pytest.mark.slow
@pytest.mark.parametrize("problem", [TAIL, RIDGE], ids=["tail", "Rademacher"])
def test_training_agrees_with_theory(problem: Problem):
    """In standard errors."""
    runs = ap.simulate(problem, 2.3, "semantic", 400, 8).squeeze()
    theory = ap.solve(problem, 2.3, settings=ap.SolverSettings(stability=False)).squeeze()
    for name in ("training_loss", "test_error", "q", "theta", "metric_product"):
        each, expected = runs[name].values.ravel(), theory[name].item()
        # of order 1/d is what finite d leaves
        allowed = 4 * each.std(ddof=1) / np.sqrt(len(each)) + abs(expected) * 3 / 400
        assert abs(each.mean() - expected) < allowed, name
