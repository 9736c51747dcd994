"""The thresholds between branches as a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import xarray as xr

from attnphase import arguments
from attnphase.arrays import Numbers
from attnphase.data.build import from_thresholds
from attnphase.data.outcomes import of_thresholds, warned
from attnphase.errors import ProblemError
from attnphase.fixed_points.settings import SolverSettings, omegas, sample_complexities, solver_settings
from attnphase.fixed_points.threshold import Outcome, Threshold
from attnphase.fixed_points.transitions import thresholds_of
from attnphase.problem.problem import Problem
from attnphase.processes.progress import progress_line, within

__all__ = ["thresholds"]

_CROSSINGS, _TRANSITIONS = (0.2, 3.0), (0.01, 3.0)  # ranges searched by default
_NO_REST = Threshold.absent(Outcome.no_branch, "zero weights are no stationary point")
_STEPS, _MORE_STEPS = 4, 4  # of one value: two branches and two thresholds, and four more


def thresholds(
    problem: Problem,
    alpha: Numbers | None = None,
    omega: Numbers | None = None,
    *,
    fields: Mapping[str, Any] | None = None,
    transitions: bool = False,
    settings: SolverSettings | None = None,
    on_step: Callable[[], None] | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Locate thresholds of the phase diagram, with standard errors.

    At ``alpha_c`` the training losses of the semantic and the positional branch cross. At ``alpha_l`` the test error of
    the semantic branch falls below that of the linear predictor. With `transitions`, a branch begins at a fold at
    ``spinodal_semantic`` and ``spinodal_positional``, and the order parameter grows continuously from the uninformed
    point above ``onset_theta`` and ``onset_m``. Where zero weights are a solution, as at a kink of the regulariser, the
    branches' training losses fall below theirs at ``zero_semantic`` and ``zero_positional``.

    Parameters
    ----------
    problem : Problem
        The values of `omega` or `fields` replace its own.
    alpha : (float, float), optional
        Range of the search; by default 0.2 to 3, and 0.01 to 3 for the transitions.
    omega : float or sequence of float, optional
        Distinct, from 0 to 1; the problem's own by default.
    fields : mapping, optional
        Another field than omega, by its name in the TOML, and its values.
    transitions : bool
        Locate spinodals and onsets too, which takes about twice as long.
    settings : SolverSettings, optional
    on_step : callable, optional
        Called after each value.
    progress : bool, optional
        Show a bar on standard error. By default only compiling is shown.

    Returns
    -------
    xarray.Dataset
        Each threshold ``x`` over ``omega`` or the other field, with ``x_stderr`` and the flag ``x_status``. A missing
        threshold is NaN; the flag gives the reason, and its attribute ``comment`` the reason in words.

    Raises
    ------
    ProblemError
        An argument is wrong; the message names it.
    """
    arguments.instance("problem", problem, Problem)
    crossings, ends = (_CROSSINGS, _TRANSITIONS) if alpha is None else (_range(alpha),) * 2
    transitions = arguments.flag("transitions", transitions)
    settings = solver_settings(settings)
    if on_step is not None:
        arguments.function("on_step", on_step)
    shown = arguments.flag_or_none("progress", progress)
    field, values = _varied(problem, omega, fields)
    problems = [problem.with_fields({field: value}) for value in values]
    found: list[dict[str, Threshold]] = []
    steps = _STEPS + (_MORE_STEPS if transitions else 0)
    with progress_line(shown, "solving", total=steps * len(problems)) as line:
        for i, (one, value) in enumerate(zip(problems, values, strict=True)):

            def advance() -> None:
                line.reach(line.done + 1)

            callback = within(f"{field.rpartition('.')[2]} = {value:g}", line.callback)
            found.append(thresholds_of(one, crossings, ends if transitions else None, settings, advance, callback))
            line.reach(steps * (i + 1))
            if on_step is not None:
                on_step()
    return warned(_labelled(problem, field, values, found), of_thresholds)


def _labelled(
    problem: Problem,
    field: str,
    values: Sequence[float],
    found: Sequence[Mapping[str, Threshold]],
) -> xr.Dataset:
    names = dict.fromkeys(name for here in found for name in here)
    columns = {name: [here.get(name, _NO_REST) for here in found] for name in names}
    rules = sorted({one.rule for here in found for one in here.values() if one.rule})
    ds = from_thresholds(
        problem,
        values,
        {name: [t.alpha for t in column] for name, column in columns.items()},
        {name: [t.standard_error for t in column] for name, column in columns.items()},
        ", ".join(rules or [problem.integration.rule]),
        field=field,
        outcomes={name: [int(t.outcome) for t in column] for name, column in columns.items()},
    )
    (along,) = map(str, ds["alpha_c"].dims)
    for name, column in columns.items():
        said = [f"{along} = {x:g}: {one.reason}" for x, one in zip(values, column, strict=True) if one.reason]
        if said:
            ds[f"{name}_status"].attrs["comment"] = "\n".join(said)
    return ds


def _varied(problem: Problem, omega: Any, fields: Any) -> tuple[str, tuple[float, ...]]:
    """The field that varies, and its values."""
    if fields is None:
        return "teacher.omega", omegas("omega", problem.teacher.omega if omega is None else omega)
    given = arguments.mapping("fields", fields, "a mapping from one field of the problem to its values")
    if omega is not None or len(given) != 1:
        raise ProblemError("fields", "fields must name one field, and omega must then be left out.")
    ((field, values),) = given.items()
    if field in ("alpha", "branch"):
        raise ProblemError(field, f"{field} is not a field of the problem: thresholds are searched along alpha.")
    return field, arguments.numbers(field, values, lambda _: True, "a number, or a list of them")


def _range(alpha: Any) -> tuple[float, float]:
    ends = sample_complexities("alpha", alpha)
    if len(ends) != 2 or ends[0] >= ends[1]:
        raise ProblemError(
            "alpha", f"alpha must be an increasing pair of positive numbers, not {arguments.shown(alpha)}."
        )
    return ends[0], ends[1]
