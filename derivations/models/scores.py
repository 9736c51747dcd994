"""Score functions, defined by what they do to one row of logits.

An attention matrix is ``S[h] = score(logits)`` row by row, with ``logits = h h^T`` (tied weights, equation (2)) or
``h_Q h_K^T`` (untied, (124)), divided by a temperature.  A new score is one `RowScore`; its derivatives are found by
SymPy.  Under a causal mask the row function is given the visible logits only, so that it needs no mask of its own.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sympy import Add, Derivative, Expr, Rational, Symbol, exp, sympify
from sympy.core.function import AppliedUndef

from derivations.models.bounds import singular_point
from derivations.models.foreign import ForeignError, contained, imported, is_of_a_module
from derivations.models.formulas import FormulaError, parse_row_formula, shortened
from derivations.models.functions import Relu, Sigmoid, with_known_functions

__all__ = ["SCORES", "RowScore", "ScoreError", "is_formula", "linear", "named", "register_score", "resolve", "softmax"]

Row = Callable[[Sequence[Any]], Sequence[Any]]


class ScoreError(ValueError):
    """A score that cannot be used; the sentence says why."""


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
    null_logit : bool
        The row function is given one logit more, which is always zero.
    """

    name: str
    latex: str
    row: Row
    shift_invariant: bool = False
    null_logit: bool = False

    @property
    def known(self) -> bool:
        """Whether the row function has been looked up, see `named`."""
        return self.row is not _not_looked_up

    def entries(self, logits: Sequence[Any]) -> tuple[Any, ...]:
        """The row's entries as expressions of its logits, the null logit being zero."""
        if not self.null_logit:
            return tuple(islice(self.row(list(logits)), len(logits) + 1))  # one too many is refused, and ends
        return tuple(self.row([*logits, sympify(0)]))[: len(logits)]


def _not_looked_up(logits: Sequence[Any]) -> Sequence[Any]:
    raise ScoreError("the score's row function has not been looked up.")


def _softmax_row(logits: Sequence[Expr]) -> tuple[Expr, ...]:
    weights = [exp(z) for z in logits]
    total = Add(*weights)
    return tuple(w / total for w in weights)


RELU_FLOOR = Rational(1, 10)
"""Added to the sum that normalises the ReLU score, so that a row without positive logits is zero and not 0/0."""


def _relu_row(logits: Sequence[Any]) -> tuple[Any, ...]:
    weights: list[Any] = [Relu(z) for z in logits]
    total = RELU_FLOOR + Add(*weights)
    return tuple(w / total for w in weights)


softmax = RowScore("softmax", r"\mathrm{softmax}", _softmax_row, shift_invariant=True)
linear = RowScore("linear", r"\mathrm{id}", lambda logits: tuple(logits))
relu = RowScore("relu", r"\mathrm{relu}", _relu_row)
sigmoid = RowScore("sigmoid", r"\mathrm{sigmoid}", lambda logits: tuple(Sigmoid(z) for z in logits))
softmax1 = RowScore("softmax1", r"\mathrm{softmax}_1", _softmax_row, shift_invariant=True, null_logit=True)

SCORES = {score.name: score for score in (softmax, linear, relu, sigmoid, softmax1)}


def register_score(name: str, row: Row) -> RowScore:
    """Make a row function known under a name, for problems made in this process.

    Parameters
    ----------
    name : str
        A Python name that no shipped score has.
    row : callable
        Maps a list of L SymPy logits to the L entries of the row, for any L.

    Raises
    ------
    ScoreError
        The name cannot be used, or `row` is not a row function.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ScoreError(f"a score's name must be a Python name, not {name!r}.")
    if name in SCORES and SCORES[name].row in _SHIPPED:
        raise ScoreError(f'"{name}" is a shipped score: choose another name.')
    score = RowScore(name, _printed(name), row)
    check_row(score, 2)
    SCORES[name] = score
    return score


_SHIPPED = {score.row for score in SCORES.values()}
_SHIPPED_NAMES = frozenset(SCORES)


def is_formula(text: str) -> bool:
    """Whether a problem file's text is a formula in z, and no name."""
    return not is_of_a_module(text) and (not text.isidentifier() or text == "z")


def named(name: str) -> RowScore:
    """The score of a problem file's text for print alone: nothing is imported, so that some rows stay unknown."""
    if name in _SHIPPED_NAMES:
        return SCORES[name]
    return _of_formula(name) if is_formula(name) else RowScore(name, _printed(name.rpartition(":")[2]), _not_looked_up)


