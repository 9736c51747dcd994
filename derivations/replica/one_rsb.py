"""The saddle point of one-step replica-symmetry breaking, by differentiation of its free entropy ``F(y)``.

The conditions come from the derivative rules of the tilted nodes (`derivations.replica.one_rsb_nodes`). Three things
are done to them.  The condition in ``q_hat_1`` holds V and ``q_1``; adding y times that in ``V_hat``, which is the
direction in which the precision of a group stays as it is, leaves V alone. ``q_1`` is written as ``q_0`` and what is
left, and a difference of two inverses as ``R (A - R^-1) A^-1``. And derivatives of the proximal point, which jumps, are
removed by Stein's lemma: for the Gaussian of a group, ``<dg/d omega + y g g^T> = <g xi_1^T> (q_1 - q_0)^(-1/2)``, since
what stands on the left is the derivative of ``g exp(-y M)`` over its weight; for the one that all replicas share, as in
the replica-symmetric theory with ``<g>`` for g and ``q_0`` for q.
"""

from __future__ import annotations

from functools import cache, singledispatch
from typing import Any

from sympy import Indexed, Mul, S
from sympy.matrices.expressions import Inverse, MatAdd, MatMul, Transpose

from derivations.algebra import symbols as sym
from derivations.algebra.calculus import gradient, solve_linear, transposed
from derivations.algebra.means import FieldMean
from derivations.algebra.minima import FieldHessian
from derivations.algebra.tokens import MatrixSqrt, Operator, TokenMatrix, is_matrix, operands
from derivations.replica.chain import FreeEntropy, precision, source, weighted
from derivations.replica.one_rsb_nodes import TiltedHessian, TiltedMean
from derivations.replica.rewriting import difference, multiple
from derivations.replica.saddle_point import (
    RESOLVENT,
    SOURCE,
    Equation,
    SaddlePoint,
    conditional_covariance,
    definitions,
)

__all__ = ["abbreviated", "derive_one_rsb_saddle_point", "names"]

NOISE_0 = TokenMatrix("S_0", sym.r, sym.r, None, symmetric=True, latex="S_0")
NOISE_1 = TokenMatrix("S_1", sym.r, sym.r, None, symmetric=True, latex="S_1")
GROUPED = TokenMatrix("A", sym.r, sym.r, None, symmetric=True, latex="A")


def names() -> dict[TokenMatrix, Any]:
    """Matrices of one eigendirection: ``R, b, S_0, S_1`` and ``A = R^-1 - y (S_1 - S_0)``.

    Equations (E1)-(E5) of the 1RSB page.
    """
    common = definitions()
    apart, near = weighted(sym.q_hat_0), weighted(sym.q_hat_1)
    grouped = MatAdd(precision(), MatMul(-sym.y, difference(near, apart)))
    return {
        RESOLVENT: common[RESOLVENT],
        SOURCE: source(),
        NOISE_0: apart,
        NOISE_1: near,
        GROUPED: grouped.doit(deep=False),
    }


def abbreviated(expression: Any) -> Any:
    """The expression with these names in place of what they stand for."""
    called: dict[Any, Any] = {value: name for name, value in names().items()}
    called[precision()] = Inverse(RESOLVENT)
    called[transposed(source())] = Transpose(SOURCE)
    return expression.xreplace(called)


# --- linear combinations of conditions ------------------------------------------------------------------------------


@singledispatch
def _pieces(matrix: Any) -> list[tuple[Any, Any]]:
    """A matrix as pairs of a scalar coefficient and a matrix, coefficients taken out of means and sums."""
    return [(S.One, matrix)]


@_pieces.register
def _(matrix: MatAdd) -> list[tuple[Any, Any]]:
    return [piece for a in matrix.args for piece in _pieces(a)]


@_pieces.register
def _(matrix: Operator) -> list[tuple[Any, Any]]:
    return [(coefficient, matrix.apply(body)) for coefficient, body in _pieces(matrix.body)]


@_pieces.register
def _(matrix: MatMul) -> list[tuple[Any, Any]]:
    scalars = Mul.make_args(Mul(*(a for a in matrix.args if not is_matrix(a))))
    factors = [a for a in matrix.args if is_matrix(a)]
    inside = [a for a in scalars if a.atoms(Indexed)]  # of an eigendirection: it stays under its mean
    outside = Mul(*(a for a in scalars if a not in inside))
    if len(factors) == 1 and not inside:
        return [(outside * coefficient, piece) for coefficient, piece in _pieces(factors[0])]
    return [(outside, MatMul(*inside, *factors))]


def _gathered(*matrices: Any) -> Any:
    """The sum of matrices with equal terms taken together, so that what cancels is gone."""
    total: dict[Any, Any] = {}
    for coefficient, piece in (pair for matrix in matrices for pair in _pieces(matrix)):
        total[piece] = total.get(piece, S.Zero) + coefficient
    factors = {piece: factor.expand() for piece, factor in total.items()}
    kept = [piece if factor == 1 else factor * piece for piece, factor in factors.items() if factor != 0]
    return kept[0] if len(kept) == 1 else MatAdd(*kept)


