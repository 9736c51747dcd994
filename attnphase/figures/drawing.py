"""The paper's figures, drawn from datasets: Fig. 2, curves along alpha, and Fig. 3, the phase diagram.

Both are drawn over whatever field of the problem a dataset varies.  Symbols come from the datasets' ``latex``
attributes.  Points that are not converged are drawn hollow or hatched.
"""

from __future__ import annotations

import io
import os
import tomllib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from attnphase import arguments
from attnphase.data.reading import overlap_size, spacing
from attnphase.data.validate import validate_dataset
from attnphase.data.variables import RunStatus
from attnphase.errors import DatasetError
from attnphase.files.writing import figure_format, write_file
from attnphase.fixed_points.crossings import Threshold, crossing
from attnphase.fixed_points.iteration import Status
from attnphase.problem.problem import Problem
from attnphase.reference import read_reference

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from attnphase.checks.comparison import Comparison, Quantity

__all__ = [
    "FIGURES",
    "attention_figure",
    "comparison_figure",
    "fig2",
    "fig3",
    "grid_figure",
    "learning_figure",
    "loss_crossing",
    "save_figure",
    "scatter_figure",
]

_STYLE: Any = {
    "text.usetex": False,  # labels come from datasets, and TeX can read files and write them
    "font.family": "serif",
    "font.serif": ["STIXGeneral"],
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

# Okabe and Ito's palette: told apart by every kind of colour vision, and in grey by marker and line
_COLOURS = {
    "semantic": "#0072B2",
    "positional": "#D55E00",
    "uninformed": "#009E73",
    "mixed": "#CC79A7",
    "given": "#555555",
}
_MARKERS = {"semantic": "o", "positional": "s", "uninformed": "^", "mixed": "D", "given": "v"}

_DIVERGING, _SEQUENTIAL = "PuOr_r", "cividis"

_HATCH = 8 * "/"

_VISIBLE = 5e-3  # overlaps below this are those of the trivial point; m and theta are of order 0.1 elsewhere

_OMEGA = 0.3  # of Figure 2 of the paper


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

    Raises
    ------
    DatasetError
        The dataset has not the dimensions branch and alpha, or not these values, varies something else too, or nothing.
    ProblemError
        An argument is of the wrong type.
    """
    _dataset("theory", theory, "points")
    at = _chosen(at)
    if omega is not None:
        omega = arguments.number("omega", omega, lambda x: 0 <= x <= 1, "a number from 0 to 1")
        if "omega" in theory.dims:
            at["omega"] = omega
    theory, across = _over_one(_at(theory, at))
    wanted = _is_papers(theory) if experiments is None else arguments.flag("experiments", experiments)
    experiments = wanted and across == "alpha"
    baseline = theory["linear_test_error"].isel(branch=0)
    with mpl.rc_context(_STYLE):
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
            ax.set_xlabel(_symbol(theory, across))
            ax.set_ylim(bottom=-0.03 * ax.get_ylim()[1])  # a branch without this overlap lies on zero
        if spacing(theory[across].to_numpy()) == "log":
            axes[0].set_xscale("log")
        elif across == "alpha":
            axes[0].set_xlim(0, float(theory["alpha"].max()) * 1.02)
        handles, labels = zip(*_fig2_legend(theory, experiments, bool(baseline.notnull().any())), strict=True)
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        _name_the_chosen(figure, theory, at)
    return figure


def fig3(theory: xr.Dataset, *, at: Mapping[str, Any] | None = None) -> Figure:
    """Maps over alpha and omega: differences in training loss and test error, and the overlaps of the lower branch.

    Parameters
    ----------
    theory : xarray.Dataset
        Branches semantic and positional over alpha and omega, or another field instead of it.
    at : mapping, optional
        Which value of every further dimension is drawn, by its name or the field's: ``{"tokens.sigma": 0.5}``.

    Returns
    -------
    matplotlib.figure.Figure

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
    _dataset("theory", theory, "points")
    at = _chosen(at)
    theory, up = _over_two(_at(theory, at))
    semantic, positional = _both(theory)
    loss_gap = semantic["training_loss"] - positional["training_loss"]
    lowest = theory.sel(branch=["semantic", "positional"])
    lowest = lowest.isel(branch=lowest["training_loss"].fillna(np.inf).argmin("branch"))
    error_gap = lowest["test_error"] - lowest["linear_test_error"]
    symbols = {name: _symbol(theory, name).strip("$") for name in ("training_loss", "test_error", "linear_test_error")}
    loss, error, linear = symbols["training_loss"], symbols["test_error"], symbols["linear_test_error"]
    sem, pos = r"^{\mathrm{sem}}", r"^{\mathrm{pos}}"
    unsettled = (theory["status"] != Status.converged).any("branch")
    # where one of the branches has fallen onto the trivial point there is no transition between the two
    both = (_size(semantic, "theta") > _VISIBLE) & (_size(positional, "m") > _VISIBLE)
    transition = loss_gap.where(both)
    compared = bool(error_gap.notnull().any())
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(6.9, 5.6), layout="constrained")
        axes = figure.subplots(2, 2, sharex=True, sharey=True)
        for ax, name in ((axes[0, 0].set_xscale, "alpha"), (axes[0, 0].set_yscale, up)):
            if spacing(theory[name].to_numpy()) == "log":
                ax("log")
        _map(axes[0, 0], 1e3 * loss_gap, up, rf"$10^3\,({loss}{sem} - {loss}{pos})$", True, unsettled)
        if compared:
            _map(axes[0, 1], 1e3 * error_gap, up, rf"$10^3\,({error} - {linear})$", True, unsettled)
        else:
            _map(axes[0, 1], 1e3 * lowest["test_error"], up, rf"$10^3\,{error}$", False, unsettled)
        _map(axes[1, 0], _size(lowest, "theta"), up, _entry(theory, "theta"), False, unsettled)
        _map(axes[1, 1], _size(lowest, "m"), up, _entry(theory, "m"), False, unsettled)
        _contour(axes[0, 0], transition, up, r"$\alpha_c$", "black")
        _contour(axes[0, 1], error_gap, up, r"$\alpha_l$", "black")
        titles = (
            "training loss, semantic minus positional",
            f"test error, lower branch{' minus linear' if compared else ''}",
            "overlap with the teacher, lower branch",
            "overlap with the positions, lower branch",
        )
        for ax, letter, title in zip(axes.ravel(), "abcd", titles, strict=True):
            ax.set_title(f"({letter}) {title}")
        for ax in axes[1]:
            ax.set_xlabel(_symbol(theory, "alpha"))
        for ax in axes[:, 0]:
            ax.set_ylabel(_symbol(theory, up))
        for ax in axes[1]:
            _contour(ax, transition, up, r"$\alpha_c$", "white")
        if bool(unsettled.any()):
            patch = Patch(facecolor="none", edgecolor="0.55", hatch=_HATCH, label="a branch is not converged here")
            figure.legend(handles=[patch], loc="outside lower center", frameon=False)
        _name_the_chosen(figure, theory, at)
    return figure


