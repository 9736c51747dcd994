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

from attnphase.dataset import write_file
from attnphase.experiments.errors import ExperimentError

__all__ = ["Checkpoint"]

_VERSION = 1


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

    @property
    def fingerprint(self) -> str:
        """Hash of the task."""
        return hashlib.sha256(json.dumps(self.task, sort_keys=True).encode()).hexdigest()[:16]

    def load(self) -> bool:
        """Take up what an earlier run left; whether there was anything.

        Raises
        ------
        ExperimentError
            The file is damaged, or belongs to another task.
        """
        if self.path is None or not self.path.exists():
            return False
        try:
            content = torch.load(io.BytesIO(self.path.read_bytes()), map_location="cpu", weights_only=True)
            version, fingerprint = content["version"], content["fingerprint"]
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError) as error:
            raise ExperimentError(
                f"{self.path}: this is not a checkpoint, or it is damaged ({type(error).__name__}); remove it to start"
                " afresh."
            ) from None
        if version != _VERSION or fingerprint != self.fingerprint:
            raise ExperimentError(
                f"{self.path}: this checkpoint belongs to another experiment; remove it, or name another with"
                " --checkpoint (checkpoint=)."
            )
        self.plan, self.finished, self.running = content["plan"], content["finished"], content["running"]
        return True

    def due(self) -> bool:
        """Whether it is time to write again."""
        return self.path is not None and time.monotonic() - self._written >= self.interval

    def write(self) -> None:
        """Write what is there now."""
        if self.path is None:
            return
        content = {
            "version": _VERSION,
            "fingerprint": self.fingerprint,
            "plan": self.plan,
            "finished": self.finished,
            "running": self.running,
        }
        image = io.BytesIO()
        torch.save(content, image)
        write_file(self.path, image.getbuffer())
        self._written = time.monotonic()
