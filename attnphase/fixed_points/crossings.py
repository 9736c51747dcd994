"""Where a difference that is known at some sample complexities changes its sign."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnphase.fixed_points.threshold import NOT_FOUND, Threshold

__all__ = ["crossing"]


def crossing(alpha: Sequence[float], difference: Sequence[float], error: Sequence[float]) -> Threshold:
    """Where a sampled difference changes from positive to negative, by linear interpolation.

    The change at the largest alpha counts: at small alpha all branches merge and the difference is noise around zero.

    Parameters
    ----------
    alpha : sequence of float
        Increasing.
    difference, error : sequences of float
        Values and standard errors; NaN where unknown, and no crossing is known beside such a one.
    """
    a, d, e = (np.asarray(x, dtype=float) for x in (alpha, difference, error))
    known = np.isfinite(d) & np.isfinite(e)
    changes = np.flatnonzero(known[:-1] & known[1:] & (d[:-1] > 0) & (d[1:] <= 0))
    if len(changes) == 0:
        return NOT_FOUND
    i = int(changes[-1])
    slope = (d[i + 1] - d[i]) / (a[i + 1] - a[i])
    weight = -d[i] / (d[i + 1] - d[i])
    spread = np.hypot((1 - weight) * e[i], weight * e[i + 1])
    return Threshold(float(a[i] + weight * (a[i + 1] - a[i])), float(spread / abs(slope)))
