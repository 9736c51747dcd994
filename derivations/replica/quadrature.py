"""What an expression of the replica calculation is worth on a toy, by quadrature of the integrals that its nodes hold.

The toy has one token, one column of weights and one of the teacher's, so that matrices are numbers.  `evaluate` walks
the expression with one rule a type of node and does every integral where it stands: none is known here beforehand.
Gaussian means are done by the trapezoidal rule, which converges exponentially for analytic integrands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, singledispatch
from itertools import product
from typing import Any

import numpy as np
from sympy import Add, Indexed, Mul, Number, Pow, Symbol, lambdify
from sympy.matrices.expressions import Identity, Inverse, MatAdd, MatMul, Trace, Transpose, ZeroMatrix

from derivations.algebra.means import FieldMean, SpectralMean
from derivations.algebra.minima import MoreauEnvelope, QuadraticMinimum
from derivations.algebra.tokens import MatrixSqrt, TokenMatrix, TokenSum, operands
from derivations.replica.ansatz import ReplicaSum
from derivations.replica.moments import (
    CommonGaussianMoment,
    LogPartitionMean,
    ReplicatedMoment,
    RidgePenalty,
    RowIntegral,
    SampleIntegral,
    SampleLoss,
)
from derivations.replica.one_rsb_nodes import LogDeterminant, TiltedEnvelope, TiltedMean, TiltedQuadratic

__all__ = ["Toy", "evaluate"]

_NEWTON_STEPS = 12


@dataclass(frozen=True)
class Toy:
    """Numbers for everything that an expression may hold, at L = r = t = 1.

    Attributes
    ----------
    values : mapping of str to float or array
        Matrices and scalars by their names.
    atoms : tuple of (weight, mapping)
        The spectral measure: values of ``gamma``, ``tau`` and ``pi``.
    replicas : mapping of str to nested sequences
        Values ``[a][b]`` of replica matrices, ``"q"`` for ``Q^ab``, and ``[a]`` of others, ``"m"`` for ``m^a``.
    loss : SampleLoss, optional
        Whose residuals the means over fields are of, in expressions that do not hold it.
    step, reach : float
        Spacing and half width of the nodes of a standard Gaussian.
    points, width : int, float
        Number and half width of the nodes of the student's fields in the innermost integral and minimum.
    """

    values: Mapping[str, Any]
    atoms: tuple[tuple[float, Mapping[str, float]], ...] = ()
    replicas: Mapping[str, Any] = field(default_factory=dict)
    loss: SampleLoss | None = None
    step: float = 0.25
    reach: float = 9.0
    points: int = 281
    width: float = 14.0

    def given(self, **values: Any) -> Toy:
        """The same with further values, or others."""
        return replace(self, values={**self.values, **values})

    def between(self, a: int, b: int) -> Toy:
        """The values of replica matrices for the pair (a, b)."""
        values: dict[str, Any] = {}
        for name, entries in self.replicas.items():
            pair = np.ndim(entries) == 2
            values |= {f"{name}^aa": entries[a][b], f"{name}^ab": entries[a][b]} if pair else {f"{name}^a": entries[a]}
        return self.given(**values)

    def gaussian(self, axis: int, axes: int) -> tuple[Any, Any]:
        """Nodes and weights of N(0, 1) along one of so many axes."""
        x = np.arange(-self.reach, self.reach + self.step / 2, self.step)
        shape = [1] * axes
        shape[axis] = -1
        return x.reshape(shape), (self.step * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)).reshape(shape)

    @property
    def grid(self) -> Any:
        """Nodes of the student's fields."""
        return np.linspace(-self.width, self.width, self.points)


def _mean(values: Any, weights: Any, axis: Any) -> Any:
    return (values * weights).sum(axis=axis, keepdims=True)


def _log_mean(logs: Any, weights: Any, axis: int) -> Any:
    """Log of the mean of exponentials along an axis, which stays with length 1."""
    highest = logs.max(axis=axis, keepdims=True)
    return highest + np.log(_mean(np.exp(logs - highest), weights, axis))


@cache
def _loss_functions(loss: SampleLoss) -> tuple[Callable[..., Any], ...]:
    """The loss of one token and column, and its first two derivatives in h, as functions of arrays."""
    h, k = Symbol("h", real=True), Symbol("k", real=True)
    expression = loss.of([[h]], [[k]])
    return tuple(lambdify((h, k), expression.diff(h, order), "numpy") for order in range(3))


# --- plain expressions ----------------------------------------------------------------------------------------------


@singledispatch
def evaluate(expression: Any, toy: Toy) -> Any:
    """The number that an expression is on the toy; an array where fields are arrays.

    Raises
    ------
    TypeError
        There is no rule for a node.
    """
    raise TypeError(f"no value for the node {type(expression).__name__}")


