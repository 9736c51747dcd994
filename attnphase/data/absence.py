"""Branches that do not exist where they were looked for, and points of which that is not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnphase.data.variables import NOT_COMPUTED
from attnphase.fixed_points.point import BranchPoint
from attnphase.lazy import loaded_on_use
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.branches import Branch, Identity
from attnphase.state_evolution.starts import SMALL_SIGNAL, initial_overlaps

with loaded_on_use(__name__):
    import xarray as xr

__all__ = ["absences", "absent", "doubts", "undecided", "unevaluated"]

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
    status = ds["status"]
    if "on_branch" in ds:
        return (ds["on_branch"] == Identity.merged) & (status != NOT_COMPUTED)
    found = xr.zeros_like(status, dtype=bool)
    for branch in map(str, np.atleast_1d(ds["branch"].to_numpy())):
        for name in Branch.named(branch).order_parameters:
            size, error = (ds[each].transpose(*status.dims, ...).to_numpy() for each in (name, f"{name}_stderr"))
            zero = _vanishes(size, error, status.to_numpy() == Status.converged, _small(problem, branch, name))
            found = found | ((ds["branch"] == branch) & status.copy(data=zero))
    return found


def undecided(ds: xr.Dataset) -> xr.DataArray:
    """Where it is not decided whether a point is on its branch, over the swept dimensions."""
    if "on_branch" not in ds:
        return ds["status"] != ds["status"]
    return (ds["on_branch"] == Identity.not_decided) & (ds["status"] != NOT_COMPUTED)


def unevaluated(ds: xr.Dataset) -> xr.DataArray:
    """Where a point cannot be evaluated and has no numbers, over the swept dimensions."""
    return (ds["status"] == Status.left_domain) & ds["residual"].isnull()


def _small(problem: Problem, branch: str, name: str) -> float:
    """What an order parameter must be above: an error as large as the branch's own says nothing."""
    return SMALL_SIGNAL * float(np.abs(getattr(initial_overlaps(problem, branch), name)).max())


def _vanishes(values: Any, errors: Any, converged: Any, small: float) -> NDArray[np.bool_]:
    """Whether every entry of m or theta is zero: exactly, or within its error where the iteration converged.

    Parameters
    ----------
    values, errors : array
        Of m or theta; the leading axes are those of `converged`.
    converged : array of bool
    small : float
        See `_small`.
    """
    size, converged = np.abs(values), np.asarray(converged)
    inner = tuple(range(converged.ndim, size.ndim))
    allowed = np.minimum(_ZERO * np.nan_to_num(errors, nan=0.0), small)
    allowed = np.where(np.expand_dims(converged, inner), allowed, 0.0)
    # clusters that a token does not have are NaN, and a point that was not computed is nothing but NaN
    missing = np.isnan(size)
    return ((size <= allowed) | missing).all(inner) & ~missing.all(inner)


def absences(points: Sequence[BranchPoint]) -> dict[str, str]:
    """A sentence for every branch that does not exist at one sample complexity, by the branch's name; see `absent`."""
    sentences = {}
    for point in points:
        if point.on_branch is not Identity.merged:
            continue
        branch, names = point.branch, Branch.named(point.branch).order_parameters
        zero = [
            name
            for name in names
            if _vanishes(
                point.values[name],
                point.errors.get(name, 0.0),
                point.status == Status.converged,
                _small(point.problem, branch, name),
            )
        ] or [*names]
        what, own = " and ".join(f"{name} = 0" for name in zero), "its error" if len(zero) == 1 else "their errors"
        found = "uninformed"
        if branch == "mixed" and len(zero) == 1:
            found = "semantic" if zero == ["m"] else "positional"
        sentences[branch] = f"{branch}: {what} within {own}; no such branch here: this is the {found} point."
    return sentences


def doubts(points: Sequence[BranchPoint]) -> dict[str, str]:
    """A sentence for every branch of which it is not decided whether it reaches one sample complexity, by its name."""
    sentences = {}
    for point in points:
        if np.isnan(point.residual):
            continue  # there is no point to doubt
        if point.on_branch is Identity.not_decided and point.status is not Status.converged:
            sentences[point.branch] = f"{point.branch}: not converged, so it is not decided whether this is the branch."
        elif point.on_branch is Identity.not_decided:
            names = " and ".join(Branch.named(point.branch).order_parameters)
            sentences[point.branch] = (
                f"{point.branch}: whether this is the branch or the uninformed point is not decided: the errors of "
                "the map and its derivatives leave open "
                f"whether there is a fixed point with {names}; smaller ones may tell."
            )
    return sentences
