"""Who could have written what is run from the cache: nobody but the user himself and root, from the root folder on."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from attnphase.errors import CacheError
from attnphase.lazy import loaded_on_use

with loaded_on_use(__name__):
    import grp
    import pwd

__all__ = ["ours_alone", "own_folder"]

_UID_MAP, _OVERFLOW = Path("/proc/self/uid_map"), Path("/proc/sys/kernel/overflowuid")
_MOST_LINKS = 40  # as Linux has it


def own_folder(path: Path) -> Path:
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
    if not ours_alone(here):
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
    mine = info.st_uid in _trusted_users() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return mine and (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode))
