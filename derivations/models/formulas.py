"""Formulas in problem files, read without evaluating any code.

A formula may hold numbers, the names it is given, ``+ - * / **`` and calls of the functions below; within a row of
logits, ``sum(...)`` adds its argument up over the row.  A formula that is given arrays may also index them, multiply
them by ``@``, transpose them by ``.T``, call the functions of `derivations.models.formula_arrays`, and define names on
lines before its value.  Whatever would take long, or overflow, is refused before SymPy sees it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence, Set
from math import isfinite
from typing import Any

import numpy as np
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

from derivations.models.formula_arrays import ARRAY_FUNCTIONS, array, elementwise, entry, extreme, matmul
from derivations.models.formula_lines import SMALLEST, FormulaError, Lines, lines_of, shortened, unparsed
from derivations.models.formula_terms import Counting
from derivations.models.functions import Modulus, Relu, Sigmoid, Sign, Softmax, Softplus, with_known_functions

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
_OPERATORS: dict[type, str] = {ast.Add: "sum", ast.Sub: "difference", ast.Mult: "product"}
_SEVERAL = ("max", "min")  # arguments; the others take one
_REMEDIES: dict[tuple[type, ...], str] = {
    (ast.Compare, ast.IfExp, ast.And, ast.Or, ast.Not): "write it with sign, max, min, abs or relu",
    (ast.BitXor,): "write a power as **",
}
_LARGEST = 1e60  # number: generated code multiplies a few of them
_EXACT = 10**15  # largest numerator or denominator of a number that is kept as a fraction
_MOST_IN_A_NUMBER = 8  # functions and powers: nested ones take 0.3 s, 10 take 7 s, and each further one longer still
_FEW = 3
_LARGEST_EYE = 16


def names_in(text: str) -> list[str]:
    """Names of a formula other than those of functions and of its own definitions, in alphabetical order.

    Raises
    ------
    FormulaError
        It is no formula.
    """
    return sorted(lines_of(text, defines=True).names() - FUNCTIONS.keys() - ARRAY_FUNCTIONS.keys())


def parse_formula(
    text: str,
    names: Mapping[str, Any],
    arrays: Mapping[str, Any] | None = None,
    fixed: Set[Any] = frozenset(),
    *,
    shaped: bool = False,
) -> Any:
    """Read a formula of the given names.

    Parameters
    ----------
    text : str
    names : mapping of str to Expr
        What stands for a number.
    arrays : mapping of str to array of Expr, optional
        What stands for an array, or may be indexed though its name is a number's, too.  If given, the formula may have
        definitions and call functions of arrays; it is a loss or a metric.
    fixed : set of Expr, optional
        Symbols in which nobody differentiates; a formula may have more terms of these.
    shaped : bool
        Whether its value may be an array.

    Raises
    ------
    FormulaError
        It is no formula, uses an unknown name or function, or its value is no number.
    """
    lines = lines_of(text, defines=arrays is not None)
    for algebra in (Counting(shared=arrays is not None, fixed=fixed), Symbolic()):
        value = _Reader(algebra, names, arrays).value(lines, shaped=shaped)
    return np.frompyfunc(_finished, 1, 1)(value) if isinstance(value, np.ndarray) else _finished(value)


def parse_row_formula(text: str, logits: Sequence[Expr]) -> tuple[Any, ...]:
    """Read a formula of one logit ``z`` and sums over its row, for every logit of a row.

    Raises
    ------
    FormulaError
        As `parse_formula`.
    """
    lines, length = lines_of(text, defines=False), {"L": Integer(len(logits))}
    # derivatives are checked for a few logits only; the whole row is written out once
    for algebra, row in ((Counting(), logits[:_FEW]), (Counting(derivatives=False), logits)):
        _Reader(algebra, {**length, "z": row[0]}, row=row).value(lines)
    return tuple(_finished(_Reader(Symbolic(), {**length, "z": z}, row=logits).value(lines)) for z in logits)


def _finished(expression: Any) -> Any:
    """The expression in known functions, if it is one of moderate numbers."""
    # SymPy may have made an absolute value of a root of a square
    known = with_known_functions(expression)
    if known.has(nan, zoo, oo, -oo):
        raise FormulaError("it is not finite anywhere.")
    for number in known.atoms(Number):
        _check_size(_size(number))
    return known


class Symbolic:
    """What a reader of formulas does to expressions."""

    def number(self, value: float) -> Any:
        """Decimals of few digits as fractions, so that derivatives stay exact."""
        if isinstance(value, int):
            return Integer(value)
        if not isfinite(value):
            _check_size(value)
        exact: Any = Rational(str(value))
        return exact if exact.q < 10**12 else Float(value)

    def named(self, value: Any) -> Any:
        """What a name stands for."""
        return value

    def checked(self, value: Any, node: ast.AST) -> Any:
        """Any value that was read, if it is no number that is hard to evaluate, or too large."""
        if not value.is_number:
            return value
        if sum(isinstance(part, (Function, Pow)) for part in preorder_traversal(value)) > _MOST_IN_A_NUMBER:
            raise FormulaError(
                f"it holds a number of more than {_MOST_IN_A_NUMBER} functions and powers, {unparsed(node)!r};"
                " write its value."
            )
        if value.has(nan, zoo, oo, -oo, I) or value.is_real is False:
            raise FormulaError(f"{unparsed(node)!r} is not a finite real number.")
        try:
            size = _size(value)
        except (TypeError, ValueError):
            raise FormulaError(f"{unparsed(node)!r} is not a finite real number.") from None
        _check_size(size)
        return Float(value) if isinstance(value, Rational) and max(abs(value.p), value.q) >= _EXACT else value

    def negative(self, value: Any) -> Any:
        """``-value``."""
        return -value

    def total(self, parts: Sequence[Any]) -> Any:
        """A sum."""
        return Add(*parts)

    def sum(self, left: Any, right: Any) -> Any:
        """``left + right``."""
        return left + right

    def difference(self, left: Any, right: Any) -> Any:
        """``left - right``."""
        return left - right

    def product(self, left: Any, right: Any) -> Any:
        """``left * right``."""
        return left * right

    def quotient(self, left: Any, right: Any, node: ast.AST) -> Any:
        """``left / right``."""
        if right == 0:
            raise FormulaError(f"{unparsed(node)!r} is not a finite real number: it divides by zero.")
        return left / right

    def power(self, base: Any, exponent: Any) -> Any:
        """``base ** exponent``."""
        if not (exponent.is_number and abs(exponent) <= 64):
            raise FormulaError("its powers must be numbers of at most 64.")
        return base**exponent

    def call(self, name: str, *arguments: Any) -> Any:
        """A function."""
        return FUNCTIONS[name](*arguments)

    def share(self, differences: Sequence[Any]) -> Any:
        """``1/(1 + exp(x_1) + ...)``."""
        return Softmax(*differences) if differences else Integer(1)


class _Reader:
    """The value of a formula's tree in an algebra: that of expressions, or that of their numbers of terms."""

    def __init__(
        self,
        algebra: Symbolic | Counting,
        names: Mapping[str, Any],
        arrays: Mapping[str, Any] | None = None,
        row: Sequence[Any] | None = None,
    ) -> None:
        self.algebra: Any = algebra
        self.row = row
        self.arrays = None if arrays is None else {name: self._named(value) for name, value in arrays.items()}
        self.known = {**(self.arrays or {}), **{name: self._named(value) for name, value in names.items()}}
        self.length = None if arrays is None else names.get("L")

    def _named(self, value: Any) -> Any:
        named = self.algebra.named
        return np.frompyfunc(named, 1, 1)(value) if isinstance(value, np.ndarray) else named(value)

    def value(self, lines: Lines, *, shaped: bool = False) -> Any:
        """The value of a whole formula, which is a number, or if ``shaped`` perhaps an array."""
        given = {*self.known}
        for name, node in lines.definitions:
            if name in given or name in FUNCTIONS or name in ARRAY_FUNCTIONS:
                raise FormulaError(
                    f'it defines "{shortened(name)}", which is the name of a field, a number or a function:'
                    " choose another name."
                )
            self.known[name] = self.read(node)
        value = self.read(lines.value)
        if isinstance(value, np.ndarray) and not shaped:
            raise FormulaError(
                f"its value {unparsed(lines.value)!r} is an array of shape {value.shape}, but must be one number:"
                " add it up by sum(...)."
            )
        return value

    def read(self, node: ast.expr) -> Any:
        """The value of a part, checked."""
        return elementwise(lambda value: self.algebra.checked(value, node), node, self._value(node))

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value) if isinstance(value, (int, float)) and not isinstance(value, bool):
                return self.algebra.number(value)
            case ast.Name(id=name):
                if name not in self.known:
                    known = ", ".join(self.known)
                    raise FormulaError(f'it uses the unknown name "{shortened(name)}": the names are {known}.')
                return self.known[name]
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
                value = self.read(operand)
                return elementwise(self.algebra.negative, node, value) if isinstance(node.op, ast.USub) else value
            case ast.BinOp():
                return self._operation(node)
            case ast.Call(func=ast.Name(id=name)) if self.arrays is not None and name in ARRAY_FUNCTIONS:
                return self._array_function(node, name)
            case ast.Call(func=ast.Name(id=name), keywords=[]):
                return self._function(node, name)
            case ast.Subscript(value=inner) if self.arrays is not None:
                return entry(self._array_of(inner), _index(node.slice, node), node)
            case ast.Attribute(value=inner, attr="T") if self.arrays is not None:
                return np.transpose(self._array_of(inner))
            case ast.List(elts=items) if self.arrays is not None and items:
                return _stacked([self.read(item) for item in items], node)
            case _:
                raise self._misfit(node)

    def _misfit(self, node: ast.expr) -> FormulaError:
        for kinds, remedy in _REMEDIES.items():
            if isinstance(getattr(node, "op", node), kinds):
                return FormulaError(f"{unparsed(node)!r} cannot stand in a formula: {remedy}.")
        known = ", ".join(self.known)
        also = "" if self.arrays is None else ", indices such as h[0, 1] or h[:, 0], .T, @, lists"
        return FormulaError(
            f"{unparsed(node)!r} cannot stand in a formula, which may hold numbers, the names {known}, + - * / **{also}"
            " and functions such as exp(...)."
        )

    def _operation(self, node: ast.BinOp) -> Any:
        kind = type(node.op)
        if kind is ast.MatMult and self.arrays is not None:
            return matmul(self.algebra, self._array_of(node.left), self._array_of(node.right), node)
        if kind not in (*_OPERATORS, ast.Div, ast.Pow):
            raise self._misfit(node)
        left, right = self.read(node.left), self.read(node.right)
        if kind is ast.Pow:
            return elementwise(self.algebra.power, node, left, right)
        if kind is ast.Div:
            return elementwise(lambda a, b: self.algebra.quotient(a, b, node), node, left, right)
        return elementwise(getattr(self.algebra, _OPERATORS[kind]), node, left, right)

    def _function(self, node: ast.Call, name: str) -> Any:
        own = [] if self.arrays is None else [name for name in ARRAY_FUNCTIONS if name not in FUNCTIONS]
        own = ["sum"] if self.row is not None else own
        if name not in FUNCTIONS and name not in own:
            known = ", ".join([*FUNCTIONS, *own])
            raise FormulaError(f'it calls the unknown function "{shortened(name)}": the functions are {known}.')
        count, several = len(node.args), name in _SEVERAL
        if count < 2 if several else count != 1:
            what = "one, which it adds up over the row" if name == "sum" else "two or more" if several else "one"
            raise FormulaError(f'it gives "{name}" {count} arguments, but {name} takes {what}.')
        if name == "sum":
            return self._over_the_row(node.args[0])
        if several:
            return extreme(name)(self.algebra, node, *map(self.read, node.args))
        return elementwise(lambda x: self.algebra.call(name, x), node, self.read(node.args[0]))

    def _over_the_row(self, node: ast.expr) -> Any:
        assert self.row is not None, "called of a row alone"
        if isinstance(self.algebra, Counting):
            return self.algebra.repeated(self.read(node), len(self.row))
        outer, terms = self.known, list[Any]()
        for z in self.row:
            self.known = {**outer, "z": z}
            terms.append(self.read(node))
        self.known = outer
        return self.algebra.total(terms)

    def _array_function(self, node: ast.Call, name: str) -> Any:
        function, least, most, keywords = ARRAY_FUNCTIONS[name]
        if not least <= len(node.args) <= (most or len(node.args)):
            takes = "one" if most == 1 else "one or two" if most else "one or more"
            raise FormulaError(f'it gives "{name}" {len(node.args)} arguments, but {name} takes {takes}.')
        named: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg not in keywords:
                raise FormulaError(f"{unparsed(node)!r} has the keyword {keyword.arg}, which {name} does not take.")
            named[keyword.arg] = self._option(keyword.value, node, bool if keyword.arg == "causal" else int)
        if name == "eye":
            size = node.args[0]
            whole = isinstance(size, ast.Constant) and type(size.value) is int and 1 <= size.value <= _LARGEST_EYE
            if not whole and not (isinstance(size, ast.Name) and size.id == "L" and self.length is not None):
                raise FormulaError(f"{unparsed(node)!r} must be eye(L), or of a whole number from 1 to {_LARGEST_EYE}.")
            count: Any = size.value if isinstance(size, ast.Constant) else self.length
            return function(self.algebra, node, int(count))
        # of several numbers the largest is a number, whatever array their names may stand for
        read = self.read if name in _SEVERAL and len(node.args) > 1 else self._array_of
        arguments = [read(argument) for argument in node.args]
        if keywords == ("axis",) and len(arguments) == 2:
            named["axis"], arguments = self._option(node.args[1], node, int), arguments[:1]
        return function(self.algebra, node, *arguments, **named)

    def _option(self, value: ast.expr, node: ast.Call, kind: type) -> Any:
        """A whole number, or true or false, among the arguments of a function."""
        try:
            found = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found = None
        if type(found) is not kind:
            what = "a whole number such as 0" if kind is int else "True or False"
            raise FormulaError(f"{unparsed(node)!r} has {unparsed(value)!r} where {what} must stand.")
        return found

    def _array_of(self, node: ast.expr) -> Any:
        """The value of a part; of a name that stands for a number and an array of one entry, the array."""
        if self.arrays is not None and isinstance(node, ast.Name) and node.id in self.arrays:
            return self.arrays[node.id]
        return self.read(node)


