"""A solvable attention model: student, teacher, tokens and regulariser, with concrete or symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from sympy import Add, Expr, Integer, Sum, Symbol, cse, numbered_symbols

from derivations.algebra import symbols as sym
from derivations.models.formulas import parse_formula
from derivations.models.functions import Relu, Sign, Softplus, with_known_functions
from derivations.models.scores import RowScore, row_entries, softmax

__all__ = [
    "SCALAR_LOSSES",
    "AttentionModel",
    "Definition",
    "ScalarModel",
    "Student",
    "Teacher",
    "composed",
    "formula_loss",
]

Fields = Sequence[Sequence[Any]]
"""Local fields of one sample, ``h[l][c]``."""


@dataclass(frozen=True)
class Student:
    """``f(x) = S[(x+p) W / sqrt(d)] (x+p)``, equations (2), (15) and, untied, (124).

    Attributes
    ----------
    score : RowScore
    rank : int
        Columns of ``Q`` (and of ``K``).
    tied : bool
        Tied weights: logits ``h h^T``.  Untied: ``W = (Q|K)`` has ``2 rank`` columns, logits ``h_Q h_K^T``.
    causal : bool
        A token attends to itself and those before it.
    """

    score: RowScore = softmax
    rank: int = 1
    tied: bool = True
    causal: bool = False

    @property
    def columns(self) -> int:
        """Number r of columns of W, the size of a local field ``h_l``."""
        return self.rank if self.tied else 2 * self.rank

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Columns (i, j) whose products ``h[a, i] h[b, j]`` add up to the logit (a, b)."""
        offset = 0 if self.tied else self.rank
        return tuple((c, c + offset) for c in range(self.rank))


@dataclass(frozen=True)
class Teacher:
    """``T[k] = (1 - omega) S_star[k k^T] + omega A``, equation (16)."""

    score: RowScore = softmax
    rank: int = 1
    causal: bool = False

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Columns (i, j) whose products ``k[a, i] k[b, j]`` add up to the logit (a, b)."""
        return tuple((c, c) for c in range(self.rank))


@dataclass(frozen=True)
class Definition:
    """``symbol = value`` for every row a and token b, where these indices are free in it.

    Attributes
    ----------
    symbol : Indexed or Symbol
    value : Expr
        Of symbols defined before, fields and parameters.
    """

    symbol: Any
    value: Any

    def each(self, length: int) -> Iterator[Definition]:
        """The definition for every row and token, of so many."""
        indices = [index for index in (sym.row, sym.token) if index in self.symbol.free_symbols]
        for numbers in product(range(1, length + 1), repeat=len(indices)):
            place = dict(zip(indices, map(Integer, numbers), strict=True))
            yield Definition(self.symbol.xreplace(place), self.value.xreplace(place))


def composed(definitions: Sequence[Definition], length: int, values: dict[Any, Any]) -> Any:
    """The last definition as one expression: everything before it put in.

    Parameters
    ----------
    definitions : sequence of Definition
    length : int
        Number L of rows and tokens.
    values : dict
        What stands for fields and parameters.
    """
    known = dict(values)
    for definition in definitions:
        for one in definition.each(length):
            value = one.value.doit() if one.value.has(Sum) else one.value
            known[one.symbol] = value.xreplace(known)
    return known[definitions[-1].symbol]


def _numbered(base: Any, row: Any, column: int, columns: int) -> Any:
    """A field's entry; a single column has no index."""
    return base[row] if columns == 1 else base[row, column]


def _teacher_fields(rank: int) -> list[Definition]:
    """The teacher's fields with their means."""
    bases = (sym.teacher_field, sym.k, sym.teacher_mean)
    fields = [[_numbered(base, sym.row, s, rank) for base in bases] for s in range(1, rank + 1)]
    return [Definition(whole, centred + mean) for whole, centred, mean in fields]


def _field_symbols(base: Any, fields: Fields) -> dict[Any, Any]:
    """The entries of an array of fields, by the symbols that definitions have for them."""
    return {_numbered(base, a, c, len(row)): entry for a, row in enumerate(fields, 1) for c, entry in enumerate(row, 1)}


