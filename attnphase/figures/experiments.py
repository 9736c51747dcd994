"""Experiments beside the theory: means over runs, the phase diagram of runs, the overlaps of single ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from attnphase import arguments
from attnphase.checks.comparison import Comparison, Quantity
from attnphase.data.reading import counted, overlap_size
from attnphase.errors import DatasetError
from attnphase.figures.selection import both_branches, check_dataset, need_dimensions, vary_only
from attnphase.figures.style import COLOURS, MARKERS, STYLE, draw_contour, draw_map, panels, size_symbol_of, symbol_of
from attnphase.solvers.iteration import Status

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["comparison_figure", "grid_figure", "scatter_figure"]


def comparison_figure(comparison: Comparison) -> Figure:
    """Theory and experiment side by side: over 1/d, or over alpha if the experiment has several.

    Parameters
    ----------
    comparison : attnphase.checks.comparison.Comparison

    Returns
    -------
    matplotlib.figure.Figure
        Bars are one standard error.  Over 1/d with the fitted corrections; over alpha at the largest dimension, with a
        line through all points of the theory.

    Raises
    ------
    DatasetError
        There is nothing in it to draw.
    ProblemError
        `comparison` is none.
    """
    arguments.instance("comparison", comparison, Comparison)
    if not comparison.quantities:
        raise DatasetError("the comparison has no quantities to draw: compare runs that were counted.")
    over_alpha = len({q.alpha for q in comparison.quantities}) > 1
    names = _compared(comparison.quantities)
    with mpl.rc_context(STYLE):
        figure, axes = panels(len(names))
        starts = list(dict.fromkeys(q.start for q in comparison.quantities))
        largest = max(one.dimension for q in comparison.quantities for one in q.measured)
        for ax, name in zip(axes, names, strict=True):
            for i, start in enumerate(starts):
                chosen = [q for q in comparison.quantities if (q.start, q.name) == (start, name)]
                if over_alpha:
                    _along_alpha(ax, chosen, comparison.theory, largest)
                elif chosen:
                    _along_dimension(ax, chosen[0], i - (len(starts) - 1) / 2)
            base, _, index = name.partition("[")
            latex = comparison.theory[base].attrs["latex"].replace(r"\ell", f"{{{index.rstrip(']')}}}")
            ax.set_ylabel(f"${latex}$")
            ax.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)
            ax.set_xlabel(r"$\alpha$" if over_alpha else r"$1/d$")
        handles: list[tuple[Any, str]] = []
        for start in starts:
            handles.append((Line2D([], [], color=COLOURS[start], lw=1.3), f"{start}, theory"))
            marker = Line2D([], [], color=COLOURS[start], ls="", marker=MARKERS[start], ms=4)
            suffix = f" ($d={largest}$)" if over_alpha else ""
            handles.append((marker, f"{start}, experiment{suffix}"))
        drawn, labels = zip(*handles, strict=True)
        figure.legend(drawn, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def grid_figure(theory: xr.Dataset, runs: xr.Dataset) -> Figure:
    """Difference in training loss, semantic minus positional, over alpha and omega: experiment, and theory beside it.

    Parameters
    ----------
    theory : xarray.Dataset
        Branches semantic and positional over omega and alpha.
    runs : xarray.Dataset
        Starts semantic and positional over dimension, omega, alpha and seed; the largest dimension is drawn.

    Returns
    -------
    matplotlib.figure.Figure
        Two maps, with the theory's line of equal losses in both.

    Raises
    ------
    DatasetError
        A dimension, a branch or a start is missing.
    ProblemError
        An argument is no dataset.
    """
    check_dataset("theory", theory, "points")
    check_dataset("runs", runs, "experiments")
    vary_only(theory, "branch", "omega", "alpha")
    vary_only(runs, "start", "dimension", "omega", "alpha", "seed")
    both_branches(theory)
    both_branches(runs, "start")
    runs = runs.isel(dimension=-1)
    mean = runs["training_loss"].where(counted(runs)).mean("seed")
    measured = mean.sel(start="semantic") - mean.sel(start="positional")
    expected = theory["training_loss"].sel(branch="semantic") - theory["training_loss"].sel(branch="positional")
    unsettled = (theory["status"] != Status.converged).any("branch")
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.9, 2.9), layout="constrained")
        axes = figure.subplots(1, 2, sharex=True, sharey=True)
        label = r"$10^3\,(\epsilon_t^{\mathrm{sem}} - \epsilon_t^{\mathrm{pos}})$"
        draw_map(axes[0], 1e3 * measured, "omega", label, True)
        draw_map(axes[1], 1e3 * expected, "omega", label, True, unsettled)
        for ax in axes:
            draw_contour(ax, expected, "omega", r"$\alpha_c$", "black")
            ax.set_xlabel(symbol_of(theory, "alpha"))
        axes[0].set_ylabel(symbol_of(theory, "omega"))
        axes[0].set_title(rf"(a) experiment, $d={int(runs['dimension'])}$, with the theory's $\alpha_c$")
        axes[1].set_title("(b) theory")
    return figure


def scatter_figure(theory: xr.Dataset, runs: xr.Dataset) -> Figure:
    """Overlaps of single runs, and the minima of the theory.

    Parameters
    ----------
    theory : xarray.Dataset
        Branches semantic and positional at the runs' alpha.
    runs : xarray.Dataset
        Any starts and seeds.

    Returns
    -------
    matplotlib.figure.Figure
        Sizes of m and theta: dots are runs, large marks are the theory's branches.

    Raises
    ------
    DatasetError
        A dimension is missing.
    ProblemError
        An argument is no dataset.
    """
    check_dataset("theory", theory, "points")
    check_dataset("runs", runs, "experiments")
    need_dimensions(theory, "branch")
    need_dimensions(runs, "start")
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.6, 3.3), layout="constrained")
        ax = figure.subplots()
        for start in map(str, runs["start"].to_numpy()):
            chosen = runs.sel(start=start)
            m, theta = (overlap_size(chosen, name).where(counted(chosen)).to_numpy().ravel() for name in ("m", "theta"))
            ax.plot(m, theta, ls="", marker=".", ms=4, alpha=0.5, color=COLOURS[start], label=f"runs, {start} start")
        for branch in map(str, theory["branch"].to_numpy()):
            point = theory.sel(branch=branch).squeeze()
            ax.plot(
                overlap_size(point, "m"), overlap_size(point, "theta"), ls="", marker=MARKERS[branch], ms=8,
                mec="black", color=COLOURS[branch], label=f"theory, {branch}", clip_on=False, zorder=3,
            )  # fmt: skip
        ax.set_xlabel(size_symbol_of(theory, "m"))
        ax.set_ylabel(size_symbol_of(theory, "theta"))
        ax.set_xlim(left=0)
        ax.set_ylim(bottom=0)
        ax.legend(frameon=False)
    return figure


def _compared(quantities: tuple[Quantity, ...]) -> list[str]:
    """Names of what is drawn: scalars, and of every overlap the first token's entry with the largest value."""
    names = list(dict.fromkeys(q.name for q in quantities))
    chosen = [name for name in ("training_loss", "test_error", "weight_norm", "density") if name in names]
    for overlap in ("q", "m", "theta"):
        entries = [q for q in quantities if q.name.startswith(f"{overlap}[1,")]
        if entries:
            chosen.append(max(entries, key=lambda q: abs(q.theory)).name)
    return chosen[:6]


