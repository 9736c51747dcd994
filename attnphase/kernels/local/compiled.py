"""How Numba compiles the package: decorators for what compiled code alone calls, and for the ways in from Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit, void

__all__ = ["compiled", "entry"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_INNER: Any = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def compiled(function: _Function) -> _Function:
    """Compile a function into those that call it; called from Python, the compiled one ends the process."""
    return cast(_Function, njit(nogil=True, error_model="numpy", **_INNER)(function))


def entry(*arguments: Any) -> Callable[[_Function], _Function]:
    """Compile a function of arguments of these types where it is defined, and keep the machine code on the disk."""
    decorator: Any = njit(void(*arguments), cache=True, nogil=True, error_model="numpy")
    return decorator
