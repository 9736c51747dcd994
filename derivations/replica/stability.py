"""The stability of the replica-symmetric solution: how far apart two solutions on the same samples come to lie.

At y = 0 replicas of one group are weighted alike, and the 1RSB equations for ``q_1``, V, m, theta and their conjugates
are those of the replica-symmetric theory, whatever ``q_0`` is. What is left is a closed pair of equations for the gap
``D = q_1 - q_0`` and for ``C_hat = q_hat_1 - q_hat_0``, the noise that groups do not share: two groups are two copies
of the replica-symmetric solution that share the samples. D = 0 always solves them; it is stable if the linear part has
a spectral radius below one, the replicon, and if the proximal point does not jump.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from sympy.matrices.expressions import MatAdd, MatMul, Transpose

from derivations.algebra import symbols as sym
from derivations.algebra.means import FieldMean
from derivations.algebra.tokens import Block, TokenMatrix, TokenSum
from derivations.models.symbolic import GENERIC
from derivations.replica.ansatz import ONE_RSB
from derivations.replica.chain import derive_free_entropy, weighted
from derivations.replica.one_rsb import derive_one_rsb_saddle_point
from derivations.replica.rewriting import difference

__all__ = ["GAP", "NOISE_APART", "Copies", "derive_copies", "derive_replicon"]

_SIZE = sym.L * sym.r

GAP = TokenMatrix("D", sym.r, sym.r, sym.ell, symmetric=True, latex="D")
NOISE_APART = TokenMatrix("C_hat", sym.r, sym.r, sym.ell, symmetric=True, latex=r"\hat C")
# the fields of all tokens under each other: dg/domega, `derivations.replica.amp.response`, and the gaps on the diagonal
RESPONSE = TokenMatrix("response", _SIZE, _SIZE, None, latex=r"\partial_\omega g")
GAPS = TokenMatrix("D_stacked", _SIZE, _SIZE, None, symmetric=True, latex="D")


@dataclass(frozen=True)
class Copies:
    """Right-hand sides of the pair of equations.

    Attributes
    ----------
    noise : MatrixExpr
        ``C_hat_l``, by means over ``xi_1`` at y = 0 of residuals at fields with the gap ``D = q_1 - q_0``.
    gap : MatrixExpr
        ``D_l``, by ``C_hat``.
    """

    noise: Any
    gap: Any


@cache
def derive_copies() -> Copies:
    """The 1RSB equations for ``q_1 - q_0`` and ``q_hat_1 - q_hat_0`` at y = 0, for the ridge.

    Equations (C1)-(C2) of the stability page.
    """
    saddle_point = derive_one_rsb_saddle_point(derive_free_entropy(GENERIC, ONE_RSB))
    plain = {e.unknown.name: at_no_tilt(e.right_hand_side) for e in saddle_point}
    noise = difference(plain["q_hat_1"], plain["q_hat_0"])
    between = difference(weighted(sym.q_hat_1), weighted(sym.q_hat_0))
    apart = TokenSum.of(sym.gamma[sym.kappa] * NOISE_APART.xreplace({sym.ell: sym.kappa}), sym.kappa)
    beside = MatAdd(plain["q_1"], MatMul(-1, sym.q_0)).doit(deep=False)
    return Copies(noise, beside.xreplace({between: apart}))


def at_no_tilt(expression: Any) -> Any:
    """An expression at y = 0, without the terms that vanish."""
    if not expression.has(sym.y):
        return expression
    if isinstance(expression, (MatAdd, MatMul)):
        parts = [at_no_tilt(part) for part in expression.args]
        if isinstance(expression, MatAdd):
            parts = [part for part in parts if not _vanishes(part)]
        return expression.func(*parts) if len(parts) > 1 else parts[0]
    if expression == sym.y:
        return sym.y * 0
    return expression.func(*(at_no_tilt(part) for part in expression.args))


def _vanishes(term: Any) -> bool:
    return term == 0 or (isinstance(term, MatMul) and 0 in term.args)


@cache
def derive_replicon() -> Any:
    """``C_hat_l`` to first order in the gap, where the proximal point is smooth.

    Equation (N1) of the stability page.

    ``g(omega_0 + u) - g(omega_0)`` is ``dg/domega u``, with u of covariance ``D_kappa`` in the fields of the token
    kappa, independent of those of others.
    """
    square: Any = RESPONSE * GAPS * Transpose(RESPONSE)
    return sym.alpha * FieldMean.of(Block(square, sym.ell, sym.r))
