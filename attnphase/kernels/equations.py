"""Generated NumPy modules, which belong to no model: their texts are kept in the user's cache."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from types import ModuleType
from typing import Any, TypeVar, cast

from attnphase.kernels.cache import kept, version
from attnphase.lazy import loaded_on_use

with loaded_on_use(__name__):
    from derivations.codegen import arrays, sgd_flow

__all__ = ["Maps", "flow", "functions", "generated", "maps", "module"]

T = TypeVar("T")


@dataclass(frozen=True)
class Maps:
    """The derived equations in NumPy; see the generated modules for their arguments.

    Attributes
    ----------
    overlaps_from_conjugates, conjugates_from_moments : callable
        The two halves of the state-evolution map, equations (7) and (8), the second by the fields' moments.
    free_entropy_terms, observables : callable
        Dicts of named terms of ``-Phi`` and of observables.
    linear_test_error : callable
        The linear baseline, equations (19)-(20).
    """

    overlaps_from_conjugates: Callable[..., Any]
    conjugates_from_moments: Callable[..., Any]
    free_entropy_terms: Callable[..., Any]
    observables: Callable[..., Any]
    linear_test_error: Callable[..., Any]


@lru_cache
def maps(*, separable: bool) -> Maps:
    """The equations for any regulariser of the rows, or for a ridge.

    Raises
    ------
    CacheError
        The cache folder is not the user's own, or there is no room in it.
    """
    name = "separable" if separable else "ridge"
    return functions(Maps, name, lambda: arrays.state_evolution_source(separable=separable))


@lru_cache(maxsize=1)
def flow() -> ModuleType:
    """The dynamics of the rows of the weights: ``mean_rate``, ``scatter_rate`` and ``overlaps``.

    Raises
    ------
    CacheError
        The cache folder is not the user's own, or there is no room in it.
    """
    return generated("rows", lambda: sgd_flow.flow_source())


def generated(name: str, write: Callable[[], str]) -> ModuleType:
    """A module of this name, whose source is written if it is not in the cache: only then is SymPy loaded.

    Raises
    ------
    CacheError
        The cache folder is not the user's own, or there is no room in it.
    """
    return module(name, kept("text", (name, version()), lambda: write().encode()).decode())


def functions(kind: type[T], name: str, write: Callable[[], str]) -> T:
    """The functions of such a module that a dataclass has as its fields.

    Raises
    ------
    CacheError
        The cache folder is not the user's own, or there is no room in it.
    """
    made = generated(name, write)
    return kind(*(getattr(made, one.name) for one in fields(cast(Any, kind))))


def module(name: str, source: str) -> ModuleType:
    """A module made from its source, the lines of which tracebacks show."""
    made, place = ModuleType(name), f"<generated {name}>"
    linecache.cache[place] = (len(source), None, source.splitlines(keepends=True), place)
    exec(compile(source, place, "exec"), vars(made))
    return made
