"""What an interactive page knows of a dataset: axes, quantities over them with their errors, doubts, boundaries.

Every dimension is an axis, whatever it is called, so that one page serves sweeps, runs and the histogram task alike. Of
tokens the first stands for all, as in the figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from attnphase.arrays import Array
from attnphase.data.absence import absent, undecided
from attnphase.data.reading import counted, overlap_size, problem_of
from attnphase.data.trust import asymmetric, violated
from attnphase.data.variables import NOT_COMPUTED
from attnphase.solvers.iteration import Status

__all__ = ["DOUBTS", "Axis", "Line", "Quantity", "Table", "lines_of", "table_of"]

DOUBTS = (
    "none",
    "merged with the uninformed point",
    "not decided",
    "replica symmetry fails",
    "not converged",
    "exact identities are violated",
)
"""Why a point of the theory is doubtful, the values 0, 1, ... of the quantity "doubt"; later ones go before."""

_SERIES = ("branch", "start", "mechanism")  # dimensions that name a curve, and not a place
_ENTRIES = ("token", "cluster", "row", "col", "teacher", "eigenvalue", "parameter")  # of theory and runs
_SIZES = ("m", "theta")
_FIRST = {"points": ("training_loss", "test_error", "|m|", "|theta|", "q")}
_FIRST |= {"experiments": _FIRST["points"], "histogram": ("accuracy", "epoch_test_loss", "attention", "token_share")}


@dataclass(frozen=True)
class Axis:
    """A dimension.

    Attributes
    ----------
    name, label : str
    values : tuple
        Numbers or words.
    role : {"field", "series", "entry"}
        Whether it is a place, names curves, or counts the entries of what stands at a place.
    """

    name: str
    label: str
    values: tuple[Any, ...]
    role: str = "field"


@dataclass(frozen=True, eq=False)
class Quantity:
    """A variable over some of the axes.

    Attributes
    ----------
    name, label : str
    axes : tuple of str
        In the order of the array's.
    values : array
    errors : array or None
        Standard errors, of the same shape.
    meanings : tuple of str
        Of the values 0, 1, ... of a flag.
    """

    name: str
    label: str
    axes: tuple[str, ...]
    values: Array
    errors: Array | None = None
    meanings: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Table:
    """A dataset.

    Attributes
    ----------
    kind : str
        That of the schema.
    axes : tuple of Axis
    quantities : tuple of Quantity
    """

    kind: str
    axes: tuple[Axis, ...]
    quantities: tuple[Quantity, ...]


@dataclass(frozen=True, eq=False)
class Line:
    """A threshold over one axis.

    Attributes
    ----------
    name, label, along : str
        ``along`` is the axis that it has a value for each value of.
    at, values, errors : arrays
    """

    name: str
    label: str
    along: str
    at: Array
    values: Array
    errors: Array


def table_of(ds: xr.Dataset) -> Table:
    """What the page needs of a dataset of any kind of the schema.

    Parameters
    ----------
    ds : xarray.Dataset
        Validated. Of training runs, means over the seeds that did not diverge, with their standard errors.
    """
    kind = str(ds.attrs["schema"])
    if kind != "histogram":
        ds = _of_first_token(ds)
    if "seed" in ds.dims:
        measured = [name for name in ds.data_vars if "seed" in ds[name].dims and "flag_meanings" not in ds[name].attrs]
        ds = ds.assign(ds[measured].where(counted(ds)))
    quantities = [_quantity(ds, str(name)) for name in ds.data_vars if not str(name).endswith("_stderr")]
    if kind == "points":
        quantities.append(_doubt(ds))
    if "seed" in ds.dims:
        quantities = [_over_seeds(quantity) for quantity in quantities]
    quantities = [_without_constant_axes(one) for one in quantities if np.isfinite(one.values).any()]
    first = _FIRST.get(kind, ())
    quantities.sort(key=lambda one: first.index(one.name) if one.name in first else len(first))
    used = {axis for one in quantities for axis in one.axes}
    axes = tuple(_axis(ds, str(dim), kind) for dim in ds.dims if dim in used)
    return Table(kind, axes, tuple(quantities))


def lines_of(thresholds: xr.Dataset) -> tuple[Line, ...]:
    """The thresholds of a dataset that has some, each over the field that it was made along."""
    (along,) = map(str, thresholds["alpha_c"].dims)
    lines = []
    for name in map(str, thresholds.data_vars):
        if f"{name}_status" not in thresholds or not bool(thresholds[name].notnull().any()):
            continue
        one = thresholds.sortby(along)
        columns = (one[along], one[name], one[f"{name}_stderr"])
        lines.append(
            Line(name, str(one[name].attrs["long_name"]), along, *(c.to_numpy().astype(float) for c in columns))
        )
    return tuple(lines)


def _of_first_token(ds: xr.Dataset) -> xr.Dataset:
    """Matrices of the first token, and beside m and theta their size, which no rotation of the weights changes."""
    sizes = {}
    for name in _SIZES:
        if name not in ds:
            continue
        # of a single entry the error is that of the size, which says all; of several it would take their covariance
        single = all(ds.sizes[dim] == 1 for dim in ("row", "teacher") if dim in ds[name].dims)
        sizes[f"|{name}|"] = overlap_size(ds, name).assign_attrs(long_name=f"size of the {ds[name].attrs['long_name']}")
        if single and f"{name}_stderr" in ds:
            sizes[f"|{name}|_stderr"] = overlap_size(ds, f"{name}_stderr")
            ds = ds.drop_vars([name, f"{name}_stderr"])
    ds = ds.assign(sizes)
    return ds.isel(token=0) if "token" in ds.dims else ds


def _axis(ds: xr.Dataset, dim: str, kind: str) -> Axis:
    """A dimension; one without values is counted from one."""
    role = "series" if dim in _SERIES else "entry" if dim in _ENTRIES and kind != "histogram" else "field"
    if dim not in ds.coords:
        return Axis(dim, dim, tuple(range(1, ds.sizes[dim] + 1)), role)
    values = tuple(value if isinstance(value, str | bool) else float(value) for value in ds[dim].to_numpy().tolist())
    return Axis(dim, str(ds[dim].attrs.get("long_name", dim)), values, role)


def _quantity(ds: xr.Dataset, name: str) -> Quantity:
    array = ds[name]
    errors = ds[f"{name}_stderr"].transpose(*array.dims).to_numpy().astype(float) if f"{name}_stderr" in ds else None
    meanings = tuple(str(array.attrs["flag_meanings"]).split()) if "flag_meanings" in array.attrs else ()
    axes = tuple(map(str, array.dims))
    return Quantity(
        name, str(array.attrs.get("long_name", name)), axes, array.to_numpy().astype(float), errors, meanings
    )


def _doubt(ds: xr.Dataset) -> Quantity:
    """Why each point is doubtful, see `DOUBTS`; NaN where nothing was computed."""
    status = ds["status"]
    doubts = (absent(ds, problem_of(ds)), undecided(ds), asymmetric(ds), status != Status.converged, violated(ds))
    values = np.zeros(status.shape)
    for number, where in enumerate(doubts, start=1):
        values[where.transpose(*status.dims).to_numpy()] = number
    values[status.to_numpy() == NOT_COMPUTED] = np.nan
    return Quantity("doubt", "why the point is doubtful", tuple(map(str, status.dims)), values, None, DOUBTS)


def _over_seeds(one: Quantity) -> Quantity:
    """Mean over the seeds and its standard error; of a flag the share of seeds that have not the first value."""
    if "seed" not in one.axes:
        return one
    place = one.axes.index("seed")
    values = one.values > 0 if one.meanings else one.values
    values = np.where(np.isfinite(one.values), values, np.nan)
    count = np.isfinite(values).sum(axis=place)
    filled = np.where(np.isfinite(values), values, 0.0)
    with np.errstate(all="ignore"):
        mean = filled.sum(axis=place) / count
        squares = (np.where(np.isfinite(values), values - np.expand_dims(mean, place), 0.0) ** 2).sum(axis=place)
        errors = np.sqrt(squares / (count * (count - 1)))
    label = f"{one.label}: share of seeds with another outcome than {one.meanings[0]}" if one.meanings else one.label
    return Quantity(one.name, label, tuple(axis for axis in one.axes if axis != "seed"), mean, errors)


def _without_constant_axes(one: Quantity) -> Quantity:
    """The quantity without axes along which neither it nor its error changes: they need not be stored."""
    axes, parts = list(one.axes), [one.values] if one.errors is None else [one.values, one.errors]
    for axis in one.axes:
        place = axes.index(axis)
        if all(np.array_equal(part, np.broadcast_to(part.take([0], place), part.shape), True) for part in parts):
            parts = [np.asarray(part.take(0, place)) for part in parts]
            axes.remove(axis)
    return Quantity(one.name, one.label, tuple(axes), parts[0], parts[1] if len(parts) > 1 else None, one.meanings)
