"""Points as users get them, on one thread, and the words of their flags."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

import attnphase as ap

__all__ = ["settings", "size", "solved", "word"]


def settings(**changes: Any) -> ap.SolverSettings:
    """Settings with one thread, without stability, which takes as long as the rest."""
    return ap.SolverSettings(**{"threads": 1, "stability": False} | changes)


def solved(problem: ap.Problem, alpha: float, branch: str = "semantic", start: Any = None, **changes: Any) -> Any:
    """A point by the public solver, with `settings`; a dataset, whose variables are attributes."""
    return ap.solve(problem, alpha, branch, start=start, settings=settings(**changes))  # pyright: ignore[reportArgumentType]


def word(ds: xr.Dataset, name: str = "status") -> str:
    """What a flag means."""
    return ds[name].attrs["flag_meanings"].split()[int(ds[name].item())]


def size(ds: xr.Dataset, name: str) -> float:
    """The largest entry of an order parameter, or of its error."""
    return float(np.abs(ds[name]).max())
