"""The thresholds between branches as a dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import xarray as xr

from attnphase import arguments
from attnphase.data.build import from_thresholds
from attnphase.errors import ProblemError
from attnphase.fixed_points.crossings import Threshold, thresholds_of, usual_cost
from attnphase.fixed_points.settings import SolverSettings, omegas, sample_complexities
from attnphase.problem.problem import Problem
from attnphase.processes.progress import progress_line, within

__all__ = ["thresholds"]


def thresholds(
    problem: Problem,
    omega: float | Sequence[float],
    *,
    alpha: tuple[float, float] = (0.2, 3.0),
    settings: SolverSettings | None = None,
    on_step: Callable[[], None] | None = None,
    progress: bool = False,
) -> xr.Dataset:
    """Thresholds of the phase diagram, with standard errors.

    ``alpha_c``: the training losses of the semantic and the positional branch cross. ``alpha_l``: the test error of the
    semantic branch falls below that of the linear baseline.

    Parameters
    ----------
    problem : Problem
        Its ``teacher.omega`` is replaced.
    omega : float or sequence of float
        Distinct, from 0 to 1.
    alpha : (float, float)
        Range searched.
    settings : SolverSettings, optional
    on_step : callable, optional
        Called after each omega.
    progress : bool
        Show a bar on standard error.

    Returns
    -------
    xarray.Dataset
        ``alpha_c``, ``alpha_l`` and ``alpha_c_stderr``, ``alpha_l_stderr`` over ``omega``; NaN where the range holds no
        crossing.

    Raises
    ------
    ProblemError
        An argument is wrong; the message names it.
    """
    arguments.instance("problem", problem, Problem)
    omega = omegas("omega", omega)
    between = _range(alpha)
    settings = None if settings is None else arguments.instance("settings", settings, SolverSettings)
    if on_step is not None:
        arguments.function("on_step", on_step)
    found: dict[str, list[Threshold]] = {"alpha_c": [], "alpha_l": []}
    problems = [problem.with_fields({"teacher.omega": value}) for value in omega]
    cost = usual_cost()
    # by a third of an omega both the scan and the refinement, whose points cost more, have a share in the rate
    with progress_line(progress, "solving", total=cost * len(problems), enough=cost / 3) as line:
        for i, one in enumerate(problems):

            def advance(steps: float, end: float = cost * (i + 1)) -> None:
                line.reach(min(line.done + steps, end))

            tell = within(f"omega = {one.teacher.omega:g}", line.tell)
            at_loss, at_baseline = thresholds_of(one, between, settings, advance, tell)
            line.reach(cost * (i + 1))
            found["alpha_c"].append(at_loss)
            found["alpha_l"].append(at_baseline)
            if on_step is not None:
                on_step()
    values = {name: [t.alpha for t in thresholds_] for name, thresholds_ in found.items()}
    errors = {name: [t.standard_error for t in thresholds_] for name, thresholds_ in found.items()}
    return from_thresholds(problem, omega, values, errors, "sobol")


def _range(alpha: Any) -> tuple[float, float]:
    ends = sample_complexities("alpha", alpha)
    if len(ends) != 2 or ends[0] >= ends[1]:
        raise ProblemError(
            "alpha", f"alpha must be an increasing pair of positive numbers, not {arguments.shown(alpha)}."
        )
    return ends[0], ends[1]
