"""Which part of a dataset is drawn: checked for what a figure needs, at the values that the caller names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from attnphase import arguments
from attnphase.data.reading import overlap_size
from attnphase.data.validate import validate_kind
from attnphase.errors import DatasetError

__all__ = [
    "OMEGA",
    "at_values",
    "both_branches",
    "check_dataset",
    "check_quantity",
    "chosen_values",
    "drawn_size",
    "drawn_size_error",
    "field_of",
    "need_dimensions",
    "over_one",
    "over_two",
    "over_values",
    "same_value",
    "shown_value",
    "vary_only",
]

OMEGA = 0.3
"""Of Figure 2 of the paper: of a dataset with several, and with several alphas, that of its curves by default."""


def check_dataset(name: str, ds: xr.Dataset, kind: str) -> None:
    """Refuse what is no dataset of a kind; `name` is the argument's."""
    validate_kind(name, arguments.instance(name, ds, xr.Dataset), kind)


def check_quantity(ds: xr.Dataset, name: str) -> None:
    """Refuse what has no curves in a dataset of points: they show one number and its error at each, or a size."""
    known = [one for one in map(str, ds) if f"{one}_stderr" in ds]
    drawn = [one for one in known if {*ds[one].dims} == {*ds["status"].dims} or one in ("m", "theta")]
    if name not in drawn:
        raise DatasetError(f'the dataset has no quantity "{name}" for curves; it has {", ".join(drawn)}.')


def both_branches(ds: xr.Dataset, dim: str = "branch") -> tuple[xr.Dataset, xr.Dataset]:
    """The semantic and the positional part."""
    for name in ("semantic", "positional"):
        if name not in ds[dim]:
            raise DatasetError(f"the dataset has no {name} {dim}, which this figure needs.")
    return ds.sel({dim: "semantic"}), ds.sel({dim: "positional"})


def need_dimensions(ds: xr.Dataset, *dims: str) -> None:
    """Refuse a dataset without these dimensions."""
    for dim in dims:
        if dim not in ds.dims:
            raise DatasetError(f"the dataset has no dimension {dim}, which this figure needs.")


def vary_only(ds: xr.Dataset, *dims: str) -> None:
    """Refuse a dataset without these dimensions, or with others."""
    need_dimensions(ds, *dims)
    others = set(map(str, ds["status"].dims)) - set(dims)
    if others:
        raise DatasetError(f"the dataset varies {field_of(ds, min(others))} too: select one value of it first.")


def chosen_values(at: Mapping[str, Any] | None) -> dict[str, Any]:
    """The values that the caller named."""
    return {} if at is None else arguments.mapping("at", at, "a mapping from dimensions or fields to a value of each")


def at_values(ds: xr.Dataset, chosen: Mapping[str, Any]) -> xr.Dataset:
    """The dataset at one value of each of the named dimensions, which stay."""
    need_dimensions(ds, "branch", "alpha")
    for name, value in chosen.items():
        dim = next((dim for dim in swept_dimensions(ds) if name in (dim, ds[dim].attrs.get("field"))), None)
        if dim is None:
            varied = ", ".join(field_of(ds, dim) for dim in swept_dimensions(ds))
            raise DatasetError(f"the dataset does not vary {name}; it varies {varied}.")
        values = ds[dim].to_numpy().tolist()
        places = [i for i, there in enumerate(values) if same_value(there, value)]
        if not places:  # a message shows six digits, which select the only value that they stand for
            places = [i for i, there in enumerate(values) if shown_value(there) == shown_value(value)]
        if len(places) != 1:
            raise DatasetError(
                f"the dataset has no {field_of(ds, dim)} = {shown_value(value)}; it has {_listed(values)}."
            )
        ds = ds.isel({dim: places})
    return ds


def swept_dimensions(ds: xr.Dataset) -> list[str]:
    return list(map(str, ds["status"].dims))


def field_of(ds: xr.Dataset, dim: str) -> str:
    """A dimension as sentences name it: by its field, but for omega, which a sweep calls so itself."""
    return dim if dim == "omega" or dim not in ds.coords else str(ds[dim].attrs.get("field", dim))


def same_value(there: Any, value: Any) -> bool:
    """Whether a value of the grid is the one asked for, which may be written with fewer digits."""
    if isinstance(there, float) and isinstance(value, int | float):
        return bool(np.isclose(there, value, rtol=1e-9, atol=0))
    return there == value


