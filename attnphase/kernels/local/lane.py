"""A node in a lane of a block: what happens to it between trials.

What `search` does with a node happens here in its lane: descents from all starts one after another, of whose ends the
two lowest are kept.

Everything about a lane is in the rows of one array, the first of which `lanes.newton_trial` works on: views of many
arrays, and tuples of them, would be counted in and out at every event.
"""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array
from attnphase.kernels.local.values import Nodes, Solution

from .compiled import allocating, compiled
from .constants import (
    CONVERGED,
    DISTINCT,
    ENDLESS,
    FAR,
    FLED,
    GOES_ON,
    LENGTH_UNIT,
    MAX_NEWTON,
    MERGED,
    RUNAWAY,
    STUCK,
    Starts,
)
from .lanes import (
    BEST,
    CENTER,
    CURVATURE,
    DEEPEST,
    DEFINITE,
    ENERGY,
    EVENT,
    EXPECTED,
    GRADIENT,
    LANES,
    LOSS,
    OTHER,
    POINT,
    ROWS,
    SHIFT,
    STEP,
    STEPS,
    TARGET,
    TARGETS,
    TRIES,
    WIDEST,
    lane_losses,
    teacher_targets,
)
from .linear_algebra import SIZE, factorise, place, to_scaled
from .local_problem import COLUMNS, LABEL_FIELDS, LENGTH
from .search import MOST_STARTS, start_field

__all__ = [
    "ALL_ROWS",
    "NEXT",
    "NOBODY",
    "NODE",
    "begin",
    "goes_on",
    "is_only",
    "load",
    "losses_in_blocks",
    "next_start",
    "occupy",
    "to_rows",
]

# rows behind those of the step: which node a lane has, its next start, and what is known of it: of a descent without
# an end, the lowest energy
NODE, NEXT, LOWEST, SECOND, KEPT_LOSS, KEPT_STEPS, BOTTOMLESS = (row * LANES for row in range(ROWS, ROWS + 7))
RESIDUAL = (ROWS + 7) * LANES
ALL_ROWS = ROWS + 7 + SIZE

DEEPER = 1e-9  # share of itself by which an energy counts as lower than another
NOBODY = -1.0  # in a lane without a node
AT_CENTER = MOST_STARTS + 1.0  # the start that stands in where all others fail


@compiled
def to_rows(fields: Array, first: int, rows: Array) -> None:
    """Fields of the next nodes, as many as there are lanes, row by row."""
    for n in range(min(LANES, fields.shape[0] - first)):
        for a in range(LENGTH):
            for c in range(fields.shape[2]):
                rows[n + (a * fields.shape[2] + c) * LANES] = fields[first + n, a, c]


@compiled
def occupy(node: int, lane: int, state: Array) -> None:
    """Give a lane a node none of whose minima is known."""
    state[NODE + lane] = node
    state[NEXT + lane] = 0.0
    state[LOWEST + lane] = np.inf
    state[SECOND + lane] = np.inf
    state[BOTTOMLESS + lane] = np.inf
    for i in range(SIZE):
        state[lane + (BEST + i) * LANES] = np.nan
        state[lane + (OTHER + i) * LANES] = np.nan


@compiled
def load(centers: Array, node: int, lane: int, targets: Array, state: Array) -> None:
    """Put a node into a lane."""
    occupy(node, lane, state)
    for a in range(LENGTH):
        for i in range(COLUMNS):
            state[lane + (CENTER + a * COLUMNS + i) * LANES] = centers[node, a, i]
    for i in range(TARGETS):
        state[lane + (TARGET + i) * LANES] = targets[node % LANES + i * LANES]


