"""The local problems of single samples: of drawn nodes, by machine code, and by Python in lanes or one by one.

Not public: ``solve`` shows means over samples alone, and a minimum that is missed in a few of them hides in these.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnphase.arrays import Array
from attnphase.kernels import compiler
from attnphase.kernels.compiler import kernels_for
from attnphase.kernels.key import ModelKey, model_numbers
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.local.values import Nodes, Solution
from attnphase.kernels.package import import_package, write_package
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


def in_python(model: Any, folder: Path) -> tuple[Callable[..., None], ...]:
    """The search side by side, as it is compiled, and one by one, as Python; with the fixture ``uncompiled``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "SIDE_BY_SIDE", 16)
        sources = compiler._sources(model, finite=False)
    write_package(
        folder, {name: text.replace("from math import", "from numpy import") for name, text in sources.items()}
    )
    ways = compiler._nodes_of(folder), "nodes"
    modules = import_package(folder, "in_python", ways)
    return tuple(modules[way].minimise for way in ways)
