"""Figures 3 and 8 of the paper: the phase diagram, maps over alpha and a field of the problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from attnphase.data.reading import spacing
from attnphase.data.trust import asymmetric, violated
from attnphase.figures.boundaries import check_boundaries, draw_boundaries
from attnphase.figures.filling import computed_points, filled
from attnphase.figures.selection import (
    at_values,
    both_branches,
    check_dataset,
    chosen_values,
    drawn_size,
    over_two,
)
from attnphase.figures.style import (
    COLOURS,
    COMPUTED,
    HATCH,
    STYLE,
    UNDECIDED,
    UNTRUSTED,
    VIOLATED,
    draw_contour,
    draw_map,
    draw_places,
    name_the_chosen,
    size_symbol_of,
    symbol_of,
)
from attnphase.fixed_points.transitions import TRANSITIONS
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.branches import Identity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["fig3"]

_VISIBLE = 5e-3  # overlaps below this are those of the trivial point; m and theta are of order 0.1 elsewhere


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
        With the lines where the training losses cross and where the semantic branch's test error passes the linear
        predictor's, without points at which a branch has merged, and in (a) dotted ones where a branch ends; circles
        are points of which that is not decided. Where a branch is not converged the maps are hatched, and dotted where
        replica symmetry fails (``overlap_gap`` above 0.2), with crosses where identities are violated: in (a) for any
        branch, else for the lower one. Between points of a refined sweep, which (d) shows, the maps are interpolated.

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
    passing = semantic["test_error"] - semantic["linear_test_error"]
    named = ("training_loss", "test_error", "linear_test_error")
    loss, error, linear = (symbol_of(theory, name).strip("$") for name in named)
    sem, pos = r"^{\mathrm{sem}}", r"^{\mathrm{pos}}"
    unsettled = (theory["status"] != Status.converged).any("branch")
    # where one of the branches has merged with the uninformed point there is no transition between the two
    identity = {"semantic": _identity(semantic, "theta"), "positional": _identity(positional, "m")}
    apart = {branch: one != Identity.merged for branch, one in identity.items()}
    transition, passing = loss_gap.where(apart["semantic"] & apart["positional"]), passing.where(apart["semantic"])
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
        draw_map(axes[1, 0], drawn_size(lowest, "theta"), up, size_symbol_of(theory, "theta"), False, unsettled)
        draw_map(axes[1, 1], drawn_size(lowest, "m"), up, size_symbol_of(theory, "m"), False, unsettled)
        for ax, (dots, crosses) in zip(axes.ravel(), distrusted := _distrusted(theory, lowest, computed), strict=True):
            draw_places(ax, dots, up, UNTRUSTED, every=False)
            draw_places(ax, crosses, up, VIOLATED)
        if computed is not None:
            draw_places(axes[1, 1], computed, up, COMPUTED)
        if thresholds is None:
            _contours(axes, (transition, passing), (_loss_error(semantic, positional), _gap_error(semantic)), up)
        lines = [] if thresholds is None else _boundaries(axes, thresholds)
        _label(axes, theory, up, compared)
        marks = _marks(unsettled, *distrusted[0], computed)
        if handles := [*lines, *_identities(axes, identity, up, computed), *marks]:
            figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
        name_the_chosen(figure, theory, at)
    return figure


def _label(axes: Any, theory: xr.Dataset, up: str, compared: bool) -> None:
    """Titles of the panels and names of the axes."""
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


def _distrusted(
    theory: xr.Dataset, lowest: xr.Dataset, computed: xr.DataArray | None
) -> list[tuple[xr.DataArray, xr.DataArray]]:
    """Where replica symmetry fails, and where identities are violated: for either branch in (a), else for the lower."""
    both = theory.sel(branch=["semantic", "positional"])
    panels = [(asymmetric(both).any("branch"), violated(both).any("branch"))]
    panels += 3 * [(asymmetric(lowest), violated(lowest))]
    return panels if computed is None else [(fails, wrong & computed) for fails, wrong in panels]


def _lower_branch(theory: xr.Dataset) -> xr.Dataset:
    """The branch of lower training loss, point by point."""
    both = theory.sel(branch=["semantic", "positional"])
    return both.isel(branch=both["training_loss"].fillna(np.inf).argmin("branch"))


def _loss_error(semantic: xr.Dataset, positional: xr.Dataset) -> xr.DataArray:
    return (semantic["training_loss_stderr"] ** 2 + positional["training_loss_stderr"] ** 2) ** 0.5


def _gap_error(branch: xr.Dataset) -> xr.DataArray:
    return (branch["test_error_stderr"] ** 2 + branch["linear_test_error_stderr"] ** 2) ** 0.5


def _contours(
    axes: Any, differences: tuple[xr.DataArray, xr.DataArray], errors: tuple[xr.DataArray, xr.DataArray], up: str
) -> None:
    """Lines where the branches' training losses cross, and where the semantic test error passes the linear one."""
    draw_contour(axes[0, 0], differences[0], up, r"$\alpha_c$", "black", errors[0])
    draw_contour(axes[0, 1], differences[1], up, r"$\alpha_l$", "black", errors[1])
    for ax in axes[1]:
        draw_contour(ax, differences[0], up, r"$\alpha_c$", "white", errors[0])


def _boundaries(axes: Any, thresholds: xr.Dataset) -> list[Line2D]:
    """The thresholds with their errors; their lines for the legend."""
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
    return xr.where(drawn_size(ds, name) > _VISIBLE, int(Identity.on_branch), int(Identity.merged))


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


def _marks(
    unsettled: xr.DataArray, doubtful: xr.DataArray, wrong: xr.DataArray, computed: xr.DataArray | None
) -> list[Line2D | Patch]:
    """Entries of the legend for what is marked somewhere."""
    marks: list[Line2D | Patch] = []
    if bool(unsettled.any()):
        marks.append(Patch(facecolor="none", edgecolor="0.55", hatch=HATCH, label="a branch is not converged here"))
    if bool(doubtful.any()):
        marks.append(Line2D([], [], **UNTRUSTED, label="replica symmetry fails for a branch that is shown"))
    if bool(wrong.any()):
        marks.append(Line2D([], [], **VIOLATED, label="exact identities are violated for a branch that is shown"))
    if computed is not None:
        marks.append(Line2D([], [], **{**COMPUTED, "ms": 3}, label="computed in (d); interpolated between"))
    return marks
