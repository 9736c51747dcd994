"""`[metrics]`: test metrics apart from the loss, under names of the user's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attnphase.errors import ProblemError
from attnphase.problem.messages import toml_table
from attnphase.problem.values import read_named

__all__ = ["Metrics"]


@toml_table("metrics", own_keys=True)
@dataclass(frozen=True)
class Metrics(Mapping[str, str]):
    """Formulas by name, in alphabetical order: the mean of each over fresh samples is reported as ``metric_NAME``.

    A formula has the names and functions of ``loss.expression``: the student's fields ``h``, the teacher's ``k``
    without noise, the labels' ``noise`` of variance ``teacher.noise``, the numbers ``c`` of the clusters, and those of
    ``loss.parameters``. It may jump in all of them, as ``(1 - sign(h*k))/2`` does, but must be finite. It may
    be given as a function of these arrays and numbers, by name: the problem keeps the resulting formula.
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
        if given is None:
            raise ProblemError("metrics", "metrics must be a table, but it is None.")
        found = read_named("metrics", given, str) or {}
        for name in found:
            if name.endswith("_stderr"):
                raise ProblemError("metrics", f'metrics has the name "{name}", but a name must not end in "_stderr".')
        return cls(tuple(sorted(found.items())))

    def __getitem__(self, name: str) -> str:
        return dict(self._formulas)[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._formulas)

    def __len__(self) -> int:
        return len(self._formulas)
