"""Minima of the compiled kernel: stationary in the printed loss, the lowest there are, jumping where basins cross."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from attnphase.arrays import Array
from attnphase.kernels.compiler import kernels_for
from attnphase.kernels.key import model_numbers
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.local.values import Nodes, Solution
from attnphase.kernels.reference import reference_backend
from attnphase.problem.problem import Problem
from attnphase.spectrum.measure import Spectrum

PAPER = Problem.paper(omega=0.31).with_fields({"tokens.sigma": [0.62, 0.47]})
ONE_TOKEN = {"tokens.length": 1, "tokens.sigma": 0.55, "teacher.mixing": None, "positions.kind": "none"}
CASES = {
    "paper": PAPER,
    "untied": PAPER.with_fields({"student.tied": False}),
    "rank 2": PAPER.with_fields({"student.rank": 2}),
    "linear": PAPER.with_fields({"student.score": "linear", "teacher.score": "linear"}),
    "square": Problem().with_fields({**ONE_TOKEN, "loss.kind": "square"}),
    "logistic": Problem().with_fields({**ONE_TOKEN, "loss.kind": "logistic"}),
}
SLOW_CASES = {
    "three tokens": Problem().with_fields({"tokens.length": 3}),
    "ranks 2": PAPER.with_fields({"student.rank": 2, "teacher.rank": 2}),
    "untied ranks 2": PAPER.with_fields({"student.rank": 2, "teacher.rank": 2, "student.tied": False}),
    "causal": PAPER.with_fields({"student.causal": True, "teacher.causal": True}),
    "sigmoid": PAPER.with_fields({"student.score": "sigmoid"}),
    "values": Problem().with_fields({"loss.kind": "values", "loss.width": 1}),
}


@dataclass
class Fields:
    """Random fields of a problem, and the factor of a V."""

    problem: Problem
    centers: Array
    k: Array
    factor: Array

    @classmethod
    def drawn(cls, problem: Problem, count: int, seed: int, spread: float, variance: float) -> Fields:
        rng, length, columns = np.random.default_rng(seed), problem.tokens.length, problem.columns
        centers = spread * rng.normal(size=(count, length, columns))
        k = rng.normal(size=(count, length, problem.teacher_columns))
        root = rng.normal(size=(length, columns, columns))
        V = variance * (root @ root.mT / columns + 0.1 * np.eye(columns))
        return cls(problem, centers, k, np.linalg.cholesky(V).astype(float))

    @property
    def nodes(self) -> Nodes:
        mixing = np.ascontiguousarray(self.problem.mixing_matrix, dtype=float)
        variance = np.ascontiguousarray(Spectrum.of(self.problem).site_variances[: self.centers.shape[1]])
        return Nodes(self.centers, self.k, self.factor, mixing, model_numbers(self.problem), variance)

    def minimised(self, starts: Starts, previous: tuple[Array, Array] | None = None) -> Solution:
        """From starts that need them, by ``previous`` minima and energies."""
        count = len(self.centers)
        minima, energies = np.zeros((count, 2, *self.centers.shape[1:])), np.zeros((count, 2))
        if previous is not None:
            minima[:], energies[:] = previous
        flags = np.zeros(count, dtype=np.int64)
        solution = Solution(minima, energies, np.zeros(count), np.zeros(self.centers.shape), flags)
        kernels_for(self.problem).minimise(self.nodes, starts, solution)
        return solution

    def pulled(self, h: Array) -> tuple[Array, Array]:
        """Energies at fields h, with losses by NumPy, and their gradients ``V^-1 (h - omega) + dloss/dh``."""
        _, k, factor, mixing, numbers, variance = self.nodes
        printed, arguments = reference_backend(self.problem, "numpy"), (h, k, mixing, numbers, variance)
        u = np.linalg.solve(factor, (h - self.centers)[..., None])
        pull = np.linalg.solve(factor.mT, u)[..., 0]
        energies = printed.losses(*arguments) + (u**2).sum(axis=(1, 2, 3)) / 2
        return energies, pull + printed.gradients(*arguments)


@pytest.mark.parametrize("variance", [1.0, 20.0])
@pytest.mark.parametrize(
    "problem",
    [
        *(pytest.param(problem, id=name) for name, problem in CASES.items()),
        *(pytest.param(problem, id=name, marks=pytest.mark.slow) for name, problem in SLOW_CASES.items()),
    ],
)
def test_minima_are_stationary_in_the_printed_loss(problem, variance):
    """Both minima of a node, from every kind of start, with the loss and the residual that belong to the lowest."""
    fields = Fields.drawn(problem, 300, 1, 1 + variance / 20, variance)
    known = None
    for starts in (Starts.COLD, Starts.FROM_ZERO, Starts.WARM, Starts.REFRESH):
        found = fields.minimised(starts, known if starts.follow else None)
        good = found.flags >= 0
        assert good.mean() > 0.99
        for which in (0, 1):
            energies, slopes = fields.pulled(found.minima[:, which])
            np.testing.assert_allclose(found.energies[:, which], energies, rtol=1e-10, atol=1e-10)
            assert np.abs(slopes[good]).max() < 1e-8
        assert (found.energies[:, 0] <= found.energies[:, 1]).all()
        lowest = found.minima[:, 0]
        pull = np.linalg.solve(fields.factor @ fields.factor.mT, (lowest - fields.centers)[..., None])[..., 0]
        np.testing.assert_allclose(found.residuals, pull, rtol=1e-8, atol=1e-8)
        u = np.linalg.solve(fields.factor, (lowest - fields.centers)[..., None])
        np.testing.assert_allclose(found.losses, found.energies[:, 0] - (u**2).sum(axis=(1, 2, 3)) / 2, atol=1e-10)
        if starts == Starts.COLD:
            known = found.minima.copy(), found.energies.copy()
            if variance > 1 and problem in [CASES[name] for name in ("paper", "untied", "rank 2", "linear")]:
                assert (found.energies[:, 1] > found.energies[:, 0]).mean() > 0.01
        if starts == Starts.FROM_ZERO:
            fields.centers += 0.05  # the next ones begin at minima that are a little off


def test_the_minimiser_jumps_where_basins_cross():
    """On a line of centres about a positional state: one step of the line, another basin; a warm pass goes along."""
    problem, line = Problem.paper(omega=0.3), np.linspace(-4, 4, 400)
    fields = Fields.drawn(problem, 400, 0, 1.0, 1.0)
    fields.centers = np.stack([0.25 + line, -0.25 + 0.5 * line], axis=1)[..., None]
    fields.k = np.broadcast_to([[2.0], [-1.0]], fields.k.shape).copy()
    fields.factor = np.sqrt(np.full((2, 1, 1), 14.7))
    found = fields.minimised(Starts.COLD)
    assert np.abs(np.diff(found.minima[:, 0], axis=0)).max(axis=(1, 2)).max() > 1
    # a few steps along the line: some nodes pass a jump, where the minima only change places
    fields.centers += [[0.1], [0.05]]
    warm, cold = fields.minimised(Starts.WARM, (found.minima, found.energies)), fields.minimised(Starts.COLD)
    jumped = np.abs(warm.minima[:, 0] - found.minima[:, 0]).max(axis=(1, 2)) > 1
    assert jumped.any()
    np.testing.assert_allclose(warm.energies[jumped, 0], cold.energies[jumped, 0], rtol=1e-10)
    np.testing.assert_allclose(warm.minima[jumped, 0], found.minima[jumped, 1], atol=0.2)


@pytest.mark.parametrize("name", ["paper", pytest.param("ranks 2", marks=pytest.mark.slow)])
def test_no_minimum_that_a_single_descent_finds_is_missed(name):
    """Nor is a descent stopped that only passes by a known minimum, which is near in u where V is huge."""
    problem = (CASES | SLOW_CASES)[name]
    fields = Fields.drawn(problem, 1500, 7, 5.0, 1000.0)
    omega = fields.centers
    lifted = fields.k[..., list(reference_backend(problem, "numpy").module.LIFT)]
    reflected = [omega * sign[:, None] for sign in (np.array([-1.0, 1.0]), np.array([1.0, -1.0]))]
    singles = []
    for start in (omega, lifted, -lifted, 0 * omega, -omega, *reflected):
        previous = np.stack([start, start], axis=1), np.zeros((len(start), 2))
        singles.append(fields.minimised(Starts.WARM, previous).energies[:, 0])
    assert (fields.minimised(Starts.COLD).energies[:, 0] <= np.min(singles, axis=0) + 1e-8).all()
