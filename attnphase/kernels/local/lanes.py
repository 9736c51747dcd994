"""The minimiser for smooth losses: nodes of a block begin together, and go on one by one."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from attnphase.arrays import Array

from .compiled import apart, call, compiled
from .constants import (
    CONVERGED,
    ENDLESS,
    FAR,
    FLED,
    GOES_ON,
    IRREGULAR,
    LENGTH_UNIT,
    MAX_NEWTON,
    MERGED,
    PIVOT,
    RUNAWAY,
    STUCK,
    Starts,
)
from .ends import fall_back, forget, keep, write
from .model import Model, Record
from .starts import NONE, ONE, TWO, go_to_start, is_only, unsigned
from .values import Nodes, Room, Solution

__all__ = ["losses_in_lanes", "minimise_in_lanes"]

FEW = unsigned(8)  # one lane in so many may still be under way where the others of its block are not
MOST_STEPS = 50  # that a block makes together: at large V rounding may let a descent go on for ever
DEEPER = 1e-9  # share of itself by which an energy counts as lower than another
WRITTEN = 7.0  # the event of a lane of the block whose node is done
AT_CENTER, VACANT = unsigned(1 << 20), unsigned(1 << 21)


@compiled
def to_rows(m: Record, fields: Array, first: int, count: int, width: int, rows: Array, place: int) -> None:
    """Fields of the next nodes, row by row."""
    for c in range(width):
        for n in range(count):
            rows[place + c * m.lanes + n] = fields[(first + n) * width + c]


@compiled
def put_in(
    m: Record, model: Model, first: int, count: int, starts: int, nodes: Nodes, minima: Array, room: Room
) -> None:
    """Put the next nodes into the lanes of a block, at the first of their starts."""
    lanes, size, block = m.lanes, m.fields, room.block
    to_rows(m, nodes.centers, first, count, size, block, m.center)
    if m.own:
        to_rows(m, nodes.targets, first, count, m.targets, block, m.target)
        to_rows(m, nodes.variance, first, count, m.length * m.length, block, m.variance)
        square = m.columns * m.columns
        for a in range(m.length):
            for c in range(square):
                for n in range(count):
                    site = nodes.sites[(first + n) * m.length + a]
                    block[m.factor + (a * square + c) * lanes + n] = nodes.factor[site * square + c]
    else:
        to_rows(m, nodes.teacher_fields, first, count, m.length * m.label_fields, room.k, NONE)
        call(m.teacher_targets_at, (room.k, nodes.mixing, nodes.parameters, block[m.target :]))
    if not m.newton_step_at:
        block[m.event : m.event + lanes] = CONVERGED
        return
    for c in range(size):
        at, center = m.point + c * lanes, m.center + c * lanes
        for n in range(lanes):
            block[m.step + c * lanes + n] = 0.0
        if starts == Starts.COLD:
            for n in range(lanes):
                block[at + n] = 0.0
        elif starts == Starts.FROM_ZERO:
            for n in range(lanes):
                block[at + n] = -block[center + n]
        else:
            for n in range(count):
                block[at + n] = minima[(first + n) * TWO * size + c] - block[center + n]
        i = model.columns[c]
        for j in range(i):
            share, other = nodes.factor[c * m.columns + j], at - (i - j) * lanes
            for n in range(lanes):
                block[at + n] -= share * block[other + n]
        share = 1.0 / nodes.factor[c * m.columns + i]
        for n in range(lanes):
            block[at + n] *= share
    unit = nodes.parameters[LENGTH_UNIT] ** 2
    for n in range(lanes):
        block[m.energy + n] = np.inf
        block[m.expected + n] = 0.0
        block[m.steps + n] = -1.0
        block[m.event + n] = GOES_ON
        block[m.widest + n] = unit
    for c in range(size):
        for n in range(lanes):
            block[m.widest + n] += block[m.point + c * lanes + n] ** 2
    # that of no loss, from which on it is seen to change
    row = m.curvature
    for i in range(size):
        for j in range(i + ONE):
            for n in range(lanes):
                block[row + n] = 1.0 if i == j else 0.0
            row += lanes


@compiled
def few_go_on(m: Record, count: int, block: Array) -> bool:
    """Whether few of the first lanes of a block are still under way."""
    left = NONE
    for n in range(count):
        left += ONE if block[m.event + n] == GOES_ON else NONE
    return FEW * left <= count


@compiled
def write_out(
    m: Record, model: Model, first: int, count: int, starts: int, nodes: Nodes, solution: Solution, room: Room
) -> None:
    """Write what was found in those lanes of a block that have no further start."""
    lanes, size, block = m.lanes, m.fields, room.block
    minima, energies, losses, residuals, flags = solution
    # the block has no other use for the rows of known minima
    for c in range(size):
        at, i = m.best + c * lanes, model.columns[c]
        for n in range(lanes):
            block[at + n] = block[m.center + c * lanes + n]
        for j in range(i + ONE):
            share, other = nodes.factor[c * m.columns + j], m.point + (c - i + j) * lanes
            for n in range(lanes):
                block[at + n] += share * block[other + n]
    for n in range(count):
        node = first + n
        if block[m.event + n] != CONVERGED or not (starts == Starts.FROM_ZERO or is_only(node, starts, energies)):
            continue
        block[m.event + n] = WRITTEN
        energies[TWO * node] = block[m.energy + n]
        energies[TWO * node + ONE] = block[m.energy + n]
        losses[node] = block[m.loss + n]
        flags[node] = int(block[m.steps + n])
        for c in range(size):
            h = block[m.best + c * lanes + n]
            minima[TWO * node * size + c] = h
            minima[TWO * node * size + size + c] = h
            residuals[node * size + c] = -block[m.gradient + c * lanes + n]


@compiled
def hand_over(
    m: Record, waiting: int, node: int, lane: int, length: float, starts: int, energies: Array, room: Room
) -> None:
    """Put a lane of the block where it goes on with trials; ``length`` is the unit of these."""
    lanes, block, state = m.lanes, room.block, room.state
    event, steps = block[m.event + waiting], block[m.steps + waiting]
    row, end = NONE, m.best if event in (IRREGULAR, GOES_ON) else m.slope
    while row < end:
        state[row + lane] = block[row + waiting]
        row += lanes
    if m.own:
        for row in range(m.fields * m.columns + m.length * m.length):
            state[m.factor + row * lanes + lane] = block[m.factor + row * lanes + waiting]
    state[m.event + lane] = GOES_ON if event == IRREGULAR else event
    state[m.energy + lane] = block[m.energy + waiting]
    state[m.loss + lane] = block[m.loss + waiting]
    state[m.steps + lane] = steps
    state[m.expected + lane] = block[m.expected + waiting]
    state[m.widest + lane] = FAR * block[m.widest + waiting]
    state[m.definite + lane] = 1.0
    state[m.shift + lane] = 0.0
    state[m.tries + lane] = 0.0
    state[m.deepest + lane] = -FAR * (length * length + abs(block[m.energy + waiting])) if steps >= 0.0 else -np.inf
    room.node[lane] = node
    room.next[lane] = ONE if m.newton_step_at else NONE
    room.reached[lane] = np.inf
    room.only[lane] = ONE if is_only(node, starts, energies) else NONE
    forget(node, energies)
    for i in range(m.fields):
        state[m.best + i * lanes + lane] = np.nan
        state[m.other + i * lanes + lane] = np.nan


@compiled
def begin(m: Record, lane: int, length: float, norm: float, state: Array) -> None:
    """Let a lane's next trial be its point, with which a descent begins; ``length`` is the unit of these."""
    for i in range(m.fields):
        state[m.step + i * m.lanes + lane] = 0.0
    state[m.definite + lane] = 1.0
    state[m.expected + lane] = 0.0
    state[m.energy + lane] = np.inf
    state[m.shift + lane] = 0.0
    state[m.steps + lane] = -1.0
    state[m.tries + lane] = 0.0
    state[m.widest + lane] = FAR * (length * length + norm)
    state[m.deepest + lane] = -np.inf
    state[m.event + lane] = GOES_ON


