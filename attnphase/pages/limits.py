"""Which equations of a problem can be printed.

Nothing heavy is imported, so that a wrong name is refused at once.
"""

from __future__ import annotations

from typing import Literal, get_args

__all__ = ["LIMITS", "LimitName"]

LimitName = Literal["trained", "bayes_optimal", "sgd_flow"]
"""Those of the trained student, or of a theory beside it."""

LIMITS: tuple[LimitName, ...] = get_args(LimitName)
"""Their names."""
