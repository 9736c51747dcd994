"""Losses with kinks: what the minimiser of several fields knows of each kink."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from derivations.algebra import symbols as sym
from derivations.algebra.common_parts import Slopes
from derivations.codegen.entries import parameter_names, parameter_reads
from derivations.codegen.ir import Assign, Function, Ordered, Return, element, name
from derivations.codegen.lifting import straight_line
from derivations.codegen.unrolled import names_in
from derivations.models.functions import Modulus, Sign, Step
from derivations.models.kinks import kinks, slope_in_modulus, with_moduli
from derivations.models.model import Model, composed, field_symbols, label_fields, label_symbols, parameter_symbol

__all__ = ["kinked_derivatives", "trained_derivatives"]

_FIELDS = ("h", "target", "variance", "parameters", "gradient", "hessian", "kinks", "normals")
_MULTIPLIERS, _ARGUMENTS, _SIGNS, _WEIGHTS = range(4)  # rows of ``kinks``


def kinked_derivatives(model: Model) -> tuple[int, Function]:
    """How many kinks the loss has, and the function of its derivatives on all sides of them.

    With the kinks' arguments c the loss is smooth in ``h`` and ``|c|``.  The rows of ``kinks`` (4, m) are multipliers,
    which are given, and what the function fills in: c, the signs that are its derivative of ``|c|``, and the weights,
    derivatives of the loss in ``|c|``.  A sign is that of c, or a multiplier between -1 and 1, of a kink that is held.
    The function returns the loss and fills ``gradient`` (L, r), ``hessian`` (L r, L r), that of the loss with the signs
    times c in place of ``|c|``, and ``normals`` (m, L r), the derivatives of c.  Without kinks it does nothing.
    """
    if not model.has_kink:
        return 0, Function("kinked_derivatives", _FIELDS, (Return(0.0),))
    columns = model.columns
    loss, flat, read = _loss_and_reads(model)
    found = kinks(loss, flat)
    count, size = len(found), len(flat)
    given = [name(f"m{j}") for j in range(count)]
    signs, whole, arguments, smooth = _with_signs(loss, found)
    held: list[Any] = [Step(1 - one**2) for one in given]
    at = dict(zip(map(Sign, arguments), signs, strict=True))
    outputs: dict[str, Any] = {}
    places: dict[str, Any] = {}

    def put(text: str, value: Any, place: Any) -> None:
        outputs[text], places[text] = value, place

    for j, c in enumerate(arguments):
        put(f"f{j}", slope_in_modulus(loss, found, j, Modulus(c)).xreplace(at), element("kinks", _WEIGHTS, j))
        for a, x in enumerate(flat):
            put(f"n{j}_{a}", c.diff(x).xreplace(at), element("normals", j, a))
    along = [*map(Slopes, flat)]
    for a in range(size):
        put(f"u{a}", along[a](whole).xreplace(at), element("gradient", *divmod(a, columns)))
        for b in range(a, size):
            outputs[f"w{a}_{b}"] = along[b](along[a](smooth))
    sides = [
        (symbol, own * one + (1 - own) * Sign(c))
        for symbol, own, one, c in zip(signs, held, given, arguments, strict=True)
    ]
    read += [(symbol, element("kinks", _MULTIPLIERS, j)) for j, symbol in enumerate(given)]
    values = {"total": whole} | {f"c{j}": c for j, c in enumerate(arguments)}
    body = (
        *_with_reads(read, straight_line(values | outputs, sides)),
        *(Assign(element("kinks", _ARGUMENTS, j), name(f"c{j}")) for j in range(count)),
        *(Assign(element("kinks", _SIGNS, j), symbol) for j, symbol in enumerate(signs)),
        *(Assign(place, name(output)) for output, place in places.items()),
        *(
            Assign(element("hessian", a, b), name(f"w{min(a, b)}_{max(a, b)}"))
            for a in range(size)
            for b in range(size)
        ),
        Return(Ordered("+", (name("total"), 0.0))),
    )
    return count, Function("kinked_derivatives", _FIELDS, body)


def trained_derivatives(model: Model) -> Function:
    """The function of a loss's derivatives in its p trained parameters where the signs of its kinks are given.

    ``signs`` (m,) are those of `kinked_derivatives`, between -1 and 1 of kinks that are held.  The function fills
    ``slopes`` (p,), and with the signs times c in place of ``|c|`` the second derivatives: ``curvatures`` (p, p), and
    with the fields ``crossed`` (p, L r + m), whose last columns are the derivatives of c.
    """
    loss, flat, read = _loss_and_reads(model)
    found = kinks(loss, flat) if model.has_kink else ()
    signs, whole, arguments, smooth = _with_signs(loss, found)
    at = dict(zip(map(Sign, arguments), signs, strict=True))
    read += [(symbol, element("signs", j)) for j, symbol in enumerate(signs)]
    own = [parameter_names(model)[parameter_symbol(one)] for one in model.trained]
    of_fields, of_parameters, values = [*map(Slopes, flat)], [*map(Slopes, own)], dict[Any, Any]()
    for i, along in enumerate(of_parameters):
        values[element("slopes", i)] = along(whole).xreplace(at)
        slope = along(smooth)
        values |= {element("curvatures", i, j): other(slope) for j, other in enumerate(of_parameters)}
        values |= {element("crossed", i, a): other(slope) for a, other in enumerate(of_fields)}
        values |= {element("crossed", i, len(flat) + j): along(c).xreplace(at) for j, c in enumerate(arguments)}
    names = [f"d{number}" for number in range(len(values))]
    body = (
        *_with_reads(read, straight_line(dict(zip(names, values.values(), strict=True)))),
        *(Assign(place, name(output)) for place, output in zip(values, names, strict=True)),
    )
    given = ("h", "target", "variance", "parameters", "signs", "slopes", "curvatures", "crossed")
    return Function("trained_derivatives", given, (*body, Return(0.0)))


def _loss_and_reads(model: Model) -> tuple[Any, list[Any], list[tuple[Any, Any]]]:
    """The loss in the names of generated code, those of the fields, and all names with their places."""
    h, k = (
        [[name(f"{letter}{a}_{i}") for i in range(width)] for a in range(model.length)]
        for letter, width in (("h", model.columns), ("k", label_fields(model)))
    )
    fields = field_symbols(sym.h, h) | label_symbols(model, k) | parameter_names(model)
    read = [(symbol, element("h", a, i)) for a, row in enumerate(h) for i, symbol in enumerate(row)]
    read += [(symbol, element("target", a, i)) for a, row in enumerate(k) for i, symbol in enumerate(row)]
    read += parameter_reads(model)
    return composed(model.definitions(), model.length, fields), [symbol for row in h for symbol in row], read


def _with_signs(loss: Any, found: Sequence[Any]) -> tuple[list[Any], Any, list[Any], Any]:
    """The kinks' signs; loss and arguments in moduli; and the loss with the signs times c in place of ``|c|``."""
    signs = [name(f"s{j}") for j in range(len(found))]
    whole, *arguments = (with_moduli(one, found, lambda j, c: Modulus(c)) for one in (loss, *found))
    return signs, whole, arguments, with_moduli(loss, found, lambda j, c: signs[j] * c)


def _with_reads(read: Iterable[tuple[Any, Any]], lines: Sequence[Assign]) -> tuple[Assign, ...]:
    """Lines behind assignments of the names that they use."""
    used = {symbol for line in lines for symbol in names_in(line.value)}
    return (*(Assign(symbol, place) for symbol, place in read if symbol in used), *lines)
