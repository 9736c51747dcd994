"""Maps of refined sweeps: what lies between the points that were computed, for the eye."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator

from attnphase.data.reading import is_refined, overlap_size
from attnphase.data.variables import NOT_COMPUTED

__all__ = ["computed_points", "filled"]

_COMPARED = ("training_loss", "test_error", "linear_test_error")
_BETWEEN = (*_COMPARED, *(f"{name}_stderr" for name in _COMPARED), "overlap_gap")
_SIZES = ("m", "theta")  # of either sign, or turned: only their size is the same from point to point
_NEAREST = ("on_branch", "status", "identities")


def computed_points(theory: xr.Dataset) -> xr.DataArray | None:
    """Where a refined sweep has points; None for another one."""
    return (theory["status"] != NOT_COMPUTED).any("branch") if is_refined(theory) else None


def filled(theory: xr.Dataset, up: str) -> xr.Dataset:
    """A map of a refined sweep without its gaps; another one as it is.

    Parameters
    ----------
    theory : xarray.Dataset
        Branches over alpha and the dimension `up`.
    up : str

    Returns
    -------
    xarray.Dataset
        Only with what maps show: numbers interpolated linearly between the next points in units of the grid's steps,
        flags those of the nearest point, and of m and theta the size as the only entry.
    """
    if not is_refined(theory):
        return theory
    plain = theory[[name for name in (*_BETWEEN, *_NEAREST) if name in theory]]
    shown = plain.assign({name: _one_entry(theory, name) for name in _SIZES})
    branches = [_filled_branch(shown.sel(branch=branch), up) for branch in theory["branch"].to_numpy()]
    whole = xr.concat(branches, theory["branch"])
    for name in map(str, shown.data_vars):
        whole[name].attrs = theory[name].attrs
    return whole.assign_attrs(theory.attrs)


def _one_entry(theory: xr.Dataset, name: str) -> xr.DataArray:
    """The size of the first token's overlap as an overlap."""
    array = theory[name]
    inner = {dim: 1 for dim in ("token", "row", "teacher") if dim in array.dims}
    return overlap_size(theory, name).expand_dims(inner).transpose(*array.dims).assign_attrs(array.attrs)


def _filled_branch(branch: xr.Dataset, up: str) -> xr.Dataset:
    ordered = branch.transpose(up, "alpha", ...)
    points = np.argwhere((ordered["status"] != NOT_COMPUTED).to_numpy())
    rows, columns = np.indices(ordered["status"].shape)
    made: dict[str, Any] = {}
    for name, array in ordered.data_vars.items():
        given: NDArray[Any] = array.to_numpy()[tuple(points.T)]
        form = NearestNDInterpolator if name in _NEAREST else LinearNDInterpolator
        made[str(name)] = (array.dims, form(points, given)(rows, columns))
    return xr.Dataset(made, ordered.coords)