@evaluate.register
def _(number: Number, toy: Toy) -> Any:
    return float(number)


@evaluate.register(TokenMatrix)
@evaluate.register(Symbol)
def _(symbol: Any, toy: Toy) -> Any:
    return toy.values[symbol.name]


@evaluate.register
def _(entry: Indexed, toy: Toy) -> Any:
    return toy.values[str(entry.base)]


@evaluate.register
def _(identity: Identity, toy: Toy) -> Any:
    return 1.0


@evaluate.register
def _(zero: ZeroMatrix, toy: Toy) -> Any:
    return 0.0


@evaluate.register(Add)
@evaluate.register(MatAdd)
def _(sum_: Any, toy: Toy) -> Any:
    return sum(evaluate(a, toy) for a in sum_.args)


@evaluate.register(Mul)
@evaluate.register(MatMul)
def _(product_: Any, toy: Toy) -> Any:
    return math.prod(evaluate(a, toy) for a in product_.args)


@evaluate.register
def _(power: Pow, toy: Toy) -> Any:
    return evaluate(power.base, toy) ** evaluate(power.exp, toy)


@evaluate.register(Trace)
@evaluate.register(Transpose)
def _(same: Any, toy: Toy) -> Any:
    return evaluate(same.arg, toy)


@evaluate.register
def _(inverse: Inverse, toy: Toy) -> Any:
    return 1 / evaluate(inverse.arg, toy)


@evaluate.register
def _(root: MatrixSqrt, toy: Toy) -> Any:
    return np.sqrt(evaluate(operands(root)[0], toy))


@evaluate.register
def _(node: LogDeterminant, toy: Toy) -> Any:
    return np.log(evaluate(operands(node)[0], toy))


@evaluate.register
def _(total: TokenSum, toy: Toy) -> Any:
    return evaluate(total.body, toy)


@evaluate.register
def _(mean: SpectralMean, toy: Toy) -> Any:
    return sum(weight * evaluate(mean.body, toy.given(**atom)) for weight, atom in toy.atoms)


@evaluate.register
def _(total: ReplicaSum, toy: Toy) -> Any:
    body, pairs = operands(total)
    n = len(toy.replicas["m"])
    places = [(a, b) for a, b in product(range(n), repeat=2) if (a != b) == bool(pairs)]
    return sum(evaluate(body, toy.between(a, b)) for a, b in places)


# --- n replicas -----------------------------------------------------------------------------------------------------


@evaluate.register
def _(moment: ReplicatedMoment, toy: Toy) -> Any:
    integral, same, apart, _ = operands(moment)
    n = len(toy.replicas["m"])
    covariance = np.array(
        [[evaluate(same if a == b else apart, toy.between(a, b)) for b in range(n)] for a in range(n)], dtype=float
    )
    return _replicated(integral, covariance, toy)


@singledispatch
def _replicated(integral: Any, covariance: Any, toy: Toy) -> float:
    """Log of the integral over n replicas at once."""
    raise TypeError(f"no value for replicas of {type(integral).__name__}")


def _cube(toy: Toy, dimensions: int) -> tuple[list[Any], Any]:
    """Nodes of a standard Gaussian in some dimensions along as many axes, and their weights."""
    rules = [toy.gaussian(axis, dimensions) for axis in range(dimensions)]
    return [x for x, _ in rules], math.prod(weights for _, weights in rules)


@_replicated.register
def _(integral: SampleIntegral, covariance: Any, toy: Toy) -> float:
    mean, theta, rho, loss, beta = operands(integral)
    n = len(covariance)
    joint = np.empty((n + 1, n + 1))
    joint[:n, :n], joint[n, n] = covariance, evaluate(rho, toy)
    joint[n, :n] = joint[:n, n] = [evaluate(theta, toy.between(a, a)) for a in range(n)]
    means = [evaluate(mean, toy.between(a, a)) for a in range(n)] + [0.0]
    nodes, weights = _cube(toy, n + 1)
    fields = [
        center + sum(entry * x for entry, x in zip(row, nodes, strict=True))
        for center, row in zip(means, np.linalg.cholesky(joint).tolist(), strict=True)
    ]
    value = _loss_functions(loss)[0]
    energy = sum(value(h, fields[n]) for h in fields[:n])
    return math.log((np.exp(-evaluate(beta, toy) * energy) * weights).sum())


