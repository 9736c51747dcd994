"""Where starts were found to lead, kept in one file: basins that were interrupted or killed go on from it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import filelock

from attnphase.dynamics.planes import Arrival, Memory
from attnphase.dynamics.settings import Basin, FlowSettings, FlowStatus
from attnphase.errors import DatasetError
from attnphase.files.reading import LARGEST_TEXT, read_input
from attnphase.files.writing import write_file
from attnphase.problem.problem import Problem
from attnphase.version import __version__

__all__ = ["KeptArrivals", "checkpoint_for_us"]


@contextmanager
def checkpoint_for_us(path: Path | None) -> Iterator[None]:
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
            f"{path}: other basins write to this checkpoint; wait for them, or choose another output."
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
class KeptArrivals:
    """Ends of starts by their plane, rule and angle; the file is replaced whole with every new one.

    Numbers are written so that they are read back to the last bit.

    Attributes
    ----------
    path : Path or None
        None to keep nothing.
    task : dict of str to str
        What all ends depend on besides their place; a file that belongs to another task is refused.

    Only one process at a time may use a file: `checkpoint_for_us`.
    """

    path: Path | None
    task: dict[str, Any]
    _rows: dict[str, list[Any]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        path: Path | None,
        problem: Problem,
        settings: FlowSettings,
        noise: float,
        planes: Iterable[tuple[float, float]],
    ) -> KeptArrivals:
        """Those of a command, with what one before it left; `planes` are omega and scale of all that are asked for.

        Raises
        ------
        DatasetError
            The file is damaged, or belongs to other basins.
        """
        task = {"problem": problem.to_toml(), "noise": noise, "version": __version__} | asdict(settings)
        kept = cls(path, task)
        if path is not None and path.exists():
            kept._load(path)
            others = sorted({tuple(json.loads(place)[:2]) for place in kept._rows} - set(planes))
            if others:
                omega, scale = others[0]
                raise DatasetError(
                    f"{path}: this checkpoint holds ends of omega = {omega:g} and scale = {scale:g}, which are not"
                    " asked for and would be lost; ask for them too, choose another output, or remove it."
                )
        return kept

    def __len__(self) -> int:
        return len(self._rows)

    def plane(self, omega: float, scale: float) -> Memory:
        """What looks up the ends of one plane's starts, and keeps new ones."""

        def remembered(rule: str, angle: float, follow: Callable[[], Arrival]) -> Arrival:
            place = json.dumps([omega, scale, rule, angle])
            if place not in self._rows:
                self._add(place, follow())
            positional, semantic, error, plateau, basin, status = self._rows[place]
            return Arrival(positional, semantic, error, plateau, Basin(basin), FlowStatus(status))

        return remembered

    def _load(self, path: Path) -> None:
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
            raise refuse("this is not a checkpoint of basins, or it is damaged; remove it to start afresh.") from None
        differing = [name for name in self.task if task.get(name) != self.task[name]]
        if differing:
            raise refuse(
                f"this checkpoint belongs to other basins, with another {differing[0]}; remove it, or choose another"
                " output."
            )
        self._rows.update(rows)

    def _add(self, place: str, found: Arrival) -> None:
        """Keep one more."""
        sizes = [found.positional_size, found.semantic_size, found.test_error, found.plateau]
        self._rows[place] = [*map(float, sizes), int(found.basin), int(found.status)]
        if self.path is not None:
            text = json.dumps({"task": self.task, "rows": self._rows})
            digest = hashlib.sha256(text.encode("ascii")).hexdigest()
            write_file(self.path, f"{digest}\n{text}".encode("ascii"))
