"""Orthogonal matrices of the teacher's columns that leave labels unchanged, found on random fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations, product

import numpy as np

from attnphase.arrays import Array

__all__ = ["Image", "all_rotations", "column_images", "every_signed_permutation", "signed_permutations", "turns"]

Image = tuple[tuple[float, ...], ...]
"""A matrix of the columns."""


def turns(rank: int, count: int) -> tuple[Image, ...]:
    """Orthogonal matrices that leave ``k k^T`` unchanged: all signs, or rotations of two columns, reflected too.

    The identity is the first.
    """
    if rank == 1:
        return ((1.0,),), ((-1.0,),)
    angles = 2 * np.pi * np.arange(count) / count
    pairs = [((c, -s), (s, c)) for c, s in zip(np.cos(angles).tolist(), np.sin(angles).tolist(), strict=True)]
    return (*pairs, *(((a, -b), (c, -d)) for (a, b), (c, d) in pairs))


def every_signed_permutation(rank: int) -> Iterator[Array]:
    """The matrices that exchange columns and change their signs, the identity first."""
    for order in permutations(range(rank)):
        for signs in product((1.0, -1.0), repeat=rank):
            yield np.diag(signs)[list(order)]


def signed_permutations(labels: Callable[[Array], Array], length: int, rank: int) -> tuple[Image, ...]:
    """Those of the columns that leave labels (..., M) of fields (..., L t) unchanged; the identity is the first."""
    fields = np.random.default_rng(7).standard_normal((256, length, rank))
    known, found = labels(fields.reshape(256, -1)), list[Image]()
    for element in every_signed_permutation(rank):
        if np.allclose(labels((fields @ element.T).reshape(256, -1)), known, atol=1e-12):
            found.append(tuple(map(tuple, element.tolist())))
    return tuple(found)


def column_images(labels: Callable[[Array], Array], length: int, rank: int, count: int) -> tuple[Image, ...]:
    """Signed permutations that leave labels unchanged, or if all rotations of two columns do, so many of these."""
    if rank == 2:
        c, s = np.cos(1.0), np.sin(1.0)
        fields = np.random.default_rng(7).standard_normal((256, length, rank))
        turned = fields @ np.array([[c, -s], [s, c]]).T
        if np.allclose(*(labels(x.reshape(256, -1)) for x in (fields, turned)), atol=1e-9):
            return turns(rank, count)
    return signed_permutations(labels, length, rank)


def all_rotations(images: tuple[Image, ...]) -> bool:
    """Whether images stand for all rotations and reflections: some are no signed permutations."""
    return any(0 < abs(entry) < 1 - 1e-9 for image in images for row in image for entry in row if abs(entry) > 1e-9)
