"""Errors that the user can correct, and warnings; the text of each is one sentence.

The module imports nothing, so that the command line can distinguish these errors from faults of the program before
anything else is loaded.
"""

from __future__ import annotations

__all__ = [
    "AttnphaseError",
    "AttnphaseWarning",
    "CacheError",
    "CompareError",
    "DatasetError",
    "ExperimentError",
    "MergedWarning",
    "MissingExtraError",
    "NotConvergedWarning",
    "NotFoundError",
    "NotFoundWarning",
    "ProblemError",
    "ReplicaSymmetryWarning",
    "SolverError",
    "SpectrumError",
    "SweepError",
    "UndecidedWarning",
    "ViolatedWarning",
]


class AttnphaseError(Exception):
    """Base class of all errors of this package; the text is one sentence that names the fault and the remedy.

    Attributes
    ----------
    exit_code : int
        Exit code of a command that ends with this error: 2 if the input cannot be used, 1 if a search found nothing.
    """

    exit_code = 2


class ProblemError(AttnphaseError, ValueError):
    """A field of a problem, or an argument of a function, is wrong.

    Parameters
    ----------
    field : str
        A field by its name in the TOML, such as ``teacher.mixing``, the name of an argument, or a file that cannot be
        read.
    message : str
        One sentence that names the field, the value, the rule and the remedy.

    Attributes
    ----------
    field, message : str
        As given.

    Examples
    --------
    >>> import attnphase as ap
    >>> try:
    ...     ap.Problem.paper(omega=1.5)
    ... except ap.errors.ProblemError as error:
    ...     print(error.field, "|", error)
    teacher.omega | teacher.omega must be a number from 0 to 1, but it is 1.5.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(field, message)
        self.field = field
        self.message = message

    def __str__(self) -> str:
        return self.message


class SpectrumError(AttnphaseError, ValueError):
    """Matrices, or the arrays of a measure, do not make a `attnphase.Spectrum`; the message gives the reason."""


class DatasetError(AttnphaseError, ValueError):
    """A dataset does not follow the schema, or a file cannot be read or written."""


class CompareError(AttnphaseError, ValueError):
    """Two datasets cannot be compared; the message gives the reason."""


class CacheError(AttnphaseError, RuntimeError):
    """The folder of compiled kernels cannot be used safely; the message names the folder and the remedy."""


class SolverError(AttnphaseError, ArithmeticError):
    """The equations of a problem cannot be evaluated, or have no solution near the start."""


class NotFoundError(SolverError):
    """A search with valid input ended without a result."""

    exit_code = 1


class SweepError(AttnphaseError, RuntimeError):
    """A sweep could not be finished; its finished lines are kept if it has an output file."""


class ExperimentError(AttnphaseError, RuntimeError):
    """An experiment cannot be run or resumed; the message gives the reason and the remedy."""


class MissingExtraError(AttnphaseError, ImportError):
    """An optional package is missing; the message says how to install it."""


class AttnphaseWarning(UserWarning):
    """Base class of the warnings of this package.

    A function warns when its result is complete and saved, once for each class. The standard filters silence a class:
    ``warnings.simplefilter("ignore", ap.errors.MergedWarning)``.
    """


class NotConvergedWarning(AttnphaseWarning):
    """Points, runs or trajectories did not end well; ``status`` in the result tells which."""


class MergedWarning(AttnphaseWarning):
    """A branch does not exist at some points, which are the uninformed one; see ``on_branch``."""


class UndecidedWarning(AttnphaseWarning):
    """It is not decided whether points are on their branch; see ``on_branch``."""


class ViolatedWarning(AttnphaseWarning):
    """Exact identities are violated at points, whose numbers are not to be used; see ``identities``."""


class ReplicaSymmetryWarning(AttnphaseWarning):
    """Replica symmetry fails at points, so that training may end elsewhere; see ``overlap_gap``."""


class NotFoundWarning(AttnphaseWarning):
    """A threshold was not found, and ``x_status`` tells why; or a result of all branches lacks some."""


def __dir__() -> list[str]:
    return __all__
