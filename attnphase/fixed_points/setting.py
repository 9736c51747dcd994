"""Which number of a problem varies along a curve, and where the curve starts.

Nothing heavy is imported, so that a wrong one is refused at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from attnphase import arguments
from attnphase.errors import ProblemError
from attnphase.fixed_points.settings import sample_complexity
from attnphase.problem.entries import entry_of, get, is_share, value_of
from attnphase.problem.messages import nearest_keys
from attnphase.problem.problem import Problem

__all__ = ["Setting", "field_value", "range_of", "setting_of", "start_of", "start_value", "tuned_range"]

_FOLLOWED = 0.2, 2.0  # alpha, by default
_TUNED = 100.0  # a field is tuned by default from so many times less than its own value to so many times more


def field_value(problem: Problem, name: str) -> float:
    """The present value of a field of real numbers.

    Raises
    ------
    ProblemError
        The problem has no such field, or it is no real number.
    """
    whole, steps = entry_of(name)
    section, _, key = whole.partition(".")
    if section == "integration":
        raise ProblemError(name, f"{name} says how the problem is solved: name a field of what is solved.")
    if section == "loss" and key.removeprefix("parameters.") in (problem.loss.trained or ()):
        raise ProblemError(name, f"{name} is where training begins, on which no result depends: name another field.")
    value = getattr(getattr(problem, section, None), key, None)
    if value is None:  # an entry of a ready-made law
        value = get(problem.to_dict(), whole)
    if steps and (value is not None or is_share(name)):
        value = value_of(problem, name)
    if value is None:
        problem.with_fields({whole: None})  # says so if there is no such field
        raise ProblemError(name, f"{name} has no value in this problem: give it a value, or say by at where it begins.")
    if isinstance(value, bool) or not isinstance(value, float):
        entry = f": name an entry, as {name}[0]" if isinstance(value, list | tuple) else ""
        raise ProblemError(
            name,
            f"{name} is {arguments.shown(value)}, but only a field that is one real number can vary{entry}.",
        )
    return value


@dataclass(frozen=True)
class Setting:
    """A problem at a sample complexity, of which one number varies.

    Attributes
    ----------
    problem : Problem
    alpha : float
    field : str
        "alpha", or a field of the problem by its name in the TOML.
    """

    problem: Problem
    alpha: float
    field: str = "alpha"

    @property
    def value(self) -> float:
        """The present value of the field."""
        return self.alpha if self.field == "alpha" else field_value(self.problem, self.field)

    def at(self, value: float) -> Setting:
        """The same with another value of the field.

        Raises
        ------
        ProblemError
            The field cannot have this value.
        """
        if self.field == "alpha":
            return replace(self, alpha=sample_complexity("alpha", value))
        return replace(self, problem=self.problem.with_fields({self.field: float(value)}))

    def inside(self, between: tuple[float, float]) -> Setting:
        """The same at a value in a range that nothing singles out."""
        return self.at(between[0] + 0.38196601125 * (between[1] - between[0]))


def start_value(value: Any, field: Any, between: tuple[float, float]) -> float:
    """The field's value where a curve starts.

    Raises
    ------
    ProblemError
        It is no number in the range.
    """
    low, high = between
    what = f"a number from {low:g} to {high:g}, the range of {field}"
    return arguments.number("at", value, lambda x: low <= x <= high, what)


def range_of(field: Any, between: Any) -> tuple[float, float]:
    """The range in which a field is followed, which for alpha has a default.

    Raises
    ------
    ProblemError
        The field cannot be followed, or the range is missing or none; the message names the argument.
    """
    _check_named("field", field, "teacher.omega")
    if between is None and field != "alpha":
        raise ProblemError("between", f"between is missing: give the range in which {field} is followed.")
    return _increasing(_FOLLOWED if between is None else between)


def _increasing(between: Any) -> tuple[float, float]:
    ends = arguments.numbers("between", between, lambda _: True, "an increasing pair of numbers")
    if len(ends) != 2 or ends[0] >= ends[1]:
        raise ProblemError("between", f"between must be an increasing pair of numbers, not {arguments.shown(between)}.")
    return ends[0], ends[1]


def _check_named(argument: str, field: Any, example: str, *, alpha: bool = True) -> None:
    if not isinstance(field, str) or ("." not in field and not (alpha and field == "alpha")):
        given = arguments.shown(field)
        nearest = [one for one in nearest_keys(Problem, "", field) if "." in one] if isinstance(field, str) else []
        hint = f": did you mean {nearest[0]}?" if nearest else "."
        what = f"{'alpha, or ' if alpha else ''}a field of the problem as {example}"
        raise ProblemError(argument, f"{argument} must be {what}, not {given}{hint}")


def setting_of(argument: str, problem: Problem, field: Any, alpha: float) -> Setting:
    """A problem at a sample complexity with the field that an argument names, which has one real number there.

    Raises
    ------
    ProblemError
        Naming the argument, or the field.
    """
    _check_named(argument, field, "tokens.sigma")
    setting = Setting(problem, alpha, field)
    _ = setting.value
    return setting


def start_of(problem: Problem, field: Any, alpha: Any, between: tuple[float, float], value: float | None) -> Setting:
    """Where a curve starts: by default at the upper end of alpha's range, or at a field's own value.

    Raises
    ------
    ProblemError
        The field cannot be followed, or not there; the message names it or the argument.
    """
    low, high = between
    if field == "alpha":
        if alpha is not None:
            raise ProblemError("alpha", "alpha is followed: leave it out, or say by at where the curve starts.")
        if low <= 0:
            raise ProblemError("between", f"between must hold positive sample complexities, but begins at {low:g}.")
        return Setting(problem, sample_complexity("between", high) if value is None else value)
    if alpha is None:
        raise ProblemError("alpha", f"alpha is missing: give the sample complexity at which {field} is followed.")
    if value is None:
        value = min(max(field_value(problem, field), low), high)
    here = Setting(problem, sample_complexity("alpha", alpha), field).at(value)
    field_value(here.problem, field)
    for end in between:
        here.at(end)
    return here


def tuned_range(problem: Problem, field: Any, between: Any, alpha: float) -> tuple[Setting, tuple[float, float]]:
    """The setting and the range of a search for the best value of a field.

    Raises
    ------
    ProblemError
        The field or the range cannot be taken; the message names it.
    """
    _check_named("field", field, "regularizer.strength", alpha=False)
    if between is None:
        own = field_value(problem, field)
        if own <= 0:
            raise ProblemError(
                "between", f"between is missing: {field} = {own:g} gives no positive range, so give one."
            )
        between = own / _TUNED, own * _TUNED
        try:
            _ = [Setting(problem, alpha, field).at(end) for end in between]
        except ProblemError:
            raise ProblemError(
                "between",
                f"between is missing, and {field} cannot be all of {between[0]:g} to {between[1]:g}: give a range.",
            ) from None
    low, high = _increasing(between)
    setting = Setting(problem, alpha, field).at(low)  # the field need not have a value of its own
    _ = setting.value
    setting.at(high)
    return setting, (low, high)
