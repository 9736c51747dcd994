"""Problem to kernels: derive, generate, compile, and keep the result in the user's cache.

A kernel lives in a folder named after a hash of everything it is made from.  The folder is built aside and moved into
place whole, with a manifest of checksums; on every load the checksums are verified, and a folder that does not match
is removed and built again.  The checksums are against damage; against other users stands who owns a file and who may
write to it, from the root folder on.  This is the only module of `attnphase` that imports SymPy, and only to build.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import importlib.util
import json
import os
import secrets
import shutil
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import filelock
import platformdirs

from attnphase.errors import CacheError
from attnphase.problem.losses import LOSSES
from attnphase.problem.own_functions import printed_scores
from attnphase.problem.problem import Problem
from attnphase.processes.interruption import interruptions_kept
from attnphase.processes.progress import Tell, silent

__all__ = [
    "Kernels",
    "Maps",
    "ModelKey",
    "ReferenceBackend",
    "SampleKernels",
    "cache_directory",
    "kernels_for",
    "load_kernels",
    "reference_backend",
    "sample_kernels_for",
    "tell_if_compiling",
    "torch_module",
]

_MANIFEST = "manifest.json"
_UID_MAP, _OVERFLOW = Path("/proc/self/uid_map"), Path("/proc/sys/kernel/overflowuid")
_MOST_LINKS = 40  # as Linux has it
_MAPS = ("ridge", "separable")
_NEWTON = Path(__file__).with_name("newton.py")
_ENTRIES = {
    finite: Path(__file__).with_name(f"newton_{'samples' if finite else 'nodes'}.py") for finite in (False, True)
}


@dataclass(frozen=True)
class ModelKey:
    """What a kernel depends on: sizes, scores, masks, tying and the loss, and no numerical parameter of the problem."""

    length: int
    rank: int
    tied: bool
    student_score: str
    student_causal: bool
    teacher_score: str
    teacher_causal: bool
    teacher_rank: int
    loss: str = "attention"
    values: int = 0
    expression: str = ""
    functions: str = ""  # what a user's own row functions return, so that a changed one is compiled anew
    finite: bool = False

    @classmethod
    def of(cls, problem: Problem, *, finite: bool = False) -> ModelKey:
        """The key of a problem's model, in the limit of high dimension or of samples at finite d.

        Raises
        ------
        ProblemError
            A score of the user's own is not known in this process, or has changed for the worse; or the problem came
            with data and names a function of a module.
        """
        problem.require_functions()
        student, teacher = problem.student, problem.teacher
        return cls(
            problem.tokens.length,
            student.rank,
            student.tied,
            student.score,
            student.causal,
            teacher.score,
            teacher.causal,
            teacher.rank,
            problem.loss.kind,
            problem.loss.value_columns,
            problem.loss.expression or "",
            printed_scores(problem),
            finite,
        )

    def model(self) -> Any:
        """The symbolic model (imports SymPy)."""
        return LOSSES[self.loss].model(self)


@dataclass(frozen=True, eq=False)
class ReferenceBackend:
    """The local problem in NumPy or mpmath, to hold the compiled one against."""

    module: Any
    backend: str
    length: int
    columns: int

    def losses(self, h: Any, k: Any, mixing: Any, parameters: Any, variance: Any) -> Any:
        """Loss of every sample: h (N, L, r), k (N, L, t) to (N,)."""
        return self._evaluate(h, k, mixing, parameters, variance)[0]

    def gradients(self, h: Any, k: Any, mixing: Any, parameters: Any, variance: Any) -> Any:
        """Gradient of every sample's loss in the fields, (N, L, r)."""
        return self._evaluate(h, k, mixing, parameters, variance)[1]

    def _evaluate(self, h: Any, k: Any, mixing: Any, parameters: Any, variance: Any) -> tuple[Any, Any]:
        import numpy as np

        count, size = len(h), self.length * self.columns
        width = max(self.length, k.shape[2])
        if self.backend == "numpy":
            target, gradient = np.zeros((self.length, width, count)), np.zeros((self.length, self.columns, count))
            hessian, contracted = np.zeros((size, size, count)), np.zeros((size, count))
            fields, teacher = np.moveaxis(h, 0, -1), np.moveaxis(k, 0, -1)
            self.module.teacher_target(teacher, mixing, parameters, target)
            scratch = gradient, hessian, contracted
            losses = self.module.loss_derivatives(fields, target, variance, parameters, *scratch)
            return np.broadcast_to(losses, count), np.moveaxis(gradient, -1, 0)
        from mpmath import mpf

        def exact(values: Any) -> Any:
            return np.vectorize(lambda x: mpf(float(x)), otypes=[object])(values)

        losses, gradients = [], []
        for one, teacher in zip(exact(h), exact(k), strict=True):
            target, gradient = exact(np.zeros((self.length, width))), exact(np.zeros((self.length, self.columns)))
            hessian, contracted = exact(np.zeros((size, size))), exact(np.zeros(size))
            numbers = exact(parameters)
            self.module.teacher_target(teacher, exact(mixing), numbers, target)
            scratch = gradient, hessian, contracted
            losses.append(float(self.module.loss_derivatives(one, target, exact(variance), numbers, *scratch)))
            gradients.append(gradient.astype(float))
        return np.array(losses), np.stack(gradients)


