"""The schema of results: names, dimensions, attributes; build, check, save and load labelled data.

One table, `POINT_VARIABLES`, says what a solved point consists of.  Everything else follows from it: the datasets that
`attnphase.solve` and `attnphase.sweep` return, the validator, and ``docs/schema.md``.
"""

from __future__ import annotations

import json
import math
import operator
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from enum import IntEnum
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import netCDF4
import numpy as np
import xarray as xr
from numpy.typing import NDArray

from attnphase import arguments
from attnphase.errors import DatasetError, ProblemError
from attnphase.files.reading import LARGEST_BINARY, check_input
from attnphase.files.writing import check_output, write_file
from attnphase.fixed_points.iteration import Status
from attnphase.problem.problem import DataProblem, Problem
from attnphase.state_evolution.branches import BRANCHES

if TYPE_CHECKING:
    from attnphase.fixed_points.point import BranchPoint

__all__ = [
    "EXPERIMENT_VARIABLES",
    "HISTOGRAM_ENTRIES",
    "HISTOGRAM_STAGES",
    "HISTOGRAM_VARIABLES",
    "NOT_COMPUTED",
    "POINT_VARIABLES",
    "SCHEMAS",
    "STATUS_MEANINGS",
    "THRESHOLD_VARIABLES",
    "TRAJECTORY_VARIABLES",
    "RunStatus",
    "Variable",
    "by_cluster",
    "coordinate_name",
    "from_histogram",
    "from_lines",
    "from_points",
    "from_runs",
    "from_thresholds",
    "load_dataset",
    "overlap_size",
    "problem_of",
    "save_dataset",
    "schema_markdown",
    "spacing",
    "to_json",
    "validate_dataset",
]

NOT_COMPUTED = max(Status) + 1
"""Value of ``status`` where a grid has no result; the others are those of `attnphase.fixed_points.iteration.Status`."""

STATUS_MEANINGS = (*(status.name for status in Status), "not_computed")
"""Names of the values 0, 1, … of ``status``."""


class RunStatus(IntEnum):
    """How a training run ended; the values are the CF flags of the ``status`` of experiments."""

    converged = 0  # the gradient fell below the tolerance
    completed = 1  # all steps were made, and no tolerance was asked for
    step_limit = 2  # the tolerance was not reached
    unsettled = 3  # GAMP: the overlaps have settled, single weights keep moving
    diverged = 4  # the last finite weights were measured
    not_computed = 5


HISTOGRAM_STAGES = ("frozen", "unfrozen")
"""Stages of training of the histogram task."""

HISTOGRAM_ENTRIES = ("all", "off_diagonal")
"""Which entries of the attention matrices of the histogram task are scored."""


@dataclass(frozen=True)
class Variable:
    """One variable of the schema.

    Attributes
    ----------
    name : str
        In the dataset; a standard error is stored beside it as ``<name>_stderr``.
    dims : tuple of str
        The dimensions behind the swept ones.
    long_name, latex : str
        Its attributes.
    has_stderr : bool
        Whether it has a standard error.
    dtype : str
        NumPy's name of the type it is stored as.
    meanings : tuple of str
        Names of the values 0, 1, ... of a flag.
    units : str
        "1" for everything but times.
    """

    name: str
    dims: tuple[str, ...]
    long_name: str
    latex: str
    has_stderr: bool = False
    dtype: str = "float64"
    meanings: tuple[str, ...] = ()
    units: str = "1"

    @property
    def stderr(self) -> str:
        """Name of the standard error."""
        return f"{self.name}_stderr"

    def dims_of(self, problem: Problem) -> tuple[str, ...]:
        """Dimensions for a problem: with mixture tokens what a token has, each of its clusters has."""
        if "token" not in self.dims or problem.tokens.kind != "mixture":
            return self.dims
        behind = self.dims.index("token") + 1
        return (*self.dims[:behind], "cluster", *self.dims[behind:])

    def attributes(self) -> dict[str, Any]:
        """The attributes of the variable in a dataset."""
        attributes: dict[str, Any] = {"long_name": self.long_name, "units": self.units, "latex": self.latex}
        if self.has_stderr:
            attributes["ancillary_variables"] = self.stderr
        if self.meanings:
            attributes["flag_values"] = np.arange(len(self.meanings), dtype=self.dtype)
            attributes["flag_meanings"] = " ".join(self.meanings)
        return attributes

    def stderr_attributes(self) -> dict[str, Any]:
        """The attributes of the standard error."""
        return {"long_name": f"standard error of the {self.long_name}", "units": "1", "latex": rf"\delta {self.latex}"}


_SQUARE = ("token", "row", "col")
_COLUMN = ("token", "row")
_CROSS = ("token", "row", "teacher")

