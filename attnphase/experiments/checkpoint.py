"""Checkpoints: what has been computed, kept in one file that is replaced whole."""

from __future__ import annotations

import io
import json
import pickle
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from attnphase.files.checkpoints import RUNS

__all__ = ["Checkpoint"]


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
        image = io.BytesIO(RUNS.read(path))
        try:
            content = torch.load(image, map_location="cpu", weights_only=True)
            task, plan, finished, running = (content[name] for name in ("task", "plan", "finished", "running"))
            kept = cls(path, json.loads(task), plan=plan, finished=finished, running=running)
            if not all(
                isinstance(part, dict) for part in (kept.task, plan, finished, {} if running is None else running)
            ):
                raise ValueError("content")
        # what torch says would be advice to run what the file holds
        except (OSError, RuntimeError, ValueError, TypeError, LookupError, EOFError, pickle.UnpicklingError):
            raise RUNS.damaged(path) from None
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
        RUNS.require_same(self.path, kept.task, self.task)
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
        RUNS.write(self.path, image.getvalue())
        self._written = time.monotonic()
