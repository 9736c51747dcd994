"""Consistency report: whether everything that must agree for a problem agrees.

Every check compares two independent ways to one number, at a solved fixed point or on random fields, so that a user's
own model is tested as the shipped ones are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from attnphase import arguments
from attnphase.arrays import Number
from attnphase.checks.case import Case
from attnphase.checks.comparison import compare
from attnphase.checks.equations import equations
from attnphase.checks.fixed_point import RATE, STATED, convergence, expressions, rate, stated_errors
from attnphase.checks.limits import reductions
from attnphase.checks.local_code import backends, symmetries
from attnphase.checks.report import NOT_REACHED, Check, Report
from attnphase.data.build import from_points
from attnphase.errors import ExperimentError, MissingExtraError, ProblemError
from attnphase.experiments.optimizers.kinds import suited
from attnphase.experiments.simulate import simulate
from attnphase.extras import require_torch
from attnphase.fixed_points.settings import SolverSettings, sample_complexity, solver_settings
from attnphase.fixed_points.solver import solve_point
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Callback, progress_line
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.branches import Branches
from attnphase.state_evolution.starts import branches_named

__all__ = ["check"]

_SIGMAS = 5.0  # standard errors within which sampled quantities must agree
_DIMENSIONS, _SEEDS = (60, 120, 240), 12  # of the small experiment
_TRAINED = 1e-6  # norm of its gradient / sqrt(d)
_COMPARED = ("training_loss", "test_error", "weight_norm")


def check(
    problem: Problem,
    alpha: Number = 1.5,
    branch: Branches = "semantic",
    *,
    settings: SolverSettings | None = None,
    experiment: bool = True,
    on_check: Callable[[Check], None] | None = None,
    progress: bool | None = None,
) -> Report:
    """Compare the equations, the code and the numbers of a problem with each other.

    Parameters
    ----------
    problem : Problem
    alpha : float
        Sample complexity of the fixed point of the checks.
    branch : {"semantic", "positional", "uninformed", "mixed", "all"}
        Branch of this fixed point. "all": every branch of the problem, whose name begins that of each check.
    settings : SolverSettings, optional
    experiment : bool
        Train small instances at finite d too, which needs PyTorch and takes a few seconds.
    on_check : callable, optional
        Called with each check when it is finished.
    progress : bool, optional
        Show the progress on standard error. By default only compiling is shown.

    Returns
    -------
    Report
        All checks; ``passed`` is whether none failed.

    Raises
    ------
    ProblemError
        An argument is wrong; the message names it.
    """
    arguments.instance("problem", problem, Problem)
    alpha, (names, several) = sample_complexity("alpha", alpha), branches_named(problem, branch)
    settings = solver_settings(settings)
    arguments.flag("experiment", experiment)
    if on_check is not None:
        arguments.function("on_check", on_check)
    checks: list[Check] = []
    for name in names:
        for one in _of_branch(problem, alpha, name, settings, experiment, progress):
            checks.append(replace(one, name=f"{name}: {one.name}") if several else one)
            if on_check is not None:
                on_check(checks[-1])
    return Report(problem, alpha, branch, tuple(checks))


def _of_branch(
    problem: Problem, alpha: float, branch: str, settings: SolverSettings, experiment: bool, progress: bool | None
) -> Iterator[Check]:
    """The checks at the fixed point of one branch."""
    with progress_line(progress, "solving") as line:
        point = solve_point(problem, alpha, branch, settings=settings, callback=line.callback)
        case = Case.of(problem, point, settings)
        yield from _checks(case, line.callback)
    if experiment:
        yield _experiment(case, progress)


def _checks(case: Case, callback: Callback) -> Iterator[Check]:
    """All but the experiment."""
    reached = convergence(case)
    yield reached
    callback("comparing the back ends")
    yield from backends(case)
    callback("comparing losses under the symmetries")
    yield symmetries(case)
    if reached.passed:
        callback("comparing expressions of the training loss")
        yield expressions(case)
        yield from equations(case, callback)
        callback("the standard errors on more nodes")
        yield rate(case) if case.solved_with.randomised else stated_errors(case)
    else:
        names = (
            "expressions of the training loss",
            "gradient of the free entropy",
            RATE if case.rule.randomised else STATED,
        )
        yield from (Check.left_out(name, NOT_REACHED) for name in names)
    yield from reductions(case, callback)


def _experiment(case: Case, progress: bool | None) -> Check:
    """Small instances, trained from the branch's start, against the theory after a correction in 1/d."""
    problem, point, name = case.problem, case.point, "experiment at finite d"
    if not case.system.sample_law.gaussian and not problem.tokens.own_laws:
        return Check.left_out(name, "not tried: instances are drawn with Gaussian fields")
    try:
        require_torch()
    except MissingExtraError as error:
        return Check.left_out(name, f"not tried: {error}")
    if point.status is not Status.converged:
        return Check.left_out(name, NOT_REACHED)
    optimizer = suited("lbfgs", problem)
    options: dict[str, Any] = {"tolerance": _TRAINED, "steps": 1000, "test_samples": 0, "seed": 1, "progress": progress}
    try:
        runs = simulate(problem, point.alpha, point.branch, _DIMENSIONS, _SEEDS, optimizer, **options)
    except (ProblemError, ExperimentError) as error:
        return Check.left_out(name, f"not tried: {error}")
    quantities = [q for q in compare(from_points([point]), runs).quantities if q.name in _COMPARED]
    known = [q for q in quantities if math.isfinite(q.z)]
    if not known:
        return Check.left_out(name, "no quantity has a standard error")
    detail = f"{optimizer} at d = {', '.join(map(str, _DIMENSIONS))}, {_SEEDS} instances each: " + ", ".join(
        f"{q.name} {q.z:+.1f}" for q in known
    )
    loss = next((q for q in known if q.name == "training_loss"), None)
    if loss is not None and loss.z < -_SIGMAS:
        left = f"the runs left this branch for a lower minimum (training loss {loss.z:+.1f} standard errors)"
        return Check.left_out(name, left)
    return Check.below(name, max(abs(q.z) for q in known), _SIGMAS, f"{detail} standard errors of the limit")
