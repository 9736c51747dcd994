"""Proximal points at solved points: global minima by SciPy and in closed form, and what a neighbour lends.

Not public: datasets hold means over the nodes, and no node's minimum.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from models import model
from scipy.optimize import minimize
from solving import solved

from attnphase.integration.rules import sobol
from attnphase.kernels.local.constants import Starts
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.proximal import ProximalProblem
from attnphase.state_evolution.system import System

COARSE = {"teacher.omega": 0.3, "integration.rule": "sobol", "integration.nodes": 256}
# the local problem is not convex: V is 10 to 30
CASES = {
    "few samples": (model("paper", COARSE), 0.6, "semantic"),
    "positional": (model("paper", COARSE), 1.24, "positional"),
    "untied": (model("untied", COARSE), 1.24, "semantic"),
    "rank two": (model("rank 2", COARSE | {"teacher.omega": 0.34}), 1.24, "semantic"),
}


@cache
def overlaps_of(name: str) -> Overlaps:
    ds = solved(*CASES[name])
    return Overlaps(ds.q.values, ds.V.values, ds.m.values[..., None], ds.theta.values)


class Local:
    """Local problems at given overlaps: centers and teacher fields of one replicate."""

    def __init__(self, problem, x: Overlaps, points: int) -> None:
        length, columns, rank = x.theta.shape
        rule = sobol(length * (columns + rank), length * columns, False, points, 1, 1)
        self.V, self.points = x.V, points
        self.omega, self.k, *_ = Channel(System.of(problem), rule).nodes_at(x)
        self.proximal = ProximalProblem(System.of(problem))

    def minimise(self, starts: Starts, previous=None):
        return self.proximal.minimise(self.omega, self.k, self.V, ((0, 1),), starts, previous)

    def energy(self, h: np.ndarray, node: slice = slice(None)) -> np.ndarray:
        """``Psi`` at fields (n, L, r), from the loss alone."""
        d = h - self.omega[0, 0, 0, node]
        quadratic = np.einsum("nli,lij,nlj->n", d, np.linalg.inv(self.V), d) / 2
        return quadratic + self.proximal.losses(h[None, None, None], self.k[:, :, :, node])[0, 0, 0]


@pytest.mark.parametrize("name", CASES)
def test_no_minimiser_of_scipy_ends_below_a_proximal_point(name):
    """On nodes whose two lowest minima are closest and on another, from 12 starts where ``Psi(h) < Psi(omega)``."""
    local = Local(CASES[name][0], overlaps_of(name), points=1024)
    points, minima = local.minimise(Starts.COLD)
    assert minima.unsolved == 0
    shape, factor, rng = local.V.shape[:2], np.linalg.cholesky(local.V), np.random.default_rng(9)
    for node in map(int, (*np.argsort(minima.gap)[:2], 17)):

        def energy(flat, here=slice(node, node + 1)):
            return local.energy(flat.reshape(1, *shape), here).item()

        center = local.omega[0, 0, 0, node]
        u = rng.normal(size=(12, *shape))
        u *= np.sqrt(2 * energy(center)) / np.linalg.norm(u, axis=(1, 2), keepdims=True)
        starts = center + rng.random((12, 1, 1)) ** (1 / center.size) * np.einsum("lij,slj->sli", factor, u)
        lowest = min(minimize(energy, start.ravel(), tol=1e-9).fun for start in starts)
        assert points.envelope[0, 0, 0, node] == pytest.approx(lowest, abs=1e-9)


@pytest.mark.parametrize(("width", "omega", "mixing"), [(0.07, 0.3, 1.7), (1.3, 0.85, 0.4), (17.0, 0.2, 0.7)])
def test_proximal_points_of_one_linear_token_in_closed_form(width, omega, mixing, uncompiled):
    """At L = 1 with linear scores ``Psi = (h-w)^2/(2V) + s/2 (h^2 - T)^2``: the lowest real root of a cubic."""
    fields = {"tokens.length": 1, "tokens.sigma": 0.8, "teacher.omega": omega, "teacher.mixing": [[mixing]]}
    centers, k = np.random.default_rng(4).normal(size=(2, 1, 1, 1, 40, 1, 1))
    proximal = ProximalProblem(System.of(model("linear", fields)))
    points, _ = proximal.minimise(centers, k, np.full((1, 1, 1), width), ((0, 1),), Starts.COLD, None)
    found = zip(centers.ravel(), k.ravel(), points.envelope.ravel(), points.residual.ravel(), strict=True)
    for w, teacher, envelope, g in found:
        T, variance = (1 - omega) * teacher**2 + omega * mixing, 0.8**2
        roots = np.roots([2 * variance, 0, 1 / width - 2 * variance * T, -w / width])
        real = roots[np.abs(roots.imag) < 1e-7].real
        energies = (real - w) ** 2 / (2 * width) + variance / 2 * (real**2 - T) ** 2
        assert envelope == pytest.approx(energies.min(), rel=1e-9, abs=1e-12)
        assert g == pytest.approx((real[energies.argmin()] - w) / width, rel=1e-6, abs=1e-8)
