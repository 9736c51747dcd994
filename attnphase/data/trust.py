"""Where points are not to be trusted: solutions of the same samples lie far apart, or exact identities are violated.

The threshold is on the share of q that two solutions do not have in common: ``docs/stability.md`` says how it was
chosen. For the identities see ``docs/trust.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnphase.data.text import format_value
from attnphase.fixed_points.verdict import Verdict

if TYPE_CHECKING:
    import xarray as xr

    from attnphase.fixed_points.point import BranchPoint

__all__ = ["TRUSTED_GAP", "asymmetric", "distrusts", "untrusted", "violated"]

TRUSTED_GAP = 0.2
"""Above this ``overlap_gap`` training departs from the theory: overlaps by about half as much, relatively."""


def untrusted(ds: xr.Dataset) -> xr.DataArray:
    """Where a point is not to be trusted: replica symmetry fails there, or exact identities are violated.

    Parameters
    ----------
    ds : xarray.Dataset
        Points.

    Returns
    -------
    xarray.DataArray
        Over the swept dimensions.
    """
    return asymmetric(ds) | violated(ds)


def asymmetric(ds: xr.Dataset) -> xr.DataArray:
    """Where replica symmetry fails: ``overlap_gap`` is above `TRUSTED_GAP`; not where it was not computed."""
    if "overlap_gap" not in ds:
        return ds["status"] != ds["status"]
    return ds["overlap_gap"] > TRUSTED_GAP


def violated(ds: xr.Dataset) -> xr.DataArray:
    """Where exact identities are violated; not where they were not computed."""
    if "identities" not in ds:
        return ds["status"] != ds["status"]
    return ds["identities"] == Verdict.violated


def distrusts(points: Sequence[BranchPoint]) -> dict[str, str]:
    """A sentence for every branch that is not to be trusted at one sample complexity, by the branch's name.

    Parameters
    ----------
    points : sequence of BranchPoint
        At one sample complexity.
    """
    sentences = {}
    for point in points:
        gap = point.values["overlap_gap"]
        if gap > TRUSTED_GAP:
            sentences[point.branch] = (
                f"{point.branch}: overlap_gap = {format_value(gap, point.errors['overlap_gap'])} is above"
                f" {TRUSTED_GAP:g}: replica symmetry fails here, and training may end elsewhere."
            )
    return sentences
