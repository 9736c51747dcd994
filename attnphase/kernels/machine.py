"""LLVM's text to machine code of this machine's processor, and machine code to functions, by llvmlite."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from llvmlite import binding

__all__ = ["Code", "compiled", "loaded", "module_of", "numbers_in_a_register", "object_of"]


_OF_PYTHON = (
    "PyTuple_GetItem",
    "PyLong_AsLongLong",
    "PyCapsule_GetPointer",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
)
"""Functions that machine code may call."""


def _machine() -> Any:
    """What LLVM is told of this machine: one for each engine, which owns it then."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    features = binding.get_host_cpu_features().flatten()
    target = binding.Target.from_default_triple()
    return target.create_target_machine(cpu=binding.get_host_cpu_name(), features=features, opt=3, jit=True)


def numbers_in_a_register() -> int:
    """How many numbers of double precision a vector register of this processor holds."""
    return 8 if binding.get_host_cpu_features().get("avx512f") else 4


def module_of(*parts: str | bytes) -> Any:
    """A module of texts and of what `bytes` of other modules hold, in which one part may call what others define."""
    modules = [binding.parse_assembly(part) if isinstance(part, str) else binding.parse_bitcode(part) for part in parts]
    for other in modules[1:]:
        modules[0].link_in(other)
    modules[0].verify()
    return modules[0]


def compiled(module: Any) -> bytes:
    """The machine code of a module, which it optimises."""
    machine, options = _machine(), binding.create_pipeline_tuning_options(speed_level=2)
    passes = binding.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    return bytes(machine.emit_object(module))


def object_of(module: Any) -> bytes:
    """The machine code of a module of llvmlite as it stands."""
    return bytes(_machine().emit_object(module))


@dataclass(frozen=True, eq=False)
class Code:
    """Machine code in this process: addresses of functions, which are there as long as this is.

    Attributes
    ----------
    addresses : mapping
        By name.
    engine : object
        Whoever holds an address must hold it.
    """

    addresses: Mapping[str, int]
    engine: Any


def loaded(content: bytes, names: Iterable[str]) -> Code:
    """The functions of machine code by these names; an address is zero where there is none."""
    for name in _OF_PYTHON:
        binding.add_symbol(name, ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value)
    engine = binding.create_mcjit_compiler(module_of(""), _machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(content))
    engine.finalize_object()
    return Code({name: engine.get_function_address(name) for name in names}, engine)
