"""The paper's theory figures: which sweeps each is drawn from, and its caption with all parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnphase.lazy import loaded_on_use
from attnphase.problem.problem import Problem
from attnphase.reference import SECOND_MIXING

with loaded_on_use(__name__):
    from attnphase.data import counts, reading

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["PAPER_FIGURES", "FigureSweep", "PaperFigure", "caption", "paper_grid"]

OMEGA_OF_FIG2 = 0.3


@dataclass(frozen=True)
class FigureSweep:
    """A sweep of both branches that a figure is drawn from.

    Attributes
    ----------
    label : str
        Behind the figure's name in that of the data's file, if it has several.
    problem : Problem
    alphas : tuple of float
    fields : mapping of str to tuple
        Values of fields of the problem.
    """

    label: str
    problem: Problem
    alphas: tuple[float, ...]
    fields: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class PaperFigure:
    """A figure of arXiv:2402.03902, or its theory part.

    Attributes
    ----------
    name, title : str
    shown : str
        What is drawn how, for the caption.
    sweeps : tuple of FigureSweep
    """

    name: str
    title: str
    shown: str
    sweeps: tuple[FigureSweep, ...]


def paper_grid(alphas: int = 25, omegas: int = 26) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The grid of Figure 3; the omega of Figure 2 is on it in any case."""
    omega = np.linspace(0, 0.5, omegas)
    nearest = np.abs(omega - OMEGA_OF_FIG2).argmin()
    if np.isclose(omega[nearest], OMEGA_OF_FIG2, rtol=1e-9, atol=0):
        omega[nearest] = OMEGA_OF_FIG2
    else:
        omega = np.union1d(omega, OMEGA_OF_FIG2)
    return tuple(np.linspace(0.05, 2, alphas).tolist()), tuple(omega.tolist())


_ALPHAS, _OMEGAS = paper_grid()
_GAP_ALPHAS, _GAP_OMEGAS = tuple(np.linspace(0.06, 0.6, 10).tolist()), tuple(np.linspace(0, 0.5, 6).tolist())
_PAPERS = Problem.paper(omega=OMEGA_OF_FIG2)
_SECOND = _PAPERS.with_fields({"teacher.mixing": SECOND_MIXING})
_CURVES = (
    "Lines are the branches of fixed points, with bands of one standard error:"
    " dotted where a branch has merged with the uninformed point, with black dots where replica symmetry fails"
    " (overlap_gap above 0.2); circles are not decided, diamonds did not converge, crosses violate exact identities."
    " Points with bars are published gradient-descent runs at d = 1000, means and standard deviations."
)
_CONTOURS = (
    "Full lines: where the training losses cross (alpha_c) and where the semantic branch's test error passes the linear"
    " predictor's (alpha_l), with bands in which the difference is within one standard error."
)
_THRESHOLDS = (
    "Lines named in the legend: thresholds with their standard errors, where the training losses cross (alpha_c), where"
    " the semantic branch's test error passes the linear predictor's (alpha_l), and where branches begin."
)
_MAPS = (
    "(a) Training loss of the semantic branch minus that of the positional one. (b) Test error of the branch of lower"
    f" training loss minus that of the best linear predictor. (c), (d) Sizes of theta and m of that branch. {_CONTOURS}"
    " Dotted lines: ends of branches; circles: not decided. Dots: replica symmetry fails (overlap_gap above 0.2)."
    " Hatched: a branch did not converge. Crosses: exact identities are violated."
)


def _slice(label: str, field: str, values: tuple[float, ...]) -> FigureSweep:
    return FigureSweep(label, _PAPERS, _ALPHAS, {field: values})


