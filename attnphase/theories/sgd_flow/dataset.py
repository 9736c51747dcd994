"""Datasets of the dynamics, labelled as the schema has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnphase.data.build import by_cluster, coordinate, coordinate_name, global_attributes, labelled
from attnphase.data.schemas import SCHEMAS

if TYPE_CHECKING:
    import xarray as xr

    from attnphase.problem.problem import Problem
    from attnphase.theories.sgd_flow.planes import Plane
    from attnphase.theories.sgd_flow.roots import StationaryPoint
    from attnphase.theories.sgd_flow.settings import FlowSettings
    from attnphase.theories.sgd_flow.trajectory import Trajectory

__all__ = ["from_planes", "from_stationary", "from_trajectories"]


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
    for variable in SCHEMAS["sgd_flow"]:
        rows = [_value(one, variable.name, one.values) for one in found]
        columns[variable.name] = np.stack(rows).astype(variable.dtype)
        if variable.has_stderr:
            columns[variable.stderr] = np.stack([_value(one, variable.name, one.errors) for one in found])
    starts = [one.start.text for one in found]
    ds = _of_dynamics(
        "sgd_flow",
        columns,
        {"start": starts},
        first.problem,
        first.settings,
        sorted({one.rule.name for one in found}),
        "Dynamics of the weights",
    )
    ds = ds.assign_coords(time=("time", first.times, coordinate("time")))
    return ds.isel(start=0) if single else ds


def from_stationary(found: Sequence[StationaryPoint], problem: Problem, settings: FlowSettings) -> xr.Dataset:
    """Stationary points of one dynamics, over ``solution``."""
    columns: dict[str, NDArray[Any]] = {}
    for variable in SCHEMAS["stationary"]:
        name, rows = variable.name, []
        for point in found:
            plain = {"unstable_directions": point.unstable, "nodes": point.rule.size}
            plain |= {"eigenvalue_imag": point.eigenvalues.imag, "residual": point.residual, "found": point.found}
            rows.append(np.asarray(by_cluster(problem, name, {**point.values, **plain}[name])))
        columns[name] = np.stack(rows).astype(variable.dtype)
        if variable.has_stderr:
            columns[variable.stderr] = np.stack([by_cluster(problem, name, point.errors[name]) for point in found])
    rules = sorted({point.rule.name for point in found})
    swept = {"solution": list(range(1, len(found) + 1))}
    return _of_dynamics("stationary", columns, swept, problem, settings, rules, "Stationary points of the dynamics")


def from_planes(
    planes: Mapping[tuple[float, float], Plane],
    angles: Sequence[float],
    problem: Problem,
    settings: FlowSettings,
    noise: float,
) -> xr.Dataset:
    """Ends of starts in planes, by (omega, scale), over both and ``angle``."""
    omegas, scales = (list(dict.fromkeys(key[i] for key in planes)) for i in (0, 1))
    columns: dict[str, NDArray[Any]] = {}
    for variable in SCHEMAS["basins"]:
        name = variable.name
        if name == "boundary":
            values: list[Any] = [plane.boundary for plane in planes.values()]
            columns[variable.stderr] = np.reshape([p.uncertainty for p in planes.values()], (len(omegas), len(scales)))
        else:
            values = [[getattr(arrival, name) for arrival in plane.arrivals] for plane in planes.values()]
        table = np.asarray(values, dtype=variable.dtype)
        columns[name] = table.reshape(len(omegas), len(scales), *table.shape[1:])
    title = "Basins of the dynamics' stationary points"
    swept = {"teacher.omega": omegas, "scale": scales}
    ds = _of_dynamics("basins", columns, swept, problem, settings, (), title)
    extra = {"angle": ("angle", np.asarray(angles), coordinate("angle")), "noise": ((), noise, coordinate("noise"))}
    return ds.assign_coords(extra)


def _of_dynamics(
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

    leading = {coordinate_name(name): name for name in swept}
    variables = labelled(columns, {one: (*leading, *one.dims_of(problem)) for one in SCHEMAS[kind]})
    scalars = {"learning_rate": settings.learning_rate, "batch": settings.batch}
    coordinates: dict[str, Any] = {name: ((), np.asarray(v), coordinate(name)) for name, v in scalars.items()}
    coordinates |= {
        name: ((name,), np.asarray(swept[field]), coordinate(name, field)) for name, field in leading.items()
    }
    attributes = global_attributes(kind, title, problem.integration.seed, ", ".join(rules))
    attributes |= {"problem": problem.to_toml(), "problem_hash": problem.hash}
    return xr.Dataset(variables, coordinates, attributes)


def _value(one: Trajectory, name: str, values: Mapping[str, Any]) -> NDArray[Any]:
    """A variable of a trajectory, over clusters where tokens have them."""
    if name not in values:
        plain = {"nodes": one.rule.size, "status": int(one.status)}
        return np.asarray(plain[name] if name in plain else getattr(one, name))
    return np.stack([by_cluster(one.problem, name, value) for value in values[name]])
