"""The two integrals of the replica calculation: over the local fields of a sample, and over one row of the weights.

A moment holds its integral: the law of the replicated Gaussian fields, the exponent they meet in, and how many replicas
there are.  What is integrated is a `SampleIntegral` or a `RowIntegral`; the stages of the calculation are nodes around
it, each rewritten into the next:

`ReplicatedMoment`
    ``log E exp[-beta sum_a f(x^a)]`` for n replicas whose fields have a covariance per pair;
`CommonGaussianMoment`
    the same for the covariance of an ansatz: replicas factorise over the Gaussian that their group has in common;
`LogPartitionMean`
    its coefficient of n as n goes to 0;
a minimum
    what it becomes at zero temperature, by Laplace's method: the Moreau envelope of the loss in the mean over fields,
    or a row's problem; under a tilt ``exp(-y minimum)`` where replicas come in groups
    (`derivations.replica.one_rsb_nodes`).

The prior's weights are a Gaussian integral too: ``exp(1/2 sum_ab w^a^T K^ab w^b)`` is the mean of
``exp(sum_a u^a^T w^a)`` over fields ``u^a`` with covariances ``K^ab``.  So both sides factorise in the same way.
"""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING, Any

from sympy import AtomicExpr, Basic, Expr, S, Tuple, sympify

from derivations.algebra import symbols as sym
from derivations.algebra.means import FieldLaw, FieldMean
from derivations.algebra.minima import MoreauEnvelope, QuadraticMinimum, RowMinimum, RowPenalty
from derivations.algebra.tokens import MatrixSqrt, TokenMatrix, TokenSum, operands
from derivations.replica.one_rsb_nodes import TiltedEnvelope, TiltedQuadratic, TiltedRow
from derivations.replica.rewriting import difference, multiple, substituted

if TYPE_CHECKING:
    from derivations.replica.ansatz import Ansatz

__all__ = [
    "CommonGaussianMoment",
    "LogPartitionMean",
    "ReplicatedMoment",
    "RidgePenalty",
    "RowIntegral",
    "SampleIntegral",
    "SampleLoss",
]


# --- what is integrated ---------------------------------------------------------------------------------------------


class SampleLoss(AtomicExpr):
    """The loss of one sample, ``ell(h, k)``, of a model: printed as a name, evaluated as the model's expression."""

    is_commutative = True
    _model: Any

    def __new__(cls, model: Any) -> SampleLoss:
        """Take the model, anything hashable with a ``loss(h, k)``."""
        node = AtomicExpr.__new__(cls)
        node._model = model
        return node

    @property
    def model(self) -> Any:
        """Whose loss it is."""
        return self._model

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (self._model,)

    def _hashable_content(self) -> tuple[Any, ...]:
        return (self._model,)

    def compare(self, other: Any) -> int:
        """An order among losses, which SymPy asks for; models have none."""
        first, second = hash(self), hash(other)
        return (first > second) - (first < second)

    def of(self, h: Any, k: Any) -> Any:
        """The loss as an expression of the fields ``h[l][c]`` and ``k[l][c]``."""
        return self._model.loss(h, k)

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        return r"\ell"


class RidgePenalty(Expr):
    """``1/2 w^T Lambda w``: the ridges of the columns on one row of the weights."""

    def __new__(cls, ridges: Any, weights: TokenMatrix) -> RidgePenalty:
        """Take the diagonal matrix Lambda and the symbol of ``w``."""
        return Expr.__new__(cls, ridges, weights)

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        ridges, weights = operands(self)
        w = printer._print(weights)
        if isinstance(ridges, TokenMatrix):
            return rf"\tfrac12 \lVert {printer._print(ridges)}^{{1/2}} {w} \rVert^2"
        return rf"\tfrac{{{printer._print(ridges)}}}{{2}} \lVert {w} \rVert^2"


def _root(covariance: Any, printer: Any) -> str:
    """LaTeX of the square root of a covariance; a moment is of all tokens, whose matrices are printed without index."""
    fields = {m: TokenMatrix(m.name, *m.shape, None, *operands(m)[4:]) for m in covariance.atoms(TokenMatrix)}
    bare = covariance if covariance.has(TokenSum) else covariance.xreplace(fields)
    return printer._print(MatrixSqrt(bare))


