"""Bayes-optimal points that were found, kept in one file: a command that was interrupted or killed goes on from it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnphase.errors import DatasetError
from attnphase.files.checkpoints import LIMITS
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status
from attnphase.sweeps.kept import KeptRows, task_of
from attnphase.theories.bayes_optimal.solving import BayesOptimalPoint, Start
from attnphase.theories.bayes_optimal.thresholds import BayesOptimalThreshold

__all__ = ["GridPoint", "KeptPoints"]

_THRESHOLDS = "thresholds"
_ARRAYS = ("q", "V", "q_hat", "rho")

GridPoint = Mapping[str, Any]
"""Values of the fields that vary, ``alpha`` and ``start``."""


@dataclass(frozen=True, eq=False)
class KeptPoints:
    """Points by their values on the grid, and the thresholds.

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
        channel: str | None,
        max_nodes: int | None,
        grid: Iterable[GridPoint],
    ) -> KeptPoints:
        """Those of a command, with what one before it left; `grid` is all that is asked for.

        Raises
        ------
        DatasetError
            The file is damaged, belongs to other points, or holds points that would be lost.
        """
        kept = KeptRows(path, task_of(problem, channel=channel, max_nodes=max_nodes), LIMITS)
        kept.load()
        asked = {_key(at) for at in grid}
        others = [at for at in kept.rows if at != _THRESHOLDS and at not in asked]
        if others:
            words = ", ".join(f"{name} = {value}" for name, value in json.loads(others[0]).items())
            raise DatasetError(
                f"{path}: this checkpoint holds the point {words}, which is not asked for and would be lost; ask for"
                " it too, choose another output, or remove it."
            )
        points = cls(kept)
        if len(points):
            warnings.warn(f"{path}: going on from this checkpoint ({len(points)} points are known).", stacklevel=3)
        return points

    def __len__(self) -> int:
        return len([at for at in self.kept.rows if at != _THRESHOLDS])

    def point(self, at: GridPoint, solve: Callable[[], BayesOptimalPoint]) -> BayesOptimalPoint:
        """The point at these values: the kept one, or else the one that `solve` returns, which is then kept."""
        key = _key(at)
        if key not in self.kept.rows:
            self.kept.add(key, _row(solve()))
        return _point(self.kept.rows[key])

    def thresholds(self, find: Callable[[], dict[str, BayesOptimalThreshold]]) -> dict[str, BayesOptimalThreshold]:
        """Likewise the thresholds."""
        if _THRESHOLDS not in self.kept.rows:
            self.kept.add(_THRESHOLDS, {name: asdict(one) for name, one in find().items()})
        return {name: BayesOptimalThreshold(**one) for name, one in self.kept.rows[_THRESHOLDS].items()}


def _key(at: GridPoint) -> str:
    return json.dumps({name: value.tolist() if isinstance(value, np.generic) else value for name, value in at.items()})


def _row(point: BayesOptimalPoint) -> dict[str, Any]:
    """As plain numbers and lists."""
    row = {name: value for name, value in vars(point).items() if name != "errors"}
    arrays = {name: row[name].tolist() for name in _ARRAYS}
    errors = {name: np.asarray(value).tolist() for name, value in point.errors.items()}
    plain = {"start": point.start.name, "status": point.status.name, "recovered": bool(point.recovered)}
    return row | arrays | plain | {"errors": errors}


def _point(row: Mapping[str, Any]) -> BayesOptimalPoint:
    arrays: dict[str, Any] = {name: np.array(row[name]) for name in _ARRAYS}
    errors = {name: np.array(value) if isinstance(value, list) else value for name, value in row["errors"].items()}
    plain = {"start": Start[row["start"]], "status": Status[row["status"]], "errors": errors}
    return BayesOptimalPoint(**(dict(row) | arrays | plain))