def torch_module(problem: Problem, *, finite: bool) -> ModuleType:
    """The local problem of a problem's model printed for torch, in the limit or of samples at finite d.

    Imports SymPy and torch.
    """
    return _printed(ModelKey.of(problem, finite=finite), "torch")


@lru_cache(maxsize=32)
def _printed(key: ModelKey, backend: str) -> ModuleType:
    from derivations.codegen.local_problem import local_problem_source

    module = ModuleType(f"attnphase_printed_{backend}")
    exec(compile(local_problem_source(key.model(), backend), module.__name__, "exec"), module.__dict__)
    return module


@lru_cache(maxsize=8)
def reference_backend(problem: Problem, backend: str) -> ReferenceBackend:
    """The local problem of a problem's model printed for "numpy" or "mpmath" (imports SymPy)."""
    key = ModelKey.of(problem)
    module = _printed(key, backend)
    return ReferenceBackend(module, backend, module.LENGTH, module.COLUMNS)


@dataclass(frozen=True)
class Maps:
    """The derived equations in NumPy; see the generated modules for their arguments.

    Attributes
    ----------
    overlaps_from_conjugates, conjugates_from_overlaps : callable
        The two halves of the state-evolution map, equations (7) and (8).
    free_entropy_terms, observables : callable
        Dicts of named terms of ``-Phi`` and of observables.
    linear_test_error : callable
        The linear baseline, equations (19)-(20).
    """

    overlaps_from_conjugates: Callable[..., Any]
    conjugates_from_overlaps: Callable[..., Any]
    free_entropy_terms: Callable[..., Any]
    observables: Callable[..., Any]
    linear_test_error: Callable[..., Any]


