"""A problem as the Bayes-optimal theory sees it: the prior of the teacher's weights, and the channel of its labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from attnphase.arrays import Array
from attnphase.errors import ProblemError
from attnphase.problem.problem import Problem
from attnphase.spectrum.measure import measure_of
from attnphase.state_evolution.sample_law import SampleLaw
from attnphase.state_evolution.system import System
from attnphase.theories.bayes_optimal.channel import Channel, Preimages, Signs
from attnphase.theories.bayes_optimal.equations import bayes_optimal_equations
from attnphase.theories.bayes_optimal.evolution import Evolution, WeightPrior
from attnphase.theories.bayes_optimal.importance import Noisy
from attnphase.theories.bayes_optimal.label_channels import (
    TURNS,
    of_formula,
    of_loss,
    plane_of,
    score_labels,
    sizes_of,
    without_noise,
)
from attnphase.theories.bayes_optimal.lattices import LATTICE_REPLICATES
from attnphase.theories.bayes_optimal.linear import LinearSums
from attnphase.theories.bayes_optimal.preimages import leave_a_sign
from attnphase.theories.bayes_optimal.readout import Readout, ScoreError, SignError, SquareError
from attnphase.theories.bayes_optimal.request import channel_of
from attnphase.theories.bayes_optimal.row_mixtures import RowMixture
from attnphase.theories.bayes_optimal.symmetries import turns

__all__ = ["PosteriorModel", "model_of"]

_DRAWS = 32  # for each component of the mixture
_NOTHING = 1e-10  # share of the weights' variance


@dataclass(frozen=True, eq=False)
class PosteriorModel:
    """What does not depend on the sample complexity.

    Attributes
    ----------
    problem : Problem
    channel : Channel
    readout : Readout
    prior : WeightPrior
    law : SampleLaw
    """

    problem: Problem
    channel: Channel
    readout: Readout
    prior: WeightPrior
    law: SampleLaw

    @property
    def replicates(self) -> int:
        """Of the rules: few where integrals are sums over lattices."""
        return 16 if self.channel.sums is None else LATTICE_REPLICATES

    @property
    def rule(self) -> str:
        """By what integrals are done, in words."""
        if self.channel.sums is None:
            return "sobol"
        if not self.readout.drawn:
            return self.channel.sums.name
        nodes = self.channel.sums.samples * LATTICE_REPLICATES
        return f"{self.channel.sums.name} for labels, with {nodes} sobol nodes for test errors"

    @lru_cache(maxsize=8)  # noqa: B019 - models are kept by `model_of`
    def evolution(self, points: int, replicates: int | None = None) -> Evolution:
        """The map with so many nodes in each replicate, or lattices as fine; by default as many as the model has."""
        return Evolution(
            bayes_optimal_equations(),
            self.prior,
            self.channel,
            self.law,
            points,
            replicates or self.replicates,
            self.problem.integration.seed,
        )


@lru_cache(maxsize=16)
def model_of(problem: Problem, channel: str | None = None) -> PosteriorModel:
    """The model that a learner knows: the prior and the channel of a problem.

    Parameters
    ----------
    problem : Problem
    channel : str, optional
        See `attnphase.theories.bayes_optimal.request`; by default what the problem's loss is of.

    Raises
    ------
    ProblemError
        The problem has no prior or channel that this theory is for; the message names the field.
    """
    wanted = channel_of(problem, channel)
    law = SampleLaw.of(problem, measure_of(problem))
    law.check_gaussian("the Bayes-optimal error needs the density of k: use solve, one-rsb or flow, which only draw k.")
    if wanted is None:
        found, readout = _of_scores(problem, law) if problem.loss.has_attention else of_loss(problem)
    else:
        found, readout = _of_one(problem, wanted)
    return PosteriorModel(problem, found, readout, _prior(problem), law)


def _prior(problem: Problem) -> WeightPrior:
    """The law of the rows given eigenvalues, encodings and means."""
    spectrum = measure_of(problem)
    count, rank = spectrum.sites, problem.teacher_columns
    if (law := spectrum.law) is not None:  # of entries that encodings and means tell nothing of
        means = spectrum.mean[:, count:]
        precisions = np.broadcast_to(np.eye(rank) / law.variance, (len(means), rank, rank))
        mixture = RowMixture.of(law, rank)
        return WeightPrior(spectrum.weights, spectrum.gamma, means, precisions, spectrum.rho, mixture)
    weights, gamma, means, precisions = [], [], [], []
    for a, weight in enumerate(spectrum.weights):
        moments = spectrum.second_moments[a]
        sizes = np.sqrt(np.diagonal(moments)[:count])
        sizes = np.where(sizes > 0, sizes, 1.0)  # vectors in units of their own, of which none is too weak
        gain = moments[count:, :count] / sizes @ np.linalg.pinv(moments[:count, :count] / sizes / sizes[:, None])
        gain = gain / sizes
        known = gain @ moments[:count, count:]
        rest = moments[count:, count:] - known
        if np.linalg.eigvalsh(rest).min() < _NOTHING * np.linalg.eigvalsh(moments[count:, count:]).max():
            raise ProblemError("tokens.mean_teacher", "tokens.mean_teacher: the means and encodings tell all of the"
                               " teacher's weights: nothing is left to learn.")  # fmt: skip
        values, vectors = np.linalg.eigh(known)
        points = np.sqrt(rank * np.clip(values, 0, None)) * vectors if known.any() else np.zeros((rank, 1))
        for column in points.T:
            weights.append(weight / points.shape[1])
            gamma.append(spectrum.gamma[:, a])
            means.append(column)
            precisions.append(np.linalg.inv(rest))
    return WeightPrior(np.array(weights), np.array(gamma).T, np.array(means), np.array(precisions), spectrum.rho)


def _of_scores(problem: Problem, law: SampleLaw) -> tuple[Channel, Readout]:
    """The channel of the teacher's score matrices."""
    length, rank, noise = problem.tokens.length, problem.teacher.rank, problem.teacher.noise
    system = System.of(replace(problem, teacher=replace(problem.teacher, noise=0.0)))  # labels without noise
    mixing, parameters = system.parameters

    def target(k: Array) -> Array:
        labels = np.empty((len(k), length, length))
        system.kernels.targets_at(np.ascontiguousarray(k), mixing, parameters, labels)
        return labels.reshape(len(k), -1)

    readout = ScoreError(target, system.spectrum.site_variances)
    if noise > 0:
        images = turns(rank, TURNS)
        plane = plane_of(problem, target, length, rank)
        seed, sizes = problem.integration.seed, sizes_of(problem, target)
        return Noisy(target, length**2, length, rank, noise, images, _DRAWS, seed, plane, (1.0,), *sizes), readout
    scale = np.sqrt(law.clean_rho[law.configurations[0], 0, 0])
    if rank == 1 and leave_a_sign(target, length, scale):
        return Preimages(even=True), readout
    return without_noise(problem, score_labels(problem)), readout


def _of_one(problem: Problem, channel: str) -> tuple[Channel, Readout]:
    """The channel of one token."""
    noise, seed = problem.teacher.noise, problem.integration.seed
    if channel == "sign":
        return Signs(noise, float(measure_of(problem).rho.max())), SignError()
    if channel in ("absolute", "linear"):
        even = channel == "absolute"
        target = _absolute if even else _itself
        if noise == 0:
            return Preimages(even), SquareError(target)
        images, sums = (turns(1, TURNS), None) if even else (turns(1, TURNS)[:1], LinearSums(noise))
        sizes = sizes_of(problem, lambda k: target(k)[:, None])
        return Noisy(target, 1, 1, 1, noise, images, _DRAWS, seed, sums, (1.0,), *sizes), SquareError(target)
    return of_formula(problem, channel)


def _absolute(k: Array) -> Array:
    return np.abs(k[:, 0])


def _itself(k: Array) -> Array:
    return k[:, 0]
