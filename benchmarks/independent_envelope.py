"""Fill means over Gaussian fields of lowest minima, followed along lines: `benchmarks.independent_pairs`.

A local problem has n fields h, and Psi(h) = (h - w) P (h - w) / 2 + sum over a of c_a (S(h B_a h / 2) - t_a)², S the
logistic function. Up to a quadratic of w its lowest value is a concave function of w: along a line of w the minimiser
is monotone, and it jumps where two minima have the same value. A line is cut into panels. Each edge has the lowest of
many minima, and neighbours' minima are tried until none is lower. A panel is smooth if the minimiser changes as the
mean of both ends' tangents says; else it is cut at the crossing of its ends' minima, or in the middle. Smooth pieces
have Gauss-Legendre nodes.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

__all__ = ["line_sums"]

_BEND = 0.02  # departure of a smooth piece's change from its tangents' mean, in units of that change
_NARROW = 1e-9  # pieces, in standard deviations, that are not cut any more
_STEP = 1e-7  # relative: a full Newton step as short is the last one
_RADII = (0.4, 1.0, 2.0, 4.0)  # of the starts, in fields whose square is the temperature
_DESCENTS = 2  # from the lowest of these starts
_FAST: Any = {"error_model": "numpy", "cache": True, "fastmath": {"nnan", "nsz", "arcp", "contract", "afn", "reassoc"}}


@nb.njit(**_FAST)
def _evaluate(h, w, P, B, t, c, gradient, hessian, z):
    """Psi and the loss at h; fill the gradient and the Hessian of Psi."""
    n, value, loss = len(h), 0.0, 0.0
    for i in range(n):
        s = 0.0
        for j in range(n):
            s += P[i, j] * (h[j] - w[j])
            hessian[i, j] = P[i, j]
        gradient[i] = s
        value += s * (h[i] - w[i]) / 2
    for a in range(2):
        x = 0.0
        for i in range(n):
            s = 0.0
            for j in range(n):
                s += B[a, i, j] * h[j]
            z[i] = s
            x += s * h[i] / 2
        S = 1 / (1 + np.exp(-x))
        off, slope = S - t[a], S * (1 - S)
        loss += c[a] * off * off
        first, second = 2 * c[a] * off * slope, 2 * c[a] * slope * (slope + off * (1 - 2 * S))
        for i in range(n):
            gradient[i] += first * z[i]
            for j in range(n):
                hessian[i, j] += second * z[i] * z[j] + first * B[a, i, j]
    return value + loss, loss


@nb.njit(**_FAST)
def _solve(H, P, lift, rhs, out, C):
    """Solve (H + lift P) out = rhs by Cholesky's factors; False where it is not positive definite."""
    n = len(rhs)
    for i in range(n):
        for j in range(i + 1):
            s = H[i, j] + lift * P[i, j]
            for k in range(j):
                s -= C[i, k] * C[j, k]
            if i == j:
                if not s > 1e-10 * P[i, i]:
                    return False
                C[i, i] = np.sqrt(s)
            else:
                C[i, j] = s / C[j, j]
    for i in range(n):
        s = rhs[i]
        for k in range(i):
            s -= C[i, k] * out[k]
        out[i] = s / C[i, i]
    for i in range(n - 1, -1, -1):
        s = out[i]
        for k in range(i + 1, n):
            s -= C[k, i] * out[k]
        out[i] = s / C[i, i]
    return True


@nb.njit(**_FAST)
def _descend(h, w, P, B, t, c, hessian, C, rows):
    """Move h to a local minimum; return Psi and the loss there."""
    n, lift = len(h), 0.0
    gradient, step, trial, z = rows[0], rows[1], rows[2], rows[3]
    value, loss = _evaluate(h, w, P, B, t, c, gradient, hessian, z)
    for _ in range(200):
        for i in range(n):
            gradient[i] = -gradient[i]
        while True:
            if _solve(hessian, P, lift, gradient, step, C):
                size, scale = 0.0, 0.0
                for i in range(n):
                    trial[i] = h[i] + step[i]
                    size, scale = max(size, abs(step[i])), max(scale, abs(h[i]), abs(w[i]))
                if lift == 0 and size <= _STEP * scale:
                    h[:] = trial
                    return value, loss
                if _value(trial, w, P, B, t, c) < value:
                    break
            lift = max(4 * lift, 0.1)
            if lift > 1e12:
                return value, loss
        lift = lift / 8 if lift > 0.1 else 0.0
        h[:] = trial
        value, loss = _evaluate(h, w, P, B, t, c, gradient, hessian, z)
    return value, loss


