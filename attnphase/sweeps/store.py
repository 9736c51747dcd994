"""Finished lines beside the output, kept until the whole result holds them or the user discards them."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray as xr

from attnphase.data.files import load_dataset, write_dataset
from attnphase.errors import DatasetError
from attnphase.files.writing import write_file
from attnphase.sweeps.description import Description, listed
from attnphase.sweeps.line import Line
from attnphase.sweeps.locks import WHOLE, locked

__all__ = ["BLOCKS", "RESUMED", "SHARED", "Hints", "Store", "finished_result", "marked", "open_store", "parts_folder"]

_KEY, _DIGEST = "line_key", "line_sha256"
"""Attributes of a finished line's file: what it is the line of, and a checksum of its numbers."""

_WHOLE_DIGEST = "sweep_sha256"
"""Attribute of a finished sweep: a checksum of its numbers, which a selection or a computation leaves as it was."""


def parts_folder(output: str | os.PathLike[str]) -> Path:
    """Where the finished lines of an unfinished sweep lie."""
    path = Path(output)
    return path.with_name(f"{path.name}.parts")


def marked(ds: xr.Dataset, description: Description) -> xr.Dataset:
    """The result of a sweep with what `finished_result` recognises it by."""
    attributes = {"sweep": description.text, "sweep_hash": description.hash, _WHOLE_DIGEST: _digest(ds)}
    return ds.assign_attrs(attributes)


def finished_result(path: Path, description: Description) -> xr.Dataset:
    """The result of a sweep that is taken up although it is done.

    Attributes outlive a selection and arithmetic: the coordinates and the numbers themselves are compared.

    Raises
    ------
    DatasetError
        The file holds something else, or a part of the sweep, or other numbers.
    """
    try:
        ds = load_dataset(path)
    except DatasetError as error:
        raise DatasetError(f"{error} Use --force (force=True) to replace it, or choose another name.") from None
    before = Description.parse(ds.attrs.get("sweep"))
    differences = [] if before is None else description.differences(before.at(ds))
    if before is None or differences or ds.attrs.get(_WHOLE_DIGEST) != _digest(ds):
        what = "something else than a finished sweep" if before is None else "this sweep with other numbers"
        if differences:
            what = f"another sweep: {listed(differences)}"
        raise DatasetError(
            f"{path}: the file exists and holds {what}; use --force (force=True) to replace it, or choose another name."
        )
    print(f"attnphase: {path} holds this sweep already; nothing is computed.", file=sys.stderr)
    return ds


@dataclass(frozen=True)
class Hints:
    """How a sweep is taken up, for messages.

    Attributes
    ----------
    again : str
        After what may be mended.
    nothing : str
        Likewise, where no line is finished.
    without : str
        After what would fail again.
    """

    again: str
    nothing: str
    without: str


RESUMED = Hints(
    "run again with --resume (resume=True)",
    "run again, with --resume or without",
    'leave out what fails, and take them up with --resume-fitting (resume="fitting")',
)
"""Of a sweep to one output."""

SHARED = Hints("run the same command again", "run the same command again", RESUMED.without)
"""Of a share of a sweep to one output."""

BLOCKS = Hints(
    "run the block again",
    "run the block again",
    "leave out what fails, and plan anew in the same folder with --force (force=True), which takes them up",
)
"""Of a block of a plan."""


