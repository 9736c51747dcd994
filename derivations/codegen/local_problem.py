"""The local problem of a model as importable source, for Numba, NumPy, torch and mpmath.

Generated are the teacher's target, the loss, and its gradient and Hessian in the local fields.  A score is a row
function: SymPy differentiates the loss of one row in the row's logits once, and the bilinear map from fields to logits
is chained around it, so that size and cost stay polynomial in the sentence length.  The other generated code, the
state-evolution maps, is made in `derivations.codegen.arrays`.

All back ends share one body.  In the NumPy and torch prints every array carries the samples on a trailing axis, in the
other two an array belongs to one sample.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from textwrap import indent
from typing import Any

from sympy import Add, Expr, Integer, Pow, Symbol, cse, exp, numbered_symbols
from sympy.printing.pycode import PythonCodePrinter

from derivations.codegen.arrays import state_evolution_functions
from derivations.codegen.backends import BACKENDS, completed
from derivations.codegen.layout import WIDTH, folded
from derivations.models.attention import AttentionModel, ScalarModel
from derivations.models.functions import with_known_functions
from derivations.models.scores import RowScore, row_entries
from derivations.replica.chain import derive_free_entropy
from derivations.replica.saddle_point import derive_saddle_point

__all__ = ["BACKENDS", "kernel_source", "local_problem_source", "module_source"]


class _ScalarPrinter(PythonCodePrinter):
    """Straight-line scalar code with the bare function names that every header provides."""

    def __init__(self) -> None:
        known = ("Step", "Sign", "Modulus", "Relu", "Sigmoid", "Softplus")
        super().__init__({"fully_qualified_modules": False, "user_functions": {n: n.lower() for n in known}})

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


def _logits(field: str, pairs: Sequence[tuple[int, int]], visible: int, score: RowScore) -> str:
    """Row ``a`` of the logits as scalars ``z0, z1, ...``, shifted by the largest where the score allows it."""
    lines = []
    for b in range(visible):
        products = " + ".join(f"{field}[a, {i}] * {field}[{b}, {j}]" for i, j in pairs)
        lines.append(f"z{b} = ({products}) * inverse_temperature")
    names = [f"z{b}" for b in range(visible)]
    if score.null_logit:
        lines.append("null = 0.0 * z0")
        names.append("null")
    if score.shift_invariant:
        lines.append(f"largest = {names[0]}")
        lines += [f"largest = largest_of(largest, {name})" for name in names[1:]]
        lines += [f"{name} = {name} - largest" for name in names]
    return "\n".join(lines)


_NULL = Symbol("null", real=True)  # the logit that is zero before the largest is subtracted


def _row_values(score: RowScore, z: Sequence[Symbol]) -> tuple[Any, ...]:
    """Entries of a row of the attention matrix, in the symbols of the generated code."""
    if not score.null_logit:
        return row_entries(score, z)
    return tuple(score.row([*z, _NULL]))[: len(z)]


def _row_loss(model: AttentionModel, visible: int) -> tuple[list[Symbol], list[Symbol], Expr]:
    """Loss of one row as a function of its visible logits and, with a value matrix, of all visible values.

    ``1/2 sum_b D_b (S_b - T_b)^2``, or ``1/2 sum_c (sum_b S_b v_bc - y_c)^2``; at finite d
    ``1/2 sum_bc S_b G_bc S_c - sum_b S_b C_b``.
    """
    z = [Symbol(f"z{b}", real=True) for b in range(visible)]
    row = _row_values(model.student.score, z)
    if model.values:
        v = [[Symbol(f"v{b}_{c}", real=True) for c in range(model.values)] for b in range(visible)]
        outputs = [Add(*(s * v[b][c] for b, s in enumerate(row))) for c in range(model.values)]
        targets = [Symbol(f"target_{c}", real=True) for c in range(model.values)]
        loss = Add(*((y - output) ** 2 for y, output in zip(targets, outputs, strict=True))) / 2
        return z, [symbol for entry in v for symbol in entry], loss
    target = [Symbol(f"target_{b}", real=True) for b in range(model.length)]
    if model.has_grams:
        gram = [[Symbol(f"gram_{min(b, c)}_{max(b, c)}", real=True) for c in range(visible)] for b in range(visible)]
        square = Add(*(gram[b][c] * row[b] * row[c] for b in range(visible) for c in range(visible))) / 2
        return z, [], square - Add(*(s * y for s, y in zip(row, target[:visible], strict=True)))
    weight = [Symbol(f"variance_{b}", real=True) for b in range(model.length)]
    padded = [*row, *[Integer(0)] * (model.length - visible)]
    return z, [], Add(*(w * (s - y) ** 2 for s, y, w in zip(padded, target, weight, strict=True))) / 2


def _row_constants(model: AttentionModel, visible: int) -> str:
    offset = model.student.columns
    if model.values:
        lines = [f"target_{c} = target[a, {c}]" for c in range(model.values)]
        lines += [f"v{b}_{c} = h[{b}, {offset + c}]" for b in range(visible) for c in range(model.values)]
        return "\n".join(lines)
    lines = [f"target_{b} = target[a, {b}]" for b in range(model.length)]
    if model.has_grams:
        lines += [f"gram_{b}_{c} = variance[{b}, {c}]" for b in range(visible) for c in range(b, visible)]
        return "\n".join(lines)
    lines += [f"variance_{b} = variance[{b}]" for b in range(model.length)]
    return "\n".join(lines)


def _rows(length: int, causal: bool, body: Callable[[int], str]) -> str:
    """The code of every row: one loop, or under a causal mask row by row, since row ``a`` sees ``a + 1`` tokens."""
    if not causal:
        return f"for a in range({length}):\n{indent(body(length), ' ' * 4)}"
    return "\n".join(f"a = {row}\n{body(row + 1)}" for row in range(length))


def _value_places(model: AttentionModel, visible: int) -> list[int]:
    """Places of the values among the fields of a sample."""
    size, offset = model.columns, model.student.columns
    return [b * size + offset + c for b in range(visible) for c in range(model.values)]


def _chained_gradient(model: AttentionModel, visible: int) -> str:
    """Gradient in the fields from that in the row's logits and values."""
    size, lines = model.columns, []
    # a logit (a, b) is the sum over pairs (i, j) of h[a, i] h[b, j]; a value is a field itself
    for b in range(visible):
        for i, j in model.student.pairs:
            lines.append(f"gradient[a, {i}] += u{b} * h[{b}, {j}]")
            lines.append(f"gradient[{b}, {j}] += u{b} * h[a, {i}]")
    for x, place in enumerate(_value_places(model, visible), visible):
        lines.append(f"gradient[{place // size}, {place % size}] += u{x}")
    return "\n".join(lines)


