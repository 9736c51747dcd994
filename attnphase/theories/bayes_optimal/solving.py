"""Fixed points of the Bayes-optimal state evolution, from nothing known and from all known, with their errors.

The map is monotone: from below it rises to the lowest fixed point above the start, from above it falls to the highest.
What is iterated is the logarithm of ``rho^(-1/2) V rho^(-1/2)``, which is small where little is known and large where V
vanishes, so that both ends are resolved.  Steps are stretched by the ratio of the last ones, the further the longer
the residual keeps its sign, and Newton's method ends it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np

from attnphase.arrays import Array
from attnphase.processes.progress import Callback, silent
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.branches import ERRORS
from attnphase.theories.bayes_optimal.coordinates import Coordinates
from attnphase.theories.bayes_optimal.evolution import Evolution, Moments, joined
from attnphase.theories.bayes_optimal.model import PosteriorModel
from attnphase.theories.bayes_optimal.specialisation import KICK, Sector, growth, told_apart

__all__ = ["BayesOptimalPoint", "Start", "solve_bayes_optimal"]

_NOTHING = 1e-7  # share of q below which nothing is
_MAX_MAPS, COARSE_MAPS = 400, 100  # of a rule, and of one that only leads to others
_TRIALS = 3  # places that are tried beyond a plain step
_STRETCH, _FURTHER = 8.0, 4.0  # plain steps that are taken at once, and how many times more if that was right
_OVERSHOT = 0.3  # residual of a step that goes too far, over the one before: it stays with this fixed point
_COARSE_TOLERANCES = (1e-3, 1e-5)  # of two rules, the second of eight times the nodes of the first
_POLISHING = 12
_STILL = 1e-6  # relative step at which Newton's method ends
_NEGLIGIBLE = 1e-9  # displacement of a replicate, over the point
_NEAR = 0.01  # of what is known, up to which replicates of lattices move alike
_DECAY, _LATTICE_DECAY = 1.4, 0.5  # as many times more nodes, to this power, for an error as many times smaller
_INFORMED, _UNINFORMED = 1e-6, 1e-3  # shares of V and q at the starts
_TOLD, _LESS = 0.5, 1e-2  # of less than the noise that labels tell, the informed start has; from share to share
_ABOVE = 2.0  # times the least share of V that is resolved
_LEARNS = 2.0  # times that what is known grows in the first map, from where it does not go back to nothing


class Start(IntEnum):
    """Where the iteration begins."""

    uninformed = 0
    informed = 1
    asymmetric = 2


@dataclass(frozen=True, eq=False)
class BayesOptimalPoint:
    """A fixed point, with standard errors.

    Attributes
    ----------
    alpha : float
    start : Start
    q, V, q_hat, rho : (P, t, t) arrays
    free_entropy, mutual_information, test_error, overlap : float
        The mutual information is that of a sample and the teacher's weights; it and the free entropy are NaN where they
        are infinite. ``overlap`` is the share of the fields' variance that is known.
    nishimori : float
        Relative difference of the overlap with the teacher and the self-overlap, of the posterior's fields; NaN where
        labels are summed over, so that both are one number.
    errors : dict
        Standard errors of q, V, free_entropy, mutual_information, test_error, overlap and nishimori.
    residual : float
    maps, nodes : int
    status : Status
    recovered : bool
        Whether V is zero, within the iteration's resolution, see `Evolution.recovers`.
    growth : float
        Largest eigenvalue of the map's Jacobian: above one the point is unstable. NaN where everything is known, or
        where the map knows no direction of the columns.
    """

    alpha: float
    start: Start
    q: Array
    V: Array
    q_hat: Array
    rho: Array
    free_entropy: float
    mutual_information: float
    test_error: float
    overlap: float
    nishimori: float
    errors: dict[str, Any]
    residual: float
    maps: int
    nodes: int
    status: Status
    recovered: bool
    growth: float = float("nan")


@dataclass(frozen=True, eq=False)
class _Found:
    """Where an iteration ended, with the map's Jacobian there."""

    x: Array
    residual: float
    status: Status
    maps: int
    jacobian: Array | None = None


