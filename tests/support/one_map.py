"""One evaluation of the state-evolution map at a point of one's own, and the channel of a label by own quadrature."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm

import attnphase as ap

CLUSTERS: dict[str, Any] = {
    "tokens.kind": "mixture",
    "tokens.sigma": None,
    "tokens.clusters": [{"mean": [0.9], "sigma": 0.7}, {"mean": [-0.4], "sigma": 1.3}],
    "tokens.law": {"kind": "independent", "weights": [0.35, 0.65]},
}
QUICK: dict[str, Any] = {"threads": 1, "stability": False, "identity": False}
_ONE = ap.SolverSettings(**QUICK, method="damped", max_maps=1)


def one_map(
    problem: ap.Problem, alpha: float, q: ArrayLike, V: ArrayLike, m: ArrayLike, theta: ArrayLike
) -> xr.Dataset:
    """What is measured at a point, conjugates among it; numbers or matrices of every site, of one teacher's field."""
    r = np.shape(q)[-1] if np.ndim(q) == 3 else 1
    shaped = (
        np.array(values, dtype=float).reshape(-1, r, side) for values, side in ((q, r), (V, r), (m, 1), (theta, 1))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ap.errors.AttnphaseWarning)
        return ap.solve(problem, alpha, start=ap.interface.Overlaps(*shaped), settings=_ONE)


def logistic_pull(margin: Any, V: float) -> NDArray[np.float64]:
    """``g = 1/(1 + exp(margin + V g))``, the pull of a logistic loss at a centre's margin, by halving."""
    low, high = np.zeros_like(margin), np.ones_like(margin)
    for _ in range(60):
        g = (low + high) / 2
        above = g > 1 / (1 + np.exp(margin + V * g))
        low, high = np.where(above, low, g), np.where(above, g, high)
    return (low + high) / 2


def label_channel(
    alpha: float,
    pull: Callable[[Any, float], Any],
    loss: Callable[[Any], Any],
    point: tuple[float, float, float, float],
    rho: float,
    mean: float = 0.0,
    noise: float = 0.0,
) -> dict[str, float]:
    """Conjugates, and the mean loss at omega, of one token with the label ``sign(k + mean + noise)``.

    ``omega ~ N(m, q)`` and ``k ~ N(0, rho)`` have the covariance theta.  The label's probability given omega is known,
    so that a sum over omega is left; its error falls faster than any power of the step.  Derivatives are by Stein's
    lemma: ``E[g (omega - m)] = q A + theta B`` and ``E[g k] = theta A + rho B`` with the means A and B of those of g.
    """
    q, V, m, theta = point
    z = np.linspace(-9, 9, 18001)
    weights, omega, given = norm.pdf(z) * (z[1] - z[0]), m + np.sqrt(q) * z, theta / np.sqrt(q) * z

    def sums(noise: float) -> dict[str, float]:
        spread, total = np.sqrt(rho - theta**2 / q + noise), dict.fromkeys(["g", "gg", "g_omega", "g_k", "loss"], 0.0)
        for label in (1.0, -1.0):
            bound = label * (given + mean) / spread
            share = weights * norm.cdf(bound)
            g = label * pull(label * omega, V)
            of_k = given * share + weights * label * (spread**2 - noise) / spread * norm.pdf(bound)
            parts = {"g": share @ g, "gg": share @ g**2, "g_omega": share @ (g * (omega - m)), "g_k": of_k @ g}
            total = {
                name: total[name] + value for name, value in (parts | {"loss": share @ loss(label * omega)}).items()
            }
        return total

    of = sums(noise)
    by_omega, by_k = np.linalg.solve([[q, theta], [theta, rho]], [of["g_omega"], of["g_k"]])
    found = {"q_hat": of["gg"], "V_hat": -by_omega, "m_hat": of["g"], "theta_hat": by_k}
    return {name: alpha * float(value) for name, value in found.items()} | {"loss": sums(0.0)["loss"]}
