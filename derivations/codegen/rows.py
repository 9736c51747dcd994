"""Losses that are sums over rows of an attention matrix: each row differentiated once, the chain rule around it.

A score is a row function: SymPy differentiates the loss of one row in the row's logits and values once, and the
bilinear map from fields to logits is chained around it, so that size and cost stay polynomial in the sentence length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from typing import Any

from sympy import Add, Expr, Indexed, Integer, Symbol

from derivations.algebra import symbols as sym
from derivations.codegen.ir import Accumulate, Assign, Call, Function, Loop, Ordered, Return, Statement, element, name
from derivations.codegen.lifting import Lifted, straight_line
from derivations.models.model import Attention, Model, RowLoss, numbered, written_out
from derivations.models.scores import RowScore, row_entries

__all__ = ["RowFunctions", "row_functions", "rows_apart"]

_A, _I, _J = (Symbol(letter, integer=True) for letter in "aij")
_INVERSE_TEMPERATURE, _OMEGA, _TOTAL, _ROW_LOSS = map(name, ("inverse_temperature", "omega", "total", "row_loss"))
_NULL = name("null")  # the logit that is zero before the largest is subtracted
# by what one of two logits may exceed the other: the exponential is finite there, with 32 bits too, and the smaller
# entry, 2e-35, does not matter
_FURTHEST = 80.0


def row_functions(model: Model, rows: RowLoss) -> tuple[Function, ...]:
    """``teacher_target``, ``loss``, ``loss_gradient`` and ``loss_derivatives`` of a loss with rows."""
    student = _Student(model, rows, model.length)
    fields = ("h", "target", "variance", "parameters")
    total = Assign(_TOTAL, 0.0)
    begun = (_inverse(1), *student.cleared_gradient())
    return (
        Function("teacher_target", ("k", "mixing", "parameters", "target"), _target(model, rows)),
        Function("loss", fields, (_inverse(1), total, *student.each_row(student.loss_row), Return(_TOTAL))),
        Function(
            "loss_gradient",
            (*fields, "gradient"),
            (*begun, total, *student.each_row(student.gradient_row), Return(_TOTAL)),
        ),
        Function(
            "loss_derivatives",
            (*fields, "gradient", "hessian", "contracted"),
            (
                *begun,
                *student.cleared_hessian(),
                total,
                *student.each_row(student.hessian_row),
                Return(_TOTAL),
            ),
        ),
    )


@dataclass(frozen=True)
class RowFunctions:
    """Functions of one row alone: one for all rows, or under a causal mask one for each of them.

    The row's own token, of whichever number, comes last among the fields, behind those that it sees: derivatives in it
    are apart from the others, which belong to the same places for all rows.

    Attributes
    ----------
    targets, losses, derivatives : tuple of Function
        As ``teacher_target``, ``loss`` and ``loss_derivatives``, whose sums over the rows they make; fields, mixing and
        target have a row ``length``.
    """

    targets: tuple[Function, ...]
    losses: tuple[Function, ...]
    derivatives: tuple[Function, ...]


def rows_apart(model: Model, rows: RowLoss) -> RowFunctions:
    """The functions of a loss with rows, for one row."""
    student, own = _Student(model, rows, model.length + 1), Assign(_A, Integer(model.length))
    fields = ("h", "target", "variance", "parameters")
    begun = (own, _inverse(1), Assign(_TOTAL, 0.0))
    cleared = (*student.cleared_gradient(), *student.cleared_hessian())
    taken = ("k", "mixing", "parameters", "target")
    return RowFunctions(
        tuple(
            Function("row_target", taken, (own, *_BEGUN_TARGET, *_target_row(model, rows, seen)))
            for seen in _numbers_seen(model.length, rows.teacher)
        ),
        tuple(
            Function("row_loss", fields, (*begun, *student.loss_row(seen), Return(_TOTAL)))
            for seen in _numbers_seen(model.length, rows.student)
        ),
        tuple(
            Function(
                "row_derivatives",
                (*fields, "gradient", "hessian", "contracted"),
                (*begun, *cleared, *student.hessian_row(seen), Return(_TOTAL)),
            )
            for seen in _numbers_seen(model.length, rows.student)
        ),
    )


def _numbers_seen(length: int, part: Attention) -> Iterable[int]:
    """Tokens that rows see: one number for all of them, or under a causal mask a number for each."""
    return range(1, length + 1) if part.causal else (length,)


def _inverse(place: int) -> Assign:
    return Assign(_INVERSE_TEMPERATURE, Ordered("/", (1.0, element("parameters", place))))


def _each_row(length: int, part: Attention, body: Callable[[int], Sequence[Statement]]) -> Iterator[Statement]:
    """The code of every row: one loop, or under a causal mask row by row, since row ``a`` sees ``a + 1`` tokens."""
    if not part.causal:
        yield Loop(_A, length, tuple(body(length)))
        return
    for row in range(length):
        yield Assign(_A, Integer(row))
        yield from body(row + 1)


def _logit_names(visible: int) -> list[Any]:
    return [name(f"z{b}") for b in range(visible)]


def _is_pair(score: RowScore, visible: int) -> bool:
    """Whether a row is one of two logits of which the difference alone matters."""
    return visible == 2 and score.shift_invariant and not score.null_logit


def _logits(field: str, part: Attention, visible: int) -> Iterator[Statement]:
    """Row ``a`` of the logits as scalars ``z0, z1, ...``, shifted by the largest where the score allows it.

    Of a pair the first is by what it exceeds the second, which is zero then and needs no exponential.
    """
    names = _logit_names(visible)
    for b, z in enumerate(names):
        products = [Ordered("*", (element(field, _A, i), element(field, b, j))) for i, j in part.pairs]
        yield Assign(z, Ordered("*", (Ordered("+", tuple(products)), _INVERSE_TEMPERATURE)))
    if part.score.null_logit:
        yield Assign(_NULL, Ordered("*", (0.0, names[0])))
        names = [*names, _NULL]
    if _is_pair(part.score, visible):
        first, second = names
        lower = Call("largest_of", (Ordered("-", (second, first)), -_FURTHEST))
        yield Assign(first, Ordered("*", (-1.0, lower)))
    elif part.score.shift_invariant:
        largest = name("largest")
        yield Assign(largest, names[0])
        yield from (Assign(largest, Call("largest_of", (largest, z))) for z in names[1:])
        yield from (Assign(z, Ordered("-", (z, largest))) for z in names)


def _row_values(score: RowScore, z: Sequence[Any]) -> tuple[Any, ...]:
    """Entries of a row of the attention matrix, in the symbols of the generated code."""
    if _is_pair(score, len(z)):
        return tuple(entry.xreplace({z[1]: Integer(0)}) for entry in row_entries(score, z))
    if not score.null_logit:
        return row_entries(score, z)
    return tuple(score.row([*z, _NULL]))[: len(z)]


# --- the teacher ------------------------------------------------------------------------------------------------------


def _target(model: Model, rows: RowLoss) -> tuple[Statement, ...]:
    """The teacher's target of fields ``k``: ``T``, or the labels that are made of it."""
    each_row = _each_row(model.length, rows.teacher, lambda visible: _target_row(model, rows, visible))
    return (*_BEGUN_TARGET, *each_row)


