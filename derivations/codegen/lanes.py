"""One step of the minimiser for many samples at once: straight-line code that processors do in parallel lanes.

The state of all lanes is one array, a row of it holding one number of every lane.  The length of a row is known to the
compiler, so that it sees that rows do not overlap.  A lane descends one
trial of a damped Newton step at a time: it evaluates the loss with its derivatives at the trial point, accepts it or
raises the damping, and factorises the damped Hessian for the next step.  A step that is known to lead to the minimum is
made at once, by the derivatives that are known already: no trial is spent to see that the gradient is zero there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any

from sympy import Add

from derivations.codegen.ir import (
    Assign,
    Call,
    Function,
    Loop,
    Module,
    Ordered,
    Select,
    Statement,
    Value,
    element,
    name,
)
from derivations.codegen.lane_rows import RowByRow
from derivations.codegen.lane_state import LANE, Block
from derivations.codegen.lane_steps import ACCEPTED, ARGUMENTS, UNIT, VALUE, LaneStep, all_of, size_of
from derivations.codegen.rows import RowFunctions
from derivations.codegen.unrolled import names_in, scalar, unrolled

__all__ = ["STRAIGHT", "lanes", "straight_block"]

LANES = 64
"""Samples in a block: the rows of a small model then fit into the fastest memory."""

FEW_LANES = 16
"""Samples in a block of a larger model."""

STRAIGHT = 5
"""Fields up to which all rows of the loss are one straight line, which grows with their third power."""

_POSITIVE = name("positive")


def lanes(problem: Module, apart: RowFunctions | None = None, *, own: bool = False) -> Module:
    """The minimiser's step for a local problem, and the teacher's targets, for blocks of samples.

    Parameters
    ----------
    problem : Module
        As `derivations.codegen.local_problem.local_problem` makes it.
    apart : RowFunctions, optional
        Of a loss with rows, which are done one after another where there are many fields.
    own : bool
        Whether every sample has its own weights of the loss, and its own V, as at finite d.

    Returns
    -------
    Module
        ``newton_trial`` of a block's state and of what its samples share, ``teacher_targets`` and ``lane_losses``.  The
        constants say where the state's rows are.
    """
    functions = {function.name: function for function in problem.functions}
    length, columns, rank = (problem.constants[key] for key in ("LENGTH", "COLUMNS", "LABEL_FIELDS"))
    if apart is not None and length * columns > STRAIGHT:
        rows = RowByRow(length, columns, rank, apart)
        block = Block(
            length, columns, rank, rows.targets, FEW_LANES, _weights(rows.bodies), own, scratch=rows.scratch()
        )
        made = (_Trial(block, (), rows).function(), rows.teacher_targets(block), rows.lane_losses(block))
    else:
        block, body = straight_block(problem, own=own)
        made = (
            _Trial(block, body).function(),
            _targets(block, functions["teacher_target"]),
            _losses(block, functions["loss"]),
        )
    constants: dict[str, Any] = {"LANES": block.lanes, **block.rows(), "TARGETS": len(block.targets)}
    if own:
        constants["TARGET_ENTRIES"] = _entries("target", block.targets) or ((0, 0),)
    return Module(constants, made)


def _weights(bodies: Iterable[Iterable[Assign]]) -> tuple[tuple[int, ...], ...]:
    """The entries of its weights that a loss reads."""
    read = set[Any]().union(*(names_in(one.value) for body in bodies for one in body))
    return _entries("variance", sorted(read, key=str))


def _entries(array: str, names: Iterable[Any]) -> tuple[tuple[int, ...], ...]:
    """The indices of those names that are entries of an array."""
    found = (str(one).split("_")[1:] for one in names if str(one).startswith(f"{array}_"))
    return tuple(tuple(map(int, indices)) for indices in found)


def straight_block(problem: Module, *, own: bool = False) -> tuple[Block, tuple[Assign, ...]]:
    """A block of samples whose loss is done in one straight line, and its derivatives in that form."""
    length, columns, rank = (problem.constants[key] for key in ("LENGTH", "COLUMNS", "LABEL_FIELDS"))
    body = unrolled(next(one for one in problem.functions if one.name == "loss_derivatives"), "value")
    places = [scalar("target", a, b) for a in range(length) for b in range(max(length, rank))]
    read = {symbol for statement in body for symbol in names_in(statement.value)}
    targets = tuple(place for place in places if place in read)
    shared = sorted({0, 1, 2} | {place for (place,) in _entries("parameters", read)})
    return Block(length, columns, rank, targets, LANES, _weights([body]), own, tuple(shared)), body


def _losses(block: Block, function: Function) -> Function:
    """``lane_losses(h, targets, variance, parameters, losses)``: a block's losses from the rows of its fields."""
    shared = block.parameters_of_all()
    shared += block.weights_of_all()
    read = block.fields_of("h", "h", block.columns)
    read += [Assign(place, block.row_of("targets", i)) for i, place in enumerate(block.targets)]
    body = (*read, *unrolled(function, "value"), Assign(element("losses", LANE), VALUE))
    arguments = ("h", "targets", "variance", "parameters", "losses")
    return Function("lane_losses", arguments, (*shared, Loop(LANE, block.lanes, body)))


