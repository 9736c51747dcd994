"""Where the best value of a field lies.

Nothing heavy is imported: the schema of datasets has the places.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

__all__ = ["LOWEST", "METRICS", "Lowest", "OptimumStatus"]

Lowest = Literal["lowest"]
LOWEST: Lowest = "lowest"
"""In the place of a branch: at each value of the field that of lowest training loss."""

METRICS = ("test_error", "training_loss", "weight_norm")
"""What can be minimised."""


class OptimumStatus(IntEnum):
    """Where the minimum over the range lies; the values are the CF flags of the dataset."""

    inside = 0  # the total derivative vanishes there
    at_edge = 1  # at an end of the range
    at_branch_end = 2  # where the branch ends at a fold, beside another state
    at_onset = 3  # where the branch leaves the uninformed point continuously
    not_converged = 4  # the minimum may lie where points have not converged
    no_branch = 5  # the branch does not exist in the range
    at_crossing = 6  # where another branch takes over as that of lowest training loss
