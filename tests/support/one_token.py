"""The equations of one token as a program of its own: proximal points in closed form, quadrature over k and omega."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import root
from scipy.special import expit
from scipy.stats import norm

Proximal = Callable[[Any, Any, float], tuple[Any, Any, Any]]
"""From cavity fields omega, labels y and V: the proximal points h, the loss there, and the loss at omega."""


def square(of_h: float = 0.0) -> Proximal:
    """``(y - h)^2/2 + of_h |h|``."""

    def proximal(omega: Any, y: Any, V: float) -> tuple[Any, Any, Any]:
        mean = (omega + V * y) / (1 + V)
        h = np.sign(mean) * np.maximum(np.abs(mean) - of_h * V / (1 + V), 0)
        return h, *((y - x) ** 2 / 2 + of_h * np.abs(x) for x in (h, omega))

    return proximal


def logistic(omega: Any, y: Any, V: float) -> tuple[Any, Any, Any]:
    """``log(1 + exp(-sign(y) h))``: bisection until Newton's method converges."""
    label = np.sign(y)
    low, high = np.zeros(np.broadcast_shapes(omega.shape, np.shape(y))), 1.0
    for _ in range(12):
        g = (low + high) / 2
        above = g > expit(-label * omega - V * g)
        low, high = np.where(above, low, g), np.where(above, g, high)
    g = (low + high) / 2
    for _ in range(6):
        slope = expit(-label * omega - V * g)
        g = g - (g - slope) / (1 + V * slope * (1 - slope))
    h = omega + V * label * g
    return h, *(np.logaddexp(0, -label * x) for x in (h, omega))


def hinge(bias: float = 0.0) -> Proximal:
    """``max(0, 1 - sign(y) (h + bias))``."""

    def proximal(omega: Any, y: Any, V: float) -> tuple[Any, Any, Any]:
        label = np.sign(y)
        h = omega + label * np.clip(1 - label * (omega + bias), 0, V)
        return h, *(np.maximum(0, 1 - label * (x + bias)) for x in (h, omega))

    return proximal


def quantile(tau: float, curvature: float = 0.0) -> Proximal:
    """``max(tau r, (tau - 1) r) + curvature r^2/2`` of ``r = y - h``."""

    def proximal(omega: Any, y: Any, V: float) -> tuple[Any, Any, Any]:
        away = y - omega
        r = (away - np.clip(away, (tau - 1) * V, tau * V)) / (1 + curvature * V)
        return y - r, *(np.maximum(tau * x, (tau - 1) * x) + curvature * x**2 / 2 for x in (r, away))

    return proximal


@dataclass(frozen=True)
class Cluster:
    """Tokens of one cluster: share, standard deviation, mean along a direction of the cluster's own, and label if any.

    ``made`` gives k from the Gaussian field, with the density by which its probability is multiplied.
    """

    share: float = 1.0
    sigma: float = 1.0
    mean: float = 0.0
    label: float | None = None
    made: Callable[[Any], tuple[Any, Any]] = lambda k: (k, np.ones_like(k))


