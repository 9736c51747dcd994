"""Return state-evolution points of the paper's layer by shifted points: references of `benchmarks.hundred`.

Nothing here comes from the package: neither its integration rules, nor its starts, nor its minimisers. The equations
are (7)-(8) and (10)-(14) of arXiv:2402.03902 for L tokens of variance σ², one column, a tied softmax student, the
ridge, and encodings along one direction, p_l = v_l e. All tokens then share (q, V, θ), and m_l = v_l m. A semantic
point has m = 0, and a positional one θ = 0: both are kept exactly. The point is x = (ln s, ln V, θ or m), where s > 0
is the part of q that is neither along the teacher nor along the encodings: q = s + θ² / σ² + σ² m².

- Teacher's fields come first: k ~ N(0, σ²), and ω given k ~ N(v m + θ k / σ², q - θ² / σ²). Both are the first points
  of a line on the torus with irrational slopes and random shifts, folded by the baker's transform. V̂ is Stein's mean
  over ω given k, and θ̂ follows from it. Shifts are independent, so that their scatter is the standard error.
- The proximal point is the lowest of several minima: `benchmarks.independent_minima`.
- The fixed point is found by damped steps from weights that equal the teacher's, or the encodings, then by Newton steps
  on few points, then by corrections (I - J)⁻¹ (F(x) - x) on more and more points, until the errors are small.
- Where the weights vanish, V is a one-dimensional root: the means are over k alone, with the curvature at h = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtri, softmax

from benchmarks.independent_minima import sums

__all__ = ["RELATIVE", "Attention", "Map", "attention_reference", "shifted_normals"]

Array = NDArray[np.float64]
Numbers = dict[str, float | list[float]]

SEED = 90
_GENERATOR = np.sqrt([2.0, 3.0, 5.0, 7.0, 11.0, 13.0])  # Richtmyer's: no two of them have a rational ratio
_SHIFTS = 8
_FEW = 2**7  # points a shift while the fixed point is searched
_NOT_SO_FEW = 2**10  # where the damped steps end
_DERIVATIVES = 2**11  # points a shift for J
_CORRECTIONS = 8  # on so many points at most
_FIRST, _MOST = 2**13, 2**17  # points a shift of the corrections
RELATIVE = 4e-4
"""Error at which the corrections end."""
_SURE = 4.0  # standard errors that an order parameter of a branch has at least
_VANISHED = 1e-7  # of σ²: smaller q are those of W = 0
_DAMPED = 600  # steps at most
_LOST = 0.01  # of the start's order parameter: what damped steps leave where there is no branch
_STEP = 2e-2  # of the differences for J, in the logarithms


@dataclass(frozen=True)
class Attention:
    """A problem of two or three tokens.

    Attributes
    ----------
    branch : {"semantic", "positional"}
    sigma, ridge, alpha, omega : float
        Standard deviation of the tokens' entries, λ, n/d, and weight of the teacher's positional part.
    mixing : (L, L) array
    gram : (L, L) array
        Products of the encodings; of rank one for a positional point, and not used for a semantic one.
    """

    branch: str
    sigma: float
    ridge: float
    alpha: float
    omega: float
    mixing: Array
    gram: Array

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.mixing)

    def overlap(self, x: Array) -> Array:
        """The overlap q of points x, the last axis being theirs."""
        gamma = self.sigma**2
        along = x[..., 2] ** 2 * (1 / gamma if self.branch == "semantic" else gamma)
        return np.asarray(np.exp(x[..., 0]) + along, dtype=np.float64)

    @property
    def direction(self) -> Array:
        """The numbers v_l, zero for a semantic point.

        Raises
        ------
        ValueError
            The encodings of a positional point have several directions.
        """
        if self.branch == "semantic":
            return np.zeros(self.length)
        values, vectors = np.linalg.eigh(self.gram)
        if values[-2] > 1e-9:
            raise ValueError("a positional point needs encodings along one direction")
        return np.sqrt(values[-1]) * vectors[:, -1]


def shifted_normals(points: int, dimensions: int, shift: Array) -> Array:
    """Standard normals at the first points of a shifted line on the torus, shape (points, dimensions)."""
    unit = (np.arange(points)[:, None] * _GENERATOR[:dimensions] + shift) % 1.0
    folded = 1 - np.abs(2 * unit - 1)
    return ndtri(np.clip(folded, 1e-16, 1 - 1e-16))


class Map:
    """The map on the points of all shifts."""

    def __init__(self, problem: Attention, points: int, merged: bool = False) -> None:
        generator = np.random.default_rng([SEED, points])
        dimensions = 2 * problem.length
        self.problem, self.merged = problem, merged
        # every point of ω also with the other sign: a map that keeps the symmetry of h and -h has no order parameter
        # of chance
        mirrored = np.repeat([1.0, -1.0], problem.length)
        halves = [shifted_normals(points // 2, dimensions, generator.random(dimensions)) for _ in range(_SHIFTS)]
        self.normals = [np.concatenate([half, half * mirrored]) for half in halves]

    def images(self, x: Array) -> Array:
        """F(x) and (training loss, test error), from each shift and, in the first row, from all; shape (1 + S, 5)."""
        p, v = self.problem, self.problem.direction
        q, V, gamma = p.overlap(x), np.exp(x[1]), p.sigma**2
        semantic = p.branch == "semantic"
        m, theta = (0.0, x[2]) if semantic else (x[2], 0.0)
        spread = np.exp(x[0] / 2) if semantic else np.sqrt(q)
        means = np.array([sums(z, spread, V, m, theta, gamma, p.omega, p.mixing, v) for z in self.normals])
        means = np.concatenate([means.mean(axis=0, keepdims=True), means])
        q_hat, m_hat, stein, gk = p.alpha * means[:, :4].T
        V_hat = -stein / spread
        theta_hat = gk / gamma + V_hat * theta / gamma
        # outside of the domain the least V that is allowed is a large one
        R = 1 / np.maximum(p.ridge + gamma * V_hat, gamma / (16 * V))
        new = gamma**2 * R**2 * q_hat, gamma * R
        aligned = gamma**2 * R * theta_hat if semantic else R * m_hat
        # rounding is not to grow where the uninformed point is unstable
        aligned = 0 * aligned if self.merged else aligned
        loss = p.alpha * means[:, 4] + p.ridge / 2 * q / gamma
        columns = np.log(new[0]), np.log(new[1]), aligned, loss, 2 / p.length * means[:, 5]
        return np.column_stack(columns).astype(np.float64)

    def __call__(self, x: Array) -> Array:
        """F(x) from all shifts."""
        return self.images(x)[0, :3]

    def jacobian(self, x: Array) -> Array:
        """Derivatives of F, and of what is observed, by central differences; shape (5, 3)."""
        steps = np.diag(_STEP * np.array([1, 1, max(abs(x[2]), 1e-6)]))
        moved = [(self.images(x + step)[0] - self.images(x - step)[0]) / 2 for step in steps]
        return np.linalg.solve(steps, np.array(moved)).T.astype(np.float64)


def _start(problem: Attention) -> Array:
    """Weights that equal the teacher's or the encodings' direction, with a little noise."""
    gamma = problem.sigma**2
    size = gamma if problem.branch == "semantic" else 1.0
    return np.array([np.log(0.1 * gamma), np.log(gamma / (problem.ridge + 0.1 * gamma)), size])


def _into_the_basin(problem: Attention, map_: Map, x: Array) -> Array:
    """Damped steps until little changes, or q vanishes."""
    # the map's slope in m is about -1.5 α at a positional point
    share = 0.3 / max(1.0, problem.alpha / 2 if problem.branch == "positional" and not map_.merged else 1.0)
    first = abs(x[2])
    for _ in range(min(round(60 / share), _DAMPED)):
        change = map_(x) - x
        x = x + share * np.clip(change, -2, 2)
        if problem.overlap(x) < _VANISHED * problem.sigma**2 or abs(x[2]) < _LOST * first:
            return x
        if np.abs(change / [1, 1, max(abs(x[2]), 1e-12)]).max() < 3e-3:
            break
    return x


def _newton(map_: Map, x: Array) -> Array:
    """Newton steps on few points, as long as they shrink the residual."""
    J = map_.jacobian(x)[:3]
    change = map_(x) - x
    for _ in range(8):
        step = np.linalg.solve(np.eye(3) - J, change)
        new = x + step * min(1.0, 0.5 / np.abs(step[:2]).max())
        new_change = map_(new) - new
        if not np.abs(new_change).max() < np.abs(change).max():
            break
        x, change = new, new_change
        if np.abs(change).max() < 1e-8:
            break
    return x


def attention_reference(
    problem: Attention, relative: float = RELATIVE, most: int = _MOST, start: Array | None = None
) -> tuple[Numbers, Numbers]:
    """Values and standard errors of a branch's point.

    Parameters
    ----------
    problem : Attention
    relative : float
        Standard error asked for, in units of the value.
    most : int
        Points a shift at which the corrections end in any case.
    start : (3,) array, optional
        Another start than the branch's own: (ln s, ln V, θ or m).
    """
    x = _start(problem) if start is None else start
    # few points may hold an order parameter that more do not
    for points in (_FEW, _NOT_SO_FEW):
        x = _into_the_basin(problem, Map(problem, points), x)
    lost = abs(x[2]) < _LOST * abs(_start(problem)[2])
    for merged in (True,) if lost else (False, True):
        if merged:
            x = _into_the_basin(problem, Map(problem, _NOT_SO_FEW, merged), x * [1, 1, 0])
        if problem.overlap(x) < _VANISHED * problem.sigma**2:
            return _without_weights(problem)
        for points in (_NOT_SO_FEW, _DERIVATIVES):
            x = _newton(Map(problem, points, merged), x)
        if not merged:
            found, errors = _corrected(problem, x, relative, _FIRST, merged)
            if abs(found[2]) > _SURE * errors[2]:
                found, errors = _corrected(problem, x, relative, most, merged)
            if abs(found[2]) > _SURE * errors[2]:
                return _named(problem, found, errors)
    # an order parameter within its error of zero is that of the uninformed point
    return _named(problem, *_corrected(problem, x, relative, most, True))


def _corrected(problem: Attention, x: Array, relative: float, most: int, merged: bool) -> tuple[Array, Array]:
    """(q, V, θ or m, training loss, test error) on more and more points, and their standard errors."""
    J, points = Map(problem, _DERIVATIVES, merged).jacobian(x), _FIRST
    response, observed = np.linalg.inv(np.eye(3) - J[:3]).astype(np.float64), J[3:]
    found, errors = np.empty((1 + _SHIFTS, 5)), np.empty(5)
    while True:
        map_, before, settled = Map(problem, points, merged), None, False
        for _ in range(_CORRECTIONS):
            images = map_.images(x)
            changes = images[:, :3] - x
            if before is not None:
                response = _secant(response, *before, changes[0])
            moves = changes @ response.T
            moved = x + moves
            found = np.column_stack(
                [problem.overlap(moved), np.exp(moved[:, 1]), moved[:, 2], images[:, 3:] + moves @ observed.T]
            )
            errors, spread = (each[1:].std(axis=0, ddof=1) / np.sqrt(_SHIFTS) for each in (found, moves))
            # derivatives are good to a tenth: what a correction leaves is then below a third of the error
            settled = bool(np.all(np.abs(moves[0]) <= 3 * spread))
            before, x = (moves[0], changes[0]), moved[0]
            if settled:
                break
        if not settled:
            raise ArithmeticError(f"{problem}: corrections do not settle")
        if np.all(errors <= relative * np.abs(found[0])) or points >= most:
            return found[0], errors
        points *= 4


def _secant(response: Array, move: Array, before: Array, after: Array) -> Array:
    """Broyden's update of (I - J)⁻¹ after a move that changed F(x) - x from one value to another."""
    answer = response @ (before - after)
    update = np.outer(move - answer, move @ response) / (move @ answer)
    return (response + update).astype(np.float64)


