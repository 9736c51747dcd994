"""One-step replica-symmetry breaking as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnphase.data.text import Table, format_value
from attnphase.data.variables import STATUS_MEANINGS

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["one_rsb_table"]


def one_rsb_table(ds: xr.Dataset) -> Table:
    """Solutions of the 1RSB equations: a row for each y, of each branch."""
    from attnphase.data.reading import overlap_size

    shown = ("y", "free_entropy", "energy", "complexity", "test_error")
    dims, rows = ds["status"].dims, []
    for here in (ds.isel(dict(zip(dims, place, strict=True))) for place in np.ndindex(ds["status"].shape)):
        cells = [str(here[dim].item()) for dim in dims[:-1]]
        cells += [format_value(float(here[name]), float(here[f"{name}_stderr"])) for name in shown]
        for name in ("q_0", "q_1"):
            place = (0,) * here[name].ndim
            cells.append(
                format_value(float(here[name].to_numpy()[place]), float(here[f"{name}_stderr"].to_numpy()[place]))
            )
        for name in ("m", "theta"):
            size, error = overlap_size(here, name), here[f"{name}_stderr"].isel(token=0)
            if "cluster" in size.dims:
                size = (size**2).sum("cluster") ** 0.5
            cells.append(format_value(float(size), float((error**2).sum() ** 0.5)))
        rows.append((*cells, STATUS_MEANINGS[int(here["status"])]))
    heads = (*map(str, dims[:-1]), *shown, "q_0[1]", "q_1[1]", "|m[1]|", "|theta[1]|", "status")
    return Table(heads, tuple(rows), labels=len(dims), left=(*range(len(dims) - 1), len(heads) - 1))
