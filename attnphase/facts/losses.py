"""What leaves the loss of a sample as it is: signs and exchanges of columns, with what is trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.errors import SolverError
from attnphase.facts.points import SCALES, Block, Points, points_of
from attnphase.facts.questions import Asked, group_of
from attnphase.kernels.compiler import Kernels
from attnphase.kernels.key import model_numbers, trained_places
from attnphase.kernels.reference import PrintedLoss, printed_loss
from attnphase.lazy import loaded_on_use
from attnphase.problem.problem import Problem
from attnphase.problem.units import Units
from attnphase.spectrum.measure import Spectrum

with loaded_on_use(__name__):
    from derivations.models import model, parity, scalar

__all__ = [
    "Element",
    "Loss",
    "SampleLoss",
    "Sizes",
    "exchanges_tokens",
    "norm_matrices",
    "sample_points",
    "signed_symmetries",
]

Element = tuple[Array, Array, Array]
"""Signed permutations (A, B, C) of the student's and the teacher's columns, and of what is trained."""


@dataclass(frozen=True)
class Sizes:
    """Of a sample's numbers, each a power of two: facts are asked anew only where these change.

    Attributes
    ----------
    student, teacher : tuple of float
        Of the fields of every column.
    noise : float
        Of the labels' noise.
    trained : float
        Of a trained parameter that adds to a field; others are of size one.
    weights : tuple of float
        Of the student's weights, column by column.
    temperatures : (float, float)
        Of student and teacher.
    """

    student: tuple[float, ...]
    teacher: tuple[float, ...]
    noise: float
    trained: float
    weights: tuple[float, ...]
    temperatures: tuple[float, float]

    @classmethod
    def of(cls, problem: Problem, kernels: Kernels, spectrum: Spectrum) -> Sizes:
        """Those of a problem: of the teacher's fields, and of fields that weights of the problem's units make."""
        units, columns = Units.of(problem), kernels.columns
        moments = np.diagonal(spectrum.rho, axis1=1, axis2=2) + spectrum.teacher_means**2
        teacher = np.sqrt(moments.max(axis=0))
        positions = float(np.sqrt(np.diagonal(problem.positions_gram).max()))
        student = np.max([units.fields, units.weights * positions, units.matched * teacher.max()], axis=0)
        return cls(
            _powers(np.resize(student, columns)),
            _powers(np.resize(teacher, kernels.teacher_rank)),
            _powers(np.sqrt([problem.target_noise or 1.0]))[0],
            _powers([units.tokens])[0],
            _powers(np.resize(units.weights, columns)),
            (_powers([problem.student.temperature])[0], _powers([problem.teacher.temperature])[0]),
        )


def _powers(values: Any) -> tuple[float, ...]:
    """The powers of two next to some sizes; 1 for none."""
    sizes = np.where(np.asarray(values) > 0, values, 1.0)
    return tuple((2.0 ** np.round(np.log2(sizes))).tolist())


@dataclass(frozen=True, eq=False)
class SampleLoss:
    """The loss of a sample as a function of all its numbers in a row: h, k, noise, and what is trained, Q last.

    Attributes
    ----------
    kernels : Kernels
    mixing, numbers, variance : arrays
        As the kernels take them.
    offsets : (L, label fields) array
        What is added to what labels are made of: means, and the numbers of clusters.
    trained : tuple of int
        Where trained parameters stand among the numbers, and the entries of Q behind them.
    """

    kernels: Kernels
    mixing: Array
    numbers: Array
    variance: Array
    offsets: Array
    trained: tuple[int, ...] = ()

    @cached_property
    def edges(self) -> list[int]:
        """Where the parts of a row end."""
        kernels = self.kernels
        widths = [kernels.length * n for n in (kernels.columns, kernels.teacher_rank, kernels.noise_columns)]
        return np.cumsum([*widths, len(self.trained)]).tolist()

    @cached_property
    def printed(self) -> PrintedLoss:
        """The same loss in NumPy and mpmath."""
        return printed_loss(self.kernels.key)

    def split(self, points: Array) -> tuple[Array, Array, Array, Array]:
        """Fields h (N, L, r), k (N, L, t), noise (N, L, noise), and what is trained (N, p)."""
        h, k, noise, trained, _ = np.split(points, self.edges, axis=1)
        length = self.kernels.length
        first, second, third = (part.reshape(len(points), length, -1) for part in (h, k, noise))
        return first, second, third, trained

    def joined(self, h: Array, k: Array, noise: Array, trained: Array) -> Array:
        """Inverse of `split`."""
        return np.concatenate([part.reshape(len(h), -1) for part in (h, k, noise, trained)], axis=1)

    def _labels(self, k: Array, noise: Array) -> Array:
        labels = np.broadcast_to(self.offsets, (len(k), *self.offsets.shape)).copy()
        labels[..., : k.shape[2]] += k
        labels[..., k.shape[2] : k.shape[2] + noise.shape[2]] += noise
        return labels

    def parts(self, points: Array) -> Iterator[tuple[NDArray[np.intp], Array, Array, Array]]:
        """Points with the same trained parameters: their places, h, labels and the loss's numbers."""
        h, k, noise, trained = self.split(points)
        labels = self._labels(k, noise)
        if not trained.shape[1]:
            yield np.arange(len(points)), np.ascontiguousarray(h), labels, self.numbers
            return
        several, which = np.unique(trained, axis=0, return_inverse=True)
        for place, own in enumerate(several):
            numbers, here = self.numbers.copy(), np.flatnonzero(which.ravel() == place)
            numbers[list(self.trained)] = own
            yield here, np.ascontiguousarray(h[here]), np.ascontiguousarray(labels[here]), numbers

    def double(self, points: Array) -> Array:
        """See `Question`: the compiled loss."""
        found = np.empty((len(points), 1))
        for here, h, labels, numbers in self.parts(points):
            values = np.empty(len(h))
            self.kernels.losses_at(h, labels, self.mixing, numbers, self.variance, values)
            found[here, 0] = values
        return found

    def exact(self, points: Array) -> NDArray[np.object_]:
        """See `Question`: the loss in mpmath."""
        found = np.empty((len(points), 1), dtype=object)
        for here, h, labels, numbers in self.parts(points):
            found[here, 0] = self.printed.in_digits(h, labels, self.mixing, numbers, self.variance)[0]
        return found

    def kinks(self, points: Array) -> Array:
        """Arguments (N, K) of all functions with kinks or jumps."""
        rows = [
            (here, self.printed.kinks(h, labels, self.mixing, numbers, self.variance))
            for here, h, labels, numbers in self.parts(points)
        ]
        found = np.empty((len(points), rows[0][1].shape[1]))
        for here, values in rows:
            found[here] = values
        return found


