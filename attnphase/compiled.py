"""Problem to kernels: derive, generate, compile, and keep the result in the user's cache.

A kernel lives in a folder named after a hash of everything it is made from.  The folder is built aside and moved into
place whole, with a manifest of checksums; on every load the checksums are verified, and a folder that does not match
is removed and built again.  This is the only module of `attnphase` that imports SymPy, and only to build.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import filelock
import platformdirs

from attnphase.problem import Problem

__all__ = ["CacheError", "Kernels", "Maps", "ModelKey", "cache_directory", "kernels_for", "load_kernels"]

_MANIFEST = "manifest.json"
_MAPS = ("ridge", "separable")
_NEWTON = Path(__file__).with_name("newton.py")


class CacheError(RuntimeError):
    """The kernel cache cannot be used safely."""


@dataclass(frozen=True)
class ModelKey:
    """What a kernel depends on: sizes, scores and tying, and no numerical parameter of the problem."""

    length: int
    columns: int
    tied: bool
    student_score: str
    teacher_score: str
    teacher_rank: int

    @classmethod
    def of(cls, problem: Problem) -> ModelKey:
        """The key of a problem's model."""
        return cls(
            problem.tokens.length,
            problem.columns,
            problem.student.tied,
            problem.student.score,
            problem.teacher.score,
            problem.teacher.rank,
        )

    def model(self) -> Any:
        """The symbolic model (imports SymPy)."""
        from derivations.model import AttentionModel, Student, Teacher
        from derivations.scores import SCORES

        rank = self.columns if self.tied else self.columns // 2
        student = Student(SCORES[self.student_score], rank, self.tied)
        return AttentionModel(self.length, student, Teacher(SCORES[self.teacher_score], self.teacher_rank))


@dataclass(frozen=True)
class Maps:
    """The derived equations in NumPy; see the generated modules for their arguments.

    Attributes
    ----------
    overlaps_from_conjugates, conjugates_from_overlaps : callable
        The two halves of the state-evolution map, equations (7) and (8).
    free_entropy_terms, observables : callable
        Dicts of named terms of ``-Phi`` and of observables.
    """

    overlaps_from_conjugates: Callable[..., Any]
    conjugates_from_overlaps: Callable[..., Any]
    free_entropy_terms: Callable[..., Any]
    observables: Callable[..., Any]


@dataclass(frozen=True)
class Kernels:
    """Compiled functions of one model; see the generated modules for their arguments.

    Attributes
    ----------
    length, columns, teacher_rank : int
        L, r, t.
    sign_symmetric : bool
        The loss is unchanged by ``h -> -h`` and by ``k -> -k``.
    minimise, losses_at, targets_at : callable
        The local problem, in machine code.
    ridge, separable : Maps
        The derived equations for a ridge, and for any regulariser of the rows.
    folder : Path
        Where the generated source lies.
    """

    length: int
    columns: int
    teacher_rank: int
    sign_symmetric: bool
    minimise: Callable[..., None]
    losses_at: Callable[..., None]
    targets_at: Callable[..., None]
    ridge: Maps
    separable: Maps
    folder: Path


def cache_directory() -> Path:
    """The user's own kernel cache, created with mode 0700.

    ``ATTNPHASE_CACHE_DIR`` overrides the platform's cache folder.  If the folder cannot be created, a private temporary
    one is used for this process, with a warning.

    Raises
    ------
    CacheError
        The folder belongs to someone else.
    """
    # a folder of its own, so that only this one is made private
    path = Path(os.environ.get("ATTNPHASE_CACHE_DIR") or platformdirs.user_cache_path("attnphase")) / "kernels"
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        _require_private(path)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        path = _temporary_cache(str(path), error.strerror or str(error))
    return path


@lru_cache
def _temporary_cache(wanted: str, reason: str) -> Path:
    path = Path(tempfile.mkdtemp(prefix="attnphase-"))
    warnings.warn(f"kernel cache {wanted} is not usable ({reason}): compiling into {path} for this run", stacklevel=2)
    return path