@compiled
def begin(lane: int, length: float, state: Array) -> None:
    """Let a lane's next trial be its point, with which a descent begins; ``length`` is the unit of these."""
    norm = 0.0
    for i in range(SIZE):
        norm += state[lane + (POINT + i) * LANES] ** 2
        state[lane + (STEP + i) * LANES] = 0.0
    state[lane + DEFINITE * LANES] = 1.0
    state[lane + EXPECTED * LANES] = 0.0
    state[lane + ENERGY * LANES] = np.inf
    state[lane + SHIFT * LANES] = 0.0
    state[lane + STEPS * LANES] = -1.0
    state[lane + TRIES * LANES] = 0.0
    state[lane + WIDEST * LANES] = FAR * (length * length + norm)
    state[lane + DEEPEST * LANES] = -np.inf
    state[lane + EVENT * LANES] = GOES_ON


@compiled
def is_only(node: int, starts: int, solution: Solution) -> bool:
    """Whether the first start of a node is the only minimum that is known of it."""
    known = starts in (Starts.WARM, Starts.REFRESH)
    return known and solution.energies[node, 0] == solution.energies[node, 1]


@compiled
def next_start(lane: int, starts: int, nodes: Nodes, solution: Solution, field: Array, state: Array) -> bool:
    """Put the node's next start into its lane; False if there is none.  ``field`` is scratch."""
    node, s = int(state[NODE + lane]), int(state[NEXT + lane])
    if s == 1 and is_only(node, starts, solution):
        s += 1
    center, k, minima = nodes.centers[node], nodes.teacher_fields[node], solution.minima[node]
    if not start_field(s, center, k, minima, nodes.parameters, starts, field):
        return False
    state[NEXT + lane] = s + 1
    to_scaled(field, center, nodes.factor, state[lane + POINT * LANES :: LANES])
    begin(lane, nodes.parameters[LENGTH_UNIT], state)
    return True


@compiled
def distance(lane: int, length: float, state: Array) -> float:
    """Largest difference of a coordinate from the lowest minimum, relative to the unit of length + |u|."""
    gap = 0.0
    for i in range(SIZE):
        kept = state[lane + (BEST + i) * LANES]
        gap = max(gap, abs(state[lane + (POINT + i) * LANES] - kept) / (length + abs(kept)))
    return gap


@compiled
def is_convex(lane: int, curvature: Array, lower: Array, state: Array) -> bool:
    """Whether the energy is convex where a lane's descent ended; ``curvature`` and ``lower`` are scratch."""
    row = 0
    for i in range(SIZE):
        for j in range(i + 1):
            curvature[i, j] = state[lane + (CURVATURE + row) * LANES]
            row += 1
    return factorise(curvature, 0.0, lower)


@compiled
def settle(lane: int, length: float, curvature: Array, lower: Array, state: Array) -> None:
    """Keep the end of a lane's descent if it is one of the two lowest minima."""
    event, steps = state[lane + EVENT * LANES], state[lane + STEPS * LANES]
    if event == FLED or (event == ENDLESS and not is_convex(lane, curvature, lower, state)):
        reached = -np.inf if event == FLED else state[lane + ENERGY * LANES]
        state[BOTTOMLESS + lane] = min(state[BOTTOMLESS + lane], reached)
        return
    if event == MERGED or steps < 0.0:
        return
    energy, lowest = state[lane + ENERGY * LANES], state[LOWEST + lane]
    if lowest < np.inf and not distance(lane, length, state) > DISTINCT:
        return
    if energy < lowest:
        state[SECOND + lane] = lowest
        state[LOWEST + lane] = energy
        state[KEPT_LOSS + lane] = state[lane + LOSS * LANES]
        state[KEPT_STEPS + lane] = steps if event == CONVERGED else (-steps - 1.0 if event == STUCK else -MAX_NEWTON)
        for i in range(SIZE):
            state[lane + (OTHER + i) * LANES] = state[lane + (BEST + i) * LANES]
            state[lane + (BEST + i) * LANES] = state[lane + (POINT + i) * LANES]
            state[lane + RESIDUAL + i * LANES] = -state[lane + (GRADIENT + i) * LANES]
    elif energy < state[SECOND + lane]:
        state[SECOND + lane] = energy
        for i in range(SIZE):
            state[lane + (OTHER + i) * LANES] = state[lane + (POINT + i) * LANES]


