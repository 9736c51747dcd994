"""The Bayes-optimal equations as made from their derivation: one module for all problems, kept in the user's cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from attnphase.kernels.equations import functions
from attnphase.lazy import loaded_on_use

with loaded_on_use(__name__):
    from derivations.codegen import bayes_optimal as codegen
    from derivations.replica import bayes_optimal

__all__ = ["BayesOptimalEquations", "bayes_optimal_equations"]


@dataclass(frozen=True)
class BayesOptimalEquations:
    """The derived equations in NumPy; see the generated module for their arguments.

    Attributes
    ----------
    overlaps_from_conjugates : callable
        Overlap q and what it leaves, V.
    conjugates_from_residuals, conjugates_from_spreads : callable
        ``q_hat`` by ``E[g g^T]``, and by the posterior's covariance, which is precise where V is small.
    free_entropy_terms : callable
        Dict of named terms.
    test_error : callable
    """

    overlaps_from_conjugates: Callable[..., Any]
    conjugates_from_residuals: Callable[..., Any]
    conjugates_from_spreads: Callable[..., Any]
    free_entropy_terms: Callable[..., Any]
    test_error: Callable[..., Any]


@lru_cache(maxsize=1)
def bayes_optimal_equations() -> BayesOptimalEquations:
    """The equations, from the cache if they are there and intact.

    Raises
    ------
    CacheError
        The cache folder is not the user's own, or there is no room in it.
    """
    return functions(
        BayesOptimalEquations,
        "bayes_optimal",
        lambda: codegen.bayes_optimal_source(bayes_optimal.derive_bayes_optimal()),
    )
