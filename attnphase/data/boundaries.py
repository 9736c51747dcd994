"""Boundaries between the points of a sweep: what changes where one passes, and where along alpha it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnphase.data.variables import BOUNDARY_VARIABLES, NOT_COMPUTED
from attnphase.fixed_points.crossings import crossing
from attnphase.fixed_points.threshold import NOT_FOUND, Threshold
from attnphase.fixed_points.verdict import Verdict
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.branches import Branch, Identity

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["COMPARED", "classes", "compared_branches", "with_boundaries"]

COMPARED = ("training_loss", "test_error", "linear_test_error", "on_branch", "status")
"""The variables that decide where a boundary passes."""

Columns = Mapping[str, NDArray[Any]]


def classes(columns: Columns, branches: Sequence[str]) -> NDArray[np.int8]:
    """On which side of every boundary points are.

    Parameters
    ----------
    columns : mapping
        Arrays of `COMPARED` over branch and the other dimensions.
    branches : sequence of str

    Returns
    -------
    (boundaries, ...) array
        Of those of `compared_branches`, in their order: the sign of the difference in training loss of two branches; of
        one, that of its test error less the linear predictor's, both 0 where a branch is not there; and, if it may end,
        +1 where it has not merged with the uninformed point, and where it certainly has not, -1 elsewhere.
    """
    there = [_there(columns, i, branch) for i, branch in enumerate(branches)]
    loss, error, linear = (columns[name] for name in COMPARED[:3])
    signs = [np.where(there[i] & there[j], loss[i] - loss[j], 0.0) for i, j in combinations(range(len(branches)), 2)]
    computed, identity = columns["status"] != NOT_COMPUTED, columns["on_branch"]
    for i, branch in enumerate(branches):
        signs.append(np.where(there[i], error[i] - linear[i], 0.0))
        if Branch.named(branch).is_informed:
            for here in (identity[i] != Identity.merged, identity[i] == Identity.on_branch):
                signs.append(np.where(computed[i], np.where(here, 1.0, -1.0), 0.0))
    return np.sign(np.nan_to_num(np.stack(signs), nan=0.0)).astype(np.int8)


def compared_branches(branches: Sequence[str]) -> NDArray[np.bool_]:
    """Which branches each boundary of `classes` is of, (boundaries, branches)."""
    own = np.eye(len(branches), dtype=bool)
    pairs = [own[i] | own[j] for i, j in combinations(range(len(branches)), 2)]
    alone = [own[i] for i, name in enumerate(branches) for _ in range(3 if Branch.named(name).is_informed else 1)]
    return np.stack([*pairs, *alone])


def _there(columns: Columns, i: int, branch: str) -> NDArray[np.bool_]:
    """Where a branch has numbers of its own."""
    status = columns["status"][i]
    there = (status != NOT_COMPUTED) & (status != Status.left_domain)
    return there & (columns["on_branch"][i] != Identity.merged) if Branch.named(branch).is_informed else there


def _reliable(columns: Columns, i: int, branch: str) -> NDArray[np.bool_]:
    """Where the points of a branch are converged, violate no identity and, if it may end, are known to be on it."""
    converged = (columns["status"][i] == Status.converged) & (columns["identities"][i] != Verdict.violated)
    return (
        converged & (columns["on_branch"][i] == Identity.on_branch) if Branch.named(branch).is_informed else converged
    )


def with_boundaries(ds: xr.Dataset) -> xr.Dataset:
    """A sweep with those of `BOUNDARY_VARIABLES` that its branches have; as it is with one value of alpha.

    Parameters
    ----------
    ds : xarray.Dataset
        Points over branch, fields and alpha.

    Returns
    -------
    xarray.Dataset
    """
    if ds.sizes["alpha"] < 2:
        return ds
    branches = [str(branch) for branch in ds["branch"].to_numpy()]
    fields = ds["status"].dims[1:-1]
    sizes = tuple(ds.sizes[name] for name in fields)
    order = np.argsort(ds["alpha"].to_numpy())
    alpha = ds["alpha"].to_numpy()[order]
    names = (*COMPARED, "identities", *(f"{name}_stderr" for name in COMPARED[:3]))
    lines = {name: ds[name].to_numpy().reshape(len(branches), -1, len(alpha))[..., order] for name in names}
    rows = [_boundaries({name: column[:, k] for name, column in lines.items()}, alpha, branches)
            for k in range(lines["status"].shape[1])]  # fmt: skip
    added: dict[str, Any] = {}
    for variable in BOUNDARY_VARIABLES:
        if variable.name in rows[0]:
            found = [row[variable.name] for row in rows]
            place, error = np.array([one.alpha for one in found]), np.array([one.standard_error for one in found])
            added[variable.name] = (fields, place.reshape(sizes), variable.attributes())
            added[variable.stderr] = (fields, error.reshape(sizes), variable.stderr_attributes())
    return ds.assign(added)


def _boundaries(line: Columns, alpha: NDArray[np.float64], branches: Sequence[str]) -> dict[str, Threshold]:
    """Those of one line of points, by the names of their variables."""
    reliable = {branch: _reliable(line, i, branch) for i, branch in enumerate(branches)}
    place = {branch: i for i, branch in enumerate(branches)}
    found: dict[str, Threshold] = {}

    def crossed(where: NDArray[np.bool_], first: tuple[str, int], second: tuple[str, int]) -> Threshold:
        (name, i), (other, j) = first, second
        # a refined sweep leaves out points far from every boundary
        computed = (line["status"][i] != NOT_COMPUTED) & (line["status"][j] != NOT_COMPUTED)
        difference = np.where(where, line[name][i] - line[other][j], np.nan)
        error = np.hypot(line[f"{name}_stderr"][i], line[f"{other}_stderr"][j])
        return crossing(*(column[computed].tolist() for column in (alpha, difference, error)))

    if "semantic" in place:
        semantic = place["semantic"]
        own = reliable["semantic"]
        found["alpha_l"] = crossed(own, ("test_error", semantic), ("linear_test_error", semantic))
        if "positional" in place:
            both, positional = own & reliable["positional"], place["positional"]
            found["alpha_c"] = crossed(both, ("training_loss", semantic), ("training_loss", positional))
    for branch in filter(lambda name: Branch.named(name).is_informed, branches):
        i = place[branch]
        computed = line["status"][i] != NOT_COMPUTED
        reach = _reach(alpha[computed], line["on_branch"][i][computed])
        found[f"begin_{branch}"], found[f"end_{branch}"] = reach
    return found


def _reach(alpha: NDArray[np.float64], on_branch: NDArray[Any]) -> tuple[Threshold, Threshold]:
    """Where a branch begins and ends: between the points next to it that have merged and those that have not."""
    on, merged = (alpha[on_branch == value] for value in (Identity.on_branch, Identity.merged))
    if not len(on):
        return NOT_FOUND, NOT_FOUND
    below, above = merged[merged < on[0]], merged[merged > on[-1]]
    return (
        _between(below[-1], on[0]) if len(below) else NOT_FOUND,
        _between(on[-1], above[0]) if len(above) else NOT_FOUND,
    )


def _between(low: float, high: float) -> Threshold:
    """Anywhere between two points with equal right."""
    return Threshold(float(low + high) / 2, float(high - low) / 12**0.5)
