"""The derived saddle-point equations, free entropy and observables as NumPy source: functions of arrays.

What a token carries is one array with the tokens on its first axis; every equation is one for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from textwrap import fill
from typing import Any

from sympy import Add, Indexed, Mul, Number, Pow, Symbol
from sympy.matrices.expressions import Identity, Inverse, MatAdd, MatMul, Trace, Transpose
from sympy.printing.precedence import PRECEDENCE
from sympy.printing.str import StrPrinter

from derivations.algebra import symbols as sym
from derivations.algebra.means import FieldMean, SpectralMean, TeacherLaw, WeightMean
from derivations.algebra.minima import FieldLoss, MoreauEnvelope, RowMinimum, RowPenalty
from derivations.algebra.tokens import (
    Block,
    DirectionSum,
    MatrixSqrt,
    SampleSum,
    TokenMatrix,
    TokenSum,
    is_matrix,
    operands,
)
from derivations.models.symbolic import GENERIC
from derivations.replica.baseline import derive_baseline
from derivations.replica.chain import FreeEntropy, derive_free_entropy
from derivations.replica.observables import observables
from derivations.replica.one_rsb_nodes import LogDeterminant, TiltedEnvelope, TiltedMean
from derivations.replica.posterior import ObservationEntropy
from derivations.replica.saddle_point import SaddlePoint, abbreviated, definitions, derive_saddle_point

__all__ = [
    "ArrayPrinter",
    "function",
    "named",
    "ridges_of",
    "source",
    "state_evolution_functions",
    "state_evolution_source",
]

_WIDTH = 100

_FUNCTIONS = """\
def inverse(matrix):
    return 1 / matrix if matrix.shape[-1] == 1 else np.linalg.inv(matrix)


def square_root(matrix):
    if matrix.shape[-1] == 1:
        return np.sqrt(matrix)
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(values)[..., None, :]) @ vectors.mT


def trace(matrix):
    return np.trace(matrix, axis1=-2, axis2=-1)


def log_determinant(matrix):
    if matrix.shape[-1] == 1:
        return np.log(matrix[..., 0, 0])
    sign, size = np.linalg.slogdet(matrix)
    return np.log(sign) + size


def of_tokens(mean, values):
    return np.array([mean(of_token) for of_token in values])


def of_numbers(mean, values):
    return mean(values[..., None, None])[..., 0, 0]"""

_NOTES = """\
# Equations (7), (8), (104), (108), (19) and (20), and the observables.
# Shapes: q, V, q_hat, V_hat (P, r, r); m, m_hat (P, r, 1); theta, theta_hat (P, r, t); rho (P, t, t), for P tokens or,
# with mixtures, pairs of token and cluster; g (P, r, 1), g_g, g_xi (P, r, r) and g_k (P, r, t) the means of the fields
# g, g g^T, g xi^T and g k^T over the samples, those whose token is in another cluster counting as zero; envelope and
# losses (..., N, 1, 1); spectral atoms gamma, tau (P, A, 1, 1) and pi (A, t, 1). `field_mean` averages over N,
# `spectral_mean` over A. `sample_mean` takes a function of targets and token variances (..., L, L) to its mean over
# the teacher's fields and the clusters."""

_SEPARABLE_NOTES = """
# Every atom is several points here, which together have the second moments of its rows' minimisers with tau and pi:
# `w` (A, r, 1) holds the points, `chi` (A, r, r) the mean derivative of the minimiser in the source, `penalty` and
# `row_minimum` (A,) the means of regulariser and minimum."""

_NAMES = {
    MoreauEnvelope: "envelope",
    ObservationEntropy: "observation_entropy",
    RowMinimum: "row_minimum",
    RowPenalty: "penalty",
}
_CALLS = {
    DirectionSum: "direction_sum",
    Identity: "np.eye",
    LogDeterminant: "log_determinant",
    MatrixSqrt: "square_root",
    SampleSum: "sample_sum",
    TiltedMean: "tilted",
    Trace: "trace",
}
_OTHERS = (
    Add,
    Indexed,
    MatAdd,
    MatMul,
    Mul,
    Number,
    Pow,
    Symbol,
    TokenMatrix,
    TokenSum,
    Block,
    SpectralMean,
    FieldMean,
)
_OTHERS += (WeightMean, TiltedEnvelope, FieldLoss, Inverse, Transpose)


