"""A solvable attention model: student, teacher, tokens and regulariser, with concrete or symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sympy import Expr, Symbol

from derivations.expressions import parse_formula
from derivations.functions import Relu, Sign, Softplus
from derivations.replica import FreeEntropy, derive_free_entropy
from derivations.saddle_point import SaddlePoint, derive_saddle_point
from derivations.scores import RowScore, softmax

__all__ = ["SCALAR_LOSSES", "AttentionModel", "ScalarModel", "Student", "Teacher", "formula_loss"]


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


class _Derived:
    """The equations shared by every model of the theory: they do not depend on the loss."""

    @cached_property
    def free_entropy(self) -> FreeEntropy:
        """``-Phi``, derived once."""
        return derive_free_entropy()

    @cached_property
    def saddle_point(self) -> SaddlePoint:
        """The state-evolution equations, derived once."""
        return derive_saddle_point(self.free_entropy)


@dataclass(frozen=True)
class AttentionModel(_Derived):
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


@dataclass(frozen=True)
class ScalarModel(_Derived):
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
