"""Tokens whose teacher's fields have a density, at finite d: what is drawn, what is measured, and what is trained."""

import numpy as np
import pytest
from other_laws import assert_metric_is_that_of_samples

import attnphase as ap
from attnphase.experiments.data import draw_instance
from attnphase.experiments.measure import exact_test_errors, measured_metrics, sampled_test_errors
from attnphase.kernels.torch.loss import LocalLoss
from attnphase.problem.problem import Problem

SIGMA, DIMENSION, COUNT = 0.9, 40, 6000
TWO = Problem.from_dict(
    {
        "tokens": {
            "kind": "mixture",
            "clusters": [{"sigma": SIGMA, "mean": [-0.4]}, {"sigma": 1.3, "mean": [0.7]}],
            "law": {"kind": "independent", "weights": [0.6, 0.4]},
            "density": "1 + (c[0] - c[1])*tanh(k[0, 0] - k[1, 0])*tilt",
            "parameters": {"tilt": 0.6},
        },
        "positions": {"kind": "none"},
        "regularizer": {"strength": 0.15},
        "loss": {"kind": "expression", "expression": "(tanh(h[0, 0] + h[1, 0]) - k[0, 0] + k[1, 0])**2/2"},
        "metrics": {"product": "h[0, 0]*k[0, 0] - k[1, 0]**2"},
    }
)
ONE = Problem.from_dict(
    {
        "tokens": {"length": 1, "sigma": SIGMA, "density": "1 + tanh(2*k[0, 0])*b", "parameters": {"b": 0.8}},
        "positions": {"kind": "none"},
        "regularizer": {"strength": 0.15},
        "loss": {"kind": "expression", "expression": "(h[0, 0] - tanh(k[0, 0]) - 0.4)**2/2"},
        "metrics": {"product": "h[0, 0]*k[0, 0]"},
    }
)


def test_fields_have_the_density_and_the_rest_of_a_token_its_law():
    """In units of standard errors, of the numbers that the density makes those of other laws."""
    instance = draw_instance(TWO, DIMENSION, COUNT, 5, (0,), LocalLoss(TWO))
    geometry, samples = instance.geometries[0], instance.samples
    k, sites = samples.teacher_fields[0, :, :, 0].double().numpy(), samples.sites[0].numpy()
    x = samples.tokens[0].double().numpy().reshape(COUNT, 2, DIMENSION)
    np.testing.assert_allclose(x @ geometry.teacher[:, 0] / np.sqrt(DIMENSION), k, rtol=1e-5, atol=1e-5)
    rho = geometry.gamma @ geometry.teacher[:, 0] ** 2 / DIMENSION
    middle, clusters = geometry.means @ geometry.teacher[:, 0] / DIMENSION, np.array([c for _, c in TWO.sites])
    for pair in np.unique(sites, axis=0):
        own = k[(sites == pair).all(axis=1)]
        nodes, weights = np.polynomial.hermite_e.hermegauss(60)
        a, b = np.meshgrid(*(middle[site] + np.sqrt(rho[site]) * nodes for site in pair), indexing="ij")
        density = 1 + (clusters[pair[0]] - clusters[pair[1]]) * np.tanh(a - b) * 0.6
        law = np.outer(weights, weights) * density
        for value, of_nodes in ((own[:, 0], a), (own[:, 1], b), (own[:, 0] * own[:, 1], a * b), (own[:, 0] ** 2, a**2)):
            expected = (law * of_nodes).sum() / law.sum()
            assert abs(value.mean() - expected) < 4 * value.std() / np.sqrt(len(value))
    # across the teacher nothing changes
    way = np.random.default_rng(3).normal(size=DIMENSION)
    way -= (
        geometry.gamma[0]
        * geometry.teacher[:, 0]
        * (way @ geometry.teacher[:, 0])
        / (geometry.gamma[0] @ geometry.teacher[:, 0] ** 2)
    )
    of_first = x[(sites == 0).any(axis=1), 0]
    across = (of_first - geometry.means[0] / np.sqrt(DIMENSION)) @ (way / geometry.gamma[0])
    variance = (way**2 / geometry.gamma[0]).sum()
    assert abs(across.mean()) < 4 * np.sqrt(variance / len(across))
    assert across.var() == pytest.approx(variance, abs=4 * variance * np.sqrt(2 / len(across)))


@pytest.mark.parametrize("problem", [ONE, TWO], ids=["one token", "two clusters"])
def test_what_is_measured_is_that_of_fresh_samples(problem: Problem):
    instance = draw_instance(problem, DIMENSION, COUNT, 7, (0, 1), LocalLoss(problem))
    weights = instance.stacked("teacher") + 0.3
    (exact, error), (sampled, its) = exact_test_errors(instance, weights), sampled_test_errors(instance, weights, COUNT)
    assert (np.abs(exact - sampled) < 4 * np.hypot(error, its)).all()
    assert_metric_is_that_of_samples(instance, weights, zip(*measured_metrics(instance, weights), strict=True))


def test_a_density_changes_what_is_measured():
    """Of labels with a mean that they have not under the Gaussian law."""
    plain = ONE.with_fields({"tokens.density": None})
    own, other = (draw_instance(problem, DIMENSION, 10, 7, (0,), LocalLoss(problem)) for problem in (ONE, plain))
    weights = own.stacked("teacher")
    (value, error), (without, _) = exact_test_errors(own, weights), exact_test_errors(other, weights)
    assert abs(value[0] - without[0]) > 20 * error[0]


@pytest.mark.slow
def test_training_agrees_with_theory():
    """Of labels with a mean that they have not under the Gaussian law, in standard errors."""
    runs = ap.simulate(ONE, 2.3, "semantic", 400, 8).squeeze()
    theory = ap.solve(ONE, 2.3, settings=ap.SolverSettings(stability=False)).squeeze()
    for name in ("training_loss", "test_error", "q", "theta", "metric_product"):
        each, expected = runs[name].values.ravel(), theory[name].item()
        # of order 1/d is what finite d leaves
        allowed = 4 * each.std(ddof=1) / np.sqrt(len(each)) + abs(expected) * 3 / 400
        assert abs(each.mean() - expected) < allowed, name
