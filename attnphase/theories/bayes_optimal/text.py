"""Bayes-optimal fixed points as text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from attnphase.data.reading import counted_alone
from attnphase.data.text import Table, format_largest, format_mean, format_value
from attnphase.data.variables import STATUS_MEANINGS, RunStatus
from attnphase.theories.bayes_optimal.dataset import THRESHOLDS

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["optimal_table", "posterior_table", "thresholds_lines"]

_SHOWN = ("overlap", "test_error", "free_entropy", "mutual_information")


def optimal_table(ds: xr.Dataset) -> Table:
    """Fixed points: a row for each alpha and start."""
    names = [name for name in _SHOWN if bool(ds[name].notnull().any())]
    rows = []
    fields = [str(dim) for dim in ds["status"].dims if dim not in ("start", "alpha")]
    grid = ds.transpose(*fields, "alpha", "start", ...)
    for index in np.ndindex(*(grid.sizes[dim] for dim in (*fields, "alpha"))):
        place = grid.isel(dict(zip((*fields, "alpha"), index, strict=True)))
        values = [format_value(place[dim].item(), 0.0) if place[dim].dtype.kind in "iuf" else str(place[dim].item())
                  for dim in fields]  # fmt: skip
        for start in ds["start"].to_numpy():
            here = place.sel(start=start)
            cells = [format_value(float(here[name]), float(here[f"{name}_stderr"])) for name in names]
            ended = "recovered" if int(here["recovered"]) else STATUS_MEANINGS[int(here["status"])]
            alpha = f"{float(place['alpha']):g}"
            rows.append((*values, alpha, str(start), *cells, str(int(here["nodes"])), ended))
    heads = (*fields, "alpha", "start", *names, "nodes", "status")
    return Table(heads, tuple(rows), labels=len(fields) + 2, left=(len(fields) + 1, len(heads) - 1))


def posterior_table(ds: xr.Dataset) -> Table:
    """Runs of message passing: a row for each point of the grid, with means over the seeds and their errors."""
    names = [name for name in ("overlap", "test_error", "linear_test_error") if bool(ds[name].notnull().any())]
    rows = []
    for index in np.ndindex(*(ds.sizes[name] for name in ("start", "dimension", "alpha"))):
        here = ds.isel(dict(zip(("start", "dimension", "alpha"), index, strict=True)))
        statuses = here["status"].to_numpy()
        counts = ", ".join(f"{(statuses == s).sum()} {s.name}" for s in RunStatus if s in statuses)
        row = [str(here["start"].item()), str(here["dimension"].item()), f"{here['alpha'].item():g}"]
        here = counted_alone(here)
        row += [format_mean(here[name].to_numpy()) for name in names]
        steps = str(int(here["steps"].max())) if here.sizes["seed"] else "–"
        rows.append((*row, format_largest(here["change"].to_numpy()), steps, counts))
    heads = ("start", "d", "alpha", *names, "change", "steps", "status")
    return Table(heads, tuple(rows), labels=3, left=(0, len(heads) - 1))


def thresholds_lines(ds: xr.Dataset) -> Iterator[str]:
    """The thresholds, if the dataset has them: a line for each."""
    for name in THRESHOLDS:
        if name not in ds.coords:
            continue
        value, error = float(ds[name]), float(ds[f"{name}_stderr"])
        text = "none" if math.isnan(value) else format_value(value, error)
        yield f"{name.replace('_', ' ')}: {text} ({ds[name].attrs['statement']})"
