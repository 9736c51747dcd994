"""Minima of the local problem: stationary in the printed loss, and the lowest that fine grids or SciPy find.

Not public: see `local_problems`.
"""

import numpy as np
import pytest
from local_problems import Starts, drawn, minimised
from models import model
from scipy.optimize import minimize

import attnphase as ap
from attnphase.kernels.key import ModelKey
from attnphase.kernels.local.constants import MATCHED
from attnphase.kernels.local.values import Nodes
from attnphase.kernels.reference import printed_loss

SIGMA = {"tokens.sigma": [0.62, 0.47], "teacher.omega": 0.31}
PROBLEMS = {
    "paper": model("paper", SIGMA),
    "noisy labels": model("noisy", SIGMA),
    "untied": model("untied", SIGMA),
    "rank 2": model("rank 2", SIGMA),
    "three tokens": model("three tokens"),
    "linear": model("linear", SIGMA),
    "square": model("square"),
    "logistic": model("logistic"),
    "waves": model("terms", {"loss.parameters.square": 0.3, "loss.parameters.apart": 0.7}),
    "heads": model("heads", {"loss.parameters.located": 0.8}),
    "pinball": model("kinks", {"loss.parameters.hinge": 0.4, "loss.parameters.modulus": 0.3}),
    "one row is value": ap.Problem().with_fields({"loss.kind": "values", "loss.width": 1}),
    "causal, sigmoid": ap.Problem().with_fields({"student.causal": True, "student.score": "sigmoid"}),
    "untied, rank 2": ap.Problem().with_fields({"student.rank": 2, "teacher.rank": 2, "student.tied": False}),
}


class Energy:
    """Energies of nodes with the loss printed for NumPy."""

    def __init__(self, problem: ap.Problem, nodes: Nodes) -> None:
        self.printed, self.nodes = printed_loss(ModelKey.of(problem)), nodes
        self.inverse = np.linalg.inv(nodes.factor @ nodes.factor.mT)

    def at(self, h, which: slice | list[int] = slice(None)):
        """Energies (N,) and gradients (N, L, r) at fields, of some nodes."""
        centers, k, _, *shared, _, _ = self.nodes
        pull = np.einsum("lij,nlj->nli", self.inverse, h - centers[which])
        arguments = h, k[which], *shared
        energies = self.printed.losses(*arguments) + ((h - centers[which]) * pull).sum(axis=(1, 2)) / 2
        return energies, pull + self.printed.gradients(*arguments)


