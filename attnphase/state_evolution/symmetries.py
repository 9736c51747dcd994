"""Discrete symmetries: of a model's loss, found on random fields, and of a problem's tokens and clusters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from attnphase.arrays import Array
from attnphase.errors import SolverError
from attnphase.kernels.compiler import Kernels
from attnphase.problem.problem import Problem
from attnphase.spectrum.measure import Spectrum
from attnphase.state_evolution.overlaps import norm_entries, norm_matrix
from attnphase.state_evolution.sample_law import SampleLaw

__all__ = [
    "ProblemSymmetry",
    "is_sign_symmetric",
    "leave_loss",
    "loss_symmetries",
    "problem_symmetries",
    "site_permutations",
    "teacher_unchanged",
]

Element = tuple[Array, Array]
"""Signed permutations (A, B) of the student's and the teacher's columns."""

ProblemSymmetry = tuple[tuple[int, ...], Array, Array]
"""Order of the sites, and (A, B)."""

Clusters = tuple[tuple[float, ...], ...]
"""Numbers of the tokens' clusters, of every configuration; of a loss that takes none there is one without numbers."""

_SAMPLES = 6  # random fields on which a candidate is tried
_TOLERANCE = 1e-9
_MOST_CANDIDATES = 4096
_MOST_PERMUTED = 5  # tokens of which all orders are tried


@lru_cache(maxsize=32)
def loss_symmetries(kernels: Kernels, clusters: Clusters = ((),), norms: int = 0) -> tuple[Element, ...]:
    """Signed permutations (A, B) of student and teacher columns with ``loss(h A^T, k B^T) = loss(h, k)``.

    Whatever noise the labels have stays as it is, and so do the clusters, of whose numbers all have to be given. A loss
    of Q, whose last numbers are so many entries of it, is taken at ``A Q A^T`` on the left.

    They are found by trying all candidates on random fields and parameters, so that a user's own loss needs no
    declaration. Beyond four columns only reflections are tried.

    Returns
    -------
    tuple of ((r, r) array, (t, t) array)
        The identity is the first.

    Raises
    ------
    SolverError
        The loss is no number on some of the fields.
    """
    columns, rank = kernels.columns, kernels.teacher_rank
    candidates = list(itertools.product(_signed_permutations(columns), _signed_permutations(rank)))
    return leave_loss(kernels, candidates, clusters, norms)


def leave_loss(
    kernels: Kernels, candidates: Sequence[Element], clusters: Clusters = ((),), norms: int = 0
) -> tuple[Element, ...]:
    """Those of some pairs (A, B), the identity first, with ``loss(h A^T, k B^T) = loss(h, k)`` on random fields.

    Parameters
    ----------
    kernels : Kernels
    candidates : sequence of pairs
    clusters : tuple of tuples
        The numbers of the tokens' clusters for which this has to hold, see `SampleLaw.clusters`.
    norms : int
        See `loss_symmetries`.

    Raises
    ------
    SolverError
        The loss is no number on some of the fields.
    """
    for numbers in clusters:
        candidates = _of_clusters(kernels, candidates, numbers, norms)
    return tuple(candidates)


def _of_clusters(
    kernels: Kernels, candidates: Sequence[Element], numbers: tuple[float, ...], norms: int
) -> list[Element]:
    """The candidates that leave the losses of samples with these clusters."""
    generator = np.random.default_rng(20)
    length, columns, rank = kernels.length, kernels.columns, kernels.teacher_rank
    h = generator.normal(0.1, 1.2, (_SAMPLES, length, columns))
    k = generator.normal(-0.2, 0.9, (_SAMPLES, length, rank))
    noise = np.random.default_rng(21).normal(0.1, 0.6, (_SAMPLES, length, kernels.noise_columns))
    mixing = generator.uniform(0.2, 0.8, (length, length))
    variance = generator.uniform(0.3, 0.9, length)
    fields = np.ascontiguousarray(np.concatenate([h @ A.T for A, _ in candidates]))
    own = np.tile(np.reshape(numbers, (length, kernels.cluster_columns)), (_SAMPLES, 1, 1))
    labels = [np.concatenate([k @ B.T, noise, own], axis=-1) for _, B in candidates]
    teacher = np.ascontiguousarray(np.concatenate(labels))
    losses = np.empty(len(fields))
    for part in [slice(one, one + _SAMPLES) for one in range(0, len(fields), _SAMPLES)] if norms else [slice(None)]:
        own = _turned(kernels.some_numbers, candidates[(part.start or 0) // _SAMPLES][0], norms)
        kernels.losses_at(fields[part], teacher[part], mixing, own, variance, losses[part])
    losses = losses.reshape(len(candidates), _SAMPLES)
    if not np.isfinite(losses[0]).all():
        raise SolverError(
            "the loss is not a finite number at ordinary fields: write student.score, teacher.score or loss.expression"
            " so that it is one everywhere."
        )
    same = np.abs(losses - losses[0]).max(axis=1) <= _TOLERANCE * np.abs(losses[0]).max()
    return [element for element, holds in zip(candidates, same, strict=True) if holds]


def _turned(numbers: Array, A: Array, norms: int) -> Array:
    """A loss's numbers with ``A Q A^T`` for the entries of Q, which are the last of them."""
    if not norms:
        return numbers
    Q = norm_matrix(numbers[-norms:], len(A))
    return np.concatenate([numbers[:-norms], norm_entries(A @ Q @ A.T)])


def is_sign_symmetric(kernels: Kernels, clusters: Clusters = ((),), norms: int = 0) -> bool:
    """Whether the loss is unchanged by ``h -> -h`` and by ``k -> -k``, each by itself."""
    minus_h, minus_k = -np.eye(kernels.columns), -np.eye(kernels.teacher_rank)
    found = loss_symmetries(kernels, clusters, norms)
    wanted = ((minus_h, -minus_k), (-minus_h, minus_k))
    return all(any(np.array_equal(A, a) and np.array_equal(B, b) for A, B in found) for a, b in wanted)


def _signed_permutations(size: int) -> list[Array]:
    """Reflections and exchanges of ``size`` columns, the identity first; beyond four the reflections alone."""
    orders = itertools.permutations(range(size)) if size <= 4 else [tuple(range(size))]
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
    problem: Problem, kernels: Kernels, spectrum: Spectrum, law: SampleLaw, keeps: Callable[[Array], bool]
) -> tuple[ProblemSymmetry, ...]:
    """Elements (order of the sites, A, B) that leave the whole problem unchanged.

    The loss must be unchanged by (A, B), the data's law by the order and by the teacher's B, and the regulariser by A.

    Parameters
    ----------
    keeps : callable
        Whether the regulariser is unchanged by a signed permutation of the columns.
    """
    elements = []
    allowed = [
        (A, B)
        for A, B in loss_symmetries(kernels, law.clusters, len(problem.loss.norms))
        if keeps(A) and teacher_unchanged(spectrum, law, B)
    ]
    for order in site_permutations(problem, spectrum, law):
        elements += [(order, A, B) for A, B in allowed]
    return tuple(elements)


def teacher_unchanged(spectrum: Spectrum, law: SampleLaw, B: Array) -> bool:
    """Whether the measure and the samples' law are unchanged by ``pi -> B pi``."""
    count = spectrum.sites
    whole = np.eye(count + len(B))
    whole[count:, count:] = B
    return (
        np.allclose(spectrum.mean @ whole.T, spectrum.mean, rtol=1e-12, atol=1e-14)
        and np.allclose(whole @ spectrum.covariance @ whole.T, spectrum.covariance, rtol=1e-12, atol=1e-14)
        and law.unchanged(range(count), B)
    )
