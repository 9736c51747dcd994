"""The derived saddle-point equations, free entropy and observables as NumPy source: functions of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import singledispatchmethod
from textwrap import indent
from typing import Any

from sympy import Add, Indexed, Mul, Pow, Rational, Symbol
from sympy.matrices.expressions import Identity, Inverse, MatAdd, MatMul, Trace, Transpose

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
from derivations.codegen.layout import WIDTH, folded
from derivations.codegen.moments import in_moments, moment_name
from derivations.replica.baseline import derive_baseline
from derivations.replica.chain import FreeEntropy
from derivations.replica.observables import observables
from derivations.replica.saddle_point import SaddlePoint, abbreviated, definitions

__all__ = [
    "ArrayPrinter",
    "assigned",
    "function",
    "matrix_functions",
    "ridges_of",
    "state_evolution_functions",
    "state_evolution_source",
]

_SEPARABLE_NOTE = """\
# Every atom is several points here, which together have the second moments of its rows' minimisers
# with tau and pi: `w` (A, r, 1) holds the points, `chi` (A, r, r) the mean derivative of the
# minimiser in the source, `penalty` and `row_minimum` (A,) the means of regulariser and minimum.
"""

_MATRIX_FUNCTIONS = {
    "inverse": """\
def inverse(matrix):
    return 1 / matrix if matrix.shape[-1] == 1 else np.linalg.inv(matrix)
""",
    "square_root": """\
def square_root(matrix):
    if matrix.shape[-1] == 1:
        return np.sqrt(matrix)
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(values)[..., None, :]) @ vectors.mT
""",
    "trace": """\
def trace(matrix):
    return np.trace(matrix, axis1=-2, axis2=-1)
""",
}


def ridges_of(size: str) -> str:
    """Source of the ridges' diagonal matrix, by one number or one of each column."""
    return f"{sym.ridges.name} = ridge * np.eye({size})"


def matrix_functions(*names: str) -> str:
    """Source of functions of stacks of matrices, by their names, which generated code calls."""
    return "\n\n".join(_MATRIX_FUNCTIONS[name] for name in names)


_STATE_EVOLUTION_NOTES = """\
# state evolution: the derived equations as functions of arrays
#
# Shapes: q, V, q_hat, V_hat (P, r, r); m, m_hat (P, r, 1); theta, theta_hat (P, r, t); rho
# (P, t, t), for P tokens or, with mixtures, pairs of token and cluster; fields g, xi (P, ..., N,
# r, 1) and k (P, ..., N, t, 1); envelope and losses (..., N, 1, 1); spectral atoms gamma, tau
# (P, A, 1, 1) and pi (A, t, 1). `field_mean` averages over N; `site_mean(values, l)` too, over
# the samples whose token is in the cluster, the others counting as zero; `spectral_mean` over A.
# `sample_mean` takes a function of targets and token variances (..., L, L) to its mean over the
# teacher's fields and the clusters.


"""


_SIZES = {sym.L: "len(q_hat)", sym.r: "q_hat.shape[-1]", sym.L * sym.r: "H.shape[-1]"}


