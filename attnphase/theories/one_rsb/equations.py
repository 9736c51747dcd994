"""The derived 1RSB equations, which belong to no model: generated, cached, imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from attnphase.kernels.cache import filled_aside, fingerprint, intact_folder
from attnphase.kernels.package import import_package, write_package

__all__ = ["OneRsbEquations", "one_rsb_equations"]

_MODULE = "one_rsb"


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
        The cache folder is not the user's own.
    """
    with intact_folder(fingerprint(_MODULE), _build) as folder:
        module = import_package(folder, folder.name, (_MODULE,))[_MODULE]
    return OneRsbEquations(module.overlaps_from_conjugates, module.conjugates_from_overlaps, module.free_entropy_terms)


def _build(folder: Path) -> None:
    from derivations.codegen.one_rsb import one_rsb_source

    with filled_aside(folder) as aside:
        write_package(aside, {_MODULE: one_rsb_source()})
