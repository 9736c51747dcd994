"""Finished parts of one command, kept in one file: what was interrupted or killed goes on from it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnphase.errors import DatasetError
from attnphase.files.reading import LARGEST_TEXT, read_input
from attnphase.files.writing import write_file

__all__ = ["KeptRows"]


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Rows of plain numbers by their place; the file is replaced whole with every new one.

    Numbers are written so that they are read back to the last bit.

    Attributes
    ----------
    path : Path or None
        None to keep nothing.
    task : dict of str to str
        What all rows depend on besides their place; a file that belongs to another task is refused.
    what : str
        Whose rows these are, such as "basins", for messages.
    """

    path: Path | None
    task: dict[str, Any]
    what: str
    rows: dict[str, Any] = field(default_factory=dict)

    def load(self) -> None:
        """Take up what the file holds, if there is one.

        Raises
        ------
        DatasetError
            The file is damaged, or belongs to another task.
        """
        path = self.path
        if path is None or not path.exists():
            return

        def refuse(sentence: str) -> DatasetError:
            return DatasetError(f"{path}: {sentence}")

        whole = read_input(path, "checkpoint", LARGEST_TEXT, refuse)
        try:
            digest, _, text = whole.decode("ascii").partition("\n")
            if hashlib.sha256(text.encode("ascii")).hexdigest() != digest:
                raise ValueError("digest")
            content = json.loads(text)
            task, rows = content["task"], dict(content["rows"])
        except (ValueError, LookupError, TypeError):
            raise refuse(
                f"this is not a checkpoint of {self.what}, or it is damaged; remove it to start afresh."
            ) from None
        differing = [name for name in self.task if task.get(name) != self.task[name]]
        if differing:
            raise refuse(
                f"this checkpoint belongs to other {self.what}, with another {differing[0]}; remove it, or choose"
                " another output."
            )
        self.rows.update(rows)

    def add(self, place: str, row: Any) -> None:
        """Keep one more."""
        self.rows[place] = row
        if self.path is not None:
            text = json.dumps({"task": self.task, "rows": self.rows})
            digest = hashlib.sha256(text.encode("ascii")).hexdigest()
            write_file(self.path, f"{digest}\n{text}".encode("ascii"))