@dataclass(frozen=True)
class Loss:
    """The loss of a model at sizes of a problem, with the problem's own values of what is not trained in it.

    Attributes
    ----------
    kernels : Kernels
    sizes : Sizes
    own : tuple of float
        Numbers of the loss's own, those of trained parameters included.
    trained : tuple of int
        Where trained parameters stand among all numbers, and the entries of Q behind them.
    norms : int
        How many these are.
    witnesses : tuple of Asked
        Samples at which facts have been seen to fail: there they are asked too.
    """

    kernels: Kernels
    sizes: Sizes
    own: tuple[float, ...]
    trained: tuple[int, ...]
    norms: int
    witnesses: tuple[Asked, ...] = ()

    @classmethod
    def of(cls, problem: Problem, kernels: Kernels, spectrum: Spectrum, witnesses: tuple[Asked, ...] = ()) -> Loss:
        """That of a problem."""
        places = tuple(trained_places(problem))
        numbers = model_numbers(problem)[len(model_numbers(problem)) - kernels.parameters :].copy()
        first = len(model_numbers(problem)) - kernels.parameters
        numbers[[place - first for place in places]] = 0.0  # they vary, and are no part of what is asked
        sizes, norms = Sizes.of(problem, kernels, spectrum), len(problem.loss.norms)
        return cls(kernels, sizes, tuple(numbers.tolist()), places, norms, witnesses)

    def with_clusters(self, numbers: Sequence[float] = (), tokens: Sequence[int] | None = None) -> SampleLoss:
        """The loss of samples whose tokens are in these clusters, with a mixing and variances of no special values.

        They stay as they are under an exchange of tokens, if one is given.
        """
        kernels, generator = self.kernels, np.random.default_rng(20)
        length = kernels.length
        mixing, variance = generator.uniform(0.2, 0.8, (length, length)), generator.uniform(0.3, 0.9, length)
        if tokens is not None:
            powers = [np.arange(length)]
            while not np.array_equal(following := powers[-1][list(tokens)], powers[0]):
                powers.append(following)
            mixing = np.mean([mixing[np.ix_(p, p)] for p in powers], axis=0)
            # of rounding, which the order of the sum decides, nothing is left
            mixing, variance = np.round(mixing, 9), np.round(np.mean([variance[p] for p in powers], axis=0), 9)
        student, teacher = self.sizes.temperatures
        plain = np.array([0.37, student, teacher, *np.ones(1 + kernels.columns), *self.own])
        offsets = np.zeros((length, kernels.label_fields))
        offsets[:, kernels.label_normals :] = np.reshape(numbers, (length, kernels.cluster_columns))
        return SampleLoss(kernels, mixing, plain, variance, offsets, self.trained)

    def image(self, element: Element, points: Array) -> Array:
        """What an element makes of points: entries of Q become those of ``A Q A^T``."""
        (A, B, C), layout, free = element, self.layout, len(self.trained) - self.norms
        h, k, noise, trained = layout.split(points)
        moved = trained @ C.T
        if self.norms:
            turned = A @ norm_matrices(trained[:, free:], len(A)) @ A.T
            moved[:, free:] = turned[:, *np.triu_indices(len(A))]
        return layout.joined(h @ A.T, k @ B.T, noise, moved)

    @cached_property
    def layout(self) -> SampleLoss:
        """How a row of numbers is made up, whatever the clusters."""
        return self.with_clusters((0.0,) * (self.kernels.length * self.kernels.cluster_columns))

    def asked(self, numbers: Sequence[float] = (), each: int = 3, seed: int = 20) -> Asked:
        """The loss at the points where facts about it are asked.

        Raises
        ------
        SolverError
            It is no finite number at fields of ordinary size.
        """
        question = self.with_clusters(numbers)
        points = sample_points(question, self.sizes, self.norms, each, seed)
        asked = Asked.of(question, points)
        if not np.isfinite(question.double(points.values[:each])).all():
            raise SolverError(
                "the loss is not a finite number at ordinary fields: write student.score, teacher.score or"
                " loss.expression so that it is one everywhere."
            )
        return asked

    @cached_property
    def expression(self) -> tuple[Any, Any, Any] | None:
        """The loss as an expression, and the symbols of h and k, if it was given as one."""
        found = self.kernels.key.model()
        return found.expression if isinstance(found, scalar.ScalarModel) else None

    def unchanged_by_rule(self, A: Array, B: Array, C: Array) -> bool:
        """Whether rules show that an element leaves the loss as it is; False says nothing."""
        if self.kernels.key.loss != "expression":  # else SymPy would be loaded for what digits decide as well
            return False
        written = self.expression
        if written is None:
            return False
        expression, h, k = written
        changes = _changes(h, A, self.kernels.columns) | _changes(k, B, self.kernels.label_fields)
        names = self.kernels.key.trained
        own = [model.parameter_symbol(name) for name in names]
        free = len(own) - self.norms
        changes |= _changes(own[:free], C[:free, :free], free)
        if self.norms:
            changes |= _changes_of_norms(own[free:], A)
        return parity.unchanged_by_rule([expression], changes)