@dataclass(frozen=True)
class Kernels:
    """Compiled functions of one model; see the generated modules for their arguments.

    Attributes
    ----------
    length, columns, teacher_rank : int
        L, r, t.
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
    minimise: Callable[..., None]
    losses_at: Callable[..., None]
    targets_at: Callable[..., None]
    ridge: Maps
    separable: Maps
    folder: Path


@dataclass(frozen=True)
class SampleKernels:
    """Compiled functions of one model for samples at finite d; see ``newton_samples.py`` for their arguments.

    Attributes
    ----------
    length, columns, teacher_rank : int
        L, r, t.
    minimise : callable
        The local problem, in machine code.
    folder : Path
        Where the generated source lies.
    """

    length: int
    columns: int
    teacher_rank: int
    minimise: Callable[..., None]
    folder: Path


# --------------------------------------------------------------------------------------------------------- the cache


def cache_directory() -> Path:
    """The user's own kernel cache, created with mode 0700.

    ``ATTNPHASE_CACHE_DIR`` overrides the platform's cache folder.  If the folder cannot be created, a private temporary
    one is used for this process, with a warning.

    Raises
    ------
    CacheError
        Another user owns the folder or one on the way to it, or could have written to it; the sentence names it.
    """
    # a folder of its own, so that only this one must be private
    path = Path(os.environ.get("ATTNPHASE_CACHE_DIR") or platformdirs.user_cache_path("attnphase")) / "kernels"
    try:
        path = _own_folder(path)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        path = _temporary_cache(str(path), error.strerror or str(error))
    return path


@lru_cache
def _temporary_cache(wanted: str, reason: str) -> Path:
    path = _own_folder(Path(tempfile.mkdtemp(prefix="attnphase-")))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    warnings.warn(f"kernel cache {wanted} is not usable ({reason}): compiling into {path} for this run", stacklevel=2)
    return path


def _own_folder(path: Path) -> Path:
    """A folder that nobody else could have written to, made if it is not there; the way to it without links.

    Raises
    ------
    CacheError
        Somebody else could, here or at one of the folders and links on the way.
    OSError
        It cannot be made, or is no folder.
    """
    path = path.absolute()
    if not hasattr(os, "getuid"):  # no POSIX owners: the platform's user folder is private
        path.mkdir(parents=True, exist_ok=True)
        return path
    here, rest, links = Path(path.anchor), list(path.parts[1:]), 0
    _require_owner(path, here)
    _require_trusted(path, here)
    while rest:
        name = rest.pop(0)
        if name == "..":
            here = here.parent
            continue
        step = here / name
        if not os.path.lexists(step):
            with suppress(FileExistsError):
                step.mkdir(mode=0o700)
        _require_owner(path, step)
        if not step.is_symlink():
            here = step
            if rest:
                _require_trusted(path, here)
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = step.readlink()
        rest = [*target.parts[bool(target.anchor) :], *rest]
        here = Path(target.anchor) if target.anchor else here
    if not here.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not _ours_alone(here):
        raise CacheError(
            f"kernel cache {here}: others could have written to it, and what lies there is machine code: remove it, or"
            " set ATTNPHASE_CACHE_DIR to a folder of your own."
        )
    return here


def _require_owner(path: Path, step: Path) -> None:
    owner = step.lstat().st_uid
    if owner not in _trusted_users():
        where = "it" if step == path else step
        raise CacheError(
            f"kernel cache {path}: {where} belongs to another user (number {owner}), who could change what is run from"
            " there: set ATTNPHASE_CACHE_DIR to a folder of your own."
        )


def _require_trusted(path: Path, step: Path) -> None:
    """Refuse a folder on the way to the cache in which somebody else could put another in its place."""
    info = step.lstat()
    # in a sticky folder, such as /tmp, nobody renames what is another's
    if _others_may_write(info) and not info.st_mode & stat.S_ISVTX:
        if not (stat.S_ISDIR(info.st_mode) or stat.S_ISLNK(info.st_mode)):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        mend = f"run chmod go-w {step}, or " if info.st_uid == os.getuid() else ""
        raise CacheError(
            f"kernel cache {path}: others may write to {step}, and so change what is run from there: {mend}set"
            " ATTNPHASE_CACHE_DIR to a folder of your own."
        )


def _trusted_users() -> set[int]:
    """The user himself, and root, who can do everything anyway."""
    users = {0, os.getuid()}
    with suppress(OSError):
        # in a container whose users have no root, the machine's root shows as nobody
        if not any(line.split()[0] == "0" for line in _UID_MAP.read_text(encoding="ascii").splitlines()):
            users.add(int(_OVERFLOW.read_text(encoding="ascii")))
    return users


def _others_may_write(info: os.stat_result) -> bool:
    if info.st_mode & stat.S_IWGRP and not _private_group(info.st_gid):
        return True
    return bool(info.st_mode & stat.S_IWOTH)


def _private_group(group: int) -> bool:
    """Whether a group is the user's own, as where new files are group-writable by default: named like him, only him."""
    import grp
    import pwd

    try:
        user, entry = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and entry.gr_name == user.pw_name and set(entry.gr_mem) <= {user.pw_name}


