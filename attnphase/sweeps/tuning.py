"""Derivatives along a field at one sample complexity, and the field's best value along alpha, as datasets."""

from __future__ import annotations

from collections.abc import Sequence

import xarray as xr

from attnphase import arguments
from attnphase.data.derivatives import from_optima, from_sensitivities
from attnphase.data.outcomes import of_branches, of_optima, of_points, warned
from attnphase.fixed_points.optimum import LOWEST, METRICS
from attnphase.fixed_points.sensitivity import sensitivity_at
from attnphase.fixed_points.setting import Setting, setting_of, tuned_range
from attnphase.fixed_points.settings import SolverSettings, check_affordable, sample_complexities, sample_complexity
from attnphase.fixed_points.tuning import Optimum, optimum_at
from attnphase.problem.problem import Problem
from attnphase.processes.progress import progress_line, within
from attnphase.state_evolution.branches import BRANCHES
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.sweeps.points import solved

__all__ = ["sensitivity", "tune"]


def sensitivity(
    problem: Problem,
    alpha: float,
    branch: str = "semantic",
    *,
    of: str,
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
    branch : {"semantic", "positional", "uninformed", "mixed", "all"}
    of : str
        "alpha", or a field of the problem that is one real number, by its name in the TOML.
    settings : SolverSettings, optional
    progress : bool, optional
        Show the progress on standard error.

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
    alpha, branch = sample_complexity("alpha", alpha), arguments.word("branch", branch, (*BRANCHES, "all"))
    settings = SolverSettings() if settings is None else arguments.instance("settings", settings, SolverSettings)
    setting_of("of", problem, of, alpha)
    points = solved(problem, alpha, branch, settings, progress=progress)
    ds = from_sensitivities([sensitivity_at(point, of, settings) for point in points], branch)
    return warned(ds, lambda ds: [*of_branches(points), *of_points(ds)])


def tune(
    problem: Problem,
    over: str = "regularizer.strength",
    metric: str = "test_error",
    *,
    alpha: float | Sequence[float],
    branch: str = "semantic",
    between: tuple[float, float] | None = None,
    settings: SolverSettings | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Find the value of a field that minimises a metric of a branch, for each alpha.

    Each branch is traced once over the range. The optimum is a root of the metric's total derivative, an end of the
    range or of a branch, or a crossing of two branches. Two extrema between neighbouring points of a trace are missed.

    Parameters
    ----------
    problem : Problem
    over : str
        A field of the problem that is one real number, by its name in the TOML.
    metric : str
        "test_error", "training_loss", "weight_norm", or a test metric by its name in the problem's ``metrics``.
    alpha : float or sequence of float
        Sample complexities n/d.
    branch : {"semantic", "positional", "uninformed", "mixed", "lowest"}
        "lowest": the branch of lowest training loss, at each value of the field.
    between : (float, float), optional
        Range of the field; by default from 1/100 to 100 times the problem's value.
    settings : SolverSettings, optional
    progress : bool, optional
        Show a bar on standard error.

    Returns
    -------
    xarray.Dataset
        Over ``alpha``: the optimum, the metric there, and the flag ``status``, which tells where the optimum lies.

    Raises
    ------
    ProblemError
        An argument is wrong; the message names it.
    """
    arguments.instance("problem", problem, Problem)
    alphas = sample_complexities("alpha", alpha)
    arguments.word("metric", metric, (*METRICS, *problem.metrics))
    branch = arguments.word("branch", branch, (*BRANCHES, LOWEST))
    settings = SolverSettings() if settings is None else arguments.instance("settings", settings, SolverSettings)
    setting, ends = tuned_range(problem, over, between, alphas[0])
    check_affordable(setting.problem)
    if branch != LOWEST:
        initial_overlaps(setting.problem, branch)
    found: dict[float, Optimum] = {}
    measured = metric if metric in METRICS else f"metric_{metric}"
    with progress_line(progress, "tuning", total=len(alphas)) as line:
        for one in sorted(alphas, reverse=True):
            here, callback = Setting(setting.problem, one, over), within(f"alpha = {one:g}", line.callback)
            found[one] = optimum_at(here, branch, measured, ends, settings, callback=callback)
            line.reach(len(found))
    ds = from_optima([found[one] for one in alphas], problem, branch, alphas, over, metric)
    return warned(ds, lambda ds: of_optima(ds, problem))
