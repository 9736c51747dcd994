"""Nodes of one map along lines of the student's fields, on which every jump of the proximal point is located.

For fixed teacher's fields ``Phi(omega) = |omega|^2 / 2 - M(omega)``, in the metric of ``V^-1``, is convex, and its
slope along a line ``omega = c + s d`` is ``d . V^-1 prox``.  So the proximal point is smooth along the line, but for
jumps at which that slope rises, where two minima are equally low.  Two consequences are used:

- The minimisers at the panels' ends are trial points for each other where the teacher's fields are the same: where the
  energy of one lies below the minimum found at another end, that was not the lowest.
- ``M(r) - M(l)`` is the integral of ``-g . d`` over the line from l to r.  It is known from the ends, and so the error
  of the nodes between them is, too: a piece whose defect is not small has a jump that its nodes do not resolve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.integration.lines import LineOrders, between, orbits
from attnphase.integration.rules import Rule, gauss_hermite_nodes, tensor
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.local.values import FieldLaw, Solution
from attnphase.state_evolution.proximal import Part, ProximalProblem, Search, for_all, lower_factors
from attnphase.state_evolution.system import System

if TYPE_CHECKING:
    from attnphase.state_evolution.directions import Directions

__all__ = ["DEFECT", "rule_at"]

DEFECT = 1e-7  # of a piece, relative to what panels add to E[g . d s] on average: the residual that solves end at
_ROUNDING = 1e-13  # of energies, in their unit: defects below tell nothing
_HALVINGS = 40  # after which a piece is 1e-12 of a panel
_NEWTON_STEPS = 50  # to a crossing; bisection takes as many for its precision
_LOCATED = 1e-10  # precision of crossings along the line, in standard deviations
_SAMPLES, _SAME = 6, 1e-9  # random fields on which a symmetry is tried, and by what losses may differ


@dataclass(frozen=True, eq=False)
class Bundle:
    """Parallel lines ``omega = c + s d``.

    Attributes
    ----------
    centers : (n, L, r) array
        ``c`` of every line.
    teacher_fields : (n, L, t) array
    direction : (L, r) array
        ``d``, by which omega moves along a standard deviation.
    weights : (n,) array
    alike : int
        So many lines after another share their teacher's fields.
    """

    centers: Array
    teacher_fields: Array
    direction: Array
    weights: Array
    alike: int

    def at(self, lines: NDArray[np.int64], places: Array) -> Array:
        """Omega at places of lines, (N, L, r)."""
        return np.asarray(self.centers[lines] + places[:, None, None] * self.direction)


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
    """

    lines: NDArray[np.int64]
    places: Array
    weights: Array
    solution: Solution


class _Pieces(NamedTuple):
    """Pieces of lines from ``left`` to ``right``, with the lowest minima at both ends.

    Attributes
    ----------
    lines : (N,) array of int
    left, right : (N,) arrays
    at_left, at_right : (N, L, r) arrays
        The proximal points there, seen from the inside.
    energy_left, energy_right : (N,) arrays
    """

    lines: NDArray[Any]
    left: NDArray[Any]
    right: NDArray[Any]
    at_left: NDArray[Any]
    at_right: NDArray[Any]
    energy_left: NDArray[Any]
    energy_right: NDArray[Any]

    def take(self, which: NDArray[np.int64]) -> _Pieces:
        """Some of them."""
        return _Pieces(*(values[which] for values in self))

    def cut(self, places: Array, before: Array, after: Array, energies: Array) -> _Pieces:
        """Each in two, at places with the proximal points before and after them."""
        first = self._replace(right=places, at_right=before, energy_right=energies)
        second = self._replace(left=places, at_left=after, energy_left=energies)
        return _Pieces(*(np.concatenate(pair) for pair in zip(first, second, strict=True)))


