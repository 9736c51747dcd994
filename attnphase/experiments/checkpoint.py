"""Checkpoints: what has been computed, kept in one file that is replaced whole."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from attnphase.dataset import write_file
from attnphase.experiments.errors import ExperimentError

__all__ = ["Checkpoint", "interruptions_deferred"]

_MAGIC = b"attnphase checkpoint 1\n"  # followed by the SHA-256 of the rest, which torch does not check
_DIGEST = 32


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
            whole = self.path.read_bytes()
            digest, image = whole[len(_MAGIC) : len(_MAGIC) + _DIGEST], whole[len(_MAGIC) + _DIGEST :]
            if not whole.startswith(_MAGIC) or hashlib.sha256(image).digest() != digest:
                raise ValueError("digest")
            content = torch.load(io.BytesIO(image), map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
            raise ExperimentError(
                f"{self.path}: this is not a checkpoint, or it is damaged ({error}); remove it to start afresh."
            ) from None
        if content["fingerprint"] != self.fingerprint:
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
        state = {
            "fingerprint": self.fingerprint,
            "plan": self.plan,
            "finished": self.finished,
            "running": self.running,
        }
        image = io.BytesIO()
        torch.save(state, image)
        content = image.getvalue()
        write_file(self.path, _MAGIC + hashlib.sha256(content).digest() + content)
        self._written = time.monotonic()


@contextmanager
def interruptions_deferred() -> Iterator[Callable[[], bool]]:
    """A function that says whether Ctrl-C was pressed, or the process told to end, since.

    An optimiser must not be interrupted within a step, where its state is half that of the next one.  A second Ctrl-C
    does not wait.
    """
    asked = threading.Event()

    def handler(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    # other handlers are the caller's own affair, and only the main thread may set one
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    main = threading.current_thread() is threading.main_thread()
    ours = {number: old for number, old in defaults.items() if main and signal.getsignal(number) is old}
    for number in ours:
        signal.signal(number, handler)
    try:
        yield asked.is_set
    finally:
        for number, old in ours.items():
            signal.signal(number, old)
