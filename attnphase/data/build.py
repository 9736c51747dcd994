"""Datasets of solved points, lines, thresholds, runs and the histogram task, labelled as the schema has it."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnphase.data.schemas import COORDINATES, RANK, SCHEMA_VERSION, SCHEMAS
from attnphase.data.variables import (
    HISTOGRAM_ENTRIES,
    HISTOGRAM_STAGES,
    HISTOGRAM_VARIABLES,
    POINT_VARIABLES,
    TRAJECTORY_VARIABLES,
    TRANSITION_VARIABLES,
    Variable,
    with_own,
)
from attnphase.errors import DatasetError
from attnphase.fixed_points.threshold import Outcome
from attnphase.lazy import loaded_on_use
from attnphase.problem.entries import entry_of, value_of
from attnphase.problem.problem import Problem
from attnphase.version import __version__

with loaded_on_use(__name__):
    from importlib import metadata

    import xarray as xr

    from attnphase.fixed_points.point import BranchPoint

__all__ = [
    "assemble",
    "by_cluster",
    "columns_of",
    "coordinate",
    "coordinate_name",
    "from_histogram",
    "from_lines",
    "from_points",
    "from_runs",
    "from_thresholds",
    "global_attributes",
    "labelled",
    "point_columns",
]

_TITLE = "Fixed points of the saddle-point equations"

_PER_SITE = {one.name for variables in SCHEMAS.values() for one in variables if "token" in one.dims}


def coordinate_name(field: str) -> str:
    """Name of the dimension along which a field of the problem is swept.

    Parameters
    ----------
    field : str
        Such as ``teacher.omega``; ``branch`` and ``alpha`` stand for themselves.

    Returns
    -------
    str
        The field's key, ``omega``; with its section, ``student_rank``, where two sections have the key, or where the
        key is a name that the schema has already (``integration_seed``).
    """
    section, dot, key = field.partition(".")
    if not dot:
        return field
    problem, (key, steps) = Problem(), entry_of(key)
    sections = (home.name for home in fields(Problem) if not home.name.startswith("_"))
    homes = [home for home in sections if key in {one.name for one in fields(getattr(problem, home))}]
    taken = {name for variable in POINT_VARIABLES for name in (variable.name, *variable.dims)} | {*RANK}
    name = f"{section}_{key}" if key in taken or homes not in ([], [section]) else key
    return "_".join([name, *map(str, steps)])


def from_points(
    points: Sequence[BranchPoint],
    swept: Mapping[str, Sequence[Any]] | None = None,
    *,
    problem: Problem | None = None,
    title: str | None = None,
) -> xr.Dataset:
    """Label solved points.

    Parameters
    ----------
    points : sequence of BranchPoint
        In any order.  What the grid has and `points` has not gets the status ``not_computed``.
    swept : mapping, optional
        Values along each dimension, in the order of the dimensions: ``branch``, fields of the problem by their name in
        the TOML (``teacher.omega``), ``alpha``.  ``branch`` and ``alpha`` become scalar coordinates if left out.
    problem : Problem, optional
        The problem before its fields were swept; the first point's by default.
    title : str, optional
        The dataset's title.

    Returns
    -------
    xarray.Dataset

    Raises
    ------
    DatasetError
        A point does not lie on the grid, two lie on the same place, or there is no point at all.
    """
    if not points:
        raise DatasetError("there is no point to make a dataset of.")
    swept = _in_order(swept or {})
    columns = point_columns(points, swept)
    scalars = {"branch": points[0].branch, "alpha": points[0].alpha}
    rules = sorted({point.rule for point in points})
    return assemble("points", columns, swept, scalars, problem or points[0].problem, rules, title or _TITLE)


def point_columns(points: Sequence[BranchPoint], swept: Mapping[str, Sequence[Any]]) -> dict[str, NDArray[Any]]:
    """Every variable of points and its standard error, over the swept dimensions; see `from_points`.

    Raises
    ------
    DatasetError
        A point does not lie on the grid, or two lie on the same place.
    """
    sizes = tuple(len(values) for values in swept.values())
    places: dict[tuple[int, ...], BranchPoint] = {}
    for point in points:
        index = tuple(_place(name, values, point) for name, values in swept.items())
        if index in places:
            raise DatasetError(f"two points lie at the same place: {_described(point)}; sweep what tells them apart.")
        places[index] = point
    ordered = [places.get(index) for index in product(*(range(size) for size in sizes))]
    return {
        name: np.stack(rows).reshape(sizes + rows[0].shape)
        for name, rows in columns_of(ordered, points[0]).items()
    }  # fmt: skip


def from_lines(
    lines: Sequence[xr.Dataset], swept: Mapping[str, Sequence[Any]], *, problem: Problem, title: str | None = None
) -> xr.Dataset:
    """Join branch lines, datasets over alpha, into a grid.

    Parameters
    ----------
    lines : sequence of xarray.Dataset
        For every combination of `swept` without alpha, in the order of `itertools.product`.
    swept : mapping
        As in `from_points`; alpha is the last dimension.
    problem : Problem
        The problem before its fields were swept.
    title : str, optional
        The dataset's title.

    Returns
    -------
    xarray.Dataset
    """
    swept = _in_order(swept)
    sizes = tuple(len(values) for values in swept.values())[:-1]
    columns = {
        name: np.stack([line[name].to_numpy() for line in lines]).reshape(sizes + lines[0][name].shape)
        for name in map(str, lines[0].data_vars)
    }
    rules = sorted({rule for line in lines for rule in line.attrs["rule"].split(", ")})
    return assemble("points", columns, swept, {}, problem, rules, title or _TITLE)


def from_thresholds(
    problem: Problem,
    omega: Sequence[float],
    values: Mapping[str, Sequence[float]],
    errors: Mapping[str, Sequence[float]],
    rule: str,
    *,
    field: str = "teacher.omega",
    outcomes: Mapping[str, Sequence[int]] | None = None,
) -> xr.Dataset:
    """Label thresholds along omega, or along another field.

    Parameters
    ----------
    problem : Problem
        The problem; its field is replaced by the coordinate.
    omega : sequence of float
        Weights of the teacher's positional part, or values of `field`.
    values, errors : mapping
        ``alpha_c`` and ``alpha_l`` and, with transitions, the others of the schema, each as long as `omega`; NaN where
        there is none.
    rule : str
        The integration rule used.
    field : str
        Name in the TOML.
    outcomes : mapping, optional
        Members of `Outcome`; by default NaN lies outside the range.

    Returns
    -------
    xarray.Dataset
    """
    columns: dict[str, NDArray[Any]] = {name: np.array(column, dtype=float) for name, column in values.items()}
    missing = {name: np.where(np.isnan(column), Outcome.outside_range, 0) for name, column in columns.items()}
    known = missing if outcomes is None else outcomes
    columns |= {f"{name}_stderr": np.array(column, dtype=float) for name, column in errors.items()}
    columns |= {f"{name}_status": np.array(known[name], dtype=np.int8) for name in values}
    title = "Thresholds of the positional-semantic transition"
    ds = assemble("thresholds", columns, _in_order({field: omega}), {}, problem, [rule], title)
    leading = (coordinate_name(field),)
    extra = labelled(columns, {one: leading for one in TRANSITION_VARIABLES if one.name in columns})
    return ds.assign(extra)


def from_runs(
    problem: Problem,
    swept: Mapping[str, Sequence[Any]],
    columns: Mapping[str, NDArray[Any]],
    *,
    rule: str,
    seed: int,
    record: Sequence[int] = (),
    title: str | None = None,
) -> xr.Dataset:
    """Label the runs of an experiment.

    Parameters
    ----------
    problem : Problem
    swept : mapping
        Values along start, dimension, alpha and seed; all four are dimensions of the result.
    columns : mapping
        An array over these for every variable, with its standard error where it has one.
    rule : str
        The optimiser with its settings.
    seed : int
        From which all random numbers follow.
    record : sequence of int
        Steps at which the trajectories in `columns` were recorded.
    title : str, optional
        The dataset's title.

    Returns
    -------
    xarray.Dataset
    """
    ds = assemble("experiments", columns, _in_order(swept), {}, problem, [rule], title or "Finite-size experiments")
    ds.attrs["seed"] = seed
    if len(record):
        leading = ds["status"].dims
        for variable in TRAJECTORY_VARIABLES:
            dims = (*leading, *variable.dims_of(problem))
            ds[variable.name] = (dims, columns[variable.name], variable.attributes())
        ds = ds.assign_coords(step=("step", np.asarray(record, dtype=np.int64), coordinate("step")))
    return ds


def from_histogram(
    columns: Mapping[str, NDArray[Any]],
    *,
    mechanisms: Sequence[str],
    runs: int,
    symbols: NDArray[np.int64],
    rule: str,
    seed: int,
) -> xr.Dataset:
    """Label runs of the histogram task.

    Parameters
    ----------
    columns : mapping
        An array for every variable of the schema ``histogram``, over mechanism and run, then its own dimensions; with
        its standard error where it has one.
    mechanisms : sequence of str
    runs : int
    symbols : (sequences, L) array
        The sequences whose attention matrices are given.
    rule : str
        Sizes and settings.
    seed : int
        From which all random numbers follow.

    Returns
    -------
    xarray.Dataset
    """
    places = ("mechanism", "run")
    variables = labelled(columns, {variable: (*places, *variable.dims) for variable in HISTOGRAM_VARIABLES})
    epochs = columns["epoch_accuracy"].shape[-1]
    values = {"mechanism": list(mechanisms), "run": range(runs), "stage": HISTOGRAM_STAGES}
    values |= {"epoch": range(1, epochs + 1), "entries": HISTOGRAM_ENTRIES}
    coordinates: dict[str, Any] = {name: ((name,), np.asarray(v), coordinate(name)) for name, v in values.items()}
    coordinates["symbols"] = (("sequence", "token"), symbols, coordinate("symbols"))
    return xr.Dataset(variables, coordinates, global_attributes("histogram", "The histogram task", seed, rule))


def _in_order(swept: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Branch or start first, alpha and seed last, plain values, and the short name omega spelt out."""
    spelt = {"teacher.omega" if name == "omega" else name: np.asarray(v).tolist() for name, v in swept.items()}
    return {name: spelt[name] for name in sorted(spelt, key=lambda name: RANK.get(name, 2))}


