"""Return state-evolution points of attention with two tokens by lines: references of `benchmarks.errors`.

Nothing here comes from the package: neither its integration rules, nor its starts, nor its minimisers. The equations
are (7)-(8) and (10)-(14) of arXiv:2402.03902 for two tokens of variance σ², a teacher of one column, softmax scores,
the ridge, and encodings ±e. The student is tied with one column, or untied with one query and one key, r = 2 columns.
Both tokens share q, V and θ, and m_l = ±m. A semantic point has m = 0, a positional one θ = 0 and an uninformed one
both: this is kept exactly. The point is x = (S, V, θ or m), where S is the part of q that is neither along the teacher
nor along the encodings: q = S + θ θᵀ / σ² + σ² m mᵀ / |e|².

- Teacher's fields come first, on a trapezoid grid of their sum and difference, or of the fields themselves. The sign of
  k with that of ω, or alone, is a symmetry of each branch: half of the grid is enough.
- ω given k has the mean ±m + θ k / σ² and the covariance q - θ θᵀ / σ². One normal of it is integrated along lines,
  exactly across jumps (`benchmarks.independent_envelope`), one other on a trapezoid grid, and two others by
  Gauss-Hermite nodes.
- The loss of untied weights depends on both queries and on the difference of the keys: the local problem has these
  three fields, with the prior's covariance of them.
- V̂ is Stein's mean over ω given k, and θ̂ follows from it.
- The fixed point is found by damped steps on a coarse rule, and by Newton's and Broyden's steps on the finest.
- Orders grow by factors of √2. The error of a number is the larger of two changes: from the rule before, and to a rule
  that has another grid of k and lines along another direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.independent_envelope import line_sums

__all__ = ["Map", "Pair", "Rule", "pair_reference"]

Array = NDArray[np.float64]
Numbers = dict[str, Array]

_REACH = 6.0  # standard deviations: beyond, a Gaussian's mass is 2e-9
_DAMPED = 400  # steps at most
_VANISHED = 1e-3  # of the start's θ or m: what damped steps leave where there is no branch
_SETTLED = 1e-6  # relative, of the residual: a Newton step from there leaves a hundredth
_CORRECTIONS = 25
_ROUNDING = 1e-8  # relative: what reach and residual leave
_COARSE = 0.5  # of the orders: the rule of the damped steps, and the first of the sequence
ASKED, FINEST = 2e-5, 2.0
"""Relative error at which the sequence ends, and the factor of the orders at which it ends in any case."""


@dataclass(frozen=True)
class Pair:
    """A problem of two tokens.

    Attributes
    ----------
    branch : {"semantic", "positional", "uninformed"}
    sigma, ridge, alpha, omega : float
        Standard deviation of the tokens' entries, λ, n/d, and weight of the teacher's positional part.
    mixing : (2, 2) array
    size : float
        Norm of the encodings ±e.
    temperatures : (float, float)
        Of the student and of the teacher.
    causal : (bool, bool)
        The same.
    tied : bool
    """

    branch: str
    sigma: float
    ridge: float
    alpha: float
    omega: float
    mixing: Array
    size: float = 1.0
    temperatures: tuple[float, float] = (1.0, 1.0)
    causal: tuple[bool, bool] = (False, False)
    tied: bool = True

    @property
    def columns(self) -> int:
        """Of the student."""
        return 1 if self.tied else 2

    @property
    def gamma(self) -> float:
        """Variance of the tokens' entries."""
        return self.sigma**2


@dataclass(frozen=True)
class Rule:
    """Orders of a rule.

    Attributes
    ----------
    total, difference : int
        Nodes of the sum and of the difference of both teacher's fields.
    across, inner : int
        Nodes of the student's normals across the line; the second, and smaller, one of untied weights.
    panels, nodes : int
        Of a line, and Gauss-Legendre nodes of each piece.
    rotated, turned : bool
        Whether k is taken by its sum and difference; whether lines have another direction.
    """

    total: int = 20
    difference: int = 60
    across: int = 16
    inner: int = 6
    panels: int = 10
    nodes: int = 6
    rotated: bool = True
    turned: bool = False

    @classmethod
    def of(cls, problem: Pair) -> Rule:
        """Orders that follow how fast the teacher's matrix changes with its fields."""
        sharp = max(1.0, problem.gamma / problem.temperatures[1])
        rule = cls(total=round(20 * sharp**0.6), difference=round(60 * sharp**0.4))
        return rule if problem.tied else replace(rule, across=10)

    def scaled(self, factor: float) -> Rule:
        """All orders but the nodes of a piece times a factor."""
        names = ("total", "difference", "across", "inner", "panels")
        return replace(self, **{name: max(3, round(factor * getattr(self, name))) for name in names})


