"""The benchmarks' independent programs against closed forms and values that are known otherwise."""

from dataclasses import replace
from math import isnan
from typing import Any, cast

import numpy as np
import pytest
import xarray as xr

from benchmarks.crossings import Curves, crossing
from benchmarks.crossings import drawn as drawn_crossings
from benchmarks.hundred import drawn, read
from benchmarks.independent_attention import Map as AttentionMap
from benchmarks.independent_minima import lowest_minima
from benchmarks.independent_pairs import Map, Pair, Rule
from benchmarks.independent_scalar import Scalar, scalar_reference


def ridge_regression(variance, ridge, alpha, noise):
    """q, V, θ, training loss and test error in closed form: all moments of Gaussians, V a quadratic's root.

    V (λ + γ α / (1 + V)) = γ, θ = α γ V / (1 + V), and q = c (γ + Δ - 2 θ + q) + θ² / γ with c = α V² / (1 + V)².
    """
    b = ridge + variance * (alpha - 1)
    V = (np.sqrt(b**2 + 4 * ridge * variance) - b) / (2 * ridge)
    theta = alpha * variance * V / (1 + V)
    c = alpha * (V / (1 + V)) ** 2
    q = (c * (variance + noise - 2 * theta) + theta**2 / variance) / (1 - c)
    residual = (variance + noise - 2 * theta + q) / (1 + V) ** 2
    loss = alpha / 2 * residual + ridge / 2 * q / variance
    return {"q": q, "V": V, "theta": theta, "training_loss": loss, "test_error": variance - 2 * theta + q}


@pytest.mark.parametrize(
    ("sigma", "ridge", "alpha", "noise"), [(0.7, 0.013, 2.3, 0.2), (1.9, 3e-4, 0.6, 0.0), (0.3, 0.4, 11.0, 0.05)]
)
def test_the_scalar_program_is_ridge_regression_for_the_square_loss(sigma, ridge, alpha, noise):
    values, errors = scalar_reference(Scalar("square", 1, sigma, ridge, alpha, noise))
    right = ridge_regression(sigma**2, ridge, alpha, noise)
    assert values.keys() == errors.keys() == right.keys()
    for name in right:
        assert abs(values[name] - right[name]) < 4 * errors[name], name
        assert errors[name] < 1e-8 * abs(right[name]), name


def test_a_loss_of_sums_of_fields_is_that_of_one_token():
    values, _ = scalar_reference(Scalar("square", 3, 0.6, 0.02, 1.7))
    right = ridge_regression(3 * 0.6**2, 0.02, 1.7, 0.0)
    for name in right:
        assert values[name] == pytest.approx(right[name] / (1 if name == "training_loss" else 3), rel=1e-8)


@pytest.mark.parametrize("loss", ["huber", "logistic", "hinge"])
def test_the_training_loss_grows_with_the_ridge_by_half_the_weights_squared_norm(loss):
    """The envelope theorem; differences have an error of the order of the step squared."""
    step, ridge = 1e-3, 0.05
    low, middle, high = (
        scalar_reference(Scalar(loss, 1, 0.8, ridge * x, 2.6, 0.1))[0] for x in (1 - step, 1, 1 + step)
    )
    slope = (high["training_loss"] - low["training_loss"]) / (2 * step * ridge)
    assert slope == pytest.approx(middle["q"] / 0.8**2 / 2, rel=1e-5)


def test_no_point_of_a_dense_net_is_lower_than_the_minimum():
    generator, variance, V = np.random.default_rng(3), 1.4, 6.0
    k, centres = generator.normal(size=(2, 20, 2)) * 1.2
    logits = k[:, :, None] * k[:, None, :]
    targets = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    found, lowest = lowest_minima(k, centres, targets, V, variance)
    side = np.linspace(-5, 5, 400)
    net = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)

    def energy(h, centre, target):
        scores = np.exp(h[:, :, None] * h[:, None, :])
        off = scores / scores.sum(axis=2, keepdims=True) - target
        return ((h - centre) ** 2).sum(axis=1) / 2 + V * variance / 2 * (off**2).sum(axis=(1, 2))

    for i in range(20):
        values = energy(net, centres[i], targets[i])
        assert energy(found[i][None], centres[i], targets[i])[0] == pytest.approx(lowest[i], rel=1e-12)
        assert values.min() - 0.01 < lowest[i] <= values.min()  # half a step off, at curvatures up to a hundred


