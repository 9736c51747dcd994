"""The hundred problems: the independent programs against closed forms, and what counts as wrong."""

import numpy as np
import pytest

from benchmarks.hundred import LARGEST, Outcome, Reference, compare, drawn, read, summary
from benchmarks.independent_attention import Attention, Map
from benchmarks.independent_minima import lowest_minima
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
    """Would catch a wrong equation, penalty, noise or quadrature, and noise that is counted in the test error."""
    values, errors = scalar_reference(Scalar("square", 1, sigma, ridge, alpha, noise))
    right = ridge_regression(sigma**2, ridge, alpha, noise)
    assert values.keys() == errors.keys() == right.keys()
    for name in right:
        assert abs(values[name] - right[name]) < 4 * errors[name], name
        assert errors[name] < 1e-8 * abs(right[name]), name


def test_a_loss_of_sums_of_fields_is_that_of_one_token():
    """Would catch overlaps of the sum given for those of a token: by tokens all share a third of q, V and θ."""
    values, _ = scalar_reference(Scalar("square", 3, 0.6, 0.02, 1.7))
    right = ridge_regression(3 * 0.6**2, 0.02, 1.7, 0.0)
    for name in ("q", "V", "theta", "test_error"):
        assert values[name] == pytest.approx(right[name] / 3, rel=1e-8)
    assert values["training_loss"] == pytest.approx(right["training_loss"], rel=1e-8)


@pytest.mark.parametrize("loss", ["huber", "logistic", "hinge"])
def test_the_envelopes_gradient_is_the_training_losss(loss):
    """Of a fixed point the training loss grows with λ by half the weights' squared norm, the envelope theorem."""
    step, ridge = 1e-3, 0.05
    low, high = (scalar_reference(Scalar(loss, 1, 0.8, ridge * (1 + sign * step), 2.6, 0.1))[0] for sign in (-1, 1))
    middle = scalar_reference(Scalar(loss, 1, 0.8, ridge, 2.6, 0.1))[0]
    slope = (high["training_loss"] - low["training_loss"]) / (2 * step * ridge)
    assert slope == pytest.approx(middle["q"] / 0.8**2 / 2, rel=1e-5)  # the differences' own error is of order step²


@pytest.mark.slow
def test_no_point_of_a_dense_net_is_lower_than_the_minimum():
    """Would catch a wrong gradient, and starts that miss minima: the net has 400 x 400 points a problem."""
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
        assert lowest[i] <= values.min()
        assert lowest[i] > values.min() - 0.01  # half a step off, at curvatures up to a hundred


def test_the_attention_program_makes_no_order_parameter_by_chance():
    """Would catch points without their mirror images: theta would grow from zero by the points' asymmetry."""
    problem = drawn()[0].independent
    assert isinstance(problem, Attention)
    x = np.array([np.log(0.3), np.log(8.0), 0.0])
    images = Map(problem, 2**8).images(x)
    np.testing.assert_allclose(images[:, 2], 0, atol=1e-12)
    assert images[1:, 0].std() > 1e-3


REFERENCE = Reference(
    {"q": 2.0, "V": 3.0, "m": [0.4, -0.4], "test_error": 0.1, "training_loss": 0.0},
    {"q": 3e-4, "V": 0.0, "m": [0.0, 0.0], "test_error": 1e-6, "training_loss": 0.0},
)


def made(**changes):
    """A point whose numbers are all right but for changes, with stated errors of 4e-4."""
    values = {"q": [[2.0], [2.0]], "V": 3.0, "m": [-0.4, 0.4], "test_error": 0.1, "training_loss": 0.0, **changes}
    return values, {name: np.full(np.shape(value), 4e-4) for name, value in values.items()}


def test_a_planted_wrong_number_of_one_token_is_counted():
    """Would catch means over tokens, a sign of m that counts, and errors that are added instead of their squares."""
    assert compare(*made(), REFERENCE) == Outcome("", dict.fromkeys(REFERENCE.values, 0.0), ("q",))
    # both errors together are 5e-4
    for off, wrong in ((0.9 * LARGEST * 5e-4, []), (1.1 * LARGEST * 5e-4, ["q"])):
        outcome = compare(*made(q=[[2.0], [2.0 + off]]), REFERENCE)
        assert outcome.wrong == wrong
        assert outcome.deviations["q"] == pytest.approx(off / 5e-4)
        assert summary([outcome])[1] is not bool(wrong)
    assert compare(*made(m=[0.4, 0.4]), REFERENCE).wrong == ["m"]
    assert compare(*made(V=np.nan), REFERENCE).wrong == ["V"]


def test_a_number_with_no_error_is_wrong_unless_it_is_equal():
    """Would catch 0/0 and x/0 that count as right: a merged point states no error of its order parameter."""
    values, errors = made(m=[0.0, 0.0])
    errors |= {"m": np.zeros(2)}
    assert compare(values, errors, REFERENCE).wrong == ["m"]
    nothing = Reference({"m": [0.0, 0.0]}, {"m": [0.0, 0.0]})
    assert compare(values, errors, nothing).wrong == []


def test_what_is_flagged_is_not_wrong_and_only_one_in_ten_may_be():
    """Would catch flags that are counted as failures of a number, and a test that flags pass."""
    values, errors = made(q=7.0)
    assert compare(values, errors, REFERENCE, "iteration_limit").wrong == []
    errors |= {"test_error": np.array(np.nan)}
    flagged = compare(values, errors, REFERENCE)
    assert flagged.flag == "test_error has no stated error"
    right = compare(*made(), REFERENCE)
    assert summary([flagged] + 9 * [right])[1]
    assert not summary(2 * [flagged] + 8 * [right])[1]


def test_the_saved_references_are_those_of_the_hundred():
    """Would catch a draw that has changed since, and quantities without a reference."""
    problems, references = drawn(), read()
    assert [problem.number for problem in problems] == list(range(100))
    assert references.keys() <= set(range(100))
    lengths = {(problem.loss, problem.independent.length) for problem in problems}
    assert lengths == {("attention", 2), ("attention", 3)} | {
        (loss, length) for loss in ("square", "huber", "logistic", "hinge") for length in (1, 2, 3)
    }
    for problem in (problems[number] for number in references):
        order = "m" if problem.branch == "positional" else "theta"
        assert {"q", "V", order, "training_loss", "test_error"} == references[problem.number].values.keys()
        assert 0.1 <= problem.independent.sigma <= 3
        assert 1e-4 <= problem.independent.ridge <= 1
        assert 0.3 <= problem.alpha <= 30
        one = problem.independent
        if isinstance(one, Scalar) and problem.loss == "square":
            length, variance = one.length, one.length * one.sigma**2
            right = ridge_regression(variance, one.ridge, one.alpha, one.noise)
            assert references[problem.number].values["q"] == pytest.approx(right["q"] / length, rel=1e-8)
