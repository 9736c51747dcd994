"""Nanoseconds a node of the local problem, for models of all sizes, on one thread.

Nodes are drawn at the overlaps of the semantic start. A cold pass searches from all starts; a warm one begins at the
minima that the same nodes had before a map that moved the centres and the root of V by a hundredth. A Newton step is
timed where a node has one descent, from zero as in the published recipe, since kernels tell the steps to the lowest
minimum alone; the evaluation before the first step counts with the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.kernels.compiler import kernels_for
from attnphase.kernels.local.constants import RUNAWAY, Starts
from attnphase.kernels.local.values import Nodes, Solution
from attnphase.problem.problem import Problem
from attnphase.problem.template import changes_for
from attnphase.spectrum.measure import Spectrum
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.state_evolution.system import System
from benchmarks.measuring import Clock, Options, Row, clock_named, filled

__all__ = ["rows"]

MODELS: dict[str, dict[str, Any]] = {
    "(2,1)": {},
    "(2,1) untied": {"student.tied": False},
    "(2,1) mixture": changes_for(mixture=True),
    "(2,2)": {"student.rank": 2},
    "(3,1)": {"tokens.length": 3},
    "(4,1)": {"tokens.length": 4},
    "(8,1)": {"tokens.length": 8},
}
"""Models by (L, r), tied if nothing else is said."""

_NODES, _NODES_QUICK, _SMALL = 2**14, 2**6, 4  # fewer nodes where one has more than so many fields
_MOVED = 0.99


def rows(options: Options) -> Iterator[Row]:
    """Three rows a model."""
    clock = clock_named(options.clock)
    for name, changes in list(MODELS.items())[: 1 if options.quick else None]:
        problem = Problem().with_fields({"teacher.omega": 0.3, **changes})
        small = problem.tokens.length * problem.columns <= _SMALL
        batch = Batch.of(problem, _NODES_QUICK if options.quick else _NODES if small else _NODES // 8)
        yield _row(f"local {name}, warm: a node", batch, Starts.WARM, lambda batch: batch.count, clock)
        yield _row(f"local {name}, cold: a node", batch, Starts.COLD, lambda batch: batch.count, clock)
        yield _row(f"local {name}: a Newton step", batch, Starts.FROM_ZERO, lambda batch: batch.steps, clock)


def _row(name: str, batch: Batch, starts: Starts, units: Callable[[Batch], int], clock: Clock) -> Row:
    def once() -> float:
        return 1e9 * filled(clock, lambda: batch.minimise(starts), batch.restore) / units(batch)

    once()  # what a first call costs is no repeat
    return Row(name, "ns", once, detail=f"{batch.steps / batch.count:.1f} steps to the lowest minimum")


@dataclass(frozen=True, eq=False)
class Batch:
    """Nodes of every configuration of clusters with room for their minima: the one place that calls the kernels.

    Attributes
    ----------
    call : callable
        The minimiser of `attnphase.kernels.compiler.Kernels`.
    parts : list of (Nodes, Solution)
        For each configuration.
    known : list of (array, array)
        Minima and energies that a pass begins with.
    """

    call: Callable[[Nodes, Starts, Solution], None]
    parts: list[tuple[Nodes, Solution]]
    known: list[tuple[Array, Array]]

    @classmethod
    def of(cls, problem: Problem, count: int) -> Batch:
        """About `count` nodes, with the minima that they had a map before."""
        call = kernels_for(problem).minimise
        overlaps, parts, known = initial_overlaps(problem, "semantic"), [], []
        configurations, _ = problem.cluster_law
        generator = np.random.default_rng(0)
        for sites in configurations:
            nodes = nodes_at(problem, overlaps, sites, count // len(configurations), generator)
            before = nodes._replace(centers=_MOVED * nodes.centers, factor=_MOVED * nodes.factor)
            shape = nodes.centers.shape
            solution = Solution(
                np.zeros((shape[0], 2, *shape[1:])),
                np.zeros((shape[0], 2)),
                np.empty(shape[0]),
                np.empty(shape),
                np.empty(shape[0], dtype=np.int64),
            )
            call(before, Starts.COLD, solution)
            parts.append((nodes, solution))
            known.append((solution.minima.copy(), solution.energies.copy()))
        return cls(call, parts, known)

    def restore(self) -> None:
        """Forget the last pass."""
        for (_, solution), (minima, energies) in zip(self.parts, self.known, strict=True):
            solution.minima[:], solution.energies[:] = minima, energies

    def minimise(self, starts: Starts) -> None:
        """One pass over all nodes."""
        for nodes, solution in self.parts:
            self.call(nodes, starts, solution)

    @property
    def count(self) -> int:
        """Number of nodes."""
        return sum(len(solution.flags) for _, solution in self.parts)

    @property
    def steps(self) -> int:
        """Newton steps of the last pass to the lowest minima, all nodes together."""
        flags = np.concatenate([solution.flags for _, solution in self.parts])
        return int(np.abs(flags[flags != RUNAWAY]).sum())


def nodes_at(
    problem: Problem, overlaps: Overlaps, sites: NDArray[np.int64], count: int, generator: np.random.Generator
) -> Nodes:
    """Random local fields of one configuration: omega ~ N(m, q), and k given omega by its correlation theta with it."""
    spectrum, (mixing, parameters) = Spectrum.of(problem), System.of(problem).parameters
    q, theta, rho = overlaps.q[sites], overlaps.theta[sites], spectrum.rho[sites]
    student = np.einsum("lij,nlj->nli", np.linalg.cholesky(q), generator.standard_normal((count, *q.shape[:2])))
    explained = np.linalg.solve(q, theta)  # q^-1 theta
    factor: Array = np.linalg.cholesky(overlaps.V[sites]).astype(float, copy=False)
    root = np.linalg.cholesky(rho - theta.mT @ explained)
    own = np.einsum("lij,nlj->nli", root, generator.standard_normal((count, *rho.shape[:2])))
    return Nodes(
        student + overlaps.m[sites, :, 0],
        np.einsum("lij,nli->nlj", explained, student) + own + spectrum.teacher_means[sites],
        np.ascontiguousarray(factor),
        mixing,
        parameters,
        np.ascontiguousarray(spectrum.site_variances[sites]),
    )