FIGURES: dict[str, Callable[..., Figure]] = {"fig2": fig2, "fig3": fig3}
"""The figures by name."""


def comparison_figure(comparison: Comparison) -> Figure:
    """Theory and experiment side by side: over 1/d, or over alpha if the experiment has several.

    Parameters
    ----------
    comparison : attnphase.checks.comparison.Comparison

    Returns
    -------
    matplotlib.figure.Figure
        Bars are one standard error.  Over 1/d with the fitted corrections, over alpha at the largest dimension.

    Raises
    ------
    DatasetError
        There is nothing in it to draw.
    ProblemError
        `comparison` is none.
    """
    from attnphase.checks.comparison import Comparison

    arguments.instance("comparison", comparison, Comparison)
    if not comparison.quantities:
        raise DatasetError("the comparison has no quantities to draw: compare runs that were counted.")
    over_alpha = len({q.alpha for q in comparison.quantities}) > 1
    names = _compared(comparison.quantities)
    with mpl.rc_context(_STYLE):
        columns = min(3, len(names))
        rows = -(-len(names) // columns)
        figure = Figure(figsize=(2.4 * columns + 0.3, 2.1 * rows + 0.4), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        starts = list(dict.fromkeys(q.start for q in comparison.quantities))
        for ax, name in zip(axes, names, strict=False):
            for i, start in enumerate(starts):
                chosen = [q for q in comparison.quantities if (q.start, q.name) == (start, name)]
                if over_alpha:
                    _along_alpha(ax, chosen)
                elif chosen:
                    _along_dimension(ax, chosen[0], i - (len(starts) - 1) / 2)
            base, _, index = name.partition("[")
            latex = comparison.theory[base].attrs["latex"].replace(r"\ell", f"{{{index.rstrip(']')}}}")
            ax.set_ylabel(f"${latex}$")
            ax.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)
            ax.set_xlabel(r"$\alpha$" if over_alpha else r"$1/d$")
        for ax in axes[len(names) :]:
            ax.set_visible(False)
        handles: list[tuple[Any, str]] = []
        for start in starts:
            handles.append((Line2D([], [], color=_COLOURS[start], lw=1.3), f"{start}, theory"))
            marker = Line2D([], [], color=_COLOURS[start], ls="", marker=_MARKERS[start], ms=4)
            largest = max(one.dimension for q in comparison.quantities for one in q.measured)
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

    Raises
    ------
    DatasetError
        A dimension, a branch or a start is missing.
    ProblemError
        An argument is no dataset.
    """
    _dataset("theory", theory, "points")
    _dataset("runs", runs, "experiments")
    _need(theory, "branch", "omega", "alpha")
    _need(runs, "start", "dimension", "omega", "alpha", "seed")
    _both(theory)
    _both(runs, "start")
    runs = runs.isel(dimension=-1)
    mean = runs["training_loss"].mean("seed")
    measured = mean.sel(start="semantic") - mean.sel(start="positional")
    expected = theory["training_loss"].sel(branch="semantic") - theory["training_loss"].sel(branch="positional")
    unsettled = (theory["status"] != Status.converged).any("branch")
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(6.9, 2.9), layout="constrained")
        axes = figure.subplots(1, 2, sharex=True, sharey=True)
        label = r"$10^3\,(\epsilon_t^{\mathrm{sem}} - \epsilon_t^{\mathrm{pos}})$"
        _map(axes[0], 1e3 * measured, "omega", label, True, xr.zeros_like(measured, dtype=bool))
        _map(axes[1], 1e3 * expected, "omega", label, True, unsettled)
        for ax in axes:
            _contour(ax, expected, "omega", r"$\alpha_c$", "black")
            ax.set_xlabel(_symbol(theory, "alpha"))
        axes[0].set_ylabel(_symbol(theory, "omega"))
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

    Raises
    ------
    DatasetError
        A dimension is missing.
    ProblemError
        An argument is no dataset.
    """
    _dataset("theory", theory, "points")
    _dataset("runs", runs, "experiments")
    for ds, dim in ((theory, "branch"), (runs, "start")):
        if dim not in ds.dims:
            raise DatasetError(f"the dataset has no dimension {dim}, which this figure needs.")
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(3.6, 3.3), layout="constrained")
        ax = figure.subplots()
        for start in map(str, runs["start"].to_numpy()):
            chosen = runs.sel(start=start)
            m, theta = overlap_size(chosen, "m").to_numpy().ravel(), overlap_size(chosen, "theta").to_numpy().ravel()
            ax.plot(m, theta, ls="", marker=".", ms=4, alpha=0.5, color=_COLOURS[start], label=f"runs, {start} start")
        for branch in map(str, theory["branch"].to_numpy()):
            point = theory.sel(branch=branch).squeeze()
            ax.plot(
                overlap_size(point, "m"), overlap_size(point, "theta"), ls="", marker=_MARKERS[branch], ms=8,
                mec="black", color=_COLOURS[branch], label=f"theory, {branch}", clip_on=False, zorder=3,
            )  # fmt: skip
        ax.set_xlabel(_entry(theory, "m"))
        ax.set_ylabel(_entry(theory, "theta"))
        ax.set_xlim(left=0)
        ax.set_ylim(bottom=0)
        ax.legend(frameon=False)
    return figure