POINT_VARIABLES = (
    Variable("q", _SQUARE, "overlap of the student's weights with themselves", r"q_\ell", True),
    Variable("V", _SQUARE, "rescaled variance of the student's weights", r"V_\ell", True),
    Variable("m", _COLUMN, "overlap of the student's weights with the positional encodings", r"m_\ell", True),
    Variable("theta", _CROSS, "overlap of the student's weights with the teacher's", r"\theta_\ell", True),
    Variable("q_hat", _SQUARE, "conjugate of q", r"\hat{q}_\ell", True),
    Variable("V_hat", _SQUARE, "conjugate of V", r"\hat{V}_\ell", True),
    Variable("m_hat", _COLUMN, "conjugate of m", r"\hat{m}_\ell", True),
    Variable("theta_hat", _CROSS, "conjugate of theta", r"\hat{\theta}_\ell", True),
    Variable("test_error", (), "test error per token and dimension", r"\epsilon_g", True),
    Variable("training_loss", (), "minimum of the regularised risk, divided by d", r"\epsilon_t", True),
    Variable("weight_norm", (), "squared norm of the student's weights, divided by d", r"\Vert W \Vert^2 / d", True),
    Variable("density", (), "share of the student's weights that are not zero", r"P(w \neq 0)", True),
    Variable("linear_test_error", (), "test error of the best linear predictor", r"\epsilon_g^{\mathrm{lin}}", True),
    Variable(
        "second_minimum_share",
        (),
        "share of samples whose second-lowest local minimum lies within 1e-3 of the lowest",
        r"P(\Psi_2 - \Psi_1 < 10^{-3})",
        True,
    ),
    Variable(
        "free_energy_gap",
        (),
        "difference of the two expressions of the training loss, which agree at a fixed point",
        r"\Delta \epsilon_t",
    ),
    Variable("residual", (), "largest relative change under one undamped iteration", r"\Vert F(x) - x \Vert"),
    Variable("iterations", (), "evaluations of the state-evolution map", r"n_{\mathrm{maps}}", dtype="int32"),
    Variable("nodes", (), "integration nodes, all replicates together", r"n_{\mathrm{nodes}}", dtype="int64"),
    Variable(
        "unsolved_nodes", (), "nodes whose local minimisation did not converge", r"n_{\mathrm{unsolved}}", dtype="int64"
    ),
    Variable("status", (), "how the iteration ended", r"\mathrm{status}", dtype="int8", meanings=STATUS_MEANINGS),
)
"""What a solved point consists of."""

THRESHOLD_VARIABLES = (
    Variable(
        "alpha_c", (), "sample complexity where the semantic branch's training loss falls below the positional one's",
        r"\alpha_c", True,
    ),
    Variable(
        "alpha_l", (), "sample complexity where the semantic branch's test error falls below the linear predictor's",
        r"\alpha_l", True,
    ),
)  # fmt: skip
"""What `attnphase.thresholds` returns along omega; NaN where there is no crossing."""

_POINT = {variable.name: variable for variable in POINT_VARIABLES}


def _shared(*names: str) -> tuple[Variable, ...]:
    """Quantities of the theory, as a single run has them: without a standard error."""
    return tuple(replace(_POINT[name], has_stderr=False) for name in names)


EXPERIMENT_VARIABLES = (
    *_shared("q", "V", "m", "theta"),
    Variable("test_error", (), "exact test error per token and dimension", r"\epsilon_g", True),
    Variable("test_error_sampled", (), "test error on fresh samples", r"\epsilon_g^{\mathrm{fresh}}", True),
    Variable("training_loss", (), "regularised risk, divided by d", r"\epsilon_t"),
    *_shared("weight_norm", "density"),
    Variable(
        "linear_test_error",
        (),
        "test error of the linear predictor fitted to the training samples",
        r"\epsilon_g^{\mathrm{lin}}",
    ),
    Variable("gradient_norm", (), "norm of the risk's gradient", r"\Vert \nabla R \Vert / \sqrt{d}"),
    Variable("replicon", (), "spectral radius of the linearised GAMP iteration", r"\Lambda"),
    Variable("steps", (), "steps of the optimiser", r"n_{\mathrm{steps}}", dtype="int64"),
    Variable(
        "status",
        (),
        "how the run ended",
        r"\mathrm{status}",
        dtype="int8",
        meanings=tuple(status.name for status in RunStatus),
    ),
)
"""What a training run consists of; V and the replicon are NaN unless the optimiser is GAMP."""

TRAJECTORY_VARIABLES = tuple(
    replace(v, name=f"trajectory_{v.name}", dims=("step", *v.dims), long_name=f"{v.long_name}, along the run")
    for v in EXPERIMENT_VARIABLES
    if v.name in ("q", "V", "m", "theta", "training_loss", "gradient_norm")
)
"""What a run's trajectory consists of, where one was asked for; NaN behind the end of a run."""

_PER_STAGE, _PER_EPOCH = ("stage",), ("stage", "epoch")

HISTOGRAM_VARIABLES = (
    Variable("accuracy", _PER_STAGE, "share of test tokens that are counted right, at the stage's end", r"a"),
    Variable("test_loss", _PER_STAGE, "cross-entropy per test token, at the stage's end", r"\mathcal{L}"),
    Variable("noisy_accuracy", (), "accuracy after the noise, before everything is trained", r"a_{\mathrm{noisy}}"),
    Variable(
        "distance_sum", _PER_STAGE, "sum over the tensors of the norm of what the stage changed, noise included",
        r"\sum_k \Vert \Delta \theta_k \Vert",
    ),
    Variable(
        "distance_l2", _PER_STAGE, "norm of what the stage changed, noise included", r"\Vert \Delta \theta \Vert"
    ),
    Variable(
        "position_share", ("stage", "entries"),
        "share of the variance of the attention matrices' entries that pairs of places explain", r"\eta_{\mathrm{pos}}",
        True,
    ),
    Variable(
        "token_share", ("stage", "entries"),
        "share of the variance of the attention matrices' entries that pairs of symbols explain",
        r"\eta_{\mathrm{sem}}", True,
    ),
    Variable("attention", ("stage", "sequence", "token", "attended"), "attention matrix of a given sequence", r"A"),
    Variable("epoch_training_loss", _PER_EPOCH, "mean cross-entropy per token along an epoch", r"\mathcal{L}_{tr}"),
    Variable("epoch_test_loss", _PER_EPOCH, "cross-entropy per test token after an epoch", r"\mathcal{L}"),
    Variable("epoch_accuracy", _PER_EPOCH, "share of test tokens that are counted right after an epoch", r"a"),
    Variable(
        "seconds", _PER_STAGE, "time of the stage, divided by the number of runs trained at once", r"t", units="s"
    ),
    Variable(
        "status", _PER_STAGE, "how the stage ended", r"\mathrm{status}", dtype="int8",
        meanings=tuple(status.name for status in RunStatus),
    ),
)  # fmt: skip
"""What a run of the histogram task consists of; NaN for a stage that was not made and behind its last epoch."""

