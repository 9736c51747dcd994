"""One-pass stochastic gradient descent and gradient flow on the population risk: closed equations for the overlaps.

A step takes fresh samples, so that what they do to a row of the weights is a sum of independent terms: its mean and its
covariance are the rule of state evolution, `derivations.replica.amp.concentrated`, with minus the gradient of a
sample's loss at its own fields as the residual ``g``.  In the time of d steps a row obeys a linear stochastic equation
whose coefficients are the conjugates of (8) at these residuals.  Its mean, given the projections of its direction, and
the covariance around it close, and so do the overlaps, by Ito's formula.

Noise of the labels that a loss is quadratic in (`derivations.models.noise`) leaves the mean of ``g``, which is affine
in it, as it is; the mean of ``g g^T`` and that of the loss, quadratic in it, gain by half of their second derivatives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from sympy import S, Symbol
from sympy.matrices.expressions import Identity, MatAdd, MatMul, Trace, Transpose

from derivations.algebra import symbols as sym
from derivations.algebra.calculus import differential, differential_symbol, transposed
from derivations.algebra.means import FieldMean, SpectralMean
from derivations.algebra.minima import FieldHessian, FieldLoss
from derivations.algebra.tokens import SampleSum, TokenMatrix, TokenSum
from derivations.models.symbolic import GENERIC
from derivations.replica.amp import Named, dimension, xbar
from derivations.replica.chain import derive_free_entropy, noise, precision, source
from derivations.replica.saddle_point import NOISE, SOURCE, Equation, derive_saddle_point

__all__ = [
    "NOISE_CURVATURE",
    "NOISE_ROW",
    "SCATTER",
    "STIFFNESS",
    "Flow",
    "derive_flow",
    "eta",
    "ito",
    "names",
    "samples",
]

eta = Symbol("eta", positive=True)
samples = Symbol("s", positive=True)  # of a step

STIFFNESS = TokenMatrix("A", sym.r, sym.r, None, symmetric=True, latex="A")
VELOCITY = TokenMatrix("u", sym.r, 1, None, latex="u")
SCATTER = TokenMatrix("C", sym.r, sym.r, None, symmetric=True, latex="C")
_DEVIATION = TokenMatrix("delta", sym.r, 1, None, latex=r"\delta")

# a token's row of the labels' noise, the slopes of a residual in it, and the loss's curvature
NOISE_ROW = TokenMatrix("Z", sym.L, 1, sym.kappa, latex=r"\mathsf{Z}")
_SLOPES = TokenMatrix("J", sym.r, sym.L, sym.kappa)
NOISE_CURVATURE = TokenMatrix("K", sym.L, sym.L, sym.kappa, symmetric=True, latex=r"\ell^{\mathsf{ZZ}}")


@dataclass(frozen=True)
class Flow:
    """The equations, per unit of the time ``tau``, of d steps.

    Attributes
    ----------
    step : Named
        What one step does to a row.
    rates : tuple of Named
        Of the overlaps; the mean is over the rows, too.
    mean, scatter : Named
        Rates of the mean of a row given its projections, and of the covariance `SCATTER` around it.
    overlaps : tuple of Named
        By the means and covariances of the rows.
    norm : Expr
        The squared norm of the weights over d, likewise.
    penalty : Expr
        The ridge in the risk over d, likewise.
    conjugates : tuple of Equation
        (8) for one sample a direction: what drift and noise are made of.
    loss : Expr
        The mean loss of a fresh sample.
    square_gain, loss_gain : Expr
        What noise of the labels adds to the conjugate of q and to that loss.
    """

    step: Named
    rates: tuple[Named, ...]
    mean: Named
    scatter: Named
    overlaps: tuple[Named, ...]
    norm: Any
    penalty: Any
    conjugates: tuple[Equation, ...]
    loss: Any
    square_gain: Any
    loss_gain: Any

    def __iter__(self) -> Iterator[Named]:
        yield from (*self.rates, self.mean, self.scatter, *self.overlaps)


def names() -> dict[TokenMatrix, Any]:
    """Of one eigendirection: ``b``, ``Lambda`` and ``S``, which `concentrated` has at one sample, and what they make.

    Equations (R1)-(R4) of the dynamics page.

    A row moves at ``eta u``, and the covariance of rows around their mean shrinks by ``eta A`` on either side.
    """
    return {
        SOURCE: source(),
        NOISE: noise(),
        STIFFNESS: precision(),
        VELOCITY: MatAdd(SOURCE, MatMul(-1, STIFFNESS, sym.w)),
    }


def ito(expression: Any, variable: TokenMatrix, drift: Any, covariance: Any) -> Any:
    """Rate of a quadratic expression in a column that drifts, and gains noise of this covariance per unit of time."""
    change = differential_symbol(variable)
    first = differential(expression, variable)
    moved = _replaced(first, (change,), drift)
    moved = _replaced(moved, (Transpose(change),), transposed(drift))
    second = _second_order(expression, variable, covariance)
    return moved if second is None else MatAdd(moved, second)


def _second_order(expression: Any, variable: TokenMatrix, covariance: Any) -> Any:
    """Mean change of an expression in a column that gains noise of this covariance; None for a linear one."""
    change, second = differential_symbol(variable), differential(differential(expression, variable), variable)
    if second is None:
        return None
    # half of the second differential: what is quadratic in a change stands twice in it
    whole = second.doit(deep=False) if isinstance(second, MatAdd) else second
    return _replaced(MatMul(S.Half, whole), (change, Transpose(change)), covariance)


def _noise_gains() -> tuple[Any, Any]:
    """Of ``g g^T`` and of the loss: independent entries of variance Delta, a row for every token, which add up."""
    covariance = MatMul(sym.noise_variance, Identity(sym.L))
    affine = MatAdd(sym.g_field, MatMul(_SLOPES, NOISE_ROW))
    square = _second_order(MatMul(affine, Transpose(affine)), NOISE_ROW, covariance)
    curved = MatMul(S.Half, NOISE_CURVATURE, NOISE_ROW, Transpose(NOISE_ROW))
    loss = _second_order(curved, NOISE_ROW, covariance)
    square = square.xreplace({_SLOPES: FieldHessian(sym.g_field, NOISE_ROW)})
    return tuple(TokenSum.of(FieldMean.of(body.doit(deep=False)), sym.kappa) for body in (square, Trace(loss)))


def _terms(matrix: Any) -> list[Any]:
    """Of nested sums."""
    return [t for a in matrix.args for t in _terms(a)] if isinstance(matrix, MatAdd) else [matrix]


def _factors(product: Any) -> list[Any]:
    """Of nested products."""
    return [f for a in product.args for f in _factors(a)] if isinstance(product, MatMul) else [product]


def _replaced(matrix: Any, factors: tuple[Any, ...], value: Any) -> Any:
    """The sum of products with neighbouring factors replaced by a matrix, wherever they stand."""
    size, done = len(factors), []
    for term in _terms(matrix):
        parts = _factors(term)
        places = [i for i in range(len(parts)) if tuple(parts[i : i + size]) == factors]
        done.append(MatMul(*parts[: places[0]], value, *parts[places[0] + size :]).doit(deep=False) if places else term)
    return done[0] if len(done) == 1 else MatAdd(*done)


@cache
def derive_flow() -> Flow:
    """The equations for any loss of the local fields and the ridges.

    Equations (S1), (R5), (Q1)-(Q6), (F1)-(F6) of the dynamics page.
    """
    kappa, w = sym.kappa, sym.w
    pull = SampleSum.of(TokenSum.of(xbar[kappa] * sym.g_field.xreplace({sym.ell: kappa}), kappa))
    step = MatAdd(w, MatMul(eta / samples, pull), MatMul(-eta / dimension, sym.ridges, w))
    # d steps: d s independent samples a unit of time, each with the mean (b - Lambda w)/d and the covariance S/d
    drift, gained = MatMul(eta, VELOCITY), MatMul(eta**2 / samples, NOISE)
    around = MatMul(-eta, STIFFNESS, _DEVIATION)
    scatter = ito(_DEVIATION * Transpose(_DEVIATION), _DEVIATION, around, gained)
    weighted = {
        "q": MatMul(sym.gamma[sym.ell], w, Transpose(w)),
        "m": MatMul(sym.tau[sym.ell], w),
        "theta": MatMul(sym.gamma[sym.ell], w, Transpose(sym.pi)),
    }
    overlaps = {unknown: weighted[unknown.name] for unknown in (sym.q, sym.m, sym.theta)}
    norm = MatMul(w, Transpose(w))
    saddle_point = derive_saddle_point(derive_free_entropy(GENERIC))
    square_gain, loss_gain = _noise_gains()
    return Flow(
        step=Named(w, step),
        rates=tuple(Named(unknown, _mean(ito(body, w, drift, gained))) for unknown, body in overlaps.items()),
        mean=Named(w, drift),
        scatter=Named(SCATTER, _about_mean(scatter)),
        overlaps=tuple(Named(unknown, _mean(_with_scatter(body))) for unknown, body in overlaps.items()),
        norm=Trace(_mean(_with_scatter(norm))),
        penalty=Trace(MatMul(S.Half, sym.ridges, _mean(_with_scatter(norm)))),
        conjugates=tuple(_of_one_sample(equation) for equation in saddle_point.conjugates),
        loss=FieldMean.of(FieldLoss(sym.omega_field, sym.k_field)),
        square_gain=square_gain,
        loss_gain=loss_gain,
    )


def _mean(body: Any) -> Any:
    """The mean over the directions, term by term."""
    return MatAdd(*(SpectralMean.of(term) for term in _terms(body))).doit(deep=False)


def _with_scatter(body: Any) -> Any:
    """The mean given a direction's projections: ``w`` is its own mean, and ``C`` the covariance around it."""
    square = _replaced(body, (sym.w, Transpose(sym.w)), SCATTER)
    return body if square == body else MatAdd(body, square)


def _about_mean(body: Any) -> Any:
    return _replaced(body, (_DEVIATION, Transpose(_DEVIATION)), SCATTER)


def _of_one_sample(equation: Equation) -> Equation:
    """(8) for one sample a direction, at any residual: Stein's lemma knows nothing of the proximal problem."""
    value: Any = equation.right_hand_side.xreplace({sym.alpha: S.One}).doit(deep=False)
    return Equation(equation.unknown, value, equation.stationary_in, equation.number)
