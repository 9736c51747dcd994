"""Return state-evolution points of the paper's layer by shifted lattices: references of `benchmarks.hundred`.

Nothing here comes from the package: neither its integration rules, nor its starts, nor its minimisers. The equations
are (7)-(8) and (10)-(14) of arXiv:2402.03902 for L tokens of variance σ², one column, a tied softmax student, the
ridge, and encodings along one direction, p_l = v_l e. All tokens then share (q, V, θ), and m_l = v_l m. A semantic
point has m = 0, and a positional one θ = 0: both are kept exactly. The point is x = (ln s, ln V, θ or m), where s > 0
is the part of q that is neither along the teacher nor along the encodings: q = s + θ² / σ² + σ² m².

- Teacher's fields come first: k ~ N(0, σ²), and ω given k ~ N(v m + θ k / σ², q - θ² / σ²). Both are the points of a
  rank-one lattice with random shifts, folded by the baker's transform. V̂ is Stein's mean over ω given k, and θ̂ follows
  from it. Shifts are independent, so that their scatter is the standard error.
- The proximal point is the lowest of several minima that damped Newton steps reach: from ω, and from the lowest few
  of a net of points spanned by ω, k and differences of tokens.
- The fixed point is found by damped steps from weights that equal the teacher's, or the encodings, then by Newton steps
  on few points, then by corrections (I - J)⁻¹ (F(x) - x) on more and more points, until the errors are small.
- Where the weights vanish, V is a one-dimensional root: the means are over k alone, with the curvature at h = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtri, softmax

__all__ = ["RELATIVE", "Attention", "attention_reference", "lattice", "lowest_minima", "sums"]

Array = NDArray[np.float64]
Numbers = dict[str, float | list[float]]

SEED = 90
_GENERATOR = (1, 182667, 469891, 498753, 110745, 446247)  # embedded lattice: any odd numbers give unbiased means
_SHIFTS = 8
_FEW = 2**7  # points a shift while the fixed point is searched
_DERIVATIVES = 2**9  # points a shift for J
_FIRST, _MOST = 2**11, 2**17  # points a shift of the corrections
RELATIVE = 4e-4
"""Error at which the corrections end."""
_SURE = 4.0  # standard errors that an order parameter of a branch has at least
_VANISHED = 1e-7  # of σ²: smaller q are those of W = 0
_DESCENTS = 5  # of a local problem: against dense nets of starts none of 1600 lowest minima was missed
_DAMPED = 600  # steps at most
_LOST = 0.01  # of the start's order parameter: what damped steps leave where there is no branch
_STIFF = 30.0  # V σ² from which on narrow valleys hide minima: three descents more
_STEP = 2e-2  # of the differences for J, in the logarithms


# infinities are used: they must not be assumed away
_FAST: Any = {"error_model": "numpy", "cache": True, "fastmath": {"nnan", "nsz", "arcp", "contract", "afn", "reassoc"}}


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
        return np.exp(x[..., 0]) + x[..., 2] ** 2 * (1 / gamma if self.branch == "semantic" else gamma)

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


@nb.njit(**_FAST)
def _target(k, omega, mixing, T):
    """Fill T with the teacher's matrix."""
    L = len(k)
    for a in range(L):
        top, total = -np.inf, 0.0
        for b in range(L):
            top = max(top, k[a] * k[b])
        for b in range(L):
            T[a, b] = np.exp(k[a] * k[b] - top)
            total += T[a, b]
        for b in range(L):
            T[a, b] = (1 - omega) * T[a, b] / total + omega * mixing[a, b]


@nb.njit(**_FAST)
def _loss(h, T, gamma):
    """Half the squared distance of the attention matrices, times the tokens' variance."""
    L, loss = len(h), 0.0
    for a in range(L):
        top, total, square, cross, own = -np.inf, 0.0, 0.0, 0.0, 0.0
        for b in range(L):
            top = max(top, h[a] * h[b])
        for b in range(L):
            e = np.exp(h[a] * h[b] - top)
            total += e
            square += e * e
            cross += e * T[a, b]
            own += T[a, b] ** 2
        loss += square / total**2 - 2 * cross / total + own
    return gamma * loss / 2


