"""Where the replica-symmetric theory is not to be trusted: two solutions of the same samples lie far apart.

The threshold is on the share of q that they do not have in common, see ``docs/stability.md`` for how it was chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnphase.data.text import format_value
from attnphase.fixed_points.point import BranchPoint

if TYPE_CHECKING:
    import xarray as xr

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
    import xarray as xr

    if "overlap_gap" not in ds:
        return xr.zeros_like(ds["status"], dtype=bool)
    return ds["overlap_gap"] > TRUSTED_GAP


def distrusts(points: Sequence[BranchPoint]) -> dict[str, str]:
    """A sentence for every branch that is not to be trusted at one sample complexity, by the branch's name."""
    sentences = {}
    for point in points:
        gap = float(point.values["overlap_gap"])
        if gap > TRUSTED_GAP:
            shown = format_value(gap, float(point.errors.get("overlap_gap", np.nan)))
            sentences[point.branch] = (
                f"{point.branch}: overlap_gap = {shown} is above {TRUSTED_GAP:g}: replica symmetry fails here, and"
                " training may end elsewhere."
            )
    return sentences