def attention_figure(runs: xr.Dataset, run: int = 0) -> Figure:
    """Attention matrices of the given sequences, of both mechanisms, before and after everything was trained.

    Parameters
    ----------
    runs : xarray.Dataset
        Schema ``histogram``.
    run : int
        Which one is drawn.

    Returns
    -------
    matplotlib.figure.Figure
        A row for each sequence.

    Raises
    ------
    DatasetError
        A dimension is missing.
    ProblemError
        `runs` is no dataset, or has no such run.
    """
    _dataset("runs", runs, "histogram")
    _need(runs, "mechanism", "run", "stage", "sequence")
    run = arguments.whole("run", run, 0, int(runs["run"].max()))
    made = runs["status"].sel(run=run) != RunStatus.not_computed
    columns = [
        (str(mechanism), str(stage))
        for mechanism in runs["mechanism"].to_numpy()
        for stage in runs["stage"].to_numpy()
        if bool(made.sel(mechanism=mechanism, stage=stage))
    ]
    count, length = runs.sizes["sequence"], runs.sizes["token"]
    largest = np.nan_to_num(float(runs["attention"].sel(run=run).max()), nan=1.0)  # a run that diverged has none
    with mpl.rc_context(
        {**_STYLE, "xtick.top": False, "ytick.right": False, "xtick.labelsize": 6, "ytick.labelsize": 6}
    ):
        figure = Figure(figsize=(1.75 * len(columns) + 0.7, 1.8 * count + 0.2), layout="constrained")
        axes = figure.subplots(count, len(columns), squeeze=False)
        for (row, col), ax in np.ndenumerate(axes):
            mechanism, stage = columns[col]
            matrix = runs["attention"].sel(mechanism=mechanism, stage=stage, run=run).isel(sequence=row)
            ax.imshow(matrix.to_numpy(), vmin=0, vmax=largest, cmap=_SEQUENTIAL, interpolation="nearest")
            labels = [_letter(symbol) for symbol in runs["symbols"].isel(sequence=row).to_numpy().tolist()]
            ax.set_xticks(range(length), labels)
            ax.set_yticks(range(length), labels)
            ax.tick_params(length=0)
            if row == 0:
                ax.set_title(f"{mechanism}, {stage}")
        figure.colorbar(axes[0, 0].images[0], ax=axes, label=_symbol(runs, "attention"), shrink=0.6)
    return figure


