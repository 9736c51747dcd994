"""When a solve ends that may take so many seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from attnphase.fixed_points.settings import SolverSettings

__all__ = ["NEVER", "Deadline"]


@dataclass(frozen=True)
class Deadline:
    """The end of a solve's time, by a clock.

    Attributes
    ----------
    at : float
        Reading of the clock from which on nothing more is begun.
    clock : callable
        Seconds, since any time.
    """

    at: float = inf
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def of(cls, settings: SolverSettings, clock: Callable[[], float] = time.monotonic) -> Deadline:
        """The end of a solve that begins now."""
        return cls(inf if settings.max_seconds is None else clock() + settings.max_seconds, clock)

    @property
    def passed(self) -> bool:
        """Whether the time is over."""
        return self.clock() >= self.at


NEVER = Deadline()
"""Of a solve that may take any time."""
