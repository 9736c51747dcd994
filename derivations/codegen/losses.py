"""The loss of one sample and what is compared with it, on a tape, with derivatives in the fields.

A loss that is a sum over the rows of an attention matrix is differentiated once for one row: in its logits and values,
around which the chain rule of the bilinear map from fields to logits is written, so that size and cost stay polynomial
in the sentence's length.  Any other loss is differentiated as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from types import MappingProxyType
from typing import Any, TypeAlias

from sympy import Indexed, Integer, Symbol

from derivations.algebra import symbols as sym
from derivations.codegen.tape import Node, Row, Tape
from derivations.models.model import (
    Attention,
    Definition,
    Model,
    RowLoss,
    field_symbols,
    label_fields,
    label_symbols,
    numbered,
    parameter_symbol,
    written_out,
)
from derivations.models.scores import RowScore, row_entries

__all__ = [
    "OWN",
    "Field",
    "Reads",
    "Terms",
    "definitions_of",
    "loss_terms",
    "parameters_of",
    "row_loss",
    "row_terms",
    "rows_of",
    "target_columns",
    "target_row",
    "whole_loss",
]

Field: TypeAlias = "tuple[int | Row, int]"
"""A field by its token and column."""

OWN = Row()
"""The token of a loop's turn."""

_PARAMETERS_BEFORE = 4  # what all kernels are given: omega, two temperatures, a length, and a number of each column
_NULL = Symbol("null")  # the logit that is zero before the largest is subtracted
# by what one of two logits may exceed the other: the exponential is finite there, with 32 bits too, and the smaller
# entry, 2e-35, does not matter
_FURTHEST = 80


@dataclass(frozen=True)
class Reads:
    """Where a function finds what belongs to its sample, by indices from zero.

    Attributes
    ----------
    tape : Tape
    field, target, weight, parameter, teacher, mixing : callable
        Of the fields h, what they are compared with, the loss's weights, the parameters, the teacher's fields k and A.
    """

    tape: Tape
    field: Callable[[int | Row, int], Node]
    target: Callable[[int | Row, int], Node]
    weight: Callable[..., Node]
    parameter: Callable[[int], Node]
    teacher: Callable[[int | Row, int], Node]
    mixing: Callable[[int | Row, int], Node]

    @classmethod
    def of_arrays(cls, tape: Tape) -> Reads:
        """The elements of arrays of these names."""

        def of(array: str) -> Callable[..., Node]:
            return lambda *indices: tape.read(array, *indices)

        return cls(tape, *map(of, ("h", "target", "variance", "parameters", "k", "mixing")))


@dataclass(frozen=True)
class Terms:
    """A part of the loss.

    Attributes
    ----------
    value : Node
    slopes : dict
        Derivatives by the fields in which they are not always zero.
    curvatures : dict
        Second derivatives by pairs of fields; of two fields there is one of both pairs.
    """

    value: Node
    slopes: dict[Field, Node]
    curvatures: dict[tuple[Field, Field], Node]

    def of_row(self, row: int) -> Terms:
        """The same where the turn's own token is one of the others."""
        slopes, curvatures = dict[Field, Node](), dict[tuple[Field, Field], Node]()
        for (token, column), slope in self.slopes.items():
            _add(slopes, (row if token is OWN else token, column), slope)
        for pair, curvature in self.curvatures.items():
            one, other = ((row if token is OWN else token, column) for token, column in pair)
            twice = one == other and pair[0] != pair[1]
            _add(curvatures, _ordered(one, other), 2 * curvature if twice else curvature)
        return Terms(self.value, slopes, curvatures)

    def __add__(self, other: Terms) -> Terms:
        slopes, curvatures = dict(self.slopes), dict(self.curvatures)
        for mine, theirs in ((slopes, other.slopes), (curvatures, other.curvatures)):
            for key, value in theirs.items():
                _add(mine, key, value)
        return Terms(self.value + other.value, slopes, curvatures)


