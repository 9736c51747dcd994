"""What a line is estimated to cost, so that blocks of lines end together.

Measured for the paper's problem on one core of the machine of ``docs/performance.md``: a point costs a little, its
stability and its identity something more, and every node something, by the branch. Where the rule is refined until the
standard error is small enough, a positional point needs four times the nodes of a semantic one; where the teacher's
positional part weighs little it costs more for each, since the branch is harder to hold there, and to tell from none.
For another problem only the ratios are meant.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

from attnphase.sweeps.line import Line

__all__ = ["GOLDEN", "balanced", "seconds_of"]

GOLDEN = (5**0.5 - 1) / 2
"""Steps of this ratio through a sweep come to all of it evenly."""


@dataclass(frozen=True)
class _Price:
    """What a point of a branch costs.

    Attributes
    ----------
    point : float
        Seconds, whatever the nodes.
    identity : float
        Seconds to decide which branch it is on, likewise.
    node : float
        Seconds for each node, all maps together.
    nodes : float
        That a relative standard error of 1e-3 needs, all replicates together.
    """

    point: float
    identity: float
    node: float
    nodes: float


_SEMANTIC = _Price(0.025, 0.022, 5.5e-6, 4.0e4)
_POSITIONAL = _Price(0.025, 0.022, 5.0e-6, 1.5e5)
_UNINFORMED = _Price(0.012, 0.0, 2.0e-6, 4.5e4)
_STABILITY = 0.024  # seconds, whatever the nodes and the branch
_PRICES = {"semantic": _SEMANTIC, "positional": _POSITIONAL, "uninformed": _UNINFORMED, "mixed": _POSITIONAL}
_REPLICATES = 16
_FEWEST = 1024.0  # nodes that the first rule has
_RATE = 1 / 0.85  # nodes grow so with the inverse standard error
_PUBLISHED, _SMOOTH = 144.0, 1.0e4  # nodes of the paper's rule, and about those of a product rule


def seconds_of(line: Line) -> float:
    """Estimated processor seconds of a line."""
    price, settings = _PRICES[line.branch], line.settings
    each = price.point + _STABILITY * settings.stability + price.identity * settings.identity * _hardness(line, 6.0)
    return len(line.alphas) * (each + _nodes(line, price) * price.node * _hardness(line, 3.0))


def _nodes(line: Line, price: _Price) -> float:
    """How many nodes a point ends with."""
    asked = line.problem.integration
    if asked.rule == "published":
        return _PUBLISHED
    if asked.rule == "gauss-hermite":
        return _SMOOTH
    if asked.nodes is not None:
        return float(_REPLICATES * asked.nodes)
    return max(_FEWEST, min(price.nodes * (1e-3 / asked.standard_error) ** _RATE, line.settings.max_nodes))


def _hardness(line: Line, most: float) -> float:
    """Of a positional line, relative to omega = 0.3, but at most so much."""
    if line.branch != "positional":
        return 1.0
    return min(most, math.exp(9.0 * (0.3 - line.problem.teacher.omega)))


def balanced(costs: Sequence[float], parts: int) -> list[list[int]]:
    """Divide what has these costs into parts that cost much the same.

    The dearest comes first, and each goes to the part that is the cheapest so far. What costs the same is dealt out in
    rounds that begin somewhere else each time, so that a field of which the estimate knows nothing has its share in
    every part, whatever its period.

    Parameters
    ----------
    costs : sequence of float
        Positive.
    parts : int
        At most as many as there are costs.

    Returns
    -------
    list of list of int
        Numbers of the costs in each part, in their order; no part is empty.
    """
    loads = [(0.0, part) for part in range(parts)]
    found: list[list[int]] = [[] for _ in range(parts)]
    for i in _dealt(costs, parts):
        load, part = heapq.heappop(loads)
        found[part].append(i)
        heapq.heappush(loads, (load + costs[i], part))
    return [sorted(part) for part in found]


def _dealt(costs: Sequence[float], parts: int) -> Iterator[int]:
    """The numbers of the costs, in the order in which they are dealt out."""
    turn = 0
    for _, alike in groupby(sorted(range(len(costs)), key=lambda i: -costs[i]), key=lambda i: costs[i]):
        while round_ := list(islice(alike, parts)):
            begin = int(len(round_) * ((turn * GOLDEN) % 1))
            yield from (*round_[begin:], *round_[:begin])
            turn += 1
