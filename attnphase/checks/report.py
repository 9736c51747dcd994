"""What a consistency report says, and how it is shown."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from attnphase.data.text import json_text, pairs_text, wrapped
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
        marks = {True: "ok", False: "FAILED", None: "-"}
        pairs = []
        for one in self.checks:
            number = "" if math.isnan(one.value) else f"{one.value:.1e} (limit {one.limit:.1e}); "
            pairs.append((f"{marks[one.passed]:>6}  {one.name}", f"{number}{one.detail}"))
        failed = sum(one.passed is False for one in self.checks)
        end = "all checks passed" if not failed else f"{failed} of {len(self.checks)} checks failed"
        begin = f"{self.branch} branch, alpha = {self.alpha:g}"
        return "\n".join([wrapped(begin, width), pairs_text(pairs, width), wrapped(end, width)])

    def to_json(self) -> str:
        """One JSON object; numbers that are not finite are null."""
        checks = [asdict(one) for one in self.checks]
        return json_text({"alpha": self.alpha, "branch": self.branch, "passed": self.passed, "checks": checks})

    def __str__(self) -> str:
        return self.text()