def _trapezoid(count: int) -> tuple[Array, Array]:
    """Nodes and weights of the standard normal, half a step off zero or at it, and symmetric."""
    nodes = _REACH * (2 * np.arange(count) + 1 - count) / count
    weights = np.exp(-(nodes**2) / 2)
    return nodes, weights / weights.sum()


def _hermite(count: int) -> tuple[Array, Array]:
    """Nodes of Gauss and Hermite and their weights."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return nodes, weights / weights.sum()


def _grid(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
    """Nodes of two normals, shape (N, 2), and weights."""
    nodes = np.stack(np.meshgrid(first[0], second[0], indexing="ij"), axis=-1).reshape(-1, 2)
    return nodes, np.outer(first[1], second[1]).ravel()


def _teacher(problem: Pair, rule: Rule) -> tuple[Array, Array, Array]:
    """Teacher's fields k on half of the grid, weights, and the first column of the teacher's matrix."""
    if rule.rotated:
        nodes, weights = _grid(_trapezoid(rule.total), _trapezoid(rule.difference))
        nodes = nodes @ np.array([[1.0, 1.0], [1.0, -1.0]]) / np.sqrt(2)
        first = nodes.sum(axis=1)
    else:
        one = _trapezoid(round(np.sqrt(rule.total * rule.difference)))
        nodes, weights = _grid(one, one)
        first = nodes[:, 0]
    kept = first > 1e-9
    alone = np.abs(first) <= 1e-9  # both halves of the middle line
    weights = np.where(kept, 2 * weights, weights)[kept | alone]
    k = problem.sigma * nodes[kept | alone]
    logits = k * (k[:, :1] - k[:, 1:]) / problem.temperatures[1]
    scores = 1 / (1 + np.exp(-logits))
    if problem.causal[1]:
        scores[:, 0] = 1
    return k, weights, (1 - problem.omega) * scores + problem.omega * problem.mixing[:, 0]


def _upper(matrix: Array) -> Array:
    return matrix[np.triu_indices(len(matrix))]


def _symmetric(entries: Array, size: int) -> Array:
    matrix = np.zeros((size, size))
    matrix[np.triu_indices(size)] = entries
    return matrix + np.triu(matrix, 1).T


class Map:
    """The map x → F(x) of a rule."""

    def __init__(self, problem: Pair, rule: Rule) -> None:
        self.problem, self.rule = problem, rule
        self.teacher = _teacher(problem, rule)

    def unpack(self, x: Array) -> tuple[Array, Array, Array, Array, Array]:
        """S, V, θ, m / |e| and q."""
        p, r = self.problem, self.problem.columns
        half = r * (r + 1) // 2
        S, V, order = _symmetric(x[:half], r), _symmetric(x[half : 2 * half], r), x[2 * half :]
        theta = order if p.branch == "semantic" else np.zeros(r)
        m = order if p.branch == "positional" else np.zeros(r)
        return S, V, theta, m, S + np.outer(theta, theta) / p.gamma + p.gamma * np.outer(m, m)

    def pack(self, S: Array, V: Array, order: Array) -> Array:
        """The inverse of `unpack`."""
        kept = order[: 0 if self.problem.branch == "uninformed" else len(order)]
        return np.concatenate([_upper(S), _upper(V), kept])

    def _factor(self, C: Array) -> Array:
        """A matrix F with F Fᵀ = C whose first column is the line: tokens differ along it."""
        turned = self.rule.turned
        if self.problem.tied:
            angle = 0.55 if turned else np.pi / 4
            return np.sqrt(C[0, 0]) * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        # the keys' difference, the queries' difference, the queries' sum: each has what the ones before leave of it
        basis = np.array([[0, 0, 1.0], [np.sqrt(0.5), -np.sqrt(0.5), 0], [np.sqrt(0.5), np.sqrt(0.5), 0]])
        basis = basis[[1, 0, 2]] if turned else basis
        return np.asarray(np.linalg.solve(basis, np.linalg.cholesky(basis @ C @ basis.T)), dtype=np.float64)

    def _across(self) -> tuple[Array, Array]:
        if self.problem.tied:
            nodes, weights = _trapezoid(self.rule.across)
            return nodes[:, None], weights
        return _grid(_hermite(self.rule.across), _hermite(self.rule.inner))

    def image(self, x: Array) -> tuple[Array, Array]:
        """F(x), and the training loss and the test error at x."""
        p, r = self.problem, self.problem.columns
        _, V, theta, m, q = self.unpack(x)
        k, weights, targets = self.teacher
        # fields of the local problem, of (token 1, token 2)'s
        E = np.eye(2) if p.tied else np.array([[1.0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, -1]])
        means = (k[:, :, None] * theta / p.gamma).reshape(len(k), 2 * r)
        centres = (means + p.size * np.concatenate([m, -m])) @ E.T
        F = self._factor(np.asarray(E @ np.kron(np.eye(2), q - np.outer(theta, theta) / p.gamma) @ E.T, np.float64))
        B = np.zeros((2, len(E), len(E)))
        for a, row in enumerate(np.eye(2)):
            left, right = (row, np.array([1.0, -1])) if p.tied else (np.append(row, 0), np.array([0, 0, 1.0]))
            B[a] = (np.outer(left, right) + np.outer(right, left)) / p.temperatures[0]
        c = p.gamma * np.array([0.0 if p.causal[0] else 1.0, 1.0])
        edges = np.linspace(-_REACH, _REACH, self.rule.panels + 1)
        legendre = np.polynomial.legendre.leggauss(self.rule.nodes)
        P = np.linalg.inv(E @ np.kron(np.eye(2), V) @ E.T)
        across, parts = self._across()
        scale = np.sqrt(p.temperatures[0])
        found = line_sums(k, weights, centres, targets, F, across, parts, edges, P, B, c, scale, *legendre)
        # a causal student's first row is (1, 0)
        fixed = p.gamma * float(weights @ (1 - targets[:, 0]) ** 2) if p.causal[0] else 0.0
        return self._overlaps(found, E, F, theta, q, fixed)

    def _overlaps(self, found: Array, E: Array, F: Array, theta: Array, q: Array, fixed: float) -> tuple[Array, Array]:
        p, r, n = self.problem, self.problem.columns, len(E)
        means = p.alpha * found[:n]

        def tokens(matrix: Array) -> tuple[Array, Array]:
            full = E.T @ matrix @ E
            return full[:r, :r], full[r:, r:]

        q_hat = sum(tokens(means[:, :n]))
        slope = np.linalg.solve(F.T, means[:, n : 2 * n].T).T
        V_hat = -sum(tokens((slope + slope.T) / 2))
        gk, g = E.T @ means[:, 2 * n : 2 * n + 2], E.T @ means[:, 2 * n + 2]
        theta_hat = (gk[:r, 0] + gk[r:, 1] + V_hat @ theta) / p.gamma
        m_hat = p.size * (g[:r] - g[r:])
        stiffness = p.ridge * np.eye(r) + p.gamma * V_hat
        # outside of the domain the stiffness is small
        values, vectors = np.linalg.eigh(stiffness)
        R = vectors / np.maximum(values, 1e-3 * p.ridge) @ vectors.T
        S = p.gamma**2 * R @ q_hat @ R
        order = p.gamma**2 * R @ theta_hat if p.branch == "semantic" else R @ m_hat
        norm = p.ridge / 2 * np.trace(q) / p.gamma
        loss, fresh = found[n, :2] + fixed
        return self.pack(S, p.gamma * R, order), np.array([p.alpha * loss + norm, fresh])

    def jacobian(self, x: Array, step: float = 1e-3) -> tuple[Array, Array]:
        """Derivatives of F and of what is observed, by central differences."""
        scales = step * self._scales(x)
        moved = [
            [(high - low) / (2 * scale) for high, low in zip(self.image(x + e), self.image(x - e), strict=True)]
            for scale, e in zip(scales, np.diag(scales), strict=True)
        ]
        return np.array([one[0] for one in moved]).T, np.array([one[1] for one in moved]).T

    def _scales(self, x: Array) -> Array:
        """Sizes of the entries of x: those of S and V off the diagonal have the diagonal's."""
        S, V, *_ = self.unpack(x)
        sizes = [_upper(np.sqrt(np.outer(np.diag(one), np.diag(one)))) for one in (S, V)]
        order = x[2 * len(sizes[0]) :]
        return np.concatenate([*sizes, np.full(len(order), np.abs(order).max(initial=0))])

    def residual(self, x: Array, image: Array) -> float:
        """Largest relative change."""
        return float(np.abs((image - x) / self._scales(x)).max())