@dataclass(frozen=True)
class AttentionModel:
    """Teacher and student attention on L tokens.

    The loss is ``1/2 Tr[(S(h) - T(k)) D (S(h) - T(k))^T]``; with a trainable value matrix of ``values`` columns it is
    ``1/2 |T(k_Q) k_V - S(h_Q) h_V|^2``, the last columns of the fields being the values.

    With ``finite`` it is the loss of one sample at finite d, ``1/2 Tr[S G S^T] - Tr[S C^T]``: the sample's own Gram
    matrix ``G = (x+p)(x+p)^T/d`` takes the place of D and ``C = y (x+p)^T/d`` that of ``T D``; the constant
    ``|y|^2/2d`` is left out.  A value matrix needs no Gram matrices, its loss is the same at every d.
    """

    length: int = 2
    student: Student = field(default_factory=Student)
    teacher: Teacher = field(default_factory=Teacher)
    values: int = 0
    finite: bool = False

    @property
    def columns(self) -> int:
        """Number r of columns of W."""
        return self.student.columns + self.values

    @property
    def teacher_rank(self) -> int:
        """Number t of columns of the teacher's weights."""
        return self.teacher.rank + self.values

    @property
    def has_grams(self) -> bool:
        """Whether the loss takes the sample's Gram matrix."""
        return self.finite and not self.values

    @property
    def lift(self) -> tuple[int, ...]:
        """For every student column the teacher's column that a local minimisation may start from."""
        scores = tuple(c % self.student.rank % self.teacher.rank for c in range(self.student.columns))
        return scores + tuple(self.teacher.rank + c for c in range(self.values))

    def definitions(self, *, shifted: bool = False) -> tuple[Definition, ...]:
        """The loss of one sample, step by step, the loss last; in the limit of high dimension.

        Logits and scores of the teacher, its target, those of the student, the loss: in the symbols of
        `derivations.algebra.symbols`.  With `shifted` the teacher's field has a mean that ``k`` does not hold.
        """
        length, columns, rank = self.length, self.columns, self.teacher_rank
        teacher = sym.teacher_field if shifted else sym.k
        steps = _teacher_fields(rank) if shifted else []
        steps += self._attention(self.teacher, teacher, rank)
        steps += self._attention(self.student, sym.h, columns)
        S, T = sym.attention[sym.row, sym.token], sym.target[sym.row, sym.token]
        everywhere = (sym.token, 1, length)
        rows = (sym.row, 1, length)
        twice: Any
        if not self.values:
            twice = Sum(Sum(sym.token_variance[sym.token] * (S - T) ** 2, everywhere), rows)
            return (*steps, Definition(sym.loss, twice / 2))
        errors = []
        for c in range(1, self.values + 1):
            value = _numbered(sym.h, sym.token, self.student.columns + c, columns)
            own = _numbered(teacher, sym.token, self.teacher.rank + c, rank)
            output, label = (_numbered(base, sym.row, c, self.values) for base in (sym.output, sym.label))
            steps += [Definition(output, Sum(S * value, everywhere)), Definition(label, Sum(T * own, everywhere))]
            errors.append((output - label) ** 2)
        twice = Sum(Add(*errors), rows)
        return (*steps, Definition(sym.loss, twice / 2))

    def _attention(self, part: Student | Teacher, field: Any, columns: int) -> list[Definition]:
        """Logits and rows of the student's attention, or of the teacher's target."""
        student = isinstance(part, Student)
        logit, temperature, names = (
            (sym.student_logit, sym.student_temperature, sym.shared)
            if student
            else (sym.teacher_logit, sym.teacher_temperature, sym.teacher_shared)
        )
        products = [
            _numbered(field, sym.row, i + 1, columns) * _numbered(field, sym.token, j + 1, columns)
            for i, j in part.pairs
        ]
        steps = [Definition(logit[sym.row, sym.token], Add(*products) / temperature)]
        rows: list[tuple[Any, int]] = [(row, row) for row in range(1, self.length + 1)]
        for row, visible in rows if part.causal else [(sym.row, self.length)]:
            shared, entries = _row(
                part.score, [logit[row, b] for b in range(1, visible + 1)], lambda n, row=row: names[row, n]
            )
            steps += shared
            for b, entry in enumerate([*entries, *[Integer(0)] * (self.length - visible)], 1):
                if student:
                    steps.append(Definition(sym.attention[row, b], entry))
                else:
                    mixed = (1 - sym.omega) * entry + sym.omega * sym.mixing[row, b]
                    steps.append(Definition(sym.target[row, b], mixed))
        return steps

    def loss(self, h: Fields, k: Fields) -> Any:
        """The loss of one sample as one expression of its fields, in the limit of high dimension.

        Parameters
        ----------
        h, k : nested sequences of expressions
            ``h[l][c]`` of shape (L, columns) and ``k[l][c]`` of shape (L, teacher_rank).

        Returns
        -------
        Expr
            Of the fields and of the parameters in `derivations.algebra.symbols`: ``omega``, ``mixing[a, b]``,
            ``token_variance[b]`` and the two temperatures.
        """
        values = _field_symbols(sym.h, h) | _field_symbols(sym.k, k)
        return composed(self.definitions(), self.length, values)


