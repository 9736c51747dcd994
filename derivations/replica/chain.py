"""The replica calculation: from the replicated partition function to the zero-temperature free entropy.

The quantity is ``Phi = lim_(beta, d) log Z / (beta d)`` for the Gibbs measure ``exp(-beta R(W))`` of the risk (3); the
ground-state energy per dimension is ``-Phi``.  The chain of Appendix B is four rewrites, each a `Step` that holds the
named terms after it:

1. `replicated_moment`: ``log E Z^n / d`` for integer n, a function of the overlaps between replicas;
2. `replica_symmetric`: ``Q^aa = q + v, Q^ab = q`` and the same for the conjugates; the replicated Gaussian fields then
   factorise over a Gaussian common to all replicas;
3. `no_replicas`: the term linear in n, ``n -> 0``;
4. `zero_temperature`: ``v = V/beta``, conjugates scaled; the log-integral becomes minus a Moreau envelope.

Steps 2 to 4 are checked numerically at n = 1, 2 and finite temperature in ``tests/symbolic/test_replica.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from sympy import Add, Expr, Integer, Mul, Symbol, limit, oo, sympify
from sympy.matrices.expressions import Identity, MatrixExpr, Trace

from derivations.algebra import symbols as sym
from derivations.algebra.means import FieldMean, SpectralMean
from derivations.algebra.minima import MoreauEnvelope, QuadraticMinimum, RowMinimum
from derivations.algebra.tokens import TokenMatrix, TokenSum, operands
from derivations.replica.moments import CommonGaussianMoment, LogPartitionMean, ReplicatedMoment

__all__ = ["FreeEntropy", "Step", "derive_free_entropy"]


@dataclass(frozen=True)
class Step:
    """One rewrite of the chain: what was done, under which equation of the paper, and the named terms after it.

    ``latex`` is the printed name of what the sum of the terms is.
    """

    name: str
    equation: str
    statement: str
    terms: Mapping[str, Expr]
    latex: str

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
    """

    terms: Mapping[str, Expr]
    steps: tuple[Step, ...]

    @property
    def total(self) -> Expr:
        """``-Phi``, to be extremised."""
        return Add(*self.terms.values())

    @property
    def separable(self) -> bool:
        """Whether the regulariser was kept general, see `derive_free_entropy`."""
        return bool(self.total.has(RowMinimum))

    def __iter__(self) -> Iterator[tuple[str, Expr]]:
        return iter(self.terms.items())


def _at(matrix: TokenMatrix, index: Any) -> Any:
    return matrix.xreplace({matrix.index: index})


@cache
def stiffness() -> Any:
    """``sum_kappa gamma_kappa V_hat_kappa``: the quadratic part of one eigendirection's problem."""
    k = sym.kappa
    return TokenSum.of(sym.gamma[k] * _at(sym.V_hat, k), k)


@cache
def precision() -> MatrixExpr:
    """``R^-1 = lambda I + sum_kappa gamma_kappa V_hat_kappa``: the same with the ridge."""
    return sym.ridge * Identity(sym.r) + stiffness()


@cache
def source() -> MatrixExpr:
    """``b = sum_kappa (tau_kappa m_hat_kappa + gamma_kappa theta_hat_kappa pi)``."""
    k = sym.kappa
    return TokenSum.of(sym.tau[k] * _at(sym.m_hat, k) + sym.gamma[k] * _at(sym.theta_hat, k) * sym.pi, k)


@cache
def noise() -> MatrixExpr:
    """``sum_kappa gamma_kappa q_hat_kappa``: the covariance of the effective noise on one eigendirection."""
    k = sym.kappa
    return TokenSum.of(sym.gamma[k] * _at(sym.q_hat, k), k)


class _ReplicaSum(Expr):
    """``sum_a f^aa`` (pairs=False) or ``sum_(a != b) f^ab`` (pairs=True) of a replica-indexed scalar."""

    def __new__(cls, body: Any, pairs: Any) -> _ReplicaSum:
        return Expr.__new__(cls, body, sympify(pairs))

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        operator = r"\sum_{a \neq b}" if self.args[1] else r"\sum_{a}"
        return rf"{operator} {printer._print(self.args[0])}"


