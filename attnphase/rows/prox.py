"""Proximal operators of convex functions that have no closed one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnphase.arrays import Array

__all__ = ["newton_prox"]


def newton_prox(
    slope: Callable[[Array], Array], curvature: Callable[[Array], Array], kinks: Any = ()
) -> Callable[..., Array]:
    """Proximal operator of a convex function from its derivatives: exact at kinks, safeguarded Newton elsewhere.

    Parameters
    ----------
    slope, curvature : callable
        First and second derivative, vectorised.
    kinks
        As of `attnphase.rows.regularizer.RowRegularizer`.
    """

    def prox(v: Array, step: Array) -> Array:
        v, step = np.broadcast_arrays(np.asarray(v, dtype=float), np.asarray(step, dtype=float))
        low, high = np.full(v.shape, -np.inf), np.full(v.shape, np.inf)
        result, done = np.empty(v.shape), np.zeros(v.shape, dtype=bool)
        for place, left, right in kinks:
            # 0 in [left, right] + (place - v) / step
            at = (v - place) / step
            hit = (at >= left) & (at <= right) & ~done
            result[hit], done = place, done | hit
            low = np.where(at > right, np.maximum(low, place), low)
            high = np.where(at < left, np.minimum(high, place), high)

        def excess(w: Array) -> Array:
            return slope(w) + (w - v) / step

        # bracket the root of an increasing function
        reach = np.maximum(1e-3, np.abs(v)) + step * np.abs(slope(np.where(np.isfinite(low), low + 1e-9, v)))
        lower = np.where(np.isfinite(low), low, v - reach)
        upper = np.where(np.isfinite(high), high, v + reach)
        for _ in range(60):
            grow = (excess(lower) > 0) & ~np.isfinite(low)
            lower = np.where(grow, lower - reach, lower)
            shrink = (excess(upper) < 0) & ~np.isfinite(high)
            upper = np.where(shrink, upper + reach, upper)
            reach = 2 * reach
            if not (grow | shrink).any():
                break
        w = np.clip(v, lower, upper)
        w = np.where((w == lower) | (w == upper), (lower + upper) / 2, w)
        moved = upper - lower
        for _ in range(100):
            value = excess(w)
            lower, upper = np.where(value < 0, w, lower), np.where(value >= 0, w, upper)
            with np.errstate(over="ignore", invalid="ignore"):
                new = w - value / (curvature(w) + 1 / step)
            # a step that does not halve the last one crawls, as down an exponential: bisect instead
            quick = np.abs(new - w) <= np.maximum(moved / 2, 4e-15 * (np.abs(v) + np.abs(w)))
            new = np.where((new >= lower) & (new <= upper) & quick, new, (lower + upper) / 2)
            moved = np.abs(new - w)
            w = new
            if np.all((moved <= 1e-15 * (np.abs(v) + np.abs(w))) | done):
                break
        return np.where(done, result, w)

    return prox
