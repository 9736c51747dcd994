"""Subexpressions that several expressions share, and derivatives that keep them shared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sympy import Add, Function, Integer, Mul, Pow, Symbol, cse, numbered_symbols

__all__ = ["Slopes", "common_parts"]


def common_parts(expressions: Sequence[Any], letter: str) -> tuple[list[tuple[Symbol, Any]], list[Any]]:
    """Name what expressions have in common by a letter and a number; return the definitions and what is left.

    SymPy 1.14's `cse` evaluates each product anew.  A number times a sum, which derivatives hold without evaluating
    it, becomes a sum there, and its terms are taken for factors: so none is left standing.
    """
    known: dict[Any, Any] = {}
    whole = [_distributed(one, known) for one in expressions]
    # without order="none" the canonical ordering of cse dominates at L = 8
    shared: Any = cse(whole, symbols=numbered_symbols(letter), order="none")
    return shared


def _distributed(expression: Any, known: dict[Any, Any]) -> Any:
    """The expression with every number times a sum as a sum."""
    if not expression.args:
        return expression
    if expression not in known:
        parts = [_distributed(part, known) for part in expression.args]
        same = all(new is old for new, old in zip(parts, expression.args, strict=True))
        value = expression if same else expression.func(*parts)
        if isinstance(value, Mul) and len(value.args) == 2 and value.args[0].is_Number and value.args[1].is_Add:
            value = Add(*(value.args[0] * term for term in value.args[1].args))
        known[expression] = value
    return known[expression]


class Slopes:
    """Derivatives of expressions in one variable, in which each part is differentiated once.

    SymPy's own ``diff`` differentiates a part again wherever it stands: a formula whose definitions take each other
    twice has few parts, but twice as many terms with every definition.

    Parameters
    ----------
    variable : Symbol or Indexed
    """

    def __init__(self, variable: Any) -> None:
        self._variable = variable
        self._known: dict[Any, Any] = {variable: Integer(1)}

    def __call__(self, expression: Any) -> Any:
        """The derivative of an expression."""
        if expression not in self._known:
            self._known[expression] = self._new(expression)
        return self._known[expression]

    def _new(self, expression: Any) -> Any:
        args: tuple[Any, ...] = expression.args
        if not isinstance(expression, (Add, Mul, Function)) and not (isinstance(expression, Pow) and args[1].is_number):
            return expression.diff(self._variable)
        changes = {place: change for place, one in enumerate(args) if (change := self(one)) != 0}
        if isinstance(expression, Add):
            return Add(*changes.values())
        if isinstance(expression, Mul):
            return Add(*(Mul(*args[:place], change, *args[place + 1 :]) for place, change in changes.items()))
        if isinstance(expression, Pow):
            base, power = args
            return Add(*(power * base ** (power - 1) * change for change in changes.values()))
        return Add(*(expression.fdiff(place + 1) * change for place, change in changes.items()))