@dataclass(eq=False)
class _Iteration:
    """Iterations of one map, and how many there were."""

    evolution: Evolution
    alpha: float
    one: Evolution | None = None  # its first replicate, of lattices
    callback: Callback = silent
    maps: int = 0
    sector: Sector | None = None  # that the places stay in, as the map without the nodes' error does
    anchor: tuple[Array, Array, Moments] | None = None  # a place, V there, and what all replicates say of it
    latest: tuple[Array, Array] | None = None  # a place, and the map's Jacobian there

    def __post_init__(self) -> None:
        self.coordinates = Coordinates(self.evolution.rho, self.evolution.channel.resolution)

    def residual(self, x: Array, *, free: bool = False) -> Array:
        self.maps += 1
        nodes = self.evolution.points * self.evolution.replicates
        self.callback(f"{self.maps} maps, {nodes} nodes", self.maps, _MAX_MAPS)
        V = self.coordinates.matrices(x)
        image = self.evolution.image(self.alpha, V, self.moments(x))
        return self.coordinates.of(image if free or self.sector is None else self.sector.hold(image)) - x

    def moments(self, x: Array) -> Moments:
        """What the channel says at a place.

        Replicates of lattices differ by little, and by hardly more or less a little further: there one is asked, and
        the others are taken to move as it does.
        """
        V = self.coordinates.matrices(x)
        if self.one is None:
            return self.evolution.moments(V)
        if self.anchor is None or np.abs(x - self.anchor[0]).max() > _NEAR * self.size(x):
            others = replace(self.evolution, replicates=self.evolution.replicates - 1, first=1)
            self.anchor = x.copy(), V, self.one.moments(V).beside(others.moments(V))
        known = self.anchor[2]
        return known if np.array_equal(V, self.anchor[1]) else known.moved_by(self.one.moments(V))

    def size(self, x: Array) -> float:
        return float(np.clip(np.abs(x).max(), _NOTHING, 1.0))

    def run(self, x: Array, tolerance: float, most: int = _MAX_MAPS) -> tuple[Array, float, Status]:
        """From a start to the fixed point that the plain iteration leads to."""
        residual, longest = self.residual(x), _STRETCH
        while True:
            size = float(np.abs(residual).max()) / self.size(x)
            if size <= tolerance or (self.ended(x) and not self.unresolved(x)):
                return x, size, Status.converged
            if self.maps >= most:
                return x, size, Status.iteration_limit
            # two plain steps, whose ratio says how far it is
            y = x + residual
            after = self.residual(y)
            ratio = float(residual @ after) / max(float(residual @ residual), 1e-300)
            if ratio <= 0 or np.abs(after).max() / self.size(y) <= tolerance:
                x, residual = y, after
                continue
            growing = ratio >= 1  # away from where it is unstable
            double = max(_STRETCH, self.size(y) / float(np.abs(residual).max()))
            stretch = min(double if growing else ratio / (1 - ratio), longest)
            losing = (residual > 0) & (y < 0)  # at most half of the way to where nothing is known
            stretch = min(stretch, np.min(-y[losing] / (2 * residual[losing]), initial=np.inf))
            longest, direction, near = _FURTHER * longest, residual, not growing
            x, residual = y, after
            for _ in range(_TRIALS):
                far = self.coordinates.inside(y + stretch * direction)
                with np.errstate(over="ignore", invalid="ignore"):
                    there = self.residual(far)
                if not np.isfinite(there).all():  # the variances of the fields underflow there
                    stretch, longest, near = stretch / 2, _STRETCH, True
                    continue
                small = float(np.abs(there).max()) < _OVERSHOT * float(np.abs(after).max())
                if (near and small) or float(there @ after) > 0:
                    x, residual = far, there
                    break
                # too far: to where the residual vanishes if it is linear between
                stretch, longest, near = stretch * float(after @ after) / float((after - there) @ after), _STRETCH, True

    def polish(self, x: Array, jacobian: Array, tolerance: float, still: float = _STILL) -> tuple[Array, float, Array]:
        """Broyden's method from the Jacobian of a coarser rule: the fixed point, its residual, the Jacobian there."""
        residual = self.residual(x)
        for _ in range(_POLISHING):
            step = np.linalg.pinv(np.eye(len(x)) - jacobian, rcond=1e-12) @ residual
            # where the map is nearly marginal a small residual is far from the fixed point
            if np.abs(residual).max() <= tolerance * self.size(x) and np.abs(step).max() <= still * self.size(x):
                break
            step = self.coordinates.inside(x + step) - x
            new = self.residual(x + step)
            if np.abs(new).max() > np.abs(residual).max():
                break
            jacobian = jacobian + np.outer(new - residual + step - jacobian @ step, step) / (step @ step)
            x, residual = x + step, new
        return x, float(np.abs(residual).max()) / self.size(x), jacobian

    def jacobian(self, x: Array, step: float | None = None) -> Array:
        if self.latest is not None and np.array_equal(self.latest[0], x):
            return self.latest[1]
        step = float(np.sqrt(self.evolution.channel.tolerance)) * self.size(x) if step is None else step
        ways = self.ways()
        here = self.residual(x, free=True)
        # where more is known: nothing lies beyond the place where nothing is
        columns = [(self.residual(x - step * way, free=True) - here) / -step + way for way in ways]
        self.latest = x.copy(), np.asarray(np.stack(columns, axis=1) @ np.linalg.pinv(ways).T, float)
        return self.latest[1]

    def ways(self) -> Array:
        """Rows: directions in which the map's image may lie, less along each of which makes more known.

        Such steps stay inside the domain: squares of the unit vectors, and of sums of two.
        """
        sites, rank = self.evolution.rho.shape[:2]
        if self.evolution.round:
            return np.asarray(np.kron(np.eye(sites), joined(np.eye(rank)[None])), float)
        one = np.eye(rank)
        sums = [one[i] + one[j] for i, j in zip(*np.triu_indices(rank), strict=True)]
        squares = np.array([np.outer(v, v) / (v @ v) for v in sums])
        return np.asarray(np.kron(np.eye(sites), joined(squares[:, None])), float)

    def growing(self, x: Array) -> Array | None:
        """Direction in which the map leaves a fixed point, towards where more is known; None where it is stable.

        The columns of the teacher's weights may be exchangeable: then a start that knows nothing leads to a point that
        does not tell them apart, also where that is unstable.
        """
        rank = self.evolution.rho.shape[1]
        if rank == 1 or self.evolution.round or self.ended(x):
            return None
        values, vectors = np.linalg.eig(self.jacobian(x))
        growth = np.real(values)
        top = int(np.argmax(growth))
        if growth[top] <= 1 or not self.leaves_its_sector(x):
            return None
        way = np.real(vectors[:, top])
        more = joined(np.broadcast_to(np.eye(rank), self.evolution.rho.shape))
        return way if way @ more >= 0 else -way

    def leaves_its_sector(self, x: Array) -> bool:
        """Whether a fixed point is unstable in directions that break its symmetries, by more than nodes may err."""
        sector = self.sector and Sector.of(self.evolution, self.matrices(x))
        if sector is None or sector.trivial:
            return True
        found = growth(self.evolution, self.alpha, self.matrices(x), sector)
        return found.value - 1 > ERRORS * float(_scatter(found.each)) + found.truncation

    def growth(self, x: Array) -> float:
        """The largest eigenvalue of the map's Jacobian at a fixed point."""
        if self.evolution.round or self.recovered(x) or self.unresolved(x):
            return float("nan")
        found = self.jacobian(np.zeros_like(x), _UNINFORMED) if self.nothing(x) else self.jacobian(x)
        return float(np.real(np.linalg.eigvals(found)).max())

    def displaced(self, found: _Found) -> Array:
        """How far every replicate by itself is from the fixed point of all, to first order, (S, n)."""
        x = found.x
        if self.ended(x) or found.jacobian is None:
            return np.zeros((self.evolution.replicates, len(x)))
        each = np.stack([self.coordinates.of(V) for V in self.images(x)])
        inverse = np.linalg.pinv(np.eye(len(x)) - found.jacobian, rcond=1e-12)
        return (each - each.mean(axis=0)) @ inverse.T

    def matrices(self, x: Array) -> Array:
        """V at a place."""
        return self.coordinates.matrices(x)

    def images(self, x: Array) -> Array:
        """V after one application of every replicate's map."""
        V = self.evolution.images(self.alpha, self.matrices(x), self.moments(x))[1]
        return V if self.sector is None else np.stack([self.sector.hold(each) for each in V])

    @property
    def total(self) -> float:
        """Variance of all fields."""
        return float(np.trace(self.evolution.rho, axis1=1, axis2=2).sum())

    def recovered(self, x: Array) -> bool:
        """Whether labels tell everything, as far as can be told."""
        return self.evolution.recovers(float(self._logs(x).max()), self.coordinates.least)

    def unresolved(self, x: Array) -> bool:
        """Whether less is unknown than the channel's integrals see."""
        return not self.recovered(x) and bool(self._logs(x).min() <= self.coordinates.least + 1e-9)

    def nothing(self, x: Array) -> bool:
        """Whether nothing is known."""
        return bool(self._logs(x).min() > -_NOTHING)

    def ended(self, x: Array) -> bool:
        """Whether the iteration has come to one of its ends."""
        return self.recovered(x) or self.nothing(x) or self.unresolved(x)

    def verdict(self, x: Array, status: Status) -> Status:
        """The status of an end that the iteration has come to: of one that is none of the model, that it left."""
        doubtful = self.unresolved(x) or (self.nothing(x) and self.learns())
        return Status.left_domain if doubtful else status

    def learns(self) -> bool:
        """Whether a little that is known grows at once: then a map that is exact does not come back to nothing."""
        x = (1 - _UNINFORMED) * self.evolution.rho
        known = 1 - self.coordinates.shares(self.coordinates.of(self.evolution.image(self.alpha, x)))
        return bool(known.max() > _LEARNS * _UNINFORMED)

    def _logs(self, x: Array) -> Array:
        return np.log(self.coordinates.shares(x))


