"""Discrete symmetries: of a model's loss, found on random fields, and of a problem's tokens and clusters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.errors import SolverError
from attnphase.kernels.compiler import Kernels
from attnphase.kernels.key import trained_places
from attnphase.problem.problem import Problem
from attnphase.spectrum.measure import Spectrum
from attnphase.state_evolution.overlaps import norm_entries, norm_matrix
from attnphase.state_evolution.sample_law import SampleLaw
from attnphase.state_evolution.trained import TrainedPenalties

__all__ = [
    "ProblemSymmetry",
    "is_sign_symmetric",
    "leave_loss",
    "loss_symmetries",
    "problem_symmetries",
    "site_permutations",
    "teacher_unchanged",
    "turned_numbers",
]

Element = tuple[Array, Array, Array]
"""Signed permutations (A, B, C) of the student's and the teacher's columns, and of what is trained."""

ProblemSymmetry = tuple[tuple[int, ...], Array, Array, Array]
"""Order of the sites, and (A, B, C)."""

Clusters = tuple[tuple[float, ...], ...]
"""Numbers of the tokens' clusters, of every configuration; of a loss that takes none there is one without numbers."""

_FEW, _SAMPLES = 8, 256  # random fields on which a candidate is tried; labels of few values are often equal by chance
_TOLERANCE = 1e-9
_MOST_CANDIDATES = 4096
_MOST_PERMUTED = 5  # tokens of which all orders are tried
_MOST_PAIRS = 384**2  # of signed permutations, as four columns of the student and of the teacher have


@lru_cache(maxsize=32)
def loss_symmetries(
    kernels: Kernels, clusters: Clusters = ((),), norms: int = 0, trained: tuple[int, ...] = ()
) -> tuple[Element, ...]:
    """Signed permutations of student and teacher columns with ``loss(h A^T, k B^T; C b) = loss(h, k; b)``.

    The trained parameters b, such as the weights of a read-out, may change signs and places with the columns. Whatever
    noise the labels have stays as it is, and so do the clusters, of whose numbers all have to be given. A loss of Q,
    whose last numbers are so many entries of it, is taken at ``A Q A^T`` on the left.

    They are found by trying all candidates on random fields and parameters, so that a user's own loss needs no
    declaration. Beyond four columns (five, if the teacher has at most two) or three trained parameters only
    reflections are tried.

    Parameters
    ----------
    trained : tuple of int
        Where trained parameters stand among the loss's numbers, and the entries of Q behind them.

    Returns
    -------
    tuple of ((r, r) array, (t, t) array, (p, p) array)
        The identity is the first. C is the identity for entries of Q, which follow from A.

    Raises
    ------
    SolverError
        The loss is no number on some of the fields.
    """
    columns, rank = kernels.columns, kernels.teacher_rank
    count = math.prod(math.factorial(size) * 2**size for size in (columns, rank))
    most = 5 if count <= _MOST_PAIRS else 4
    candidates = list(itertools.product(_signed_permutations(columns, most), _signed_permutations(rank, most)))
    return leave_loss(kernels, candidates, clusters, norms, trained)


def leave_loss(
    kernels: Kernels,
    pairs: Sequence[tuple[Array, Array]],
    clusters: Clusters = ((),),
    norms: int = 0,
    trained: tuple[int, ...] = (),
) -> tuple[Element, ...]:
    """Those of some pairs (A, B), the identity first, for which some C leaves the loss unchanged on random fields.

    Parameters
    ----------
    kernels : Kernels
    pairs : sequence of pairs
    clusters : tuple of tuples
        The numbers of the tokens' clusters for which this has to hold, see `SampleLaw.clusters`.
    norms : int
        Number of the entries of Q.
    trained : tuple of int
        See `loss_symmetries`.

    Raises
    ------
    SolverError
        The loss is no number on some of the fields.
    """
    rest, found = list(enumerate(pairs)), {}
    for signs in _signed_permutations(max(len(trained) - norms, 0), most=3):
        C = np.eye(len(trained))
        C[: len(signs), : len(signs)] = signs
        holding = rest
        for samples in (1, _FEW, _SAMPLES):  # most fail on the first
            for numbers in clusters:
                own = [pair for _, pair in holding]
                same = _unchanged(kernels, own, C, trained, numbers, norms, samples) if own else []
                holding = [one for one, holds in zip(holding, same, strict=True) if holds]
        found |= {place: (A, B, C) for place, (A, B) in holding}
        rest = [one for one in rest if one[0] not in found]
    return tuple(found[place] for place in sorted(found))


