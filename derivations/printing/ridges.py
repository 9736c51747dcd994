"""Equations in which all columns have one ridge: ``lambda I`` in place of its diagonal matrix."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from sympy import Mul
from sympy.matrices.expressions import Identity, MatAdd, MatMul, Trace

from derivations.algebra import symbols as sym
from derivations.algebra.calculus import cyclic, depends_on
from derivations.algebra.tokens import Operator, TokenMatrix, is_matrix, operands
from derivations.replica.moments import RidgePenalty
from derivations.replica.rewriting import pulled

__all__ = ["of_one_ridge"]


def of_one_ridge(expression: Any) -> Any:
    """The expression with ``lambda I`` for the ridges, lambda in front of products, traces and means."""
    return _of_one(expression) if depends_on(expression, sym.ridges) else expression


@singledispatch
def _of_one(expression: Any) -> Any:
    return expression.func(*map(of_one_ridge, expression.args))


@_of_one.register
def _(matrix: TokenMatrix) -> Any:
    return sym.ridge * Identity(sym.r)


@_of_one.register
def _(product: MatMul) -> Any:
    factors = [of_one_ridge(a) for a in product.args if a != sym.ridges]
    scalars = [a for a in factors if not is_matrix(a)]
    power = sym.ridge ** (len(product.args) - len(factors))
    return MatMul(Mul(power, *scalars), *(a for a in factors if is_matrix(a)))


@_of_one.register
def _(total: MatAdd) -> Any:
    found = MatAdd(*map(of_one_ridge, total.args))
    return found.doit(deep=False) if sym.ridges in total.args else found


@_of_one.register
def _(penalty: RidgePenalty) -> Any:
    return RidgePenalty(sym.ridge, operands(penalty)[1])


@_of_one.register
def _(trace: Trace) -> Any:
    matrix = of_one_ridge(trace.arg)
    scalars = [a for a in matrix.args if not is_matrix(a)] if isinstance(matrix, MatMul) else []
    if len(matrix.args) == len(scalars) + 1:
        return Mul(*scalars, Trace(matrix.args[-1]))
    return cyclic(matrix)


@_of_one.register
def _(operator: Operator) -> Any:
    return pulled(operator.apply(of_one_ridge(operator.body)))