def shown_value(value: Any) -> str:
    """A value as the user would write it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, int | float) else str(value) if isinstance(value, str) else repr(value)


def _listed(values: list[Any]) -> str:
    shown = [shown_value(value) for value in values]
    if len(set(shown)) < len(shown):  # six digits are too few
        shown = [str(value) for value in values]
    return ", ".join(shown if len(shown) <= 12 else [*shown[:10], "...", shown[-1]])


def over_one(ds: xr.Dataset) -> tuple[xr.Dataset, str]:
    """Branches along one dimension, alpha or the only field there is, and its name."""
    free = [dim for dim in swept_dimensions(ds) if dim != "branch" and ds.sizes[dim] > 1]
    across = "alpha" if "alpha" in free or not free else free[0]
    if across == "alpha" and "omega" in free:
        ds = at_values(ds, {"omega": _default_omega(ds)})
        free.remove("omega")
    _refuse_others(ds, [dim for dim in free if dim != across])
    if not free:
        raise DatasetError(
            "the dataset has one value of alpha and of every field: a curve needs several of one of them."
        )
    return _plane(ds, across), across


def _default_omega(ds: xr.Dataset) -> float:
    values = ds["omega"].to_numpy().tolist()
    if not any(same_value(there, OMEGA) for there in values):
        field = ds["omega"].attrs.get("field", "omega")
        raise DatasetError(
            f"the dataset has no omega = {OMEGA:g}, at which curves are drawn by default:"
            f" {_select_one(ds, 'omega', field)}."
        )
    return OMEGA


def over_two(ds: xr.Dataset) -> tuple[xr.Dataset, str]:
    """Branches along alpha and the only field there is, and that field's name."""
    fields = [dim for dim in swept_dimensions(ds) if dim not in ("branch", "alpha") and ds.sizes[dim] > 1]
    if not fields or ds.sizes["alpha"] < 2:
        lacking = "alpha" if fields else "a field beside alpha"
        raise DatasetError(
            f"the dataset has not several values of {lacking}, which this figure needs; fig2 draws curves."
        )
    _refuse_others(ds, fields[1:])
    return _plane(ds, "alpha", fields[0]), fields[0]


def over_values(ds: xr.Dataset, most: int) -> tuple[xr.Dataset, str]:
    """Branches along alpha for a few values of the only field there is, and that field's name."""
    fields = [dim for dim in swept_dimensions(ds) if dim not in ("branch", "alpha")]
    varied = [dim for dim in fields if ds.sizes[dim] > 1] or fields[:1]
    if not varied or ds.sizes["alpha"] < 2:
        lacking = "several values of alpha" if varied else "a field beside alpha"
        raise DatasetError(f"the dataset has not {lacking}, which this figure needs; fig2 draws curves.")
    _refuse_others(ds, varied[1:])
    if ds.sizes[varied[0]] > most:
        values = _listed(ds[varied[0]].to_numpy().tolist())
        raise DatasetError(
            f"the dataset has too many values of {field_of(ds, varied[0])} for curves, {values}: select at most {most}."
        )
    left = [dim for dim in fields if dim != varied[0]]
    return ds.squeeze(left).sortby("alpha"), varied[0]


def _refuse_others(ds: xr.Dataset, dims: list[str]) -> None:
    if dims:
        raise DatasetError(f"the dataset varies {field_of(ds, dims[0])} too: {_select_one(ds, dims[0])}.")


def _select_one(ds: xr.Dataset, dim: str, name: str | None = None) -> str:
    """What to do about a dimension; `name` is the field's, if not that of the dimension."""
    values, name = ds[dim].to_numpy().tolist(), name or field_of(ds, dim)
    return f"select one of {_listed(values)}, as --at {name}={shown_value(values[0])} (at={{{name!r}: {values[0]!r}}})"


def _plane(ds: xr.Dataset, *axes: str) -> xr.Dataset:
    """Only the branches and these dimensions, which are numbers, in increasing order."""
    for dim in axes:
        if ds[dim].dtype.kind not in "iuf":
            raise DatasetError(f"{field_of(ds, dim)} has no numbers for an axis: {_select_one(ds, dim)}.")
    ds = ds.squeeze([dim for dim in swept_dimensions(ds) if dim not in ("branch", *axes)])
    return ds.sortby([*axes])


def drawn_size(ds: xr.Dataset, name: str) -> xr.DataArray:
    """The first token's overlap, of a mixture with all its clusters together."""
    size = overlap_size(ds, name)
    return (size**2).sum("cluster") ** 0.5 if "cluster" in size.dims else size


def drawn_size_error(ds: xr.Dataset, name: str) -> xr.DataArray:
    """First-order standard error of `drawn_size`: at most that of its largest entries together."""
    array = ds[f"{name}_stderr"].isel(token=0)
    inner = [dim for dim in ("row", "teacher", "cluster") if dim in array.dims]
    return (array**2).sum(inner) ** 0.5
