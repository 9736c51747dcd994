"""One step of the minimiser for many samples at once: straight-line code that processors do in parallel lanes.

The state of all lanes is one array, a row of it holding one number of every lane.  The length of a row is known to the
compiler, so that it sees that rows do not overlap.  A lane descends as `attnphase.kernels.local.descent` does, one
trial of a damped Newton step at a time: an iteration factorises the damped Hessian, evaluates the loss with its
derivatives at the trial point, and accepts it or raises the damping.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any

from sympy import Add, Expr, Integer, Mul, Symbol

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
from derivations.codegen.unrolled import scalar, unrolled

__all__ = ["LANES", "lanes"]

LANES = 64
"""Samples in a block: the rows of a small model then fit into the fastest memory."""

_N = Symbol("n", integer=True)
_VALUE, _POSITIVE, _ACCEPTED = map(name, ("value", "positive", "accepted"))


@dataclass(frozen=True)
class _Sizes:
    """Numbers of tokens, columns of student and teacher, and the entries of the target that the loss reads."""

    length: int
    columns: int
    teacher_rank: int
    targets: tuple[Any, ...]

    @property
    def size(self) -> int:
        """Fields of a sample."""
        return self.length * self.columns

    @property
    def triangle(self) -> list[tuple[int, int]]:
        """Entries of a symmetric matrix."""
        return [(i, j) for i in range(self.size) for j in range(i + 1)]

    def rows(self) -> dict[str, int]:
        """The first row of every quantity, and their number."""
        widths = {
            "CENTER": self.size,
            "TARGET": len(self.targets),
            "POINT": self.size,
            "GRADIENT": self.size,
            "SLOPE": self.size,
            "CURVATURE": len(self.triangle),
            "BEST": self.size,
            "OTHER": self.size,
            **dict.fromkeys(("ENERGY", "LOSS", "SHIFT", "STEPS", "TRIES", "WIDEST", "DEEPEST", "EVENT"), 1),
        }
        rows, first = {}, 0
        for quantity, width in widths.items():
            rows[quantity] = first
            first += width
        return rows | {"ROWS": first}


def lanes(problem: Module) -> Module:
    """The minimiser's step for a local problem, and the teacher's targets, for blocks of samples.

    Parameters
    ----------
    problem : Module
        As `derivations.codegen.local_problem.local_problem` makes it.

    Returns
    -------
    Module
        ``newton_trial`` of a block's state and of what its samples share, ``teacher_targets`` and ``lane_losses``.  The
        constants say where the state's rows are.
    """
    functions = {function.name: function for function in problem.functions}
    body = unrolled(functions["loss_derivatives"], "value")
    length, columns, rank = (problem.constants[key] for key in ("LENGTH", "COLUMNS", "TEACHER_RANK"))
    places = [scalar("target", a, b) for a in range(length) for b in range(max(length, rank))]
    read = {symbol for statement in body for symbol in _names_in(statement.value)}
    sizes = _Sizes(length, columns, rank, tuple(place for place in places if place in read))
    constants = {"LANES": LANES, **sizes.rows(), "TARGETS": len(sizes.targets)}
    made = (
        _Step(sizes, body).function(),
        _targets(sizes, functions["teacher_target"]),
        _losses(sizes, functions["loss"]),
    )
    return Module(constants, made)


def _losses(sizes: _Sizes, function: Function) -> Function:
    """``lane_losses(h, targets, variance, parameters, losses)``: a block's losses from the rows of its fields."""
    shared = [Assign(scalar("parameters", i), element("parameters", i)) for i in range(3)]
    shared += [Assign(scalar("variance", token), element("variance", token)) for token in range(sizes.length)]
    read = [Assign(scalar("h", *divmod(i, sizes.columns)), element("h", _N + i * LANES)) for i in range(sizes.size)]
    read += [Assign(place, element("targets", _N + i * LANES)) for i, place in enumerate(sizes.targets)]
    body = (*read, *unrolled(function, "value"), Assign(element("losses", _N), _VALUE))
    arguments = ("h", "targets", "variance", "parameters", "losses")
    return Function("lane_losses", arguments, (*shared, Loop(_N, LANES, body)))


def _targets(sizes: _Sizes, function: Function) -> Function:
    """``teacher_targets(k, mixing, parameters, targets)``: rows of a block's targets from the rows of its fields."""
    length, rank = sizes.length, sizes.teacher_rank
    shared = [Assign(scalar("parameters", i), element("parameters", i)) for i in (0, 2)]
    shared += [
        Assign(scalar("mixing", a, b), element("mixing", a, b)) for a, b in product(range(length), range(length))
    ]
    read = [
        Assign(scalar("k", a, c), element("k", _N + (a * rank + c) * LANES))
        for a, c in product(range(length), range(rank))
    ]
    written = [Assign(element("targets", _N + number * LANES), place) for number, place in enumerate(sizes.targets)]
    body = (*read, *unrolled(function, "nothing"), *written)
    return Function("teacher_targets", ("k", "mixing", "parameters", "targets"), (*shared, Loop(_N, LANES, body)))


