"""How the points of a dataset ended, in a few words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnphase.data.absence import absent, undecided
from attnphase.data.trust import asymmetric, violated
from attnphase.data.variables import STATUS_MEANINGS
from attnphase.errors import MergedWarning, ReplicaSymmetryWarning, UndecidedWarning, ViolatedWarning

if TYPE_CHECKING:
    import xarray as xr

    from attnphase.errors import AttnphaseWarning
    from attnphase.problem.problem import Problem

__all__ = ["counted", "places", "status_counts"]


def status_counts(ds: xr.Dataset, problem: Problem) -> str:
    """How many points ended how, and of how many there is something to say; see `places`."""
    return "; ".join([counted(ds["status"]), *places(ds, problem).values()])


def places(ds: xr.Dataset, problem: Problem) -> dict[type[AttnphaseWarning], str]:
    """How many points are on no branch, undecided, without replica symmetry, and violate identities: clauses."""
    clauses = {}
    for category, where, text in (
        (MergedWarning, absent(ds, problem), "no {} branch at {}"),
        (UndecidedWarning, undecided(ds), "{} branch not decided at {}"),
    ):
        counts = {name: int(where.sel(branch=name).sum()) for name in map(str, ds["branch"].to_numpy())}
        if any(counts.values()):
            clauses[category] = "; ".join(text.format(name, _points(n)) for name, n in counts.items() if n)
    for category, where, text in (
        (ReplicaSymmetryWarning, asymmetric(ds), "replica symmetry fails at"),
        (ViolatedWarning, violated(ds), "exact identities are violated at"),
    ):
        if count := int(where.sum()):
            clauses[category] = f"{text} {_points(count)}"
    return clauses


def _points(count: int) -> str:
    return f"{count} point{'s' if count > 1 else ''}"


def counted(statuses: xr.DataArray) -> str:
    """How many points ended how."""
    status = statuses.to_numpy().ravel().tolist()
    return ", ".join(f"{status.count(value)} {name}" for value, name in enumerate(STATUS_MEANINGS) if value in status)
