"""A branch followed along a field, and all fixed points at one place, as datasets."""

from __future__ import annotations

from typing import Any

import xarray as xr

from attnphase import arguments
from attnphase.arrays import Number, Numbers
from attnphase.data.curves import from_curves, from_solutions
from attnphase.data.outcomes import of_left_out, of_points, told_of, warned
from attnphase.data.starts import overlaps_of, start_for
from attnphase.errors import AttnphaseError, NotFoundError, ProblemError, SolverError
from attnphase.fixed_points.continuation import Curve, follow_field
from attnphase.fixed_points.deflation import solutions_of
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.setting import range_of, start_of, start_value
from attnphase.fixed_points.settings import SolverSettings, check_affordable, sample_complexity, solver_settings
from attnphase.problem.problem import Problem
from attnphase.processes.progress import progress_line
from attnphase.state_evolution.branches import Branches
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.starts import branches_named, branches_of, check_start, initial_overlaps

__all__ = ["follow", "solutions"]

_MOST_STARTS = 1000


def follow(
    problem: Problem,
    alpha: Number | None = None,
    field: str = "alpha",
    between: Numbers | None = None,
    branch: Branches = "semantic",
    *,
    at: Number | None = None,
    start: xr.Dataset | Overlaps | BranchPoint | None = None,
    settings: SolverSettings | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Follow a branch along one field, through folds and onto its unstable part.

    All points share one integration rule. ``lines`` and ``gauss-hermite`` are refined until the requested error is
    reached at the start. ``sobol`` has 1024 points in each replicate, unless ``integration.nodes`` is set.

    Parameters
    ----------
    problem : Problem
    alpha : float, optional
        Sample complexity n/d, if `field` is another field.
    field : str
        "alpha", or a field of the problem that is one real number, by its name in the TOML.
    between : (float, float), optional
        Range of the field; by default 0.2 to 2 for alpha.
    branch : {"semantic", "positional", "uninformed", "mixed", "all"}
        "all": every branch of the problem that exists where the curves start.
    at : float, optional
        Value of the field at which the curve starts. For alpha the default is the upper end of the range; for another
        field it is the problem's own value, or the nearest end of the range.
    start : xarray.Dataset, Overlaps or BranchPoint, optional
        Where the iteration starts, near a fixed point at this value, which need not be stable; for example the result
        of `solve`.
    settings : SolverSettings, optional
    progress : bool, optional
        Show the progress on standard error. By default only compiling is shown.

    Returns
    -------
    xarray.Dataset
        Variables of points over ``arclength``, or with "all" over ``branch`` and ``point``, where shorter curves end in
        points that are ``not_computed``. ``unstable_directions`` is above 0 at unstable points, ``turn`` marks folds.

    Raises
    ------
    ProblemError
        An argument is wrong, or the branch does not exist at the start; the message names it.
    NotFoundError
        It is not decided whether the branch exists at the start.
    """
    arguments.instance("problem", problem, Problem)
    names, several = branches_named(problem, branch)
    settings, (low, high) = solver_settings(settings), range_of(field, between)
    setting = start_of(problem, field, alpha, (low, high), None if at is None else start_value(at, field, (low, high)))
    check_affordable(setting.problem)
    starts = {name: overlaps_of(start_for(start, setting.problem, name)) for name in names}
    for name, overlaps in starts.items():
        if overlaps is not None:
            check_start(setting.problem, overlaps, initial_overlaps(setting.problem, name))
    found, left_out = list[Curve](), list[AttnphaseError]()
    with progress_line(progress, "following", total=1.0, before="where the curve ends inside the range") as line:
        watched: dict[str, Any] = {"callback": line.callback, "advance": line.reach, "settings": settings}
        for name in names:
            try:
                found.append(follow_field(setting, name, (low, high), start=starts[name], **watched))
            except (ProblemError, NotFoundError) as error:
                left_out.append(error)
            except ArithmeticError as error:
                where = f"from {field} = {setting.value:g}: start elsewhere."
                raise SolverError(f"the {name} branch cannot be followed {where}") from error
    if not found:
        raise left_out[-1]
    ds = from_curves(found, field, setting.problem, several=several).assign_attrs(told_of(left_out))
    return warned(ds, lambda ds: [*of_left_out(ds), *of_points(ds)])


def solutions(
    problem: Problem,
    alpha: Number,
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
        Show the progress on standard error. By default only compiling is shown.

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
    settings = solver_settings(settings)
    check_affordable(problem)
    with progress_line(progress, "searching", len(branches_of(problem)) + starts, unit="starts") as line:
        watched = {"callback": line.callback, "advance": line.reach}
        found = solutions_of(problem, alpha, starts=starts, seed=seed, settings=settings, **watched)
    if not found:
        raise SolverError(
            f"no fixed point was found at alpha = {alpha:g}: give more starts{problem.loss.trained_remedy}."
        )
    return warned(from_solutions(found, problem), of_points)
