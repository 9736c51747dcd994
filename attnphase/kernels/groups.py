"""The derived equations of one step of symmetry breaking, which belong to no model: generated, cached, imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from attnphase.kernels.cache import filled_aside, fingerprint, intact_folder
from attnphase.kernels.package import import_package, write_package

__all__ = ["GroupMaps", "group_maps"]

_MODULE = "one_step"


@dataclass(frozen=True)
class GroupMaps:
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
def group_maps() -> GroupMaps:
    """The equations, from the cache if they are there and intact.

    Raises
    ------
    CacheError
        The cache folder is not the user's own.
    """
    with intact_folder(fingerprint(_MODULE), _build) as folder:
        module = import_package(folder, folder.name, (_MODULE,))[_MODULE]
    return GroupMaps(module.overlaps_from_conjugates, module.conjugates_from_overlaps, module.free_entropy_terms)


def _build(folder: Path) -> None:
    from derivations.codegen.groups import one_step_source

    with filled_aside(folder) as aside:
        write_package(aside, {_MODULE: one_step_source()})
