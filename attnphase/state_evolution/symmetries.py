"""Discrete symmetries: of a model's loss, and of a problem's tokens and clusters. `attnphase.facts` decides."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from attnphase.arrays import Array
from attnphase.facts.losses import Element, Loss, signed_symmetries
from attnphase.facts.moments import same_arrays, same_moments
from attnphase.problem.problem import Problem
from attnphase.spectrum.measure import Spectrum
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
]

ProblemSymmetry = tuple[tuple[int, ...], Array, Array, Array]
"""Order of the sites, and (A, B, C)."""

Clusters = tuple[tuple[float, ...], ...]
"""Numbers of the tokens' clusters, of every configuration; of a loss that takes none there is one without numbers."""

_MOST_CANDIDATES = 4096
_MOST_PERMUTED = 5  # tokens of which all orders are tried
_MOST_PAIRS = 384**2  # of signed permutations, as four columns of the student and of the teacher have


@lru_cache(maxsize=32)
def loss_symmetries(loss: Loss, clusters: Clusters = ((),)) -> tuple[Element, ...]:
    """Signed permutations of student and teacher columns with ``loss(h A^T, k B^T; C b) = loss(h, k; b)``.

    The trained parameters b, such as the weights of a read-out, may change signs and places with the columns. Whatever
    noise the labels have stays as it is, and so do the clusters, of whose numbers all have to be given. A loss of Q,
    whose last numbers are so many entries of it, is taken at ``A Q A^T`` on the left.

    All candidates are tried, so that a user's own loss needs no declaration. Beyond four columns (five, if the teacher
    has at most two) or three trained parameters only reflections are tried.

    Returns
    -------
    tuple of ((r, r) array, (t, t) array, (p, p) array)
        The identity is the first. C is the identity for entries of Q, which follow from A.

    Raises
    ------
    SolverError
        The loss is no number on some ordinary fields.
    """
    columns, rank = loss.kernels.columns, loss.kernels.teacher_rank
    count = math.prod(math.factorial(size) * 2**size for size in (columns, rank))
    most = 5 if count <= _MOST_PAIRS else 4
    candidates = itertools.product(_signed_permutations(columns, most), _signed_permutations(rank, most))
    return leave_loss(loss, list(candidates), clusters)


def leave_loss(loss: Loss, pairs: Sequence[tuple[Array, Array]], clusters: Clusters = ((),)) -> tuple[Element, ...]:
    """Those of some pairs (A, B), the identity first, for which some C leaves the loss as it is.

    See `signed_symmetries`, which decides.
    """
    changes = _signed_permutations(len(loss.trained) - loss.norms, most=3)
    return signed_symmetries(loss, clusters, pairs, changes)


@lru_cache(maxsize=32)
def is_sign_symmetric(loss: Loss, clusters: Clusters = ((),)) -> bool:
    """Whether the loss is unchanged by ``h -> -h`` and by ``k -> -k``, each by itself, whatever is trained."""
    one, other = np.eye(loss.kernels.columns), np.eye(loss.kernels.teacher_rank)
    if not loss.trained:  # all reflections are among the candidates
        found = loss_symmetries(loss, clusters)
        return all(any(np.array_equal(A, s * one) and np.array_equal(B, t * other) for A, B, _ in found)
                   for s, t in ((-1, 1), (1, -1)))  # fmt: skip
    wanted = [(one, other), (-one, other), (one, -other)]
    unchanged = [np.eye(len(loss.trained) - loss.norms)]
    return len(signed_symmetries(loss, clusters, wanted, unchanged)) == len(wanted)


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
        return (
            same_arrays(mixing[np.ix_(p, p)], mixing)
            and same_arrays(spectrum.gamma[o], spectrum.gamma)
            and same_moments(spectrum, spectrum.mean[:, joint], spectrum.covariance[:, joint][:, :, joint])
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
    loss: Loss,
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
        for A, B, C in loss_symmetries(loss, law.clusters)
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
    moved = spectrum.mean @ whole.T, whole @ spectrum.covariance @ whole.T
    return same_moments(spectrum, *moved) and law.unchanged(range(count), B)