def _unchanged(
    kernels: Kernels,
    pairs: Sequence[tuple[Array, Array]],
    C: Array,
    trained: tuple[int, ...],
    clusters: tuple[float, ...],
    norms: int,
    samples: int,
) -> NDArray[np.bool_]:
    """Which pairs leave the losses of random samples with these clusters, with C for what is trained."""
    generator = np.random.default_rng(20)
    length, columns, rank = kernels.length, kernels.columns, kernels.teacher_rank
    h = generator.normal(0.1, 1.2, (_SAMPLES, length, columns))[:samples]
    k = generator.normal(-0.2, 0.9, (_SAMPLES, length, rank))[:samples]
    noise = np.random.default_rng(21).normal(0.1, 0.6, (_SAMPLES, length, kernels.noise_columns))[:samples]
    mixing = generator.uniform(0.2, 0.8, (length, length))
    variance = generator.uniform(0.3, 0.9, length)
    own = np.tile(np.reshape(clusters, (length, kernels.cluster_columns)), (samples, 1, 1))

    def losses(pairs: Sequence[tuple[Array, Array]], numbers: Array) -> Array:
        fields = np.ascontiguousarray(np.concatenate([h @ A.T for A, _ in pairs]))
        labels = [np.concatenate([k @ B.T, noise, own], axis=-1) for _, B in pairs]
        teacher, values = np.ascontiguousarray(np.concatenate(labels)), np.empty(len(fields))
        kernels.losses_at(fields, teacher, mixing, numbers, variance, values)
        return values.reshape(len(pairs), samples)

    plain = kernels.some_numbers
    reference = losses([(np.eye(columns), np.eye(rank))], plain)
    if not np.isfinite(reference).all():
        raise SolverError(
            "the loss is not a finite number at ordinary fields: write student.score, teacher.score or loss.expression"
            " so that it is one everywhere."
        )
    if norms:  # each pair has numbers of its own
        parts = [losses([(A, B)], turned_numbers(plain, A, C, trained, norms)) for A, B in pairs]
        values = np.concatenate(parts)
    else:
        values = losses(pairs, turned_numbers(plain, np.eye(columns), C, trained))
    same: NDArray[np.bool_] = np.abs(values - reference).max(axis=1) <= _TOLERANCE * np.abs(reference).max()
    return same


def turned_numbers(numbers: Array, A: Array, C: Array, trained: Sequence[int], norms: int = 0) -> Array:
    """A loss's numbers with ``C b`` for what is trained, and ``A Q A^T`` for the entries of Q, which are the last."""
    found, places = numbers.copy(), list(trained)
    found[places] = C @ numbers[places]
    if norms:
        found[-norms:] = norm_entries(A @ norm_matrix(found[-norms:], len(A)) @ A.T)
    return found


def is_sign_symmetric(kernels: Kernels, clusters: Clusters = ((),), norms: int = 0) -> bool:
    """Whether the loss is unchanged by ``h -> -h`` and by ``k -> -k``, each by itself."""
    one, other = np.eye(kernels.columns), np.eye(kernels.teacher_rank)
    wanted = [(one, other), (-one, other), (one, -other)]
    return len(leave_loss(kernels, wanted, clusters, norms)) == len(wanted)


def _signed_permutations(size: int, most: int) -> list[Array]:
    """Reflections and exchanges of ``size`` columns, the identity first; beyond `most` the reflections alone."""
    orders = itertools.permutations(range(size)) if size <= most else [tuple(range(size))]
    signs = list(itertools.product((1.0, -1.0), repeat=size))
    return [np.eye(size)[list(order)] * np.array(sign)[:, None] for order in orders for sign in signs]


def site_permutations(problem: Problem, spectrum: Spectrum, law: SampleLaw) -> tuple[tuple[int, ...], ...]:
    """Permutations of the tokens, with their clusters, that leave the tokens' law and the mixing matrix unchanged.

    Each is an order of the sites: site s takes the place of site ``order[s]``. They form a group. Of more than five
    tokens it holds rotations of those that any two of can be exchanged, which make all of them of each other.
    """
    mixing, count, same = problem.mixing_matrix, len(problem.sites), np.eye(law.rho.shape[-1])

    def holds(tokens: Sequence[int], order: Sequence[int]) -> bool:
        p, o = list(tokens), list(order)
        joint = [*o, *range(count, spectrum.mean.shape[1])]
        moments = spectrum.covariance[:, joint][:, :, joint]
        return (
            np.allclose(mixing[np.ix_(p, p)], mixing, rtol=1e-12, atol=1e-14)
            and np.allclose(spectrum.gamma[o], spectrum.gamma, rtol=1e-12)
            and np.allclose(spectrum.mean[:, joint], spectrum.mean, rtol=1e-12, atol=1e-14)
            and np.allclose(moments, spectrum.covariance, rtol=1e-12, atol=1e-14)
            and law.unchanged(order, same)
        )

    if problem.tokens.length > _MOST_PERMUTED:
        return _rotations(_sites_of_tokens(problem), holds)
    candidates = itertools.islice(_site_orders(problem), _MOST_CANDIDATES)
    return tuple(order for tokens, order in candidates if holds(tokens, order))


