"""Where runs ended: a run may leave the branch of its start, and means over both kinds of runs belong to neither."""

from __future__ import annotations

import math

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.checks.deviations import Measured
from attnphase.data.reading import counted_alone
from attnphase.data.text import Table, wrapped

__all__ = ["ends_text", "nearest_branch"]

_HELD = ("training_loss", "test_error")
_SAME = 0.01  # relative distance of two branches that have run into each other
_ENOUGH = 5  # runs; the standard error of fewer is hardly known itself
_HEAD = (
    "Where not all runs stayed on the branch of their start: how many ended at which, by the sizes of m and theta, and"
    " how far groups of five or more are from the theory of the branch where they ended, in standard errors."
)


def _sizes(ds: xr.Dataset) -> Array:
    """Lengths of m and of theta over all their entries, which no symmetry changes: (2,), or (2, S) for runs.

    Pairs of a token and a cluster that a mixture does not have are no numbers, and left out.
    """
    sizes = []
    for name in ("m", "theta"):
        inner = [dim for dim in ds[name].dims if dim != "seed"]
        sizes.append(((ds[name] ** 2).sum(inner) ** 0.5).to_numpy())
    return np.stack(sizes)


def nearest_branch(theory: xr.Dataset, runs: xr.Dataset) -> NDArray[np.intp]:
    """The branch whose sizes of m and theta are nearest to a run's.

    Parameters
    ----------
    theory : xarray.Dataset
        Some branches at one alpha.
    runs : xarray.Dataset
        Of one start, dimension and alpha.

    Returns
    -------
    (S,) array of int
        Positions along the theory's branches; of branches that coincide, the first.
    """
    found = _sizes(runs)
    kept: dict[int, Array] = {}
    for i in range(theory.sizes["branch"]):
        point = _sizes(theory.isel(branch=i))
        if not any(np.linalg.norm(point - other) <= _SAME * np.linalg.norm(other) for other in kept.values()):
            kept[i] = point
    away = np.stack([np.linalg.norm(found - point[:, None], axis=0) for point in kept.values()])
    return np.array([*kept])[np.argmin(away, axis=0)]


def ends_text(theory: xr.Dataset, runs: xr.Dataset, width: int | None = None) -> str:
    """Where runs ended, wherever some of a start did not stay on its branch.

    Parameters
    ----------
    theory : xarray.Dataset
        With the runs' starts among its branches, and their sample complexities.
    runs : xarray.Dataset
    width : int or None
        Columns of the terminal; None for no limit.

    Returns
    -------
    str
        Empty if every run stayed.
    """
    rows: list[tuple[str, ...]] = []
    for start in map(str, runs["start"].to_numpy()):
        # where branches coincide, a run has stayed on its own
        branches = sorted(map(str, theory["branch"].to_numpy()), key=lambda name: name != start)
        for alpha in runs["alpha"].to_numpy().tolist():
            points = theory.sel(branch=branches).sel(alpha=alpha, method="nearest")
            for d in runs["dimension"].to_numpy().tolist():
                here = counted_alone(runs.sel(start=start, alpha=alpha, dimension=d))
                ends = nearest_branch(points, here)
                if not ends.any():
                    continue
                for i in np.unique(ends):
                    cells = _cells(points.isel(branch=i), here.isel(seed=ends == i), d)
                    rows.append((start, f"{alpha:g}", str(d), branches[i], *cells))
    heads = ("start", "alpha", "d", "ended at", "runs", *(f"z of {name}" for name in _HELD))
    return f"{wrapped(_HEAD, width)}\n\n{Table(heads, tuple(rows), labels=4, left=(0, 3)).text(width)}" if rows else ""


def _cells(point: xr.Dataset, runs: xr.Dataset, dimension: int) -> tuple[str, ...]:
    """How many runs these are, and their deviations from a point of the theory."""
    cells = [str(runs.sizes["seed"])]
    for name in _HELD:
        exact = float(point[name]), float(point[f"{name}_stderr"])
        z = Measured.of(dimension, runs[name].to_numpy(), *exact).z if runs.sizes["seed"] >= _ENOUGH else math.nan
        cells.append(f"{z:+.1f}" if math.isfinite(z) else "–")
    return tuple(cells)
