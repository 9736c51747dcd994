"""The minimiser and what surrounds it, compiled by Numba once for all models of this machine.

What is done node by node takes a model's sizes as data, and its functions by their addresses.  The minimiser is kept as
LLVM's code, and linked with a model's own: sizes and functions are constants in it then, and loops over a few fields
straight lines, for which LLVM alone is needed.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from importlib import metadata
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from attnphase.errors import CacheError
from attnphase.kernels.cache import found, is_kept, kept, processor, untested_numba_named
from attnphase.kernels.local.constants import ARGUMENTS
from attnphase.kernels.local.layouts import ENTRIES, INTEGER, Layout
from attnphase.kernels.local.model import NUMBERS, Model
from attnphase.kernels.machine import Code, compiled, loaded, module_of, object_of

__all__ = [
    "MINIMISERS",
    "are_prepared",
    "entry",
    "handed",
    "kept_part",
    "key_of",
    "linked",
    "prepare",
    "shared",
    "without_compiler",
]

_LOCAL = "attnphase.kernels.local"
_CALLED = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object)
_KIND = "shared"
_IN_ORDER = 0x301  # flags of NumPy: in C order, aligned, of this processor's order of bytes

MINIMISERS = {"lanes": "minimise_in_lanes", "search": "minimise_one_by_one"}
"""Entries that are linked with a model's functions, by their parts."""

_PARTS = {name: part for part, name in MINIMISERS.items()} | {"trained_slopes_at": "trained"}
_PARTS |= {name: "passes" for name, (module, _) in ENTRIES.items() if module == "passes"}

Entry = Callable[..., None]


def shared(name: str) -> Entry:
    """A function of `attnphase.kernels.local.layouts.ENTRIES`, of named tuples of arrays; a minimiser only in Python.

    Raises
    ------
    CacheError
        The cache folder is not the user's own, or there is no room in it, or Numba is too new.
    """
    return _interpreted(name) if without_compiler() else _functions(_part_of(name))[name]


