"""Lines of a sweep that wait for a file, or end their process: sweeps that stand still where a test wants them.

Workers are started afresh, so that what they run must be found by its name; the folder of the files is in the
environment.  As a program: ``python -m gated_lines sweep --alpha 2 ...``, which hears Ctrl-C whoever started it.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import xarray as xr

from attnphase.fixed_points.point import BranchPoint
from attnphase.sweeps.line import Line

FOLDER = "GATED_LINES"
FIRST = "semantic, teacher.omega = 0.1"
"""The label of the line that waits for nothing."""


@dataclass(frozen=True)
class GatedLine(Line):
    """Solved as soon as there is a file ``open``; where there is ``die-once`` or ``die``, its process is killed."""

    def solve(self, on_point: Callable[[BranchPoint], None] | None = None) -> xr.Dataset:
        """Wait, and solve."""
        folder = Path(os.environ[FOLDER])
        try:
            (folder / "die-once").unlink()  # by one of several workers
        except FileNotFoundError:
            deadly = (folder / "die").exists()
        else:
            deadly = True
        if deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        while self.label != FIRST and not (folder / "open").exists():
            time.sleep(0.01)
        return super().solve(on_point)


if __name__ == "__main__":
    import gated_lines  # by the name that the workers know

    from attnphase.cli.commands import main

    importlib.import_module("attnphase.sweeps.grid").Line = gated_lines.GatedLine  # type: ignore[attr-defined]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(sys.argv[1:])