def _of_inverses(matrix: Any) -> Any:
    """A difference ``c (A^-1 - B^-1)`` of two means over eigendirections as one: ``c B^-1 (B - A) A^-1``."""
    plus, minus = sorted(_pieces(matrix), key=lambda pair: bool(pair[0].could_extract_minus_sign()))
    factor, mean = plus
    *scalars, grouped = mean.body.args
    resolvent = minus[1].body.args[-1]
    if factor + minus[0] != 0 or not (isinstance(grouped, Inverse) and isinstance(resolvent, Inverse)):
        raise TypeError("not a difference of two inverses")
    between = _gathered(multiple(difference(resolvent.arg, grouped.arg), factor))
    return mean.apply(MatMul(*scalars, resolvent, between, grouped))


# --- Stein's lemma --------------------------------------------------------------------------------------------------


def group_covariance() -> Any:
    """``q_1 - q_0``: covariance of what a group shares."""
    return difference(sym.q_1, sym.q_0)


def _scaled(coefficient: Any, matrix: Any) -> Any:
    factors = matrix.args if isinstance(matrix, MatMul) else (matrix,)
    return matrix if coefficient == 1 else MatMul(coefficient, *factors)


def _without_derivatives(matrix: Any) -> Any:
    """Means of derivatives of the residual, or of its tilted mean, as means of these themselves."""
    terms = matrix.args if isinstance(matrix, MatAdd) else (matrix,)
    results = [_stein(term) for term in terms]
    return results[0] if len(results) == 1 else MatAdd(*results)


def _stein(term: Any) -> Any:
    ((coefficient, mean),) = _pieces(term)
    if not isinstance(mean, FieldMean):
        return term
    body = mean.body
    if isinstance(body, FieldHessian):
        tilted, field = operands(body)
        if field != sym.k_field:
            raise TypeError(f"no form without derivatives for that in {field}")
        by_teacher, by_student = (mean.apply(MatMul(tilted, Transpose(x))) for x in (sym.k_field, sym.xi_0))
        inverse, root = Inverse(sym.rho), MatrixSqrt(conditional_covariance(sym.q_0))
        through = MatMul(by_student, Inverse(root), sym.theta, inverse)
        return MatAdd(_scaled(coefficient, MatMul(by_teacher, inverse)), _scaled(-coefficient, through))
    if isinstance(body, TiltedMean) and isinstance(body.body, TiltedHessian):
        residual, _ = operands(body.body)
        noise = mean.apply(body.apply(MatMul(residual, Transpose(sym.xi_1))))
        return _scaled(coefficient, MatMul(noise, Inverse(MatrixSqrt(group_covariance()))))
    if isinstance(body, TiltedMean) and isinstance(body.body, Transpose):
        return _scaled(coefficient, Transpose(_stein(mean.apply(transposed(body)))))
    return term


# --- the equations --------------------------------------------------------------------------------------------------


@cache
def derive_one_rsb_saddle_point(free_entropy: FreeEntropy) -> SaddlePoint:
    """Differentiate ``F(y)`` in every order parameter and every conjugate and solve each condition for its partner.

    Equations (S1)-(S10) of the 1RSB page.

    The equations are in the order ``q_0, q_1, V, m, theta`` and ``q_hat_1, q_hat_0, m_hat, theta_hat, V_hat``.
    """
    total, y = free_entropy.total, sym.y
    variables = (*sym.ONE_STEP_OVERLAPS, *sym.ONE_STEP_CONJUGATES)
    condition = {variable: gradient(total, variable) for variable in variables}

    def equation(unknown: TokenMatrix, variable: TokenMatrix, matrix: Any) -> Equation:
        return Equation(unknown, _without_derivatives(solve_linear(_gathered(matrix), unknown)), variable, "")

    def plain(unknown: TokenMatrix, variable: TokenMatrix, factor: Any = S.One) -> Equation:
        return equation(unknown, variable, multiple(condition[variable], factor))

    apart = plain(sym.q_0, sym.q_hat_0, 1 / y)
    near: Any = plain(sym.q_1, sym.V_hat).right_hand_side
    beside = _gathered(near, multiple(apart.right_hand_side, -1))
    if not free_entropy.separable:
        near = MatAdd(sym.q_0, _of_inverses(beside))
    overlaps = (
        apart,
        Equation(sym.q_1, near, sym.V_hat, ""),
        equation(sym.V, sym.q_hat_1, MatAdd(condition[sym.q_hat_1], multiple(condition[sym.V_hat], y))),
        plain(sym.m, sym.m_hat),
        plain(sym.theta, sym.theta_hat),
    )
    conjugates = (
        plain(sym.q_hat_1, sym.V),
        plain(sym.q_hat_0, sym.q_0, 1 / y),
        plain(sym.m_hat, sym.m),
        plain(sym.theta_hat, sym.theta),
        plain(sym.V_hat, sym.q_1),
    )
    return SaddlePoint(overlaps, conjugates)
