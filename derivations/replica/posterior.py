"""The posterior's moments: the two integrals of the replica calculation of a learner who knows the model.

Such a learner's weights are drawn from the posterior, of which the teacher's are one more draw (Nishimori): n replicas,
the teacher among them, meet in one observation, which is summed over.  What is wanted, the mean of ``log P(Y | x)``,
is the coefficient of ``n - 1`` as n goes to 1, where ``Z^n`` becomes ``Z log Z``.  There is no temperature: it is 1.

`ObservationIntegral` is over the fields of one sample, `WeightIntegral` over one row of the weights; beside
`derivations.replica.moments`, whose stages they go through, they say what they become at one replica.
"""

from __future__ import annotations

from typing import Any

from sympy import Basic, Expr, S
from sympy.matrices.expressions import Inverse, MatMul, Trace, Transpose, ZeroMatrix

from derivations.algebra import symbols as sym
from derivations.algebra.calculus import change_of, differential
from derivations.algebra.means import FieldMean, Law
from derivations.algebra.tokens import MatrixSqrt, TokenMatrix, TokenSum, operands
from derivations.replica.one_rsb_nodes import LogDeterminant
from derivations.replica.rewriting import difference, multiple

__all__ = [
    "OBSERVATIONS",
    "ObservationEntropy",
    "ObservationIntegral",
    "ObservationLaw",
    "WeightEntropy",
    "WeightIntegral",
]


class ObservationLaw(Law):
    """The fields ``omega ~ N(0, q)`` that a learner knows, and the observation of the field ``k ~ N(omega, V)``."""


OBSERVATIONS = ObservationLaw(sym.q_star, sym.V_star)


def _root(covariance: Any, printer: Any) -> str:
    """LaTeX of the square root of a covariance, which is of all tokens."""
    fields = {m: TokenMatrix(m.name, *m.shape, None, *operands(m)[4:]) for m in covariance.atoms(TokenMatrix)}
    bare = covariance if covariance.has(TokenSum) else covariance.xreplace(fields)
    return printer._print(MatrixSqrt(bare))


class ObservationIntegral(Basic):
    """``int dY prod_a P_out(Y | k^a)`` over the observation of one sample, whose replicas have fields ``k^a``.

    The fields are centred, with a covariance per pair.
    """

    def individual(self, same: Any, nearest: Any) -> Any:
        """Covariance of the part of a replica's fields that it shares with no other."""
        return difference(same, nearest)

    def at_one_replica(self, common: Any, individual: Any) -> Expr:
        """The coefficient of ``n - 1`` as n goes to 1, where the integral is the observation's norm."""
        return ObservationEntropy(common, individual)

    def latex_replicated(self, same: Any, apart: Any, n: Any, printer: Any) -> str:
        """``log E int dY ...`` of n replicas."""
        product = rf"\prod_{{a=1}}^{{{printer._print(n)}}} P_\mathrm{{out}}(Y \mid k^a)"
        return rf"\log \mathbb{{E}}_{{k^a}} \int \mathrm{{d}}Y {product}"

    def latex_partition(self, covariances: Any, individual: Any, printer: Any) -> str:
        """The likelihood of an observation at given common fields."""
        return rf"\mathbb{{E}}_\eta P_\mathrm{{out}}(Y \mid \omega + {_root(individual, printer)} \eta)"

    def latex_means(self, levels: int) -> list[str]:
        """The mean over the common fields, and the sum over observations."""
        return [r"\mathbb{E}_\omega \int \mathrm{d}Y"]