def _chained_hessian(model: AttentionModel, visible: int) -> str:
    """Hessian in the fields from the derivatives in the row's logits and values."""
    student, size = model.student, model.columns
    z, v, _ = _row_loss(model, visible)
    second, chain = [], []
    for b in range(visible):
        for i, j in student.pairs:
            second.append(f"hessian[a * {size} + {i}, {b * size + j}] += u{b}")
            second.append(f"hessian[{b * size + j}, a * {size} + {i}] += u{b}")
    places = _value_places(model, visible)
    # curvature of the row contracted with the Jacobian of its variables: y_x = sum_y w_xy dy / dh, row by row
    for x in range(len(z) + len(v)):
        chain.append(f"for i in range({model.length * size}):\n    contracted[i] = 0.0 * u0")
        for y in range(len(z) + len(v)):
            w = f"w{min(x, y)}_{max(x, y)}"
            if y >= len(z):
                chain.append(f"contracted[{places[y - len(z)]}] += {w}")
                continue
            for i, j in student.pairs:
                chain.append(f"contracted[a * {size} + {i}] += {w} * h[{y}, {j}]")
                chain.append(f"contracted[{y * size + j}] += {w} * h[a, {i}]")
        chain.append(f"for i in range({model.length * size}):")
        if x >= len(z):
            chain.append(f"    hessian[{places[x - len(z)]}, i] += contracted[i]")
            continue
        for i, j in student.pairs:
            chain.append(f"    hessian[a * {size} + {i}, i] += h[{x}, {j}] * contracted[i]")
            chain.append(f"    hessian[{x * size + j}, i] += h[a, {i}] * contracted[i]")
    return "\n".join(second + chain)


