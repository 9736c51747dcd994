"""Datasets and tables of derivatives along a field, and of its best value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnphase.data.build import assemble, by_cluster, coordinate, coordinate_name, point_columns
from attnphase.data.text import Table, entries_of, format_value
from attnphase.data.variables import SENSITIVITY_VARIABLES, TUNED_VARIABLES, Variable, with_own
from attnphase.lazy import loaded_on_use

with loaded_on_use(__name__):
    from attnphase.data import reading

if TYPE_CHECKING:
    import xarray as xr

    from attnphase.fixed_points.sensitivity import Sensitivity
    from attnphase.fixed_points.tuning import Optimum
    from attnphase.problem.problem import Problem

__all__ = ["from_optima", "from_sensitivities", "sensitivity_table", "tuned_table"]


def _derivatives(problem: Problem) -> tuple[Variable, ...]:
    """The variables that are derivatives, those of the problem's own metrics among them."""
    return tuple(one for one in with_own(SENSITIVITY_VARIABLES, problem) if one.name.startswith("d_"))


def from_sensitivities(found: Sequence[Sensitivity], branch: str) -> xr.Dataset:
    """Label derivatives at the points of a branch, or of ``"all"``; the field's value is a coordinate too."""
    points, setting = [one.point for one in found], found[0].setting
    swept: dict[str, Any] = {"branch": [point.branch for point in points]} if branch == "all" else {}
    columns = point_columns(points, swept)
    for one in _derivatives(setting.problem):
        name = one.name.removeprefix("d_")
        columns[one.name] = _column(found, columns[name], name, "values", swept)
        columns[one.stderr] = _column(found, columns[name], name, "errors", swept)
    place = {"branch": points[0].branch, "alpha": points[0].alpha}
    place = {name: value for name, value in place.items() if name not in swept}
    rules = sorted({point.rule for point in points})
    title = f"Derivatives in {setting.field}"
    ds = assemble("sensitivity", columns, swept, place, setting.problem, rules, title)
    ds.attrs["field"] = setting.field
    if setting.field == "alpha":
        return ds
    name = coordinate_name(setting.field)
    return ds.assign_coords({name: ((), np.asarray(setting.value), coordinate(name, setting.field))})


def _column(
    found: Sequence[Sensitivity], like: NDArray[Any], name: str, which: str, swept: dict[str, Any]
) -> NDArray[Any]:
    """One variable's derivatives, or their errors, shaped like the variable; NaN where they are not known."""
    rows = [getattr(one, which) for one in found]
    unknown = np.full(like.shape[bool(swept) :], np.nan)
    known = [
        np.asarray(by_cluster(one.point.problem, name, row[name]), dtype=float) if name in row else unknown
        for one, row in zip(found, rows, strict=True)
    ]
    return np.stack(known) if swept else known[0]


def sensitivity_table(ds: xr.Dataset) -> Table:
    """Derivatives: a row for each quantity, a column for each branch."""
    ds = ds if "branch" in ds.dims else ds.expand_dims("branch")
    problem, rows = reading.problem_of(ds), []
    for one in _derivatives(problem):
        if one.name.endswith("_hat"):
            continue
        values, errors = ds[one.name].to_numpy(), ds[one.stderr].to_numpy()
        for label, index in entries_of(one, problem, values.shape[1:]):
            pairs = zip(values, errors, strict=True)
            rows.append((label, *(format_value(float(v[index]), float(e[index])) for v, e in pairs)))
    field = str(ds.attrs["field"])
    name = coordinate_name(field)
    heads = (f"{field} = {float(ds[name]):g}", *map(str, ds["branch"].to_numpy()))
    return Table(heads, tuple(rows), by_column=True)


def from_optima(
    found: Sequence[Optimum], problem: Problem, branch: str, swept: Mapping[str, Sequence[Any]], field: str, metric: str
) -> xr.Dataset:
    """Label the best values of a field over alpha, or over branch and alpha."""
    sizes = tuple(map(len, swept.values()))
    columns: dict[str, NDArray[Any]] = {
        "optimum": np.array([one.value for one in found]),
        "optimum_stderr": np.array([one.value_error for one in found]),
        "metric": np.array([one.metric for one in found]),
        "metric_stderr": np.array([one.metric_error for one in found]),
        "solves": np.array([one.solves for one in found], dtype=np.int32),
        "status": np.array([one.place for one in found], dtype=np.int8),
    }
    rules = sorted({rule for one in found for rule in one.rules})
    what = f"metric {metric}" if metric in problem.metrics else metric.replace("_", " ")
    title = f"The {field} that minimises the {what}"
    columns = {name: column.reshape(sizes) for name, column in columns.items()}
    place = {} if "branch" in swept else {"branch": branch}
    ds = assemble("tuned", columns, swept, place, problem, rules, title)
    return ds.assign_attrs(field=field, metric=metric)


def tuned_table(ds: xr.Dataset) -> Table:
    """Best values of a field: a row for each alpha, of each branch."""
    (status,) = (one for one in TUNED_VARIABLES if one.name == "status")
    dims, rows = ds["status"].dims, []
    for here in (ds.isel(dict(zip(dims, place, strict=True))) for place in np.ndindex(ds["status"].shape)):
        cells = (format_value(float(here[n]), float(here[f"{n}_stderr"])) for n in ("optimum", "metric"))
        where = status.meanings[int(here["status"])].replace("_", " ")
        rows.append((*(str(here[dim].item()) for dim in dims[:-1]), f"{float(here['alpha']):g}", *cells, where))
    heads = (*map(str, dims[:-1]), "alpha", str(ds.attrs["field"]), str(ds.attrs["metric"]), "status")
    return Table(heads, tuple(rows), labels=len(dims), left=(*range(len(dims) - 1), len(heads) - 1))