@nb.njit(**_FAST)
def _derivatives(h, T, gamma, gradient, hessian):
    """The loss; fill its gradient and Hessian in h, row by row of the attention matrix."""
    L, loss = len(h), 0.0
    gradient[:] = 0
    hessian[:] = 0
    p, d, K = np.empty(3), np.empty(3), np.empty((3, 3))
    for a in range(L):
        top, total = -np.inf, 0.0
        for b in range(L):
            top = max(top, h[a] * h[b])
        for b in range(L):
            p[b] = np.exp(h[a] * h[b] - top)
            total += p[b]
        mean, square = 0.0, 0.0
        for b in range(L):
            p[b] /= total
            d[b] = gamma * (p[b] - T[a, b])
            loss += d[b] ** 2 / (2 * gamma)
            mean += p[b] * d[b]
            square += p[b] ** 2
        # K_bc = d^2 loss / ds_b ds_c, then d_b = d loss / ds_b, of the logits s_b = h_a h_b
        for b in range(L):
            for c in range(L):
                same = 1.0 if b == c else 0.0
                slope = p[c] * (d[c] - mean) + gamma * p[c] * (p[c] - square)
                K[b, c] = p[b] * ((same - p[c]) * (d[b] - mean + gamma * p[b]) - slope)
        for b in range(L):
            d[b] = p[b] * (d[b] - mean)
        for b in range(L):
            gradient[a] += d[b] * h[b]
            gradient[b] += d[b] * h[a]
            hessian[a, b] += d[b]
            hessian[b, a] += d[b]
            for c in range(L):
                hessian[a, a] += K[b, c] * h[b] * h[c]
                hessian[a, c] += K[b, c] * h[b] * h[a]
                hessian[b, a] += K[b, c] * h[a] * h[c]
                hessian[b, c] += K[b, c] * h[a] * h[a]
    return loss


@nb.njit(**_FAST)
def _solve(A, lift, rhs, out, C):
    """Solve (A + lift) out = rhs by Cholesky's factors; False where it is not positive definite."""
    L = len(rhs)
    for i in range(L):
        for j in range(i + 1):
            s = A[i, j] + (lift if i == j else 0.0)
            for n in range(j):
                s -= C[i, n] * C[j, n]
            if i == j:
                if not s > 1e-12 * (1 + abs(A[i, i])):
                    return False
                C[i, i] = np.sqrt(s)
            else:
                C[i, j] = s / C[j, j]
    for i in range(L):
        s = rhs[i]
        for n in range(i):
            s -= C[i, n] * out[n]
        out[i] = s / C[i, i]
    for i in range(L - 1, -1, -1):
        s = out[i]
        for n in range(i + 1, L):
            s -= C[n, i] * out[n]
        out[i] = s / C[i, i]
    return True


@nb.njit(**_FAST)
def _descend(h, w, T, V, gamma, gradient, hessian, step, trial, C):
    """Move h to a minimum of |h - w|^2 / 2 + V loss by Levenberg's damped Newton steps; return V Psi there."""
    L, lift = len(h), 0.0
    value = V * _derivatives(h, T, gamma, gradient, hessian)
    for i in range(L):
        value += (h[i] - w[i]) ** 2 / 2
    for _ in range(200):
        size, scale = 0.0, 1e-12
        for i in range(L):
            gradient[i] = -(V * gradient[i] + h[i] - w[i])
            size = max(size, abs(gradient[i]))
            scale = max(scale, abs(w[i]), abs(h[i]))
            for j in range(L):
                hessian[i, j] *= V
            hessian[i, i] += 1
        if size < 1e-11 * scale:
            return value
        while True:
            if _solve(hessian, lift, gradient, step, C):
                new = 0.0
                for i in range(L):
                    trial[i] = h[i] + step[i]
                    new += (trial[i] - w[i]) ** 2 / 2
                new += V * _loss(trial, T, gamma)
                if new < value:
                    break
            lift = max(4 * lift, 0.05)
            if lift > 1e14:
                return value
        lift = lift / 8 if lift > 0.05 else 0.0
        for i in range(L):
            h[i] = trial[i]
        value = V * _derivatives(h, T, gamma, gradient, hessian)
        for i in range(L):
            value += (h[i] - w[i]) ** 2 / 2
    return value