class ArrayPrinter:
    """Matrix expressions to NumPy source; arrays carry batch axes in front of (rows, columns).

    One rule a type of node; a node without a rule raises `TypeError` with its name.

    Parameters
    ----------
    tokens : mapping
        The name of every token index in the source.
    sizes : mapping
        The source of the sizes L and r.
    """

    def __init__(self, tokens: Mapping[Any, str], sizes: Mapping[Any, str] = _SIZES) -> None:
        self.tokens, self.sizes = tokens, sizes

    def __call__(self, e: Any) -> str:
        """Source of an expression."""
        return self._print(e)

    def _atom(self, e: Any) -> str:
        """Source of an expression as a factor."""
        text = self(e)
        return f"({text})" if isinstance(e, (MatAdd, Add, MatMul, Mul)) or text.startswith("-") else text

    @singledispatchmethod
    def _print(self, e: Any) -> str:
        raise TypeError(f"no NumPy print for the node {type(e).__name__}")

    @_print.register
    def _(self, e: TokenMatrix) -> str:
        return e.name if e.index is None else f"{e.name}[{self.tokens[e.index]}]"

    @_print.register
    def _(self, e: TokenSum) -> str:
        return f"sum({self(e.body)} for {self.tokens[e.index]} in range({self.sizes[sym.L]}))"

    @_print.register
    def _(self, e: SampleSum) -> str:
        return f"sample_sum({self(e.body)})"

    @_print.register
    def _(self, e: DirectionSum) -> str:
        return f"direction_sum({self(e.body)})"

    @_print.register
    def _(self, e: Block) -> str:
        matrix, index, size = operands(e)
        return f"block({self(matrix)}, {self.tokens[index]}, {self.sizes[size]})"

    @_print.register
    def _(self, e: SpectralMean) -> str:
        # a scalar integrand is a trace with the atoms on its last axis
        body = self(e.body)
        return f"spectral_mean({body})" if is_matrix(e) else f"spectral_mean(({body})[..., None, None])[..., 0, 0]"

    @_print.register
    def _(self, e: FieldMean) -> str:
        body = self(e.body)
        if isinstance(e.law, TeacherLaw):
            return f"sample_mean(lambda targets, variances: {body})"
        return f"site_mean({body}, {self.tokens[sym.ell]})" if is_matrix(e) else f"field_mean({body})[..., 0, 0]"

    @_print.register
    def _(self, e: WeightMean) -> str:
        return self._atom(e.body)  # the atoms include the nodes of z

    @_print.register
    def _(self, e: RowMinimum) -> str:
        return "row_minimum"

    @_print.register
    def _(self, e: RowPenalty) -> str:
        return "penalty"

    @_print.register
    def _(self, e: MoreauEnvelope) -> str:
        return "envelope"

    @_print.register
    def _(self, e: FieldLoss) -> str:
        return f"loss_at_{e.at}"

    @_print.register
    def _(self, e: MatrixSqrt) -> str:
        return f"square_root({self(operands(e)[0])})"

    @_print.register
    def _(self, e: Inverse) -> str:
        return f"inverse({self(e.arg)})"

    @_print.register
    def _(self, e: Transpose) -> str:
        return f"{self._atom(e.arg)}.mT"

    @_print.register
    def _(self, e: Trace) -> str:
        return f"trace({self(e.arg)})"

    @_print.register
    def _(self, e: Identity) -> str:
        return f"np.eye({self.sizes[e.shape[0]]})"

    @_print.register(Add)
    @_print.register(MatAdd)
    def _(self, e: Any) -> str:
        return " + ".join(self(a) for a in e.args).replace("+ -", "- ")

    @_print.register
    def _(self, e: MatMul) -> str:
        scalars = Mul(*(a for a in e.args if not is_matrix(a)))
        matrices = [self._atom(a) for a in e.args if is_matrix(a)]
        product = " @ ".join(matrices)
        if scalars == 1:
            return product
        product = product if len(matrices) == 1 else f"({product})"
        if scalars == -1:
            return f"-{product}"
        factor = self._atom(scalars) if isinstance(scalars, Add) else self(scalars)
        return f"{factor} * {product}"

    @_print.register
    def _(self, e: Mul) -> str:
        number, rest = e.as_coeff_Mul()
        if number == -1:
            return f"-{self(rest)}"
        factors: list[Any] = list(Mul.make_args(rest))
        if number != 1:
            factors.insert(0, number)
        elif isinstance(factors[0], Pow) and factors[0].exp == -1:  # something must stand above the line
            factors.append(factors.pop(0))
        text = self._atom(factors[0]) if number >= 0 else self(factors[0])
        for factor in factors[1:]:
            below = isinstance(factor, Pow) and factor.exp == -1
            text += f" / {self._atom(factor.base)}" if below else f" * {self._atom(factor)}"
        return text

    @_print.register
    def _(self, e: Pow) -> str:
        return f"{self._atom(e.base)}**{self._atom(e.exp)}"

    @_print.register
    def _(self, e: Indexed) -> str:
        return f"{e.base}[{self.tokens[e.indices[0]]}]"

    @_print.register
    def _(self, e: Rational) -> str:
        # halves and quarters are exact as decimals
        return repr(float(e)) if e.q in (2, 4) else f"({e.p} / {e.q})" if e.q != 1 else f"{e.p}"

    @_print.register
    def _(self, e: Symbol) -> str:
        return {"L": "length", "lambda": "ridge"}.get(e.name, e.name)


