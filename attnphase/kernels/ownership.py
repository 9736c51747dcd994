"""Who could have written what is run from the cache: nobody but the user himself and root, as OpenSSH looks at keys."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from attnphase.errors import CacheError
from attnphase.lazy import loaded_on_use

with loaded_on_use(__name__):  # Windows has neither
    import grp
    import pwd

__all__ = ["ours_alone", "own_folder"]

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def own_folder(path: Path) -> Path:
    """A folder that nobody else could have written to, made if it is not there; the way to it without links.

    Raises
    ------
    CacheError
        Somebody else could, here or at one of the folders above.
    OSError
        It cannot be made, or is no folder.
    """
    path = Path(os.path.realpath(path))
    if not hasattr(os, "getuid"):  # no POSIX owners: the platform's user folder is private
        path.mkdir(parents=True, exist_ok=True)
        return path
    instead = "set ATTNPHASE_CACHE_DIR to a folder of your own"
    for folder in (*reversed(path.parents), path):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
        info = folder.lstat()
        if not stat.S_ISDIR(info.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if info.st_uid not in _trusted_users():
            where = f"{'it' if folder == path else folder} belongs to another user (number {info.st_uid})"
            raise CacheError(f"kernel cache {path}: {where}, who could change what is run from there: {instead}.")
        if folder == path and info.st_mode & _OTHERS:
            what = "others could have written to it, and what lies there is machine code: remove it"
            raise CacheError(f"kernel cache {path}: {what}, or {instead}.")
        # in a sticky folder, such as /tmp, nobody renames what is another's
        if info.st_mode & (stat.S_IWOTH if _is_private(info.st_gid) else _OTHERS) and not info.st_mode & stat.S_ISVTX:
            what = f"others may write to {folder}, and so change what is run from there: run chmod go-w {folder}"
            raise CacheError(f"kernel cache {path}: {what}, or {instead}.")
    return path


def _trusted_users() -> set[int]:
    """The user himself, and root, who can do everything anyway; in a container without a root it shows as nobody."""
    return {0, os.getuid(), Path("/").lstat().st_uid}


def _is_private(group: int) -> bool:
    """Whether a group is the user's own, as where new files are group-writable by default: named like him, only him."""
    try:
        user, entry = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and entry.gr_name == user.pw_name and set(entry.gr_mem) <= {user.pw_name}


def ours_alone(path: Path) -> bool:
    """Whether a file or folder of the cache, not a link, can have been written by nobody else."""
    if not hasattr(os, "getuid"):
        return True
    info = path.lstat()
    return info.st_uid in _trusted_users() and not info.st_mode & _OTHERS and not stat.S_ISLNK(info.st_mode)