class ArrayPrinter(StrPrinter):
    """Matrix expressions to NumPy source; arrays carry batch axes in front of (rows, columns).

    A node without a rule raises `TypeError` with its name.

    Attributes
    ----------
    lines : list of str
        Statements so far: those of `assign`, and before them what they need more than once.
    """

    printmethod = "_numpy"  # nodes print themselves for readers
    axis = "[:, None]"  # of the atoms, in an array that carries tokens alone

    def __init__(self) -> None:
        super().__init__({"order": "none"})
        self.lines: list[str] = []
        self._inverses: dict[Any, str] = {}

    def assign(self, name: str, value: Any) -> None:
        """Append ``name = value``; a value that is a text is source."""
        if isinstance(value, Inverse):
            value = f"inverse({self._print(value.arg)})"
        text = value if isinstance(value, str) else self._print(value)
        short = len(name) + len(text) < _WIDTH - 8
        self.lines.append(f"{name} = {text}" if short else f"{name} = ({text})")

    def _print(self, expr: Any, **kwargs: Any) -> str:
        for kind, name in _NAMES.items():
            if isinstance(expr, kind):
                return name
        for kind, name in _CALLS.items():
            if isinstance(expr, kind):
                return f"{name}({self._print(operands(expr)[0])})"
        if not isinstance(expr, _OTHERS):
            raise TypeError(f"no NumPy print for the node {type(expr).__name__}")
        return str(super()._print(expr, **kwargs))

    def _print_TokenMatrix(self, expr: TokenMatrix) -> str:
        return expr.name

    def _print_Indexed(self, expr: Indexed) -> str:
        return str(expr.base)

    def _print_Symbol(self, expr: Symbol) -> str:
        return {"L": "length", "lambda": "ridge"}.get(expr.name, expr.name)

    def _print_TokenSum(self, expr: TokenSum) -> str:
        if not expr.body.has(expr.index):
            raise TypeError("a sum over tokens of what no token carries")
        carried = [m for m in expr.body.atoms(TokenMatrix) if m.index is not None]
        axis = self.axis if expr.body.has(Indexed) else ""
        body = expr.body.xreplace({m: TokenMatrix(m.name + axis, *m.shape, None) for m in carried})
        return f"{self.parenthesize(body, PRECEDENCE['Atom'], strict=True)}.sum(axis=0)"

    def _print_Block(self, expr: Block) -> str:
        matrix, _, size = operands(expr)
        return f"blocks({self._print(matrix)}, {self._print(size)})"

    def _print_SpectralMean(self, expr: SpectralMean) -> str:
        body = self._print(expr.body)
        if not is_matrix(expr):
            return f"of_numbers(spectral_mean, {body})"
        return f"of_tokens(spectral_mean, {body})" if expr.body.has(sym.ell) else f"spectral_mean({body})"

    def _print_FieldMean(self, expr: FieldMean) -> str:
        body = self._print(expr.body)
        if isinstance(expr.law, TeacherLaw):
            return f"sample_mean(lambda targets, variances: {body})"
        return f"site_mean({body})" if is_matrix(expr) else f"trace(field_mean({body}))"

    def _print_WeightMean(self, expr: WeightMean) -> str:
        return f"({self._print(expr.body)})"  # the atoms include the nodes of z

    def _print_TiltedEnvelope(self, expr: TiltedEnvelope) -> str:
        return f"tilted_envelope({self._print(expr.args[-1])})"

    def _print_FieldLoss(self, expr: FieldLoss) -> str:
        return f"loss_at_{expr.at}"

    def _print_Inverse(self, expr: Inverse) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        if expr not in self._inverses:
            text = self._print(expr.arg)
            self._inverses[expr] = f"inverse_{len(self._inverses)}"
            self.lines.append(f"{self._inverses[expr]} = inverse({text})")
        return self._inverses[expr]

    def _print_Transpose(self, T: Transpose) -> str:
        return f"{self.parenthesize(T.arg, PRECEDENCE['Pow'])}.mT"

    def _print_MatAdd(self, expr: MatAdd) -> str:
        return str(self._print_Add(expr))

    def _print_MatMul(self, expr: MatMul) -> str:
        scalar = Mul(*(factor for factor in expr.args if not is_matrix(factor)))
        matrices = [factor for factor in expr.args if is_matrix(factor)]
        product = " @ ".join(self.parenthesize(factor, PRECEDENCE["Mul"]) for factor in matrices)
        sign = "-" if scalar.could_extract_minus_sign() else ""
        if scalar in (1, -1):
            return sign + product
        size = self.parenthesize(-scalar if sign else scalar, PRECEDENCE["Add"])
        return f"{sign}{size}*{product if len(matrices) == 1 else f'({product})'}"


class _MomentPrinter(ArrayPrinter):
    """With means over the fields as arrays ``g``, ``g_g``, ``g_xi`` and ``g_k``."""

    def _print_FieldMean(self, expr: FieldMean) -> str:
        if is_matrix(expr) and not isinstance(expr.law, TeacherLaw):
            factors = expr.body.args if isinstance(expr.body, MatMul) else (expr.body,)
            return "_".join(atom.name for factor in factors for atom in factor.atoms(TokenMatrix))
        return super()._print_FieldMean(expr)