_BEGUN_TARGET = (Assign(_OMEGA, element("parameters", 0)), _inverse(2))


def _target_row(model: Model, rows: RowLoss, visible: int) -> list[Statement]:
    """One row of the target."""
    length, teacher, lifted = model.length, rows.teacher, Lifted()
    entries = {f"s{b}": lifted.lift(value) for b, value in enumerate(_row_values(teacher.score, _logit_names(visible)))}
    body = [*_logits("k", teacher, visible), *straight_line(entries, lifted.definitions.items())]
    mixed = []
    for b in range(length):
        entry = name(f"s{b}") if b < visible else Integer(0)
        parts = {
            sym.teacher_attention[sym.row, sym.token]: entry,
            sym.mixing[sym.row, sym.token]: element("mixing", _A, b),
            sym.noise[sym.row, sym.token]: element("k", _A, model.teacher_rank + b),
            sym.omega: _OMEGA,
        }
        mixed.append((rows.mixed + rows.noise).xreplace(parts))
    if not rows.labels:
        return body + [Assign(element("target", _A, b), value) for b, value in enumerate(mixed)]
    fields = {
        numbered(sym.k, b + 1, c + 1, model.teacher_rank): element("k", b, c)
        for b in range(length)
        for c in range(model.teacher_rank)
    }
    entries_of = [name(f"t{b}") for b in range(length)]
    names = {T[sym.row, b + 1]: t for b, t in enumerate(entries_of) for T in (sym.target, sym.noisy_target)}
    body += [Assign(t, value) for t, value in zip(entries_of, mixed, strict=True)]
    for c, label in enumerate(rows.labels):
        body.append(Assign(element("target", _A, c), written_out(label.value).xreplace(names | fields)))
    return body


# --- the student ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Row:
    """The loss of one row in the names of the generated code.

    Attributes
    ----------
    loss : Expr
    logits : list of Symbol
        Of the tokens that it sees.
    values : dict
        Symbol of every other field that it is differentiated in to its token and column.
    constants : dict
        Symbol of what it holds besides to the element of an array.
    """

    loss: Any
    logits: list[Any]
    values: dict[Any, tuple[int, int]]
    constants: dict[Any, Any]

    @property
    def variables(self) -> list[Any]:
        """What the row is differentiated in."""
        return [*self.logits, *self.values]

    @property
    def read(self) -> list[Assign]:
        """The constants and values read from the arrays."""
        values = {symbol: element("h", *place) for symbol, place in self.values.items()}
        return [Assign(symbol, place) for symbol, place in (self.constants | values).items()]


