"""Overlaps of runs in the theory's frame: under the symmetry of the model that takes them closest to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from attnphase.arrays import Array
from attnphase.data.build import by_cluster
from attnphase.problem.attention import matrices_of_weights
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Callback, silent
from attnphase.state_evolution.symmetries import ProblemSymmetry
from attnphase.state_evolution.system import System

__all__ = ["OVERLAPS", "SCALARS", "Frame"]

SCALARS = ("training_loss", "test_error", "test_error_sampled", "linear_test_error", "weight_norm", "density")
"""What a frame leaves as it is."""

OVERLAPS = ("q", "V", "m", "theta")
"""What a frame turns; and trained parameters, if there are."""


@dataclass(frozen=True, eq=False)
class Frame:
    """The symmetries of a problem: finitely many, and the rotations of the columns of an attention's weights."""

    problem: Problem
    elements: tuple[ProblemSymmetry, ...]
    rotates: bool
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
        # scores depend on h h^T or h_Q h_K^T alone, which a common rotation of the columns does not change
        rotates = problem.tokens.length > 1 and problem.regularizer.form.rotates
        return cls(problem, System.of(problem, callback=callback).symmetries, rotates and problem.student.rank > 1)

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
        if self.rotates:
            A = self._rotation(own, wanted, order, A, B) @ A
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

    def _rotation(self, own: dict[str, Array], wanted: dict[str, Array], order: list[int], A: Array, B: Array) -> Array:
        """The rotation of the attention's columns behind A that fits best, by Procrustes."""
        rank, copies = self.problem.student.rank, matrices_of_weights(self.problem.student.tied)
        fields = np.concatenate([own["m"][order][:, None] @ A.T, (A @ own["theta"][order] @ B.T).mT], axis=1)
        target = np.concatenate([wanted["m"][:, None], wanted["theta"].mT], axis=1)
        product = np.zeros((rank, rank))
        for copy in range(copies):
            part = slice(copy * rank, (copy + 1) * rank)
            product += np.einsum("sfi,sfj->ij", target[..., part], fields[..., part])
        left, _, right = np.linalg.svd(product)
        whole = np.eye(len(A))
        for copy in range(copies):
            part = slice(copy * rank, (copy + 1) * rank)
            whole[part, part] = left @ right
        return whole

    def _by_site(self, variable: xr.DataArray) -> Array:
        values = variable.to_numpy()
        if not self.problem.tokens.has_clusters or "token" not in variable.dims:
            return values
        return np.stack([values[token, cluster] for token, cluster in self.problem.sites])