def _add(found: dict[Any, Node], key: Any, value: Node) -> None:
    if key in found or not (value.is_number and value.value == 0):
        found[key] = found[key] + value if key in found else value


def _ordered(one: Field, other: Field) -> tuple[Field, Field]:
    """Two fields, the later one first; the turn's own token comes last of all."""
    return (one, other) if _rank(one) >= _rank(other) else (other, one)


def _rank(field: Field) -> tuple[bool, int, int]:
    token, column = field
    return (True, 0, column) if isinstance(token, Row) else (False, token, column)


def loss_terms(model: Model, reads: Reads, order: int = 2) -> Terms:
    """The loss with its derivatives up to an order, all rows together."""
    rows = row_loss(model)
    if rows is None:
        return _whole(model, reads, order)
    return reduce(Terms.__add__, (row_terms(model, rows, reads, order, row) for row in range(model.length)))


def row_terms(model: Model, rows: RowLoss, reads: Reads, order: int, row: int | None) -> Terms:
    """The loss of one row, counted from zero; without a mask also that of any row, whose token is `OWN`."""
    visible = model.length if row is None or not rows.student.causal else row + 1
    terms = _RowTerms(model, rows, at_row(reads, row), visible).terms(order)
    return terms if row is None else terms.of_row(row)


def at_row(reads: Reads, row: int | None) -> Reads:
    """The same where the turn's own token is a row."""
    if row is None:
        return reads

    def at(read: Callable[..., Node]) -> Callable[..., Node]:
        return lambda token, column: read(row if token is OWN else token, column)

    names = ("field", "target", "teacher", "mixing")
    return replace(reads, **{name: at(getattr(reads, name)) for name in names})


@lru_cache(maxsize=4)  # asked of again and again
def row_loss(model: Model) -> RowLoss | None:
    """A model's loss row by row, if it is one."""
    return model.rows


def rows_of(model: Model, part: Attention) -> list[int | None]:
    """The rows that differ in their code: None for one that all have in common, or under a causal mask each."""
    return [*range(model.length)] if part.causal else [None]


# --- losses as a whole ------------------------------------------------------------------------------------------------


def parameters_of(model: Model, reads: Reads) -> dict[Any, Node]:
    """A loss's own numbers, by their symbols."""
    first = _PARAMETERS_BEFORE + model.columns
    return {parameter_symbol(one): reads.parameter(first + j) for j, one in enumerate(model.parameters)}


def whole_loss(model: Model, reads: Reads, given: Mapping[Any, Node] = MappingProxyType({})) -> Node:
    """The loss of a sample, definition by definition; ``given`` are symbols with other values."""
    h = [[reads.field(a, i) for i in range(model.columns)] for a in range(model.length)]
    k = [[reads.target(a, i) for i in range(label_fields(model))] for a in range(model.length)]
    known = {**field_symbols(sym.h, h), **label_symbols(model, k), **parameters_of(model, reads), **given}
    for one in definitions_of(model):
        known[one.symbol] = reads.tape.of(one.value, known)
    return known[definitions_of(model)[-1].symbol]


@lru_cache(maxsize=4)  # every function of a model is made of them, and a user's formula takes a second to read
def definitions_of(model: Model) -> tuple[Definition, ...]:
    """The loss of a sample step by step, for every row and token, with all sums written out."""
    each = (one for definition in model.definitions() for one in definition.each(model.length))
    return tuple(Definition(one.symbol, written_out(one.value)) for one in each)


def _whole(model: Model, reads: Reads, order: int) -> Terms:
    places: list[Field] = [(a, i) for a in range(model.length) for i in range(model.columns)]
    fields = {place: reads.tape.variable(reads.field(*place)) for place in places}
    value = whole_loss(model, replace(reads, field=lambda a, i: fields[a, i]))
    variables = [*fields.values()]
    slopes = reads.tape.gradient(value, variables) if order > 0 else []
    second = reads.tape.curvatures(slopes, variables) if order > 1 else {}
    curvatures = {(places[y], places[x]): change for (x, y), change in second.items()}
    return Terms(value, dict(zip(places, slopes, strict=False)), curvatures)


