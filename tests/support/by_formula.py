"""Datasets of points and runs whose numbers are given by formulas, so that pages and tables can be read off by hand."""

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np
import xarray as xr

import attnphase as ap

ALPHAS = (0.5, 1.25, 2.0)
DIMENSIONS, SEEDS = [50, 100, 200], 4
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


def written(point: xr.Dataset, noise: float = 0.01, slope: float = 0.0, A: Any = None, B: Any = 1.0) -> xr.Dataset:
    """Runs of the theory's numbers plus slope/d and noise of zero mean, in frames A of columns, B of teachers."""
    problem, start = ap.Problem.from_toml(point.attrs["problem"]), point["branch"].item()
    shape: Any = (problem, float(point["alpha"]), start, DIMENSIONS, SEEDS, "gd")
    runs = ap.simulate(*shape, steps=1, test_samples=0).copy(deep=True)
    A, generator = np.eye(problem.columns) if A is None else A, np.random.default_rng(8)
    frames = {
        "q": lambda values: A @ ((values + values.mT) / 2) @ A.mT,
        "theta": lambda values: A @ values * B,
        "m": lambda values: (A @ values[..., None])[..., 0],
    }
    for name in ("q", "m", "theta", "training_loss", "test_error", "weight_norm"):
        for j, d in enumerate(DIMENSIONS):
            values = np.repeat(point[name].to_numpy()[None], SEEDS, axis=0)
            kicks = generator.standard_normal(values.shape)
            values = values * (1 + slope / d + noise * (kicks - kicks.mean(axis=0)))
            runs[name].to_numpy()[0, j, 0] = frames.get(name, lambda values: values)(values)
    return runs