def _level_names(name: str, levels: int) -> list[str]:
    """What the Gaussians common to groups are called, from the one that all replicas share."""
    return [name] if levels == 1 else [f"{name}_{i}" for i in range(levels)]


class SampleIntegral(Basic):
    """``exp[-beta ell(h, k)]`` over the Gaussian fields of one sample.

    Its replicas ``h^a`` have mean m, a covariance per pair, and the covariance theta with the teacher's field k, whose
    own is rho.
    """

    def __new__(cls, mean: Any, theta: Any, rho: Any, loss: Any, beta: Any) -> SampleIntegral:
        """Take the mean of the fields, their covariance with k and that of k, the loss and the inverse temperature."""
        return Basic.__new__(cls, mean, theta, rho, loss, beta)

    @property
    def loss(self) -> SampleLoss:
        """The loss in the exponent."""
        return operands(self)[3]

    def individual(self, same: Any, nearest: Any) -> Any:
        """Covariance of the part of a replica's fields that it shares with no other."""
        return difference(same, nearest)

    def minimum(self, covariances: tuple[Any, ...], individual: Any, tilt: Any) -> Expr:
        """What the integral becomes at large beta, with the mean over the common fields.

        Parameters
        ----------
        covariances : tuple of MatrixExpr
            Of the fields of two replicas, from the farthest pair.
        individual : MatrixExpr
            See `individual`.
        tilt : Expr or None
            Power of ``exp(-minimum)`` that the replicas of a group share; None without groups.
        """
        mean, theta, rho, loss, beta = operands(self)
        variance = multiple(individual, beta)
        _must_not_hold(beta, variance, *covariances, mean, theta)
        envelope = MoreauEnvelope(sym.omega_field, sym.k_field, variance, sym.g_field, S.One, loss)
        law = FieldLaw(mean, covariances[0], theta, rho, variance)
        if tilt is None:
            return FieldMean.of(envelope, law)
        apart, near = covariances
        return TiltedEnvelope(envelope, mean, apart, near, theta, rho, tilt)

    def latex_replicated(self, same: Any, apart: Any, n: Any, printer: Any) -> str:
        """``log E exp[...]`` of n replicas."""
        beta, loss = printer._print(operands(self)[4]), printer._print(self.loss)
        exponent = rf"-{beta} \sum_{{a=1}}^{{{printer._print(n)}}} {loss}(h^a, k)"
        return rf"\log \mathbb{{E}}_{{h^a, k}} \exp\left[{exponent}\right]"

    def latex_partition(self, covariances: Any, individual: Any, printer: Any) -> str:
        """The partition function at given common fields."""
        beta, loss = printer._print(operands(self)[4]), printer._print(self.loss)
        field = " + ".join([*_level_names(r"\omega", len(covariances)), rf"{_root(individual, printer)} \eta"])
        return rf"\mathbb{{E}}_\eta \exp\left[-{beta} {loss}({field}, k)\right]"

    def latex_means(self, levels: int) -> list[str]:
        """The means over common fields, from the one that all replicas share."""
        first, *rest = _level_names(r"\omega", levels)
        return [rf"\mathbb{{E}}_{{{first}, k}}", *(rf"\mathbb{{E}}_{{{name}}}" for name in rest)]


