"""The user's cache of what is generated: files that are written aside, moved into place whole, and verified at any use.

A file is named after a hash of everything it is made from, and begins with a checksum of its content; one that does not
match is made again.  The checksums are against damage; against other users stands who owns a file and who may write to
it (`attnphase.kernels.ownership`).
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

import filelock
import platformdirs

from attnphase.errors import AttnphaseError, CacheError
from attnphase.kernels.ownership import ours_alone, own_folder
from attnphase.lazy import loaded_on_use
from attnphase.processes.interruption import interruptions_kept

with loaded_on_use(__name__):
    from importlib import metadata

    from llvmlite import binding

__all__ = ["cache_directory", "found", "is_kept", "kept", "processor", "untested_numba_named", "version"]

MOST = 256 * 2**20  # bytes of all files
_DIGEST = hashlib.sha256().digest_size
_LOCK = "lock-"
_HOUR = 3600.0
_NEWEST = (0, 68)  # of Numba that was tested: what is compiled uses more of it than it documents


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


@lru_cache
def version() -> str:
    """Hash of all that decides about generated code: its sources, and what runs them.

    Modules that change while they are in use are not those that generate it.
    """
    digest = hashlib.sha256(repr((sys.version, *map(metadata.version, ("numpy", "sympy")))).encode())
    for name, source in program_sources():
        digest.update(f"\n{name}\n".encode() + source.read_bytes())
    return digest.hexdigest()


def program_sources() -> Iterator[tuple[str, Path]]:
    """Every module that has a part in what is generated, with its name."""
    specification = importlib.util.find_spec("derivations")
    assert specification is not None
    assert specification.origin is not None
    derivations, kernels = Path(specification.origin).parent, Path(__file__).parent
    for path in sorted(derivations.rglob("*.py")):
        yield path.relative_to(derivations.parent).as_posix(), path
    others = ("kernels/compiler.py", "kernels/local/constants.py", "problem/losses.py", "problem/attention.py")
    yield from ((name, kernels.parent / name) for name in others)


@lru_cache
def processor() -> str:
    """What machine code is for, and what makes it."""
    host = binding.get_process_triple(), binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    return " ".join((metadata.version("llvmlite"), *host))


def is_kept(kind: str, key: object) -> bool:
    """Whether a content is in the cache, intact, and need not be made again."""
    return found(kind, key) is not None


def found(kind: str, key: object) -> bytes | None:
    """A content that is in the cache, intact; None if it is not."""
    return _content(_place(kind, key))


def kept(kind: str, key: object, make: Callable[[], bytes]) -> bytes:
    """A content from the cache, made and written if it is not there, or not intact.

    Parameters
    ----------
    kind : str
        A word, with which the file's name begins.
    key : object
        All that the content depends on, with a ``repr`` that tells.
    make : callable
        Makes the content, while other processes wait for it.  It must ask for nothing else that is kept.

    Raises
    ------
    CacheError
        The cache folder is not the user's own, or there is no room in it.
    """
    path = _place(kind, key)
    content = _content(path)
    if content is None:
        # of a sixteenth of the files: one for each would leave a file for each, and who waits for a lock holds its file
        with interruptions_kept(), filelock.FileLock(path.with_name(_LOCK + path.name[-1]), mode=0o600):
            content = _content(path)  # made while this process waited
            if content is None:
                content = make()
                _write(path, content)
    return content


def _place(kind: str, key: object) -> Path:
    digest = hashlib.sha256(repr((kind, key)).encode())
    return cache_directory() / f"{kind}-{digest.hexdigest()[:24]}"


def _content(path: Path) -> bytes | None:
    """What a file holds, if all of it is there, and nobody else can have written it."""
    try:
        whole = path.read_bytes() if ours_alone(path) else b""
    except OSError:
        return None
    content = whole[_DIGEST:]
    if whole[:_DIGEST] != hashlib.sha256(content).digest():
        return None
    with suppress(OSError):  # what was used last is removed last
        os.utime(path)
    return content


def _write(path: Path, content: bytes) -> None:
    try:
        _remove(path)
        with tempfile.TemporaryDirectory(prefix=".", dir=path.parent) as folder:
            aside = Path(folder) / path.name
            aside.write_bytes(hashlib.sha256(content).digest() + content)
            aside.chmod(0o600)
            aside.replace(path)
    except OSError as error:
        raise CacheError(
            f"kernel cache {path.parent}: what was made cannot be written: {error.strerror or error}; make room there,"
            " or set ATTNPHASE_CACHE_DIR to another folder."
        ) from None
    with suppress(OSError):  # other processes remove files too, and the next writing goes on
        _make_room(path.parent)


def _make_room(folder: Path) -> None:
    """Remove folders, which earlier versions and killed processes left, and the files that were used longest ago."""
    total = 0
    for path in sorted(folder.iterdir(), key=lambda path: path.lstat().st_mtime, reverse=True):
        with suppress(OSError):
            info = path.lstat()
            total += info.st_size
            abandoned = path.is_dir() and time.time() - info.st_mtime > _HOUR  # a process writes into a young one
            if abandoned or (total > MOST and not path.is_dir() and not path.name.startswith(_LOCK)):
                _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def untested_numba_named() -> Iterator[None]:
    """A sentence that names the remedy, if compiling ends with an error and Numba was not tested."""
    try:
        yield
    except (AttnphaseError, OSError):
        raise
    except Exception as error:
        numba, (major, minor) = metadata.version("numba"), _NEWEST
        if tuple(map(int, numba.split(".")[:2])) <= _NEWEST:
            raise
        raise CacheError(
            f"numba {numba} is newer than {major}.{minor}, the newest that attnphase was tested with, and compiling"
            f" ended with {type(error).__name__}: {error}; install a newer attnphase, or numba<{major}.{minor + 1}."
        ) from error
