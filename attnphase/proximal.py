"""Global minimisers of the local problem over batches of nodes.

The energy is not convex and its lowest minimum jumps from one basin to another as the fields move, so every node keeps
its two lowest minima: a warm pass descends from both, a cold pass from all starting points.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from attnphase.compiled import Kernels
from attnphase.prior import Spectrum
from attnphase.problem import Problem

__all__ = ["Minima", "ProximalPoints", "ProximalProblem", "Starts"]

Array = NDArray[np.float64]


class Starts(IntEnum):
    """Starting points of the local minimisation; the numbers are those of the compiled kernel."""

    COLD = 0
    WARM = 1
    FROM_ZERO = 2
    REFRESH = 3


@dataclass(frozen=True, eq=False)
class Minima:
    """The two lowest minima of the solved nodes.

    Attributes
    ----------
    fields : (N, 2, L, r) array
    energies : (N, 2) array
        Equal where only one minimum was found.
    steps : (N,) array of int
        Newton steps to the lowest minimum, negative if its gradient did not reach the tolerance.
    """

    fields: Array
    energies: Array
    steps: NDArray[np.int64]

    @property
    def unsolved(self) -> int:
        """Number of nodes whose descent stopped above the gradient tolerance."""
        return int((self.steps < 0).sum())

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

    problem: Problem
    kernels: Kernels
    spectrum: Spectrum
    threads: int = 1

    @property
    def _parameters(self) -> tuple[Array, float, Array]:
        mixing = np.ascontiguousarray(self.problem.mixing_matrix, dtype=float)
        return mixing, float(self.problem.teacher.omega), np.ascontiguousarray(self.spectrum.token_variances)

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
        omega, k : (signs, S, n, L, r) and (signs, S, n, L, t) arrays
        variance : (L, r, r) array
            V.
        orbit : tuple of (int, int)
            For every sign the sign it is copied from, and the factor of the copied residual.
        """
        shape = omega.shape[1:-2]
        chosen = sorted({source for source, _ in orbit})
        centers = np.ascontiguousarray(omega[chosen].reshape(-1, *omega.shape[-2:]))
        teacher = np.ascontiguousarray(k[chosen].reshape(-1, *k.shape[-2:]))
        nodes = len(centers)
        if starts in (Starts.WARM, Starts.REFRESH):
            if previous is None or len(previous.energies) != nodes:
                raise ValueError("a warm pass needs the minima of a pass over the same nodes")
            fields, energies = previous.fields.copy(), previous.energies.copy()
        else:
            fields, energies = np.zeros((nodes, 2, *centers.shape[1:])), np.zeros((nodes, 2))
        losses, residuals, steps = np.empty(nodes), np.empty_like(centers), np.empty(nodes, dtype=np.int64)
        factor = np.linalg.cholesky(variance)

        def run(part: slice) -> None:
            self.kernels.minimise(
                centers[part],
                teacher[part],
                factor,
                *self._parameters,
                int(starts),
                fields[part],
                energies[part],
                losses[part],
                residuals[part],
                steps[part],
            )

        self._in_parts(run, nodes)

        def spread(values: Array) -> Array:
            return values.reshape(len(chosen), *shape, *values.shape[1:])

        index = [chosen.index(source) for source, _ in orbit]
        factors = np.array([factor for _, factor in orbit], dtype=float)[:, None, None, None, None]
        points = ProximalPoints(
            factors * spread(residuals)[index], spread(energies[:, 0])[index], spread(losses)[index]
        )
        return points, Minima(fields, energies, steps)

    def losses(self, fields: Array, k: Array) -> Array:
        """Loss at given fields (..., L, r) and teacher fields (..., L, t), without minimisation."""
        flat = np.ascontiguousarray(fields.reshape(-1, *fields.shape[-2:]))
        teacher = np.ascontiguousarray(k.reshape(-1, *k.shape[-2:]))
        losses = np.empty(len(flat))
        self._in_parts(
            lambda part: self.kernels.losses_at(flat[part], teacher[part], *self._parameters, losses[part]), len(flat)
        )
        return losses.reshape(fields.shape[:-2])

    def _in_parts(self, run: Callable[[slice], None], nodes: int) -> None:
        """The kernel releases the interpreter's lock, so threads share the nodes."""
        if self.threads <= 1 or nodes < 2048:
            run(slice(0, nodes))
            return
        edges = np.linspace(0, nodes, 2 * self.threads + 1).astype(int)
        list(_pool(self.threads).map(run, [slice(a, b) for a, b in pairwise(edges)]))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """One pool a process: starting threads would cost more than a small pass."""
    return ThreadPoolExecutor(threads, thread_name_prefix="attnphase")
