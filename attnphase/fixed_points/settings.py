"""How a solve runs, and where problems are solved.

Nothing heavy is imported, so that a wrong setting is refused at once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from attnphase import arguments
from attnphase.errors import ProblemError

if TYPE_CHECKING:
    from collections.abc import Collection

    from attnphase.problem.problem import Problem

__all__ = [
    "LARGEST_ALPHA",
    "METHODS",
    "MethodName",
    "SolverSettings",
    "check_affordable",
    "omegas",
    "sample_complexities",
    "sample_complexity",
    "solver_settings",
]

MethodName = Literal["newton", "anderson", "damped"]
"""A fixed-point method."""

METHODS: tuple[MethodName, ...] = get_args(MethodName)
"""Names of the fixed-point methods."""

LARGEST_ALPHA = 1e6
"""Beyond, a sample complexity is a slip of the keyboard."""

_MAX_THREADS = 256


def sample_complexity(name: str, value: Any) -> float:
    """One sample complexity n/d.

    Raises
    ------
    ProblemError
        It is not positive, or too large; the message names the argument.
    """
    return arguments.number(name, value, _possible, f"one positive number up to {LARGEST_ALPHA:g}")


def sample_complexities(name: str, value: Any) -> tuple[float, ...]:
    """One or several distinct sample complexities n/d.

    Raises
    ------
    ProblemError
        As `sample_complexity`, or one is given twice.
    """
    return arguments.numbers(name, value, _possible, f"a positive number up to {LARGEST_ALPHA:g}, or a list of them")


def omegas(name: str, value: Any) -> tuple[float, ...]:
    """One or several distinct weights of the teacher's positional part.

    Raises
    ------
    ProblemError
        One does not lie between 0 and 1, or is given twice; the message names the argument.
    """
    return arguments.numbers(name, value, lambda x: 0 <= x <= 1, "a number from 0 to 1, or a list of them")


def _possible(alpha: float) -> bool:
    return 0 < alpha <= LARGEST_ALPHA


@dataclass(frozen=True)
class SolverSettings:
    """Settings of the solver; the problem does not depend on them.

    Attributes
    ----------
    method : {"newton", "anderson", "damped"}
        "newton" solves on a coarse rule and refines the nodes until the standard error is small enough; "anderson" and
        "damped" iterate on one rule.
    tolerance : float
        Largest relative change of an order parameter under one undamped map, between 0 and 1.
    max_maps : int
        Largest number of evaluations of the state-evolution map, all rules together. At this limit the best point is
        returned. Up to 30 maps with few nodes, whose result is not used, are not counted.
    max_nodes : int
        Largest number of Sobol points, all replicates together.
    threads : int or None
        Threads for the local problems, at most 256; None for all cores.
    stability : bool
        Compute the replicon and the overlap gap at the end; they are NaN otherwise.
    identity : bool
        Decide whether an informed point is on its branch; otherwise ``on_branch`` is "not decided".
    max_seconds : float or None
        Wall-clock seconds for one point, compilation included; None for no limit. At this limit the best point is
        returned, after the errors of its rule are computed.

    Raises
    ------
    ProblemError
        A value is of the wrong type or out of range; the message names it.

    Examples
    --------
    >>> SolverSettings(tolerance=1e-6, stability=False).max_maps
    1000
    """

    method: MethodName = "newton"
    tolerance: float = 1e-7
    max_maps: int = 1000
    max_nodes: int = 2**18
    threads: int | None = None
    stability: bool = True
    identity: bool = True
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        plain: dict[str, Any] = {
            "method": arguments.word("method", self.method, METHODS),
            "tolerance": arguments.number("tolerance", self.tolerance, lambda x: 0 < x < 1, "a number between 0 and 1"),
            "max_maps": arguments.whole("max_maps", self.max_maps, 1),
            "max_nodes": arguments.whole("max_nodes", self.max_nodes, 1),
            "stability": arguments.flag("stability", self.stability),
            "identity": arguments.flag("identity", self.identity),
        }
        if self.threads is not None:
            plain["threads"] = arguments.whole("threads", self.threads, 1, _MAX_THREADS)
        if self.max_seconds is not None:
            seconds = arguments.number("max_seconds", self.max_seconds, lambda x: x > 0, "a positive number of seconds")
            plain["max_seconds"] = seconds
        for name, value in plain.items():  # NumPy's numbers as Python's
            object.__setattr__(self, name, value)


def solver_settings(value: Any, default: SolverSettings | None = None, used: Collection[str] = ()) -> SolverSettings:
    """The settings of an argument, or the default ones.

    Parameters
    ----------
    value
        `SolverSettings` or None.
    default : SolverSettings, optional
        In place of None.
    used : collection of str
        The only fields that have a part in the result; all of them if it is empty.

    Raises
    ------
    ProblemError
        It is something else, or sets a field that has no part.
    """
    if value is None:
        return SolverSettings() if default is None else default
    given: SolverSettings = arguments.instance(
        "settings", value, SolverSettings, "write SolverSettings(tolerance=1e-6)"
    )
    for field in fields(given) if used else ():
        if field.name not in used and getattr(given, field.name) != field.default:
            rest = ", ".join(used)
            raise ProblemError("settings", f"settings.{field.name} has no part in this: leave it out, and set {rest}.")
    return given


def check_affordable(problem: Problem) -> None:
    """Refuse an integration rule with too many nodes before anything is compiled for it.

    Raises
    ------
    ProblemError
        Naming ``integration.rule``.
    """
    length = problem.tokens.length
    noise = length if problem.target_noise else 0
    dimensions = length * (problem.columns + problem.teacher_columns + noise)
    problem.integration.form.check_affordable(problem.integration, dimensions)