def solve_bayes_optimal(
    model: PosteriorModel,
    alpha: float,
    start: Start,
    *,
    max_nodes: int | None = None,
    near: Array | None = None,
    callback: Callback = silent,
) -> BayesOptimalPoint:
    """The fixed point that a learner reaches from a start.

    Two coarse rules lead to it; finer ones take it over by Newton's method, until the overlap has the relative standard
    error that the problem asks for.

    Parameters
    ----------
    model : PosteriorModel
    alpha : float
    start : Start
    max_nodes : int, optional
        Of all replicates together; by default the channel's.
    near : (P, t, t) array, optional
        V to begin with, instead of that of the start.
    callback : callable, optional
    """
    wanted, exact = model.problem.integration.standard_error, model.channel.tolerance
    max_nodes = model.channel.most if max_nodes is None else max_nodes
    most = max_nodes // model.replicates
    coarse, alone = tuple(min(factor * model.channel.coarsest, most) for factor in (1, 8)), None
    decay = _DECAY
    if model.channel.sums is not None:  # so fine that one replicate leads to the others' point
        coarse, alone, decay = coarse[:1], 1, _LATTICE_DECAY
    first = _first(model, start) if near is None else near
    x, sector = Coordinates(model.prior.rho).of(first), _kept(model, first)
    maps, status = 0, Status.converged
    for points, tolerance in zip(coarse, _COARSE_TOLERANCES[-len(coarse) :], strict=True):
        run = _Iteration(model.evolution(points, alone), alpha, callback=callback, sector=sector)
        x, _, status = run.run(x, max(tolerance, 10 * exact), COARSE_MAPS)
        maps += run.maps
    run = _Iteration(model.evolution(coarse[-1], alone), alpha, callback=callback, sector=sector)
    if run.nothing(x) and start is Start.informed and near is None:
        # nodes see little where nearly all is known: what has overshot to nothing goes on from there
        near = _first(model, Start.uninformed)
        return solve_bayes_optimal(model, alpha, start, max_nodes=max_nodes, near=near, callback=callback)
    if run.ended(x):
        run = _Iteration(model.evolution(min(32 * coarse[0], most)), alpha, callback=callback, sector=sector)
        if run.nothing(x) and run.growth(x) > 1:  # few nodes see too little
            x, _, status = run.run(Coordinates(model.prior.rho).of(first), max(_COARSE_TOLERANCES[-1], exact))
    if run.ended(x):
        found = _Found(x, 0.0, run.verdict(x, status), maps)
        return _measured(model, run, alpha, start, found, run.displaced(found))
    jacobian, points = run.jacobian(x), min(4 * coarse[-1], most)
    if alone:
        maps += run.maps
        run = _Iteration(model.evolution(points, alone), alpha, callback=callback, sector=sector)
        x, _, jacobian = run.polish(x, jacobian, _NEAR, _NEAR / 4)
    while True:
        maps += run.maps
        one = model.evolution(points, alone) if alone else None
        run = _Iteration(model.evolution(points), alpha, one, callback, sector=sector)
        x, residual, jacobian = run.polish(x, jacobian, exact)
        status = Status.converged
        if residual > exact:
            x, residual, status = run.run(x, exact)
            if status is Status.converged and not run.ended(x):
                x, residual, jacobian = run.polish(x, run.jacobian(x), exact)
        if status is Status.converged and (way := run.growing(x)) is not None:
            run.sector = sector = None
            x, residual, status = run.run(x - KICK * run.size(x) * way, exact)
            x, residual, jacobian = run.polish(x, run.jacobian(x), exact)
        found = _Found(x, residual, run.verdict(x, status), maps, jacobian)
        displaced = run.displaced(found)
        last = 2 * points > most or residual > exact or run.ended(x)
        excess = 0.0 if last else _relative_error(run, found, displaced) / wanted
        if excess <= 1:
            return _measured(model, run, alpha, start, found, displaced)
        points *= min(2 ** max(round(decay * np.log2(excess)), 1), most // points)


def _kept(model: PosteriorModel, V: Array) -> Sector | None:
    """What the symmetries of the labels keep of a start: few nodes have none of these, and would lead out of it."""
    evolution = model.evolution(model.channel.coarsest)
    if V.shape[-1] == 1 or evolution.round:
        return None
    sector = Sector.of(evolution, V)
    return None if sector.trivial else sector


def _relative_error(run: _Iteration, found: _Found, displaced: Array) -> float:
    """Standard error of the overlap over the overlap."""
    known = [
        1 - np.trace(run.coordinates.matrices(found.x + dx), axis1=1, axis2=2).sum() / run.total for dx in displaced
    ]
    return float(np.std(known, ddof=1) / np.sqrt(len(known)) / max(abs(float(np.mean(known))), 1e-12))


def _first(model: PosteriorModel, start: Start) -> Array:
    """V at a start: all but nothing; a little less than what is unknown before labels; a share for each direction."""
    if start is Start.informed:
        least = np.exp(Coordinates(model.prior.rho, model.channel.resolution).least)
        evolution, least = model.evolution(model.channel.coarsest), _ABOVE * float(least)
        share = max(_INFORMED, least)
        # a fixed point as small as the noise has an unstable one near it, beyond which it is lost
        while not model.channel.exact and share > least and evolution.told(share * evolution.rho) > _TOLD:
            share = max(share * _LESS, least)
        return share * model.prior.rho
    if start is Start.asymmetric:
        return told_apart(model.prior.rho)
    before = model.evolution(model.channel.coarsest).overlaps(np.zeros_like(model.prior.rho))[1]
    return (1 - _UNINFORMED) * before


def _measured(
    model: PosteriorModel, run: _Iteration, alpha: float, start: Start, found: _Found, displaced: Array
) -> BayesOptimalPoint:
    """What is measured at a fixed point, and errors: what a replicate displaces, and its own scatter."""
    evolution, coordinates, x = run.evolution, run.coordinates, found.x
    growth = run.growth(x)
    recovered, nothing = run.recovered(x), run.nothing(x)
    at = coordinates.matrices(np.minimum(x, -1e-12) if nothing else x)
    V = 0 * at if recovered else evolution.rho if nothing else at
    moved = np.stack([V + (coordinates.matrices(x + dx) - at) for dx in displaced])
    known = 1 - np.trace(moved, axis1=2, axis2=3).sum(axis=1) / run.total
    moments = evolution.moments(at) if nothing else run.moments(x)
    entropies = evolution.free_entropy(alpha, at, moments)
    if recovered and model.channel.exact:  # it grows without bound
        entropies = np.full(evolution.replicates, np.nan)
    information = _noise_entropy(model, evolution) - entropies / alpha
    gains, alignments = (np.trace(a, axis1=2, axis2=3).sum(axis=1) for a in (moments.gain, moments.alignment))
    difference = (alignments - gains) / max(float(gains.mean()), 1e-300) * (not nothing)
    if np.array_equal(alignments, gains):  # summed over the labels, both are one number, and say nothing
        difference = np.full_like(gains, np.nan)
    error, error_spread = _test_error(model, run, at, found.x, displaced)
    return BayesOptimalPoint(
        alpha=alpha,
        start=start,
        q=evolution.rho - V,
        V=V,
        q_hat=evolution.conjugates(alpha, at, moments).mean(axis=0),
        rho=evolution.rho,
        free_entropy=float(entropies.mean()),
        mutual_information=float(information.mean()),
        test_error=0.0 if recovered else error,
        overlap=float(1 - np.trace(V, axis1=1, axis2=2).sum() / run.total),
        nishimori=float(difference.mean()),
        errors={
            "q": _scatter(moved),
            "V": _scatter(moved),
            "overlap": float(_scatter(known)),
            "free_entropy": float(_scatter(entropies)),
            "mutual_information": float(_scatter(information)),
            "test_error": 0.0 if recovered else error_spread,
            "nishimori": float(_scatter(difference)),
        },
        residual=found.residual,
        maps=found.maps + run.maps,
        nodes=evolution.points * evolution.replicates,
        status=found.status,
        recovered=recovered,
        growth=growth,
    )


def _noise_entropy(model: PosteriorModel, evolution: Evolution) -> Array:
    """``E log P_out(Y | k)``, the mean logarithm of the evidence where the fields are known; NaN if it is infinite."""
    if model.channel.exact:
        return np.full(evolution.replicates, np.nan)
    return evolution.noise_entropies()


def _scatter(values: Array) -> Array:
    """Standard error of the mean of replicates."""
    return np.asarray(values).std(axis=0, ddof=1) / np.sqrt(len(values))


def _test_error(model: PosteriorModel, run: _Iteration, V: Array, x: Array, displaced: Array) -> tuple[float, float]:
    """The test error and its standard error: its own scatter, and that of the point."""
    values = model.readout.error(run.evolution, V)
    total = values.copy()
    if not np.abs(displaced).max() <= _NEGLIGIBLE * run.size(x):  # also where it is not known
        step = 1e-3 * run.size(x)
        ways = run.ways()
        for way, dual in zip(ways, np.linalg.pinv(ways).T, strict=True):
            beside = model.readout.error(run.evolution, run.coordinates.matrices(x - step * way))
            total = total + displaced @ dual * (values - beside).mean() / step
    return float(values.mean()), float(_scatter(total))
