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

from attnphase.fixed_points.point import BranchPoint
from attnphase.sweeps.line import Line

FOLDER = "GATED_LINES"
FIRST = "semantic, teacher.omega = 0.1"
"""The label of the line that waits for nothing."""


@dataclass(frozen=True)
class GatedLine(Line):
    """Solved as soon as there is a file ``open``; where there is ``die-once`` or ``die``, its process is killed.

    With a number in a file ``most`` the first so many are solved, whichever they are, and all others wait.

    The labels of those begun and of those solved are lines of the files ``begun`` and ``solved``.
    """

    def points(self, on_point: Callable[[BranchPoint], None] | None = None) -> list[BranchPoint]:
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
        note(folder / "begun", self.label)
        while _stands_still(folder, self.label):
            time.sleep(0.01)
        points = super().points(on_point)
        note(folder / "solved", self.label)
        return points


def _stands_still(folder: Path, label: str) -> bool:
    most = noted(folder / "most")
    if most:
        return len(noted(folder / "solved")) >= int(most[0])
    return label != FIRST and not (folder / "open").exists()


def note(path: Path, line: str) -> None:
    """Add a line to a file, whole, whoever else does so."""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def noted(path: Path) -> list[str]:
    """The lines of such a file."""
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


if __name__ == "__main__":
    import gated_lines  # by the name that the workers know

    from attnphase.cli.commands import main

    importlib.import_module("attnphase.sweeps.grid").Line = gated_lines.GatedLine  # type: ignore[attr-defined]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(sys.argv[1:])
