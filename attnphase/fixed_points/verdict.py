"""What exact identities say of a point; nothing heavy is imported, since the schema needs the names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from statistics import NormalDist
from typing import Any

from attnphase.lazy import loaded_on_use
from attnphase.state_evolution.branches import ERRORS

with loaded_on_use(__name__):
    import mpmath

__all__ = ["IDENTITIES", "LEMMAS", "SLOPES", "Verdict", "allowed_errors", "verdict"]

SLOPES: tuple[str, ...] = ("violation_alpha", "violation_ridge")
"""Variables: relative differences of the training loss's derivatives from what they are."""

LEMMAS: tuple[str, ...] = ("violation_V_hat", "violation_theta_hat")
"""Variables: relative differences of conjugates from the residual's mean derivatives."""

IDENTITIES = (*SLOPES, *LEMMAS)
"""Variables: relative differences of both sides of every identity."""


_POINTS = 1300
"""Points of the paper's phase diagram: the family that is to hold as a whole."""

_CHANCE = 0.05
"""Of a right family that one of its points is called violated: the usual level of a test."""


class Verdict(IntEnum):
    """What identities say of a point; the values are the CF flags of ``identities``."""

    hold = 0
    violated = 1  # one of them at least
    not_computed = 2  # or only with errors that leave each of them open


def verdict(values: Mapping[str, Any], errors: Mapping[str, Any], replicates: int = 1) -> Verdict:
    """What the identities say of a point, by its variables and their errors.

    An identity of which `ERRORS` errors are as large as its sides says nothing, unless it is violated.

    Parameters
    ----------
    values, errors : mapping
        By the names of `IDENTITIES`.
    replicates : int
        Whose scatter the errors are; 1 if they are no scatter.
    """
    known = [(abs(values[name]), errors.get(name, math.nan)) for name in IDENTITIES if name in values]
    bound = allowed_errors(replicates)
    if any(away > bound * error for away, error in known):
        return Verdict.violated
    held = any(away <= bound * error and ERRORS * error < 1 for away, error in known)
    return Verdict.hold if held else Verdict.not_computed


@lru_cache
def allowed_errors(replicates: int) -> float:
    """Errors by which the sides of an identity may differ, so that a right family of points holds as a whole.

    A quantile of Student's law, since the error comes from the scatter of the replicates: the chance `_CHANCE` is
    shared by all identities of `_POINTS` points (Bonferroni). The family is a fixed one, so that a point has the same
    verdict alone and among others.

    Parameters
    ----------
    replicates : int
        See `verdict`.
    """
    chance = _CHANCE / (_POINTS * len(IDENTITIES)) / 2  # on either side
    if replicates == 1:
        return -NormalDist().inv_cdf(chance)
    # mpmath is loaded for other facts, and SciPy's quantile takes longer to import than a point to be solved
    freedom = replicates - 1

    def excess(size: Any) -> Any:  # of the logarithm of the tail beyond e^size
        share = freedom / (freedom + mpmath.exp(2 * size))
        return mpmath.log(mpmath.betainc(freedom / 2, 0.5, 0, share, regularized=True) / (2 * chance))

    # a tail beyond t is below 1/t for any freedom, so that it is small enough at 1/chance
    size = mpmath.findroot(excess, (0, -mpmath.log(chance)), solver="illinois")
    return float(mpmath.exp(size))