def _of_formula(text: str) -> RowScore:
    return RowScore(text, r"\mathsf{s}", lambda logits: parse_row_formula(text, logits))


def _printed(name: str) -> str:
    """A function's name in LaTeX; an underscore would be a subscript, and escaped would not survive Markdown."""
    return r"\mathrm{" + name.replace("_", r"\text{-}") + "}"


def resolve(name: str, length: int) -> RowScore:
    """The score that a problem file's text stands for: a known name, ``module:attribute``, or a formula in z.

    Raises
    ------
    ScoreError
        There is no such score, or it is not a row function for so many logits.
    """
    if name in SCORES:
        score = SCORES[name]
    elif name.isidentifier() and name != "z":
        close = difflib.get_close_matches(name, SCORES, 1)
        hint = f'did you mean "{close[0]}"?' if close else f"the known ones are {', '.join(SCORES)}."
        raise ScoreError(f'there is no score "{name}": {hint}')
    elif is_of_a_module(name):
        score = RowScore(name, _printed(name.rpartition(":")[2]), _imported(name))
    else:
        score = _of_formula(name)
    if score.row not in _SHIPPED:
        check_row(score, length)
    return score


def _imported(name: str) -> Row:
    try:
        found = imported(name)
    except ForeignError as error:
        raise ScoreError(f'"{name}" cannot be imported: {error}.') from None
    if isinstance(found, RowScore):
        return found.row
    function: Any = found if callable(found) else None
    if function is None:
        module, _, attribute = name.partition(":")
        raise ScoreError(f'"{name}" is not a function: module {module} has no callable "{attribute}".')
    return function


def check_row(score: RowScore, length: int) -> None:
    """Refuse a row function with the wrong shape, foreign symbols or undefined derivatives.

    Raises
    ------
    ScoreError
        One sentence.
    """
    z = [Symbol(f"z{b}", real=True) for b in range(length)]
    try:
        row_entries(score, z)
        z = z[:3]  # derivatives are alike for any number of logits
        entries = row_entries(score, z)
    except FormulaError as error:
        raise ScoreError(f'the formula "{shortened(score.name)}" cannot be used: {error}') from None
    name = shortened(score.name)
    for b, entry in enumerate(entries):
        foreign = sorted(map(str, entry.free_symbols - set(z)))
        if foreign:
            raise ScoreError(f'entry {b} of the score "{name}" holds {foreign[0]}, which is not a logit.')
        for variable in z:
            first = entry.diff(variable)
            if first.atoms(Derivative) or first.diff(variable).atoms(Derivative) or entry.atoms(AppliedUndef):
                raise ScoreError(f'entry {b} of the score "{name}" has no known derivative.')
    slopes = [entry.diff(variable) for entry in entries for variable in z]
    point = singular_point([*entries, *slopes], z)
    if point is not None:
        place = ", ".join(f"{x:.4g}" for x in point.values())
        raise ScoreError(
            f'the score "{name}" or its derivative is not a finite number at logits ({place}): keep its denominators,'
            " and the arguments of its logarithms and roots, above zero."
        )


def row_entries(score: RowScore, z: Sequence[Any]) -> tuple[Any, ...]:
    """The row's entries in terms of functions that generated code knows.

    Raises
    ------
    ScoreError
        The row function fails, or returns not as many expressions as there are logits.
    """
    name = shortened(score.name)
    try:
        with contained(FormulaError, ScoreError):
            entries = score.entries(z)
    except ForeignError as error:
        raise ScoreError(f'the score "{name}" fails on {len(z)} logits: {error}.') from error
    if len(entries) != len(z):
        count = f"more than {len(z)}" if len(entries) > len(z) else len(entries)
        raise ScoreError(f'the score "{name}" returns {count} entries for {len(z)} logits.')
    known = []
    for b, entry in enumerate(entries):
        try:
            expression: Any = sympify(entry)
        except (TypeError, ValueError, AttributeError) as error:
            raise ScoreError(f'entry {b} of the score "{name}" is not an expression.') from error
        if not isinstance(expression, Expr):
            raise ScoreError(f'entry {b} of the score "{name}" is not an expression.')
        try:
            known.append(with_known_functions(expression))
        except TypeError as error:
            raise ScoreError(f'entry {b} of the score "{name}" cannot be used: {error}.') from None
    return tuple(known)
