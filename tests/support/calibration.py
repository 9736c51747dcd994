"""Whether stated errors have the size of the deviations that they describe, and limits of runs with their errors."""

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike
from scipy import stats


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


def limit_of_runs(runs: xr.Dataset, name: str, point: xr.Dataset) -> tuple[float, float]:
    """Limit of large d and its standard error, freed of what runs have in common with the linear predictor.

    One draw of teacher and samples is harder than another, for the linear predictor as well, whose error in the limit
    is known to many digits: a fit of ``a + b/d + c (linear - its limit)`` to single runs, whose variances fall like
    1/d, leaves a two to five times smaller error of a than the runs' means have.
    """
    d = np.repeat(runs["dimension"].to_numpy(), runs.sizes["seed"]).astype(float)
    values, linear = (runs[n].transpose("dimension", "seed").to_numpy().ravel() for n in (name, "linear_test_error"))
    weight = np.sqrt(d)
    design = np.stack([np.ones_like(d), 1 / d, linear - float(point["linear_test_error"])], axis=1) * weight[:, None]
    fitted = np.linalg.lstsq(design, values * weight)[0]
    residual = values * weight - design @ fitted
    covariance = residual @ residual / (len(d) - 3) * np.linalg.inv(design.T @ design)
    return float(fitted[0]), float(np.sqrt(covariance[0, 0]))