class WeightIntegral(Basic):
    """``E_w exp[u^T w]`` over the prior of one row of the weights, for Gaussian fields u.

    As in `RowIntegral` the covariances of the fields are ``-S^aa`` within a replica and ``S^ab`` between two.  The
    prior is Gaussian.
    """

    def __new__(cls, mean: Any, precision: Any) -> WeightIntegral:
        """Take mean and precision of the prior of the row."""
        return Basic.__new__(cls, mean, precision)

    def individual(self, same: Any, nearest: Any) -> Any:
        """Curvature of the weights of one replica, when what it shares with others is a Gaussian source."""
        return difference(same, multiple(nearest, -1))

    def at_one_replica(self, common: Any, individual: Any) -> Expr:
        """The coefficient of ``n - 1`` as n goes to 1.

        Raises
        ------
        ValueError
            A replica's curvature is not the covariance of the source: the mean over sources is no norm then.
        """
        if difference(common, individual) != ZeroMatrix(*common.shape):
            raise ValueError("at one replica the source and the curvature of a row do not belong together")
        return WeightEntropy(common, *operands(self))

    def latex_replicated(self, same: Any, apart: Any, n: Any, printer: Any) -> str:
        """``log E exp[...]`` of n replicas."""
        same, apart = map(printer._print, (same, apart))
        first = rf"- \tfrac{{1}}{{2}} \sum_a w^{{a\top}} {same} w^a"
        second = rf"{{}}+ \tfrac{{1}}{{2}} \sum_{{a \neq b}} w^{{a\top}} {apart} w^b"
        return rf"\log \mathbb{{E}}_{{w^1, \ldots, w^{{{printer._print(n)}}}}} \exp\left[{first} {second}\right]"

    def latex_partition(self, covariances: Any, individual: Any, printer: Any) -> str:
        """The partition function at a given source."""
        source = rf"\left({_root(covariances[0], printer)} z\right)^\top w"
        return rf"\mathbb{{E}}_w \exp\left[- \tfrac{{1}}{{2}} w^\top {printer._print(individual)} w + {source}\right]"

    def latex_means(self, levels: int) -> list[str]:
        """The mean over the source."""
        return [r"\mathbb{E}_z"]


class ObservationEntropy(Expr):
    """``E_omega int dY Z log Z`` for ``Z(Y, omega) = E P_out(Y | omega + V^(1/2) eta)`` and ``omega ~ N(0, q)``.

    With ``g = d log Z/d omega``, the gradient that the posterior mean gives, ``V^-1 (E[k | Y, omega] - omega)``:
    Price's theorem gives ``1/2 int dY [(1 + log Z) Z'' + Z g g^T]`` for the derivative in q, the heat equation for Z
    ``1/2 int dY (1 + log Z) Z''`` for that in V.  The first of these is left over only where ``q + V`` changes, which
    is the covariance of the teacher's field and a constant.
    """

    def __new__(cls, common: Any, individual: Any) -> ObservationEntropy:
        """Take the covariances of what the learner knows of the field, and of the rest."""
        return Expr.__new__(cls, common, individual)

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        return r"\mathbb{E}_\omega \int \mathrm{d}Y \, Z \log Z"


@change_of.register
def _(node: ObservationEntropy, family: TokenMatrix) -> Any:
    common, individual = (differential(a, family) for a in operands(node))
    zero = ZeroMatrix(sym.t, sym.t)
    common, individual = (zero if change is None else change for change in (common, individual))
    if difference(common, multiple(individual, -1)) != zero:
        raise TypeError("no derivative rule for the entropy of observations in the covariance of the teacher's field")
    square = FieldMean.of(sym.g_star * Transpose(sym.g_star), OBSERVATIONS)
    return S.Half * TokenSum.of(Trace(square * common), sym.ell)


class WeightEntropy(Expr):
    """``E_z Y log Y`` for ``Y(z) = E_w exp[(S^(1/2) z)^T w - 1/2 w^T S w]``; `doit` does the integrals.

    ``Y`` is the likelihood ratio of the source ``u = S w + S^(1/2) z`` against no signal.  For ``w ~ N(c, P^-1)`` it is
    Gaussian too, and its mean logarithm ``1/2 Tr[S (P^-1 + c c^T)] - 1/2 log det (P + S) + 1/2 log det P``.
    """

    def __new__(cls, noise: Any, mean: Any, precision: Any) -> WeightEntropy:
        """Take S, and mean and precision of the row's prior."""
        return Expr.__new__(cls, noise, mean, precision)

    def doit(self, **hints: Any) -> Expr:
        """The value of the integrals."""
        noise, mean, precision = operands(self)
        size = Trace(Inverse(precision) * noise) + Trace(MatMul(mean, Transpose(mean), noise))
        return size / 2 - LogDeterminant(precision + noise) / 2 + LogDeterminant(precision) / 2

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        noise = printer._print(operands(self)[0])
        source = rf"\left({_root(operands(self)[0], printer)} z\right)^\top w"
        partition = rf"\mathbb{{E}}_w \exp\left[- \tfrac{{1}}{{2}} w^\top \left({noise}\right) w + {source}\right]"
        return rf"\mathbb{{E}}_z \mathcal{{Y}} \log \mathcal{{Y}}, \quad \mathcal{{Y}} = {partition}"
