"""Losses with kinks: what the minimiser of several fields knows of each kink."""

from __future__ import annotations

from typing import Any

from derivations.algebra import symbols as sym
from derivations.algebra.common_parts import Slopes
from derivations.codegen.entries import parameter_names, parameter_reads
from derivations.codegen.ir import Assign, Function, Ordered, Return, element, name
from derivations.codegen.lifting import straight_line
from derivations.codegen.unrolled import names_in
from derivations.models.functions import Modulus, Sign, Step
from derivations.models.kinks import kinks, slope_in_modulus, with_moduli
from derivations.models.model import Model, composed, field_symbols, label_fields, label_symbols

__all__ = ["kinked_derivatives"]

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
    h, k = (
        [[name(f"{letter}{a}_{i}") for i in range(width)] for a in range(model.length)]
        for letter, width in (("h", columns), ("k", label_fields(model)))
    )
    fields = field_symbols(sym.h, h) | label_symbols(model, k) | parameter_names(model)
    loss = composed(model.definitions(), model.length, fields)
    flat = [symbol for row in h for symbol in row]
    found = kinks(loss, flat)
    count, size = len(found), len(flat)
    given = [name(f"m{j}") for j in range(count)]
    signs = [name(f"s{j}") for j in range(count)]
    whole, *arguments = (with_moduli(one, found, lambda j, c: Modulus(c)) for one in (loss, *found))
    held: list[Any] = [Step(1 - one**2) for one in given]
    at = dict(zip(map(Sign, arguments), signs, strict=True))
    smooth = with_moduli(loss, found, lambda j, c: signs[j] * c)
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
    read = [(symbol, element("h", a, i)) for a, row in enumerate(h) for i, symbol in enumerate(row)]
    read += [(symbol, element("target", a, i)) for a, row in enumerate(k) for i, symbol in enumerate(row)]
    read += parameter_reads(model)
    read += [(symbol, element("kinks", _MULTIPLIERS, j)) for j, symbol in enumerate(given)]
    values = {"total": whole} | {f"c{j}": c for j, c in enumerate(arguments)}
    lines = straight_line(values | outputs, sides)
    used = {symbol for line in lines for symbol in names_in(line.value)}
    body = (
        *(Assign(symbol, place) for symbol, place in read if symbol in used),
        *lines,
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
