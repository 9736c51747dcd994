"""Generalised approximate message passing (Algorithm 1) at finite d, from the same local problem.

One iteration takes the weights ``w_i`` of the d directions, their variances ``c_i`` and the residuals ``g_l`` of the
samples to new ones; `derive_iteration` writes it as named equations.  What a sample answers to a change of its field,
``dg``, is differentiated from the stationarity condition of its proximal problem.

`concentrated` is what the sums over samples become for many of them, for inputs that are independent of the data but
for the fields: the rule of state evolution.  With it the problem of one row of the weights is the one that the saddle
point has, see ``tests/symbolic/test_amp.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from sympy import IndexedBase, Symbol
from sympy.matrices.expressions import Inverse, MatAdd, MatMul, MatrixExpr, Transpose

from derivations.algebra import symbols as sym
from derivations.algebra.calculus import jacobian
from derivations.algebra.means import FieldMean, SpectralMean
from derivations.algebra.minima import FieldHessian, LossSlope
from derivations.algebra.tokens import Block, DirectionSum, SampleSum, TokenMatrix, TokenSum

__all__ = ["Iteration", "Named", "RowProblem", "concentrated", "derive_iteration", "overlaps", "response"]

dimension = Symbol("d", positive=True)
xbar: Any = IndexedBase("xbar", real=True)  # (x_l + p_l)_i / sqrt(d) of a sample and a direction

# of one direction: the variance of its row of weights, the curvature and the source of the row's problem
c = TokenMatrix("c", sym.r, sym.r, None, symmetric=True, latex="c")
A = TokenMatrix("A", sym.r, sym.r, None, symmetric=True, latex="A")
B = TokenMatrix("B", sym.r, 1, None, latex="B")
# of one sample: the residuals of the iteration before, and the responses of the new ones to their own fields
g_before = TokenMatrix("g_before", sym.r, 1, sym.ell, latex=r"g^{\text{before}}")
dg = TokenMatrix("dg", sym.r, sym.r, sym.ell, symmetric=True, latex=r"\partial g")

# the fields of all tokens under each other
_SIZE = sym.L * sym.r
H = TokenMatrix("H", _SIZE, _SIZE, None, symmetric=True, latex="H")
_V = TokenMatrix("V_stacked", _SIZE, _SIZE, None, symmetric=True, latex="V")
_FIELD, _OMEGA = (TokenMatrix(name, _SIZE, 1, None) for name in ("h", "omega"))


@dataclass(frozen=True)
class Named:
    """``unknown = value``, an equation of the iteration."""

    unknown: TokenMatrix
    value: Any


@dataclass(frozen=True)
class Iteration:
    """One iteration.

    Attributes
    ----------
    fields : tuple of Named
        Before the proximal problems are solved: ``V`` and ``omega``, in which ``V g_before`` is Onsager's term.
    weights : tuple of Named
        After: ``g`` and ``dg`` of the samples, ``A`` and ``B`` of the directions, and their new ``w`` and ``c``.
    """

    fields: tuple[Named, ...]
    weights: tuple[Named, ...]

    def __iter__(self) -> Iterator[Named]:
        yield from self.fields
        yield from self.weights


def response() -> MatrixExpr:
    """``dg/d omega`` for all tokens, ``V^-1 (I + V H)^-1 - V^-1``, by implicit differentiation.

    The proximal point obeys ``h - omega + V dloss/dh = 0`` with the loss's Hessian H; ``g = V^-1 (h - omega)``.
    """
    stationarity = _FIELD - _OMEGA + _V * LossSlope(_FIELD, H)
    # an equation holds along its solution: F_h dh + F_omega d omega = 0
    moved = -Inverse(jacobian(stationarity, _FIELD)) * jacobian(stationarity, _OMEGA)
    residual = Inverse(_V) * (_FIELD - _OMEGA)
    return jacobian(residual, _FIELD) * moved + jacobian(residual, _OMEGA)


@cache
def derive_iteration() -> Iteration:
    """Algorithm 1 for the ridge; any other regulariser puts its row's minimiser and response in place of w and c.

    Equations (G1)-(G8) of the replica-symmetric page.
    """
    kappa = sym.kappa

    def over_samples(body: Any) -> Any:
        return SampleSum.of(TokenSum.of(body.xreplace({sym.ell: kappa}), kappa))

    fitted = DirectionSum.of(xbar[sym.ell] * sym.w)
    precision = sym.ridges + A
    return Iteration(
        fields=(
            Named(sym.V, DirectionSum.of(sym.gamma[sym.ell] * c) / dimension),
            Named(sym.omega_field, fitted - sym.V * g_before),
        ),
        weights=(
            Named(sym.g_field, Inverse(sym.V) * (sym.prox_field - sym.omega_field)),
            Named(dg, Block(response(), sym.ell, sym.r)),
            Named(A, -over_samples(xbar[sym.ell] ** 2 * dg)),
            Named(B, over_samples(xbar[sym.ell] * sym.g_field) + A * sym.w),
            Named(sym.w, Inverse(precision) * B),
            Named(c, Inverse(precision)),
        ),
    )


# --- state evolution ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowProblem:
    """What a row of weights sees of many samples: curvature, source and covariance of the source's noise."""

    curvature: Any
    source: Any
    noise: Any


@cache
def concentrated() -> RowProblem:
    """State evolution of ``A`` and ``B``.

    ``xbar_l`` of a direction has mean ``tau_l/sqrt(d)`` and variance ``gamma_l/d`` and enters the fields of its token
    with the direction's own ``w`` and ``pi``.  To leading order, over ``alpha d`` samples, a sum of ``xbar^2 f`` is
    ``alpha gamma E[f]``, and one of ``xbar g`` has the mean ``alpha (tau E[g] + gamma E[dg/d omega] w + gamma E[dg/dk]
    pi)`` and the covariance ``alpha gamma E[g g^T]``.  Onsager's correction ``A w`` takes the row's own weights out.
    """
    ell, alpha = sym.ell, sym.alpha
    own, teacher = (FieldMean.of(FieldHessian(sym.g_field, field)) for field in (sym.omega_field, sym.k_field))
    mean, square = FieldMean.of(sym.g_field), FieldMean.of(sym.g_field * Transpose(sym.g_field))

    def total(body: Any) -> Any:
        return TokenSum.of(body, ell)

    curvature = -total(alpha * sym.gamma[ell] * own)
    pulled = MatAdd(
        total(alpha * sym.tau[ell] * mean),
        MatMul(total(alpha * sym.gamma[ell] * own), sym.w),
        total(alpha * sym.gamma[ell] * teacher * sym.pi),
    )
    source = (pulled + curvature * sym.w).doit()
    return RowProblem(curvature, source, total(alpha * sym.gamma[ell] * square))


def overlaps(row: RowProblem) -> dict[str, MatrixExpr]:
    """Order parameters by name, from the weights that the iteration gives a row: Gaussian, since the source is."""
    ell, equations = sym.ell, {named.unknown: named.value for named in derive_iteration()}
    variance = equations[c].xreplace({A: row.curvature})
    mean = equations[sym.w].xreplace({B: row.source, A: row.curvature})
    square = variance * row.noise * variance + mean * Transpose(mean)
    return {
        "V": SpectralMean.of(sym.gamma[ell] * variance),
        "q": SpectralMean.of(sym.gamma[ell] * square),
        "m": SpectralMean.of(sym.tau[ell] * mean),
        "theta": SpectralMean.of(sym.gamma[ell] * mean * Transpose(sym.pi)),
    }
