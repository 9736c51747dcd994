"""The local problem of a model as importable source, for Numba, NumPy and mpmath.

Generated are the teacher's target, the loss, and its gradient and Hessian in the local fields.  A score is a row
function: SymPy differentiates the loss of one row in the row's logits once, and the bilinear map from fields to logits
is chained around it, so that size and cost stay polynomial in the sentence length.  The other generated code, the
state-evolution maps, is made in `derivations.array_maps`.

The three back ends share one body.  In the NumPy print every array carries the samples on a trailing axis, in the other
two an array belongs to one sample.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from textwrap import indent
from typing import Any

from sympy import Expr, Integer, Pow, Symbol, cse, exp, numbered_symbols
from sympy.printing.pycode import PythonCodePrinter

from derivations.array_maps import state_evolution_functions
from derivations.layout import WIDTH, folded
from derivations.model import AttentionModel, ScalarModel
from derivations.scores import RowScore

__all__ = ["BACKENDS", "local_problem_source", "module_source"]

_HEADERS = {
    "numba": """\
from math import cos, cosh, exp, log, sin, sinh, sqrt, tanh

from numba import njit

compiled = njit(cache=True, nogil=True, error_model="numpy", forceinline=True)


@compiled
def largest_of(a, b):
    return max(a, b)


@compiled
def ratio(p, q):
    return p / q
""",
    "numpy": """\
from numpy import cos, cosh, exp, log, sin, sinh, sqrt, tanh
from numpy import maximum as largest_of


def compiled(function):
    return function


def ratio(p, q):
    return p / q
""",
    "mpmath": """\
from mpmath import cos, cosh, exp, log, mpf, sin, sinh, sqrt, tanh

largest_of = max


def compiled(function):
    return function


def ratio(p, q):
    return mpf(p) / q