class _LocalProblems:
    """The local problems of a bundle's nodes."""

    def __init__(self, system: System, variances: Array, bundle: Bundle) -> None:
        self.system, self.bundle, self.proximal = system, bundle, ProximalProblem(system)
        self.factors, self.shift = lower_factors(variances), system.label_means
        self.inverse = np.linalg.inv(variances)
        self.slope = np.einsum("lij,lj->li", self.inverse, bundle.direction)

    def solved(self, lines: NDArray[np.int64], places: Array, starts: Starts, *known: Array) -> Solution:
        """Minima at places of lines, from two that may be known or from the starts of their own."""
        omega = self.bundle.at(lines, places)
        count, shape = len(omega), omega.shape[1:]
        k = np.ascontiguousarray(self.bundle.teacher_fields[lines] + self.shift)
        minima, energies = np.zeros((count, 2, *shape)), np.zeros((count, 2))
        for i, fields_of in enumerate(known):
            minima[:, i], energies[:, i] = fields_of, i  # different energies, as those of different minima
        solution = Solution(minima, energies, np.empty(count), np.empty((count, *shape)), np.empty(count, np.int64))

        def run(part: Part) -> None:
            here = part.nodes
            self.proximal.search(0, omega[here], k[here], self.factors, Search(starts), solution.part(here))

        for_all(self.proximal.parts(1, [0], count), run, self.system.threads)
        return solution

    def rises(self, of: Array) -> Array:
        """The slope of Phi along the line at proximal points (..., L, r)."""
        return np.asarray(np.einsum("...li,li->...", of, self.slope))

    def ends(self, edges: Array) -> Solution:
        """The lowest minima at the panels' edges of all lines, of which none is above a trial point of its kind."""
        count, each_line = len(self.bundle.centers), len(edges)
        lines, places = np.repeat(np.arange(count), each_line), np.tile(edges, count)
        found = self.solved(lines, places, Starts.COLD)
        omega = self.bundle.at(lines, places)
        unit = self.system.units.energy
        while True:
            trial, energies = self._trials(omega, found, self.bundle.alike * each_line)
            better = np.flatnonzero(energies < found.energies[:, 0] - _ROUNDING * (unit + np.abs(energies)))
            if not len(better):
                return found
            known = found.minima[trial[better], 0], found.minima[better, 0]
            again = self.solved(lines[better], places[better], Starts.WARM, *known)
            lower = again.energies[:, 0] < found.energies[better, 0]
            for values, new in zip(found, again, strict=True):
                values[better[lower]] = new[lower]
            if not lower.all():  # by rounding alone
                return found

    def _trials(self, omega: Array, found: Solution, alike: int) -> tuple[NDArray[np.int64], Array]:
        """For every node the minimiser with the same teacher's fields that has the lowest energy there, and that."""
        size = omega[0].size
        metric = np.zeros((size, size))
        columns = omega.shape[-1]
        for l, inverse in enumerate(self.inverse):
            here = slice(l * columns, (l + 1) * columns)
            metric[here, here] = inverse
        h = found.minima[:, 0].reshape(-1, alike, size)
        w = omega.reshape(-1, alike, size)
        own = 0.5 * np.einsum("gjx,xy,gjy->gj", h, metric, h) + found.losses.reshape(-1, alike)
        energies = own[:, None, :] - w @ metric @ h.mT
        best = energies.argmin(axis=2)
        lowest = np.take_along_axis(energies, best[..., None], axis=2)[..., 0]
        lowest += 0.5 * np.einsum("gix,xy,giy->gi", w, metric, w)
        places = best + alike * np.arange(len(best))[:, None]
        return places.ravel(), lowest.ravel()


