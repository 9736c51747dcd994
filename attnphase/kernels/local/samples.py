"""Entry point for finite d: samples with their own targets and Gram matrices."""

from __future__ import annotations

import numpy as np

from attnphase.kernels.local.values import Energy, Found, SampleNodes, Solution

from .compiled import entry
from .layouts import INTEGER, SAMPLE_NODES, SOLUTION
from .local_problem import COLUMNS, LENGTH, weights_of
from .search import search, workspace

__all__ = ["minimise"]


@entry(SAMPLE_NODES, INTEGER, SOLUTION)
def minimise(nodes: SampleNodes, starts: int, solution: Solution) -> None:
    """Lowest and second-lowest minimum of the local problem of every sample, from `Starts`."""
    work, factor = workspace(), np.empty((LENGTH, COLUMNS, COLUMNS))
    for n in range(nodes.centers.shape[0]):
        for a in range(LENGTH):
            factor[a] = nodes.factors[nodes.sites[n, a]]
        terms = Energy(nodes.targets[n], weights_of(nodes.grams, n), factor, nodes.parameters)
        found = Found(solution.minima[n], solution.energies[n], solution.residuals[n])
        solution.losses[n], solution.flags[n] = search(
            nodes.centers[n], nodes.teacher_fields[n], terms, starts, found, work
        )
