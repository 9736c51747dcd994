"""Losses with kinks: lowest minima against grids, and slopes in trained parameters against differences of energies.

Not public: a wrong minimum of a few nodes is within the error of any result.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attnphase as ap
from attnphase.integration.rules import sobol
from attnphase.kernels.local.constants import Starts
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.proximal import lower_factors
from attnphase.state_evolution.system import System


def of_formula(formula: str, length: int = 1, rank: int = 1, **loss: Any) -> ap.Problem:
    return ap.Problem.from_dict(
        {
            "tokens": {"length": length, "sigma": 1.0},
            "positions": {"kind": "none"},
            "student": {"rank": rank},
            "teacher": {"rank": rank},
            "regularizer": {"strength": 0.1},
            "loss": {"kind": "expression", "expression": formula, **loss},
        }
    )


def minimised(formula: str, V: Any, length: int = 1, rank: int = 1, count: int = 24) -> tuple[Any, ...]:
    """Centres, teacher's fields, residuals and minima of nodes, each (N, length, rank)."""
    omega, k = np.random.default_rng(2).normal(0.2, 1.5, (2, 1, 1, 4, count, length, rank))
    variances = np.broadcast_to(np.asarray(V, dtype=float), (length, rank, rank)).copy()
    channel = Channel(System.of(of_formula(formula, length, rank)), sobol(2 * length * rank, 1, False, count, 4, 5))
    found, minima = channel.proximal.minimise(omega, k, variances, ((0, 1),), Starts.COLD, None)
    assert (minima.steps >= 0).all()
    return tuple(x.reshape(-1, length, rank) for x in (omega, k, found.residual, minima.fields[:, 0]))


def flat(h: Any, k: Any) -> Any:
    return np.minimum(abs(h**2 - k - 1), 2) + 0.4 * np.minimum(abs(h - k + 0.3), 0.6)


ONE_FIELD: dict[str, Callable[[Any, Any], Any]] = {
    "max(0, 1 - h*sign(k))": lambda h, k: np.maximum(0, 1 - h * np.sign(k)),
    "abs(abs(h) - abs(k))": lambda h, k: np.abs(np.abs(h) - np.abs(k)),
    "abs(h**2 - k**2)/2": lambda h, k: np.abs(h**2 - k**2) / 2,
    "relu(h - k) + 0.3*relu(k - h) + h**2/8": lambda h, k: np.maximum(h - k, 0.3 * (k - h)) + h**2 / 8,
    "min(abs(h**2 - k - 1), 2) + 0.4*min(abs(h - k + 0.3), 0.6)": flat,
}


@pytest.mark.parametrize("V", [0.3, 9.0])
@pytest.mark.parametrize("formula", ONE_FIELD)
def test_lowest_minima_of_one_field_are_those_of_a_grid(formula: str, V: float) -> None:
    """Where the loss flattens away from its kinks no slope leads to them."""
    omega, k, residual, h = (x[:, 0] for x in minimised(formula, V))
    loss, grid = ONE_FIELD[formula], np.linspace(-9, 9, 36001)
    best = ((grid - omega) ** 2 / (2 * V) + loss(grid, k)).min(axis=-1, keepdims=True)
    own = (h - omega) ** 2 / (2 * V) + loss(h, k)
    np.testing.assert_array_less(own, best + 1e-9)
    np.testing.assert_allclose(own, best, atol=5e-3)  # a step of the grid is 5e-4, times slopes up to ten
    np.testing.assert_allclose(residual, (h - omega) / V, atol=1e-8)


def share(first: Any, second: Any) -> Any:
    return 1 / (1 + np.exp(second - first))


# of two tokens, and of two columns if the last entry says so
TWO_FIELDS: list[tuple[str, Callable[..., Any], bool]] = [
    (
        "relu(1 - sign(k0_0 + k1_0)*(h0_0 + h1_0))",
        lambda a, b, k, l: np.maximum(0, 1 - np.sign(k + l) * (a + b)),
        False,
    ),
    (
        "max(0.9*(k0_0 - h0_0), 0.1*(h0_0 - k0_0)) + 0.5*abs(h0_0 - 2*h1_0 + k1_0) + 0.2*abs(h1_0 + h0_0)",
        lambda a, b, k, l: np.maximum(0.9 * (k - a), 0.1 * (a - k)) + abs(a - 2 * b + l) / 2 + abs(a + b) / 5,
        True,
    ),
    (
        "3*abs(exp(h0_0)/(exp(h0_0) + exp(h1_0)) - exp(k0_0)/(exp(k0_0) + exp(k1_0)))",
        lambda a, b, k, l: 3 * abs(share(a, b) - share(k, l)),
        False,
    ),
    ("abs(h0_0*h1_0 - k0_0*k1_0)", lambda a, b, k, l: abs(a * b - k * l), True),
]