def _start(problem: Pair) -> tuple[Array, Array, Array]:
    """Weights that equal the teacher's or the encodings' direction, with noise that tells query and key apart."""
    r, gamma = problem.columns, problem.gamma
    S = 0.1 * gamma * (np.eye(r) + 0.5 * (1 - np.eye(r)))
    V = gamma / (problem.ridge + 0.1 * gamma) * np.eye(r)
    return S, V, (gamma if problem.branch == "semantic" else 1.0) * np.ones(r)


def _damped(map_: Map, x: Array) -> Array:
    """Steps on a coarse rule, shorter where they turn around, until little changes."""
    share, before = 0.05, np.zeros_like(x)
    for _ in range(_DAMPED):
        change = map_.image(x)[0] - x
        share = max(0.02, share / 1.5) if change @ (before / map_._scales(x) ** 2) < 0 else min(0.8, 1.2 * share)
        x, before = x + share * change, change
        if map_.residual(x, x + change) < 1e-4:
            break
    return x


def _settled(map_: Map, x: Array, response: Array) -> tuple[Array, Array, Array, Array]:
    """A point next to the fixed point, F and what is observed there, and (I - J)⁻¹ after Broyden's steps.

    Raises
    ------
    ArithmeticError
        The residual does not settle.
    """
    image, seen = map_.image(x)
    for _ in range(_CORRECTIONS):
        if map_.residual(x, image) < _SETTLED:
            return x, image, seen, response
        change = image - x
        step = response @ change
        move = step * min(1.0, 0.2 / map_.residual(x, x + step))
        x = x + move
        image, seen = map_.image(x)
        answer = response @ (change - image + x)
        response = response + np.outer(move - answer, move @ response) / (move @ answer)
    raise ArithmeticError(f"{map_.problem}: residual {map_.residual(x, image):.0e}")


