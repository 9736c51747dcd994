"""What generated code is before any language: functions of statements over arrays.

Values are SymPy expressions of names and array elements (`element`), which a writer may order as it likes, or `Ordered`
ones, whose operations are done in the order given, so that rounding does not depend on a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from sympy import Expr, IndexedBase, Symbol

__all__ = [
    "Accumulate",
    "Assign",
    "Call",
    "Function",
    "If",
    "Loop",
    "Module",
    "Ordered",
    "Place",
    "Return",
    "Select",
    "Statement",
    "Value",
    "element",
    "name",
]

Place: TypeAlias = Expr
"""A name or an element of an array: where a value is put."""


@dataclass(frozen=True)
class Ordered:
    """Values joined by an operation, from left to right."""

    operation: Literal["+", "-", "*", "/", "<", "<=", ">", "&", "|"]
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Call:
    """A function that every back end provides."""

    function: str
    arguments: tuple[Value, ...]


@dataclass(frozen=True)
class Select:
    """One of two values; both may be computed."""

    condition: Value
    yes: Value
    no: Value


Value: TypeAlias = Expr | Ordered | Call | Select | float | bool
"""What is computed."""


@dataclass(frozen=True)
class Assign:
    """Put a value in a place."""

    place: Place
    value: Value


@dataclass(frozen=True)
class Accumulate:
    """Add a value to a place."""

    place: Place
    value: Value


@dataclass(frozen=True)
class Loop:
    """Do the body for ``index`` = 0, ..., ``count`` - 1."""

    index: Symbol
    count: int
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class If:
    """Do the body where a condition holds."""

    condition: Any
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Return:
    """Leave the function with a value."""

    value: Value


Statement: TypeAlias = Assign | Accumulate | Loop | If | Return
"""What a function does, one after the other."""


@dataclass(frozen=True)
class Function:
    """A function of arrays and numbers, compiled where a language can."""

    name: str
    arguments: tuple[str, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Module:
    """Constants and functions."""

    constants: Mapping[str, Any]
    functions: tuple[Function, ...]


def name(text: str) -> Any:
    """A name of the generated code."""
    return Symbol(text, real=True)


def element(array: str, *indices: Any) -> Any:
    """An element of an array, counted from 0."""
    base: Any = IndexedBase(array, real=True)
    return base[indices]
