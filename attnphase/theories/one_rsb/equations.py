"""The derived 1RSB equations, which belong to no model: generated, cached, imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from attnphase.kernels.equations import functions
from attnphase.lazy import loaded_on_use

with loaded_on_use(__name__):
    from derivations.codegen import one_rsb

__all__ = ["OneRsbEquations", "one_rsb_equations"]


@dataclass(frozen=True)
class OneRsbEquations:
    """The equations in NumPy, for a ridge; see the generated module for their arguments.

    Attributes
    ----------
    overlaps_from_conjugates, conjugates_from_overlaps : callable
        The two halves of the saddle point.
    free_entropy_terms : callable
        Dict of the named terms of F(y).
    """

    overlaps_from_conjugates: Callable[..., Any]
    conjugates_from_overlaps: Callable[..., Any]
    free_entropy_terms: Callable[..., Any]


@lru_cache(maxsize=1)
def one_rsb_equations() -> OneRsbEquations:
    """The equations, from the cache if they are there and intact.

    Raises
    ------
    CacheError
        The cache folder is not the user's own, or there is no room in it.
    """
    return functions(OneRsbEquations, "one_rsb", lambda: one_rsb.one_rsb_source())
