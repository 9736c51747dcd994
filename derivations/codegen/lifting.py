"""Derivatives and shared subexpressions: straight-line code of a few expressions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sympy import Add, Expr, Integer, Mul, Pow, Symbol, exp

from derivations.algebra.common_parts import common_parts
from derivations.codegen.ir import Assign, name

__all__ = ["Lifted", "straight_line"]


class Lifted:
    """Expressions with their exponentials and reciprocals taken out as symbols, and derivatives in those symbols.

    SymPy merges ``exp(z)^2`` into ``exp(2 z)`` and writes quotients as negative powers, so that derivatives of a score
    would call the exponential and the power function anew for every term.  With ``e = exp(a)`` and ``p = 1/x`` as
    symbols, ``de = e da`` and ``dp = -p^2 dx``, all derivatives are polynomials in what is computed once.

    Where ``x`` is a sum in which ``e`` stands, its share ``s = e p`` of it is a symbol too. With ``ds = s (da - p dx)``
    and ``p dx`` a sum over shares, a derivative is ``sum_i f_i s_i da_i - m p dx``, and the mean ``m = sum_i f_i s_i``
    another symbol: in L logits there are of the order of L^2 operations then, not of L^3.
    """

    def __init__(self) -> None:
        self.definitions: dict[Any, Any] = {}
        self._symbols: dict[Any, Any] = {}

    def lift(self, expression: Any) -> Any:
        """The expression with symbols for its exponentials and reciprocals, innermost first."""
        if not expression.args:
            return expression
        lifted = expression.func(*(self.lift(a) for a in expression.args))
        if isinstance(lifted, exp):
            return self._symbol(lifted, "e")
        if isinstance(lifted, Pow) and lifted.exp.is_Integer and lifted.exp.is_negative:
            return self._symbol(1 / lifted.base, "p") ** (-lifted.exp)
        return self._shared(lifted) if isinstance(lifted, Mul) else lifted

    def _shared(self, product: Any) -> Any:
        """A product of an exponential and the reciprocal of a sum in which it stands, as its share of the sum."""
        for p in product.args:
            value = self.definitions.get(p)
            if not isinstance(value, Pow):
                continue
            for e in product.args:
                if e in Add.make_args(value.base) and isinstance(self.definitions.get(e), exp):
                    return self._symbol(e * p, "s") * product / (e * p)
        return product

    def _symbol(self, value: Expr, letter: str) -> Symbol:
        if value not in self._symbols:
            symbol = Symbol(f"{letter}{len(self.definitions)}")
            self._symbols[value] = symbol
            self.definitions[symbol] = value
        return self._symbols[value]

    def derivative(self, expression: Any, variable: Symbol) -> Expr:
        """Total derivative of a lifted expression."""
        result = expression.diff(variable)
        means: dict[Any, Expr] = {}
        for symbol, value in tuple(self.definitions.items()):
            outer = expression.diff(symbol)
            if outer == 0:
                continue
            if isinstance(value, exp):
                result += outer * symbol * self._growth(symbol, variable)
            elif isinstance(value, Mul):
                e, p = self._parts(value)
                result += outer * symbol * self._growth(e, variable)
                means[p] = means.get(p, Integer(0)) + outer * symbol
            elif isinstance(value, Pow) and self._has_shares(value):
                means[symbol] = means.get(symbol, Integer(0)) + outer * symbol
            elif isinstance(value, Pow):
                result -= outer * symbol**2 * self.derivative(1 / value, variable)
            else:
                result += outer * self.derivative(value, variable)
        for p, mean in means.items():
            growth = self._growth_of_sum(p, variable)
            if growth != 0:
                # by one symbol: the same for all variables
                result -= growth * (self._symbol(mean, "m") if isinstance(mean, Add) else mean)
        return result

    def _has_shares(self, reciprocal: Any) -> bool:
        """Whether a term of the sum in the denominator is an exponential."""
        return any(isinstance(self.definitions.get(term), exp) for term in Add.make_args(reciprocal.base))

    def _parts(self, share: Any) -> tuple[Any, Any]:
        """The exponential and the reciprocal of which a share is the product."""
        e, p = sorted(share.args, key=lambda factor: isinstance(self.definitions[factor], Pow))
        return e, p

    def _growth_of_sum(self, p: Any, variable: Symbol) -> Expr:
        """Logarithmic derivative of ``1 / p``."""
        growth: Any = Integer(0)
        for term in Add.make_args(self.definitions[p].base):
            if not isinstance(self.definitions.get(term), exp):
                growth += p * self.derivative(term, variable)
            elif (own := self._growth(term, variable)) != 0:
                growth += self._symbol(term * p, "s") * own
        return growth

    def _growth(self, e: Any, variable: Symbol) -> Expr:
        """Logarithmic derivative of an exponential."""
        return self.derivative(self.definitions[e].args[0], variable)


def straight_line(outputs: Mapping[str, Expr], definitions: Iterable[tuple[Symbol, Expr]] = ()) -> list[Assign]:
    """Assignments to named places, behind definitions, with shared subexpressions taken out."""
    shared, reduced = common_parts(list(outputs.values()), "x")
    values: list[tuple[Any, Any]] = [*definitions, *shared, *zip(map(name, outputs), reduced, strict=True)]
    return [Assign(place, value) for place, value in values]