@compiled
def next_start(
    m: Record, model: Model, lane: int, node: int, starts: int, nodes: Nodes, solution: Solution, room: Room
) -> bool:
    """Put the node's next start into its lane; False if there is none."""
    s, state = room.next[lane], room.state
    if s == ONE:
        s += room.only[lane]
    factors, corner, stride = factors_of(m, lane, nodes, state)
    norm = go_to_start(
        m,
        model,
        s,
        starts,
        node,
        nodes,
        solution.minima,
        factors,
        corner,
        stride,
        state,
        m.point + lane,
        m.center + lane,
        m.lanes,
    )
    if norm < 0.0:
        return False
    room.next[lane] = s + ONE
    begin(m, lane, nodes.parameters[LENGTH_UNIT], norm, state)
    return True


@apart
def is_convex(m: Record, lane: int, lower: Array, state: Array) -> bool:
    """Whether the energy is convex where a lane's descent ended."""
    row = m.curvature + lane
    for i in range(m.fields):
        for j in range(i + ONE):
            total = state[row]
            row += m.lanes
            for c in range(j):
                total -= lower[i * m.fields + c] * lower[j * m.fields + c]
            if i > j:
                lower[i * m.fields + j] = total / lower[j * m.fields + j]
            elif total > PIVOT:
                lower[i * m.fields + i] = sqrt(total)
            else:
                return False
    return True