@nb.njit(**_FAST)
def _lowest(w, k, T, V, gamma, best, net, energies, h, gradient, hessian, step, trial, C):
    """Fill best with the lowest minimum found; return V Psi there."""
    L, count = len(w), 0
    for a in (0.0, 0.5, 1.0, -1.0):
        for b in (0.0, 0.5, -0.5, 1.0, -1.0, 1.6, -1.6):
            for i in range(L):
                net[count, i] = a * w[i] + b * k[i]
            count += 1
    for centre in (0.0, 1.0):
        for size in (0.6, 1.2, 2.4):
            for i in range(L):
                for j in range(L):
                    if i != j:
                        for n in range(L):
                            net[count, n] = centre * w[n]
                        net[count, i] += size
                        net[count, j] -= size
                        count += 1
    for n in range(count):
        s = V * _loss(net[n], T, gamma)
        for i in range(L):
            s += (net[n, i] - w[i]) ** 2 / 2
        energies[n] = s
    # row 14 of the net is w
    lowest = np.inf
    pairs = L * (L - 1)
    for turn in range(_DESCENTS + (3 if V * gamma > _STIFF else 0)):
        if turn == _DESCENTS + 2:
            h[:] = -best
        else:
            n = 14 if turn == 0 else np.argmin(energies[:count])
            if turn >= _DESCENTS:  # the best of tokens that differ
                n = 28 + np.argmin(energies[28 : 28 + pairs])
            energies[n] = np.inf
            h[:] = net[n, :L]
        value = _descend(h, w, T, V, gamma, gradient, hessian, step, trial, C)
        if value < lowest:
            lowest = value
            best[:] = h
    return lowest


@nb.njit(**_FAST)
def sums(normals, spread, V, m, theta, gamma, omega, mixing, v):
    """Means over the points of g·g, g·v, g·z, g·k, the loss at the proximal point, and the loss at ω; shape (6,).

    spread is the standard deviation of ω given k.
    """
    L, out = len(v), np.zeros(6)
    T, C, hessian = np.empty((L, L)), np.empty((L, L)), np.empty((L, L))
    k, w, h, best, gradient, step, trial = [np.empty(L) for _ in range(7)]
    net, energies = np.empty((28 + 6 * L * (L - 1), L)), np.empty(28 + 6 * L * (L - 1))
    for n in range(len(normals)):
        for i in range(L):
            k[i] = np.sqrt(gamma) * normals[n, i]
            w[i] = v[i] * m + theta / gamma * k[i] + spread * normals[n, L + i]
        _target(k, omega, mixing, T)
        _lowest(w, k, T, V, gamma, best, net, energies, h, gradient, hessian, step, trial, C)
        for i in range(L):
            g = (best[i] - w[i]) / V
            out[0] += g * g
            out[1] += g * v[i]
            out[2] += g * normals[n, L + i]
            out[3] += g * k[i]
        out[4] += _loss(best, T, gamma)
        out[5] += _loss(w, T, gamma)
    return out / len(normals)


@nb.njit(**_FAST)
def lowest_minima(fields, centres, targets, V, gamma):
    """The proximal points of many local problems, one a row, and V Psi there."""
    count, L = centres.shape
    found, values = np.empty((count, L)), np.empty(count)
    C, hessian = np.empty((L, L)), np.empty((L, L))
    h, gradient, step, trial = [np.empty(L) for _ in range(4)]
    net, energies = np.empty((28 + 6 * L * (L - 1), L)), np.empty(28 + 6 * L * (L - 1))
    for n in range(count):
        values[n] = _lowest(
            centres[n], fields[n], targets[n], V, gamma, found[n], net, energies, h, gradient, hessian, step, trial, C
        )
    return found, values


def lattice(points: int, dimensions: int, shift: Array) -> Array:
    """Standard normals at a shifted lattice's points, shape (points, dimensions)."""
    generator = np.array(_GENERATOR[:dimensions], dtype=np.int64)
    index = np.arange(points, dtype=np.int64)[:, None]
    unit = ((index * generator) % points / points + shift) % 1.0
    folded = 1 - np.abs(2 * unit - 1)
    return ndtri(np.clip(folded, 1e-16, 1 - 1e-16))


