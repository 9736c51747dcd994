"""Whether a dataset follows the schema."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from attnphase import arguments
from attnphase.data.absence import unevaluated
from attnphase.data.reading import problem_of
from attnphase.data.schemas import COORDINATES_OF, GLOBAL_ATTRIBUTES, RANK, SCHEMA_VERSION, SCHEMAS
from attnphase.data.variables import (
    BOUNDARY_VARIABLES,
    HISTOGRAM_ENTRIES,
    HISTOGRAM_STAGES,
    NOT_COMPUTED,
    POINT_VARIABLES,
    TRAJECTORY_VARIABLES,
    TRANSITION_VARIABLES,
    Variable,
    with_own,
)
from attnphase.errors import AttnphaseError, DatasetError
from attnphase.fixed_points.optimum import LOWEST
from attnphase.problem.entries import entry_of
from attnphase.problem.losses import LOSSES
from attnphase.problem.problem import Problem
from attnphase.problem.schema import keys, sections
from attnphase.state_evolution.branches import BRANCHES
from attnphase.version import __version__

__all__ = ["validate_dataset", "validate_kind"]

_ALSO = {"tuned": (LOWEST,)}  # what stands for a branch


def validate_dataset(ds: xr.Dataset) -> xr.Dataset:
    """Check that a dataset follows the schema.

    Parameters
    ----------
    ds : xarray.Dataset
        A result of this package, or a selection from it.

    Returns
    -------
    xarray.Dataset
        The same dataset.

    Raises
    ------
    DatasetError
        The dataset does not follow the schema; the message names the variable or the attribute.
    ProblemError
        `ds` is no `xarray.Dataset`.
    """
    arguments.instance("ds", ds, xr.Dataset)
    kind = _check_attributes(ds)
    problem = Problem() if kind == "histogram" else problem_of(ds)
    leading = _check_coordinates(ds, kind)
    variables = with_own(SCHEMAS[kind], problem)
    if kind == "experiments" and any(str(name).startswith("trajectory_") for name in ds.data_vars):
        variables = (*variables, *TRAJECTORY_VARIABLES)
    if kind == "thresholds" and any(one.name in ds.data_vars for one in TRANSITION_VARIABLES):
        variables = (*variables, *TRANSITION_VARIABLES)
    boundaries = BOUNDARY_VARIABLES if kind == "points" else ()
    known = {name for variable in (*variables, *boundaries) for name in variable.names}
    for name in map(str, ds.data_vars):
        if name not in known:
            raise DatasetError(f'variable "{name}" is not part of the schema: remove it before saving.')
    columns = problem.columns
    clusters = 1 + max(cluster for _, cluster in problem.sites)
    sizes = {"token": problem.tokens.length, "row": columns, "col": columns, "teacher": problem.teacher_columns}
    sizes |= {"cluster": clusters, "parameter": len(problem.loss.fitted)}
    if kind == "histogram":  # it is no experiment on a problem
        sizes = {"stage": len(HISTOGRAM_STAGES), "entries": len(HISTOGRAM_ENTRIES)}
    swept_fields = {ds[name].attrs.get("field", "") for name in leading}
    if {"student.rank", "student.tied", "teacher.rank", "tokens.length", "loss.kind", "loss.width"} & swept_fields:
        sizes = {}  # then the common size is not the problem's
    for variable in variables:
        if variable.optional and not any(name in ds.data_vars for name in variable.names):
            continue
        for name in variable.names:
            _check_variable(ds, name, variable.dims_of(problem), variable, leading, sizes)
    fields = tuple(name for name in leading if name not in ("branch", "alpha"))
    for variable in boundaries:
        if any(name in ds.data_vars for name in variable.names):
            for name in variable.names:
                _check_variable(ds, name, (), variable, fields, sizes)
    if kind in ("points", "curve", "solutions", "sensitivity"):
        _check_numbers(ds, problem)
    return ds


def validate_kind(name: str, ds: xr.Dataset, kind: str, error: type[AttnphaseError] = DatasetError) -> None:
    """Check that a dataset follows the schema, and that of one kind; `name` is what the error calls it.

    Raises
    ------
    DatasetError
        It does not follow its schema.
    AttnphaseError
        It is of another kind; of the class that is given.
    """
    validate_dataset(ds)
    if ds.attrs["schema"] != kind:
        raise error(f'{name} must be a dataset of kind "{kind}", but is "{ds.attrs["schema"]}".')


def _check_attributes(ds: xr.Dataset) -> str:
    """The kind of a dataset."""
    for name in ("schema_version", *GLOBAL_ATTRIBUTES):
        if name not in ds.attrs:
            raise DatasetError(f'global attribute "{name}" is missing: this is not a dataset of attnphase.')
        if name == "schema_version":  # by which the others may differ
            _check_version(ds.attrs[name], ds.attrs.get("attnphase_version"))
    if not isinstance(ds.attrs["schema"], str) or ds.attrs["schema"] not in SCHEMAS:
        kinds = " or ".join(SCHEMAS)
        raise DatasetError(f'global attribute "schema" is {ds.attrs["schema"]!r}, but must be {kinds}.')
    return ds.attrs["schema"]


def _check_version(version: Any, wrote: Any) -> None:
    """Refuse another version of the schema, and what is none."""
    number = isinstance(version, int | np.integer) and not isinstance(version, bool | np.timedelta64)
    if not number or version != SCHEMA_VERSION:
        known = isinstance(wrote, str) and re.fullmatch(r"[\w.+-]+", wrote) and wrote != __version__
        remedy = f"use attnphase {wrote}, which wrote it, or " if known else ""
        raise DatasetError(
            f"the dataset follows version {arguments.shown(version)} of the schema, but this attnphase reads version"
            f" {SCHEMA_VERSION}: {remedy}compute the dataset again."
        )


def _check_coordinates(ds: xr.Dataset, kind: str) -> tuple[str, ...]:
    """The swept dimensions, in order."""
    for name in map(str, ds.coords):
        if "field" in ds[name].attrs and not _is_field(ds[name].attrs["field"]):
            raise DatasetError(f'attribute "field" of variable "{name}" must be a field, such as "tokens.sigma".')
    last = next(one for one in reversed(SCHEMAS[kind]) if not one.optional)
    if last.name not in ds:
        raise DatasetError(f'variable "{last.name}" is missing.')
    leading = tuple(map(str, ds[last.name].dims[: ds[last.name].ndim - len(last.dims)]))
    padded = ds["status"] == NOT_COMPUTED if kind == "curve" else False  # where other curves are longer
    for name in (*leading, *COORDINATES_OF[kind]):
        if name not in ds.coords:
            raise DatasetError(f'coordinate "{name}" is missing.')
        _check_described(ds, name)
        # an epoch of the histogram task may be missing
        if kind != "histogram" and ds[name].dtype.kind == "f" and not bool((np.isfinite(ds[name]) | padded).all()):
            raise DatasetError(f'coordinate "{name}" must be finite numbers: select the others.')
    for dim in map(str, ds.dims):
        if ds.sizes[dim] == 0:
            raise DatasetError(f"the dataset has nothing along {dim}: select at least one value of it.")
        if dim in ds.indexes and not ds.indexes[dim].is_unique:
            raise DatasetError(f'coordinate "{dim}" has a value twice: select every value once.')
    if list(leading) != sorted(leading, key=lambda name: RANK.get(name, 2)):
        raise DatasetError(f"the dimensions {', '.join(leading)} are out of order: branch is first, alpha last.")
    if kind in ("points", "curve", "solutions", "one_rsb", "sensitivity", "tuned"):
        if not (ds["alpha"].dtype == "float64" and bool(((ds["alpha"] > 0) | padded).all())):
            raise DatasetError('coordinate "alpha" must be positive numbers of type float64.')
        strange = sorted(set(np.atleast_1d(ds["branch"].to_numpy()).tolist()) - {*BRANCHES, *_ALSO.get(kind, ())})
        if strange:
            raise DatasetError(f'coordinate "branch" is {strange[0]!r}, but must be one of {", ".join(BRANCHES)}.')
    if kind in ("experiments", "posterior"):
        for name in ("dimension", "alpha"):
            if ds[name].dtype.kind not in "iuf" or not bool((ds[name] > 0).all()):
                raise DatasetError(f'coordinate "{name}" must be positive numbers.')
    return leading


def _is_field(given: object) -> bool:
    """Whether an attribute names a field of a problem."""
    section, key = (*entry_of(given)[0].split("."), "")[:2] if isinstance(given, str) else ("", "")
    return section in sections() and key in keys(sections()[section])


def _check_described(ds: xr.Dataset, name: str, units: str = "1") -> None:
    for attribute in ("long_name", "units", "latex"):
        if attribute not in ds.variables[name].attrs:
            raise DatasetError(f'variable "{name}" has no attribute "{attribute}".')
        if not isinstance(ds.variables[name].attrs[attribute], str):
            raise DatasetError(f'attribute "{attribute}" of variable "{name}" must be a text.')
    given = ds.variables[name].attrs["units"]
    if given != units:
        raise DatasetError(f'variable "{name}" has units {given!r}, but must have units "{units}".')


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
    array = ds.variables[name]
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
    if variable.meanings and not np.isin(array.values, range(len(variable.meanings))).all():
        raise DatasetError(f'variable "{name}" must lie between 0 and {len(variable.meanings) - 1}.')


def _check_numbers(ds: xr.Dataset, problem: Problem) -> None:
    """A point that was computed has numbers, whatever its status; only a standard error may be unknown.

    One that cannot be evaluated has none. The linear predictor is defined for attention outputs only, and a token may
    have fewer clusters than another.
    """
    exists = np.zeros((problem.tokens.length, 1 + max(cluster for _, cluster in problem.sites)), dtype=bool)
    for token, cluster in problem.sites:
        exists[token, cluster] = True
    clusters = xr.Variable(("token", "cluster"), exists)
    computed = ((ds["status"] != NOT_COMPUTED) & ~unevaluated(ds)).variable
    losses = {problem.loss.kind}
    for coordinate in ds.coords.values():
        if coordinate.attrs.get("field") == "loss.kind":
            losses = {str(kind) for kind in np.atleast_1d(coordinate.to_numpy())}
    linear = {name for name, kind in LOSSES.items() if kind.has_grams}
    for variable in POINT_VARIABLES:
        if variable.optional:
            continue
        if variable.name == "linear_test_error" and not losses <= linear:
            continue
        wrong = ds.variables[variable.name].isnull() & computed
        if "cluster" in variable.dims_of(problem):
            wrong = wrong & clusters
        if bool(wrong.any()):
            raise DatasetError(f'variable "{variable.name}" is NaN at a point whose status is not not_computed.')
