"""The branches of fixed points, and of the starts of training: their names, and what makes a point one of them.

Nothing heavy is imported, so that a wrong name is refused at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, get_args

from attnphase.errors import ProblemError

__all__ = ["BRANCHES", "ERRORS", "Branch", "BranchName", "Branches", "Identity"]

BranchName = Literal["semantic", "positional", "uninformed", "mixed"]
"""A branch of fixed points."""

Branches = BranchName | Literal["all"]
"""One branch, or every branch that a problem has."""

BRANCHES: tuple[BranchName, ...] = get_args(BranchName)
"""Names of the branches, and of the starts of training."""

ERRORS = 4.0
"""Standard errors within which stated errors hold, as benchmarks/errors.py finds."""


class Identity(IntEnum):
    """Whether a point belongs to the branch whose name it bears; the CF flags of the dataset's ``on_branch``."""

    on_branch = 0
    merged = 1  # there is no such branch here: the point is the uninformed one
    not_decided = 2  # the order parameter's error, or the multiplier's, leaves both open


@dataclass(frozen=True)
class Branch:
    """What the columns of the student's weights have found.

    Attributes
    ----------
    name : str
    semantic, positional : bool
        Whether columns lie along the teacher's weights, and along the encodings. Where some do each, the first column
        is the semantic one.
    """

    name: str
    semantic: bool = False
    positional: bool = False

    @classmethod
    def named(cls, name: str) -> Branch:
        """The branch of a name.

        Raises
        ------
        ProblemError
            There is none.
        """
        if name not in _BY_NAME:
            raise ProblemError("branch", f'branch must be one of {", ".join(BRANCHES)}, not "{name}".')
        return _BY_NAME[name]

    @property
    def order_parameters(self) -> tuple[str, ...]:
        """Those that vanish where there is no such branch."""
        return ("m",) * self.positional + ("theta",) * self.semantic

    @property
    def is_informed(self) -> bool:
        """Whether it has an order parameter, so that it may end somewhere."""
        return self.semantic or self.positional

    @property
    def least_rank(self) -> int:
        """Columns that it needs."""
        return max(len(self.order_parameters), 1)

    def semantic_columns(self, rank: int) -> int:
        """How many of the first columns are semantic."""
        if not self.semantic:
            return 0
        return 1 if self.positional else rank


_BY_NAME = {
    branch.name: branch
    for branch in (
        Branch("semantic", semantic=True),
        Branch("positional", positional=True),
        Branch("uninformed"),
        Branch("mixed", semantic=True, positional=True),
    )
}