def _place(name: str, values: Sequence[Any], point: BranchPoint) -> int:
    value = getattr(point, name) if name in ("alpha", "branch") else value_of(point.problem, name)
    try:
        return values.index(value)
    except ValueError:
        raise DatasetError(f"{name} is {value!r} for a point, which is not among the swept values.") from None


def _described(point: BranchPoint) -> str:
    return f"{point.branch}, alpha = {point.alpha:g}"


def columns_of(points: Sequence[BranchPoint | None], pattern: BranchPoint) -> dict[str, list[NDArray[Any]]]:
    """Values of every variable at every place; what is missing has the shape it has at `pattern`."""
    columns: dict[str, list[NDArray[Any]]] = {}
    for variable in with_own(POINT_VARIABLES, pattern.problem):
        shape = np.shape(_value(pattern, variable))
        fill = np.full(shape, variable.missing)
        rows = [fill if point is None else np.asarray(_value(point, variable)) for point in points]
        if any(row.shape != shape for row in rows):
            raise DatasetError(f"{variable.name} has not one shape on the whole grid: sweep problems of one size.")
        columns[variable.name] = [row.astype(variable.dtype) for row in rows]
        if variable.has_stderr:
            unknown = np.full(shape, np.nan)
            columns[variable.stderr] = [
                unknown if point is None else _error(point, variable.name, unknown) for point in points
            ]
    return columns


