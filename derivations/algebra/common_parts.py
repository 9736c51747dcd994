"""Subexpressions that several expressions share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sympy import Add, Mul, Symbol, cse, numbered_symbols

__all__ = ["common_parts"]


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
