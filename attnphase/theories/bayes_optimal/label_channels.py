"""Channels of labels that are formulas: of the user's own, or those that the problem's loss sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from attnphase.arrays import Array
from attnphase.errors import ProblemError
from attnphase.facts.labels import FieldLaws, LabelFacts
from attnphase.facts.moments import same_arrays
from attnphase.lazy import loaded_on_use
from attnphase.problem.problem import Problem
from attnphase.spectrum.measure import Spectrum, measure_of
from attnphase.theories.bayes_optimal.channel import Channel, Preimages
from attnphase.theories.bayes_optimal.fibres import Fibres
from attnphase.theories.bayes_optimal.importance import Noisy
from attnphase.theories.bayes_optimal.labels import Labels
from attnphase.theories.bayes_optimal.lattices import LabelPlane, label_plane
from attnphase.theories.bayes_optimal.preimages import solved_fields
from attnphase.theories.bayes_optimal.readout import LabelError, Readout, SquareError
from attnphase.theories.bayes_optimal.request import undetermined
from attnphase.theories.bayes_optimal.symmetries import column_images, signed_permutations

with loaded_on_use(__name__):
    from derivations.models import formulas
    from derivations.models import labels as symbolic

if TYPE_CHECKING:
    from derivations.models.labels import LabelFunctions

__all__ = ["TURNS", "of_formula", "of_loss", "plane_of", "score_labels", "sizes_of", "without_noise"]

TURNS = 8
"""Rotations of two columns around which a posterior is looked for, and as many with a reflection."""

_FEWER_TURNS = 6  # where draws go along the rotations by themselves
_DRAWS = 32  # for each component of the mixture, of labels without kinks
_TRIED = 4096  # fields
_ROUNDING = 1e-14  # of a sum of squares, over its terms
_UNTOLD = 1e-16  # square of a distance of means, over the tokens' variance, by which no token is told from another
_UNCERTAIN = 1e-9  # of probabilities


def of_formula(problem: Problem, text: str) -> tuple[Channel, Readout]:
    """The label as a formula of the fields, or the likelihood of the label y = 1 or -1.

    Raises
    ------
    ProblemError
        It is no such formula.
    """
    try:
        tokens = problem.tokens
        functions = symbolic.labels_of_formula(text, tokens.length, problem.teacher_columns, tokens.has_clusters)
    except formulas.FormulaError as error:
        names = "k" if problem.tokens.length > 1 else ", ".join(_names(problem))
        raise ProblemError("channel", f"channel must be sign, absolute, linear or a formula of {names}:"
                           f" {error}") from None  # fmt: skip
    return _of_functions(problem, functions, "channel", "the formula")


def of_loss(problem: Problem) -> tuple[Channel, Readout]:
    """The label that the problem's loss sees.

    Raises
    ------
    ProblemError
        It is none that this theory covers.
    """
    loss = problem.loss
    loss.refuse_trained("the Bayes-optimal error")
    sizes = problem.tokens.length, problem.columns, problem.teacher_columns
    try:
        functions = symbolic.labels_of_loss(str(loss.text), sizes, loss.numbers, problem.teacher.noise)
    except formulas.FormulaError as error:
        raise ProblemError("loss.expression", f"loss.expression: {error} Or say by channel what is observed.") from None
    return _of_functions(problem, functions, "loss.expression", "the label of the loss")


def score_labels(problem: Problem) -> LabelFunctions:
    """The teacher's score matrix, whose mixing with a known matrix changes nothing."""
    teacher = problem.teacher
    return symbolic.labels_of_scores(teacher.score, teacher.causal, problem.tokens.length, teacher.rank)


def plane_of(problem: Problem, target: Callable[[Array], Array], length: int, rank: int) -> LabelPlane | None:
    """For sums over lattices: where the fields' covariances are multiples of one, so that V has the axes of q."""
    rho = measure_of(problem).rho
    if not all(same_arrays(one, one[0, 0] * np.eye(rank)) for one in rho):
        return None
    scale = np.sqrt(np.repeat(rho[:, 0, 0].max(), length * rank))
    return label_plane(
        lambda k: target(np.ascontiguousarray(k.reshape(-1, length, rank))), scale, problem.teacher.noise
    )


