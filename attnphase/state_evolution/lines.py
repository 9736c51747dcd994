"""Nodes of one map along lines of the student's fields, on which every jump of the proximal point is located.

For fixed teacher's fields ``Phi(omega) = |omega|^2 / 2 - M(omega)``, in the metric of ``V^-1``, is convex, and its
slope along a line ``omega = c + s d`` is ``d . V^-1 prox``.  So the proximal point is smooth along the line, but for
jumps at which that slope rises, where two minima are equally low.  Three consequences are used:

- The minimisers at the panels' ends are trial points for each other where the teacher's fields are the same: where the
  energy of one lies below the minimum found at another end, that was not the lowest.
- What a piece of a line ends at is searched from all starts, since no defect tells of an end that is not the lowest.
- ``M(r) - M(l)`` is the integral of ``-g . d`` over the line from l to r.  It is known from the ends, and so the error
  of the nodes between them is, too, and by parts that of the first moment: a piece on which either is not small has a
  jump that its nodes do not resolve.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.integration.lines import LineOrders
from attnphase.integration.rules import Jumps
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.local.values import Nodes, Solution
from attnphase.state_evolution.proximal import Part, ProximalProblem, for_all, lower_factors
from attnphase.state_evolution.system import System

__all__ = ["Bundle", "nodes_along"]

_ROUNDING = 1e-13  # of energies, in their unit: defects below tell nothing
_MOST_OPEN = 2**10  # pieces of a line, on average: some jumps leave a few, and rounding alone leaves all
_NEWTON_STEPS = 50  # to a crossing; bisection takes as many for its precision
_LOCATED = 1e-10  # precision of crossings along the line, in standard deviations; shorter pieces are not cut
_legendre = lru_cache(np.polynomial.legendre.leggauss)


@dataclass(frozen=True, eq=False)
class Bundle:
    """Parallel lines ``omega = c + s d``.

    Attributes
    ----------
    centers : (n, L, r) array
        ``c`` of every line.
    teacher_fields : (n, L, t) array, with noise (n, L, t + noise)
    direction : (L, r) array
        ``d``, by which omega moves along a standard deviation.
    weights : (n,) array
    alike : int
        So many lines after another share their teacher's fields.
    configuration : int
        Of clusters, to which all lines belong.
    """

    centers: Array
    teacher_fields: Array
    direction: Array
    weights: Array
    alike: int
    configuration: int

    def at(self, lines: NDArray[np.int64], places: Array) -> Array:
        """Omega at places (n, m) of n lines, (n m, L, r)."""
        moved = places.reshape(-1, 1) @ self.direction.reshape(1, -1)
        moved += self.centers.take(lines, axis=0).repeat(places.shape[1], axis=0).reshape(moved.shape)
        return moved.reshape(-1, *self.direction.shape)


@dataclass(frozen=True, eq=False)
class Along:
    """Solved nodes of a bundle.

    Attributes
    ----------
    lines : (N,) array of int
    places : (N,) array
        Along the line, in standard deviations.
    weights : (N,) array
        Those of the lines, times the normal density and the length that the node stands for.
    solution : Solution
    jumps : Pieces
    gaps : (n,) array
        At each jump, the density at zero of the difference between the energies of both minima.
    """

    lines: NDArray[np.int64]
    places: Array
    weights: Array
    solution: Solution
    jumps: Pieces
    gaps: Array

    def jumps_of_slopes(self, system: System, variances: Array, bundle: Bundle) -> Jumps:
        """What jumps of the proximal point add to means of the residual's derivatives over the lines.

        Where two minima exchange g jumps by D, on a surface where their energies M are equal: M has the slopes -g in
        omega and ``dloss/dk`` in k.  By the jump K of the latter the derivatives are ``D D^T / (D . d)`` and
        ``-D K^T / (D . d)`` at its place on the line.  The lines resolve the part of D along d.
        """
        before, after = (x.reshape(-1, *bundle.direction.shape) for x in self.jumps.ends[..., 2:].swapaxes(0, 1))
        inverse = np.linalg.inv(variances[system.sample_law.configurations[bundle.configuration]])
        heights = np.einsum("lij,nlj->nli", inverse, after - before)
        rises = np.einsum("nli,li->n", heights, bundle.direction)
        along = rises[:, None, None] * bundle.direction / (bundle.direction**2).sum()
        fields = bundle.teacher_fields.take(self.jumps.lines, axis=0) + system.sample_law.means[bundle.configuration]
        of_labels = [ProximalProblem(system).label_slopes(bundle.configuration, h, fields) for h in (before, after)]
        moved = of_labels[0] - of_labels[1]

        def added(D: Array, normals: Array) -> Array:
            return np.einsum("n,nli,nlj->nlij", self.gaps, D, normals)

        student, teacher = added(heights, heights), added(heights, moved)
        lost = np.abs(student - added(along, along)), np.abs(teacher - added(along, moved))
        return Jumps(*(part.sum(axis=0) for part in (student, lost[0], teacher, lost[1])))


class Pieces(NamedTuple):
    """Pieces of lines; or jumps on them, which are pieces of no length.

    Attributes
    ----------
    lines : (N,) array of int
    ends : (N, 2, 2 + L r) array
        Where both ends are, and the energy and the fields of the lowest minimum there, seen from the inside.
    """

    lines: NDArray[Any]
    ends: NDArray[Any]

    @classmethod
    def between(cls, lines: NDArray[Any], ends: Array) -> Pieces:
        """Those of some length between neighbours of many ends (N, n, 2 + L r)."""
        which, first = (ends[:, 1:, 0] > ends[:, :-1, 0]).nonzero()
        both = (ends.shape[1] * which + first)[:, None] + np.arange(2)
        return cls(lines.take(which), ends.reshape(-1, ends.shape[2]).take(both, axis=0))

    def take(self, which: NDArray[np.int64]) -> Pieces:
        """Some of them."""
        return Pieces(*_taken(self, which))

    def around(self, inner: Array) -> Pieces:
        """What lies before, between and after two inner ends of each."""
        return Pieces.between(self.lines, np.concatenate([self.ends[:, :1], inner, self.ends[:, 1:]], axis=1))


class LocalProblems:
    """The local problems of a bundle's nodes."""

    def __init__(self, system: System, variances: Array, bundle: Bundle) -> None:
        self.system, self.bundle = system, bundle
        sites, means = (x[bundle.configuration] for x in (system.sample_law.configurations, system.sample_law.means))
        self.fields, self.inverse = bundle.teacher_fields + means, np.linalg.inv(variances[sites])
        self.slope = np.einsum("lij,lj->li", self.inverse, bundle.direction).ravel()
        factor, variance = lower_factors(variances[sites]), system.token_variances[bundle.configuration]
        self.shared = factor, *system.parameters, variance
        self.jumps: list[Pieces] = []  # located so far

    def solved(self, lines: NDArray[np.int64], places: Array, starts: Starts, known: Array | None = None) -> Solution:
        """Minima at places (n, m) of n lines, from two (n, 2, L r) that are known or from the starts of their own."""
        count, each_line = places.shape
        count *= each_line
        omega = self.bundle.at(lines, places)
        k = self.fields.take(lines.repeat(each_line), axis=0)
        fields = np.zeros((count, 2, self.slope.size)) if known is None else known.repeat(each_line, axis=0)
        energies = np.zeros((count, 2))
        energies[:, 1] = 1.0  # as those of different minima
        minima = fields.reshape(count, 2, *omega.shape[1:])
        solution = Solution(minima, energies, np.empty(count), np.empty_like(omega), np.empty(count, np.int64))

        minimise, parts = self.system.kernels.minimise, ProximalProblem.parts(1, [0], count)

        def run(part: Part) -> None:
            minimise(Nodes(omega[part.nodes], k[part.nodes], *self.shared), starts, solution.part(part.nodes))

        if len(parts) > 1:
            for_all(parts, run, self.system.threads)
        else:
            minimise(Nodes(omega, k, *self.shared), starts, solution)
        return solution

    def ends(self, edges: Array) -> Solution:
        """The lowest minima at the panels' edges of all lines, of which none is above a trial point of its kind."""
        count, each_line = len(self.bundle.centers), len(edges)
        lines, places = np.arange(count), np.broadcast_to(edges, (count, each_line))
        omega, found = self.bundle.at(lines, places), self.solved(lines, places, Starts.COLD)
        lines, places = lines.repeat(each_line), places.reshape(-1, 1)
        unit = self.system.units.energy
        while True:
            trial, energies = self.trials(omega, found, self.bundle.alike * each_line)
            better = np.flatnonzero(energies < found.energies[:, 0] - _ROUNDING * (unit + np.abs(energies)))
            if not len(better):
                return found
            known = np.stack([found.minima[trial[better], 0], found.minima[better, 0]], axis=1)
            again = self.solved(lines[better], places[better], Starts.WARM, known.reshape(len(better), 2, -1))
            lower = again.energies[:, 0] < found.energies[better, 0]
            for values, new in zip(found, again, strict=True):
                values[better[lower]] = new[lower]
            if not lower.all():  # by rounding alone
                return found

    def trials(self, omega: Array, found: Solution, alike: int) -> tuple[NDArray[np.int64], Array]:
        """For every node the minimiser with the same teacher's fields that has the lowest energy there, and that."""
        shape = -1, alike, omega[0].size
        fields_of = found.minima[:, 0], omega
        h, w = (x.reshape(shape) for x in fields_of)
        of_h, of_w = (np.einsum("lij,nlj->nli", self.inverse, x).reshape(shape) for x in fields_of)
        own = (h * of_h).sum(axis=2) / 2 + found.losses.reshape(-1, alike)
        energies = own[:, None, :] - w @ of_h.mT
        best, lowest = energies.argmin(axis=2), energies.min(axis=2) + (w * of_w).sum(axis=2) / 2
        return (best + alike * np.arange(len(best))[:, None]).ravel(), lowest.ravel()

    def panels(self, edges: Array) -> Pieces:
        """All lines in panels, cut at the jumps that the minima at a panel's ends lead to."""
        every = np.arange(len(self.bundle.centers))
        nodes = _as_nodes(np.broadcast_to(edges, (len(every), len(edges))), *self.ends(edges)[:2])
        panels = Pieces.between(every, nodes[:, :, 0])
        places = self.meetings(panels)[:, None]
        found = self.solved(panels.lines, places, Starts.WARM, panels.ends[..., 2:])
        which, crossings = self.crossings(panels, _as_nodes(places, *found[:2]))
        return self.cut(panels, which, crossings, which[:0], nodes[:0, :0, None])

    def meetings(self, pieces: Pieces) -> Array:
        """Where the minimisers at a piece's ends, left as they are, are equally low: there the tangents of Phi meet."""
        places, energies = pieces.ends[..., 0], pieces.ends[..., 1]
        at_zero = self.bundle.centers.reshape(-1, self.slope.size).take(pieces.lines, axis=0) @ self.slope
        slopes = pieces.ends[..., 2:] @ self.slope - at_zero[:, None]
        bend = self.slope @ self.bundle.direction.ravel()
        gaps, rises = np.diff([slopes * places - bend / 2 * places**2 + energies, slopes])[..., 0]
        meetings = places.mean(axis=1)
        np.divide(gaps, rises, out=meetings, where=rises > 0)
        return np.clip(meetings, *places.T)

    def crossings(self, pieces: Pieces, nodes: Array) -> tuple[NDArray[np.int64], Array]:
        """Which pieces have a crossing of two minima that a node sees, and both minima there, in their order.

        Newton's method finds where their energies are the same.  The slope of the difference is ``(after - before) .
        V^-1 d``, positive: of two minima the one with the steeper Phi follows.

        Parameters
        ----------
        nodes : (N, n, 2, 2 + L r) array
            Both minima at nodes of the pieces.
        """
        gaps = nodes[:, :, 1, 1] - nodes[:, :, 0, 1]
        which = np.flatnonzero(gaps.any(axis=1))
        if not len(which):
            return which, nodes[:0, 0]
        nearest = np.where(gaps > 0, gaps, np.inf).argmin(axis=1)
        pieces, pairs = pieces.take(which), nodes[which, nearest[which]]
        here, energies, fields, (left, right) = pairs[:, 0, 0], pairs[..., 1], pairs[..., 2:], pieces.ends[..., 0].T
        rises, steps = self._newton(energies, fields)
        for _ in range(_NEWTON_STEPS):
            ahead = steps > 0
            left, right = np.where(ahead, here, left), np.where(ahead, right, here)
            there = np.minimum(np.maximum(here + steps, left), right)
            if np.abs(there - here).max() <= _LOCATED:
                break
            found = self.solved(pieces.lines, there[:, None], Starts.WARM, fields)
            new = there, found.energies, found.minima.reshape(fields.shape)
            apart = found.energies[:, 1] > found.energies[:, 0]
            if not apart.all():
                ended = (~apart).nonzero()[0]
                # where one of the two has ended there is no crossing: nearer to where both are
                middle = (there + here)[ended] / 2
                left[ended] = np.where(ahead[ended], left[ended], middle)
                right[ended] = np.where(ahead[ended], middle, right[ended])
                for values, last in zip(new, (here, energies, fields), strict=True):
                    values[ended] = last[ended]
            here, energies, fields = new
            rises, steps = self._newton(energies, fields)
        ordered = np.where((rises > 0)[:, None, None], fields, fields[:, ::-1])
        # not the crossing that a piece ends at
        inside = np.abs(pieces.ends[..., 0] - here[:, None]).min(axis=1) > _LOCATED
        located = (inside & (np.abs(steps) <= _LOCATED)).nonzero()[0]
        return which.take(located), _as_ends(here[:, None], energies[:, :1], ordered).take(located, axis=0)

    def cut(
        self,
        pieces: Pieces,
        crossed: NDArray[np.int64],
        crossings: Array,
        others: NDArray[np.int64],
        beside: Array,
    ) -> Pieces:
        """Pieces cut, some of them at crossings, others at two nodes.

        The minima there are searched from all starts, since no defect tells of an end whose minimum is not the lowest.
        Where a third minimum is lower than both that cross it takes the place of both.

        Parameters
        ----------
        crossings : (n, 2, 2 + L r) array
            Both minima at one crossing of each of the pieces `crossed`.
        beside : (m, 2, 2, 2 + L r) array
            Likewise at two nodes of each of the pieces `others`.
        """
        nodes = np.concatenate([crossings, beside.reshape(-1, *crossings.shape[1:])])
        if not len(nodes):
            return pieces
        lines = np.concatenate([pieces.lines.take(crossed), pieces.lines.take(others).repeat(2)])
        found = self.solved(lines, nodes[:, :1, 0], Starts.REFRESH, nodes[..., 2:])
        lowest = _as_ends(nodes[:, 0, 0], found.energies[:, 0], found.minima[:, 0].reshape(len(nodes), -1))
        new, energies = lowest[: len(crossed), None], crossings[:, :1, 1]
        third = new[..., 1] < energies - _ROUNDING * (self.system.units.energy + np.abs(energies))
        jumped = (~third[:, 0]).nonzero()[0]
        self.jumps.append(Pieces(pieces.lines.take(crossed.take(jumped)), crossings.take(jumped, axis=0)))
        inner = pieces.ends.copy()
        inner[crossed] = np.where(third[..., None], new, crossings)
        inner[others] = lowest[len(crossed) :].reshape(len(others), *inner.shape[1:])
        return pieces.around(inner)

    def located(self) -> tuple[Pieces, Array]:
        """All jumps, and at each the density at zero of the difference between the energies of both minima."""
        empty = Pieces(np.zeros(0, np.int64), np.zeros((0, 2, 2 + self.slope.size)))
        jumps = Pieces(*(np.concatenate(parts) for parts in zip(empty, *self.jumps, strict=True)))
        rises = (jumps.ends[:, 1, 2:] - jumps.ends[:, 0, 2:]) @ self.slope
        return jumps, self.bundle.weights.take(jumps.lines) * _density(jumps.ends[:, 0, 0]) / rises

    def _newton(self, energies: Array, fields: Array) -> tuple[Array, Array]:
        """By how much the slope of Phi rises from the lower of two minima to the other, and how far off they cross."""
        rises = (fields[:, 1] - fields[:, 0]) @ self.slope
        return rises, (energies[:, 1] - energies[:, 0]) / rises


