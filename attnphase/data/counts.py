"""How the points of a dataset ended, in a few words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnphase.data.absence import absent, undecided
from attnphase.data.trust import untrusted
from attnphase.data.variables import STATUS_MEANINGS

if TYPE_CHECKING:
    import xarray as xr

    from attnphase.problem.problem import Problem

__all__ = ["counted", "status_counts"]


def status_counts(ds: xr.Dataset, problem: Problem) -> str:
    """How many points ended how, where a branch does not exist, where that is not decided, and where RS fails."""
    places = []
    for where, text in ((absent(ds, problem), "no {} branch at {}"), (undecided(ds), "{} branch not decided at {}")):
        for name in map(str, ds["branch"].to_numpy()):
            if count := int(where.sel(branch=name).sum()):
                places.append(text.format(name, _points(count)))
    if count := int(untrusted(ds).sum()):
        places.append(f"replica symmetry fails at {_points(count)}")
    return "; ".join([counted(ds["status"]), *places])


def _points(count: int) -> str:
    return f"{count} point{'s' if count > 1 else ''}"


def counted(statuses: xr.DataArray) -> str:
    """How many points ended how."""
    status = statuses.to_numpy().ravel().tolist()
    return ", ".join(f"{status.count(value)} {name}" for value, name in enumerate(STATUS_MEANINGS) if value in status)
