"""The Bayes-optimal limit: free entropy and fixed-point equations of a learner who knows all but the teacher's weights.

The chain is that of `derivations.replica.chain` for another measure, the posterior: the replicated moments of
`derivations.replica.posterior`, one overlap for any two of n exchangeable replicas of which the teacher is one, and the
coefficient of ``n - 1`` as n goes to 1.  `derive_bayes_optimal` differentiates what comes out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from sympy import Add, Integer
from sympy.matrices.expressions import Inverse, MatAdd, MatMul, Trace, Transpose, ZeroMatrix

from derivations.algebra import symbols as sym
from derivations.algebra.calculus import gradient, solve_linear
from derivations.algebra.means import FieldMean, SpectralMean
from derivations.algebra.tokens import TokenMatrix, TokenSum, is_matrix
from derivations.replica.ansatz import Ansatz, PairClass, ReplicaSum
from derivations.replica.chain import Step, weighted
from derivations.replica.moments import CommonGaussianMoment, ReplicatedMoment
from derivations.replica.posterior import OBSERVATIONS, ObservationIntegral, WeightEntropy, WeightIntegral
from derivations.replica.rewriting import difference, expanded, multiple, pulled
from derivations.replica.saddle_point import Equation

__all__ = ["NISHIMORI", "Bayes", "abbreviated", "definitions", "derive_bayes_optimal", "test_error"]

_T = sym.t
Q_AA = TokenMatrix("q^aa", _T, _T, sym.ell, symmetric=True, latex="Q^{aa}")
Q_AB = TokenMatrix("q^ab", _T, _T, sym.ell, symmetric=True, latex="Q^{ab}")
Q_HAT_AA = TokenMatrix("q_hat^aa", _T, _T, sym.ell, symmetric=True, latex=r"\hat Q^{aa}")
Q_HAT_AB = TokenMatrix("q_hat^ab", _T, _T, sym.ell, symmetric=True, latex=r"\hat Q^{ab}")
NOISE = TokenMatrix("S", _T, _T, None, symmetric=True, latex=r"\Lambda")
RESOLVENT = TokenMatrix("R", _T, _T, None, symmetric=True, latex="R")

NISHIMORI = Ansatz(
    name="Nishimori ansatz",
    latex=r"\Phi",
    classes=(
        PairClass("equal", Integer(0), Integer(1), sym.rho, ZeroMatrix(_T, _T)),
        PairClass("different", Integer(1), sym.n, sym.q_star, sym.q_hat_star),
    ),
    scalings=(),
    factorised=r"Teacher and learner are exchangeable: $Q^{aa} = \rho$, which the prior fixes, so that "
    r"$\hat Q^{aa} = 0$, and $Q^{ab} = q$, $\hat Q^{ab} = \hat q$ for any two. Fields with such a covariance are "
    r"$k^a = \omega + V^{1/2} \eta^a$ with $V = \rho - q$, $\omega \sim \mathcal{N}(0, q)$ common to the replicas and "
    r"$\eta^a \sim \mathcal{N}(0, I_t)$ independent; the pairs of weights are a mean over a common source.",
    no_replicas=r"The coefficient of $n - 1$ as $n \to 1$: pairs count $n(n-1) \to n - 1$, and "
    r"$\log \mathbb{E}[Z^n] = (n - 1) \, \mathbb{E}[Z \log Z] + O((n-1)^2)$, since $\mathbb{E}[Z] = 1$ is the norm of "
    r"the observations.",
    zero_temperature="",
    ridge=r"A row of the teacher's weights has the prior $\mathcal{N}(\bar\pi, P^{-1})$, given the eigenvalues and the "
    r"encodings of its direction; both integrals are Gaussian.",
)


@dataclass(frozen=True, eq=False)
class Bayes:
    """What a learner who knows the model can reach.

    Attributes
    ----------
    steps : tuple of Step
        From the replicated moments to the free entropy, with the named terms after each.
    q, V, q_hat : Equation
        The overlap (stationarity in ``q_hat``), what it leaves of ``rho``, and the conjugate (stationarity in q).
    q_hat_precise : MatrixExpr
        The conjugate by the posterior's covariance, which is small where V is.
    """

    steps: tuple[Step, ...]
    q: Equation
    V: Equation
    q_hat: Equation
    q_hat_precise: Any

    @property
    def terms(self) -> Any:
        """Named terms of the free entropy per dimension."""
        return self.steps[-1].terms

    @property
    def total(self) -> Any:
        """The free entropy ``Phi``, to be extremised."""
        return self.steps[-1].total


def noise() -> Any:
    """``Lambda = sum_kappa gamma_kappa q_hat_kappa``."""
    return weighted(sym.q_hat_star)


def definitions() -> dict[TokenMatrix, Any]:
    """``Lambda`` and ``R = (P + Lambda)^-1`` of one eigendirection.

    Equations (E1)-(E2) of the Bayes-optimal page.
    """
    return {NOISE: noise(), RESOLVENT: Inverse(sym.prior_precision + noise())}


def abbreviated(expression: Any) -> Any:
    """The expression with these names in place of what they stand for."""
    names: dict[Any, Any] = {value: name for name, value in reversed(definitions().items())}
    return expression.xreplace(names)


def _replicated() -> Step:
    ell, n = sym.ell, sym.n

    def coupling(body: Any, pairs: bool) -> Any:
        return ReplicaSum(TokenSum.of(body, ell), pairs)

    row = WeightIntegral(sym.prior_mean, sym.prior_precision)
    within, between = weighted(Q_HAT_AA), weighted(Q_HAT_AB)
    return Step(
        "replicated moments",
        "",
        r"The learner draws weights from the posterior, $P(W) \prod_\mu P_\mathrm{out}(Y^\mu \mid x^\mu W/\sqrt{d})$ "
        r"over the evidence $P(Y \mid x)$. With $Y$ from the teacher, $\mathbb{E}[P(Y \mid x)^{n-1}]$ is an integral "
        r"over $n$ replicas, the teacher one of them, that meet in every observation. It depends on their overlaps "
        r"$Q^{ab}_\ell$ alone, which Fourier multipliers fix.",
        {
            "overlap": coupling(Trace(Q_HAT_AA * Q_AA) / 2, False) - coupling(Trace(Q_HAT_AB * Q_AB) / 2, True),
            "prior": SpectralMean.of(ReplicatedMoment(row, within, between, n)),
            "observations": sym.alpha * ReplicatedMoment(ObservationIntegral(), Q_AA, Q_AB, n),
        },
        r"\frac1d \log \mathbb{E}\left[P(Y \mid x)^{n-1}\right]",
        {_eigen("S_aa", r"\Lambda^{aa}"): within, _eigen("S_ab", r"\Lambda^{ab}"): between},
    )


def _eigen(name: str, latex: str) -> TokenMatrix:
    return TokenMatrix(name, _T, _T, None, latex=latex)


def _at_one_replica(expression: Any) -> Any:
    """Coefficient of ``n - 1`` as n goes to 1."""
    values = {}
    for moment in expression.atoms(CommonGaussianMoment):
        (common,), (power,) = moment.covariances, moment.powers
        values[moment] = (power - 1) * moment.args[0].at_one_replica(common, moment.individual)
    result = pulled(expression.xreplace(values))
    return result.diff(sym.n).subs(sym.n, 1)


def _without_zeros(expression: Any) -> Any:
    """The expression without sums over tokens of nothing."""
    sums = expression.atoms(*TokenSum.kinds)
    return expression.xreplace({one: Integer(0) for one in sums if not is_matrix(one) and expanded(one) == 0})


def _steps() -> tuple[Step, ...]:
    first = _replicated()
    terms = {name: _without_zeros(NISHIMORI.applied(term)) for name, term in first.terms.items()}
    second = Step(NISHIMORI.name, "", NISHIMORI.factorised, terms, first.latex, {NOISE: noise()})
    terms = {name: pulled(expanded(_at_one_replica(term))) for name, term in terms.items()}
    mean = r"\Phi = \frac1d \mathbb{E}\left[\log P(Y \mid x)\right]"
    third = Step("one replica", "", NISHIMORI.no_replicas, terms, mean, {NOISE: noise()})
    terms = {name: term.xreplace({e: e.doit() for e in term.atoms(WeightEntropy)}) for name, term in terms.items()}
    fourth = Step("Gaussian prior", "", NISHIMORI.ridge, terms, r"\Phi", {NOISE: noise()})
    return first, second, third, fourth


@cache
def derive_bayes_optimal() -> Bayes:
    """Differentiate the free entropy in q and in its conjugate, with L and t symbolic and any channel.

    Equations (R1)-(R4), (S1)-(S4) of the Bayes-optimal page.
    """
    steps = _steps()
    total = steps[-1].total
    overlap = solve_linear(gradient(total, sym.q_hat_star), sym.q_star)
    conjugate = solve_linear(gradient(total, sym.q_star), sym.q_hat_star)
    return Bayes(
        steps,
        Equation(sym.q_star, overlap, sym.q_hat_star, ""),
        Equation(sym.V_star, _left(overlap), sym.q_hat_star, ""),
        Equation(sym.q_hat_star, conjugate, sym.q_star, ""),
        conjugate.xreplace({_square(): _by_covariance()}),
    )


def _left(overlap: Any) -> Any:
    """``V = rho - q`` with ``rho = int dnu gamma (P^-1 + c c^T)``, under one mean: no difference of large numbers."""
    return _one_mean(difference(_own(), _one_mean(overlap)))


def _own() -> Any:
    gamma, c = sym.gamma[sym.ell], sym.prior_mean
    return SpectralMean.of(MatAdd(gamma * Inverse(sym.prior_precision), gamma * c * Transpose(c)))


def _one_mean(matrix: Any) -> Any:
    """A sum of means over the spectral measure as the mean of a sum, with equal terms cancelled."""
    total: Any = ZeroMatrix(_T, _T)
    for term in matrix.args if isinstance(matrix, MatAdd) else (matrix,):
        scalar, rest = term.as_coeff_mmul() if isinstance(term, MatMul) else (Integer(1), term)
        mean = rest.args[0] if isinstance(rest, MatMul) else rest
        assert isinstance(mean, SpectralMean)
        total = difference(total, multiple(mean.body, -scalar))
    return SpectralMean.of(total)


def _square() -> Any:
    return FieldMean.of(sym.g_star * Transpose(sym.g_star), OBSERVATIONS)


def _by_covariance() -> Any:
    """``E[g g^T]`` by the law of total variance.

    ``k - omega`` has the covariance V; given the observation its mean is ``V g`` and its covariance C: so
    ``V = V E[g g^T] V + E[C]``.
    """
    inverse = Inverse(sym.V_star)
    spread = FieldMean.of(sym.posterior_covariance, OBSERVATIONS)
    return MatAdd(inverse, MatMul(-1, inverse, spread, inverse))


DEVIATION = TokenMatrix(
    "deviations", sym.L, sym.L, None, latex=r"\left(\mathsf{T}(k) - \langle \mathsf{T} \rangle\right)"
)
VARIANCES = TokenMatrix("variances", sym.L, sym.L, None, symmetric=True, latex="D")


def test_error() -> Any:
    """``(1/L) E Tr[(T(k) - E[T | omega]) D (T(k) - E[T | omega])^T]`` of a fresh sample, whose labels nobody saw.

    Equation (S5) of the Bayes-optimal page.
    """
    return Add(FieldMean.of(Trace(DEVIATION * VARIANCES * Transpose(DEVIATION)), OBSERVATIONS)) / sym.L
