"""Observables at a fixed point: training loss, norm and test error.

All are expressions of the same nodes as the free entropy, so that they are printed and compiled by the same code.  All
but the test error are derivatives of ``-Phi``, the lowest risk per dimension: since it is stationary in the order
parameters, only what depends on the parameter explicitly counts.

- In the strength of a ridge that is added to all columns, ``lambda/2 |W|^2/d``: half the squared norm.
- In a factor before the regulariser: the regulariser itself.
- In a factor before the whole risk: the risk, which is the training loss by its proximal points (121).
- In a factor before V: zero.  The energy moves as much as the couplings, in the other direction, which replaces the
  loss at the proximal points in (121) by the envelope, (14) and (120).
- In alpha: the mean of the Moreau envelope.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from sympy import Expr, S, Symbol
from sympy.matrices.expressions import Identity

from derivations.algebra import symbols as sym
from derivations.algebra.calculus import derivative
from derivations.algebra.means import FieldMean
from derivations.algebra.minima import FieldLoss, MoreauEnvelope, RowMinimum
from derivations.replica.chain import FreeEntropy, precision, stiffness

__all__ = ["Observable", "mean_envelope", "observables", "penalty", "weight_norm"]

_FACTOR = Symbol("s", positive=True)


@dataclass(frozen=True)
class Observable:
    """A named scalar, its expression and the paper's equation number."""

    name: str
    title: str
    latex: str
    expression: Expr
    number: str


def _rate(expression: Any, replacements: dict[Any, Any], at: Any) -> Any:
    """Derivative in the factor that the replacements bring in, where it is ``at`` and they replace nothing."""
    back = {new: old for old, new in replacements.items()}
    return derivative(expression.xreplace(replacements), _FACTOR).xreplace(back).xreplace({_FACTOR: at})


def _each(expression: Any, kind: type, change: Callable[[Any], Any]) -> dict[Any, Any]:
    """Replacements of every node of a kind."""
    return {node: change(node) for node in expression.atoms(kind)}


def _scaled_regularizer(total: Any) -> dict[Any, Any]:
    """The regulariser times the factor: the ridges, or what the problem of a row holds."""
    return {precision(): stiffness() + _FACTOR * sym.ridges} | _each(
        total, RowMinimum, lambda node: node.scaled(_FACTOR)
    )


def mean_envelope(free_entropy: FreeEntropy) -> Any:
    """``E[M] = d(-Phi)/d alpha``."""
    return derivative(free_entropy.total, sym.alpha)


def weight_norm(free_entropy: FreeEntropy) -> Any:
    """``||W||^2/d``: twice the derivative of ``-Phi`` in the strength of a ridge that is added.

    Equation (O3) of the replica-symmetric page.
    """
    total = free_entropy.total
    if not free_entropy.separable:
        return 2 * _rate(total, {precision(): precision() + _FACTOR * Identity(sym.r)}, S.Zero)
    return 2 * _rate(total, _each(total, RowMinimum, lambda node: node.ridged(_FACTOR)), S.Zero)


def penalty(free_entropy: FreeEntropy) -> Any:
    """The regulariser over d: the derivative of ``-Phi`` in a factor before it."""
    return _rate(free_entropy.total, _scaled_regularizer(free_entropy.total), S.One)


def training_loss_direct(free_entropy: FreeEntropy) -> Any:
    """(121), ``alpha E[loss(prox, k)]`` plus the regulariser: the derivative in a factor before the whole risk.

    Equation (O2) of the replica-symmetric page.
    """
    total = free_entropy.total
    loss = _each(total, MoreauEnvelope, lambda node: node.scaled(_FACTOR))
    return _rate(total, loss | _scaled_regularizer(total), S.One)


def training_loss_envelope(free_entropy: FreeEntropy) -> Any:
    """(14), (120): ``alpha E[M] - 1/2 sum_l Tr[q_hat_l V_l]`` plus the regulariser.

    Equation (O1) of the replica-symmetric page.

    ``loss(prox) = M + ds M`` for ``V -> s V`` at s = 1, since ``dM/dV = -1/2 g g^T``; and as ``-Phi`` is stationary in
    V, the energy changes by minus what the couplings do.
    """
    energy = free_entropy.terms["energy"]
    couplings = free_entropy.total - energy
    return energy - _rate(couplings, {sym.V: _FACTOR * sym.V}, S.One) + penalty(free_entropy)


def test_error() -> Any:
    """(10)-(13): ``2/L E[loss(omega, k)]``.

    Equation (O4) of the replica-symmetric page.

    The fields of a fresh sample, ``(g_l, h_star_l)``, have mean ``(m_l, 0)`` and covariance
    ``(q, theta; theta^T, rho)``: the law of ``(omega_l, k_l)``, so (10) is a mean over the same fields.
    """
    return 2 / sym.L * FieldMean.of(FieldLoss(sym.omega_field, sym.k_field))


@cache
def observables(free_entropy: FreeEntropy) -> tuple[Observable, ...]:
    """What is printed and computed at every fixed point."""
    loss, direct = training_loss_envelope(free_entropy), training_loss_direct(free_entropy)
    norm = weight_norm(free_entropy)
    return (
        Observable("training_loss", "training loss over d", r"\epsilon_t", loss, "(14), (120)"),
        Observable("training_loss_direct", "training loss from the proximal points", r"\epsilon_t", direct, "(121)"),
        Observable("weight_norm", "squared norm of the weights over d", r"\lVert W\rVert^2/d", norm, "(120)"),
        Observable("test_error", "test error", r"\epsilon_g", test_error(), "(10)-(13)"),
    )