""",
}
BACKENDS = tuple(_HEADERS)


class _ScalarPrinter(PythonCodePrinter):
    """Straight-line scalar code with the bare function names that every header provides."""

    def __init__(self) -> None:
        super().__init__({"fully_qualified_modules": False, "user_functions": {}})

    def _print_exp(self, expr: Any) -> str:
        return f"exp({self._print(expr.args[0])})"

    def _print_Rational(self, expr: Any) -> str:
        return f"ratio({expr.p}, {expr.q})"


def _assignments(outputs: Mapping[str, Expr], lifted: _Lifted | None = None, prefix: str = "x") -> str:
    """``name = expression`` lines with shared subexpressions taken out, behind those of the lifted symbols."""
    printer = _ScalarPrinter()
    # without order="none" the canonical ordering of cse dominates at L = 8
    shared, reduced = cse(list(outputs.values()), symbols=numbered_symbols(prefix), order="none")
    definitions = lifted.definitions.items() if lifted is not None else ()
    lines: list[str] = []
    for name, value in [*definitions, *shared, *zip(outputs, reduced, strict=True)]:
        code = f"{name} = {_spaced(str(printer.doprint(value)))}"
        if len(code) <= WIDTH - 4:
            lines.append(code)
        else:
            parts = folded(code.removeprefix(f"{name} = "), WIDTH - 8)
            lines += [f"{name} = (", *(f"    {part}" for part in parts), ")"]
    return "\n".join(lines)


def _spaced(code: str) -> str:
    """The same expression with spaces around its operators and without needless brackets."""
    code = ast.unparse(ast.parse(code, mode="eval"))
    return re.sub(r"\b([A-Za-z_]\w*) \*\* (\d+)\b", r"\1**\2", code)


class _Lifted:
    """Expressions with their exponentials and reciprocals taken out as symbols, and derivatives in those symbols.

    SymPy merges ``exp(z)^2`` into ``exp(2 z)`` and writes quotients as negative powers, so that derivatives of a score
    would call the exponential and the power function anew for every term.  With ``e = exp(a)`` and ``p = 1/x`` as
    symbols, ``de = e da`` and ``dp = -p^2 dx``, all derivatives are polynomials in what is computed once.
    """

    def __init__(self) -> None:
        self.definitions: dict[Symbol, Expr] = {}
        self._symbols: dict[Expr, Symbol] = {}

    def lift(self, expression: Any) -> Any:
        """The expression with symbols for its exponentials and reciprocals, innermost first."""
        if not expression.args:
            return expression
        lifted = expression.func(*(self.lift(a) for a in expression.args))
        if isinstance(lifted, exp):
            return self._symbol(lifted, "e")
        if isinstance(lifted, Pow) and lifted.exp.is_Integer and lifted.exp.is_negative:
            return self._symbol(1 / lifted.base, "p") ** (-lifted.exp)
        return lifted

    def _symbol(self, value: Expr, letter: str) -> Symbol:
        if value not in self._symbols:
            symbol = Symbol(f"{letter}{len(self.definitions)}")
            self._symbols[value] = symbol
            self.definitions[symbol] = value
        return self._symbols[value]

    def derivative(self, expression: Any, variable: Symbol) -> Expr:
        """Total derivative of a lifted expression."""
        result = expression.diff(variable)
        for symbol, value in self.definitions.items():
            outer = expression.diff(symbol)
            if outer == 0:
                continue
            if isinstance(value, exp):
                inner = symbol * self.derivative(value.args[0], variable)
            else:
                inner = -(symbol**2) * self.derivative(1 / value, variable)
            result += outer * inner
        return result


def _logits(field: str, pairs: Sequence[tuple[int, int]], length: int, score: RowScore) -> str:
    """Row ``a`` of the logits as scalars ``z0, z1, ...``, shifted by the largest where the score allows it."""
    lines = []
    for b in range(length):
        products = " + ".join(f"{field}[a, {i}] * {field}[{b}, {j}]" for i, j in pairs)
        lines.append(f"z{b} = {products}")
    if score.shift_invariant:
        lines.append("largest = z0")
        lines += [f"largest = largest_of(largest, z{b})" for b in range(1, length)]
        lines += [f"z{b} = z{b} - largest" for b in range(length)]
    return "\n".join(lines)


def _row_loss(score: RowScore, length: int) -> tuple[list[Symbol], Expr]:
    """Loss of one row, ``1/2 sum_b D_b (S_b - T_b)^2``, as a function of its logits."""
    z = [Symbol(f"z{b}") for b in range(length)]
    target = [Symbol(f"target_{b}") for b in range(length)]
    weight = [Symbol(f"variance_{b}") for b in range(length)]
    row = score.row(z)
    loss = sum((w * (s - y) ** 2 for s, y, w in zip(row, target, weight, strict=True)), Integer(0)) / 2
    return z, loss


def _row_constants(length: int) -> str:
    lines = [f"target_{b} = target[a, {b}]" for b in range(length)]
    lines += [f"variance_{b} = variance[{b}]" for b in range(length)]
    return "\n".join(lines)


def _attention_source(model: AttentionModel) -> str:
    length, student, teacher = model.length, model.student, model.teacher
    z, row_loss = _row_loss(student.score, length)
    row = _Lifted()
    loss = row.lift(row_loss)
    gradient = [row.derivative(loss, logit) for logit in z]
    curvature = {(b, c): row.derivative(gradient[b], z[c]) for b in range(length) for c in range(b, length)}

    outputs: dict[str, Expr] = {"row_loss": loss}
    outputs |= {f"u{b}": value for b, value in enumerate(gradient)}
    outputs |= {f"w{b}_{c}": value for (b, c), value in curvature.items()}
    teacher_row = _Lifted()
    target_row = {f"s{b}": teacher_row.lift(value) for b, value in enumerate(teacher.score.row(z))}

    # logit (a, b) is the sum over pairs (i, j) of h[a, i] h[b, j]: its first and second derivatives
    first, second, chain = [], [], []
    size = model.columns
    for b in range(length):
        for i, j in student.pairs:
            first.append(f"gradient[a, {i}] += u{b} * h[{b}, {j}]")
            first.append(f"gradient[{b}, {j}] += u{b} * h[a, {i}]")
            second.append(f"hessian[a * {size} + {i}, {b * size + j}] += u{b}")
            second.append(f"hessian[{b * size + j}, a * {size} + {i}] += u{b}")
    # curvature of the row contracted with the Jacobian of the logits: y_b = sum_c w_bc dz_c / dh, row by row
    for b in range(length):
        chain.append(f"for i in range({length * size}):\n    contracted[i] = 0.0 * u0")
        for c in range(length):
            w = f"w{min(b, c)}_{max(b, c)}"
            for i, j in student.pairs:
                chain.append(f"contracted[a * {size} + {i}] += {w} * h[{c}, {j}]")
                chain.append(f"contracted[{c * size + j}] += {w} * h[a, {i}]")
        chain.append(f"for i in range({length * size}):")
        for i, j in student.pairs:
            chain.append(f"    hessian[a * {size} + {i}, i] += h[{b}, {j}] * contracted[i]")
            chain.append(f"    hessian[{b * size + j}, i] += h[a, {i}] * contracted[i]")

    shape = f"LENGTH = {length}\nCOLUMNS = {size}\nTEACHER_RANK = {teacher.rank}\n"
    return f"""
{shape}

@compiled
def teacher_target(k, mixing, omega, target):
    for a in range({length}):
{indent(_logits("k", teacher.pairs, length, teacher.score), " " * 8)}
{indent(_assignments(target_row, teacher_row), " " * 8)}
{indent(chr(10).join(f"target[a, {b}] = (1 - omega) * s{b} + omega * mixing[a, {b}]" for b in range(length)), " " * 8)}


