"""Checkpoints: what has been computed, kept in one file that is replaced whole."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from attnphase.errors import ExperimentError
from attnphase.files.checkpoints import RUNS
from attnphase.files.checkpoints import RUNS_BEGIN as _MAGIC
from attnphase.files.reading import LARGEST_BINARY, read_input
from attnphase.files.writing import write_file

__all__ = ["Checkpoint"]

_DIGEST = 32  # bytes of a SHA-256


@dataclass
class Checkpoint:
    """State of an experiment on disk; without a path nothing is kept.

    Attributes
    ----------
    path : Path or None
    task : dict
        Everything that the numbers depend on; a file that belongs to another task is refused.
    interval : float
        Seconds between two writes during a run.
    plan : dict of str to int
        Runs held at once, by their place.
    finished : dict of str to dict
        Results by the place of their run.
    running : dict or None
        State of the runs in work.
    """

    path: Path | None
    task: dict[str, Any]
    interval: float = 30.0
    plan: dict[str, int] = field(default_factory=dict)
    finished: dict[str, dict[str, Any]] = field(default_factory=dict)
    running: dict[str, Any] | None = None
    _written: float = field(default_factory=time.monotonic)

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """What a file holds.

        Raises
        ------
        ExperimentError
            It is damaged, or not a checkpoint.
        """

        def refuse(sentence: str) -> ExperimentError:
            return ExperimentError(f"{path}: {sentence}")

        whole = read_input(path, "checkpoint", LARGEST_BINARY, refuse)
        try:
            rest = whole.removeprefix(_MAGIC)
            digest, image = rest[:_DIGEST], rest[_DIGEST:]
            if rest == whole or hashlib.sha256(image).digest() != digest:
                raise ValueError("digest")
            content = torch.load(io.BytesIO(image), map_location="cpu", weights_only=True)
            task, plan, finished, running = (content[name] for name in ("task", "plan", "finished", "running"))
            kept = cls(path, json.loads(task), plan=plan, finished=finished, running=running)
            if not all(
                isinstance(part, dict) for part in (kept.task, plan, finished, {} if running is None else running)
            ):
                raise ValueError("content")
        # what torch says would be advice to run what the file holds
        except (OSError, RuntimeError, ValueError, TypeError, LookupError, EOFError, pickle.UnpicklingError):
            raise refuse(RUNS.damaged) from None
        return kept

    def load(self) -> bool:
        """Take up what an earlier run left; whether there was anything.

        Raises
        ------
        ExperimentError
            The file is damaged, or belongs to another task.
        """
        if self.path is None or not self.path.exists():
            return False
        kept = Checkpoint.read(self.path)
        theirs, ours = _flat(kept.task), _flat(json.loads(json.dumps(self.task)))
        differing = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
        if differing:
            raise ExperimentError(
                f"{self.path}: this checkpoint belongs to another experiment, with another value of {differing[0]};"
                " remove it, or choose another place for this one."
            )
        self.plan, self.finished, self.running = kept.plan, kept.finished, kept.running
        return True

    def due(self) -> bool:
        """Whether it is time to write again."""
        return self.path is not None and time.monotonic() - self._written >= self.interval

    def write(self) -> None:
        """Write what is there now."""
        if self.path is None:
            return
        state = {
            "task": json.dumps(self.task),
            "plan": self.plan,
            "finished": self.finished,
            "running": self.running,
        }
        image = io.BytesIO()
        torch.save(state, image)
        content = image.getvalue()
        write_file(self.path, _MAGIC + hashlib.sha256(content).digest() + content)
        self._written = time.monotonic()


def _flat(task: dict[str, Any]) -> dict[str, Any]:
    """A task without levels; the name of a value is its own, which says enough."""
    flat: dict[str, Any] = {}
    for name, value in task.items():
        flat |= _flat(value) if isinstance(value, dict) else {name: value}
    return flat
