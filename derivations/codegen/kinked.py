"""Losses with kinks: what the minimiser of several fields knows of each kink."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

from sympy import Symbol

from derivations.algebra import symbols as sym
from derivations.codegen.form import RESULT, Function, Loop, Store
from derivations.codegen.losses import Reads, definitions_of, parameters_of
from derivations.codegen.tape import Node, Place, Tape
from derivations.models.functions import Modulus
from derivations.models.kinks import kinks, with_moduli
from derivations.models.model import Model, composed, field_symbols, label_fields, label_symbols, parameter_symbol

__all__ = ["FIELDS", "Shapes", "filling", "has_kink", "kink_count", "kinked_derivatives", "trained_derivatives"]

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]

FIELDS = ("h", "target", "variance", "parameters")
"""What the loss of a sample is of."""

_MULTIPLIERS, _ARGUMENTS, _SIGNS, _WEIGHTS = range(4)  # rows of ``kinks``


@dataclass(frozen=True)
class _Kinked:
    """The loss of a sample as one expression, and its kinks."""

    model: Model

    def _names(self, letter: str, width: int) -> list[list[Any]]:
        return [[Symbol(f"{letter}{a}_{i}", real=True) for i in range(width)] for a in range(self.model.length)]

    @cached_property
    def h(self) -> list[list[Any]]:
        """Symbols of the fields."""
        return self._names("h", self.model.columns)

    @cached_property
    def k(self) -> list[list[Any]]:
        """Symbols of what the loss takes as its target."""
        return self._names("k", label_fields(self.model))

    @cached_property
    def loss(self) -> Any:
        """The loss of these."""
        parameters = {parameter_symbol(one): parameter_symbol(one) for one in self.model.parameters}
        values = field_symbols(sym.h, self.h) | label_symbols(self.model, self.k) | parameters
        return composed(definitions_of(self.model), self.model.length, values)

    @cached_property
    def found(self) -> tuple[Any, ...]:
        """The arguments of the kinks."""
        return kinks(self.loss, [symbol for row in self.h for symbol in row]) if has_kink(self.model) else ()


class _OnTape:
    """The same on a tape: with the arguments c of the kinks the loss is smooth in ``h`` and ``|c|``.

    Attributes
    ----------
    fields, trained : list of Node
        What it is differentiated in.
    arguments, signs : list of Node
        Of the kinks; a sign stands for the slope of ``|c|`` in c.
    whole, smooth : Node
        The loss, and the same with the sign times c in place of ``|c|``.
    """

    def __init__(self, model: Model, sign: Callable[[Tape, int, Node], Node]) -> None:
        kinked, self.tape = _kinked(model), Tape()
        reads, of = Reads.of_arrays(self.tape), self.tape.of
        symbols = [symbol for rows in (kinked.h, kinked.k) for row in rows for symbol in row]
        self.fields = [self.tape.variable(reads.field(a, i)) for a in range(model.length) for i in range(model.columns)]
        targets = [reads.target(a, i) for a in range(model.length) for i in range(label_fields(model))]
        values = dict(zip(symbols, [*self.fields, *targets], strict=True))
        given = parameters_of(model, reads)
        own = {parameter_symbol(one): self.tape.variable(given[parameter_symbol(one)]) for one in model.trained}
        self.trained = [*own.values()]
        values |= given | own
        whole, *arguments = (
            with_moduli(one, kinked.found, lambda _, c: Modulus(c)) for one in (kinked.loss, *kinked.found)
        )
        self.arguments, self.signs = list[Node](), list[Node]()
        for j, argument in enumerate(arguments):
            c = of(argument, values)
            self.arguments.append(c)
            self.signs.append(self.tape.variable(sign(self.tape, j, c)))
            self.tape.signs[c] = self.signs[-1]
        self.whole = of(whole, values)
        names = [Symbol(f"s{j}", real=True) for j in range(len(arguments))]
        smooth = with_moduli(kinked.loss, kinked.found, lambda j, c: names[j] * c)
        self.smooth = of(smooth, values | dict(zip(names, self.signs, strict=True)))

    def weights(self) -> Iterator[Node]:
        """Slopes of the loss in ``|c|``."""
        for c in self.arguments:
            yield self.tape.gradient(self.whole, [abs(c)])[0]


@lru_cache(maxsize=4)
def _kinked(model: Model) -> _Kinked:
    return _Kinked(model)


@lru_cache(maxsize=4)
def has_kink(model: Model) -> bool:
    """Whether the loss's gradient jumps somewhere in the student's fields."""
    return model.has_kink


def kink_count(model: Model) -> int:
    """How many kinks the loss of a sample has."""
    return len(_kinked(model).found) if has_kink(model) else 0


def kinked_derivatives(model: Model, shapes: Shapes) -> Function:
    """The function of the loss's derivatives on all sides of its kinks.

    The rows of ``kinks`` (4, m) are multipliers, which are given, and what the function fills in: the kinks' arguments
    c, the signs that are its derivative of ``|c|``, and the weights, derivatives of the loss in ``|c|``.  A sign is
    that of c, or a multiplier between -1 and 1, of a kink that is held.  The function returns the loss and fills
    ``gradient`` (L, r), ``hessian`` (L r, L r), that of the loss with the signs times c in place of ``|c|``, and
    ``normals`` (m, L r), the derivatives of c.  Without kinks it does nothing.
    """
    arguments = (*FIELDS, "gradient", "hessian", "kinks", "normals")
    if not has_kink(model):
        return Function("kinked_derivatives", arguments, (), shapes)

    def sign(tape: Tape, j: int, c: Node) -> Node:
        multiplier = tape.read("kinks", _MULTIPLIERS, j)
        return (multiplier * multiplier < 1).chosen(multiplier, tape.do("sign", c))

    loss = _OnTape(model, sign)
    tape, fields, columns = loss.tape, loss.fields, model.columns
    places = {Place("gradient", divmod(a, columns)): slope for a, slope in enumerate(tape.gradient(loss.whole, fields))}
    for (a, b), value in tape.curvatures(tape.gradient(loss.smooth, fields), fields).items():
        places |= {Place("hessian", (a, b)): value, Place("hessian", (b, a)): value}
    rows = ((_ARGUMENTS, loss.arguments), (_SIGNS, loss.signs), (_WEIGHTS, loss.weights()))
    places |= {Place("kinks", (row, j)): value for row, values in rows for j, value in enumerate(values)}
    for j, c in enumerate(loss.arguments):
        places |= {Place("normals", (j, a)): slope for a, slope in enumerate(tape.gradient(c, fields))}
    return filling("kinked_derivatives", arguments, places, shapes, loss.whole)


def trained_derivatives(model: Model, shapes: Shapes) -> Function:
    """The function of a loss's derivatives in its p trained parameters where the signs of its kinks are given.

    ``signs`` (m,) are those of `kinked_derivatives`, between -1 and 1 of kinks that are held.  The function fills
    ``slopes`` (p,), and with the signs times c in place of ``|c|`` the second derivatives: ``curvatures`` (p, p), and
    with the fields ``crossed`` (p, L r + m), whose last columns are the derivatives of c.
    """
    loss = _OnTape(model, lambda tape, j, c: tape.read("signs", j))
    tape, fields, own = loss.tape, loss.fields, loss.trained
    places = {Place("slopes", (i,)): slope for i, slope in enumerate(tape.gradient(loss.whole, own))}
    for i, slope in enumerate(tape.gradient(loss.smooth, own)):
        others = [*(("curvatures", one) for one in own), *(("crossed", one) for one in fields)]
        changes = tape.gradient(slope, [one for _, one in others])
        for number, ((array, _), change) in enumerate(zip(others, changes, strict=True)):
            places[Place(array, (i, number if array == "curvatures" else number - len(own)))] = change
    for j, c in enumerate(loss.arguments):
        slopes = tape.gradient(c, own)
        places |= {Place("crossed", (i, len(fields) + j)): slope for i, slope in enumerate(slopes)}
    arguments = (*FIELDS, "signs", "slopes", "curvatures", "crossed")
    return filling("trained_derivatives", arguments, places, shapes)


def filling(
    name: str, arguments: tuple[str, ...], places: Mapping[Place, Node], shapes: Shapes, result: Node | None = None
) -> Function:
    """A function that fills places with values."""
    stores = [Store(place, value) for place, value in places.items()]
    stores += [] if result is None else [Store(RESULT, result, adds=True)]
    return Function(name, arguments, (Loop(tuple(stores)),), shapes)
