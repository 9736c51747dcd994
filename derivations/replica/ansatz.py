"""Replicas of the weights, and the form that an ansatz gives their overlaps.

Replicas that are exchangeable fall into classes of pairs with one overlap each.  An `Ansatz` holds these classes: what
stands for a replica matrix ``Q^ab`` in each, and how many pairs a class has.  It is applied to any expression: sums over
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

__all__ = ["ONE_STEP", "REPLICA_SYMMETRIC", "Ansatz", "PairClass", "ReplicaSum"]


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
        same = self.inner == 0
        pair = {Q_AA: self.overlap, Q_HAT_AA: self.conjugate} if same else {Q_AB: self.overlap, Q_HAT_AB: self.conjugate}
        return pair | _SINGLE


@dataclass(frozen=True)
class Ansatz:
    """Overlaps of exchangeable replicas in nested groups.

    Attributes
    ----------
    name : str
    classes : tuple of PairClass
        From the pairs of a replica with itself outwards.
    scalings : tuple of pairs
        Symbols at inverse temperature beta, and what they are in terms of those that stay finite as beta grows.
    """

    name: str
    classes: tuple[PairClass, ...]
    scalings: tuple[tuple[Any, Any], ...]

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
    "replica-symmetric ansatz",
    (
        PairClass("equal", Integer(0), Integer(1), sym.q + V_BETA, V_HAT_BETA - sym.q_hat),
        PairClass("different", Integer(1), sym.n, sym.q, sym.q_hat),
    ),
    (*_SCALINGS, (sym.q_hat, _beta**2 * sym.q_hat)),
)

ONE_STEP = Ansatz(
    "one step of replica-symmetry breaking",
    (
        PairClass("equal", Integer(0), Integer(1), sym.q_1 + V_BETA, V_HAT_BETA - sym.q_hat_1),
        PairClass("same group", Integer(1), sym.x, sym.q_1, sym.q_hat_1),
        PairClass("different groups", sym.x, sym.n, sym.q_0, sym.q_hat_0),
    ),
    (
        *_SCALINGS,
        (sym.q_hat_0, _beta**2 * sym.q_hat_0),
        (sym.q_hat_1, _beta**2 * sym.q_hat_1),
        (sym.x, sym.y / _beta),
    ),
)
