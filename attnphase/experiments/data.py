"""Random instances of a problem at finite d: teachers, tokens, encodings and labels of a batch of seeds.

Everything is drawn in the common eigenbasis of the covariances, by the spectral measure (5) that the theory uses: every
coordinate belongs to one atom, and the atoms' shares are kept as exactly as d allows.  The cluster directions and the
encodings have exactly the products that the problem gives; the teacher's entries are independent, of the law
`teacher.prior`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnphase.arrays import Array
from attnphase.errors import ExperimentError
from attnphase.experiments.settings import DTYPES
from attnphase.kernels.torch.loss import LocalLoss
from attnphase.problem import Problem
from attnphase.processes.threads import each
from attnphase.spectrum.measure import gaussian_gram, measure_of
from attnphase.state_evolution.axes import matrix_root
from attnphase.state_evolution.sample_law import DeclaredLaw, SampleLaw

__all__ = [
    "TORCH_DTYPES",
    "Geometry",
    "Instance",
    "Samples",
    "Stream",
    "draw_geometry",
    "draw_instance",
    "draw_samples",
    "generator",
]

_BLOCK = 1 << 22  # numbers drawn at once
# Gaussian k, of which each sample takes one by its density: its law is off by the density's variance over so many
_CANDIDATES = 1024

TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}
"""Of the numbers of an experiment, by name."""


class Stream:
    """Independent streams of random numbers of one seed."""

    GEOMETRY, CLUSTERS, TOKENS, TEST_CLUSTERS, TEST_TOKENS, START, NOISE = range(7)


def generator(seed: int, run: int, *stream: int) -> np.random.Generator:
    """The random numbers of one stream, or part of a stream, of one run: the same whatever else is drawn."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(run, *stream)))


@dataclass(frozen=True, eq=False)
class Geometry:
    """Teacher, encodings and covariances of one run, by coordinate of the common eigenbasis; entries O(1).

    Attributes
    ----------
    gamma : (P, d) array
        Eigenvalues of the sites' covariances.
    positions : (L, d) array
        ``sqrt(d) p_l``.
    means : (P, d) array
        ``sqrt(d) mu_s``.
    teacher : (d, t) array
        ``Q_star``.
    """

    gamma: Array
    positions: Array
    means: Array
    teacher: Array

    @property
    def dimension(self) -> int:
        """Number d of coordinates."""
        return self.gamma.shape[1]


def check_dimension(problem: Problem, dimension: int) -> None:
    """Refuse a dimension that is too small for the vectors it must hold.

    Raises
    ------
    ExperimentError
        It is; the message says how large it must be.
    """
    least = problem.tokens.mean_directions + problem.tokens.length + problem.teacher_columns
    if dimension < least:
        raise ExperimentError(
            f"dimension must be at least {least} here, to hold encodings, clusters' means and teacher, not {dimension}."
        )


def draw_geometry(problem: Problem, dimension: int, seed: int, run: int) -> Geometry:
    """Draw one run's teacher and encodings.

    Raises
    ------
    ExperimentError
        The dimension is too small for the vectors it must hold.
    """
    check_dimension(problem, dimension)
    weights, variances = problem.spectrum_atoms()
    length, columns, directions = problem.tokens.length, problem.teacher_columns, problem.tokens.mean_directions
    fixed = directions + length
    random = generator(seed, run, Stream.GEOMETRY)
    atom = random.permutation(np.repeat(np.arange(len(weights)), _shares(weights, dimension)))
    joint = gaussian_gram(problem)
    # orthonormal directions, so that the products of what is drawn from them are exact
    normal = random.standard_normal((dimension, fixed))
    basis = math.sqrt(dimension) * np.linalg.qr(normal)[0] * np.sign(random.standard_normal(fixed))
    vectors = basis @ matrix_root(joint[:fixed, :fixed]).T
    regression = np.linalg.pinv(joint[:fixed, :fixed], rcond=1e-10) @ joint[:fixed, fixed:]
    rest = matrix_root(joint[fixed:, fixed:] - joint[fixed:, :fixed] @ regression)
    teacher = vectors @ regression + random.standard_normal((dimension, columns)) @ rest.T
    means = problem.site_means @ vectors[:, :directions].T
    positions = vectors[:, directions:].T
    of_positions, of_means, of_teacher = (problem.tokens.points(key) for key in ("positions", "means", "teacher"))
    if of_positions is not None:
        positions = of_positions[atom].T
    if of_means is not None:
        means = of_means[atom].T
    if of_teacher is not None:
        teacher = of_teacher[atom]
    if not problem.teacher.law.is_gaussian:
        teacher = problem.teacher.law.draw(random, (dimension, columns))
    gamma = variances[atom].T
    return Geometry(*(np.ascontiguousarray(x, dtype=float) for x in (gamma, positions, means, teacher)))