def nodes_along(system: System, variances: Array, bundle: Bundle, orders: LineOrders) -> Along:
    """Nodes along all lines of a bundle, which resolve every jump.

    Panels are cut at the jumps that the minima at their ends lead to, and get nodes.  A piece whose defect is not small
    is cut again.

    Parameters
    ----------
    system : System
    variances : (P, r, r) array
        V of every site.
    bundle : Bundle
    orders : LineOrders
    """
    problems = LocalProblems(system, variances, bundle)
    (x, w), starts = _legendre(orders.nodes), Starts.REFRESH if orders.thorough else Starts.WARM
    pieces = problems.panels(np.linspace(-orders.reach, orders.reach, orders.panels + 1))
    most, done = -1.0, []
    while True:
        left, right = pieces.ends[..., 0].T
        half = (right - left)[:, None] / 2
        places, lengths = left[:, None] + half * (1 + x), half * w
        found = problems.solved(pieces.lines, places, starts, pieces.ends[..., 2:])
        falls = (found.residuals.reshape(len(found.losses), -1) @ bundle.direction.ravel()).reshape(places.shape)
        defects = _defects(pieces.ends[..., 1], found.energies[:, 0].reshape(places.shape), lengths * falls, x, w)
        outer = bundle.weights.take(pieces.lines)
        weights = outer[:, None] * lengths * _density(places)
        if not done:
            most = orders.defect * float(np.abs((weights * falls * places).sum(axis=1)).sum())
            most /= orders.panels * len(bundle.weights)
            most += _ROUNDING * system.units.energy * float(bundle.weights.mean())
        nearest = np.minimum(np.maximum(left, 0.0), right)  # to zero
        told = defects > _ROUNDING * np.abs(pieces.ends[..., 1]).max(axis=1)  # large energies round by more
        open_ = told & (defects * outer * _density(nearest) > most) & (right - left > _LOCATED)
        done.append(((~open_).repeat(len(x)), pieces.lines.repeat(len(x)), places.ravel(), weights.ravel(), *found))
        which = open_.nonzero()[0]
        if not len(which):
            break
        if len(which) > _MOST_OPEN * len(bundle.weights):
            raise ArithmeticError("energies that rounding dominates leave no piece of a line resolved")
        nodes = (values.reshape(*places.shape, *values.shape[1:]).take(which, axis=0) for values in found[:2])
        pieces = _cut(problems, pieces.take(which), _as_nodes(places.take(which, axis=0), *nodes))
    closed, *values = (np.concatenate(every) for every in zip(*done, strict=True))
    lines, places, weights, *solution = _taken(values, closed.nonzero()[0])
    return Along(lines, places, weights, Solution(*solution), *problems.located())


