"""Branches that do not exist: points whose order parameter vanishes."""

from __future__ import annotations

import numpy as np
import xarray as xr

from attnphase.fixed_points.iteration import Status
from attnphase.fixed_points.solver import SMALL_SIGNAL
from attnphase.problem.problem import Problem
from attnphase.state_evolution.branches import Branch
from attnphase.state_evolution.starts import initial_overlaps

__all__ = ["absences", "absent"]

_ZERO = 3.0  # standard errors within which an order parameter counts as zero


def absent(ds: xr.Dataset, problem: Problem) -> xr.DataArray:
    """Where a branch does not exist: what makes a fixed point one of that branch vanishes at the one that was found.

    Parameters
    ----------
    ds : xarray.Dataset
        Points, of one branch or of several.
    problem : Problem
        Whose points they are; where a field is swept, any of its problems.

    Returns
    -------
    xarray.DataArray
        Over the swept dimensions.
    """
    found = xr.zeros_like(ds["status"], dtype=bool)
    for branch in map(str, np.atleast_1d(ds["branch"].to_numpy())):
        for name in Branch.named(branch).order_parameters:
            found = found | ((ds["branch"] == branch) & _vanishes(ds, name, problem, branch))
    return found


def _vanishes(ds: xr.Dataset, name: str, problem: Problem, branch: str) -> xr.DataArray:
    """Whether every entry of m or theta is zero: exactly, or within its error where the iteration converged."""
    size, error = abs(ds[name]), ds[f"{name}_stderr"].fillna(0.0)
    # an error as large as the branch's own order parameter says nothing
    small = SMALL_SIGNAL * float(np.abs(getattr(initial_overlaps(problem, branch), name)).max())
    allowed = xr.where(ds["status"] == Status.converged, np.minimum(_ZERO * error, small), 0.0)
    inner = [dim for dim in size.dims if dim not in ds["status"].dims]
    # clusters that a token does not have are NaN, and a point that was not computed is nothing but NaN
    return ((size <= allowed) | size.isnull()).all(inner) & size.notnull().any(inner)


def absences(ds: xr.Dataset, problem: Problem) -> dict[str, str]:
    """A sentence for every branch that does not exist at one sample complexity, by the branch's name; see `absent`."""
    sentences = {}
    for branch in map(str, np.atleast_1d(ds["branch"].to_numpy())):
        point = ds.sel(branch=branch) if "branch" in ds.dims else ds
        zero = [name for name in Branch.named(branch).order_parameters if bool(_vanishes(point, name, problem, branch))]
        if zero:
            what, own = " and ".join(f"{name} = 0" for name in zero), "its error" if len(zero) == 1 else "their errors"
            found = "uninformed"
            if branch == "mixed" and len(zero) == 1:
                found = "semantic" if zero == ["m"] else "positional"
            sentences[branch] = f"{branch}: {what} within {own}; no such branch here: this is the {found} point."
    return sentences