def _replicated(matrix: TokenMatrix, where: str) -> TokenMatrix:
    """The replica-indexed version of an order parameter, e.g. ``Q^ab``."""
    latex = {"q": "Q", "q_hat": r"\hat Q"}.get(matrix.name, matrix.latex_name) + f"^{{{where}}}"
    return TokenMatrix(f"{matrix.name}^{where}", *matrix.shape, matrix.index, symmetric=matrix.symmetric, latex=latex)


Q_AA, Q_AB = _replicated(sym.q, "aa"), _replicated(sym.q, "ab")
Q_HAT_AA, Q_HAT_AB = _replicated(sym.q_hat, "aa"), _replicated(sym.q_hat, "ab")
M_A, M_HAT_A = _replicated(sym.m, "a"), _replicated(sym.m_hat, "a")
THETA_A, THETA_HAT_A = _replicated(sym.theta, "a"), _replicated(sym.theta_hat, "a")
# finite-temperature variance v = q^aa - q^ab and its conjugate
V_BETA = TokenMatrix("v", sym.r, sym.r, sym.ell, symmetric=True, latex="v")
V_HAT_BETA = TokenMatrix("v_hat", sym.r, sym.r, sym.ell, symmetric=True, latex=r"\hat v")


def _step_replicated_moment() -> Step:
    ell, n = sym.ell, sym.n

    def over_tokens(body: Expr) -> Expr:
        return TokenSum.of(body, ell)

    def coupling(body: Expr, pairs: bool = False) -> Expr:
        return _ReplicaSum(over_tokens(body), pairs)

    return Step(
        "replicated moments",
        "App. B",
        r"The average of $Z^n$ over tokens and teacher depends on the weights only through the overlaps (6) of the "
        r"replicas. Fixing them with Fourier multipliers gives $\frac1d \log \mathbb{E}[Z^n]$ as an extremum; "
        r"$\Psi_y^{(n)}$ is the log-moment of the local fields with covariance $Q^{aa}$ within and $Q^{ab}$ between "
        r"replicas, $\Psi_w^{(n)}$ that of one row of the weights.",
        {
            "mean": -coupling(Trace(M_HAT_A.T * M_A)),
            "teacher": -coupling(Trace(THETA_HAT_A.T * THETA_A)),
            "overlap": coupling(Trace(Q_HAT_AA * Q_AA) / 2) - coupling(Trace(Q_HAT_AB * Q_AB) / 2, True),
            "prior": ReplicatedMoment("prior", Q_HAT_AA, Q_HAT_AB, n),
            "energy": sym.alpha * ReplicatedMoment("channel", Q_AA, Q_AB, n),
        },
        r"\frac1d \log \mathbb{E}\left[Z^n\right]",
    )


def _replica_symmetric(expression: Any) -> Any:
    """Replica sums become counts, replica matrices the ansatz, moments factorise over the common Gaussian."""
    if isinstance(expression, _ReplicaSum):
        body, pairs = expression.args
        count = sym.n * (sym.n - 1) if pairs else sym.n
        return count * _replica_symmetric(body)
    if isinstance(expression, ReplicatedMoment):
        return CommonGaussianMoment(expression.side, expression.args[3])
    ansatz = {
        Q_AA: sym.q + V_BETA,
        Q_AB: sym.q,
        Q_HAT_AA: V_HAT_BETA - sym.q_hat,
        Q_HAT_AB: sym.q_hat,
        M_A: sym.m,
        M_HAT_A: sym.m_hat,
        THETA_A: sym.theta,
        THETA_HAT_A: sym.theta_hat,
    }
    if expression in ansatz:
        return ansatz[expression]
    if not expression.args or isinstance(expression, TokenMatrix):
        return expression
    return expression.func(*(_replica_symmetric(a) for a in expression.args))


