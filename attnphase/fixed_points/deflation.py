"""All fixed points that can be found at one place: many starts, each with what is known already deflated away.

Newton's method on ``M(x) (F(x) - x)`` cannot end twice at one solution: ``M`` has a pole at every known one and at its
mirror images (Farrell, Birkisson and Funke, SIAM J. Sci. Comput. 37, A2026, 2015).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnphase.arrays import Array
from attnphase.fixed_points.continuation import fine_enough, on_curve
from attnphase.fixed_points.family import SMALLEST, Family, rules_of, scale_of, share_of_node
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.run import Run, system_of
from attnphase.fixed_points.setting import Setting
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Advance, Callback, silent, uncounted
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.overlaps import Overlaps, norm_entries, norm_matrix
from attnphase.state_evolution.rest import at_zero, rests
from attnphase.state_evolution.sector import Sector, images
from attnphase.state_evolution.starts import branches_of, initial_overlaps, random_overlaps
from attnphase.state_evolution.symmetries import ProblemSymmetry
from attnphase.state_evolution.system import System

__all__ = ["Solution", "solutions_of"]

_SAME = 1e-2  # distance of two solutions, in units of their overlaps, below which they are one
_PRESENT = 0.02  # of an informed start's m or theta: an order parameter below it is zero
_ITERATIONS = 16
_SEARCHED = 1e-5  # residual at which the search ends
_JUMPS = 4.0  # nodes that may change their minimum between two sides of a solution
_LONGEST = 0.4  # step of Newton's method, in units of the overlaps
_SHIFT = 0.02  # a wider pole would push away the other side of a fold
_WIDE = 4.0  # factor of the differences' steps where symmetry is broken: jumps of single nodes decide below
_BESIDE = 0.2  # how far from a solution a second one is looked for, in units of the overlaps


@dataclass(frozen=True, eq=False)
class Solution:
    """One fixed point.

    Attributes
    ----------
    point : BranchPoint
        Named by its order parameters.
    eigenvalue : float
        Largest real part of an eigenvalue of the map's Jacobian, symmetries broken or not.
    unstable : int
        How many have a real part above one.
    found : int
        Starts that ended here; none of zero weights that rest, which are looked at apart.
    """

    point: BranchPoint
    eigenvalue: float
    unstable: int
    found: int


@dataclass(frozen=True, eq=False)
class _Search:
    """What a search at one place needs."""

    setting: Setting
    settings: SolverSettings
    system: System
    scale: Array  # of packed overlaps

    def images(self, overlaps: Overlaps) -> list[Overlaps]:
        """Mirror images under the problem's exact symmetries."""
        length, columns, rank = overlaps.theta.shape
        found = images(overlaps, self.system.symmetries).pack()
        return [Overlaps.unpack(one, length, columns, rank, overlaps.norms) for one in found]

    def distance(self, a: Overlaps, b: Overlaps) -> float:
        """Of two solutions, or of the nearest mirror images; a rotation of the columns that no loss sees is one."""
        packed = a.pack()
        images = (one.pack() for one in self.images(b))
        nearest = min(float(np.abs((packed - one) / self.scale).max()) for one in images)
        if nearest < _SAME or not len(self.system.gauge.turns):
            return nearest
        orders = {tuple(order) for order, *_ in self.system.symmetries}
        a, b = map(self.system.gauge.in_units, (a, b))
        turned = min(float(np.abs(_invariants(a, range(len(a.q))) - _invariants(b, order)).max()) for order in orders)
        return min(nearest, turned)

    def family(self, start: Overlaps, symmetries: Sequence[ProblemSymmetry] | None = None) -> Family:
        """The maps in the sector of a start, of all that share its symmetries or those among some, on few nodes."""
        system = self.system
        sector = Sector.of(start, symmetries or system.symmetries, system.units, system.gauge)
        rules, first = rules_of(self.setting.problem, self.settings), np.abs(sector.basis).argmax(axis=0)
        scale, alpha = (self.scale / sector.sizes)[first], self.setting.alpha
        return Family(self.setting, sector, rules, rules.first(), self.settings, scale, alpha)