@compiled
def go_to_center(lane: int, length: float, state: Array) -> None:
    """Let a lane's next trial be the centre."""
    state[NEXT + lane] = AT_CENTER
    for i in range(SIZE):
        state[lane + (POINT + i) * LANES] = 0.0
    begin(lane, length, state)


@compiled
def fall_back(lane: int, state: Array) -> None:
    """Take the centre, where the lane's last trial was: no descent found a bottom.  Zero where it is not finite."""
    finite = state[lane + STEPS * LANES] >= 0.0
    state[BOTTOMLESS + lane] = -np.inf
    state[KEPT_LOSS + lane] = state[lane + LOSS * LANES] if finite else 0.0
    state[LOWEST + lane] = state[KEPT_LOSS + lane]
    for i in range(SIZE):
        gradient = state[lane + (GRADIENT + i) * LANES]
        state[lane + RESIDUAL + i * LANES] = -gradient if finite and abs(gradient) < np.inf else 0.0
        state[lane + (BEST + i) * LANES] = 0.0


@compiled
def write(lane: int, nodes: Nodes, solution: Solution, state: Array) -> None:
    """Write what was found for a lane's node."""
    node = int(state[NODE + lane])
    single = state[SECOND + lane] == np.inf
    solution.energies[node, 0] = state[LOWEST + lane]
    solution.energies[node, 1] = state[LOWEST + lane] if single else state[SECOND + lane]
    for minimum in range(2):
        row = BEST if minimum == 0 or single else OTHER
        place(state[lane + row * LANES :: LANES], nodes.centers[node], nodes.factor, solution.minima[node, minimum])
    solution.losses[node] = state[KEPT_LOSS + lane]
    # a descent that goes on above the lowest minimum, as beside two that merge, has not told that there is no bottom
    reached, lowest = state[BOTTOMLESS + lane], state[LOWEST + lane]
    bottomless = reached < lowest - DEEPER * abs(lowest)
    solution.flags[node] = RUNAWAY if bottomless else int(state[KEPT_STEPS + lane])
    for a in range(LENGTH):
        for i in range(COLUMNS):
            solution.residuals[node, a, i] = state[lane + RESIDUAL + (a * COLUMNS + i) * LANES]


@compiled
def goes_on(
    lane: int,
    starts: int,
    nodes: Nodes,
    solution: Solution,
    field: Array,
    curvature: Array,
    lower: Array,
    state: Array,
) -> bool:
    """Whether a lane needs a further trial; where it does not, what was found is written, and the lane is nobody's.

    ``field``, ``curvature`` and ``lower`` are scratch.
    """
    length = nodes.parameters[LENGTH_UNIT]
    if state[NEXT + lane] == AT_CENTER:
        fall_back(lane, state)
    elif state[lane + EVENT * LANES] == GOES_ON:
        return True
    else:
        settle(lane, length, curvature, lower, state)
        if next_start(lane, starts, nodes, solution, field, state):
            return True
        if state[LOWEST + lane] == np.inf:
            go_to_center(lane, length, state)
            return True
    write(lane, nodes, solution, state)
    state[NODE + lane] = NOBODY
    return False


@allocating
def losses_in_blocks(
    fields: Array, teacher_fields: Array, mixing: Array, parameters: Array, variance: Array, losses: Array
) -> None:
    """Loss of every sample at given fields (N, L, r), without any minimisation."""
    h, k = np.zeros(SIZE * LANES), np.zeros(LENGTH * LABEL_FIELDS * LANES)
    targets, found = np.zeros(TARGETS * LANES), np.zeros(LANES)
    for first in range(0, fields.shape[0], LANES):
        to_rows(fields, first, h)
        to_rows(teacher_fields, first, k)
        teacher_targets(k, mixing, parameters, targets)
        lane_losses(h, targets, variance, parameters, found)
        for n in range(min(LANES, fields.shape[0] - first)):
            losses[first + n] = found[n]
