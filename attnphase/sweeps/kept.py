"""Finished parts of one command, kept in one file: what was interrupted or killed goes on from it."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import filelock

from attnphase.errors import DatasetError
from attnphase.files.checkpoints import CheckpointKind
from attnphase.kernels.key import ModelKey
from attnphase.problem.problem import Problem
from attnphase.rows.operator import returned_by
from attnphase.version import __version__

__all__ = ["KeptRows", "checkpoint_for_us", "own_functions", "task_of"]


def task_of(problem: Problem, **asked: Any) -> dict[str, Any]:
    """What kept numbers depend on: a problem with its functions, what is asked, and the version."""
    functions = own_functions(problem)
    return {"problem": problem.to_toml(), "source of functions": functions, "version": __version__} | asked


def own_functions(problem: Problem) -> str:
    """What the functions are that a problem has by name only; empty if there is none."""
    functions, prox = ModelKey.of(problem).functions, problem.regularizer.prox
    if prox is None:
        return functions
    # what it returns besides: it may depend on other modules, or have been loaded again
    return functions + _module_hash(prox.partition(":")[0]) + returned_by(prox)


@lru_cache
def _module_hash(name: str) -> str:
    """Of the source of a module of the user's own, which making the problem has imported."""
    path = getattr(sys.modules.get(name), "__file__", None)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""


@contextmanager
def checkpoint_for_us(path: Path | None, kind: CheckpointKind) -> Iterator[None]:
    """A checkpoint for this process alone.

    Raises
    ------
    DatasetError
        Another process has it, or its lock cannot be written.
    """
    if path is None:
        yield
        return
    lock = filelock.FileLock(path.with_name(f"{path.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise DatasetError(
            f"{path}: other {kind.what} are written to this checkpoint; wait for them, or choose another output."
        ) from None
    except OSError as error:
        raise DatasetError(f"{path}: the checkpoint cannot be locked: {error.strerror or error}.") from None
    try:
        yield
    finally:
        if os.name == "posix":  # while it is held: who takes it next makes a file of its own
            Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Rows of plain numbers by their place; the file is replaced whole with every new one.

    Numbers are written so that they are read back to the last bit.

    Attributes
    ----------
    path : Path or None
        None to keep nothing.
    task : dict of str
        What all rows depend on besides their place, in plain values; a file that belongs to another task is refused.
    kind : CheckpointKind
        Whose rows these are. Only one process at a time may use a file: `checkpoint_for_us`.
    rows : dict of str
        Plain numbers, by their place.
    """

    path: Path | None
    task: dict[str, Any]
    kind: CheckpointKind
    rows: dict[str, Any] = field(default_factory=dict)

    def load(self) -> None:
        """Take up what the file holds, if there is one.

        Raises
        ------
        DatasetError
            The file is damaged, or belongs to another task.
        """
        if self.path is not None and self.path.exists():
            content = json.loads(self.kind.read(self.path))
            self.kind.require_same(self.path, content["task"], self.task)
            self.rows.update(content["rows"])

    def add(self, place: str, row: Any) -> None:
        """Keep one more."""
        self.rows[place] = row
        if self.path is not None:
            self.kind.write(self.path, json.dumps({"task": self.task, "rows": self.rows}).encode("ascii"))
