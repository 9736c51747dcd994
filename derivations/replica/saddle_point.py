"""The saddle-point (state-evolution) equations (7)-(8), by differentiation of the free entropy.

Stationarity in a conjugate gives the order parameter, and the reverse.  Two of the results hold a mean of a derivative
of the proximal operator; since the proximal point jumps, that mean must not be taken pointwise and is rewritten with
Stein's lemma.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from sympy.matrices.expressions import Inverse, MatAdd, MatMul, MatrixExpr, Transpose

from derivations.algebra import symbols as sym
from derivations.algebra.calculus import gradient, solve_linear, transposed
from derivations.algebra.means import FieldMean
from derivations.algebra.minima import FieldHessian
from derivations.algebra.tokens import MatrixSqrt, TokenMatrix, operands
from derivations.replica.chain import FreeEntropy, noise, precision, source

__all__ = ["Equation", "SaddlePoint", "abbreviated", "definitions", "derive_saddle_point"]

_NUMBERS = {
    "q": "(7)",
    "V": "(7)",
    "m": "(7)",
    "theta": "(7)",
    "q_hat": "(8)",
    "V_hat": "(8)",
    "m_hat": "(8)",
    "theta_hat": "(8)",
}


@dataclass(frozen=True)
class Equation:
    """``unknown = right_hand_side``, with the variable whose stationarity it is and the paper's equation number."""

    unknown: TokenMatrix
    right_hand_side: MatrixExpr
    stationary_in: TokenMatrix
    number: str


@dataclass(frozen=True)
class SaddlePoint:
    """All equations: ``overlaps`` (from the conjugates, the prior side) and ``conjugates`` (the channel side)."""

    overlaps: tuple[Equation, ...]
    conjugates: tuple[Equation, ...]

    def __iter__(self) -> Iterator[Equation]:
        yield from self.overlaps
        yield from self.conjugates


# abbreviations used in print and in generated code
RESOLVENT = TokenMatrix("R", sym.r, sym.r, None, symmetric=True, latex="R")
SOURCE = TokenMatrix("b", sym.r, 1, None, latex="b")
NOISE = TokenMatrix("S", sym.r, sym.r, None, symmetric=True, latex="S")


def definitions() -> dict[TokenMatrix, MatrixExpr]:
    """``R``, ``b`` and ``S`` of one eigendirection."""
    return {RESOLVENT: Inverse(precision()), SOURCE: source(), NOISE: noise()}


def abbreviated(expression: Any) -> Any:
    """The expression with the definitions' names in place of what they stand for."""
    names: dict[Any, Any] = {value: name for name, value in definitions().items()}
    names[transposed(source())] = Transpose(SOURCE)
    return expression.xreplace(names)


def conditional_covariance(q: Any = sym.q) -> Any:
    """``q - theta rho^-1 theta^T``: covariance of the student's field given the teacher's."""
    return MatAdd(q, MatMul(-1, sym.theta, Inverse(sym.rho), Transpose(sym.theta)))


def conditional_mean() -> Any:
    """``m + theta rho^-1 k``: mean of the student's field given the teacher's about its mean."""
    return MatAdd(sym.m, MatMul(sym.theta, Inverse(sym.rho), sym.k_field))


def student_field() -> Any:
    """``omega``, given the teacher's field, by standard normals."""
    return MatAdd(*conditional_mean().args, MatMul(MatrixSqrt(conditional_covariance()), sym.xi_field))


def _stein(mean: Any) -> Any:
    """``E[d residual / d field]`` in terms of means of the residual itself.

    Stein's lemma in omega given k is ``E[dg/domega] = E[g xi^T] (q - theta rho^-1 theta^T)^-1/2``, for any law of k.
    That in a Gaussian k reads ``E[g k^T] = E[dg/domega] theta + E[dg/dk] rho``.
    """
    body = mean.body
    scalars = [a for a in body.args if not a.is_Matrix] if isinstance(body, MatMul) else []
    node = body.args[-1] if isinstance(body, MatMul) else body
    if isinstance(node, Transpose):
        return _transpose(_stein(FieldMean.of(MatMul(*scalars, node.arg))))
    if not isinstance(node, FieldHessian):
        return mean
    residual, field = operands(node)
    by_student = FieldMean.of(residual * Transpose(sym.xi_field)), Inverse(MatrixSqrt(conditional_covariance()))
    if field == sym.omega_field:
        return MatMul(*scalars, *by_student)
    by_teacher = FieldMean.of(residual * Transpose(sym.k_field)), Inverse(sym.rho)
    through = MatMul(-1, *scalars, *by_student, sym.theta, Inverse(sym.rho))
    return MatAdd(MatMul(*scalars, *by_teacher), through)


def _transpose(matrix: Any) -> Any:
    terms = matrix.args if isinstance(matrix, MatAdd) else (matrix,)
    return MatAdd(*(Transpose(term) for term in terms))


def _without_derivatives(right_hand_side: Any) -> Any:
    terms = right_hand_side.args if isinstance(right_hand_side, MatAdd) else (right_hand_side,)
    result = []
    for term in terms:
        factors = list(term.args) if isinstance(term, MatMul) else [term]
        means: list[Any] = [f for f in factors if isinstance(f, FieldMean)]
        if len(means) != 1 or not means[0].has(FieldHessian):
            result.append(term)
            continue
        outer = [f for f in factors if f is not means[0]]
        stein = _stein(means[0])
        for part in stein.args if isinstance(stein, MatAdd) else (stein,):
            inner = part.arg if isinstance(part, Transpose) else part
            product = MatMul(*outer, *inner.args).doit(deep=False)
            if isinstance(part, Transpose):
                scalars = [a for a in product.args if not a.is_Matrix]
                matrices = [a for a in product.args if a.is_Matrix]
                product = MatMul(*scalars, Transpose(MatMul(*matrices)))
            result.append(product)
    return result[0] if len(result) == 1 else MatAdd(*result)


@cache
def derive_saddle_point(free_entropy: FreeEntropy) -> SaddlePoint:
    """Differentiate ``-Phi`` in every order parameter and every conjugate and solve each condition for its partner.

    Equations (S1)-(S8) of the replica-symmetric page.
    """
    total = free_entropy.total
    pairs = tuple(zip(sym.OVERLAPS, (sym.V_hat, sym.q_hat, sym.m_hat, sym.theta_hat), strict=True))

    def equation(unknown: TokenMatrix, variable: TokenMatrix) -> Equation:
        condition = gradient(total, variable)
        right_hand_side = _without_derivatives(solve_linear(condition, unknown))
        return Equation(unknown, right_hand_side, variable, _NUMBERS[unknown.name])

    overlaps = tuple(equation(overlap, conjugate) for overlap, conjugate in pairs)
    by_name = {conjugate.name: equation(conjugate, overlap) for overlap, conjugate in pairs}
    return SaddlePoint(overlaps, tuple(by_name[name] for name in ("q_hat", "m_hat", "V_hat", "theta_hat")))
