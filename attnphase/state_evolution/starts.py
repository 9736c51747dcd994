"""Where the branches start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attnphase import arguments
from attnphase.arrays import Array
from attnphase.errors import ProblemError
from attnphase.problem.problem import Problem
from attnphase.problem.units import Units
from attnphase.spectrum.measure import Spectrum, measure_of
from attnphase.state_evolution.branches import BRANCHES, Branch
from attnphase.state_evolution.overlaps import VANISHING, Overlaps, norm_entries
from attnphase.state_evolution.sizes import Sizes

__all__ = [
    "SMALL_SIGNAL",
    "branches_named",
    "branches_of",
    "check_start",
    "has_directions",
    "informed_signal",
    "initial_overlaps",
    "random_overlaps",
    "sized_rows",
    "surviving",
    "vanishes",
    "without_signal",
]

SMALL_SIGNAL = 0.25
"""Share of an informed start's order parameter below which it is small."""

# in the units of the weights: size of the signal, or variance of the noise without one
_SEMANTIC, _POSITIONAL, _UNINFORMED = 0.8, 0.2, 0.2
# in the unit of fields, of a positional start: logits of 9 leave a softmax no more than exp(-9)
_WEAK, _STRONG = 0.1, 3.0
_SEMANTIC_NOISE, _POSITIONAL_NOISE = 0.3, 0.05  # variance of the noise beside the signal


def branches_of(problem: Problem) -> list[str]:
    """The branches a problem has: no positional one without encodings or cluster means, mixed from rank 2 on."""
    encoded = has_directions(problem)
    return [
        branch.name
        for branch in map(Branch.named, BRANCHES)
        if (encoded or not branch.positional) and problem.student.rank >= branch.least_rank
    ]


def branches_named(problem: Problem, branch: Any) -> tuple[list[str], bool]:
    """The branches that an argument names, one or ``"all"`` of the problem, and whether it names all.

    Raises
    ------
    ProblemError
        It names none.
    """
    if arguments.word("branch", branch, (*BRANCHES, "all")) == "all":
        return branches_of(problem), True
    return [branch], False


def initial_overlaps(problem: Problem, branch: str) -> Overlaps:
    """Overlaps of the branch's informed start.

    Semantic: ``W`` is a multiple of the teacher's weights plus noise. Positional: along the principal directions of the
    encodings, plus noise. Mixed: the first column semantic, the second positional. Uninformed: noise. Untied weights
    start with Q = K up to noise. The columns of a value matrix start along the teacher's, except uninformed.

    Sizes are in the problem's `Units`: a semantic start has the teacher's logits, up to a factor.

    Of a student of rank 2 with a teacher of rank 1, "both columns semantic" is the semantic start: a rotation of the
    columns, which the loss does not see, brings the signal into one of them.

    Raises
    ------
    ProblemError
        Unknown branch, the positional one of a problem without encodings, or the mixed one of rank 1.
    """
    wanted, spectrum, units = Branch.named(branch), measure_of(problem), Units.of(problem)
    count, rank, teacher = spectrum.gamma.shape[0], problem.student.rank, problem.teacher.rank
    width = problem.loss.value_columns
    copies = (problem.columns - width) // rank
    # W = signal (tau, pi) + noise, row by row
    signal = np.zeros((rank, count + problem.teacher_columns))
    noise = _UNINFORMED * units.weights[:rank] ** 2
    first = wanted.semantic_columns(rank)
    noise[:first] = _SEMANTIC_NOISE * units.matched[:first] ** 2
    for column in range(min(first, teacher)):
        signal[column, count + column] = _SEMANTIC * units.matched[column]
    if wanted.positional:
        sizes, directions = _directions(problem, spectrum)
        if len(sizes) == 0:
            raise ProblemError(
                "positions.kind",
                f'the {branch} branch needs positional encodings: positions.kind is "none"; leave this branch out.',
            )
        if rank < wanted.least_rank:
            raise ProblemError(
                "student.rank", f"the {branch} branch needs student.rank of at least {wanted.least_rank}."
            )
        for column, (size, direction) in enumerate(zip(sizes[: rank - first], directions, strict=False), first):
            signal[column, :count] = _POSITIONAL * _along_encodings(units, sizes)[column] * direction / np.sqrt(size)
        noise[first:] = _POSITIONAL_NOISE * _along_encodings(units, sizes)[first:rank] ** 2
    informed = bool(wanted.order_parameters)
    shared = np.zeros((rank, rank)) if informed or copies == 1 else noise * np.eye(rank) / 2
    whole = np.zeros((problem.columns, count + problem.teacher_columns))
    scatter = np.zeros((problem.columns, problem.columns))
    for copy in range(copies):
        rows = slice(copy * rank, (copy + 1) * rank)
        whole[rows] = signal
        scatter[rows, rows] = np.diag(noise)
        for other in range(copies):
            scatter[rows, other * rank : (other + 1) * rank] += shared
    for column in range(width):
        whole[copies * rank + column, count + teacher + column] = _SEMANTIC if informed else 0.0
        scatter[copies * rank + column, copies * rank + column] = _SEMANTIC_NOISE
    return _overlaps_of(problem, spectrum, whole, scatter)