@np.errstate(all="ignore")  # what overflows leaves the domain
def solutions_of(
    problem: Problem,
    alpha: float,
    *,
    starts: int = 12,
    seed: int = 0,
    settings: SolverSettings | None = None,
    callback: Callback = silent,
    advance: Advance = uncounted,
) -> list[Solution]:
    """Fixed points at one sample complexity, stable or not, the one of lowest training loss first.

    From every branch's informed start and from random ones, first by the damped iteration, then by Newton's method with
    all that is known deflated. What differs by an exact symmetry of the problem is found once.

    Parameters
    ----------
    starts : int
        Random ones.
    seed : int
        From which they follow.
    advance : callable, optional
        Takes the number of starts that were searched from, those of the branches too.
    """
    settings = settings or SolverSettings()
    setting = Setting(problem, alpha)
    system = system_of(problem, settings, callback)
    informed = [initial_overlaps(problem, branch) for branch in branches_of(problem)]
    natural = informed[0].scales(system.spectrum.rho)
    scale = np.max([scale_of(one.pack(), one.pack(), natural) for one in informed], axis=0)
    search = _Search(setting, settings, system, _with_entries(scale, informed[0], system.spectrum.rho))
    generator = np.random.default_rng(seed)
    beginnings = [*informed, *(random_overlaps(problem, generator) for _ in range(starts))]
    known: list[Overlaps] = []
    counts: list[int] = []

    def count(overlaps: Overlaps) -> None:
        distances = [search.distance(overlaps, one) for one in known]
        if distances and min(distances) < _SAME:
            counts[int(np.argmin(distances))] += 1
        else:
            known.append(overlaps)
            counts.append(1)

    for i, start in enumerate(beginnings):
        for overlaps in _ends(search, start, known):
            callback(f"start {i + 1} of {len(beginnings)}, {len(known)} solutions")
            count(overlaps)
        advance(i + 1)
    looked = 0
    while looked < len(known):  # beside what was found: at a fold two solutions meet
        callback(f"beside {looked + 1} of {len(known)} solutions")
        for overlaps in _beside(search, known[looked], known):
            count(overlaps)
        looked += 1
    found: list[Solution] = []
    for overlaps, times in zip(known, counts, strict=True):
        callback(f"measuring {len(found) + 1} of {len(known)} solutions")
        solution = _measured(search, overlaps, times)
        if solution is None:
            continue
        same = [search.distance(solution.point.restart.overlaps, one.point.restart.overlaps) < _SAME for one in found]
        if any(same):  # two points that more nodes show to be one
            first = same.index(True)
            found[first] = replace(found[first], found=found[first].found + times)
        else:
            found.append(solution)
    if rests(system, informed[0]) and not any(one.point.zero_weights for one in found):
        zero = solve_point(problem, alpha, "uninformed", start=at_zero(system, informed[0]), settings=settings)
        if zero.status is Status.converged and zero.zero_weights:
            found.append(Solution(zero, eigenvalue=0.0, unstable=0, found=0))  # the map leaves it from no direction
    return sorted(found, key=lambda one: float(one.point.values["training_loss"]))


def _with_entries(scale: Array, like: Overlaps, rho: Array) -> Array:
    """Sizes of packed overlaps, with those of entries that vanish in all informed starts by what bounds them.

    An entry of q, V or Q is at most the root of its two diagonal ones, and one of theta that of those of q and rho.
    """
    length, columns, rank = like.theta.shape
    given = Overlaps.unpack(scale, length, columns, rank, like.norms)
    q, V = (np.sqrt(np.einsum("lii->li", one)) for one in (given.q, given.V))
    bound = q[:, :, None] * np.sqrt(np.einsum("lii->li", rho))[:, None]
    theta, trained = np.maximum(given.theta, SMALLEST * bound), given.trained
    if like.norms:
        Q = np.sqrt(np.diag(norm_matrix(trained[-like.norms :], columns)))
        trained = np.append(trained[: -like.norms], norm_entries(Q[:, None] * Q))
    q, V = (one[:, :, None] * one[:, None] for one in (q, V))
    return Overlaps(q, V, given.m, theta, trained, norms=like.norms).pack()


