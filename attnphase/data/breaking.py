"""One step of symmetry breaking as a dataset: its table of variables' values, and their text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnphase.data.build import assembled, by_cluster
from attnphase.data.text import Table, format_value
from attnphase.data.variables import ONE_STEP_VARIABLES, STATUS_MEANINGS

if TYPE_CHECKING:
    import xarray as xr

    from attnphase.fixed_points.breaking import GroupPoint
    from attnphase.problem.problem import Problem

__all__ = ["from_groups", "groups_table"]


def from_groups(points: Sequence[GroupPoint], problem: Problem, alpha: float, branch: str, rule: str) -> xr.Dataset:
    """Label solutions of the one-step equations, in the order given."""
    columns: dict[str, NDArray[Any]] = {}
    for variable in ONE_STEP_VARIABLES:
        rows = [_value(point, variable.name) for point in points]
        columns[variable.name] = np.stack([by_cluster(problem, variable.name, row) for row in rows]).astype(
            variable.dtype
        )
        if variable.has_stderr:
            errors = [by_cluster(problem, variable.name, point.errors[variable.name]) for point in points]
            columns[variable.stderr] = np.stack(errors).astype(float)
    swept = {"state": range(1, len(points) + 1)}
    scalars = {"branch": branch, "alpha": alpha}
    return assembled("one_step", columns, swept, scalars, problem, [rule], "One step of replica-symmetry breaking")


def _value(point: GroupPoint, name: str) -> Any:
    return np.asarray(point.values[name] if name in point.values else getattr(point, name))


def groups_table(ds: xr.Dataset) -> Table:
    """Solutions of the one-step equations: a row for each y."""
    from attnphase.data.reading import overlap_size

    shown = ("y", "free_entropy", "energy", "complexity", "test_error")
    rows = []
    for i in range(ds.sizes["state"]):
        here = ds.isel(state=i)
        cells = [format_value(float(here[name]), float(here[f"{name}_stderr"])) for name in shown]
        for name in ("q_0", "q_1"):
            place = (0,) * here[name].ndim
            cells.append(
                format_value(float(here[name].to_numpy()[place]), float(here[f"{name}_stderr"].to_numpy()[place]))
            )
        for name in ("m", "theta"):
            size, error = overlap_size(here, name), here[f"{name}_stderr"].isel(token=0)
            if "cluster" in size.dims:
                size = (size**2).sum("cluster") ** 0.5
            cells.append(format_value(float(size), float((error**2).sum() ** 0.5)))
        rows.append((*cells, STATUS_MEANINGS[int(here["status"])]))
    heads = (*shown, "q_0[1]", "q_1[1]", "|m[1]|", "|theta[1]|", "status")
    return Table(heads, tuple(rows), left=(9,))
