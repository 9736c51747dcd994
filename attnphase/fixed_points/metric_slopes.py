"""Total derivatives of the user's test metrics along a field.

A metric's mean depends on the overlaps and, by the law of samples and the loss's parameters, on the field. Both change
along the tangent ``(x', 1)`` of the fixed point: the derivative is a difference along it at the same points of the
samples, which are those of `attnphase.state_evolution.metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnphase.arrays import Array
from attnphase.fixed_points.family import Family
from attnphase.integration.refinement import REPLICATES, SINGLE_POINTS
from attnphase.solvers.differences import finite_difference_jacobian
from attnphase.state_evolution.errors import SAMPLED_STEP, Response, propagate
from attnphase.state_evolution.metrics import TRIAL, metric_means, points_enough
from attnphase.state_evolution.replicates import rows_of

__all__ = ["Line", "metric_slopes"]


Stencil = tuple[tuple[float, float], ...]
"""Distances along a line, and the weights of values there in a difference."""


@dataclass(frozen=True, eq=False)
class Line:
    """The tangent of fixed points along a field.

    Attributes
    ----------
    family : Family
    x, tangent : (D,) arrays
        The fixed point, and its derivative in the field.
    value : float
        Of the field there.
    scales : (D,) array
        Sizes of the coordinates.
    """

    family: Family
    x: Array
    tangent: Array
    value: float
    scales: Array

    def size(self, step: float) -> float:
        """The change of the field that moves neither it nor a coordinate by more than a share of its size."""
        return step * min(abs(self.value) or 1.0, 1 / max(float(np.max(np.abs(self.tangent) / self.scales)), 1e-300))

    def means(self, distance: float, points: int, *stream: int, x: Array | None = None) -> Array | None:
        """Means of the metrics at a distance along the line, or at x there, their sizes and jumps, (S, 3, M).

        None where the field cannot have the value, or where there are no such overlaps.
        """
        map_ = self.family.map_at(self.value + distance)
        if map_ is None:
            return None
        law, at = map_.system.sample_law, self.x + distance * self.tangent if x is None else x
        overlaps = map_.unpack(at)
        feasible = overlaps.feasible(law.clean_rho)
        return metric_means(map_.system.problem, law, overlaps, points, *stream) if feasible else None

    def gradient(self, distance: float) -> Array:
        """Derivatives of the metrics in the coordinates at a distance, (M, D)."""

        def mean(x: Array) -> Array | None:
            found = self.means(distance, SINGLE_POINTS, x=x)
            return None if found is None else found[:, 0].mean(axis=0)

        return finite_difference_jacobian(mean, self.x + distance * self.tangent, self.scales, SAMPLED_STEP)

    def stencils(self, step: float) -> tuple[Stencil, ...]:
        """Differences of second order: a central one, and one to either side where the other one is no value."""
        size = self.size(step)
        one_sided = ((0.0, -1.5 / size), (size, 2 / size), (2 * size, -0.5 / size))
        central = ((size, 0.5 / size), (-size, -0.5 / size))
        return central, one_sided, tuple((-distance, -weight) for distance, weight in one_sided)

    def difference(self, step: float, points: int, *stream: int) -> tuple[Array, Array, Stencil]:
        """Slopes of the metrics per replicate (S, M), the errors (M,) of jumps, and the difference."""
        for stencil in self.stencils(step):
            found = [self.means(distance, points, *stream) for distance, _ in stencil]
            means = [one for one in found if one is not None]
            if len(means) == len(stencil):
                slopes = sum((w * one[:, 0] for (_, w), one in zip(stencil, means, strict=True)), np.zeros(()))
                parts = (w**2 * one[:, 2].mean(axis=0) for (_, w), one in zip(stencil, means, strict=True))
                return slopes, np.sqrt(sum(parts, np.zeros(())) / REPLICATES), stencil
        raise ArithmeticError("no difference along the field has overlaps at its ends")


def metric_slopes(
    line: Line, response: Response, left: Array, moved: Array, displaced: Array, max_nodes: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Derivatives of the metrics along a line, with their standard errors, by the names of the dataset.

    Parameters
    ----------
    line : Line
    response : Response
        Of the map at the fixed point.
    left : (D,) array
        What the tangent leaves of its equation.
    moved : (n, D) array
        Displacements of the image's derivative.
    displaced : (m, D) array
        Displacements of the fixed point, to which the first m of these belong.
    max_nodes : int
    """
    map_ = line.family.map_at(line.value)
    assert map_ is not None
    slopes, jumps, stencil = _fine_enough(line, max_nodes)
    wide = line.difference(2 * SAMPLED_STEP, SINGLE_POINTS)[0].mean(axis=0)
    near = line.difference(SAMPLED_STEP, SINGLE_POINTS)[0].mean(axis=0)
    own = np.vstack([rows_of(slopes), np.diag(jumps), wide - near])
    at_point = Response(response.jacobian, line.gradient(0.0), response.scales, response.order)
    bend = sum((weight * line.gradient(distance) for distance, weight in stencil), np.zeros(()))
    values = np.zeros((len(moved), slopes.shape[1]))
    values[: len(displaced)] = displaced @ bend.T
    rows = np.vstack([propagate(moved, values, at_point)[1], own])
    change = propagate(left[None], slopes.mean(axis=0)[None], at_point)[1][0]
    names = [f"metric_{name}" for name in map_.system.problem.metrics]
    errors = np.sqrt((rows**2).sum(axis=0))
    return dict(zip(names, change.tolist(), strict=True)), dict(zip(names, errors.tolist(), strict=True))


def _fine_enough(line: Line, max_nodes: int) -> tuple[Array, Array, Stencil]:
    """Slopes by as many points as the error asked for needs, relative to the metrics' sizes by the field's."""
    map_ = line.family.map_at(line.value)
    sizes = line.means(0.0, SINGLE_POINTS)
    if map_ is None or sizes is None:
        raise ArithmeticError("the point lies outside the domain")
    size = np.maximum(sizes[:, 1].mean(axis=0), np.finfo(float).tiny) / line.size(1.0)

    def relative_error(points: int) -> float:
        slopes, jumps, _ = line.difference(SAMPLED_STEP, points, TRIAL)
        return float(np.fmax.reduce(np.sqrt((rows_of(slopes) ** 2).sum(axis=0) + jumps**2) / size))

    return line.difference(SAMPLED_STEP, points_enough(map_.system.refinement(max_nodes), relative_error))