def _attention_source(model: AttentionModel) -> str:
    length, student, teacher, size = model.length, model.student, model.teacher, model.columns

    def target_row(visible: int) -> str:
        z = [Symbol(f"z{b}", real=True) for b in range(visible)]
        row = _Lifted()
        entries = {f"s{b}": row.lift(value) for b, value in enumerate(_row_values(teacher.score, z))}
        lines = [_logits("k", teacher.pairs, visible, teacher.score), _assignments(entries, row)]
        scores = [f"(1 - omega) * s{b}" for b in range(visible)] + ["0.0 * omega"] * (length - visible)
        mixed = [f"{score} + omega * mixing[a, {b}]" for b, score in enumerate(scores)]
        if not model.values:
            lines += [f"target[a, {b}] = {entry}" for b, entry in enumerate(mixed)]
            return "\n".join(lines)
        lines += [f"t{b} = {entry}" for b, entry in enumerate(mixed)]
        for c in range(model.values):
            products = " + ".join(f"t{b} * k[{b}, {teacher.rank + c}]" for b in range(length))
            lines.append(f"target[a, {c}] = {products}")
        return "\n".join(lines)

    def loss_row(visible: int) -> str:
        _, _, loss = _row_loss(model, visible)
        row = _Lifted()
        return "\n".join(
            (
                _logits("h", student.pairs, visible, student.score),
                _row_constants(model, visible),
                _assignments({"row_loss": row.lift(loss)}, row),
                "total = total + row_loss",
            )
        )

    def derivative_row(visible: int, second: bool = True) -> str:
        z, v, row_loss = _row_loss(model, visible)
        row, variables = _Lifted(), [*z, *v]
        loss = row.lift(row_loss)
        gradient = [row.derivative(loss, variable) for variable in variables]
        outputs: dict[str, Expr] = {"row_loss": loss}
        outputs |= {f"u{x}": value for x, value in enumerate(gradient)}
        # derivatives in the logits carry a factor of the inverse temperature for each
        scaled = [f"u{x} = u{x} * inverse_temperature" for x in range(len(z))]
        if second:
            for x in range(len(variables)):
                for y in range(x, len(variables)):
                    outputs[f"w{x}_{y}"] = row.derivative(gradient[x], variables[y])
            scaled += [
                f"w{x}_{y} = w{x}_{y} * inverse_temperature" + ("**2" if y < len(z) else "")
                for x in range(len(z))
                for y in range(x, len(variables))
            ]
        return "\n".join(
            (
                _logits("h", student.pairs, visible, student.score),
                _row_constants(model, visible),
                _assignments(outputs, row),
                "total = total + row_loss",
                *scaled,
                _chained_gradient(model, visible),
                *([_chained_hessian(model, visible)] if second else []),
            )
        )

    def gradient_row(visible: int) -> str:
        return derivative_row(visible, second=False)

    return f"""
LENGTH = {length}
COLUMNS = {size}
TEACHER_RANK = {model.teacher_rank}
LIFT = {model.lift!r}


@compiled
def teacher_target(k, mixing, parameters, target):
    omega = parameters[0]
    inverse_temperature = 1.0 / parameters[2]
{indent(_rows(length, teacher.causal, target_row), " " * 4)}


@compiled
def loss(h, target, variance, parameters):
    inverse_temperature = 1.0 / parameters[1]
    total = 0.0
{indent(_rows(length, student.causal, loss_row), " " * 4)}
    return total


@compiled
def loss_gradient(h, target, variance, parameters, gradient):
    inverse_temperature = 1.0 / parameters[1]
    for i in range({length * size}):
        gradient[i // {size}, i % {size}] = 0.0 * h[0, 0]
    total = 0.0
{indent(_rows(length, student.causal, gradient_row), " " * 4)}
    return total


@compiled
def loss_derivatives(h, target, variance, parameters, gradient, hessian, contracted):
    inverse_temperature = 1.0 / parameters[1]
    for i in range({length * size}):
        gradient[i // {size}, i % {size}] = 0.0 * h[0, 0]
        for j in range({length * size}):
            hessian[i, j] = 0.0 * h[0, 0]
    total = 0.0
{indent(_rows(length, student.causal, derivative_row), " " * 4)}
    return total
{_weights_of(model)}{_NO_CLOSED_FORM}"""


def _weights_of(model: AttentionModel | ScalarModel) -> str:
    """What the loss takes as ``variance``: a sample's Gram matrix where it uses one, else a row that it ignores."""
    return f"""

@compiled
def weights_of(grams, sample):
    return grams[sample{"" if model.has_grams else ", 0"}]
"""


_NO_CLOSED_FORM = """

@compiled
def closed_form(center, target, factor, h):
    return False
"""


def _closed_form(model: ScalarModel) -> str:
    """The proximal point where a model gives it, instead of a search."""
    if model.prox is None:
        return _NO_CLOSED_FORM
    center, teacher, V = (Symbol(name, real=True) for name in ("center0", "k0", "V"))
    printer = _ScalarPrinter()
    lines = ["center0 = center[0, 0]", "k0 = target[0, 0]", "V = factor[0, 0, 0] ** 2"]
    for value, condition in model.prox(center, teacher, V):
        assignment = f"h[0, 0] = {printer.doprint(value)}"
        if condition is None:
            lines += [assignment, "return True"]
        else:
            lines += [f"if {printer.doprint(condition)}:", f"    {assignment}", "    return True"]
    return f"""

@compiled
def closed_form(center, target, factor, h):
{indent(chr(10).join(lines), " " * 4)}
"""