class SumPrinter(ArrayPrinter):
    """NumPy source in which sums over the tokens are done at once: behind their axis stands that of the atoms."""

    @singledispatchmethod
    def _print(self, e: Any) -> str:
        return super()._print(e)

    @_print.register
    def _(self, e: TokenSum) -> str:
        if not e.body.has(e.index):
            raise TypeError("a sum over tokens of what no token carries")
        return f"({self(e.body)}).sum(axis=0)"

    @_print.register
    def _(self, e: TokenMatrix) -> str:
        return f"{e.name}[:, None]" if e.index is not None else super()._print(e)

    @_print.register
    def _(self, e: Indexed) -> str:
        return str(e.base)


class MomentPrinter(ArrayPrinter):
    """NumPy source for all tokens at once, with means over the fields as arrays ``g``, ``g_g``, ``g_xi`` and ``g_k``.

    Every matrix carries the same token, which is the arrays' first axis.
    """

    def __call__(self, e: Any) -> str:
        """Source of an expression."""
        if isinstance(e, FieldMean):
            return moment_name(e)
        return e.name if isinstance(e, TokenMatrix) else super().__call__(e)


def _from_moments(equations: Sequence[Any], printer: MomentPrinter) -> str:
    """The conjugates' equations by moments, with what they share computed once."""
    values = [in_moments(abbreviated(equation.right_hand_side)) for equation in equations]
    inverses = sorted(
        {atom for value in values for atom in value.atoms(Inverse)}, key=lambda atom: (atom.count_ops(), str(atom))
    )
    names: dict[Any, Any] = {}
    lines = []
    for number, inverse in enumerate(inverses):
        name = TokenMatrix(f"inverse_{number}", *inverse.shape, sym.ell)
        lines += _line(name.name, printer(inverse.func(inverse.arg.xreplace(names))))
        names[inverse] = name
    for equation, value in zip(equations, values, strict=True):
        lines += _line(equation.unknown.name, printer(value.xreplace(names)))
    return "\n".join(lines)


def _line(name: str, value: str) -> list[str]:
    """An assignment, on several lines where it is long."""
    line = f"{name} = {value}"
    return [line] if len(line) <= WIDTH else folded(f"{name} = ({value})", WIDTH)


def _from_atoms(equations: Sequence[Any], names: Mapping[Any, Any], printer: ArrayPrinter) -> str:
    """The overlaps' equations, behind what they abbreviate, with products that all tokens have in common taken once."""
    lines = [line for name, value in names.items() for line in _line(name.name, SumPrinter(printer.tokens)(value))]
    shared: dict[Any, Any] = {}
    for equation in equations:
        value = abbreviated(equation.right_hand_side)
        for product in sorted(value.atoms(MatMul), key=str):
            of_token: Any = MatMul(*(factor for factor in product.args if factor.has(sym.ell)))
            rest: Any = MatMul(*(factor for factor in product.args if not factor.has(sym.ell)))
            if is_matrix(of_token) or len(rest.args) < 2:
                continue
            if rest not in shared:
                shared[rest] = TokenMatrix(f"product_{len(shared)}", *rest.shape, None)
                lines += _line(shared[rest].name, printer(rest))
            value = value.xreplace({product: MatMul(of_token, shared[rest])})
        lines += assigned(equation.unknown, value, printer)
    return "\n".join(lines)


def _maps(equations: Sequence[Any], printer: ArrayPrinter) -> str:
    lines = []
    for equation in equations:
        lines += assigned(equation.unknown, abbreviated(equation.right_hand_side), printer)
    return "\n".join(lines)


def assigned(unknown: TokenMatrix, value: Any, printer: ArrayPrinter) -> list[str]:
    """Lines of the statement ``unknown = value``, for all tokens where one carries it."""
    body = printer(value)
    stack = f"np.array([{body} for l in range({printer.sizes[sym.L]})])"
    return folded(f"{unknown.name} = ({body})" if unknown.index is None else f"{unknown.name} = {stack}", WIDTH)


def _entries(values: Mapping[str, str]) -> str:
    """Lines of a dict."""
    lines = []
    for name, value in values.items():
        parts = folded(f'"{name}": {value}', WIDTH - 5)
        lines.append("\n".join(parts) + ",")
    return "\n".join(lines)


def function(name: str, arguments: tuple[str, ...], *body: str) -> str:
    """Source of a function."""
    head = f"def {name}({', '.join(arguments)}):"
    if len(head) > WIDTH:
        head = f"def {name}(\n" + "".join(f"    {a},\n" for a in arguments) + "):"
    return "\n".join((head, *(indent(part, " " * 4) for part in body if part)))