def sizes_of(problem: Problem, target: Callable[[Array], Array]) -> tuple[float, float]:
    """Standard deviation of a field, the largest, and that of labels over it."""
    rho, laws = measure_of(problem).rho, FieldLaws.of(problem)
    scale = float(np.sqrt(np.trace(rho, axis1=1, axis2=2).max() / rho.shape[-1]))
    which = np.arange(_TRIED) % len(laws.means)
    normals = np.random.default_rng(7).standard_normal((_TRIED, laws.means.shape[1]))
    fields = (laws.means[which] + laws.deviations[which] * normals).reshape(_TRIED, -1, rho.shape[-1])
    with np.errstate(all="ignore"):
        return scale, float(target(fields).std(axis=0).max()) / scale


def without_noise(problem: Problem, functions: LabelFunctions) -> Channel:
    """The channel of labels without noise that are no finite number of values.

    Raises
    ------
    ProblemError
        They leave more of the fields undetermined than this theory covers.
    """
    inner = functions.simplest()
    length, rank = _shape(inner)
    if not inner.continuous:
        raise undetermined()
    facts = LabelFacts([inner], [1.0], FieldLaws.of(problem))
    found = solved_fields(facts, length, rank)
    if found is None:
        raise undetermined()
    charts, even = found
    if len(charts[0]) == length * rank:
        if rank > 1:
            raise undetermined()
        return Preimages(even)
    images = column_images(facts, rank, _FEWER_TURNS)
    values, both, seed = inner.values(), inner.values_and_slopes(), problem.integration.seed
    scale, slope = sizes_of(problem, lambda k: values(k.reshape(len(k), -1)))
    return Fibres(both, length, rank, charts, even, images, seed=seed, scale=scale, slope=slope)


def _of_functions(problem: Problem, functions: LabelFunctions, field: str, what: str) -> tuple[Channel, Readout]:
    length, rank = problem.tokens.length, problem.teacher_columns
    noise, seed = problem.teacher.noise, problem.integration.seed
    cases = _of_clusters(problem, functions if functions.label is not None else functions.varying)
    shares, each = tuple(cases.values()), [case.values() for case in cases]
    facts = LabelFacts([*cases], shares, FieldLaws.of(problem))
    if not facts.are_finite:
        raise ProblemError(field, f"{field}: {what} is no finite number for some k, which can be any number:"
                           " write one that always is, such as sqrt(1 + k**2).")  # fmt: skip
    if not facts.vary:
        raise ProblemError(field, f"{field}: {what} does not depend on k, so that its label tells nothing.")
    if functions.label is not None:

        def likelihood(k: Array, label: float) -> Array:
            return np.sum([share * values(k, label) for share, values in zip(shares, each, strict=True)], axis=0)

        return _of_likelihood(problem, likelihood, facts)

    def target(k: Array) -> Array:
        return np.concatenate([values(k.reshape(len(k), -1)) for values in each], axis=-1)

    readout = SquareError(target, shares)
    if noise > 0:
        images, smooth = column_images(facts, rank, TURNS), all(case.smooth for case in cases)
        draws = _DRAWS if smooth and length * rank > 1 else 4 * _DRAWS
        plane = plane_of(problem, target, length, rank) if smooth and len(each) == 1 else None
        size, sizes = len(functions.entries), sizes_of(problem, target)
        return Noisy(target, size, length, rank, noise, images, draws, seed, plane, shares, *sizes), readout
    certain = facts.values()
    if certain is not None:
        return _of_labels(problem, certain, facts, facts.jumps())
    if len(each) > 1:
        raise ProblemError(
            "teacher.noise",
            "teacher.noise = 0: labels that hold the numbers of clusters must have a few values that are told by signs,"
            " or noise: set teacher.noise above zero.",
        )
    if facts.are_steps:
        raise ProblemError(
            field,
            f"{field}: {what} jumps between values, of which it has more than {facts.most} or too many to list:"
            " write one with fewer, or set teacher.noise above zero.",
        )
    return without_noise(problem, next(iter(cases))), readout


