"""The text of a formula as a tree: its definitions and its value, within limits of length and depth."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import dedent

__all__ = ["DEEPEST", "SMALLEST", "FormulaError", "Lines", "lines_of", "shortened", "unparsed"]

SMALLEST = 1e-300
"""Size of the smallest number of a formula, other than zero."""

DEEPEST = 200
"""Levels of a formula, with its definitions: Python cannot walk through many more."""

_LONGEST, _LONGEST_OF_LINES = 2000, 20_000


class FormulaError(ValueError):
    """A formula that cannot be read; the sentence says what is wrong with it."""


@dataclass(frozen=True)
class Lines:
    """A formula: definitions of names in their order, and the value."""

    definitions: tuple[tuple[str, ast.expr], ...]
    value: ast.expr

    def names(self) -> set[str]:
        """Names that the formula takes and does not define, those of functions included."""
        trees = [*(tree for _, tree in self.definitions), self.value]
        found = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
        return found - {name for name, _ in self.definitions}


def shortened(text: str) -> str:
    """A formula as a message shows it: on one line, and not all of a long one."""
    line = " ".join(str(text).split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def unparsed(node: ast.AST) -> str:
    """A part of a formula as a message shows it."""
    return shortened(ast.unparse(node))


def lines_of(text: str, *, defines: bool) -> Lines:
    """The tree of a formula, which may have definitions ``name = formula`` before its value if it ``defines`` names.

    Raises
    ------
    FormulaError
        It is no formula, or too long.
    """
    if not isinstance(text, str) or not text.strip():
        raise FormulaError("it is empty.")
    longest = _LONGEST_OF_LINES if defines else _LONGEST
    if len(text) > longest:
        raise FormulaError(f"it is longer than {longest} characters.")
    text = dedent(text).strip()
    try:
        lines = _of_statements(ast.parse(text).body) if defines else Lines((), ast.parse(text, mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise FormulaError(f"{shortened(text)!r} is not a formula.") from None
    except ValueError as error:
        if isinstance(error, FormulaError):
            raise
        raise FormulaError(f"{shortened(text)!r} is not a formula.") from None
    for tree in [*(tree for _, tree in lines.definitions), lines.value]:
        _check_depth(tree)
        for node in ast.walk(tree):
            # the parser reads a decimal below the smallest double as zero
            if isinstance(node, ast.Constant) and isinstance(node.value, float) and node.value == 0:
                digits = (ast.get_source_segment(text, node) or "").lower().partition("e")[0]
                if digits.strip("0._"):
                    raise FormulaError(f"it holds a number too near to zero: the smallest is {SMALLEST:g}.")
    return lines


def _of_statements(body: list[ast.stmt]) -> Lines:
    if not body:
        raise FormulaError("it is empty.")
    *before, last = body
    if not isinstance(last, ast.Expr):
        raise FormulaError(f"its last line {unparsed(last)!r} is not a formula: let it be the value, without a name.")
    return Lines(tuple(_definitions(before)), last.value)


def _definitions(statements: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    defined = set[str]()
    for statement in statements:
        target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        if not isinstance(statement, ast.Assign) or not isinstance(target, ast.Name):
            raise FormulaError(
                f"its line {unparsed(statement)!r} is not a definition: all lines but the last must read"
                " name = formula."
            )
        if target.id in defined:
            raise FormulaError(f'it defines "{shortened(target.id)}" twice: choose another name.')
        defined.add(target.id)
        yield target.id, statement.value


def _check_depth(tree: ast.expr) -> None:
    level, depth = list[ast.AST]([tree]), 0
    while level:
        level, depth = [child for node in level for child in ast.iter_child_nodes(node)], depth + 1
        if depth > DEEPEST:
            raise FormulaError(f"it is nested more than {DEEPEST} levels deep; put brackets in long sums.")
