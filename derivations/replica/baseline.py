"""The linear baseline (17), (19)-(20): the best linear map of the tokens, for infinitely many samples.

``f_W(x) = W x`` has the error ``E Tr[(T - W) D (T - W)^T]/L`` on targets ``T`` of tokens with ``x x^T/d = D``.  With
mixture tokens ``D`` is that of the clusters drawn; else it is the same in every sample and comes out of the means.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from sympy.matrices.expressions import Inverse, Trace, Transpose

from derivations.algebra import symbols as sym
from derivations.algebra.means import TEACHER, FieldMean
from derivations.algebra.tokens import TokenMatrix

__all__ = ["PREDICTOR", "Baseline", "derive_baseline"]

TARGETS = TokenMatrix("targets", sym.L, sym.L, None, latex=r"\mathsf{T}(k)")
VARIANCES = TokenMatrix("variances", sym.L, sym.L, None, symmetric=True, latex="D")
PREDICTOR = TokenMatrix("predictor", sym.L, sym.L, None, latex=r"\hat W")


@dataclass(frozen=True)
class Baseline:
    """The best linear map.

    Attributes
    ----------
    error : Expr
        (17): error of any linear map `PREDICTOR`, which is quadratic in it.
    predictor : MatrixExpr
        (19): where that is least.
    test_error : Expr
        (20): the least error, in terms of `PREDICTOR`.
    """

    error: Any
    predictor: Any
    test_error: Any

    def without_clusters(self) -> Baseline:
        """The same where ``D`` is no random variable."""
        fixed: dict[Any, Any] = {_mean(VARIANCES): VARIANCES, _mean(TARGETS * VARIANCES): _mean(TARGETS) * VARIANCES}
        return Baseline(*(part.xreplace(fixed).doit() for part in (self.error, self.predictor, self.test_error)))


def _mean(body: Any) -> Any:
    return FieldMean.of(body, TEACHER)


def _size(matrix: Any) -> Any:
    """``Tr[A D A^T]/L``: the error of a difference between score matrices."""
    return Trace(matrix * VARIANCES * Transpose(matrix))


@cache
def derive_baseline() -> Baseline:
    """The normal equations of (17): ``W E[D] = E[T D]``.

    Equations (B1)-(B2) of the replica-symmetric page.
    """
    variances = _mean(VARIANCES)
    explained = Trace(PREDICTOR * variances * Transpose(PREDICTOR))
    return Baseline(
        error=_mean(_size(TARGETS - PREDICTOR)) / sym.L,
        predictor=_mean(TARGETS * VARIANCES) * Inverse(variances),
        test_error=(_mean(_size(TARGETS)) - explained) / sym.L,
    )