@nb.njit(**_FAST)
def _loss(h, B, t, c):
    """The loss at h."""
    n, loss = len(h), 0.0
    for a in range(2):
        x = 0.0
        for i in range(n):
            for j in range(n):
                x += h[i] * B[a, i, j] * h[j] / 2
        loss += c[a] * (1 / (1 + np.exp(-x)) - t[a]) ** 2
    return loss


@nb.njit(**_FAST)
def _value(h, w, P, B, t, c):
    """Psi at h."""
    n, value = len(h), 0.0
    for i in range(n):
        for j in range(n):
            value += (h[i] - w[i]) * P[i, j] * (h[j] - w[j]) / 2
    return value + _loss(h, B, t, c)


@nb.njit(**_FAST)
def _try(best, value, h, w, P, B, t, c, hessian, C, rows):
    """Descend from h; fill best if it is lower than value, and return the lower of both."""
    new, _ = _descend(h, w, P, B, t, c, hessian, C, rows)
    if new < value - 1e-13 * abs(value):
        best[:] = h
        return new
    return value


@nb.njit(**_FAST)
def _lowest(best, w, net, P, B, t, c, energies, h, hessian, C, rows):
    """Fill best with the lowest minimum found from w and the lowest points of a net; return Psi there."""
    h[:] = w
    value = _try(best, np.inf, h, w, P, B, t, c, hessian, C, rows)
    for i in range(len(net)):
        energies[i] = _value(net[i], w, P, B, t, c)
    for _ in range(_DESCENTS):
        i = np.argmin(energies)
        energies[i] = np.inf
        h[:] = net[i]
        value = _try(best, value, h, w, P, B, t, c, hessian, C, rows)
    return value


@nb.njit(**_FAST)
def _tangent(out, h, w, u, P, B, t, c, hessian, C, rows):
    """Fill out with the derivative of the minimum h when w moves along u."""
    _evaluate(h, w, P, B, t, c, rows[0], hessian, rows[3])
    for i in range(len(h)):
        s = 0.0
        for j in range(len(h)):
            s += P[i, j] * u[j]
        rows[0, i] = s
    # at a fold the tangent is vertical
    if not _solve(hessian, P, 0.0, rows[0], out, C):
        out[:] = 1e9


@nb.njit(**_FAST)
def _edges(edges, H, E, base, u, net, memory, P, B, t, c, energies, h, w, hessian, C, rows):
    """Fill H with the lowest minimum at each edge; memory holds another line's, and becomes this one's."""
    last = len(edges) - 1
    for j in range(last + 1):
        for i in range(len(w)):
            w[i] = base[i] + edges[j] * u[i]
        E[j] = _lowest(H[j], w, net, P, B, t, c, energies, h, hessian, C, rows)
        h[:] = memory[j]
        E[j] = _try(H[j], E[j], h, w, P, B, t, c, hessian, C, rows)
    # to the left and to the right, until neither finds less
    quiet, turn = 0, 0
    while quiet < 2 and turn < 20:
        quiet += 1
        for n in range(1, last + 1):
            to, by = (last - n, last - n + 1) if turn % 2 == 0 else (n, n - 1)
            h[:] = H[by]
            for i in range(len(w)):
                w[i] = base[i] + edges[to] * u[i]
            new = _try(H[to], E[to], h, w, P, B, t, c, hessian, C, rows)
            if new < E[to]:
                E[to], quiet = new, 0
        turn += 1
    memory[:] = H


