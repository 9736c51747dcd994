"""A branch followed along a field, and all fixed points at one place, as datasets."""

from __future__ import annotations

from typing import Any

import xarray as xr

from attnphase import arguments
from attnphase.data.build import from_curve, from_solutions
from attnphase.data.outcomes import of_points, warned
from attnphase.errors import NotFoundError, SolverError
from attnphase.fixed_points.continuation import follow_field
from attnphase.fixed_points.deflation import solutions_of
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.setting import increasing, start_of, start_value
from attnphase.fixed_points.settings import SolverSettings, check_affordable, sample_complexity
from attnphase.problem.problem import Problem
from attnphase.processes.progress import progress_line
from attnphase.state_evolution.branches import BRANCHES
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.starts import branches_of, check_start, initial_overlaps

__all__ = ["follow", "solutions"]

_MOST_STARTS = 1000


def follow(
    problem: Problem,
    field: str = "alpha",
    between: tuple[float, float] = (0.2, 2.0),
    *,
    alpha: float | None = None,
    branch: str = "semantic",
    start: float | Overlaps | BranchPoint | None = None,
    settings: SolverSettings | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Follow a branch along one field, through folds and onto its unstable part.

    All points share one integration rule. ``lines`` and ``gauss-hermite`` are refined until the requested error is
    reached at the start. ``sobol`` has 1024 points in each replicate, unless ``integration.nodes`` is set.

    Parameters
    ----------
    problem : Problem
    field : str
        "alpha", or a field of the problem that is one real number, by its name in the TOML.
    between : (float, float)
        Range of the field.
    alpha : float, optional
        Sample complexity n/d, if `field` is another field.
    branch : {"semantic", "positional", "uninformed", "mixed"}
    start : float, Overlaps or BranchPoint, optional
        Value of the field at which the curve starts. For alpha the default is the upper end of the range; for another
        field it is the problem's own value, or the nearest end of the range. Or a point near a fixed point at this
        default, which need not be stable.
    settings : SolverSettings, optional
    progress : bool, optional
        Show the progress on standard error.

    Returns
    -------
    xarray.Dataset
        Variables of points over ``arclength``. ``unstable_directions`` is above 0 at unstable points, and ``turn``
        marks folds.

    Raises
    ------
    ProblemError
        An argument is wrong, or the branch does not exist at the start; the message names it.
    NotFoundError
        It is not decided whether the branch exists at the start.
    """
    arguments.instance("problem", problem, Problem)
    branch = arguments.word("branch", branch, BRANCHES)
    settings = SolverSettings() if settings is None else arguments.instance("settings", settings, SolverSettings)
    low, high = increasing(between)
    overlaps = start.restart.overlaps if isinstance(start, BranchPoint) else start
    value: float | None = None
    if overlaps is not None and not isinstance(overlaps, Overlaps):
        value, overlaps = start_value(overlaps, field, (low, high)), None
    setting = start_of(problem, field, alpha, (low, high), value)
    check_affordable(setting.problem)
    if overlaps is not None:
        check_start(setting.problem, overlaps, initial_overlaps(setting.problem, branch))
    with progress_line(progress, "following", total=1.0, before="where the curve ends inside the range") as line:
        watched: dict[str, Any] = {"callback": line.callback, "advance": line.reach}
        try:
            found = follow_field(setting, branch, (low, high), start=overlaps, settings=settings, **watched)
        except NotFoundError:
            raise
        except ArithmeticError as error:
            raise SolverError(
                f"the {branch} branch cannot be followed from {field} = {setting.value:g}: start elsewhere."
            ) from error
    return warned(from_curve(found, field, setting.problem), of_points)


def solutions(
    problem: Problem,
    alpha: float,
    *,
    starts: int = 12,
    seed: int = 0,
    settings: SolverSettings | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Find all fixed points at one sample complexity, stable or not, in order of increasing training loss.

    Searches begin at the informed start of every branch and at random starts; deflation keeps them away from known
    solutions. Solutions that differ by an exact symmetry of the problem count once. No search proves that there are no
    others.

    Parameters
    ----------
    problem : Problem
    alpha : float
        Sample complexity n/d.
    starts : int
        Number of random starts.
    seed : int
        Seed of the random starts.
    settings : SolverSettings, optional
    progress : bool, optional
        Show the progress on standard error.

    Returns
    -------
    xarray.Dataset
        Variables of points over ``solution``; the coordinate ``branch`` names the order parameters that do not vanish.

    Raises
    ------
    ProblemError
        An argument is wrong; the message names it.
    SolverError
        No fixed point was found.
    """
    arguments.instance("problem", problem, Problem)
    alpha = sample_complexity("alpha", alpha)
    starts = arguments.whole("starts", starts, 0, _MOST_STARTS)
    seed = arguments.whole("seed", seed, 0)
    settings = SolverSettings() if settings is None else arguments.instance("settings", settings, SolverSettings)
    check_affordable(problem)
    with progress_line(progress, "searching", len(branches_of(problem)) + starts, unit="starts") as line:
        watched = {"callback": line.callback, "advance": line.reach}
        found = solutions_of(problem, alpha, starts=starts, seed=seed, settings=settings, **watched)
    if not found:
        raise SolverError(
            f"no fixed point was found at alpha = {alpha:g}: give more starts{problem.loss.trained_remedy}."
        )
    return warned(from_solutions(found, problem), of_points)
