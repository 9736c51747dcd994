"""A hash of an expression, which does not depend on how its formula was written or printed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from hashlib import sha256
from math import prod
from typing import Any

from sympy import Add, Mul, Pow

from derivations.models.functions import Softmax

__all__ = ["Part", "fingerprint", "part_of", "whole"]

_NOTHING = "1"  # what a number has beside its factor
Part = tuple[Fraction, str]
"""A rational factor, and a name of what it multiplies."""


def fingerprint(expression: Any) -> str:
    """The same for the same expression: the order of terms and factors, their signs and factors of sums do not matter.

    A printed expression may come back with a number taken into a sum, or with the opposite sums in a product. SymPy's
    own order of terms depends on its version.

    Parameters
    ----------
    expression : Expr
        In functions of `derivations.models.functions`.

    Returns
    -------
    str
        64 hexadecimal digits.
    """
    known: dict[Any, Part] = {}

    def part(node: Any) -> Part:
        if node not in known:
            known[node] = part_of(node, part)
        return known[node]

    return _name("value", whole(part(expression)))


def part_of(node: Any, part: Callable[[Any], Part]) -> Part:
    """The factor and the name of a node, of those of what it is made of."""
    if node.is_Number:
        return Fraction(node.p, node.q) if node.is_Rational else Fraction(float(node)), _NOTHING
    if not node.args:
        return Fraction(1), str(node)
    if isinstance(node, Add):
        return _sum([part(one) for one in node.args])
    if isinstance(node, Mul):
        return _product([part(one) for one in node.args])
    if isinstance(node, Pow) and node.exp.is_Integer:
        factor, name = part(node.base)
        return factor ** int(node.exp), _name("power", name, str(node.exp))
    arguments = [whole(part(one)) for one in node.args]
    if isinstance(node, Softmax):
        arguments.sort()
    return Fraction(1), _name(type(node).__name__, *arguments)


def _sum(parts: list[Part]) -> Part:
    terms: dict[str, Fraction] = defaultdict(Fraction)
    for factor, name in parts:
        terms[name] += factor
    terms = {name: terms[name] for name in sorted(terms) if terms[name] != 0}
    if not terms:
        return Fraction(0), _NOTHING
    first = next(iter(terms.values()))
    if len(terms) == 1:
        return first, next(iter(terms))
    return first, _name("sum", *(whole((factor / first, name)) for name, factor in terms.items()))


def _product(parts: list[Part]) -> Part:
    factor = prod((one for one, _ in parts), start=Fraction(1))
    names = sorted(name for _, name in parts if name != _NOTHING)
    return factor, names[0] if len(names) == 1 else _name("product", *names)


def whole(part: Part) -> str:
    """One text for both."""
    return f"{part[0]} {part[1]}"


def _name(kind: str, *inside: str) -> str:
    return sha256("\n".join((kind, *inside)).encode()).hexdigest()
