"""Files that the user names: regular ones of a sane size, opened without waiting for anyone.

A device gives bytes without end, and a pipe is waited for until somebody writes to it; both are refused before they are
opened.  Nothing heavy is imported.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

__all__ = ["LARGEST_BINARY", "LARGEST_TEXT", "check_input", "open_input", "read_input", "reason"]

LARGEST_TEXT = 256 << 20
"""Bytes of a problem or a spectrum as text: 65536 atoms with 200 numbers each."""

LARGEST_BINARY = 16 << 30
"""Bytes of a dataset or a checkpoint, which are held in memory."""

PART = 16 << 20

_KINDS = {
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
    stat.S_ISFIFO: "a pipe",
    stat.S_ISSOCK: "a socket",
}

Refuse = Callable[[str], Exception]
"""Makes the caller's error of a sentence without the file's name, such as "there is no such file; check its name."."""


def check_input(path: str | os.PathLike[str], kind: str, most: int, refuse: Refuse) -> Path:
    """Refuse a file that cannot be read, before a library opens it by its name.

    Parameters
    ----------
    path : path-like
        As the user named it.
    kind : str
        What it should be, such as "TOML file", for the sentence.
    most : int
        Largest size in bytes.
    refuse : callable
        Makes the error.

    Returns
    -------
    pathlib.Path
        Of the file, which was opened and closed again.

    Raises
    ------
    Exception
        What `refuse` makes: there is no such file, it may not be read, is too large, or is none but a folder, a device,
        a pipe or a socket.
    """
    with open_input(path, kind, most, refuse):
        return Path(path)


def open_input(path: str | os.PathLike[str], kind: str, most: int, refuse: Refuse) -> BinaryIO:
    """Open a file to be read; see `check_input`.

    Raises
    ------
    Exception
        What `refuse` makes.
    """
    try:
        # before it is opened, which alone may wait or act
        fault = fault_of(os.stat(path), kind, most)  # noqa: PTH116, path is of any kind
        if fault is None:
            # what became a pipe in between is not waited for
            flags = ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
            file = os.fdopen(os.open(path, sum((getattr(os, flag, 0) for flag in flags), os.O_RDONLY)), "rb")
            fault = fault_of(os.fstat(file.fileno()), kind, most)
            if fault is None:
                return file
            file.close()
    except FileNotFoundError:
        fault = "there is no such file; check its name."
    except PermissionError:
        fault = "the file may not be read; change its permissions."
    except (OSError, ValueError) as error:  # a null character in the path is a ValueError
        fault = f"the file cannot be read: {reason(error)}."
    raise refuse(fault)


def read_input(path: str | os.PathLike[str], kind: str, most: int, refuse: Refuse) -> bytes:
    """All of a file; see `check_input`.

    Raises
    ------
    Exception
        What `refuse` makes.
    """
    parts, size = [], 0
    with open_input(path, kind, most, refuse) as file:
        try:
            # files of /proc show no size, and some have no end
            while part := file.read(PART):
                parts.append(part)
                size += len(part)
                if size > most:
                    raise refuse(_too_large(size, kind, most))
        except OSError as error:
            raise refuse(f"the file cannot be read: {reason(error)}.") from None
    if part is None:
        raise refuse(f"there is nothing to be read yet; name a {kind}.")
    return b"".join(parts)


def reason(error: Exception) -> str:
    """What is wrong, in the operating system's words where it said it, without its number and the file's name."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def fault_of(info: os.stat_result, kind: str, most: int) -> str | None:
    """What is wrong with a file, if anything."""
    if stat.S_ISDIR(info.st_mode):
        return f"this is a folder; name a {kind} in it."
    if not stat.S_ISREG(info.st_mode):
        what = next((name for is_kind, name in _KINDS.items() if is_kind(info.st_mode)), "no file")
        return f"this is {what}, not a regular file; name a {kind}."
    return _too_large(info.st_size, kind, most) if info.st_size > most else None


def _too_large(size: int, kind: str, most: int) -> str:
    return f"the file has {_readable(size)}, but a {kind} may have {_readable(most)} at most."


def _readable(size: float) -> str:
    """A number of bytes for a message."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
