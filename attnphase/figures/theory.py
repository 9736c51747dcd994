"""The paper's figures, drawn from datasets: Fig. 2, curves along alpha, and Fig. 3, the phase diagram.

Both are drawn over whatever field of the problem a dataset varies.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from attnphase import arguments
from attnphase.data.reading import overlap_size, spacing
from attnphase.data.trust import untrusted
from attnphase.data.variables import NOT_COMPUTED
from attnphase.figures.boundaries import check_boundaries, draw_boundaries
from attnphase.figures.filling import computed_points, filled
from attnphase.figures.selection import (
    OMEGA,
    at_values,
    both_branches,
    check_dataset,
    chosen_values,
    over_one,
    over_two,
    shown_value,
    vary_only,
)
from attnphase.figures.style import (
    COLOURS,
    COMPUTED,
    HATCH,
    MARKERS,
    STYLE,
    UNDECIDED,
    UNTRUSTED,
    draw_contour,
    draw_map,
    draw_places,
    size_symbol_of,
    symbol_of,
)
from attnphase.fixed_points.crossings import crossing
from attnphase.fixed_points.iteration import Status
from attnphase.fixed_points.threshold import Threshold
from attnphase.fixed_points.transitions import TRANSITIONS
from attnphase.problem.problem import Problem
from attnphase.reference import read_reference
from attnphase.state_evolution.branches import Branch, Identity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["FIGURES", "fig2", "fig3", "loss_crossing"]

_VISIBLE = 5e-3  # overlaps below this are those of the trivial point; m and theta are of order 0.1 elsewhere


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
        Short for ``at={"omega": omega}``, if the dataset has this dimension; by default 0.3, if alpha varies as well.
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
        if "omega" in theory.dims:
            at["omega"] = omega
    theory, across = over_one(at_values(theory, at))
    wanted = _is_papers(theory) if experiments is None else arguments.flag("experiments", experiments)
    experiments = wanted and across == "alpha"
    baseline = theory["linear_test_error"].isel(branch=0)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.9, 5.2), layout="constrained")
        axes = figure.subplots(2, 2, sharex=True).ravel()
        panels = {"training_loss": 1e3, "test_error": 1e3, "m": 1.0, "theta": 1.0}
        for ax, (name, factor), letter in zip(axes, panels.items(), "abcd", strict=True):
            _curves(ax, theory, across, name, factor)
            if experiments:
                _experiment(ax, name, factor, [str(b) for b in theory["branch"].to_numpy()])
            _label(ax, theory, name, factor, letter)
        axes[1].plot(theory[across], 1e3 * baseline, color="0.3", ls="--", lw=1)
        marks = _thresholds(theory) if across == "alpha" else {}
        for symbol, position in marks.items():
            for ax in axes:
                ax.axvline(position, color="0.55", lw=0.8, ls=":", zorder=0)
            for ax in axes[:2]:
                ax.annotate(
                    symbol, (position, 1), xycoords=("data", "axes fraction"), xytext=(0, 2),
                    textcoords="offset points", ha="center", va="bottom", color="0.3",
                )  # fmt: skip
        for ax in axes[2:]:
            ax.set_xlabel(symbol_of(theory, across))
            ax.set_ylim(bottom=-0.03 * ax.get_ylim()[1])  # a branch without this overlap lies on zero
        if spacing(theory[across].to_numpy()) == "log":
            axes[0].set_xscale("log")
        elif across == "alpha":
            axes[0].set_xlim(0, float(theory["alpha"].max()) * 1.02)
        handles, labels = zip(*_fig2_legend(theory, experiments, bool(baseline.notnull().any())), strict=True)
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        _name_the_chosen(figure, theory, at)
    return figure


def fig3(theory: xr.Dataset, *, at: Mapping[str, Any] | None = None, thresholds: xr.Dataset | None = None) -> Figure:
    """Maps over alpha and omega: differences in training loss and test error, and the overlaps of the lower branch.

    Parameters
    ----------
    theory : xarray.Dataset
        Branches semantic and positional over alpha and omega, or another field instead of it.
    at : mapping, optional
        Which value of every further dimension is drawn, by its name or the field's: ``{"tokens.sigma": 0.5}``.
    thresholds : xarray.Dataset, optional
        What `attnphase.thresholds` returned along the map's field: drawn with their errors, instead of contours.

    Returns
    -------
    matplotlib.figure.Figure
        With the lines where the differences vanish, and in (a) dotted ones where a branch ends; circles are points of
        which that is not decided. Where a branch is not converged the maps are hatched, and dotted where replica
        symmetry fails (`attnphase.data.trust`): in (a) for either branch, else for the lower one. Between the points
        of a refined sweep, which (d) shows, the maps are interpolated.

    Raises
    ------
    DatasetError
        A dimension, a value or a branch is missing, or the dataset varies more than alpha and one field.
    ProblemError
        `theory` is no dataset, or `at` is no mapping.

    Notes
    -----
    Panels (a) and (b) are Figure 3 of arXiv:2402.03902, by theory.  Of a loss without a linear predictor, (b) is the
    test error itself.
    """
    check_dataset("theory", theory, "points")
    at = chosen_values(at)
    theory, up = over_two(at_values(theory, at))
    if thresholds is not None:
        check_boundaries(thresholds, theory, up)
    computed, theory = computed_points(theory), filled(theory, up)
    semantic, positional = both_branches(theory)
    loss_gap = semantic["training_loss"] - positional["training_loss"]
    lowest = _lower_branch(theory)
    error_gap = lowest["test_error"] - lowest["linear_test_error"]
    named = ("training_loss", "test_error", "linear_test_error")
    loss, error, linear = (symbol_of(theory, name).strip("$") for name in named)
    sem, pos = r"^{\mathrm{sem}}", r"^{\mathrm{pos}}"
    unsettled = (theory["status"] != Status.converged).any("branch")
    doubtful = [untrusted(theory.sel(branch=["semantic", "positional"])).any("branch"), *3 * [untrusted(lowest)]]
    # where one of the branches has merged with the uninformed point there is no transition between the two
    identity = {"semantic": _identity(semantic, "theta"), "positional": _identity(positional, "m")}
    transition = loss_gap.where((identity["semantic"] != Identity.merged) & (identity["positional"] != Identity.merged))
    compared = bool(error_gap.notnull().any())
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.9, 5.6), layout="constrained")
        axes = figure.subplots(2, 2, sharex=True, sharey=True)
        for ax, name in ((axes[0, 0].set_xscale, "alpha"), (axes[0, 0].set_yscale, up)):
            if spacing(theory[name].to_numpy()) == "log":
                ax("log")
        draw_map(axes[0, 0], 1e3 * loss_gap, up, rf"$10^3\,({loss}{sem} - {loss}{pos})$", True, unsettled)
        if compared:
            draw_map(axes[0, 1], 1e3 * error_gap, up, rf"$10^3\,({error} - {linear})$", True, unsettled)
        else:
            draw_map(axes[0, 1], 1e3 * lowest["test_error"], up, rf"$10^3\,{error}$", False, unsettled)
        draw_map(axes[1, 0], _size(lowest, "theta"), up, size_symbol_of(theory, "theta"), False, unsettled)
        draw_map(axes[1, 1], _size(lowest, "m"), up, size_symbol_of(theory, "m"), False, unsettled)
        for ax, where in zip(axes.ravel(), doubtful, strict=True):
            draw_places(ax, where, up, UNTRUSTED, every=False)
        if computed is not None:
            draw_places(axes[1, 1], computed, up, COMPUTED)
        lines = _boundaries(axes, transition, error_gap, up, thresholds)
        titles = (
            "training loss, semantic minus positional",
            f"test error, lower branch{' minus linear' if compared else ''}",
            "overlap with the teacher, lower branch",
            "overlap with the positions, lower branch",
        )
        for ax, letter, title in zip(axes.ravel(), "abcd", titles, strict=True):
            ax.set_title(f"({letter}) {title}")
        for ax in axes[1]:
            ax.set_xlabel(symbol_of(theory, "alpha"))
        for ax in axes[:, 0]:
            ax.set_ylabel(symbol_of(theory, up))
        if handles := [*lines, *_identities(axes, identity, up, computed), *_marks(unsettled, doubtful[0], computed)]:
            figure.legend(handles=handles, loc="outside lower center", ncols=3 if lines else 2, frameon=False)
        _name_the_chosen(figure, theory, at)
    return figure


def _lower_branch(theory: xr.Dataset) -> xr.Dataset:
    """The branch of lower training loss, point by point."""
    both = theory.sel(branch=["semantic", "positional"])
    return both.isel(branch=both["training_loss"].fillna(np.inf).argmin("branch"))


def _boundaries(
    axes: Any, transition: xr.DataArray, error_gap: xr.DataArray, up: str, thresholds: xr.Dataset | None
) -> list[Line2D]:
    """Contours where the differences vanish, or the thresholds instead, whose lines a legend names."""
    if thresholds is None:
        draw_contour(axes[0, 0], transition, up, r"$\alpha_c$", "black")
        draw_contour(axes[0, 1], error_gap, up, r"$\alpha_l$", "black")
        for ax in axes[1]:
            draw_contour(ax, transition, up, r"$\alpha_c$", "white")
        return []
    lines = draw_boundaries(axes[0, 0], thresholds, ("alpha_c", *TRANSITIONS), "black")
    draw_boundaries(axes[0, 1], thresholds, ("alpha_c",), "0.5")
    lines += draw_boundaries(axes[0, 1], thresholds, ("alpha_l",), "black")
    draw_boundaries(axes[1, 0], thresholds, ("alpha_c", "spinodal_semantic", "onset_theta"), "white")
    draw_boundaries(axes[1, 1], thresholds, ("alpha_c", "spinodal_positional", "onset_m"), "white")
    return lines


def _identity(ds: xr.Dataset, name: str) -> xr.DataArray:
    """``on_branch`` of one branch; of earlier datasets, by whether one sees its order parameter ``name``."""
    if "on_branch" in ds:
        return ds["on_branch"]
    return xr.where(_size(ds, name) > _VISIBLE, int(Identity.on_branch), int(Identity.merged))


def _identities(
    axes: Any, identity: Mapping[str, xr.DataArray], up: str, computed: xr.DataArray | None
) -> list[Line2D]:
    """Mark in (a) where branches end, and everywhere where that is not decided; the entries for the legend."""
    handles = [handle for branch, one in identity.items() for handle in _ends(axes[0, 0], one, up, branch)]
    undecided = (identity["semantic"] == Identity.not_decided) | (identity["positional"] == Identity.not_decided)
    undecided = undecided if computed is None else undecided & computed
    if bool(undecided.any()):
        for ax in axes.ravel():
            draw_places(ax, undecided, up, UNDECIDED)
        handles.append(Line2D([], [], **UNDECIDED, label="not decided whether both are branches"))
    return handles


def _ends(ax: Axes, identity: xr.DataArray, up: str, branch: str) -> list[Line2D]:
    """Draw where a branch merges with the uninformed point, half-way between the points; its entry for the legend."""
    merged = (identity == Identity.merged).transpose(up, "alpha")
    if not merged.any() or merged.all():
        return []
    line: dict[str, Any] = {"colors": COLOURS[branch], "linestyles": "dotted", "linewidths": 1.6}
    ax.contour(merged["alpha"], merged[up], merged.astype(float), levels=[0.5], **line)
    return [Line2D([], [], color=COLOURS[branch], ls=":", lw=1.6, label=f"end of the {branch} branch")]


FIGURES: dict[str, Callable[..., Figure]] = {"fig2": fig2, "fig3": fig3}
"""The figures by name."""


def _marks(unsettled: xr.DataArray, doubtful: xr.DataArray, computed: xr.DataArray | None) -> list[Line2D | Patch]:
    """Entries of the legend for what is marked somewhere."""
    marks: list[Line2D | Patch] = []
    if bool(unsettled.any()):
        marks.append(Patch(facecolor="none", edgecolor="0.55", hatch=HATCH, label="a branch is not converged here"))
    if bool(doubtful.any()):
        marks.append(Line2D([], [], **UNTRUSTED, label="replica symmetry fails for a branch that is shown"))
    if computed is not None:
        marks.append(Line2D([], [], **{**COMPUTED, "ms": 3}, label="computed in (d); interpolated between"))
    return marks


def loss_crossing(theory: xr.Dataset) -> Threshold:
    """Where the training loss of the semantic branch falls below that of the positional one, on the grid of `theory`.

    Parameters
    ----------
    theory : xarray.Dataset
        Both branches over alpha.

    Returns
    -------
    Threshold
        By linear interpolation; `attnphase.thresholds` is more accurate.

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
    difference = first[name].to_numpy() - second[other].to_numpy()
    return crossing(first["alpha"].to_numpy().tolist(), difference.tolist(), error.tolist())


