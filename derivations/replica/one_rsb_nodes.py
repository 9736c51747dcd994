"""Minima under a tilt: what the integrals of replicas in groups become at zero temperature.

Replicas of one group share a Gaussian beside the one that all have in common, and with a group of ``x = y/beta``
replicas Laplace's method leaves ``E log E_1 exp(-y minimum)``: the outer mean over what all share, the inner over what
the group shares.  At equal covariances of both kinds of pairs the inner mean is of a constant, and the node is ``-y``
times the mean minimum of the replica-symmetric theory.

Differentiation, with ``<.>`` the inner mean weighted by ``exp(-y minimum)`` and ``g`` the residual, minus the gradient
of the minimum in the Gaussian field ``u``: Price's theorem in the inner law gives ``1/2 <y dg/du + y^2 g g^T>`` for the
covariance of a pair in one group.  In the outer law it gives ``1/2`` the Hessian of ``log E_1 exp(-y minimum)``, which
is ``<y dg/du + y^2 g g^T> - y^2 <g><g>^T``; the covariance of a pair from different groups enters the outer law with a
plus and the inner one with a minus, so that ``-y^2/2 E[<g><g>^T]`` is left.
"""

from __future__ import annotations

from typing import Any

from sympy import Add, Expr, S
from sympy.matrices.expressions import Inverse, MatAdd, MatMul, MatrixExpr, Trace, Transpose

from derivations.algebra.calculus import change_of, differential, differential_symbol
from derivations.algebra.means import FieldLaw, FieldMean, LawMean, RowLaw, WeightMean
from derivations.algebra.minima import FieldHessian, MoreauEnvelope, RowPenalty
from derivations.algebra.tokens import TokenMatrix, TokenSum, operands
from derivations.replica.rewriting import difference

__all__ = ["LogDeterminant", "TiltedEnvelope", "TiltedHessian", "TiltedMean", "TiltedQuadratic", "TiltedRow"]


class TiltedMean(LawMean):
    """``<f>``: mean over what a group of replicas shares, weighted by ``exp(-y minimum)``, at given common fields."""

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        return rf"\left\langle {printer._print(self.body)} \right\rangle"


class TiltedHessian(FieldHessian):
    """``dg/d omega^T + y g g^T``: the derivative of ``g exp(-y M)`` in the field, over the weight.

    Never printed in results: Stein's lemma over the group's Gaussian removes it.
    """

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        residual, field = map(printer._print, operands(self))
        return rf"e^{{y \mathcal{{M}}}} \partial_{{{field}}} \left({residual} e^{{-y \mathcal{{M}}}}\right)"


class TiltedEnvelope(Expr):
    """``E_(omega_0, k) log E_(omega_1) exp[-y M(omega_0 + omega_1, k)]`` for the Moreau envelope M of one sample.

    ``omega_0`` has the mean and the covariance ``apart`` of two replicas in different groups and is correlated with
    the teacher's field; ``omega_1`` is centred and has the rest of the covariance ``near`` of two in one group.
    """

    def __new__(
        cls, envelope: MoreauEnvelope, mean: Any, apart: Any, near: Any, theta: Any, rho: Any, tilt: Any
    ) -> TiltedEnvelope:
        """Take the envelope, the mean of the fields, the covariances of their pairs and with k, that of k, and y."""
        return Expr.__new__(cls, envelope, mean, apart, near, theta, rho, tilt)

    @property
    def law(self) -> FieldLaw:
        """The law of the fields, with the tilt's parameters."""
        envelope, mean, apart, near, theta, rho, _ = operands(self)
        return FieldLaw(mean, apart, theta, rho, operands(envelope)[2], near)

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        y = printer._print(operands(self)[-1])
        exponent = rf"-{y} \mathcal{{M}}(\omega_0 + \omega_1, k)"
        return rf"\mathbb{{E}}_{{\omega_0, k}} \log \mathbb{{E}}_{{\omega_1}} \exp\left[{exponent}\right]"


@change_of.register
def _(node: TiltedEnvelope, family: TokenMatrix) -> Any:
    envelope, mean, apart, near, theta, _, y = operands(node)
    omega, k, variance, g = operands(envelope)[:4]
    law = node.law

    def tilted(body: Any) -> Any:
        return TiltedMean.of(body, law)

    rates = {
        variance.name: (y / 2, tilted(g * Transpose(g))),
        mean.name: (y, tilted(g)),
        near.name: (y / 2, tilted(TiltedHessian(g, omega))),
        apart.name: (-(y**2) / 2, tilted(g) * tilted(Transpose(g))),
        theta.name: (y, FieldHessian(tilted(g), k)),
    }
    if family.name not in rates:
        raise TypeError(f"the tilted mean over local fields has no derivative rule in {family.name}")
    factor, rate = rates[family.name]
    moved = differential_symbol(family).xreplace({family.index: omega.index})
    return factor * TokenSum.of(Trace(Transpose(FieldMean.of(rate, law)) * moved), omega.index)