# what a row is compared with, by the symbols of the models: one of these is the array `target`
_COMPARED = (sym.target, sym.noisy_target, sym.label, sym.cross)


@dataclass(frozen=True)
class _Student:
    """The parts of the functions that evaluate and differentiate the loss, of fields of so many tokens."""

    model: Model
    rows: RowLoss
    tokens: int

    def row(self, visible: int, lifted: Lifted) -> _Row:
        """The loss of a row that sees so many tokens.

        Its entries are lifted before they stand in the loss: of their powers SymPy would make exponentials of their
        own, which are infinite where the entry is not.
        """
        z = _logit_names(visible)
        entries = {b: lifted.lift(value) for b, value in enumerate(_row_values(self.rows.student.score, z))}
        loss = written_out(self.rows.loss)
        attention = {
            atom: entries.get(int(atom.indices[1]) - 1, Integer(0))
            for atom in loss.atoms(Indexed)
            if atom.base == sym.attention
        }
        left = loss.xreplace({atom: Integer(0) for atom, entry in attention.items() if entry == 0}).atoms(Indexed)
        constants, values, names = {}, {}, {}
        for atom in sorted(left - attention.keys(), key=_by_place):
            # the row of what it is compared with is `a`; the others have tokens and columns
            place = [int(index) - 1 for index in atom.indices if index != sym.row]
            if atom.base in _COMPARED:
                symbol = name(f"target_{place[0] if place else 0}")
                constants[symbol] = element("target", _A, *(place or [0]))
            elif atom.base == sym.token_variance:
                symbol = name(f"variance_{place[0]}")
                constants[symbol] = element("variance", *place)
            elif atom.base == sym.gram:
                place = sorted(place)
                symbol = name(f"gram_{place[0]}_{place[1]}")
                constants[symbol] = element("variance", *place)
            else:
                symbol = name(f"v{place[0]}_{place[1] - self._offset}")
                values[symbol] = (place[0], place[1])
            names[atom] = symbol
        return _Row(loss.xreplace(attention | names), z, values, constants)

    @property
    def _by_differences(self) -> bool:
        """Whether the loss stays the same when a number is added to all logits of a row."""
        return self.rows.student.score.shift_invariant and not self.rows.student.score.null_logit

    @property
    def _offset(self) -> int:
        """Columns of the fields that make logits."""
        return 1 + max(max(pair) for pair in self.rows.student.pairs)

    def each_row(self, body: Callable[[int], Sequence[Statement]]) -> Iterator[Statement]:
        """The code of every row."""
        return _each_row(self.model.length, self.rows.student, body)

    def cleared_gradient(self) -> Iterator[Statement]:
        """Zeros, of the samples' number."""
        zero = Ordered("*", (0.0, element("h", 0, 0)))
        columns = Loop(_J, self.model.columns, (Assign(element("gradient", _I, _J), zero),))
        yield Loop(_I, self.tokens, (columns,))

    def cleared_hessian(self) -> Iterator[Statement]:
        """Zeros, of the samples' number."""
        zero, size = Ordered("*", (0.0, element("h", 0, 0))), self.tokens * self.model.columns
        yield Loop(_I, size, (Loop(_J, size, (Assign(element("hessian", _I, _J), zero),)),))

    def loss_row(self, visible: int) -> list[Statement]:
        """The loss of one row."""
        lifted = Lifted()
        row = self.row(visible, lifted)
        outputs = {"row_loss": lifted.lift(row.loss)}
        return [*self._begun(row), *straight_line(outputs, lifted.definitions.items()), _ADDED]

    def gradient_row(self, visible: int) -> list[Statement]:
        """The loss of one row and its gradient."""
        return self._derivatives(visible, second=False)

    def hessian_row(self, visible: int) -> list[Statement]:
        """The loss of one row, its gradient and its Hessian."""
        return self._derivatives(visible, second=True)

    def _begun(self, row: _Row) -> list[Statement]:
        return [*_logits("h", self.rows.student, len(row.logits)), *row.read]

    def _derivatives(self, visible: int, *, second: bool) -> list[Statement]:
        lifted = Lifted()
        row = self.row(visible, lifted)
        variables, own, loss = row.variables, self._own(row), lifted.lift(row.loss)
        gradient = {x: lifted.derivative(loss, variables[x]) for x in own}
        outputs: dict[str, Expr] = {"row_loss": loss}
        outputs |= {f"u{x}": value for x, value in gradient.items()}
        if second:
            for x, y in combinations_with_replacement(own, 2):
                outputs[f"w{x}_{y}"] = lifted.derivative(gradient[x], variables[y])
        return [
            *self._begun(row),
            *straight_line(outputs, lifted.definitions.items()),
            _ADDED,
            *_tempered(own, len(row.logits), second),
            *(_balanced(len(row.logits) - 1) if second and self._by_differences else ()),
            *self._apart(row),
            *self._chained_gradient(row),
            *(self._chained_hessian(row) if second else ()),
        ]

    def _own(self, row: _Row) -> list[int]:
        """Variables that the row is differentiated in; of differences of logits these are one fewer than the logits."""
        return [x for x in range(len(row.variables)) if not (self._by_differences and x == len(row.logits) - 1)]

    def _apart(self, row: _Row) -> Iterator[Assign]:
        """By what the fields that make logits differ from those of the last token."""
        if self._by_differences:
            last = len(row.logits) - 1
            for b, j in product(range(last), sorted({j for _, j in self.rows.student.pairs})):
                yield Assign(name(f"apart{b}_{j}"), Ordered("-", (element("h", b, j), element("h", last, j))))

    def _chained_gradient(self, row: _Row) -> Iterator[Statement]:
        """Gradient in the fields from that in the row's logits and values."""
        for x in self._own(row):
            u = name(f"u{x}")
            for place, slope in self._slopes(row, x):
                yield Accumulate(element("gradient", *place), u if slope is None else Ordered("*", (u, slope)))

    def _chained_hessian(self, row: _Row) -> Iterator[Statement]:
        """Hessian in the fields from the derivatives in the row's logits and values."""
        size, pairs = self.model.columns, self.rows.student.pairs
        for b in range(len(row.logits)):
            for i, j in pairs:
                yield Accumulate(element("hessian", _A * size + i, b * size + j), name(f"u{b}"))
                yield Accumulate(element("hessian", b * size + j, _A * size + i), name(f"u{b}"))
        # curvature of the row contracted with the Jacobian of its variables: y_x = sum_y w_xy dy / dh, row by row
        cleared = Assign(element("contracted", _I), Ordered("*", (0.0, name("u0"))))
        for x in self._own(row):
            yield Loop(_I, self.tokens * size, (cleared,))
            for y in self._own(row):
                w = name(f"w{min(x, y)}_{max(x, y)}")
                for (token, column), slope in self._slopes(row, y):
                    place = element("contracted", token * size + column)
                    yield Accumulate(place, w if slope is None else Ordered("*", (w, slope)))
            spread = []
            for (token, column), slope in self._slopes(row, x):
                value = element("contracted", _I)
                weighted = value if slope is None else Ordered("*", (slope, value))
                spread.append(Accumulate(element("hessian", token * size + column, _I), weighted))
            yield Loop(_I, self.tokens * size, tuple(spread))

    def _slopes(self, row: _Row, x: int) -> Iterator[tuple[tuple[Any, Any], Any]]:
        """The fields that a variable depends on, by token and column, and its slopes in them; None for 1."""
        if x >= len(row.logits):
            yield list(row.values.values())[x - len(row.logits)], None
            return
        # a logit (a, x) is the sum over pairs (i, j) of h[a, i] h[x, j]
        for i, j in self.rows.student.pairs:
            yield (_A, i), name(f"apart{x}_{j}") if self._by_differences else element("h", x, j)
            yield (x, j), element("h", _A, i)
            if self._by_differences:
                yield (len(row.logits) - 1, j), Ordered("*", (-1.0, element("h", _A, i)))


