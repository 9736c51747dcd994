"""Formulas in problem files, read without evaluating any code.

A formula may hold numbers, the names it is given, ``+ - * / **`` and calls of the functions below; within a row of
logits, ``sum(...)`` adds its argument up over the row.  Whatever would take long, or overflow, is refused before SymPy
sees it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from sympy import (
    Add,
    Expr,
    Float,
    Function,
    I,
    Integer,
    Number,
    Pow,
    Rational,
    cos,
    cosh,
    exp,
    log,
    nan,
    oo,
    preorder_traversal,
    sin,
    sinh,
    sqrt,
    tanh,
    zoo,
)

from derivations.models.functions import Modulus, Relu, Sigmoid, Sign, Softplus, with_known_functions

__all__ = ["FUNCTIONS", "FormulaError", "names_in", "parse_formula", "parse_row_formula", "shortened"]

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
_TWO = ("max", "min")  # arguments; the others take one
_LONGEST = 2000
_DEEPEST = 200
_LARGEST = 1e60  # number: generated code multiplies a few of them
_SMALLEST = 1e-300
_EXACT = 10**15  # largest numerator or denominator of a number that is kept as a fraction
_MOST_IN_A_NUMBER = 8  # functions and powers: nested ones take 0.3 s, 10 take 7 s, and each further one longer still
_MOST_TERMS = 10_000  # of a second derivative, about; SymPy takes a second for as many
_FEW = 3


class FormulaError(ValueError):
    """A formula that cannot be read; the sentence says what is wrong with it."""


def shortened(text: str) -> str:
    """A formula as a message shows it: on one line, and not all of a long one."""
    line = " ".join(str(text).split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def names_in(text: str) -> list[str]:
    """Names of a formula other than those of functions, in alphabetical order.

    Raises
    ------
    FormulaError
        It is no formula.
    """
    return sorted({node.id for node in ast.walk(_tree(text)) if isinstance(node, ast.Name)} - FUNCTIONS.keys())


def parse_formula(text: str, names: Mapping[str, Expr]) -> Any:
    """Read a formula of the given names.

    Raises
    ------
    FormulaError
        It is no formula, or uses an unknown name or function.
    """
    return _finished(_read(_tree(text), dict(names), None))


def parse_row_formula(text: str, logits: Sequence[Expr]) -> tuple[Any, ...]:
    """Read a formula of one logit ``z`` and sums over its row, for every logit of a row.

    Raises
    ------
    FormulaError
        As `parse_formula`.
    """
    tree = _tree(text, len(logits))
    names = {"L": Integer(len(logits))}
    return tuple(_finished(_read(tree, {**names, "z": z}, logits)) for z in logits)


def _finished(expression: Any) -> Any:
    """The expression in known functions, if it is one of moderate numbers."""
    # SymPy may have made an absolute value of a root of a square
    known = with_known_functions(expression)
    if known.has(nan, zoo, oo, -oo):
        raise FormulaError("it is not finite anywhere.")
    for number in known.atoms(Number):
        _check_size(_size(number))
    return known


def _tree(text: str, length: int = 1) -> ast.expr:
    if not isinstance(text, str) or not text.strip():
        raise FormulaError("it is empty.")
    if len(text) > _LONGEST:
        raise FormulaError(f"it is longer than {_LONGEST} characters.")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise FormulaError(f"{shortened(text)!r} is not a formula.") from None
    level, depth = [tree], 0
    while level:
        level, depth = [child for node in level for child in ast.iter_child_nodes(node)], depth + 1
        if depth > _DEEPEST:
            raise FormulaError(f"it is nested more than {_DEEPEST} levels deep; put brackets in long sums.")
    for node in ast.walk(tree):
        # the parser reads a decimal below the smallest double as zero
        if isinstance(node, ast.Constant) and isinstance(node.value, float) and node.value == 0:
            digits = (ast.get_source_segment(text.strip(), node) or "").lower().partition("e")[0]
            _check_size(_SMALLEST / 2 if digits.strip("0._") else 0.0)
    # derivatives are checked for a few logits only; the whole row is written out once
    if max(_terms(tree, min(length, _FEW))) > _MOST_TERMS or _terms(tree, length).value > _MOST_TERMS:
        raise FormulaError(
            f"it is too intricate: it, or its second derivative, would have more than {_MOST_TERMS} terms; nest less."
        )
    return tree


class _Terms(NamedTuple):
    """Number of nodes of an expression and of its first two derivatives, written out; 0 of one that vanishes."""

    value: int
    first: int
    second: int


def _terms(node: ast.expr, length: int) -> _Terms:
    """An estimate that costs nothing; what cannot stand in a formula counts as a number, a row has `length` logits."""
    if isinstance(node, ast.Name):
        return _Terms(1, 1, 0)
    if isinstance(node, ast.UnaryOp):
        return _terms(node.operand, length)
    if isinstance(node, ast.BinOp):
        left, right = _terms(node.left, length), _terms(node.right, length)
        if isinstance(node.op, (ast.Add, ast.Sub)):
            return _Terms(left.value + right.value + 1, left.first + right.first, left.second + right.second)
        if isinstance(node.op, ast.Pow):
            return _composed(left)
        return _product(left, _composed(right) if isinstance(node.op, ast.Div) else right)
    if isinstance(node, ast.Call) and node.args:
        inner = [_terms(argument, length) for argument in node.args]
        if isinstance(node.func, ast.Name) and node.func.id in _TWO:  # one argument stands in the function twice
            last = inner[-1]
            outer = _composed(_Terms(*(sum(parts) + 1 for parts in zip(*inner, strict=True))))
            return _Terms(*(a + b + 1 for a, b in zip(last, outer, strict=True)))
        if isinstance(node.func, ast.Name) and node.func.id == "sum":
            return _Terms(*(length * part for part in inner[0]))
        return _composed(inner[0])
    return _Terms(1, 0, 0)


def _composed(inner: _Terms) -> _Terms:
    """Of a function of an expression."""
    value, first, second = inner
    if not first:
        return _Terms(value + 1, 0, 0)
    return _Terms(value + 1, value + 1 + first, 2 * (value + 1 + first) + second)


def _product(left: _Terms, right: _Terms) -> _Terms:
    first = second = 0
    for one, other in ((left, right), (right, left)):
        first += one.first + other.value if one.first else 0
        second += one.second + other.value if one.second else 0
    if left.first and right.first:
        second += left.first + right.first
    return _Terms(left.value + right.value + 1, first, second)


def _read(node: ast.expr, names: Mapping[str, Any], row: Sequence[Any] | None) -> Any:
    value: Any = _value(node, names, row)
    if value.is_number:
        if sum(isinstance(part, (Function, Pow)) for part in preorder_traversal(value)) > _MOST_IN_A_NUMBER:
            raise FormulaError(
                f"it holds a number of more than {_MOST_IN_A_NUMBER} functions and powers, {_unparsed(node)!r};"
                " write its value."
            )
        if value.has(nan, zoo, oo, -oo, I) or value.is_real is False:
            raise FormulaError(f"{_unparsed(node)!r} is not a finite real number.")
        try:
            size = _size(value)
        except (TypeError, ValueError):
            raise FormulaError(f"{_unparsed(node)!r} is not a finite real number.") from None
        _check_size(size)
        if isinstance(value, Rational) and max(abs(value.p), value.q) >= _EXACT:
            return Float(value)
    return value


def _size(number: Any) -> float:
    """Absolute value in double precision, but not zero where only the rounding makes it so."""
    try:
        size = abs(float(number))
    except OverflowError:
        return float("inf")
    return _SMALLEST / 2 if size == 0 and number != 0 else size


def _check_size(size: float) -> None:
    """Refuse a number whose size double precision could not multiply."""
    if not size <= _LARGEST:
        raise FormulaError(f"it holds too large a number: the largest is {_LARGEST:g}.")
    if 0 < size < _SMALLEST:
        raise FormulaError(f"it holds a number too near to zero: the smallest is {_SMALLEST:g}.")


def _unparsed(node: ast.expr) -> str:
    return shortened(ast.unparse(node))


def _value(node: ast.expr, names: Mapping[str, Any], row: Sequence[Any] | None) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return _number(node.value)
    if isinstance(node, ast.Name):
        if node.id not in names:
            known = ", ".join(names)
            raise FormulaError(f'it uses the unknown name "{shortened(node.id)}": the names are {known}.')
        return names[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _read(node.operand, names, row)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _read(node.left, names, row), _read(node.right, names, row)
        if isinstance(node.op, ast.Pow) and not (right.is_number and abs(right) <= 64):
            raise FormulaError("its powers must be numbers of at most 64.")
        if isinstance(node.op, ast.Div) and right == 0:
            raise FormulaError(f"{_unparsed(node)!r} is not a finite real number: it divides by zero.")
        return _OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        name, known = node.func.id, ", ".join([*FUNCTIONS, *(["sum"] if row is not None else [])])
        if name not in FUNCTIONS and (name != "sum" or row is None):
            raise FormulaError(f'it calls the unknown function "{shortened(name)}": the functions are {known}.')
        takes = 2 if name in _TWO else 1
        if len(node.args) != takes:
            what = "one, which it adds up over the row" if name == "sum" else ("one", "two")[takes - 1]
            raise FormulaError(f'it gives "{name}" {len(node.args)} arguments, but {name} takes {what}.')
        if name == "sum" and row is not None:
            return Add(*(_read(node.args[0], {**names, "z": z}, row) for z in row))
        return FUNCTIONS[name](*(_read(a, names, row) for a in node.args))
    raise FormulaError(
        f"{_unparsed(node)!r} cannot stand in a formula, which may hold numbers, the names {', '.join(names)},"
        " + - * / ** and functions such as exp(...)."
    )


def _number(value: float) -> Any:
    """Decimals of few digits as fractions, so that derivatives stay exact."""
    if isinstance(value, int):
        return Integer(value)
    if not isfinite(value):
        _check_size(value)
    exact: Any = Rational(str(value))
    return exact if exact.q < 10**12 else Float(value)
