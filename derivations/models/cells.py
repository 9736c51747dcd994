"""Labels that are constant between jumps: their possible values, and by which signs a field's value is decided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from sympy import Float, N, Poly, Rational, Symbol, expand, preorder_traversal

from derivations.models.functions import KINKED, Modulus, Relu, Sign, Step

__all__ = ["Cells", "Value", "cells_of", "distinct", "pieces_of"]

Array = NDArray[np.float64]
Value = tuple[Any, ...]
"""Entries of a label, exact numbers."""

_MOST, _MOST_ASKED = 2**9, 2**11  # decisions, about half a minute; of those that ask which cells there are
_INSIDE = -1e-8  # share of the fields' range by which a cell may be empty: ten times the tolerance of the program below
_LARGEST = 10**15  # number by which an argument is divided: others may be no numbers of double precision
_DIGITS = 60  # of two possible values that are compared
_EQUAL = 1e-40  # of the spread: rounding of sixty digits
_ROOT_DIGITS = 30  # of places of jumps


class _TooManyError(Exception):
    """There are more cells than can be listed."""


class _VaryingError(Exception):
    """A function is not constant on a cell."""


@dataclass(frozen=True, eq=False)
class Cells:
    """A tree of decisions.

    Attributes
    ----------
    arguments : dict of Expr to int
        Functions of the fields whose signs are asked for, with their places.
    steps : list of (int, int, int)
        An argument, and where to go on if it is positive and if it is not: to another step, or to the value ``~n``.
        The first step comes last.
    values : list of Value
        Those that a label can have.
    """

    arguments: dict[Any, int] = field(default_factory=dict)
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    def numbers(self, signs: Callable[[int, NDArray[np.int64]], NDArray[np.bool_]], count: int) -> NDArray[np.int64]:
        """Which of the values fields have.

        Parameters
        ----------
        signs : callable
            Of the place of an argument and of places among the fields, whether it is positive there.
        count : int
            Number of fields.
        """
        found = np.zeros(count, np.int64)
        waiting: dict[int, list[NDArray[np.int64]]] = {len(self.steps) - 1: [np.arange(count)]}
        for step in range(len(self.steps) - 1, -1, -1):
            here = np.concatenate(waiting.pop(step))
            argument, above, below = self.steps[step]
            positive = signs(argument, here)
            for there, some in ((above, here[positive]), (below, here[~positive])):
                waiting.setdefault(there, []).append(some)
        for value, parts in waiting.items():
            found[np.concatenate(parts)] = ~value
        return found

    def jumps(self, one: Symbol) -> Array | None:
        """Where arguments of a single field vanish, in no order; None if one of them is no polynomial."""
        if not all(argument.is_polynomial(one) for argument in self.arguments):
            return None
        roots = list[float]()
        for argument in self.arguments:
            polynomial = Poly(argument, one)
            if polynomial.domain.is_ZZ or polynomial.domain.is_QQ:
                polynomial = polynomial.sqf_part()  # a root that counts twice is found with fewer digits
            if polynomial.degree() > 0:
                roots += [float(root) for root in polynomial.nroots(n=_ROOT_DIGITS, maxsteps=200) if root.is_real]
        return np.array(roots)


@dataclass(eq=False)
class _Tree:
    """The tree while it grows."""

    fields: Sequence[Symbol]
    low: Array
    high: Array
    asks: bool
    constant: bool = True
    cells: Cells = field(default_factory=Cells)
    known: dict[Any, int] = field(default_factory=dict)
    decisions: int = 0

    def grown(self, entries: Value, taken: tuple[tuple[Any, int], ...] = ()) -> int:
        """The step, or ``~n`` of the value, at which entries are decided whose arguments have some signs already.

        Raises
        ------
        _VaryingError
            They vary within a cell, and should not.
        _TooManyError
        """
        if not self.asks and entries in self.known:
            return self.known[entries]
        argument = _innermost(entries)
        if argument is None:
            entries = tuple(expand(entry) if entry.free_symbols else entry for entry in entries)
            if self.constant and any(entry.free_symbols for entry in entries):
                raise _VaryingError
            if entries not in self.cells.values:
                self.cells.values.append(entries)
            found = ~self.cells.values.index(entries)
        else:
            self.decisions += 1
            if self.decisions > (_MOST_ASKED if self.asks else _MOST):
                raise _TooManyError
            sides = [(argument, sign) for sign in (1, -1)]
            there = [
                self.grown(_with_sign(entries, *side), (*taken, side)) for side in sides if self._exists((*taken, side))
            ]
            if len(there) == 1:  # fields on the other side are there by rounding
                found = there[0]
            else:
                place = self.cells.arguments.setdefault(argument, len(self.cells.arguments))
                self.cells.steps.append((place, there[0], there[1]))
                found = len(self.cells.steps) - 1
        self.known[entries] = found
        return found

    def _exists(self, taken: Sequence[tuple[Any, int]]) -> bool:
        """Whether fields in their range have these signs, as far as arguments are linear."""
        if not self.asks:
            return True
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        rows, offsets = [], []
        for argument, sign in taken:
            slopes = [argument.diff(one) for one in self.fields]
            if any(slope.free_symbols for slope in slopes):
                continue
            at = dict(zip(self.fields, map(Rational, map(float, middle)), strict=True))
            row = sign * np.array([float(slope) for slope in slopes]) * half
            size = np.linalg.norm(row)
            rows.append([*(-row / size), 1.0])
            offsets.append(sign * float(argument.xreplace(at)) / size)
        if not rows:
            return True
        size = len(self.fields)
        # the largest distance to all planes at once, in the fields' range
        found = linprog(
            [*np.zeros(size), -1.0],
            rows,
            offsets,
            bounds=[*[(-1, 1)] * size, (None, 1)],
            options={"primal_feasibility_tolerance": 1e-9},
        )
        return bool(found.x[-1] > _INSIDE)


def cells_of(entries: Value, fields: Sequence[Symbol], low: Array, high: Array, most: int) -> Cells | None:
    """The values of entries that are constant between jumps; None if they are not, or if there are too many of them.

    Values of signs that no fields have may be among them; where these are too many, signs are left out that
    no fields between two ends have, as far as jumps are planes.

    Parameters
    ----------
    entries : tuple of Expr
    fields : sequence of Symbol
    low, high : (F,) array
        Ends of the fields.
    most : int
        Number of values.
    """
    entries = _exact(entries)
    for asks in (False, True):
        tree = _Tree(fields, low, high, asks)
        try:
            tree.grown(entries)
        except (_VaryingError, _TooManyError):
            continue
        if len({*distinct(tree.cells.values)}) <= most:
            return tree.cells
    return None


def pieces_of(entries: Value, fields: Sequence[Symbol], low: Array, high: Array) -> list[Value]:
    """Entries without kinks and jumps that these are equal to between kinks; none if there are too many.

    Parameters
    ----------
    entries : tuple of Expr
    fields : sequence of Symbol
    low, high : (F,) array
        Ends of the fields.
    """
    tree = _Tree(fields, low, high, asks=True, constant=False)
    try:
        tree.grown(_exact(entries))
    except _TooManyError:
        return []
    return tree.cells.values


def distinct(values: Sequence[Value]) -> list[int]:
    """Numbers of values in their order, equal ones with one: to sixty digits, whatever their unit and a constant."""
    numbers = [[N(entry, _DIGITS) for entry in value] for value in values]
    spans = [max(entries) - min(entries) for entries in zip(*numbers, strict=True)]
    found, first = list[int](), list[list[Any]]()
    for value in numbers:
        same = (
            number
            for number, other in enumerate(first)
            if all(abs(a - b) <= _EQUAL * span for a, b, span in zip(value, other, spans, strict=True))
        )
        number = next(same, len(first))
        if number == len(first):
            first.append(value)
        found.append(number)
    order = sorted(range(len(first)), key=first.__getitem__)  # no unit changes sums over labels
    return [order.index(number) for number in found]


def _exact(entries: Value) -> Value:
    """With the decimals of all numbers, of which sums are exact."""
    return tuple(e.xreplace({one: Rational(repr(float(one))) for one in e.atoms(Float)}) for e in entries)


def _primitive(argument: Any) -> tuple[int, Any]:
    """An argument as a sign and a function that is written in one way, up to a positive number."""
    content, rest = argument.primitive()
    if max(content.p, content.q) > _LARGEST:
        rest = argument
    return (-1, -rest) if rest.could_extract_minus_sign() else (1, rest)


def _innermost(entries: Value) -> Any:
    """An argument in which nothing jumps or has a kink."""
    for entry in entries:
        for part in preorder_traversal(entry):
            if isinstance(part, KINKED) and not part.args[0].has(*KINKED):
                return _primitive(part.args[0])[1]
    return None


def _with_sign(entries: Value, argument: Any, sign: int) -> Value:
    """Entries where an argument has a sign."""
    values = dict[Any, Any]()
    for part in set[Any]().union(*(entry.atoms(*KINKED) for entry in entries)):
        inner = part.args[0]
        if inner.has(*KINKED):
            continue
        own, primitive = _primitive(inner)
        if primitive == argument:
            side = own * sign
            values[part] = {
                Sign: Rational(side),
                Step: Rational((1 + side) // 2),
                Modulus: side * inner,
                Relu: inner if side > 0 else Rational(0),
            }[type(part)]
    return tuple(entry.xreplace(values) for entry in entries)
