"""Ordinary Python functions, called with symbols or arrays of these, as the texts of formulas."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from sympy import Float, Symbol
from sympy.printing.str import StrPrinter

from derivations.algebra.common_parts import common_parts
from derivations.models.called import called
from derivations.models.formula_lines import FormulaError, shortened
from derivations.models.model import parameter_symbol
from derivations.models.scalar import Sizes, norm_array, norm_names

__all__ = ["Traced", "formula_of", "printed", "traced"]

_ARRAYS = ("h", "k", "noise", "c")
_OF_LOSS = (*_ARRAYS, "Q")


class Traced(NamedTuple):
    """A function as data.

    Attributes
    ----------
    text : str
        A formula that `derivations.models.formulas.parse_formula` reads, with definitions of what it takes twice.
    parameters : dict of str to float
        The function's own numbers.
    """

    text: str
    parameters: dict[str, float]


def traced(
    function: Callable[..., Any],
    sizes: Sizes,
    parameters: Mapping[str, float],
    arrays: Sequence[str] = _OF_LOSS,
    table: str = "loss.parameters",
    *,
    shape: tuple[int, ...] = (),
) -> Traced:
    """Call a function of the arrays ``h``, ``k``, ``noise``, ``c`` and ``Q``, or of some, and write down its value.

    Parameters
    ----------
    function : callable
        Its further arguments are numbers by name.
    sizes : Sizes
        Of the arrays of symbols, which are NumPy's, of objects.
    parameters : mapping of str to float
        Values of such numbers, for those without a default and instead of it.
    arrays : sequence of str
        Those that it may take.
    table : str
        Where the numbers stand in a problem.
    shape : tuple of int
        Of its value; none of one number.

    Raises
    ------
    FormulaError
        It fails, branches on a symbol, or returns no expression of these symbols; the sentence says why.
    """
    wanted, values = _arguments(function, parameters, arrays, table)
    known: dict[str, Any] = dict(zip(_OF_LOSS, (*sizes.symbols(), norm_array(sizes.columns)), strict=True))
    given = {name: known[name] for name in arrays if name in wanted and name not in values}
    numbers = {name: parameter_symbol(name) for name in values}
    arguments = {name: given[name] if name in given else numbers[name] for name in wanted}
    found = called(function, arguments, {numbers[name]: value for name, value in values.items()}, shape)
    taken = [*values, *(norm_names(sizes.columns) if "Q" in given else ())]
    return Traced(_text(found, taken), values)


def formula_of(function: Callable[..., Any], given: Mapping[str, Any], numbers: Iterable[str] = ()) -> str:
    """Call a function of some symbols, or arrays of these, and write down its value.

    Parameters
    ----------
    function : callable
        Its further arguments have defaults, which stand in the formula.
    given : mapping
        Symbols by the names of arguments.
    numbers : iterable of str
        Names in formulas of the `derivations.models.model.parameter_symbol` among them.

    Raises
    ------
    FormulaError
        It fails, branches on a symbol, or returns no expression of these symbols; the sentence says why.
    """
    arguments: dict[str, Any] = {}
    for name, argument in _signature(function, ", ".join(given)).items():
        if name not in given and argument.default is argument.empty:
            raise FormulaError(f'its argument "{name}" is none of {", ".join(given)}: give it a default.')
        arguments[name] = given[name] if name in given else Float(_number(name, argument.default))
    return _text(called(function, arguments), [*numbers])


def _arguments(
    function: Callable[..., Any], parameters: Mapping[str, float], arrays: Sequence[str], table: str
) -> tuple[list[str], dict[str, float]]:
    """Names of a function's arguments, and values of those that are numbers."""
    own = [name for name in arrays if name != "Q"]
    signature = _signature(function, ", ".join(own))
    values: dict[str, float] = {}
    for name, argument in signature.items():
        value = parameters.get(name, argument.default)
        if name in own or (name in arrays and value is argument.empty):
            continue
        if value is argument.empty:
            known = ", ".join(arrays)
            raise FormulaError(
                f'its argument "{name}" is none of {known}, and no number: give it a default, or set {table}.{name}.'
            )
        values[name] = _number(name, value)
    strange = next((name for name in parameters if name not in values), None)
    if strange is not None:
        raise FormulaError(f'it has no argument "{strange}", but {table}.{strange} is given: remove it.')
    return [*signature], values


def _signature(function: Callable[..., Any], given: str) -> Mapping[str, inspect.Parameter]:
    """A function's arguments by name."""
    try:
        arguments = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise FormulaError("the names of its arguments are not known: define it by def.") from None
    for argument in arguments.values():
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD, argument.POSITIONAL_ONLY):
            raise FormulaError(f'it takes "{argument}", but must name its arguments: {given} and numbers.')
    return arguments


def _number(name: str, value: Any) -> float:
    """An argument's value that is no symbol."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise FormulaError(f'its argument "{name}" must be a number, but its default is {shortened(repr(value))}.')
    return float(value)


def _text(value: Any, taken: list[str]) -> str:
    """An expression as a formula, or a matrix of some as a list of rows; what it has twice has a line of its own."""
    letter = next(letter for letter in "xyuvwzabdefg" if not any(re.fullmatch(rf"{letter}\d+", one) for one in taken))
    named = {parameter_symbol(name): Symbol(name, real=True) for name in taken}
    entries = np.asarray(value, dtype=object)
    shared, rest = common_parts([one.xreplace(named) for one in entries.flat], letter)
    lines = [f"{name} = {printed(part)}" for name, part in shared]
    columns = entries.shape[-1] if entries.ndim else 1
    rows = [", ".join(map(printed, rest[at : at + columns])) for at in range(0, len(rest), columns)]
    return "\n".join([*lines, f"[[{'], ['.join(rows)}]]" if len(rest) > 1 else rows[0]])


class _Printer(StrPrinter):
    """Expressions as formulas have them."""

    def _print_Function(self, expr: Any) -> str:
        name = _NAMES.get(type(expr).__name__, type(expr).__name__)
        return f"{name}({', '.join(map(self._print, expr.args))})"

    def _print_Softmax(self, expr: Any) -> str:
        return f"softmax([0, {', '.join(map(self._print, expr.args))}])[0]"

    def _print_Float(self, expr: Any) -> str:
        return repr(float(expr))


_NAMES = {"Modulus": "abs", "RowSum": "sum", **{name: name.lower() for name in ("Relu", "Sigmoid", "Sign", "Softplus")}}


def printed(value: Any) -> str:
    """An expression as a formula."""
    return _Printer().doprint(value)
