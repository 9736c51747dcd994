"""Measured figures, and the file that keeps them."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["ROOT", "YARDSTICK", "Clocks", "Figure", "Record", "Unit", "commit", "default_path", "machine"]

ROOT = Path(__file__).resolve().parents[1]

YARDSTICK = "recipe: one map"
"""Name of the figure of which all other times are also given as multiples."""

Clocks = Literal["wall", "cpu"]
Unit = Literal["s", "ns", "MB"]

_SECONDS = {"s": 1.0, "ns": 1e-9}


class Figure(BaseModel):
    """One measured quantity with all its repeats.

    Attributes
    ----------
    name : str
    unit : {"s", "ns", "MB"}
    values : tuple of float
        One for each repeat.
    detail : str
        What else is worth saying of it.
    beside : str or None
        Name of a figure that does the same in another way, as a ratio to which this one is given.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    unit: Unit
    values: Annotated[tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...], Field(min_length=1)]
    detail: str = ""
    beside: str | None = None

    @property
    def median(self) -> float:
        """Of the repeats."""
        return statistics.median(self.values)

    @property
    def seconds(self) -> float | None:
        """The median in seconds, None if it is no time."""
        return self.median * _SECONDS[self.unit] if self.unit in _SECONDS else None


class Record(BaseModel):
    """All figures of one call.

    Attributes
    ----------
    date, commit, machine : str
        When, of what and where.
    clock : {"wall", "cpu"}
        What the times are.
    load : tuple of float
        Processes that wanted a core over the last minute, before and after.
    figures : tuple of Figure
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    date: str
    commit: str
    machine: str
    clock: Clocks
    load: tuple[float, float]
    figures: tuple[Figure, ...]

    @property
    def by_name(self) -> dict[str, Figure]:
        """The figures by their name."""
        return {figure.name: figure for figure in self.figures}

    @property
    def yardstick(self) -> float | None:
        """Seconds of the recipe's single map, None if it was not measured."""
        figure = self.by_name.get(YARDSTICK)
        return None if figure is None else figure.seconds


def commit() -> str:
    """The short hash of the commit, marked if files were changed since; "unknown" where there is no git."""
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return told.stdout.strip()


def machine() -> str:
    """Cores, architecture and the versions that decide about times."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "numba"))
    return f"{os.cpu_count()} cores {platform.machine()}, Python {platform.python_version()}, {packages}"


def default_path(record: Record) -> Path:
    """Where a record is saved if nothing else is said."""
    day = datetime.fromisoformat(record.date).date()
    return Path(__file__).with_name("results") / f"{day}-{record.commit}.json"
