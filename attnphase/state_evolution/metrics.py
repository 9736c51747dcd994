"""Means of the user's test metrics over fresh samples, and how wrong they are at a fixed point.

A metric may jump in the student's fields, where smooth rules fail. So it has points of its own: scrambled Sobol
points in all fields, independent of the nodes of the map. Their scatter is the integration error, with what one point
counts at a jump: in a single field all scramblings may have the same number of points on each side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.integration.refinement import REPLICATES, SINGLE_POINTS, Refinement
from attnphase.integration.rules import sobol
from attnphase.lazy import loaded_on_use
from attnphase.problem.problem import Problem
from attnphase.solvers.differences import finite_difference_jacobian
from attnphase.state_evolution.axes import matrix_root
from attnphase.state_evolution.errors import SAMPLED_STEP, Response, residual_errors, standard_errors
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.replicates import Variations, rows_of
from attnphase.state_evolution.sample_law import SampleLaw
from attnphase.state_evolution.system import System

with loaded_on_use(__name__):
    from derivations.models import metrics

__all__ = ["TRIAL", "metric_means", "metrics_at", "points_enough"]

_AT_ONCE = 8192  # nodes that are computed together, those of whole replicates
_TRIED = 256  # directions in which the growth of a metric is tried
_FAR = float(np.sqrt(np.log(np.finfo(float).max)))  # radius at which the square of the normal density is still a number
_RADII = _FAR * np.linspace(0.5, 1.0, 5)  # between which growth is tried
_STREAM = 1  # of a seed's random numbers; the nodes of maps are drawn from the seed alone
TRIAL = 1  # stream of the points that only tell how many are needed


def metric_means(problem: Problem, law: SampleLaw, overlaps: Overlaps, points: int, *stream: int) -> Array:
    """Means of the metrics over fresh samples, of their sizes, and variances of jumps, per replicate (S, 3, M).

    The student's fields are ``h ~ N(m + theta rho^-1 (k - kbar), q - theta rho^-1 theta^T)``, as at V = 0. N points
    place a jump to 1/N of the probability, so that the mean of a metric that takes two values has at most the standard
    deviation of their distance over 2N. A metric whose square has no mean, or that has none itself, is NaN: no scatter
    tells its error.

    Parameters
    ----------
    problem : Problem
        With metrics.
    law : SampleLaw
        Of the clusters and of k; its noise is not used, but that of the problem.
    overlaps : Overlaps
    points : int
        In each replicate.
    *stream : int
        Numbers that tell points apart.
    """
    sampled = _Sampled.of(problem, law, overlaps)
    seed = problem.integration.seed, _STREAM, *stream
    rule = sobol(sampled.dimensions, sampled.student, False, points, REPLICATES, seed)
    means = np.zeros((REPLICATES, 3, len(problem.metrics)))
    together = max(_AT_ONCE // points, 1)
    for c, probability in enumerate(law.probabilities):
        for here in (slice(s, s + together) for s in range(0, REPLICATES, together)):
            *every, shares = sampled(c, rule.nodes[here].reshape(-1, rule.nodes.shape[-1]))
            shares = shares / shares.mean()  # at finite d the mean of a density is not quite one
            values, jumps = ((shares * one).reshape(len(one), -1, points) for one in every)
            means[here, :2] += probability * np.stack([x.mean(axis=2).T for x in (values, np.abs(values))], axis=1)
            means[here, 2] += (probability * jumps.mean(axis=2).T / (2 * points)) ** 2
        means[..., sampled.has_no_variance(c, rule.nodes[0, :_TRIED])] = np.nan
    return means


@dataclass(frozen=True, eq=False)
class _Sampled:
    """The metrics as a function of standard normals.

    Attributes
    ----------
    law : SampleLaw
    overlaps : Overlaps
    function : MetricFunction
    numbers : (n,) array
        Of the loss, by which the metrics are taken.
    clusters : (P,) array
        Number of the cluster of every site.
    deviation : float
        Of the labels' noise; 0 where no metric has it.
    """

    law: SampleLaw
    overlaps: Overlaps
    function: metrics.MetricFunction
    numbers: Array
    clusters: Array
    deviation: float

    @classmethod
    def of(cls, problem: Problem, law: SampleLaw, overlaps: Overlaps) -> _Sampled:
        """Of a problem's metrics."""
        sizes, parameters = (problem.tokens.length, problem.columns, problem.teacher_columns), problem.numbers
        function = metrics.metric_function(tuple(problem.metrics.values()), *sizes, tuple(parameters))
        known = parameters | dict(zip(problem.loss.fitted, overlaps.trained, strict=True))
        clusters = np.array([c for _, c in problem.sites], dtype=float)
        deviation = float(np.sqrt(problem.teacher.noise)) if function.noisy else 0.0
        return cls(law, overlaps, function, np.array([*known.values()]), clusters, deviation)

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """Numbers of tokens, and of the student's and the teacher's fields of each."""
        return self.law.configurations.shape[1], *self.overlaps.theta.shape[1:]

    @property
    def student(self) -> int:
        """Number of the student's fields."""
        return self.shape[0] * self.shape[1]

    @property
    def dimensions(self) -> int:
        """Number of normals: of the student's and the teacher's fields, and of the noise."""
        length, columns, rank = self.shape
        return length * (columns + rank) + (length**2 if self.deviation else 0)

    @cached_property
    def root(self) -> Array:
        """Square root of the covariance of k."""
        return matrix_root(self.law.clean_rho)

    @cached_property
    def slopes(self) -> tuple[Array, Array]:
        """How the student's fields depend on their own normals and on those of k: ``theta rho^-1/2``."""
        lift = np.linalg.solve(self.root, self.overlaps.theta.mT).mT
        return matrix_root(self.overlaps.q - lift @ lift.mT), np.asarray(lift, dtype=float)

    def __call__(self, configuration: int, normals: Array) -> tuple[Array, Array, Array]:
        """The metrics (M, N) of normals (N, D) in a configuration, their jumps, and the weights (N,)."""
        length, columns, rank = self.shape
        (spread, lift), sites = self.slopes, self.law.configurations[configuration]
        xi, zeta, z = np.split(normals.T, [self.student, length * (columns + rank)])
        drawn, shares = self.law.sampled(configuration, zeta.T.reshape(-1, length, rank))
        scaled = np.ascontiguousarray(drawn.transpose(1, 2, 0))
        k = self.law.means[configuration, :, :rank, None] + self.root[sites] @ scaled
        h = self.overlaps.m[sites] + lift[sites] @ scaled + spread[sites] @ xi.reshape(length, columns, -1)
        noise = self.deviation * z if self.deviation else np.zeros((length**2, xi.shape[1]))
        return *self.function(h, k, noise, self.clusters[sites], self.numbers), shares

    def has_no_variance(self, configuration: int, some: Array) -> NDArray[np.bool_]:
        """Which metrics (M,) have a square without a mean.

        Rules on the expression decide where they bound a metric: one that is bounded has a variance if the weights
        have one, and under a Gaussian law one that grows as a power, or as the exponential of a line, does too.

        Elsewhere its growth along rays through normals (N, D) decides: times the normals' density it grows from each
        radius of `_RADII` to the next, apart from those where it is zero. For ``exp(c x^2)`` with a normal x this is
        so exactly where the mean does not exist, for 4 c >= 1. What is no number at the last radius, as for fields of
        a sampler that grow as x^3, is larger than any. Rays along single fields are added.
        """
        bounds = 0.0 if not self.law.gaussian else np.inf
        tame = np.array([growth is not None and growth <= bounds for growth in self.function.growths])
        sites, each = self.law.configurations[configuration], np.eye(self.shape[0])
        parts = (np.einsum("lm,lij->limj", each, slope[sites]).reshape(self.student, -1) for slope in self.slopes)
        along = np.pad(np.hstack([*parts]), ((0, 0), (0, self.dimensions - len(each) * sum(self.shape[1:]))))
        rays = np.vstack([some, along, -along, np.eye(self.dimensions), -np.eye(self.dimensions)])
        rays = rays / np.maximum(np.linalg.norm(rays, axis=1, keepdims=True), np.finfo(float).tiny)
        logs = np.empty((len(_RADII), len(tame)))
        for log_square, radius in zip(logs, _RADII, strict=True):
            values, _, shares = self(configuration, radius * rays)
            values = np.where(tame[:, None], 1.0, values)
            with np.errstate(divide="ignore", invalid="ignore"):
                log_square[:] = 2 * np.log(np.fmax.reduce(np.abs(shares * values), axis=1)) - radius**2 / 2
        zero, grows = logs[:-1] == -np.inf, (logs[1:] > logs[:-1]) | (logs[1:] == np.inf)
        return np.asarray((grows & ~zero).any(axis=0) & (grows | zero).all(axis=0))


