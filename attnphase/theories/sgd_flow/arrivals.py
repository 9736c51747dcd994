"""Where starts were found to lead, kept in one file: basins that were interrupted or killed go on from it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from attnphase.errors import DatasetError
from attnphase.files.checkpoints import BASINS
from attnphase.problem.problem import Problem
from attnphase.sweeps.kept import KeptRows, task_of
from attnphase.theories.sgd_flow.planes import Arrival, Memory
from attnphase.theories.sgd_flow.settings import Basin, FlowSettings, FlowStatus

__all__ = ["KeptArrivals"]


@dataclass(frozen=True, eq=False)
class KeptArrivals:
    """Ends of starts by their plane, rule and angle.

    Attributes
    ----------
    kept : KeptRows
    """

    kept: KeptRows

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
        kept = KeptRows(path, task_of(problem, noise=noise, **asdict(settings)), BASINS)
        kept.load()
        others = sorted({tuple(json.loads(place)[:2]) for place in kept.rows} - set(planes))
        if others:
            omega, scale = others[0]
            raise DatasetError(
                f"{path}: this checkpoint holds ends of omega = {omega:g} and scale = {scale:g}, which are not"
                " asked for and would be lost; ask for them too, choose another output, or remove it."
            )
        if kept.rows:
            warnings.warn(f"{path}: going on from this checkpoint ({len(kept.rows)} ends are known).", stacklevel=3)
        return cls(kept)

    def plane(self, omega: float, scale: float) -> Memory:
        """What looks up the ends of one plane's starts, and keeps new ones."""

        def remembered(rule: str, angle: float, follow: Callable[[], Arrival]) -> Arrival:
            place = json.dumps([omega, scale, rule, angle])
            if place not in self.kept.rows:
                self._add(place, follow())
            positional, semantic, error, plateau, basin, status = self.kept.rows[place]
            return Arrival(positional, semantic, error, plateau, Basin(basin), FlowStatus(status))

        return remembered

    def _add(self, place: str, found: Arrival) -> None:
        """Keep one more."""
        sizes = [found.positional_size, found.semantic_size, found.test_error, found.plateau]
        self.kept.add(place, [*map(float, sizes), int(found.basin), int(found.status)])
