"""Branches that do not exist where they were looked for, and points of which that is not known."""

from __future__ import annotations

import numpy as np
import xarray as xr

from attnphase.data.variables import NOT_COMPUTED
from attnphase.fixed_points.identity import SMALL_SIGNAL
from attnphase.fixed_points.iteration import Status
from attnphase.problem.problem import Problem
from attnphase.state_evolution.branches import Branch, Identity
from attnphase.state_evolution.starts import initial_overlaps

__all__ = ["absences", "absent", "doubts", "undecided"]

_ZERO = 3.0  # standard errors within which an order parameter counts as zero


def absent(ds: xr.Dataset, problem: Problem) -> xr.DataArray:
    """Where a branch does not exist: the point that was found has merged with the uninformed one.

    Parameters
    ----------
    ds : xarray.Dataset
        Points, of one branch or of several. Of a dataset without ``on_branch``, which was made before there was one,
        those whose order parameter vanishes within its error.
    problem : Problem
        Whose points they are; where a field is swept, any of its problems.

    Returns
    -------
    xarray.DataArray
        Over the swept dimensions.
    """
    if "on_branch" in ds:
        return (ds["on_branch"] == Identity.merged) & (ds["status"] != NOT_COMPUTED)
    found = xr.zeros_like(ds["status"], dtype=bool)
    for branch in map(str, np.atleast_1d(ds["branch"].to_numpy())):
        for name in Branch.named(branch).order_parameters:
            found = found | ((ds["branch"] == branch) & _vanishes(ds, name, problem, branch))
    return found


def undecided(ds: xr.Dataset) -> xr.DataArray:
    """Where it is not decided whether a point is on its branch, over the swept dimensions."""
    if "on_branch" not in ds:
        return xr.zeros_like(ds["status"], dtype=bool)
    return (ds["on_branch"] == Identity.not_decided) & (ds["status"] != NOT_COMPUTED)


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
    for branch, point in _by_branch(ds):
        if not bool(absent(point, problem)):
            continue
        names = Branch.named(branch).order_parameters
        zero = [name for name in names if bool(_vanishes(point, name, problem, branch))] or [*names]
        what, own = " and ".join(f"{name} = 0" for name in zero), "its error" if len(zero) == 1 else "their errors"
        found = "uninformed"
        if branch == "mixed" and len(zero) == 1:
            found = "semantic" if zero == ["m"] else "positional"
        sentences[branch] = f"{branch}: {what} within {own}; no such branch here: this is the {found} point."
    return sentences


def doubts(ds: xr.Dataset) -> dict[str, str]:
    """A sentence for every branch of which it is not decided whether it reaches one sample complexity, by its name."""
    sentences = {}
    for branch, point in _by_branch(ds):
        if bool(undecided(point)):
            names = " and ".join(Branch.named(branch).order_parameters)
            sentences[branch] = (
                f"{branch}: whether this is the branch or the uninformed point is not decided: "
                f"{names} may be zero within its error; more integration nodes may tell."
            )
    return sentences


def _by_branch(ds: xr.Dataset) -> list[tuple[str, xr.Dataset]]:
    """The branches at one sample complexity, each with its point."""
    names = map(str, np.atleast_1d(ds["branch"].to_numpy()))
    return [(name, ds.sel(branch=name) if "branch" in ds.dims else ds) for name in names]