_FULL_ROW = 3  # longer rows of scores are written with names for what their entries share


def _row(score: RowScore, logits: Sequence[Any], name: Callable[[int], Any]) -> tuple[list[Definition], Sequence[Any]]:
    """Entries of a row, and the definitions of what they share if the row is long: the first, the second, ... name."""
    z = [Symbol(f"z{b}", real=True) for b in range(len(logits))]
    places = dict(zip(z, logits, strict=True))
    entries: Any = row_entries(score, z)
    shared: Any = ()
    if len(z) > _FULL_ROW:
        shared, entries = cse(entries, symbols=numbered_symbols("c"), order="none")
        places |= {symbol: name(n) for n, (symbol, _) in enumerate(shared, 1)}
    steps = [Definition(places[symbol], value.xreplace(places)) for symbol, value in shared]
    return steps, [entry.xreplace(places) for entry in entries]


@dataclass(frozen=True)
class ScalarModel:
    """Any loss given as one expression of the local fields: a small sequence multi-index model.

    Attributes
    ----------
    name : str
    loss : callable
        ``loss(h, k)`` with nested sequences of symbols, ``h[l][c]`` of shape (L, columns) and ``k[l][c]`` of shape
        (L, teacher_rank); returns a scalar expression.  Differentiated entry by entry, so meant for small sizes.
    prox : callable, optional
        ``prox(omega, k, V)``, the minimiser of the local problem for one token and one column as a list of pairs
        (value, condition): the first whose condition holds, the last one's being None.  For losses with kinks.
    """

    name: str
    loss: Callable[[Sequence[Sequence[Symbol]], Sequence[Sequence[Symbol]]], Any]
    length: int = 1
    columns: int = 1
    teacher_rank: int = 1
    prox: Callable[[Symbol, Symbol, Symbol], Sequence[tuple[Expr, Expr | None]]] | None = None
    has_grams = False  # the fields are all it depends on, at every d

    @property
    def lift(self) -> tuple[int, ...]:
        """For every student column the teacher's column that a local minimisation may start from."""
        return tuple(c % self.teacher_rank for c in range(self.columns))

    def definitions(self, *, shifted: bool = False) -> tuple[Definition, ...]:
        """The loss of one sample in the symbols of `derivations.algebra.symbols`, as of `AttentionModel`."""
        teacher = sym.teacher_field if shifted else sym.k
        length, columns, rank = self.length, self.columns, self.teacher_rank
        steps = _teacher_fields(rank) if shifted else []
        h = [[_numbered(sym.h, a, c, columns) for c in range(1, columns + 1)] for a in range(1, length + 1)]
        k = [[_numbered(teacher, a, c, rank) for c in range(1, rank + 1)] for a in range(1, length + 1)]
        return (*steps, Definition(sym.loss, with_known_functions(self.loss(h, k))))


def _label(k: Any) -> Any:
    return Sign(k[0][0])


def _hinge_prox(omega: Any, k: Any, V: Any) -> list[tuple[Any, Any]]:
    margin = 1 - Sign(k) * omega
    return [(omega, margin <= 0), (omega + V * Sign(k), margin >= V), (Sign(k), None)]


SCALAR_LOSSES = {
    "square": ScalarModel("square", lambda h, k: (h[0][0] - k[0][0]) ** 2 / 2),
    "logistic": ScalarModel("logistic", lambda h, k: Softplus(-_label(k) * h[0][0])),
    "hinge": ScalarModel("hinge", lambda h, k: Relu(1 - _label(k) * h[0][0]), prox=_hinge_prox),
}
"""Losses of generalised linear models, L = r = t = 1: regression on k, and classification of its sign."""


def formula_loss(text: str, length: int, columns: int, teacher_rank: int) -> ScalarModel:
    """A loss given as a formula of the fields ``h0_0`` (token 0, column 0), ``k0_0``, ...

    ``h`` and ``k`` stand for the fields where there is only one.

    Raises
    ------
    FormulaError
        The formula cannot be read.
    """

    def loss(h: Sequence[Sequence[Any]], k: Sequence[Sequence[Any]]) -> Any:
        names = {
            f"{letter}{a}_{c}": entry
            for letter, fields in (("h", h), ("k", k))
            for a, row in enumerate(fields)
            for c, entry in enumerate(row)
        }
        for letter in ("h", "k"):
            own = [value for name, value in names.items() if name.startswith(letter)]
            if len(own) == 1:
                names[letter] = own[0]
        return parse_formula(text, names)

    return ScalarModel(text, loss, length, columns, teacher_rank)
