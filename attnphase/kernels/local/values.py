"""What goes into the minimiser and what comes out: named tuples of arrays, which Numba compiles.

Compiled code takes arrays of any number of dimensions as flat ones, in C order: the shapes below are the callers'.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array

from .model import Model

__all__ = ["Nodes", "Room", "Solution", "room_of", "workspace_of"]

_LINE = 8  # numbers in a line of the cache
_NONE, _NOWHERE = np.empty(0), np.empty(0, np.int64)


class Nodes(NamedTuple):
    """Local problems: of the theory, which share the diagonal of D, or of samples at finite d, which share less.

    Attributes
    ----------
    centers : (N, L, r) array
        ``omega`` of every node, or fields at which something is asked.
    teacher_fields : (N, L, t) array, with noise (N, L, t + noise)
    factor : (L, r, r) array, of samples (P, r, r)
        Lower Cholesky factors of V of every token, or of every site.
    mixing, parameters : (L, L) and (4 + r,) arrays
        Parameters of the loss: the matrix A, which no sample needs; omega, the temperatures of student and teacher, and
        units, see `attnphase.kernels.key.model_numbers`.
    variance : (L,) array, of samples (N, L, L)
        The diagonal of D, or Gram matrices.
    targets : (N, L, x) array
        Of samples: the matrix C, or what the loss takes as its target.
    sites : (N, L) array of int
        Of every token of a sample.
    """

    centers: Array
    teacher_fields: Array
    factor: Array
    mixing: Array
    parameters: Array
    variance: Array
    targets: Array = _NONE
    sites: NDArray[np.int64] = _NOWHERE


class Solution(NamedTuple):
    """Minima of N local nodes, which are written into these arrays.

    Attributes
    ----------
    minima : (N, 2, L, r) array, in and out
        Lowest and second lowest; those of the last pass are what a warm one starts from.
    energies : (N, 2) array, in and out
        Their values of ``Psi``; both the same if only one minimum was found.
    losses : (N,) array, out
        Loss at the lowest minimum.
    residuals : (N, L, r) array, out
        ``g = V^-1 (prox - omega)``, computed as minus the gradient of the loss, which needs no division.
    flags : (N,) array of int, out
        Newton steps, negative where the gradient did not reach its tolerance, RUNAWAY where a descent found no bottom.
    """

    minima: Array
    energies: Array
    losses: Array
    residuals: Array
    flags: NDArray[np.int64]

    def part(self, nodes: slice) -> Solution:
        """The same arrays for some of the nodes."""
        minima, energies, losses, residuals, flags = self
        return Solution(minima[nodes], energies[nodes], losses[nodes], residuals[nodes], flags[nodes])


class Room(NamedTuple):
    """Arrays for the minimiser in lanes.

    Attributes
    ----------
    block, state : arrays
        Rows of the nodes that begin together, and of those that go on with trials.
    k : (L t, lanes) array
        The teacher's fields.
    reached : (lanes,) array
        The lowest energy of a descent of the lane's node that has no end.
    lower : (L r, L r) array
    node, next, only : (lanes,) arrays of int
        Which node a lane of the state has, the next of its starts, and 1 where the first start is its only minimum.
    """

    block: Array
    state: Array
    k: Array
    reached: Array
    lower: Array
    node: NDArray[np.uint64]
    next: NDArray[np.uint64]
    only: NDArray[np.uint64]


def _aligned(count: int) -> Array:
    """Zeros that begin at a line of the cache, so that no vector register is filled from two lines."""
    numbers = np.zeros(count + _LINE)
    return numbers[-(numbers.ctypes.data // 8) % _LINE :][:count]


def room_of(model: Model) -> Room:
    """Arrays for the minimiser in lanes, for one call after another."""
    lanes, size, rows, labels = (int(model.numbers[name][0]) for name in ("lanes", "fields", "rows", "label_fields"))
    block, state = _aligned(rows), _aligned(rows)
    k, reached = np.zeros(size * labels * lanes), np.zeros(lanes)
    return Room(block, state, k, reached, np.zeros((size, size)), *np.zeros((3, lanes), np.uint64))


def workspace_of(model: Model) -> Array:
    """An array for the descents of any number of samples, one after another."""
    return np.zeros(int(model.places["end"][0]))
