"""A Newton step for many samples at once where a descent is regular: no damping, and no look at known minima.

It does what a trial of `derivations.codegen.lanes` does there, in three quarters of its instructions.  Where the energy
does not fall enough, or the curvature is not positive, a lane stays as it was: the trial then begins in the same place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sympy import Symbol

from derivations.codegen.ir import Assign, Function, Loop, Module, Ordered, Select, name
from derivations.codegen.lane_state import LANE, Block
from derivations.codegen.lane_steps import ACCEPTED, ARGUMENTS, UNIT, LaneStep, all_of, size_of
from derivations.codegen.lanes import straight_block
from derivations.codegen.unrolled import renamed, scalar

__all__ = ["steps"]

_FEW_FIELDS = 2  # up to which the numbers of two lanes find room in a processor's registers
_AT_A_TIME = 10  # statements of one lane before it is another's turn


def steps(problem: Module) -> Module:
    """The regular step for a local problem of few fields, in blocks of samples.

    Parameters
    ----------
    problem : Module
        As `derivations.codegen.local_problem.local_problem` makes it.

    Returns
    -------
    Module
        ``newton_step`` of a block's state and of what its samples share.
    """
    return Module({}, (_RegularStep(*straight_block(problem)).function(),))


def _side_by_side(body: Sequence[Assign], block: Block) -> Loop:
    """The loop over the lanes; of few fields two lanes are done in turn, so that none waits for its own numbers."""
    if block.size > _FEW_FIELDS:
        return Loop(LANE, block.lanes, tuple(body))
    half, names = block.lanes // 2, [statement.place for statement in body if isinstance(statement.place, Symbol)]
    second = {LANE: LANE + half} | {old: name(f"{old}_of_second") for old in names}
    both: list[Assign] = []
    for first in range(0, len(body), _AT_A_TIME):
        some = body[first : first + _AT_A_TIME]
        both += [*some, *(Assign(renamed(one.place, second), renamed(one.value, second)) for one in some)]
    return Loop(LANE, half, tuple(both))


@dataclass(frozen=True)
class _RegularStep(LaneStep):
    """The statements of one step that need neither damping nor a look at known minima.

    Attributes
    ----------
    derivatives : sequence
        Of the loss, in one straight line.
    """

    derivatives: Sequence[Any]

    def function(self) -> Function:
        """``newton_step(state, factor, variance, parameters)``."""
        tried = (*self._read(), *self.targets(), *self.fields(), *self.derivatives, *self.scaled(), *self.energy())
        body = (*tried, *self._undamped(), *self.step(), *self._judged(), *self.arrived(), *self.written())
        loop = _side_by_side((*body, *self._next(), *self._ended()), self.block)
        return Function("newton_step", ARGUMENTS, (*self.shared(), loop))

    def _read(self) -> Iterator[Assign]:
        """The lane's point, and the trial by the step that is to be made from there."""
        yield from self.vector("POINT", "point")
        yield from self.vector("STEP", "tried")
        for i in range(self.block.size):
            yield Assign(scalar("trial", i), scalar("point", i) - scalar("tried", i))

    def _undamped(self) -> Iterator[Assign]:
        yield Assign(name("damping"), 0.0)
        for i in range(self.block.size):
            yield Assign(scalar("slope", i), scalar("new_slope", i))
        for number, (i, j) in enumerate(self.block.triangle):
            yield Assign(scalar("old_curvature", i, j), self.row("CURVATURE", number))
            yield Assign(scalar("curvature", i, j), scalar("new_curvature", i, j))

    def _judged(self) -> Iterator[Assign]:
        """Whether a descent that is under way goes down here as one expects, and the curvature is positive."""
        energy, trial = name("energy"), name("trial_energy")
        lower = energy - name("DECREASE") * name("expected")
        within = Ordered("*", (name("ROUNDING"), Ordered("+", (UNIT, size_of(energy)))))
        yield Assign(name("event"), self.row("EVENT"))
        yield Assign(name("bound"), Ordered("+", (lower, within)))
        yield Assign(name("far"), name("FAR") * UNIT)
        yield Assign(name("under_way"), Ordered("<=", (name("event"), name("GOES_ON"))))
        regular = (
            name("under_way"),
            name("solvable"),
            Ordered("<=", (trial, name("bound"))),
            Ordered("<", (size_of(trial), name("far"))),
            Ordered("<", (name("norm"), name("far"))),
        )
        yield Assign(ACCEPTED, all_of(regular))

    def _next(self) -> Iterator[Assign]:
        """What the next step begins with; all stays as it was where this one is not regular."""
        for i in range(self.block.size):
            yield Assign(scalar("old_slope", i), self.row("SLOPE", i))
            yield self.chosen("SLOPE", i, scalar("slope", i), scalar("old_slope", i))
            yield self.chosen("STEP", i, scalar("step", i), scalar("tried", i))
        for number, entry in enumerate(self.block.triangle):
            yield self.chosen("CURVATURE", number, scalar("curvature", *entry), scalar("old_curvature", *entry))
        yield self.chosen("EXPECTED", 0, name("decrease"), name("expected"))

    def _ended(self) -> Iterator[Assign]:
        ended = Select(name("flat"), name("CONVERGED"), name("GOES_ON"))
        yield Assign(name("if_refused"), Select(name("under_way"), name("IRREGULAR"), name("event")))
        yield self.chosen("EVENT", 0, ended, name("if_refused"))
