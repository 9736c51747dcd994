"""The loss of a block row by row of the attention matrix, where a model has more fields than one straight line takes.

A row's function is the same for all rows: straight-line code for all lanes, in a loop over the rows.  Its derivatives
in the fields of the tokens that it sees are added up; those in the fields of its own token, and mixed ones, lie behind
one another, a part for each row, until all are put together.  Rows are worked on in one place, to which their own
fields and targets are moved: the compiler then sees that nothing that is read overlaps what is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from sympy import Add, Expr, Integer, Symbol

from derivations.codegen.ir import Accumulate, Assign, Function, Loop, Statement, element, name
from derivations.codegen.lane_state import LANE, Block
from derivations.codegen.rows import RowFunctions
from derivations.codegen.unrolled import names_in, scalar, unrolled

__all__ = ["RowByRow"]

_ROW = Symbol("a", integer=True)
_VALUE = name("value")


@dataclass(frozen=True, eq=False)
class RowByRow:
    """The loops over the rows of a model.

    Attributes
    ----------
    length, columns, label_fields : int
        Of the sentence, of the student, and of what a token's labels are made of: the teacher's fields, and noise.
    functions : RowFunctions
    """

    length: int
    columns: int
    label_fields: int
    functions: RowFunctions

    # --- which numbers there are ---

    @cached_property
    def bodies(self) -> tuple[tuple[Assign, ...], ...]:
        """The derivatives of a row as straight-line code."""
        return tuple(unrolled(function, "value") for function in self.functions.derivatives)

    @cached_property
    def columns_read(self) -> list[int]:
        """Columns of the target that the loss reads."""
        read = {symbol for body in self.bodies for statement in body for symbol in names_in(statement.value)}
        width = max(self.length, self.label_fields)
        return [c for c in range(width) if scalar("target", self.length, c) in read]

    @property
    def targets(self) -> tuple[Any, ...]:
        """The entries of the target that the loss reads."""
        return tuple(scalar("target", a, c) for a, c in product(range(self.length), self.columns_read))

    @cached_property
    def _filled(self) -> set[Any]:
        return set().union(*(_filled(body) for body in self.bodies))

    @cached_property
    def sums(self) -> list[Any]:
        """Derivatives in the fields of tokens that rows see: those that are not always zero."""
        size = self.length * self.columns
        places = [scalar("gradient", *divmod(i, self.columns)) for i in range(size)]
        places += [scalar("hessian", i, j) for i in range(size) for j in range(i + 1)]
        return [place for place in places if place in self._filled]

    @cached_property
    def parts(self) -> list[Any]:
        """Derivatives in the fields of a row's own token, alone and with others."""
        own = range(self.length * self.columns, (self.length + 1) * self.columns)
        places = [scalar("gradient", self.length, i) for i in range(self.columns)]
        places += [scalar("hessian", i, j) for i, j in product(range(own.start), own)]
        places += [scalar("hessian", i, j) for i in own for j in own if j <= i]
        return [place for place in places if place in self._filled]

    def scratch(self) -> dict[str, int]:
        """Rows of the state that a trial's loops hand on."""
        return {
            "TRIAL": self.length * self.columns,
            "FIELD": self.length * self.columns,
            "VALUE": 1,
            "SUM": len(self.sums),
            "OWN_FIELD": self.columns,
            "OWN_TARGET": len(self.columns_read),
            "OWN_PART": len(self.parts),
            "PART": self.length * len(self.parts),
        }

    # --- derivatives ---

    def cleared(self, block: Block) -> Iterator[Statement]:
        """Sums without a term."""
        yield Assign(block.row("VALUE"), 0.0)
        yield from (Assign(block.row("SUM", number), 0.0) for number in range(len(self.sums)))

    def derivatives(self, block: Block) -> Iterator[Statement]:
        """The loops over the rows, which add up the sums and fill the parts."""
        for row, body in _each(self.length, self.bodies):
            fields, targets, parts = self.columns, len(self.columns_read), len(self.parts)
            loops = (
                _moved(block, block.place("OWN_FIELD"), block.place("FIELD", row * fields), fields),
                _moved(block, block.place("OWN_TARGET"), block.place("TARGET", row * targets), targets),
                Loop(LANE, block.lanes, (*self._read(block), *body, *self._written(block, body))),
                _moved(block, block.place("PART", row * parts), block.place("OWN_PART"), parts),
            )
            yield from (Loop(_ROW, self.length, loops),) if row is _ROW else loops

    def _read(self, block: Block) -> Iterator[Assign]:
        for i in range(self.length * self.columns):
            yield Assign(scalar("h", *divmod(i, self.columns)), block.row("FIELD", i))
        for i in range(self.columns):
            yield Assign(scalar("h", self.length, i), block.row("OWN_FIELD", i))
        for number, c in enumerate(self.columns_read):
            yield Assign(scalar("target", self.length, c), block.row("OWN_TARGET", number))
        yield from block.weights_of_lane()

    def _written(self, block: Block, body: Sequence[Statement]) -> Iterator[Statement]:
        filled = _filled(body)
        yield Accumulate(block.row("VALUE"), _VALUE)
        for number, place in enumerate(self.sums):
            if place in filled:
                yield Accumulate(block.row("SUM", number), place)
        for number, place in enumerate(self.parts):
            yield Assign(block.row("OWN_PART", number), place if place in filled else 0.0)

    def collected(self, block: Block) -> Iterator[Assign]:
        """Value, gradient and Hessian of the loss, put together."""
        yield Assign(_VALUE, block.row("VALUE"))
        for i in range(block.size):
            token, column = divmod(i, self.columns)
            summed, own = scalar("gradient", token, column), scalar("gradient", self.length, column)
            yield Assign(summed, Add(self._sum(block, summed), self._part(block, token, own)))
        for i, j in product(range(block.size), range(block.size)):
            (a, p), (b, q) = divmod(i, self.columns), divmod(j, self.columns)
            if a < b:
                continue  # nobody reads it
            terms = [
                self._sum(block, scalar("hessian", max(i, j), min(i, j))),
                self._part(block, a, scalar("hessian", j, block.size + p)),
                self._part(block, b, scalar("hessian", i, block.size + q)),
            ]
            if a == b:
                terms.append(self._part(block, a, scalar("hessian", block.size + max(p, q), block.size + min(p, q))))
            yield Assign(scalar("hessian", i, j), Add(*terms))

    def _sum(self, block: Block, place: Any) -> Expr:
        return block.row("SUM", self.sums.index(place)) if place in self.sums else Integer(0)

    def _part(self, block: Block, row: int, place: Any) -> Expr:
        if place not in self.parts:
            return Integer(0)
        return block.row("PART", row * len(self.parts) + self.parts.index(place))

    # --- targets and losses ---

    def teacher_targets(self, block: Block) -> Function:
        """``teacher_targets(k, mixing, parameters, targets)``: rows of a block's targets from those of its fields."""
        shared = [Assign(scalar("parameters", i), element("parameters", i)) for i in (0, 2)]
        loops: list[Statement] = []
        for row, function in _each(self.length, self.functions.targets):
            places = [(self.length, c) for c in self.columns_read]
            mixing = [Assign(scalar("mixing", self.length, b), element("mixing", row, b)) for b in range(self.length)]
            body = (
                *block.fields_of("k", "k", self.label_fields),
                *self._own(block, "k", "k", row, range(self.label_fields)),
                *unrolled(function, "nothing"),
                *(
                    Assign(block.row_of("targets", row * len(places) + number), scalar("target", *place))
                    for number, place in enumerate(places)
                ),
            )
            loop = (*mixing, Loop(LANE, block.lanes, body))
            loops += [Loop(_ROW, self.length, loop)] if row is _ROW else loop
        return Function("teacher_targets", ("k", "mixing", "parameters", "targets"), (*shared, *loops))

    def lane_losses(self, block: Block) -> Function:
        """``lane_losses(h, targets, variance, parameters, losses)``: a block's losses from the rows of its fields."""
        shared = [Assign(scalar("parameters", i), element("parameters", i)) for i in range(3)]
        shared += block.weights_of_all()
        loops: list[Statement] = [Loop(LANE, block.lanes, (Assign(element("losses", LANE), 0.0),))]
        for row, function in _each(self.length, self.functions.losses):
            body = (
                *block.fields_of("h", "h", self.columns),
                *self._own(block, "h", "h", row, range(self.columns)),
                *self._own(block, "targets", "target", row, self.columns_read),
                *unrolled(function, "value"),
                Accumulate(element("losses", LANE), _VALUE),
            )
            loop = Loop(LANE, block.lanes, body)
            loops.append(Loop(_ROW, self.length, (loop,)) if row is _ROW else loop)
        arguments = ("h", "targets", "variance", "parameters", "losses")
        return Function("lane_losses", arguments, (*shared, *loops))

    def _own(self, block: Block, array: str, names: str, row: Any, columns: Sequence[int]) -> Iterator[Assign]:
        """What belongs to a row alone, read from the rows of an array."""
        for number, column in enumerate(columns):
            yield Assign(scalar(names, self.length, column), block.row_of(array, row * len(columns) + number))


def _each(length: int, functions: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """The function of all rows with the index of a loop over them, or that of every row with its number."""
    if len(functions) < length:
        yield _ROW, functions[0]
    else:
        yield from zip(map(Integer, range(length)), functions, strict=True)


def _moved(block: Block, to: Any, source: Any, rows: int) -> Loop:
    """Rows of the state moved to others."""
    return Loop(LANE, rows * block.lanes, (Assign(element("state", LANE + to), element("state", LANE + source)),))


def _filled(body: Sequence[Statement]) -> set[Any]:
    """Names that get another value than zero."""
    return {statement.place for statement in body if isinstance(statement, Assign) and statement.value != 0.0}
