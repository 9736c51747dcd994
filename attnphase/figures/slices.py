"""Figure 9 of the paper: curves of both branches along alpha, for a few values of a field each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from attnphase import arguments
from attnphase.data.reading import spacing, told_problem
from attnphase.errors import DatasetError
from attnphase.figures.selection import (
    at_values,
    check_dataset,
    check_quantity,
    chosen_values,
    over_values,
    shown_value,
)
from attnphase.figures.style import SEQUENTIAL, STYLE, name_the_chosen, size_symbol_of, symbol_of
from attnphase.figures.theory import draw_curve, draw_runs, marks_of_curves
from attnphase.reference import published_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["fig9"]

_LINES = {"semantic": "-", "positional": (0, (5, 1.5)), "uninformed": (0, (1, 1)), "mixed": "-."}
_MOST = 6  # values whose curves can be told apart
_LIGHTEST = 0.82  # of the colours of a map, the part that is dark enough for a line


def fig9(
    theory: xr.Dataset | list[xr.Dataset] | tuple[xr.Dataset, ...],
    *,
    quantity: str = "test_error",
    experiments: bool = True,
    at: Mapping[str, Any] | None = None,
) -> Figure:
    """Test error of the branches along alpha, for every value of a field, a panel for each dataset.

    Parameters
    ----------
    theory : xarray.Dataset, or list or tuple of them
        Branches over alpha and one field.
    quantity : str
        What is drawn: a variable with a standard error and without inner dimensions, such as a test metric, or "m" or
        "theta".
    experiments : bool
        Whether published gradient-descent runs are drawn where there are some of the same problem.
    at : mapping, optional
        Which value of every further dimension is drawn, by its name or the field's.

    Returns
    -------
    matplotlib.figure.Figure
        Lighter colours for larger values; lines of different dashes for the branches, with their standard errors. They
        are dotted where a branch has merged with the uninformed point, and have dots where replica symmetry fails.

    Raises
    ------
    DatasetError
        A dataset has not the dimensions branch, alpha and one field, or too many values of that, or not `quantity`.
    ProblemError
        An argument is of the wrong type.

    Notes
    -----
    Figure 9 of arXiv:2402.03902 has the test error of trained students over omega, sigma and lambda.
    """
    at, given = chosen_values(at), [*theory] if isinstance(theory, list | tuple) else [theory]
    if not given:
        raise DatasetError("theory has no dataset to draw: give one or more.")
    arguments.text("quantity", quantity, "the name of a variable")
    experiments = arguments.flag("experiments", experiments)
    panels = []
    for ds in given:
        check_dataset("theory", ds, "points")
        check_quantity(ds, quantity)
        panels.append(over_values(at_values(ds, at), _MOST))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(0.6 + 2.4 * max(len(panels), 1.6), 3.1), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        published = [_panel(ax, ds, along, quantity, experiments) for ax, (ds, along) in zip(axes, panels, strict=True)]
        first = panels[0][0]
        _name_the_axes(axes, first, quantity)
        for ax, letter in zip(axes, "abcdefgh", strict=False):
            ax.set_title(f"({letter})" if len(given) > 1 else "", loc="left")
        handles = _branches(list(dict.fromkeys(b for ds, _ in panels for b in map(str, ds["branch"].to_numpy()))))
        if any(published):
            runs = Line2D([], [], color="0.3", ls="", marker="o", ms=3)
            handles.append((runs, r"gradient descent ($d=1000$, $\pm$ s.d.)"))
        drawn, labels = zip(*handles, *marks_of_curves([ds for ds, _ in panels]), strict=True)
        # three columns are wider than two panels, and two than one
        figure.legend(drawn, labels, loc="outside lower center", ncols=3 if len(panels) > 2 else 2, frameon=False)
        name_the_chosen(figure, first, at)
    return figure


_SCALED = ("test_error", "training_loss")
_WIDE = 10.0  # ratio of the values from which on an axis is logarithmic


def _panel(ax: Axes, ds: xr.Dataset, along: str, quantity: str, experiments: bool) -> bool:
    """Curves for every value along a dimension; whether published runs are among them."""
    factor, runs_drawn, handles = 1e3 if quantity in _SCALED else 1.0, False, []
    values = ds[along].to_numpy()
    colours = mpl.colormaps[SEQUENTIAL](np.linspace(0, _LIGHTEST, len(values)))
    for i, colour in enumerate(colours):
        here = ds.isel({along: i})
        runs = published_runs(told_problem(here)) if experiments else None
        known = runs is not None and f"{quantity}_sd" in (runs.dtype.names or ())
        for branch in map(str, here["branch"].to_numpy()):
            look = {"color": colour, "ls": _LINES[branch]}
            draw_curve(ax, here.sel(branch=branch), "alpha", quantity, factor, look)
            if runs is not None and known:
                draw_runs(ax, runs, branch, quantity, factor, colour)
                runs_drawn = True
        handles.append(Line2D([], [], color=colour, lw=2, label=shown_value(values[i].item())))
    ax.legend(handles=handles, title=symbol_of(ds, along), frameon=False, handlelength=1.2)
    ax.set_xlabel(symbol_of(ds, "alpha"))
    if spacing(ds["alpha"].to_numpy()) == "log":
        ax.set_xscale("log")
    low, high = (float(of(skipna=True)) for of in (ds[quantity].min, ds[quantity].max))
    if quantity in _SCALED and high > _WIDE * low > 0:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        ax.yaxis.set_minor_formatter("{x:g}")
    return runs_drawn


def _name_the_axes(axes: Any, ds: xr.Dataset, quantity: str) -> None:
    symbol = symbol_of(ds, quantity) if quantity not in ("m", "theta") else size_symbol_of(ds, quantity)
    axes[0].set_ylabel(r"$10^{3}\,$" + symbol if quantity in _SCALED else symbol)


def _branches(names: Sequence[str]) -> list[tuple[Any, str]]:
    """Entries of the legend for the branches' dashes."""
    line = {"color": "0.3", "lw": 1.3, "marker": ""}
    return [(Line2D([], [], ls=_LINES[name], **line), rf"{name}, theory ($\pm$ s.e.)") for name in names]
