"""A solvable attention model: student, teacher, tokens and regulariser, with concrete or symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from sympy import Expr, Symbol

from derivations.replica import FreeEntropy, derive_free_entropy
from derivations.saddle_point import SaddlePoint, derive_saddle_point
from derivations.scores import RowScore, softmax

__all__ = ["AttentionModel", "ScalarModel", "Student", "Teacher"]


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
    """

    score: RowScore = softmax
    rank: int = 1
    tied: bool = True

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
    """Teacher and student attention on L tokens, loss ``1/2 Tr[(S(h) - T(k)) D (S(h) - T(k))^T]``."""

    length: int = 2
    student: Student = field(default_factory=Student)
    teacher: Teacher = field(default_factory=Teacher)

    @property
    def columns(self) -> int:
        """Number r of columns of W."""
        return self.student.columns

    @property
    def teacher_rank(self) -> int:
        """Number t of columns of the teacher's weights."""
        return self.teacher.rank

    @property
    def sign_symmetric(self) -> bool:
        """Logits are bilinear, so the loss is unchanged by ``h -> -h`` and by ``k -> -k``."""
        return True


@dataclass(frozen=True)
class ScalarModel(_Derived):
    """Any loss given as one expression of the local fields: a small sequence multi-index model.

    Attributes
    ----------
    name : str
    loss : callable
        ``loss(h, k)`` with nested sequences of symbols, ``h[l][c]`` of shape (L, columns) and ``k[l][c]`` of shape
        (L, teacher_rank); returns a scalar expression.  Differentiated entry by entry, so meant for small sizes.
    """

    name: str
    loss: Callable[[Sequence[Sequence[Symbol]], Sequence[Sequence[Symbol]]], Expr]
    length: int = 1
    columns: int = 1
    teacher_rank: int = 1
    sign_symmetric: bool = False