def _ends(search: _Search, start: Overlaps, known: Sequence[Overlaps]) -> Iterator[Overlaps]:
    """Where the damped iteration leads, and Newton's method with that and all that is known deflated."""
    family = search.family(start)
    run = Run(search.system, search.setting.alpha, search.settings, family.sector)
    map_ = run.map(family.rule)
    found = run.coarse(map_, family.sector.pack(start), _SEARCHED)
    family.minima = map_.minima
    ended: Overlaps | None = family.sector.unpack(found.point)
    if found.residual > _near_enough(family):
        ended = _deflated(search, family, family.sector.unpack(found.point), [])
    near = [] if ended is None else [_cleaned(search, ended)]
    yield from near
    other = _deflated(search, family, start, [*known, *near])
    if other is not None:
        yield _cleaned(search, other)


def _beside(search: _Search, solution: Overlaps, known: Sequence[Overlaps]) -> list[Overlaps]:
    """Where Newton's method leads from either side of a solution, along the map's slowest direction, that deflated."""
    family = search.family(solution)
    place = family.place(solution, search.setting.alpha)
    if family.careful(place) is None or (jacobian := family.derivative(place)) is None:
        return []
    values, vectors = np.linalg.eig(jacobian[:, :-1])
    slowest: Array = np.real(vectors[:, int(np.abs(values).argmin())])
    found = []
    for side in (_BESIDE, -_BESIDE):
        start = family.split(place + np.append(side * slowest / np.abs(slowest).max(), 0.0))[0]
        other = _deflated(search, family, family.sector.unpack(start), [*known, *found])
        if other is not None:
            found.append(_cleaned(search, other))
    return found


def _deflated(search: _Search, family: Family, start: Overlaps, known: Sequence[Overlaps]) -> Overlaps | None:
    """Newton's method on the deflated residual."""
    poles = np.array([one.pack() / search.scale for solution in known for one in search.images(solution)])
    sector = family.sector
    basis = sector.basis * family.scale * (sector.sizes / search.scale)[:, None]
    place = family.place(start, search.setting.alpha)
    value = family.careful(place)
    best, size = place, np.inf
    for _ in range(_ITERATIONS):
        if value is None:
            break
        if np.abs(value).max() < size:
            best, size = place, float(np.abs(value).max())
        if size <= _SEARCHED or (jacobian := family.derivative(place)) is None:
            break
        step = np.linalg.lstsq(jacobian[:, :-1], -value, rcond=1e-8)[0]
        step = step / (1 - _pull(basis, poles, basis @ place[:-1]) @ step) if len(poles) else step
        step *= min(1.0, _LONGEST / max(float(np.abs(step).max()), 1e-300))
        for fraction in (1.0, 0.5, 0.25, 0.1):
            trial = place + np.append(fraction * step, 0.0)
            image = family.careful(trial)
            if image is not None:
                break
        place, value = trial, image
    return family.sector.unpack(family.split(best)[0]) if size <= _near_enough(family) else None


def _near_enough(family: Family) -> float:
    """Residual of a place beside which single nodes jump, so that none comes nearer; no node of lines jumps."""
    return _SEARCHED if family.rule.lines is not None else max(_SEARCHED, _JUMPS * share_of_node(family.rule))


def _pull(basis: Array, poles: Array, at: Array) -> Array:
    """Gradient of ``ln M``, with a factor ``1 + 0.02 / |x - y|^2`` for every pole y, in the sector's coordinates."""
    apart = at - poles
    squares = np.maximum((apart**2).sum(axis=1), 1e-12)
    weights = -2 * _SHIFT / squares**2 / (1 + _SHIFT / squares)
    return (weights @ apart) @ basis