def _step_replica_symmetric(previous: Step, separable: bool) -> Step:
    penalty = (
        r"-\beta r(w) - \frac12 w^\top (\sum_\kappa \gamma_\kappa \hat v_\kappa) w"
        if separable
        else r"-\frac12 w^\top (\beta \lambda I + \sum_\kappa \gamma_\kappa \hat v_\kappa) w"
    )
    return Step(
        "replica-symmetric ansatz",
        "App. B",
        r"$Q^{aa} = q + v$, $Q^{ab} = q$; $\hat Q^{aa} = \hat v - \hat q$, $\hat Q^{ab} = \hat q$; $m^a = m$, "
        r"$\theta^a = \theta$ and likewise for the conjugates. Gaussian fields with such a covariance are "
        r"$h^a = \omega + v^{1/2}\eta^a$ with $\omega \sim \mathcal{N}(m, q)$ common to the replicas and $\eta^a$ "
        r"independent, so the moments factorise, with "
        r"$Z_y(\omega, k) = \mathbb{E}_\eta \exp[-\beta \ell(\omega + v^{1/2} \eta, k)]$ for one sample and "
        rf"$Z_w(z) = \int \mathrm{{d}}w \exp[{penalty} + (b + S^{{1/2}} z)^\top w]$, "
        r"$z \sim \mathcal{N}(0, I_r)$, for one row of the weights.",
        {name: _replica_symmetric(term) for name, term in previous.terms.items()},
        previous.latex,
    )


def _linear_in_n(expression: Expr) -> Expr:
    """Coefficient of n as n goes to 0, with ``d/dn log E Z^n = E log Z`` at n = 0 for the factorised moments."""
    moments = expression.atoms(CommonGaussianMoment)
    result = expression.subs({moment: sym.n * LogPartitionMean(moment.side) for moment in moments})
    return result.diff(sym.n).subs(sym.n, 0)


def _expand_traces(expression: Any) -> Any:
    """``Tr[(A + B)(C + D)]`` inside token sums as a sum of traces."""
    if isinstance(expression, TokenSum):
        body = _expand_traces(expression.body)
        terms = body.args if isinstance(body, Add) else (body,)
        return Add(*(TokenSum.of(term, expression.index) for term in terms))
    if isinstance(expression, Trace):
        expanded: Any = operands(expression)[0].expand()
        terms = expanded.args if expanded.is_MatAdd else (expanded,)
        result = []
        for term in terms:
            coefficient, matrix = term.as_coeff_mmul()
            result.append(coefficient * Trace(matrix))
        return Add(*result)
    if isinstance(expression, (Add, Mul)):
        return expression.func(*(_expand_traces(a) for a in expression.args)).expand()
    return expression


def _pull_coefficients(expression: Any) -> Any:
    """Numbers and temperatures out of token sums, so that equal sums cancel."""
    if isinstance(expression, TokenSum):
        coefficient, rest = expression.body.as_independent(Trace, as_Add=False)
        return coefficient * TokenSum.of(rest, expression.index)
    if isinstance(expression, (Add, Mul)):
        return expression.func(*(_pull_coefficients(a) for a in expression.args))
    return expression


def _step_no_replicas(previous: Step) -> Step:
    terms = {name: _pull_coefficients(_expand_traces(_linear_in_n(term))) for name, term in previous.terms.items()}
    return Step(
        "no replicas",
        "App. B",
        r"The coefficient of $n$ as $n \to 0$: pairs count $n(n-1) \to -n$ and "
        r"$\log \mathbb{E}[Z^n] = n \mathbb{E}[\log Z] + O(n^2)$.",
        terms,
        r"\frac1d \mathbb{E}\left[\log Z\right]",
    )


def _scale_temperature(expression: Any) -> Any:
    beta = sym.beta
    scaling = {
        V_BETA: (1 / beta, sym.V),
        V_HAT_BETA: (beta, sym.V_hat),
        sym.q_hat: (beta**2, sym.q_hat),
        sym.m_hat: (beta, sym.m_hat),
        sym.theta_hat: (beta, sym.theta_hat),
    }
    if isinstance(expression, Trace):
        factors, scalar = [], Integer(1)
        (product,) = operands(expression)
        for factor in product.args:
            inner = factor.arg if factor.is_Transpose else factor
            if inner in scaling:
                power, symbol = scaling[inner]
                scalar *= power
                factor = symbol.T if factor.is_Transpose else symbol
            factors.append(factor)
        return scalar * Trace(product.func(*factors))
    if not expression.args or isinstance(expression, (LogPartitionMean, TokenMatrix)):
        return expression
    return expression.func(*(_scale_temperature(a) for a in expression.args))


