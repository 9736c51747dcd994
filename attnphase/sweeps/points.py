"""One sample complexity, one branch or all of them, as a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnphase import arguments
from attnphase.arrays import Number
from attnphase.data.build import from_points
from attnphase.data.outcomes import of_branches, of_points, warned
from attnphase.data.starts import start_for
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings, sample_complexity, solver_settings
from attnphase.fixed_points.solver import solve_point
from attnphase.problem.problem import Problem
from attnphase.processes.progress import progress_line
from attnphase.state_evolution.branches import Branches
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.starts import branches_named

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["labelled", "solve", "solved"]


def solve(
    problem: Problem,
    alpha: Number,
    branch: Branches = "semantic",
    *,
    start: xr.Dataset | Overlaps | BranchPoint | None = None,
    settings: SolverSettings | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Solve the state-evolution equations of a problem at one sample complexity.

    Equations (S1)-(S8), (O1)-(O4) of the replica-symmetric page.

    Parameters
    ----------
    problem : Problem
    alpha : float
        Sample complexity n/d, positive.
    branch : {"semantic", "positional", "uninformed", "mixed", "all"}
        Without `start`, it determines the starting point; "mixed" needs a student of rank 2 or more. "all" solves every
        branch of the problem.
    start : xarray.Dataset, Overlaps or BranchPoint, optional
        Where the iteration starts, for example the result of a `solve` that ended at a limit.
    settings : SolverSettings, optional
    progress : bool, optional
        Show the progress on standard error. By default only compiling is shown.

    Returns
    -------
    xarray.Dataset
        Order parameters ``q`` (token, row, col), ``m`` (token, row), ``theta`` (token, row, teacher), training loss,
        test error (2/L times the mean loss of a new sample without noise), their standard errors ``x_stderr``, and
        flags, as ``docs/schema.md`` describes. A point that did not converge is returned with its ``status``.

    Raises
    ------
    ProblemError
        An argument is wrong; the message names it.
    SolverError
        The loss is not finite at typical fields.

    Examples
    --------
    >>> import attnphase as ap
    >>> quick = ap.Problem.paper().with_fields({"integration.rule": "sobol", "integration.nodes": 64})
    >>> point = ap.solve(quick, alpha=2.0, branch="semantic")
    >>> round(float(point.test_error), 4), int(point.status)
    (0.0014, 0)
    """
    arguments.instance("problem", problem, Problem)
    alpha, settings = sample_complexity("alpha", alpha), solver_settings(settings)
    points = solved(problem, alpha, branch, settings, start=start, progress=progress)
    return warned(labelled(points, branch), lambda ds: [*of_branches(points), *of_points(ds)])


def solved(
    problem: Problem,
    alpha: float,
    branch: str,
    settings: SolverSettings,
    *,
    start: xr.Dataset | Overlaps | BranchPoint | None = None,
    progress: bool | None = None,
) -> list[BranchPoint]:
    """The points of `solve`, of other arguments that are checked, before they are labelled by xarray."""
    names, _ = branches_named(problem, branch)
    with progress_line(progress, "solving") as line:
        return [
            solve_point(
                problem, alpha, name, start=start_for(start, problem, name), settings=settings, callback=line.callback
            )
            for name in names
        ]


def labelled(points: Sequence[BranchPoint], branch: str) -> xr.Dataset:
    """The dataset of `solved` points of a branch, or of ``"all"``."""
    return from_points(points, {"branch": [point.branch for point in points]} if branch == "all" else {})