def _index(node: ast.expr, whole: ast.Subscript) -> Any:
    """What stands between square brackets: whole numbers, and slices of these."""
    match node:
        case ast.Tuple(elts=parts) if 0 < len(parts) <= 2:
            return tuple(_index(part, whole) for part in parts)
        case ast.Slice(lower=lower, upper=upper, step=step):
            ends = (None if end is None else _index(end, whole) for end in (lower, upper, step))
            return slice(*ends)
        case ast.Constant(value=value) if type(value) is int:
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if type(value) is int:
            return -value
        case _:
            raise FormulaError(
                f"{unparsed(whole)!r} has an index that is not of whole numbers and colons, such as [0, 1] or [:, 0]."
            )


def _stacked(items: list[Any], node: ast.List) -> Any:
    """Numbers, or rows of as many, as an array."""
    shapes = {item.shape if isinstance(item, np.ndarray) else () for item in items}
    if len(shapes) > 1 or len(*shapes) > 1:
        raise FormulaError(f"{unparsed(node)!r} must be a list of numbers, or of lists of as many numbers each.")
    return array([[*item] if isinstance(item, np.ndarray) else item for item in items])


def _size(number: Any) -> float:
    """Absolute value in double precision, but not zero where only the rounding makes it so."""
    try:
        size = abs(float(number))
    except OverflowError:
        return float("inf")
    return SMALLEST / 2 if size == 0 and number != 0 else size


def _check_size(size: float) -> None:
    """Refuse a number whose size double precision could not multiply."""
    if not size <= _LARGEST:
        raise FormulaError(f"it holds too large a number: the largest is {_LARGEST:g}.")
    if 0 < size < SMALLEST:
        raise FormulaError(f"it holds a number too near to zero: the smallest is {SMALLEST:g}.")
