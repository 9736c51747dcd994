"""Ordinary Python functions of a row of logits, called with symbols, as formulas of one logit and sums over its row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sympy import Add, Float, Function, Symbol

from derivations.models.fingerprints import fingerprint
from derivations.models.formulas import FormulaError, Symbolic, parse_row_formula
from derivations.models.scores import RowScore, row_entries
from derivations.models.traced import printed

__all__ = ["row_formula_of"]

_FEW = 3  # logits of the row whose first entry becomes the formula
_Z = Symbol("z", real=True)


class RowSum(Function):
    """``sum(x)``, over the row."""


def row_formula_of(function: Callable[..., Any], length: int) -> str:
    """Call a function of a list of logits, and write down its value for one of them.

    Parameters
    ----------
    function : callable
        Maps a list of logits to the list of entries, as `derivations.models.scores.RowScore.row`.
    length : int
        Most logits of a row. The formula is compared with the function for rows of one, two, three and so many.

    Raises
    ------
    FormulaError
        It is no formula of one logit and of sums over its row; the sentence says so.
    ScoreError
        It fails, or is no row function.
    """
    score = RowScore(getattr(function, "__name__", "function"), "", function)
    rows = [[Symbol(f"z{b}", real=True) for b in range(count)] for count in sorted({1, 2, _FEW, length})]
    entries = [[*map(_as_read, row_entries(score, row))] for row in rows]
    few = rows[2]
    text = printed(_gathered(entries[2][0], few).xreplace({few[0]: _Z}))
    try:
        again = [parse_row_formula(text, row) for row in rows]
    except FormulaError:  # names of other logits, as a rule
        again = []
    if [[*map(fingerprint, row)] for row in again] != [[*map(fingerprint, row)] for row in entries]:
        raise FormulaError(
            "its entries are no formula of their own logit and of sums over the row: give it a name by"
            " attnphase.register_score."
        )
    return text


def _as_read(expression: Any) -> Any:
    """An expression with the numbers that a formula has for its decimals."""
    return expression.xreplace({x: Symbolic().number(float(x)) for x in expression.atoms(Float)})


def _gathered(node: Any, logits: Sequence[Any]) -> Any:
    """An expression with a `RowSum` for every sum of the same function of each logit."""
    if not node.free_symbols & {*logits} or not node.args:
        return node
    terms = [_gathered(one, logits) for one in node.args]
    if not isinstance(node, Add):
        return node.func(*terms)
    for term in [one for one in terms if one.free_symbols & {*logits} == {logits[0]}]:
        images = [term.xreplace({logits[0]: logit}) for logit in logits]
        if all(one in terms for one in images):
            terms = [one for one in terms if one not in images] + [RowSum(images[0].xreplace({logits[0]: _Z}))]
    return Add(*terms)
