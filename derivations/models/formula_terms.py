"""How large a formula and its derivatives are, counted without SymPy, so that what would take for ever is refused."""

from __future__ import annotations

import ast
from collections.abc import Sequence, Set
from typing import Any

from derivations.models.formula_lines import DEEPEST, FormulaError

__all__ = ["Counting", "Terms"]

_MOST = 10_000  # terms, about, and operations; SymPy takes a second for as many
_MOST_SHARED = 200_000  # terms if written out, where derivatives share their parts: two seconds for as many
_TWO = ("max", "min")  # one argument stands in the function twice
_KINKED = ("abs", "relu", "sign", *_TWO)


class Terms:
    """Number of nodes of an expression and of its first two derivatives, written out; 0 of one that vanishes.

    And how many levels it has, and whether the uppermost is a sum, "+", a product, "*", or neither.
    """

    __slots__ = ("depth", "first", "kind", "second", "value")

    def __init__(self, value: int, first: int, second: int, depth: int = 1, kind: str = "") -> None:
        self.value, self.first, self.second, self.depth, self.kind = value, first, second, depth, kind


VARIABLE, NUMBER = Terms(1, 1, 0), Terms(1, 0, 0)


class Counting:
    """What a reader of formulas does to numbers of terms, as `derivations.models.formulas.Symbolic` to expressions.

    Every operation counts too: definitions and arrays may have more of them than the value has terms.

    Parameters
    ----------
    derivatives : bool
        Whether derivatives are counted.
    shared : bool
        Whether second derivatives keep their parts shared, so that they are not counted: those of a loss without kinks.
    fixed : set of Expr
        Symbols in which nothing is differentiated.
    """

    def __init__(self, *, derivatives: bool = True, shared: bool = False, fixed: Set[Any] = frozenset()) -> None:
        self._derivatives = derivatives
        self._shared = shared
        self._fixed = fixed
        self._operations = 0

    def number(self, value: float) -> Terms:
        """A number."""
        return NUMBER

    def named(self, value: Any) -> Terms:
        """What a name stands for."""
        return NUMBER if value.is_number or value in self._fixed else VARIABLE

    def checked(self, value: Terms, node: ast.AST) -> Terms:
        """Any value that was read."""
        return value

    def negative(self, value: Terms) -> Terms:
        """``-value``."""
        return value

    def total(self, parts: Sequence[Terms]) -> Terms:
        """A sum."""
        sums = ((part.value, part.first, part.second) for part in parts)
        value, first, second = map(sum, zip(*sums, strict=True)) if parts else (0, 0, 0)
        return self._made(value + 1, first, second, *parts, kind="+")

    def repeated(self, part: Terms, times: int) -> Terms:
        """A sum of so many like it."""
        return self._made(times * part.value, times * part.first, times * part.second, part, kind="+")

    def sum(self, left: Terms, right: Terms) -> Terms:
        """``left + right``."""
        return self.total((left, right))

    difference = sum

    def product(self, left: Terms, right: Terms) -> Terms:
        """``left * right``."""
        first = second = 0
        for one, other in ((left, right), (right, left)):
            first += one.first + other.value if one.first else 0
            second += one.second + other.value if one.second else 0
        if left.first and right.first:
            second += left.first + right.first
        return self._made(left.value + right.value + 1, first, second, left, right, kind="*")

    def quotient(self, left: Terms, right: Terms, node: ast.AST) -> Terms:
        """``left / right``."""
        return self.product(left, self._composed(right))

    def power(self, base: Terms, exponent: Terms) -> Terms:
        """``base ** exponent``."""
        return self._composed(base)

    def call(self, name: str, *arguments: Terms) -> Terms:
        """A function of one number, or of two."""
        self._shared &= name not in _KINKED or not any(one.first for one in arguments)
        if name not in _TWO:
            return self._composed(arguments[0])
        return self.sum(arguments[-1], self._composed(self.total(arguments)))

    def share(self, differences: Sequence[Terms]) -> Terms:
        """``1/(1 + exp(x_1) + ...)``, whose derivatives are products of the like."""
        if not differences:
            return NUMBER
        inner, count = self.total(differences), len(differences)
        if not inner.first:
            return self._made(inner.value + 1, 0, 0, inner)
        # derivatives hold this one and those of the other logits, which stand in the formula already
        first = 2 * count + inner.first
        return self._made(inner.value + 1, first, 2 * first + inner.second, inner)

    def _composed(self, inner: Terms) -> Terms:
        """Of a function of an expression."""
        if not inner.first:
            return self._made(inner.value + 1, 0, 0, inner)
        first = inner.value + 1 + inner.first
        return self._made(inner.value + 1, first, 2 * first + inner.second, inner)

    def _made(self, value: int, first: int, second: int, *parts: Terms, kind: str = "") -> Terms:
        self._operations += 1
        most = _MOST_SHARED if self._shared else _MOST
        if max(value, first, 0 if self._shared else second) > most:
            raise FormulaError(
                f"it is too intricate: it, or a derivative of it, would have more than {most} terms; nest less."
            )
        if self._operations > _MOST:
            raise FormulaError(f"it is too intricate: it has more than {_MOST} operations; nest less.")
        # a sum in a sum is one level
        depth = max((part.depth + (not kind or part.kind != kind) for part in parts), default=1)
        if depth > DEEPEST:
            raise FormulaError(f"it is nested more than {DEEPEST} levels deep by its definitions; nest less.")
        return Terms(value, *((first, second) if self._derivatives else (0, 0)), depth, kind)