SCHEMAS = {
    "points": POINT_VARIABLES,
    "thresholds": THRESHOLD_VARIABLES,
    "experiments": EXPERIMENT_VARIABLES,
    "histogram": HISTOGRAM_VARIABLES,
}
"""Kinds of dataset; the global attribute ``schema`` says which."""

_COORDINATES = {
    "branch": ("branch of the fixed points", r"\mathrm{branch}"),
    "start": ("where training starts", r"\mathrm{start}"),
    "dimension": ("dimension of the tokens", "d"),
    "seed": ("number of the random instance", r"\mathrm{seed}"),
    "step": ("steps of the optimiser made before", "t"),
    "alpha": ("sample complexity n/d", r"\alpha"),
    "omega": ("weight of the teacher's positional part", r"\omega"),
    "sigma": ("standard deviation of the tokens' entries", r"\sigma"),
    "strength": ("strength of the regulariser", r"\lambda"),
    "ridge": ("strength of the ridge beside the regulariser", r"\lambda_2"),
    "length": ("number of tokens", "L"),
    "student_rank": ("rank of the student", "r"),
    "teacher_rank": ("rank of the teacher", "t"),
    "student_score": ("score of the student", "S"),
    "teacher_score": ("score of the teacher", "T"),
    "student_temperature": ("temperature of the student's score", r"T_{\mathrm{student}}"),
    "teacher_temperature": ("temperature of the teacher's score", r"T_{\mathrm{teacher}}"),
    "student_causal": ("whether the student's tokens attend to none behind them", r"\mathrm{causal\ student}"),
    "teacher_causal": ("whether the teacher's tokens attend to none behind them", r"\mathrm{causal\ teacher}"),
    "tied": ("whether queries and keys share their weights", r"\mathrm{tied}"),
    "width": ("columns of the value matrices", "v"),
    "law.probability": ("probability that all tokens share their cluster", r"P_{\mathrm{same}}"),
    "spectrum.variance": ("mean eigenvalue of the tokens' covariance", r"\sigma^2"),
    "spectrum.exponent": ("exponent of the covariance's power law", r"\beta"),
    "spectrum.fraction": ("share of directions with the first of two eigenvalues", "f"),
    "standard_error": ("relative standard error asked for on q", r"\delta q / q"),
    "integration_nodes": ("integration nodes asked for", r"n_{\mathrm{nodes}}"),
    "integration_seed": ("seed of the integration nodes", r"\mathrm{seed}"),
    "mechanism": ("part of the embeddings that attention saw while it was frozen", r"\mathrm{mechanism}"),
    "run": ("number of the run", r"\mathrm{run}"),
    "stage": ("stage of training", r"\mathrm{stage}"),
    "epoch": ("epochs of the stage made", "t"),
    "entries": ("entries of the attention matrices that are counted", r"\mathrm{entries}"),
    "symbols": ("symbols of the given sequences", "x"),
}

_TITLE = "Fixed points of the saddle-point equations"

_PROBLEM_ATTRIBUTES = {
    "problem": "the problem as TOML; a field that a coordinate sweeps has its values there, whatever stands here",
    "problem_hash": "first 16 hexadecimal digits of the SHA-256 of `problem`",
}

_GLOBAL_ATTRIBUTES = {
    "title": "what the data is",
    "Conventions": "CF-1.11",
    "schema": "kind of dataset: " + " or ".join(SCHEMAS),
    "seed": "seed of the integration nodes; of experiments, of all their random numbers",
    "rule": "integration rules used; of experiments, the optimiser with its settings",
    "attnphase_version": "version of attnphase",
    "numpy_version": "version of NumPy",
    "scipy_version": "version of SciPy",
    "numba_version": "version of Numba",
    "python_version": "version of Python",
    "created": "when, in UTC, ISO 8601",
    "history": "one line for each command",
}


# ---------------------------------------------------------------------------------------------------------- building


def coordinate_name(field: str) -> str:
    """Name of the dimension along which a field of the problem is swept.

    Parameters
    ----------
    field : str
        Such as ``teacher.omega``; ``branch`` and ``alpha`` stand for themselves.

    Returns
    -------
    str
        The field's key, ``omega``; with its section, ``student_rank``, where two sections have the key, or where the
        key is a name that the schema has already (``integration_seed``).
    """
    section, dot, key = field.partition(".")
    if not dot:
        return field
    problem = Problem()
    sections = (home.name for home in fields(Problem) if not home.name.startswith("_"))
    homes = [home for home in sections if key in {one.name for one in fields(getattr(problem, home))}]
    taken = {name for variable in POINT_VARIABLES for name in (variable.name, *variable.dims)} | {*_RANK}
    return f"{section}_{key}" if key in taken or homes not in ([], [section]) else key


