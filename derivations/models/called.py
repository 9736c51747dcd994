"""A user's function, called with symbols: its value as an expression, or in one sentence why it has none."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Callable, Iterator, Mapping
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
from sympy import Basic, Expr, Float, I, Integer, NumberSymbol, Symbol, Tuple, nan, oo, sympify, zoo

from derivations.models.foreign import ForeignError, contained
from derivations.models.formula_arrays import array, check_shapes
from derivations.models.formula_lines import FormulaError, shortened
from derivations.models.formulas import FUNCTIONS
from derivations.models.functions import Step, with_known_functions

__all__ = ["called"]

_CLUSTERS = range(3)  # most comparisons are with one of these
_DRAWN = 8  # of two signs that are compared, as many points miss one in 256
_ROUNDING = 1e-9
_OWN = ("derivations", "attnphase")
_PACKAGES = (*_OWN, "numpy", "sympy")  # a fault in them is one of the user's line that calls them
_INSTEAD = {
    **{name: name for name in (*FUNCTIONS, "argmax", "hardmax", "softmax")},
    **dict.fromkeys(("fabs", "absolute"), "abs"),
    **dict.fromkeys(("hypot", "norm"), "sqrt"),
    **dict.fromkeys(("maximum", "fmax", "amax", "nanmax"), "max"),
    **dict.fromkeys(("minimum", "fmin", "amin", "argmin", "nanmin"), "min"),
    **dict.fromkeys(("sorted", "sort", "argsort", "clip", "median", "partition"), "max and min"),
    **dict.fromkeys(("heaviside", "where", "select", "piecewise", "any", "all", "copysign", "signbit"), "sign or relu"),
    **dict.fromkeys(("float_power", "power", "pow", "cbrt"), "** or sqrt"),
    **dict.fromkeys(("expm1", "exp2"), "exp"),
    **dict.fromkeys(("log1p", "log2", "log10", "logsumexp"), "log"),
    "expit": "sigmoid",
    "logaddexp": "softplus",
}
"""Functions of Python, NumPy and SciPy, and those of attnphase.functions to take instead."""


class _Symbols(np.ndarray):
    """An array of symbols, which refuses what NumPy would make a matrix of by accident."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """As of an array, after `check_shapes`."""
        plain = [np.asarray(one) if isinstance(one, _Symbols) else one for one in inputs]
        if method == "__call__" and ufunc.signature is None:
            check_shapes([np.shape(one) for one in plain if np.ndim(one)], "the function")
        if "out" in options:
            options["out"] = tuple(np.asarray(one) for one in options["out"])
        made = getattr(ufunc, method)(*plain, **options)
        return made.view(_Symbols) if isinstance(made, np.ndarray) else made


def called(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    known: Mapping[Symbol, float] = MappingProxyType({}),
    shape: tuple[int, ...] = (),
) -> Any:
    """The value of a function of symbols, and of arrays of these, as an expression, or as an array of a shape.

    Parameters
    ----------
    function : callable
    arguments : mapping
        By name; ``"c"`` are numbers of clusters.
    known : mapping
        Values of some of the symbols, at which the function is compared with the expression.
    shape : tuple of int
        Of the value; none of one number.

    Raises
    ------
    FormulaError
        It fails, branches on a symbol, or returns no expression of these symbols; the sentence says why.
    """
    arguments = {
        name: value.view(_Symbols) if isinstance(value, np.ndarray) else value for name, value in arguments.items()
    }
    try:
        value = _value(function, arguments, shape)
    except ForeignError as error:
        raise FormulaError(_reason(error)) from None
    entries = [entry for one in arguments.values() for entry in np.asarray(one, dtype=object).flat]
    strange = sorted(map(str, Tuple(*value.flat).free_symbols - {*entries}))
    if strange:
        raise FormulaError(f"its value holds {shortened(strange[0])}, which is none of its arguments.")
    _check_numbers(function, arguments, value, known)
    return value if shape else value.item()


def _value(function: Callable[..., Any], arguments: Mapping[str, Any], shape: tuple[int, ...]) -> Any:
    """What a function returned, as an array of expressions."""
    with contained(FormulaError):
        value = function(**arguments)
    if not shape:
        return array([_expression(value)])
    found = np.array(value, dtype=object)
    if found.shape != shape and not found.size == prod(shape) == 1:
        what = f"an array of shape {found.shape}" if found.ndim else "one number"
        raise FormulaError(f"it returns {what} instead of an array of shape {shape}, as k + k**3 is.")
    return array([_expression(one) for one in found.flat]).reshape(shape)


def _expression(value: Any) -> Any:
    """What a function returned, in functions that generated code knows."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, np.ndarray):
        raise FormulaError(
            f"it returns an array of shape {value.shape}, but must return one number: add it up by .sum()."
        )
    if isinstance(value, (bool, str)) or not isinstance(value, (Basic, int, float, complex, np.number)):
        raise FormulaError(f"it returns {shortened(repr(value))}, but must return an expression of its arguments.")
    expression: Any = sympify(value)
    if not isinstance(expression, Expr):
        raise FormulaError(f"it returns {shortened(str(expression))}, but must return an expression of its arguments.")
    if expression.has(nan, oo, -oo, zoo, I):
        raise FormulaError(f"it returns {shortened(str(expression))}, but must return finite real numbers.")
    try:
        expression = with_known_functions(expression)
    except TypeError as error:
        raise FormulaError(f"{error}.") from None
    if expression.has(Step):
        raise FormulaError("it takes Heaviside, which a formula does not know: write (1 + sign(x))/2.")
    # the text has a number as a decimal or a fraction, whatever it was made of
    return expression.xreplace({x: Float(x) for x in expression.atoms(NumberSymbol)})


