"""Minima: the Moreau envelope of a sample's loss, and the problem of one row of the weights."""

from __future__ import annotations

from typing import Any

from sympy import Add, Expr, S, Symbol, sympify
from sympy.matrices.expressions import Identity, Inverse, MatAdd, MatMul, MatrixExpr, Trace, Transpose

from derivations.algebra import symbols as sym
from derivations.algebra.means import WeightMean
from derivations.algebra.tokens import MatrixSqrt, TokenMatrix, operands

__all__ = ["FieldHessian", "FieldLoss", "LossSlope", "MoreauEnvelope", "QuadraticMinimum", "RowMinimum", "RowPenalty"]


class MoreauEnvelope(Expr):
    """``M(omega, k) = min_h  1/2 sum_l (h_l - omega_l)^T V_l^-1 (h_l - omega_l) + loss(h, k)``.

    Envelope theorem: ``dM/d omega_l = -g_l`` and ``dM/dV_l = -1/2 g_l g_l^T`` with
    ``g_l = V_l^-1 (prox_l - omega_l)``, wherever the minimiser is unique.  The loss may be multiplied by a ``scale``,
    in which the derivative is the loss at the proximal point.
    """

    def __new__(
        cls,
        omega: TokenMatrix,
        k: TokenMatrix,
        variance: TokenMatrix,
        residual: TokenMatrix,
        scale: Any = S.One,
        loss: Expr = sym.loss,
    ) -> MoreauEnvelope:
        """Take the fields, ``V``, the symbol of ``g``, the scale of the loss and the loss, by default of no model."""
        return Expr.__new__(cls, omega, k, variance, residual, sympify(scale), loss)

    def scaled(self, scale: Any) -> MoreauEnvelope:
        """The envelope of the loss times ``scale``."""
        omega, k, variance, residual, factor, loss = operands(self)
        return MoreauEnvelope(omega, k, variance, residual, factor * scale, loss)

    def change(self, omega: Any, k: Any, variance: Any, residual: Any, scale: Any, loss: Any) -> Any:
        """First-order change for given changes of the operands, each None where it vanishes: of the scale alone.

        In the fields and in ``V`` only the mean over the fields has a rule, which knows their law.
        """
        if any(change is not None for change in (omega, k, variance, residual, loss)):
            raise TypeError(f"no derivative rule for the node {type(self).__name__} but in the scale of the loss")
        return scale * FieldLoss(sym.prox_field, operands(self)[1])

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        scale = operands(self)[4]
        return r"\mathcal{M}(\omega, k)" if scale == 1 else rf"\mathcal{{M}}_{{{printer._print(scale)}}}(\omega, k)"


class FieldLoss(Expr):
    """``loss(h, k)``: the loss of one sample at given local fields."""

    def __new__(cls, field: TokenMatrix, k: TokenMatrix) -> FieldLoss:
        """Take the symbols of the student's fields and of the teacher's."""
        return Expr.__new__(cls, field, k)

    @property
    def at(self) -> str:
        """Name of the student's fields."""
        return operands(self)[0].name

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        # the fields of all tokens enter: they are printed without an index
        field, k = (a.latex_name for a in operands(self))
        return rf"\ell({field}, {k})"


class LossSlope(MatrixExpr):
    """``d loss/dh``: the gradient of one sample's loss in the fields of all tokens; its own derivative is a symbol."""

    def __new__(cls, field: TokenMatrix, hessian: TokenMatrix) -> LossSlope:
        """Take the symbols of the fields and of the loss's Hessian."""
        return super().__new__(cls, field, hessian)

    @property
    def shape(self) -> tuple[Any, Any]:
        """Rows and columns."""
        return operands(self)[0].shape

    def change(self, field: Any, hessian: Any) -> Any:
        """First-order change for a given change of the fields."""
        if hessian is not None:
            raise TypeError(f"no derivative rule for the node {type(self).__name__} in the loss's Hessian")
        return operands(self)[1] * field

    def _entry(self, i: Any, j: Any, **kwargs: Any) -> Expr:
        return Symbol(f"slope_{i}", real=True)

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        return rf"\nabla \ell({printer._print(self.args[0])})"


class FieldHessian(MatrixExpr):
    """``d residual / d field^T``, the Jacobian of ``g_l`` in a local field of the same token.

    Never printed in results: Stein's lemma removes it, see `derivations.replica.saddle_point`.
    """

    def __new__(cls, residual: MatrixExpr, field: TokenMatrix) -> FieldHessian:
        """Take the symbols of ``g`` and of the field."""
        return super().__new__(cls, residual, field)

    @property
    def shape(self) -> tuple[Any, Any]:
        """Rows and columns."""
        residual, field = operands(self)
        return residual.shape[0], field.shape[0]

    def _entry(self, i: Any, j: Any, **kwargs: Any) -> Expr:
        return Symbol(f"d{self.args[0]}_{i}_d{self.args[1]}_{j}", real=True)

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        return rf"\partial_{{{printer._print(self.args[1])}}} {printer._print(self.args[0])}"


