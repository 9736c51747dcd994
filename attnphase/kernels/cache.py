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
import shutil
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import filelock
import platformdirs

from attnphase.errors import AttnphaseError, CacheError
from attnphase.kernels.ownership import ours_alone, own_folder
from attnphase.lazy import loaded_on_use
from attnphase.processes.interruption import interruptions_kept

with loaded_on_use(__name__):
    from importlib import metadata

    from llvmlite import binding

__all__ = ["cache_directory", "filled_aside", "fingerprint", "intact_folder", "is_intact", "is_kept"]

_MANIFEST = "manifest.json"
_NEWEST = (0, 68)  # of Numba that was tested: `local/compiled.py` and `package` use more of it than it documents


def cache_directory() -> Path:
    """The user's own kernel cache, created with mode 0700.

    ``ATTNPHASE_CACHE_DIR`` overrides the platform's cache folder.  If the folder cannot be created, or the user has no
    home folder, a private temporary one is used for this process, with a warning.

    Raises
    ------
    CacheError
        Another user owns the folder or one above it, or could have written to it; the sentence names it.
    """
    path = Path("~/.cache/attnphase")  # for the warning, where nobody knows whose home that is
    try:
        # a folder of its own, so that only this one must be private
        given = os.environ.get("ATTNPHASE_CACHE_DIR") or platformdirs.user_cache_path("attnphase")
        path = Path(given).expanduser() / "kernels"
        path = own_folder(path)
        tempfile.TemporaryFile(dir=path).close()
    except CacheError:
        raise
    except (OSError, RuntimeError) as error:  # the latter without a home folder, as a number in a container
        return _temporary_cache(str(path), getattr(error, "strerror", None) or str(error))
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
    parts = [repr(key), str(sys.flags.optimize), fingerprint_of_program()]
    digest = hashlib.sha256("\n".join(parts).encode())
    return f"k{digest.hexdigest()[:24]}"


@lru_cache
def fingerprint_of_program() -> str:
    """Hash of all but the model; modules that change while they are in use are not those that make kernels."""
    # of Numba the version alone: to import it takes longer than all else here, and a sweep needs it in its workers only
    parts = [sys.version, metadata.version("numba"), metadata.version("numpy")]
    parts += [binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()]
    digest = hashlib.sha256("\n".join(parts).encode())
    for name, source in kernel_sources():
        digest.update(f"\n{name}\n".encode() + source.read_bytes())
    return digest.hexdigest()


def kernel_sources() -> Iterator[tuple[str, Path]]:
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
        The cache folder is not the user's own, or there is no room in it, or Numba is too new.
    """
    root = cache_directory()
    folder = root / name
    # of a sixteenth of the kernels: one for each would leave a file for each, and who waits for a lock holds its file
    with interruptions_kept(), filelock.FileLock(root / f"lock-{name[1]}", mode=0o600), _too_new():
        if not _intact(folder):
            try:
                _remove(folder)
                build(folder)
                if not any(folder.rglob("*.nbi")) and _is_untested():  # every load would compile again
                    raise CacheError(_advice("it keeps machine code elsewhere than beside its source"))
            except OSError as error:
                raise CacheError(
                    f"kernel cache {root}: the kernel cannot be written: {error.strerror or error}; make room there, or"
                    " set ATTNPHASE_CACHE_DIR to another folder."
                ) from None
        yield folder


@contextmanager
def _too_new() -> Iterator[None]:
    """A sentence that names the remedy, if compiling or loading ends with an error and Numba was not tested."""
    try:
        yield
    except (AttnphaseError, OSError):
        raise
    except Exception as error:
        if not _is_untested():
            raise
        raise CacheError(_advice(f"compiling ended with {type(error).__name__}: {error}")) from error


def _is_untested() -> bool:
    return tuple(map(int, metadata.version("numba").split(".")[:2])) > _NEWEST


def _advice(fault: str) -> str:
    major, minor = _NEWEST
    return (
        f"numba {metadata.version('numba')} is newer than {major}.{minor}, the newest that attnphase was tested with,"
        f" and {fault}; install a newer attnphase, or numba<{major}.{minor + 1}."
    )


@contextmanager
def filled_aside(folder: Path) -> Iterator[Path]:
    """An empty folder that, when it has been filled, takes the place of the given one, with its manifest."""
    aside = folder.with_name(f".{folder.name}")  # of the lock's holder alone
    _remove(aside)  # left by a killed process
    aside.mkdir(mode=0o700)
    yield aside
    (aside / _MANIFEST).write_text(json.dumps(_checksums(aside), indent=1), encoding="utf-8")
    for path in aside.rglob("*"):  # the user's umask may let his group write
        path.chmod(path.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))
    aside.rename(folder)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _checksums(folder: Path) -> dict[str, str]:
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != _MANIFEST)
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def _intact(folder: Path) -> bool:
    """Whether all of a kernel is there, and nobody else can have written any of it."""
    try:
        if not all(ours_alone(path) for path in (folder, *folder.rglob("*"))):
            return False
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # unreadable, no JSON, lists in lists without end
        return False
    return bool(manifest) and manifest == _checksums(folder)