@compiled
def settle(m: Record, lane: int, node: int, nodes: Nodes, solution: Solution, room: Room) -> None:
    """Keep the end of a lane's descent if it is one of the two lowest minima."""
    lanes, state = m.lanes, room.state
    event, steps, energy = state[m.event + lane], state[m.steps + lane], state[m.energy + lane]
    if event == FLED or (event == ENDLESS and not is_convex(m, lane, room.lower, state)):
        room.reached[lane] = min(room.reached[lane], -np.inf if event == FLED else energy)
        return
    u, best, other, gradient = m.point + lane, m.best + lane, m.other + lane, m.gradient + lane
    if event == MERGED or steps < 0.0:
        return
    if keep(m, node, energy, nodes, solution, state, u, best, other, gradient, lanes):
        solution.losses[node] = state[m.loss + lane]
        reached = steps if event == CONVERGED else (-steps - 1.0 if event == STUCK else -MAX_NEWTON)
        solution.flags[node] = int(reached)


@compiled
def factors_of(m: Record, lane: int, nodes: Nodes, state: Array) -> tuple[Array, Any, Any]:
    """Where the Cholesky factors of a lane's tokens are: an array, the place of the first number, and their stride."""
    return (state, m.factor + lane, m.lanes) if m.own else (nodes.factor, NONE, ONE)


@compiled
def goes_on(m: Record, model: Model, lane: int, starts: int, nodes: Nodes, solution: Solution, room: Room) -> bool:
    """Whether a lane whose descent has ended begins another; where it does not, what was found is written."""
    node, state, lanes = room.node[lane], room.state, m.lanes
    best, other = m.best + lane, m.other + lane
    if room.next[lane] == AT_CENTER:
        fall_back(m, node, state[m.energy + lane], solution, state, best, m.gradient + lane, lanes)
        room.reached[lane] = -np.inf
    else:
        if room.next[lane] > NONE:
            settle(m, lane, node, nodes, solution, room)
        if next_start(m, model, lane, node, starts, nodes, solution, room):
            return True
        if solution.energies[TWO * node] == np.inf:
            room.next[lane] = AT_CENTER
            for i in range(m.fields):
                state[m.point + i * lanes + lane] = 0.0
            begin(m, lane, nodes.parameters[LENGTH_UNIT], 0.0, state)
            return True
    factors, corner, stride = factors_of(m, lane, nodes, state)
    write(m, model, node, factors, corner, stride, solution, state, m.center + lane, best, other, lanes)
    lowest = solution.energies[TWO * node]
    # a descent that goes on above the lowest minimum, as beside two that merge, has not told that there is no bottom
    if room.reached[lane] < lowest - DEEPER * abs(lowest):
        solution.flags[node] = RUNAWAY
    return False


