"""Directions of the labels' noise that the student's fields depend on, where the loss takes the noise apart.

A row of softmax scores sums to one, so that the noise of its labels tilts the loss along one direction less than it has
entries.  Along the others the loss of noise that is quadratic changes by what no student can help.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.facts.directions import SEEN, moments_of_slopes
from attnphase.facts.points import Block, points_of
from attnphase.kernels.compiler import Kernels
from attnphase.problem.problem import Problem
from attnphase.problem.units import Units
from attnphase.state_evolution.axes import eigenvectors
from attnphase.state_evolution.sample_law import SampleLaw

__all__ = ["NoisyLabels"]

_EACH = 24  # points of every size: of five tokens the noise has 25 directions, and there are 28 sizes


@dataclass(frozen=True, eq=False)
class NoisyLabels:
    """The losses of a configuration's samples as the noise of their labels varies.

    Attributes
    ----------
    problem : Problem
    kernels : Kernels
    law : SampleLaw
    configuration : int
    variance : (L,) array
        The diagonal of D.
    parameters : tuple of two arrays
        As the kernels take them.
    """

    problem: Problem
    kernels: Kernels
    law: SampleLaw
    configuration: int
    variance: Array
    parameters: tuple[Array, Array]

    def seen(self, orders: Sequence[NDArray[np.int64]]) -> Array:
        """Directions of the noise on which the minimisers depend, the strongest first, (L noise, N).

        Parameters
        ----------
        orders : sequence
            Of the tokens, by symmetries that leave the configuration as it is.
        """
        length, count = self.kernels.length, self.kernels.noise_columns
        kinds = [(length * width, size) for width, size in zip(*self._sizes, strict=True)]
        blocks = [Block(np.zeros(width), np.resize(size, width)) for width, size in kinds]
        points = points_of(blocks, each=_EACH)
        edges = np.cumsum([width for width, _ in kinds])
        parts = np.split(points.values, edges[:-1], axis=1)
        h, other, k = (np.ascontiguousarray(part).reshape(len(part), length, -1) for part in parts[:3])
        noise = parts[3]

        def of_student(z: Array) -> Array:
            losses = self._losses(h, k, z)
            return losses - self._losses(other, k, z) if self._quadratic else losses

        with np.errstate(all="ignore"):
            slopes = np.stack([of_student(noise + step) - of_student(noise - step) for step in np.eye(length * count)])
            rounding = np.abs(self._losses(h, k, noise)) + np.abs(self._losses(other, k, noise))
        entries = np.arange(length * count).reshape(length, count)
        places = [entries[np.ix_(order, order)].ravel() for order in orders]
        moments = moments_of_slopes(slopes, rounding, points.groups)
        of_all, ordinary = (np.mean([one[np.ix_(p, p)] for p in places], axis=0) for one in moments)
        (values, vectors), (strengths, usual) = eigenvectors(of_all), eigenvectors(ordinary)
        seen, count = (np.sum(one > SEEN * one[0]) for one in (values, strengths))
        # directions that matter far out alone have no order among ordinary fields
        return usual[:, :count] if count == seen else vectors[:, :seen]

    @property
    def _sizes(self) -> tuple[list[int], list[Array]]:
        """Columns and sizes of the student's fields, twice, of the teacher's, and of the noise in its deviations."""
        kernels, units = self.kernels, Units.of(self.problem)
        columns = [kernels.columns, kernels.columns, kernels.teacher_rank, kernels.noise_columns]
        return columns, [units.fields, units.fields, self.law.field_sizes, np.ones(1)]

    def mean_of_unseen(self, seen: Array, k: Array, weights: Array) -> float:
        """Mean loss by the noise in all directions but those seen, over weighted fields (n, L, t) of the teacher.

        Half of a second difference along each: the loss is quadratic there.
        """
        if not self._quadratic or seen.shape[1] == len(seen):
            return 0.0
        h = np.zeros((*k.shape[:-1], self.kernels.columns))
        others = np.linalg.svd(seen)[0][:, seen.shape[1] :]
        changes = [self._losses(h, k, z) + self._losses(h, k, -z) - 2 * self._losses(h, k, 0 * z) for z in others.T]
        return float(weights @ np.sum(changes, axis=0) / 2)

    @property
    def _quadratic(self) -> bool:
        return self.problem.loss.form.noise_is_quadratic

    def _losses(self, h: Array, k: Array, z: Array) -> Array:
        """Of fields (n, L, r) and (n, L, t) with standard normals of the noise, (n, L noise) or the same for all."""
        noise = self.law.noise * np.broadcast_to(z, (len(k), z.shape[-1]))
        labels = self.law.labels_of(k, noise.reshape(*k.shape[:-1], -1)) + self.law.means[self.configuration]
        losses = np.empty(len(k))
        self.kernels.losses_at(h, labels, *self.parameters, self.variance, losses)
        return losses