def _size(ds: xr.Dataset, name: str) -> xr.DataArray:
    """The first token's overlap, of a mixture with all its clusters together."""
    size = overlap_size(ds, name)
    return (size**2).sum("cluster") ** 0.5 if "cluster" in size.dims else size


def _size_error(ds: xr.Dataset, name: str) -> xr.DataArray:
    """First-order standard error of `_size`: at most that of its largest entries together."""
    array = ds[f"{name}_stderr"].isel(token=0)
    inner = [dim for dim in ("row", "teacher", "cluster") if dim in array.dims]
    return (array**2).sum(inner) ** 0.5


def _is_papers(ds: xr.Dataset) -> bool:
    """Whether curves along alpha are of the problem that the published runs are of, however it is integrated."""
    if "problem" not in ds.attrs:
        return False
    there = tomllib.loads(ds.attrs["problem"])
    for name in map(str, ds.coords):
        section, _, key = ds[name].attrs.get("field", "").partition(".")
        if key and ds[name].ndim == 0:
            there.setdefault(section, {})[key] = ds[name].item()
    papers = Problem().with_fields({"teacher.omega": OMEGA}).to_dict()
    return {**there, "integration": None} == {**papers, "integration": None}


def _name_the_chosen(figure: Figure, ds: xr.Dataset, at: Mapping[str, Any]) -> None:
    """Above the figure, the values that the caller selected."""
    chosen = [dim for dim in map(str, ds.coords) if {dim, ds[dim].attrs.get("field")} & at.keys() and ds[dim].ndim == 0]
    if chosen:
        values = (f"{symbol_of(ds, dim)} = {shown_value(ds[dim].item())}" for dim in chosen)
        figure.suptitle(", ".join(values), fontsize=9)