class RowIntegral(Basic):
    """``int dw exp[-beta r(w) + u^T w]`` over one row of the weights, for Gaussian fields u of mean b.

    The covariances of the fields are ``-S^aa`` within a replica and ``S^ab`` between two, so that the weights have the
    exponent ``-1/2 sum_a w^a^T S^aa w^a + 1/2 sum_(a != b) w^a^T S^ab w^b``.
    """

    def __new__(cls, source: Any, penalty: Any, beta: Any) -> RowIntegral:
        """Take the source b, the regulariser of the row and the inverse temperature."""
        return Basic.__new__(cls, source, penalty, beta)

    @property
    def penalty(self) -> Any:
        """The regulariser r(w) in the exponent."""
        return operands(self)[1]

    def individual(self, same: Any, nearest: Any) -> Any:
        """Curvature of the weights of one replica, when what it shares with others is a Gaussian source."""
        return difference(same, multiple(nearest, -1))

    def minimum(self, covariances: tuple[Any, ...], individual: Any, tilt: Any) -> Expr:
        """What the integral becomes at large beta, with the mean over the sources; see `SampleIntegral.minimum`."""
        source, penalty, beta = operands(self)
        noises = tuple(multiple(c, beta**-2) for c in covariances)
        curvature, source = multiple(individual, 1 / beta), multiple(source, 1 / beta)
        _must_not_hold(beta, curvature, source, *noises)
        return row_minimum(penalty, curvature, source, noises, tilt)

    def latex_replicated(self, same: Any, apart: Any, n: Any, printer: Any) -> str:
        """``log int prod_a dw^a exp[...]`` of n replicas."""
        source, penalty, beta = operands(self)
        own = TokenMatrix("w_a", *sym.w.shape, None, latex="w^a")
        source, penalty, beta = map(printer._print, (source, penalty.xreplace({sym.w: own}), beta))
        n, same, apart = map(printer._print, (n, same, apart))
        first = rf"-{beta} \sum_a {penalty} + \sum_a \left({source}\right)^\top w^a"
        second = rf"- \tfrac{{1}}{{2}} \sum_a w^{{a\top}} {same} w^a"
        third = rf"{{}}+ \tfrac{{1}}{{2}} \sum_{{a \neq b}} w^{{a\top}} {apart} w^b"
        exponent = rf"\begin{{aligned}} & {first} \\ & {second} \\ & {third} \end{{aligned}}"
        return rf"\log \int \prod_{{a=1}}^{{{n}}} \mathrm{{d}}w^a \exp\left[{exponent}\right]"

    def latex_partition(self, covariances: Any, individual: Any, printer: Any) -> str:
        """The partition function at given sources."""
        source, penalty, beta = operands(self)
        # with groups the source is too long for a line: the statement of the step says what B is
        field = "B"
        if len(covariances) == 1:
            field = rf"\left({printer._print(source)} + {_root(covariances[0], printer)} z\right)"
        curvature = printer._print(individual)
        curvature = curvature if isinstance(individual, TokenMatrix) else rf"\left({curvature}\right)"
        exponent = rf"-{printer._print(beta)} {printer._print(penalty)} - \tfrac{{1}}{{2}} w^\top {curvature} w"
        linear = rf"+ {field}^\top w"
        exponent = rf"\begin{{aligned}} & {exponent} \\ & {linear} \end{{aligned}}"
        return rf"\int \mathrm{{d}}w \exp\left[{exponent}\right]"

    def latex_means(self, levels: int) -> list[str]:
        """The means over sources, from the one that all replicas share."""
        return [rf"\mathbb{{E}}_{{{name}}}" for name in _level_names("z", levels)]


@singledispatch
def row_minimum(penalty: Any, curvature: Any, source: Any, noises: tuple[Any, ...], tilt: Any) -> Expr:
    """The problem of one row at zero temperature, in the mean over its noise; tilted where replicas come in groups."""
    raise TypeError(f"no row problem for the regulariser {type(penalty).__name__}")


@row_minimum.register
def _(penalty: RowPenalty, curvature: Any, source: Any, noises: tuple[Any, ...], tilt: Any) -> Expr:
    apart, *near = noises
    if tilt is None:
        return RowMinimum(curvature, source, apart, sym.w, sym.chi)
    return TiltedRow(curvature, source, apart, near[0], tilt, sym.w, sym.chi)


@row_minimum.register
def _(penalty: RidgePenalty, curvature: Any, source: Any, noises: tuple[Any, ...], tilt: Any) -> Expr:
    precision = operands(penalty)[0] + curvature
    apart, *near = noises
    if tilt is None:
        return QuadraticMinimum(precision, source, apart)
    return TiltedQuadratic(precision, source, apart, near[0], tilt)


def _must_not_hold(beta: Any, *expressions: Any) -> None:
    """A scaling that leaves the inverse temperature in a minimum is wrong."""
    if any(e.has(beta) for e in expressions):
        raise ValueError("the scaling with temperature leaves an inverse temperature in the minimum")


def _increments(covariances: tuple[Any, ...]) -> list[Any]:
    """Covariances of the Gaussians that all replicas share, those of a group share beside it, and so on."""
    first, *others = covariances
    result = [first]
    for outer, inner in zip(covariances, others, strict=False):
        result.append(difference(inner, outer))
    return result


