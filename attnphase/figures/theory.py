"""Figure 2 of the paper, drawn from datasets: the branches' curves along alpha, or along whatever field they vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from attnphase import arguments
from attnphase.data.reading import spacing, told_problem, whole_problem
from attnphase.data.trust import asymmetric, violated
from attnphase.data.variables import NOT_COMPUTED
from attnphase.errors import DatasetError
from attnphase.figures.selection import (
    at_values,
    both_branches,
    check_dataset,
    chosen_values,
    drawn_size,
    drawn_size_error,
    over_one,
    shown_value,
    vary_only,
)
from attnphase.figures.style import (
    COLOURS,
    MARKERS,
    STYLE,
    UNDECIDED,
    UNTRUSTED,
    VIOLATED,
    name_the_chosen,
    size_symbol_of,
    symbol_of,
)
from attnphase.fixed_points.crossings import crossing
from attnphase.fixed_points.threshold import Threshold
from attnphase.reference import published_runs, read_reference
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.branches import Branch, Identity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

__all__ = ["draw_curve", "draw_runs", "fig2", "loss_crossing", "mark_alphas", "marks_of_curves", "theory_thresholds"]


def fig2(
    theory: xr.Dataset,
    *,
    experiments: bool | None = None,
    omega: float | None = None,
    at: Mapping[str, Any] | None = None,
) -> Figure:
    """Training loss, test error, m and theta along alpha, as in Figure 2 of arXiv:2402.03902.

    Parameters
    ----------
    theory : xarray.Dataset
        Branches over alpha and any fields; over another field if there is one value of alpha.
    experiments : bool, optional
        Whether the published gradient-descent points are drawn along alpha; by default where the problem is theirs.
    omega : float, optional
        Short for ``at={"omega": omega}``, or the dataset's own; by default 0.3, if omega and alpha vary.
    at : mapping, optional
        Which value of every other dimension is drawn, by its name or the field's: ``{"tokens.sigma": 0.5}``.

    Returns
    -------
    matplotlib.figure.Figure
        A panel for each of the four.

    Raises
    ------
    DatasetError
        The dataset has not the dimensions branch and alpha, or not these values, varies something else too, or nothing.
    ProblemError
        An argument is of the wrong type.
    """
    check_dataset("theory", theory, "points")
    at = chosen_values(at)
    if omega is not None:
        omega = arguments.number("omega", omega, lambda x: 0 <= x <= 1, "a number from 0 to 1")
        own = whole_problem(theory)["teacher"]["omega"]
        if "omega" in theory.dims:
            at["omega"] = omega
        elif shown_value(own) != shown_value(omega):
            raise DatasetError(f"the dataset has omega = {shown_value(own)} alone, not {shown_value(omega)}.")
    theory, across = over_one(at_values(theory, at))
    runs = published_runs(told_problem(theory)) if across == "alpha" else None
    if experiments is not None:
        others = read_reference("fig2_gradient_descent") if runs is None and across == "alpha" else runs
        runs = others if arguments.flag("experiments", experiments) else None
    baseline = theory["linear_test_error"].isel(branch=0)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.9, 5.2), layout="constrained")
        axes = figure.subplots(2, 2, sharex=True).ravel()
        panels = {"training_loss": 1e3, "test_error": 1e3, "m": 1.0, "theta": 1.0}
        for ax, (name, factor), letter in zip(axes, panels.items(), "abcd", strict=True):
            for branch in map(str, theory["branch"].to_numpy()):
                draw_curve(ax, theory.sel(branch=branch), across, name, factor, {"color": COLOURS[branch]})
                if runs is not None:
                    draw_runs(ax, runs, branch, name, factor, COLOURS[branch])
            _label(ax, theory, name, factor, letter)
        axes[1].plot(theory[across], 1e3 * baseline, color="0.3", ls="--", lw=1)
        mark_alphas(axes, axes[:2], theory_thresholds(theory) if across == "alpha" else {})
        for ax in axes[2:]:
            ax.set_xlabel(symbol_of(theory, across))
            ax.set_ylim(bottom=-0.03 * ax.get_ylim()[1])  # a branch without this overlap lies on zero
        if spacing(theory[across].to_numpy()) == "log":
            axes[0].set_xscale("log")
        elif across == "alpha":
            axes[0].set_xlim(0, float(theory["alpha"].max()) * 1.02)
        handles, labels = zip(*_fig2_legend(theory, runs is not None, bool(baseline.notnull().any())), strict=True)
        figure.legend(handles, labels, loc="outside lower center", ncols=3 if len(handles) < 6 else 2, frameon=False)
        name_the_chosen(figure, theory, at)
    return figure


def loss_crossing(theory: xr.Dataset) -> Threshold:
    """Where the training loss of the semantic branch falls below that of the positional one, on the grid of `theory`.

    Parameters
    ----------
    theory : xarray.Dataset
        Both branches over alpha.

    Returns
    -------
    Threshold
        By linear interpolation between neighbours that are converged and on their own branches;
        `attnphase.thresholds` is more accurate.

    Raises
    ------
    DatasetError
        A dimension or a branch is missing.
    ProblemError
        `theory` is no dataset.
    """
    check_dataset("theory", theory, "points")
    vary_only(theory, "branch", "alpha")
    semantic, positional = both_branches(theory)
    return _crossing(semantic, "training_loss", positional, "training_loss")


def _crossing(first: xr.Dataset, name: str, second: xr.Dataset, other: str) -> Threshold:
    first, second = first.sortby("alpha"), second.sortby("alpha")
    error = np.hypot(first[f"{name}_stderr"].to_numpy(), second[f"{other}_stderr"].to_numpy())
    there = _reliable(first) & _reliable(second)
    difference = np.where(there, first[name].to_numpy() - second[other].to_numpy(), np.nan)
    # a refined sweep leaves out points far from every boundary
    computed = ((first["status"] != NOT_COMPUTED) & (second["status"] != NOT_COMPUTED)).to_numpy()
    return crossing(*(column[computed].tolist() for column in (first["alpha"].to_numpy(), difference, error)))


def _reliable(line: xr.Dataset) -> np.ndarray:
    """Where a branch is converged and on its own, as for the boundaries of a sweep (`attnphase.data.boundaries`)."""
    reliable = ((line["status"] == Status.converged) & ~violated(line)).to_numpy()
    return reliable & (line["on_branch"] == Identity.on_branch).to_numpy() if "on_branch" in line else reliable


def draw_curve(ax: Axes, line: xr.Dataset, across: str, name: str, factor: float, look: Mapping[str, Any]) -> None:
    """A quantity of one branch with its standard error: dotted where it has merged, with dots where not to trust it.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
    line : xarray.Dataset
        One branch over the dimension `across`.
    name : str
        The quantity; of an overlap its size is drawn.
    factor : float
        By which it is multiplied.
    look : mapping
        ``color`` and, if not solid, ``ls``.
    """
    line = line.isel({across: (line["status"] != NOT_COMPUTED).to_numpy()})
    scalar = line[name].ndim == 1
    value = factor * (line[name] if scalar else drawn_size(line, name)).to_numpy()
    error = factor * (line[f"{name}_stderr"] if scalar else drawn_size_error(line, name)).fillna(0).to_numpy()
    place, colour = line[across].to_numpy(), look["color"]
    settled = (line["status"] == Status.converged).to_numpy()
    merged, undecided = _merged(line)[settled], _undecided(line)
    ax.plot(place[settled], np.where(merged, np.nan, value[settled]), lw=1.3, **look)
    # up to the first point of the branch
    reach = merged.copy()
    reach[:-1] |= merged[1:]
    reach[1:] |= merged[:-1]
    ax.plot(place[settled], np.where(reach, value[settled], np.nan), color=colour, lw=1.3, ls=":")
    ax.plot(place[undecided], value[undecided], **{**UNDECIDED, "mec": colour}, zorder=3)
    low, high = (value - error)[settled], (value + error)[settled]
    ax.fill_between(place[settled], low, high, color=colour, alpha=0.3, lw=0)
    doubtful, wrong = asymmetric(line).to_numpy() & settled, violated(line).to_numpy()
    ax.plot(place[doubtful], value[doubtful], **UNTRUSTED, zorder=2.5)
    ax.plot(place[wrong], value[wrong], **VIOLATED, zorder=3.5)
    ax.plot(place[~settled], value[~settled], ls="", marker="D", mfc="white", mec=colour, ms=4, zorder=3)


def _merged(line: xr.Dataset) -> np.ndarray:
    """Where the points of a branch have merged with the uninformed one."""
    if "on_branch" not in line:
        return np.zeros(line["status"].shape, dtype=bool)
    return (line["on_branch"] == Identity.merged).to_numpy()


def _undecided(line: xr.Dataset) -> np.ndarray:
    """Where that is not decided."""
    if "on_branch" not in line:
        return np.zeros(line["status"].shape, dtype=bool)
    return ((line["on_branch"] == Identity.not_decided) & (line["status"] == Status.converged)).to_numpy()


def draw_runs(ax: Axes, runs: NDArray[Any], start: str, name: str, factor: float, colour: Any) -> None:
    """Published runs from one start: means and standard deviations."""
    rows = runs[runs["start"] == start]
    ax.errorbar(
        rows["alpha"], factor * rows[name], factor * rows[f"{name}_sd"], ls="", marker=MARKERS[start], ms=3,
        mew=0.5, mec="white", color=colour, elinewidth=0.7, capsize=0, zorder=2,
    )  # fmt: skip


def _label(ax: Axes, theory: xr.Dataset, name: str, factor: float, letter: str) -> None:
    symbol = symbol_of(theory, name) if theory[name].ndim == 2 else size_symbol_of(theory, name)
    ax.set_ylabel(symbol if factor == 1 else rf"$10^{{{np.log10(factor):.0f}}}\,$" + symbol)
    ax.text(0.02, 0.97, f"({letter})", transform=ax.transAxes, va="top")


def mark_alphas(axes: Sequence[Axes], named: Sequence[Axes], marks: Mapping[str, float]) -> None:
    """Dotted lines at sample complexities in all of the axes, with their symbols above some."""
    for symbol, position in marks.items():
        for ax in axes:
            ax.axvline(position, color="0.55", lw=0.8, ls=":", zorder=0)
        for ax in named:
            ax.annotate(
                symbol, (position, 1), xycoords=("data", "axes fraction"), xytext=(0, 2), textcoords="offset points",
                ha="center", va="bottom", color="0.3",
            )  # fmt: skip


def theory_thresholds(theory: xr.Dataset) -> dict[str, float]:
    """Where the semantic branch's curves cross those of the positional one and of the linear predictor, by symbol."""
    branches = set(theory["branch"].to_numpy().tolist())
    found: dict[str, Threshold] = {}
    if {"semantic", "positional"} <= branches:
        found[r"$\alpha_c$"] = loss_crossing(theory)
    if "semantic" in branches:
        line = theory.sel(branch="semantic")
        found[r"$\alpha_l$"] = _crossing(line, "test_error", line, "linear_test_error")
    return {symbol: threshold.alpha for symbol, threshold in found.items() if threshold.found}


