"""Minima of losses with several kinks that hold a point at once are the lowest on a grid.

Not public: see `local_problems`.
"""

import numpy as np
import pytest
from local_problems import Starts, drawn, minimised

import attnphase as ap

LOSSES = {
    "planes that cross": (
        "abs(h0_0 - k0_0) + 0.7*abs(h1_0 + 0.5*h0_0 - k1_0) + 0.4*abs(h0_0 - h1_0) + (h0_0 + h1_0)**4/40",
        lambda a, b, k, l: abs(a - k) + 0.7 * abs(b + 0.5 * a - l) + 0.4 * abs(a - b) + (a + b) ** 4 / 40,
    ),
    "one plane twice": (
        "abs(h0_0 - k0_0) + 0.3*abs(2*h0_0 - 2*k0_0) + 0.8*abs(h1_0 - 0.2)",
        lambda a, b, k, l: 1.6 * abs(a - k) + 0.8 * abs(b - 0.2),
    ),
    "curved kinks": (
        "2*abs(h0_0*h1_0 - k0_0) + 0.6*relu(h0_0**2 - k1_0) + 1.5*cos(h0_0 - h1_0)",
        lambda a, b, k, l: 2 * abs(a * b - k) + 0.6 * np.maximum(a**2 - l, 0) + 1.5 * np.cos(a - b),
    ),
    "four planes": (
        "abs(h0_0 - k0_0) + 0.7*abs(h1_0 - k1_0) + 0.6*abs(h0_0 - h1_0) + 0.5*abs(h0_0 + h1_0)"
        " + 0.3/(1 + (h0_0 + h1_0)**2)",
        lambda a, b, k, l: (
            abs(a - k) + 0.7 * abs(b - l) + 0.6 * abs(a - b) + 0.5 * abs(a + b) + 0.3 / (1 + (a + b) ** 2)
        ),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("scale", [0.8, 6.0, 15.0])
def test_minima_that_kinks_hold_are_the_lowest_on_a_grid(name, scale, uncompiled):
    """Curvature is added across the kinks that hold a point, and no descent ends before its gradient vanishes."""
    text, loss = LOSSES[name]
    problem = ap.Problem().with_fields(
        {"tokens.length": 2, "positions.kind": "none", "loss.kind": "expression", "loss.expression": text}
    )
    nodes = drawn(problem, 16, 5, scale, 1.0)
    found, V = minimised(problem, nodes, Starts.COLD), nodes.factor[:, 0, 0] ** 2
    assert (found.flags >= 0).all()
    for number, energy in enumerate(found.energies[:, 0]):
        omega, labels = nodes.centers[number, :, 0], nodes.teacher_fields[number, :, 0]

        def at(h, omega=omega, labels=labels):
            return sum((x - w) ** 2 / (2 * v) for x, w, v in zip(h, omega, V, strict=True)) + loss(*h, *labels)

        middle, reach, energies = np.zeros(2), 8.0, np.array(np.nan)
        for points in (641, *[41] * 12):
            h = np.meshgrid(*(reach * np.linspace(-1, 1, points) + x for x in middle), indexing="ij")
            energies = at(h)
            middle, reach = np.array([x.flat[energies.argmin()] for x in h]), 0.4 * reach
        assert energy == pytest.approx(at(found.minima[number, 0, :, 0]), abs=1e-11)
        assert energy < energies.min() + 1e-8
