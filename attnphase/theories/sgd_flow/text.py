"""Tables of the dynamics for a terminal, and what there is to say of how they end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnphase.data.reading import overlap_size
from attnphase.data.text import Table, format_value
from attnphase.errors import NotConvergedWarning
from attnphase.theories.sgd_flow.settings import Basin, FlowStatus

if TYPE_CHECKING:
    import xarray as xr

    from attnphase.data.outcomes import Said

__all__ = ["basins_table", "flow_table", "of_basins", "of_flow", "stationary_table"]

_MOST_ROWS = 21  # of a trajectory
_SCALARS = ("weight_norm", "population_risk", "test_error")


def flow_table(ds: xr.Dataset) -> Table:
    """Trajectories: a row for some of the times, evenly spaced, the last among them."""
    whole = ds if "start" in ds.dims else ds.expand_dims("start")
    last = whole.sizes["time"] - 1
    chosen = np.unique(np.linspace(0, last, min(_MOST_ROWS, last + 1)).round().astype(int))
    rows = []
    for s in range(whole.sizes["start"]):
        one = whole.isel(start=s)
        for t in chosen.tolist():
            here = one.isel(time=t)
            status = FlowStatus(int(one["status"])).name if t == last else ""
            rows.append((str(one["start"].item()), f"{float(here['time']):g}", *_cells(here), status))
    heads = ("start", "time", "q[1]", "|m[1]|", "|theta[1]|", *_SCALARS, "status")
    return Table(heads, tuple(rows), labels=2, left=(0, len(heads) - 1))


def stationary_table(ds: xr.Dataset) -> Table:
    """Stationary points: a row for each, by rising risk."""
    rows = []
    for i in range(ds.sizes["solution"]):
        here = ds.isel(solution=i)
        largest = here.isel(mode=0)
        value = format_value(float(largest["eigenvalue"]), float(largest["eigenvalue_stderr"]))
        unstable, found = (str(int(here[name])) for name in ("unstable_directions", "found"))
        rows.append((str(int(here["solution"])), *_cells(here), value, unstable, found))
    heads = ("", "q[1]", "|m[1]|", "|theta[1]|", *_SCALARS, "eigenvalue", "unstable", "found")
    return Table(heads, tuple(rows))


def basins_table(ds: xr.Dataset) -> Table:
    """Planes of starts: a row for each, with what every angle leads to, when half of it is there, and the boundary."""
    angles = ds["angle"].to_numpy().tolist()
    rows = []
    for omega in range(ds.sizes["omega"]):
        for scale in range(ds.sizes["scale"]):
            here = ds.isel(omega=omega, scale=scale)
            cells = []
            for i in range(len(angles)):
                basin, plateau = Basin(int(here["basin"][i])).name, float(here["plateau"][i])
                if int(here["status"][i]) == FlowStatus.diverged:
                    basin = FlowStatus.diverged.name
                cells.append(f"{basin} {plateau:.0f}" if np.isfinite(plateau) else basin)
            boundary, error = float(here["boundary"]), float(here["boundary_stderr"])
            edge = f"{boundary:.2f} +- {error:.2f}" if np.isfinite(boundary) else "none"
            rows.append((f"{float(here['omega']):g}", f"{float(here['scale']):g}", *cells, edge))
    heads = ("omega", "scale", *(f"{angle:g} deg, half at" for angle in angles), "boundary")
    return Table(heads, tuple(rows), labels=2)


def _cells(here: xr.Dataset) -> list[str]:
    """q, sizes of m and theta of the first token, and the scalars, with their errors."""
    first = here.isel(token=0)
    if "cluster" in first.dims:
        first = first.isel(cluster=0)
    cells = [format_value(float(first["q"][0, 0]), float(first["q_stderr"][0, 0]))]
    for name in ("m", "theta"):
        size = overlap_size(here, name)
        size = (size**2).sum("cluster") ** 0.5 if "cluster" in size.dims else size
        error = float((here[f"{name}_stderr"].isel(token=0) ** 2).sum() ** 0.5)
        cells.append(format_value(float(size), error))
    return cells + [format_value(float(here[name]), float(here[f"{name}_stderr"])) for name in _SCALARS]


def of_flow(ds: xr.Dataset) -> list[Said]:
    """Trajectories that run away, and those that end at a saddle."""
    said: list[Said] = []
    if bool((ds["status"] == FlowStatus.diverged).any()):
        sentence = "the weights run away: lower the learning rate, or raise the weight decay."
        said.append((NotConvergedWarning, sentence))
    for one in (ds.isel(start=i) for i in range(ds.sizes["start"])) if "start" in ds.dims else (ds,):
        if one["status"] == FlowStatus.at_saddle:
            sentence = (
                f"{one['start'].item()} ends at a saddle: a small part in another direction grows at"
                f" the rate {float(one['growth']):.3g}: add one to the start to leave it."
            )
            said.append((NotConvergedWarning, sentence))
    return said


def of_basins(ds: xr.Dataset) -> list[Said]:
    """Starts of which nobody knows where they lead."""
    counts = {status: int((ds["status"] == status).sum()) for status in (FlowStatus.completed, FlowStatus.diverged)}
    advice = {
        FlowStatus.completed: "not at rest when the time is over: raise --until (until)",
        FlowStatus.diverged: "running away: lower the learning rate, or raise the weight decay",
    }
    sentences = [f"{count} of {ds['status'].size} starts {advice[status]}" for status, count in counts.items() if count]
    return [(NotConvergedWarning, f"{'; '.join(sentences)}.")] if sentences else []
