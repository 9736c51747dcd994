"""Replicas of the weights, and the form that an ansatz gives their overlaps.

Exchangeable replicas fall into classes of pairs with one overlap each.  An `Ansatz` holds these classes: what stands
for a replica matrix ``Q^ab`` in each, and how many pairs a class has.  It is applied to any expression: sums over
replicas become counts, replica matrices the class's values; a replicated moment is asked to factorise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import singledispatchmethod
from itertools import pairwise
from typing import Any

from sympy import Add, Expr, Integer, sympify

from derivations.algebra import symbols as sym
from derivations.algebra.tokens import TokenMatrix
from derivations.replica.rewriting import substituted

__all__ = ["ONE_RSB", "REPLICA_SYMMETRIC", "Ansatz", "PairClass", "ReplicaSum"]


class ReplicaSum(Expr):
    """``sum_a f^aa`` (pairs=False) or ``sum_(a != b) f^ab`` (pairs=True) of a replica-indexed scalar."""

    def __new__(cls, body: Any, pairs: Any) -> ReplicaSum:
        """Take what is summed, and whether over pairs of different replicas."""
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
# finite-temperature variance v = q^aa - q^ab of a replica among its nearest, and its conjugate
V_BETA = TokenMatrix("v", sym.r, sym.r, sym.ell, symmetric=True, latex="v")
V_HAT_BETA = TokenMatrix("v_hat", sym.r, sym.r, sym.ell, symmetric=True, latex=r"\hat v")

_SINGLE = {M_A: sym.m, M_HAT_A: sym.m_hat, THETA_A: sym.theta, THETA_HAT_A: sym.theta_hat}


@dataclass(frozen=True)
class PairClass:
    """Ordered pairs (a, b) of replicas that have one overlap.

    Attributes
    ----------
    name : str
    inner, outer : Expr
        Sizes of the largest group of replicas that are nearer to a than b is, and of the smallest that holds both.
    overlap, conjugate : MatrixExpr
        What ``Q^ab`` and ``Q_hat^ab`` are.
    """

    name: str
    inner: Expr
    outer: Expr
    overlap: Any
    conjugate: Any

    @property
    def count(self) -> Expr:
        """Number of ordered pairs among n replicas."""
        return sym.n * (self.outer - self.inner)

    def values(self) -> Mapping[TokenMatrix, Any]:
        """What stands for the replica matrices of such a pair."""
        overlap, conjugate = (Q_AA, Q_HAT_AA) if self.inner == 0 else (Q_AB, Q_HAT_AB)
        return {overlap: self.overlap, conjugate: self.conjugate} | _SINGLE


@dataclass(frozen=True)
class Ansatz:
    """Overlaps of exchangeable replicas in nested groups.

    Attributes
    ----------
    name : str
    latex : str
        Printed name of the free entropy that comes out.
    classes : tuple of PairClass
        From the pairs of a replica with itself outwards.
    scalings : tuple of pairs
        Symbols at inverse temperature beta, and what they are in terms of those that stay finite as beta grows.
    factorised, no_replicas, zero_temperature, ridge : str
        What the steps of the chain say of it, with LaTeX between dollar signs.
    equations : tuple of str
        The paper's equations, or nothing, for these steps.
    """

    name: str
    latex: str
    classes: tuple[PairClass, ...]
    scalings: tuple[tuple[Any, Any], ...]
    factorised: str
    no_replicas: str
    zero_temperature: str
    ridge: str
    equations: tuple[str, str, str, str] = ("", "", "", "")

    @property
    def sizes(self) -> tuple[Expr, ...]:
        """Sizes of the groups, from all n replicas to the single one."""
        return tuple(c.outer for c in reversed(self.classes))

    @property
    def powers(self) -> tuple[Expr, ...]:
        """How many groups a group holds: the powers to which partition functions are raised, from the outermost."""
        return tuple(outer / inner for outer, inner in pairwise(self.sizes))

    @property
    def same(self) -> PairClass:
        """The pairs of a replica with itself."""
        return self.classes[0]

    @property
    def apart(self) -> tuple[PairClass, ...]:
        """The classes of different replicas, from the farthest."""
        return tuple(reversed(self.classes[1:]))

    @singledispatchmethod
    def applied(self, expression: Any) -> Any:
        """The expression under the ansatz: counts for sums over replicas, the classes' values for replica matrices."""
        rule = getattr(expression, "under", None)
        if rule is not None:
            return rule(self)
        if not expression.args:
            return expression
        return expression.func(*(self.applied(a) for a in expression.args))

    @applied.register
    def _(self, expression: ReplicaSum) -> Any:
        body, pairs = expression.args
        classes = self.apart if pairs else (self.same,)
        return Add(*(c.count * substituted(body, c.values()) for c in classes))

    @applied.register
    def _(self, expression: TokenMatrix) -> Any:
        return substituted(expression, _SINGLE)

    def scaled(self, expression: Any) -> Any:
        """The expression in terms of what stays finite as beta grows."""
        return substituted(expression, dict(self.scalings))


_beta = sym.beta
_SCALINGS = (
    (V_BETA, sym.V / _beta),
    (V_HAT_BETA, _beta * sym.V_hat),
    (sym.m_hat, _beta * sym.m_hat),
    (sym.theta_hat, _beta * sym.theta_hat),
)