def learning_figure(runs: xr.Dataset) -> Figure:
    """Loss and error along the epochs of the histogram task, and how positional and semantic attention became.

    Parameters
    ----------
    runs : xarray.Dataset
        Schema ``histogram``.

    Returns
    -------
    matplotlib.figure.Figure
        Thin lines are single runs, thick ones their mean; the second stage is drawn behind the first.

    Raises
    ------
    DatasetError
        A dimension is missing.
    ProblemError
        `runs` is no dataset.
    """
    _dataset("runs", runs, "histogram")
    _need(runs, "mechanism", "run", "stage")
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(7.0, 2.5), layout="constrained")
        loss, error, shares = figure.subplots(1, 3)
        for mechanism in map(str, runs["mechanism"].to_numpy()):
            here, colour = runs.sel(mechanism=mechanism), _COLOURS[mechanism]
            begin = 0
            for stage in runs["stage"].to_numpy():
                if bool((here["status"].sel(stage=stage) == RunStatus.not_computed).all()):
                    continue
                part = here.sel(stage=stage).dropna("epoch", how="all", subset=["epoch_accuracy"])
                epochs = begin + part["epoch"].to_numpy()
                begin += part.sizes["epoch"]
                for ax, curves in ((loss, part["epoch_test_loss"]), (error, 1 - part["epoch_accuracy"])):
                    curves = curves.transpose("epoch", "run").to_numpy()
                    marker = "." if len(epochs) == 1 else ""  # one point makes no line
                    ax.plot(epochs, curves, color=colour, lw=0.4, alpha=0.4, marker=marker)
                    first = mechanism if stage == "frozen" else None
                    ax.plot(epochs, curves.mean(1), color=colour, lw=1.2, label=first)
                off = here.sel(stage=stage, entries="off_diagonal")
                filled = colour if stage == "frozen" else "none"
                shares.plot(
                    off["position_share"], off["token_share"], ls="", color=colour, clip_on=False,
                    marker=_MARKERS[mechanism], ms=4 if stage == "frozen" else 9, mfc=filled,
                    label=f"{mechanism}, {stage}",
                )  # fmt: skip
        for ax, name in ((loss, "epoch_test_loss"), (error, "error")):
            ax.set_yscale("log")
            ax.set_xlabel("epochs, frozen then unfrozen")
            ax.set_ylabel(_symbol(runs, name) if name in runs else r"wrong counts, $1 - a$")
        loss.legend(frameon=False)
        shares.set(xlim=(-0.05, 1.05), ylim=(-0.05, 1.05))
        shares.set_xlabel(_symbol(runs, "position_share"))
        shares.set_ylabel(_symbol(runs, "token_share"))
        shares.legend(frameon=False)
    return figure