def without_compiler() -> bool:
    """Whether Python runs them."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") != "0"


def are_prepared(parts: Iterable[str]) -> bool:
    """Whether parts are in the cache, and need not be compiled."""
    return without_compiler() or all(is_kept(_KIND, key_of(part)) for part in parts)


def prepare(parts: Iterable[str]) -> None:
    """Have parts compiled, side by side, if they are not in the cache.

    Raises
    ------
    CacheError
        As of `shared`.
    """
    if are_prepared(parts):
        return
    with _processes(part for part in parts if not is_kept(_KIND, key_of(part))) as workers:
        for part, worker in workers.items():
            kept(_KIND, key_of(part), partial(_content_of, worker))


def _part_of(name: str) -> str:
    return _PARTS.get(name, "around")


def key_of(part: str) -> tuple[str, ...]:
    """All that a part depends on."""
    return part, *_version()


@lru_cache(maxsize=1)
def _version() -> tuple[str, ...]:
    """All that their machine code depends on."""
    here = Path(__file__).parent
    paths = (here / "machine.py", Path(__file__), *sorted((here / "local").glob("*.py")))
    sources = b"\n".join(path.name.encode() + path.read_bytes() for path in paths)
    return hashlib.sha256(sources).hexdigest(), sys.version, *map(metadata.version, ("numba", "numpy")), processor()


# --- machine code -----------------------------------------------------------------------------------------------------


@lru_cache
def _functions(part: str) -> dict[str, Entry]:
    names = [name for name in ENTRIES if _part_of(name) == part]
    code = loaded(kept_part(part), names)
    return {name: entry(code, name, ENTRIES[name][1]) for name in names}


def kept_part(part: str) -> bytes:
    """Machine code of a part, or LLVM's code of a minimiser.

    Raises
    ------
    CacheError
        As of `shared`.
    """
    content = found(_KIND, key_of(part))
    if content is None:
        prepare((part,))
        content = found(_KIND, key_of(part))
    if content is None:
        raise CacheError("kernel cache: what was compiled just now has been removed meanwhile: run it again.")
    return content


@contextmanager
def _processes(parts: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Processes that compile parts, and end with their memory."""
    searched = os.pathsep.join(filter(None, sys.path))  # without -P Python would look in the working folder first
    command = [sys.executable, "-P", "-c", f"import {__name__} as shared; shared.compile_here()"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": os.environ | {"PYTHONPATH": searched}}
    workers = {part: subprocess.Popen([*command, part], **pipes) for part in parts}
    try:
        with untested_numba_named():
            yield workers
    finally:
        for worker in workers.values():
            worker.kill()
            worker.communicate()


def _content_of(worker: Any) -> bytes:
    """What a process made.

    Raises
    ------
    ChildProcessError
        It was stopped, or ended with an error, which is named.
    """
    content, said = worker.communicate()
    if worker.returncode:
        reason = said.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {worker.returncode}"]
        raise ChildProcessError(f"a process that compiles a kernel was stopped ({reason[0]}): run it again.")
    return bytes(content)


def compile_here() -> None:
    """What such a process does: it writes the machine code of the part that its argument names, or LLVM's code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for the process that waits
    part = sys.argv[1]
    if part in MINIMISERS:
        content = _compiled(MINIMISERS[part]).as_bitcode()
    else:
        names = [name for name in ENTRIES if _part_of(name) == part]
        ways = (_with_way_in(_compiled(name), name, ENTRIES[name][1]).as_bitcode() for name in names)
        content = object_of(module_of("", *ways))
    sys.stdout.buffer.write(content)


def _compiled(name: str) -> Any:
    """The module of a function of `ENTRIES`, which imports Numba."""
    from numba import from_dtype, njit, types, void

    from attnphase.kernels.local.compiled import HANDED

    def typed(layout: Any) -> Any:
        if layout is INTEGER:
            return types.int64
        if isinstance(layout, Layout):
            return types.Array(from_dtype(layout.entries), layout.dimensions, "C")
        return types.NamedTuple(tuple(map(typed, layout)), type(layout))

    module, layouts = ENTRIES[name]
    signature: Any = void(*map(typed, layouts))
    function = njit(signature, **HANDED)(getattr(importlib.import_module(f"{_LOCAL}.{module}"), name))
    return module_of(function.inspect_llvm(signature.args))


def linked(part: str, content: bytes, model: Model, text: str) -> bytes:
    """Machine code of a model's functions, and of ``minimise``, in which all that is known of the model is a constant.

    Parameters
    ----------
    part : str
        Which minimiser.
    content : bytes
        This as `kept_part` has it.
    model : Model
        Whose functions have any address but zero.
    text : str
        Those functions as LLVM's text.
    """
    module = module_of(content, text)
    numbers, functions = model.numbers.view(np.int64).tolist(), list[str]()
    for place, field in enumerate(NUMBERS.names or ()):
        if field.endswith("_at") and numbers[place]:
            functions.append(field.removesuffix("_at"))
            numbers[place] = f"ptrtoint (ptr @{functions[-1]} to i64)"
    constants, fixed = [f"declare double @{one}({', '.join(['ptr'] * ARGUMENTS)})" for one in functions], list[str]()
    for number, own in enumerate([numbers, *(one.view(np.int64).tolist() for one in model[1:])]):
        values = ", ".join(f"i64 {one}" for one in own)
        constants.append(f"@known{number} = internal constant [{len(own)} x i64] [{values}]")
        size, width = model[number].size, model[number].itemsize
        fixed += ["null", "null", str(size), str(width), f"@known{number}", str(size), str(width)]
    return compiled(_with_way_in(module, "minimise", ENTRIES[MINIMISERS[part]][1][1:], fixed, constants))


def _with_way_in(
    module: Any, name: str, layouts: Iterable[Any], fixed: Sequence[str] = (), constants: Iterable[str] = ()
) -> Any:
    """A module with a function of this name for what Numba compiled, of which one function is seen from outside.

    It takes a tuple of Python's, see `handed`, and behind what is fixed hands over what it finds there: an array by
    its size, its address, its shape and its strides.  Other threads of Python's go on meanwhile.
    """
    inner = next(one for one in module.functions if one.name.startswith("_Z") and one.linkage.name == "external")
    kinds = [str(argument.type) for argument in inner.arguments]
    looks, reads = list[str](), list[str]()
    given = ["%nothing", "null", *fixed]  # first where Numba puts what a function returns: nothing
    for place, layout in enumerate(_leaves(layouts)):
        looks.append(f"%one{place} = call ptr @PyTuple_GetItem(ptr %arguments, i64 {place})")
        if layout is INTEGER:
            reads.append(f"%number{place} = call i64 @PyLong_AsLongLong(ptr %one{place})")
            given.append(f"%number{place}")
            continue
        kind, width, flat = layout.entries.kind, layout.entries.itemsize, layout.dimensions == 1
        order = 0 if kind == "V" else _IN_ORDER  # NumPy tells nothing of records
        right = f"i8 {ord(kind)}, i8 {ord('i' if kind == 'u' else kind)}, i32 {width}, i32 {order}"
        looks.append(f"%array{place} = call ptr @PyCapsule_GetPointer(ptr %one{place}, ptr null)")
        looks.append(f"call void @look(ptr %array{place}, {right}, i32 {0 if flat else layout.dimensions}, ptr %wrong)")
        reads.append(f"%address{place} = call ptr @address_of(ptr %array{place})")
        reads.append(f"%size{place} = call i64 @size_of(ptr %array{place})")
        axes = [(row, axis) for row in (3, 4) for axis in range(layout.dimensions)]
        reads += [
            f"%n{place}{row}{axis} = call i64 @along(ptr %array{place}, i64 {row}, i64 {axis})" for row, axis in axes
        ]
        whole = [f"%size{place}", f"{width}"] if flat else [f"%n{place}{row}{axis}" for row, axis in axes]
        given += ["null", "null", f"%size{place}", f"{width}", f"%address{place}", *whole]
    handed_over = ", ".join(f"{kind} {value}" for kind, value in zip(kinds, given, strict=True))
    declared = f"declare i32 @{inner.name}({', '.join(kinds)})"
    lines = [
        f"define i32 @{name}(ptr %arguments) {{",
        "%nothing = alloca ptr",
        "%wrong = alloca i32",
        "store i32 0, ptr %wrong",
        *looks,
        "%all = load i32, ptr %wrong",
        "%fit = icmp eq i32 %all, 0",
        "br i1 %fit, label %go, label %out",
        "go:",
        *reads,
        "%threads = call ptr @PyEval_SaveThread()",
        f"call i32 @{inner.name}({handed_over})",
        "call void @PyEval_RestoreThread(ptr %threads)",
        "br label %out",
        "out:",
        "ret i32 %all",
        "}",
    ]
    module.link_in(module_of("\n".join((_READING, *constants, declared, *lines))))
    inner.linkage = "internal"
    return module


_READING = """
declare ptr @PyTuple_GetItem(ptr, i64)
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyCapsule_GetPointer(ptr, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
%array = type { i32, i32, i8, i32, i32, ptr, ptr, ptr, ptr }
define linkonce_odr ptr @address_of(ptr %a) {
  %place = getelementptr %array, ptr %a, i32 0, i32 7
  %address = load ptr, ptr %place
  ret ptr %address
}
define linkonce_odr i64 @along(ptr %a, i64 %row, i64 %axis) {
  %first = getelementptr ptr, ptr %a, i64 %row
  %numbers = load ptr, ptr %first
  %place = getelementptr i64, ptr %numbers, i64 %axis
  %number = load i64, ptr %place
  ret i64 %number
}
@nothing = internal constant %array zeroinitializer
define linkonce_odr void @look(ptr %a, i8 %kind, i8 %other, i32 %width, i32 %order, i32 %dimensions, ptr %wrong) {
  %is_none = icmp eq ptr %a, null
  %some = select i1 %is_none, ptr @nothing, ptr %a
  %values = load %array, ptr %some
  %its_kind = extractvalue %array %values, 2
  %one_kind = icmp eq i8 %its_kind, %kind
  %other_kind = icmp eq i8 %its_kind, %other
  %right_kind = or i1 %one_kind, %other_kind
  %its_width = extractvalue %array %values, 3
  %right_width = icmp eq i32 %its_width, %width
  %flags = extractvalue %array %values, 4
  %its_order = and i32 %flags, %order
  %right_order = icmp eq i32 %its_order, %order
  %its_dimensions = extractvalue %array %values, 1
  %any_dimensions = icmp eq i32 %dimensions, 0
  %same_dimensions = icmp eq i32 %its_dimensions, %dimensions
  %right_dimensions = or i1 %any_dimensions, %same_dimensions
  %entries = and i1 %right_kind, %right_width
  %places = and i1 %right_order, %right_dimensions
  %right = and i1 %entries, %places
  %before = load i32, ptr %wrong
  %more = add i32 %before, 1
  %now = select i1 %right, i32 %before, i32 %more
  store i32 %now, ptr %wrong
  ret void
}
define linkonce_odr i64 @size_of(ptr %a) {
entry:
  %place = getelementptr %array, ptr %a, i32 0, i32 1
  %dimensions = load i32, ptr %place
  %count = zext i32 %dimensions to i64
  br label %more
more:
  %axis = phi i64 [ 0, %entry ], [ %next, %times ]
  %size = phi i64 [ 1, %entry ], [ %product, %times ]
  %ends = icmp eq i64 %axis, %count
  br i1 %ends, label %out, label %times
times:
  %extent = call i64 @along(ptr %a, i64 3, i64 %axis)
  %product = mul i64 %size, %extent
  %next = add i64 %axis, 1
  br label %more
out:
  ret i64 %size
}
"""
"""Reads what NumPy tells of an array to programs in C, which is its array interface."""


def _leaves(arguments: Iterable[Any]) -> Iterator[Any]:
    """Arguments, or layouts, with those of named tuples one by one."""
    for one in arguments:
        if isinstance(one, tuple) and not isinstance(one, Layout):
            yield from _leaves(one)
        else:
            yield one


def entry(code: Code, name: str, layouts: Sequence[Any]) -> Entry:
    """A function of machine code, which hands arguments of these layouts over and holds the code."""
    called = _CALLED(code.addresses[name])

    def run(*arguments: Any, _held: Any = code) -> None:
        ready = handed(arguments)
        if len(ready) != count or called((*ready,)):
            raise TypeError(
                f"{name}: compiled code takes {count} arguments, whose arrays lie in C order and have certain types"
            )

    count = sum(1 for _ in _leaves(layouts))
    return run


def handed(arguments: Iterable[Any]) -> list[Any]:
    """Arguments as such a function takes them: numbers, and what NumPy tells of arrays, which are held as long.

    A list is of arguments that were made ready before.
    """
    ready = list[Any]()
    for one in arguments:
        if isinstance(one, np.ndarray):
            ready.append(one.__array_struct__)
        elif isinstance(one, (tuple, list)):
            ready += handed(one) if isinstance(one, tuple) else one
        else:
            ready.append(index(one))
    return ready


# --- without a compiler -----------------------------------------------------------------------------------------------


def _interpreted(name: str) -> Entry:
    """The function as Python runs it, where Numba compiles nothing (``NUMBA_DISABLE_JIT=1``)."""
    module, layouts = ENTRIES[name]
    plain = getattr(importlib.import_module(f"{_LOCAL}.{module}"), name)

    def run(*arguments: Any) -> None:
        plain(*map(_flat, arguments, layouts))

    return run


def _flat(argument: Any, layout: Any) -> Any:
    """An argument with flat arrays where compiled code takes them as flat, and fields of records as attributes."""
    if isinstance(layout, Layout) and layout.dimensions == 1:
        flat = np.reshape(argument, -1, copy=False)
        return flat.view(np.recarray) if layout.entries.names else flat.view(layout.entries)
    return argument if layout is INTEGER or isinstance(layout, Layout) else type(layout)(*map(_flat, argument, layout))
