"""Channels of labels that are formulas: of the user's own, or those that the problem's loss sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from attnphase.arrays import Array
from attnphase.errors import ProblemError
from attnphase.lazy import loaded_on_use
from attnphase.problem.problem import Problem
from attnphase.spectrum.measure import measure_of
from attnphase.theories.bayes_optimal.channel import Channel, Preimages
from attnphase.theories.bayes_optimal.fibres import Fibres
from attnphase.theories.bayes_optimal.importance import Noisy
from attnphase.theories.bayes_optimal.labels import Labels
from attnphase.theories.bayes_optimal.lattices import LabelPlane, label_plane
from attnphase.theories.bayes_optimal.preimages import solved_fields
from attnphase.theories.bayes_optimal.readout import LabelError, Readout, SquareError
from attnphase.theories.bayes_optimal.request import undetermined
from attnphase.theories.bayes_optimal.symmetries import column_images

with loaded_on_use(__name__):
    from derivations.models import cells as symbolic_cells
    from derivations.models import formulas
    from derivations.models import labels as symbolic

if TYPE_CHECKING:
    from derivations.models.labels import LabelFunctions

__all__ = ["TURNS", "of_formula", "of_loss", "plane_of", "score_labels", "without_noise"]

TURNS = 8
"""Rotations of two columns around which a posterior is looked for, and as many with a reflection."""

_FEWER_TURNS = 6  # where draws go along the rotations by themselves
_MOST_LABELS = 16
_FARTHEST = 40.0  # standard deviations: normal densities are no numbers from 38.6 on
_DRAWS = 32  # for each component of the mixture, of labels without kinks
_TRIED = 4096  # fields
_SAME = 1e-12  # square of a distance of means that is rounding


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
    if not np.allclose(rho, rho[:, :1, :1] * np.eye(rank)):
        return None
    scale = np.sqrt(np.repeat(rho[:, 0, 0].max(), length * rank))
    return label_plane(
        lambda k: target(np.ascontiguousarray(k.reshape(-1, length, rank))), scale, problem.teacher.noise
    )


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
    scale = float(np.sqrt(np.trace(measure_of(problem).rho, axis1=1, axis2=2).max() / rank))
    both = inner.values_and_slopes()
    found = solved_fields(both, length, rank, scale)
    if found is None:
        raise undetermined()
    charts, even = found
    if len(charts[0]) == length * rank:
        if rank > 1:
            raise undetermined()
        return Preimages(even)
    images = column_images(inner.values(), length, rank, _FEWER_TURNS)
    return Fibres(both, length, rank, charts, even, images, seed=problem.integration.seed)


def _of_functions(problem: Problem, functions: LabelFunctions, field: str, what: str) -> tuple[Channel, Readout]:
    length, rank = problem.tokens.length, problem.teacher_columns
    noise, seed = problem.teacher.noise, problem.integration.seed
    cases = _of_clusters(problem, functions)
    shares, each = tuple(cases.values()), [case.values() for case in cases]
    fields = 2 * np.random.default_rng(5).standard_normal((_TRIED, length * rank))
    given = [()] if functions.label is None else [(1.0,), (-1.0,)]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        tried = np.array([[values(fields, *label) for label in given] for values in each])
    if not np.isfinite(tried).all():
        raise ProblemError(field, f"{field}: {what} is no finite number for some k, which can be any number:"
                           " write one that always is, such as sqrt(1 + k**2).")  # fmt: skip
    if np.ptp(tried, axis=2).max() == 0:
        raise ProblemError(field, f"{field}: {what} does not depend on k, so that its label tells nothing.")
    if functions.label is not None:

        def likelihood(k: Array, label: float) -> Array:
            return np.sum([share * values(k, label) for share, values in zip(shares, each, strict=True)], axis=0)

        return _of_likelihood(likelihood, np.tensordot(shares, tried, 1), noise, length, rank, seed)

    def all_values(k: Array) -> Array:
        return np.concatenate([values(k) for values in each], axis=-1)

    def target(k: Array) -> Array:
        return all_values(k.reshape(len(k), -1))

    readout = SquareError(target, shares)
    if noise > 0:
        images, smooth = column_images(all_values, length, rank, TURNS), all(case.smooth for case in cases)
        draws = _DRAWS if smooth and length * rank > 1 else 4 * _DRAWS
        plane = plane_of(problem, target, length, rank) if smooth and len(each) == 1 else None
        size = len(functions.entries)
        return Noisy(target, size, length, rank, noise, images, draws, seed, plane, shares), readout
    certain = _finitely_many(problem, cases)
    if certain is not None:
        return Labels(certain, rank, seed=seed, length=length), LabelError(certain)
    if len(each) > 1:
        raise ProblemError(
            "teacher.noise",
            f"teacher.noise = 0: labels that hold the numbers of clusters must have at most {_MOST_LABELS} values, or"
            " noise: set teacher.noise above zero.",
        )
    return without_noise(problem, next(iter(cases))), readout


def _finitely_many(problem: Problem, cases: dict[LabelFunctions, float]) -> Callable[[Array], Array] | None:
    """Probabilities of the labels (..., Y) of fields (..., L t) where these are finitely many; None where they are not.

    Labels are constant between jumps, and signs of functions of the fields decide which one it is.
    """
    spectrum, tokens = measure_of(problem), np.array([token for token, _ in problem.sites])
    reach = _FARTHEST * np.sqrt(np.diagonal(spectrum.rho, axis1=1, axis2=2))
    middles, own = spectrum.teacher_means, [tokens == token for token in range(problem.tokens.length)]
    low, high = (np.array(x).ravel() for x in (
        [(middles - reach)[some].min(axis=0) for some in own], [(middles + reach)[some].max(axis=0) for some in own]
    ))  # fmt: skip
    found = [symbolic_cells.cells_of(case.entries, case.fields, low, high, _MOST_LABELS) for case in cases]
    if not all(found):
        return None
    numbers = symbolic_cells.distinct([value for cells in found for value in cells.values])
    if (count := max(numbers) + 1) > _MOST_LABELS:
        return None
    starts = np.cumsum([0, *(len(cells.values) for cells in found)])
    parts = [
        (share, cells, np.array(numbers[start:]), [case.of(argument) for argument in cells.arguments])
        for (case, share), cells, start in zip(cases.items(), found, starts[:-1], strict=True)
    ]

    def certain(k: Array) -> Array:
        flat = k.reshape(-1, k.shape[-1])
        chances = np.zeros((len(flat), count))
        for share, cells, labels, arguments in parts:
            which = cells.numbers(lambda place, here, of=arguments: of[place](flat[here])[..., 0] > 0, len(flat))
            chances[np.arange(len(flat)), labels[which]] += share
        return chances.reshape(*k.shape[:-1], count)

    return certain


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
        apart = np.eye(len(sites))[one] - np.eye(len(sites))[first]
        moments = spectrum.second_moments[:, : len(sites), : len(sites)]  # of encodings and means
        if not np.allclose(spectrum.gamma[one], spectrum.gamma[first]) or (apart @ moments @ apart > _SAME).any():
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


def _of_likelihood(
    values: Callable[..., Array], tried: Array, noise: float, length: int, rank: int, seed: int
) -> tuple[Channel, Readout]:
    """The likelihood of the label y = 1 or -1."""
    shares = tried[..., 0]
    if tried.shape[-1] > 1:
        raise ProblemError("channel", "channel: a likelihood, a formula in y, must be one number.")
    if shares.min() < 0 or not np.allclose(shares.sum(axis=0), 1, atol=1e-9) or noise > 0:
        why = "needs teacher.noise = 0" if noise > 0 else "must be from 0 to 1, and add up to 1 for y = 1 and -1"
        raise ProblemError("channel", f"channel: a likelihood, a formula in y, {why}.")

    def probabilities(k: Array) -> Array:
        return np.stack([values(k, label)[..., 0] for label in (1.0, -1.0)], axis=-1)

    return Labels(probabilities, rank, seed=seed, length=length), LabelError(probabilities)


def _shape(functions: LabelFunctions) -> tuple[int, int]:
    """Tokens and columns of the fields, whose names say them."""
    tokens = {str(field).partition("_")[0] for field in functions.fields}
    return len(tokens), len(functions.fields) // len(tokens)


def _names(problem: Problem) -> list[str]:
    names = [f"k0_{column}" for column in range(problem.teacher_columns)] + ["y"]
    return [*names, "k"] if problem.teacher_columns == 1 else names
