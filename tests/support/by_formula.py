"""Datasets of points whose numbers are given by formulas, so that figures, pages and tables can be read off by hand."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np
import xarray as xr

import attnphase as ap

__all__ = ["ALPHAS", "FEW", "points", "stretched"]

ALPHAS = (0.5, 1.25, 2.0)
FEW = {"integration.rule": "sobol", "integration.nodes": 16}
_GOOD = {"status": 0, "on_branch": 0, "identities": 0, "overlap_gap": 0.01}


def points(
    fields: Mapping[str, Sequence[Any]],
    alphas: Sequence[float] = ALPHAS,
    branches: Sequence[str] = ("semantic", "positional"),
    problem: ap.Problem | None = None,
    **numbers: Any,
) -> xr.Dataset:
    """A dataset of a sweep over these fields; a number is a constant, or a function of branch, alpha and fields.

    What is not given is that of one solve. All points are converged, on their branches and to be trusted.
    """
    problem = (problem or ap.Problem.paper()).with_fields(FEW)
    base = _solved(problem.to_toml(), tuple(fields))
    swept = {dim: base[dim].attrs.get("field", dim) for dim in map(str, base["status"].dims)}
    given = {"branch": branches, "alpha": alphas, **fields}
    ds = stretched(base, {dim: given[field] for dim, field in swept.items()}).assign_attrs(problem=problem.to_toml())
    for name, number in (_GOOD | numbers).items():
        for index in np.ndindex(*ds["status"].shape):
            here = {dim: ds[dim].to_numpy()[i].item() for dim, i in zip(swept, index, strict=True)}
            ds[name].to_numpy()[index] = number(**here) if callable(number) else number
    return ds


def stretched(ds: xr.Dataset, axes: Mapping[str, Sequence[Any]]) -> xr.Dataset:
    """The same numbers at all values of these dimensions, which have one value each."""
    attributes = {dim: ds[dim].attrs for dim in axes}
    ds = ds.isel({dim: [0] * len(values) for dim, values in axes.items()}).copy(deep=True)
    return ds.assign_coords({dim: (dim, list(values), attributes[dim]) for dim, values in axes.items()})


@cache
def _solved(problem: str, fields: tuple[str, ...]) -> xr.Dataset:
    """One point, over all dimensions of a sweep; whatever three maps come to."""
    own = ap.Problem.from_toml(problem)
    asked = {name: [attrgetter(name)(own)] for name in fields}
    settings = ap.SolverSettings(max_maps=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ap.sweep(own, [1.3], branch="semantic", fields=asked, settings=settings, workers=1, progress=False)