# --- rows of an attention matrix --------------------------------------------------------------------------------------


def _logit_symbols(visible: int) -> list[Any]:
    return [Symbol(f"z{b}") for b in range(visible)]


def _is_pair(score: RowScore, visible: int) -> bool:
    """Whether a row is one of two logits of which the difference alone matters."""
    return visible == 2 and score.shift_invariant and not score.null_logit


def _logits(tape: Tape, part: Attention, read: Callable[..., Node], visible: int, scale: Node) -> list[Node]:
    """A row's logits, shifted by the largest where the score allows it; the null logit behind them where there is one.

    Of a pair the first is by what it exceeds the second, which is zero then and needs no exponential.
    """
    logits = [tape.total(read(OWN, i) * read(b, j) for i, j in part.pairs) * scale for b in range(visible)]
    if part.score.null_logit:
        logits.append(tape.node(0))
    if _is_pair(part.score, visible):
        return [-tape.do("largest", logits[1] - logits[0], -_FURTHEST), tape.node(0)]
    if part.score.shift_invariant:
        largest = reduce(lambda a, b: tape.do("largest", a, b), logits)
        return [z - largest for z in logits]
    return logits


def _entries(tape: Tape, score: RowScore, logits: Sequence[Node], visible: int) -> list[Node]:
    """Entries of a row of the attention matrix."""
    symbols = _logit_symbols(visible)
    values: Mapping[Any, Node] = dict(zip([*symbols, _NULL], logits, strict=False))
    row = score.row([*symbols, _NULL])[:visible] if score.null_logit else row_entries(score, symbols)
    if _is_pair(score, visible):
        row = tuple(entry.xreplace({symbols[1]: Integer(0)}) for entry in row)
    return [tape.of(entry, values) for entry in row]


def target_columns(model: Model) -> int:
    """Columns of what one sample's rows are compared with."""
    rows = row_loss(model)
    return label_fields(model) if rows is None else len(rows.labels) or model.length


def target_row(model: Model, rows: RowLoss, reads: Reads, row: int | None) -> list[Node]:
    """One row of the teacher's target, or that of any: ``T``, or the labels that are made of it."""
    tape, length, teacher = reads.tape, model.length, rows.teacher
    reads, visible = at_row(reads, row), length if row is None or not teacher.causal else row + 1
    logits = _logits(tape, teacher, reads.teacher, visible, reads.parameter(2).inverse())
    entries = [*_entries(tape, teacher.score, logits, visible), *[tape.node(0)] * (length - visible)]
    mixed = []
    for b, entry in enumerate(entries):
        values = {
            sym.teacher_attention[sym.row, sym.token]: entry,
            sym.mixing[sym.row, sym.token]: reads.mixing(OWN, b),
            sym.noise[sym.row, sym.token]: reads.teacher(OWN, model.teacher_rank + b),
            sym.omega: reads.parameter(0),
        }
        mixed.append(tape.of(rows.mixed + rows.noise, values))
    if not rows.labels:
        return mixed
    columns = range(model.teacher_rank)
    known = {
        numbered(sym.k, b + 1, c + 1, model.teacher_rank): reads.teacher(b, c) for b in range(length) for c in columns
    }
    known |= {T[sym.row, b + 1]: t for b, t in enumerate(mixed) for T in (sym.target, sym.noisy_target)}
    return [tape.of(written_out(label.value), known) for label in rows.labels]


# what a row is compared with, by the symbols of the models: one of these is the array `target`
_COMPARED = (sym.target, sym.noisy_target, sym.label, sym.cross)