@dataclass(frozen=True)
class OneToken:
    """Fixed points (q, V, m, theta) of all clusters, for a ridge ``ridge`` beside a lasso ``strength``."""

    clusters: Sequence[Cluster]
    proximal: Proximal
    alpha: float
    ridge: float
    strength: float = 0.0
    noise: float = 0.0
    shift: float = 0.0
    scale: float = 1.0
    edges: Sequence[float] = (0.0,)  # where the label jumps
    sizes: tuple[int, int] = (24, 400)

    def _nodes(self, cluster: Cluster) -> tuple[Any, Any, Any, Any]:
        """Gaussian fields that carry the label (noise included), labels, xi, and weights (n, N)."""
        spread = np.sqrt(cluster.sigma**2 + self.noise)
        x, w = np.polynomial.legendre.leggauss(self.sizes[0])
        ends = np.sort([*(spread * np.array([-8.0, -3.0, 3.0, 8.0])), *self.edges])
        half = np.diff(ends)[:, None] / 2
        y = (ends[:-1, None] + half * (1 + x)).ravel()
        made, density = cluster.made(y)
        of_y = (half * w).ravel() * norm.pdf(y, scale=spread) * density
        xi = (np.arange(self.sizes[1]) + 0.5) / self.sizes[1] * 17 - 8.5
        of_xi = norm.pdf(xi) * (xi[1] - xi[0])
        label = self.scale * made + self.shift if cluster.label is None else np.full_like(y, cluster.label)
        return made, label, xi, of_y[:, None] * of_xi

    def means(self, at: Any) -> tuple[Any, float, float]:
        """Conjugates (q_hat, V_hat, m_hat, theta_hat) of every cluster (C, 4), and the mean losses at h and omega."""
        hats, losses = [], np.zeros(2)
        for cluster, (q, V, m, theta) in zip(self.clusters, at, strict=True):
            variance = cluster.sigma**2 + self.noise
            made, y, xi, weights = self._nodes(cluster)
            spread = np.sqrt(max(q - theta**2 / variance, 1e-14))
            omega = m + theta / variance * made[:, None] + spread * xi
            h, *both = self.proximal(omega, y[:, None], V)
            g = (h - omega) / V
            V_hat = -(weights * g * xi).sum() / spread
            theta_hat = (weights * g * made[:, None]).sum() / variance + V_hat * theta / variance
            size = self.alpha * cluster.share
            hats.append([size * x for x in ((weights * g**2).sum(), V_hat, (weights * g).sum(), theta_hat)])
            losses += cluster.share * np.array([(weights * loss).sum() for loss in both])
        return np.array(hats), float(losses[0]), float(losses[1])

    def weights(self, hats: Any) -> tuple[Any, float, float, float]:
        """Overlaps (C, 4) of conjugates, ``|w|^2/d``, the share of weights, and the penalty."""
        gamma, means = (np.array([getattr(c, name) for c in self.clusters]) for name in ("sigma", "mean"))
        gamma = gamma**2
        q_hat, V_hat, m_hat, theta_hat = hats.T
        along, across, stiffness = means @ m_hat, gamma @ theta_hat, self.ridge + gamma @ V_hat
        deviation = np.sqrt(gamma @ q_hat + along**2 + across**2)
        t = self.strength / deviation  # of Gaussian sources, which a lasso's must be
        share, density = 2 * norm.sf(t), norm.pdf(t)
        size = (deviation / stiffness) ** 2 * ((1 + t**2) * share - 2 * t * density)
        penalty = self.ridge / 2 * size + self.strength * deviation / stiffness * (2 * density - t * share)
        R = share / stiffness
        columns = [gamma * size, gamma * R, means * along * R, gamma * across * R]
        return np.stack(columns, axis=1), float(size), float(share), float(penalty)

    def solved(self, near: Any) -> dict[str, Any]:
        """The fixed point next to (C, 4) overlaps, and what is measured there."""
        free = np.abs(near).max(axis=0) > 1e-9
        begin = np.asarray(near, dtype=float)

        def whole(x: Any) -> Any:
            at = begin.copy()
            at[:, free] = x.reshape(-1, free.sum())
            return at

        found = root(lambda x: self.weights(self.means(whole(x))[0])[0][:, free].ravel() - x, begin[:, free].ravel())
        assert found.success
        at = whole(found.x)
        hats, fitted, fresh = self.means(at)
        _, size, share, penalty = self.weights(hats)
        named = dict(zip(("q", "V", "m", "theta"), at.T, strict=True))
        measured = {"training_loss": self.alpha * fitted + penalty, "weight_norm": size, "density": share}
        return named | measured | ({} if self.noise else {"test_error": 2 * fresh})  # that is of labels without noise