def test_the_attention_program_makes_no_order_parameter_by_chance():
    """Its points have their mirror images."""
    images = AttentionMap(cast("Any", drawn()[0].independent), 2**8).images(np.array([np.log(0.3), np.log(8.0), 0.0]))
    np.testing.assert_allclose(images[:, 2], 0, atol=1e-12)
    assert images[1:, 0].std() > 1e-3


def test_the_saved_references_of_ridge_regression_are_the_closed_form():
    problems, references = drawn(), read()
    ridges = [one for one in problems if one.loss == "square" and one.number in references]
    assert ridges
    for problem in ridges:
        one = cast("Scalar", problem.independent)
        right = ridge_regression(one.length * one.sigma**2, one.ridge, one.alpha, one.noise)
        assert references[problem.number].values["q"] == pytest.approx(right["q"] / one.length, rel=1e-8)


MIXING = np.array([[0.6, 0.4], [0.4, 0.6]])
SEMANTIC = Pair("semantic", 0.5, 0.01, 2.0, 0.3, MIXING)
POSITIONAL = replace(SEMANTIC, branch="positional", alpha=1.24)


@pytest.mark.parametrize(
    ("problem", "q", "V", "order", "loss"),
    [(SEMANTIC, 0.1148173, 12.66841, 0.158159, 0.00359062), (POSITIONAL, 0.0469804, 14.95976, 0.252292, 0.00269723)],
    ids=["semantic", "positional"],
)
def test_a_known_point_of_pairs_is_fixed(problem, q, V, order, loss):
    """Of the paper's problem, by lines in a program of its own; the rule is coarse."""
    spread = q - order**2 * (1 / problem.gamma if problem.branch == "semantic" else problem.gamma)
    image, seen = Map(problem, Rule().scaled(0.6)).image(np.array([spread, V, order]))
    np.testing.assert_allclose(image, [spread, V, order], rtol=1e-3)
    assert seen[0] == pytest.approx(loss, rel=1e-4)


def test_lines_along_two_directions_give_one_map_of_pairs():
    problem = replace(SEMANTIC, alpha=1.3, sigma=0.6)
    rule = Rule.of(problem).scaled(0.6)
    first, second = (Map(problem, replace(rule, turned=x)).image(np.array([0.03, 14.0, 0.13])) for x in (False, True))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_allclose(one, other, rtol=3e-4)


def test_units_scale_the_map_of_pairs():
    unit, rule, x = 2.3, Rule().scaled(0.5), np.array([0.03, 15.0, 0.25])
    problem, c = replace(POSITIONAL, causal=(True, False)), unit**2
    scaled = replace(problem, sigma=unit * 0.5, ridge=c * 0.01, size=unit, temperatures=(c, c))
    (image, seen), (other, other_seen) = Map(problem, rule).image(x), Map(scaled, rule).image(x * [c, 1, 1])
    np.testing.assert_allclose(other, image * [c, 1, 1], rtol=1e-7)
    np.testing.assert_allclose(other_seen, seen * c, rtol=1e-7)


class Known(Curves):
    """Losses in closed form, which cross at 1.37: by branch, with the range of α in which each exists."""

    def __init__(self, semantic, positional):
        super().__init__(drawn_crossings()[3].problem)
        self.ranges = {"semantic": semantic, "positional": positional}

    def point(self, branch, alpha, error):
        low, high = self.ranges[branch]
        loss = (0.1 if branch == "semantic" else 0.3) * np.log(alpha / 1.37)
        values = {"status": 0, "on_branch": int(not low < alpha < high), "training_loss": loss, "test_error": loss}
        errors = {"training_loss_stderr": 1e-2 * error, "test_error_stderr": 1e-2 * error, "linear_test_error": 0.0}
        return xr.Dataset(values | errors)


@pytest.mark.parametrize(
    ("semantic", "positional", "crosses"),
    [((0, 9), (0, 9), True), ((1.36, 9), (0, 1.374), True), ((1.38, 9), (0, 9), False), ((0, 9), (0, 1.35), False)],
)
def test_a_crossing_is_found_up_to_the_ends_of_branches_and_not_beyond(semantic, positional, crosses):
    found = crossing(Known(semantic, positional), "alpha_c")
    assert found.open == []
    assert abs(found.alpha - 1.37) <= found.error < 1e-4 if crosses else isnan(found.alpha)