def spacing(values: Sequence[Any] | NDArray[Any]) -> str:
    """How the values along a dimension are spaced.

    Parameters
    ----------
    values : sequence
        Of any kind.

    Returns
    -------
    {"linear", "log", ""}
        "" for fewer than three, for words, and where neither the differences nor the ratios are all the same.
    """
    if len(values) < 3 or any(isinstance(value, bool | str) for value in values):
        return ""
    array = np.asarray(values, dtype=float)
    for kind, evenly in (("linear", np.linspace), ("log", np.geomspace)):
        if kind == "log" and array.min() <= 0:
            continue
        expected = evenly(array[0], array[-1], len(array))
        if np.allclose(array, expected, rtol=1e-12, atol=1e-12 * float(np.ptp(array))):
            return kind
    return ""


def from_points(
    points: Sequence[BranchPoint],
    swept: Mapping[str, Sequence[Any]] | None = None,
    *,
    problem: Problem | None = None,
    title: str | None = None,
) -> xr.Dataset:
    """Label solved points.

    Parameters
    ----------
    points : sequence of BranchPoint
        In any order.  What the grid has and `points` has not gets the status ``not_computed``.
    swept : mapping, optional
        Values along each dimension, in the order of the dimensions: ``branch``, fields of the problem by their name in
        the TOML (``teacher.omega``), ``alpha``.  ``branch`` and ``alpha`` become scalar coordinates if left out.
    problem : Problem, optional
        The problem before its fields were swept; the first point's by default.
    title : str, optional
        The dataset's title.

    Returns
    -------
    xarray.Dataset

    Raises
    ------
    DatasetError
        A point does not lie on the grid, two lie on the same place, or there is no point at all.
    """
    if not points:
        raise DatasetError("there is no point to make a dataset of.")
    swept = _in_order(swept or {})
    problem = problem or points[0].problem
    sizes = tuple(len(values) for values in swept.values())
    places: dict[tuple[int, ...], BranchPoint] = {}
    for point in points:
        index = tuple(_place(name, values, point) for name, values in swept.items())
        if index in places:
            raise DatasetError(f"two points lie at the same place: {_described(point)}; sweep what tells them apart.")
        places[index] = point
    ordered = [places.get(index) for index in product(*(range(size) for size in sizes))]
    columns = {
        name: np.stack(rows).reshape(sizes + rows[0].shape)
        for name, rows in _columns(ordered, points[0]).items()
    }  # fmt: skip
    scalars = {"branch": points[0].branch, "alpha": points[0].alpha}
    rules = sorted({point.rule for point in points})
    return _assemble("points", columns, swept, scalars, problem, rules, title or _TITLE)


def from_lines(
    lines: Sequence[xr.Dataset], swept: Mapping[str, Sequence[Any]], *, problem: Problem, title: str | None = None
) -> xr.Dataset:
    """Join branch lines, datasets over alpha, into a grid.

    Parameters
    ----------
    lines : sequence of xarray.Dataset
        For every combination of `swept` without alpha, in the order of `itertools.product`.
    swept : mapping
        As in `from_points`; alpha is the last dimension.
    problem : Problem
        The problem before its fields were swept.
    title : str, optional
        The dataset's title.

    Returns
    -------
    xarray.Dataset
    """
    swept = _in_order(swept)
    sizes = tuple(len(values) for values in swept.values())[:-1]
    columns = {
        name: np.stack([line[name].to_numpy() for line in lines]).reshape(sizes + lines[0][name].shape)
        for name in map(str, lines[0].data_vars)
    }
    rules = sorted({rule for line in lines for rule in line.attrs["rule"].split(", ")})
    return _assemble("points", columns, swept, {}, problem, rules, title or _TITLE)


def from_thresholds(
    problem: Problem,
    omega: Sequence[float],
    values: Mapping[str, Sequence[float]],
    errors: Mapping[str, Sequence[float]],
    rule: str,
) -> xr.Dataset:
    """Label thresholds along omega.

    Parameters
    ----------
    problem : Problem
        The problem; its omega is replaced by the coordinate.
    omega : sequence of float
        Weights of the teacher's positional part.
    values, errors : mapping
        ``alpha_c`` and ``alpha_l``, each as long as `omega`; NaN where there is no crossing.
    rule : str
        The integration rule used.

    Returns
    -------
    xarray.Dataset
    """
    columns = {name: np.array(column, dtype=float) for name, column in values.items()}
    columns |= {f"{name}_stderr": np.array(column, dtype=float) for name, column in errors.items()}
    swept = _in_order({"teacher.omega": omega})
    title = "Thresholds of the positional-semantic transition"
    return _assemble("thresholds", columns, swept, {}, problem, [rule], title)


