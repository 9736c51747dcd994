"""Overlaps of runs in the theory's frame: under the symmetry of the model that takes them closest to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from attnphase.arrays import Array
from attnphase.data.build import by_cluster
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Callback, silent
from attnphase.state_evolution.gauge import Gauge
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.symmetries import ProblemSymmetry
from attnphase.state_evolution.system import System

__all__ = ["OVERLAPS", "SCALARS", "Frame"]

SCALARS = ("training_loss", "test_error", "test_error_sampled", "linear_test_error", "weight_norm", "density")
"""What a frame leaves as it is."""

OVERLAPS = ("q", "V", "m", "theta")
"""What a frame turns; and trained parameters, if there are."""


@dataclass(frozen=True, eq=False)
class Frame:
    """The symmetries of a problem: finitely many, and the turns of columns that loss and regulariser do not see."""

    problem: Problem
    elements: tuple[ProblemSymmetry, ...]
    gauge: Gauge
    scalars = SCALARS

    @property
    def overlaps(self) -> tuple[str, ...]:
        """What the frame turns."""
        return (*OVERLAPS, "trained") if self.problem.loss.trained else OVERLAPS

    @property
    def left_out(self) -> tuple[str, ...]:
        """Entries of Q, which stand behind trained parameters, and which the frame would turn."""
        return self.problem.loss.norms

    @classmethod
    def of(cls, problem: Problem, callback: Callback = silent) -> Frame:
        """The frame of a problem; `callback` is called if its kernels have to be compiled."""
        system = System.of(problem, callback=callback)
        return cls(problem, system.symmetries, system.gauge)

    def aligned(self, point: xr.Dataset, runs: xr.Dataset) -> dict[str, Array]:
        """Overlaps of every run, (S, ...) like the dataset's, in the frame that fits the theory's best."""
        wanted = {name: self._by_site(point[name]) for name in self.overlaps}
        found: dict[str, list[Array]] = {name: [] for name in self.overlaps}
        for s in range(runs.sizes["seed"]):
            own = {name: self._by_site(runs[name][s]) for name in self.overlaps}
            best = min((self._moved(own, wanted, element) for element in self.elements), key=lambda moved: moved[0])
            for name in self.overlaps:
                found[name].append(by_cluster(self.problem, name, best[1][name]) if name in OVERLAPS else best[1][name])
        shapes = {name: point[name].shape for name in self.overlaps}
        return {name: np.array(rows).reshape(-1, *shapes[name]) for name, rows in found.items()}

    def _moved(
        self, own: dict[str, Array], wanted: dict[str, Array], element: ProblemSymmetry
    ) -> tuple[float, dict[str, Array]]:
        """A run under one symmetry, and how far it is from the theory."""
        order, A, B, C = element
        order = list(order)
        if len(self.gauge.turns):
            A = self._turn(own, wanted, order, A, B) @ A
        moved = {
            "q": A @ own["q"][order] @ A.T,
            "V": A @ own["V"][order] @ A.T,
            "m": own["m"][order] @ A.T,
            "theta": A @ own["theta"][order] @ B.T,
        }
        if "trained" in own:
            count = len(C) - len(self.left_out)
            moved["trained"] = np.concatenate([C[:count, :count] @ own["trained"][:count], own["trained"][count:]])
        # rounded, so that of elements that fit alike the first is taken
        compared = (name for name in ("m", "theta", "q", "trained") if name in own)
        distance = sum(float(((moved[name] - wanted[name]) ** 2).sum()) for name in compared)
        return round(distance, 12), moved

    def _turn(self, own: dict[str, Array], wanted: dict[str, Array], order: list[int], A: Array, B: Array) -> Array:
        """The turn of the columns behind A that fits best."""
        here = own["m"][order] @ A.T, A @ own["theta"][order] @ B.T
        mine, its = (
            Overlaps(wanted["q"], wanted["V"], m[..., None], theta)
            for m, theta in (here, (wanted["m"], wanted["theta"]))
        )
        return self.gauge.turn(mine, its)

    def _by_site(self, variable: xr.DataArray) -> Array:
        values = variable.to_numpy()
        if not self.problem.tokens.has_clusters or "token" not in variable.dims:
            return values
        return np.stack([values[token, cluster] for token, cluster in self.problem.sites])