def _changes(symbols: Sequence[Any], matrix: Array, width: int) -> dict[Any, tuple[int, Any]]:
    """What takes the place of every symbol, of rows of so many, the first of which a signed permutation changes."""
    found = {}
    for first in range(0, len(symbols), width or 1):
        for i, row in enumerate(matrix):
            j = int(np.abs(row).argmax())
            found[symbols[first + i]] = int(row[j]), symbols[first + j]
    return found


def _changes_of_norms(symbols: Sequence[Any], A: Array) -> dict[Any, tuple[int, Any]]:
    """The same of the entries of Q, the upper triangle of a matrix."""
    columns = len(A)
    places = {pair: n for n, pair in enumerate((i, j) for i in range(columns) for j in range(i, columns))}
    image, signs = np.abs(A).argmax(axis=1).tolist(), A.sum(axis=1)
    found = {}
    for (i, j), n in places.items():
        other = places[min(image[i], image[j]), max(image[i], image[j])]
        found[symbols[n]] = int(signs[i] * signs[j]), symbols[other]
    return found


def sample_points(question: SampleLoss, sizes: Sizes, norms: int = 0, each: int = 3, seed: int = 20) -> Points:
    """Points of a sample's numbers at these sizes."""
    kernels, length = question.kernels, question.kernels.length
    count = len(question.trained)
    blocks = [
        Block(np.zeros(length * len(size)), np.tile(size, length))
        for size in (sizes.student, sizes.teacher, (sizes.noise,) * kernels.noise_columns)
    ]
    blocks.append(Block(np.zeros(count), np.ones(count)))
    points = points_of(blocks, question.kinks if question.printed.has_kinks else None, each=each, seed=seed)
    if not count:
        return points
    trained = points.values[:, question.edges[2] :]
    trained[1::2, : count - norms] *= sizes.trained
    if norms:  # a matrix that is positive definite, of weights of all sizes
        generator, columns = np.random.default_rng(21), kernels.columns
        roots = generator.standard_normal((len(trained), columns, columns)) * np.array(sizes.weights)[:, None]
        roots *= np.resize(SCALES, len(trained))[:, None, None]
        trained[:, count - norms :] = (roots @ roots.mT)[:, *np.triu_indices(columns)]
    return points


