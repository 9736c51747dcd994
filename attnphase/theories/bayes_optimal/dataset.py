"""Bayes-optimal fixed points and their thresholds as a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnphase.data.build import assemble, by_cluster, coordinate
from attnphase.data.schemas import SCHEMAS
from attnphase.problem.problem import Problem
from attnphase.theories.bayes_optimal.solving import BayesOptimalPoint
from attnphase.theories.bayes_optimal.thresholds import BayesOptimalThreshold

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["THRESHOLDS", "from_bayes_optimal_points", "from_posterior_runs"]

THRESHOLDS = {
    "weak_recovery": ("sample complexity above which nothing known is unstable", r"\alpha_{\mathrm{WR}}"),
    "specialisation": (
        "sample complexity above which the uninformed fixed point is unstable in directions that its symmetry forbids",
        r"\alpha_{\mathrm{S}}",
    ),
    "algorithmic": ("sample complexity at which the uninformed fixed point jumps", r"\alpha_{\mathrm{alg}}"),
    "information_theoretic": (
        "sample complexity at which the free entropies of the fixed points cross", r"\alpha_{\mathrm{IT}}"
    ),
    "perfect_recovery": ("sample complexity above which everything is known", r"\alpha_{\mathrm{PR}}"),
}  # fmt: skip
"""Scalar coordinates with the thresholds, where they were asked for: what they are, and their symbols."""

_TITLE = "Bayes-optimal fixed points"


def from_bayes_optimal_points(
    problem: Problem,
    swept: Mapping[str, Sequence[Any]],
    points: Mapping[str, Sequence[BayesOptimalPoint]],
    linear: Sequence[tuple[float, float]],
    thresholds: Mapping[str, BayesOptimalThreshold] | None = None,
    channel: str | None = None,
    rule: str = "sobol",
) -> xr.Dataset:
    """Label fixed points.

    Parameters
    ----------
    problem : Problem
    swept : mapping
        Values of fields of the problem, and last of alpha.
    points : mapping
        By start, one for every place of this grid.
    linear : sequence of (float, float)
        Test error of the linear predictor, and its error, for every combination of the fields.
    thresholds : mapping, optional
    channel : str, optional
        What is observed, where the problem does not say it: becomes a global attribute.
    rule : str
        By what integrals were done.

    Returns
    -------
    xarray.Dataset
        Thresholds are scalar coordinates, with ``<name>_stderr`` beside them.
    """
    alone = [one for one in linear for _ in swept["alpha"]] * len(points)
    sizes = (len(points), *(len(values) for values in swept.values()))
    columns = _columns(problem, [one for row in points.values() for one in row], sizes, alone)
    rule = f"{rule}, {max(one.nodes for row in points.values() for one in row)} nodes"
    ds = assemble("bayes_optimal", columns, {"start": list(points), **swept}, {}, problem, [rule], _TITLE)
    if channel is not None:
        ds.attrs["channel"] = channel
    for name, found in (thresholds or {}).items():
        long_name, latex = THRESHOLDS[name]
        attributes = {"long_name": long_name, "units": "1", "latex": latex, "statement": found.statement}
        error = {"long_name": f"standard error of the {long_name}", "units": "1", "latex": rf"\delta {latex}"}
        ds = ds.assign_coords({
            name: ((), found.alpha, attributes), f"{name}_stderr": ((), found.standard_error, error)
        })  # fmt: skip
    return ds


def from_posterior_runs(
    problem: Problem,
    swept: Mapping[str, Sequence[Any]],
    columns: Mapping[str, NDArray[Any]],
    *,
    rule: str,
    seed: int,
    record: Sequence[int] = (),
    channel: str | None = None,
) -> xr.Dataset:
    """Label runs of Bayes-optimal message passing.

    Parameters
    ----------
    problem : Problem
    swept : mapping
        Values along start, dimension, alpha and seed; all four are dimensions of the result.
    columns : mapping
        An array over these for every variable, with its standard error where it has one.
    rule : str
        The optimiser with its settings.
    seed : int
    record : sequence of int
        Steps at which the trajectories in `columns` were recorded.
    channel : str, optional
        What is observed, where the problem does not say it: becomes a global attribute.
    """
    ds = assemble("posterior", columns, swept, {}, problem, [rule], "Bayes-optimal message passing")
    ds.attrs |= {"seed": seed} | ({} if channel is None else {"channel": channel})
    if len(record):
        ds = ds.assign_coords(step=("step", np.asarray(record, dtype=np.int64), coordinate("step")))
    return ds


def _columns(
    problem: Problem, points: Sequence[BayesOptimalPoint], sizes: tuple[int, ...], linear: Sequence[tuple[float, float]]
) -> dict[str, Any]:
    """Every variable and its standard error, over start and alpha."""
    columns: dict[str, Any] = {}
    for variable in SCHEMAS["bayes_optimal"]:
        values = [_value(problem, point, variable.name, own[0]) for point, own in zip(points, linear, strict=True)]
        columns[variable.name] = np.stack(values).astype(variable.dtype).reshape(*sizes, *np.shape(values[0]))
        if variable.has_stderr:
            errors = [
                np.asarray(own[1] if variable.name == "linear_test_error" else
                           by_cluster(problem, variable.name, point.errors[variable.name]), dtype=float)
                for point, own in zip(points, linear, strict=True)
            ]  # fmt: skip
            columns[variable.stderr] = np.stack(errors).reshape(*sizes, *np.shape(errors[0]))
    return columns


def _value(problem: Problem, point: BayesOptimalPoint, name: str, linear: float) -> Any:
    if name == "linear_test_error":
        return np.asarray(linear)
    own = {"iterations": point.maps, "status": int(point.status), "recovered": int(point.recovered)}
    return np.asarray(own[name] if name in own else by_cluster(problem, name, getattr(point, name)))
