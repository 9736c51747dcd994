"""Score functions, defined by what they do to one row of logits.

An attention matrix is ``S[h] = score(logits)`` row by row, with ``logits = h h^T`` (tied weights, equation (2)) or
``h_Q h_K^T`` (untied, (124)).  A new score is one `RowScore`; its derivatives are found by SymPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sympy import Add, Expr, exp

__all__ = ["SCORES", "RowScore", "linear", "softmax"]


@dataclass(frozen=True)
class RowScore:
    """A score function acting on each row of logits.

    Attributes
    ----------
    name : str
        The name used in problem files.
    latex : str
        Printed name.
    row : callable
        Maps the L logits of a row to the L entries of the attention matrix's row.
    shift_invariant : bool
        Adding one number to all logits changes nothing.  Generated code then subtracts the largest logit first, so
        that no exponential overflows.  Checked in the tests.
    """

    name: str
    latex: str
    row: Callable[[Sequence[Expr]], tuple[Expr, ...]]
    shift_invariant: bool = False


def _softmax_row(logits: Sequence[Expr]) -> tuple[Expr, ...]:
    weights = [exp(z) for z in logits]
    total = Add(*weights)
    return tuple(w / total for w in weights)


softmax = RowScore("softmax", r"\mathrm{softmax}", _softmax_row, shift_invariant=True)
linear = RowScore("linear", r"\mathrm{id}", lambda logits: tuple(logits))

SCORES = {score.name: score for score in (softmax, linear)}
