"""Losses without rows: one expression of the fields, differentiated entry by entry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sympy import Symbol

from derivations.algebra import symbols as sym
from derivations.algebra.common_parts import Slopes
from derivations.codegen.ir import Assign, Function, If, Loop, Ordered, Return, Statement, element, name
from derivations.codegen.lifting import straight_line
from derivations.models.model import (
    Model,
    composed,
    field_symbols,
    label_fields,
    label_symbols,
    parameter_symbol,
)

__all__ = ["closed_form", "entry_functions", "parameter_names", "parameter_reads"]

_BEHIND = 4  # what all kernels are given stands before: omega, two temperatures, a length, and a number of each column


def parameter_names(model: Model) -> dict[Any, Any]:
    """The names that a loss's own numbers have in generated code, by their symbols."""
    return {parameter_symbol(one): name(f"b{j}") for j, one in enumerate(model.parameters)}


def parameter_reads(model: Model) -> list[tuple[Any, Any]]:
    """These names, and where compiled code is given the numbers."""
    first = _BEHIND + model.columns
    return [(own, element("parameters", first + j)) for j, own in enumerate(parameter_names(model).values())]


def entry_functions(model: Model) -> tuple[Function, ...]:
    """``teacher_target``, ``loss``, ``loss_gradient`` and ``loss_derivatives`` of a loss without rows.

    Of a loss with trained parameters also ``trained_slopes``.
    """
    h, k = (
        [[name(f"{letter}{a}_{i}") for i in range(columns)] for a in range(model.length)]
        for letter, columns in (("h", model.columns), ("k", label_fields(model)))
    )
    values = field_symbols(sym.h, h) | label_symbols(model, k) | parameter_names(model)
    loss = composed(model.definitions(), model.length, values)
    flat = [symbol for row in h for symbol in row]
    places = [(symbol, element("h", a, i)) for a, row in enumerate(h) for i, symbol in enumerate(row)]
    places += [(symbol, element("target", a, i)) for a, row in enumerate(k) for i, symbol in enumerate(row)]
    places += parameter_reads(model)
    read = [Assign(symbol, place) for symbol, place in places if symbol in loss.free_symbols]
    size = len(flat)
    total = {"total": loss}
    along = [*map(Slopes, flat)]
    slopes = {f"u{a}": along[a](loss) for a in range(size)}
    curvatures = {f"w{a}_{b}": along[b](slopes[f"u{a}"]) for a in range(size) for b in range(a, size)}
    gradient = [Assign(element("gradient", a // model.columns, a % model.columns), name(f"u{a}")) for a in range(size)]
    hessian = [
        Assign(element("hessian", a, b), name(f"w{min(a, b)}_{max(a, b)}")) for a in range(size) for b in range(size)
    ]
    end = Return(Ordered("+", (name("total"), 0.0)))
    fields = ("h", "target", "variance", "parameters")
    derivatives = total | slopes | curvatures
    trained = (_trained_slopes(model, loss, read),) if model.trained else ()
    return (
        _copied_target(model),
        Function("loss", fields, (*read, *straight_line(total), end)),
        Function("loss_gradient", (*fields, "gradient"), (*read, *straight_line(total | slopes), *gradient, end)),
        Function(
            "loss_derivatives",
            (*fields, "gradient", "hessian", "contracted"),
            (*read, *straight_line(derivatives), *gradient, *hessian, end),
        ),
        *trained,
    )


def _trained_slopes(model: Model, loss: Any, read: Sequence[Assign]) -> Function:
    """First and second derivatives of the loss in the trained parameters, (p,) and (p, p)."""
    along = [Slopes(parameter_names(model)[parameter_symbol(one)]) for one in model.trained]
    count = range(len(along))
    outputs = {f"d{i}": along[i](loss) for i in count}
    outputs |= {f"c{i}_{j}": along[j](outputs[f"d{i}"]) for i in count for j in range(i, len(along))}
    body = (
        *read,
        *straight_line(outputs),
        *(Assign(element("slopes", i), name(f"d{i}")) for i in count),
        *(Assign(element("curvatures", i, j), name(f"c{min(i, j)}_{max(i, j)}")) for i in count for j in count),
    )
    arguments = ("h", "target", "variance", "parameters", "slopes", "curvatures")
    return Function("trained_slopes", arguments, (*body, Return(0.0)))


def _copied_target(model: Model) -> Function:
    """The teacher's fields themselves, and all that stands behind them."""
    a, i = (Symbol(letter, integer=True) for letter in "ai")
    copy = Assign(element("target", a, i), element("k", a, i))
    body = Loop(a, model.length, (Loop(i, label_fields(model), (copy,)),))
    return Function("teacher_target", ("k", "mixing", "parameters", "target"), (body,))


def closed_form(model: Model) -> Function:
    """The proximal point where a model gives it, instead of a search: false where it gives none."""
    arguments = ("center", "target", "factor", "h")
    if model.prox is None:
        return Function("closed_form", arguments, (Return(False),))
    center, teacher, variance = map(name, ("center0", "k0", "V"))
    read = (
        Assign(center, element("center", 0, 0)),
        Assign(teacher, element("target", 0, 0)),
        Assign(variance, element("factor", 0, 0, 0) ** 2),
    )
    return Function("closed_form", arguments, (*read, *_pieces(model.prox(center, teacher, variance))))


def _pieces(pieces: Any) -> Iterator[Statement]:
    """The value whose condition is the first that holds."""
    for value, condition in pieces:
        body = (Assign(element("h", 0, 0), value), Return(True))
        if condition is None:
            yield from body
        else:
            yield If(condition, body)
