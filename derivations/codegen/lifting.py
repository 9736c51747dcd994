"""Derivatives and shared subexpressions: straight-line code of a few expressions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sympy import Expr, Pow, Symbol, cse, exp, numbered_symbols

from derivations.codegen.ir import Assign, name

__all__ = ["Lifted", "straight_line"]


class Lifted:
    """Expressions with their exponentials and reciprocals taken out as symbols, and derivatives in those symbols.

    SymPy merges ``exp(z)^2`` into ``exp(2 z)`` and writes quotients as negative powers, so that derivatives of a score
    would call the exponential and the power function anew for every term.  With ``e = exp(a)`` and ``p = 1/x`` as
    symbols, ``de = e da`` and ``dp = -p^2 dx``, all derivatives are polynomials in what is computed once.
    """

    def __init__(self) -> None:
        self.definitions: dict[Symbol, Expr] = {}
        self._symbols: dict[Expr, Symbol] = {}

    def lift(self, expression: Any) -> Any:
        """The expression with symbols for its exponentials and reciprocals, innermost first."""
        if not expression.args:
            return expression
        lifted = expression.func(*(self.lift(a) for a in expression.args))
        if isinstance(lifted, exp):
            return self._symbol(lifted, "e")
        if isinstance(lifted, Pow) and lifted.exp.is_Integer and lifted.exp.is_negative:
            return self._symbol(1 / lifted.base, "p") ** (-lifted.exp)
        return lifted

    def _symbol(self, value: Expr, letter: str) -> Symbol:
        if value not in self._symbols:
            symbol = Symbol(f"{letter}{len(self.definitions)}")
            self._symbols[value] = symbol
            self.definitions[symbol] = value
        return self._symbols[value]

    def derivative(self, expression: Any, variable: Symbol) -> Expr:
        """Total derivative of a lifted expression."""
        result = expression.diff(variable)
        for symbol, value in self.definitions.items():
            outer = expression.diff(symbol)
            if outer == 0:
                continue
            if isinstance(value, exp):
                inner = symbol * self.derivative(value.args[0], variable)
            else:
                inner = -(symbol**2) * self.derivative(1 / value, variable)
            result += outer * inner
        return result


def straight_line(outputs: Mapping[str, Expr], definitions: Iterable[tuple[Symbol, Expr]] = ()) -> list[Assign]:
    """Assignments to named places, behind definitions, with shared subexpressions taken out."""
    # without order="none" the canonical ordering of cse dominates at L = 8
    shared, reduced = cse(list(outputs.values()), symbols=numbered_symbols("x"), order="none")
    values: list[tuple[Any, Any]] = [*definitions, *shared, *zip(map(name, outputs), reduced, strict=True)]
    return [Assign(place, value) for place, value in values]
