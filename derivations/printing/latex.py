"""Equations in LaTeX, the way they are written on paper.

Every node prints itself; here is what concerns products, sums and signs, and the two passes in front of a page of given
sizes: sums over tokens written out (`expanded`) and 1 x 1 matrices as numbers (`scalarized`).  A node that a pass or
the printer does not know is an error with its name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import singledispatch
from typing import Any

from sympy import (
    Add,
    Atom,
    Basic,
    Function,
    Indexed,
    Integer,
    Mul,
    Pow,
    Rational,
    S,
    Sum,
    Symbol,
    Tuple,
    preorder_traversal,
    sqrt,
)
from sympy.matrices.expressions import Identity, Inverse, MatAdd, MatMul, MatrixExpr, Trace, Transpose
from sympy.printing.latex import LatexPrinter

from derivations.algebra import symbols as sym
from derivations.algebra.calculus import transposed
from derivations.algebra.means import FieldMean, SpectralMean, WeightMean
from derivations.algebra.minima import FieldLoss, MoreauEnvelope, QuadraticMinimum, RowMinimum, RowPenalty
from derivations.algebra.tokens import MatrixSqrt, TokenMatrix, TokenSum, operands
from derivations.printing.ridges import of_one_ridge
from derivations.replica.ansatz import ReplicaSum
from derivations.replica.moments import (
    CommonGaussianMoment,
    LogPartitionMean,
    ReplicatedMoment,
    RidgePenalty,
    SampleLoss,
)
from derivations.replica.one_rsb_nodes import LogDeterminant, TiltedEnvelope, TiltedMean, TiltedQuadratic, TiltedRow

__all__ = ["EquationPrinter", "expanded", "scalarized"]

_OPERATORS = (TokenSum, SpectralMean, FieldMean, WeightMean, TiltedMean)


# nodes that print a name of their own, whatever the sizes
_NAMED = (
    CommonGaussianMoment,
    FieldLoss,
    LogPartitionMean,
    MoreauEnvelope,
    QuadraticMinimum,
    ReplicatedMoment,
    RidgePenalty,
    RowMinimum,
    RowPenalty,
    SampleLoss,
    LogDeterminant,
    TiltedEnvelope,
    TiltedQuadratic,
    TiltedRow,
)


# --- what is printed: sums written out, matrices as numbers --------------------------------------------------------


def _unknown(node: Any, purpose: str) -> TypeError:
    return TypeError(f"no {purpose} for the node {type(node).__name__}")


def _itself(expression: Any, setting: Any) -> Any:
    return expression


@singledispatch
def expanded(expression: Any, length: int) -> Any:
    """The expression with every sum over tokens written out for tokens 1, ..., ``length``."""
    raise _unknown(expression, "expansion over tokens")


@expanded.register(Basic)
def _rebuilt_for_tokens(expression: Any, length: int) -> Any:
    return expression.func(*(expanded(a, length) for a in expression.args))


for _kind in (Atom, Indexed, TokenMatrix):
    expanded.register(_kind, _itself)


@expanded.register(TokenSum)
def _written_out(expression: Any, length: int) -> Any:
    body, index = operands(expression)
    terms = [body.xreplace({index: Integer(i)}) for i in range(1, length + 1)]
    return MatAdd(*terms).doit(deep=False) if body.is_Matrix else Add(*terms)


@expanded.register(MatAdd)
def _sum_of_matrices(expression: Any, length: int) -> Any:
    return MatAdd(*(expanded(a, length) for a in expression.args)).doit(deep=False)


@singledispatch
def scalarized(expression: Any, printer: LatexPrinter) -> Any:
    """An expression of 1 x 1 matrices as one of commuting numbers, with the names that a printer gives the matrices.

    Raises
    ------
    TypeError
        It is not known what a node is for 1 x 1 matrices.
    """
    raise _unknown(expression, "form with numbers in place of matrices")


for _kind in (Atom, Indexed, *_NAMED):
    scalarized.register(_kind, _itself)


def _rebuilt(expression: Any, printer: LatexPrinter) -> Any:
    kind = {MatAdd: Add, MatMul: Mul}.get(expression.func, expression.func)
    return kind(*(scalarized(a, printer) for a in expression.args))


for _kind in (Add, Mul, Pow, Function, Sum, Tuple, MatAdd, MatMul):
    scalarized.register(_kind, _rebuilt)


@scalarized.register(ReplicaSum)
def _replicas_of_numbers(expression: Any, printer: LatexPrinter) -> Any:
    body, *pairs = expression.args
    return expression.func(scalarized(body, printer), *pairs)


@scalarized.register(TokenMatrix)
def _named_number(expression: Any, printer: LatexPrinter) -> Any:
    return Symbol(printer.doprint(expression))


@scalarized.register(Identity)
def _one(expression: Any, printer: LatexPrinter) -> Any:
    return S.One


@scalarized.register(Transpose)
@scalarized.register(Trace)
def _inner(expression: Any, printer: LatexPrinter) -> Any:
    return scalarized(expression.arg, printer)


@scalarized.register(Inverse)
def _reciprocal(expression: Any, printer: LatexPrinter) -> Any:
    return 1 / scalarized(expression.arg, printer)


@scalarized.register(MatrixSqrt)
def _root(expression: Any, printer: LatexPrinter) -> Any:
    return sqrt(scalarized(expression.args[0], printer))


def _of_numbers(expression: Any, printer: LatexPrinter) -> Any:
    return expression.apply(scalarized(expression.body, printer))


for _kind in _OPERATORS:
    scalarized.register(_kind, _of_numbers)


# --- the printer ---------------------------------------------------------------------------------------------------

# the order in which commuting factors of a product are written: conjugates, then the names that are
# missing here, then these
_FACTORS = ("theta", "m", "g", "xi", "k", "b", "pi", "z", "w")
_FACTOR_RANK = {sym.LATEX.get(name, name): i for i, name in enumerate(_FACTORS)}
_CONTROLS = {sym.alpha, sym.beta, sym.ridge, sym.n, sym.L, sym.x, sym.y}


class EquationPrinter(LatexPrinter):
    r"""Print equations the way they are written on paper.

    Numerical coefficients stand in front as small fractions and signs between terms, products have
    no dots, transposes are :math:`X^\top`, and pairs :math:`(X + X^\top)/2` are
    :math:`\mathrm{sym}[X]`.

    Parameters
    ----------
    length : int or None
        Write sums over tokens out for this number of tokens.
    scalar : bool
        Print 1 x 1 matrices as numbers.
    clusters : bool
        Tokens come from mixtures: indices are pairs of a token and a cluster, and the mean of what belongs to such a
        pair is over the samples whose token is in the cluster, the others counting as zero.
    ridges : bool
        The columns have ridges of their own; otherwise they all have lambda.
    """

    def __init__(
        self, length: int | None = None, scalar: bool = False, clusters: bool = False, ridges: bool = False
    ) -> None:
        super().__init__()
        self.length = length
        self.scalar = scalar
        self.clusters = clusters
        self.ridges = ridges

    def prepared(self, expression: Any) -> Any:
        """The expression as it will be printed: sums expanded, 1 x 1 matrices as numbers."""
        if not self.ridges:
            expression = of_one_ridge(expression)
        if self.length is not None:
            expression = expanded(expression, self.length).xreplace({sym.L: Integer(self.length)})
        return self._scalarized(expression) if self.scalar else expression

    def _scalarized(self, expression: Any) -> Any:
        return scalarized(expression, EquationPrinter(clusters=self.clusters))

    def show(self, expression: Any) -> str:
        """LaTeX of an expression on one line."""
        return _joined(self.terms(expression))

    def terms(self, expression: Any) -> list[tuple[bool, str]]:
        """The summands as pairs (is negative, LaTeX without the sign), positive ones first."""
        return self._terms(self.prepared(expression))

    def _terms(self, expression: Any) -> list[tuple[bool, str]]:
        if not isinstance(expression, (Add, MatAdd)):
            return [self._signed(expression)]
        if isinstance(expression, MatAdd):
            rows, columns = expression.shape
            if rows == 1 and columns != 1:
                return [(False, self._print(Transpose(transposed(expression))))]
            half = _symmetric_half(expression)
            if half is not None:
                return [(False, rf"\operatorname{{sym}}\left[{self._print(half)}\right]")]
        signed = [self._signed(a) for a in expression.args]
        return sorted(signed, key=lambda term: term[0])

    def _signed(self, expression: Any) -> tuple[bool, str]:
        number, rest = _split_number(expression)
        factors = rest.args if isinstance(rest, (Mul, MatMul)) else (rest,)
        matrices = [f for f in factors if f.is_Matrix]
        heavy = [f for f in factors if not f.is_Matrix and _is_heavy(f)]
        light = sorted((f for f in factors if f not in matrices and f not in heavy), key=_light_key)
        above = [f for f in light if not _is_denominator(f) and f != 1]
        below = [1 / f for f in light if _is_denominator(f)]
        text = [self._coefficient(abs(number), above, below)]
        tail = [*heavy, *matrices]
        text += [self._factor(f, last=f is tail[-1]) for f in tail]
        result = " ".join(t for t in text if t)
        return bool(number < 0), result or "1"

    def _coefficient(self, number: Rational, above: list[Any], below: list[Any]) -> str:
        """``number * above / below`` with one fraction at most in front."""
        numerator, denominator = Integer(number.p), Integer(number.q)
        inside = above if below else [f for f in above if _is_control(f) and denominator != 1]
        # control parameters alone below the line do not drag the other factors above it
        if below and all(_is_control(f) for f in below):
            inside = [f for f in above if _is_control(f)]
        after = [f for f in above if f not in inside]
        top = [self._print(numerator)] if numerator != 1 else []
        fraction = bool(below) or denominator != 1
        alone = fraction and len(inside) == 1 and numerator == 1
        top += [self._factor(f, alone=alone) for f in inside]
        bottom = [self._print(denominator)] if denominator != 1 else []
        alone = len(below) == 1 and denominator == 1
        bottom += [self._factor(f, alone=alone) for f in below]
        tail = " ".join(self._factor(f) for f in after)
        if not fraction:
            return " ".join([*top, tail]).strip()
        command = r"\frac" if inside or below else r"\tfrac"
        return rf"{command}{{{' '.join(top) or '1'}}}{{{' '.join(bottom)}}} {tail}".strip()

    def _factor(self, expression: Any, last: bool = False, alone: bool = False) -> str:
        """A factor of a product, in brackets where it needs them."""
        text = self._print(expression)
        if isinstance(expression, (Add, MatAdd)):
            open_ended = len(self._terms(expression)) > 1 and not alone
        else:
            open_ended = isinstance(expression, (TokenSum, SpectralMean, Sum)) and not last
        return rf"\left({text}\right)" if open_ended else text

    def _print(self, expr: Any, **kwargs: Any) -> str:
        restricted = self.clusters and isinstance(expr, FieldMean) and not expr.body.has(*_NAMED)
        if self.scalar and isinstance(expr, MatrixExpr):
            expr = self._scalarized(expr)
        if restricted and _split_number(expr)[0] == 1:
            return rf"\mathbb{{E}}\left[\mathbf{{1}}_{{c_\ell = c}} \, {self._print(expr.body)}\right]"
        if isinstance(expr, (*_OPERATORS, ReplicaSum)) and _split_number(expr)[0] != 1:
            negative, text = self._signed(expr)
            return f"-{text}" if negative else text
        return super()._print(expr, **kwargs)

    def emptyPrinter(self, expr: Any) -> str:
        """Refuse what has no print: SymPy would write its Python name.

        Raises
        ------
        TypeError
            Naming the node.
        """
        raise _unknown(expr, "LaTeX")

    _print_Basic = emptyPrinter

    def _print_Add(self, expr: Any, order: Any = None) -> str:
        return _joined(self._terms(expr))

    def _print_Mul(self, expr: Any) -> str:
        return _joined([self._signed(expr)])

    _print_MatAdd = _print_Add
    _print_MatMul = _print_Mul

    def _print_Transpose(self, expr: Any) -> str:
        return self._with_exponent(expr.arg, r"\top")

    def _print_Inverse(self, expr: Any) -> str:
        if isinstance(expr.arg, MatrixSqrt):
            return self._with_exponent(expr.arg.args[0], "-1/2")
        return self._with_exponent(expr.arg, "-1")

    def _with_exponent(self, base: Any, exponent: str) -> str:
        text = self._print(base)
        simple = isinstance(base, FieldMean) or (isinstance(base, TokenMatrix) and "^" not in text)
        return rf"{text}^{{{exponent}}}" if simple else rf"\left({text}\right)^{{{exponent}}}"

    def _print_Trace(self, expr: Any) -> str:
        if expr.arg.shape == (1, 1):
            return self._print(expr.arg)
        return rf"\operatorname{{Tr}}\left[{self._print(expr.arg)}\right]"

    def _print_Identity(self, I: Any) -> Any:
        return "I"

    def _print_Pow(self, expr: Any) -> str:
        if isinstance(expr.base, Indexed):  # as a symbol, it is put into brackets where it has a superscript
            expr = Pow(Symbol(self._print(expr.base)), expr.exp)
        return super()._print_Pow(expr)

    def _print_Indexed(self, expr: Any) -> str:
        indices = [self._print(index) for index in expr.indices]
        apart = ", " if any(len(index) > 1 for index in indices) else " "
        return rf"{self._print(expr.base.label)}_{{{apart.join(indices)}}}"

    def _print_Sum(self, expr: Any) -> str:
        text = self._print(expr.function)
        text = rf"\left({text}\right)" if isinstance(expr.function, Add) else text
        for limits in expr.limits:  # the innermost first
            index, first, last = map(self._print, limits)
            text = rf"\sum_{{{index} = {first}}}^{{{last}}} {text}"
        return text

    def _print_Symbol(self, expr: Any, style: str = "plain") -> str:
        if self.clusters and expr in (sym.ell, sym.kappa):
            return super()._print_Symbol(expr, style) + (" c" if expr == sym.ell else " j")
        return expr.name if expr.name.startswith("\\") else super()._print_Symbol(expr, style)


def _joined(terms: Sequence[tuple[bool, str]]) -> str:
    (negative, text), *rest = terms
    first = f"-{text}" if negative else text
    return " ".join([first, *(f"{'-' if minus else '+'} {text}" for minus, text in rest)])


@singledispatch
def _split_number(expression: Any) -> tuple[Any, Any]:
    """Numerical coefficient and the rest, also out of sums and means."""
    return S.One, expression


@_split_number.register(Rational)
def _plain_number(expression: Any) -> tuple[Any, Any]:
    return expression, S.One


@_split_number.register(ReplicaSum)
def _split_replica_sum(expression: Any) -> tuple[Any, Any]:
    number, body = _split_number(expression.args[0])
    return number, expression.func(body, expression.args[1])


def _split_operator(expression: Any) -> tuple[Any, Any]:
    number, body = _split_number(expression.body)
    return number, expression.apply(body)


for _kind in _OPERATORS:
    _split_number.register(_kind, _split_operator)


@_split_number.register(Mul)
@_split_number.register(MatMul)
def _split_product(expression: Any) -> tuple[Any, Any]:
    number, factors = S.One, []
    for factor in expression.args:
        part, rest = (factor, S.One) if factor.is_Rational else (S.One, factor)
        if isinstance(rest, (*_OPERATORS, ReplicaSum, Mul)):
            part, rest = _split_number(rest)
        number *= part
        factors += rest.args if isinstance(rest, Mul) else [rest] if rest != 1 else []
    if len(factors) == 1:
        return number, factors[0]
    return number, expression.func(*factors, **({"evaluate": False} if factors else {}))


def _light_key(factor: Any) -> tuple[Any, ...]:
    base = factor.base if isinstance(factor, Pow) else factor
    name = re.sub(r"_\{.*", "", base.name) if isinstance(base, Symbol) else ""
    return (
        not _is_control(base),
        not isinstance(base, Indexed),
        isinstance(base, Add),
        _FACTOR_RANK.get(name, -2 if name.startswith(r"\hat") else -1),
        factor.sort_key(),
    )


def _is_control(factor: Any) -> bool:
    """Whether a factor holds nothing but control parameters and dimensions."""
    return bool(factor.free_symbols) and factor.free_symbols <= _CONTROLS


def _is_heavy(factor: Any) -> bool:
    """Means, sums and the like, which stand after plain symbols and never inside a fraction."""
    kinds = (*_OPERATORS, ReplicaSum, Sum, Trace, *_NAMED)
    return not _is_denominator(factor) and any(isinstance(node, kinds) for node in preorder_traversal(factor))


def _is_denominator(factor: Any) -> bool:
    return isinstance(factor, Pow) and factor.exp.is_number and bool(factor.exp.is_negative)


def _symmetric_half(expression: MatAdd) -> Any:
    """``X`` if the sum is ``(X + X^T)/2``, else None."""
    pairs: list[Any] = []
    symmetric: list[Any] = []
    alone: dict[Any, Any] = {}
    for term in expression.args:
        coefficient, matrix = _scalar_and_matrix(term)
        other = transposed(matrix)
        if other == matrix:  # symmetric by itself
            symmetric.append(term)
            continue
        partner = alone.pop((coefficient, other), None)
        if partner is None:
            alone[coefficient, transposed(other)] = matrix
        else:
            shown = partner if isinstance(matrix, Transpose) else matrix
            pairs.append(MatMul(2 * coefficient, shown) if coefficient != S.Half else shown)
    return None if alone or not pairs else _total([*symmetric, *pairs])


def _scalar_and_matrix(term: Any) -> tuple[Any, Any]:
    if not isinstance(term, MatMul):
        return S.One, term
    scalars = [a for a in term.args if not a.is_Matrix]
    matrices = [a for a in term.args if a.is_Matrix]
    return Mul(*scalars), matrices[0] if len(matrices) == 1 else MatMul(*matrices)


def _total(terms: Sequence[Any]) -> Any:
    return terms[0] if len(terms) == 1 else MatAdd(*terms)