def _ours_alone(path: Path) -> bool:
    """Whether a file or folder of the cache, not a link, can have been written by nobody else."""
    if not hasattr(os, "getuid"):
        return True
    info = path.lstat()
    mine = info.st_uid in _trusted_users() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return mine and (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode))


def kernels_for(problem: Problem) -> Kernels:
    """Compiled kernels of a problem's model, from the cache if they are there and intact."""
    return load_kernels(ModelKey.of(problem))


def tell_if_compiling(problem: Problem, tell: Tell, *, finite: bool = False) -> None:
    """Tell that the kernels of a problem's model are not in the cache, before they are asked for.

    Parameters
    ----------
    problem : Problem
    tell : callable
    finite : bool
        Those for samples at finite d.
    """
    if tell is silent:
        return
    if not (cache_directory() / _fingerprint(ModelKey.of(problem, finite=finite)) / _MANIFEST).exists():
        tell("compiling the kernels of this model, once")


@lru_cache(maxsize=32)
def load_kernels(key: Any) -> Kernels:
    """Compiled kernels of a model key (anything hashable with a ``model()`` method and a stable ``repr``).

    Raises
    ------
    CacheError
        The cache folder is not the user's own.
    """
    with _built(key) as folder:
        return _load(folder, folder.name)


def sample_kernels_for(problem: Problem) -> SampleKernels:
    """Compiled kernels for samples at finite d of a problem's model, from the cache if they are there and intact.

    Raises
    ------
    CacheError
        The cache folder is not the user's own.
    """
    return _load_sample_kernels(ModelKey.of(problem, finite=True))


@lru_cache(maxsize=32)
def _load_sample_kernels(key: ModelKey) -> SampleKernels:
    with _built(key) as folder:
        local = _import(folder / "local_problem.py", folder.name)
        return SampleKernels(
            length=local.LENGTH,
            columns=local.COLUMNS,
            teacher_rank=local.TEACHER_RANK,
            minimise=local.minimise_samples,
            folder=folder,
        )


@contextmanager
def _built(key: Any) -> Iterator[Path]:
    """The kernel's intact folder in the cache, which no other process changes meanwhile."""
    root = cache_directory()
    folder = root / _fingerprint(key)
    lock = _lock_file(folder)
    with interruptions_kept(), _lock(lock):
        if not _intact(folder):
            _remove(folder)
            _sweep(root, lock)
            try:
                _build(key, folder)
            except OSError as error:
                raise CacheError(
                    f"kernel cache {root}: the kernel cannot be written: {error.strerror or error}; make room there, or"
                    " set ATTNPHASE_CACHE_DIR to another folder."
                ) from None
        yield folder


def _lock(path: Path, timeout: float = -1) -> filelock.BaseFileLock:
    """A lock of the cache."""
    if os.path.lexists(path) and not _ours_alone(path):
        path.unlink(missing_ok=True)
    return filelock.FileLock(path, timeout=timeout, mode=0o600)


def _lock_file(folder: Path) -> Path:
    """The lock of a kernel's folder, or of one put aside; it is shared with a sixteenth of the others.

    One lock for each kernel would leave a file for each, which could not be removed safely: who waits for a lock holds
    the file that is no longer there.
    """
    return folder.with_name(f"lock-{folder.name.lstrip('.k')[:1]}")


def _remove(folder: Path) -> None:
    """Take a kernel's folder away, also one in which others have files that cannot be removed."""
    if not os.path.lexists(folder):
        return
    aside = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    folder.rename(aside)
    _remove_aside(aside)


