"""The order parameters that share a starting point's exact symmetries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.problem.units import Units
from attnphase.state_evolution.gauge import Gauge
from attnphase.state_evolution.overlaps import Conjugates, Overlaps, packed_scales, packed_steps
from attnphase.state_evolution.symmetries import ProblemSymmetry

__all__ = ["Element", "Sector", "images", "scales_of"]

Element = tuple[list[int], NDArray[Any], NDArray[Any], NDArray[Any]]
"""Order of the sites, and the matrices of the student's and the teacher's columns, and of what is trained."""


@dataclass(frozen=True, eq=False)
class Sector:
    """The linear space of order parameters that share a starting point's exact symmetries.

    The map commutes with the problem's symmetries, so it never leaves this space; working inside it keeps exact zeros
    exact, averages equivalent entries of a sampled map, and shortens the Jacobian.

    Attributes
    ----------
    basis : (P, D) array
        Orbits of packed entries as columns, with entries -1, 0, 1.
    group : tuple
        The symmetries: order of the sites, and the matrices of the student, the teacher and what is trained.
    length, columns, teacher_rank : int
    units : Units or None
        In which coordinates are given; None for ones.
    trained : int
        Number of the loss's trained parameters, and of the entries of Q.
    norms : int
        Number of the latter.
    free : Gauge or None
        Turns of the student's columns that leave the loss unchanged, and that no symmetry of the start forbids.
    start : Overlaps or None
        As which points are turned where there are such.
    useful : (r, r) array or None
        The change of columns that leaves out directions in which the loss is constant; None where there are none.
    """

    basis: Array
    group: tuple[Element, ...]
    length: int
    columns: int
    teacher_rank: int
    units: Units | None = None
    trained: int = 0
    norms: int = 0
    free: Gauge | None = None
    start: Overlaps | None = None
    useful: Array | None = None

    @classmethod
    def of(
        cls,
        start: Overlaps,
        symmetries: Sequence[ProblemSymmetry],
        units: Units | None = None,
        gauge: Gauge | None = None,
    ) -> Sector:
        """The sector of a starting point.

        Those of the problem's symmetries that leave the start unchanged define the sector. A semantic start has m = 0
        this way, a positional one theta = 0, and an uninformed one q proportional to the identity. Where these leave
        W -> W O open all points are turned as the start is, so that none can drift.

        Parameters
        ----------
        start : Overlaps
        symmetries : sequence of (order of the sites, (r, r) array, (t, t) array, (p, p) array)
            Those of the problem, see `System.symmetries`, the identity among them.
        units : Units, optional
            The problem's, in which coordinates are of order one.
        gauge : Gauge, optional
            The problem's.
        """
        (length, columns, rank), trained = start.theta.shape, len(start.trained)
        kept = _unchanged(start, symmetries, _packed(units, length, columns, rank, trained))
        group = tuple(([*order], A, B, C) for (order, A, B, C), keeps in zip(symmetries, kept, strict=True) if keeps)
        key = tuple((tuple(order), A.tobytes(), B.tobytes(), C.tobytes()) for order, A, B, C in group)
        basis = _basis_of(key, length, columns, rank, trained, start.norms)
        free = None if gauge is None or not len(gauge.turns) else gauge.left_by([A for _, A, *_ in group])
        useful = None if gauge is None else gauge.useful
        if free is None or not len(free.turns):
            return cls(basis, group, length, columns, rank, units, trained, start.norms, useful=useful)
        # theta counts in the unit of m
        target = start if units is None else replace(start, theta=start.theta / units.tokens**2)
        return cls(basis, group, length, columns, rank, units, trained, start.norms, free, target, useful)

    def turned(self, images: Overlaps) -> Overlaps:
        """Overlaps (..., P, ...), each turned to lie as the start does where symmetries leave that open."""
        if self.free is None or self.start is None:
            return images
        several = images.theta.shape[:-3]
        m, theta = (x.reshape(-1, *x.shape[-3:]) for x in (images.m, images.theta))
        turns = [self.free.turn(replace(images, m=m[s], theta=theta[s]), self.start) for s in range(len(theta))]
        turn = np.reshape(turns, (*several, self.columns, self.columns))
        moved = replace(images, norms=0).changed(turn[..., None, :, :])
        return replace(moved, trained=images.trained_of(turn), norms=images.norms) if images.norms else moved

    def pack(self, overlaps: Overlaps) -> Array:
        """Coordinates (D,) of the projection on the sector."""
        return self._projection @ (overlaps.pack() / self.sizes)

    def pack_all(self, several: Overlaps) -> Array:
        """Coordinates of several overlaps, whose number stands before the site axis: (N, D)."""
        return (several.pack() / self.sizes) @ self._projection.T

    def unpack(self, vector: Array) -> Overlaps:
        """Overlaps with the given coordinates; in idle directions zero but for V, as rounding may leave the domain."""
        found = self._unpacked(self.sizes * (self.basis @ vector))
        return found if self.useful is None else replace(found.changed(self.useful), V=found.V)

    def unpack_all(self, vectors: Array) -> Overlaps:
        """Overlaps with coordinates (N, D); their number stands before the site axis."""
        return self._unpacked(self.sizes * (vectors @ self.basis.T))

    def _unpacked(self, packed: Array) -> Overlaps:
        return Overlaps.unpack(packed, self.length, self.columns, self.teacher_rank, self.norms)

    def symmetrized(self, conjugates: Conjugates) -> Conjugates:
        """Mean over the group: a sampled mean obeys the symmetries only up to its error."""
        if self.useful is not None:  # V_hat is sampled by Stein's form, which divides by a q that vanishes there
            q_hat, V_hat = (self.useful.T @ hat @ self.useful for hat in (conjugates.q_hat, conjugates.V_hat))
            conjugates = replace(conjugates, q_hat=q_hat, V_hat=V_hat)
        if len(self.group) == 1:
            return conjugates
        order, left, right = self._elements
        every = conjugates.q_hat, conjugates.V_hat, conjugates.m_hat, conjugates.theta_hat
        side_by_side = np.concatenate(every, axis=-1)[order]
        # of one column and a teacher of rank one the matrices are signs
        signs = self._signs
        mean = _exact_mean(side_by_side * signs if signs is not None else left @ side_by_side @ right)
        r = self.columns
        parts = mean[..., :r], mean[..., r : 2 * r], mean[..., 2 * r : 2 * r + 1], mean[..., 2 * r + 1 :]
        return replace(conjugates, **dict(zip(("q_hat", "V_hat", "m_hat", "theta_hat"), parts, strict=True)))

    def symmetrized_norms(self, matrices: Array) -> Array:
        """The same of matrices (1, S, r, r) of columns that belong to no site."""
        _, students, _ = self._elements
        return _exact_mean(students @ matrices @ students.mT)

    def symmetrized_trained(self, slopes: Array, curvatures: Array) -> tuple[Array, Array]:
        """The same of first and second derivatives in what is trained, (S, p) and (S, p, p)."""
        changes = np.array([C for *_, C in self.group], dtype=float)[:, None]
        return _exact_mean((changes @ slopes[..., None])[..., 0]), _exact_mean(changes @ curvatures @ changes.mT)

    @cached_property
    def _elements(self) -> tuple[NDArray[np.int64], Array, Array]:
        """Orders of the sites (G, P), and matrices (G, 1, 1, ...) on the left and right of all conjugates side by side.

        On the left the student's; on the right the student's for q_hat and for V_hat, none for m_hat, the teacher's.
        """
        orders, students, teachers, _ = zip(*self.group, strict=True)
        student, teacher = (np.array(x, dtype=float) for x in (students, teachers))
        r, t = self.columns, self.teacher_rank
        right = np.zeros((len(self.group), 2 * r + 1 + t, 2 * r + 1 + t))
        right[:, :r, :r] = right[:, r : 2 * r, r : 2 * r] = student.mT
        right[:, 2 * r, 2 * r], right[:, 2 * r + 1 :, 2 * r + 1 :] = 1.0, teacher.mT
        return np.array(orders), student[:, None, None], right[:, None, None]

    @cached_property
    def _signs(self) -> Array | None:
        """What the matrices multiply all conjugates side by side with, (G, 1, 1, 1, ...), if these are numbers."""
        if self.columns * self.teacher_rank > 1:
            return None
        _, left, right = self._elements
        return left * np.diagonal(right, axis1=-2, axis2=-1)[..., None, :]

    def scales(self, vector: Array, rho: Array) -> Array:
        """As `Overlaps.scales`, for the coordinates."""
        return packed_scales(self.basis @ vector, self.columns, _in_units(rho, self.units), self.norms)[self._first]

    def steps(self, vector: Array, rho: Array) -> Array:
        """As `packed_steps`, for the coordinates."""
        return packed_steps(self.basis @ vector, self.columns, _in_units(rho, self.units), self.norms)[self._first]

    @cached_property
    def sizes(self) -> Array:
        """Units of the packed entries."""
        return _packed(self.units, self.length, self.columns, self.teacher_rank, self.trained)

    @cached_property
    def covariances(self) -> NDArray[np.int64]:
        """Coordinates that are entries of q or V, (Z,) of int."""
        return np.flatnonzero(self.basis[: self.length * self.columns * (self.columns + 1)].any(axis=0))

    @cached_property
    def odd(self) -> NDArray[np.int64]:
        """Coordinates that are entries of m or theta, (Z,) of int."""
        first = self.length * self.columns * (self.columns + 1)
        last = first + self.length * self.columns * (1 + self.teacher_rank)
        return np.flatnonzero(self.basis[first:last].any(axis=0))

    @cached_property
    def parameters(self) -> NDArray[np.int64]:
        """Coordinates that are trained parameters, (Z,) of int, and no entries of Q."""
        last = len(self.basis) - self.norms
        return np.flatnonzero(self.basis[last - (self.trained - self.norms) : last].any(axis=0))

    @cached_property
    def _first(self) -> NDArray[np.intp]:
        """An entry of each orbit."""
        return np.abs(self.basis).argmax(axis=0)

    @cached_property
    def _projection(self) -> Array:
        """Packed entries to coordinates."""
        return self.basis.T / np.abs(self.basis).sum(axis=0)[:, None]

    def taken_over(self, matrix: Array, other: Sector) -> Array:
        """A linear map in the coordinates of another sector, in those of this one; zero on what that one lacks."""
        units = (other.sizes / self.sizes)[:, None]
        return self._projection @ (units * other.basis) @ matrix @ other._projection @ (self.basis / units)

    def errors(self, vector: Array) -> Overlaps:
        """Standard errors of the coordinates as those of the entries."""
        return self._unpacked(self.sizes * (np.abs(self.basis) @ vector))


def _exact_mean(values: Array) -> Array:
    """Mean over the first axis in which opposite values cancel exactly: the largest is added to the smallest."""
    ordered = np.sort(values, axis=0)
    return (ordered + ordered[::-1]).sum(axis=0) / (2 * len(ordered))


def images(overlaps: Overlaps, symmetries: Sequence[Element] | Sequence[ProblemSymmetry]) -> Overlaps:
    """What several symmetries make of overlaps; their number stands in front."""
    order, student, teacher, change = (np.array(parts) for parts in zip(*symmetries, strict=True))
    A, B = student[:, None], teacher[:, None]
    q, V, m, theta = (values[order] for values in (overlaps.q, overlaps.V, overlaps.m, overlaps.theta))
    trained = np.broadcast_to(overlaps.trained, (len(order), len(overlaps.trained)))
    if overlaps.norms:
        trained = overlaps.trained_of(student)
    trained = (change @ trained[..., None])[..., 0]
    return Overlaps(A @ q @ A.mT, A @ V @ A.mT, A @ m, A @ theta @ B.mT, trained, norms=overlaps.norms)


def scales_of(overlaps: Overlaps, units: Units, rho: Array) -> Array:
    """As `Overlaps.scales`, for a problem of other units than one."""
    length, columns, teacher_rank = overlaps.theta.shape
    sizes = _packed(units, length, columns, teacher_rank, len(overlaps.trained))
    return sizes * packed_scales(overlaps.pack() / sizes, columns, _in_units(rho, units), overlaps.norms)


def _in_units(rho: Array, units: Units | None) -> Array:
    return rho if units is None else rho / units.tokens**2


def _packed(units: Units | None, length: int, columns: int, teacher_rank: int, trained: int) -> Array:
    """Units of the packed entries, (P,); a trained parameter has its own."""
    fields, tokens, energy = (
        (np.ones(columns), 1.0, 1.0) if units is None else (units.fields, units.tokens, units.energy)
    )
    q = np.tile(fields[:, None] * fields, (length, 1, 1))
    m = np.tile(fields[:, None], (length, 1, 1))
    return Overlaps(q, q / energy, m, np.repeat(tokens * m, teacher_rank, axis=-1), np.ones(trained)).pack()


def _unchanged(start: Overlaps, symmetries: Sequence[ProblemSymmetry], sizes: Array) -> NDArray[np.bool_]:
    """Which symmetries leave the overlaps as they are."""
    packed = start.pack()
    moved = images(start, symmetries).pack()
    kept: NDArray[np.bool_] = np.all(np.abs(moved - packed) <= 1e-12 * sizes + 1e-9 * np.abs(packed), axis=1)
    return kept


@lru_cache(maxsize=64)
def _basis_of(
    group: tuple[tuple[tuple[int, ...], bytes, bytes, bytes], ...],
    length: int,
    columns: int,
    teacher_rank: int,
    trained: int,
    norms: int,
) -> Array:
    """What a group of symmetries leaves unchanged, of the packed overlaps: an orbit of entries a column."""

    def matrix(entries: bytes, count: int) -> Array:
        return np.frombuffer(entries).reshape(count, count)

    elements: list[Element] = [
        ([*order], matrix(A, columns), matrix(B, teacher_rank), matrix(C, trained)) for order, A, B, C in group
    ]
    size = len(_packed(None, length, columns, teacher_rank, trained))
    basis, covered = [], np.zeros(size, dtype=bool)
    for i in range(size):
        if covered[i]:
            continue
        unit = Overlaps.unpack(np.eye(size)[i], length, columns, teacher_rank, norms)
        mean = images(unit, elements).pack().mean(axis=0)
        orbit = np.sign(np.where(np.abs(mean) > 1e-12, mean, 0.0))
        covered |= orbit != 0
        if orbit[i] > 0:
            basis.append(orbit)
    found = np.stack(basis, axis=1)
    found.flags.writeable = False
    return found
