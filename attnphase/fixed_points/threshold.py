"""A threshold in the sample complexity, or why there is none.

Nothing heavy is imported: the schema of datasets has the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import isfinite, nan
from typing import Self

__all__ = ["NOT_FOUND", "Outcome", "Threshold"]


class Outcome(IntEnum):
    """Whether there is a threshold, and why not; the values are the CF flags of the dataset."""

    located = 0
    outside_range = 1  # nothing changes sign in the range that was searched
    no_branch = 2  # one of the branches was not found in the range
    continuous = 3  # the branch has no fold: it ends at its onset
    no_symmetry = 4  # m and theta vanish nowhere by symmetry, so that none of them leaves zero
    unsettled = 5  # the search for it did not end
    no_replicates = 6  # the rule has one set of nodes, whose jumps would decide


@dataclass(frozen=True)
class Threshold:
    """A sample complexity at which a difference of two quantities changes sign, or a branch begins or ends.

    Attributes
    ----------
    alpha : float
        Where, or the value of another field along which that is; NaN if there is none.
    standard_error : float
        NaN likewise.
    outcome : Outcome
        Whether there is one.
    reason : str
        Why there is none, as a clause; empty where nothing more is known than the outcome.
    rule : str
        Name of the integration rule by which it was found.
    """

    alpha: float
    standard_error: float
    outcome: Outcome = Outcome.located
    reason: str = ""
    rule: str = ""

    @property
    def found(self) -> bool:
        """Whether there is one."""
        return isfinite(self.alpha)

    @classmethod
    def absent(cls, outcome: Outcome, reason: str = "") -> Self:
        """No threshold, and why."""
        return cls(nan, nan, outcome, reason)


NOT_FOUND = Threshold.absent(Outcome.outside_range)
