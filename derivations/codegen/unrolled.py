"""Straight-line code: a function of the intermediate form without loops and arrays, every element a name of its own.

A processor does such code for many samples at once, one in each lane of its registers (`derivations.codegen.lanes`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import singledispatchmethod
from typing import Any

from sympy import Basic, Expr, Indexed, Integer, Symbol

from derivations.codegen.ir import (
    Accumulate,
    Assign,
    Call,
    Function,
    Loop,
    Ordered,
    Return,
    Select,
    Statement,
    Value,
    name,
)

__all__ = ["names_in", "renamed", "scalar", "unrolled"]


def scalar(array: str, *indices: int) -> Any:
    """The name of an element of an array."""
    return name("_".join([array, *map(str, indices)]))


def names_in(value: Any) -> set[Any]:
    """The names in a value."""
    if isinstance(value, Expr):
        return set(value.free_symbols)
    if isinstance(value, Ordered):
        return set().union(*map(names_in, value.values))
    if isinstance(value, Call):
        return set().union(*map(names_in, value.arguments))
    return set()


def unrolled(function: Function, result: str) -> tuple[Assign, ...]:
    """The body of a function as assignments to names, what it returns in the name ``result``.

    Parameters
    ----------
    function : Function
        Its loops have counts that are known, and its elements indices that are.
    result : str
    """
    unrolling = _Unrolling(name(result))
    unrolling.run(function.body)
    return tuple(_assigned_once(unrolling.statements))


def _assigned_once(statements: Sequence[Assign | Accumulate]) -> Iterator[Assign]:
    """The same with a name of its own for every value that a place has in turn; the last has the place's.

    Numba's time for a name that is assigned twice is that of reading the whole function.
    """
    left = Counter(statement.place for statement in statements)
    number = Counter[Any]()
    current: dict[Any, Any] = {}
    for statement in statements:
        place, value = statement.place, renamed(statement.value, current)
        if isinstance(statement, Accumulate):
            value = Ordered("+", (current[place], value))
        number[place] += 1
        current[place] = place if number[place] == left[place] else name(f"{place}_v{number[place]}")
        yield Assign(current[place], value)


def renamed(value: Any, names: Mapping[Any, Any]) -> Any:
    """A value with other names in place of some."""
    if isinstance(value, Ordered):
        return Ordered(value.operation, tuple(renamed(part, names) for part in value.values))
    if isinstance(value, Call):
        return Call(value.function, tuple(renamed(part, names) for part in value.arguments))
    if isinstance(value, Select):
        return Select(*(renamed(part, names) for part in (value.condition, value.yes, value.no)))
    if not isinstance(value, Expr):
        return value
    changed = {old: names[old] for old in value.free_symbols if names.get(old, old) != old}
    return value.xreplace(changed) if changed else value


class _Unrolling:
    """Statements so far, what loop indices are at present, and the names that hold zero."""

    def __init__(self, result: Any) -> None:
        self.result = result
        self.statements: list[Assign | Accumulate] = []
        self.indices: dict[Any, Any] = {}
        self.zeros: set[Any] = set()

    def run(self, body: Sequence[Statement]) -> None:
        for statement in body:
            self.do(statement)

    @singledispatchmethod
    def do(self, statement: Any) -> None:
        raise TypeError(f"the statement {type(statement).__name__} cannot be unrolled")

    @do.register
    def _loop(self, loop: Loop) -> None:
        for number in range(loop.count):
            self.indices[loop.index] = Integer(number)
            self.run(loop.body)
        del self.indices[loop.index]

    @do.register
    def _assign(self, statement: Assign) -> None:
        if isinstance(statement.place, Symbol) and statement.place.is_integer:
            self.indices[statement.place] = statement.value  # the row under a causal mask
            return
        place, value = self.value(statement.place), self.value(statement.value)
        if place == value:
            return  # an element that is read under the name it has here
        (self.zeros.add if value == 0.0 else self.zeros.discard)(place)
        self.statements.append(Assign(place, value))

    @do.register
    def _accumulate(self, statement: Accumulate) -> None:
        place, value = self.value(statement.place), self.value(statement.value)
        kind = Assign if place in self.zeros else Accumulate
        self.zeros.discard(place)
        self.statements.append(kind(place, value))

    @do.register
    def _return(self, statement: Return) -> None:
        self.statements.append(Assign(self.result, self.value(statement.value)))

    @singledispatchmethod
    def value(self, value: Any) -> Any:
        """A value in names."""
        raise TypeError(f"the value {type(value).__name__} cannot be unrolled")

    @value.register(float)
    @value.register(bool)
    def _number(self, value: float | bool) -> Value:
        return value

    @value.register
    def _expression(self, value: Basic) -> Any:
        value = value.xreplace(self.indices)
        return value.xreplace(dict(_elements(value)))

    @value.register
    def _call(self, value: Call) -> Value:
        return Call(value.function, tuple(map(self.value, value.arguments)))

    @value.register
    def _ordered(self, value: Ordered) -> Value:
        if value.operation == "*" and value.values[0] == 0.0:
            return 0.0  # a zero for every sample
        return Ordered(value.operation, tuple(map(self.value, value.values)))


def _elements(value: Basic) -> Iterator[tuple[Any, Any]]:
    elements: Mapping[Any, Any] = {atom: atom for atom in value.atoms(Indexed)}
    for atom in elements:
        yield atom, scalar(str(atom.base.label), *map(int, atom.indices))
