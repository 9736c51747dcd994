"""Where the replica-symmetric theory is not to be trusted: two solutions of the same samples lie far apart.

The threshold is on the share of q that they do not have in common, see ``docs/stability.md`` for how it was chosen.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from attnphase.data.text import format_value

__all__ = ["TRUSTED_GAP", "distrusts", "untrusted"]

TRUSTED_GAP = 0.2
"""Above this ``overlap_gap`` training departs from the theory: overlaps by about half as much, relatively."""


def untrusted(ds: xr.Dataset) -> xr.DataArray:
    """Where ``overlap_gap`` is above `TRUSTED_GAP`; not where it was not computed.

    Parameters
    ----------
    ds : xarray.Dataset
        Points.

    Returns
    -------
    xarray.DataArray
        Over the swept dimensions.
    """
    if "overlap_gap" not in ds:
        return xr.zeros_like(ds["status"], dtype=bool)
    return ds["overlap_gap"] > TRUSTED_GAP


def distrusts(ds: xr.Dataset) -> dict[str, str]:
    """A sentence for every branch that is not to be trusted at one sample complexity, by the branch's name."""
    sentences = {}
    for branch in map(str, np.atleast_1d(ds["branch"].to_numpy())):
        point = ds.sel(branch=branch) if "branch" in ds.dims else ds
        if bool(untrusted(point)):
            gap = format_value(float(point["overlap_gap"]), float(point["overlap_gap_stderr"]))
            sentences[branch] = (
                f"{branch}: overlap_gap = {gap} is above {TRUSTED_GAP:g}: replica symmetry fails here, and training may"
                " end elsewhere."
            )
    return sentences