def _letter(symbol: int) -> str:
    """A symbol as a letter, as long as there are some."""
    return chr(ord("A") + symbol) if symbol < 26 else str(symbol)


def _compared(quantities: tuple[Quantity, ...]) -> list[str]:
    """Names of what is drawn: scalars, and of every overlap the first token's entry with the largest value."""
    names = list(dict.fromkeys(q.name for q in quantities))
    chosen = [name for name in ("training_loss", "test_error", "weight_norm", "density") if name in names]
    for overlap in ("q", "m", "theta"):
        entries = [q for q in quantities if q.name.startswith(f"{overlap}[1,")]
        if entries:
            chosen.append(max(entries, key=lambda q: abs(q.theory)).name)
    return chosen[:6]


def _along_alpha(ax: Axes, quantities: list[Quantity]) -> None:
    line = sorted(quantities, key=lambda q: q.alpha)
    if not line:
        return
    start, alphas = line[0].start, [q.alpha for q in line]
    ax.plot(alphas, [q.theory for q in line], color=_COLOURS[start], lw=1.3)
    last = [q.measured[-1] for q in line]
    ax.errorbar(
        alphas, [one.value for one in last], np.nan_to_num([one.stderr for one in last]), ls="",
        marker=_MARKERS[start], ms=3.5, mew=0.5, mec="white", color=_COLOURS[start], elinewidth=0.8,
    )  # fmt: skip


def _along_dimension(ax: Axes, quantity: Quantity, side: float) -> None:
    """Means over 1/d with the fit; the theory's line and the fit's limit at 0."""
    start, measured = quantity.start, quantity.measured
    colour = _COLOURS[start]
    x = np.array([1 / one.dimension for one in measured])
    right = 1.08 * x.max()
    ax.axhline(quantity.theory, color=colour, lw=1.3)
    if np.isfinite(quantity.theory_stderr) and quantity.theory_stderr > 0:
        low, high = quantity.theory - quantity.theory_stderr, quantity.theory + quantity.theory_stderr
        ax.axhspan(low, high, color=colour, alpha=0.3, lw=0)
    apart = 0.012 * right * side  # two starts at one dimension must not hide each other
    ax.errorbar(
        x + apart, [one.value for one in measured], np.nan_to_num([one.stderr for one in measured]), ls="",
        marker=_MARKERS[start], ms=3.5, mew=0.5, mec="white", color=colour, elinewidth=0.8,
    )  # fmt: skip
    if quantity.limit is not None:
        ends = np.array([0.0, right])
        ax.plot(ends, quantity.limit.value + quantity.limit.slope * ends, color=colour, lw=0.8, ls=":")
    ax.set_xlim(-0.04 * right, right)


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
    with mpl.rc_context(_STYLE):
        image = io.BytesIO()
        try:
            figure.savefig(image, format=kind)
        except ValueError as error:  # of a label that is no formula
            reason = " ".join(str(error).split())[-100:]
            raise DatasetError(
                f"{path}: the figure cannot be drawn: {reason}: mend the attributes latex of the dataset."
            ) from None
    write_file(path, image.getvalue())


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
    _dataset("theory", theory, "points")
    _need(theory, "branch", "alpha")
    semantic, positional = _both(theory)
    return _crossing(semantic, "training_loss", positional, "training_loss")