def _error(point: BranchPoint, name: str, unknown: NDArray[Any]) -> NDArray[Any]:
    if name not in point.errors:
        return unknown
    return np.asarray(by_cluster(point.problem, name, point.errors[name]), dtype=float)


def _value(point: BranchPoint, variable: Variable) -> Any:
    name = variable.name
    if name in point.values:
        return by_cluster(point.problem, name, point.values[name])
    if np.isnan(point.residual) and not variable.dims:  # it was not evaluated
        return getattr(point, name, variable.missing)
    return getattr(point, name)


def by_cluster(problem: Problem, name: str, values: Any) -> Any:
    """A variable as a dataset has it: what every site has, (P, ...), is an array over token and, in mixtures, cluster.

    It is NaN where a token has fewer clusters than another.
    """
    if name not in _PER_SITE or not problem.tokens.has_clusters:
        return values
    sites = problem.sites
    shape = (problem.tokens.length, 1 + max(cluster for _, cluster in sites), *np.shape(values)[1:])
    spread = np.full(shape, np.nan)
    for site, (token, cluster) in enumerate(sites):
        spread[token, cluster] = values[site]
    return spread


def assemble(
    kind: str,
    columns: Mapping[str, NDArray[Any]],
    swept: Mapping[str, Sequence[Any]],
    scalars: Mapping[str, Any],
    problem: Problem,
    rules: Sequence[str],
    title: str,
) -> xr.Dataset:
    """A dataset of a kind on a problem, of its variables over the swept dimensions and those of each."""
    leading = tuple(coordinate_name(name) for name in swept)
    own = with_own(SCHEMAS[kind], problem)
    known = [one for one in own if one.name in columns or not one.optional]
    variables = labelled(columns, {one: (*leading, *one.dims_of(problem)) for one in known})
    coordinates: dict[str, Any] = {name: ((), np.asarray(v), coordinate(name)) for name, v in scalars.items()}
    for field, values in swept.items():
        name = coordinate_name(field)
        coordinates[name] = ((name,), np.asarray(values), coordinate(name, field))
    if any("parameter" in one.dims for one in known):
        coordinates["parameter"] = (("parameter",), [*problem.loss.fitted], coordinate("parameter"))
    attributes = global_attributes(kind, title, problem.integration.seed, ", ".join(rules))
    attributes |= {"problem": problem.to_toml(), "problem_hash": problem.hash}
    return xr.Dataset(variables, coordinates, attributes)