@lru_cache(maxsize=64)
def _asked(loss: Loss, clusters: tuple[float, ...]) -> Asked:
    return loss.asked(clusters)


def signed_symmetries(
    loss: Loss, clusters: Sequence[tuple[float, ...]], pairs: Sequence[tuple[Array, Array]], changes: Sequence[Array]
) -> tuple[Element, ...]:
    """Those of some pairs (A, B), the identity first, for which one of some changes C leaves the loss as it is.

    The noise of the labels and the clusters stay; entries of Q become those of ``A Q A^T``.

    Parameters
    ----------
    loss : Loss
    clusters : sequence of tuples
        The numbers of the tokens' clusters for which this has to hold.
    pairs : sequence
    changes : sequence
        Signed permutations of the trained parameters that are no entries of Q, the identity first.

    Raises
    ------
    SolverError
        The loss is no number on some ordinary fields.
    """
    asked = [*(_asked(loss, numbers) for numbers in clusters), *loss.witnesses]
    free = len(loss.trained) - loss.norms

    rest, candidates = list(enumerate(pairs)), dict[int, Element]()
    for change in changes:
        C = np.eye(len(loss.trained))
        C[:free, :free] = change
        own = [(place, (A, B, C)) for place, (A, B) in rest]
        for one in asked:
            kept = {id(element) for element in one.possible([element for _, element in own], loss.image)}
            own = [(place, element) for place, element in own if id(element) in kept]
        candidates |= dict(own)
        rest = [one for one in rest if one[0] not in candidates]

    def holds(element: Element) -> bool:
        return loss.unchanged_by_rule(*element) or all(
            one.holds(lambda points: loss.image(element, points)) for one in asked
        )

    ordered = [candidates[place] for place in sorted(candidates)]
    return tuple(group_of(ordered, holds, _product, _key)) if ordered else ()


@lru_cache(maxsize=256)
def exchanges_tokens(
    loss: Loss, source: tuple[float, ...], place: tuple[float, ...], tokens: tuple[int, ...], of_entries: bool
) -> bool:
    """Whether samples of some clusters have the losses of their images, which are of others.

    Parameters
    ----------
    source, place : tuple of float
        Numbers of the clusters of the samples and of their images.
    tokens : tuple of int
        The token that every token of an image is made of.
    of_entries : bool
        Whether the noise of the labels goes with the tokens; else it stays.
    """
    order = list(tokens)
    if source == place and order == sorted(order):
        return True
    question, images = (loss.with_clusters(numbers, tokens) for numbers in (source, place))
    asked = Asked.of(question, sample_points(question, loss.sizes, loss.norms))

    def image(points: Array) -> Array:
        h, k, noise, trained = question.split(points)
        moved = noise[:, order][:, :, order] if of_entries and noise.shape[2] else noise
        return question.joined(h[:, order], k[:, order], moved, trained)

    if not (asked.possible([None], lambda _, points: image(points), images) and asked.holds(image, images)):
        return False
    for witness in loss.witnesses:
        seen = witness.question
        assert isinstance(seen, SampleLoss)
        if np.array_equal(seen.offsets, question.offsets):
            moved = replace(seen, offsets=images.offsets, variance=seen.variance[order])
            if not witness.possible([None], lambda _, points: image(points), moved):
                return False
    return True


def norm_matrices(entries: NDArray[Any], columns: int) -> NDArray[Any]:
    """Symmetric matrices (..., r, r) with these entries (..., n), the upper triangle row by row."""
    whole = np.empty((*entries.shape[:-1], columns, columns), dtype=entries.dtype)
    rows, others = np.triu_indices(columns)
    whole[..., rows, others] = entries
    whole[..., others, rows] = entries
    return whole


def _product(one: Element, other: Element) -> Element:
    (A, B, C), (D, E, F) = one, other
    return A @ D, B @ E, C @ F


def _key(element: Element) -> bytes:
    return b"".join((matrix + 0.0).tobytes() for matrix in element[:2])