def has_directions(problem: Problem) -> bool:
    """Whether there are encodings, or clusters' means, for weights to lie along."""
    return _directions(problem, measure_of(problem))[0].size > 0


def sized_rows(problem: Problem, sizes: Sizes) -> tuple[Array, Array]:
    """Rows of weights ``signal (tau, pi)`` plus noise, as `Sizes` has them.

    Returns
    -------
    signal : (r, P + t) array
    scatter : (r, r) array
        Covariance of the noise.

    Raises
    ------
    ProblemError
        There are no encodings or clusters' means for a positional part.
    """
    spectrum = measure_of(problem)
    count, rank, teacher = spectrum.gamma.shape[0], problem.student.rank, problem.teacher.rank
    width = problem.loss.value_columns
    copies = (problem.columns - width) // rank
    signal = np.zeros((rank, count + problem.teacher_columns))
    for column in range(min(rank, teacher)):
        signal[column, count + column] = sizes.semantic
    if sizes.positional:
        lengths, directions = _directions(problem, spectrum)
        if len(lengths) == 0:
            raise ProblemError(
                "start",
                "start has a positional part, but there are no encodings, and no clusters' means: leave it out.",
            )
        for column, (length, direction) in enumerate(zip(lengths[:rank], directions, strict=False)):
            signal[column, :count] = sizes.positional * direction / np.sqrt(length)
    values = np.zeros((width, signal.shape[1]))
    for column in range(width):
        values[column, count + teacher + column] = sizes.semantic
    return np.concatenate([signal] * copies + [values]), sizes.noise**2 * np.eye(problem.columns)


def random_overlaps(problem: Problem, generator: np.random.Generator) -> Overlaps:
    """Overlaps of random weights: along random directions of encodings and teacher, with noise of random size."""
    spectrum, units = measure_of(problem), Units.of(problem)
    count, columns = spectrum.gamma.shape[0], problem.columns
    signal = generator.normal(0.0, _SEMANTIC / np.sqrt(2), (columns, count + problem.teacher_columns))
    signal[:, :count] *= _POSITIONAL / _SEMANTIC * (units.weights / units.tokens)[:, None]
    signal[:, count:] *= units.matched[:, None]
    mixing = generator.normal(0.0, 1.0, (columns, columns))
    scatter = generator.uniform(0.1, 1.0) * _SEMANTIC_NOISE * (np.eye(columns) + mixing @ mixing.T) / (1 + columns)
    return _overlaps_of(problem, spectrum, signal, units.weights[:, None] * scatter * units.weights)


def _along_encodings(units: Units, sizes: Array) -> Array:
    """Unit of the weights along encodings of these principal sizes, column by column.

    The teacher's, as long as encodings make fields of it from `_WEAK` to `_STRONG`: smaller ones are lost in the noise.
    It is no larger for weak encodings than what tokens make fields of unit size of.
    """
    single = units.fields / (_POSITIONAL * np.sqrt(sizes[0]))
    return np.clip(units.matched, np.minimum(_WEAK * single, units.weights), _STRONG * single)


def _overlaps_of(problem: Problem, spectrum: Spectrum, signal: Array, scatter: Array) -> Overlaps:
    """Overlaps of rows of weights that are ``signal (tau, pi)`` plus noise of covariance ``scatter``."""
    count, weights, moments = spectrum.gamma.shape[0], spectrum.weights, spectrum.second_moments
    weighted = np.einsum("a,la,aij->lij", weights, spectrum.gamma, moments)
    variance = spectrum.site_variances[:, None, None]
    q = signal @ weighted @ signal.T + variance * scatter
    theta = signal @ weighted[:, :, count:]
    m = np.einsum("ij,ajl,a->li", signal, moments[:, :, :count], weights)[:, :, None]
    V = 0.5 * variance / _stiffness(problem) * np.eye(problem.columns)
    loss = problem.loss
    trained = np.array([loss.numbers[name] for name in loss.trained or {}], dtype=float)
    if loss.norms:
        trained = np.append(trained, norm_entries((q / variance).mean(axis=0)))
    return Overlaps(q, V, np.ascontiguousarray(m), np.ascontiguousarray(theta), trained, norms=len(loss.norms))