# --- the function and its formula ------------------------------------------------------------------------------------


def _check_numbers(
    function: Callable[..., Any], arguments: Mapping[str, Any], value: Any, known: Mapping[Symbol, float]
) -> None:
    """Refuse a function whose formula has other values than itself.

    Symbols are equal to no number and count as true, so that of a comparison by ``==`` one case would be lost.
    """
    clusters = [*arguments["c"].flat] if "c" in arguments else []
    entries = {entry for one in arguments.values() for entry in np.asarray(one, dtype=object).flat}
    others = sorted((one for one in entries - {*clusters} if isinstance(one, Symbol)), key=str)
    rng, at = np.random.default_rng(17), dict[Symbol, Any]()
    for _ in range(_DRAWN):
        at = {one: Float(known.get(one, rng.normal())) for one in others}
        if _differs(function, arguments, value, at):
            raise FormulaError(
                "for numbers it returns another value than for symbols, as a function does that compares by ==, is"
                " random or keeps a state: write it with sign, max, min, abs or relu of attnphase.functions."
            )
    for row in _configurations(len(clusters)):
        numbers = dict(zip(clusters, map(Integer, row), strict=True))
        if _differs(function, arguments, value, at | numbers):
            where = f"cluster {row[0]}" if len({*row}) == 1 else f"the clusters {', '.join(map(str, row))}"
            raise FormulaError(
                f"for tokens in {where} it returns another value than for symbols, as a function does that"
                " branches on c: write it without if and ==, such as (1 - c[0])*a + c[0]*b."
            )


def _configurations(length: int) -> Iterator[tuple[int, ...]]:
    """Of clusters: all tokens in one, and all but one token."""
    if length:
        yield from ((number,) * length for number in _CLUSTERS)
        yield from (tuple(int(a == b) for b in range(length)) for a in range(length) if length > 1)


def _differs(function: Callable[..., Any], arguments: Mapping[str, Any], value: Any, at: Mapping[Symbol, Any]) -> bool:
    """Whether a function of numbers has another value than its formula; not if it fails for them."""
    placed = np.frompyfunc(lambda one: at.get(one, one), 1, 1)
    try:
        found = _value(function, {name: placed(one) for name, one in arguments.items()}, value.shape)
    except (ForeignError, FormulaError):
        return False
    free = sorted(Tuple(*found.flat).free_symbols, key=str)
    held = {one: Float(0.3 + 0.1 * place) for place, one in enumerate(free)}
    for pair in zip(found.flat, value.flat, strict=True):
        one, other = (complex(entry.xreplace({**held, **at}).evalf()) for entry in pair)
        if abs(one - other) > _ROUNDING * (1 + abs(one) + abs(other)):
            return True
    return False


# --- what failed ------------------------------------------------------------------------------------------------------


def _reason(error: ForeignError) -> str:
    """Why a function failed, with a remedy where it is one of the usual faults."""
    text, part = str(error), _part_of(error.__cause__)
    where = "" if part is None else f" in {shortened(part)}"
    method = re.search(r"ufunc.* has no callable (\w+) method", text)
    instead = _INSTEAD.get((part and _callee(part)) or (method[1] if method else ""))
    branch = re.fullmatch(r"cannot determine truth value of Relational: (.*)", text, re.DOTALL)
    if branch:
        take = f"take {instead}" if instead else "write it with max, min, abs, sign or relu"
        return (
            f"the function branches on {shortened(branch[1])}{where}, which has no truth value for symbols: {take} of"
            " attnphase.functions."
        )
    if re.search(r"'(Strict)?(Greater|Less)Than'", text):
        return (
            f"the function takes a comparison for a number{where}: write (1 + sign(x))/2 for x > 0, with sign of"
            " attnphase.functions."
        )
    if instead:
        return f"the function fails on symbols{where}: take {instead} of attnphase.functions."
    remedy = ", write it with + - * / ** and attnphase.functions" if re.search("(?i)symbol|expression", text) else ""
    return f"the function fails on symbols{where}: {text}{remedy}."


def _part_of(error: BaseException | None) -> str | None:
    """The part of a user's line that failed, where the source is known, and it is not this package that says why."""
    trace, found, module = error and error.__traceback__, None, ""
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__"))
        module = "" if name == __name__ else name.partition(".")[0]
        found = found if name == __name__ or module in _PACKAGES else trace
        trace = trace.tb_next
    if found is None or module in _OWN:
        return None
    code = found.tb_frame.f_code
    first, last, start, end = [*code.co_positions()][found.tb_lasti // 2]
    lines = [] if first is None or last is None else linecache.getlines(code.co_filename)[first - 1 : last]
    if not lines or start is None or end is None:
        return None
    lines[-1] = lines[-1].encode()[:end].decode()
    lines[0] = lines[0].encode()[start:].decode()
    return " ".join("".join(lines).split())


def _callee(part: str) -> str | None:
    """The name of the function that a part of a line calls."""
    try:
        tree = ast.parse(part, mode="eval").body
    except SyntaxError:
        return None
    match tree:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
        case _:
            return None