def _crossing(first: xr.Dataset, name: str, second: xr.Dataset, other: str) -> Threshold:
    first, second = first.sortby("alpha"), second.sortby("alpha")
    error = np.hypot(first[f"{name}_stderr"].to_numpy(), second[f"{other}_stderr"].to_numpy())
    difference = first[name].to_numpy() - second[other].to_numpy()
    return crossing(first["alpha"].to_numpy().tolist(), difference.tolist(), error.tolist())


# -------------------------------------------------------------------------------------------------------------- parts


def _dataset(name: str, ds: xr.Dataset, kind: str) -> None:
    """Refuse what is no dataset of a kind; `name` is the argument's."""
    validate_dataset(arguments.instance(name, ds, xr.Dataset))
    if ds.attrs["schema"] != kind:
        raise DatasetError(f'{name} must be a dataset of kind "{kind}", but is "{ds.attrs["schema"]}".')


def _both(ds: xr.Dataset, dim: str = "branch") -> tuple[xr.Dataset, xr.Dataset]:
    """The semantic and the positional part."""
    for name in ("semantic", "positional"):
        if name not in ds[dim]:
            raise DatasetError(f"the dataset has no {name} {dim}, which this figure needs.")
    return ds.sel({dim: "semantic"}), ds.sel({dim: "positional"})


def _need(ds: xr.Dataset, *dims: str) -> None:
    for dim in dims:
        if dim not in ds.dims:
            raise DatasetError(f"the dataset has no dimension {dim}, which this figure needs.")
    others = set(map(str, ds["status"].dims)) - set(dims)
    if others:
        raise DatasetError(f"the dataset varies {sorted(others)[0]} too: select one value of it first.")


def _chosen(at: Mapping[str, Any] | None) -> dict[str, Any]:
    return {} if at is None else arguments.mapping("at", at, "a mapping from dimensions or fields to a value of each")


def _at(ds: xr.Dataset, chosen: Mapping[str, Any]) -> xr.Dataset:
    """The dataset at one value of each of the named dimensions, which stay."""
    for dim in ("branch", "alpha"):
        if dim not in ds.dims:
            raise DatasetError(f"the dataset has no dimension {dim}, which this figure needs.")
    for name, value in chosen.items():
        dim = next((dim for dim in _swept(ds) if name in (dim, ds[dim].attrs.get("field"))), None)
        if dim is None:
            raise DatasetError(f"the dataset does not vary {name}; it varies {', '.join(_swept(ds))}.")
        values = ds[dim].to_numpy().tolist()
        places = [i for i, there in enumerate(values) if _same(there, value)]
        if not places:
            raise DatasetError(f"the dataset has no {dim} = {_plain(value)}; it has {_listed(values)}.")
        ds = ds.isel({dim: places[:1]})
    return ds


def _swept(ds: xr.Dataset) -> list[str]:
    return list(map(str, ds["status"].dims))


def _same(there: Any, value: Any) -> bool:
    """Whether a value of the grid is the one asked for, which may be written with fewer digits."""
    if isinstance(there, float) and isinstance(value, int | float):
        return bool(np.isclose(there, value, rtol=1e-9, atol=0))
    return there == value


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, int | float) else str(value) if isinstance(value, str) else repr(value)


def _listed(values: list[Any]) -> str:
    shown = [_plain(value) for value in values]
    return ", ".join(shown if len(shown) <= 12 else [*shown[:10], "...", shown[-1]])