def metrics_at(
    map_: StateEvolution, x: Array, response: Response, moved: Variations, max_nodes: int
) -> tuple[dict[str, float], dict[str, float]]:
    """The metrics at a fixed point with their standard errors, by the names of the dataset.

    An error consists of the metric's own integration error, relative to its mean size as small as the problem asks for
    or with `max_nodes` points, and of the errors of the fixed point.

    Parameters
    ----------
    map_ : StateEvolution
        Evaluated at ``x``.
    response : Response
    moved : Variations
        By how much errors of integration move the map's image.
    max_nodes : int
    """
    problem, law = map_.system.problem, map_.system.sample_law
    if not problem.metrics:
        return {}, {}
    values, own = _fine_enough(map_.system, map_.unpack(x), max_nodes)
    slopes = np.full((len(problem.metrics), len(x)), np.nan)
    image, floored = map_(x), map_.pack(map_.channel.floored(map_.unpack(x)))
    if response.known and image is not None:

        def means(point: Array) -> Array | None:
            overlaps = map_.unpack(point)
            feasible = overlaps.feasible(law.clean_rho)
            return metric_means(problem, law, overlaps, SINGLE_POINTS)[:, 0].mean(axis=0) if feasible else None

        slopes = finite_difference_jacobian(means, x, map_.scales(x), SAMPLED_STEP)
        values = np.where(np.isfinite(slopes).all(axis=1), values, np.nan)  # so near to a point without a variance
    rows = Variations(
        np.vstack([moved.images, np.zeros((len(own), len(x)))]),
        np.vstack([np.zeros((len(moved.images), own.shape[1])), own]),
        np.append(moved.energy, np.zeros(len(own))),
    )
    measured = {f"metric_{name}": column for name, column in zip(problem.metrics, values.T, strict=True)}
    at_point = replace(response, measured=slopes)
    errors = standard_errors(map_, measured, at_point, rows)
    residual = np.full(len(x), np.nan) if image is None else image - x
    left = residual_errors(map_, measured, at_point, residual, floored - x)
    return (
        {name: float(column.mean()) for name, column in measured.items()},
        {name: errors[name] + left[name] for name in measured},
    )


