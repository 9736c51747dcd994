"""Global minimisers of the local problem over batches of nodes.

The energy is not convex and its lowest minimum jumps from one basin to another as the fields move, so every node keeps
its two lowest minima: a warm pass descends from both, a cold pass from all starting points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.kernels.local.constants import RUNAWAY, Starts
from attnphase.kernels.local.values import Nodes, Solution
from attnphase.processes.threads import each
from attnphase.state_evolution.system import System

__all__ = ["FIELD_STEP", "Minima", "Part", "ProximalPoints", "ProximalProblem", "for_all", "lower_factors"]

FIELD_STEP = float(np.finfo(float).eps ** (1 / 3))  # of central differences, in deviations of the teacher's field


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

    def begin(self, nodes: slice, previous: Minima | None) -> None:
        """Begin the descents of some nodes in the minima of a pass before, or in none.

        Piece by piece, as they are needed: a copy of all would go through the memory once more.
        """
        self.fields[nodes] = 0.0 if previous is None else previous.fields[nodes]
        self.energies[nodes] = 0.0 if previous is None else previous.energies[nodes]

    def part(self, shape: tuple[int, ...], points: slice) -> Minima:
        """Those of some points of every replicate, of nodes (S, n)."""

        def of(values: NDArray[Any]) -> NDArray[Any]:
            return values.reshape(-1, *shape, *values.shape[1:])[:, :, points].reshape(-1, *values.shape[1:])

        return Minima(of(self.fields), of(self.energies), of(self.steps))

    @property
    def unsolved(self) -> int:
        """Number of nodes whose descent stopped above the gradient tolerance."""
        return int((self.steps < 0).sum())

    @property
    def bottomless(self) -> int:
        """Number of nodes at which a descent found no bottom: the loss falls too fast for this V."""
        return int((self.steps == RUNAWAY).sum())

    def has_second(self, within: float) -> NDArray[np.bool_]:
        """Whether a second minimum lies less than ``within`` above the lowest, (N,)."""
        gap = self.energies[:, 1] - self.energies[:, 0]
        found: NDArray[np.bool_] = (gap > 0) & (gap < within)
        return found

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


@dataclass(frozen=True)
class Part:
    """Some of the nodes of a configuration of clusters, under one of its variants: a sign change or a label."""

    configuration: int
    variant: int
    nodes: slice


@dataclass(frozen=True, eq=False)
class ProximalProblem:
    """The local problem of one model with its numerical parameters."""

    system: System

    def begun(self, starts: Starts, previous: Minima | None, count: int) -> Minima:
        """Where a pass writes its minima; `Minima.begin` puts in those of the pass before."""
        if starts.follow and (previous is None or len(previous.energies) != count):
            raise ValueError("a warm pass needs the minima of a pass over the same nodes")
        length, columns = self.system.kernels.length, self.system.kernels.columns
        return Minima(np.empty((count, 2, length, columns)), np.empty((count, 2)), np.empty(count, dtype=np.int64))

    @staticmethod
    def parts(configurations: int, variants: Sequence[int], nodes: int) -> list[Part]:
        """What one thread does after another: some of the nodes of a configuration, under a sign change or a label.

        The same for any number of threads, so that sums are added in the same order.
        """
        pieces = _pieces(nodes)
        return [Part(c, v, piece) for c in range(configurations) for v in variants for piece in pieces]

    def search(
        self, configuration: int, omega: Array, k: Array, factors: Array, starts: Starts, solution: Solution
    ) -> None:
        """Minima of nodes of one configuration, from what ``solution`` holds if the starts are known minima.

        Parameters
        ----------
        omega, k : (N, L, r) and (N, L, t) arrays
            Centres and the teacher's fields.
        factors : (P, r, r) array
            Lower Cholesky factors of V of every site.
        """
        self.system.kernels.minimise(self._nodes(configuration, omega, k, factors), starts, solution)

    def _nodes(self, configuration: int, omega: Array, k: Array, factors: Array) -> Nodes:
        mixing, parameters = self.system.parameters
        factor = np.ascontiguousarray(factors[self.system.sample_law.configurations[configuration]])
        return Nodes(omega, k, factor, mixing, parameters, self.system.token_variances[configuration])

    def losses_of(self, configuration: int, fields: Array, k: Array) -> Array:
        """Loss of nodes of one configuration at given fields (N, L, r) and teacher fields (N, L, t)."""
        losses = np.empty(len(fields))
        mixing, parameters = self.system.parameters
        variance = self.system.token_variances[configuration]
        self.system.kernels.losses_at(fields, k, mixing, parameters, variance, losses)
        return losses

    def trained_slopes_of(
        self, configuration: int, omega: Array, k: Array, factors: Array, fields: Array
    ) -> tuple[Array, Array]:
        """First and second derivatives in the trained parameters of the energies of nodes, (N, p) and (N, p, p).

        Those of the lowest minima ``fields`` (N, L, r), which follow the parameters, but not Q: a change of the weights
        that makes it another changes the cavity fields too. All else as of `search`.
        """
        count = self.system.trained
        slopes, curvatures = np.empty((len(fields), count)), np.empty((len(fields), count, count))
        nodes = self._nodes(configuration, omega, k, factors)
        followed = count - self.system.norms
        self.system.kernels.trained_slopes_at(nodes, np.ascontiguousarray(fields), followed, slopes, curvatures)
        return slopes, curvatures

    def label_slopes(self, configuration: int, fields: Array, k: Array) -> Array:
        """``dloss/dk`` of nodes of one configuration at given fields (N, L, r) and teacher fields, (N, L, t).

        By differences, between labels' jumps.
        """
        fields, slopes = np.ascontiguousarray(fields), np.empty((*k.shape[:2], self.system.kernels.teacher_rank))
        for (token, column), *sides, width in self.teacher_steps(configuration, k):
            above, below = (self.losses_of(configuration, fields, side) for side in sides)
            slopes[:, token, column] = (above - below) / width
        return slopes

    def teacher_steps(self, configuration: int, k: Array) -> Iterator[tuple[tuple[int, int], Array, Array, float]]:
        """For a difference in each of the teacher's fields, (N, L, t + noise): where it is taken, and how wide it is.

        Both ends lie on that side of every plane on which labels jump on which the fields do.
        """
        law = self.system.sample_law
        deviations = np.sqrt(np.diagonal(law.rho[law.configurations[configuration]], axis1=1, axis2=2))
        slopes, offsets = law.labels.label_planes or ({}, ())
        for place in np.ndindex(deviations.shape):
            step, centre = np.zeros(k.shape[1:]), k
            step[place] = FIELD_STEP * deviations[place]
            if slope := slopes.get(place):
                planes = np.stack([each * k[:, *at] for at, each in slopes.items()]).sum(axis=0)
                heights = planes[:, None] - np.array(offsets)
                nearest = np.take_along_axis(heights, np.abs(heights).argmin(axis=1)[:, None], axis=1)[:, 0]
                crosses = np.abs(nearest) <= abs(slope) * step[place]
                centre = k + np.where(crosses, np.sign(slope * nearest), 0.0)[:, None, None] * step
            yield place, centre + step, centre - step, 2 * float(step[place])

    def minimise(
        self,
        omega: Array,
        k: Array,
        variance: Array,
        orbit: tuple[tuple[int, int], ...],
        starts: Starts,
        previous: Minima | None,
    ) -> tuple[ProximalPoints, Minima]:
        """Minimise at any nodes that are not mirror images of another.

        Equations (L2)-(L3) of the replica-symmetric page.

        Parameters
        ----------
        omega, k : (C, signs, S, n, L, r) and (C, signs, S, n, L, t) arrays
            Centres and the teacher's fields for every configuration of clusters.
        variance : (P, r, r) or (S, P, r, r) array
            V of every site; of every replicate by itself only where there is one sign.
        orbit : tuple of (int, int)
            For every sign the sign it is copied from, and the factor of the copied residual.
        """
        shape, count = omega.shape[2:-2], len(self.system.sample_law.configurations)
        chosen = sorted({source for source, _ in orbit})
        centers = np.ascontiguousarray(omega[:, chosen].reshape(count, -1, *omega.shape[-2:]))
        teacher = np.ascontiguousarray(k[:, chosen].reshape(count, -1, *k.shape[-2:]))
        nodes = centers.shape[1]
        factors = lower_factors(variance)
        minima = self.begun(starts, previous, count * nodes)
        losses, residuals = np.empty(count * nodes), np.empty((count * nodes, *centers.shape[2:]))
        factors = factors.reshape(-1, *factors.shape[-3:])
        alike = nodes // len(factors)  # nodes of the same V, which follow each other

        def run(part: Part) -> None:
            here = part.configuration, slice(*(part.variant * alike + n for n in (part.nodes.start, part.nodes.stop)))
            place = slice(*(part.configuration * nodes + n for n in (here[1].start, here[1].stop)))
            minima.begin(place, previous)
            solution = Solution(minima.fields, minima.energies, losses, residuals, minima.steps).part(place)
            self.search(part.configuration, centers[here], teacher[here], factors[part.variant], starts, solution)

        for_all(self.parts(count, range(len(factors)), alike), run, self.system.threads)

        def spread(values: Array) -> Array:
            return values.reshape(count, len(chosen), *shape, *values.shape[1:])

        index = [chosen.index(source) for source, _ in orbit]
        turned = np.array([factor for _, factor in orbit], dtype=float)[:, None, None, None, None]
        points = ProximalPoints(
            turned * spread(residuals)[:, index], spread(minima.energies[:, 0])[:, index], spread(losses)[:, index]
        )
        return points, minima

    def losses(self, fields: Array, k: Array) -> Array:
        """Loss at given fields (C, ..., L, r) and teacher fields (C, ..., L, t), without minimisation.

        Equation (D5) of the replica-symmetric page.
        """
        count = len(self.system.sample_law.configurations)
        flat = np.ascontiguousarray(fields.reshape(count, -1, *fields.shape[-2:]))
        teacher = np.ascontiguousarray(k.reshape(count, -1, *k.shape[-2:]))
        losses = np.empty(flat.shape[:2])

        def run(part: Part) -> None:
            here = part.configuration, part.nodes
            losses[here] = self.losses_of(part.configuration, flat[here], teacher[here])

        for_all(self.parts(count, [0], flat.shape[1]), run, self.system.threads)
        return losses.reshape(fields.shape[:-2])


def lower_factors(matrices: Array) -> Array:
    """Lower Cholesky factors (..., r, r) of positive definite matrices."""
    if matrices.shape[-1] == 1:
        return np.sqrt(matrices)
    factors: Array = np.linalg.cholesky(matrices).astype(float, copy=False)
    return factors


_AT_ONCE = 8192  # nodes of a part at the most: what is computed of them lies in fast memory


@lru_cache(maxsize=64)
def _pieces(nodes: int) -> list[slice]:
    """Nodes in pieces of about the same size."""
    edges = np.linspace(0, nodes, max(1, -(-nodes // _AT_ONCE)) + 1).astype(int).tolist()
    return [slice(a, b) for a, b in pairwise(edges)]


_Result = TypeVar("_Result")
_WORTH_SHARING = 8192  # nodes, below which handing them to other threads takes as long as doing them


def for_all(parts: Sequence[Part], run: Callable[[Part], _Result], threads: int) -> list[_Result]:
    """What ``run`` gives for every part; the compiled code releases the interpreter's lock, so threads share them."""
    worth = sum(part.nodes.stop - part.nodes.start for part in parts) >= _WORTH_SHARING
    return each(threads if worth else 1, run, parts)
