"""Return state-evolution points of the paper's layer by shifted lattices: references of `benchmarks.hundred`.

Nothing here comes from the package: neither its integration rules, nor its starts, nor its minimisers. The equations
are (7)-(8) and (10)-(14) of arXiv:2402.03902 for L tokens of variance σ², one column, a tied softmax student, the ridge,
and encodings along one direction, p_l = v_l e. All tokens then share (q, V, θ), and m_l = v_l m. A semantic point has
m = 0, and a positional one θ = 0: both are kept exactly. The point is x = (ln s, ln V, θ or m), where s > 0 is the part
of q that is neither along the teacher nor along the encodings: q = s + θ² / σ² + σ² m².

- Teacher's fields come first: k ~ N(0, σ²), and ω given k ~ N(v m + θ k / σ², q - θ² / σ²). Both are the points of a
  rank-one lattice with random shifts, folded by the baker's transform. V̂ is Stein's mean over ω given k, and θ̂ follows
  from it. Shifts are independent, so that their scatter is the standard error.
- The proximal point is the lowest of several minima that damped Newton steps reach: from ω, from k and -k, and from the
  lowest few of a net of points spanned by ω, k and differences of tokens.
- The fixed point is found by damped steps from weights that equal the teacher's, or the encodings, then by Newton steps
  on few points, then by corrections (I - J)⁻¹ (F(x) - x) on more and more points, until the errors are small.
- Where the weights vanish, V is a one-dimensional root: the means are over k alone, with the curvature at h = 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba as nb
import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

__all__ = ["Attention", "attention_reference", "lattice", "lowest_minima", "sums"]

Array = NDArray[np.float64]

SEED = 90
_GENERATOR = (1, 182667, 469891, 498753, 110745, 446247)  # embedded lattice: any odd numbers give unbiased means
_SHIFTS = 8
_FEW = 2**9  # points a shift while the fixed point is searched
_DERIVATIVES = 2**11  # points a shift for J
_FIRST, _MOST = 2**12, 2**16  # points a shift of the corrections
_RELATIVE = 2e-4  # error at which the corrections end
_VANISHED = 1e-7  # of σ²: smaller q are those of W = 0
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


@nb.njit(error_model="numpy")
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


@nb.njit(error_model="numpy")
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


@nb.njit(error_model="numpy")
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


@nb.njit(error_model="numpy")
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


@nb.njit(error_model="numpy")
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


@nb.njit(error_model="numpy")
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
    # rows 14, 3 and 4 of the net are w, k and -k
    lowest = np.inf
    for turn in range(8):
        n = 14 if turn == 0 else 3 if turn == 1 else 4 if turn == 2 else np.argmin(energies[:count])
        energies[n] = np.inf
        h[:] = net[n, :L]
        value = _descend(h, w, T, V, gamma, gradient, hessian, step, trial, C)
        if value < lowest:
            lowest = value
            best[:] = h
    return lowest


@nb.njit(error_model="numpy", nogil=True)
def sums(normals, q, V, m, theta, gamma, omega, mixing, v):
    """Means over the points of g·g, g·v, g·z, g·k, the loss at the proximal point, and the loss at ω; shape (6,)."""
    L, out = len(v), np.zeros(6)
    T, C, hessian = np.empty((L, L)), np.empty((L, L)), np.empty((L, L))
    k, w, h, best, gradient, step, trial = [np.empty(L) for _ in range(7)]
    net, energies = np.empty((28 + 6 * L * (L - 1), L)), np.empty(28 + 6 * L * (L - 1))
    spread = np.sqrt(q - theta * theta / gamma)
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


@nb.njit(error_model="numpy")
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

    def __init__(self, problem: Attention, points: int) -> None:
        generator = np.random.default_rng([SEED, points])
        dimensions = 2 * problem.length
        self.problem = problem
        self.normals = [lattice(points, dimensions, generator.random(dimensions)) for _ in range(_SHIFTS)]

    def images(self, x: Array) -> Array:
        """F(x) and (training loss, test error), from each shift and, in the first row, from all; shape (1 + S, 5)."""
        p, v = self.problem, self.problem.direction
        q, V, order = p.overlap(x), np.exp(x[1]), x[2]
        m, theta = (0.0, order) if p.branch == "semantic" else (order, 0.0)
        gamma = p.sigma**2
        means = np.array([sums(z, q, V, m, theta, gamma, p.omega, p.mixing, v) for z in self.normals])
        means = np.concatenate([means.mean(axis=0, keepdims=True), means])
        q_hat, m_hat, stein, gk = p.alpha * means[:, :4].T
        V_hat = -stein / np.sqrt(q - theta**2 / gamma)
        theta_hat = gk / gamma + V_hat * theta / gamma
        # outside of the domain the least V that is allowed is a large one
        R = 1 / np.maximum(p.ridge + gamma * V_hat, gamma / (16 * V))
        new = gamma**2 * R**2 * q_hat, gamma * R
        aligned = R * m_hat if p.branch == "positional" else gamma**2 * R * theta_hat
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
    for _ in range(round(60 / share)):
        change = map_(x) - x
        x = x + share * np.clip(change, -2, 2)
        if problem.overlap(x) < _VANISHED * problem.sigma**2:
            return x
        if np.abs(change).max() < 3e-3:
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
    problem: Attention, relative: float = _RELATIVE, most: int = _MOST, start: Array | None = None
) -> tuple[dict[str, list[float] | float], dict[str, list[float] | float]]:
    """Values and standard errors of a branch's point.

    Parameters
    ----------
    problem : Attention
    relative : float
        Standard error asked for, in the logarithms of q and V, and relative to the order parameter.
    most : int
        Points a shift at which the corrections end in any case.
    start : (3,) array, optional
        Another start than the branch's own: (ln s, ln V, θ or m).
    """
    few = _Map(problem, _FEW)
    x = _into_the_basin(problem, few, _start(problem) if start is None else start)
    if problem.overlap(x) < _VANISHED * problem.sigma**2:
        return _without_weights(problem)
    x = _newton(few, x)
    middle = _Map(problem, _DERIVATIVES)
    x = _newton(middle, x)
    J, points = middle.jacobian(x), _FIRST
    response = np.linalg.inv(np.eye(3) - J[:3])
    while True:
        map_ = _Map(problem, points)
        for _ in range(4):
            images = map_.images(x)
            moves = (images[:, :3] - x) @ response.T
            observed = images[:, 3:] + moves @ J[3:].T
            found = np.column_stack([problem.overlap(x + moves), np.exp(x[1] + moves[:, 1]), x[2] + moves[:, 2], observed])
            errors = found[1:].std(axis=0, ddof=1) / np.sqrt(_SHIFTS)
            spread = moves[1:].std(axis=0, ddof=1) / np.sqrt(_SHIFTS)
            x = x + moves[0]
            if np.all(np.abs(moves[0]) < 0.3 * spread):
                break
        if np.all(errors < relative * np.abs(found[0])) or points >= most:
            return _named(problem, found[0], errors)
        points *= 4


def _named(problem: Attention, found: Array, errors: Array) -> tuple[dict, dict]:
    """Values and errors of (q, V, θ or m, training loss, test error) by name."""
    names = ("q", "V", "theta" if problem.branch == "semantic" else "m", "training_loss", "test_error")
    made = [dict(zip(names, map(float, numbers), strict=True)) for numbers in (found, errors)]
    for numbers in made:
        if "m" in numbers:
            numbers["m"] = list(numbers["m"] * (problem.direction if numbers is made[0] else abs(problem.direction)))
    return made[0], made[1]


def _without_weights(problem: Attention) -> tuple[dict, dict]:
    """The point W = 0."""
    raise NotImplementedError