def _remove_aside(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sweep(root: Path, held: Path) -> None:
    """Remove what killed processes left: folders that nobody builds in, and an earlier version's locks.

    Parameters
    ----------
    held : Path
        The lock that this process holds.
    """
    for path in root.glob(".k*.*"):
        lock = _lock_file(path)
        with suppress(filelock.Timeout), nullcontext() if lock == held else _lock(lock, timeout=0):
            _remove_aside(path)
    for path in root.glob("k*.lock"):
        with suppress(filelock.Timeout), _lock(path, timeout=0):
            path.unlink(missing_ok=True)


def _fingerprint(key: Any) -> str:
    """Hash of the model, the generating code and everything that decides about machine code."""
    import llvmlite.binding
    import numba
    import numpy

    # Python keeps other bytecode beside a source for every level of -O
    parts = [repr(key), sys.version, str(sys.flags.optimize), numba.__version__, numpy.__version__]
    parts += [llvmlite.binding.get_host_cpu_name(), llvmlite.binding.get_host_cpu_features().flatten()]
    digest = hashlib.sha256("\n".join(parts).encode())
    specification = importlib.util.find_spec("derivations")
    assert specification is not None
    assert specification.origin is not None
    sources = sorted(Path(specification.origin).parent.rglob("*.py"))
    for source in (*sources, _NEWTON, *_ENTRIES.values()):
        digest.update(source.read_bytes())
    return f"k{digest.hexdigest()[:24]}"


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name != _MANIFEST)


def _checksums(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in _files(folder)}


def _intact(folder: Path) -> bool:
    """Whether all of a kernel is there, and nobody else can have written any of it."""
    try:
        if not all(_ours_alone(path) for path in (folder, *folder.rglob("*"))):
            return False
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # unreadable, no JSON, lists in lists without end
        return False
    return bool(manifest) and manifest == _checksums(folder)


def _build(key: Any, folder: Path) -> None:
    from derivations.codegen.arrays import state_evolution_source
    from derivations.codegen.local_problem import kernel_source
    from derivations.models.symbolic import GENERIC
    from derivations.replica.chain import derive_free_entropy
    from derivations.replica.saddle_point import derive_saddle_point

    model, finite = key.model(), getattr(key, "finite", False)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        templates = (_NEWTON, _ENTRIES[finite])
        texts = [kernel_source(model), *(path.read_text(encoding="utf-8") for path in templates)]
        local = "\n".join(texts)
        (aside / "local_problem.py").write_text(local, encoding="utf-8")
        if not finite:
            for name in _MAPS:
                free_entropy = derive_free_entropy(GENERIC, separable=name == "separable")
                maps = state_evolution_source(derive_saddle_point(free_entropy), free_entropy)
                (aside / f"{name}.py").write_text(maps, encoding="utf-8")
        # compiles, which writes the machine code beside the source
        _import(aside / "local_problem.py", folder.name)
        (aside / _MANIFEST).write_text(json.dumps(_checksums(aside), indent=1), encoding="utf-8")
        for path in aside.rglob("*"):  # the user's umask may let his group write
            path.chmod(path.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))
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
            linear_test_error=module.linear_test_error,
        )
        for regularizer, module in modules.items()
    }
    return Kernels(
        length=local.LENGTH,
        columns=local.COLUMNS,
        teacher_rank=local.TEACHER_RANK,
        minimise=local.minimise,
        losses_at=local.losses_at,
        targets_at=local.targets_at,
        **maps,
        folder=folder,
    )


def _import(path: Path, kernel: str) -> ModuleType:
    from numba.core import config

    # Numba's cached code holds the module's name, so it must not depend on the folder it was built in
    name = f"attnphase_generated_{kernel}_{path.stem}"
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    written, elsewhere = sys.dont_write_bytecode, getattr(config, "CACHE_DIR", "")
    sys.dont_write_bytecode = True  # a .pyc would not be in the manifest
    # machine code lies beside its source, whatever NUMBA_CACHE_DIR says: nobody looks at who may write there
    setattr(config, "CACHE_DIR", "")  # noqa: B010, Numba makes its settings as it is imported
    try:
        specification.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
        setattr(config, "CACHE_DIR", elsewhere)  # noqa: B010
    return module
