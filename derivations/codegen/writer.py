"""The intermediate form as Python text, in names that every back end provides."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import singledispatch
from textwrap import indent
from typing import Any

from sympy import Add, Basic, Mul
from sympy.printing.pycode import PythonCodePrinter

from derivations.codegen.ir import (
    Accumulate,
    Assign,
    Call,
    Function,
    If,
    Loop,
    Module,
    Ordered,
    Return,
    Select,
    Statement,
)
from derivations.codegen.layout import WIDTH, folded

__all__ = ["written"]

_WIDEST = 2**53  # integer: larger ones are no exact doubles, and from 2**63 on compiled code has none


class _ScalarPrinter(PythonCodePrinter):
    """Straight-line scalar code with the bare function names that every header provides."""

    def __init__(self) -> None:
        known = ("Step", "Sign", "Modulus", "Relu", "Sigmoid", "Softplus")
        super().__init__({"fully_qualified_modules": False, "user_functions": {n: n.lower() for n in known}})

    def _print_exp(self, expr: Any) -> str:
        return f"exp({self._print(expr.args[0])})"

    def _print_Softmax(self, expr: Any) -> str:
        return self._print(expr.stable)

    def _print_Rational(self, expr: Any) -> str:
        wide = max(abs(expr.p), expr.q) > _WIDEST
        return repr(expr.p / expr.q) if wide else f"ratio({expr.p}, {expr.q})"

    def _print_Integer(self, expr: Any) -> str:
        return repr(float(expr)) if abs(expr.p) > _WIDEST else str(expr.p)


def written(module: Module) -> str:
    """The constants and functions of a module as text."""
    constants = "\n".join(f"{name} = {value!r}" for name, value in module.constants.items())
    return "\n\n\n".join([constants, *map(_function, module.functions)])


def _function(function: Function) -> str:
    return f"@compiled\ndef {function.name}({', '.join(function.arguments)}):\n{_body(function.body)}"


def _body(statements: Iterable[Statement]) -> str:
    return indent("\n".join(map(_statement, statements)), " " * 4)


@singledispatch
def _statement(statement: Any) -> str:
    raise TypeError(f"no text for the statement {type(statement).__name__}")


@_statement.register
def _assign(statement: Assign) -> str:
    place, value = _value(statement.place), _value(statement.value)
    code = f"{place} = {value}"
    if len(code) <= WIDTH - 4:
        return code
    return "\n".join([f"{place} = (", *(f"    {part}" for part in folded(value, WIDTH - 8)), ")"])


@_statement.register
def _accumulate(statement: Accumulate) -> str:
    return f"{_value(statement.place)} += {_value(statement.value)}"


@_statement.register
def _loop(statement: Loop) -> str:
    return f"for {statement.index} in range({statement.count}):\n{_body(statement.body)}"


@_statement.register
def _if(statement: If) -> str:
    return f"if {_value(statement.condition)}:\n{_body(statement.body)}"


@_statement.register
def _return(statement: Return) -> str:
    return f"return {_value(statement.value)}"


_COMPARISONS = ("<", "<=", ">")


@singledispatch
def _value(value: Any) -> str:
    raise TypeError(f"no text for the value {type(value).__name__}")


@_value.register(float)
@_value.register(bool)
def _number(value: float | bool) -> str:
    return repr(value)


@_value.register
def _expression(value: Basic) -> str:
    return _spaced(str(_ScalarPrinter().doprint(value)))


@_value.register
def _call(value: Call) -> str:
    return f"{value.function}({', '.join(map(_value, value.arguments))})"


@_value.register
def _select(value: Select) -> str:
    return f"chosen({', '.join(map(_value, (value.condition, value.yes, value.no)))})"


@_value.register
def _ordered(value: Ordered) -> str:
    first, *others = value.values
    terms = [_operand(first, value.operation, first=True), *(_operand(v, value.operation) for v in others)]
    return f" {value.operation} ".join(terms)


def _operand(value: Any, operation: str, *, first: bool = False) -> str:
    """A value in brackets where the operation around it would be done before its own."""
    text = _value(value)
    product = isinstance(value, Mul) or (isinstance(value, Ordered) and value.operation in "*/")
    total = isinstance(value, Add) or (isinstance(value, Ordered) and value.operation in "+-")
    compared = isinstance(value, Ordered) and value.operation in _COMPARISONS
    loose = (total and (operation in "*/" or (operation in "+-" and not first))) or (
        product and operation in "*/" and not first
    )
    loose = loose or (compared and operation in "&|")
    return f"({text})" if loose else text


def _spaced(code: str) -> str:
    """The same expression with spaces around its operators and without needless brackets."""
    code = ast.unparse(ast.parse(code, mode="eval"))
    return re.sub(r"\b([A-Za-z_]\w*) \*\* (\d+)\b", r"\1**\2", code)
