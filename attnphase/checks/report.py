"""What a consistency report says, and how it is shown."""

from __future__ import annotations

import html
import math
from dataclasses import asdict, dataclass

from attnphase.data.text import Table, json_text, pairs_text, wrapped
from attnphase.problem.problem import Problem

__all__ = ["NOT_REACHED", "Check", "Report"]

NOT_REACHED = "not tried: the fixed point was not reached"
"""Why a check is left out that needs one."""


@dataclass(frozen=True)
class Check:
    """One comparison.

    Attributes
    ----------
    name : str
    passed : bool or None
        None if it does not apply; `detail` says why.
    value, limit : float
        What was measured, and the largest that passes; NaN where there is no single number.
    detail : str
        One sentence.
    """

    name: str
    passed: bool | None
    value: float
    limit: float
    detail: str

    @classmethod
    def below(cls, name: str, value: float, limit: float, detail: str) -> Check:
        """One that passes if a number is not above its limit."""
        return cls(name, bool(value <= limit), float(value), limit, detail)

    @classmethod
    def left_out(cls, name: str, why: str) -> Check:
        """One that does not apply."""
        return cls(name, None, math.nan, math.nan, why)


@dataclass(frozen=True)
class Report:
    """All checks of one problem at one point.

    Attributes
    ----------
    problem : Problem
    alpha : float
    branch : str
    checks : tuple of Check
    """

    problem: Problem
    alpha: float
    branch: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(one.passed is not False for one in self.checks)

    def text(self, width: int | None = None) -> str:
        """A line for each check.

        Parameters
        ----------
        width : int or None
            Columns of the terminal; None for no limit.
        """
        pairs = [(f"{mark:>6}  {name}", said) for mark, name, said in self._rows()]
        begin, end = self._ends()
        return "\n".join([wrapped(begin, width), pairs_text(pairs, width), wrapped(end, width)])

    def __repr__(self) -> str:
        """One line; the checks are `text`."""
        begin, end = self._ends()
        return f"<Report of problem {self.problem.hash}: {begin}: {end}>"

    def _repr_html_(self) -> str:
        begin, end = (f"<p>{html.escape(one)}</p>" for one in self._ends())
        return begin + Table(("", "check", ""), tuple(self._rows()), left=(0, 1, 2)).html() + end

    def _rows(self) -> list[tuple[str, str, str]]:
        """Outcome, name, and what was found."""
        marks = {True: "ok", False: "FAILED", None: "-"}
        numbers = ("" if math.isnan(one.value) else f"{one.value:.1e} (limit {one.limit:.1e}); " for one in self.checks)
        return [
            (marks[one.passed], one.name, f"{number}{one.detail}")
            for one, number in zip(self.checks, numbers, strict=True)
        ]

    def _ends(self) -> tuple[str, str]:
        """What was checked, and how it ended."""
        failed = sum(one.passed is False for one in self.checks)
        end = "all checks passed" if not failed else f"{failed} of {len(self.checks)} checks failed"
        branch = "all branches" if self.branch == "all" else f"{self.branch} branch"
        return f"{branch}, alpha = {self.alpha:g}", end

    def to_json(self) -> str:
        """One JSON object; numbers that are not finite are null."""
        checks = [asdict(one) for one in self.checks]
        return json_text({"alpha": self.alpha, "branch": self.branch, "passed": self.passed, "checks": checks})

    def __str__(self) -> str:
        return self.text()
