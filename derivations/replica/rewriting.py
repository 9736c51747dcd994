"""Bookkeeping of the replica chain: substitution of token matrices, and sums and coefficients in one form.

Rewrites cancel terms, and equal terms must then look equal: sums over tokens stand around single terms, numbers and
temperatures in front of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from typing import Any

from sympy import Add, Mul, S
from sympy.matrices.expressions import MatAdd, MatMul, Trace, Transpose, ZeroMatrix

from derivations.algebra.tokens import Operator, TokenMatrix, TokenSum, is_matrix

__all__ = ["difference", "expanded", "multiple", "pulled", "substituted"]


def substituted(expression: Any, values: Mapping[Any, Any]) -> Any:
    """The expression with token matrices, whatever index they carry, and scalars replaced.

    Parameters
    ----------
    expression : Basic
    values : mapping
        What stands for a symbol, or for a `TokenMatrix` with its own index.
    """
    families = {matrix.name: (matrix, value) for matrix, value in values.items() if isinstance(matrix, TokenMatrix)}
    present = {
        matrix: _moved(families[matrix.name], matrix.index)
        for matrix in expression.atoms(TokenMatrix)
        if matrix.name in families
    }
    scalars = {symbol: value for symbol, value in values.items() if not isinstance(symbol, TokenMatrix)}
    return _replaced(expression, present | scalars)


def _moved(pair: tuple[TokenMatrix, Any], index: Any) -> Any:
    matrix, value = pair
    return value.xreplace({matrix.index: index}) if index is not None else value


def _replaced(expression: Any, values: Mapping[Any, Any]) -> Any:
    """`xreplace` that rebuilds products of matrices, so that transposes and coefficients find their places."""
    if expression in values:
        return values[expression]
    if isinstance(expression, TokenMatrix) or not expression.args:
        return expression
    if isinstance(expression, Transpose):
        scalar, matrix = _scalar_and_matrix(_replaced(expression.arg, values))
        return multiple(Transpose(matrix).doit(), scalar)
    return expression.func(*(_replaced(a, values) for a in expression.args))


@singledispatch
def multiple(matrix: Any, factor: Any) -> Any:
    """``factor * matrix``, the factor carried into sums and merged with the coefficients it meets there."""
    scalar, rest = _scalar_and_matrix(matrix)
    scalar *= factor
    return rest if scalar == 1 else scalar * rest


@multiple.register
def _(matrix: MatAdd, factor: Any) -> Any:
    return MatAdd(*(multiple(a, factor) for a in matrix.args))


@multiple.register
def _(matrix: TokenSum, factor: Any) -> Any:
    return matrix.apply(multiple(matrix.body, factor))


def _scalar_and_matrix(matrix: Any) -> tuple[Any, Any]:
    """Scalar coefficient of a product of matrices and the rest, nested products opened."""
    if not isinstance(matrix, MatMul):
        return S.One, matrix
    scalar, factors = S.One, []
    for factor in matrix.args:
        part, rest = _scalar_and_matrix(factor) if is_matrix(factor) else (factor, None)
        scalar *= part
        if rest is not None:
            factors += rest.args if isinstance(rest, MatMul) else [rest]
    return scalar, factors[0] if len(factors) == 1 else MatMul(*factors)


@singledispatch
def expanded(expression: Any) -> Any:
    """Products of sums multiplied out inside traces and matrices, sums over tokens around single terms."""
    return expression


@expanded.register(Add)
@expanded.register(Mul)
def _(expression: Any) -> Any:
    return expression.func(*(expanded(a) for a in expression.args)).expand()


@expanded.register
def _(total: TokenSum) -> Any:
    body = expanded(total.body)
    if body == 0:
        return S.Zero
    terms = body.args if isinstance(body, (Add, MatAdd)) else (body,)
    parts = [TokenSum.of(term, total.index) for term in terms]
    return MatAdd(*parts) if is_matrix(body) else Add(*parts)


@expanded.register
def _(trace: Trace) -> Any:
    terms = expanded(trace.arg)
    if isinstance(terms, ZeroMatrix):
        return S.Zero
    return Add(*(pulled(Trace(term)) for term in (terms.args if isinstance(terms, MatAdd) else (terms,))))


@expanded.register(MatAdd)
@expanded.register(MatMul)
def _(matrix: Any) -> Any:
    result = matrix.expand()
    return MatAdd(*(multiple(a, 1) for a in result.args)) if isinstance(result, MatAdd) else multiple(result, 1)


@singledispatch
def pulled(expression: Any) -> Any:
    """Numbers and temperatures in front of traces, means and sums over tokens, so that equal terms cancel."""
    return expression


@pulled.register(Add)
@pulled.register(Mul)
def _(expression: Any) -> Any:
    return expression.func(*(pulled(a) for a in expression.args))


@pulled.register
def _(operator: Operator) -> Any:
    body = pulled(operator.body)
    if is_matrix(body):
        return operator
    kept = [f for f in Mul.make_args(body) if not _is_scalar_parameter(f)]
    coefficient = Mul(*(f for f in Mul.make_args(body) if _is_scalar_parameter(f)))
    return coefficient * operator.apply(Mul(*kept)) if kept else operator


@pulled.register
def _(trace: Trace) -> Any:
    scalar, matrix = _scalar_and_matrix(trace.arg)
    return scalar * Trace(matrix)


def _is_scalar_parameter(factor: Any) -> bool:
    """Whether a factor is a number or made of plain symbols: no node, and nothing that carries a token."""
    return not factor.args or (factor.is_Pow and _is_scalar_parameter(factor.base)) or _is_plain_sum(factor)


def _is_plain_sum(factor: Any) -> bool:
    return factor.is_Add and all(all(map(_is_scalar_parameter, Mul.make_args(term))) for term in factor.args)


def difference(first: Any, second: Any) -> Any:
    """``first - second`` for matrices, with what they have in common cancelled."""
    terms = [*_terms(expanded(first)), *(multiple(term, -1) for term in _terms(expanded(second)))]
    gathered: dict[Any, Any] = {}
    for term in terms:
        coefficient, matrix = _outside(term)
        gathered[matrix] = gathered.get(matrix, S.Zero) + coefficient
    given = {matrix: number for matrix, number in gathered.items() if number != 0 and not _is_nothing(matrix)}
    kept = [matrix if number == 1 else number * matrix for matrix, number in given.items()]
    if not kept:
        return ZeroMatrix(*first.shape)
    return kept[0] if len(kept) == 1 else MatAdd(*kept)


def _terms(matrix: Any) -> tuple[Any, ...]:
    return matrix.args if isinstance(matrix, MatAdd) else (matrix,)


def _is_nothing(matrix: Any) -> bool:
    """Whether a term is zero, or a sum over tokens of zeros."""
    return isinstance(matrix, ZeroMatrix) or (isinstance(matrix, TokenSum) and _is_nothing(matrix.body))


def _outside(matrix: Any) -> tuple[Any, Any]:
    """A rational coefficient and the rest, also out of a sum over tokens."""
    if isinstance(matrix, TokenSum):
        coefficient, body = _outside(matrix.body)
        return coefficient, matrix.apply(body)
    scalar, rest = _scalar_and_matrix(matrix)
    number, symbols = scalar.as_coeff_Mul()
    return number, multiple(rest, symbols)