def _over_one(ds: xr.Dataset) -> tuple[xr.Dataset, str]:
    """Branches along one dimension, alpha or the only field there is, and its name."""
    free = [dim for dim in _swept(ds) if dim != "branch" and ds.sizes[dim] > 1]
    across = "alpha" if "alpha" in free or not free else free[0]
    if across == "alpha" and "omega" in free:
        ds = _at(ds, {"omega": _OMEGA})
        free.remove("omega")
    _refuse_others(ds, [dim for dim in free if dim != across])
    if not free:
        raise DatasetError(
            "the dataset has one value of alpha and of every field: a curve needs several of one of them."
        )
    return _plane(ds, across), across


def _over_two(ds: xr.Dataset) -> tuple[xr.Dataset, str]:
    """Branches along alpha and the only field there is, and that field's name."""
    fields = [dim for dim in _swept(ds) if dim not in ("branch", "alpha") and ds.sizes[dim] > 1]
    if not fields or ds.sizes["alpha"] < 2:
        lacking = "alpha" if fields else "a field beside alpha"
        raise DatasetError(
            f"the dataset has not several values of {lacking}, which this figure needs; fig2 draws curves."
        )
    _refuse_others(ds, fields[1:])
    return _plane(ds, "alpha", fields[0]), fields[0]


def _refuse_others(ds: xr.Dataset, dims: list[str]) -> None:
    if dims:
        raise DatasetError(f"the dataset varies {dims[0]} too: {_select_one(ds, dims[0])}.")


def _select_one(ds: xr.Dataset, dim: str) -> str:
    values = ds[dim].to_numpy().tolist()
    return f"select one of {_listed(values)}, as --at {dim}={_plain(values[0])} (at={{{dim!r}: {values[0]!r}}})"


def _plane(ds: xr.Dataset, *axes: str) -> xr.Dataset:
    """Only the branches and these dimensions, which are numbers, in increasing order."""
    for dim in axes:
        if ds[dim].dtype.kind not in "iuf":
            raise DatasetError(f"{dim} has no numbers for an axis: {_select_one(ds, dim)}.")
    ds = ds.squeeze([dim for dim in _swept(ds) if dim not in ("branch", *axes)])
    return ds.sortby([*axes])


def _is_papers(ds: xr.Dataset) -> bool:
    """Whether curves along alpha are of the problem that the published runs are of, however it is integrated."""
    if "problem" not in ds.attrs:
        return False
    there = tomllib.loads(ds.attrs["problem"])
    for name in map(str, ds.coords):
        section, _, key = ds[name].attrs.get("field", "").partition(".")
        if key and ds[name].ndim == 0:
            there.setdefault(section, {})[key] = ds[name].item()
    papers = Problem().with_fields({"teacher.omega": _OMEGA}).to_dict()
    return {**there, "integration": None} == {**papers, "integration": None}


def _name_the_chosen(figure: Figure, ds: xr.Dataset, at: Mapping[str, Any]) -> None:
    """Above the figure, the values that the caller selected."""
    chosen = [dim for dim in map(str, ds.coords) if {dim, ds[dim].attrs.get("field")} & at.keys() and ds[dim].ndim == 0]
    if chosen:
        values = (f"{_symbol(ds, dim)} = {_plain(ds[dim].item())}" for dim in chosen)
        figure.suptitle(", ".join(values), fontsize=9)


def _symbol(ds: xr.Dataset, name: str) -> str:
    return f"${ds[name].attrs['latex']}$"


def _entry(ds: xr.Dataset, name: str) -> str:
    """The symbol of what `_size` returns."""
    latex = ds[name].attrs["latex"].replace(r"\ell", "1")
    return rf"$|{latex}|$"


def _size(ds: xr.Dataset, name: str) -> xr.DataArray:
    """The first token's overlap, of a mixture with all its clusters together."""
    size = overlap_size(ds, name)
    return (size**2).sum("cluster") ** 0.5 if "cluster" in size.dims else size


def _size_error(ds: xr.Dataset, name: str) -> xr.DataArray:
    """First-order standard error of `_size`: at most that of its largest entries together."""
    array = ds[f"{name}_stderr"].isel(token=0)
    inner = [dim for dim in ("row", "teacher", "cluster") if dim in array.dims]
    return (array**2).sum(inner) ** 0.5