_ADDED = Assign(_TOTAL, Ordered("+", (_TOTAL, _ROW_LOSS)))


def _balanced(last: int) -> Iterator[Assign]:
    """The derivative in the last logit, which those in all logits together leave nothing of."""
    yield Assign(name(f"u{last}"), -Add(*(name(f"u{x}") for x in range(last))))


def _tempered(own: Sequence[int], logits: int, second: bool) -> Iterator[Assign]:
    """Derivatives in the logits carry a factor of the inverse temperature for each."""
    for x in own:
        if x < logits:
            u = name(f"u{x}")
            yield Assign(u, Ordered("*", (u, _INVERSE_TEMPERATURE)))
    for x, y in combinations_with_replacement(own, 2) if second else ():
        if x < logits:
            w = name(f"w{x}_{y}")
            yield Assign(w, Ordered("*", (w, _INVERSE_TEMPERATURE ** (2 if y < logits else 1))))


def _by_place(atom: Any) -> tuple[int, list[int]]:
    """The order in which a row's constants are read: what it is compared with, its weights, its values."""
    kinds: Mapping[Any, int] = dict.fromkeys(_COMPARED, 0) | {sym.token_variance: 1, sym.gram: 1}
    return kinds.get(atom.base, 2), [int(index) for index in atom.indices if index != sym.row]
