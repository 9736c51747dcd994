"""One step of the minimiser for many samples at once: straight-line code that processors do in parallel lanes.

The state of all lanes is one array, a row of it holding one number of every lane.  The length of a row is known to the
compiler, so that it sees that rows do not overlap.  A lane descends as `attnphase.kernels.local.descent` does, one
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

from sympy import Add, Integer, Mul

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
from derivations.codegen.rows import RowFunctions
from derivations.codegen.unrolled import names_in, scalar, unrolled

__all__ = ["STRAIGHT", "lanes"]

LANES = 64
"""Samples in a block: the rows of a small model then fit into the fastest memory."""

FEW_LANES = 16
"""Samples in a block of a larger model."""

STRAIGHT = 5
"""Fields up to which all rows of the loss are one straight line, which grows with their third power."""

_VALUE, _POSITIVE, _ACCEPTED = map(name, ("value", "positive", "accepted"))


def lanes(problem: Module, apart: RowFunctions | None = None) -> Module:
    """The minimiser's step for a local problem, and the teacher's targets, for blocks of samples.

    Parameters
    ----------
    problem : Module
        As `derivations.codegen.local_problem.local_problem` makes it.
    apart : RowFunctions, optional
        Of a loss with rows, which are done one after another where there are many fields.

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
        block = Block(length, columns, rank, rows.targets, FEW_LANES, rows.scratch())
        made = (_Step(block, (), rows).function(), rows.teacher_targets(block), rows.lane_losses(block))
    else:
        body = unrolled(functions["loss_derivatives"], "value")
        places = [scalar("target", a, b) for a in range(length) for b in range(max(length, rank))]
        read = {symbol for statement in body for symbol in names_in(statement.value)}
        block = Block(length, columns, rank, tuple(place for place in places if place in read), LANES)
        made = (
            _Step(block, body).function(),
            _targets(block, functions["teacher_target"]),
            _losses(block, functions["loss"]),
        )
    return Module({"LANES": block.lanes, **block.rows(), "TARGETS": len(block.targets)}, made)


def _losses(block: Block, function: Function) -> Function:
    """``lane_losses(h, targets, variance, parameters, losses)``: a block's losses from the rows of its fields."""
    shared = [Assign(scalar("parameters", i), element("parameters", i)) for i in range(3)]
    shared += [Assign(scalar("variance", token), element("variance", token)) for token in range(block.length)]
    read = block.fields_of("h", "h", block.columns)
    read += [Assign(place, block.row_of("targets", i)) for i, place in enumerate(block.targets)]
    body = (*read, *unrolled(function, "value"), Assign(element("losses", LANE), _VALUE))
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


def _all(conditions: Iterable[Value]) -> Value:
    return Ordered("&", tuple(conditions))


