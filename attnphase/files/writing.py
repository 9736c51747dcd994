"""Files of results: refused before the work for them begins, and written whole or not at all.

Nothing heavy is imported, so that an output that cannot be written is refused at once.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnphase import arguments
from attnphase.errors import DatasetError
from attnphase.files.reading import LARGEST_BINARY, check_input, reason

__all__ = [
    "FIGURE_FORMATS",
    "check_data",
    "check_dataset",
    "check_figure",
    "check_folder",
    "check_output",
    "figure_format",
    "write_file",
]

FIGURE_FORMATS = ("png", "pdf", "svg", "eps", "ps", "jpg", "jpeg", "tif", "tiff", "webp", "svgz", "raw", "rgba")
"""What matplotlib writes by itself; a .pgf file would have TeX run what a dataset's labels say."""

_NO_DATASETS = (*FIGURE_FORMATS, "csv", "htm", "html", "json", "md", "py", "tex", "toml", "txt")


def check_output(path: str | os.PathLike[str], force: bool = False) -> Path:
    """Refuse an output file that could not be written, before the work for it begins.

    A symbolic link stands for the file that it leads to, as for the shell's ``>``: the link stays, and a file that is
    not there yet is made where the link points to.

    Parameters
    ----------
    path : path-like
        The file to be written.
    force : bool
        Whether an existing file may be replaced.

    Returns
    -------
    pathlib.Path
        The path.

    Raises
    ------
    DatasetError
        The file exists, or its folder does not, or is not writable.
    ProblemError
        `path` is no path, or `force` is neither true nor false.
    """
    path, force = arguments.path("path", path), arguments.flag("force", force)
    with _refusing(path, "the file cannot be written"):  # a name that is too long, a folder that may not be searched
        target = _target(path)
        if target.is_dir():
            raise DatasetError(f"{path}: this is a folder; name a file in it.")
        if target.exists() and not target.is_file():
            raise DatasetError(f"{path}: this is not a regular file and is not replaced; choose another name.")
        if target.exists() and not force:
            raise DatasetError(
                f"{path}: the file exists; use --force (force=True) to replace it, or choose another name."
            )
        if not target.parent.is_dir():
            raise DatasetError(f"{path}: there is no folder {target.parent}; create it first.")
        if not _takes_files(target.parent):
            raise DatasetError(f"{path}: the folder {target.parent} is not writable; choose another.")
    return path


def _takes_files(folder: Path) -> bool:
    """Whether a file can be made in a folder: where permissions say so, there are still folders of the system's own."""
    if not os.access(folder, os.W_OK):
        return False
    try:
        with tempfile.TemporaryFile(dir=folder):  # of no name, or removed at once
            return True
    except OSError:
        return False


def check_folder(path: str | os.PathLike[str]) -> Path:
    """Refuse a folder for results that could not be made or written to, without making it.

    Parameters
    ----------
    path : path-like
        The folder; it need not be there yet, nor those that it is in.

    Returns
    -------
    pathlib.Path
        The folder, which was not made.

    Raises
    ------
    DatasetError
        Something else is there, or it cannot be written to.
    ProblemError
        `path` is no path.
    """
    path = arguments.path("folder", path)
    with _refusing(path, "the folder cannot be made"):
        if path.exists() and not path.is_dir():
            raise DatasetError(f"{path}: this is not a folder; name another.")
        there = path.absolute()
        while not there.exists() and there != there.parent:
            there = there.parent
        if not (there.is_dir() and _takes_files(there)):
            raise DatasetError(f"{path}: {there} is not a folder that may be written to; choose another place.")
    return path


def check_data(path: str | os.PathLike[str]) -> Path:
    """Refuse a dataset's file that cannot be read, before what reads it is loaded.

    Parameters
    ----------
    path : path-like
        The file to be read.

    Returns
    -------
    pathlib.Path
        The file, which was not opened.

    Raises
    ------
    DatasetError
        There is no such file, it may not be read, or is too large or no regular file.
    ProblemError
        `path` is no path.
    """
    path = arguments.path("path", path)
    return check_input(path, "netCDF file", LARGEST_BINARY, lambda sentence: DatasetError(f"{path}: {sentence}"))


def check_dataset(path: str | os.PathLike[str], force: bool = False) -> Path:
    """Refuse a dataset's file as `check_output` does, and by an ending that says it is something else.

    Raises
    ------
    DatasetError
        As `check_output`; or the name ends as that of a figure, a page or a text does.
    ProblemError
        As `check_output`.
    """
    path = arguments.path("path", path)
    if path.suffix.lstrip(".").lower() in _NO_DATASETS:
        raise DatasetError(f"{path}: a dataset is written as netCDF; let the name end in .nc, not in {path.suffix}.")
    return check_output(path, force)


def figure_format(path: Path) -> str:
    """The format of a figure by its file's suffix; PNG without one.

    Raises
    ------
    DatasetError
        There is no such format.
    """
    kind = path.suffix.lstrip(".").lower() or "png"
    if kind not in FIGURE_FORMATS:
        raise DatasetError(f'{path}: there is no figure format "{kind}"; use .png or .pdf.')
    return kind


def check_figure(path: str | os.PathLike[str], force: bool = False) -> Path:
    """Refuse a figure's file as `check_output` does, and by its suffix.

    Raises
    ------
    DatasetError
        As `check_output`; or the suffix is of no format.
    """
    path = check_output(path, force)
    figure_format(path)
    return path


def write_file(path: Path, content: bytes | memoryview) -> None:
    """Write a file whole or not at all: aside, to the disk, then renamed.

    Parameters
    ----------
    path : pathlib.Path
        An existing file is replaced; of a symbolic link, the file that it leads to.
    content : bytes
        All of it.

    Raises
    ------
    DatasetError
        The disk is full, or the folder cannot be written to.
    """
    with _refusing(path, "the file cannot be written"):
        target = _target(path)
        # the name may be as long as a name can be: that of the part is not made of it
        descriptor, aside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:40]}.", suffix=".part")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            mask = os.umask(0)
            os.umask(mask)
            Path(aside).chmod(0o666 & ~mask)  # mkstemp's files are the owner's alone
            Path(aside).replace(target)
        finally:
            Path(aside).unlink(missing_ok=True)


@contextmanager
def _refusing(path: Path, what: str) -> Iterator[None]:
    """Say of a file what the operating system refuses, and why."""
    try:
        yield
    except OSError as error:
        raise DatasetError(f"{path}: {what}: {reason(error)}.") from None


def _target(path: Path) -> Path:
    """Where writing to a path ends: through symbolic links, which may lead to nothing yet.

    Raises
    ------
    OSError
        Links lead in a circle.
    """
    if not path.is_symlink():
        return path
    target: Any = Path(os.path.realpath(path))
    if target.is_symlink():  # what is left of a circle
        raise OSError(None, "symbolic links lead in a circle")
    return target