def _fig2_legend(theory: xr.Dataset, experiments: bool, baseline: bool) -> list[tuple[Any, str]]:
    """Handles with their labels."""
    handles: list[tuple[Any, str]] = []
    for branch in map(str, theory["branch"].to_numpy()):
        colour = COLOURS[branch]
        line, band = Line2D([], [], color=colour, lw=1.3), Patch(facecolor=colour, alpha=0.3, lw=0)
        handles.append(((band, line), rf"{branch}, theory ($\pm$ s.e.)"))
        if experiments and Branch.named(branch).is_informed:
            label = rf"{branch}, gradient descent ($d=1000$, $\pm$ s.d.)"
            handles.append((Line2D([], [], color=colour, ls="", marker=MARKERS[branch], ms=4), label))
    if baseline:
        handles.append((Line2D([], [], color="0.3", ls="--", lw=1), "linear predictor"))
    return [*handles, *marks_of_curves([theory])]


def marks_of_curves(datasets: Sequence[xr.Dataset]) -> list[tuple[Any, str]]:
    """Handles with their labels for what curves are marked with somewhere."""
    lines = [ds.sel(branch=branch) for ds in datasets for branch in ds["branch"].to_numpy()]
    handles: list[tuple[Any, str]] = []
    if any(bool(asymmetric(line).any()) for line in lines):
        handles.append((Line2D([], [], **{**UNTRUSTED, "ls": "-", "color": "0.3"}), "replica symmetry fails"))
    if any(bool(violated(line).any()) for line in lines):
        handles.append((Line2D([], [], **VIOLATED), "exact identities violated"))
    if any(_merged(line).any() for line in lines):
        handles.append((Line2D([], [], color="0.3", ls=":", lw=1.3), "merged with the uninformed point"))
    if any(_undecided(line).any() for line in lines):
        handles.append((Line2D([], [], **UNDECIDED), "branch not decided"))
    if any(bool((~line["status"].isin([Status.converged, NOT_COMPUTED])).any()) for line in lines):
        handles.append((Line2D([], [], color="0.3", ls="", marker="D", mfc="white", ms=4), "theory not converged"))
    return handles
