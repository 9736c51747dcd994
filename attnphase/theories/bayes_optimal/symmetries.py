"""Orthogonal matrices of the teacher's columns that leave labels unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations, product

import numpy as np

from attnphase.arrays import Array
from attnphase.facts import group_of
from attnphase.facts.labels import LabelFacts

__all__ = ["Image", "all_rotations", "column_images", "every_signed_permutation", "signed_permutations", "turns"]

Image = tuple[tuple[float, ...], ...]
"""A matrix of the columns."""


def turns(rank: int, count: int) -> tuple[Image, ...]:
    """Orthogonal matrices that leave ``k k^T`` unchanged: all signs, or rotations of two columns, reflected too.

    Of three columns they are the rotations of a tetrahedron and their opposites, whatever the count.  The identity is
    the first.
    """
    if rank == 1:
        return ((1.0,),), ((-1.0,),)
    if rank == 3:
        frame = _generic(rank, 0)  # in which they are no signed permutations
        cyclic = (g for g in every_signed_permutation(rank) if np.linalg.det(np.abs(g)) > 0)
        return tuple(_as_image(frame @ g @ frame.T) for g in cyclic)
    angles = 2 * np.pi * np.arange(count) / count
    pairs = [((c, -s), (s, c)) for c, s in zip(np.cos(angles).tolist(), np.sin(angles).tolist(), strict=True)]
    return (*pairs, *(((a, -b), (c, -d)) for (a, b), (c, d) in pairs))


def _generic(rank: int, seed: int) -> Array:
    """Some orthogonal matrix: a rotation if the seed is even, or else one with a reflection."""
    found = np.linalg.qr(np.random.default_rng(seed).standard_normal((rank, rank)))[0]
    found[0] *= np.sign(np.linalg.det(found)) * (-1) ** seed
    return np.asarray(found, float)


def _as_image(matrix: Array) -> Image:
    return tuple(map(tuple, matrix.tolist()))


def every_signed_permutation(rank: int) -> Iterator[Array]:
    """The matrices that exchange columns and change their signs, the identity first."""
    for order in permutations(range(rank)):
        for signs in product((1.0, -1.0), repeat=rank):
            yield np.diag(signs)[list(order)]


def signed_permutations(holds: Callable[[Array], bool], rank: int) -> tuple[Image, ...]:
    """Those of the columns that hold, which are a group; the identity is the first."""

    def key(element: Array) -> tuple[int, ...]:
        return tuple(element.astype(int).ravel().tolist())

    return tuple(map(_as_image, group_of([*every_signed_permutation(rank)], holds, np.matmul, key)))


def column_images(facts: LabelFacts, rank: int, count: int) -> tuple[Image, ...]:
    """Signed permutations that leave labels unchanged, or if all orthogonal matrices do, some of these as `turns`."""
    if rank > 1 and facts.unchanged_by_rotations():
        return turns(rank, count)
    return signed_permutations(facts.unchanged, rank)


def all_rotations(images: tuple[Image, ...]) -> bool:
    """Whether images stand for all rotations and reflections: some are no signed permutations."""
    return any(0 < abs(entry) < 1 - 1e-9 for image in images for row in image for entry in row if abs(entry) > 1e-9)
