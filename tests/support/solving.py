"""Points as users get them, on one thread, and the words of their flags."""

from typing import Any

import numpy as np
import xarray as xr

import attnphase as ap


def in_units(c: float) -> dict[str, Any]:
    """The paper's fields with lengths of tokens and encodings times c, and temperatures times c^2."""
    lengths = {"tokens.sigma": 0.5 * c, "positions.kind": "gram", "positions.gram": [[c**2, -(c**2)], [-(c**2), c**2]]}
    return (
        lengths
        | dict.fromkeys(("teacher.temperature", "student.temperature"), c**2)
        | {"regularizer.strength": 0.01 * c**2}
    )


def settings(**changes: Any) -> ap.SolverSettings:
    """Settings with one thread, without stability, which takes as long as the rest."""
    return ap.SolverSettings(**{"threads": 1, "stability": False} | changes)


def solved(problem: ap.Problem, alpha: float, branch: str = "semantic", start: Any = None, **changes: Any) -> Any:
    """A point by the public solver, with `settings`; a dataset, whose variables are attributes."""
    return ap.solve(problem, alpha, branch, start=start, settings=settings(**changes))  # pyright: ignore[reportArgumentType]


def word(ds: xr.Dataset, name: str = "status") -> str:
    """What a flag means."""
    return ds[name].attrs["flag_meanings"].split()[int(ds[name].item())]


def endings(ds: xr.Dataset) -> Any:
    """How training runs ended, an array of words."""
    return np.array(ds["status"].attrs["flag_meanings"].split())[ds["status"].to_numpy()]


def size(ds: xr.Dataset, name: str) -> float:
    """The largest entry of an order parameter, or of its error."""
    return float(np.abs(ds[name]).max())