def _shares(weights: Array, dimension: int) -> NDArray[np.int64]:
    """Numbers of coordinates of every atom, by largest remainders."""
    exact = weights / weights.sum() * dimension
    shares = np.floor(exact + 1e-9).astype(np.int64)
    missing = dimension - shares.sum()
    shares[np.argsort(-(exact - shares), kind="stable")[:missing]] += 1
    return shares


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of S runs, and all that the risk needs to know of their labels.

    Attributes
    ----------
    tokens : (S, n L, d) tensor
        ``x + p``.
    targets : (S, n, ...) tensor
        ``C = y (x+p)^T / d``; with a value matrix the outputs, for other losses all that labels are made of.
        Those of training samples have the noise of the labels.
    grams : (S, n, L, L) tensor
        ``G = (x+p)(x+p)^T / d``; of no size where the loss does not use it.
    offsets : (S, n) tensor
        ``|y|^2 / 2d``, the part of the loss that no student changes.
    teacher_fields : (S, n, L, t) tensor
        Without noise.
    sites : (S, n, L) tensor of int
    token_products, label_products : (S, L, L) tensors
        ``sum x x^T / d`` and ``sum y x^T / d`` over the samples, for the linear baseline.
    """

    tokens: Tensor
    targets: Tensor
    grams: Tensor
    offsets: Tensor
    teacher_fields: Tensor
    sites: Tensor
    token_products: Tensor
    label_products: Tensor

    @property
    def runs(self) -> int:
        """Number S of runs."""
        return self.tokens.shape[0]

    @property
    def count(self) -> int:
        """Number n of samples."""
        return self.sites.shape[1]


@dataclass(frozen=True, eq=False)
class Instance:
    """A problem's random instances at one dimension and sample complexity, one for every run.

    Attributes
    ----------
    problem : Problem
    runs : tuple of int
        Numbers of the runs under the seed.
    geometries : tuple of Geometry
    samples : Samples
    loss : LocalLoss
    threads : int
        That share the runs, in whatever is done to them.
    """

    problem: Problem
    seed: int
    runs: tuple[int, ...]
    geometries: tuple[Geometry, ...]
    samples: Samples
    loss: LocalLoss
    threads: int = 1

    @property
    def dimension(self) -> int:
        """Number d of coordinates."""
        return self.samples.tokens.shape[2]

    def stacked(self, name: str) -> Tensor:
        """One of the geometries' arrays for all runs, (S, ...)."""
        arrays = np.stack([getattr(geometry, name) for geometry in self.geometries])
        return torch.as_tensor(arrays, dtype=self.loss.dtype, device=self.loss.device)


def draw_instance(
    problem: Problem, dimension: int, count: int, seed: int, runs: tuple[int, ...], loss: LocalLoss, threads: int = 1
) -> Instance:
    """Draw teachers and training samples of some runs.

    Parameters
    ----------
    problem : Problem
    dimension, count : int
        d and n.
    seed : int
    runs : tuple of int
        Which runs; each is the same whichever others are drawn.
    loss : LocalLoss
        Of the problem, at finite d.
    threads : int
        That share the runs.
    """
    geometries = tuple(draw_geometry(problem, dimension, seed, run) for run in runs)
    streams = (Stream.CLUSTERS, Stream.TOKENS, Stream.NOISE)
    samples = draw_samples(problem, geometries, count, seed, runs, loss, streams, threads)
    return Instance(problem, seed, runs, geometries, samples, loss, threads)


def draw_samples(
    problem: Problem,
    geometries: tuple[Geometry, ...],
    count: int,
    seed: int,
    runs: tuple[int, ...],
    loss: LocalLoss,
    streams: tuple[int, ...],
    threads: int = 1,
) -> Samples:
    """Draw tokens and labels of given teachers.

    Equation (D1) of the replica-symmetric page.

    The `streams` are those of the clusters, of the tokens and of the labels' noise; without the last labels have none.
    """
    length, dimension, batch = problem.tokens.length, geometries[0].dimension, len(runs)
    options = {"device": loss.device, "dtype": loss.dtype}
    tokens = torch.empty((batch, count * length, dimension), **options)
    gram_count = count if loss.has_grams else 0
    samples = Samples(
        tokens=tokens,
        targets=torch.empty((batch, count, *loss.target_shape), **options),
        grams=torch.empty((batch, gram_count, length, length), **options),
        offsets=torch.zeros((batch, count), **options),
        teacher_fields=torch.empty((batch, count, length, problem.teacher_columns), **options),
        sites=torch.empty((batch, count, length), device=loss.device, dtype=torch.int64),
        token_products=torch.zeros((batch, length, length), **options),
        label_products=torch.zeros((batch, length, length), **options),
    )

    def draw(s: int) -> None:
        generators = [generator(seed, runs[s], stream) for stream in streams]
        _draw_run(problem, geometries[s], samples, s, loss, generators)

    each(threads, draw, range(batch))
    return samples