@nb.njit(**_FAST)
def _cut(l, r, a, b, base, u, P, B, t, c, w, hessian, C, rows):
    """Where the minima a, of the left end, and b, of the right, cross: both are moved there. NaN if one ends before."""
    n, left, right = len(w), l, r
    s = (l + r) / 2
    for _ in range(60):
        for i in range(n):
            w[i] = base[i] + s * u[i]
        low, _ = _descend(a, w, P, B, t, c, hessian, C, rows)
        high, _ = _descend(b, w, P, B, t, c, hessian, C, rows)
        slope, apart, size = 0.0, 0.0, 0.0
        for i in range(n):
            apart, size = max(apart, abs(b[i] - a[i])), max(size, abs(b[i]), abs(a[i]))
            for j in range(n):
                slope += u[i] * P[i, j] * (b[j] - a[j])
        if apart < 1e-5 * size or not slope > 0:
            return np.nan
        if low < high:
            left = s
        else:
            right = s
        new = s - (low - high) / slope
        if abs(new - s) < _NARROW / 10:
            return s
        s = new if left < new < right else (left + right) / 2
        if right - left < _NARROW / 10:
            return s
    return s


@nb.njit(**_FAST)
def _smooth(l, r, a, b, ta, tb, u):
    """Whether the change of the minimum from a to b is that of the tangents' mean."""
    off, change = 0.0, 0.0
    for i in range(len(a)):
        off = max(off, abs(b[i] - a[i] - (r - l) * (ta[i] + tb[i]) / 2))
        change = max(change, abs(b[i] - a[i]), abs(u[i]) * (r - l))
    return off <= _BEND * change


@nb.njit(**_FAST)
def _piece(l, r, a, b, ta, tb, base, u, P, B, t, c, nodes, weights, h, w, hessian, C, rows, out):
    """Add the sums of a smooth piece: g gᵀ, then the columns g s and g, then the loss at the minimum and at w."""
    n, half = len(h), (r - l) / 2
    g = rows[4]
    for k in range(len(nodes)):
        x, s = (1 + nodes[k]) / 2, l + half * (1 + nodes[k])
        for i in range(n):
            w[i] = base[i] + s * u[i]
            cubic = x * (1 - x) * ((1 - x) * (2 * half * ta[i] - b[i] + a[i]) - x * (2 * half * tb[i] - b[i] + a[i]))
            h[i] = (1 - x) * a[i] + x * b[i] + cubic
        _descend(h, w, P, B, t, c, hessian, C, rows)
        weight = weights[k] * half * np.exp(-s * s / 2) / np.sqrt(2 * np.pi)
        for i in range(n):
            g[i] = 0.0
            for j in range(n):
                g[i] += P[i, j] * (h[j] - w[j])
        for i in range(n):
            for j in range(n):
                out[i, j] += weight * g[i] * g[j]
            out[i, n] += weight * g[i] * s
            out[i, n + 1] += weight * g[i]
        out[n, 0] += weight * _loss(h, B, t, c)
        out[n, 1] += weight * _loss(w, B, t, c)