def ridges_of(matrix: str) -> dict[str, str]:
    """The ridges' diagonal matrix, by one number or one of each column; a matrix has as many rows."""
    return {"r": f"{matrix}.shape[-2]", sym.ridges.name: "ridge * np.eye(r)"}


def named(values: Mapping[TokenMatrix, Any]) -> dict[str, Any]:
    """Values by their matrices' names."""
    return {matrix.name: value for matrix, value in values.items()}


def function(
    name: str,
    arguments: tuple[str, ...],
    values: Mapping[str, Any],
    results: tuple[str, ...] | Mapping[str, Any],
    printer: ArrayPrinter | None = None,
) -> str:
    """Source of a function.

    Parameters
    ----------
    name : str
    arguments : tuple of str
    values : mapping
        What it computes, in this order: expressions, or source.
    results : tuple of str or mapping
        Names of the values that it returns, or the expressions of a dict.
    printer : ArrayPrinter, optional
        A new one.
    """
    printer = ArrayPrinter() if printer is None else printer
    for each, value in values.items():
        printer.assign(each, value)
    if isinstance(results, tuple):
        printer.lines.append(f"return {', '.join(results)}")
    else:
        entries = [f'    "{key}": {printer.doprint(value)},' for key, value in results.items()]
        printer.lines += ["return {", *entries, "}"]
    head = f"def {name}({', '.join(arguments)}):"
    return "\n".join([_wrapped(head), *(_wrapped(f"    {line}") for line in printer.lines)])


def _wrapped(line: str) -> str:
    """A line, which has brackets where it is long."""
    held = re.sub(r" ([-+@]) ", " \\1\N{NO-BREAK SPACE}", line)  # a line begins with its operator
    indent = " " * (len(line) - len(line.lstrip()) + 8)
    filled = fill(held, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return filled.replace("\N{NO-BREAK SPACE}", " ")


def source(title: str, notes: str, *functions: str) -> str:
    """Source of a NumPy module: its docstring, what the arrays are, and its functions."""
    return "\n\n\n".join((f'"""{title}"""\n\nimport numpy as np\n\n{notes}', _FUNCTIONS, *functions)) + "\n"


def state_evolution_source(*, separable: bool = False) -> str:
    """Source of a NumPy module with the derived equations as functions, for a ridge or any regulariser of the rows.

    ``overlaps_from_conjugates`` (7), ``conjugates_from_moments`` (8), ``free_entropy_terms`` (104), (108),
    ``linear_test_error`` (20) and ``observables``.
    """
    free_entropy = derive_free_entropy(GENERIC, separable=separable)
    title = "State-evolution maps. Generated by derivations.codegen.arrays: do not edit."
    functions = state_evolution_functions(derive_saddle_point(free_entropy), free_entropy)
    return f'"""{title}"""\n\nimport numpy as np\n\n{functions}'


def state_evolution_functions(saddle_point: SaddlePoint, free_entropy: FreeEntropy) -> str:
    """The functions of `state_evolution_source` without the module around them."""
    separable, baseline = free_entropy.separable, derive_baseline()
    atoms = ("gamma", "tau", "pi", "w", "chi") if separable else ("ridge", "gamma", "tau", "pi")
    prior = ("penalty", "row_minimum") if separable else ()
    fields, losses = ("spectral_mean", "field_mean", "envelope"), ("loss_at_prox", "loss_at_omega", "length")
    overlaps, hats = ("q", "V", "m", "theta"), ("q_hat", "V_hat", "m_hat", "theta_hat")
    rows = {} if separable else ridges_of("q_hat") | named(definitions())
    image, back = (
        {e.unknown.name: abbreviated(e.right_hand_side) for e in half}
        for half in (saddle_point.overlaps, saddle_point.conjugates)
    )
    functions = (
        function("overlaps_from_conjugates", (*atoms, "spectral_mean", *hats), rows | image, overlaps),
        function(
            "conjugates_from_moments",
            ("alpha", "rho", "g", "g_g", "g_xi", "g_k", *overlaps),
            back,
            hats,
            _MomentPrinter(),
        ),
        function(
            "free_entropy_terms",
            ("alpha", *atoms, *prior, *fields, *overlaps, *hats),
            rows,
            {name: abbreviated(term) for name, term in free_entropy},
        ),
        function(
            "linear_test_error",
            ("sample_mean", "length"),
            {"predictor": baseline.predictor, "error": baseline.test_error},
            ("error",),
        ),
        function(
            "observables",
            ("alpha", *atoms, *prior, *fields, *losses, "q", "V", *hats),
            rows,
            {o.name: abbreviated(o.expression) for o in observables(free_entropy)},
        ),
    )
    return "\n\n\n".join((_NOTES + _SEPARABLE_NOTES * separable, _FUNCTIONS, *functions)) + "\n"