REPLICA_SYMMETRIC = Ansatz(
    name="replica-symmetric ansatz",
    latex=r"-\Phi",
    classes=(
        PairClass("equal", Integer(0), Integer(1), sym.q + V_BETA, V_HAT_BETA - sym.q_hat),
        PairClass("different", Integer(1), sym.n, sym.q, sym.q_hat),
    ),
    scalings=(*_SCALINGS, (sym.q_hat, _beta**2 * sym.q_hat)),
    factorised=r"$Q^{aa} = q + v$, $Q^{ab} = q$; $\hat Q^{aa} = \hat v - \hat q$, $\hat Q^{ab} = \hat q$; $m^a = m$, "
    r"$\theta^a = \theta$ and likewise for the conjugates. Gaussian fields with such a covariance are "
    r"$h^a = \omega + v^{1/2}\eta^a$, with $\omega \sim \mathcal{N}(m, q)$ common to the replicas, which has the "
    r"covariance $\theta$ with $k$, and $\eta^a \sim \mathcal{N}(0, I_r)$ independent. The pairs of weights are a mean "
    r"over a common source too, $\exp[\frac12 \sum_{ab} w^{a\top} S w^b] = \mathbb{E}_z \exp[\sum_a (S^{1/2} z)^\top "
    r"w^a]$ with $z \sim \mathcal{N}(0, I_r)$. So both moments factorise.",
    no_replicas=r"The coefficient of $n$ as $n \to 0$: pairs count $n(n-1) \to -n$ and "
    r"$\log \mathbb{E}[Z^n] = n \mathbb{E}[\log Z] + O(n^2)$.",
    zero_temperature=r"$v = V/\beta$, $\hat v = \beta \hat V$, $\hat q \to \beta^2 \hat q$, $\hat m \to \beta \hat m$, "
    r"$\hat\theta \to \beta \hat\theta$ and $\beta \to \infty$. By Laplace's method $-\frac1\beta$ times the logarithm "
    r"of the integral over $\eta$ becomes the Moreau envelope $\mathcal{M}$ of the loss and that of the integral over "
    r"$w$ the minimum of one eigendirection's problem. Divided by $-\beta$, the terms add up to $-\Phi$.",
    ridge=r"For the ridge the minimum over one row of the weights is a completed square, reached at "
    r"$w = R (b + S^{1/2} z)$.",
    equations=("App. B", "App. B", "(100), (104)", "(108)"),
)

ONE_RSB = Ansatz(
    name="one-step replica-symmetry breaking",
    latex="F(y)",
    classes=(
        PairClass("equal", Integer(0), Integer(1), sym.q_1 + V_BETA, V_HAT_BETA - sym.q_hat_1),
        PairClass("same group", Integer(1), sym.x, sym.q_1, sym.q_hat_1),
        PairClass("different groups", sym.x, sym.n, sym.q_0, sym.q_hat_0),
    ),
    scalings=(
        *_SCALINGS,
        (sym.q_hat_0, _beta**2 * sym.q_hat_0),
        (sym.q_hat_1, _beta**2 * sym.q_hat_1),
        (sym.x, sym.y / _beta),
    ),
    factorised=r"The replicas fall into $n/x$ groups of $x$. $Q^{aa} = q_1 + v$; $Q^{ab} = q_1$ for two replicas of "
    r"one group and $q_0$ for two of different groups; $\hat Q^{aa} = \hat v - \hat q_1$ and "
    r"$\hat Q^{ab} = \hat q_1$ or $\hat q_0$; $m^a = m$, $\theta^a = \theta$ and likewise for the conjugates. Then "
    r"$h^a = \omega_0 + \omega_1 + v^{1/2} \eta^a$ with $\omega_0 \sim \mathcal{N}(m, q_0)$ common to all replicas, "
    r"which has the covariance $\theta$ with $k$, $\omega_1 \sim \mathcal{N}(0, q_1 - q_0)$ common to a group and "
    r"$\eta^a \sim \mathcal{N}(0, I_r)$ a replica's own. In the same way a row of the weights sees the source "
    r"$B = b + S_0^{1/2} z_0 + (S_1 - S_0)^{1/2} z_1$ with $z_0 \sim \mathcal{N}(0, I_r)$ common to all replicas and "
    r"$z_1 \sim \mathcal{N}(0, I_r)$ to a group.",
    no_replicas=r"The coefficient of $n$ as $n \to 0$: there are $n(x-1)$ ordered pairs in groups and $n(n-x) \to -nx$ "
    r"between them, and $\log \mathbb{E}_0[\mathbb{E}_1[Z^x]^{n/x}] = \frac{n}{x} \mathbb{E}_0 \log \mathbb{E}_1[Z^x] "
    r"+ O(n^2)$.",
    zero_temperature=r"$v = V/\beta$, $\hat v = \beta \hat V$, $\hat q_i \to \beta^2 \hat q_i$, "
    r"$\hat m \to \beta \hat m$, $\hat\theta \to \beta \hat\theta$, $x = y/\beta$ and "
    r"$\beta \to \infty$. By Laplace's method $Z^x$ becomes "
    r"$\exp[-y \min]$, with the Moreau envelope $\mathcal{M}$ of the loss, or one eigendirection's problem, as the "
    r"minimum. Divided by $-\beta$, the terms add up to $F(y)$.",
    ridge=r"For the ridge the minimum over one row of the weights is $-\frac12 B^\top R B$, and the mean over $z_1$ a "
    r"Gaussian integral with the precision $A = R^{-1} - y (S_1 - S_0)$. No two of these matrices need commute.",
)