def _stiffness(problem: Problem) -> Array:
    """About the curvature of the penalty of all columns, or of each, for weights of unit size."""
    regularizer, units = problem.regularizer, Units.of(problem)
    if "strength" not in regularizer.form.keys:
        strength = 0.01 * units.curvature
    elif regularizer.form.quadratic:
        strength = np.array(regularizer.strength)
    else:  # the mean slope from half of this size to three halves, over the size
        size = float(units.weights[0])
        strength = np.diff(regularizer.rows(1).value(size * np.array([0.5, 1.5])))[0] / size**2
    return np.maximum(strength, regularizer.ridge)


def _directions(problem: Problem, spectrum: Spectrum) -> tuple[Array, list[Array]]:
    """Principal directions of the encodings: eigenvalues, and the directions as combinations of the sites' tau.

    Of mixture tokens they are those of the tokens' means over their clusters; where these vanish, of the clusters'
    means themselves.
    """
    count = spectrum.gamma.shape[0]
    sites_gram = np.einsum("a,aij->ij", spectrum.weights, spectrum.second_moments)[:count, :count]
    configurations, probabilities = problem.cluster_law
    marginal = np.zeros((problem.tokens.length, count))
    for sites, probability in zip(configurations, probabilities, strict=True):
        marginal[np.arange(len(sites)), sites] += probability
    least = 1e-12 * Units.of(problem).tokens ** 2
    for average in (marginal, np.eye(count)):
        values, vectors = np.linalg.eigh(average @ sites_gram @ average.T)
        values, vectors = values[::-1], vectors[:, ::-1]
        known = int((values > 1e-9 * values[0]).sum()) if values[0] > least else 0
        if known:
            axes = [vectors[:, i] * np.sign(vectors[np.abs(vectors[:, i]).argmax(), i]) for i in range(known)]
            return values[:known], [axis @ average for axis in axes]
    return np.empty(0), []


def informed_signal(overlaps: Overlaps, branch: str) -> float:
    """Size of the order parameter that tells an informed branch from the uninformed one: theta or m, or the smaller."""
    names = Branch.named(branch).order_parameters or ("q",)
    return min(float(np.abs(getattr(overlaps, name)).max()) for name in names)


def vanishes(problem: Problem, overlaps: Overlaps, branch: str) -> bool:
    """Whether an order parameter of the branch is zero to the accuracy of a solver, which measures no smaller ones."""
    units, rho = Units.of(problem), measure_of(problem).rho
    natural = np.trace(rho, axis1=-2, axis2=-1).mean() / (rho.shape[-1] * units.tokens**2)
    sizes = {"m": np.sqrt(natural), "theta": natural * units.tokens}
    return any(
        np.abs(getattr(overlaps, name) / units.fields[:, None]).max() <= VANISHING * sizes[name]
        for name in Branch.named(branch).order_parameters
    )


def without_signal(overlaps: Overlaps) -> Overlaps:
    """Overlaps with m = theta = 0, exactly those of an uninformed point."""
    return replace(overlaps, m=0 * overlaps.m, theta=0 * overlaps.theta)


def surviving(overlaps: Overlaps, informed: Overlaps, branch: str) -> Overlaps:
    """Overlaps with the branch's order parameters that are small beside the informed start's set to zero.

    They are those of an uninformed point; of another branch where one of two order parameters remains.
    """
    large = {
        name: getattr(overlaps, name)
        for name in Branch.named(branch).order_parameters
        if np.abs(getattr(overlaps, name)).max() >= SMALL_SIGNAL * np.abs(getattr(informed, name)).max()
    }
    return replace(without_signal(overlaps), **large)


def check_start(problem: Problem, overlaps: Overlaps, like: Overlaps) -> None:
    """Refuse a starting point that is not one of this problem; `like` has the shapes.

    Raises
    ------
    ProblemError
        Naming ``start``.
    """
    for name in ("q", "V", "m", "theta", "trained"):
        shape, needed = np.shape(getattr(overlaps, name)), getattr(like, name).shape
        if shape != needed:
            raise ProblemError("start", f"start.{name} has shape {shape}, but this problem needs {needed}.")
    if problem.rows.holds_zero and not (overlaps.q.any() or overlaps.V.any()):  # zero weights have no variance
        overlaps = replace(overlaps, V=like.V)
    if not overlaps.feasible(measure_of(problem).rho):
        raise ProblemError(
            "start",
            "start needs a positive definite V and a positive semidefinite joint covariance (q, theta; theta^T, rho).",
        )