@dataclass(frozen=True)
class _RowTerms:
    """The loss of a row that sees so many tokens."""

    model: Model
    rows: RowLoss
    reads: Reads
    visible: int

    @property
    def by_differences(self) -> bool:
        """Whether the loss stays the same when a number is added to all logits of a row."""
        return self.rows.student.score.shift_invariant and not self.rows.student.score.null_logit

    def terms(self, order: int) -> Terms:
        """The loss with its derivatives up to an order."""
        tape, student = self.reads.tape, self.rows.student
        scale = self.reads.parameter(1).inverse()
        logits = _logits(tape, student, self.reads.field, self.visible, scale)
        logits = [z if z.is_number else tape.variable(z) for z in logits]
        loss, values = self.loss(_entries(tape, student.score, logits, self.visible))
        # of differences of logits there are one fewer than logits
        own = logits[: self.visible - 1 if self.by_differences else self.visible]
        variables = [*own, *values.values()]
        ways = [dict(self.slopes(x, scale)) for x in range(len(own))] + [{place: tape.node(1)} for place in values]
        if order == 0:
            return Terms(loss, {}, {})
        first = tape.gradient(loss, variables)
        slopes = dict[Field, Node]()
        for change, way in zip(first, ways, strict=True):
            for place, slope in way.items():
                _add(slopes, place, change * slope)
        return Terms(loss, slopes, self.curvatures(first, variables, ways, scale) if order > 1 else {})

    def loss(self, entries: Sequence[Node]) -> tuple[Node, dict[Field, Node]]:
        """The row's loss, and the fields besides the logits in which it is differentiated."""
        reads, loss = self.reads, written_out(self.rows.loss)
        known, values = dict[Any, Node](), dict[Field, Node]()
        for atom in sorted(loss.atoms(Indexed), key=str):
            # the row of what it is compared with is the turn's own; the others have tokens and columns
            place = [int(index) - 1 for index in atom.indices if index != sym.row]
            if atom.base == sym.attention:
                known[atom] = entries[place[0]] if place[0] < self.visible else reads.tape.node(0)
            elif atom.base in _COMPARED:
                known[atom] = reads.target(OWN, *(place or [0]))
            elif atom.base in (sym.token_variance, sym.gram):
                known[atom] = reads.weight(*sorted(place))
            else:
                field = (place[0], place[1])
                values[field] = known[atom] = reads.tape.variable(reads.field(*field))
        return reads.tape.of(loss, known), values

    def slopes(self, x: int, scale: Node) -> Iterator[tuple[Field, Node]]:
        """The fields that a logit depends on, and its slopes in them."""
        read, pairs, last = self.reads.field, self.rows.student.pairs, self.visible - 1
        found = dict[Field, Node]()
        for i, j in pairs:
            away = read(x, j) - read(last, j) if self.by_differences else read(x, j)
            _add(found, (OWN, i), away * scale)
            _add(found, (x, j), read(OWN, i) * scale)
            if self.by_differences:
                _add(found, (last, j), -(read(OWN, i) * scale))
        yield from found.items()

    def curvatures(
        self, first: Sequence[Node], variables: Sequence[Node], ways: Sequence[dict[Field, Node]], scale: Node
    ) -> dict[tuple[Field, Field], Node]:
        """Second derivatives in the fields, by those in the row's variables and the slopes of these."""
        tape, pairs, found = self.reads.tape, self.rows.student.pairs, dict[tuple[Field, Field], Node]()
        second = tape.curvatures(first, variables)
        fields = sorted({place for way in ways for place in way}, key=_rank)
        for x, way in enumerate(ways):
            spread = dict[Field, Node]()
            for y, other in enumerate(ways):
                for place, slope in other.items():
                    _add(spread, place, second[min(x, y), max(x, y)] * slope)
            for place, slope in way.items():
                for other_place in fields[: fields.index(place) + 1]:
                    if other_place in spread:
                        _add(found, (place, other_place), slope * spread[other_place])
        # the logits are bilinear
        logits = self.visible - 1 if self.by_differences else self.visible
        for i, j in pairs:
            for x in range(logits):
                _add(found, ((OWN, i), (x, j)), first[x] * scale)
                if self.by_differences:
                    _add(found, ((OWN, i), (self.visible - 1, j)), -(first[x] * scale))
        return found