@dataclass(frozen=True)
class _Step:
    """The statements of one trial in one lane.

    Attributes
    ----------
    block : Block
    derivatives : sequence
        Of the loss, in one straight line, where it has no `rows`.
    rows : RowByRow, optional
    """

    block: Block
    derivatives: Sequence[Any]
    rows: RowByRow | None = None

    def function(self) -> Function:
        """``newton_trial(state, factor, variance, parameters)``."""
        decided = (*self._scaled(), *self._judged(), *self._damped(), *self._kept(), *self._step())
        decided = (*decided, *self._arrived(), *self._written(), *self._ended())
        if self.rows is None:
            loops = self._loop(*self._read(), *self._targets(), *self._trial(), *self.derivatives, *decided)
        else:
            loops = (
                *self._loop(*self._read(), *self._trial(), *self._handed_on(), *self.rows.cleared(self.block)),
                *self.rows.derivatives(self.block),
                *self._loop(*self._read(), *self._taken_up(), *self.rows.collected(self.block), *decided),
            )
        return Function("newton_trial", ("state", "factor", "variance", "parameters"), (*self._shared(), *loops))

    # --- the state ---

    def _loop(self, *body: Statement) -> tuple[Loop, ...]:
        return (Loop(LANE, self.block.lanes, body),)

    def _row(self, quantity: str, number: int = 0) -> Any:
        return self.block.row(quantity, number)

    def _vector(self, quantity: str, names: str) -> list[Assign]:
        return [Assign(scalar(names, i), self._row(quantity, i)) for i in range(self.block.size)]

    def _shared(self) -> Iterator[Assign]:
        """What all lanes share: the parameters, the diagonal of D, the Cholesky factors of V."""
        for i in range(3):
            yield Assign(scalar("parameters", i), element("parameters", i))
        for token in range(self.block.length):
            yield Assign(scalar("variance", token), element("variance", token))
            for i in range(self.block.columns):
                for j in range(i + 1):
                    yield Assign(scalar("factor", token, i, j), element("factor", token, i, j))

    def _read(self) -> Iterator[Assign]:
        """The lane's point, and the step that is to be tried from there."""
        yield from self._vector("POINT", "point")
        yield from self._vector("STEP", "tried")
        yield Assign(name("definite"), self._row("DEFINITE"))
        yield Assign(_POSITIVE, Ordered(">", (name("definite"), 0.0)))

    def _targets(self) -> Iterator[Assign]:
        for number, place in enumerate(self.block.targets):
            yield Assign(place, self._row("TARGET", number))

    # --- what the loops of a trial hand on where the loss is done row by row ---

    def _handed_on(self) -> Iterator[Assign]:
        for i in range(self.block.size):
            yield Assign(self._row("TRIAL", i), scalar("trial", i))
            yield Assign(self._row("FIELD", i), scalar("h", *divmod(i, self.block.columns)))

    def _taken_up(self) -> Iterator[Assign]:
        yield from self._vector("TRIAL", "trial")

    def _trial(self) -> Iterator[Assign]:
        """The trial point ``u`` and its fields ``h = omega + C u``."""
        columns = self.block.columns
        for i in range(self.block.size):
            point = scalar("point", i)
            yield Assign(scalar("trial", i), Select(_POSITIVE, point - scalar("tried", i), point))
        for token in range(self.block.length):
            for i in range(columns):
                place = token * columns + i
                moved = [scalar("factor", token, i, j) * scalar("trial", token * columns + j) for j in range(i + 1)]
                yield Assign(scalar("center", place), self._row("CENTER", place))
                yield Assign(scalar("h", token, i), Add(scalar("center", place), *moved))

    def _scaled(self) -> Iterator[Assign]:
        """Gradient and Hessian of the energy in u, from those of the loss in h."""
        columns = self.block.columns
        for i in range(self.block.size):
            token, j = divmod(i, columns)
            parts = [scalar("factor", token, c, j) * scalar("gradient", token, c) for c in range(j, columns)]
            yield Assign(scalar("new_slope", i), Add(scalar("trial", i), *parts))
        for row, column in self.block.triangle:
            (a, j), (b, l) = divmod(row, columns), divmod(column, columns)
            terms = [
                scalar("factor", a, i, j)
                * scalar("hessian", a * columns + i, b * columns + c)
                * scalar("factor", b, c, l)
                for i in range(j, columns)
                for c in range(l, columns)
            ]
            yield Assign(scalar("new_curvature", row, column), Add(Integer(row == column), *terms))

    # --- what becomes of it ---

    def _judged(self) -> Iterator[Assign]:
        """Whether the trial is accepted: at the start of a descent, whose energy is infinite, if it is finite."""
        for quantity in ("ENERGY", "LOSS", "SHIFT", "STEPS", "TRIES", "EXPECTED"):
            yield Assign(name(quantity.lower()), self._row(quantity))
        energy, trial, first = name("energy"), name("trial_energy"), name("first")
        norm, rounding, size = name("norm"), name("ROUNDING"), self.block.size
        yield Assign(norm, Add(*(scalar("trial", i) ** 2 for i in range(size))))
        yield Assign(trial, norm / 2 + _VALUE)
        yield Assign(first, Ordered("<", (name("steps"), 0.0)))
        lower = Select(first, name("FINITE"), energy - name("DECREASE") * name("expected"))
        within = Select(first, 0.0, Ordered("*", (rounding, Ordered("+", (1.0, _size_of(energy))))))
        yield Assign(name("bound"), Ordered("+", (lower, within)))
        compared = Select(first, _size_of(trial), trial)
        yield Assign(_ACCEPTED, _all([_POSITIVE, Ordered("<=", (compared, name("bound")))]))

    def _damped(self) -> Iterator[Assign]:
        """Damping eases where a step was accepted, and rises where it was not or the matrix is not positive."""
        shift = name("shift")
        eased = Select(Ordered("<", (shift, name("NO_SHIFT"))), 0.0, Ordered("*", (name("EASED"), shift)))
        steeper = Select(_POSITIVE, name("STEEPER"), name("CONVEX"))
        raised = Call("largest_of", (Ordered("*", (steeper, shift)), name("FIRST_SHIFT")))
        yield Assign(name("eased"), eased)
        yield Assign(name("raised"), raised)
        yield Assign(name("damping"), Select(_ACCEPTED, name("eased"), name("raised")))

    def _kept(self) -> Iterator[Assign]:
        """Slope and curvature at the lane's point, the trial where that was accepted; none where none ever was."""
        first = name("first")
        for i in range(self.block.size):
            old = scalar("old_slope", i)
            yield Assign(old, Select(first, 0.0, self._row("SLOPE", i)))
            yield Assign(scalar("slope", i), Select(_ACCEPTED, scalar("new_slope", i), old))
        for number, (i, j) in enumerate(self.block.triangle):
            old = scalar("old_curvature", i, j)
            yield Assign(old, Select(first, float(i == j), self._row("CURVATURE", number)))
            yield Assign(scalar("curvature", i, j), Select(_ACCEPTED, scalar("new_curvature", i, j), old))

    # --- the next step: (curvature + damping I) step = slope ---

    def _step(self) -> Iterator[Assign]:
        """By the factors of Cholesky without roots: lower triangle, pivots and their reciprocals."""
        size = self.block.size
        pivots = [scalar("pivot", i) for i in range(size)]
        for j in range(size):
            reduced = [-scalar("lower", j, c) * scalar("product", j, c) for c in range(j)]
            yield Assign(pivots[j], Add(scalar("curvature", j, j), name("damping"), *reduced))
            yield Assign(scalar("inverse", j), Ordered("/", (1.0, pivots[j])))
            for i in range(j + 1, size):
                reduced = [-scalar("lower", i, c) * scalar("product", j, c) for c in range(j)]
                yield Assign(scalar("product", i, j), Add(scalar("curvature", i, j), *reduced))
                yield Assign(scalar("lower", i, j), scalar("product", i, j) * scalar("inverse", j))
        yield Assign(name("solvable"), _all(Ordered(">", (pivot, name("PIVOT"))) for pivot in pivots))
        for i in range(size):
            before = [-scalar("lower", i, c) * scalar("half", c) for c in range(i)]
            yield Assign(scalar("half", i), Add(scalar("slope", i), *before))
        for i in reversed(range(size)):
            after = [-scalar("lower", c, i) * scalar("step", c) for c in range(i + 1, size)]
            yield Assign(scalar("step", i), Add(scalar("half", i) * scalar("inverse", i), *after))
        yield Assign(name("decrease"), Add(*(scalar("slope", i) * scalar("step", i) for i in range(size))))

    def _arrived(self) -> Iterator[Assign]:
        """Whether the next step leads to the minimum: it is small, and the slope it leaves is below the tolerance.

        That slope is half of how much the curvature changes along the step, times the step; by how much the curvature
        has changed along the step before, in proportion.
        """
        size = self.block.size
        before, now, left, scale = map(name, ("tried_square", "step_square", "left_square", "point_scale"))
        yield Assign(before, Add(*(scalar("tried", i) ** 2 for i in range(size))))
        yield Assign(now, Add(*(scalar("step", i) ** 2 for i in range(size))))
        yield Assign(scale, 1 + name("norm"))
        slopes = Add(*(scalar("new_slope", i) ** 2 for i in range(size)))
        bound = Mul(name("GRADIENT_TOLERANCE") ** 2, scale, evaluate=False)
        yield Assign(name("level"), Ordered("<=", (slopes, bound)))
        for i, j in self.block.triangle:
            change = scalar("new_curvature", i, j) - scalar("old_curvature", i, j)
            yield Assign(scalar("curving", i, j), change)
        for i in range(size):
            parts = [scalar("curving", max(i, j), min(i, j)) * scalar("step", j) for j in range(size)]
            yield Assign(scalar("bend", i), Add(*parts))
        yield Assign(left, Add(*(scalar("bend", i) ** 2 for i in range(size))))
        small = Ordered("<=", (now, Mul(name("CLOSE") ** 2, scale, evaluate=False)))
        bound = Mul((2 * name("GRADIENT_TOLERANCE")) ** 2, scale, before, evaluate=False)
        vanishing = Ordered("<=", (Ordered("*", (left, now)), bound))
        undamped = Ordered("<=", (name("damping"), 0.0))
        leads = _all([_ACCEPTED, name("solvable"), undamped, small, vanishing])
        yield Assign(name("arrived"), Select(name("level"), False, leads))

    def _written(self) -> Iterator[Statement]:
        """The accepted trial becomes the lane's point, or the minimum where the step leads there."""
        columns, size = self.block.columns, self.block.size
        arrived, step = name("arrived"), [scalar("step", i) for i in range(size)]
        for i in range(size):
            token, j = divmod(i, columns)
            parts = [scalar("factor", token, j, c) * step[token * columns + c] for c in range(j + 1)]
            yield Assign(scalar("moved", i), Add(*parts))
        for i in range(size):
            trial = scalar("trial", i)
            yield self._chosen("POINT", i, Select(arrived, trial - step[i], trial), scalar("point", i))
            yield Assign(self._row("SLOPE", i), scalar("slope", i))
            yield Assign(self._row("STEP", i), step[i])
            place, now = self._row("GRADIENT", i), scalar("gradient", *divmod(i, columns))
            change = [scalar("hessian", max(i, j), min(i, j)) * scalar("moved", j) for j in range(size)]
            yield Assign(scalar("change", i), Add(*change))
            yield Assign(scalar("old_gradient", i), place)
            new = Select(arrived, now - scalar("change", i), now)
            yield self._chosen("GRADIENT", i, new, scalar("old_gradient", i))
        for number, entry in enumerate(self.block.triangle):
            yield Assign(self._row("CURVATURE", number), scalar("curvature", *entry))
        yield Assign(self._row("EXPECTED"), name("decrease"))
        yield Assign(self._row("DEFINITE"), Select(name("solvable"), 1.0, 0.0))
        # the energy is quadratic there, and its first part exactly so
        norm_change = Add(*(scalar("trial", i) * step[i] for i in range(size)), -name("step_square") / 2)
        yield Assign(name("norm_change"), norm_change)
        energy, loss = name("trial_energy"), _VALUE
        lower = Select(arrived, energy - name("decrease") / 2, energy)
        yield self._chosen("ENERGY", 0, lower, name("energy"))
        lower = Select(arrived, loss - name("decrease") / 2 + name("norm_change"), loss)
        yield self._chosen("LOSS", 0, lower, name("loss"))
        yield Assign(self._row("SHIFT"), name("damping"))
        made = Select(arrived, 2.0, 1.0)
        yield Assign(name("new_steps"), Select(_ACCEPTED, Ordered("+", (name("steps"), made)), name("steps")))
        yield Assign(name("new_tries"), Select(_ACCEPTED, 0.0, Ordered("+", (name("tries"), 1.0))))
        yield Assign(self._row("STEPS"), name("new_steps"))
        yield Assign(self._row("TRIES"), name("new_tries"))

    def _chosen(self, quantity: str, number: int, new: Value, old: Value) -> Assign:
        return Assign(self._row(quantity, number), Select(_ACCEPTED, new, old))

    # --- what becomes of it ---

    def _ended(self) -> Iterator[Assign]:
        """What has happened to the descent: 0 for nothing."""
        norm, trial, first = name("norm"), name("trial_energy"), name("first")
        yield Assign(name("deepest"), self._row("DEEPEST"))
        yield Assign(name("widest"), self._row("WIDEST"))
        inside = _all([Ordered("<", (norm, name("widest"))), Ordered(">", (trial, name("deepest")))])
        yield Assign(name("inside"), inside)
        fall = Ordered("*", (-name("FAR"), Ordered("+", (1.0, _size_of(trial)))))
        started = _all([first, _ACCEPTED])
        yield Assign(self._row("DEEPEST"), Select(started, fall, name("deepest")))
        yield Assign(name("flat"), Ordered("|", (name("level"), name("arrived"))))
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
        yield self._chosen("EVENT", 0, name("if_accepted"), name("if_refused"))

    def _near(self, quantity: str, minimum: str) -> Iterator[Assign]:
        """Whether the trial is as close to a known minimum as a captured descent; an unknown one is not a number."""
        yield from self._vector(quantity, minimum)
        close = []
        for i in range(self.block.size):
            known = scalar(minimum, i)
            width = Ordered("*", (name("CAPTURED"), Ordered("+", (1.0, _size_of(known)))))
            close.append(Ordered("<=", (_size_of(scalar("trial", i) - known), width)))
        yield Assign(name(f"near_{minimum}"), _all(close))


def _size_of(value: Value) -> Call:
    return Call("modulus", (value,))


def _choice(cases: Sequence[tuple[Value, Value]], otherwise: Value) -> Value:
    """The value of the first case whose condition holds."""
    return reduce(lambda rest, case: Select(case[0], case[1], rest), reversed(cases), otherwise)
