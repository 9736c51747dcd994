"""Where training starts, as in the paper: at the teacher, along the encodings, or at random."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnphase.arrays import Array
from attnphase.errors import ExperimentError, ProblemError
from attnphase.experiments.data import Geometry, Instance, Stream, generator
from attnphase.experiments.plan import given_weights
from attnphase.problem import Problem
from attnphase.problem.units import Units
from attnphase.state_evolution.branches import BRANCHES, Branch
from attnphase.state_evolution.sizes import Sizes
from attnphase.state_evolution.starts import initial_overlaps, sized_rows

__all__ = ["UNINFORMED_SCALE", "initial_weights", "projections_of", "sized_weights"]

UNINFORMED_SCALE = 0.1
"""Standard deviation of the entries of an uninformed start, the paper's."""


def initial_weights(instance: Instance, start: str | Any) -> Tensor:
    """Weights (S, d, r) from which training starts.

    Parameters
    ----------
    instance : Instance
    start : str or array
        "semantic": W = Q_star.  "positional": the principal directions of the encodings, with norm 1 for each
        column, as the paper's 1_d / sqrt(d).  "mixed": the first column semantic, the others positional.  "uninformed":
        independent
        normal entries.  Untied weights start with Q = K.  Columns for which teacher or encodings have no direction
        start as the uninformed ones.  Or the text of `Sizes`, an array (d, r) for all runs, or (S, d, r) for each.

    Raises
    ------
    ProblemError
        Unknown start, or one that the problem cannot have.
    ExperimentError
        The array has the wrong shape, or an entry that is not finite.
    """
    problem = instance.problem
    if not isinstance(start, str):
        return _given(instance, start)
    if "=" in start:
        return _sized(instance, Sizes.of(start))
    if start not in BRANCHES:
        raise ProblemError("start", f'start must be one of {", ".join(BRANCHES)} or an array, not "{start}".')
    initial_overlaps(problem, start)  # a start that the problem cannot have is refused in the words of its branch
    columns = [_informed(problem, geometry, start) for geometry in instance.geometries]
    weights = []
    for run, known in zip(instance.runs, columns, strict=True):
        noise = generator(instance.seed, run, Stream.START).standard_normal(known.shape)
        weights.append(np.where(np.isnan(known), UNINFORMED_SCALE * noise, known))
    return torch.as_tensor(np.stack(weights), dtype=instance.loss.dtype, device=instance.loss.device)


def _sized(instance: Instance, sizes: Sizes) -> Tensor:
    """Weights with parts of these sizes along teacher and encodings, and independent noise."""
    weights = [
        sized_weights(instance.problem, geometry, sizes, instance.seed, run)
        for run, geometry in zip(instance.runs, instance.geometries, strict=True)
    ]
    return torch.as_tensor(np.stack(weights), dtype=instance.loss.dtype, device=instance.loss.device)


def sized_weights(problem: Problem, geometry: Geometry, sizes: Sizes, seed: int, run: int) -> Array:
    """Weights (d, r) of one run, with parts of these sizes along its teacher and encodings."""
    signal, _ = sized_rows(problem, sizes)
    noise = generator(seed, run, Stream.START).standard_normal((geometry.dimension, problem.columns))
    return projections_of(problem, geometry) @ signal.T + sizes.noise * noise


def projections_of(problem: Problem, geometry: Geometry) -> Array:
    """``(tau, pi)`` of every coordinate, (d, P + t)."""
    tokens = [token for token, _ in problem.sites]
    return np.concatenate([(geometry.means + geometry.positions[tokens]).T, geometry.teacher], axis=1)


def _given(instance: Instance, start: Any) -> Tensor:
    shape = (instance.dimension, instance.problem.columns)
    array = np.asarray(start)
    if array.dtype.kind not in "fiu":
        raise ExperimentError(f"start must be a name or an array of numbers, not a {type(start).__name__}.")
    whole = given_weights(array, shape, len(instance.runs))
    return torch.as_tensor(whole, dtype=instance.loss.dtype, device=instance.loss.device)


def _informed(problem: Problem, geometry: Geometry, start: str) -> Array:
    """Columns that a start determines, (d, r); NaN where it does not."""
    rank, d = problem.student.rank, geometry.dimension
    columns = np.full((d, rank), np.nan)
    branch = Branch.named(start)
    semantic = min(branch.semantic_columns(rank), problem.teacher.rank)
    columns[:, :semantic] = geometry.teacher[:, :semantic]
    if branch.positional:
        axes = _principal_axes(problem, geometry)[:, : rank - semantic]
        columns[:, semantic : semantic + axes.shape[1]] = axes
    copies = (problem.columns - problem.loss.value_columns) // problem.student.rank
    values = np.full((d, problem.loss.value_columns), np.nan)
    if branch.order_parameters:
        values[:] = geometry.teacher[:, problem.teacher.rank :]
    return np.concatenate([columns] * copies + [values], axis=1)


def _principal_axes(problem: Problem, geometry: Geometry) -> Array:
    """Principal directions of what the tokens' means are, encodings included, as unit vectors (d, ...).

    Of mixture tokens they are those of the means over the clusters; where these vanish, of the clusters' means.
    """
    configurations, probabilities = problem.cluster_law
    site_tokens = np.array([token for token, _ in problem.sites])
    sites = geometry.means + geometry.positions[site_tokens]
    average, unit = np.einsum("c,cld->ld", probabilities, sites[configurations]), Units.of(problem).tokens
    for vectors in (average, sites):
        left, sizes, axes = np.linalg.svd(vectors / np.sqrt(geometry.dimension), full_matrices=False)
        known = int((sizes > 1e-6 * max(sizes[0], unit)).sum())
        if known:
            # the sign of the token with the largest share
            signs = np.sign(left[np.abs(left[:, :known]).argmax(axis=0), np.arange(known)])
            return (signs[:, None] * axes[:known]).T
    return np.empty((geometry.dimension, 0))
