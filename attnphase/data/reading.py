"""What a dataset says: its problem, the size of its overlaps, the spacing of its grid."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from attnphase.data.schemas import PROBLEM_ATTRIBUTES
from attnphase.data.variable import RunStatus
from attnphase.errors import DatasetError, ProblemError
from attnphase.problem.canonical import with_formulas
from attnphase.problem.entries import put, with_shares
from attnphase.problem.problem import DataProblem, Problem
from attnphase.problem.schema import as_whole_dict, sections

__all__ = [
    "counted",
    "counted_alone",
    "is_refined",
    "overlap_size",
    "problem_of",
    "spacing",
    "told_problem",
    "whole_dict",
    "whole_problem",
]

_COUNTED = (RunStatus.converged, RunStatus.completed, RunStatus.step_limit, RunStatus.unsettled)


def problem_of(ds: xr.Dataset) -> DataProblem:
    """The problem of a dataset, which imports no module and opens no file that the dataset names.

    Raises
    ------
    DatasetError
        It has none, its hash belongs to another, or it is no problem.
    """
    for name in PROBLEM_ATTRIBUTES:
        if name not in ds.attrs:
            raise DatasetError(f'global attribute "{name}" is missing: this is not a dataset of attnphase.')
    try:
        return Problem.from_data(str(ds.attrs["problem"]), str(ds.attrs["problem_hash"]))
    except ProblemError as error:
        if error.field == "problem_hash":
            raise DatasetError(
                'global attribute "problem_hash" does not belong to "problem": one of them was changed.'
            ) from None
        raise DatasetError(f'global attribute "problem" is not a problem: {error}') from None


def told_problem(ds: xr.Dataset) -> dict[str, Any]:
    """The problem of a dataset as its text says it, but for integration, metrics and fields that a coordinate has."""
    return _at_coordinates(ds, {name: dict(section) for name, section in tomllib.loads(ds.attrs["problem"]).items()})


def whole_problem(ds: xr.Dataset) -> dict[str, Any]:
    """Likewise, with what a problem file need not say: two of these can be compared."""
    return _at_coordinates(ds, whole_dict(problem_of(ds)))


def whole_dict(problem: Problem) -> dict[str, Any]:
    """A problem as plain dicts, lists and scalars, with what a problem file need not say.

    Formulas of the same expression are equal in it.
    """
    whole = with_shares(problem, {name: as_whole_dict(getattr(problem, name)) for name in sections()})
    return with_formulas(problem, whole)


def _at_coordinates(ds: xr.Dataset, there: dict[str, Any]) -> dict[str, Any]:
    for name in ("integration", "metrics"):
        there.pop(name, None)
    for name in map(str, ds.coords):
        field = ds[name].attrs.get("field", "")
        if "." in field:
            put(there, field, ds[name].item() if ds[name].ndim == 0 else None)
    return there


def is_refined(ds: xr.Dataset) -> bool:
    """Whether a dataset is a sweep whose points lie where boundaries pass, and what is between them was left out."""
    try:
        told = json.loads(str(ds.attrs.get("sweep", "")))
    except (ValueError, RecursionError):
        return False
    return isinstance(told, dict) and told.get("refine") is True


def counted(runs: xr.Dataset) -> xr.DataArray:
    """Which runs belong into means: not those that diverged, of which the last finite weights were measured."""
    return runs["status"].isin(_COUNTED)


def counted_alone(runs: xr.Dataset) -> xr.Dataset:
    """The runs that belong into means, of those of one start, alpha and dimension; there may be none."""
    return runs.isel(seed=np.flatnonzero(counted(runs).to_numpy()))


def overlap_size(ds: xr.Dataset, name: str) -> xr.DataArray:
    """Magnitude of the first token's overlap, which no rotation of the weights changes.

    Parameters
    ----------
    ds : xarray.Dataset
        Points or experiments.
    name : {"m", "theta"}

    Returns
    -------
    xarray.DataArray
        Over the swept dimensions and, of mixtures, cluster.
    """
    first = ds[name].isel(token=0)
    inner = [dim for dim in ("row", "teacher") if dim in first.dims]
    return (first**2).sum(inner, skipna=False) ** 0.5


def spacing(values: Sequence[Any] | NDArray[Any]) -> str:
    """How the values along a dimension are spaced.

    Parameters
    ----------
    values : sequence
        Of any kind.

    Returns
    -------
    {"linear", "log", ""}
        "" for fewer than three, for words, and where neither the differences nor the ratios are all the same.
    """
    if len(values) < 3 or any(isinstance(value, bool | str) for value in values):
        return ""
    array = np.asarray(values, dtype=float)
    for kind, evenly in (("linear", np.linspace), ("log", np.geomspace)):
        if kind == "log" and array.min() <= 0:
            continue
        expected = evenly(array[0], array[-1], len(array))
        if np.allclose(array, expected, rtol=1e-12, atol=1e-12 * float(np.ptp(array))):
            return kind
    return ""
