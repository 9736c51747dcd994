"""A point of a dataset as the start of a solve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnphase import arguments
from attnphase.errors import ProblemError
from attnphase.lazy import loaded_on_use
from attnphase.problem.problem import Problem
from attnphase.state_evolution.overlaps import Overlaps

with loaded_on_use(__name__):
    from attnphase.data import validate
    from attnphase.fixed_points import point

if TYPE_CHECKING:
    import xarray as xr

    from attnphase.fixed_points.point import BranchPoint

__all__ = ["overlaps_of", "start_for"]


def start_for(start: Any, problem: Problem, branch: str) -> Overlaps | BranchPoint | None:
    """Where the iteration of a branch starts, as `attnphase.solve` and others take it.

    Parameters
    ----------
    start : xarray.Dataset, Overlaps, BranchPoint or None

    Raises
    ------
    DatasetError
        A dataset does not follow the schema.
    ProblemError
        It is something else, or a dataset that does not have one point of the branch.
    """
    if hasattr(start, "data_vars"):
        return start_in(start, problem, branch)
    if start is None or isinstance(start, Overlaps | point.BranchPoint):
        return start
    given = arguments.shown(start)
    raise ProblemError("start", f"start must be a dataset of attnphase.solve, Overlaps or a BranchPoint, not {given}.")


def overlaps_of(start: Overlaps | BranchPoint | None) -> Overlaps | None:
    """The overlaps of a start, if there is one."""
    return start.restart.overlaps if isinstance(start, point.BranchPoint) else start


def start_in(ds: xr.Dataset, problem: Problem, branch: str) -> Overlaps:
    """The overlaps of a branch's point in a dataset of `attnphase.solve`.

    Parameters
    ----------
    ds : xarray.Dataset
        One point, or one of each branch.
    problem : Problem
        What is to be solved: its tokens and clusters are those of the point.
    branch : str

    Raises
    ------
    DatasetError
        The dataset does not follow the schema.
    ProblemError
        It has other points, or more.
    """
    validate.validate_dataset(ds)
    if ds.attrs["schema"] not in ("points", "sensitivity"):
        raise ProblemError("start", f"start must hold a point of attnphase.solve, not {ds.attrs['schema']}.")
    swept = [str(dim) for dim in ds["status"].dims if dim != "branch"]
    if swept:
        raise ProblemError(
            "start", f"start must hold one point, but is swept over {', '.join(swept)}: take one of them."
        )
    branches = [str(name) for name in np.atleast_1d(ds["branch"].to_numpy())]
    if branch not in branches:
        raise ProblemError("start", f"start has the branch {', '.join(branches)}, not {branch}: solve what it has.")
    one = ds.isel(branch=branches.index(branch)) if "branch" in ds["status"].dims else ds
    sites = tuple(np.transpose(problem.sites)) if "cluster" in one["q"].dims else slice(None)
    try:
        q, V, m, theta = (one[name].to_numpy()[sites] for name in ("q", "V", "m", "theta"))
    except IndexError:
        raise ProblemError("start", "start has fewer tokens or clusters than the problem: start without it.") from None
    trained = {} if "trained" not in one else {"trained": one["trained"].to_numpy()}
    return Overlaps(q, V, m[..., None], theta, norms=len(problem.loss.norms), **trained)
