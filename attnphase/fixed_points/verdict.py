"""What exact identities say of a point; nothing heavy is imported, since the schema needs the names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from attnphase.state_evolution.branches import ERRORS

__all__ = ["IDENTITIES", "SLOPES", "Verdict", "verdict"]

SLOPES: tuple[str, ...] = ("violation_alpha", "violation_ridge")
"""Variables: relative differences of the training loss's derivatives from what they are."""

LEMMAS: tuple[str, ...] = ("violation_V_hat", "violation_theta_hat")
"""Variables: relative differences of conjugates from the residual's mean derivatives."""

IDENTITIES = (*SLOPES, *LEMMAS)
"""Variables: relative differences of both sides of every identity."""


class Verdict(IntEnum):
    """What identities say of a point; the values are the CF flags of ``identities``."""

    hold = 0
    violated = 1  # one of them at least
    not_computed = 2  # or only with errors that leave each of them open


def verdict(values: Mapping[str, Any], errors: Mapping[str, Any]) -> Verdict:
    """What the identities say of a point, by its variables and their errors.

    An identity of which `ERRORS` errors are as large as its sides says nothing.
    """
    known = [(abs(values[name]), ERRORS * errors.get(name, math.nan)) for name in IDENTITIES if name in values]
    if any(away > allowed for away, allowed in known):
        return Verdict.violated
    return Verdict.hold if any(away <= allowed < 1 for away, allowed in known) else Verdict.not_computed