def nodes_along(system: System, variances: Array, bundle: Bundle, orders: LineOrders) -> Along:
    """Nodes along all lines of a bundle, which resolve every jump.

    Parameters
    ----------
    system : System
    variances : (L, r, r) array
        V of every token.
    bundle : Bundle
    orders : LineOrders
    """
    problems = _LocalProblems(system, variances, bundle)
    x, w = np.polynomial.legendre.leggauss(orders.nodes)
    edges = np.linspace(-orders.reach, orders.reach, orders.panels + 1)
    pieces, most = _panels(problems, edges), -1.0
    done: list[Along] = []
    for halving in range(_HALVINGS):
        half = (pieces.right - pieces.left) / 2
        places = pieces.left[:, None] + half[:, None] * (1 + x)
        lines = np.repeat(pieces.lines, len(x))
        known = (np.repeat(pieces.at_left, len(x), axis=0), np.repeat(pieces.at_right, len(x), axis=0))
        found = problems.solved(lines, places.ravel(), Starts.WARM, *known)
        lengths = half[:, None] * w
        falls = np.einsum("nli,li->n", found.residuals, bundle.direction).reshape(places.shape)
        defects = np.abs(pieces.energy_right - pieces.energy_left + (lengths * falls).sum(axis=1))
        outer = bundle.weights[pieces.lines]
        nearest = np.where(pieces.left * pieces.right > 0, np.minimum(np.abs(pieces.left), np.abs(pieces.right)), 0.0)
        weights = outer[:, None] * lengths * _density(places)
        if halving == 0:
            most = DEFECT * float(np.abs((weights * falls * places).sum(axis=1)).mean())
            most += _ROUNDING * system.units.energy * float(bundle.weights.mean())
        open_ = (defects * outer * _density(nearest) > most) & (halving < _HALVINGS - 1)
        closed, left = np.flatnonzero(np.repeat(~open_, len(x))), np.flatnonzero(open_)
        part = _every(found, partial(np.take, indices=closed, axis=0))
        done.append(Along(lines[closed], places.ravel()[closed], weights.ravel()[closed], part))
        if not len(left):
            break
        pieces = _cut(
            problems,
            pieces.take(left),
            places[left],
            _every(found, partial(_by_piece, len(x), left)),
        )
    return _joined(done)


def _panels(problems: _LocalProblems, edges: Array) -> _Pieces:
    """The panels of all lines."""
    ends, count, panels = problems.ends(edges), len(problems.bundle.centers), len(edges) - 1

    def at(values: Array, side: slice) -> Array:
        """Of the lowest minimum, at one end of the panels."""
        lowest = values[:, 0].reshape(count, len(edges), *values.shape[2:])
        return np.asarray(lowest[:, side].reshape(count * panels, *values.shape[2:]))

    left, right = slice(-1), slice(1, None)
    return _Pieces(
        np.repeat(np.arange(count), panels),
        np.tile(edges[:-1], count),
        np.tile(edges[1:], count),
        at(ends.minima, left),
        at(ends.minima, right),
        at(ends.energies, left),
        at(ends.energies, right),
    )


def _cut(problems: _LocalProblems, pieces: _Pieces, places: Array, found: Solution) -> _Pieces:
    """Pieces in two, each at the jump that its nodes see two minima beside, or else in the middle.

    Parameters
    ----------
    places : (N, n) array
        Of the nodes.
    found : Solution
        There, (N, n, ...).
    """
    gaps = found.energies[..., 1] - found.energies[..., 0]
    seen = (gaps > 0).any(axis=1)
    middle = (pieces.left + pieces.right) / 2
    plain = problems.solved(pieces.lines, middle, Starts.WARM, pieces.at_left, pieces.at_right)
    before, after, energies = plain.minima[:, 0].copy(), plain.minima[:, 0].copy(), plain.energies[:, 0].copy()
    which = np.flatnonzero(seen)
    if len(which):
        nearest = np.where(gaps[which] > 0, gaps[which], np.inf).argmin(axis=1)
        start = places[which, nearest]
        pair = found.minima[which, nearest]
        jumps = _Crossings(
            problems,
            pieces.take(which),
            start,
            pair,
            found.energies[which, nearest],
        )
        located = jumps.locate()
        inside = np.minimum(jumps.places - jumps.left_end, jumps.right_end - jumps.places)[located] > _LOCATED
        located = located[inside]  # not the crossing that a piece ends at
        which = which[located]
        middle[which], before[which], after[which] = (
            values[located] for values in (jumps.places, jumps.before, jumps.after)
        )
        energies[which] = jumps.energies[located]
    return pieces.cut(middle, before, after, energies)