def _along_alpha(ax: Axes, quantities: list[Quantity], theory: xr.Dataset, dimension: int) -> None:
    """Means of one dimension, and the theory's line, which may have more sample complexities than the runs."""
    line = sorted(quantities, key=lambda q: q.alpha)
    if not line:
        return
    start = line[0].start
    name, _, index = line[0].name.partition("[")
    branch = (theory.sel(branch=start) if "branch" in theory.dims else theory).sortby("alpha")
    curve = branch[name].where(branch["status"] == Status.converged).transpose("alpha", ...)
    entry = [int(i) - 1 for i in index.rstrip("]").split(",") if i]
    ax.plot(curve["alpha"], curve.to_numpy()[(slice(None), *entry)], color=COLOURS[start], lw=1.3)
    shown = [(q.alpha, one.value, one.stderr) for q in line for one in q.measured if one.dimension == dimension]
    alphas, values, errors = np.array(shown).reshape(-1, 3).T
    ax.errorbar(
        alphas, values, np.nan_to_num(errors), ls="",
        marker=MARKERS[start], ms=3.5, mew=0.5, mec="white", color=COLOURS[start], elinewidth=0.8,
    )  # fmt: skip


def _along_dimension(ax: Axes, quantity: Quantity, side: float) -> None:
    """Means over 1/d with the fit; the theory's line and the fit's limit at 0."""
    start, measured = quantity.start, quantity.measured
    colour = COLOURS[start]
    x = np.array([1 / one.dimension for one in measured])
    right = 1.08 * x.max()
    ax.axhline(quantity.theory, color=colour, lw=1.3)
    if np.isfinite(quantity.theory_stderr) and quantity.theory_stderr > 0:
        low, high = quantity.theory - quantity.theory_stderr, quantity.theory + quantity.theory_stderr
        ax.axhspan(low, high, color=colour, alpha=0.3, lw=0)
    apart = 0.012 * right * side  # two starts at one dimension must not hide each other
    ax.errorbar(
        x + apart, [one.value for one in measured], np.nan_to_num([one.stderr for one in measured]), ls="",
        marker=MARKERS[start], ms=3.5, mew=0.5, mec="white", color=colour, elinewidth=0.8,
    )  # fmt: skip
    if quantity.limit is not None:
        ends = np.array([0.0, right])
        ax.plot(ends, quantity.limit.value + quantity.limit.slope * ends, color=colour, lw=0.8, ls=":")
    ax.set_xlim(-0.04 * right, right)
