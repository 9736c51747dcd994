"""One variable of the schema."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from attnphase.problem.problem import Problem

__all__ = ["RunStatus", "Variable"]


class RunStatus(IntEnum):
    """How a training run ended; the values are the CF flags of the ``status`` of experiments."""

    converged = 0  # the gradient, or the step of message passing, fell below the tolerance
    completed = 1  # all steps were made, and no tolerance was asked for
    step_limit = 2  # the tolerance was not reached
    unsettled = 3  # GAMP: the overlaps have settled, single weights keep moving
    diverged = 4  # the last finite weights were measured
    not_computed = 5


@dataclass(frozen=True)
class Variable:
    """One variable of the schema.

    Attributes
    ----------
    name : str
        In the dataset; a standard error is stored beside it as ``<name>_stderr``.
    dims : tuple of str
        The dimensions behind the swept ones.
    long_name, latex : str
        Its attributes.
    has_stderr : bool
        Whether it has a standard error.
    dtype : str
        NumPy's name of the type it is stored as.
    meanings : tuple of str
        Names of the values 0, 1, ... of a flag.
    units : str
        "1" for everything but times.
    optional : bool
        Whether it may be NaN at a point that was computed, and missing in a dataset. A variable that is added is, since
        datasets of before do not have it.
    """

    name: str
    dims: tuple[str, ...]
    long_name: str
    latex: str
    has_stderr: bool = False
    dtype: str = "float64"
    meanings: tuple[str, ...] = ()
    units: str = "1"
    optional: bool = False

    @property
    def stderr(self) -> str:
        """Name of the standard error."""
        return f"{self.name}_stderr"

    @property
    def missing(self) -> float:
        """What stands where nothing was computed: the last value of a flag, which says so or that it is not known."""
        if self.meanings:
            return len(self.meanings) - 1
        return np.nan if self.dtype == "float64" else 0

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, and that of its standard error if it has one."""
        return (self.name, self.stderr) if self.has_stderr else (self.name,)

    def dims_of(self, problem: Problem) -> tuple[str, ...]:
        """Dimensions for a problem: with mixture tokens what a token has, each of its clusters has."""
        if "token" not in self.dims or not problem.tokens.has_clusters:
            return self.dims
        behind = self.dims.index("token") + 1
        return (*self.dims[:behind], "cluster", *self.dims[behind:])

    def attributes(self) -> dict[str, Any]:
        """The attributes of the variable in a dataset."""
        attributes: dict[str, Any] = {"long_name": self.long_name, "units": self.units, "latex": self.latex}
        if self.has_stderr:
            attributes["ancillary_variables"] = self.stderr
        if self.meanings:
            attributes["flag_values"] = np.arange(len(self.meanings), dtype=self.dtype)
            attributes["flag_meanings"] = " ".join(self.meanings)
        return attributes

    def stderr_attributes(self) -> dict[str, Any]:
        """The attributes of the standard error."""
        return {"long_name": f"standard error of the {self.long_name}", "units": "1", "latex": rf"\delta {self.latex}"}