class _Crossings:
    """Where two minima are equally low, by Newton's method on the difference of their energies, within each piece.

    Its slope is ``(after - before) . V^-1 d``, positive: of two minima the one with the steeper Phi follows.
    """

    def __init__(self, problems: _LocalProblems, pieces: _Pieces, places: Array, pair: Array, energies: Array) -> None:
        self.problems, self.lines = problems, pieces.lines
        self.left_end, self.right_end = pieces.left, pieces.right
        self.places, self.left, self.right = places.copy(), pieces.left.copy(), pieces.right.copy()
        self.before, self.after = np.empty_like(pair[:, 0]), np.empty_like(pair[:, 0])
        self.gaps, self.energies = np.empty(len(places)), np.empty(len(places))
        self._put(np.arange(len(places)), places, pair, energies)

    def _put(self, which: NDArray[np.int64], places: Array, pair: Array, energies: Array) -> None:
        """Two minima at a place: ``gaps`` is by how much the energy of the one before lies above the other's."""
        first = self.problems.rises(pair[:, 0] - pair[:, 1]) < 0
        turned = first[:, None, None]
        self.before[which] = np.where(turned, pair[:, 0], pair[:, 1])
        self.after[which] = np.where(turned, pair[:, 1], pair[:, 0])
        self.gaps[which] = np.where(first, -1.0, 1.0) * (energies[:, 1] - energies[:, 0])
        self.places[which], self.energies[which] = places, energies[:, 0]

    def locate(self) -> NDArray[np.int64]:
        """Those that are found; others have none in their piece."""
        going, located = np.arange(len(self.places)), np.zeros(len(self.places), dtype=bool)
        for _ in range(_NEWTON_STEPS):
            here, gaps = self.places[going], self.gaps[going]
            there = here - gaps / self.problems.rises(self.after[going] - self.before[going])
            self.left[going] = np.where(gaps < 0, here, self.left[going])
            self.right[going] = np.where(gaps > 0, here, self.right[going])
            arrived = np.abs(there - here) <= _LOCATED
            located[going[arrived]] = True
            there = np.clip(there, self.left[going], self.right[going])
            further = ~arrived & (np.abs(there - here) > _LOCATED)
            going, there, here = going[further], there[further], here[further]
            if not len(going):
                break
            found = self.problems.solved(self.lines[going], there, Starts.WARM, self.before[going], self.after[going])
            two = found.energies[:, 1] > found.energies[:, 0]
            self._put(going[two], there[two], found.minima[two], found.energies[two])
            # where one of the two has ended there is no crossing: nearer to where both are
            ended, middle = going[~two], (there[~two] + here[~two]) / 2
            ahead = there[~two] > here[~two]
            self.right[ended] = np.where(ahead, middle, self.right[ended])
            self.left[ended] = np.where(ahead, self.left[ended], middle)
        return np.flatnonzero(located)


def _density(places: Array) -> Array:
    return np.asarray(np.exp(-(places**2) / 2) / np.sqrt(2 * np.pi))


def _by_piece(nodes: int, which: NDArray[np.int64], values: NDArray[Any]) -> NDArray[Any]:
    """What belongs to the nodes of some pieces, piece by piece."""
    return values.reshape(-1, nodes, *values.shape[1:])[which]


def _every(solution: Solution, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Solution:
    """A solution whose arrays are all changed alike."""
    minima, energies, losses, residuals, flags = solution
    return Solution(change(minima), change(energies), change(losses), change(residuals), change(flags))


def _joined(parts: list[Along]) -> Along:
    lines, places, weights = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("lines", "places", "weights")
    )
    minima, energies, losses, residuals, flags = (
        np.concatenate(values) for values in zip(*(part.solution for part in parts), strict=True)
    )
    return Along(lines, places, weights, Solution(minima, energies, losses, residuals, flags))


def rule_at(
    system: System,
    rule: Rule,
    law: FieldLaw,
    variances: Array,
    directions: Directions,
    group: Sequence[tuple[list[int], Array, Array]],
) -> tuple[Rule, Solution]:
    """The nodes of a rule of lines at a point, with their minima.

    Parameters
    ----------
    system : System
        Of tokens that are in no clusters.
    rule : Rule
    law : FieldLaw
        Of the fields at the point, the teacher's first.
    variances : (L, r, r) array
        V of every token.
    directions : Directions
    group : sequence of (order of the tokens, (r, r) array, (t, t) array)
        Symmetries of the problem and of the point.  Of teacher's fields that they make of each other one is a node,
        with the weight of all: what it gives must be averaged over the group.
    """
    orders, kernels = rule.lines, system.kernels
    assert orders is not None
    length, columns, rank = kernels.length, kernels.columns, kernels.teacher_rank
    zeta, of_latent = _latent_nodes(directions, orders, (length, rank), symmetries_of_samples(system, group))
    eta, of_across = _nodes_across(directions, orders, (length, columns))
    along = directions.student[:, 0].reshape(length, columns)
    shared = law.means + np.einsum("lij,nlj->nli", law.lifts, zeta)
    bundle = Bundle(
        (shared[:, None] + np.einsum("lij,mlj->mli", law.roots, eta)).reshape(-1, length, columns),
        np.repeat(np.einsum("lij,nlj->nli", law.remainders, zeta), len(eta), axis=0),
        np.einsum("lij,lj->li", law.roots, along),
        np.outer(of_latent, of_across).ravel(),
        len(eta),
    )
    found = nodes_along(system, variances, bundle, orders)
    latent, other = np.divmod(found.lines, len(eta))
    normals = eta[other] + found.places[:, None, None] * along
    nodes = np.concatenate([part.reshape(len(latent), -1) for part in (normals, zeta[latent])], axis=1)
    return replace(rule, nodes=nodes[None], weights=found.weights), found.solution


