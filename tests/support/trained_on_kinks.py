"""Losses with kinks in a trained parameter: one model, and a state evolution of its own by proximal points in closed form.

Nothing here is the package's, but the problem.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnphase.problem.problem import Problem

__all__ = ["Own", "of_kinks", "own_fixed_point"]

_LOSS = """
r = k + noise - h - enters*b
data = pinball*max(tau*r, (tau - 1)*r) + square*r**2/2 + anchor*(h - 1)**2/2
data + hinge*relu(1 + noise - sign(k - edge)*(h + b)) + unit*(relu(h - b) - k - noise)**2/2
"""
_NONE = {"pinball": 0.0, "square": 0.0, "anchor": 0.0, "hinge": 0.0, "unit": 0.0, "tau": 0.5, "enters": 1.0, "edge": 0.0, "b": 0.0}
_x, _w = np.polynomial.legendre.leggauss(20)
_EDGE = 8.5  # standard deviations


class Own(NamedTuple):
    """Order parameters of one token of variance one, and the trained parameter."""

    q: float
    theta: float
    V: float
    b: float


def of_kinks(noise: float, strength: float, penalty: float | None, **numbers: float) -> Problem:
    """The terms that are given a weight, with ``b`` trained under ``penalty b^2`` or, without a penalty, fixed."""
    trained = {} if penalty is None else {"trained": {"b": f"{penalty!r}*b**2"}}
    return Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": 1.0},
            "positions": {"kind": "none"},
            "teacher": {"noise": noise},
            "regularizer": {"strength": strength},
            "loss": {"kind": "expression", "expression": _LOSS, "parameters": _NONE | numbers} | trained,
        }
    )


def _panels(edges):
    """Nodes and lengths of Gauss and Legendre between edges, (..., m) to (..., m - 1 times nodes)."""
    half = np.diff(edges)[..., None] / 2
    places = edges[..., :-1, None] + half * (1 + _x)
    return places.reshape(*edges.shape[:-1], -1), (half * _w).reshape(*edges.shape[:-1], -1)


def _edges_of(y, z, V, b, numbers):
    """Centres at which the proximal point bends or jumps, for labels y and noise z of the hinge's margin."""
    if "hinge" in numbers:
        return [np.sign(y - numbers["edge"]) * (1 + z - side * V * numbers["hinge"]) - b for side in (0, 1)]
    if "unit" in numbers:
        jump = b - np.maximum(y, 0) * (np.sqrt(1 + V) - 1)
        return [jump, b + V * np.maximum(-y, 0)]
    stiff, pull = 1 / V + numbers.get("anchor", 0.0), numbers.get("anchor", 0.0)
    ends = (numbers["tau"], numbers["tau"] - 1)
    kink = y - numbers.get("enters", 1.0) * b
    return [V * (stiff * kink - pull - numbers["pinball"] * end) for end in ends]


def _residuals(omega, y, z, V, b, numbers):
    """``g = (h - omega)/V`` and the slope of the minimised loss in b, by the proximal points h."""
    if "hinge" in numbers:
        label = np.sign(y - numbers["edge"])
        g = label * np.clip((1 + z - label * (omega + b)) / V, 0, numbers["hinge"])
        return g, -g
    if "unit" in numbers:
        e = omega - b
        active = np.where(y > 0, e > -y * (np.sqrt(1 + V) - 1), e > -V * y)
        x = np.where(active, (e + V * y) / (1 + V), np.where((y <= 0) & (e > 0), 0.0, e))
        return (x - e) / V, (x - e) / V
    anchor, square, tau = numbers.get("anchor", 0.0), numbers.get("square", 0.0), numbers["tau"]
    enters, weight = numbers.get("enters", 1.0), numbers["pinball"]
    width = V / (1 + anchor * V)  # of the token's field and the anchor together
    centre = width * (omega / V + anchor)
    away = y - enters * b - centre
    up, down = weight * tau * width, weight * (tau - 1) * width
    r = np.where(away > up, away - up, np.where(away < down, away - down, 0.0)) / (1 + square * width)
    slope = (away - r) / width  # of the pinball and the square in r
    h = y - enters * b - r
    return (h - omega) / V, -enters * slope


def _means(q, theta, V, b, noise, numbers):
    """``E[g^2]``, ``E[dg/domega]``, ``E[dg/dy]`` and the slope in b; the derivatives by parts, jumps included."""
    s = np.sqrt(1 + (0.0 if "hinge" in numbers else noise))  # the label of the hinge has no noise
    y, of_y = _panels(np.sort([*s * np.linspace(-_EDGE, _EDGE, 13), numbers.get("edge", 0.0)]))
    of_y = of_y * np.exp(-(y**2) / (2 * s**2)) / (s * np.sqrt(2 * np.pi))
    noises, of_noise = np.polynomial.hermite_e.hermegauss(12 if "hinge" in numbers else 1)
    y, of_y = np.repeat(y, len(noises)), np.outer(of_y, of_noise / np.sqrt(2 * np.pi)).ravel()
    noises = np.sqrt(noise) * np.resize(noises, len(y))
    mean, spread = theta * y / s**2, np.sqrt(q - theta**2 / s**2)
    bends = [(edge - mean) / spread for edge in _edges_of(y, noises, V, b, numbers)]
    fixed = [np.full_like(y, end) for end in (-_EDGE, -2.5, 0.0, 2.5, _EDGE)]
    z, of_z = _panels(np.sort(np.clip(np.stack([*fixed, *bends], axis=-1), -_EDGE, _EDGE), axis=-1))
    weights = of_y[:, None] * of_z * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    omega, labels = mean[:, None] + spread * z, y[:, None]
    g, slope = _residuals(omega, labels, noises[:, None], V, b, numbers)
    by_field, by_label = np.linalg.solve(
        [[q, theta], [theta, s**2]], [(weights * g * omega).sum(), (weights * g * labels).sum()]
    )
    return (weights * g**2).sum(), by_field, by_label, (weights * slope).sum()


def own_fixed_point(alpha: float, noise: float, strength: float, penalty: float, b: float = 0.0, **numbers) -> Own:
    """Order parameters and b by damped iteration, b by the secant of its own equation."""
    q, theta, V, step = 1.0, 0.5, 1.0, 1e-4
    for count in range(4000):
        squares, by_field, by_label, slope = _means(q, theta, V, b, noise, numbers)
        beside = _means(q, theta, V, b + step, noise, numbers)[3]
        stiff = max(alpha * (beside - slope) / step + 2 * penalty, 0.05)
        moved = -(alpha * slope + 2 * penalty * b) / stiff
        new_V = 1 / (strength - alpha * by_field)
        new = np.array([new_V**2 * (alpha * squares + (alpha * by_label) ** 2), new_V * alpha * by_label, new_V])
        change = np.append(new - [q, theta, V], np.clip(moved, -0.5, 0.5))
        q, theta, V, b = np.array([q, theta, V, b]) + 0.5 * change
        if np.abs(change).max() < 1e-10:
            return Own(q, theta, V, b)
    raise AssertionError("own iteration has not converged")