@pytest.mark.parametrize(("formula", "loss", "are_columns"), TWO_FIELDS, ids=[row[0] for row in TWO_FIELDS])
def test_lowest_minima_of_two_fields_are_those_of_a_grid(
    formula: str, loss: Callable[..., Any], are_columns: bool
) -> None:
    """Of two tokens, or of two columns, whose variances are correlated."""
    text = re.sub(r"([hk])1_0", r"\g<1>0_1", formula) if are_columns else formula
    V = np.array([[1.7, 0.8], [0.8, 0.9]]) if are_columns else np.diag([1.3, 1.3])
    sizes = {"length": 1, "rank": 2} if are_columns else {"length": 2, "rank": 1}
    found = minimised(text, V if are_columns else V[:1, :1], count=4, **sizes)
    omega, k, g, h = (each.reshape(-1, 2) for each in found)
    np.testing.assert_allclose(g @ V, h - omega, atol=1e-9)

    def energy(fields: Any, at: int) -> Any:
        apart = fields - omega[at]
        return np.einsum("...a,ab,...b", apart, np.linalg.inv(V), apart) / 2 + loss(*np.moveaxis(fields, -1, 0), *k[at])

    grid = np.stack(np.meshgrid(*[np.linspace(-7, 7, 281)] * 2), axis=-1)
    near = np.random.default_rng(4).normal(size=(500, 2)) * np.geomspace(1e-5, 1, 500)[:, None]
    for at in range(len(h)):
        own = energy(h[at], at)
        assert own <= energy(grid, at).min() + 1e-9
        assert own <= energy(h[at] + near, at).min() + 1e-11


def test_steps_follow_a_kink_that_is_curved() -> None:
    """Wide minima on a quadric: all are found, though a step along the kink leaves it."""
    V = np.array([[20.0, 12.0], [12.0, 15.0]])
    omega, k, residual, h = minimised("abs(h0_0*h1_0 + h0_1*h1_1 - k0_0*k1_0)", V, length=2, rank=2, count=16)
    np.testing.assert_allclose(omega + residual @ V, h, atol=1e-9)
    level = (h[:, 0] * h[:, 1]).sum(axis=-1) - k[:, 0, 0] * k[:, 1, 0]
    assert np.median(abs(level)) < 1e-9


ROUGH = {  # formula: has the gradient a kink in h, and is no tensor rule taken across
    "abs(h - 2*k)": (True, True),
    "sqrt((h - k)**2)": (True, True),
    "relu(1 - h*sign(k))**2": (False, True),
    "min(abs(h - k), 1)**2/2 + relu(abs(h - k) - 1)": (False, False),  # Huber's
    "min(abs(h - k), 1)**2/2 + relu(abs(h - k) - 2)": (True, True),
    "(h - k)*abs(h - k) + h**4": (False, False),
    "(h - abs(k))**2 + max(k, 0)": (False, True),
    "softplus(-sign(k)*h)": (False, True),
    "exp(h) - k*h": (False, False),
}


@pytest.mark.parametrize("formula", ROUGH)
def test_kinks_of_a_formula_are_known(formula: str) -> None:
    """A tensor rule's orders agree before they are right, where a kink lies in the tail."""
    form = of_formula(formula).loss.form
    assert (form.has_kink, form.is_rough) == ROUGH[formula]


def slopes_of(formula: str, numbers: dict[str, float], V: Any, length: int = 1, rank: int = 1, Q: float | None = None):
    """Cavity fields, labels, where to begin, and a function of what is trained: energies, slopes and curvatures."""
    omega, k = np.random.default_rng(2).normal(0.2, 1.5, (2, 24, length, rank))
    variances = np.broadcast_to(np.asarray(V, dtype=float), (length, rank, rank)).copy()
    problem = of_formula(formula, length, rank, parameters=numbers, trained=dict.fromkeys(numbers, "0"))

    def at(trained: Any) -> tuple[Any, Any, Any]:
        channel = Channel(System.of(problem).at(trained), sobol(2 * length * rank, 1, False, len(omega), 1, 5))
        nodes = omega[None, None, None], k[None, None, None], variances, ((0, 1),)
        found, minima = channel.proximal.minimise(*nodes, Starts.COLD, None)
        assert (minima.steps >= 0).all()
        fields = minima.fields[:, 0]
        slopes = channel.proximal.trained_slopes_of(0, omega, k, lower_factors(variances), fields)
        return found.envelope.ravel(), *slopes

    return omega.ravel(), k.ravel(), np.array([*numbers.values(), *([] if Q is None else [Q])]), at


