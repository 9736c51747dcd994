"""Everything that can go wrong in a way that the user can mend: one sentence each.

The module imports nothing, so that the command line can tell these errors from faults of the program before anything is
loaded.
"""

from __future__ import annotations

__all__ = [
    "AttnphaseError",
    "CacheError",
    "CompareError",
    "DatasetError",
    "ExperimentError",
    "MissingExtraError",
    "NotFoundError",
    "ProblemError",
    "SolverError",
    "SpectrumError",
    "SweepError",
]


class AttnphaseError(Exception):
    """What all errors of this package are; its text is one sentence that says what to do.

    Attributes
    ----------
    exit_code : int
        Of a command that ends with it: 2 for input that cannot be used, 1 for what was not reached.
    """

    exit_code = 2


class ProblemError(AttnphaseError, ValueError):
    """A problem, or an argument of a function, that cannot be used as it was given.

    Parameters
    ----------
    field
        What is at fault: a field as it stands in the TOML, such as ``teacher.mixing``, an argument's name, or the file
        that cannot be read.
    message
        One sentence that names the field and says what to do.

    Attributes
    ----------
    field : str
        As given.
    message : str
        As given.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(field, message)
        self.field = field
        self.message = message

    def __str__(self) -> str:
        return self.message


class SpectrumError(AttnphaseError, ValueError):
    """Matrices or a measure that no spectrum of a problem can be made of; the sentence says why."""


class DatasetError(AttnphaseError, ValueError):
    """A dataset that does not follow the schema, or a file that cannot be read or written."""


class CompareError(AttnphaseError, ValueError):
    """Datasets that cannot be compared; the sentence says why."""


class CacheError(AttnphaseError, RuntimeError):
    """The kernel cache cannot be used safely."""


class SolverError(AttnphaseError, ArithmeticError):
    """Equations of a problem that cannot be evaluated, or not be solved from where they were started."""


class NotFoundError(SolverError):
    """A search that ended without what it looked for, with input that can be used; the sentence says where."""

    exit_code = 1


class SweepError(AttnphaseError, RuntimeError):
    """A sweep that could not be finished; what it finished is kept if it has an output file."""


class ExperimentError(AttnphaseError, RuntimeError):
    """An experiment that cannot be run or resumed; the sentence says why and what to do."""


class MissingExtraError(AttnphaseError, ImportError):
    """A package is missing that only some commands need; the sentence says how to get it."""
