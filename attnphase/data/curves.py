"""Datasets of followed branches, and of all fixed points at one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnphase.data.build import assemble, columns_of, coordinate, coordinate_name
from attnphase.data.variables import CURVE_VARIABLES, with_own
from attnphase.problem.problem import Problem

if TYPE_CHECKING:
    import xarray as xr

    from attnphase.fixed_points.continuation import Curve
    from attnphase.fixed_points.deflation import Solution

__all__ = ["from_curves", "from_solutions"]


def from_curves(curves: Sequence[Curve], field: str, problem: Problem, *, several: bool = False) -> xr.Dataset:
    """Label the points of a followed branch, over the length of the curve, or of several.

    Parameters
    ----------
    curves : sequence of Curve
        One, or those of different branches.
    field : str
        What was followed, "alpha" or a field's name in the TOML.
    problem : Problem
        The problem at the start.
    several : bool
        Whether ``branch`` is a dimension. Then the points have numbers, the length of the curve is a coordinate over
        branch and point, and shorter curves end in points that are ``not_computed``.

    Returns
    -------
    xarray.Dataset
        The field is a coordinate over the points too, under the name that it has in a sweep. The global attribute
        ``ends`` says why the curve ends on either side.
    """
    of_each, first = [_columns(one) for one in curves], curves[0].points[0].point
    longest = max(len(one.points) for one in curves)
    own = with_own(CURVE_VARIABLES, problem)
    missing = {one.name: one.missing for one in own} | {"turn": 0}

    def joined(rows: Sequence[NDArray[Any]], name: str = "") -> NDArray[Any]:
        return np.stack([_filled(row, longest, missing.get(name, np.nan)) for row in rows]) if several else rows[0]

    named = [name for one in own for name in one.names if name in of_each[0]]
    columns = {name: joined([one[name] for one in of_each], name) for name in named}
    swept: Mapping[str, Sequence[Any]] = {"arclength": [at.arclength for at in curves[0].points]}
    scalars: dict[str, Any] = {"branch": first.branch}
    if several:
        swept = {"branch": [one.points[0].point.branch for one in curves], "point": range(1, longest + 1)}
        scalars = {}
    if field != "alpha":
        scalars["alpha"] = first.alpha
    what = "Branches" if several else "A branch"
    rules = sorted({at.point.rule for one in curves for at in one.points})
    ds = assemble("curve", columns, swept, scalars, problem, rules, f"{what} followed along {field}")
    name, dims = coordinate_name(field), tuple(swept)
    ends = [", ".join(one.ends) for one in curves]
    ds.attrs["ends"] = ends[0]
    if several:
        ds.attrs["ends"] = "; ".join(f"{branch}: {end}" for branch, end in zip(swept["branch"], ends, strict=True))
        along = joined([np.array([at.arclength for at in one.points]) for one in curves])
        ds = ds.assign_coords(arclength=(dims, along, coordinate("arclength")))
    return ds.assign_coords({name: (dims, columns["field_value"], coordinate(name, field))})


def _columns(curve: Curve) -> dict[str, NDArray[Any]]:
    """Every variable at the points of a curve."""
    along = curve.points
    points = [one.point for one in along]
    columns: dict[str, NDArray[Any]] = {name: np.stack(rows) for name, rows in columns_of(points, points[0]).items()}
    return columns | {
        "field_value": np.array([one.value for one in along]),
        "field_value_stderr": np.array([one.value_error for one in along]),
        "leading_eigenvalue": np.array([one.eigenvalue for one in along]),
        "unstable_directions": np.array([one.unstable for one in along], dtype=np.int32),
        "turn": np.array([one.turn for one in along], dtype=np.int8),
    }


def _filled(row: NDArray[Any], length: int, missing: float) -> NDArray[Any]:
    """A variable of so many points, of which the last are missing."""
    rest = np.full((length - len(row), *row.shape[1:]), missing, dtype=row.dtype)
    return np.concatenate([row, rest])


def from_solutions(found: Sequence[Solution], problem: Problem) -> xr.Dataset:
    """Label fixed points at one place, in the order given."""
    points = [one.point for one in found]
    columns: dict[str, NDArray[Any]] = {name: np.stack(rows) for name, rows in columns_of(points, points[0]).items()}
    columns |= {
        "leading_eigenvalue": np.array([one.eigenvalue for one in found]),
        "unstable_directions": np.array([one.unstable for one in found], dtype=np.int32),
        "found": np.array([one.found for one in found], dtype=np.int32),
    }
    swept = {"solution": range(1, len(found) + 1)}
    rules = sorted({point.rule for point in points})
    ds = assemble("solutions", columns, swept, {"alpha": points[0].alpha}, problem, rules, "Fixed points at one place")
    return ds.assign_coords(branch=("solution", [point.branch for point in points], coordinate("branch")))
