"""Teacher and student attention, with concrete sizes; equation (3) is its loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sympy import Add, Integer, Sum, Symbol, sympify

from derivations.algebra import symbols as sym
from derivations.algebra.common_parts import common_parts
from derivations.models.model import (
    Attention,
    Definition,
    Fields,
    RowLoss,
    composed,
    field_symbols,
    label_symbols,
    numbered,
    teacher_fields,
)
from derivations.models.scores import RowScore, row_entries, softmax

__all__ = ["AttentionModel", "Student", "Teacher"]


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
class _Names:
    """The symbols of an attention matrix."""

    logit: Any
    temperature: Symbol
    entry: Any
    shared: Any


_STUDENT = _Names(sym.student_logit, sym.student_temperature, sym.attention, sym.shared)
_TEACHER = _Names(sym.teacher_logit, sym.teacher_temperature, sym.teacher_attention, sym.teacher_shared)


def _placed(symbol: Any, row: Any, token: int) -> Any:
    return symbol.xreplace({sym.row: sympify(row), sym.token: Integer(token)})


def _summed(row_loss: Any, rows: tuple[Any, int, int]) -> Any:
    """The sum over rows, a common factor in front."""
    number, rest = row_loss.primitive()
    return number * Sum(rest, rows)


@dataclass(frozen=True)
class AttentionModel:
    """Teacher and student attention on L tokens.

    Equations (D1)-(D3), (D5) of the replica-symmetric page.

    The loss is ``1/2 Tr[(S(h) - T(k)) D (S(h) - T(k))^T]``; with a trainable value matrix of ``values`` columns it is
    ``1/2 |T(k_Q) k_V - S(h_Q) h_V|^2``, the last columns of the fields being the values.

    With ``finite`` it is the loss of one sample at finite d, ``1/2 Tr[S G S^T] - Tr[S C^T]``: the sample's own Gram
    matrix ``G = (x+p)(x+p)^T/d`` takes the place of D and ``C = y (x+p)^T/d`` that of ``T D``; the constant
    ``|y|^2/2d`` is left out.  A value matrix needs no Gram matrices, its loss is the same at every d.

    With ``noisy`` labels are made by ``Y = T(k) + Z`` in place of ``T(k)``; test errors are those of ``Z = 0``.
    """

    length: int = 2
    student: Student = field(default_factory=Student)
    teacher: Teacher = field(default_factory=Teacher)
    values: int = 0
    finite: bool = False
    noisy: bool = False
    prox = None
    has_kink = False
    cluster_columns = 0
    parameters = ()
    trained = ()

    @property
    def columns(self) -> int:
        """Number r of columns of W."""
        return self.student.columns + self.values

    @property
    def teacher_rank(self) -> int:
        """Number t of columns of the teacher's weights."""
        return self.teacher.rank + self.values

    @property
    def noise_columns(self) -> int:
        """Columns of the noise ``Z``."""
        return self.length if self.noisy else 0

    @property
    def has_grams(self) -> bool:
        """Whether the loss takes the sample's Gram matrix."""
        return self.finite and not self.values

    @property
    def lift(self) -> tuple[int, ...]:
        """For every student column the teacher's column that a local minimisation may start from."""
        scores = tuple(c % self.student.rank % self.teacher.rank for c in range(self.student.columns))
        return scores + tuple(self.teacher.rank + c for c in range(self.values))

    @property
    def rows(self) -> RowLoss:
        """The loss row by row, of which generated code is made."""
        mixed = (1 - sym.omega) * sym.teacher_attention[sym.row, sym.token] + sym.omega * sym.mixing[sym.row, sym.token]
        noise = sym.noise[sym.row, sym.token] if self.noisy else 0
        labels = tuple(self._labels(sym.k)) if self.values else ()
        loss = self.row_loss.xreplace({one.symbol: one.value for one in self._outputs()})
        return RowLoss(self.student, self.teacher, loss, mixed, noise, labels)

    @property
    def _target(self) -> Any:
        """The matrix that makes the labels."""
        return sym.noisy_target if self.noisy else sym.target

    @property
    def row_loss(self) -> Any:
        """The loss of row ``a``, this model's one statement of it; of the student's outputs where there are values."""
        a, b, other = sym.row, sym.token, sym.other_token
        S, T = sym.attention, self._target
        if self.values:
            pairs = [[numbered(base, a, c, self.values) for base in (sym.output, sym.label)] for c in self._widths]
            return Add(*((output - label) ** 2 for output, label in pairs)) / 2
        if self.finite:
            square: Any = Sum(
                Sum(S[a, b] * sym.gram[b, other] * S[a, other], (other, 1, self.length)), self._everywhere
            )
            return square / 2 - Sum(S[a, b] * sym.cross[a, b], self._everywhere)
        distance: Any = Sum(sym.token_variance[b] * (S[a, b] - T[a, b]) ** 2, self._everywhere)
        return distance / 2

    @property
    def sample_loss(self) -> Definition:
        """The sum of the rows' losses, also where ``length`` is a symbol."""
        return Definition(sym.loss, _summed(self.row_loss, (sym.row, 1, self.length)))

    @property
    def _everywhere(self) -> tuple[Any, int, int]:
        """All tokens."""
        return (sym.token, 1, self.length)

    @property
    def _widths(self) -> range:
        """Columns of the value matrices, from 1."""
        return range(1, self.values + 1)

    def _outputs(self) -> list[Definition]:
        """The student's attention to its values."""
        return self._read(sym.output, sym.attention, sym.h, self.student.columns, self.columns)

    def _labels(self, teacher: Any) -> list[Definition]:
        """The teacher's attention to its values, of its fields with or without their means."""
        return self._read(sym.label, self._target, teacher, self.teacher.rank, self.teacher_rank)

    def _read(self, name: Any, attention: Any, fields: Any, offset: int, columns: int) -> list[Definition]:
        entries = [(c, numbered(fields, sym.token, offset + c, columns)) for c in self._widths]
        weight = attention[sym.row, sym.token]
        return [
            Definition(numbered(name, sym.row, c, self.values), Sum(weight * value, self._everywhere))
            for c, value in entries
        ]

    def definitions(self, *, shifted: bool = False) -> tuple[Definition, ...]:
        """The loss of one sample, step by step, the loss last.

        Logits and scores of the teacher, its target, those of the student, the loss: in the symbols of
        `derivations.algebra.symbols`.  With `shifted` the teacher's field has a mean that ``k`` does not hold.
        """
        teacher = sym.teacher_field if shifted else sym.k
        steps = teacher_fields(self.teacher_rank) if shifted else []
        if not self.has_grams:  # else what the teacher says is in the products C
            rows = self.rows
            target = Definition(sym.target[sym.row, sym.token], rows.mixed)
            steps += self._attention(self.teacher, _TEACHER, (teacher, self.teacher_rank), target)
            if self.noisy:
                steps.append(Definition(sym.noisy_target[sym.row, sym.token], target.symbol + rows.noise))
        entry = sym.attention[sym.row, sym.token]
        steps += self._attention(self.student, _STUDENT, (sym.h, self.columns), Definition(entry, entry))
        for output, label in zip(self._outputs(), self._labels(teacher), strict=True):
            steps += [output, label]
        return (*steps, self.sample_loss)

    def _attention(
        self, part: Attention, names: _Names, fields: tuple[Any, int], result: Definition
    ) -> list[Definition]:
        """Logits, and what is made of the rows' entries: a definition in terms of them."""
        field, columns = fields
        products = [
            numbered(field, sym.row, i + 1, columns) * numbered(field, sym.token, j + 1, columns) for i, j in part.pairs
        ]
        logit = names.logit
        steps = [Definition(logit[sym.row, sym.token], Add(*products) / names.temperature)]
        rows: list[tuple[Any, int]] = [(row, row) for row in range(1, self.length + 1)]
        for row, visible in rows if part.causal else [(sym.row, self.length)]:
            shared, entries = _row(
                part.score, [logit[row, b] for b in range(1, visible + 1)], lambda n, row=row: names.shared[row, n]
            )
            steps += shared
            for b, entry in enumerate([*entries, *[Integer(0)] * (self.length - visible)], 1):
                place = {names.entry[sym.row, sym.token]: entry, sym.row: sympify(row), sym.token: Integer(b)}
                steps.append(Definition(_placed(result.symbol, row, b), result.value.xreplace(place)))
        return steps

    def loss(self, h: Fields, k: Fields) -> Any:
        """The loss of one sample as one expression of its fields.

        Parameters
        ----------
        h, k : nested sequences of expressions
            ``h[l][c]`` of shape (L, columns) and ``k[l][c]`` of shape (L, teacher_rank), with noise (L, teacher_rank +
            noise_columns).

        Returns
        -------
        Expr
            Of the fields and of the parameters in `derivations.algebra.symbols`: ``omega``, ``mixing[a, b]``,
            ``token_variance[b]`` and the two temperatures; with Gram matrices of ``gram[b, c]`` and ``cross[a, b]``.
        """
        values = field_symbols(sym.h, h) | label_symbols(self, k)
        return composed(self.definitions(), self.length, values)


_FULL_ROW = 3  # longer rows of scores are written with names for what their entries share


def _row(score: RowScore, logits: Sequence[Any], name: Callable[[int], Any]) -> tuple[list[Definition], Sequence[Any]]:
    """Entries of a row, and the definitions of what they share if the row is long: the first, the second, ... name."""
    z = [Symbol(f"z{b}", real=True) for b in range(len(logits))]
    places = dict(zip(z, logits, strict=True))
    entries: Any = row_entries(score, z)
    shared: Any = ()
    if len(z) > _FULL_ROW:
        shared, entries = common_parts(entries, "c")
        places |= {symbol: name(n) for n, (symbol, _) in enumerate(shared, 1)}
    steps = [Definition(places[symbol], value.xreplace(places)) for symbol, value in shared]
    return steps, [entry.xreplace(places) for entry in entries]