def _defects(ends: Array, energies: Array, falls: Array, x: Array, w: Array) -> Array:
    """By how much nodes miss ``int M' dt = [M]`` and ``int t M' dt = [t M] - int M dt`` on pieces with t from -1 to 1.

    One of both alone changes its sign from piece to piece, and vanishes by chance on some that nodes do not resolve.

    Parameters
    ----------
    ends, energies : (N, 2) and (N, n) arrays
        M at the ends and the nodes.
    falls : (N, n) array
        ``-M'`` at the nodes, with their weights ``w``.
    """
    first = ends[:, 1] - ends[:, 0] + falls.sum(axis=1)
    return np.asarray(np.hypot(first, ends.sum(axis=1) - energies @ w + falls @ x))


def _cut(problems: LocalProblems, pieces: Pieces, nodes: Array) -> Pieces:
    """Pieces cut at the crossing that their nodes see, or else on both sides of where Phi bends most.

    A quarter of the nodes at least stays on each side, so that what is left becomes shorter.

    Parameters
    ----------
    nodes : (N, n, 2, 2 + L r) array
        Both minima at every node.
    """
    each = nodes.shape[1]
    crossed, crossings = problems.crossings(pieces, nodes)
    left_over = np.ones(len(nodes), dtype=bool)
    left_over[crossed] = False
    others = left_over.nonzero()[0]
    ends, nodes = pieces.ends.take(others, axis=0), nodes.take(others, axis=0)
    lowest = np.concatenate([ends[:, :1], nodes[:, :, 0], ends[:, 1:]], axis=1)
    steps = lowest[:, 1:] - lowest[:, :-1]
    slopes = steps[..., 2:] @ problems.slope / steps[..., 0]
    bend = np.abs(slopes[:, 1:] - slopes[:, :-1]).argmax(axis=1)
    inner = np.clip(bend, each // 4, each - 1 - each // 4)[:, None] + np.array([-1, 1])
    return problems.cut(pieces, crossed, crossings, others, nodes[np.arange(len(others))[:, None], inner])


def _as_nodes(places: Array, minima: Array, energies: Array) -> Array:
    """Both minima at places (N, n) as `Pieces` has them, (N, n, 2, 2 + L r)."""
    return _as_ends(places[..., None], energies.reshape(*places.shape, 2), minima.reshape(*places.shape, 2, -1))


def _as_ends(places: Array, energies: Array, fields: Array) -> Array:
    """Minima at places (...) as `Pieces` has them, of energies and fields (..., L r) of as many."""
    ends = np.empty((*fields.shape[:-1], 2 + fields.shape[-1]))
    ends[..., 0], ends[..., 1], ends[..., 2:] = places, energies, fields
    return ends


def _density(places: Array) -> Array:
    return np.asarray(np.exp(-(places**2) / 2) / np.sqrt(2 * np.pi))


def _taken(arrays: Iterable[NDArray[Any]], which: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Some rows of every array."""
    return [values.take(which, axis=0) for values in arrays]
