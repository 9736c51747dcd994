"""Minima of losses with several kinks that hold a point at once, and how they move with trained parameters.

Not public: see `local_problems`; second derivatives in trained parameters decide how a solve converges, not where.
"""

import numpy as np
import pytest
from local_problems import Starts, drawn, empty
from scipy.optimize import minimize

import attnphase as ap
from attnphase.kernels.compiler import kernels_for, trained_slopes_for


def of_formula(text, **fields):
    return ap.Problem().with_fields(
        {"tokens.length": 2, "positions.kind": "none", "loss.kind": "expression", "loss.expression": text, **fields}
    )


# the convex ones as weights and arguments of moduli, and a smooth rest, of the fields a, b and the labels k, l
CONVEX = {
    "planes that cross": (
        "abs(h0_0 - k0_0) + 0.7*abs(h1_0 + 0.5*h0_0 - k1_0) + 0.4*abs(h0_0 - h1_0) + (h0_0 + h1_0)**4/40",
        lambda a, b, k, l: [(1.0, a - k), (0.7, b + 0.5 * a - l), (0.4, a - b)],
        lambda a, b: (a + b) ** 4 / 40,
    ),
    "one plane twice": (
        "abs(h0_0 - k0_0) + 0.3*abs(2*h0_0 - 2*k0_0) + 0.8*abs(h1_0 - 0.2)",
        lambda a, b, k, l: [(1.6, a - k), (0.8, b - 0.2)],
        lambda a, b: 0.0,
    ),
}


def searched(problem, nodes):
    found = empty(nodes)
    kernels_for(problem).minimise(nodes, Starts.COLD, found)
    return found


def lowest_by_bounds(omega, k, V, moduli, rest):
    """The energy that SciPy finds with bounds of the moduli under linear constraints."""

    def margin(x, j, sign):
        return x[2 + j] - sign * moduli(*x[:2], *k)[j][1]

    def energy(x):
        weights = [weight for weight, _ in moduli(*x[:2], *k)]
        return ((x[:2] - omega) ** 2 / V).sum() / 2 + rest(*x[:2]) + np.dot(weights, x[2:])

    start = [*omega, *(abs(argument) for _, argument in moduli(*omega, *k))]
    places = [(j, sign) for j in range(len(start) - 2) for sign in (1, -1)]
    bounds = [{"type": "ineq", "fun": margin, "args": place} for place in places]
    return minimize(energy, start, constraints=bounds, method="SLSQP", options={"ftol": 1e-14, "maxiter": 500}).fun


@pytest.mark.parametrize("name", CONVEX)
@pytest.mark.parametrize("scale", [0.8, 15.0])
def test_several_kinks_hold_a_minimum(name, scale, uncompiled):
    text, moduli, rest = CONVEX[name]
    nodes = drawn(of_formula(text), 16, 3, scale, 1.5)
    found, V, held = searched(of_formula(text), nodes), nodes.factor[:, 0, 0] ** 2, 0
    assert (found.flags >= 0).all()
    for number, energy in enumerate(found.energies[:, 0]):
        omega, k, h = nodes.centers[number, :, 0], nodes.teacher_fields[number, :, 0], found.minima[number, 0, :, 0]
        own = ((h - omega) ** 2 / V).sum() / 2 + rest(*h) + sum(w * abs(c) for w, c in moduli(*h, *k))
        assert energy == pytest.approx(own, abs=1e-11)
        assert energy == pytest.approx(lowest_by_bounds(omega, k, V, moduli, rest), abs=1e-7)
        held += sum(abs(c) < 1e-9 for _, c in moduli(*h, *k)) > 1
    assert held > 2


