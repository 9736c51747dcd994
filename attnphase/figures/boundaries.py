"""Thresholds drawn over a map of two fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from attnphase import arguments
from attnphase.data.reading import whole_problem
from attnphase.data.validate import validate_kind
from attnphase.errors import DatasetError
from attnphase.figures.selection import field_of
from attnphase.figures.style import symbol_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

__all__ = ["check_boundaries", "draw_boundaries"]

# dashes, not colours, tell the lines apart, so that a grey print does
_DASHES: dict[str, Any] = {
    "alpha_c": "-",
    "alpha_l": (0, (7, 2)),
    "spinodal_semantic": "-.",
    "spinodal_positional": "-.",
    "onset_theta": "--",
    "onset_m": ":",
}


def check_boundaries(thresholds: xr.Dataset, theory: xr.Dataset, up: str) -> None:
    """Refuse thresholds that do not belong over a map of `theory` with the dimension `up`.

    Raises
    ------
    ProblemError
        They are no dataset.
    DatasetError
        They are no thresholds, lie along another field, or are of another problem.
    """
    arguments.instance("thresholds", thresholds, xr.Dataset)
    validate_kind("thresholds", thresholds, "thresholds")
    (along,) = map(str, thresholds["alpha_c"].dims)
    if along != up:
        raise DatasetError(
            f"the thresholds lie along {field_of(thresholds, along)}, but the map along {field_of(theory, up)}:"
            " give those of the map's field."
        )
    if whole_problem(thresholds) != whole_problem(theory):
        raise DatasetError("the thresholds are of another problem than the map: find those of its problem.")


def draw_boundaries(ax: Axes, thresholds: xr.Dataset, names: tuple[str, ...], colour: str) -> list[Line2D]:
    """Lines of thresholds over the field, each with its standard error; those that exist somewhere.

    Returns
    -------
    list of Line2D
        With labels, for a legend.
    """
    limits, lines = (ax.get_xlim(), ax.get_ylim()), []
    (along,) = map(str, thresholds["alpha_c"].dims)
    ordered = thresholds.sortby(along)
    for name in names:
        if name not in ordered or not bool(ordered[name].notnull().any()):
            continue
        line = ax.errorbar(
            ordered[name], ordered[along], xerr=ordered[f"{name}_stderr"], color=colour, ls=_DASHES[name], lw=1.2,
            elinewidth=0.8, marker="." if int(np.isfinite(ordered[name]).sum()) < 3 else "",
            label=symbol_of(thresholds, name),
        )  # fmt: skip
        lines.append(line.lines[0])
        lines[-1].set_label(symbol_of(thresholds, name))
    ax.set_xlim(limits[0])
    ax.set_ylim(limits[1])
    return lines