def _scalar_source(model: ScalarModel) -> str:
    h = [[Symbol(f"h{a}_{i}", real=True) for i in range(model.columns)] for a in range(model.length)]
    k = [[Symbol(f"k{a}_{i}", real=True) for i in range(model.teacher_rank)] for a in range(model.length)]
    flat = [symbol for row in h for symbol in row]
    loss = with_known_functions(model.loss(h, k))
    held = loss.free_symbols
    fields = [(symbol, f"h[{a}, {i}]") for a, row in enumerate(h) for i, symbol in enumerate(row)]
    fields += [(symbol, f"target[{a}, {i}]") for a, row in enumerate(k) for i, symbol in enumerate(row)]
    read = "\n".join(f"{symbol} = {place}" for symbol, place in fields if symbol in held)
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
LIFT = {model.lift!r}


@compiled
def teacher_target(k, mixing, parameters, target):
    for a in range({model.length}):
        for i in range({model.teacher_rank}):
            target[a, i] = k[a, i]


@compiled
def loss(h, target, variance, parameters):
{indent(read, " " * 4)}
{indent(_assignments({"total": loss}), " " * 4)}
    return total + 0.0


@compiled
def loss_gradient(h, target, variance, parameters, gradient):
{indent(read, " " * 4)}
{indent(_assignments({"total": loss, **gradient}), " " * 4)}
{indent(chr(10).join(write[: len(flat)]), " " * 4)}
    return total + 0.0


@compiled
def loss_derivatives(h, target, variance, parameters, gradient, hessian, contracted):
{indent(read, " " * 4)}
{indent(_assignments(outputs), " " * 4)}
{indent(chr(10).join(write), " " * 4)}
    return total + 0.0
{_weights_of(model)}{_closed_form(model)}"""


def local_problem_source(model: AttentionModel | ScalarModel, backend: str = "numba") -> str:
    """Source of a module with ``teacher_target``, ``loss``, ``loss_gradient`` and ``loss_derivatives`` of one sample.

    Parameters
    ----------
    model : AttentionModel or ScalarModel
    backend : {"numba", "numpy", "torch", "mpmath"}

    Returns
    -------
    str
        Functions of ``h`` (L, r), ``target`` (L, L) (with a value matrix the outputs (L, v), for a `ScalarModel` the
        teacher's fields (L, t)), ``variance`` (L,) and ``parameters`` (omega and the temperatures of student and
        teacher); ``loss_derivatives`` fills ``gradient`` (L, r) and ``hessian`` (L r, L r), using
        ``contracted`` (L r,) as scratch, and returns the loss.  A model that is ``finite`` takes the matrix C as
        ``target`` and the Gram matrix G, (L, L), as ``variance``.  With "numpy" and "torch" all arrays have a trailing
        sample axis.
    """
    title = "Local problem of one sample. Generated by derivations.codegen.local_problem: do not edit."
    return completed(title, _local_problem(model), backend)


def kernel_source(model: AttentionModel | ScalarModel) -> str:
    """The source of `local_problem_source` for Numba, of functions that compiled code alone calls.

    Without a way in from Python, and machine code of their own on the disk, they compile faster; called from Python
    they end the process.
    """
    return local_problem_source(model, "numba").replace("njit(cache=True, ", "njit(no_cpython_wrapper=True, ")


def _local_problem(model: AttentionModel | ScalarModel) -> str:
    return _attention_source(model) if isinstance(model, AttentionModel) else _scalar_source(model)


def module_source(model: AttentionModel | ScalarModel, *, separable: bool = False) -> str:
    """Source of one readable module: a model's local problem (for Numba) and state-evolution maps.

    The functions are those of `local_problem_source` and `state_evolution_source`.
    """
    free_entropy = derive_free_entropy(model, separable=separable)
    maps = state_evolution_functions(derive_saddle_point(free_entropy), free_entropy)
    title = (
        "Local problem and state evolution. Generated from the derived equations.\n\n"
        "teacher_target makes the teacher's target of fields k (L, t); parameters are omega and the\n"
        "temperatures of student and teacher. loss, loss_gradient and loss_derivatives are those of one\n"
        "sample at fields h (L, r).\n"
    )
    source = completed(title, f"{_local_problem(model)}\n\n{maps}", "numba")
    # Numba's cache needs a file, and this is to run wherever it is put
    return source.replace("njit(cache=True, ", "njit(")
