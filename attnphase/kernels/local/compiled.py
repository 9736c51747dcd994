"""How Numba compiles the package, and how compiled code calls the functions of a model by their addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar, cast

from llvmlite import ir
from numba import njit
from numba.core import config
from numba.core.types import float64
from numba.extending import intrinsic

from .constants import ARGUMENTS

__all__ = ["HANDED", "apart", "call", "compiled", "side_by_side"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
# no arrays are made, so that Numba need not count who holds those it is handed: that would take most of its time
HANDED: Any = {
    "_nrt": False,
    "nogil": True,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
_LOOSE = {"reassoc", "contract", "arcp", "nsz", "afn"}  # infinities keep their meaning, and so does what is no number


def compiled(function: _Function) -> _Function:
    """Compile a function into those that call it."""
    return cast(_Function, njit(forceinline=True, **HANDED)(function))


def apart(function: _Function) -> _Function:
    """Compile a function once for all that call it."""
    return cast(_Function, njit(**HANDED)(function))


def side_by_side(function: _Function) -> _Function:
    """Compile loops over samples, which are done at once where that can be: rounding may differ from one by one."""
    return cast(_Function, njit(forceinline=True, fastmath=_LOOSE, **HANDED)(function))


def _call(_context: Any, address: Any, arrays: Any) -> Any:
    """Call a model's function at an address with these arrays; what it returns is a number."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = ir.DoubleType().as_pointer()
        function = ir.FunctionType(ir.DoubleType(), [pointer] * ARGUMENTS).as_pointer()
        given = [
            context.make_array(one)(context, builder, builder.extract_value(values[1], place)).data
            for place, one in enumerate(signature.args[1])
        ]
        nothing = [ir.Constant(pointer, None)] * (ARGUMENTS - len(given))
        return builder.call(builder.inttoptr(values[0], function), [*given, *nothing])

    return float64(address, arrays), generate


def _called(address: int, arrays: tuple[Any, ...]) -> float:
    """The same where nothing is compiled."""
    function = ctypes.CFUNCTYPE(ctypes.c_double, *[ctypes.c_void_p] * ARGUMENTS)(int(address))
    return function(*(one.ctypes.data for one in arrays), *[None] * (ARGUMENTS - len(arrays)))


call: Any = _called if getattr(config, "DISABLE_JIT", False) else intrinsic(_call)