def _draw_run(
    problem: Problem,
    geometry: Geometry,
    samples: Samples,
    s: int,
    loss: LocalLoss,
    generators: list[np.random.Generator],
) -> None:
    """Fill in the samples of one run, block by block."""
    length, d, count = problem.tokens.length, geometry.dimension, samples.count
    configurations, probabilities = problem.cluster_law
    clusters, normals, *noise = generators
    deviation = math.sqrt(problem.teacher.noise)
    chosen = clusters.choice(len(probabilities), size=count, p=probabilities / probabilities.sum())
    sites = configurations[chosen]

    def tensor(array: Array) -> Tensor:
        return torch.as_tensor(array, dtype=loss.dtype, device=loss.device)

    spread, means = tensor(np.sqrt(geometry.gamma)), tensor(geometry.means / math.sqrt(d))
    positions, teacher = tensor(geometry.positions / math.sqrt(d)), tensor(geometry.teacher)
    samples.sites[s] = torch.as_tensor(sites, device=loss.device)
    whole = samples.tokens[s].view(count, length, d)
    law = _law_of(problem)
    most = d if problem.tokens.density is None else max(d, _CANDIDATES * teacher.shape[1])
    block = max(1, _BLOCK // (length * most))
    for begin in range(0, count, block):
        part = slice(begin, min(begin + block, count))
        z = tensor(normals.standard_normal((part.stop - begin, length, d)))
        x = z.mul_(spread[samples.sites[s, part]]).add_(means[samples.sites[s, part]])
        if law is not None:
            x.add_(tensor(_way_to_law(law, geometry, chosen[part], x.double().cpu().numpy(), normals)))
        k = x @ teacher / math.sqrt(d)
        student = torch.add(x, positions, out=whole[part])
        samples.teacher_fields[s, part] = k
        drawn = None
        if noise and deviation:
            drawn = tensor(deviation * noise[0].standard_normal((len(k), *loss.noise_shape)))
        targets = loss.targets(k, samples.sites[s, part], drawn)
        if not loss.has_grams:
            samples.targets[s, part] = targets
            continue
        own = x @ x.mT / d
        samples.grams[s, part] = student @ student.mT / d
        samples.targets[s, part] = targets @ (x @ student.mT) / d
        labels = targets @ own
        samples.offsets[s, part] = (labels * targets).sum(dim=(1, 2)) / 2
        samples.token_products[s] += own.sum(dim=0)
        samples.label_products[s] += labels.sum(dim=0)


@lru_cache(maxsize=8)
def _law_of(problem: Problem) -> DeclaredLaw | None:
    """Of the limit d -> infinity, by whose sampler and density k is drawn, if it has any; it is checked once."""
    law = SampleLaw.of(problem, measure_of(problem)) if problem.tokens.own_laws else None
    return law if isinstance(law, DeclaredLaw) else None


def _way_to_law(
    law: DeclaredLaw, geometry: Geometry, chosen: NDArray[np.int64], x: Array, random: np.random.Generator
) -> Array:
    """What moves Gaussian tokens x (N, L, d) of given configurations along the teacher, so that k has its law.

    Of all that a token is but k the law stays as it is.
    """
    d, step = geometry.dimension, np.zeros_like(x)
    rho = np.einsum("sd,di,dj->sij", geometry.gamma, geometry.teacher, geometry.teacher, optimize=True) / d
    for place in np.unique(chosen):
        of_place, sites = np.flatnonzero(chosen == place), law.configurations[place]
        k = x[of_place] @ geometry.teacher / math.sqrt(d)
        if law.given.density is None:
            fields, _ = law.of_gaussian(place, k)
        else:
            fields = _by_density(law, place, geometry.means[sites] @ geometry.teacher / d, rho[sites], len(k), random)
        away = np.linalg.solve(rho[sites], (fields - k)[..., None])[..., 0]
        step[of_place] = geometry.gamma[sites] * (away @ geometry.teacher.T) / math.sqrt(d)
    return step


def _by_density(
    law: SampleLaw, place: int, middle: Array, rho: Array, count: int, random: np.random.Generator
) -> Array:
    """Fields (N, L, t) of a configuration, each one of many by their density."""
    zeta = random.standard_normal((count, _CANDIDATES, *middle.shape))
    others = middle + np.einsum("lij,nmlj->nmli", matrix_root(rho), zeta)
    fields, shares = law.of_gaussian(place, others.reshape(-1, *middle.shape))
    sums = np.cumsum(shares.reshape(count, _CANDIDATES), axis=1)
    taken = (sums < random.random((count, 1)) * sums[:, -1:]).sum(axis=1)
    return fields.reshape(zeta.shape)[np.arange(count), taken]