def _curves(ax: Axes, theory: xr.Dataset, across: str, name: str, factor: float) -> None:
    for branch in map(str, theory["branch"].to_numpy()):
        line = theory.sel(branch=branch)
        scalar = line[name].ndim == 1
        value = factor * (line[name] if scalar else _size(line, name)).to_numpy()
        error = factor * (line[f"{name}_stderr"] if scalar else _size_error(line, name)).fillna(0).to_numpy()
        place, colour = line[across].to_numpy(), COLOURS[branch]
        settled = (line["status"] == Status.converged).to_numpy()
        merged, undecided = _merged(line)[settled], _undecided(line)
        ax.plot(place[settled], np.where(merged, np.nan, value[settled]), color=colour, lw=1.3)
        # up to the first point of the branch
        reach = merged.copy()
        reach[:-1] |= merged[1:]
        reach[1:] |= merged[:-1]
        ax.plot(place[settled], np.where(reach, value[settled], np.nan), color=colour, lw=1.3, ls=":")
        ax.plot(place[undecided], value[undecided], **{**UNDECIDED, "mec": colour}, zorder=3)
        low, high = (value - error)[settled], (value + error)[settled]
        ax.fill_between(place[settled], low, high, color=colour, alpha=0.3, lw=0)
        # dotted where it is not to be trusted; what has merged is dotted anyhow
        doubtful = np.where(untrusted(line).to_numpy() & settled & ~_merged(line), value, np.nan)
        ax.plot(place, doubtful, color="white", lw=1.5, ls=(0, (1.5, 1.5)))
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