@pytest.mark.parametrize("variance", [1.0, 20.0])
@pytest.mark.parametrize("name", PROBLEMS)
def test_minima_are_stationary_in_the_printed_loss(name, variance):
    """Both minima of a node, from every kind of start, with the loss and the residual that belong to the lowest."""
    problem, count = PROBLEMS[name], 200
    nodes, known, several = drawn(problem, count, 1, variance, 1 + variance / 20), None, 0.0
    energy = Energy(problem, nodes)
    for starts in (Starts.COLD, Starts.FROM_ZERO, Starts.WARM, Starts.REFRESH):
        found = minimised(problem, nodes, starts, known)
        assert (found.flags >= 0).mean() > 0.99
        good = found.flags >= 0
        for which in (0, 1):
            energies, slopes = energy.at(found.minima[:, which])
            np.testing.assert_allclose(found.energies[:, which], energies, rtol=1e-10, atol=1e-10)
            if not problem.loss.form.has_kink:
                assert np.abs(slopes[good]).max() < 1e-8
        assert (found.energies[:, 0] <= found.energies[:, 1]).all()
        away = found.minima[:, 0] - nodes.centers
        pull = np.einsum("lij,nlj->nli", energy.inverse, away)
        np.testing.assert_allclose(found.residuals, pull, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(found.losses, found.energies[:, 0] - (pull * away).sum(axis=(1, 2)) / 2, atol=1e-10)
        if starts is Starts.COLD:
            known = found.minima
            several = (found.energies[:, 1] > found.energies[:, 0]).mean()
        nodes.centers[:] += 0.05  # the next ones begin at minima that are a little off
    assert several > 0.01 or variance == 1 or name not in ("paper", "untied", "linear", "three tokens")


def lowest_on_grids(energy, number, reach):
    """The lowest energy of a node on a fine grid, and then on finer ones about its lowest point."""
    center = energy.nodes.centers[number]
    middle, points, energies = 0 * center.ravel(), 4001 if center.size == 1 else 161, np.array(np.nan)
    for _ in range(9):
        axes = np.meshgrid(*[reach * np.linspace(-1, 1, points)] * center.size, indexing="ij")
        h = (middle + np.stack([axis.ravel() for axis in axes], axis=1)).reshape(-1, *center.shape)
        energies, _ = energy.at(h, np.full(len(h), number))
        middle = h[energies.argmin()].ravel()
        reach, points = 4 * reach / (points - 1), 17
    return energies.min()


@pytest.mark.parametrize("variance", [3.0, 40.0])
@pytest.mark.parametrize("name", ["paper", "linear", "square", "logistic", "waves", "pinball"])
def test_minima_are_the_lowest_on_a_fine_grid(name, variance):
    problem = PROBLEMS[name]
    nodes = drawn(problem, 12, 4, variance, 1.0)
    found, energy = minimised(problem, nodes, Starts.COLD), Energy(problem, nodes)
    for number, lowest in enumerate(found.energies[:, 0]):
        assert lowest == pytest.approx(lowest_on_grids(energy, number, 12.0), abs=1e-7)


@pytest.mark.parametrize("name", ["untied", "rank 2", "heads", "three tokens"])
def test_minima_are_the_lowest_that_scipy_finds_from_many_starts(name):
    problem, rng = PROBLEMS[name], np.random.default_rng(8)
    nodes = drawn(problem, 3, 4, 12.0, 1.0)
    found, energy = minimised(problem, nodes, Starts.COLD), Energy(problem, nodes)

    def at(x, number):
        energies, slopes = energy.at(x.reshape(1, *nodes.centers.shape[1:]), [number])
        return energies[0], slopes.ravel()

    for number, lowest in enumerate(found.energies[:, 0]):
        starts = rng.normal(scale=3.0, size=(16, nodes.centers[0].size))
        best = min(minimize(at, x, (number,), jac=True).fun for x in starts)
        assert lowest == pytest.approx(best, abs=1e-8)


@pytest.mark.parametrize("name", ["paper", "rank 2"])
def test_no_minimum_that_a_single_descent_finds_is_missed(name):
    """Nor is a descent stopped that only passes by a known minimum, which is near in u where V is huge.

    The starts are omega, the teacher's fields in the student's units with both signs, zero, and omega reflected, as a
    whole or one token alone.
    """
    problem = PROBLEMS[name]
    for scale, width in ((1000.0, 5.0), (300.0, 0.6)):
        nodes = drawn(problem, 1200, 7, scale, width)
        omega, lifted = nodes.centers, nodes.teacher_fields * nodes.parameters[MATCHED : MATCHED + problem.columns]
        reflected = [omega * np.array(sign)[:, None] for sign in ([-1.0, 1.0], [1.0, -1.0])]
        starts = omega, lifted, -lifted, 0 * omega, -omega, *reflected
        single = [minimised(problem, nodes, Starts.WARM, np.stack([x, x], axis=1)).energies[:, 0] for x in starts]
        found = minimised(problem, nodes, Starts.COLD).energies
        np.testing.assert_allclose(found[:, 0], np.min(single, axis=0), atol=1e-8)
        apart = np.ptp(single, axis=0) > 1e-6
        assert apart.sum() > 50
        assert (found[apart, 1] > found[apart, 0]).all()


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
    "planes from behind": (
        "relu(-h0_0 - h1_0) + 0.5*abs(h1_0 - h0_0 - k0_0) + 0.8*abs(h0_0 - h1_0) + (h0_0 - k1_0)**2/2",
        lambda a, b, k, l: np.maximum(-a - b, 0) + 0.5 * abs(b - a - k) + 0.8 * abs(a - b) + (a - l) ** 2 / 2,
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
def test_minima_that_kinks_hold_are_the_lowest_on_a_grid(name, scale):
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
