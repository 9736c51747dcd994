"""Derivatives along a field at one sample complexity, and the field's best value along alpha, as datasets."""

from __future__ import annotations

from itertools import product

import xarray as xr

from attnphase import arguments
from attnphase.arrays import Number, Numbers
from attnphase.data.derivatives import from_optima, from_sensitivities
from attnphase.data.outcomes import of_branches, of_optima, of_points, warned
from attnphase.fixed_points.optimum import LOWEST, METRICS, Lowest
from attnphase.fixed_points.sensitivity import sensitivity_at
from attnphase.fixed_points.setting import Setting, setting_of, tuned_range
from attnphase.fixed_points.settings import (
    SolverSettings,
    check_affordable,
    sample_complexities,
    sample_complexity,
    solver_settings,
)
from attnphase.fixed_points.tuning import Optimum, optimum_at
from attnphase.problem.problem import Problem
from attnphase.processes.progress import progress_line, within
from attnphase.state_evolution.branches import BRANCHES, Branches
from attnphase.state_evolution.starts import branches_of, initial_overlaps
from attnphase.sweeps.points import solved

__all__ = ["sensitivity", "tune"]


def sensitivity(
    problem: Problem,
    alpha: Number,
    field: str,
    branch: Branches = "semantic",
    *,
    settings: SolverSettings | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Solve a problem, and differentiate overlaps and metrics with respect to alpha or a field.

    The derivatives are total derivatives along the branch, by the implicit function theorem at the fixed point.

    Parameters
    ----------
    problem : Problem
    alpha : float
        Sample complexity n/d, positive.
    field : str
        "alpha", or a field of the problem that is one real number, by its name in the TOML.
    branch : {"semantic", "positional", "uninformed", "mixed", "all"}
    settings : SolverSettings, optional
    progress : bool, optional
        Show the progress on standard error. By default only compiling is shown.

    Returns
    -------
    xarray.Dataset
        The dataset of `attnphase.solve`, with the derivative ``d_x`` and its standard error ``d_x_stderr`` for each
        overlap and metric ``x``. They are NaN at a point that did not converge, or if the map cannot be evaluated next
        to it.

    Raises
    ------
    ProblemError
        An argument is wrong; the message names it.
    """
    arguments.instance("problem", problem, Problem)
    alpha, settings = sample_complexity("alpha", alpha), solver_settings(settings)
    setting_of("field", problem, field, alpha)
    points = solved(problem, alpha, branch, settings, progress=progress)
    ds = from_sensitivities([sensitivity_at(point, field, settings) for point in points], branch)
    return warned(ds, lambda ds: [*of_branches(points), *of_points(ds)])


def tune(
    problem: Problem,
    alpha: Numbers,
    field: str = "regularizer.strength",
    metric: str = "test_error",
    branch: Branches | Lowest = "semantic",
    *,
    between: Numbers | None = None,
    settings: SolverSettings | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Find the value of a field that minimises a metric of a branch, for each alpha.

    Each branch is traced once over the range. The optimum is a root of the metric's total derivative, an end of the
    range or of a branch, or a crossing of two branches. Two extrema between neighbouring points of a trace are missed.

    Parameters
    ----------
    problem : Problem
    alpha : float or sequence of float
        Sample complexities n/d.
    field : str
        A field of the problem that is one real number, by its name in the TOML.
    metric : str
        "test_error", "training_loss", "weight_norm", or a test metric by its name in the problem's ``metrics``.
    branch : {"semantic", "positional", "uninformed", "mixed", "all", "lowest"}
        "all": each branch of the problem. "lowest": the branch of lowest training loss, at each value of the field.
    between : (float, float), optional
        Range of the field; by default from 1/100 to 100 times the problem's value.
    settings : SolverSettings, optional
    progress : bool, optional
        Show a bar on standard error. By default only compiling is shown.

    Returns
    -------
    xarray.Dataset
        Over ``alpha``, with "all" over ``branch`` too: the optimum, the metric there, and the flag ``status``, which
        tells where the optimum lies.

    Raises
    ------
    ProblemError
        An argument is wrong; the message names it.
    """
    arguments.instance("problem", problem, Problem)
    alphas = sample_complexities("alpha", alpha)
    arguments.word("metric", metric, (*METRICS, *problem.metrics))
    several = arguments.word("branch", branch, (*BRANCHES, "all", LOWEST)) == "all"
    names = branches_of(problem) if several else [branch]
    settings = solver_settings(settings)
    setting, ends = tuned_range(problem, field, between, alphas[0])
    check_affordable(setting.problem)
    if branch != LOWEST:
        for name in names:
            initial_overlaps(setting.problem, name)
    found: dict[tuple[str, float], Optimum] = {}
    measured = metric if metric in METRICS else f"metric_{metric}"
    with progress_line(progress, "tuning", total=len(names) * len(alphas)) as line:
        for name, one in product(names, sorted(alphas, reverse=True)):
            where = f"{name}, alpha = {one:g}" if several else f"alpha = {one:g}"
            here, callback = Setting(setting.problem, one, field), within(where, line.callback)
            found[name, one] = optimum_at(here, name, measured, ends, settings, callback=callback)
            line.reach(len(found))
    place = {"branch": names} if several else {}
    optima = [found[name, one] for name, one in product(names, alphas)]
    ds = from_optima(optima, problem, names[0], place | {"alpha": alphas}, field, metric)
    return warned(ds, lambda ds: of_optima(ds, problem))
