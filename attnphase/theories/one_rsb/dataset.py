"""Solutions of the 1RSB equations as a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def from_one_rsb(
    found: Mapping[str, Sequence[OneRsbPoint]], problem: Problem, alpha: float, rule: str, *, several: bool = False
) -> xr.Dataset:
    """Label solutions of the 1RSB equations of a branch, or of several, as many of each, in the order given."""
    points = [point for own in found.values() for point in own]
    sizes = (len(found), -1) if several else (len(points),)
    columns: dict[str, NDArray[Any]] = {}
    for name, dtype in ((one.name, one.dtype) for one in ONE_RSB_VARIABLES):
        rows = [point.values[name] if name in point.values else getattr(point, name) for point in points]
        columns[name] = _shaped([by_cluster(problem, name, row) for row in rows], sizes).astype(dtype)
        if name in points[0].errors:
            errors = [by_cluster(problem, name, point.errors[name]) for point in points]
            columns[f"{name}_stderr"] = _shaped(errors, sizes).astype(float)
    swept: dict[str, Sequence[Any]] = {"branch": [*found]} if several else {}
    swept["state"] = range(1, len(points) // len(found) + 1)
    place = {"alpha": alpha} if several else {"branch": next(iter(found)), "alpha": alpha}
    return assemble("one_rsb", columns, swept, place, problem, [rule], "One-step replica-symmetry breaking")


def _shaped(rows: Sequence[Any], sizes: tuple[int, ...]) -> NDArray[Any]:
    stacked = np.stack(rows)
    return stacked.reshape(*sizes, *stacked.shape[1:])
