"""The replica calculation: from the replicated partition function to the zero-temperature free entropy.

The quantity is ``Phi = lim_(beta, d) log Z / (beta d)`` for the Gibbs measure ``exp(-beta R(W))`` of the risk (3); the
ground-state energy per dimension is ``-Phi``.  The chain of Appendix B is four rewrites, each a `Step` that holds the
named terms after it, with their integrals:

1. `replicated moments`: ``log E Z^n / d`` for integer n, a function of the overlaps between replicas;
2. the ansatz: overlaps of replicas by classes of pairs, ``Q^aa = q + v, Q^ab = q`` for replica symmetry; the replicated
   Gaussian fields then factorise over Gaussians common to groups of replicas;
3. `no replicas`: the term linear in n, ``n -> 0``;
4. `zero temperature`: ``v = V/beta``, conjugates scaled; the log-integral becomes minus a Moreau envelope.

With the ridge a fifth does the integral over the weights.  The steps know neither the ansatz nor which integral is
whose: they ask the nodes (`derivations.replica.moments`) and the `Ansatz`.  ``tests/symbolic/test_replica.py`` and
``test_one_rsb.py`` evaluate the terms of every step, at n = 1, 2, ... and finite temperature, and compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sympy import Add, Expr, Symbol, expand_mul, factor_terms, limit, oo, sift
from sympy.matrices.expressions import MatrixExpr, Trace

from derivations.algebra import symbols as sym
from derivations.algebra.means import SpectralMean
from derivations.algebra.minima import QuadraticMinimum, RowMinimum, RowPenalty
from derivations.algebra.tokens import TokenMatrix, TokenSum
from derivations.replica.ansatz import (
    M_A,
    M_HAT_A,
    Q_AA,
    Q_AB,
    Q_HAT_AA,
    Q_HAT_AB,
    REPLICA_SYMMETRIC,
    THETA_A,
    THETA_HAT_A,
    V_HAT_BETA,
    Ansatz,
    ReplicaSum,
)
from derivations.replica.moments import (
    CommonGaussianMoment,
    LogPartitionMean,
    ReplicatedMoment,
    RidgePenalty,
    RowIntegral,
    SampleIntegral,
    SampleLoss,
)
from derivations.replica.one_rsb_nodes import LogDeterminant, TiltedQuadratic, TiltedRow
from derivations.replica.rewriting import expanded, pulled

__all__ = ["FreeEntropy", "Step", "derive_free_entropy"]


@dataclass(frozen=True)
class Step:
    """One rewrite of the chain: what was done, under which equation of the paper, and the named terms after it.

    ``latex`` is the printed name of what the sum of the terms is; ``names`` are what matrices in them are called there.
    """

    name: str
    equation: str
    statement: str
    terms: Mapping[str, Expr]
    latex: str
    names: Mapping[TokenMatrix, Any] = field(default_factory=dict)

    @property
    def total(self) -> Expr:
        """Sum of the terms."""
        return Add(*self.terms.values())


@dataclass(frozen=True, eq=False)
class FreeEntropy:
    """``-Phi`` of (104), (108) as named terms, with the chain of steps that produced it.

    Attributes
    ----------
    terms : mapping of str to Expr
        ``energy`` (alpha times the mean Moreau envelope), ``variance``, ``overlap``, ``mean`` and ``teacher`` (the
        couplings of order parameters to their conjugates) and ``prior`` (the mean over the spectral measure).
    steps : tuple of Step
    ansatz : Ansatz
    """

    terms: Mapping[str, Expr]
    steps: tuple[Step, ...]
    ansatz: Ansatz = REPLICA_SYMMETRIC

    @property
    def total(self) -> Expr:
        """``-Phi``, to be extremised."""
        return Add(*self.terms.values())

    @property
    def separable(self) -> bool:
        """Whether the regulariser was kept general, see `derive_free_entropy`."""
        return bool(self.total.has(RowMinimum, TiltedRow))

    def __iter__(self) -> Iterator[tuple[str, Expr]]:
        return iter(self.terms.items())


def _at(matrix: TokenMatrix, index: Any) -> Any:
    return matrix.xreplace({matrix.index: index})


def weighted(matrix: TokenMatrix) -> Any:
    """``sum_kappa gamma_kappa X_kappa``: what the conjugates of covariances do to one eigendirection."""
    k = sym.kappa
    return TokenSum.of(sym.gamma[k] * _at(matrix, k), k)


@cache
def stiffness() -> Any:
    """``sum_kappa gamma_kappa V_hat_kappa``: the quadratic part of one eigendirection's problem."""
    return weighted(sym.V_hat)


