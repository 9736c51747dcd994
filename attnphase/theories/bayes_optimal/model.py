"""A problem as the Bayes-optimal theory sees it: the prior of the teacher's weights, and the channel of its labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

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
from attnphase.theories.bayes_optimal.labels import Labels
from attnphase.theories.bayes_optimal.lattices import LATTICE_REPLICATES, LabelPlane, label_plane
from attnphase.theories.bayes_optimal.preimages import leave_a_sign
from attnphase.theories.bayes_optimal.readout import LabelError, Readout, ScoreError, SignError, SquareError
from attnphase.theories.bayes_optimal.request import channel_of, undetermined
from attnphase.theories.bayes_optimal.row_mixtures import RowMixture

__all__ = ["PosteriorModel", "model_of"]

_MOST_LABELS = 16
_DRAWS, _FEWER_DRAWS = 32, 16  # for each component of the mixture
_TURNS = 8  # rotations of two columns around which the posterior is looked for, and as many with a reflection


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
        For one token, see `attnphase.theories.bayes_optimal.request`; by default what the problem's loss is of.

    Raises
    ------
    ProblemError
        The problem has no prior or channel that this theory is for; the message names the field.
    """
    wanted = channel_of(problem, channel)
    law = SampleLaw.of(problem, measure_of(problem))
    law.check_gaussian("the Bayes-optimal error needs the density of k: use solve, one-rsb or flow, which only draw k.")
    found, readout = _of_scores(problem, law) if wanted is None else _of_one(problem, wanted)
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
        gain = moments[count:, :count] @ np.linalg.pinv(moments[:count, :count])
        known = gain @ moments[:count, count:]
        rest = moments[count:, count:] - known
        if np.linalg.eigvalsh(rest).min() < 1e-10:
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
        images, draws = _turns(rank), _DRAWS if rank == 1 else _FEWER_DRAWS
        plane = _plane(problem, target, length, rank)
        return Noisy(target, length**2, length, rank, noise, images, draws, problem.integration.seed, plane), readout
    scale = np.sqrt(law.clean_rho[law.configurations[0], 0, 0])
    if not leave_a_sign(target, length, scale):
        raise undetermined()
    return Preimages(even=True), readout


def _plane(problem: Problem, target: Callable[[Array], Array], length: int, rank: int) -> LabelPlane | None:
    """For sums over lattices: where the fields' covariances are multiples of one, so that V has the axes of q."""
    rho = measure_of(problem).rho
    if not np.allclose(rho, rho[:, :1, :1] * np.eye(rank)):
        return None
    scale = np.sqrt(np.repeat(rho[:, 0, 0].max(), length * rank))
    return label_plane(
        lambda k: target(np.ascontiguousarray(k.reshape(-1, length, rank))), scale, problem.teacher.noise
    )


def _turns(rank: int) -> Any:
    """Orthogonal matrices that leave ``k k^T`` unchanged: all signs, or rotations and reflections."""
    if rank == 1:
        return ((1.0,),), ((-1.0,),)
    angles = 2 * np.pi * np.arange(_TURNS) / _TURNS
    pairs = [((c, -s), (s, c)) for c, s in zip(np.cos(angles).tolist(), np.sin(angles).tolist(), strict=True)]
    return (*pairs, *(((a, -b), (c, -d)) for (a, b), (c, d) in pairs))


def _of_one(problem: Problem, channel: str) -> tuple[Channel, Readout]:
    """The channel of one token."""
    noise, seed = problem.teacher.noise, problem.integration.seed
    if channel == "sign":
        return Signs(noise), SignError()
    if channel in ("absolute", "linear"):
        even = channel == "absolute"
        target = _absolute if even else _itself
        if noise == 0:
            return Preimages(even), SquareError(target)
        images, plane = (_turns(1), None) if even else (_turns(1)[:1], _plane(problem, target, 1, 1))
        return Noisy(target, 1, 1, 1, noise, images, _DRAWS, seed, plane), SquareError(target)
    return _of_formula(problem, channel)


