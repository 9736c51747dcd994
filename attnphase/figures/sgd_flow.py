"""The dynamics: basins in the plane of starts, and trajectories of runs beside those of the theory."""

from __future__ import annotations

import math
from itertools import cycle
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from attnphase import arguments
from attnphase.checks.comparison import Comparison
from attnphase.checks.trajectories import TrajectoryComparison
from attnphase.data.reading import counted, overlap_size, problem_of
from attnphase.data.validate import validate_kind
from attnphase.errors import DatasetError
from attnphase.figures.style import STYLE, panels
from attnphase.state_evolution.sizes import Sizes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["basins_figure", "starts_of", "trajectory_figure"]


def basins_figure(ds: xr.Dataset, runs: xr.Dataset | None = None) -> Figure:
    """Boundaries of the basins in the plane of starts, a curve for each omega, and the plateaus.

    Parameters
    ----------
    ds : xarray.Dataset
        Kind ``basins``.
    runs : xarray.Dataset, optional
        Kind ``experiments``, of SGD from starts of given sizes: beside the curves stands the share that found the
        teacher, whose theta is a larger part of the theory's end than their m.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    DatasetError
        A dataset is of another kind, or the runs have other starts.
    """
    if runs is not None:
        starts_of(runs)
    validate_kind("the data", ds, "basins")
    scales, omegas = ds["scale"].to_numpy(), ds["omega"].to_numpy()
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.6, 3.0), layout="constrained")
        plane, plateau = figure.subplots(1, 2)
        colours = mpl.colormaps["viridis"](np.linspace(0.0, 0.9, len(omegas)))
        for omega, colour in zip(omegas, colours, strict=True):
            here = ds.sel(omega=omega)
            angle = np.radians(here["boundary"].to_numpy())
            label = rf"$\omega = {omega:g}$"
            plane.plot(scales * np.cos(angle), scales * np.sin(angle), "o-", color=colour, label=label, markersize=3)
            middle = here.isel(angle=ds.sizes["angle"] // 2)
            plateau.plot(scales, middle["plateau"].to_numpy(), "o-", color=colour, markersize=3)
        if runs is not None:
            _draw_runs(plane, ds, runs)
        plane.set(xlabel="part along the encodings", ylabel="part along the teacher", xlim=(0, None), ylim=(0, None))
        plane.set_title("semantic above, positional below")
        plane.legend(fontsize="x-small")
        shown = float(ds["angle"][ds.sizes["angle"] // 2])
        plateau.set(xlabel="size of the start", ylabel="time to half of the end")
        plateau.set_title(f"plateau at {shown:g} degrees")
    return figure


def starts_of(runs: xr.Dataset) -> dict[str, Sizes]:
    """The starts of runs that `basins_figure` can draw, and their sizes.

    Raises
    ------
    DatasetError
        The dataset is of another kind, or its runs have starts of unknown sizes.
    """
    validate_kind("the runs", arguments.instance("runs", runs, xr.Dataset), "experiments")
    starts = [str(start) for start in np.atleast_1d(runs["start"].to_numpy())]
    for start in starts:
        if "=" not in start:
            raise DatasetError(f'the runs start from "{start}", but must start from sizes as semantic=0.3,noise=0.1.')
    return {start: Sizes.of(start) for start in starts}


def _draw_runs(ax: Axes, ds: xr.Dataset, runs: xr.Dataset) -> None:
    """Shares of runs that found the teacher, by their start: those whose theta is the larger part of its end."""
    omega = problem_of(runs).teacher.omega
    near = ds.isel(omega=int(np.abs(ds["omega"].to_numpy() - omega).argmin()))
    ends = {name: float(near[size].max()) for name, size in (("m", "positional_size"), ("theta", "semantic_size"))}
    for start, sizes in starts_of(runs).items():
        here = runs.sel(start=start) if "start" in runs.dims else runs
        parts = {name: overlap_size(here, name) / max(end, 1e-12) for name, end in ends.items()}
        semantic = (parts["theta"] > parts["m"]).where(counted(here))
        share = float(semantic.mean())
        if math.isnan(share):
            continue  # no run is counted
        ax.plot(sizes.positional, sizes.semantic, "s", color=mpl.colormaps["coolwarm"](share), markeredgecolor="black")
        ax.annotate(f"{share:.0%}", (sizes.positional, sizes.semantic), (5, 3), textcoords="offset points", size=7)


def trajectory_figure(comparison: Comparison | TrajectoryComparison) -> Figure:
    """Means over runs with their errors at every time, beside the theory, a panel for each quantity.

    Parameters
    ----------
    comparison : TrajectoryComparison
        What `attnphase.compare` returns for trajectories.

    Raises
    ------
    DatasetError
        There is nothing in it to draw.
    ProblemError
        `comparison` is none.
    """
    comparison = arguments.instance("comparison", comparison, TrajectoryComparison)
    if not comparison.quantities:
        raise DatasetError("the comparison has no quantities to draw: compare runs that were counted.")
    names = list(dict.fromkeys(q.name for q in comparison.quantities))
    with mpl.rc_context(STYLE):
        figure, axes = panels(len(names))
        for ax, name in zip(axes, names, strict=True):
            chosen = [q for q in comparison.quantities if q.name == name]
            starts = list(dict.fromkeys(q.start for q in chosen))
            for start, line in zip(starts, cycle(("-", "--", ":", "-.")), strict=False):
                own = [q for q in chosen if q.start == start]
                words = f", {start}" if len(starts) > 1 else ""
                finest = max(own, key=lambda q: len(q.times))
                ax.plot(finest.times, finest.theory, line, color="black", linewidth=1, label=f"theory{words}")
                for q in own:
                    label = f"d = {q.dimension}{words}"
                    ax.errorbar(q.times, q.value, q.stderr, fmt="o", markersize=3, label=label)
            ax.set(xlabel=r"steps / d", title=name)
        axes[0].legend(fontsize="x-small")
    return figure
