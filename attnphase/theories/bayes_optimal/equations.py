"""The Bayes-optimal equations as made from their derivation: one module for all problems, kept in the user's cache."""

from __future__ import annotations

import py_compile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from attnphase.kernels.cache import filled_aside, fingerprint, intact_folder
from attnphase.kernels.package import import_package

__all__ = ["BayesOptimalEquations", "bayes_optimal_equations"]

_NAME = "bayes"


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
        The cache folder is not the user's own.
    """
    with intact_folder(fingerprint(_NAME), _build) as folder:
        module = import_package(folder, folder.name, (_NAME,))[_NAME]
    return BayesOptimalEquations(
        module.overlaps_from_conjugates,
        module.conjugates_from_residuals,
        module.conjugates_from_spreads,
        module.free_entropy_terms,
        module.test_error,
    )


def _build(folder: Path) -> None:
    from derivations.codegen.bayes_optimal import bayes_optimal_source
    from derivations.replica.bayes_optimal import derive_bayes_optimal

    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH  # the manifest has checksums of all
    with filled_aside(folder) as aside:
        for name, source in (("__init__", ""), (_NAME, bayes_optimal_source(derive_bayes_optimal()))):
            path = aside / f"{name}.py"
            path.write_text(source, encoding="utf-8")
            py_compile.compile(str(path), doraise=True, invalidation_mode=unchecked)
