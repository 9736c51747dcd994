"""Fill means over local problems of the paper's layer, each at the lowest minimum found: `independent_attention`.

Levenberg's damped Newton steps lead from ω, and from the lowest few points of a net spanned by ω, k and differences of
tokens, to minima of |h - ω|² / 2 + V ℓ(h, k). A large V makes valleys narrow: then the net's best differences of tokens
and the mirror image -h of the best minimum are starts too.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

__all__ = ["lowest_minima", "sums"]

_DESCENTS = 5  # of a local problem: against dense nets of starts none of 1600 lowest minima was missed
_STIFF = 30.0  # V σ² from which on narrow valleys hide minima: three descents more
# infinities are used: they must not be assumed away
_FAST: Any = {"error_model": "numpy", "cache": True, "fastmath": {"nnan", "nsz", "arcp", "contract", "afn", "reassoc"}}


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
