"""Eigenvectors that are the same on every machine, for directions that nodes are laid along, and matrix roots."""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array

__all__ = ["eigenvectors", "matrix_root"]

_ALIKE = 1e-6  # eigenvalues that differ by less, relative to the largest, belong to one space


def eigenvectors(matrix: Array) -> tuple[Array, Array]:
    """The eigenvalues of a symmetric matrix, the largest first, and vectors: in spaces of several always the same.

    There they are what is left of differences of two unit vectors, and of unit vectors, one after another.
    """
    size = len(matrix)
    enough = 0.5 / np.sqrt(size)  # of a unit vector; the one with most of itself left has twice as much at least
    values, vectors = np.linalg.eigh(matrix)
    values, vectors = values[::-1], vectors[:, ::-1]
    units = np.eye(size)
    wanted = [units[i] - units[j] for i in range(size) for j in range(i + 1, size)] + list(units)
    found: list[Array] = []
    begin = 0
    while begin < size:
        end = begin + 1
        while end < size and values[begin] - values[end] <= _ALIKE * values[0]:
            end += 1
        space = vectors[:, begin:end]
        for one in wanted:
            if len(found) == end:
                break
            rest = space @ (space.T @ one)
            for other in found[begin:]:
                rest = rest - other * (other @ rest)
            if np.linalg.norm(rest) > enough * np.linalg.norm(one):
                found.append(rest / np.linalg.norm(rest))
        begin = end
    return values, np.stack(found, axis=1)


def matrix_root(matrix: Array) -> Array:
    """Symmetric square root of positive semidefinite matrices (..., r, r); rounding below zero is cut off."""
    if matrix.shape[-1] == 1:
        return np.sqrt(np.maximum(matrix, 0.0))
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]) @ vectors.mT