PAPER_FIGURES = {
    one.name: one
    for one in (
        PaperFigure(
            "fig2",
            "Training loss, test error and overlaps along alpha",
            _CURVES,
            (FigureSweep("", _PAPERS, _ALPHAS, {"teacher.omega": (OMEGA_OF_FIG2,)}),),
        ),
        PaperFigure("fig3", "Phase diagram", _MAPS, (FigureSweep("", _PAPERS, _ALPHAS, {"teacher.omega": _OMEGAS}),)),
        PaperFigure(
            "fig8",
            "Phase diagram for the second example of the teacher's positional part, (144)",
            _MAPS,
            (FigureSweep("", _SECOND, _ALPHAS, {"teacher.omega": _OMEGAS}),),
        ),
        PaperFigure(
            "limits",
            "Test errors along alpha and the Bayes-optimal error",
            f"{_CURVES} Black: Bayes-optimal. (b) Test errors over the Bayes-optimal one. Dotted: thresholds.",
            (FigureSweep("", _PAPERS, _ALPHAS, {"teacher.omega": (OMEGA_OF_FIG2,)}),),
        ),
        PaperFigure(
            "gap",
            "Phase diagram of the best branch's test error over the Bayes-optimal one",
            "(a) Logarithm of the ratio; grey where the Bayes-optimal error is zero. (b) Share of the fields' variance"
            " that can be known. Dotted: where something is known, and where all is. White: where the training losses"
            " cross (alpha_c) and where the semantic branch's test error passes the linear predictor's (alpha_l).",
            (FigureSweep("", _PAPERS, _GAP_ALPHAS, {"teacher.omega": _GAP_OMEGAS}),),
        ),
        PaperFigure(
            "fig9",
            "Test error along alpha for several omega, sigma and lambda",
            _CURVES,
            (
                _slice("omega", "teacher.omega", (0.2, 0.3, 0.7)),
                _slice("sigma", "tokens.sigma", (0.3, 0.5, 0.7)),
                _slice("strength", "regularizer.strength", (0.001, 0.01, 0.1)),
            ),
        ),
    )
}
"""By name."""


def caption(
    name: str,
    datasets: Sequence[xr.Dataset],
    at: Mapping[str, Any] | None = None,
    *,
    thresholds: bool = False,
    quantity: str | None = None,
) -> str:
    """What a figure shows, with all parameters of its data.

    Parameters
    ----------
    name : str
        One of `PAPER_FIGURES`.
    datasets : sequence of xarray.Dataset
        What it is drawn from.
    at : mapping, optional
        The values at which it is drawn, where the data has several.
    thresholds : bool, optional
        Whether a map shows thresholds instead of its own lines.
    quantity : str, optional
        The variable that is drawn instead of the test error.

    Returns
    -------
    str
        A paragraph on the figure, and one on each dataset.
    """
    figure = PAPER_FIGURES[name]
    of_paper = f"Figure {name.removeprefix('fig')} of arXiv:2402.03902, theory. " if name.startswith("fig") else ""
    chosen = ", ".join(f"{field} = {value}" for field, value in (at or {}).items())
    shown = figure.shown.replace(_CONTOURS, _THRESHOLDS) if thresholds else figure.shown
    title = figure.title.replace("Test error", quantity) if quantity else figure.title
    paragraphs = [f"{of_paper}{title}. {shown}" + (f" Drawn at {chosen}." if chosen else "")]
    for ds in datasets:
        problem = reading.problem_of(ds)
        swept = {str(dim): ds[dim] for dim in ds["status"].dims}
        fields = {values.attrs.get("field", dim) for dim, values in swept.items()}
        told = ", ".join(f"{field} = {value}" for field, value in _flat(problem.to_dict()) if field not in fields)
        places = "; ".join(f"{dim} {_listed(values.to_numpy().tolist())}" for dim, values in swept.items())
        attributes = ", ".join(f"{key} {ds.attrs[key]}" for key in ("attnphase_version", "created", "problem_hash"))
        ended, rules = counts.status_counts(ds, problem), ds.attrs["rule"]
        paragraphs.append(f"Data: {places}. {ended}. Problem: {told}. Rules: {rules}. {attributes}.")
    return "\n\n".join(paragraphs) + "\n"


def _flat(table: Mapping[str, Any], place: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in table.items():
        pairs += _flat(value, f"{place}{key}.") if isinstance(value, Mapping) else [(place + key, value)]
    return [(field, value) for field, value in pairs if value is not None]


def _listed(values: Sequence[Any]) -> str:
    """One value after the other, or as the command line takes them."""
    kind = reading.spacing(values)
    if kind and len(values) > 3:
        return f"{values[0]:g}:{values[-1]:g}:{len(values)}" + (":log" if kind == "log" else "")
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
