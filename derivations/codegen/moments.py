"""Means over the local fields by their moments: equations in terms of what compiled code sums over the nodes.

A mean of a product is linear in its outer factors, so that every channel equation is one of a few moments of the
residual ``g``, its own and those with the fields that it is multiplied by.
"""

from __future__ import annotations

from typing import Any

from sympy import Mul
from sympy.matrices.expressions import MatAdd, MatMul

from derivations.algebra import symbols as sym
from derivations.algebra.means import FieldMean
from derivations.algebra.tokens import TokenMatrix, is_matrix
from derivations.replica.rewriting import expanded

__all__ = ["in_moments", "moment_name"]

_FIELDS = {sym.g_field, sym.xi_field, sym.k_field}


def in_moments(expression: Any) -> Any:
    """The expression in which every mean over the fields is of a product of fields alone.

    Raises
    ------
    ValueError
        A factor that is no field stands between two that are.
    """
    return expression.xreplace({mean: _sum_of_moments(mean) for mean in expression.atoms(FieldMean)})


def moment_name(mean: Any) -> str:
    """The fields of a moment, joined."""
    return "_".join(atom.name for factor in _factors(mean.body) for atom in factor.atoms(TokenMatrix))


def _factors(product: Any) -> tuple[Any, ...]:
    return product.args if isinstance(product, MatMul) else (product,)


def _sum_of_moments(mean: Any) -> Any:
    body = expanded(mean.body)
    terms = body.args if isinstance(body, MatAdd) else (body,)
    moments = [_moment(term, mean.law) for term in terms]
    return moments[0] if len(moments) == 1 else MatAdd(*moments)


def _moment(term: Any, law: Any) -> Any:
    """The mean of a product with its constant factors in front of the mean and behind it."""
    factors = _factors(term)
    scalars = [factor for factor in factors if not is_matrix(factor)]
    matrices = [factor for factor in factors if is_matrix(factor)]
    places = [i for i, factor in enumerate(matrices) if factor.atoms(TokenMatrix) & _FIELDS]
    first, last = places[0], places[-1] + 1
    if len(places) != last - first:
        raise ValueError(f"{term} is not a mean of fields with constant factors outside")
    fields = matrices[first:last]
    inside = FieldMean.of(fields[0] if len(fields) == 1 else MatMul(*fields), law)
    outside = [*matrices[:first], inside, *matrices[last:]]
    scalar = Mul(*scalars)
    return inside if scalar == 1 and len(outside) == 1 else MatMul(*([] if scalar == 1 else [scalar]), *outside)