@compiled
def loss(h, target, variance):
    total = 0.0
    for a in range({length}):
{indent(_logits("h", student.pairs, length, student.score), " " * 8)}
{indent(_row_constants(length), " " * 8)}
{indent(_assignments({"row_loss": loss}, row), " " * 8)}
        total = total + row_loss
    return total


@compiled
def loss_derivatives(h, target, variance, gradient, hessian, contracted):
    for i in range({length * size}):
        gradient[i // {size}, i % {size}] = 0.0 * h[0, 0]
        for j in range({length * size}):
            hessian[i, j] = 0.0 * h[0, 0]
    total = 0.0
    for a in range({length}):
{indent(_logits("h", student.pairs, length, student.score), " " * 8)}
{indent(_row_constants(length), " " * 8)}
{indent(_assignments(outputs, row), " " * 8)}
        total = total + row_loss
{indent(chr(10).join(first + second + chain), " " * 8)}
    return total
"""


def _scalar_source(model: ScalarModel) -> str:
    h = [[Symbol(f"h{a}_{i}") for i in range(model.columns)] for a in range(model.length)]
    k = [[Symbol(f"k{a}_{i}") for i in range(model.teacher_rank)] for a in range(model.length)]
    flat = [symbol for row in h for symbol in row]
    loss = model.loss(h, k)
    read = "\n".join(
        [f"h{a}_{i} = h[{a}, {i}]" for a in range(model.length) for i in range(model.columns)]
        + [f"k{a}_{i} = target[{a}, {i}]" for a in range(model.length) for i in range(model.teacher_rank)]
    )
    gradient = {f"u{a}": loss.diff(x) for a, x in enumerate(flat)}
    hessian = {f"w{a}_{b}": loss.diff(x, y) for a, x in enumerate(flat) for b, y in enumerate(flat) if b >= a}
    outputs = {"total": loss, **gradient, **hessian}
    size = model.columns
    write = [f"gradient[{a // size}, {a % size}] = u{a}" for a in range(len(flat))]
    write += [f"hessian[{a}, {b}] = w{min(a, b)}_{max(a, b)}" for a in range(len(flat)) for b in range(len(flat))]
    return f"""
LENGTH = {model.length}
COLUMNS = {size}
TEACHER_RANK = {model.teacher_rank}


@compiled
def teacher_target(k, mixing, omega, target):
    for a in range({model.length}):
        for i in range({model.teacher_rank}):
            target[a, i] = k[a, i]


@compiled
def loss(h, target, variance):
{indent(read, " " * 4)}
{indent(_assignments({"total": loss}), " " * 4)}
    return total


@compiled
def loss_derivatives(h, target, variance, gradient, hessian, contracted):
{indent(read, " " * 4)}
{indent(_assignments(outputs), " " * 4)}
{indent(chr(10).join(write), " " * 4)}
    return total
"""


def local_problem_source(model: AttentionModel | ScalarModel, backend: str = "numba") -> str:
    """Source of a module with ``teacher_target``, ``loss`` and ``loss_derivatives`` of one sample.

    Parameters
    ----------
    model : AttentionModel or ScalarModel
    backend : {"numba", "numpy", "mpmath"}

    Returns
    -------
    str
        Functions of ``h`` (L, r), ``target`` (L, L) (or the teacher's fields (L, t) for a `ScalarModel`),
        ``variance`` (L,); ``loss_derivatives`` fills ``gradient`` (L, r) and ``hessian`` (L r, L r), using
        ``contracted`` (L r,) as scratch, and returns the loss.  With "numpy" all arrays have a trailing sample axis.
    """
    title = '"""Local problem of one sample. Generated by derivations.codegen: do not edit."""'
    return f"{title}\n\n{_HEADERS[backend]}\n{_local_problem(model)}"


def _local_problem(model: AttentionModel | ScalarModel) -> str:
    return _attention_source(model) if isinstance(model, AttentionModel) else _scalar_source(model)


def module_source(model: AttentionModel | ScalarModel) -> str:
    """Source of one readable module: a model's local problem (for Numba) and state-evolution maps.

    The functions are those of `local_problem_source` and `state_evolution_source`.
    """
    local = _local_problem(model)
    functions = [name for name in ("exp", "log", "sqrt") if re.search(rf"\b{name}\(", local)]
    imports = f"from math import {', '.join(functions)}\n\n" if functions else ""
    helpers = _HEADERS["numba"].partition("from numba import njit\n")
    return (
        '"""Local problem and state evolution. Generated from the derived equations."""\n\n'
        f"{imports}import numpy as np\n{helpers[1]}{helpers[2]}\n{local}\n\n"
        f"{state_evolution_functions(model.saddle_point, model.free_entropy)}"
    )
