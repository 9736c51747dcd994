"""Solutions of the 1RSB equations as a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnphase.data.build import assemble, by_cluster
from attnphase.problem.problem import Problem
from attnphase.theories.one_rsb.solving import OneRsbPoint
from attnphase.theories.one_rsb.variables import ONE_RSB_VARIABLES

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["from_one_rsb"]


def from_one_rsb(points: Sequence[OneRsbPoint], problem: Problem, alpha: float, branch: str, rule: str) -> xr.Dataset:
    """Label solutions of the 1RSB equations, in the order given."""
    columns: dict[str, NDArray[Any]] = {}
    for name, dtype in ((one.name, one.dtype) for one in ONE_RSB_VARIABLES):
        rows = [point.values[name] if name in point.values else getattr(point, name) for point in points]
        columns[name] = np.stack([by_cluster(problem, name, row) for row in rows]).astype(dtype)
        if name in points[0].errors:
            errors = [by_cluster(problem, name, point.errors[name]) for point in points]
            columns[f"{name}_stderr"] = np.stack(errors).astype(float)
    swept, place = {"state": range(1, len(points) + 1)}, {"branch": branch, "alpha": alpha}
    return assemble("one_step", columns, swept, place, problem, [rule], "One-step replica-symmetry breaking")