class _Map:
    """The map on the points of all shifts."""

    def __init__(self, problem: Attention, points: int, merged: bool = False) -> None:
        generator = np.random.default_rng([SEED, points])
        dimensions = 2 * problem.length
        self.problem, self.merged = problem, merged
        self.normals = [lattice(points, dimensions, generator.random(dimensions)) for _ in range(_SHIFTS)]

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
        # symmetry, which a shifted lattice does not have, keeps an order parameter at zero
        aligned = 0 * aligned if self.merged else aligned
        loss = p.alpha * means[:, 4] + p.ridge / 2 * q / gamma
        return np.column_stack([np.log(new[0]), np.log(new[1]), aligned, loss, 2 / p.length * means[:, 5]])

    def __call__(self, x: Array) -> Array:
        """F(x) from all shifts."""
        return self.images(x)[0, :3]

    def jacobian(self, x: Array) -> Array:
        """Derivatives of F, and of what is observed, by central differences; shape (5, 3)."""
        steps = np.diag(_STEP * np.array([1, 1, max(abs(x[2]), 1e-6)]))
        moved = [(self.images(x + step)[0] - self.images(x - step)[0]) / 2 for step in steps]
        return np.linalg.solve(steps, np.array(moved)).T


def _start(problem: Attention) -> Array:
    """Weights that equal the teacher's or the encodings' direction, with a little noise."""
    gamma = problem.sigma**2
    size = gamma if problem.branch == "semantic" else 1.0
    return np.array([np.log(0.1 * gamma), np.log(gamma / (problem.ridge + 0.1 * gamma)), size])


def _into_the_basin(problem: Attention, map_: _Map, x: Array) -> Array:
    """Damped steps until little changes, or q vanishes."""
    share = 0.3 if problem.branch == "semantic" else 0.3 / max(1.0, problem.alpha / 2)
    first = abs(x[2])
    for _ in range(min(round(60 / share), _DAMPED)):
        change = map_(x) - x
        x = x + share * np.clip(change, -2, 2)
        if problem.overlap(x) < _VANISHED * problem.sigma**2 or abs(x[2]) < _LOST * first:
            return x
        if np.abs(change / [1, 1, max(abs(x[2]), 1e-12)]).max() < 3e-3:
            break
    return x


def _newton(map_: _Map, x: Array) -> Array:
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
    x = _into_the_basin(problem, _Map(problem, _FEW), _start(problem) if start is None else start)
    lost = abs(x[2]) < _LOST * abs(_start(problem)[2])
    for merged in (True,) if lost else (False, True):
        x = x * [1, 1, not merged]
        for points in (_FEW, _DERIVATIVES):
            x = _newton(_Map(problem, points, merged), x)
            if problem.overlap(x) < _VANISHED * problem.sigma**2:
                return _without_weights(problem)
        for end in (most,) if merged else (_FIRST, most):
            found, errors = _corrected(problem, x, relative, end, merged)
            if abs(found[2]) <= _SURE * errors[2]:
                break
        else:
            return _named(problem, found, errors)
    # an order parameter within its error of zero is that of the uninformed point
    return _named(problem, found, errors)


def _corrected(problem: Attention, x: Array, relative: float, most: int, merged: bool) -> tuple[Array, Array]:
    """(q, V, θ or m, training loss, test error) on more and more points, and their standard errors."""
    J, points = _Map(problem, _DERIVATIVES, merged).jacobian(x), _FIRST
    response = np.linalg.inv(np.eye(3) - J[:3])
    found, errors = np.empty((1 + _SHIFTS, 5)), np.empty(5)
    while True:
        map_ = _Map(problem, points, merged)
        for _ in range(2):
            images = map_.images(x)
            moves = (images[:, :3] - x) @ response.T
            observed = images[:, 3:] + moves @ J[3:].T
            moved = x + moves
            found = np.column_stack([problem.overlap(moved), np.exp(moved[:, 1]), moved[:, 2], observed])
            errors, spread = (each[1:].std(axis=0, ddof=1) / np.sqrt(_SHIFTS) for each in (found, moves))
            x = moved[0]
            # J is good to a tenth: what a correction leaves is then below a third of the error
            if np.all(np.abs(moves[0]) <= 3 * spread):
                break
        if np.all(errors <= relative * np.abs(found[0])) or points >= most:
            return found[0], errors
        points *= 4


def _named(problem: Attention, found: Array, errors: Array) -> tuple[Numbers, Numbers]:
    """Values and errors of (q, V, θ or m, training loss, test error) by name."""
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
        k = problem.sigma * lattice(2**14, L, generator.random(L))
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