def state_evolution_source(saddle_point: SaddlePoint, free_entropy: FreeEntropy) -> str:
    """Source of a NumPy module with the derived equations as functions.

    ``overlaps_from_conjugates`` (7), ``conjugates_from_overlaps`` and ``conjugates_from_moments`` (8),
    ``free_entropy_terms`` (104), (108), ``linear_test_error`` (20) and ``observables``.
    """
    return "\n\n".join(
        (
            '"""State-evolution maps. Generated by derivations.codegen.local_problem: do not edit."""',
            "import numpy as np\n",
            state_evolution_functions(saddle_point, free_entropy),
        )
    )


def _abbreviations(printer: ArrayPrinter) -> str:
    """The matrices of one eigendirection."""
    named = (folded(f"{name.name} = {printer(value)}", WIDTH) for name, value in definitions().items())
    return "\n".join([ridges_of(_SIZES[sym.r]), *(line for lines in named for line in lines)])


def state_evolution_functions(saddle_point: SaddlePoint, free_entropy: FreeEntropy) -> str:
    """The functions of `state_evolution_source` without the module around them."""
    printer = ArrayPrinter({sym.ell: "l", sym.kappa: "j"})
    separable = free_entropy.separable
    abbreviations = "" if separable else _abbreviations(printer)
    numbers = {e.unknown.name: e.number for e in saddle_point}
    conjugates = _maps(saddle_point.conjugates, ArrayPrinter(printer.tokens, _SIZES | {sym.L: "len(q)"}))
    from_moments = _from_moments(saddle_point.conjugates, MomentPrinter(printer.tokens))
    terms = _entries({name: printer(abbreviated(term)) for name, term in free_entropy})
    observed = _entries({o.name: printer(abbreviated(o.expression)) for o in observables(free_entropy)})
    atoms = ("gamma", "tau", "pi", "w", "chi") if separable else ("ridge", "gamma", "tau", "pi")
    prior = ("penalty", "row_minimum") if separable else ()
    baseline = derive_baseline()
    hats = ("q_hat", "V_hat", "m_hat", "theta_hat")
    overlaps = ("q", "V", "m", "theta")
    fields = ("spectral_mean", "field_mean", "envelope")
    losses = ("loss_at_prox", "loss_at_omega", "length")

    def table_of(entries: str) -> str:
        return f"return {{\n{indent(entries, ' ' * 4)}\n}}"

    functions = (
        function(
            "overlaps_from_conjugates",
            (*atoms, "spectral_mean", *hats),
            f"# equation {numbers['q']}",
            "" if separable else ridges_of(_SIZES[sym.r]),
            _from_atoms(saddle_point.overlaps, {} if separable else definitions(), printer),
            "return q, V, m, theta",
        ),
        function(
            "conjugates_from_overlaps",
            ("alpha", "rho", "site_mean", "g", "xi", "k", *overlaps),
            f"# equation {numbers['q_hat']}",
            conjugates,
            "return q_hat, V_hat, m_hat, theta_hat",
        ),
        function(
            "conjugates_from_moments",
            ("alpha", "rho", "g", "g_g", "g_xi", "g_k", *overlaps),
            f"# equation {numbers['q_hat']}, by the means of g, g g^T, g xi^T and g k^T",
            from_moments,
            "return q_hat, V_hat, m_hat, theta_hat",
        ),
        function(
            "free_entropy_terms",
            ("alpha", *atoms, *prior, *fields, *overlaps, *hats),
            abbreviations,
            table_of(terms),
        ),
        function(
            "linear_test_error",
            ("sample_mean", "length"),
            "# equations (19), (20)",
            *(
                "\n".join(folded(f"{name} = ({printer(value)})", WIDTH))
                for name, value in (("predictor", baseline.predictor), ("error", baseline.test_error))
            ),
            "return error",
        ),
        function(
            "observables",
            ("alpha", *atoms, *prior, *fields, *losses, "q", "V", *hats),
            abbreviations,
            table_of(observed),
        ),
    )
    notes = _STATE_EVOLUTION_NOTES + matrix_functions(*_MATRIX_FUNCTIONS)
    if separable:
        notes = notes.replace("\n\n\ndef inverse", f"\n{_SEPARABLE_NOTE}\n\ndef inverse", 1)
    return "\n\n\n".join((notes.rstrip("\n"), *functions)) + "\n"