def from_runs(
    problem: Problem,
    swept: Mapping[str, Sequence[Any]],
    columns: Mapping[str, NDArray[Any]],
    *,
    rule: str,
    seed: int,
    record: Sequence[int] = (),
    title: str | None = None,
) -> xr.Dataset:
    """Label the runs of an experiment.

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
        From which all random numbers follow.
    record : sequence of int
        Steps at which the trajectories in `columns` were recorded.
    title : str, optional
        The dataset's title.

    Returns
    -------
    xarray.Dataset
    """
    ds = _assemble("experiments", columns, _in_order(swept), {}, problem, [rule], title or "Finite-size experiments")
    ds.attrs["seed"] = seed
    if len(record):
        leading = ds["status"].dims
        for variable in TRAJECTORY_VARIABLES:
            dims = (*leading, *variable.dims_of(problem))
            ds[variable.name] = (dims, columns[variable.name], variable.attributes())
        ds = ds.assign_coords(step=("step", np.asarray(record, dtype=np.int64), _coordinate("step")))
    return ds


def from_histogram(
    columns: Mapping[str, NDArray[Any]],
    *,
    mechanisms: Sequence[str],
    runs: int,
    symbols: NDArray[np.int64],
    rule: str,
    seed: int,
) -> xr.Dataset:
    """Label runs of the histogram task.

    Parameters
    ----------
    columns : mapping
        An array for every variable of the schema ``histogram``, over mechanism and run, then its own dimensions; with
        its standard error where it has one.
    mechanisms : sequence of str
    runs : int
    symbols : (sequences, L) array
        The sequences whose attention matrices are given.
    rule : str
        Sizes and settings.
    seed : int
        From which all random numbers follow.

    Returns
    -------
    xarray.Dataset
    """
    leading = ("mechanism", "run")
    variables = {}
    for variable in HISTOGRAM_VARIABLES:
        dims = (*leading, *variable.dims)
        variables[variable.name] = (dims, columns[variable.name], variable.attributes())
        if variable.has_stderr:
            variables[variable.stderr] = (dims, columns[variable.stderr], variable.stderr_attributes())
    epochs = columns["epoch_accuracy"].shape[-1]
    values = {"mechanism": list(mechanisms), "run": range(runs), "stage": HISTOGRAM_STAGES}
    values |= {"epoch": range(1, epochs + 1), "entries": HISTOGRAM_ENTRIES}
    coordinates: dict[str, Any] = {name: ((name,), np.asarray(v), _coordinate(name)) for name, v in values.items()}
    coordinates["symbols"] = (("sequence", "token"), symbols, _coordinate("symbols"))
    return xr.Dataset(variables, coordinates, _global_attributes("histogram", "The histogram task", seed, rule))


_RANK = {"branch": 0, "start": 0, "dimension": 1, "alpha": 3, "seed": 4}  # of a dimension; fields of the problem: 2


