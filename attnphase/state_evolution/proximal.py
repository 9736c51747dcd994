"""Global minimisers of the local problem over batches of nodes.

The energy is not convex and its lowest minimum jumps from one basin to another as the fields move, so every node keeps
its two lowest minima: a warm pass descends from both, a cold pass from all starting points.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.kernels.local.constants import RUNAWAY, Starts
from attnphase.kernels.local.values import Nodes, Solution
from attnphase.state_evolution.system import System

__all__ = ["Minima", "ProximalPoints", "ProximalProblem"]


@dataclass(frozen=True, eq=False)
class Minima:
    """The two lowest minima of the solved nodes.

    Attributes
    ----------
    fields : (N, 2, L, r) array
    energies : (N, 2) array
        Equal where only one minimum was found.
    steps : (N,) array of int
        Newton steps to the lowest minimum, negative if its gradient did not reach the tolerance, RUNAWAY if there is
        none.
    """

    fields: Array
    energies: Array
    steps: NDArray[np.int64]

    @property
    def unsolved(self) -> int:
        """Number of nodes whose descent stopped above the gradient tolerance."""
        return int((self.steps < 0).sum())

    @property
    def bottomless(self) -> int:
        """Number of nodes at which a descent found no bottom: the loss falls too fast for this V."""
        return int((self.steps == RUNAWAY).sum())

    @property
    def gap(self) -> Array:
        """Second-lowest minus lowest energy, (N,); infinite where there is one minimum."""
        gap = self.energies[:, 1] - self.energies[:, 0]
        return np.where(gap > 0, gap, np.inf)


@dataclass(frozen=True, eq=False)
class ProximalPoints:
    """Residual ``g = V^-1 (prox - omega)`` (..., L, r), envelope M and loss at the proximal point (...)."""

    residual: Array
    envelope: Array
    loss: Array


@dataclass(frozen=True, eq=False)
class ProximalProblem:
    """The local problem of one model with its numerical parameters."""

    system: System

    def minimise(
        self,
        omega: Array,
        k: Array,
        variance: Array,
        orbit: tuple[tuple[int, int], ...],
        starts: Starts,
        previous: Minima | None,
    ) -> tuple[ProximalPoints, Minima]:
        """Minimise at all nodes that are not mirror images of another.

        Parameters
        ----------
        omega, k : (C, signs, S, n, L, r) and (C, signs, S, n, L, t) arrays
            Centres and the teacher's fields for every configuration of clusters.
        variance : (P, r, r) array
            V of every site.
        orbit : tuple of (int, int)
            For every sign the sign it is copied from, and the factor of the copied residual.
        """
        configurations, _ = self.system.problem.cluster_law
        shape = omega.shape[2:-2]
        chosen = sorted({source for source, _ in orbit})
        count = len(configurations)
        centers = np.ascontiguousarray(omega[:, chosen].reshape(count, -1, *omega.shape[-2:]))
        teacher = np.ascontiguousarray(k[:, chosen].reshape(count, -1, *k.shape[-2:]))
        nodes = centers.shape[1]
        total = count * nodes
        if starts in (Starts.WARM, Starts.REFRESH):
            if previous is None or len(previous.energies) != total:
                raise ValueError("a warm pass needs the minima of a pass over the same nodes")
            fields, energies = previous.fields.copy(), previous.energies.copy()
        else:
            fields, energies = np.zeros((total, 2, *centers.shape[2:])), np.zeros((total, 2))
        losses, residuals = np.empty(total), np.empty((total, *centers.shape[2:]))
        steps = np.empty(total, dtype=np.int64)
        solution = Solution(fields, energies, losses, residuals, steps)
        factors: Array = np.linalg.cholesky(variance).astype(float, copy=False)
        mixing, parameters = self.system.parameters

        def run(configuration: int, part: slice) -> None:
            sites = configurations[configuration]
            here = slice(configuration * nodes + part.start, configuration * nodes + part.stop)
            nodes_here = Nodes(
                centers[configuration, part],
                teacher[configuration, part],
                np.ascontiguousarray(factors[sites]),
                mixing,
                parameters,
                np.ascontiguousarray(self.system.spectrum.site_variances[sites]),
            )
            self.system.kernels.minimise(nodes_here, starts, solution.part(here))

        self._in_parts(run, count, nodes)

        def spread(values: Array) -> Array:
            return values.reshape(count, len(chosen), *shape, *values.shape[1:])

        index = [chosen.index(source) for source, _ in orbit]
        factors_of = np.array([factor for _, factor in orbit], dtype=float)[:, None, None, None, None]
        points = ProximalPoints(
            factors_of * spread(residuals)[:, index], spread(energies[:, 0])[:, index], spread(losses)[:, index]
        )
        return points, Minima(fields, energies, steps)

    def losses(self, fields: Array, k: Array) -> Array:
        """Loss at given fields (C, ..., L, r) and teacher fields (C, ..., L, t), without minimisation."""
        configurations, _ = self.system.problem.cluster_law
        count = len(configurations)
        flat = np.ascontiguousarray(fields.reshape(count, -1, *fields.shape[-2:]))
        teacher = np.ascontiguousarray(k.reshape(count, -1, *k.shape[-2:]))
        losses = np.empty(flat.shape[:2])
        mixing, parameters = self.system.parameters

        def run(configuration: int, part: slice) -> None:
            variance = np.ascontiguousarray(self.system.spectrum.site_variances[configurations[configuration]])
            self.system.kernels.losses_at(
                flat[configuration, part],
                teacher[configuration, part],
                mixing,
                parameters,
                variance,
                losses[configuration, part],
            )

        self._in_parts(run, count, flat.shape[1])
        return losses.reshape(fields.shape[:-2])

    def _in_parts(self, run: Callable[[int, slice], None], count: int, nodes: int) -> None:
        """The kernel releases the interpreter's lock, so threads share the nodes."""
        parts = 1 if self.system.threads <= 1 or count * nodes < 2048 else max(1, 2 * self.system.threads // count)
        edges = np.linspace(0, nodes, parts + 1).astype(int)
        jobs = [(c, slice(a, b)) for c in range(count) for a, b in pairwise(edges.tolist())]
        if self.system.threads <= 1 or count * nodes < 2048:
            for job in jobs:
                run(*job)
        else:
            list(_pool(self.system.threads).map(run, *zip(*jobs, strict=True)))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """One pool a process: starting threads would cost more than a small pass."""
    return ThreadPoolExecutor(threads, thread_name_prefix="attnphase")