def _of_labels(
    problem: Problem,
    probabilities: Callable[[Array], Array],
    facts: LabelFacts,
    jumps: tuple[float, ...] | None = None,
) -> tuple[Channel, Readout]:
    """The channel of finitely many labels with these probabilities, which jump at places that may be known."""
    rho, length, rank = measure_of(problem).rho, problem.tokens.length, problem.teacher_columns
    images = signed_permutations(facts.alike, rank)
    variance = float(np.trace(rho, axis1=1, axis2=2).max()) / rank
    seed = problem.integration.seed
    channel = Labels(probabilities, rank, images, seed=seed, length=length, variance=variance, jumps=jumps)
    return channel, LabelError(probabilities)


def _of_clusters(problem: Problem, functions: LabelFunctions) -> dict[LabelFunctions, float]:
    """The labels that the tokens' clusters can make of the fields, with their probabilities.

    Of a sample the learner sees tokens, and no clusters.  These enter by their law given the tokens, which is that of
    the problem where all clusters of a token have one covariance and one mean.

    Raises
    ------
    ProblemError
        Tokens tell of their clusters.
    """
    if not functions.clusters:
        return {functions: 1.0}
    spectrum, sites = measure_of(problem), problem.sites
    for one, (token, _) in enumerate(sites):
        first = sites.index((token, 0))
        same = all(map(same_arrays, spectrum.gamma[one], spectrum.gamma[first]))  # atom by atom
        if not (same and _one_mean(spectrum, one, first)):
            field = "tokens.clusters" if problem.tokens.spectrum is None else "tokens.spectrum"
            raise ProblemError(
                field,
                f"{field} gives token {token} clusters that differ, of which its tokens tell something: where labels"
                " hold the numbers of clusters, this theory needs one covariance and one mean for all clusters of a"
                " token.",
            )
    found: dict[tuple[Any, ...], tuple[LabelFunctions, float]] = {}
    for numbers, probability in zip(*problem.tokens.configurations, strict=True):
        case = functions.at(numbers.tolist())
        before = found.get(case.entries, (case, 0.0))
        found[case.entries] = before[0], before[1] + float(probability)
    return dict(found.values())


def _one_mean(spectrum: Spectrum, one: int, other: int) -> bool:
    """Whether the means of two sites are apart by less than rounding, or by less than their tokens can tell."""
    moments = spectrum.second_moments[:, : spectrum.sites, : spectrum.sites]  # of encodings and means
    apart = np.eye(spectrum.sites)[one] - np.eye(spectrum.sites)[other]
    distances, sizes = apart @ moments @ apart, np.abs(apart) @ np.abs(moments) @ np.abs(apart)
    return bool((distances <= _ROUNDING * sizes + _UNTOLD * spectrum.gamma[other]).all())


def _of_likelihood(problem: Problem, values: Callable[..., Array], facts: LabelFacts) -> tuple[Channel, Readout]:
    """The likelihood of the label y = 1 or -1."""
    noise = problem.teacher.noise
    if len(facts.cases[0].entries) > 1:
        raise ProblemError("channel", "channel: a likelihood, a formula in y, must be one number.")
    if noise > 0:
        raise ProblemError("channel", "channel: a likelihood, a formula in y, needs teacher.noise = 0.")

    def probabilities(k: Array) -> Array:
        chances = np.stack([values(k, label)[..., 0] for label in (1.0, -1.0)], axis=-1)
        bad = ~((np.abs(chances.sum(axis=-1) - 1) < _UNCERTAIN) & (chances > -_UNCERTAIN).all(axis=-1))
        if bad.any():
            place, (one, other) = k[bad][0].tolist(), chances[bad][0].tolist()
            raise ProblemError(
                "channel",
                "channel: a likelihood, a formula in y, must be from 0 to 1, and add up to 1 for y = 1 and -1,"
                f" but is {one:.6g} and {other:.6g} at k = {place}.",
            )
        return np.clip(chances, 0.0, 1.0)

    for k in facts.samples():
        probabilities(k)
    return _of_labels(problem, probabilities, facts)


def _shape(functions: LabelFunctions) -> tuple[int, int]:
    """Tokens and columns of the fields, whose names say them."""
    tokens = {str(field).partition("_")[0] for field in functions.fields}
    return len(tokens), len(functions.fields) // len(tokens)


def _names(problem: Problem) -> list[str]:
    names = [f"k0_{column}" for column in range(problem.teacher_columns)] + ["y"]
    return [*names, "k"] if problem.teacher_columns == 1 else names
