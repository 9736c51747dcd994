"""Points and lines with made-up numbers, which tell the places apart: what is tested is where they end up."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr

from attnphase.data.build import from_points
from attnphase.data.variables import POINT_VARIABLES
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.verdict import IDENTITIES
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status
from attnphase.sweeps.line import Line

SWEEP = importlib.import_module("attnphase.sweeps.grid")
_OWN = ("residual", "iterations", "nodes", "on_branch", "zero_weights", "identities", "status")


def made_up_point(problem: Problem, alpha: float, branch: str, **known: Any) -> BranchPoint:
    """A converged point; of the variables, `known` ones have these values."""
    rng = np.random.default_rng(zlib.crc32(f"{problem.to_toml()}{alpha!r}{branch}".encode()))
    sizes = {"token": len(problem.sites), "row": problem.columns, "col": problem.columns, "eigenvalue": 3}
    sizes["teacher"] = problem.teacher_columns
    values, errors = {}, {}
    for variable in POINT_VARIABLES:
        if variable.name in _OWN:
            continue
        drawn = rng.normal(size=[sizes[dim] for dim in variable.dims])
        values[variable.name] = drawn if variable.dims else float(drawn)
        if variable.has_stderr:
            errors[variable.name] = np.abs(drawn) / (1 if variable.name in IDENTITIES else 100)  # these hold
    values["unsolved_nodes"] = 0
    status = known.pop("status", Status.converged)
    values |= known
    nothing: Any = None  # datasets do not hold restart information
    return BranchPoint(problem, alpha, branch, values, errors, status, 1e-9, 17, "sobol", 256, nothing)


def made_up_line(line: Line, on_point: Callable[[BranchPoint], None] | None = None, **known: Any) -> xr.Dataset:
    """What `Line.solve` returns, in no time."""
    points = [made_up_point(line.problem, alpha, line.branch, **known) for alpha in line.alphas]
    for point in points:
        if on_point is not None:
            on_point(point)
    return from_points(points, {"alpha": line.alphas}, problem=line.problem)


class Solver:
    """Solves lines in place of the real one, and notes their labels.

    Attributes
    ----------
    labels : list of str
        Of the lines solved.
    lines_left : float
        After so many, Ctrl-C.
    failures : dict of str to Exception
        What lines fail with, by label.
    known : dict
        Values of variables at every point.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.labels: list[str] = []
        self.lines_left: float = float("inf")
        self.failures: dict[str, Exception] = {}
        self.known: dict[str, Any] = {}
        patch.setattr(Line, "solve", lambda line, on_point=None: self._solve(line, on_point))
        patch.setattr(SWEEP, "kernels_for", lambda *_: None)

    def _solve(self, line: Line, on_point: Callable[[BranchPoint], None] | None) -> xr.Dataset:
        if self.lines_left == 0:
            raise KeyboardInterrupt
        if line.label in self.failures:
            raise self.failures[line.label]
        self.lines_left -= 1
        self.labels.append(line.label)
        return made_up_line(line, on_point, **self.known)
