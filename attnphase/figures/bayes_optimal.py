"""Training and the Bayes-optimal error: test errors along alpha, and the phase diagram of their ratio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator

from attnphase.data.reading import spacing, told_problem, whole_problem
from attnphase.data.variables import NOT_COMPUTED
from attnphase.errors import DatasetError
from attnphase.figures.filling import filled
from attnphase.figures.selection import (
    at_values,
    check_dataset,
    chosen_values,
    field_of,
    over_one,
    over_two,
    same_value,
    shown_value,
)
from attnphase.figures.style import (
    COLOURS,
    HATCH,
    MARKERS,
    STYLE,
    draw_map,
    name_the_chosen,
    symbol_of,
)
from attnphase.figures.theory import draw_curve, draw_runs, mark_alphas, marks_of_curves, theory_thresholds
from attnphase.problem.entries import get
from attnphase.reference import published_runs
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.branches import Identity
from attnphase.theories.bayes_optimal.dataset import THRESHOLDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

__all__ = ["LEARNERS_SECTIONS", "gap_figure", "limits_figure"]

LEARNERS_SECTIONS = ("tokens", "positions", "teacher")
"""Sections of a problem that the limit depends on: it knows of no student."""

_ALL_KNOWN = "0.82"  # grey of what has no ratio
_LARGEST = 100  # ratio that is told from larger ones
_SEEN = 1e-3  # overlap from which on something is known
_APART = 1e-3  # relative difference of the errors from both starts that is drawn


def limits_figure(theory: xr.Dataset, *, limit: xr.Dataset, at: Mapping[str, Any] | None = None) -> Figure:
    """Test errors along alpha: the branches, the linear predictor and the Bayes-optimal error, with thresholds.

    Parameters
    ----------
    theory : xarray.Dataset
        Branches over alpha, as of `attnphase.sweep`.
    limit : xarray.Dataset
        As of `attnphase.bayes_optimal`, of the same tokens and teacher; at any alphas. Its thresholds are marked if it
        has them.
    at : mapping, optional
        Which value of every further dimension is drawn, by its name or the field's.

    Returns
    -------
    matplotlib.figure.Figure
        (a) in units of 1e-3, with the published gradient-descent runs of the paper's problem; (b) over the
        Bayes-optimal error, on a logarithmic axis. Branches are marked in both as in `fig2`.

    Raises
    ------
    DatasetError
        A dataset is of another kind or problem, or varies something else too.
    ProblemError
        An argument is of the wrong type.
    """
    check_dataset("theory", theory, "points")
    check_dataset("limit", limit, "bayes_optimal")
    at = chosen_values(at)
    theory, across = over_one(at_values(theory, at))
    if across != "alpha":
        name = field_of(theory, across)
        raise DatasetError(f"the theory lies along {name}, but the limit along alpha: select one value of {name}.")
    limit = _at_theory(limit, theory)
    runs = published_runs(told_problem(theory))
    linear = theory["linear_test_error"].isel(branch=0)
    branches = list(map(str, theory["branch"].to_numpy()))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.9, 3.8), layout="constrained")
        axes = list(figure.subplots(1, 2))
        handles = [Line2D([], [], color=COLOURS[branch], lw=1.3, label=f"{branch}, theory") for branch in branches]
        for branch in branches:
            draw_curve(axes[0], theory.sel(branch=branch), "alpha", "test_error", 1e3, {"color": COLOURS[branch]})
            if runs is not None:
                draw_runs(axes[0], runs, branch, "test_error", 1e3, COLOURS[branch])
        if runs is not None:
            handles.append(Line2D([], [], color="0.3", ls="", marker="o", ms=3, label="gradient descent ($d=1000$)"))
        if bool(linear.notnull().any()):
            axes[0].plot(theory["alpha"], 1e3 * linear, color="0.3", ls="--", lw=1)
            handles.append(Line2D([], [], color="0.3", ls="--", lw=1, label="linear predictor"))
        handles += _draw_limit(axes[0], limit, ("uninformed", "informed"))
        _draw_ratio(axes[1], theory, limit)
        mark_alphas(axes, axes, {**_marked(limit, float(theory["alpha"].max())), **theory_thresholds(theory)})
        axes[0].set_ylabel(r"$10^{3}\,$" + symbol_of(theory, "test_error"))
        axes[0].set_ylim(bottom=0)
        for ax, letter in zip(axes, "ab", strict=True):
            ax.set_xlabel(symbol_of(theory, "alpha"))
            ax.set_xlim(0, float(theory["alpha"].max()) * 1.02)
            ax.text(0.98, 0.97, f"({letter})", transform=ax.transAxes, va="top", ha="right")
        for handle, label in marks_of_curves([theory]):
            handle.set_label(label)
            handles.append(handle)
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
        name_the_chosen(figure, theory, at)
    return figure


def gap_figure(theory: xr.Dataset, *, limit: xr.Dataset, at: Mapping[str, Any] | None = None) -> Figure:
    """Phase diagram: the best branch's test error over the Bayes-optimal one, and what a learner could know.

    Parameters
    ----------
    theory : xarray.Dataset
        Branches over alpha and one field.
    limit : xarray.Dataset
        As of `attnphase.bayes_optimal`, of the same tokens and teacher, at the same alphas and, if it depends on it,
        values of the field.
    at : mapping, optional
        Which value of every further dimension is drawn, by its name or the field's.

    Returns
    -------
    matplotlib.figure.Figure
        (a) the ratio, where the Bayes-optimal error is not zero: of the branch of lowest test error among those that
        converged, and with the lines where the training losses cross and where the semantic branch passes the linear
        predictor, as `limits_figure` finds them for every value of the field; (b) the share of the fields' variance
        that is known in the limit.  Dotted lines: where something is known, and where everything is.

    Raises
    ------
    DatasetError
        A dataset is of another kind or problem, lacks a dimension or a value, or varies something else too.
    ProblemError
        An argument is of the wrong type.
    """
    check_dataset("theory", theory, "points")
    check_dataset("limit", limit, "bayes_optimal")
    at = chosen_values(at)
    theory, up = over_two(at_values(theory, at))
    theory = filled(theory, up)
    limit = _best_start(_at_theory(limit, theory))
    if up not in limit["status"].dims:  # it knows of no student: the same for all of these
        limit = limit.expand_dims({up: theory[up]})
    ratio, unsettled = error_ratio(theory, limit)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.9, 3.4), layout="constrained")
        axes = figure.subplots(1, 2, sharex=True, sharey=True)
        for scale, name in ((axes[0].set_xscale, "alpha"), (axes[0].set_yscale, up)):
            if spacing(theory[name].to_numpy()) == "log":
                scale("log")
        axes[0].set_facecolor(_ALL_KNOWN)
        cut = f" (to {_LARGEST})" if bool((ratio > _LARGEST).any()) else ""
        draw_map(axes[0], ratio.clip(max=_LARGEST).pipe(np.log10), up, rf"$\log_{{10}}$ ratio{cut}", False, unsettled)
        draw_map(axes[1], limit["overlap"], up, symbol_of(limit, "overlap"), False)
        for ax in axes:
            _draw_edges(ax, limit, up)
            ax.set_xlabel(symbol_of(theory, "alpha"))
        _draw_transitions(axes[0], theory, up)
        axes[0].set_ylabel(symbol_of(theory, up))
        axes[0].set_title("(a) best branch over Bayes-optimal")
        axes[1].set_title("(b) what could be known")
        handles: list[Any] = [Line2D([], [], color="0.1", ls=":", lw=1.4, label="something, or all, can be known")]
        if bool((limit["test_error"] == 0).any()):
            handles.append(Patch(facecolor=_ALL_KNOWN, label="Bayes-optimal error is zero"))
        if bool(unsettled.any()):
            handles.append(
                Patch(facecolor="none", edgecolor="0.55", hatch=HATCH, label="a branch is not converged here")
            )
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
        name_the_chosen(figure, theory, at)
    return figure


def error_ratio(theory: xr.Dataset, limit: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray]:
    """The lowest test error among the converged branches over that of the limit; NaN where this is zero.

    Parameters
    ----------
    theory : xarray.Dataset
        Branches over alpha and perhaps a field.
    limit : xarray.Dataset
        Over the same, without start.

    Returns
    -------
    ratio, unsettled : xarray.DataArray
        With where a branch did not converge.
    """
    converged = theory["status"] == Status.converged
    best = theory["test_error"].where(converged).min("branch")
    return best / limit["test_error"].where(limit["test_error"] > 0), ~converged.all("branch")


def _at_theory(limit: xr.Dataset, theory: xr.Dataset) -> xr.Dataset:
    """The limit at the theory's values of every field that it varies, in the theory's order, or at its problem's.

    Raises
    ------
    DatasetError
        A value is missing, or the two are of different tokens or teachers.
    """
    told = whole_problem(theory)
    for dim in [str(dim) for dim in limit["status"].dims if dim not in ("start", "alpha")]:
        field = str(limit[dim].attrs.get("field", dim))
        fixed = dim not in theory.coords or theory[dim].ndim == 0
        values = [theory[dim].item() if dim in theory.coords else get(told, field)] if fixed else None
        limit = _selected(limit, dim, values or theory[dim].to_numpy().tolist())
        limit = limit.squeeze(dim) if fixed else limit
    if theory["status"].ndim > 2:  # of a map
        limit = _selected(limit, "alpha", theory["alpha"].to_numpy().tolist())
    known = whole_problem(limit)
    varied = {theory[dim].attrs.get("field") for dim in map(str, theory["status"].dims)}
    for section in LEARNERS_SECTIONS:
        for key in sorted({*told.get(section, {}), *known.get(section, {})}):
            ours, theirs = told.get(section, {}).get(key), known.get(section, {}).get(key)
            if ours != theirs:
                hint = (
                    f"compute it with --vary {section}.{key}=..." if f"{section}.{key}" in varied else "compute its own"
                )
                raise DatasetError(f"the limit is of another problem: {section}.{key} differs; {hint}.")
    return limit


def _selected(limit: xr.Dataset, dim: str, values: list[Any]) -> xr.Dataset:
    there = limit[dim].to_numpy()
    places = []
    for value in values:
        near = [i for i, one in enumerate(there.tolist()) if same_value(one, value)]
        if not near:
            raise DatasetError(
                f"the limit has no {field_of(limit, dim)} = {shown_value(value)}, which the theory has: compute it."
            )
        places.append(near[0])
    return limit.isel({dim: places})


def _best_start(limit: xr.Dataset) -> xr.Dataset:
    """Where starts lead to different points, the one of higher free entropy; that of a known teacher is infinite."""
    entropy = limit["free_entropy"].where(limit["recovered"] == 0, np.inf).fillna(-np.inf)
    return limit.isel(start=entropy.argmax("start"))


def _draw_limit(ax: Axes, limit: xr.Dataset, starts: tuple[str, ...]) -> list[Line2D]:
    """The Bayes-optimal error; that from an informed start too, where it is another one."""
    handles = []
    first = None
    for start, dashes in zip(starts, ("-", (0, (4, 1.5))), strict=True):
        if start not in limit["start"]:
            continue
        line = limit.sel(start=start).sortby("alpha")
        values, error = (1e3 * line[name].to_numpy() for name in ("test_error", "test_error_stderr"))
        if first is not None and np.allclose(values, first, rtol=_APART, atol=1e-9 * np.nanmax(np.abs(first))):
            continue
        first = values
        alpha = line["alpha"].to_numpy()
        look: dict[str, Any] = {"color": "black", "ls": dashes, "lw": 1.5, **_point(alpha)}
        ax.errorbar(alpha, values, error if look["marker"] else None, **look)
        ax.fill_between(alpha, values - error, values + error, color="black", alpha=0.25, lw=0)
        label = "Bayes-optimal" if start == starts[0] else "Bayes-optimal, informed start"
        handles.append(Line2D([], [], label=label, **look))
    return handles


def _point(alpha: Any) -> dict[str, Any]:
    """A marker where there is a single place, through which no line can be drawn."""
    return {"marker": "o" if len(alpha) == 1 else "", "ms": 4}


def _draw_ratio(ax: Axes, theory: xr.Dataset, limit: xr.Dataset) -> None:
    """Every branch's error, and the linear predictor's, over the Bayes-optimal one, interpolated between its alphas.

    The bands are of both errors, to first order.
    """
    best = _best_start(limit).sortby("alpha")
    given = theory["alpha"].to_numpy()
    alpha = np.union1d(given, best["alpha"].to_numpy())
    alpha = alpha[(alpha >= given.min()) & (alpha <= given.max())]
    error, stderr = (
        np.interp(alpha, best["alpha"], best[name].fillna(0), left=np.nan, right=np.nan)
        for name in ("test_error", "test_error_stderr")
    )
    error = np.where(error > 0, error, np.nan)
    _say_why_empty(ax, best, alpha, error)
    for branch in map(str, theory["branch"].to_numpy()):
        line = _between(theory.sel(branch=branch), alpha)
        ratio = line["test_error"] / error
        spread = np.hypot(line["test_error_stderr"] / error, ratio * stderr / error)
        line = line.assign(test_error=ratio, test_error_stderr=spread)
        draw_curve(ax, line, "alpha", "test_error", 1.0, {"color": COLOURS[branch]})
        if np.isfinite(error).sum() == 1:
            ax.errorbar(alpha, ratio, spread, color=COLOURS[branch], ls="", marker=MARKERS[branch], ms=4)
    linear = theory["linear_test_error"].isel(branch=0)
    ax.plot(alpha, np.interp(alpha, given, linear) / error, color="0.3", ls="--", lw=1)
    ax.axhline(1.0, color="black", lw=1.5)
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    ax.yaxis.set_minor_formatter("{x:g}")
    ax.set_ylabel("test error over the Bayes-optimal one")


def _say_why_empty(ax: Axes, best: xr.Dataset, alpha: NDArray[np.float64], error: NDArray[np.float64]) -> None:
    """A panel without a ratio says why it has none."""
    if np.isfinite(error).any():
        return
    zero = not bool((best["test_error"] > 0).any())
    reason = "the Bayes-optimal error\nis zero at all alphas" if zero else "limit and theory\nhave no alphas in common"
    if not zero and len(alpha):
        reason = "the Bayes-optimal error is zero\nat all alphas of the theory"
    ax.text(0.5, 0.7, reason, transform=ax.transAxes, ha="center", va="center", color="0.3")


def _between(line: xr.Dataset, alpha: NDArray[np.float64]) -> xr.Dataset:
    """The test error of a branch at its own alphas and others between them, where its two neighbours converged.

    A point between others has merged where one of them has, and carries no other mark.
    """
    given = line["alpha"].to_numpy()
    right = np.searchsorted(given, alpha)
    left = np.where(given[right] == alpha, right, right - 1)
    own = left == right
    status, merged = line["status"].to_numpy(), np.zeros(len(given), dtype=bool)
    if "on_branch" in line:
        merged = (line["on_branch"] == Identity.merged).to_numpy()
    settled = (status[left] == Status.converged) & (status[right] == Status.converged)
    identity = line.get("on_branch", xr.full_like(line["status"], Identity.on_branch)).to_numpy()
    between = np.where(merged[left] | merged[right], Identity.merged, Identity.on_branch)
    columns: dict[str, NDArray[Any]] = {
        "status": np.where(own, status[left], np.where(settled, Status.converged, NOT_COMPUTED)),
        "on_branch": np.where(own, identity[left], between),
        **{name: np.interp(alpha, given, line[name]) for name in ("test_error", "test_error_stderr")},
    }
    if "overlap_gap" in line:
        columns["overlap_gap"] = np.where(own, line["overlap_gap"].to_numpy()[left], np.nan)
    return xr.Dataset({name: ("alpha", values) for name, values in columns.items()}, {"alpha": alpha})


def _marked(limit: xr.Dataset, largest: float) -> dict[str, float]:
    """Thresholds of the limit that lie on the axis; of those at one place one."""
    marks: dict[str, float] = {}
    for name in THRESHOLDS:
        place = float(limit[name]) if name in limit.coords else np.nan
        if 0 < place <= largest and not any(abs(place - one) < 0.01 * largest for one in marks.values()):
            marks[symbol_of(limit, name)] = place
    return marks


def _draw_edges(ax: Axes, limit: xr.Dataset, up: str) -> None:
    """Where something begins to be known, and from where on all is."""
    for known in (limit["overlap"] > _SEEN, limit["recovered"] == 1):
        values = known.transpose(up, "alpha")
        if not values.any() or values.all():
            continue
        ax.contour(values["alpha"], values[up], values.astype(float), levels=[0.5], colors="0.1", linestyles="dotted",
                   linewidths=1.4)  # fmt: skip


def _draw_transitions(ax: Axes, theory: xr.Dataset, up: str) -> None:
    """The lines alpha_c and alpha_l of the trained student."""
    values = theory[up].to_numpy()
    rows = [theory_thresholds(theory.sel({up: value})) for value in values]
    for symbol in sorted({symbol for row in rows for symbol in row}):
        places = np.array([row.get(symbol, np.nan) for row in rows])
        known = np.flatnonzero(np.isfinite(places))
        ax.plot(places, values, color="white", lw=1.2, marker="." if len(known) < 3 else "")
        middle = known[len(known) // 2]
        ax.annotate(symbol, (places[middle], values[middle]), xytext=(3, 0), textcoords="offset points", color="white",
                    va="center")  # fmt: skip
