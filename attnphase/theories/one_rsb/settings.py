"""What one-step replica-symmetry breaking is asked for, checked.

Nothing heavy is imported, so that a wrong argument is refused at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from attnphase import arguments
from attnphase.errors import ProblemError

if TYPE_CHECKING:
    from attnphase.problem.problem import Problem

__all__ = ["STARTS", "OneRsbStart", "check_covered", "one_rsb_sizes", "parisi_parameters"]

OneRsbStart = Literal["replica-symmetric", "informed"]
STARTS: tuple[OneRsbStart, ...] = get_args(OneRsbStart)
"""Where the iteration may start, by name."""

_FEWEST, _MOST = 8, 2**18  # points of either kind; both together in a replicate

_FOR_EACH = 4  # inner points for each field of a sample: half of them must span it


def check_covered(problem: Problem) -> None:
    """Refuse a problem whose 1RSB equations are not solved.

    Raises
    ------
    ProblemError
        Naming the field.
    """
    if not problem.regularizer.form.quadratic:
        raise ProblemError("regularizer.kind", "regularizer.kind must be ridge: 1RSB is solved for the ridge alone.")
    if problem.loss.form.has_labels:
        raise ProblemError(
            "loss.kind",
            f"loss.kind is {problem.loss.kind}, which 1RSB does not cover, since it contains only the sign"
            " of the teacher's field.",
        )
    problem.loss.refuse_trained("1RSB")


def one_rsb_sizes(problem: Problem, outer: Any, inner: Any) -> tuple[int, int]:
    """Numbers of outer and inner points for a problem.

    Raises
    ------
    ProblemError
        One is no power of two, or they are too few or too many; the message names the argument.
    """
    sizes = arguments.whole("outer", outer, _FEWEST), arguments.whole("inner", inner, _FEWEST)
    for name, value in zip(("outer", "inner"), sizes, strict=True):
        if value & (value - 1):
            raise ProblemError(name, f"{name} must be a power of two, not {arguments.shown(value)}.")
    fields = problem.tokens.length * problem.columns
    if sizes[1] < _FOR_EACH * fields:
        raise ProblemError("inner", f"inner must be at least {_FOR_EACH * fields} for the {fields} fields of a sample.")
    if sizes[0] * sizes[1] > _MOST:
        raise ProblemError("outer", f"outer times inner must be at most {_MOST}: give fewer of one.")
    return sizes


def parisi_parameters(y: Any) -> tuple[float, ...]:
    """Parisi parameters, none for None.

    Raises
    ------
    ProblemError
        One is not positive, or is given twice; the message names ``y``.
    """
    if y is None:
        return ()
    return arguments.numbers(
        "y", y, lambda value: 1e-9 <= value <= 1e12, "a number from 1e-9 to 1e12, or a list of them"
    )
