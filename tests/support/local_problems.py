"""The local problems of single samples: of drawn nodes, in lanes, and one by one.

Not public: ``solve`` shows means over samples alone, and a minimum that is missed in a few of them hides in these.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from attnphase.arrays import Array
from attnphase.kernels import compiler
from attnphase.kernels.compiler import kernels_for
from attnphase.kernels.key import ModelKey, model_numbers
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.local.layouts import ENTRIES
from attnphase.kernels.local.model import FUNCTIONS, model_of
from attnphase.kernels.local.values import Nodes, Solution, workspace_of
from attnphase.kernels.machine import loaded
from attnphase.kernels.shared import entry, kept_part, linked
from attnphase.problem.problem import Problem
from attnphase.spectrum.measure import Spectrum
from derivations.models.model import label_fields


def nodes_of(problem: Problem, centers: Array, k: Array, V: Array) -> Nodes:
    """Nodes (N, L, r) with teacher's fields (N, L, t), under V (L, r, r)."""
    mixing, factor = np.ascontiguousarray(problem.mixing_matrix, dtype=float), np.linalg.cholesky(V).astype(float)
    variance = np.ascontiguousarray(Spectrum.of(problem).site_variances[: problem.tokens.length])
    return Nodes(centers, k, factor, mixing, model_numbers(problem), variance)


def drawn(problem: Problem, count: int, seed: int, scale: float, width: float) -> Nodes:
    """Random nodes whose centres have a width, under a random V of a scale."""
    rng, length, columns = np.random.default_rng(seed), problem.tokens.length, problem.columns
    directions = rng.normal(size=(length, columns, columns))
    V = scale * (0.05 * np.eye(columns) + directions @ directions.mT / columns)
    centers = width * rng.normal(size=(count, length, columns))
    return nodes_of(problem, centers, rng.normal(size=(count, length, label_fields(ModelKey.of(problem).model()))), V)


def empty(nodes: Nodes) -> Solution:
    """Where a search writes."""
    shape = count, _, _ = nodes.centers.shape
    minima = np.zeros((count, 2, *shape[1:]))
    return Solution(minima, np.zeros((count, 2)), np.zeros(count), np.zeros(shape), np.zeros(count, dtype=np.int64))


def minimised(problem: Problem, nodes: Nodes, starts: Starts, known: Array | None = None) -> Solution:
    """What machine code finds, from the two minima (N, 2, L, r) that are known where it begins there."""
    found = empty(nodes)
    if known is not None:
        found.minima[:], found.energies[:] = known, [0.0, 1.0]
    kernels_for(problem).minimise(nodes, starts, found)
    return found


@lru_cache
def _one_by_one(problem: Problem) -> Callable[..., None]:
    sizes, text = compiler._source(ModelKey.of(problem))
    model = model_of(sizes, {name: 1 for name in FUNCTIONS if f"@{name}(" in text})
    code = loaded(linked("search", kept_part("search"), model, text), ["minimise"])
    return entry(code, "minimise", ENTRIES["minimise_one_by_one"][1][1:])


def one_by_one(problem: Problem, nodes: Nodes, starts: Starts, found: Solution) -> None:
    """The search that losses with kinks have, one node after another."""
    _one_by_one(problem)(nodes, starts, found, workspace_of(kernels_for(problem).model))
