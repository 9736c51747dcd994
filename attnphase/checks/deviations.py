"""Means over runs in standard errors from the theory, and their limit at infinite dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnphase.arrays import Array

__all__ = ["Limit", "Measured"]


@dataclass(frozen=True)
class Measured:
    """Mean of one quantity over the runs at one dimension.

    Attributes
    ----------
    dimension : int
    runs : int
        That were counted.
    value, stderr : float
        Mean over the runs and its standard error; NaN for a single run.
    difference : float
        From the theory.
    z : float
        Difference in standard errors, of runs and quadrature together; NaN where there is none.
    """

    dimension: int
    runs: int
    value: float
    stderr: float
    difference: float
    z: float

    @classmethod
    def of(cls, dimension: int, values: Array, theory: float, error: float) -> Measured:
        """The mean of the runs' values beside the theory's, which has a standard error of its own."""
        mean, runs = float(values.mean()), len(values)
        stderr = float(values.std(ddof=1)) / math.sqrt(runs) if runs > 1 else math.nan
        difference = mean - theory
        return cls(dimension, runs, mean, stderr, difference, _deviation(difference, stderr, error))


@dataclass(frozen=True)
class Limit:
    """Weighted fit of ``a + b / d`` to the means at several dimensions.

    Attributes
    ----------
    value, stderr : float
        a.
    slope, slope_stderr : float
        b.
    difference, z : float
        Of a from the theory.
    chi2 : float
        Of the fit.
    degrees_of_freedom : int
    """

    value: float
    stderr: float
    slope: float
    slope_stderr: float
    difference: float
    z: float
    chi2: float
    degrees_of_freedom: int

    @classmethod
    def of(cls, measured: Sequence[Measured], theory: float, error: float) -> Limit | None:
        """The fit beside the theory's value, which has a standard error of its own; None where there is none."""
        if len(measured) < 2 or not all(one.stderr > 0 for one in measured):
            return None
        weights = np.array([one.stderr for one in measured]) ** -2.0
        design = np.stack([np.ones(len(measured)), [1 / one.dimension for one in measured]], axis=1)
        values = np.array([one.value for one in measured])
        covariance = np.linalg.inv(design.T @ (weights[:, None] * design))
        a, b = (covariance @ design.T @ (weights * values)).tolist()
        rest = values - design @ [a, b]
        stderr, slope_stderr = np.sqrt(np.diag(covariance)).tolist()
        return cls(
            value=a,
            stderr=stderr,
            slope=b,
            slope_stderr=slope_stderr,
            difference=a - theory,
            z=_deviation(a - theory, stderr, error),
            chi2=float((weights * rest**2).sum()),
            degrees_of_freedom=len(measured) - 2,
        )


def _deviation(difference: float, stderr: float, error: float) -> float:
    total = math.hypot(stderr, error)
    if not total > 0:  # both exact, or unknown
        return 0.0 if difference == 0 and total == 0 else math.nan
    return difference / total
