"""Datasets of the dynamics, labelled as the schema has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnphase.data.build import by_cluster, coordinate, global_attributes, labelled
from attnphase.data.variables import SCHEMAS

if TYPE_CHECKING:
    import xarray as xr

    from attnphase.flow.settings import FlowSettings
    from attnphase.flow.trajectory import Trajectory
    from attnphase.problem.problem import Problem

__all__ = ["from_trajectories", "of_dynamics"]


def from_trajectories(found: Sequence[Trajectory], *, single: bool) -> xr.Dataset:
    """Trajectories of one problem from several starts, over ``start``; a ``single`` one has it as a scalar.

    Parameters
    ----------
    found : sequence of Trajectory
        With the same settings.
    single : bool
    """
    first = found[0]
    columns: dict[str, NDArray[Any]] = {}
    for variable in SCHEMAS["flow"]:
        rows = [_value(one, variable.name, one.values) for one in found]
        columns[variable.name] = np.stack(rows).astype(variable.dtype)
        if variable.has_stderr:
            columns[variable.stderr] = np.stack([_value(one, variable.name, one.errors) for one in found])
    starts = [one.start.text for one in found]
    ds = of_dynamics(
        "flow",
        columns,
        {"start": starts},
        first.problem,
        first.settings,
        sorted({one.rule.name for one in found}),
        "Dynamics of the weights",
    )
    ds = ds.assign_coords(time=("time", first.times, coordinate("time")))
    return ds.isel(start=0) if single else ds


def of_dynamics(
    kind: str,
    columns: Mapping[str, NDArray[Any]],
    swept: Mapping[str, Sequence[Any]],
    problem: Problem,
    settings: FlowSettings,
    rules: Sequence[str],
    title: str,
) -> xr.Dataset:
    """Label what a dynamics gave, over the swept coordinates."""
    import xarray as xr

    variables = labelled(columns, {one: (*swept, *one.dims_of(problem)) for one in SCHEMAS[kind]})
    scalars = {"learning_rate": settings.learning_rate, "batch": settings.batch}
    coordinates: dict[str, Any] = {name: ((), np.asarray(v), coordinate(name)) for name, v in scalars.items()}
    coordinates |= {name: ((name,), np.asarray(v), coordinate(name)) for name, v in swept.items()}
    attributes = global_attributes(kind, title, problem.integration.seed, ", ".join(rules))
    attributes |= {"problem": problem.to_toml(), "problem_hash": problem.hash}
    return xr.Dataset(variables, coordinates, attributes)


def _value(one: Trajectory, name: str, values: Mapping[str, Any]) -> NDArray[Any]:
    """A variable of a trajectory, over clusters where tokens have them."""
    if name not in values:
        plain = {"nodes": one.rule.size, "status": int(one.status)}
        return np.asarray(plain[name] if name in plain else getattr(one, name))
    return np.stack([by_cluster(one.problem, name, value) for value in values[name]])