def _require_private(path: Path) -> None:
    if not hasattr(os, "getuid"):
        return  # no POSIX owners: the platform's user folder is private
    info = path.stat()
    if info.st_uid != os.getuid():
        raise CacheError(
            f"kernel cache {path} belongs to another user: set ATTNPHASE_CACHE_DIR to a folder of your own"
        )
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        path.chmod(info.st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))


def kernels_for(problem: Problem) -> Kernels:
    """Compiled kernels of a problem's model, from the cache if they are there and intact."""
    return load_kernels(ModelKey.of(problem))


@lru_cache(maxsize=32)
def load_kernels(key: Any) -> Kernels:
    """Compiled kernels of a model key (anything hashable with a ``model()`` method and a stable ``repr``).

    Raises
    ------
    CacheError
        The cache folder is not the user's own.
    """
    root = cache_directory()
    name = _fingerprint(key)
    folder = root / name
    with filelock.FileLock(root / f"{name}.lock"):
        if not _intact(folder):
            shutil.rmtree(folder, ignore_errors=True)
            _build(key, folder)
        return _load(folder, name)


def _fingerprint(key: Any) -> str:
    """Hash of the model, the generating code and everything that decides about machine code."""
    import llvmlite.binding
    import numba
    import numpy

    parts = [repr(key), sys.version, numba.__version__, numpy.__version__]
    parts += [llvmlite.binding.get_host_cpu_name(), llvmlite.binding.get_host_cpu_features().flatten()]
    digest = hashlib.sha256("\n".join(parts).encode())
    specification = importlib.util.find_spec("derivations")
    assert specification is not None
    assert specification.origin is not None
    sources = sorted(Path(specification.origin).parent.glob("*.py"))
    for source in (*sources, _NEWTON):
        digest.update(source.read_bytes())
    return f"k{digest.hexdigest()[:24]}"


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name != _MANIFEST)


def _checksums(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in _files(folder)}


def _intact(folder: Path) -> bool:
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(manifest) and manifest == _checksums(folder)


def _build(key: Any, folder: Path) -> None:
    from derivations.array_maps import state_evolution_source
    from derivations.codegen import local_problem_source
    from derivations.replica import derive_free_entropy
    from derivations.saddle_point import derive_saddle_point

    model = key.model()
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        local = f"{local_problem_source(model, 'numba')}\n{_NEWTON.read_text(encoding='utf-8')}"
        local += f"\nSIGN_SYMMETRIC = {model.sign_symmetric}\n"
        (aside / "local_problem.py").write_text(local, encoding="utf-8")
        for name in _MAPS:
            free_entropy = derive_free_entropy(separable=name == "separable")
            maps = state_evolution_source(derive_saddle_point(free_entropy), free_entropy)
            (aside / f"{name}.py").write_text(maps, encoding="utf-8")
        _load(aside, folder.name)  # compiles, which writes the machine code beside the source
        (aside / _MANIFEST).write_text(json.dumps(_checksums(aside), indent=1), encoding="utf-8")
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _load(folder: Path, name: str) -> Kernels:
    local = _import(folder / "local_problem.py", name)
    modules = {regularizer: _import(folder / f"{regularizer}.py", name) for regularizer in _MAPS}
    maps = {
        regularizer: Maps(
            overlaps_from_conjugates=module.overlaps_from_conjugates,
            conjugates_from_overlaps=module.conjugates_from_overlaps,
            free_entropy_terms=module.free_entropy_terms,
            observables=module.observables,
        )
        for regularizer, module in modules.items()
    }
    return Kernels(
        length=local.LENGTH,
        columns=local.COLUMNS,
        teacher_rank=local.TEACHER_RANK,
        sign_symmetric=local.SIGN_SYMMETRIC,
        minimise=local.minimise,
        losses_at=local.losses_at,
        targets_at=local.targets_at,
        **maps,
        folder=folder,
    )


def _import(path: Path, kernel: str) -> ModuleType:
    # Numba's cached code holds the module's name, so it must not depend on the folder it was built in
    name = f"attnphase_generated_{kernel}_{path.stem}"
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    written = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # a .pyc would not be in the manifest
    try:
        specification.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module
