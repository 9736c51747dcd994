"""The user's cache of kernels: folders that are built aside, moved into place whole, and verified on every load.

A kernel lies in a folder named after a hash of everything it is made from, with a manifest of checksums; a folder that
does not match is removed and built again.  The checksums are against damage; against other users stands who owns a file
and who may write to it (`attnphase.kernels.ownership`).
"""

from __future__ import annotations

import atexit
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
from functools import lru_cache
from pathlib import Path
from typing import Any

import filelock
import platformdirs

from attnphase.errors import CacheError
from attnphase.kernels.ownership import ours_alone, own_folder
from attnphase.lazy import loaded_on_use
from attnphase.processes.interruption import interruptions_kept

with loaded_on_use(__name__):
    import numpy

__all__ = ["cache_directory", "filled_aside", "fingerprint", "intact_folder", "is_intact", "is_kept"]

_MANIFEST = "manifest.json"


def cache_directory() -> Path:
    """The user's own kernel cache, created with mode 0700.

    ``ATTNPHASE_CACHE_DIR`` overrides the platform's cache folder.  If the folder cannot be created, or the user has no
    home folder, a private temporary one is used for this process, with a warning.

    Raises
    ------
    CacheError
        Another user owns the folder or one on the way to it, or could have written to it; the sentence names it.
    """
    path = Path("~/.cache/attnphase")  # for the warning, where nobody knows whose home that is
    try:
        # a folder of its own, so that only this one must be private
        path = Path(os.environ.get("ATTNPHASE_CACHE_DIR") or _platform_folder()) / "kernels"
        path = own_folder(path)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        path = _temporary_cache(str(path), error.strerror or str(error))
    return path


def _platform_folder() -> Path:
    """The platform's cache folder of the user.

    Raises
    ------
    OSError
        He has no home folder, as a number without a name in a container: neither ``HOME`` nor an entry of his own.
    """
    try:
        path = platformdirs.user_cache_path("attnphase")
    except RuntimeError as error:
        raise OSError(None, str(error)) from None
    if not path.is_absolute():  # earlier versions of platformdirs leave the tilde
        raise OSError(None, "the user has no home folder")
    return path


@lru_cache
def _temporary_cache(wanted: str, reason: str) -> Path:
    path = own_folder(Path(tempfile.mkdtemp(prefix="attnphase-")))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    warnings.warn(f"kernel cache {wanted} is not usable ({reason}): compiling into {path} for this run", stacklevel=2)
    return path


def fingerprint(key: Any) -> str:
    """Name of a kernel's folder: hash of the model, the code that makes it, and all that decides about machine code."""
    # Python keeps other bytecode beside a source for every level of -O
    parts = [repr(key), str(sys.flags.optimize), _fingerprint_of_program()]
    digest = hashlib.sha256("\n".join(parts).encode())
    return f"k{digest.hexdigest()[:24]}"


@lru_cache
def _fingerprint_of_program() -> str:
    """Hash of all but the model; modules that change while they are in use are not those that make kernels."""
    from importlib.metadata import version

    import llvmlite.binding

    # of Numba the version alone: to import it takes longer than all else here, and a sweep needs it in its workers only
    parts = [sys.version, version("numba"), numpy.__version__]
    parts += [llvmlite.binding.get_host_cpu_name(), llvmlite.binding.get_host_cpu_features().flatten()]
    digest = hashlib.sha256("\n".join(parts).encode())
    for name, source in _sources():
        digest.update(f"\n{name}\n".encode() + source.read_bytes())
    return digest.hexdigest()


def _sources() -> Iterator[tuple[str, Path]]:
    """Every module that has a part in what a kernel's folder holds, with its name."""
    specification = importlib.util.find_spec("derivations")
    assert specification is not None
    assert specification.origin is not None
    derivations, kernels = Path(specification.origin).parent, Path(__file__).parent
    for root in (derivations, kernels / "local"):
        for path in sorted(root.rglob("*.py")):
            yield f"{root.name}/{path.relative_to(root).as_posix()}", path
    problem = kernels.with_name("problem")
    for path in (kernels / "compiler.py", kernels / "package.py", problem / "losses.py", problem / "attention.py"):
        yield path.name, path


def is_kept(name: str) -> bool:
    """Whether a kernel's folder is there; it may have to be built again."""
    return (cache_directory() / name / _MANIFEST).exists()


def is_intact(name: str) -> bool:
    """Whether a kernel's folder is there, and need not be built again."""
    return _intact(cache_directory() / name)


@contextmanager
def intact_folder(name: str, build: Callable[[Path], None]) -> Iterator[Path]:
    """A kernel's intact folder in the cache, built if need be, which no other process changes meanwhile.

    Raises
    ------
    CacheError
        The cache folder is not the user's own, or there is no room in it.
    """
    root = cache_directory()
    folder = root / name
    lock = _lock_file(folder)
    with interruptions_kept(), _lock(lock):
        if not _intact(folder):
            _remove(folder)
            _sweep(root, lock)
            try:
                build(folder)
            except OSError as error:
                raise CacheError(
                    f"kernel cache {root}: the kernel cannot be written: {error.strerror or error}; make room there, or"
                    " set ATTNPHASE_CACHE_DIR to another folder."
                ) from None
        yield folder


@contextmanager
def filled_aside(folder: Path) -> Iterator[Path]:
    """An empty folder that, when it has been filled, takes the place of the given one, with its manifest."""
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield aside
        (aside / _MANIFEST).write_text(json.dumps(_checksums(aside), indent=1), encoding="utf-8")
        for path in aside.rglob("*"):  # the user's umask may let his group write
            path.chmod(path.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name != _MANIFEST)


def _checksums(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in _files(folder)}


def _intact(folder: Path) -> bool:
    """Whether all of a kernel is there, and nobody else can have written any of it."""
    try:
        if not all(ours_alone(path) for path in (folder, *folder.rglob("*"))):
            return False
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # unreadable, no JSON, lists in lists without end
        return False
    return bool(manifest) and manifest == _checksums(folder)


def _lock(path: Path, timeout: float = -1) -> filelock.BaseFileLock:
    """A lock of the cache."""
    if os.path.lexists(path) and not ours_alone(path):
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