def _experiment(ax: Axes, name: str, factor: float, branches: list[str]) -> None:
    table = read_reference("fig2_gradient_descent")
    for branch in branches:
        rows = table[table["start"] == branch]
        ax.errorbar(
            rows["alpha"], factor * rows[name], factor * rows[f"{name}_sd"], ls="", marker=MARKERS[branch], ms=3,
            mew=0.5, mec="white", color=COLOURS[branch], elinewidth=0.7, capsize=0, zorder=2,
        )  # fmt: skip


def _label(ax: Axes, theory: xr.Dataset, name: str, factor: float, letter: str) -> None:
    symbol = symbol_of(theory, name) if theory[name].ndim == 2 else size_symbol_of(theory, name)
    ax.set_ylabel(symbol if factor == 1 else rf"$10^{{{np.log10(factor):.0f}}}\,$" + symbol)
    ax.text(0.02, 0.97, f"({letter})", transform=ax.transAxes, va="top")


def _thresholds(theory: xr.Dataset) -> dict[str, float]:
    """Where the semantic branch's curves cross those of the positional one and of the linear predictor."""
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
    if bool(untrusted(theory).any()):
        handles.append((Line2D([], [], color="0.3", lw=1.3, ls=(0, (1.5, 1.5))), "replica symmetry fails"))
    lines = [theory.sel(branch=branch) for branch in theory["branch"].to_numpy()]
    if any(_merged(line).any() for line in lines):
        handles.append((Line2D([], [], color="0.3", ls=":", lw=1.3), "merged with the uninformed point"))
    if any(_undecided(line).any() for line in lines):
        handles.append((Line2D([], [], **UNDECIDED), "branch not decided"))
    if bool((~theory["status"].isin([Status.converged, NOT_COMPUTED])).any()):
        handles.append((Line2D([], [], color="0.3", ls="", marker="D", mfc="white", ms=4), "theory not converged"))
    return handles