def _invariants(overlaps: Overlaps, order: Sequence[int]) -> Array:
    """What a rotation of the columns leaves, relative to its size."""
    places = list(order)
    q, V = np.linalg.eigvalsh(overlaps.q[places]), np.linalg.eigvalsh(overlaps.V[places])
    m = np.linalg.norm(overlaps.m[places], axis=-2)
    theta = np.linalg.svd(overlaps.theta[places], compute_uv=False)
    parts = [(part / max(float(np.abs(part).max()), 1e-2)).ravel() for part in (q, V, m, theta)]
    return np.concatenate(parts).astype(float)


def _cleaned(search: _Search, overlaps: Overlaps) -> Overlaps:
    """The nearest overlaps with every symmetry that they nearly have, so that zeros are exact."""
    packed, images = overlaps.pack(), [one.pack() for one in search.images(overlaps)]
    near = [one for one in images if np.abs((one - packed) / search.scale).max() < _PRESENT]
    columns, rank = overlaps.theta.shape[-2:]
    return Overlaps.unpack(np.mean(near, axis=0), len(overlaps.q), columns, rank, overlaps.norms)


def _measured(search: _Search, overlaps: Overlaps, found: int) -> Solution | None:
    """A solution on the problem's own rule, with everything measured; None where more nodes do not have it."""
    family, alpha = search.family(overlaps), search.setting.alpha
    guess = family.place(overlaps, alpha)
    try:
        family, place = fine_enough(family, guess)
        if not np.abs(guess - place).max() <= 0.5:
            return None
        solved = family.sector.unpack(family.split(place)[0])
        _, one = on_curve(family, place, np.eye(len(place))[-1], _named(search, solved))
    except ArithmeticError:
        return None
    whole = search.family(solved, symmetries=search.system.symmetries[:1])
    whole = replace(whole, rule=family.rule, scale=_WIDE * whole.scale)
    at = whole.place(solved, alpha)
    slopes = None if whole.careful(at) is None else whole.derivative(at)
    if slopes is None:
        return Solution(one.point, one.eigenvalue, one.unstable, found)
    across = _across_turns(whole, at, solved, search.system.gauge.free)
    eigenvalues = np.linalg.eigvals(across.T @ slopes[:, :-1] @ across).real + 1.0
    return Solution(one.point, float(eigenvalues.max()), int((eigenvalues > 1).sum()), found)


def _across_turns(whole: Family, at: Array, overlaps: Overlaps, generators: Array) -> Array:
    """All directions but those in which turns of the columns move a solution, as orthonormal columns.

    Along these the map's eigenvalue is one by symmetry, of which the nodes' scatter may make more than one.
    """
    columns, turns = overlaps.q.shape[-1], []
    for A in generators:
        q, V = (A @ one + one @ A.T for one in (overlaps.q, overlaps.V))
        change = Overlaps(q, V, A @ overlaps.m, A @ overlaps.theta, overlaps.rate_of_trained(A), norms=overlaps.norms)
        packed, sizes = overlaps.pack() + change.pack(), (len(overlaps.q), columns, overlaps.theta.shape[-1])
        moved = Overlaps.unpack(packed, *sizes, overlaps.norms)
        turns.append((whole.place(moved, whole.split(at)[1]) - at)[:-1])
    vectors, sizes, _ = np.linalg.svd(np.array(turns).reshape(-1, len(at) - 1).T, full_matrices=True)
    return vectors[:, int((sizes > _PRESENT).sum()) :]


def _named(search: _Search, overlaps: Overlaps) -> str:
    """The branch that has the order parameters of some overlaps."""
    sizes = {
        name: max(
            float(np.abs(getattr(initial_overlaps(search.setting.problem, branch), name)).max())
            for branch in branches_of(search.setting.problem)
        )
        for name in ("m", "theta")
    }
    present = [name for name, size in sizes.items() if np.abs(getattr(overlaps, name)).max() > _PRESENT * size]
    return {(): "uninformed", ("m",): "positional", ("theta",): "semantic"}.get(tuple(present), "mixed")
