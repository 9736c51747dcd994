"""Checkpoints: refused before the work that they keep begins, or is taken up."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from attnphase import arguments
from attnphase.errors import AttnphaseError, DatasetError, ExperimentError
from attnphase.files.reading import LARGEST_BINARY, open_input
from attnphase.files.writing import check_output

__all__ = ["BASINS", "LIMITS", "RUNS", "RUNS_BEGIN", "CheckpointKind"]

RUNS_BEGIN = b"attnphase checkpoint 2\n"
"""The first line of a checkpoint of training; the SHA-256 of the rest follows, which torch does not check."""

_ROWS = rb"[0-9a-f]{64}\n\{"  # the SHA-256 of the JSON that follows
_LONGEST = 128  # bytes of a beginning, at most


@dataclass(frozen=True)
class CheckpointKind:
    """What a checkpoint keeps.

    Attributes
    ----------
    begins : re.Pattern
        How its file begins.
    error : type
        Of the error about a file that is there.
    what : str
        Whose parts it has, such as "basins"; empty for training runs.
    """

    begins: re.Pattern[bytes]
    error: type[AttnphaseError]
    what: str = ""

    @property
    def damaged(self) -> str:
        """The sentence about a file that is no such checkpoint."""
        of = f" of {self.what}" if self.what else ""
        return f"this is not a checkpoint{of}, or it is damaged; remove it if it is one, or name another."

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
                if not self.begins.match(file.read(_LONGEST)):
                    raise self.error(f"{path}: {self.damaged}")
        return path


RUNS = CheckpointKind(re.compile(re.escape(RUNS_BEGIN)), ExperimentError)
"""Of training runs."""

BASINS = CheckpointKind(re.compile(_ROWS), DatasetError, "basins")
"""Of where starts lead to."""

LIMITS = CheckpointKind(re.compile(_ROWS), DatasetError, "Bayes-optimal limits")
"""Of Bayes-optimal points."""
