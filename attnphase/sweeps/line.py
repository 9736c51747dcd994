"""The task of a sweep: one problem, one branch, all sample complexities."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from attnphase.fixed_points.branches import follow
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings
from attnphase.lazy import loaded_on_use
from attnphase.problem.problem import Problem
from attnphase.sweeps.kept import own_functions

with loaded_on_use(__name__):
    from attnphase.data import build

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Line"]


@dataclass(frozen=True)
class Line:
    """One problem, one branch, all sample complexities.

    Attributes
    ----------
    problem : Problem
    branch : str
    alphas : tuple of float
    settings : SolverSettings
    label : str
        For people: the branch and the swept fields.
    """

    problem: Problem
    branch: str
    alphas: tuple[float, ...]
    settings: SolverSettings
    label: str

    @cached_property
    def key(self) -> str:
        """Hash of all that decides about the line's numbers, this program's source and the user's own included."""
        settings = replace(self.settings, threads=None)
        parts = [self.problem.to_toml(), self.branch, repr(self.alphas), repr(settings), source_hash(), self.functions]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]

    @property
    def source(self) -> str:
        """Hash of this program's source."""
        return source_hash()

    @cached_property
    def functions(self) -> str:
        """What the functions are that the problem has by name only; empty if there is none."""
        return own_functions(self.problem)

    def solve(self, on_point: Callable[[BranchPoint], None] | None = None) -> xr.Dataset:
        """The line's dataset over alpha."""
        return self.dataset(self.points(on_point))

    def points(self, on_point: Callable[[BranchPoint], None] | None = None) -> list[BranchPoint]:
        """The points of the line, in the order of its sample complexities."""
        return follow(self.problem, self.alphas, self.branch, settings=self.settings, on_point=on_point)

    def dataset(self, points: Sequence[BranchPoint]) -> xr.Dataset:
        """The dataset of its points."""
        return build.from_points(
            points, {"alpha": self.alphas}, problem=self.problem, title=f"Branch line: {self.label}"
        )


@lru_cache
def source_hash() -> str:
    """Of both packages' modules, wherever they lie: lines of another version are not taken up."""
    digest = hashlib.sha256()
    for package in ("attnphase", "derivations"):
        specification = importlib.util.find_spec(package)
        assert specification is not None
        assert specification.origin is not None
        for source in sorted(Path(specification.origin).parent.rglob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()
