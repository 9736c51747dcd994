"""Points with made-up numbers, which tell the places apart: what is tested is where they end up."""

import zlib
from typing import Any

import numpy as np

from attnphase.data.variables import POINT_VARIABLES
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.verdict import IDENTITIES
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status

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
