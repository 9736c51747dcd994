"""Observables at a fixed point: training loss, norm, test error and linear baseline.

All are expressions of the same nodes as the free entropy, so that they are printed and compiled by the same code.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr, Rational
from sympy.matrices.expressions import Inverse, Trace, Transpose

from derivations.algebra import symbols as sym
from derivations.algebra.means import FieldMean, SpectralMean, WeightMean
from derivations.algebra.minima import FieldLoss, MoreauEnvelope, RowPenalty
from derivations.algebra.tokens import TokenSum
from derivations.replica.chain import noise, precision, source

__all__ = ["OBSERVABLES", "SEPARABLE_OBSERVABLES", "Observable", "weight_norm"]


@dataclass(frozen=True)
class Observable:
    """A named scalar, its expression and the paper's equation number."""

    name: str
    title: str
    latex: str
    expression: Expr
    number: str


def weight_norm(*, separable: bool = False) -> Expr:
    """``||W||^2/d = int dnu E_z w^T w``; for the ridge the minimiser is ``w = R (b + S^1/2 z)``."""
    if separable:
        return SpectralMean.of(Trace(WeightMean.of(sym.w * Transpose(sym.w))))
    R = Inverse(precision())
    b = source()
    return SpectralMean.of(Trace(R * (noise() + b * Transpose(b)) * R))


def penalty(*, separable: bool = False) -> Expr:
    """The regulariser over d: ``int dnu E_z r(w)``, for the ridge ``lambda/2 ||W||^2/d``."""
    if separable:
        return SpectralMean.of(WeightMean.of(RowPenalty(sym.w)))
    return sym.ridge / 2 * weight_norm()


def training_loss_envelope(*, separable: bool = False) -> Expr:
    """(14), (120): ``alpha E[M] - 1/2 sum_l Tr[q_hat_l V_l]`` plus the regulariser."""
    envelope = FieldMean.of(MoreauEnvelope(sym.omega_field, sym.k_field, sym.V, sym.g_field))
    coupling = TokenSum.of(Trace(sym.q_hat * sym.V), sym.ell)
    return sym.alpha * envelope - Rational(1, 2) * coupling + penalty(separable=separable)


def training_loss_direct(*, separable: bool = False) -> Expr:
    """(121): ``alpha E[loss(prox, k)]`` plus the regulariser."""
    return sym.alpha * FieldMean.of(FieldLoss(sym.prox_field, sym.k_field)) + penalty(separable=separable)


def test_error() -> Expr:
    """(10)-(13): ``2/L E[loss(omega, k)]``.

    The fields of a fresh sample, ``(g_l, h_star_l)``, have mean ``(m_l, 0)`` and covariance
    ``(q, theta; theta^T, rho)``: the law of ``(omega_l, k_l)``, so (10) is a mean over the same fields.
    """
    return 2 / sym.L * FieldMean.of(FieldLoss(sym.omega_field, sym.k_field))


def _observables(separable: bool) -> tuple[Observable, ...]:
    loss, direct = training_loss_envelope(separable=separable), training_loss_direct(separable=separable)
    norm = weight_norm(separable=separable)
    return (
        Observable("training_loss", "training loss over d", r"\epsilon_t", loss, "(14), (120)"),
        Observable("training_loss_direct", "training loss from the proximal points", r"\epsilon_t", direct, "(121)"),
        Observable("weight_norm", "squared norm of the weights over d", r"\lVert W\rVert^2/d", norm, "(120)"),
        Observable("test_error", "test error", r"\epsilon_g", test_error(), "(10)-(13)"),
    )


OBSERVABLES = _observables(False)
SEPARABLE_OBSERVABLES = _observables(True)
