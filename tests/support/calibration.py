"""Whether stated errors have the size of the deviations that they describe."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

__all__ = ["assert_calibrated"]


def assert_calibrated(deviations: ArrayLike, errors: ArrayLike, replicates: int | None = None, lost: int = 0) -> None:
    """Compare mean squares of deviations (N, ...) and of errors, within what chance allows (0.01 % on either side).

    Each error was made of some replicates, or is known exactly; deviations have lost so many degrees of freedom.
    """
    made = len(np.asarray(deviations))
    count = made - lost
    ratio = (np.asarray(deviations) ** 2).sum(axis=0) / count / (np.asarray(errors) ** 2).mean(axis=0)
    law = stats.chi2(count, scale=1 / count) if replicates is None else stats.f(count, made * (replicates - 1))
    low, high = law.ppf([1e-4, 1 - 1e-4])
    assert np.all((low < ratio) & (ratio < high)), (low, ratio, high)