def symmetries_of_samples(
    system: System, group: Sequence[tuple[list[int], Array, Array]]
) -> tuple[tuple[tuple[int, ...], bytes], ...]:
    """Order of the tokens and teacher's matrix of those symmetries that are some of single samples too."""
    every = ((tuple(order), *(np.asarray(x, dtype=float).tobytes() for x in (A, B))) for order, A, B in group)
    return tuple((order, B) for order, A, B in every if _leaves_samples(system, order, A, B))


@lru_cache(maxsize=1024)
def _leaves_samples(system: System, order: tuple[int, ...], A: bytes, B: bytes) -> bool:
    """Whether a symmetry of the overlaps is one of single samples too.

    With a causal mask it need not be: tokens of the same law have the same overlaps, and other losses.
    """
    kernels, generator = system.kernels, np.random.default_rng(22)
    length, columns, rank = kernels.length, kernels.columns, kernels.teacher_rank
    h, k = (generator.normal(0.1, 0.9, (_SAMPLES, length, count)) for count in (columns, rank))
    student, teacher = np.frombuffer(A).reshape(columns, columns), np.frombuffer(B).reshape(rank, rank)
    losses = np.empty((2, _SAMPLES))
    mixing, parameters = system.parameters
    turned = h[:, list(order)] @ student.T, k[:, list(order)] @ teacher.T
    for found, (fields_of, labels) in zip(losses, ((h, k), turned), strict=True):
        whole = np.ascontiguousarray(labels + system.label_means[:length])
        kernels.losses_at(np.ascontiguousarray(fields_of), whole, mixing, parameters, system.token_variances[0], found)
    return bool(np.abs(losses[0] - losses[1]).max() <= _SAME * np.abs(losses).max())


@lru_cache(maxsize=32)
def _latent_nodes(
    directions: Directions,
    orders: LineOrders,
    shape: tuple[int, int],
    elements: tuple[tuple[tuple[int, ...], bytes], ...],
) -> tuple[Array, Array]:
    """The teacher's standard normals (n, L, t) and their weights: of what a group makes of each other one node."""
    breaks = [directions.breaks] + [()] * (len(orders.latent) - 1)
    axes = zip(breaks, orders.latent, strict=True)
    places, weights = tensor([between(own, count, i == orders.shifted) for i, (own, count) in enumerate(axes)])
    flat = places @ directions.latent.T
    zeta = flat.reshape(-1, *shape)
    matrices = [np.frombuffer(entries).reshape(shape[1], shape[1]) for _, entries in elements]
    images = [
        (zeta[:, list(order)] @ B.T).reshape(flat.shape) for (order, _), B in zip(elements, matrices, strict=True)
    ]
    chosen, counts = orbits(flat, [image.reshape(flat.shape) for image in images])
    return zeta[chosen], weights[chosen] * counts


@lru_cache(maxsize=32)
def _nodes_across(directions: Directions, orders: LineOrders, shape: tuple[int, int]) -> tuple[Array, Array]:
    """The student's standard normals given the teacher's (n, L, r), without those along the line, and weights."""
    across, weights = tensor([gauss_hermite_nodes(count) for count in orders.across])
    return (across @ directions.student[:, 1:].T).reshape(-1, *shape), weights
