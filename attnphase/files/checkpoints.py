"""Checkpoints: what has been computed, in one file that is replaced whole.

A file holds a line that says what it keeps, the SHA-256 of the rest, and the rest: JSON, or what torch writes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnphase import arguments
from attnphase.errors import AttnphaseError, DatasetError, ExperimentError
from attnphase.files.reading import LARGEST_BINARY, open_input, read_input
from attnphase.files.writing import check_output, write_file
from attnphase.lazy import loaded_on_use

with loaded_on_use(__name__):  # which --help does not wait for
    import hashlib
    import json

__all__ = ["BASINS", "LIMITS", "RUNS", "CheckpointKind"]

_DIGEST = 32  # bytes of a SHA-256


@dataclass(frozen=True)
class CheckpointKind:
    """What a checkpoint keeps.

    Attributes
    ----------
    what : str
        Whose parts it has, such as "basins".
    error : type
        Of the error about a file that is there.
    """

    what: str
    error: type[AttnphaseError]

    @property
    def _begin(self) -> bytes:
        return f"attnphase checkpoint of {self.what}\n".encode("ascii")

    def damaged(self, path: Path) -> AttnphaseError:
        """The error about a file that is no such checkpoint."""
        what = f"this is not a checkpoint of {self.what}, or it is damaged"
        return self.error(f"{path}: {what}; remove it if it is one, or name another.")

    def check(self, path: str | os.PathLike[str]) -> Path:
        """Refuse a checkpoint that could not be written, and a file that is no checkpoint.

        Parameters
        ----------
        path : path-like
            As the user named it; there need not be a file yet.

        Returns
        -------
        pathlib.Path
            The path.

        Raises
        ------
        ProblemError
            It is no path.
        DatasetError
            A folder, a device or a pipe is there, or nothing can be written.
        AttnphaseError
            The file is no checkpoint; of the class `error`.
        """
        path = check_output(arguments.path("checkpoint", path), force=True)
        if path.exists():
            with open_input(path, "checkpoint", LARGEST_BINARY, lambda fault: self.error(f"{path}: {fault}")) as file:
                if file.read(len(self._begin)) != self._begin:
                    raise self.damaged(path)
        return path

    def read(self, path: Path) -> bytes:
        """What was written.

        Raises
        ------
        AttnphaseError
            The file cannot be read, is damaged, or no checkpoint.
        """
        whole = read_input(path, "checkpoint", LARGEST_BINARY, lambda fault: self.error(f"{path}: {fault}"))
        rest = whole.removeprefix(self._begin)
        if rest == whole or hashlib.sha256(rest[_DIGEST:]).digest() != rest[:_DIGEST]:
            raise self.damaged(path)
        return rest[_DIGEST:]

    def write(self, path: Path, content: bytes) -> None:
        """Replace the file.

        Raises
        ------
        DatasetError
            It cannot be written.
        """
        write_file(path, self._begin + hashlib.sha256(content).digest() + content)

    def require_same(self, path: Path, kept: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
        """Refuse the checkpoint of another task: everything that the numbers depend on, in plain values.

        Raises
        ------
        AttnphaseError
            Naming a value that differs.
        """
        theirs, ours = _flat(kept), _flat(json.loads(json.dumps(asked)))
        differing = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
        if differing:
            raise self.error(
                f"{path}: this checkpoint belongs to other {self.what}, with another {differing[0]}; remove it, or"
                " name another."
            )


def _flat(task: Mapping[str, Any]) -> dict[str, Any]:
    """A task without levels; the name of a value is its own, which says enough."""
    flat: dict[str, Any] = {}
    for name, value in task.items():
        flat |= _flat(value) if isinstance(value, dict) else {name: value}
    return flat


RUNS = CheckpointKind("training runs", ExperimentError)
"""Of training runs, the histogram's included."""

BASINS = CheckpointKind("basins", DatasetError)
"""Of where starts lead to."""

LIMITS = CheckpointKind("Bayes-optimal limits", DatasetError)
"""Of Bayes-optimal points."""