@dataclass(frozen=True)
class Store:
    """Finished lines on disk, one netCDF file each, and descriptions of their sweeps; without a folder, nowhere."""

    folder: Path | None
    hints: Hints = RESUMED

    def _files(self, *patterns: str) -> list[Path]:
        return (
            [] if self.folder is None else [path for pattern in patterns for path in sorted(self.folder.glob(pattern))]
        )

    @property
    def lines(self) -> list[Path]:
        """Files of the finished lines, of whatever sweep."""
        return self._files("line-*.nc")

    def path(self, line: Line) -> Path:
        """The file of a line."""
        assert self.folder is not None
        return self.folder / f"line-{line.key}.nc"

    def load(self, lines: Sequence[Line]) -> dict[int, xr.Dataset]:
        """The finished ones by number; one that is damaged is to be computed again, and a warning says so."""
        there = {path.name for path in self.lines}
        finished = {}
        for i, line in enumerate(lines):
            if not there or self.path(line).name not in there:
                continue
            try:
                finished[i] = self.read(line)
            except DatasetError as error:
                print(f"attnphase: warning: a finished line is computed again: {error}", file=sys.stderr)
        return finished

    def read(self, line: Line) -> xr.Dataset:
        """A finished line.

        Raises
        ------
        DatasetError
            It is not there, is damaged, or the file holds another one.
        """
        path = self.path(line)
        ds = load_dataset(path)
        there = [ds.attrs.get("problem"), *(ds[name].to_numpy().tolist() for name in ("branch", "alpha") if name in ds)]
        if ds.attrs.get(_KEY) != line.key or there != [line.problem.to_toml(), line.branch, [*line.alphas]]:
            raise DatasetError(f"{path}: this is not the line {line.label} of this sweep: the file holds another one.")
        if ds.attrs.get(_DIGEST) != _digest(ds):
            raise DatasetError(f"{path}: the numbers are not those that were written: the file is damaged.")
        return ds

    def save(self, line: Line, ds: xr.Dataset) -> None:
        """Write a finished line, which is looked at when it is read, and as a part of the whole."""
        if self.folder is not None:
            marked = ds.assign_attrs({_KEY: line.key, _DIGEST: _digest(ds)})
            write_dataset(marked, _no_link(self.path(line)))

    def kept(self, for_good: bool = False) -> str:
        """The end of an error message: what became of the finished lines, and what to do.

        Parameters
        ----------
        for_good : bool
            Whether the same command would fail again.
        """
        if self.folder is None or (for_good and not self.lines):
            return ""
        if not self.lines:
            return f"; no line is finished: {self.hints.nothing}"
        return f"; finished lines are kept in {self.folder}: {self.hints.without if for_good else self.hints.again}"

    def clear(self, lines: Iterable[Line], description: Description) -> None:
        """Remove the finished lines that the whole result holds, and say how many others there are."""
        if self.folder is None:
            return
        for line in lines:
            self.path(line).unlink(missing_ok=True)
        self._remove(description.name)
        others = len(self.lines)
        if others:
            which = "line that is no part of this sweep stays" if others == 1 else "lines that are no part of it stay"
            print(f"attnphase: {others} finished {which} in {self.folder}.", file=sys.stderr)

    def discard(self) -> None:
        """Remove all finished lines, and say so."""
        count = len(self.lines)
        self._remove("line-*.nc", "sweep-*.json")
        which = f"{count} finished {'line is' if count == 1 else 'lines are'} discarded"
        print(f"attnphase: warning: {which} from {self.folder}.", file=sys.stderr)

    def claim(self, description: Description, lines: Sequence[Line], fitting: bool) -> None:
        """Note what this sweep is, unless the folder belongs to others: by finished lines, or by shares at work.

        Raises
        ------
        DatasetError
            It does, and `fitting` is false.
        """
        assert self.folder is not None
        own = self.folder / description.name
        if Description.read(own) is not None:
            return
        if not fitting:
            known = [found for path in self._files("sweep-*.json") if (found := Description.read(path)) is not None]
            nearest = min((description.differences(other) for other in known), key=len, default=None)
            if nearest or (nearest is None and self.lines):
                raise DatasetError(self._refusal(nearest, lines))
        write_file(_no_link(own), description.text.encode())

    def _refusal(self, differences: Sequence[str] | None, lines: Sequence[Line]) -> str:
        names = {path.name for path in self.lines}
        if differences and not names:  # `tidy` leaves the description of shares at work alone
            what = f"shares of another sweep are solved there: {listed(differences)}"
            return f"{self.folder}: {what}; wait for them, or choose another output."
        fitting = sum(self.path(line).name in names for line in lines)
        what = f"{self.folder}: the finished lines there do not say which sweep they belong to"
        if differences is not None:
            what = f"{self.folder}: the finished lines there belong to another sweep: {listed(differences)}"
        fit = f"the {fitting} of {len(names)} that {'fits' if fitting == 1 else 'fit'}"
        return (
            f'{what}. Use --resume-fitting (resume="fitting") to take up {fit} and leave the others,'
            " --force (force=True) without --resume to discard them, or another output."
        )

    def tidy(self, lines: Iterable[Line] | None = None) -> None:
        """Remove what belongs to no finished line and killed processes left; nobody else may work in the folder.

        Parameters
        ----------
        lines : iterable of Line, optional
            Those whose half-written files are removed; by default all.
        """
        names = (".line-", ".sweep-") if lines is None else tuple(f".{self.path(line).name}." for line in lines)
        for path in self._files(".*.part"):
            if path.name.startswith(names):
                path.unlink(missing_ok=True)
        if not self.lines:
            self._remove("sweep-*.json")

    def _remove(self, *patterns: str) -> None:
        for path in self._files(*patterns):
            path.unlink(missing_ok=True)


def _no_link(path: Path) -> Path:
    """A file that nobody but a sweep names: a link of this name is not the user's, and is not written through."""
    if path.is_symlink():
        path.unlink()
    return path


def _digest(ds: xr.Dataset) -> str:
    """SHA-256 of all numbers, which netCDF itself has no checksum of."""
    digest = hashlib.sha256()
    for name in sorted(map(str, ds.data_vars)):
        values = np.ascontiguousarray(ds[name].to_numpy())
        digest.update(f"{name} {values.dtype.str} {values.shape} ".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()


@contextmanager
def open_store(
    output: Path, description: Description, lines: Sequence[Line], resume: bool | str, force: bool
) -> Iterator[Store]:
    """The folder of finished lines, for this process alone; removed if it is empty in the end."""
    folder = parts_folder(output)
    store = Store(folder)
    with locked(folder, WHOLE, lambda _: store.tidy()):
        if store.lines and not resume:
            if not force:
                raise DatasetError(
                    f"{folder}: finished lines of an interrupted sweep are there;"
                    " use --resume (resume=True) to take them up, or --force (force=True) to discard them."
                )
            store.discard()
        store.claim(description, lines, resume == "fitting")
        yield store