def points_enough(rules: Refinement, relative_error: Callable[[int], float]) -> int:
    """How many points a replicate needs for the error asked for, where these give one; they are for this alone.

    An error that is small by chance ends the search. So means and errors are taken from other points.
    """
    points = min(SINGLE_POINTS, rules.most_points)
    while points < rules.most_points:
        relative = relative_error(points)
        if not relative > rules.asked.standard_error:
            break
        points = min(points * rules.growth(relative), rules.most_points)
    return points


def _fine_enough(system: System, overlaps: Overlaps, max_nodes: int) -> tuple[Array, Array]:
    """Means of the metrics per replicate (S, M), by as many points as the error asked for needs; errors (E, M)."""

    def measured(points: int, *stream: int) -> tuple[Array, Array, Array]:
        values, sizes, jumps = metric_means(problem, law, overlaps, points, *stream).swapaxes(0, 1)
        return values, np.vstack([rows_of(values), np.diag(np.sqrt(jumps.mean(axis=0) / len(jumps)))]), sizes

    def relative_error(points: int) -> float:
        _, rows, sizes = measured(points, TRIAL)
        errors = np.sqrt((rows**2).sum(axis=0))
        return float(np.fmax.reduce(errors / np.maximum(sizes.mean(axis=0), np.finfo(float).tiny)))

    problem, law = system.problem, system.sample_law
    return measured(points_enough(system.refinement(max_nodes), relative_error))[:2]