def test_the_slope_on_a_kink_is_that_of_the_minimised_loss() -> None:
    """Of ``a (h - 1)^2 / 2 + w |h - k - 2 b|``: not that of the step from the cavity field, which a has a part in."""
    V, (a, w, b) = 0.8, (0.7, 1.3, 0.3)
    omega, k, begin, at = slopes_of(f"{a}*(h - 1)**2/2 + {w}*abs(h - k - 2*b)", {"b": b}, V)
    _, slopes, curvatures = at(begin)

    def minimised_loss(b: float) -> Any:
        width = V / (1 + a * V)
        h = width * (omega / V + a)  # without the modulus
        away = h - k - 2 * b
        h = k + 2 * b + np.sign(away) * np.maximum(np.abs(away) - w * width, 0)
        return (h - omega) ** 2 / (2 * V) + a * (h - 1) ** 2 / 2 + w * np.abs(h - k - 2 * b)

    wanted = (minimised_loss(b + 1e-5) - minimised_loss(b - 1e-5)) / 2e-5
    np.testing.assert_allclose(slopes[:, 0], wanted, atol=1e-8)
    on = np.abs(wanted) < 2 * w - 1e-6
    assert 3 <= on.sum() <= len(on) - 3
    # on the kink h = k + 2 b, of which the energy has this second derivative in b
    np.testing.assert_allclose(curvatures[:, 0, 0], np.where(on, 4 * (1 / V + a), 0.0), atol=1e-8)


@pytest.mark.parametrize(
    ("formula", "numbers", "V", "sizes"),
    [
        ("max(0.9*(k - h - b), 0.1*(h + b - k)) + 0.3*(k - h - b)**2", {"b": 0.3}, 2.0, {}),
        ("(relu(a*h - b) - k)**2/2", {"a": 1.2, "b": 0.3}, 2.0, {}),
        ("a*abs(h - k - b*Q) + Q*h**2/5", {"a": 0.8, "b": 0.3}, 1.5, {"Q": 1.1}),
        ("w*abs(h0_0*h1_0 - b*k0_0) + 0.4*abs(h0_0 - h1_0 + a)", {"w": 1.0, "a": 0.2, "b": 0.7}, 1.3, {"length": 2}),
        ("abs(h0_0*h0_1 - b*k0_0) + relu(h0_1 - a*k0_1)", {"a": 0.6, "b": 0.7}, [[1.7, 0.8], [0.8, 0.9]], {"rank": 2}),
        ("log(1 + exp(-sign(k)*(a*h + b)))", {"a": 0.8, "b": 0.3}, 2.0, {}),  # without a kink
    ],
)
def test_derivatives_are_those_of_minimised_losses(formula: str, numbers: dict[str, float], V: Any, sizes: Any) -> None:
    """By central differences of the lowest energies, and of their slopes; one or two kinks hold, or none."""
    _, _, begin, at = slopes_of(formula, numbers, V, **sizes)
    _, slopes, curvatures = at(begin)
    step, free = 1e-4, len(numbers)
    for place, one in enumerate(step * np.eye(len(begin))):
        (high, above, _), (low, below, _) = at(begin + one), at(begin - one)
        np.testing.assert_allclose(slopes[:, place], (high - low) / (2 * step), atol=1e-6)
        if place < free:  # of Q they are those at fixed fields
            followed = (above - below) / (2 * step)
            np.testing.assert_allclose(curvatures[:, place, :free], followed[:, :free], atol=2e-6)


@pytest.mark.parametrize(
    ("text", "node", "name"),
    [("softplus(-sign(a*k - b)*h)", "sign(a*k0_0 - b)", "b"), ("(h - k)**2 + b*sign(Q - a)", "sign(Q0_0 - a)", "Q0_0")],
)
def test_a_jump_in_what_is_trained_is_refused(text: str, node: str, name: str) -> None:
    with pytest.raises(ap.errors.ProblemError, match=re.escape(f"takes {node}, which jumps in {name}, and")):
        of_formula(text, parameters={"a": 0.7, "b": 0.3}, trained={"b": "b**2"})