def _sites_of_tokens(problem: Problem) -> list[list[int]]:
    """The sites of every token, in the order of its clusters."""
    return [[s for s, (token, _) in enumerate(problem.sites) if token == l] for l in range(problem.tokens.length)]


def _rotations(
    of_token: Sequence[Sequence[int]], holds: Callable[[Sequence[int], Sequence[int]], bool]
) -> tuple[tuple[int, ...], ...]:
    """Orders of the sites that rotate tokens among those that they can be exchanged with, cluster by cluster."""

    def order_of(tokens: Sequence[int]) -> tuple[int, ...]:
        order = [0] * sum(map(len, of_token))
        for own, token in zip(of_token, tokens, strict=True):
            for site, image in zip(own, of_token[token], strict=True):
                order[site] = image
        return tuple(order)

    alike: list[list[int]] = []
    tokens = range(len(of_token))
    for token in tokens:
        for first, *_ in (same := [others for others in alike if len(of_token[others[0]]) == len(of_token[token])]):
            exchanged = [{first: token, token: first}.get(other, other) for other in tokens]
            if holds(exchanged, order_of(exchanged)):
                next(others for others in same if others[0] == first).append(token)
                break
        else:
            alike.append([token])
    found = []
    for steps in itertools.product(*(range(len(others)) for others in alike)):
        places = {
            token: others[(i + step) % len(others)]
            for others, step in zip(alike, steps, strict=True)
            for i, token in enumerate(others)
        }
        found.append(order_of([places[token] for token in tokens]))
    return tuple(found)


def _site_orders(problem: Problem):  # noqa: ANN202
    """(permutation of the tokens, order of the sites), every exchange of clusters within the tokens included."""
    of_token = _sites_of_tokens(problem)
    for tokens in itertools.permutations(range(problem.tokens.length)):
        if any(len(of_token[a]) != len(of_token[b]) for a, b in enumerate(tokens)):
            continue
        for clusters in itertools.product(*(itertools.permutations(of_token[b]) for b in tokens)):
            order = [0] * len(problem.sites)
            for here, images in zip(of_token, clusters, strict=True):
                for site, image in zip(here, images, strict=True):
                    order[site] = image
            yield tokens, tuple(order)


def problem_symmetries(
    problem: Problem,
    kernels: Kernels,
    spectrum: Spectrum,
    law: SampleLaw,
    penalties: TrainedPenalties,
    keeps: Callable[[Array], bool],
) -> tuple[ProblemSymmetry, ...]:
    """Elements (order of the sites, A, B, C) that leave the whole problem unchanged.

    The loss must be unchanged by (A, B, C), the data's law by the order and by the teacher's B, the regulariser by A,
    and what values of trained parameters cost by C.

    Parameters
    ----------
    keeps : callable
        Whether the regulariser is unchanged by a signed permutation of the columns.
    """
    elements: list[ProblemSymmetry] = []
    allowed = [
        (A, B, C)
        for A, B, C in loss_symmetries(kernels, law.clusters, len(problem.loss.norms), tuple(trained_places(problem)))
        if keeps(A) and teacher_unchanged(spectrum, law, B) and penalties.unchanged(C)
    ]
    for order in site_permutations(problem, spectrum, law):
        elements += [(order, *one) for one in allowed]
    return tuple(elements)


def teacher_unchanged(spectrum: Spectrum, law: SampleLaw, B: Array) -> bool:
    """Whether the measure and the samples' law are unchanged by ``pi -> B pi``."""
    if spectrum.law is not None and not (spectrum.law.is_even or B.min() >= 0):
        return False
    count = spectrum.sites
    whole = np.eye(count + len(B))
    whole[count:, count:] = B
    return (
        np.allclose(spectrum.mean @ whole.T, spectrum.mean, rtol=1e-12, atol=1e-14)
        and np.allclose(whole @ spectrum.covariance @ whole.T, spectrum.covariance, rtol=1e-12, atol=1e-14)
        and law.unchanged(range(count), B)
    )
