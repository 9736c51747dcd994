"""`[metrics]`: test metrics apart from the loss, under names of the user's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attnphase.errors import ProblemError
from attnphase.problem.messages import shown, toml_table

__all__ = ["Metrics"]

_MOST = 64


@toml_table("metrics", own_keys=True)
@dataclass(frozen=True)
class Metrics(Mapping[str, str]):
    """Formulas by name, in alphabetical order: the mean of each over fresh samples is reported as ``metric_NAME``.

    A formula has the names and functions of ``loss.expression``: the student's fields ``h0_0`` (token 0, column 0),
    the teacher's ``k0_0`` without noise, the labels' noise ``noise0_0`` of variance ``teacher.noise``, and the numbers
    ``c0`` of the clusters. It may jump in all of them, as ``(1 - sign(h*k))/2`` does, but must be finite.
    """

    _formulas: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, given: Any) -> Metrics:
        """The metrics of a table.

        Raises
        ------
        ProblemError
            It is no table of formulas, or a name cannot be that of a variable.
        """
        if not isinstance(given, Mapping):
            raise ProblemError("metrics", f"metrics must be a table of formulas by name, but it is {shown(given)}.")
        if len(given) > _MOST:
            raise ProblemError("metrics", f"metrics has {len(given)} formulas: give at most {_MOST}.")
        for name, formula in given.items():
            usable = isinstance(name, str) and name.isascii() and name.isidentifier() and not name.endswith("_stderr")
            if not usable:
                raise ProblemError(
                    "metrics",
                    f"metrics has the name {shown(name)}, but a name must consist of ASCII letters, digits and _, not"
                    ' begin with a digit, and not end in "_stderr".',
                )
            if not isinstance(formula, str):
                raise ProblemError(
                    f"metrics.{name}", f"metrics.{name} must be a formula as a text, but it is {shown(formula)}."
                )
        return cls(tuple(sorted(given.items())))

    def __getitem__(self, name: str) -> str:
        return dict(self._formulas)[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._formulas)

    def __len__(self) -> int:
        return len(self._formulas)