# --- the stages -----------------------------------------------------------------------------------------------------


class ReplicatedMoment(Expr):
    """``log E exp[-beta sum_a f(x^a)]`` of n replicas, with covariances per pair: before any ansatz."""

    def __new__(cls, integral: Any, same: Any, apart: Any, n: Any) -> ReplicatedMoment:
        """Take the integral, the covariance of a replica with itself, that of two replicas, and their number."""
        return Expr.__new__(cls, integral, same, apart, sympify(n))

    def under(self, ansatz: Ansatz) -> Expr:
        """The moment for the overlaps of an ansatz: factorised over common Gaussians."""
        integral, same, apart, n = operands(self)
        covariances = [substituted(apart, c.values()) for c in ansatz.apart]
        individual = integral.individual(substituted(same, ansatz.same.values()), covariances[-1])
        powers = [power.subs(sym.n, n) for power in ansatz.powers]
        return CommonGaussianMoment(ansatz.applied(integral), Tuple(*covariances), individual, Tuple(*powers))

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        integral, same, apart, n = operands(self)
        return integral.latex_replicated(same, apart, n, printer)


class _Factorised(Expr):
    """Means of powers of a partition function, over Gaussians common to groups of replicas in each other."""

    def __new__(cls, integral: Any, covariances: Any, individual: Any, powers: Any) -> Any:
        """Take the integral, the covariances of pairs from the farthest, what a replica has alone, and the powers."""
        return Expr.__new__(cls, integral, Tuple(*covariances), individual, Tuple(*powers))

    @property
    def covariances(self) -> tuple[Any, ...]:
        """Of two replicas, from the farthest pair to the nearest."""
        return tuple(operands(self)[1])

    @property
    def individual(self) -> Any:
        """What a replica has alone: a covariance of fields, or the curvature of a row."""
        return operands(self)[2]

    @property
    def increments(self) -> list[Any]:
        """Covariances of the common Gaussians, from the one that all replicas share."""
        return _increments(self.covariances)

    @property
    def powers(self) -> tuple[Any, ...]:
        """Number of groups in a group, under the means from the outermost."""
        return tuple(operands(self)[3])

    def _latex_inside(self, printer: Any) -> str:
        """The powers and the means of groups around the partition function."""
        integral, _, individual, _ = operands(self)
        text = integral.latex_partition(self.covariances, individual, printer)
        _, *groups = integral.latex_means(len(self.covariances))
        outer = [printer._print(power) for power in self.powers]
        text = rf"\left({text}\right)^{{{outer.pop()}}}" if outer else text
        for mean in reversed(groups):
            power = f"^{{{outer.pop()}}}" if outer else ""
            text = rf"{mean}\left[{text}\right]{power}"
        return text


class CommonGaussianMoment(_Factorised):
    """``log E_0[ E_1[ Z^x ]^(n/x) ]``: replicas factorised over the Gaussians that their groups share.

    With one group, replica symmetry, it is ``log E_0[Z^n]``.
    """

    def at_first_order(self, n: Any) -> Expr:
        """The coefficient of n as n goes to 0: ``log E[Z^n] = n E[log Z] + O(n^2)``."""
        integral, covariances, individual, powers = operands(self)
        return powers[0] / n * LogPartitionMean(integral, covariances, individual, powers[1:])

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        mean = operands(self)[0].latex_means(len(self.covariances))[0]
        return rf"\log {mean}\left[{self._latex_inside(printer)}\right]"


class LogPartitionMean(_Factorised):
    """``E_0 log Z``, or ``E_0 log E_1[Z^x]`` where replicas come in groups: the moment at first order in n."""

    def ground_state(self, beta: Any) -> Expr:
        """What it tends to as beta grows, by Laplace's method, for operands in their scaled form."""
        integral, covariances, individual, powers = operands(self)
        if not powers:
            return -beta * integral.minimum(tuple(covariances), individual, None)
        (power,) = powers
        return integral.minimum(tuple(covariances), individual, beta * power)

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        mean = operands(self)[0].latex_means(len(self.covariances))[0]
        return rf"{mean} \log {self._latex_inside(printer)}"