@compiled
def attend(
    m: Record,
    model: Model,
    first: int,
    begun: int,
    waiting: int,
    tried: bool,
    starts: int,
    nodes: Nodes,
    solution: Solution,
    room: Room,
) -> tuple[Any, Any]:
    """What happens between trials in the lanes whose descents have ended; next that waits, and how many are busy."""
    state, busy = room.state, NONE
    for lane in range(m.lanes):
        s = room.next[lane]
        if s == VACANT and waiting == begun:
            continue
        # what has been looked at since its last trial waits for the next
        if s != VACANT and (not tried or (state[m.event + lane] == GOES_ON and s != AT_CENTER)):
            busy += ONE
            continue
        vacant = s == VACANT
        while True:
            if vacant:
                while waiting < begun and room.block[m.event + waiting] == WRITTEN:
                    waiting += ONE
                if waiting == begun:
                    room.next[lane] = VACANT
                    break
                length = nodes.parameters[LENGTH_UNIT]
                hand_over(m, waiting, first + waiting, lane, length, starts, solution.energies, room)
                waiting += ONE
                vacant = False
            if (state[m.event + lane] == GOES_ON and s != AT_CENTER) or goes_on(
                m, model, lane, starts, nodes, solution, room
            ):
                busy += ONE
                break
            vacant, s = True, NONE
    return waiting, busy


def minimise_in_lanes(model: Model, nodes: Nodes, starts: int, solution: Solution, room: Room) -> None:
    """Lowest and second-lowest minimum of the local problem of every node, from `Starts`."""
    m = model.numbers[0]
    # whether the block makes steps, how many it has made, and whether the lanes were tried and not looked at since
    together, made, tried = False, 0, model.numbers.size == 0
    # nodes in the block and before, lanes of the block that hold one, the next that waits, and busy lanes of the other
    taken, begun, waiting, busy, count = NONE, NONE, NONE, NONE, unsigned(nodes.centers.size) // m.fields
    room.next[:] = VACANT
    while taken < count or waiting < begun or busy > NONE:
        if together and (made == MOST_STEPS or few_go_on(m, begun, room.block)):
            if starts in (Starts.WARM, Starts.FROM_ZERO):
                write_out(m, model, taken - begun, begun, starts, nodes, solution, room)
            together, waiting = False, NONE
        if not together:
            waiting, busy = attend(m, model, taken - begun, begun, waiting, tried, starts, nodes, solution, room)
            tried = False
            if waiting == begun and taken < count and busy < m.lanes:
                begun, waiting = min(m.lanes, count - taken), NONE
                put_in(m, model, taken, begun, starts, nodes, solution.minima, room)
                taken += begun
                together, made = m.newton_step_at != 0, 0
                if not together:
                    continue
        if together:
            call(m.newton_step_at, (room.block, nodes.factor, nodes.variance, nodes.parameters))
            made += 1
        else:
            call(m.newton_trial_at, (room.state, nodes.factor, nodes.variance, nodes.parameters))
            tried = True


def losses_in_lanes(model: Model, nodes: Nodes, losses: Array, room: Room) -> None:
    """Loss of every sample at given fields, the centres, without any minimisation."""
    m = model.numbers[0]
    count, width, block = unsigned(losses.size), m.length * m.label_fields, room.block
    for number in range((count + m.lanes - ONE) // m.lanes):
        first = number * m.lanes
        some = min(m.lanes, count - first)
        to_rows(m, nodes.centers, first, some, m.fields, block, m.center)
        to_rows(m, nodes.teacher_fields, first, some, width, room.k, NONE)
        call(m.teacher_targets_at, (room.k, nodes.mixing, nodes.parameters, block[m.target :]))
        given = (block[m.center :], block[m.target :], nodes.variance, nodes.parameters, block[m.loss :])
        call(m.lane_losses_at, given)
        for n in range(some):
            losses[first + n] = block[m.loss + n]