def labelled(columns: Mapping[str, NDArray[Any]], dims: Mapping[Variable, tuple[str, ...]]) -> dict[str, Any]:
    """The variables of a dataset, with their standard errors, over the dimensions of each."""
    variables: dict[str, Any] = {}
    for variable, over in dims.items():
        variables[variable.name] = (over, columns[variable.name], variable.attributes())
        if variable.has_stderr:
            variables[variable.stderr] = (over, columns[variable.stderr], variable.stderr_attributes())
    return variables


def global_attributes(kind: str, title: str, seed: int, rule: str) -> dict[str, Any]:
    """The global attributes of every dataset, but for the problem's."""
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "title": title,
        "Conventions": "CF-1.11",
        "schema": kind,
        "schema_version": SCHEMA_VERSION,
        "seed": seed,
        "rule": rule,
        "attnphase_version": __version__,
        **{f"{name}_version": metadata.version(name) for name in ("numpy", "scipy", "numba")},
        "python_version": platform.python_version(),
        "created": created,
        "history": f"{created}: attnphase {__version__}: {title}",
    }


def coordinate(name: str, field: str = "") -> dict[str, str]:
    """The attributes of a coordinate; of one that sweeps a field, with its name."""
    plain = f"value of {field}", rf"\mathrm{{{name}}}".replace("_", r"\_")
    whole, steps = entry_of(field)
    if not steps:
        long_name, latex = COORDINATES.get(field, COORDINATES.get(name, plain))
    else:  # as equations number it, from 1
        of_all = coordinate(coordinate_name(whole), whole)
        below = [str(step + 1) if isinstance(step, int) else rf"\mathrm{{{step}}}" for step in steps]
        long_name = f"{of_all['long_name']}, entry {', '.join(map(str, steps))} from 0"
        latex = f"{of_all['latex']}_{{{', '.join(below)}}}"
    attributes = {"long_name": long_name, "units": "1", "latex": latex}
    if "." in field:
        attributes["field"] = field
    return attributes