def _names_in(value: Any) -> set[Any]:
    """The names in a value."""
    if isinstance(value, Expr):
        return set(value.free_symbols)
    if isinstance(value, Ordered):
        return set().union(*map(_names_in, value.values))
    if isinstance(value, Call):
        return set().union(*map(_names_in, value.arguments))
    return set()


def _all(conditions: Iterable[Value]) -> Value:
    return Ordered("&", tuple(conditions))


@dataclass(frozen=True)
class _Step:
    """The statements of one trial in one lane."""

    sizes: _Sizes
    derivatives: Sequence[Any]

    def function(self) -> Function:
        """``newton_trial(state, factor, variance, parameters)``."""
        body = (
            *self._read(),
            *self._step(),
            *self._trial(),
            *self.derivatives,
            *self._scaled(),
            *self._judged(),
            *self._written(),
            *self._damped(),
            *self._ended(),
        )
        return Function(
            "newton_trial",
            ("state", "factor", "variance", "parameters"),
            (*self._shared(), Loop(_N, LANES, body)),
        )

    # --- the state ---

    def _row(self, quantity: str, number: int = 0) -> Any:
        return element("state", _N + (self.sizes.rows()[quantity] + number) * LANES)

    def _vector(self, quantity: str, names: str) -> list[Assign]:
        return [Assign(scalar(names, i), self._row(quantity, i)) for i in range(self.sizes.size)]

    def _shared(self) -> Iterator[Assign]:
        """What all lanes share: the parameters, the diagonal of D, the Cholesky factors of V."""
        for i in range(3):
            yield Assign(scalar("parameters", i), element("parameters", i))
        for token in range(self.sizes.length):
            yield Assign(scalar("variance", token), element("variance", token))
            for i in range(self.sizes.columns):
                for j in range(i + 1):
                    yield Assign(scalar("factor", token, i, j), element("factor", token, i, j))

    def _read(self) -> Iterator[Assign]:
        yield from self._vector("POINT", "point")
        yield from self._vector("SLOPE", "slope")
        for number, entry in enumerate(self.sizes.triangle):
            yield Assign(scalar("curvature", *entry), self._row("CURVATURE", number))
        for number, place in enumerate(self.sizes.targets):
            yield Assign(place, self._row("TARGET", number))
        for quantity in ("ENERGY", "LOSS", "SHIFT", "STEPS", "TRIES"):
            yield Assign(name(quantity.lower()), self._row(quantity))

    # --- the step: (curvature + shift I) step = slope ---

    def _step(self) -> Iterator[Assign]:
        """By the factors of Cholesky without roots: lower triangle, pivots and their reciprocals."""
        size = self.sizes.size
        pivots = [scalar("pivot", i) for i in range(size)]
        for j in range(size):
            reduced = [-scalar("lower", j, c) * scalar("product", j, c) for c in range(j)]
            yield Assign(pivots[j], Add(scalar("curvature", j, j), name("shift"), *reduced))
            yield Assign(scalar("inverse", j), Ordered("/", (1.0, pivots[j])))
            for i in range(j + 1, size):
                reduced = [-scalar("lower", i, c) * scalar("product", j, c) for c in range(j)]
                yield Assign(scalar("product", i, j), Add(scalar("curvature", i, j), *reduced))
                yield Assign(scalar("lower", i, j), scalar("product", i, j) * scalar("inverse", j))
        yield Assign(_POSITIVE, _all(Ordered(">", (pivot, name("PIVOT"))) for pivot in pivots))
        for i in range(size):
            before = [-scalar("lower", i, c) * scalar("half", c) for c in range(i)]
            yield Assign(scalar("half", i), Add(scalar("slope", i), *before))
        for i in reversed(range(size)):
            after = [-scalar("lower", c, i) * scalar("step", c) for c in range(i + 1, size)]
            yield Assign(scalar("step", i), Add(scalar("half", i) * scalar("inverse", i), *after))
        yield Assign(name("decrease"), Add(*(scalar("slope", i) * scalar("step", i) for i in range(size))))

    def _trial(self) -> Iterator[Assign]:
        """The trial point ``u`` and its fields ``h = omega + C u``."""
        columns = self.sizes.columns
        for i in range(self.sizes.size):
            point = scalar("point", i)
            yield Assign(scalar("trial", i), Select(_POSITIVE, point - scalar("step", i), point))
        for token in range(self.sizes.length):
            for i in range(columns):
                place = token * columns + i
                moved = [scalar("factor", token, i, j) * scalar("trial", token * columns + j) for j in range(i + 1)]
                yield Assign(scalar("center", place), self._row("CENTER", place))
                yield Assign(scalar("h", token, i), Add(scalar("center", place), *moved))

    def _scaled(self) -> Iterator[Assign]:
        """Gradient and Hessian of the energy in u, from those of the loss in h."""
        columns = self.sizes.columns
        for i in range(self.sizes.size):
            token, j = divmod(i, columns)
            parts = [scalar("factor", token, c, j) * scalar("gradient", token, c) for c in range(j, columns)]
            yield Assign(scalar("new_slope", i), Add(scalar("trial", i), *parts))
        for row, column in self.sizes.triangle:
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
        energy, trial, first = name("energy"), name("trial_energy"), name("first")
        norm, rounding, size = name("norm"), name("ROUNDING"), self.sizes.size
        yield Assign(norm, Add(*(scalar("trial", i) ** 2 for i in range(size))))
        yield Assign(trial, norm / 2 + _VALUE)
        yield Assign(first, Ordered("<", (name("steps"), 0.0)))
        lower = Select(first, name("FINITE"), energy - name("DECREASE") * name("decrease"))
        within = Select(first, 0.0, Ordered("*", (rounding, Ordered("+", (1.0, _size_of(energy))))))
        yield Assign(name("bound"), Ordered("+", (lower, within)))
        compared = Select(first, _size_of(trial), trial)
        yield Assign(_ACCEPTED, _all([_POSITIVE, Ordered("<=", (compared, name("bound")))]))

    def _written(self) -> Iterator[Statement]:
        """The accepted trial becomes the lane's point."""
        columns = self.sizes.columns
        for i in range(self.sizes.size):
            yield self._chosen("POINT", i, scalar("trial", i), scalar("point", i))
            yield self._chosen("SLOPE", i, scalar("new_slope", i), scalar("slope", i))
            place = self._row("GRADIENT", i)
            yield Assign(scalar("old_gradient", i), place)
            yield self._chosen("GRADIENT", i, scalar("gradient", *divmod(i, columns)), scalar("old_gradient", i))
        for number, entry in enumerate(self.sizes.triangle):
            yield self._chosen("CURVATURE", number, scalar("new_curvature", *entry), scalar("curvature", *entry))
        yield self._chosen("ENERGY", 0, name("trial_energy"), name("energy"))
        yield self._chosen("LOSS", 0, _VALUE, name("loss"))

    def _chosen(self, quantity: str, number: int, new: Value, old: Value) -> Assign:
        return Assign(self._row(quantity, number), Select(_ACCEPTED, new, old))

    def _damped(self) -> Iterator[Assign]:
        """Damping eases where a step was accepted, and rises where it was not or the matrix is not positive."""
        shift = name("shift")
        eased = Select(Ordered("<", (shift, name("NO_SHIFT"))), 0.0, Ordered("*", (name("EASED"), shift)))
        steeper = Select(_POSITIVE, name("STEEPER"), name("CONVEX"))
        raised = Call("largest_of", (Ordered("*", (steeper, shift)), name("FIRST_SHIFT")))
        yield Assign(name("eased"), eased)
        yield Assign(name("raised"), raised)
        yield self._chosen("SHIFT", 0, name("eased"), name("raised"))
        yield Assign(name("steps"), Select(_ACCEPTED, Ordered("+", (name("steps"), 1.0)), name("steps")))
        yield Assign(name("tries"), Select(_ACCEPTED, 0.0, Ordered("+", (name("tries"), 1.0))))
        yield Assign(self._row("STEPS"), name("steps"))
        yield Assign(self._row("TRIES"), name("tries"))

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
        slopes = Add(*(scalar("new_slope", i) ** 2 for i in range(self.sizes.size)))
        bound = Mul(name("GRADIENT_TOLERANCE") ** 2, 1 + norm, evaluate=False)
        yield Assign(name("flat"), Ordered("<=", (slopes, bound)))
        yield from self._near("BEST", "best")
        yield from self._near("OTHER", "other")
        known = Ordered("|", (name("near_best"), name("near_other")))
        yield Assign(name("merged"), Select(first, False, known))
        endless = Select(Ordered("<", (name("steps"), name("MAX_NEWTON"))), name("GOES_ON"), name("ENDLESS"))
        accepted = _choice(
            [(name("merged"), name("MERGED")), (name("flat"), name("CONVERGED"))],
            endless,
        )
        accepted = Select(name("inside"), accepted, name("FLED"))
        refused = Select(Ordered("<", (name("tries"), name("MAX_TRIES"))), name("GOES_ON"), name("STUCK"))
        yield Assign(name("if_accepted"), accepted)
        yield Assign(name("if_refused"), refused)
        yield self._chosen("EVENT", 0, name("if_accepted"), name("if_refused"))

    def _near(self, quantity: str, minimum: str) -> Iterator[Assign]:
        """Whether the trial is as close to a known minimum as a captured descent; an unknown one is not a number."""
        yield from self._vector(quantity, minimum)
        close = []
        for i in range(self.sizes.size):
            known = scalar(minimum, i)
            width = Ordered("*", (name("CAPTURED"), Ordered("+", (1.0, _size_of(known)))))
            close.append(Ordered("<=", (_size_of(scalar("trial", i) - known), width)))
        yield Assign(name(f"near_{minimum}"), _all(close))


def _size_of(value: Value) -> Call:
    return Call("modulus", (value,))


def _choice(cases: Sequence[tuple[Value, Value]], otherwise: Value) -> Value:
    """The value of the first case whose condition holds."""
    return reduce(lambda rest, case: Select(case[0], case[1], rest), reversed(cases), otherwise)