class QuadraticMinimum(Expr):
    """``E_z min_w 1/2 w^T A w - (b + S^{1/2} z)^T w`` for ``z ~ N(0, I)``; `doit` completes the square.

    ``= -1/2 Tr[A^-1 (S + b b^T)]``.
    """

    def __new__(cls, curvature: MatrixExpr, source: MatrixExpr, noise: MatrixExpr) -> QuadraticMinimum:
        """Take ``A``, ``b`` and ``S``."""
        return Expr.__new__(cls, curvature, source, noise)

    def doit(self, **hints: Any) -> Expr:
        """The value of the minimum."""
        curvature, source, noise = operands(self)
        return -Trace(Inverse(curvature) * (noise + source * Transpose(source))) / 2

    @property
    def objective(self) -> Any:
        """What is minimised over ``w``, at given ``z``."""
        curvature, source, noise = operands(self)
        w, z = (TokenMatrix(name, source.shape[0], 1, None) for name in ("w", "z"))
        return MatAdd(
            MatMul(S.Half, Transpose(w), curvature, w),
            MatMul(-1, Transpose(MatAdd(source, MatMul(MatrixSqrt(noise), z))), w),
        )

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        return rf"\mathbb{{E}}_z \min_w \left\{{{printer._print(self.objective)}\right\}}"


class RowPenalty(Expr):
    """``r(w)``: the regulariser of one row of the weights."""

    def __new__(cls, weights: TokenMatrix) -> RowPenalty:
        """Take the symbol of ``w``."""
        return Expr.__new__(cls, weights)

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        return rf"r\left({printer._print(self.args[0])}\right)"


class RowMinimum(Expr):
    """``E_z min_w r(w) + 1/2 w^T A w - (b + S^{1/2} z)^T w`` for ``z ~ N(0, I)`` and a convex regulariser ``r``.

    The envelope theorem gives ``1/2 E[w w^T]`` for its derivative in A and ``-E[w]`` for that in b; with S enters the
    covariance of a Gaussian field whose Hessian is ``-dw/db``, so by Price's theorem its derivative is
    ``-1/2 E[dw/db]``.  The regulariser may be multiplied by a ``scale``, in which the derivative is ``E[r(w)]``.
    """

    def __new__(
        cls,
        curvature: MatrixExpr,
        source: MatrixExpr,
        noise: MatrixExpr,
        weights: TokenMatrix,
        response: TokenMatrix,
        scale: Any = S.One,
    ) -> RowMinimum:
        """Take ``A``, ``b``, ``S``, the symbols of the minimiser and of its derivative in ``b``, and the scale."""
        return Expr.__new__(cls, curvature, source, noise, weights, response, sympify(scale))

    def scaled(self, scale: Any) -> RowMinimum:
        """The problem with the regulariser times ``scale``."""
        curvature, source, noise, weights, response, factor = operands(self)
        return RowMinimum(curvature, source, noise, weights, response, factor * scale)

    def ridged(self, strength: Any) -> RowMinimum:
        """The problem with ``strength/2 w^T w`` added to the regulariser."""
        curvature, source, noise, weights, response, factor = operands(self)
        stiffer = curvature + strength * Identity(curvature.shape[0])
        return RowMinimum(stiffer, source, noise, weights, response, factor)

    @property
    def objective(self) -> Any:
        """What is minimised over ``w`` besides the regulariser, at given ``z``."""
        return QuadraticMinimum(*operands(self)[:3]).objective

    def change(self, curvature: Any, source: Any, noise: Any, *further: Any) -> Any:
        """First-order change for given changes of the operands, each None where it vanishes."""
        weights, response = operands(self)[3:5]
        scale = further[2]
        terms = []
        if curvature is not None:
            terms.append(Trace(WeightMean.of(weights * Transpose(weights)) * curvature) / 2)
        if source is not None:
            terms.append(-Trace(Transpose(WeightMean.of(weights)) * source))
        if noise is not None:
            terms.append(-Trace(WeightMean.of(response) * noise) / 2)
        if scale is not None:
            terms.append(scale * WeightMean.of(RowPenalty(weights)))
        return Add(*terms)

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        penalty = printer._print(operands(self)[5] * RowPenalty(TokenMatrix("w", *operands(self)[3].shape, None)))
        return rf"\mathbb{{E}}_z \min_w \left\{{{penalty} + {printer._print(self.objective)}\right\}}"
