"""Expressions to importable source, for Numba, NumPy and mpmath.

Two kinds of code are generated:

- the *local problem* of a model: teacher target, loss, its gradient and Hessian in the local fields.  A score is a row
  function: SymPy differentiates the loss of one row in the row's logits once, and the bilinear map from fields to
  logits is chained around it, so that size and cost stay polynomial in the sentence length;
- the *state-evolution maps*: the derived saddle-point equations as functions of arrays.

The three back ends share one body.  In the NumPy print every array carries the samples on a trailing axis, in the other
two an array belongs to one sample.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from textwrap import indent
from typing import Any

from sympy import Add, Expr, Indexed, Integer, Mul, Pow, Rational, Symbol, cse, exp, numbered_symbols
from sympy.matrices.expressions import Identity, Inverse, MatAdd, MatMul, Trace, Transpose
from sympy.printing.pycode import PythonCodePrinter

from derivations import symbols as sym
from derivations.model import AttentionModel, ScalarModel
from derivations.nodes import (
    FieldMean,
    MatrixSqrt,
    MoreauEnvelope,
    SpectralMean,
    TokenMatrix,
    TokenSum,
    operands,
)
from derivations.observables import OBSERVABLES, FieldLoss
from derivations.replica import FreeEntropy
from derivations.saddle_point import SaddlePoint, abbreviated, definitions
from derivations.scores import RowScore

__all__ = ["BACKENDS", "local_problem_source", "module_source", "state_evolution_source"]

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
        if len(code) <= _WIDTH - 4:
            lines.append(code)
        else:
            folded = _folded(code.removeprefix(f"{name} = "), _WIDTH - 8)
            lines += [f"{name} = (", *(f"    {line}" for line in folded), ")"]
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


# --- state-evolution maps -----------------------------------------------------------------------------------------

_STATE_EVOLUTION_HELPERS = """\
# state evolution: the derived equations as functions of arrays
#
# Shapes: q, V, q_hat, V_hat (L, r, r); m, m_hat (L, r, 1); theta, theta_hat (L, r, t); rho
# (L, t, t); fields g, xi (L, ..., N, r, 1) and k (L, ..., N, t, 1); envelope and losses
# (..., N, 1, 1); spectral atoms gamma, tau (L, A, 1, 1) and pi (A, t, 1). `field_mean` averages
# over N, `spectral_mean` over A.


def inverse(matrix):
    return np.linalg.inv(matrix)


def square_root(matrix):
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(values)[..., None, :]) @ vectors.mT


def trace(matrix):
    return np.trace(matrix, axis1=-2, axis2=-1)
