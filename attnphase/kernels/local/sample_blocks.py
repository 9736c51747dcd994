"""Entry point for finite d where the loss is smooth: samples with own targets, weights and V, in lanes of a block.

Otherwise as `blocks`.
"""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array
from attnphase.kernels.local.values import Nodes, SampleNodes, Solution

from .compiled import compiled, entry
from .lane import ALL_ROWS, NOBODY, NODE, goes_on, load, next_start
from .lanes import FACTOR, LANES, TARGET_ENTRIES, TARGETS, VARIANCE, newton_trial
from .layouts import INTEGER, SAMPLE_NODES, SOLUTION
from .linear_algebra import SIZE
from .local_problem import COLUMNS, LENGTH

__all__ = ["minimise"]


@compiled
def factor_of(node: int, nodes: SampleNodes, factor: Array) -> None:
    """Fill in the Cholesky factors of a sample's tokens."""
    for a in range(LENGTH):
        for i in range(COLUMNS):
            for j in range(COLUMNS):
                factor[a, i, j] = nodes.factors[nodes.sites[node, a], i, j]


@compiled
def put_in(node: int, lane: int, nodes: SampleNodes, factor: Array, targets: Array, state: Array) -> None:
    """Put a sample, whose factors are ``factor``, into a lane; ``targets`` is scratch."""
    for i in range(TARGETS):
        a, c = TARGET_ENTRIES[i]
        targets[node % LANES + i * LANES] = nodes.targets[node, a, c]
    load(nodes.centers, node, lane, targets, state)
    for a in range(LENGTH):
        for b in range(LENGTH):
            state[lane + (VARIANCE + a * LENGTH + b) * LANES] = nodes.grams[node, a, b]
        for i in range(COLUMNS):
            for j in range(COLUMNS):
                state[lane + (FACTOR + (a * COLUMNS + i) * COLUMNS + j) * LANES] = factor[a, i, j]


@entry(SAMPLE_NODES, INTEGER, SOLUTION)
def minimise(nodes: SampleNodes, starts: int, solution: Solution) -> None:
    """Lowest and second-lowest minimum of the local problem of every sample, from `Starts`."""
    state, field, factor = np.zeros(ALL_ROWS * LANES), np.empty((LENGTH, COLUMNS)), np.empty((LENGTH, COLUMNS, COLUMNS))
    curvature, lower, targets = np.empty((SIZE, SIZE)), np.empty((SIZE, SIZE)), np.zeros(TARGETS * LANES)
    mixing, variance = np.empty((LENGTH, LENGTH)), np.empty(LENGTH)  # nobody reads them
    own = Nodes(nodes.centers, nodes.teacher_fields, factor, mixing, nodes.parameters, variance)
    state[NODE : NODE + LANES] = NOBODY
    taken, busy, count = 0, 0, nodes.centers.shape[0]
    while taken < count or busy > 0:
        for lane in range(LANES):
            if state[NODE + lane] != NOBODY:
                factor_of(int(state[NODE + lane]), nodes, factor)
                if goes_on(lane, starts, own, solution, field, curvature, lower, state):
                    continue
                busy -= 1
            if taken < count:
                factor_of(taken, nodes, factor)
                put_in(taken, lane, nodes, factor, targets, state)
                next_start(lane, starts, own, solution, field, state)
                taken += 1
                busy += 1
        newton_trial(state, factor, variance, nodes.parameters)