@cache
def precision() -> MatrixExpr:
    """``R^-1 = Lambda + sum_kappa gamma_kappa V_hat_kappa``: the same with the ridges, which are ``lambda I`` if alike.

    Equation (P2) of the replica-symmetric page.
    """
    return sym.ridges + stiffness()


@cache
def source() -> MatrixExpr:
    """``b = sum_kappa (tau_kappa m_hat_kappa + gamma_kappa theta_hat_kappa pi)``.

    Equation (P3) of the replica-symmetric page.
    """
    return _source(sym.m_hat, sym.theta_hat)


def _source(m_hat: TokenMatrix, theta_hat: TokenMatrix) -> Any:
    k = sym.kappa
    return TokenSum.of(sym.tau[k] * _at(m_hat, k) + sym.gamma[k] * _at(theta_hat, k) * sym.pi, k)


@cache
def noise() -> MatrixExpr:
    """``sum_kappa gamma_kappa q_hat_kappa``: the covariance of the effective noise on one eigendirection.

    Equation (P4) of the replica-symmetric page.
    """
    return weighted(sym.q_hat)


# --- the steps ------------------------------------------------------------------------------------------------------


def _step_replicated_moment(model: Any, separable: bool) -> Step:
    ell, n, beta = sym.ell, sym.n, sym.beta

    def over_tokens(body: Expr) -> Expr:
        return TokenSum.of(body, ell)

    def coupling(body: Expr, pairs: bool = False) -> Expr:
        return ReplicaSum(over_tokens(body), pairs)

    penalty = RowPenalty(sym.w) if separable else RidgePenalty(sym.ridges, sym.w)
    b, within, between = _source(M_HAT_A, THETA_HAT_A), weighted(Q_HAT_AA), weighted(Q_HAT_AB)
    sample = SampleIntegral(M_A, THETA_A, sym.rho, SampleLoss(model), beta)
    row = RowIntegral(b, penalty, beta)
    return Step(
        "replicated moments",
        "App. B",
        r"The average of $Z^n$ over tokens and teacher depends on the weights only through the overlaps (6) of the "
        r"replicas. Fixing them with Fourier multipliers gives $\frac1d \log \mathbb{E}[Z^n]$ as an extremum. Its two "
        r"integrals are over the local fields of one sample, $h^a \sim \mathcal{N}(m^a, Q^{aa})$ with the covariance "
        r"$Q^{ab}$ between replicas, $\theta^a$ with the teacher's $k$ and $\rho$ of $k$, all per token, and over the "
        r"rows $w^a$ of the replicas' weights in one eigendirection.",
        {
            "mean": -coupling(Trace(M_HAT_A.T * M_A)),
            "teacher": -coupling(Trace(THETA_HAT_A.T * THETA_A)),
            "overlap": coupling(Trace(Q_HAT_AA * Q_AA) / 2) - coupling(Trace(Q_HAT_AB * Q_AB) / 2, True),
            "prior": SpectralMean.of(ReplicatedMoment(row, within, between, n)),
            "energy": sym.alpha * ReplicatedMoment(sample, Q_AA, Q_AB, n),
        },
        r"\frac1d \log \mathbb{E}\left[Z^n\right]",
        {_named("b", r"b^{a}", 1): b, _named("S_aa", r"S^{aa}"): within, _named("S_ab", r"S^{ab}"): between},
    )


def _named(name: str, latex: str, columns: Any = sym.r) -> TokenMatrix:
    """A matrix of one eigendirection under a name of its own."""
    return TokenMatrix(name, sym.r, columns, None, latex=latex)


_STIFFNESS = {_named("Lambda", r"\Lambda"): weighted(V_HAT_BETA)}


def _step_ansatz(previous: Step, ansatz: Ansatz) -> Step:
    terms = {name: ansatz.applied(term) for name, term in previous.terms.items()}
    return Step(ansatz.name, ansatz.equations[0], ansatz.factorised, terms, previous.latex, _STIFFNESS)


def _linear_in_n(expression: Expr) -> Expr:
    """Coefficient of n as n goes to 0, with ``d/dn log E Z^n = E log Z`` at n = 0 for the factorised moments."""
    moments = expression.atoms(CommonGaussianMoment)
    result = pulled(expression.xreplace({moment: sym.n * moment.at_first_order(sym.n) for moment in moments}))
    return result.diff(sym.n).subs(sym.n, 0)


