"""Finite matrices as a spectral measure: one point atom for every common eigenvector."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnphase.arrays import Array
from attnphase.errors import SpectrumError

__all__ = ["finite", "point_atoms"]

_COMMUTE = 1e-8  # norm of a commutator, relative to that of the product, that rounding may leave
_NO_PRODUCT = 1e-14  # the same relative to the factors' norms, where the product is rounding too
_ROUNDING = 1e-9  # relative asymmetry and negative eigenvalue likewise
_CLOSE = 1e-5  # eigenvalues nearer than this share of their range are told apart by another combination
_LARGEST = 1e60


def point_atoms(
    covariances: Any, positions: Any, teacher: Any, means: Any
) -> tuple[Array, Array, Array, Array, Array, Array | None, Array | None]:
    """The fields of the `Spectrum` of matrices; see its `from_matrices`.

    Raises
    ------
    SpectrumError
        A matrix is not a covariance, shapes differ, or two do not commute.
    """
    names, matrices, tokens = _flat("covariances", covariances)
    if not matrices:
        raise SpectrumError("covariances must hold at least one matrix for every token.")
    d, length = len(np.atleast_1d(matrices[0])), max(tokens) + 1
    if d == 0:
        raise SpectrumError(f"{names[0]} is empty, but must be a square matrix.")
    matrices = [_covariance(name, matrix, d) for name, matrix in zip(names, matrices, strict=True)]
    _check_commuting(names, matrices)
    vectors = _common_eigenvectors(matrices)
    gamma = np.stack([np.einsum("ji,jk,ki->i", vectors, m, vectors, optimize=True) for m in matrices])
    gamma = np.maximum(gamma, 0.0)  # rounding leaves zeros on either side
    encodings = np.zeros((length, d)) if positions is None else finite("positions", positions, (length, d))
    point_positions = math.sqrt(d) * (encodings @ vectors).T
    mean = point_positions[:, tokens]
    point_means = None
    if means is not None:
        labels, flat, places = _flat("means", means, 1)
        if places != tokens:
            raise SpectrumError(f"means must have the structure of covariances: {len(matrices)} vectors in all.")
        rows = [finite(label, vector, (d,)) for label, vector in zip(labels, flat, strict=True)]
        point_means = math.sqrt(d) * (np.stack(rows) @ vectors).T
        mean = mean + point_means
    weights, count = np.full(d, 1 / d), len(matrices)
    if teacher is None:
        pi = np.zeros((d, 1))
    else:
        array = _real("teacher", teacher, "(d, t)")
        pi = vectors.T @ finite("teacher", array, (d, max(array.shape[1], 1) if array.ndim == 2 else 1))
    covariance = np.zeros((d, count + pi.shape[1], count + pi.shape[1]))
    if teacher is None:
        covariance[:, count, count] = 1.0
    teacher_means = np.zeros((count, pi.shape[1])) if point_means is None else point_means.T @ pi / d
    joined = np.concatenate([mean, pi], axis=1)
    return weights, gamma, joined, covariance, teacher_means, point_positions, point_means


def _flat(name: str, nested: Any, dimensions: int = 2) -> tuple[list[str], list[Any], list[int]]:
    """Flatten a list of arrays, or of lists of arrays, into names, arrays and the token of each."""
    if isinstance(nested, str) or not isinstance(nested, Sequence | np.ndarray) or getattr(nested, "ndim", 1) == 0:
        raise SpectrumError(f"{name} must be a list with an entry for every token.")
    names, arrays, tokens = [], [], []
    for token, item in enumerate(nested):
        try:
            single = np.ndim(item) <= dimensions
        except ValueError:  # arrays of different shapes in one list
            single = False
        for cluster, array in enumerate([item] if single else item):
            names.append(f"{name}[{token}]" if single else f"{name}[{token}][{cluster}]")
            arrays.append(array)
            tokens.append(token)
    return names, arrays, tokens


def _real(name: str, values: Any, shape: object) -> Array:
    try:
        array = np.asarray(values)
        if not np.iscomplexobj(array):  # whose imaginary part NumPy would drop with a mere warning
            return array.astype(float)
    except (TypeError, ValueError, OverflowError):
        pass
    raise SpectrumError(f"{name} must be an array of real numbers of shape {shape}.")


def finite(name: str, values: Any, shape: tuple[int, ...]) -> Array:
    """An array of finite numbers of a shape.

    Raises
    ------
    SpectrumError
        It is none, or holds numbers whose products overflow.
    """
    array = _real(name, values, shape)
    if array.shape != shape:
        raise SpectrumError(f"{name} has shape {array.shape}, but must have {shape}.")
    if not np.isfinite(array).all():
        raise SpectrumError(f"{name} holds a number that is not finite.")
    if np.abs(array).max(initial=0.0) > _LARGEST:  # products would not be finite
        raise SpectrumError(f"{name} holds a number beyond {_LARGEST:g}: choose other units.")
    return array


def _covariance(name: str, values: Any, d: int) -> Array:
    matrix = finite(name, values, (d, d))
    size = np.abs(matrix).max(initial=0.0)
    skew = np.abs(matrix - matrix.T).max(initial=0.0)
    if skew > _ROUNDING * size:
        raise SpectrumError(f"{name} must be symmetric, but differs from its transpose by {skew:.2g}.")
    matrix = (matrix + matrix.T) / 2
    lowest = float(np.linalg.eigvalsh(matrix)[0])
    if lowest < -_ROUNDING * d * size:
        raise SpectrumError(f"{name} must be positive semidefinite, but has the eigenvalue {lowest:.4g}.")
    return matrix


def _check_commuting(names: list[str], matrices: list[Array]) -> None:
    worst, pair = 0.0, ("", "")
    for (first, a), (second, b) in itertools.combinations(zip(names, matrices, strict=True), 2):
        product = a @ b
        commutator = np.linalg.norm(product - product.T)
        if commutator <= _NO_PRODUCT * np.linalg.norm(a) * np.linalg.norm(b):
            continue
        off = float(commutator / np.linalg.norm(product))
        if off > worst:
            worst, pair = off, (first, second)
    if worst > _COMMUTE:
        raise SpectrumError(
            f"{pair[0]} and {pair[1]} do not commute: the norm of their commutator is {worst:.2g} of that of their"
            " product, where the theory needs common eigenvectors."
        )


def _common_eigenvectors(matrices: list[Array]) -> Array:
    """Orthonormal eigenvectors, as columns, of matrices that commute.

    A generic combination of the matrices has only common eigenvectors, unless two of its eigenvalues come so close that
    rounding mixes theirs. Such groups are told apart by combinations made for them alone.
    """
    d = len(matrices[0])
    centred = [matrix - np.trace(matrix) / d * np.eye(d) for matrix in matrices]
    # what is left of a multiple of the identity is rounding
    sizes = [(np.linalg.norm(c), np.linalg.norm(m)) for c, m in zip(centred, matrices, strict=True)]
    scaled = [c / size for c, (size, whole) in zip(centred, sizes, strict=True) if size > 1e-12 * whole]
    if d == 1 or not scaled:
        return np.eye(d)
    generator = np.random.default_rng(d)
    combination = np.sum([g * c for g, c in zip(generator.uniform(1.0, 2.0, len(scaled)), scaled, strict=True)], axis=0)
    if not np.linalg.norm(combination) > 1e-3:  # a chance cancellation
        combination = scaled[0]
    values, vectors = np.linalg.eigh(combination)
    gaps = np.diff(values) > _CLOSE * (values[-1] - values[0]) / d
    for group in np.split(np.arange(d), np.flatnonzero(gaps) + 1):
        if 1 < len(group) < d:
            basis = vectors[:, group]
            vectors[:, group] = basis @ _common_eigenvectors([basis.T @ matrix @ basis for matrix in matrices])
    return vectors
