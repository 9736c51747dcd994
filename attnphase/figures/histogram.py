"""The histogram task: attention matrices, and learning curves."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from attnphase import arguments
from attnphase.data.variables import RunStatus
from attnphase.figures.selection import check_dataset, vary_only
from attnphase.figures.style import COLOURS, MARKERS, SEQUENTIAL, STYLE, symbol_of

__all__ = ["attention_figure", "learning_figure"]


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
    check_dataset("runs", runs, "histogram")
    vary_only(runs, "mechanism", "run", "stage", "sequence")
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
        {**STYLE, "xtick.top": False, "ytick.right": False, "xtick.labelsize": 6, "ytick.labelsize": 6}
    ):
        figure = Figure(figsize=(1.75 * len(columns) + 0.7, 1.8 * count + 0.2), layout="constrained")
        axes = figure.subplots(count, len(columns), squeeze=False)
        for (row, col), ax in np.ndenumerate(axes):
            mechanism, stage = columns[col]
            matrix = runs["attention"].sel(mechanism=mechanism, stage=stage, run=run).isel(sequence=row)
            ax.imshow(matrix.to_numpy(), vmin=0, vmax=largest, cmap=SEQUENTIAL, interpolation="nearest")
            labels = [_letter(symbol) for symbol in runs["symbols"].isel(sequence=row).to_numpy().tolist()]
            ax.set_xticks(range(length), labels)
            ax.set_yticks(range(length), labels)
            ax.tick_params(length=0)
            if row == 0:
                ax.set_title(f"{mechanism}, {stage}")
        figure.colorbar(axes[0, 0].images[0], ax=axes, label=symbol_of(runs, "attention"), shrink=0.6)
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
    check_dataset("runs", runs, "histogram")
    vary_only(runs, "mechanism", "run", "stage")
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.0, 2.5), layout="constrained")
        loss, error, shares = figure.subplots(1, 3)
        for mechanism in map(str, runs["mechanism"].to_numpy()):
            here, colour = runs.sel(mechanism=mechanism), COLOURS[mechanism]
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
                    marker=MARKERS[mechanism], ms=4 if stage == "frozen" else 9, mfc=filled,
                    label=f"{mechanism}, {stage}",
                )  # fmt: skip
        for ax, name in ((loss, "epoch_test_loss"), (error, "error")):
            ax.set_yscale("log")
            ax.set_xlabel("epochs, frozen then unfrozen")
            ax.set_ylabel(symbol_of(runs, name) if name in runs else r"wrong counts, $1 - a$")
        loss.legend(frameon=False)
        shares.set(xlim=(-0.05, 1.05), ylim=(-0.05, 1.05))
        shares.set_xlabel(symbol_of(runs, "position_share"))
        shares.set_ylabel(symbol_of(runs, "token_share"))
        shares.legend(frameon=False)
    return figure


def _letter(symbol: int) -> str:
    """A symbol as a letter, as long as there are some."""
    return chr(ord("A") + symbol) if symbol < 26 else str(symbol)