def _numbers(map_: Map, x: Array, image: Array, seen: Array, response: Array, observed: Array) -> Numbers:
    """q, V, θ or m, training loss and test error at the fixed point of a map that has these values at x.

    Those of tokens have all tokens' entries.
    """
    p, step = map_.problem, response @ (image - x)
    x, seen = x + step, seen + observed @ step
    _, V, theta, m, q = map_.unpack(x)
    named = {"q": np.tile(q.ravel(), 2), "V": np.tile(V.ravel(), 2)}
    named |= {"semantic": {"theta": np.tile(theta, 2)}, "positional": {"m": p.size * np.concatenate([m, -m])}}.get(
        p.branch, {}
    )
    return named | {"training_loss": seen[:1], "test_error": seen[1:]}


def pair_reference(
    problem: Pair, asked: float = ASKED, finest: float = FINEST, orders: Mapping[str, int] | None = None
) -> tuple[Numbers, Numbers]:
    """Values of a branch's point and their errors.

    Parameters
    ----------
    problem : Pair
    asked : float
        Error at which rules are not made finer, in units of the value.
    finest : float
        Factor of the orders at which they are not made finer in any case.
    orders : mapping of str to int, optional
        Instead of those of `Rule.of`, by its names.

    Raises
    ------
    ArithmeticError
        The branch has no point here, or none was found.
    """
    rule, scale = replace(Rule.of(problem), **(orders or {})), _COARSE
    map_ = Map(problem, rule.scaled(scale))
    start = map_.pack(*_start(problem))
    x = _damped(map_, start)
    order = slice(problem.columns * (problem.columns + 1), None)
    before: Numbers = {}
    jacobian, observed = map_.jacobian(x)
    response = np.linalg.inv(np.eye(len(x)) - jacobian).astype(np.float64)
    while True:
        map_ = Map(problem, rule.scaled(scale))
        x, image, seen, response = _settled(map_, x, response)
        if np.any(np.abs(x[order]) < _VANISHED * np.abs(start[order])):
            raise ArithmeticError(f"{problem}: no such branch here, x = {x}")
        values = _numbers(map_, x, image, seen, response, observed)
        if before:
            other = Map(problem, replace(map_.rule, rotated=False, turned=True))
            second = _numbers(map_, x, *other.image(x), response, observed)
            errors = {
                name: np.maximum(abs(value - before[name]), abs(value - second[name])) + _ROUNDING * abs(value)
                for name, value in values.items()
            }
            if scale >= finest or all(np.all(errors[name] <= asked * abs(values[name]).max()) for name in values):
                return values, errors
        before, scale = values, scale * np.sqrt(2)
