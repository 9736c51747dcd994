"""Formulas in problem files, read without evaluating any code.

A formula may hold numbers, the names it is given, ``+ - * / **`` and calls of the functions below; within a row of
logits, ``sum(...)`` adds its argument up over the row.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

from sympy import Add, Expr, Float, I, Integer, Rational, cos, cosh, exp, log, nan, oo, sin, sinh, sqrt, tanh, zoo

from derivations.functions import Modulus, Relu, Sigmoid, Sign, Softplus, with_known_functions

__all__ = ["FUNCTIONS", "FormulaError", "parse_formula", "parse_row_formula"]

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": exp,
    "log": log,
    "sqrt": sqrt,
    "abs": Modulus,
    "tanh": tanh,
    "sinh": sinh,
    "cosh": cosh,
    "sin": sin,
    "cos": cos,
    "relu": Relu,
    "sigmoid": Sigmoid,
    "softplus": Softplus,
    "sign": Sign,
    "max": lambda a, b: b + Relu(a - b),
    "min": lambda a, b: b - Relu(b - a),
}
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.Pow: lambda a, b: a**b,
}
_LONGEST = 2000
_DEEPEST = 200
_LARGEST = 4096  # bits of a number


class FormulaError(ValueError):
    """A formula that cannot be read; the sentence says what is wrong with it."""


def parse_formula(text: str, names: Mapping[str, Expr]) -> Any:
    """Read a formula of the given names.

    Raises
    ------
    FormulaError
        It is no formula, or uses an unknown name or function.
    """
    # SymPy may have made an absolute value of a root of a square
    return with_known_functions(_read(_tree(text), dict(names), None))


def parse_row_formula(text: str, logits: Sequence[Expr]) -> tuple[Any, ...]:
    """Read a formula of one logit ``z`` and sums over its row, for every logit of a row.

    Raises
    ------
    FormulaError
        As `parse_formula`.
    """
    tree = _tree(text)
    names = {"L": Integer(len(logits))}
    return tuple(_read(tree, {**names, "z": z}, logits) for z in logits)


def _tree(text: str) -> ast.expr:
    if not isinstance(text, str) or not text.strip():
        raise FormulaError("it is empty.")
    if len(text) > _LONGEST:
        raise FormulaError(f"it is longer than {_LONGEST} characters.")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise FormulaError(f"{text!r} is not a formula.") from None
    level, depth = [tree], 0
    while level:
        level, depth = [child for node in level for child in ast.iter_child_nodes(node)], depth + 1
        if depth > _DEEPEST:
            raise FormulaError(f"it is nested more than {_DEEPEST} levels deep; put brackets in long sums.")
    return tree


def _read(node: ast.expr, names: Mapping[str, Any], row: Sequence[Any] | None) -> Any:
    value = _value(node, names, row)
    if value.is_number:
        if value.has(nan, zoo, oo, -oo, I) or value.is_real is False:
            raise FormulaError(f"{ast.unparse(node)!r} is not a finite real number.")
        if value.is_Rational and max(abs(value.p), value.q).bit_length() > _LARGEST:
            raise FormulaError("it holds too large a number.")
    return value


def _value(node: ast.expr, names: Mapping[str, Any], row: Sequence[Any] | None) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return Integer(node.value) if isinstance(node.value, int) else _number(node.value)
    if isinstance(node, ast.Name):
        if node.id not in names:
            known = ", ".join(names)
            raise FormulaError(f'it uses the unknown name "{node.id}": the names are {known}.')
        return names[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _read(node.operand, names, row)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _read(node.left, names, row), _read(node.right, names, row)
        if isinstance(node.op, ast.Pow) and not (right.is_number and abs(right) <= 64):
            raise FormulaError("its powers must be numbers of at most 64.")
        return _OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        name = node.func.id
        if name == "sum" and row is not None and len(node.args) == 1:
            return Add(*(_read(node.args[0], {**names, "z": z}, row) for z in row))
        if name not in FUNCTIONS:
            known = ", ".join([*FUNCTIONS, *(["sum"] if row is not None else [])])
            raise FormulaError(f'it calls the unknown function "{name}": the functions are {known}.')
        if len(node.args) != (2 if name in ("max", "min") else 1):
            raise FormulaError(f'it gives "{name}" {len(node.args)} arguments.')
        return FUNCTIONS[name](*(_read(a, names, row) for a in node.args))
    raise FormulaError(f"{ast.unparse(node)!r} cannot stand in a formula.")


def _number(value: float) -> Any:
    """Decimals of few digits as fractions, so that derivatives stay exact."""
    if not isfinite(value):
        raise FormulaError("it holds too large a number.")
    exact: Any = Rational(str(value))
    return exact if exact.q < 10**12 else Float(value)