"""


class _ArrayPrinter:
    """Matrix expressions to NumPy source; arrays carry batch axes in front of (rows, columns)."""

    def __init__(self, tokens: Mapping[Any, str]) -> None:
        self.tokens = tokens

    def __call__(self, e: Any) -> str:
        if isinstance(e, TokenMatrix):
            return e.name if e.index is None else f"{e.name}[{self.tokens[e.index]}]"
        if isinstance(e, TokenSum):
            name = self.tokens[e.index]
            return f"sum({self(e.body)} for {name} in range(len(q_hat)))"
        if isinstance(e, SpectralMean):
            # a scalar integrand is a trace with the atoms on its last axis
            body = self(e.body) if e.body.is_Matrix else f"({self(e.body)})[..., None, None]"
            return f"spectral_mean({body})" if e.body.is_Matrix else f"spectral_mean({body})[..., 0, 0]"
        if isinstance(e, FieldMean):
            return f"field_mean({self(e.body)})" if e.body.is_Matrix else f"field_mean({self(e.body)})[..., 0, 0]"
        if isinstance(e, MoreauEnvelope):
            return "envelope"
        if isinstance(e, FieldLoss):
            return f"loss_at_{operands(e)[0].name}"
        if isinstance(e, MatrixSqrt):
            return f"square_root({self(e.args[0])})"
        if isinstance(e, Inverse):
            return f"inverse({self(e.arg)})"
        if isinstance(e, Transpose):
            return f"{self._atom(e.arg)}.mT"
        if isinstance(e, Trace):
            return f"trace({self(e.arg)})"
        if isinstance(e, Identity):
            return "np.eye(q_hat.shape[-1])"
        if isinstance(e, (MatAdd, Add)):
            return " + ".join(self(a) for a in e.args).replace("+ -", "- ")
        if isinstance(e, MatMul):
            scalars = Mul(*(a for a in e.args if not a.is_Matrix))
            matrices = [self._atom(a) for a in e.args if a.is_Matrix]
            product = " @ ".join(matrices)
            if scalars == 1:
                return product
            product = product if len(matrices) == 1 else f"({product})"
            if scalars == -1:
                return f"-{product}"
            factor = self._atom(scalars) if isinstance(scalars, Add) else self(scalars)
            return f"{factor} * {product}"
        if isinstance(e, Mul):
            number, rest = e.as_coeff_Mul()
            if number == -1:
                return f"-{self(rest)}"
            factors: list[Any] = [*([number] if number != 1 else []), *Mul.make_args(rest)]
            text = self._atom(factors[0]) if number >= 0 else self(factors[0])
            for factor in factors[1:]:
                below = isinstance(factor, Pow) and factor.exp == -1
                text += f" / {self._atom(factor.base)}" if below else f" * {self._atom(factor)}"
            return text
        if isinstance(e, Indexed):
            return f"{e.base}[{self.tokens[e.indices[0]]}]"
        if isinstance(e, Rational):
            # halves and quarters are exact as decimals
            return repr(float(e)) if e.q in (2, 4) else f"({e.p} / {e.q})" if e.q != 1 else f"{e.p}"
        if e == sym.L:
            return "len(q)"
        if isinstance(e, Symbol):
            return {"lambda": "ridge"}.get(e.name, e.name)
        raise TypeError(f"no NumPy print for the node {type(e).__name__}")

    def _atom(self, e: Any) -> str:
        text = self(e)
        return f"({text})" if isinstance(e, (MatAdd, Add, MatMul, Mul)) or text.startswith("-") else text


def _maps(equations: Sequence[Any], printer: _ArrayPrinter) -> str:
    lines = []
    for equation in equations:
        name = equation.unknown.name
        body = printer(abbreviated(equation.right_hand_side))
        lines += _folded(f"{name} = np.stack([{body} for l in range(len(q_hat))])", _WIDTH)
    return "\n".join(lines)


def _entries(values: Mapping[str, str]) -> str:
    """Lines of a dict."""
    lines = []
    for name, value in values.items():
        folded = _folded(f'"{name}": {value}', _WIDTH - 5)
        lines.append("\n".join(folded) + ",")
    return "\n".join(lines)


_WIDTH = 96  # of a statement, before it is indented in its function
# where to fold a line, in this order
_SEPARATORS = (r", ", r" (?=for )", r" (?=[-+] )", r" (?=[*@/] )")


def _folded(code: str, width: int) -> list[str]:
    """Lines of an expression or a statement, folded inside its brackets as a formatter would."""
    if len(code) <= width:
        return [code]
    depths = _depths(code)
    for separator in _SEPARATORS:
        cuts = [m for m in re.finditer(separator, code) if depths[m.start()] == 0]
        if cuts:
            ends = [0, *(m.end() for m in cuts), len(code)]
            parts = [code[a:b].rstrip() for a, b in pairwise(ends)]
            return [line for part in parts for line in _folded(part, width)]
    if code[-1] not in ")]}":
        return [code]
    # the bracket that closes at the end of the line
    opened = max(i for i, depth in enumerate(depths) if depth == 0)
    inner = [f"    {line}" for line in _folded(code[opened + 1 : -1], width - 4)]
    return [code[: opened + 1], *inner, code[-1]]


def _depths(code: str) -> list[int]:
    """How many brackets are open before each character."""
    steps = [(c in "([{") - (c in ")]}") for c in code[:-1]]
    return list(accumulate(steps, initial=0))


def state_evolution_source(saddle_point: SaddlePoint, free_entropy: FreeEntropy) -> str:
    """Source of a NumPy module with the derived equations as functions.

    ``overlaps_from_conjugates`` (7), ``conjugates_from_overlaps`` (8), ``free_entropy_terms`` (104), (108) and
    ``observables``.
    """
    return "\n\n".join(
        (
            '"""State-evolution maps. Generated by derivations.codegen: do not edit."""',
            "import numpy as np\n",
            _state_evolution(saddle_point, free_entropy),
        )
    )


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
        f"{_state_evolution(model.saddle_point, model.free_entropy)}"
    )


def _state_evolution(saddle_point: SaddlePoint, free_entropy: FreeEntropy) -> str:
    printer = _ArrayPrinter({sym.ell: "l", sym.kappa: "j"})
    abbreviations = "\n".join(
        line for name, value in definitions().items() for line in _folded(f"{name.name} = {printer(value)}", _WIDTH)
    )
    numbers = {e.unknown.name: e.number for e in saddle_point}
    conjugates = _maps(saddle_point.conjugates, printer).replace("len(q_hat)", "len(q)")
    terms = _entries({name: printer(abbreviated(term)) for name, term in free_entropy})
    observables = _entries({o.name: printer(abbreviated(o.expression)) for o in OBSERVABLES})
    return f"""{_STATE_EVOLUTION_HELPERS}

def overlaps_from_conjugates(ridge, gamma, tau, pi, spectral_mean, q_hat, V_hat, m_hat, theta_hat):
    # equation {numbers["q"]}
{indent(abbreviations, " " * 4)}
{indent(_maps(saddle_point.overlaps, printer), " " * 4)}
    return q, V, m, theta


def conjugates_from_overlaps(alpha, rho, field_mean, g, xi, k, q, V, m, theta):
    # equation {numbers["q_hat"]}
{indent(conjugates, " " * 4)}
    return q_hat, V_hat, m_hat, theta_hat


def free_entropy_terms(
    alpha,
    ridge,
    gamma,
    tau,
    pi,
    spectral_mean,
    field_mean,
    envelope,
    q,
    V,
    m,
    theta,
    q_hat,
    V_hat,
    m_hat,
    theta_hat,
):
{indent(abbreviations, " " * 4)}
    return {{
{indent(terms, " " * 8)}
    }}


def observables(
    alpha,
    ridge,
    gamma,
    tau,
    pi,
    spectral_mean,
    field_mean,
    envelope,
    loss_at_prox,
    loss_at_omega,
    q,
    V,
    q_hat,
    V_hat,
    m_hat,
    theta_hat,
):
{indent(abbreviations, " " * 4)}
    return {{
{indent(observables, " " * 8)}
    }}
"""