def _absolute(k: Array) -> Array:
    return np.abs(k[:, 0])


def _itself(k: Array) -> Array:
    return k[:, 0]


def _of_formula(problem: Problem, text: str) -> tuple[Channel, Readout]:
    """The label as a formula of k, or the likelihood of the label y = 1 or -1."""
    rank, noise, seed = problem.teacher_columns, problem.teacher.noise, problem.integration.seed
    function, has_label, smooth = _formula(text, rank)
    fields = 2 * np.random.default_rng(5).standard_normal((4096, rank))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        values = np.stack([function(fields, label) for label in (1.0, -1.0)])
    if not np.isfinite(values).all():
        raise ProblemError("channel", "channel: the formula is no finite number for some k, which can be any number:"
                           " write one that always is, such as sqrt(1 + k**2).")  # fmt: skip
    if np.ptp(values, axis=1).max() == 0:
        raise ProblemError("channel", "channel: the formula does not depend on k, so that its label tells nothing.")
    if has_label:
        probabilities = _two_labels(function)
        shares = probabilities(fields)
        if shares.min() < 0 or not np.allclose(shares.sum(axis=-1), 1, atol=1e-9) or noise > 0:
            what = "needs teacher.noise = 0" if noise > 0 else "must be from 0 to 1, and add up to 1 for y = 1 and -1"
            raise ProblemError("channel", f"channel: a likelihood, a formula in y, {what}.")
        return Labels(probabilities, rank, seed=seed), LabelError(probabilities)

    def target(k: Array) -> Array:
        return function(k[:, 0])[:, None]

    if noise > 0:
        even = np.allclose(function(fields), function(-fields))
        one = np.eye(rank)
        images = tuple(tuple(map(tuple, s * one)) for s in ((1.0, -1.0) if even else (1.0,)))
        plane = _plane(problem, target, 1, rank) if smooth else None
        return Noisy(target, 1, 1, rank, noise, images, 4 * _DRAWS, seed, plane), SquareError(target)
    values = np.unique(function(fields).round(9))
    if len(values) > _MOST_LABELS:
        raise ProblemError("channel", "channel: the posterior of a label that takes more than"
                           f" {_MOST_LABELS} values needs teacher.noise > 0.")  # fmt: skip

    def certain(k: Array) -> Array:
        return np.asarray(np.abs(function(k)[..., None] - values) < 1e-8, float)

    return Labels(certain, rank, seed=seed), LabelError(certain)


def _two_labels(function: Callable[..., Array]) -> Callable[[Array], Array]:
    def probabilities(k: Array) -> Array:
        return np.stack([function(k, label) for label in (1.0, -1.0)], axis=-1)

    return probabilities


def _formula(text: str, rank: int) -> tuple[Callable[..., Array], bool, bool]:
    """A formula of ``k0_0, k0_1`` (or ``k``) and perhaps ``y`` as a function of fields (..., t).

    With whether ``y`` is in it, and whether it has no kinks and jumps.
    """
    from sympy import Symbol, lambdify

    from derivations.models.formulas import FormulaError, parse_formula
    from derivations.models.functions import KINKED, NUMPY_FUNCTIONS

    fields = [Symbol(f"k0_{c}", real=True) for c in range(rank)]
    label = Symbol("y", real=True)
    names: dict[str, Any] = {str(symbol): symbol for symbol in fields} | {"y": label}
    if rank == 1:
        names["k"] = fields[0]
    try:
        expression = parse_formula(text, names)
    except FormulaError as error:
        raise ProblemError("channel", f"channel must be sign, absolute, linear or a formula of"
                           f" {', '.join(names)}: {error}") from None  # fmt: skip
    compiled = lambdify((*fields, label), expression, [NUMPY_FUNCTIONS, "numpy"])

    def function(k: Array, y: float = 0.0) -> Array:
        return np.broadcast_to(compiled(*np.moveaxis(k, -1, 0), y), k.shape[:-1]) * 1.0

    return function, label in expression.free_symbols, not expression.has(*KINKED)
