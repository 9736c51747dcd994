"""The Bayes-optimal error of a problem as one point, and fixed points of labels that quadrature knows."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from scipy.stats import norm

import attnphase as ap


def learned(
    problem: ap.Problem,
    alpha: float,
    channel: str | None = None,
    start: Literal["uninformed", "informed", "asymmetric"] = "uninformed",
    nodes: int | None = None,
) -> Any:
    """Compute one point, a dataset without dimensions of size one."""
    settings = None if nodes is None else ap.SolverSettings(max_nodes=nodes)
    return ap.bayes_optimal(problem, alpha, channel=channel, start=start, settings=settings).squeeze()


def threshold_of(
    problem: ap.Problem, name: str, channel: str | None = None, nodes: int | None = None
) -> tuple[float, float, str]:
    """Compute a threshold, its standard error and its statement."""
    settings = None if nodes is None else ap.SolverSettings(max_nodes=nodes)
    ds = ap.bayes_optimal(problem, 0.01, channel=channel, start="uninformed", thresholds=True, settings=settings)
    return float(ds[name]), float(ds[f"{name}_stderr"]), ds[name].attrs["statement"]


def of_formula(
    length: int = 1, rank: int = 1, loss: str = "sum((h - k)**2)", *, noise: float = 0.0, sigma: float = 1.0,
    prior: str = "gaussian", **parameters: float,
) -> ap.Problem:  # fmt: skip
    """Tokens without encodings, and a loss that is a formula."""
    if noise and loss == "sum((h - k)**2)":
        loss = "sum((h - k - noise[:, :1])**2)"
    return ap.Problem.from_dict(
        {
            "tokens": {"length": length, "sigma": sigma},
            "teacher": {"rank": rank, "noise": noise, "prior": prior},
            "student": {"rank": rank},
            "positions": {"kind": "none"},
            "loss": {"kind": "expression", "expression": loss, "parameters": parameters},
        }
    )


def of_hidden_location(
    shares: Sequence[float], sigmas: Sequence[float], noise: float, means: Sequence[float] = ()
) -> ap.Problem:
    """Two tokens, of which the one in the second cluster makes the label."""
    clusters = [{"sigma": sigma} | ({"mean": [means[number]]} if means else {}) for number, sigma in enumerate(sigmas)]
    loss = "(h[0, 0] + h[1, 0] - c[0]*k[0, 0] - c[1]*k[1, 0] - noise[0, 0])**2"
    law = {"kind": "single-location", "weights": [*shares]}
    return ap.Problem.from_dict(
        {
            "tokens": {"kind": "mixture", "length": 2, "clusters": clusters, "law": law},
            "teacher": {"noise": noise},
            "positions": {"kind": "none"},
            "loss": {"kind": "expression", "expression": loss},
        }
    )


def known_of_cells(edges: Sequence[float], alpha: float, labels: Sequence[int] | None = None) -> float:
    """Compute the overlap for one field of variance one, of which a label tells the cell between edges."""
    names = np.arange(len(edges) + 1) if labels is None else np.array(labels)
    same = names == np.unique(names)[:, None]
    z, w = np.polynomial.hermite_e.hermegauss(80)
    w = w / w.sum()
    ends, q = np.array([-np.inf, *sorted(edges), np.inf])[:, None], 0.5
    for _ in range(400):
        u = (ends - math.sqrt(q) * z) / math.sqrt(1 - q)
        chances = np.where(u[:-1] > 0, -np.diff(norm.sf(u), axis=0), np.diff(norm.cdf(u), axis=0))
        chances, slopes = same @ chances, same @ np.diff(norm.pdf(u), axis=0)
        told = alpha * (w @ (slopes**2 / np.maximum(chances, 1e-300)).sum(axis=0)) / (1 - q)
        q = told / (1 + told)
    return float(q)


def weak_recovery_of_cells(edges: Sequence[float]) -> float:
    """Compute ``1 / sum_y E[(k^2 - 1) 1_y]^2 / P_y`` where a label tells the cell of ``|k|``."""
    ends = np.array([0.0, *sorted(edges), np.inf])
    chances = 2 * -np.diff(norm.sf(ends))
    moments = 2 * np.diff(np.append(ends[:-1] * norm.pdf(ends[:-1]), 0.0))
    return float(1 / (moments**2 / chances).sum())


def committee_image(alpha: float, q: Any) -> Any:
    """Compute the overlap that follows q for ``sign(k_0) + sign(k_1)``: probabilities of two signs by a Gauss rule."""
    x, w = np.polynomial.hermite_e.hermegauss(41)
    values, vectors = np.linalg.eigh(q)
    omega = np.stack(np.meshgrid(x, x), axis=-1).reshape(-1, 2) * np.sqrt(np.maximum(values, 0)) @ vectors.T
    w = np.outer(w, w).ravel() / w.sum() ** 2
    size = np.sqrt(1 - np.diag(q))
    t, u = np.polynomial.legendre.leggauss(40)
    both = []
    for signs in ((1, 1), (-1, -1), (1, -1), (-1, 1)):
        a, b = (omega / size * signs).T
        r = -q[0, 1] / size.prod() * math.prod(signs)
        angles = (t + 1) / 2 * math.asin(r)
        exponents = -(a**2 + b**2 - 2 * a * b * np.sin(angles)[:, None]) / (2 * np.cos(angles)[:, None] ** 2)
        chance = norm.cdf(a) * norm.cdf(b) + math.asin(r) / 2 * u @ np.exp(exponents) / (2 * math.pi)
        rest = math.sqrt(1 - r**2)
        slopes = [norm.pdf(a) * norm.cdf((b - r * a) / rest), norm.pdf(b) * norm.cdf((a - r * b) / rest)]
        both.append((chance, np.array(slopes) * np.array(signs)[:, None] / size[:, None]))
    (mixed, slopes), (other, others) = both[2:]
    gain = sum(
        np.einsum("in,jn,n->ij", slope, slope, w * (chance > 1e-11) / np.maximum(chance, 1e-11))
        for chance, slope in [*both[:2], (mixed + other, slopes + others)]
    )
    return np.linalg.solve(np.eye(2) + alpha * gain, alpha * gain)
