"""Formulas with definitions that take each other often: three models of the literature, and what is refused."""

from typing import Any

import numpy as np
import pytest
from sympy import Function, Symbol

from derivations.algebra.common_parts import Slopes
from derivations.codegen.local_problem import local_problem_source
from derivations.models.formulas import FormulaError
from derivations.models.noise import is_quadratic
from derivations.models.scalar import ScalarModel, formula_loss

TWO_LAYERS = """
first = 0.8*eye(L) + softmax(h[:, 0:1] @ h[:, 0:1].T)
u = first @ h[:, 1:2]
teacher = 0.8*eye(L) + softmax(k[:, 0:1] @ k[:, 0:1].T)
v = teacher @ k[:, 1:2]
output = (0.8*eye(L) + softmax(u @ u.T)) @ first
sum((output - (0.8*eye(L) + softmax(v @ v.T)) @ teacher)**2)/8
"""

THREE_LAYERS = """
first = 0.8*eye(L) + softmax(h[:, :1] @ h[:, :1].T)
u = first @ h[:, 1:2]
second = (0.8*eye(L) + softmax(u @ u.T)) @ first
v = second @ h[:, 2:]
given = 0.8*eye(L) + softmax(k[:, :1] @ k[:, :1].T)
x = given @ k[:, 1:2]
taught = (0.8*eye(L) + softmax(x @ x.T)) @ given
y = taught @ k[:, 2:]
sum(((0.8*eye(L) + softmax(v @ v.T)) @ second - (0.8*eye(L) + softmax(y @ y.T)) @ taught)**2)/8
"""

ROTARY = """
along = [1, cos(0.9), cos(1.8)]
across = [0, sin(0.9), sin(1.8)]
a = [along*h[:, 0] + across*h[:, 1], along*h[:, 1] - across*h[:, 0]]
b = [along*k[:, 0] + across*k[:, 1], along*k[:, 1] - across*k[:, 0]]
student = softmax(a.T @ a, causal=True)
label = softmax(b.T @ b, causal=True)
-label[1, :2] @ log(student[1, :2]) - label[2] @ log(student[2])
"""


def softmax(x: Any) -> Any:
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def layers(h: Any, k: Any) -> float:
    def output(w: Any) -> Any:
        sequence = np.eye(2)
        for column in w.T:
            u = sequence @ column
            sequence = (0.8 * np.eye(2) + softmax(np.outer(u, u))) @ sequence
        return sequence

    return ((output(h) - output(k)) ** 2).sum() / 8


def rotary(h: Any, k: Any) -> float:
    def attention(w: Any, row: int) -> Any:
        def rotated(token: int) -> Any:
            angle = 0.9 * (row - token)
            return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) @ w[token]

        return softmax(np.array([w[row] @ rotated(token) for token in range(row + 1)]))

    return -sum(float(attention(k, row) @ np.log(attention(h, row))) for row in (1, 2))


@pytest.mark.parametrize(
    ("text", "function", "length", "rank"),
    [(TWO_LAYERS, layers, 2, 2), (THREE_LAYERS, layers, 2, 3), (ROTARY, rotary, 3, 2)],
    ids=["two layers", "three layers", "rotary"],
)
def test_loss_and_derivatives_are_those_of_the_model(text, function, length, rank):
    module: dict[str, Any] = {}
    exec(local_problem_source(formula_loss(text, length, rank, rank), "numpy"), module)
    rng, size = np.random.default_rng(11), rank * length
    h, k = rng.normal(0.1, 0.9, (2, length, rank))
    numbers = np.zeros(length), np.ones(8)

    def derivatives(fields: Any) -> tuple[float, Any, Any]:
        slope, curvature = np.zeros((length, rank)), np.zeros((size, size))
        value = module["loss_derivatives"](fields, k, *numbers, slope, curvature, np.zeros(size))
        return float(value), slope.ravel(), curvature

    value, slope, curvature = derivatives(h)
    assert value == pytest.approx(function(h, k), rel=1e-12)
    steps = 1e-5 * np.eye(size).reshape(size, length, rank)
    differences = [(function(h + step, k) - function(h - step, k)) / 2e-5 for step in steps]
    np.testing.assert_allclose(slope, differences, atol=1e-8)
    differences = [(derivatives(h + step)[1] - derivatives(h - step)[1]) / 2e-5 for step in steps]
    np.testing.assert_allclose(curvature, differences, atol=1e-8)


class Counted(Function):
    """A function that counts how often it is differentiated."""

    times = 0

    def fdiff(self, argindex: int = 1) -> Any:
        type(self).times += 1
        argument: Any = self.args[0]
        return Counted(2 * argument)


def test_each_part_is_differentiated_once():
    """Written out, the last of these has 4095 calls of the function, and its second derivative many more."""
    x = Symbol("x", real=True)
    part: Any = x
    for _ in range(12):
        part = part * Counted(part)
    slope = Slopes(x)
    assert slope(slope(part)) != 0
    assert Counted.times <= 24


def nested(line: str, lines: int, first: str = "h[0, 0] + k[0, 0]") -> str:
    definitions = [f"a{n + 1} = {line.format(f'a{n}')}" for n in range(lines)]
    return "\n".join([f"a0 = {first}", *definitions, f"sum((a{lines} - k[0, 0])**2)"])


HOSTILE = {
    "matrices": nested("{0} @ {0}", 40, "h @ h.T"),
    "powers": nested("(1 + {0})**9*{0}", 40),
    "kinks": nested("relu({0})*exp(relu({0})) + 1", 4),
    "largest": nested("max({0}, 1 - {0}*{0})", 12),
}


def read(text: str) -> ScalarModel:
    """The model of a formula, which it reads when it is asked for its loss."""
    model = formula_loss(text, 2, 2, 2)
    _ = model.has_kink
    return model


@pytest.mark.parametrize("name", HOSTILE)
def test_what_grows_with_every_line_is_refused(name):
    with pytest.raises(FormulaError, match=r"^it is too intricate: .* nest less\.$"):
        read(HOSTILE[name])


def test_definitions_may_not_nest_as_deep_as_no_line_may():
    """Each takes the one before: Python cannot walk through as many functions of functions."""
    with pytest.raises(FormulaError, match="nested more than 200 levels deep"):
        read(nested("tanh({0} + 1)", 300, "k[0, 0]") + " + h[0, 0]**2")
    long = nested("0.9*{0} + " + " + ".join(["k[1, 0]"] * 30), 20, "k[0, 0]")  # a sum of a sum is one level
    for text in (nested("tanh({0} + 1)", 95, "k[0, 0]"), long):
        assert not read(text + " + h[0, 0]**2").has_kink


def test_nested_noise_is_differentiated_by_its_parts():
    """Its second derivatives, written out, have some hundred thousand terms."""
    text = nested("{0}*exp({0})", 9, "noise[0, 0]/9") + " + h[0, 0]**2"
    assert not is_quadratic(formula_loss(text, 2, 2, 2, noisy=True))
