"""A model's copy of the minimiser: written with its generated modules, and imported under a stable name."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import pickle
import py_compile
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

__all__ = ["compile_here", "compile_package", "import_package", "write_package"]

_LOCAL = Path(__file__).with_name("local")


def write_package(folder: Path, generated: Mapping[str, str]) -> None:
    """Copy the minimiser into a folder, with sources of the model's own in place of, or beside, its modules.

    Their bytecode is written with them, for all the time that the folder is whole.
    """
    # the values are the callers' own, and lanes and their steps are there for the models that have them
    copied = (path for path in _LOCAL.glob("*.py") if path.name not in ("values.py", "lanes.py", "steps.py"))
    sources = {path.stem: path.read_text(encoding="utf-8") for path in copied}
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH  # the manifest has checksums of all
    with _nothing_elsewhere():
        for name, source in (sources | dict(generated)).items():
            path = folder / f"{name}.py"
            path.write_text(source, encoding="utf-8")
            py_compile.compile(str(path), doraise=True, invalidation_mode=unchecked)


def import_package(folder: Path, kernel: str, modules: Sequence[str]) -> dict[str, ModuleType]:
    """Import modules of a kernel's package; machine code that is not there yet is compiled and kept beside them.

    Where a kernel is built, `compile_package` compiles it first.

    Parameters
    ----------
    folder : Path
    kernel : str
        Of which the package gets its name.  Numba's machine code holds that name, so it must not depend on the folder
        that the kernel is built in.
    modules : sequence of str

    Returns
    -------
    dict
        The modules by name.
    """
    package = f"attnphase_generated_{kernel}"
    for known in tuple(sys.modules):  # other threads import meanwhile
        if known == package or known.startswith(f"{package}."):
            del sys.modules[known]  # from a folder that has been moved or built again
    specification = importlib.util.spec_from_file_location(
        package, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[package] = module
    importlib.invalidate_caches()
    with _nothing_elsewhere():
        specification.loader.exec_module(module)
        return {name: importlib.import_module(f"{package}.{name}") for name in modules}


def compile_package(folder: Path, kernel: str, write: Callable[[], Sequence[str]], processes: int = 2) -> None:
    """Write a kernel's package and compile it in processes of their own, whose memory goes with them.

    They make Numba ready meanwhile.

    Parameters
    ----------
    folder : Path
        Of the package.
    kernel : str
        See `import_package`.
    write : callable
        Fills the folder, and returns the modules to compile.  The first, which takes longest, has a process for itself.
    processes : int
        1 or 2.

    Raises
    ------
    Exception
        What stopped one of them.
    """
    searched = os.pathsep.join(filter(None, sys.path))  # without -P Python would look in the working folder first
    command = [sys.executable, "-P", "-c", f"import {__name__} as package; package.compile_here()", str(folder), kernel]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": os.environ | {"PYTHONPATH": searched}}
    workers = [subprocess.Popen(command, **pipes) for _ in range(processes)]
    try:
        modules = write()
        parts = (modules[:1], modules[1:]) if processes > 1 else (modules,)
        for worker, part in zip(workers, parts, strict=True):
            assert worker.stdin is not None
            with suppress(BrokenPipeError):  # of one that has been stopped, which its exit code says
                worker.stdin.write(f"{' '.join(part)}\n".encode())
                worker.stdin.flush()
        for worker in workers:
            assert worker.stdout is not None
            said = worker.stdout.read()
            if code := worker.wait():
                stopped = f"a process that compiles a kernel was stopped (exit code {code}): run it again."
                raise pickle.loads(said) if said else ChildProcessError(stopped)
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def compile_here() -> None:
    """What a process of `compile_package` does: it ends with the process that waits, and tells that what stopped it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for the process that waits
    from numba.core.registry import cpu_target

    folder, kernel = sys.argv[1:]
    contexts: Any = (cpu_target.typing_context, cpu_target.target_context)
    for context in contexts:
        context.refresh()  # all that Numba can compile, which takes it a second
    gc.freeze()  # it stays: no collection need look at it
    modules = sys.stdin.readline().split()
    Thread(target=lambda: os._exit(len(sys.stdin.read()) or 1), daemon=True).start()
    try:
        import_package(Path(folder), kernel, modules)
    except Exception as error:
        sys.stdout.buffer.write(pickle.dumps(error))
        sys.exit(1)


@contextmanager
def _nothing_elsewhere() -> Iterator[None]:
    """No more bytecode, which would not be in the manifest; it and machine code lie beside their source alone.

    Wherever ``PYTHONPYCACHEPREFIX`` and ``NUMBA_CACHE_DIR`` are, nobody looks at who may write there.
    """
    from numba.core import config

    written, bytecode, machine_code = sys.dont_write_bytecode, sys.pycache_prefix, getattr(config, "CACHE_DIR", "")
    sys.dont_write_bytecode, sys.pycache_prefix = True, None
    setattr(config, "CACHE_DIR", "")  # noqa: B010, Numba makes its settings as it is imported
    try:
        yield
    finally:
        sys.dont_write_bytecode, sys.pycache_prefix = written, bytecode
        setattr(config, "CACHE_DIR", machine_code)  # noqa: B010