class TiltedRow(Expr):
    """``E_(z_0) log E_(z_1) exp[-y min_w {r(w) + 1/2 w^T A w - B^T w}]`` for a convex regulariser ``r`` of one row.

    The source is ``B = b + S_0^(1/2) z_0 + (S_1 - S_0)^(1/2) z_1`` with standard Gaussians ``z_0, z_1``.
    """

    def __new__(
        cls, curvature: Any, source: Any, apart: Any, near: Any, tilt: Any, weights: Any, response: Any
    ) -> TiltedRow:
        """Take ``A, b, S_0, S_1``, y and the symbols of the minimiser and of its derivative in the source."""
        return Expr.__new__(cls, curvature, source, apart, near, tilt, weights, response)

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        return _latex_tilted(self, printer._print(RowPenalty(operands(self)[5])), printer)


def _latex_tilted(node: Any, penalty: str, printer: Any) -> str:
    curvature, source, _, _, tilt = operands(node)[:5]
    # B is what the statements of the chain's steps say
    w, B = (TokenMatrix(name, *source.shape, None) for name in ("w", "B"))
    objective = MatAdd(MatMul(S.Half, Transpose(w), curvature, w), MatMul(-1, Transpose(B), w))
    minimum = rf"\min_w \left\{{{penalty}{' + ' if penalty else ''}{printer._print(objective)}\right\}}"
    return rf"\mathbb{{E}}_{{z_0}} \log \mathbb{{E}}_{{z_1}} \exp\left[-{printer._print(tilt)} {minimum}\right]"


@change_of.register
def _(node: TiltedRow, family: TokenMatrix) -> Any:
    *laws, y, w, response = operands(node)
    law = RowLaw(*sorted(set().union(*(a.atoms(TokenMatrix) for a in laws[1:])), key=str))
    square = TiltedMean.of(w * Transpose(w), law)
    first = TiltedMean.of(w, law)

    def mean(body: Any) -> Any:
        return WeightMean.of(body, law)

    curvature, source, apart, near = (differential(a, family) for a in laws)
    terms = []
    if curvature is not None:
        terms.append(-y / 2 * Trace(mean(square) * curvature))
    if source is not None:
        terms.append(y * Trace(Transpose(mean(first)) * source))
    if near is not None:
        terms.append(y / 2 * Trace(mean(TiltedMean.of(response, law)) * near) + y**2 / 2 * Trace(mean(square) * near))
    if apart is not None:
        terms.append(-(y**2) / 2 * Trace(mean(first * TiltedMean.of(Transpose(w), law)) * apart))
    return Add(*terms)


class TiltedQuadratic(Expr):
    """`TiltedRow` without a regulariser beside the quadratic form; `doit` does the Gaussian integral.

    The minimum is ``-1/2 B^T P^-1 B``, and ``E_1 exp(y/2 B^T P^-1 B)`` is Gaussian with the precision
    ``A = P - y (S_1 - S_0)``: in terms of ``u``, the source without ``z_1``, it is
    ``det(A)^(-1/2) det(P)^(1/2) exp(y/2 u^T A^-1 u)``, since ``(P/y - (S_1 - S_0))^-1 = y A^-1``, whatever commutes.
    """

    def __new__(cls, precision: Any, source: Any, apart: Any, near: Any, tilt: Any) -> TiltedQuadratic:
        """Take ``P, b, S_0, S_1`` and y."""
        return Expr.__new__(cls, precision, source, apart, near, tilt)

    @property
    def grouped(self) -> Any:
        """``A = P - y (S_1 - S_0)``: the precision of what a group shares."""
        precision, _, apart, near, tilt = operands(self)
        return MatAdd(precision, MatMul(-tilt, difference(near, apart)).doit(deep=False)).doit(deep=False)

    def doit(self, **hints: Any) -> Expr:
        """The value of the integral."""
        precision, source, apart, _, tilt = operands(self)
        square = Trace(Inverse(self.grouped) * (apart + source * Transpose(source)))
        return tilt / 2 * square + LogDeterminant(precision) / 2 - LogDeterminant(self.grouped) / 2

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        return _latex_tilted(self, "", printer)


class LogDeterminant(Expr):
    """``log det A`` of a positive definite matrix."""

    def __new__(cls, matrix: MatrixExpr) -> LogDeterminant:
        """Take the matrix."""
        return Expr.__new__(cls, matrix)

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        (matrix,) = operands(self)
        text = printer._print(matrix)
        return rf"\log\det\left({text}\right)" if isinstance(matrix, MatAdd) else rf"\log\det {text}"


@change_of.register
def _(node: LogDeterminant, family: TokenMatrix) -> Any:
    (matrix,) = operands(node)
    return Trace(Inverse(matrix) * differential(matrix, family))