@_replicated.register
def _(integral: RowIntegral, covariance: Any, toy: Toy) -> float:
    source, penalty, beta = operands(integral)
    n = len(covariance)
    b = np.array([evaluate(source, toy.between(a, a)) for a in range(n)])
    # the weights have minus the covariance on the diagonal of their exponent
    coupling = covariance - 2 * np.diag(np.diagonal(covariance))
    precision = evaluate(beta, toy) * _curvature(penalty, toy) * np.eye(n) - coupling
    root = np.linalg.inv(np.linalg.cholesky(precision)).T
    center = np.linalg.solve(precision, b)
    nodes, weights = _cube(toy, n)
    rows = [sum(entry * x for entry, x in zip(row, nodes, strict=True)) for row in root]
    rows = [place + row for place, row in zip(center, rows, strict=True)]
    exponent: Any = sum(b[a] * w - evaluate(beta, toy) * _penalty(penalty, w, toy) for a, w in enumerate(rows))
    exponent = exponent + sum(coupling[a, c] * rows[a] * rows[c] for a in range(n) for c in range(n)) / 2
    gaussian = sum(x**2 for x in nodes) / 2 + n / 2 * math.log(2 * math.pi) + np.linalg.slogdet(root)[1]
    return float(_log_mean((exponent + gaussian).ravel(), np.broadcast_to(weights, exponent.shape).ravel(), 0)[0])


def _penalty(penalty: RidgePenalty, w: Any, toy: Toy) -> Any:
    return _curvature(penalty, toy) * w**2 / 2


def _curvature(penalty: RidgePenalty, toy: Toy) -> float:
    return evaluate(operands(penalty)[0], toy)


# --- replicas in groups ---------------------------------------------------------------------------------------------


@evaluate.register
def _(moment: CommonGaussianMoment, toy: Toy) -> Any:
    first, *others = moment.powers
    logs, common = _grouped(moment, others, toy)
    logs = evaluate(first, toy) * logs
    for axis, weights in reversed(list(enumerate(common))):
        logs = _log_mean(logs, weights, axis)
    return logs.item()


@evaluate.register
def _(moment: LogPartitionMean, toy: Toy) -> Any:
    logs, common = _grouped(moment, moment.powers, toy)
    return (logs * math.prod(common)).sum()


def _grouped(moment: Any, powers: Any, toy: Toy) -> tuple[Any, list[Any]]:
    """Log of what stands under the outermost mean, and the weights of this mean, along the leading axes."""
    integral = operands(moment)[0]
    covariances = [evaluate(c, toy) for c in moment.increments]
    logs, common, inner = _log_partition(integral, covariances, evaluate(moment.individual, toy), toy)
    for power, (axis, weights) in zip(reversed(list(powers)), reversed(inner), strict=True):
        logs = _log_mean(evaluate(power, toy) * logs, weights, axis)
    return logs, common


@singledispatch
def _log_partition(integral: Any, covariances: Any, individual: Any, toy: Toy) -> Any:
    """Log of the partition function at the common Gaussians, the weights of those of all, and of those of groups."""
    raise TypeError(f"no value for a partition function of {type(integral).__name__}")


@_log_partition.register
def _(integral: SampleIntegral, covariances: Any, individual: Any, toy: Toy) -> Any:
    mean, theta, rho, loss, beta = (a if isinstance(a, SampleLoss) else evaluate(a, toy) for a in operands(integral))
    omega, k, _, common, inner = _common_fields(mean, covariances, theta, rho, 1, toy)
    h = toy.grid
    exponent = -((h - omega) ** 2) / (2 * individual) - beta * _loss_functions(loss)[0](h, k)
    logs = _log_mean(exponent, (h[1] - h[0]) / math.sqrt(2 * math.pi * individual), -1)
    return logs, common, inner


def _common_fields(mean: Any, covariances: Any, theta: Any, rho: Any, spare: int, toy: Toy) -> Any:
    """Fields common to groups: omega, k, standard nodes of each level, weights of all's and of groups' Gaussians.

    Axes: the Gaussian that all share, that of the teacher, those of groups, and the spare ones.
    """
    axes = len(covariances) + 1 + spare
    first, *others = covariances
    x, weights = toy.gaussian(0, axes)
    zeta, teacher = toy.gaussian(1, axes)
    k = math.sqrt(rho) * zeta
    omega = mean + theta / rho * k + math.sqrt(first - theta**2 / rho) * x
    nodes, inner = [x], []
    for axis, increment in enumerate(others, 2):
        z, of_group = toy.gaussian(axis, axes)
        omega = omega + math.sqrt(increment) * z
        nodes.append(z)
        inner.append((axis, of_group))
    return omega, k, nodes, [weights, teacher], inner