def _targets(block: Block, function: Function) -> Function:
    """``teacher_targets(k, mixing, parameters, targets)``: rows of a block's targets from the rows of its fields."""
    length = block.length
    shared = [Assign(scalar("parameters", i), element("parameters", i)) for i in (0, 2)]
    shared += [
        Assign(scalar("mixing", a, b), element("mixing", a, b)) for a, b in product(range(length), range(length))
    ]
    read = block.fields_of("k", "k", block.label_fields)
    written = [Assign(block.row_of("targets", number), place) for number, place in enumerate(block.targets)]
    body = (*read, *unrolled(function, "nothing"), *written)
    loop = Loop(LANE, block.lanes, body)
    return Function("teacher_targets", ("k", "mixing", "parameters", "targets"), (*shared, loop))


@dataclass(frozen=True)
class _Trial(LaneStep):
    """The statements of one trial in one lane.

    Attributes
    ----------
    derivatives : sequence
        Of the loss, in one straight line, where it has no `rows`.
    rows : RowByRow, optional
    """

    derivatives: Sequence[Any]
    rows: RowByRow | None = None

    def function(self) -> Function:
        """``newton_trial(state, factor, variance, parameters)``."""
        decided = (*self.scaled(), *self.energy(), *self._judged(), *self._damped(), *self._kept(), *self.step())
        decided = (*decided, *self.arrived(), *self.written(), *self._next(), *self._ended())
        if self.rows is None:
            tried = (*self._read(), *self.targets(), *self.factors(), *self.fields(), *self.derivatives)
            loops = self._loop(*tried, *decided)
        else:
            cleared, collected = self.rows.cleared(self.block), self.rows.collected(self.block)
            loops = (
                *self._loop(*self._read(), *self.factors(), *self.fields(), *self._handed_on(), *cleared),
                *self.rows.derivatives(self.block),
                *self._loop(*self._read(), *self.factors(), *self._taken_up(), *collected, *decided),
            )
        return Function("newton_trial", ARGUMENTS, (*self.shared(), *loops))

    def _loop(self, *body: Statement) -> tuple[Loop, ...]:
        return (Loop(LANE, self.block.lanes, body),)

    def _read(self) -> Iterator[Assign]:
        """The lane's point, and the trial by the step that is to be made from there, if there is one."""
        yield from self.vector("POINT", "point")
        yield from self.vector("STEP", "tried")
        yield Assign(name("definite"), self.row("DEFINITE"))
        yield Assign(_POSITIVE, Ordered(">", (name("definite"), 0.0)))
        for i in range(self.block.size):
            point = scalar("point", i)
            yield Assign(scalar("trial", i), Select(_POSITIVE, point - scalar("tried", i), point))

    # --- what the loops of a trial hand on where the loss is done row by row ---

    def _handed_on(self) -> Iterator[Assign]:
        for i in range(self.block.size):
            yield Assign(self.row("TRIAL", i), scalar("trial", i))
            yield Assign(self.row("FIELD", i), scalar("h", *divmod(i, self.block.columns)))

    def _taken_up(self) -> Iterator[Assign]:
        yield from self.vector("TRIAL", "trial")

    # --- what becomes of it ---

    def _judged(self) -> Iterator[Assign]:
        """Whether the trial is accepted: at the start of a descent, whose energy is infinite, if it is finite."""
        for quantity in ("SHIFT", "TRIES"):
            yield Assign(name(quantity.lower()), self.row(quantity))
        energy, trial, first = name("energy"), name("trial_energy"), name("first")
        yield Assign(first, Ordered("<", (name("steps"), 0.0)))
        lower = Select(first, name("FINITE"), energy - name("DECREASE") * name("expected"))
        within = Select(first, 0.0, Ordered("*", (name("ROUNDING"), Ordered("+", (UNIT, size_of(energy))))))
        yield Assign(name("bound"), Ordered("+", (lower, within)))
        compared = Select(first, size_of(trial), trial)
        yield Assign(ACCEPTED, all_of([_POSITIVE, Ordered("<=", (compared, name("bound")))]))

    def _damped(self) -> Iterator[Assign]:
        """Damping eases where a step was accepted, and rises where it was not or the matrix is not positive."""
        shift = name("shift")
        eased = Select(Ordered("<", (shift, name("NO_SHIFT"))), 0.0, Ordered("*", (name("EASED"), shift)))
        steeper = Select(_POSITIVE, name("STEEPER"), name("CONVEX"))
        raised = Call("largest_of", (Ordered("*", (steeper, shift)), name("FIRST_SHIFT")))
        yield Assign(name("eased"), eased)
        yield Assign(name("raised"), raised)
        yield Assign(name("damping"), Select(ACCEPTED, name("eased"), name("raised")))

    def _kept(self) -> Iterator[Assign]:
        """Slope and curvature at the lane's point, the trial where that was accepted; none where none ever was."""
        first = name("first")
        for i in range(self.block.size):
            old = scalar("old_slope", i)
            yield Assign(old, Select(first, 0.0, self.row("SLOPE", i)))
            yield Assign(scalar("slope", i), Select(ACCEPTED, scalar("new_slope", i), old))
        for number, (i, j) in enumerate(self.block.triangle):
            old = scalar("old_curvature", i, j)
            yield Assign(old, Select(first, float(i == j), self.row("CURVATURE", number)))
            yield Assign(scalar("curvature", i, j), Select(ACCEPTED, scalar("new_curvature", i, j), old))

    def _next(self) -> Iterator[Assign]:
        """What the next trial begins with."""
        for i in range(self.block.size):
            yield Assign(self.row("SLOPE", i), scalar("slope", i))
            yield Assign(self.row("STEP", i), scalar("step", i))
        for number, entry in enumerate(self.block.triangle):
            yield Assign(self.row("CURVATURE", number), scalar("curvature", *entry))
        yield Assign(self.row("EXPECTED"), name("decrease"))
        yield Assign(self.row("DEFINITE"), Select(name("solvable"), 1.0, 0.0))
        yield Assign(self.row("SHIFT"), name("damping"))
        yield Assign(name("new_tries"), Select(ACCEPTED, 0.0, Ordered("+", (name("tries"), 1.0))))
        yield Assign(self.row("TRIES"), name("new_tries"))

    def _ended(self) -> Iterator[Assign]:
        """What has happened to the descent: 0 for nothing."""
        norm, trial, first = name("norm"), name("trial_energy"), name("first")
        yield Assign(name("deepest"), self.row("DEEPEST"))
        yield Assign(name("widest"), self.row("WIDEST"))
        inside = all_of([Ordered("<", (norm, name("widest"))), Ordered(">", (trial, name("deepest")))])
        yield Assign(name("inside"), inside)
        fall = Ordered("*", (-name("FAR"), Ordered("+", (UNIT, size_of(trial)))))
        started = all_of([first, ACCEPTED])
        yield Assign(self.row("DEEPEST"), Select(started, fall, name("deepest")))
        yield from self._near("BEST", "best")
        yield from self._near("OTHER", "other")
        known = Ordered("|", (name("near_best"), name("near_other")))
        yield Assign(name("merged"), Select(first, False, known))
        endless = Select(Ordered("<", (name("new_steps"), name("MAX_NEWTON"))), name("GOES_ON"), name("ENDLESS"))
        accepted = _choice(
            [(name("merged"), name("MERGED")), (name("flat"), name("CONVERGED"))],
            endless,
        )
        accepted = Select(name("inside"), accepted, name("FLED"))
        refused = Select(Ordered("<", (name("new_tries"), name("MAX_TRIES"))), name("GOES_ON"), name("STUCK"))
        yield Assign(name("if_accepted"), accepted)
        yield Assign(name("if_refused"), refused)
        yield self.chosen("EVENT", 0, name("if_accepted"), name("if_refused"))

    def _near(self, quantity: str, minimum: str) -> Iterator[Assign]:
        """Whether the trial is as close to a known minimum as a captured descent; an unknown one is not a number."""
        yield from self.vector(quantity, minimum)
        known = [scalar(minimum, i) for i in range(self.block.size)]
        apart = Add(*((scalar("trial", i) - one) ** 2 for i, one in enumerate(known)))
        width = Ordered("*", (name("CAPTURED") ** 2, Add(*(one**2 for one in known))))
        yield Assign(name(f"near_{minimum}"), Ordered("<=", (apart, width)))


def _choice(cases: Sequence[tuple[Value, Value]], otherwise: Value) -> Value:
    """The value of the first case whose condition holds."""
    return reduce(lambda rest, case: Select(case[0], case[1], rest), reversed(cases), otherwise)
