"""How figures look: colours and markers that mean the same everywhere, maps and their zero lines, files.

Symbols come from the datasets' ``latex`` attributes.  Points that are not converged are drawn hollow or hatched.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from attnphase import arguments
from attnphase.errors import DatasetError
from attnphase.figures.selection import shown_value
from attnphase.files.writing import figure_format, write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "COLOURS",
    "COMPUTED",
    "HATCH",
    "MARKERS",
    "SEQUENTIAL",
    "STYLE",
    "UNDECIDED",
    "UNTRUSTED",
    "VIOLATED",
    "draw_contour",
    "draw_map",
    "draw_places",
    "name_the_chosen",
    "panels",
    "save_figure",
    "size_symbol_of",
    "symbol_of",
]

STYLE: Any = {
    "text.usetex": False,  # labels come from datasets, and TeX can read files and write them
    "font.family": "STIXGeneral",  # by its name, which a notebook's own style does not change
    "mathtext.fontset": "stix",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 10,
    "legend.fontsize": 8,
    "xtick.direction": "in",
    "ytick.direction": "in",
    "xtick.top": True,
    "ytick.right": True,
    "axes.linewidth": 0.7,
    "hatch.linewidth": 0.5,
    "hatch.color": "0.55",
    "savefig.dpi": 300,
    "pdf.fonttype": 42,
}
"""How every figure looks."""

# Okabe and Ito's palette: told apart by every kind of colour vision, and in grey by marker and line
COLOURS = {
    "semantic": "#0072B2",
    "positional": "#D55E00",
    "uninformed": "#009E73",
    "informed": "#E69F00",
    "mixed": "#CC79A7",
    "given": "#555555",
}
"""Of branches, starts and mechanisms."""

MARKERS = {"semantic": "o", "positional": "s", "uninformed": "^", "informed": "*", "mixed": "D", "given": "v"}
"""Of the same."""

_DIVERGING = "PuOr_r"
SEQUENTIAL = "cividis"
"""Colours of what is not negative."""

HATCH = 8 * "/"
"""Of what is not converged."""

UNDECIDED: dict[str, Any] = {"ls": "", "marker": "o", "mfc": "white", "mec": "0.2", "ms": 3, "mew": 0.8}
"""Marker of a point of which it is not decided whether it is on its branch."""

UNTRUSTED: dict[str, Any] = {"ls": "", "marker": "o", "mfc": "black", "mec": "white", "ms": 2.4, "mew": 0.5}
"""Marker of a place that is not to be trusted: black on what is light, with a white edge on what is dark."""

VIOLATED: dict[str, Any] = {"ls": "", "marker": "x", "color": "black", "ms": 5, "mew": 1.2}
"""Marker of a point that violates exact identities."""

COMPUTED: dict[str, Any] = {"ls": "", "marker": ".", "color": "0.7", "ms": 0.8, "mew": 0}
"""Marker of a point of a refined sweep."""

_MARKED = 32  # places of an axis that are marked, at most; more would run together


def panels(count: int) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels, three in a row."""
    columns = min(3, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(2.4 * columns + 0.3, 2.1 * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for spare in axes[count:]:
        spare.set_visible(False)
    return figure, list(axes[:count])


def symbol_of(ds: xr.Dataset, name: str) -> str:
    """The symbol of a variable or coordinate, as a formula."""
    return f"${ds[name].attrs['latex']}$"


def size_symbol_of(ds: xr.Dataset, name: str) -> str:
    """The symbol of the size of the first token's overlap."""
    latex = ds[name].attrs["latex"].replace(r"\ell", "1")
    return rf"$|{latex}|$"


def draw_map(
    ax: Axes, values: xr.DataArray, up: str, label: str, signed: bool, hatched: xr.DataArray | None = None
) -> None:
    """Values over alpha and the dimension `up`, with places that are hatched."""
    numbers = values.transpose(up, "alpha").to_numpy()
    limits: dict[str, Any] = {"vmin": 0.0, "cmap": SEQUENTIAL}
    if signed:
        # a few extreme points must not wash out the colours around zero
        known = np.abs(numbers[np.isfinite(numbers)])
        largest = (float(np.percentile(known, 98)) if known.size else 0.0) or 1.0
        limits = {"vmin": -largest, "vmax": largest, "cmap": _DIVERGING}
    across, upwards = values["alpha"].to_numpy(), values[up].to_numpy()
    shading: Any = "nearest"
    if "log" in (ax.get_xscale(), ax.get_yscale()):  # cells reach half-way to their neighbours as one sees it
        across, upwards, shading = _edges(across, ax.get_xscale()), _edges(upwards, ax.get_yscale()), "flat"
    mesh = ax.pcolormesh(across, upwards, numbers, shading=shading, rasterized=True, **limits)
    ax.figure.colorbar(mesh, ax=ax, label=label, extend="both" if signed else "neither", pad=0.02)
    if hatched is not None and bool(hatched.any()):
        places = np.ma.masked_where(~hatched.transpose(up, "alpha").to_numpy(), np.zeros_like(numbers))
        ax.pcolor(across, upwards, places, shading=shading, hatch=HATCH, cmap=ListedColormap(["none"]))


def _edges(centres: np.ndarray, scale: str) -> np.ndarray:
    """Edges of cells around the values of an axis, one more than these."""
    places = np.log(centres) if scale == "log" else centres.astype(float)
    middle = (places[1:] + places[:-1]) / 2
    edges = np.concatenate([[2 * places[0] - middle[0]], middle, [2 * places[-1] - middle[-1]]])
    return np.exp(edges) if scale == "log" else edges


def draw_places(ax: Axes, where: xr.DataArray, up: str, marker: Mapping[str, Any], every: bool = True) -> None:
    """Mark points over alpha and the dimension `up`: every one, or of a fine grid a coarser one's."""
    if not every:
        where = where.isel({dim: slice(None, None, -(-where.sizes[dim] // _MARKED)) for dim in (up, "alpha")})
    rows, columns = np.nonzero(where.transpose(up, "alpha").to_numpy())
    if len(rows):  # an empty line upsets the layout
        ax.plot(where["alpha"].to_numpy()[columns], where[up].to_numpy()[rows], **marker, clip_on=False)


def draw_contour(
    ax: Axes, values: xr.DataArray, up: str, label: str, colour: str, error: xr.DataArray | None = None
) -> None:
    """The line where values over alpha and the dimension `up` vanish, if they do, in a band of one standard error."""
    values = values.transpose(up, "alpha")
    numbers = values.to_numpy()
    known = numbers[np.isfinite(numbers)]
    if not known.size or not known.min() < 0 < known.max():
        return
    if error is not None:
        within = (values / error).transpose(up, "alpha")
        ax.contourf(values["alpha"], values[up], within, levels=[-1.0, 1.0], colors=colour, alpha=0.25)
    lines = ax.contour(values["alpha"], values[up], numbers, levels=[0.0], colors=colour, linewidths=1.2)
    ax.clabel(lines, fmt=lambda _: label, fontsize=9)


def name_the_chosen(figure: Figure, ds: xr.Dataset, at: Mapping[str, Any]) -> None:
    """Above the figure, the values that the caller selected."""
    chosen = [dim for dim in map(str, ds.coords) if {dim, ds[dim].attrs.get("field")} & at.keys() and ds[dim].ndim == 0]
    if chosen:
        values = (f"{symbol_of(ds, dim)} = {shown_value(ds[dim].item())}" for dim in chosen)
        figure.suptitle(", ".join(values), fontsize=9)


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure whole or not at all, as PNG at 300 dots per inch or in the format of the suffix.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        Any.
    path : path-like
        An existing file is replaced.

    Raises
    ------
    DatasetError
        The suffix is of no known format, or the file cannot be written.
    ProblemError
        An argument is of the wrong type.
    """
    arguments.instance("figure", figure, Figure)
    path = arguments.path("path", path)
    kind = figure_format(path)
    with mpl.rc_context(STYLE):
        image = io.BytesIO()
        try:
            figure.savefig(image, format=kind)
        except (ValueError, RecursionError) as error:  # of a label that is no formula, or nested without end
            reason = " ".join(str(error).split())[-100:]
            raise DatasetError(
                f"{path}: the figure cannot be drawn: {reason}: mend the attributes latex of the dataset."
            ) from None
    write_file(path, image.getvalue())