@_log_partition.register
def _(integral: RowIntegral, covariances: Any, individual: Any, toy: Toy) -> Any:
    source, penalty, beta = operands(integral)
    field_, common, inner = _sources(evaluate(source, toy), covariances, 1, toy)
    beta = evaluate(beta, toy)
    precision = beta * _curvature(penalty, toy) + individual
    x, weights = toy.gaussian(len(covariances), len(covariances) + 1)
    w = field_ / precision + x / math.sqrt(precision)
    exponent = -beta * _penalty(penalty, w, toy) - individual * w**2 / 2 + field_ * w
    return _log_mean(exponent + x**2 / 2 + math.log(2 * math.pi / precision) / 2, weights, -1), common, inner


def _sources(mean: Any, covariances: Any, spare: int, toy: Toy) -> Any:
    """Sources common to groups, and the weights of their Gaussians."""
    axes = len(covariances) + spare
    rules = [toy.gaussian(axis, axes) for axis in range(len(covariances))]
    total = mean + sum(math.sqrt(c) * z for c, (z, _) in zip(covariances, rules, strict=True))
    return total, [rules[0][1]], [(axis, weights) for axis, (_, weights) in enumerate(rules)][1:]


# --- zero temperature -----------------------------------------------------------------------------------------------


def _minimiser(omega: Any, k: Any, variance: Any, loss: SampleLoss, toy: Toy) -> tuple[Any, Any]:
    """The global minimiser of the local problem and the minimum, for arrays of fields."""
    value, slope, curvature = _loss_functions(loss)
    h = toy.grid
    shape = np.broadcast_shapes(np.shape(omega), np.shape(k))
    omega, k = np.broadcast_to(omega, shape), np.broadcast_to(k, shape)
    energy = (h - omega[..., None]) ** 2 / (2 * variance) + value(h, k[..., None])
    best = h[energy.argmin(axis=-1)]
    for _ in range(_NEWTON_STEPS):
        second = 1 / variance + curvature(best, k)
        best = best - ((best - omega) / variance + slope(best, k)) / np.where(second > 0, second, np.inf)
    return best, (best - omega) ** 2 / (2 * variance) + value(best, k)


@evaluate.register
def _(envelope: MoreauEnvelope, toy: Toy) -> Any:
    _, _, variance, _, scale, loss = operands(envelope)
    if scale != 1:
        raise TypeError("no value for the envelope of a scaled loss")
    return _minimiser(toy.values["omega"], toy.values["k"], evaluate(variance, toy), loss, toy)[1]


@evaluate.register
def _(mean: FieldMean, toy: Toy) -> Any:
    center, apart, theta, rho, variance, *near = (evaluate(p, toy) for p in operands(mean.law))
    covariances = [apart, *(c - apart for c in near)]
    omega, k, nodes, common, inner = _common_fields(center, covariances, theta, rho, 0, toy)
    values = dict(zip(("xi_0", "xi_1"), nodes, strict=False)) if inner else {"xi": nodes[0]}
    values |= {"omega": omega, "k": k}
    if toy.loss is not None:
        prox, energy = _minimiser(omega, k, variance, toy.loss, toy)
        values |= {"prox": prox, "g": (prox - omega) / variance}
        for axis, weights in inner:
            values["tilt"] = weights * np.exp(-toy.values["y"] * (energy - energy.min(axis=axis, keepdims=True)))
    return (evaluate(mean.body, toy.given(**values)) * math.prod(common)).sum()


@evaluate.register
def _(mean: TiltedMean, toy: Toy) -> Any:
    tilt = toy.values["tilt"]
    return _mean(evaluate(mean.body, toy), tilt / tilt.sum(axis=-1, keepdims=True), -1)


@evaluate.register
def _(node: TiltedEnvelope, toy: Toy) -> Any:
    envelope, mean, apart, near, theta, rho, y = (
        a if isinstance(a, MoreauEnvelope) else evaluate(a, toy) for a in operands(node)
    )
    omega, k, _, common, inner = _common_fields(mean, [apart, near - apart], theta, rho, 0, toy)
    logs = -y * evaluate(envelope, toy.given(omega=omega, k=k))
    for axis, weights in inner:
        logs = _log_mean(logs, weights, axis)
    return (logs * math.prod(common)).sum()


@evaluate.register
def _(node: QuadraticMinimum, toy: Toy) -> Any:
    curvature, source, noise = (evaluate(a, toy) for a in operands(node))
    field_, (weights,), _ = _sources(source, [noise], 0, toy)
    return (weights * -(field_**2) / (2 * curvature)).sum()


@evaluate.register
def _(node: TiltedQuadratic, toy: Toy) -> Any:
    precision, source, apart, near, y = (evaluate(a, toy) for a in operands(node))
    field_, (common,), ((axis, weights),) = _sources(source, [apart, near - apart], 0, toy)
    return (_log_mean(y * field_**2 / (2 * precision), weights, axis) * common).sum()
