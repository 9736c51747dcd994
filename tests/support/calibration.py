"""Whether stated errors have the size of the deviations that they describe."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

__all__ = ["assert_calibrated"]


def assert_calibrated(deviations: ArrayLike, errors: ArrayLike, replicates: int) -> None:
    """Compare mean squares of deviations and of errors, each made of some replicates, within what chance allows."""
    count = len(np.asarray(deviations))
    ratio = (np.asarray(deviations) ** 2).mean(axis=0) / (np.asarray(errors) ** 2).mean(axis=0)
    low, high = stats.f.ppf([1e-4, 1 - 1e-4], count, count * (replicates - 1))
    assert np.all((low < ratio) & (ratio < high)), (low, ratio, high)
