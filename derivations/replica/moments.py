"""Log-moments of the replicated fields and weights, as the replica chain rewrites them."""

from __future__ import annotations

from typing import Any

from sympy import Expr, sympify
from sympy.core.symbol import Str

from derivations.algebra import symbols as sym
from derivations.algebra.calculus import depends_on
from derivations.algebra.tokens import operands

__all__ = ["CommonGaussianMoment", "LogPartitionMean", "ReplicatedMoment"]


class ReplicatedMoment(Expr):
    """``log E prod_a e^{-beta f(x^a)}`` over replicated Gaussian fields.

    The covariance is ``diagonal`` within a replica and ``off_diagonal`` between two: the n-replica channel or prior
    term before any ansatz is used.
    """

    def __new__(cls, side: Any, diagonal: Any, off_diagonal: Any, n: Any) -> ReplicatedMoment:
        """Take the side, "channel" or "prior", the covariances and the number of replicas."""
        return Expr.__new__(cls, side if isinstance(side, Str) else Str(side), diagonal, off_diagonal, sympify(n))

    @property
    def side(self) -> str:
        """The channel's moment or the prior's."""
        return operands(self)[0].name

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        # a moment depends on the matrices of all tokens: they are printed without an index
        d, o = (a.latex_name for a in operands(self)[1:3])
        name = {"channel": r"\Psi_y", "prior": r"\Psi_w"}[self.side]
        return rf"{name}^{{({printer._print(self.args[3])})}}\left[{d}, {o}\right]"


class CommonGaussianMoment(Expr):
    """``log E_common [ Z(common)^n ]``: the replicas factorised over the Gaussian they share."""

    def __new__(cls, side: Any, n: Any) -> CommonGaussianMoment:
        """Take the side, "channel" or "prior", and the number of replicas."""
        return Expr.__new__(cls, side if isinstance(side, Str) else Str(side), sympify(n))

    @property
    def side(self) -> str:
        """The channel's moment or the prior's."""
        return operands(self)[0].name

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        if self.side == "channel":
            return rf"\log \mathbb{{E}}\left[Z_y(\omega, k)^{{{printer._print(self.args[1])}}}\right]"
        return rf"\int\!\mathrm{{d}}\nu\, \log \mathbb{{E}}_z\left[Z_w(z)^{{{printer._print(self.args[1])}}}\right]"


class LogPartitionMean(Expr):
    """``E_common log Z(common)`` at inverse temperature beta: what remains of the moment at linear order in n."""

    def __new__(cls, side: Any) -> LogPartitionMean:
        """Take the side, "channel" or "prior"."""
        return Expr.__new__(cls, side if isinstance(side, Str) else Str(side))

    @property
    def side(self) -> str:
        """The channel's moment or the prior's."""
        return operands(self)[0].name

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        if self.side == "channel":
            return r"\mathbb{E}\left[\log Z_y(\omega, k)\right]"
        return r"\int\!\mathrm{d}\nu\, \mathbb{E}_z\left[\log Z_w(z)\right]"


# everything that is integrated over in these moments, whose arguments do not show it
_INTEGRATED = {matrix.name for matrix in (*sym.OVERLAPS, *sym.CONJUGATES, sym.rho)}


@depends_on.register(ReplicatedMoment)
@depends_on.register(CommonGaussianMoment)
@depends_on.register(LogPartitionMean)
def _(moment: Expr, variable: Any) -> bool:
    return variable.name in _INTEGRATED or any(depends_on(a, variable) for a in moment.args)