def _named(problem: Attention, found: Array, errors: Array) -> tuple[Numbers, Numbers]:
    """Values and errors of (q, V, θ or m, training loss, test error) by name.

    Raises
    ------
    ArithmeticError
        The iteration has left the domain.
    """
    if not np.all(np.isfinite([found, errors])):
        raise ArithmeticError(f"{problem}: no fixed point found")
    names = ("q", "V", "theta" if problem.branch == "semantic" else "m", "training_loss", "test_error")
    values, stated = (dict[str, float | list[float]](zip(names, row.tolist(), strict=True)) for row in (found, errors))
    if problem.branch == "positional":
        values["m"], stated["m"] = (
            (found[2] * problem.direction).tolist(),
            (errors[2] * abs(problem.direction)).tolist(),
        )
    return values, stated


def _without_weights(problem: Attention) -> tuple[Numbers, Numbers]:
    """The point W = 0, where h = 0 minimises every local problem, with V from the loss's curvature there."""
    generator, gamma, L = np.random.default_rng([SEED, 0]), problem.sigma**2, problem.length
    made = []
    for _ in range(_SHIFTS):
        k = problem.sigma * shifted_normals(2**14, L, generator.random(L))
        logits = k[:, :, None] * k[:, None, :]
        T = (1 - problem.omega) * softmax(logits, axis=2) + problem.omega * problem.mixing
        off = gamma * (1 / L - T)
        slopes = (off - off.mean(axis=2, keepdims=True)) / L
        curvatures = np.linalg.eigvalsh(slopes + slopes.transpose(0, 2, 1))

        def excess(V: float, curvatures: Any = curvatures) -> float:
            stiffness = problem.alpha * (curvatures / (1 + V * curvatures)).sum(axis=1).mean()
            return V * (problem.ridge + gamma * stiffness) - gamma

        # beyond the upper end a local problem has another minimum than h = 0
        grid = np.geomspace(1e-6, 1, 200) * min(-1 / curvatures.min(), 1e3 * gamma / problem.ridge)
        first = next(i for i, V in enumerate(grid) if excess(V) > 0)
        V = brentq(excess, grid[first - 1], grid[first])
        loss = (off**2).sum(axis=(1, 2)).mean() / (2 * gamma)
        made.append([0.0, V, 0.0, problem.alpha * loss, 2 / L * loss])
    numbers = np.array(made)
    return _named(problem, numbers.mean(axis=0), numbers.std(axis=0, ddof=1) / np.sqrt(_SHIFTS))