def _step_no_replicas(previous: Step, ansatz: Ansatz) -> Step:
    terms = {name: pulled(expanded(_linear_in_n(term))) for name, term in previous.terms.items()}
    return Step(
        "no replicas",
        ansatz.equations[1],
        ansatz.no_replicas,
        terms,
        r"\frac1d \mathbb{E}\left[\log Z\right]",
        _STIFFNESS,
    )


def _ground_state(expression: Expr, ansatz: Ansatz) -> Expr:
    """``lim -expression / beta``; Laplace's method turns a log-integral into the minimum of its exponent."""
    scaled = ansatz.scaled(expression)
    moments = scaled.atoms(LogPartitionMean)
    scaled = pulled(scaled.xreplace({moment: moment.ground_state(sym.beta) for moment in moments}))
    names = {node: Symbol(f"node_{i}") for i, node in enumerate(_nodes(scaled))}
    plain = scaled.xreplace(names)
    result = limit((-plain / sym.beta).expand(), sym.beta, oo)
    return result.xreplace({symbol: node for node, symbol in names.items()})


def _nodes(expression: Any) -> list[Any]:
    """What a polynomial expression is made of besides symbols and numbers."""
    if expression.is_Add or expression.is_Mul or expression.is_Pow:
        return list(dict.fromkeys(node for a in expression.args for node in _nodes(a)))
    return [expression] if expression.args else []


def _step_zero_temperature(previous: Step, ansatz: Ansatz) -> Step:
    terms = {name: _ground_state(term, ansatz) for name, term in previous.terms.items()}
    overlap = Add.make_args(terms.pop("overlap"))
    ordered = {
        "energy": terms["energy"],
        "variance": Add(*(part for part in overlap if part.has(sym.V))),
        "overlap": Add(*(part for part in overlap if not part.has(sym.V))),
        "mean": terms["mean"],
        "teacher": terms["teacher"],
        "prior": terms["prior"],
    }
    return Step("zero temperature", ansatz.equations[2], ansatz.zero_temperature, ordered, ansatz.latex)


def _step_ridge(previous: Step, ansatz: Ansatz) -> Step:
    terms = {name: _complete_squares(term) for name, term in previous.terms.items()}
    return Step("ridge prior", ansatz.equations[3], ansatz.ridge, terms, previous.latex)


def _complete_squares(term: Any) -> Expr:
    done = term.xreplace({node: node.doit() for node in term.atoms(QuadraticMinimum, TiltedQuadratic)})
    means = {mean: _apart(mean) for mean in done.atoms(SpectralMean) if mean.body.is_Add}
    return expand_mul(done.xreplace(means), deep=False)


def _apart(mean: Any) -> Expr:
    """A mean over eigendirections as that of logarithms of determinants and that of the rest."""
    logarithms, rest = sift(mean.body.args, lambda a: a.has(LogDeterminant), binary=True)
    return pulled(mean.apply(factor_terms(Add(*logarithms)))) + pulled(mean.apply(Add(*rest)))


@cache
def derive_free_entropy(model: Any, ansatz: Ansatz = REPLICA_SYMMETRIC, *, separable: bool = False) -> FreeEntropy:
    """Build the free entropy of a model, ``-Phi`` under replica symmetry, with L, r and t symbolic.

    Equations (R1)-(R4), (F1) of the replica-symmetric page. Equations (R1)-(R4), (F1) of the 1RSB page.

    Parameters
    ----------
    model : AttentionModel, ScalarModel or SymbolicModel
        Whose loss stands in the exponents and in the Moreau envelope.  Nothing else depends on it, nor on weight tying,
        which only sets r; where no model matters, ``derivations.models.symbolic.GENERIC`` has the symbol ``ell(h, k)``.
    ansatz : Ansatz
        What is assumed of the replicas.
    separable : bool
        Keep any convex regulariser ``r(w)`` of the rows in the common eigenbasis, equation (100). By default the ridge,
        whose row problem is a completed square, equation (108).
    """
    first = _step_replicated_moment(model, separable)
    second = _step_ansatz(first, ansatz)
    third = _step_no_replicas(second, ansatz)
    fourth = _step_zero_temperature(third, ansatz)
    steps = (first, second, third, fourth)
    if not separable:
        steps = (*steps, _step_ridge(fourth, ansatz))
    return FreeEntropy(steps[-1].terms, steps, ansatz)
