"""Losses with kinks in what is trained: one model, and a state evolution by proximal points in closed form."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnphase.problem.problem import Problem

__all__ = ["Own", "of_kinks", "own_fixed_point"]

_LOSS = """
r = k + noise - h - enters*b - size*Q
data = pinball*max(tau*r, (tau - 1)*r) + square*r**2/2 + anchor*(h - 1)**2/2
data + hinge*relu(1 + noise - sign(k - edge)*(h + b)) + unit*(relu(h - b) - k - noise)**2/2
"""
_TERMS = dict.fromkeys(("pinball", "square", "anchor", "hinge", "unit", "size"), 0.0)
_PLAIN = {"tau": 0.5, "enters": 1.0, "edge": 0.0, "b": 0.0}
_x, _w = np.polynomial.legendre.leggauss(20)
_EDGE = 8.5  # standard deviations


class Own(NamedTuple):
    """Order parameters of one token of variance one, the trained parameter, and the objective's slope in it."""

    q: float
    theta: float
    V: float
    b: float
    slope: float


def of_kinks(noise: float, strength: float, penalty: float, **numbers: float) -> Problem:
    """The terms that are given a weight, with ``b`` trained under ``penalty b^2``."""
    return Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": 1.0},
            "positions": {"kind": "none"},
            "teacher": {"noise": noise},
            "regularizer": {"strength": strength},
            "loss": {
                "kind": "expression",
                "expression": _LOSS,
                "parameters": _TERMS | _PLAIN | numbers,
                "trained": {"b": f"{penalty!r}*b**2"},
            },
        }
    )


def _panels(edges: Any) -> tuple[Any, Any]:
    """Nodes and lengths of Gauss and Legendre between edges, (..., m) to (..., m - 1 times nodes)."""
    half = np.diff(edges)[..., None] / 2
    places = edges[..., :-1, None] + half * (1 + _x)
    return places.reshape(*edges.shape[:-1], -1), (half * _w).reshape(*edges.shape[:-1], -1)


def _bends(y: Any, z: Any, V: float, b: float, one: dict[str, float]) -> list[Any]:
    """Centres at which the proximal point bends or jumps, for labels y and noise z of the hinge's margin."""
    if one["hinge"]:
        return [np.sign(y - one["edge"]) * (1 + z - side * V * one["hinge"]) - b for side in (0, 1)]
    if one["unit"]:
        return [b - np.maximum(y, 0) * (np.sqrt(1 + V) - 1), b + V * np.maximum(-y, 0)]
    kink = (1 + one["anchor"] * V) * (y - one["enters"] * b) - V * one["anchor"]
    return [kink - V * one["pinball"] * end for end in (one["tau"], one["tau"] - 1)]


def _proximal(omega: Any, y: Any, z: Any, V: float, b: float, one: dict[str, float]) -> tuple[Any, Any]:
    """``(h - omega)/V`` by the proximal points h, and the slope of the minimised loss in b."""
    if one["hinge"]:
        label = np.sign(y - one["edge"])
        g = label * np.clip((1 + z - label * (omega + b)) / V, 0, one["hinge"])
        return g, -g
    if one["unit"]:
        e = omega - b
        # for y > 0 the kink bends downwards, and of its two sides the one of lower energy has the proximal point
        active = np.where(y > 0, e > -y * (np.sqrt(1 + V) - 1), e > -V * y)
        x = np.where(active, (e + V * y) / (1 + V), np.where((y <= 0) & (e > 0), 0.0, e))
        return (x - e) / V, (x - e) / V
    width = V / (1 + one["anchor"] * V)  # of the cavity field and the anchor together
    away = y - one["enters"] * b - width * (omega / V + one["anchor"])
    high, low = (one["pinball"] * end * width for end in (one["tau"], one["tau"] - 1))
    r = (away - np.clip(away, low, high)) / (1 + one["square"] * width)
    return (y - one["enters"] * b - r - omega) / V, -one["enters"] * (away - r) / width


def _means(q: float, theta: float, V: float, b: float, noise: float, one: dict[str, float]) -> tuple[Any, ...]:
    """``E[g^2]``, ``E[dg/domega]``, ``E[dg/dy]`` and the slope in b; the derivatives by parts, jumps included."""
    s = np.sqrt(1 + (0.0 if one["hinge"] else noise))  # the label of the hinge has no noise
    y, of_y = _panels(np.sort([*s * np.linspace(-_EDGE, _EDGE, 5), one["edge"]]))
    of_y = of_y * np.exp(-(y**2) / (2 * s**2)) / (s * np.sqrt(2 * np.pi))
    noises, of_noise = np.polynomial.hermite_e.hermegauss(8 if one["hinge"] else 1)
    y, of_y = np.repeat(y, len(noises)), np.outer(of_y, of_noise / np.sqrt(2 * np.pi)).ravel()
    noises = np.sqrt(noise) * np.resize(noises, len(y))
    mean, spread = theta * y / s**2, np.sqrt(q - theta**2 / s**2)
    bends = [(edge - mean) / spread for edge in _bends(y, noises, V, b, one)]
    fixed = [np.full_like(y, end) for end in (-_EDGE, 0.0, _EDGE)]
    xi, of_xi = _panels(np.sort(np.clip(np.stack([*fixed, *bends], axis=-1), -_EDGE, _EDGE), axis=-1))
    weights = of_y[:, None] * of_xi * np.exp(-(xi**2) / 2) / np.sqrt(2 * np.pi)
    omega = mean[:, None] + spread * xi
    g, slope = _proximal(omega, y[:, None], noises[:, None], V, b, one)
    with_omega, with_y = (weights * g * omega).sum(), (weights * g * y[:, None]).sum()
    by_omega, by_y = np.linalg.solve([[q, theta], [theta, s**2]], [with_omega, with_y])
    return (weights * g**2).sum(), by_omega, by_y, (weights * slope).sum()


def own_fixed_point(
    alpha: float, noise: float, strength: float, penalty: float, held: float | None = None, **numbers: float
) -> Own:
    """Order parameters and b, or those of a `held` b, by damped iteration; a step in b is by differences of slopes.

    A loss of ``b + size Q`` has the slope of that, and Q adds twice alpha times its slope to the ridge.
    """
    one, b, step = _TERMS | _PLAIN | numbers, held or 0.0, 1e-4
    q, theta, V = 1.0, 0.5, 1.0
    for _ in range(4000):
        at = b + one["size"] * q / one["enters"]
        squares, by_omega, by_y, slope = _means(q, theta, V, at, noise, one)
        total, ridge = alpha * slope + 2 * penalty * b, strength + 2 * alpha * slope * one["size"] / one["enters"]
        moved = 0.0
        if held is None:
            beside = _means(q, theta, V, at + step, noise, one)[3]
            moved = np.clip(-total / max(alpha * (beside - slope) / step + 2 * penalty, 0.05), -0.5, 0.5)
        new_V = 1 / (ridge - alpha * by_omega)
        new_theta, new_q = new_V * alpha * by_y, new_V**2 * (alpha * squares + (alpha * by_y) ** 2)
        change = np.array([new_q - q, new_theta - theta, new_V - V, moved])
        q, theta, V, b = np.array([q, theta, V, b]) + 0.5 * change
        if np.abs(change).max() < 1e-10:
            return Own(q, theta, V, b, total)
    raise AssertionError("own iteration has not converged")
