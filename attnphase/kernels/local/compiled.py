"""How Numba compiles the package: decorators for what compiled code alone calls, and for what Python calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from llvmlite.ir.instructions import Instruction
from numba import njit, void
from numba.core import config
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.runtime.nrt import rtsys
from numba.core.types import boolean
from numba.extending import intrinsic

__all__ = ["allocating", "chosen", "compiled", "entry", "in_lanes", "in_order", "side_by_side"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_INNER: Any = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
# of what makes no arrays, Numba need not count who holds those it is handed: that would take most of its time
_HANDED: Any = {"_nrt": False, **_INNER}
# sums in any order and products with reciprocals, as code for many lanes needs them; infinities keep their meaning, and
# so does what is not a number
_LOOSE = {"reassoc", "contract", "arcp", "nsz", "afn"}


# the same but for the order of sums
_IN_ORDER = _LOOSE - {"reassoc"}


class _Loader:
    """Numba's compiler for processors, as far as it takes to load machine code.

    Numba would first import and register everything that it can compile, which takes far longer.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(cpu_target.target_context, name)

    def refresh(self) -> None:
        """Make ready what machine code calls."""
        rtsys.initialize(cpu_target.target_context)


def compiled(function: _Function) -> _Function:
    """Compile a function that makes no arrays into those that call it; called from Python, it ends the process."""
    return cast(_Function, njit(forceinline=True, **_HANDED)(function))


def allocating(function: _Function) -> _Function:
    """Compile a function that makes arrays into those that call it."""
    return cast(_Function, njit(forceinline=True, **_INNER)(function))


def entry(*arguments: Any) -> Callable[[_Function], _Function]:
    """Compile a function of arguments of these types where it is defined, and keep the machine code on the disk."""
    signature: Any = void(*arguments)

    def define(function: _Function) -> _Function:
        way_in: Any = njit(cache=True, nogil=True, error_model="numpy")(function)
        if getattr(config, "DISABLE_JIT", False):
            return function
        with global_compiler_lock:
            kept = FunctionCache(function).load_overload(signature, cast(Any, _Loader()))
        if kept is not None:
            way_in.add_overload(kept)
        way_in.compile(signature)  # unless it was there
        way_in.disable_compile()
        return cast(_Function, way_in)

    return define


def side_by_side(function: _Function) -> _Function:
    """Compile a loop over lanes, which are done at once where that can be: rounding may differ from one by one."""
    return cast(_Function, njit(forceinline=True, fastmath=_LOOSE, **_HANDED)(function))


def in_lanes(function: _Function) -> _Function:
    """Compile a function into the loops over lanes that call it."""
    return cast(_Function, njit(forceinline=True, fastmath=_LOOSE, **_HANDED)(function))


def in_order(function: _Function) -> _Function:
    """The same, with sums in the order written."""
    return cast(_Function, njit(forceinline=True, fastmath=_IN_ORDER, **_HANDED)(function))


def _chosen(context: Any, condition: Any, yes: Any, no: Any) -> Any:
    """One of two numbers, both of which are computed: an instruction for all lanes, where a branch is none."""
    one = context.unify_types(yes, no)

    # what is not frozen LLVM puts back by stores under masks where it is what was there before
    def choose(_target: Any, builder: Any, _signature: Any, values: Any) -> Any:
        condition, yes, no = values
        return builder.select(condition, _frozen(builder, yes), _frozen(builder, no))

    return one(boolean, one, one), choose


def _frozen(builder: Any, value: Any) -> Any:
    """The value; llvmlite has no method for this instruction."""
    instruction = Instruction(builder.block, value.type, "freeze", [value])
    builder._insert(instruction)
    return instruction


def _picked(condition: bool, yes: Any, no: Any) -> Any:
    return yes if condition else no


chosen: Any = _picked if getattr(config, "DISABLE_JIT", False) else intrinsic(_chosen)
