"""Bayes-optimal fixed points as text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnphase.data.bayes import THRESHOLDS
from attnphase.data.text import Table, format_value
from attnphase.data.variables import STATUS_MEANINGS

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["optimal_table", "thresholds_lines"]

_SHOWN = ("overlap", "test_error", "free_entropy", "mutual_information")


def optimal_table(ds: xr.Dataset) -> Table:
    """Fixed points: a row for each alpha and start."""
    names = [name for name in _SHOWN if bool(ds[name].notnull().any())]
    rows = []
    for alpha in ds["alpha"].to_numpy():
        for start in ds["start"].to_numpy():
            here = ds.sel(alpha=alpha, start=start)
            cells = [format_value(float(here[name]), float(here[f"{name}_stderr"])) for name in names]
            ended = "recovered" if int(here["recovered"]) else STATUS_MEANINGS[int(here["status"])]
            rows.append((f"{alpha:g}", str(start), *cells, str(int(here["nodes"])), ended))
    return Table(("alpha", "start", *names, "nodes", "status"), tuple(rows), labels=2, left=(1, len(names) + 3))


def thresholds_lines(ds: xr.Dataset) -> Iterator[str]:
    """The thresholds, if the dataset has them: a line for each."""
    for name in THRESHOLDS:
        if name not in ds.coords:
            continue
        value, error = float(ds[name]), float(ds[f"{name}_stderr"])
        text = "none" if math.isnan(value) else format_value(value, error)
        yield f"{name.replace('_', ' ')}: {text} ({ds[name].attrs['statement']})"