def _in_order(swept: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Branch or start first, alpha and seed last, plain values, and the short name omega spelt out."""
    spelt = {"teacher.omega" if name == "omega" else name: np.asarray(v).tolist() for name, v in swept.items()}
    return {name: spelt[name] for name in sorted(spelt, key=lambda name: _RANK.get(name, 2))}


def _place(name: str, values: Sequence[Any], point: BranchPoint) -> int:
    value = getattr(point, name) if name in ("alpha", "branch") else operator.attrgetter(name)(point.problem)
    try:
        return values.index(value)
    except ValueError:
        raise DatasetError(f"{name} is {value!r} for a point, which is not among the swept values.") from None


def _described(point: BranchPoint) -> str:
    return f"{point.branch}, alpha = {point.alpha:g}"


def _columns(points: Sequence[BranchPoint | None], pattern: BranchPoint) -> dict[str, list[NDArray[Any]]]:
    """Values of every variable at every place; what is missing has the shape it has at `pattern`."""
    columns: dict[str, list[NDArray[Any]]] = {}
    for variable in POINT_VARIABLES:
        shape = np.shape(_value(pattern, variable.name))
        fill = np.full(shape, np.nan if variable.dtype == "float64" else 0)
        if variable.name == "status":
            fill = np.array(NOT_COMPUTED)
        rows = [fill if point is None else np.asarray(_value(point, variable.name)) for point in points]
        if any(row.shape != shape for row in rows):
            raise DatasetError(f"{variable.name} has not one shape on the whole grid: sweep problems of one size.")
        columns[variable.name] = [row.astype(variable.dtype) for row in rows]
        if variable.has_stderr:
            unknown = np.full(shape, np.nan)
            columns[variable.stderr] = [
                unknown if point is None else _error(point, variable.name, unknown) for point in points
            ]
    return columns


def _error(point: BranchPoint, name: str, unknown: NDArray[Any]) -> NDArray[Any]:
    if name not in point.errors:
        return unknown
    return np.asarray(by_cluster(point.problem, name, point.errors[name]), dtype=float)


def _value(point: BranchPoint, name: str) -> Any:
    return by_cluster(point.problem, name, point.values[name] if name in point.values else getattr(point, name))


def by_cluster(problem: Problem, name: str, values: Any) -> Any:
    """A variable as a dataset has it: what every site has, (P, ...), is an array over token and, in mixtures, cluster.

    It is NaN where a token has fewer clusters than another.
    """
    if name not in _PER_SITE or problem.tokens.kind != "mixture":
        return values
    sites = problem.sites
    shape = (problem.tokens.length, 1 + max(cluster for _, cluster in sites), *np.shape(values)[1:])
    spread = np.full(shape, np.nan)
    for site, (token, cluster) in enumerate(sites):
        spread[token, cluster] = values[site]
    return spread


_PER_SITE = {variable.name for variable in POINT_VARIABLES if "token" in variable.dims}


def _assemble(
    kind: str,
    columns: Mapping[str, NDArray[Any]],
    swept: Mapping[str, Sequence[Any]],
    scalars: Mapping[str, Any],
    problem: Problem,
    rules: Sequence[str],
    title: str,
) -> xr.Dataset:
    leading = tuple(coordinate_name(name) for name in swept)
    variables = {}
    for variable in SCHEMAS[kind]:
        dims = (*leading, *variable.dims_of(problem))
        variables[variable.name] = (dims, columns[variable.name], variable.attributes())
        if variable.has_stderr:
            variables[variable.stderr] = (dims, columns[variable.stderr], variable.stderr_attributes())
    coordinates: dict[str, Any] = {name: ((), np.asarray(v), _coordinate(name)) for name, v in scalars.items()}
    for field, values in swept.items():
        name = coordinate_name(field)
        coordinates[name] = ((name,), np.asarray(values), _coordinate(name, field))
    attributes = _global_attributes(kind, title, problem.integration.seed, ", ".join(rules))
    attributes |= {"problem": problem.to_toml(), "problem_hash": problem.hash}
    return xr.Dataset(variables, coordinates, attributes)


def _global_attributes(kind: str, title: str, seed: int, rule: str) -> dict[str, Any]:
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "title": title,
        "Conventions": "CF-1.11",
        "schema": kind,
        "seed": seed,
        "rule": rule,
        "attnphase_version": _own_version(),
        **{f"{name}_version": version(name) for name in ("numpy", "scipy", "numba")},
        "python_version": platform.python_version(),
        "created": created,
        "history": f"{created}: attnphase {_own_version()}: {title}",
    }


def _coordinate(name: str, field: str = "") -> dict[str, str]:
    long_name, latex = _COORDINATES.get(name, (f"value of {field}", rf"\mathrm{{{name}}}".replace("_", r"\_")))
    attributes = {"long_name": long_name, "units": "1", "latex": latex}
    if "." in field:
        attributes["field"] = field
    return attributes


def _own_version() -> str:
    import attnphase

    return attnphase.__version__


# ---------------------------------------------------------------------------------------------------------- checking


def validate_dataset(ds: xr.Dataset) -> xr.Dataset:
    """Check that a dataset follows the schema.

    Parameters
    ----------
    ds : xarray.Dataset
        As `attnphase.solve`, `sweep`, `thresholds` or `simulate` return it, or a selection from it.

    Returns
    -------
    xarray.Dataset
        The same.

    Raises
    ------
    DatasetError
        One sentence that names the variable or the attribute.
    ProblemError
        `ds` is no dataset.
    """
    arguments.instance("ds", ds, xr.Dataset)
    kind = _check_attributes(ds)
    problem = Problem() if kind == "histogram" else problem_of(ds)
    leading = _check_coordinates(ds, kind)
    variables = SCHEMAS[kind]
    if kind == "experiments" and any(str(name).startswith("trajectory_") for name in ds.data_vars):
        variables = (*variables, *TRAJECTORY_VARIABLES)
    known = {name for variable in variables for name in _names(variable)}
    for name in map(str, ds.data_vars):
        if name not in known:
            raise DatasetError(f'variable "{name}" is not part of the schema: remove it before saving.')
    columns = problem.columns
    clusters = 1 + max(cluster for _, cluster in problem.sites)
    sizes = {"token": problem.tokens.length, "row": columns, "col": columns, "teacher": problem.teacher_columns}
    sizes["cluster"] = clusters
    if kind == "histogram":  # it is no experiment on a problem
        sizes = {"stage": len(HISTOGRAM_STAGES), "entries": len(HISTOGRAM_ENTRIES)}
    swept_fields = {ds[name].attrs.get("field", "") for name in leading}
    if {"student.rank", "student.tied", "teacher.rank", "tokens.length", "loss.kind", "loss.width"} & swept_fields:
        sizes = {}  # then the common size is not the problem's
    for variable in variables:
        for name in _names(variable):
            _check_variable(ds, name, variable.dims_of(problem), variable, leading, sizes)
    if kind == "points":
        _check_numbers(ds, problem)
    return ds


def _names(variable: Variable) -> tuple[str, ...]:
    return (variable.name, variable.stderr) if variable.has_stderr else (variable.name,)


def _check_attributes(ds: xr.Dataset) -> str:
    """The kind of a dataset."""
    for name in _GLOBAL_ATTRIBUTES:
        if name not in ds.attrs:
            raise DatasetError(f'global attribute "{name}" is missing: this is not a dataset of attnphase.')
    if not isinstance(ds.attrs["schema"], str) or ds.attrs["schema"] not in SCHEMAS:
        kinds = " or ".join(SCHEMAS)
        raise DatasetError(f'global attribute "schema" is {ds.attrs["schema"]!r}, but must be {kinds}.')
    return ds.attrs["schema"]


def problem_of(ds: xr.Dataset) -> DataProblem:
    """The problem of a dataset, which imports no module and opens no file that the dataset names.

    Raises
    ------
    DatasetError
        It has none, its hash belongs to another, or it is no problem.
    """
    for name in _PROBLEM_ATTRIBUTES:
        if name not in ds.attrs:
            raise DatasetError(f'global attribute "{name}" is missing: this is not a dataset of attnphase.')
    try:
        return Problem.from_data(str(ds.attrs["problem"]), str(ds.attrs["problem_hash"]))
    except ProblemError as error:
        if error.field == "problem_hash":
            raise DatasetError(
                'global attribute "problem_hash" does not belong to "problem": one of them was changed.'
            ) from None
        raise DatasetError(f'global attribute "problem" is not a problem: {error}') from None


def _check_coordinates(ds: xr.Dataset, kind: str) -> tuple[str, ...]:
    """The swept dimensions, in order."""
    last = SCHEMAS[kind][-1]
    if last.name not in ds:
        raise DatasetError(f'variable "{last.name}" is missing.')
    leading = tuple(map(str, ds[last.name].dims[: ds[last.name].ndim - len(last.dims)]))
    for name in (*leading, *_COORDINATES_OF[kind]):
        if name not in ds.coords:
            raise DatasetError(f'coordinate "{name}" is missing.')
        _check_described(ds, name)
    for dim in map(str, ds.dims):
        if ds.sizes[dim] == 0:
            raise DatasetError(f"the dataset has nothing along {dim}: select at least one value of it.")
        if dim in ds.indexes and not ds.indexes[dim].is_unique:
            raise DatasetError(f'coordinate "{dim}" has a value twice: select every value once.')
    if list(leading) != sorted(leading, key=lambda name: _RANK.get(name, 2)):
        raise DatasetError(f"the dimensions {', '.join(leading)} are out of order: branch is first, alpha last.")
    if kind == "points":
        if not (ds["alpha"].dtype == "float64" and bool((ds["alpha"] > 0).all())):
            raise DatasetError('coordinate "alpha" must be positive numbers of type float64.')
        strange = sorted(set(np.atleast_1d(ds["branch"].to_numpy()).tolist()) - set(BRANCHES))
        if strange:
            raise DatasetError(f'coordinate "branch" is {strange[0]!r}, but must be one of {", ".join(BRANCHES)}.')
    if kind == "experiments":
        for name in ("dimension", "alpha"):
            if ds[name].dtype.kind not in "iuf" or not bool((ds[name] > 0).all()):
                raise DatasetError(f'coordinate "{name}" must be positive numbers.')
    return leading


_COORDINATES_OF = {
    "points": ("branch", "alpha"),
    "thresholds": ("omega",),
    "experiments": ("start", "dimension", "alpha", "seed"),
    "histogram": ("mechanism", "run", "stage", "epoch", "entries", "symbols"),
}


def _check_described(ds: xr.Dataset, name: str, units: str = "1") -> None:
    for attribute in ("long_name", "units", "latex"):
        if attribute not in ds[name].attrs:
            raise DatasetError(f'variable "{name}" has no attribute "{attribute}".')
        if not isinstance(ds[name].attrs[attribute], str):
            raise DatasetError(f'attribute "{attribute}" of variable "{name}" must be a text.')
    given = ds[name].attrs["units"]
    if given != units:
        raise DatasetError(f'variable "{name}" has units {given!r}, but must have units "{units}".')


def overlap_size(ds: xr.Dataset, name: str) -> xr.DataArray:
    """Magnitude of the first token's overlap, which no rotation of the weights changes.

    Parameters
    ----------
    ds : xarray.Dataset
        Points or experiments.
    name : {"m", "theta"}

    Returns
    -------
    xarray.DataArray
        Over the swept dimensions and, of mixtures, cluster.
    """
    first = ds[name].isel(token=0)
    inner = [dim for dim in ("row", "teacher") if dim in first.dims]
    return (first**2).sum(inner, skipna=False) ** 0.5


def _check_variable(
    ds: xr.Dataset,
    name: str,
    dims: tuple[str, ...],
    variable: Variable,
    leading: tuple[str, ...],
    sizes: Mapping[str, int],
) -> None:
    if name not in ds.data_vars:
        raise DatasetError(f'variable "{name}" is missing.')
    array = ds[name]
    expected = (*leading, *dims)
    if array.dims != expected:
        raise DatasetError(f'variable "{name}" has the dimensions {array.dims}, but must have {expected}.')
    for dim in dims:
        if array.sizes[dim] != sizes.get(dim, array.sizes[dim]):
            given = f"{array.sizes[dim]} entries along {dim}"
            raise DatasetError(f'variable "{name}" has {given}, but the problem has {sizes[dim]}.')
    if array.dtype != variable.dtype:
        raise DatasetError(f'variable "{name}" has type {array.dtype}, but must have {variable.dtype}.')
    _check_described(ds, name, variable.units)
    if name == variable.stderr and bool((array < 0).any()):
        raise DatasetError(f'variable "{name}" is negative somewhere.')
    if variable.meanings and not bool(array.isin(range(len(variable.meanings))).all()):
        raise DatasetError(f'variable "{name}" must lie between 0 and {len(variable.meanings) - 1}.')


def _check_numbers(ds: xr.Dataset, problem: Problem) -> None:
    """A point that was computed has numbers, whatever its status; only a standard error may be unknown.

    The linear predictor is defined for attention outputs only, and a token may have fewer clusters than another.
    """
    exists = np.zeros((problem.tokens.length, 1 + max(cluster for _, cluster in problem.sites)), dtype=bool)
    for token, cluster in problem.sites:
        exists[token, cluster] = True
    clusters = xr.DataArray(exists, dims=("token", "cluster"))
    status = ds["status"]
    losses = {problem.loss.kind}
    for coordinate in ds.coords.values():
        if coordinate.attrs.get("field") == "loss.kind":
            losses = {str(kind) for kind in np.atleast_1d(coordinate.to_numpy())}
    for variable in POINT_VARIABLES:
        if variable.name == "linear_test_error" and losses != {"attention"}:
            continue
        wrong = ds[variable.name].isnull() & (status != NOT_COMPUTED)
        if "cluster" in variable.dims_of(problem):
            wrong = wrong & clusters
        if bool(wrong.any()):
            raise DatasetError(f'variable "{variable.name}" is NaN at a point whose status is not not_computed.')


# ------------------------------------------------------------------------------------------------- saving and loading


def save_dataset(ds: xr.Dataset, path: str | os.PathLike[str], force: bool = False) -> None:
    """Write a dataset as netCDF-4, without loss and whole or not at all.

    Parameters
    ----------
    ds : xarray.Dataset
        Following the schema.
    path : path-like
        The file.
    force : bool
        Whether an existing file is replaced.

    Raises
    ------
    DatasetError
        The dataset does not follow the schema, the file exists and `force` is false, or it cannot be written.
    ProblemError
        An argument is of the wrong type.
    """
    path = check_output(path, force)
    validate_dataset(ds)
    # no _FillValue, which xarray would add to every variable of type float
    encoding = {name: {"_FillValue": None} for name in map(str, ds.variables) if ds[name].dtype.kind == "f"}
    image = ds.drop_encoding().to_netcdf(engine="netcdf4", encoding=encoding)
    write_file(path, bytes(image))


def load_dataset(path: str | os.PathLike[str]) -> xr.Dataset:
    """Read a dataset that `save_dataset` wrote.

    Parameters
    ----------
    path : path-like
        The file.

    Returns
    -------
    xarray.Dataset
        In memory; the file is closed.

    Raises
    ------
    DatasetError
        The file cannot be read, is truncated, is not netCDF, or does not follow the schema.
    ProblemError
        `path` is no path.
    """
    path = arguments.path("path", path)

    def refuse(sentence: str) -> DatasetError:
        return DatasetError(f"{path}: {sentence}")

    check_input(path, "netCDF file", LARGEST_BINARY, refuse)
    with _reading(refuse):
        _check_content(path, refuse)
        ds = xr.load_dataset(path, engine="netcdf4")
        ds = ds.drop_encoding()
    for name in ds.coords:
        if ds[name].dtype.kind in "OT":  # strings, depending on xarray's version
            ds[name] = ds[name].astype(str)
    try:
        return validate_dataset(ds)
    except DatasetError as error:
        raise DatasetError(f"{path}: {error}") from None


@contextmanager
def _reading(refuse: Callable[[str], DatasetError]) -> Iterator[None]:
    try:
        yield
    except DatasetError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # what netCDF4 and xarray raise for a damaged file
        raise refuse(f"this is not a netCDF file, or it is truncated or damaged ({error}).") from None


def _check_content(path: Path, refuse: Callable[[str], DatasetError]) -> None:
    """Refuse variables that fill no file but would fill the memory: what was never written takes no place."""
    with netCDF4.Dataset(path) as file:
        sizes = {name: 8 * math.prod(variable.shape) for name, variable in file.variables.items()}
    if sum(sizes.values()) > LARGEST_BINARY:
        largest = max(sizes, key=lambda name: sizes[name])
        raise refuse(f'variable "{largest}" has {sizes[largest] // 8} entries, more than can be held in memory.')


def to_json(ds: xr.Dataset) -> str:
    """Return a dataset's coordinates and variables as one JSON object.

    Parameters
    ----------
    ds : xarray.Dataset
        Any.

    Returns
    -------
    str
        Arrays are nested lists in the order of their dimensions, (token, row, col) last; what is not a finite number
        is null.
    """
    names = [*ds.coords, *ds.data_vars]
    return json.dumps({str(name): _json_value(ds[name].to_numpy().tolist()) for name in names}, allow_nan=False)


def _json_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ------------------------------------------------------------------------------------------------------ documentation


def schema_markdown() -> str:
    """The tables of ``docs/schema.md``: the variables of every kind of dataset and the global attributes."""
    lines: list[str] = []
    for kind, variables in SCHEMAS.items():
        lines += [f"### Variables of `{kind}`", "", *_variable_table(variables), ""]
    lines += ["### Variables of a trajectory, in `experiments`", "", *_variable_table(TRAJECTORY_VARIABLES), ""]
    for kind in ("points", "experiments", "histogram"):
        (flag,) = (variable for variable in SCHEMAS[kind] if variable.meanings)
        meanings = enumerate(f"`{meaning}`" for meaning in flag.meanings)
        lines += [f"### Values of `status` of `{kind}`", "", *_table(("value", "meaning"), meanings), ""]
    also = {name: f"{text} (not of `histogram`)" for name, text in _PROBLEM_ATTRIBUTES.items()}
    described = ((f"`{name}`", text) for name, text in {**_GLOBAL_ATTRIBUTES, **also}.items())
    return "\n".join([*lines, "### Global attributes", "", *_table(("attribute", "content"), described)])


def _variable_table(variables: Iterable[Variable]) -> list[str]:
    rows = (
        (
            f"`{v.name}`",
            ", ".join(v.dims) or "–",
            # a bar would end the cell
            f"${v.latex}$".replace("|", r"\vert "),
            v.dtype,
            f"`{v.stderr}`" if v.has_stderr else "–",
            v.long_name,
        )
        for v in variables
    )
    return _table(("name", "dimensions", "symbol", "type", "standard error", "meaning"), rows)


def _table(head: Sequence[str], rows: Iterable[Iterable[Any]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(map(str, line))} |" for line in lines]