@nb.njit(**_FAST)
def _line(edges, H, base, u, P, B, t, c, nodes, weights, h, w, hessian, C, rows, stack, ends, out):
    """Add the sums of a line whose edges have the lowest minima H. ends[k] holds a, b and both tangents of piece k."""
    n = len(h)
    a, b = rows[5], rows[6]
    for panel in range(len(edges) - 1):
        stack[0, 0], stack[0, 1], top = edges[panel], edges[panel + 1], 0
        ends[0, 0], ends[0, 1] = H[panel], H[panel + 1]
        while top >= 0:
            l, r = stack[top, 0], stack[top, 1]
            for side in range(2):
                for i in range(n):
                    w[i] = base[i] + stack[top, side] * u[i]
                _tangent(ends[top, 2 + side], ends[top, side], w, u, P, B, t, c, hessian, C, rows)
            left, right, tl, tr = ends[top, 0], ends[top, 1], ends[top, 2], ends[top, 3]
            if r - l < _NARROW or top + 2 >= len(stack) or _smooth(l, r, left, right, tl, tr, u):
                _piece(l, r, left, right, tl, tr, base, u, P, B, t, c, nodes, weights, h, w, hessian, C, rows, out)
                top -= 1
                continue
            a[:], b[:] = left, right
            s = _cut(l, r, a, b, base, u, P, B, t, c, w, hessian, C, rows)
            if not (l + _NARROW / 2 < s < r - _NARROW / 2):
                # the lower of what both ends lead to
                s = (l + r) / 2
                for i in range(n):
                    w[i] = base[i] + s * u[i]
                a[:], b[:] = left, right
                low, _ = _descend(a, w, P, B, t, c, hessian, C, rows)
                high, _ = _descend(b, w, P, B, t, c, hessian, C, rows)
                if low <= high:
                    b[:] = a
                else:
                    a[:] = b
            stack[top + 1, 0], stack[top + 1, 1] = s, r
            ends[top + 1, 0], ends[top + 1, 1] = b, right
            stack[top, 1] = s
            ends[top, 1] = a
            top += 1


@nb.njit(**_FAST)
def line_sums(fields, share, centres, targets, F, across, parts, edges, P, B, c, scale, nodes, weights):
    """Means of the local problems over k and w = centre + F z, z standard normal.

    Parameters
    ----------
    fields, centres, targets : (K, 2), (K, n) and (K, 2) arrays
        k, the mean of w, and t; `share` are the weights of k.
    F : (n, n) array
        Its first column is the line.
    across, parts : (A, n - 1) and (A,) arrays
        Nodes of the other normals and their weights.

    Returns
    -------
    (n + 1, 2 n + 3) array
        Rows of the first n: the means of g_i times g, z, k and one; then those of the loss at the minimum and at w.
    """
    n = centres.shape[1]
    total, out = np.zeros((n + 1, 2 * n + 3)), np.empty((n + 1, n + 2))
    h, w, base, hessian, C = np.empty(n), np.empty(n), np.empty(n), np.empty((n, n)), np.empty((n, n))
    rows, stack, ends = np.empty((7, n)), np.empty((200, 2)), np.empty((200, 4, n))
    H, E, memory = np.empty((len(edges), n)), np.empty(len(edges)), np.ones((len(edges), n))
    net = np.empty(((3**n - 1) * len(_RADII) + 4, n))
    count = 4
    for number in range(3**n):
        if number != 3**n // 2:
            for radius in _RADII:
                for i in range(n):
                    net[count, i] = radius * scale * (number // 3**i % 3 - 1)
                count += 1
    energies, u = np.empty(len(net)), F[:, 0].copy()
    for k in range(len(fields)):
        for i in range(n):
            # of untied weights the third field is a difference of two
            own = fields[k, i] if i < 2 else fields[k, 0] - fields[k, 1]
            net[0, i], net[1, i], net[2, i], net[3, i] = own, -own, 0.5 * own, -0.5 * own
        t = targets[k]
        for m in range(len(across)):
            for i in range(n):
                base[i] = centres[k, i]
                for j in range(n - 1):
                    base[i] += F[i, 1 + j] * across[m, j]
            out[:] = 0
            _edges(edges, H, E, base, u, net, memory, P, B, t, c, energies, h, w, hessian, C, rows)
            _line(edges, H, base, u, P, B, t, c, nodes, weights, h, w, hessian, C, rows, stack, ends, out)
            weight = share[k] * parts[m]
            for i in range(n):
                for j in range(n):
                    total[i, j] += weight * out[i, j]
                total[i, n] += weight * out[i, n]
                for j in range(n - 1):
                    total[i, n + 1 + j] += weight * out[i, n + 1] * across[m, j]
                total[i, 2 * n] += weight * out[i, n + 1] * fields[k, 0]
                total[i, 2 * n + 1] += weight * out[i, n + 1] * fields[k, 1]
                total[i, 2 * n + 2] += weight * out[i, n + 1]
            total[n, 0] += weight * out[n, 0]
            total[n, 1] += weight * out[n, 1]
    return total