BENT = {
    "curved kinks": (
        "2*abs(h0_0*h1_0 - k0_0) + 0.6*relu(h0_0**2 - k1_0) + 1.5*cos(h0_0 - h1_0)",
        lambda a, b, k, l: 2 * abs(a * b - k) + 0.6 * np.maximum(a**2 - l, 0) + 1.5 * np.cos(a - b),
    ),
    "four planes": (
        "abs(h0_0 - k0_0) + 0.7*abs(h1_0 + 0.5*h0_0 - k1_0) + 0.6*abs(h0_0 - h1_0) + 0.5*abs(h0_0 + h1_0)"
        " - 0.3*(h0_0 + h1_0)**2/(1 + (h0_0 + h1_0)**2)",
        lambda a, b, k, l: (
            abs(a - k)
            + 0.7 * abs(b + 0.5 * a - l)
            + 0.6 * abs(a - b)
            + 0.5 * abs(a + b)
            + 0.3 / (1 + (a + b) ** 2)
            - 0.3
        ),
    ),
}


@pytest.mark.parametrize("name", BENT)
@pytest.mark.parametrize("scale", [6.0, 15.0])
def test_minima_at_kinks_of_losses_that_are_not_convex_are_the_lowest_on_a_grid(name, scale, uncompiled):
    """Curvature is added across the kinks that hold a point, and no descent ends before its gradient vanishes."""
    text, loss = BENT[name]
    nodes = drawn(of_formula(text), 16, 5, scale, 1.0)
    found, V = searched(of_formula(text), nodes), nodes.factor[:, 0, 0] ** 2
    assert (found.flags >= 0).all()
    for number, energy in enumerate(found.energies[:, 0]):
        omega, labels = nodes.centers[number, :, 0], nodes.teacher_fields[number, :, 0]

        def at(h, omega=omega, labels=labels):
            return sum((x - w) ** 2 / (2 * v) for x, w, v in zip(h, omega, V, strict=True)) + loss(*h, *labels)

        middle, reach = np.zeros(2), 8.0
        for points in (641, *[41] * 12):
            h = np.meshgrid(*(reach * np.linspace(-1, 1, points) + x for x in middle), indexing="ij")
            energies = at(h)
            middle, reach = np.array([x.flat[energies.argmin()] for x in h]), 0.4 * reach
        assert energy == pytest.approx(at(found.minima[number, 0, :, 0]), abs=1e-11)
        assert energy < energies.min() + 1e-8


def test_second_derivatives_follow_all_kinks_that_hold_a_minimum(uncompiled):
    """In trained parameters b and a, which move two kinks whose normals are not orthogonal: differences of slopes."""
    text = "abs(h0_0 - b*k0_0) + 0.9*abs(h1_0 + 0.8*h0_0 - a) + 0.2*(h0_0 - h1_0)**2*b"
    trained = {"loss.parameters": {"b": 0.6, "a": 0.3}, "loss.trained": {"b": "b**2", "a": "a**2"}}

    def derivatives(b, a):
        problem = of_formula(text, **trained).with_fields({"loss.parameters.b": b, "loss.parameters.a": a})
        nodes = drawn(problem, 12, 3, 20.0, 0.5)
        found, slopes, curvatures = searched(problem, nodes), np.empty((12, 2)), np.empty((12, 2, 2))
        trained_slopes_for(problem)(nodes, np.ascontiguousarray(found.minima[:, 0]), 2, slopes, curvatures)
        return found, slopes, curvatures

    step = 1e-5
    found, _, curvatures = derivatives(0.6, 0.3)
    kinks = (
        found.minima[:, 0, 0, 0] - 0.6 * drawn(of_formula(text, **trained), 12, 3, 20.0, 0.5).teacher_fields[:, 0, 0]
    )
    both = (abs(kinks) < 1e-9) & (abs(found.minima[:, 0, 1, 0] + 0.8 * found.minima[:, 0, 0, 0] - 0.3) < 1e-9)
    assert both.sum() > 2
    for place, ends in enumerate((((0.6 + step, 0.3), (0.6 - step, 0.3)), ((0.6, 0.3 + step), (0.6, 0.3 - step)))):
        above, below = (derivatives(*end)[1] for end in ends)
        np.testing.assert_allclose(curvatures[both, place], (above - below)[both] / (2 * step), atol=1e-6)
