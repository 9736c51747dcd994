"""Rules for what expressions are at other arguments: signs and exchanges of symbols that leave them unchanged.

A rule that holds is a proof, for all values of the symbols.  One that does not says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from sympy import cos, cosh, preorder_traversal, sin, sinh, tanh

from derivations.models.fingerprints import Part, part_of, whole
from derivations.models.functions import Modulus, Sign

__all__ = ["MOST_NODES", "unchanged_by_rule"]

MOST_NODES = 20_000
"""Nodes of an expression up to which rules are tried: a tenth of a second."""
_ODD, _EVEN = (Sign, tanh, sinh, sin), (Modulus, cos, cosh)


def unchanged_by_rule(expressions: Sequence[Any], changes: Mapping[Any, tuple[int, Any]]) -> bool:
    """Whether rules show that expressions stay as they are under signed exchanges of symbols.

    Parameters
    ----------
    expressions : sequence of Expr
        Each stays in its place.
    changes : mapping
        The sign and the symbol that take the place of a symbol; others stay.

    Returns
    -------
    bool
        False says nothing.
    """
    if sum(1 for one in expressions for _ in preorder_traversal(one)) > MOST_NODES:
        return False
    plain, changed = _Parts({}), _Parts(changes)
    return all(whole(plain(one)) == whole(changed(one)) for one in expressions)


class _Parts:
    """Names of the nodes of expressions in which signs and symbols have been exchanged."""

    def __init__(self, changes: Mapping[Any, tuple[int, Any]]) -> None:
        self.changes, self.known = changes, dict[Any, Part]()

    def __call__(self, node: Any) -> Part:
        """The factor and the name of a node."""
        if node not in self.known:
            self.known[node] = self._part(node)
        return self.known[node]

    def _part(self, node: Any) -> Part:
        if node in self.changes:
            sign, symbol = self.changes[node]
            return Fraction(sign), str(symbol)
        if isinstance(node, (*_ODD, *_EVEN)):
            factor, name = self(node.args[0])
            odd = factor < 0 and isinstance(node, _ODD)
            return Fraction(-1 if odd else 1), f"{type(node).__name__} {whole((abs(factor), name))}"
        return part_of(node, self)