# what -1/beta times the log-integrals tend to when beta grows: Laplace's method
_GROUND_STATES: dict[str, Expr] = {
    "channel": FieldMean.of(MoreauEnvelope(sym.omega_field, sym.k_field, sym.V, sym.g_field)),
    "prior": SpectralMean.of(QuadraticMinimum(precision(), source(), noise())),
}
# the same for any convex regulariser that is separable in the common eigenbasis
_SEPARABLE = _GROUND_STATES | {
    "prior": SpectralMean.of(RowMinimum(stiffness(), source(), noise(), sym.w, sym.chi)),
}


def _ground_state(expression: Expr, ground_states: Mapping[str, Expr]) -> Expr:
    """``lim -expression / beta``; Laplace's method turns a log-integral into the minimum of its exponent."""
    scaled = _pull_coefficients(_scale_temperature(expression))
    placeholders: dict[Expr, Symbol] = {}
    for log_mean in scaled.atoms(LogPartitionMean):
        minimum = Symbol(f"ground_state_{log_mean.side}")
        placeholders[ground_states[log_mean.side]] = minimum
        scaled = scaled.subs(log_mean, -sym.beta * minimum)
    for total in scaled.atoms(TokenSum):
        placeholders[total] = Symbol(f"sum_{len(placeholders)}")
    plain = scaled.xreplace(placeholders)
    result = limit((-plain / sym.beta).expand(), sym.beta, oo)
    return result.xreplace({symbol: value for value, symbol in placeholders.items()})


def _step_zero_temperature(previous: Step, ground_states: Mapping[str, Expr]) -> Step:
    terms = {name: _ground_state(term, ground_states) for name, term in previous.terms.items()}
    overlap = terms.pop("overlap")
    parts = overlap.args if isinstance(overlap, Add) else (overlap,)
    named = {("variance" if part.has(sym.q_hat) else "overlap"): part for part in parts}
    ordered = {
        "energy": terms["energy"],
        **named,
        "mean": terms["mean"],
        "teacher": terms["teacher"],
        "prior": terms["prior"],
    }
    return Step(
        "zero temperature",
        "(100), (104)",
        r"$v = V/\beta$, $\hat v = \beta \hat V$, $\hat q \to \beta^2 \hat q$, $\hat m \to \beta \hat m$, "
        r"$\hat\theta \to \beta \hat\theta$ and $\beta \to \infty$. By Laplace's method $-\frac1\beta \log Z_y$ "
        r"becomes the Moreau envelope $\mathcal{M}$ of the loss and $-\frac1\beta \log Z_w$ the minimum of one "
        r"eigendirection's problem. Divided by $-\beta$, the terms add up to $-\Phi$.",
        ordered,
        r"-\Phi",
    )


@cache
def derive_free_entropy(*, separable: bool = False) -> FreeEntropy:
    """Build ``-Phi`` with L, r and t symbolic.

    The result does not depend on the scores, which enter only through the loss inside the Moreau envelope, nor on
    weight tying, which only sets r.

    Parameters
    ----------
    separable : bool
        Keep any convex regulariser ``r(w)`` of the rows in the common eigenbasis, equation (100). By default the ridge,
        whose row problem is a completed square, equation (108).
    """
    first = _step_replicated_moment()
    second = _step_replica_symmetric(first, separable)
    third = _step_no_replicas(second)
    fourth = _step_zero_temperature(third, _SEPARABLE if separable else _GROUND_STATES)
    if separable:
        return FreeEntropy(fourth.terms, (first, second, third, fourth))
    terms = {name: _complete_squares(term) for name, term in fourth.terms.items()}
    fifth = Step(
        "ridge prior",
        "(108)",
        r"For the ridge the minimum over one row of the weights is a completed square, reached at "
        r"$w = R (b + S^{1/2} z)$.",
        terms,
        fourth.latex,
    )
    return FreeEntropy(terms, (first, second, third, fourth, fifth))


def _complete_squares(term: Any) -> Expr:
    return term.xreplace({node: node.doit() for node in term.atoms(QuadraticMinimum)})