def _curves(ax: Axes, theory: xr.Dataset, across: str, name: str, factor: float) -> None:
    for branch in map(str, theory["branch"].to_numpy()):
        line = theory.sel(branch=branch)
        scalar = line[name].ndim == 1
        value = factor * (line[name] if scalar else _size(line, name)).to_numpy()
        error = factor * (line[f"{name}_stderr"] if scalar else _size_error(line, name)).fillna(0).to_numpy()
        place, colour = line[across].to_numpy(), _COLOURS[branch]
        settled = (line["status"] == Status.converged).to_numpy()
        ax.plot(place[settled], value[settled], color=colour, lw=1.3)
        low, high = (value - error)[settled], (value + error)[settled]
        ax.fill_between(place[settled], low, high, color=colour, alpha=0.3, lw=0)
        ax.plot(place[~settled], value[~settled], ls="", marker="D", mfc="white", mec=colour, ms=4, zorder=3)


def _experiment(ax: Axes, name: str, factor: float, branches: list[str]) -> None:
    table = read_reference("fig2_gradient_descent")
    for branch in branches:
        rows = table[table["start"] == branch]
        ax.errorbar(
            rows["alpha"], factor * rows[name], factor * rows[f"{name}_sd"], ls="", marker=_MARKERS[branch], ms=3,
            mew=0.5, mec="white", color=_COLOURS[branch], elinewidth=0.7, capsize=0, zorder=2,
        )  # fmt: skip


def _label(ax: Axes, theory: xr.Dataset, name: str, factor: float, letter: str) -> None:
    symbol = _symbol(theory, name) if theory[name].ndim == 2 else _entry(theory, name)
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
        colour = _COLOURS[branch]
        line, band = Line2D([], [], color=colour, lw=1.3), Patch(facecolor=colour, alpha=0.3, lw=0)
        handles.append(((band, line), rf"{branch}, theory ($\pm$ s.e.)"))
        if experiments and branch != "uninformed":
            label = rf"{branch}, gradient descent ($d=1000$, $\pm$ s.d.)"
            handles.append((Line2D([], [], color=colour, ls="", marker=_MARKERS[branch], ms=4), label))
    if baseline:
        handles.append((Line2D([], [], color="0.3", ls="--", lw=1), "linear predictor"))
    if bool((theory["status"] != Status.converged).any()):
        handles.append((Line2D([], [], color="0.3", ls="", marker="D", mfc="white", ms=4), "theory not converged"))
    return handles


def _map(ax: Axes, values: xr.DataArray, up: str, label: str, signed: bool, unsettled: xr.DataArray) -> None:
    """Values over alpha and the dimension `up`."""
    numbers = values.transpose(up, "alpha").to_numpy()
    limits: dict[str, Any] = {"vmin": 0.0, "cmap": _SEQUENTIAL}
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
    hatched = np.ma.masked_where(~unsettled.transpose(up, "alpha").to_numpy(), np.zeros_like(numbers))
    if hatched.count():
        ax.pcolor(across, upwards, hatched, shading=shading, hatch=_HATCH, cmap=ListedColormap(["none"]))


def _edges(centres: np.ndarray, scale: str) -> np.ndarray:
    """Edges of cells around the values of an axis, one more than these."""
    places = np.log(centres) if scale == "log" else centres.astype(float)
    middle = (places[1:] + places[:-1]) / 2
    edges = np.concatenate([[2 * places[0] - middle[0]], middle, [2 * places[-1] - middle[-1]]])
    return np.exp(edges) if scale == "log" else edges


def _contour(ax: Axes, values: xr.DataArray, up: str, label: str, colour: str) -> None:
    values = values.transpose(up, "alpha")
    numbers = values.to_numpy()
    known = numbers[np.isfinite(numbers)]
    if not known.size or not known.min() < 0 < known.max():
        return
    lines = ax.contour(values["alpha"], values[up], numbers, levels=[0.0], colors=colour, linewidths=1.2)
    ax.clabel(lines, fmt=lambda _: label, fontsize=9)
