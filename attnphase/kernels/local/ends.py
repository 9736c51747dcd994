"""Where descents end: of a node the two lowest minima are kept, which differ.

Numbers of a node are ``step`` apart, and those of the Cholesky factors, which begin at ``corner``, ``stride`` apart.
"""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array

from .compiled import compiled
from .constants import DISTINCT, LENGTH_UNIT
from .model import Model, Record
from .starts import ONE, TWO, unsigned
from .values import Nodes, Solution

__all__ = ["fall_back", "forget", "keep", "write"]


@compiled
def forget(node: int, energies: Array) -> None:
    """Begin to look for a node's minima."""
    energies[TWO * node] = np.inf
    energies[TWO * node + ONE] = np.inf


@compiled
def keep(
    m: Record,
    node: int,
    energy: float,
    nodes: Nodes,
    solution: Solution,
    numbers: Array,
    u: int,
    best: int,
    other: int,
    gradient: int,
    step: int,
) -> bool:
    """Keep the end of a descent if it is one of the two lowest minima; returns whether it is the lowest."""
    gap, length, energies, at = 0.0, nodes.parameters[unsigned(LENGTH_UNIT)], solution.energies, TWO * node
    for p in range(m.fields):
        known = numbers[best + p * step]
        gap = max(gap, abs(numbers[u + p * step] - known) / (length + abs(known)))
    if (energies[at] < np.inf and not gap > DISTINCT) or not energy < energies[at + ONE]:
        return False
    lowest = energy < energies[at]
    energies[at + ONE] = energies[at] if lowest else energy
    for p in range(m.fields):
        numbers[other + p * step] = numbers[(best if lowest else u) + p * step]
    if lowest:
        energies[at] = energy
        for p in range(m.fields):
            numbers[best + p * step] = numbers[u + p * step]
            solution.residuals[node * m.fields + p] = -numbers[gradient + p * step]
    return lowest


@compiled
def fall_back(
    m: Record, node: int, value: float, solution: Solution, numbers: Array, best: int, gradient: int, step: int
) -> None:
    """Take the centre, where the loss has this value: no descent found a bottom.  Zero where it is not finite."""
    finite = abs(value) < np.inf
    for p in range(m.fields):
        slope = numbers[gradient + p * step]
        numbers[best + p * step] = 0.0
        solution.residuals[node * m.fields + p] = -slope if finite and abs(slope) < np.inf else 0.0
    solution.losses[node] = value if finite else 0.0
    solution.energies[TWO * node] = solution.losses[node]


@compiled
def write(
    m: Record,
    model: Model,
    node: int,
    factors: Array,
    corner: int,
    stride: int,
    solution: Solution,
    numbers: Array,
    centers: int,
    best: int,
    other: int,
    step: int,
) -> None:
    """Write a node's minima, which are the same if only one was found."""
    energies, at = solution.energies, TWO * node
    if energies[at + ONE] == np.inf:
        energies[at + ONE] = energies[at]
        other = best
    for p in range(m.fields):
        i, center = model.columns[p], numbers[centers + p * step]
        first, last = center, center
        for j in range(i + ONE):
            share, place = factors[corner + (p * m.columns + j) * stride], (p - i + j) * step
            first += share * numbers[best + place]
            last += share * numbers[other + place]
        solution.minima[at * m.fields + p] = first
        solution.minima[(at + ONE) * m.fields + p] = last
