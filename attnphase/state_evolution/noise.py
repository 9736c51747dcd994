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
from attnphase.kernels.compiler import Kernels
from attnphase.problem.problem import Problem
from attnphase.problem.units import Units
from attnphase.state_evolution.axes import eigenvectors
from attnphase.state_evolution.sample_law import SampleLaw

__all__ = ["NoisyLabels"]

_SAMPLES = 64  # random fields on which the directions are found: a rule is exact in any
_SEEN = 1e-12  # of the largest mean square slope; less is rounding


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
        kernels, generator, units = self.kernels, np.random.default_rng(23), Units.of(self.problem)
        length, count = kernels.length, kernels.noise_columns
        h = generator.normal(size=(2, _SAMPLES, length, kernels.columns)) * units.fields
        k = generator.normal(size=(_SAMPLES, length, kernels.teacher_rank)) * units.tokens
        noise = generator.normal(size=(_SAMPLES, length * count))

        def of_student(z: Array) -> Array:
            losses = self._losses(h[0], k, z)
            return losses - self._losses(h[1], k, z) if self._quadratic else losses

        slopes = np.stack([of_student(noise + step) - of_student(noise - step) for step in np.eye(length * count)])
        matrix = slopes @ slopes.T / _SAMPLES
        entries = np.arange(length * count).reshape(length, count)
        places = [entries[np.ix_(order, order)].ravel() for order in orders]
        values, vectors = eigenvectors(np.mean([matrix[np.ix_(p, p)] for p in places], axis=0))
        return vectors[:, values > _SEEN * values[0]]

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
