"""One problem, one sample complexity, one branch: a fixed point with everything measured at it.

A solve starts on few nodes, where maps are cheap, and ends on as many as the requested standard error needs:

1. find the fixed point on a coarse rule (damped steps, then Anderson) and its Jacobian by differences;
2. on each finer rule, Newton's method with that Jacobian, kept up to date by Broyden's formula;
3. search every node's local problem again from all starts; go on if a lower minimum turned up;
4. measure, and propagate the replicates' scatter through ``(I - J)^-1`` to every reported quantity.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnphase.baseline import linear_test_error
from attnphase.channel import Channel, ChannelPass
from attnphase.compiled import Kernels, kernels_for
from attnphase.fixed_point import METHODS, Anderson, Damped, FixedPoint, Newton, Status, finite_difference_jacobian, iterate
from attnphase.gaussian import Rule, gauss_hermite, published_rule, sobol
from attnphase.overlaps import Conjugates, Overlaps, Sector
from attnphase.prior import Spectrum, overlaps_from_conjugates
from attnphase.problem import Problem, ProblemError
from attnphase.proximal import Minima, Starts

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["BRANCHES", "BranchPoint", "Restart", "SolverSettings", "initial_overlaps", "solve", "solve_point"]

Array = NDArray[np.float64]

BRANCHES = ("semantic", "positional", "uninformed")
REPLICATES = 16
COARSE_POINTS = 64
MEDIUM_POINTS = 256  # derivatives of the map: fewer would be ruled by the jumps of single nodes
GAUSS_HERMITE_ORDERS = (12, 16, 20, 26, 36, 48)
MAX_TENSOR_NODES = 2**22
SMOOTH = 1e-7  # share of nodes with a second minimum that a Gauss-Hermite rule may have
SMALL_SIGNAL = 0.25  # share of the start's order parameter below which a shrinking one is taken to vanish
LOWER = 1e-9  # relative difference of energies by which one minimum counts as lower than another
FEW_MAPS = 9  # maps within which Newton's method ends if its Jacobian is good
NEAR_DEGENERATE = 1e-3  # energy gap below which a second minimum is counted


@dataclass(frozen=True)
class SolverSettings:
    """How a solve runs; none of it changes what is solved.

    Attributes
    ----------
    method : {"newton", "anderson", "damped"}
        Iteration on the finer rules. "newton" starts from a coarse solution; the other two run from the start.
    tolerance : float
        On the undamped relative residual.
    max_maps : int
        Evaluations of the state-evolution map, all rules together.
    max_nodes : int
        Largest number of Sobol points, all replicates together.
    threads : int or None
        Threads for the local problems; None for all cores.
    """

    method: str = "newton"
    tolerance: float = 1e-7
    max_maps: int = 400
    max_nodes: int = 2**18
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ProblemError("method", f'method must be one of {", ".join(sorted(METHODS))}, not "{self.method}".')
        if not (math.isfinite(self.tolerance) and 0 < self.tolerance < 1):
            raise ProblemError("tolerance", f"tolerance must lie between 0 and 1, not {self.tolerance}.")
        for name, value in (("max_maps", self.max_maps), ("max_nodes", self.max_nodes)):
            if value < 1:
                raise ProblemError(name, f"{name} must be at least 1, not {value}.")
        if self.threads is not None and self.threads < 1:
            raise ProblemError("threads", f"threads must be at least 1, not {self.threads}.")


@dataclass(frozen=True, eq=False)
class Restart:
    """What the next point of a line can start from.

    Attributes
    ----------
    overlaps : Overlaps
    response : _Response or None
        Derivatives of the map, for Newton's method and the errors.
    rule : Rule or None
        The rule that `minima` belong to.
    minima : Minima or None
        Local minima of the rule's nodes; they take memory, so `branches.follow` drops them when it is past a point.
    """

    overlaps: Overlaps
    response: _Response | None = None
    rule: Rule | None = None
    minima: Minima | None = None


@dataclass(frozen=True, eq=False)
class BranchPoint:
    """A solved point of a branch.

    Attributes
    ----------
    problem : Problem
    alpha : float
    branch : str
    values, errors : dict of str to array or float
        Every variable of the dataset schema and its standard error.
    status : Status
    residual : float
        Undamped and relative.
    iterations : int
        Maps, all rules together.
    rule : str
    nodes : int
        Distinct nodes of the last rule.
    restart : Restart
    """

    problem: Problem
    alpha: float
    branch: str
    values: dict[str, Any]
    errors: dict[str, Any]
    status: Status
    residual: float
    iterations: int
    rule: str
    nodes: int
    restart: Restart = field(repr=False)


# --- starting points ----------------------------------------------------------------------------------------------


def initial_overlaps(problem: Problem, branch: str) -> Overlaps:
    """Overlaps of the branch's informed start.

    Semantic: ``W`` is a multiple of the teacher's weights plus noise. Positional: along the principal directions of the
    encodings, plus noise. Uninformed: noise. Untied weights start with Q = K up to noise.

    Raises
    ------
    ProblemError
        Unknown branch, or the positional one of a problem without encodings.
    """
    if branch not in BRANCHES:
        raise ProblemError("branch", f'branch must be one of {", ".join(BRANCHES)}, not "{branch}".')
    length, columns, rank = problem.tokens.length, problem.columns, problem.student.rank
    variance = np.asarray(problem.token_variances, dtype=float)[:, None, None]
    copies = columns // rank
    identity = np.eye(columns)
    m, theta = np.zeros((length, columns, 1)), np.zeros((length, columns, problem.teacher.rank))
    if branch == "semantic":
        lift = np.zeros((rank, problem.teacher.rank))
        for column in range(min(rank, problem.teacher.rank)):
            lift[column, column] = 1.0
        signal = 0.8 * np.tile(lift, (copies, 1))
        theta = variance * signal
        q = variance * (signal @ signal.T + 0.3 * identity)
    elif branch == "positional":
        values, vectors = np.linalg.eigh(problem.positions_gram)
        values, vectors = values[::-1], vectors[:, ::-1]
        known = int((values > 1e-9 * max(values[0], 1e-300)).sum()) if values[0] > 0 else 0
        if known == 0:
            raise ProblemError(
                "positions.kind", 'the positional branch needs positional encodings: positions.kind is "none".'
            )
        signal = np.zeros((rank, length))
        for column in range(min(rank, known)):
            axis = vectors[:, column] * np.sign(vectors[np.abs(vectors[:, column]).argmax(), column])
            signal[column] = 0.2 * np.sqrt(values[column]) * axis
        m = np.tile(signal, (copies, 1)).T[:, :, None]
        directions = 0.2 * np.tile(np.eye(rank)[:, : min(rank, known)], (copies, 1))
        q = variance * (directions @ directions.T + 0.05 * identity)
    else:
        shared = np.tile(np.eye(rank), (copies, copies)) if copies > 1 else 0.0
        q = variance * (0.2 * identity + 0.1 * shared)
    V = 0.5 * variance / problem.regularizer.strength * identity
    return Overlaps(np.broadcast_to(q, (length, columns, columns)).copy(), V, m, theta)


# --- the state-evolution map --------------------------------------------------------------------------------------


class _Map:
    """``x -> F(x)`` under one rule; keeps the nodes' minima from one evaluation to the next."""

    def __init__(self, channel: Channel, alpha: float, sector: Sector) -> None:
        self.channel, self.alpha, self.sector = channel, alpha, sector
        self.problem, self.kernels = channel.problem, channel.kernels
        self.lift = False
        self.at: Array | None = None  # where `last` was evaluated
        self.minima: Minima | None = None
        self.last: ChannelPass | None = None

    def adopt(self, minima: Minima | None) -> None:
        """Start from minima of the same nodes at a neighbouring point; a refreshed pass must follow."""
        self.minima = minima

    def unpack(self, x: Array) -> Overlaps:
        return self.sector.unpack(x)

    def pack(self, overlaps: Overlaps) -> Array:
        return self.sector.pack(overlaps)

    def scales(self, x: Array) -> Array:
        return self.sector.scales(x, self.channel.spectrum.rho)

    def __call__(self, x: Array, *, refresh: bool = False) -> Array | None:
        self.at = None
        overlaps = self.unpack(x)
        if not overlaps.feasible(self.channel.spectrum.rho):
            return None
        orbit = self.channel.representatives(overlaps)
        representatives = len({source for source, _ in orbit})
        starts = Starts.COLD
        if self.channel.rule.name == "published":
            starts = Starts.FROM_ZERO
        elif self.minima is not None and len(self.minima.energies) == representatives * self.channel.rule.size:
            starts = Starts.REFRESH if refresh else Starts.WARM
        result = self.channel.evaluate(self.alpha, overlaps, starts, self.minima)
        result = replace(result, conjugates=self.sector.symmetrized(result.conjugates))
        self.minima, self.last = result.minima, result
        image = self._image(result.conjugates.mean())
        if image is None:
            return None
        self.at = x.copy()
        return self.pack(image)

    def spot_check(self, x: Array) -> bool:
        """Whether a fresh search on a quarter of the replicates finds no lower minimum anywhere."""
        rule = self.channel.rule
        if rule.replicates < 4:
            return False
        assert self.minima is not None
        some = rule.replicates // 4
        few = replace(rule, nodes=rule.nodes[:some])

        def part(values: Array) -> Array:
            return values.reshape(-1, *rule.nodes.shape[:2], *values.shape[1:])[:, :some].reshape(-1, *values.shape[1:])

        known = Minima(part(self.minima.fields), part(self.minima.energies), part(self.minima.steps))
        fresh = replace(self.channel, rule=few).evaluate(self.alpha, self.unpack(x), Starts.REFRESH, known).minima
        return bool((fresh.energies[:, 0] > known.energies[:, 0] - LOWER * (1 + np.abs(known.energies[:, 0]))).all())

    def _image(self, conjugates: Conjugates) -> Overlaps | None:
        strength = self.problem.regularizer.strength
        return overlaps_from_conjugates(self.kernels, self.channel.spectrum, strength, conjugates, lift=self.lift)

    def measure(self, x: Array, *, pooled: bool = False) -> dict[str, Array] | None:
        """Every quantity of the schema at ``x``, per replicate (S, ...) or for all replicates together (1, ...).

        The overlaps are those of the image.
        """
        known = self.at is not None and np.array_equal(x, self.at)
        return None if not known and self(x) is None else self.quantities(x, pooled=pooled)

    def quantities(self, x: Array, *, pooled: bool) -> dict[str, Array] | None:
        """What `measure` gives, of the evaluation just made at ``x``."""
        assert self.last is not None and self.minima is not None
        overlaps, channel, hats = self.unpack(x), self.channel, self.last.conjugates
        means = [self.last.envelope, self.last.loss_at_prox, channel.loss_at_omega(overlaps)]
        means.append(self.second_minimum_share(NEAR_DEGENERATE))
        if pooled:
            hats, means = hats.mean(), [mean.mean(keepdims=True) for mean in means]
        envelope, loss_at_prox, loss_at_omega, second_minimum_share = means
        images = []
        for s in range(len(envelope)):
            image = self._image(hats.replicate(s))
            if image is None:
                return None
            images.append(image)
        observables = self.kernels.observables(
            alpha=self.alpha,
            ridge=self.problem.regularizer.strength,
            **channel.spectrum.arguments(),
            field_mean=lambda values: values,
            envelope=envelope[:, None, None],
            loss_at_prox=loss_at_prox[:, None, None],
            loss_at_omega=loss_at_omega[:, None, None],
            q=overlaps.q[:, None],
            V=overlaps.V[:, None],
            q_hat=hats.q_hat,
            V_hat=hats.V_hat,
            m_hat=hats.m_hat,
            theta_hat=hats.theta_hat,
        )
        return {
            "q": np.stack([o.q for o in images]),
            "V": np.stack([o.V for o in images]),
            "m": np.stack([o.m[..., 0] for o in images]),
            "theta": np.stack([o.theta for o in images]),
            "q_hat": np.moveaxis(hats.q_hat, 1, 0),
            "V_hat": np.moveaxis(hats.V_hat, 1, 0),
            "m_hat": np.moveaxis(hats.m_hat[..., 0], 1, 0),
            "theta_hat": np.moveaxis(hats.theta_hat, 1, 0),
            **observables,
            "second_minimum_share": second_minimum_share,
        }

    def second_minimum_share(self, within: float) -> Array:
        """Share of nodes whose second minimum lies less than ``within`` above the lowest, per replicate (S,)."""
        assert self.minima is not None
        rule = self.channel.rule
        near = (self.minima.gap < within).reshape(-1, *rule.nodes.shape[:2])
        return (near @ rule.weights).mean(axis=0)

    def free_entropy(self, x: Array) -> float:
        """``-Phi`` at ``x`` and its conjugates."""
        assert self.last is not None
        overlaps, hats = self.unpack(x), self.last.conjugates.mean()
        terms = self.kernels.free_entropy_terms(
            alpha=self.alpha,
            ridge=self.problem.regularizer.strength,
            **self.channel.spectrum.arguments(),
            field_mean=lambda values: values,
            envelope=self.last.envelope.mean().reshape(1, 1, 1),
            q=overlaps.q[:, None],
            V=overlaps.V[:, None],
            m=overlaps.m[:, None],
            theta=overlaps.theta[:, None],
            q_hat=hats.q_hat,
            V_hat=hats.V_hat,
            m_hat=hats.m_hat,
            theta_hat=hats.theta_hat,
        )
        return float(sum(np.sum(term) for term in terms.values()))


# --- errors ---------------------------------------------------------------------------------------------------------


def _flatten(measured: dict[str, Array]) -> Array:
    """(S, everything), in the order of the dictionary."""
    return np.concatenate([v.reshape(len(v), -1) for v in measured.values()], axis=1)


def _restore(vector: Array, like: dict[str, Array]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    position = 0
    for name, values in like.items():
        size = values[0].size
        part = vector[position : position + size].reshape(values.shape[1:])
        result[name] = float(part) if part.ndim == 0 else part
        position += size
    return result


@dataclass(frozen=True, eq=False)
class _Response:
    """Derivatives at a fixed point: of the map (D, D) and of every measured quantity (E, D), with the order of the rule
    they were taken under."""

    jacobian: Array
    measured: Array
    order: int


def _response(map_: _Map, x: Array, enough: Rule) -> _Response:
    """Derivatives by finite differences, 2 D evaluations, under the map's rule or, if that is finer, `enough`."""
    rule = map_.channel.rule
    if rule.randomised and rule.order > enough.order:
        channel = replace(map_.channel, rule=enough)
        medium = _Map(channel, map_.alpha, map_.sector)
        medium.lift = map_.lift
        return _response(medium, x, enough)

    def both(point: Array) -> Array | None:
        measured = map_.measure(point, pooled=True)
        return None if measured is None else np.concatenate([_images(measured, map_)[0], _flatten(measured)[0]])

    joint = finite_difference_jacobian(both, x, map_.scales(x))
    order = rule.order if rule.randomised else enough.order
    return _Response(joint[: len(x)], joint[len(x) :], order)


def _images(measured: dict[str, Array], map_: _Map) -> Array:
    """Images per replicate as packed vectors, (S, P)."""
    packed = [
        map_.pack(Overlaps(q, V, m[..., None], theta))
        for q, V, m, theta in zip(measured["q"], measured["V"], measured["m"], measured["theta"], strict=True)
    ]
    return np.stack(packed)


def _propagate(image_change: Array, measured_change: Array, response: _Response) -> tuple[Array, Array]:
    """Changes of the fixed point and of everything measured at it, when map and measurement change by so much.

    ``dx = (I - J)^-1 dF`` and ``dE = dE|_x + (dE/dx) dx``; rows are replicates.
    """
    system = np.eye(len(response.jacobian)) - response.jacobian
    dx = np.linalg.lstsq(system, image_change.T, rcond=1e-12)[0].T
    return dx, measured_change + dx @ response.measured.T


def _errors(map_: _Map, measured: dict[str, Array], response: _Response, gauge_rule: _Map | None, x: Array) -> dict[str, Any]:
    """Standard errors: scatter of independent replicates, or the distance to a second rule for deterministic ones."""
    values, images, energy = _flatten(measured), _images(measured, map_), _energy(map_)
    if gauge_rule is None:
        dx, change = _propagate(images - images.mean(axis=0), values - values.mean(axis=0), response)
        count = len(values)
        error_x = np.sqrt((dx**2).sum(axis=0) / (count * (count - 1)))
        error = np.sqrt((change**2).sum(axis=0) / (count * (count - 1)))
    else:
        other = gauge_rule.measure(x)
        if other is None:
            raise ArithmeticError("the second rule leaves the domain at the fixed point of the first")
        shift = _images(other, gauge_rule).mean(axis=0) - images.mean(axis=0)
        dx, change = _propagate(shift[None], (_flatten(other).mean(axis=0) - values.mean(axis=0))[None], response)
        error_x, error = np.abs(dx[0]), np.abs(change[0])
    errors = _restore(error, measured)
    point = map_.sector.errors(error_x)
    errors |= {"q": point.q, "V": point.V, "m": point.m[..., 0], "theta": point.theta}
    # -Phi is stationary, so that to first order only the explicit change of its energy term is left
    change = energy - energy.mean() if gauge_rule is None else _energy(gauge_rule).mean(keepdims=True) - energy
    errors["training_loss"] = float(np.sqrt((change**2).sum() / max(len(change) * (len(change) - 1), 1)))
    return errors


def _energy(map_: _Map) -> Array:
    """``alpha E[M]`` of the last evaluation, per replicate for randomised rules, else pooled."""
    assert map_.last is not None
    energy = map_.alpha * map_.last.envelope
    return energy if map_.channel.rule.randomised else energy.mean(keepdims=True)


# --- the solve ------------------------------------------------------------------------------------------------------


@dataclass
class _Run:
    """State of one solve: maps used so far and where it stands."""

    problem: Problem
    alpha: float
    settings: SolverSettings
    kernels: Kernels
    spectrum: Spectrum
    sector: Sector
    maps: int = 0

    @property
    def threads(self) -> int:
        return self.settings.threads or os.cpu_count() or 1

    def map(self, rule: Rule) -> _Map:
        channel = Channel(self.problem, self.kernels, self.spectrum, rule, self.threads)
        return _Map(channel, self.alpha, self.sector)

    def iterate(self, map_: _Map, x: Array, method: Any, tolerance: float, limit: int | None = None) -> FixedPoint:
        left = max(self.settings.max_maps - self.maps, 1)
        budget = left if limit is None else min(limit, left)
        found = iterate(map_, x, map_.scales, method, tolerance=tolerance, max_maps=budget)
        self.maps += found.maps
        return found

    def verified(self, map_: _Map, found: FixedPoint, method: Callable[[], Any]) -> FixedPoint:
        """Search all local problems afresh, and go on iterating as long as that changes the map."""
        tolerance = self.settings.tolerance
        for _ in range(6):
            if found.status is not Status.converged or map_.channel.rule.name == "published":
                break
            if map_.spot_check(found.point):
                break
            image = map_(found.point, refresh=True)
            self.maps += 1
            if image is None:
                return replace(found, status=Status.left_domain)
            residual = float(np.max(np.abs(image - found.point) / map_.scales(found.point)))
            if residual <= tolerance:
                return replace(found, image=image, residual=residual)
            found = self.iterate(map_, found.point, method(), tolerance)
        return found

    def coarse(self, map_: _Map, x: Array) -> FixedPoint:
        """Into the basin by damped steps, then Anderson; damped steps again where Anderson fails."""
        tolerance = self.settings.tolerance
        map_.lift = True
        first = self.iterate(map_, x, Damped(0.8), tolerance, 15)
        map_.lift = False
        found = self.iterate(map_, first.point, Anderson(), tolerance, 40)
        if found.status is Status.converged:
            return found
        # near a transition a few nodes decide: no use in converging them on this rule
        slow = self.iterate(map_, first.point, Damped(0.9), tolerance, 20)
        return slow if slow.residual < found.residual else found

    def newton(self, map_: _Map, x: Array, jacobian: Array) -> FixedPoint:
        """Newton from a good start; Anderson where that fails."""
        tolerance = self.settings.tolerance
        found = self.iterate(map_, x, Newton(jacobian.copy()), tolerance, 15)
        if found.status is Status.converged:
            return found
        retry = self.iterate(map_, x, Anderson(), tolerance, 50)
        return retry if retry.residual < found.residual else found


# --- which rule next --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Rules:
    """The sequence of integration rules of a solve, each finer than the one before."""

    problem: Problem
    kernels: Kernels
    max_nodes: int

    @property
    def dimensions(self) -> tuple[int, int]:
        """Of all local fields together, and of the student's."""
        student = self.kernels.length * self.kernels.columns
        return student + self.kernels.length * self.kernels.teacher_rank, student

    def sobol(self, points: int) -> Rule:
        seed = self.problem.integration.seed
        return sobol(*self.dimensions, self.kernels.sign_symmetric, points, REPLICATES, seed)

    def gauss_hermite(self, order: int) -> Rule:
        total = self.dimensions[0]
        if order**total > MAX_TENSOR_NODES:
            raise ProblemError(
                "integration.rule",
                f"a Gauss-Hermite rule of order {order} in {total} dimensions has more than {MAX_TENSOR_NODES} nodes: "
                'use integration.rule = "sobol" or fewer integration.nodes.',
            )
        return gauss_hermite(*self.dimensions, self.kernels.sign_symmetric, order)

    def first(self) -> Rule:
        """Where a solve starts: few nodes."""
        integration = self.problem.integration
        if integration.rule == "published":
            return published_rule(self.kernels.sign_symmetric)
        if integration.rule == "gauss-hermite":
            return self.gauss_hermite(integration.nodes or GAUSS_HERMITE_ORDERS[0])
        return self.sobol(COARSE_POINTS)

    def medium(self) -> Rule:
        """Where a continued line starts, and the rule for derivatives."""
        first = self.first()
        return self.sobol(MEDIUM_POINTS) if first.randomised else first

    def single(self) -> Rule:
        """The only rule of a method that does not refine."""
        integration = self.problem.integration
        if integration.rule in ("published", "gauss-hermite"):
            return self.first()
        return self.sobol(integration.nodes or 1024)

    def next(self, rule: Rule, error: float, second_minima: float) -> Rule | None:
        """The next rule, or None if the last one is good enough or cannot be refined.

        Parameters
        ----------
        error : float
            Relative standard error of q under `rule`.
        second_minima : float
            Share of nodes with a second minimum. Where there are any the minimiser jumps, and a Gauss-Hermite rule
            neither converges fast nor knows its error.
        """
        integration = self.problem.integration
        fixed, target = integration.nodes, integration.standard_error
        if rule.name == "published":
            return None
        if fixed is not None:
            return None if rule.order == fixed else self.sobol(fixed)
        largest = 2 ** int(math.log2(max(self.max_nodes // REPLICATES, 2)))
        medium = min(MEDIUM_POINTS, largest)
        automatic = integration.rule == "auto" and self.dimensions[0] <= 4
        if rule.name == "gauss-hermite" and automatic and second_minima > SMOOTH:
            return self.sobol(medium)
        if rule.name == "sobol" and rule.order < medium:
            return self.sobol(medium)
        if error <= target:
            return None
        if rule.name == "gauss-hermite" or (automatic and second_minima == 0 and rule.order == medium):
            finer = [o for o in GAUSS_HERMITE_ORDERS if rule.name != "gauss-hermite" or o > rule.order]
            affordable = [o for o in finer if o ** self.dimensions[0] <= MAX_TENSOR_NODES]
            return self.gauss_hermite(affordable[0]) if affordable else None
        # the error falls about like N^-0.85
        factor = 2 ** math.ceil(math.log2(max((1.15 * error / target) ** (1 / 0.85), 2.0)))
        points = min(rule.order * min(factor, 64), largest)
        return self.sobol(points) if points > rule.order else None

    def gauge(self, rule: Rule) -> Rule | None:
        """The rule a deterministic one is compared with; None for a randomised one, whose replicates are."""
        if rule.randomised:
            return None
        if rule.name == "published":
            return self.sobol(1024)
        return self.gauss_hermite(max(rule.order - 4, 2))


def solve_point(
    problem: Problem,
    alpha: float,
    branch: str = "semantic",
    *,
    start: Overlaps | BranchPoint | None = None,
    settings: SolverSettings | None = None,
) -> BranchPoint:
    """Solve one branch at one sample complexity.

    Parameters
    ----------
    problem : Problem
    alpha : float
        Sample complexity n/d, positive.
    branch : {"semantic", "positional", "uninformed"}
        Names the result and, without `start`, chooses the starting point.
    start : Overlaps or BranchPoint, optional
        Where to start from; a neighbouring point of the branch also lends its Jacobian.
    settings : SolverSettings, optional

    Returns
    -------
    BranchPoint
        Also if the iteration did not converge: look at its status.

    Raises
    ------
    ProblemError
        A value is out of range; the message names it.
    """
    settings = settings or SolverSettings()
    if isinstance(alpha, bool) or not (np.isreal(alpha) and np.isfinite(alpha) and alpha > 0):
        raise ProblemError("alpha", f"alpha must be a positive number, not {alpha}.")
    informed = initial_overlaps(problem, branch)
    kernels, spectrum = kernels_for(problem), Spectrum.of(problem)
    previous = start.restart if isinstance(start, BranchPoint) else None
    beginning = previous.overlaps if previous else start if isinstance(start, Overlaps) else informed
    # a neighbour counts as informed even where its order parameter is small, unless it is exactly uninformed
    exact = isinstance(start, Overlaps) or (previous is not None and not (beginning.m.any() or beginning.theta.any()))
    symmetric_point = beginning if exact else informed
    sector = Sector.of(symmetric_point, token_permutations(problem), problem.student.rank, kernels.sign_symmetric)
    run = _Run(problem, float(alpha), settings, kernels, spectrum, sector)
    rules = _Rules(problem, kernels, settings.max_nodes)

    refine = settings.method == "newton" and problem.integration.rule != "published"
    # a neighbour's derivatives serve again unless Newton's method has trouble with them
    response = previous.response if previous and refine else None
    if response is not None and len(response.jacobian) != sector.basis.shape[1]:
        response = None
    rule = rules.single() if not refine else rules.first() if response is None else rules.medium()
    jacobian = response.jacobian if response else None
    point, second_minima = beginning, 0.0
    while True:
        map_ = run.map(rule)
        if previous is not None and previous.rule is rule:
            map_.adopt(previous.minima)
        x = map_.pack(point)
        if not refine:
            method = METHODS["anderson" if settings.method == "newton" else settings.method]
            found = run.iterate(map_, x, method(), settings.tolerance)
        elif jacobian is None:
            method = Anderson
            found = run.coarse(map_, x)
        else:
            method = Anderson
            found = run.newton(map_, x, jacobian)
            if found.maps > FEW_MAPS and response is not None and response.order <= rule.order:
                response = None
        # a point that was left behind outside the domain is measured on the lifted map; its status says so
        map_.lift = found.status is Status.left_domain
        map_.at = None if map_.lift else map_.at
        if rule.order >= rules.medium().order and _decays(map_, found, informed, branch):
            zeroed = map_.unpack(found.point)
            zeroed = replace(zeroed, m=0 * zeroed.m, theta=0 * zeroed.theta)
            left = replace(settings, max_maps=max(settings.max_maps - run.maps, 50))
            end = solve_point(problem, alpha, branch, start=zeroed, settings=left)
            return replace(end, iterations=end.iterations + run.maps)
        if response is None or response.order < rules.medium().order:
            response = _response(map_, found.point, rules.medium())
        measured = _measured(run, rules, map_, found, response)
        # never back to a Gauss-Hermite rule once a rule has seen the minimiser jump
        second_minima = max(second_minima, float(map_.second_minimum_share(np.inf).mean()))
        finer = rules.next(rule, measured.relative_error, second_minima) if refine else None
        unreliable = found.status is not Status.converged and rule.order >= rules.medium().order
        if finer is None or found.status is Status.left_domain or unreliable:
            break
        rule, point, jacobian = finer, map_.unpack(found.point), response.jacobian
    checked = run.verified(map_, found, method)
    if checked is not found:
        found, measured = checked, _measured(run, rules, map_, checked, response)
    return _branch_point(run, branch, map_, found, measured, response)


def _decays(map_: _Map, found: FixedPoint, informed: Overlaps, branch: str) -> bool:
    """Whether an iteration that did not converge is on its slow way to the uninformed point.

    Near a spinodal the order parameter shrinks by a few per cent a map. Where it is small already and its image is
    smaller still, the branch has no fixed point of its own here.
    """
    if found.status is Status.converged or branch == "uninformed" or not map_.kernels.sign_symmetric:
        return False
    small = informed_signal(map_.unpack(found.point), branch)
    if not 0 < small < SMALL_SIGNAL * informed_signal(informed, branch):
        return False
    return informed_signal(map_.unpack(found.image), branch) < small


def informed_signal(overlaps: Overlaps, branch: str) -> float:
    """Size of the order parameter that tells an informed branch from the uninformed one: theta or m."""
    return float(np.abs({"semantic": overlaps.theta, "positional": overlaps.m}.get(branch, overlaps.q)).max())


def probe(problem: Problem, alpha: float, branch: str, settings: SolverSettings) -> Overlaps | None:
    """A cheap look whether the branch exists: where its informed start leads on the coarse rule, None if nowhere."""
    informed = initial_overlaps(problem, branch)
    kernels, spectrum = kernels_for(problem), Spectrum.of(problem)
    rough = replace(settings, tolerance=1e-3, max_maps=75)
    sector = Sector.of(informed, token_permutations(problem), problem.student.rank, kernels.sign_symmetric)
    run = _Run(problem, alpha, rough, kernels, spectrum, sector)
    map_ = run.map(_Rules(problem, kernels, settings.max_nodes).first())
    found = run.coarse(map_, map_.pack(informed))
    overlaps = map_.unpack(found.point)
    present = informed_signal(overlaps, branch) > SMALL_SIGNAL * informed_signal(informed, branch)
    return overlaps if found.status is Status.converged and present else None


def token_permutations(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """Permutations of the tokens that leave a problem unchanged; only the identity is tried beyond five tokens."""
    length = problem.tokens.length
    if length > 5:
        return (tuple(range(length)),)
    gram, mixing = problem.positions_gram, problem.mixing_matrix
    variances = problem.spectrum_atoms()[1]
    found = []
    for permutation in itertools.permutations(range(length)):
        p = list(permutation)
        if (
            np.allclose(gram[np.ix_(p, p)], gram, rtol=1e-12, atol=1e-14)
            and np.allclose(mixing[np.ix_(p, p)], mixing, rtol=1e-12, atol=1e-14)
            and np.allclose(variances[:, p], variances, rtol=1e-12)
        ):
            found.append(permutation)
    return tuple(found)


@dataclass(frozen=True, eq=False)
class _Measured:
    """Everything measured at a fixed point under one rule, with its errors."""

    values: dict[str, Any]
    errors: dict[str, Any]
    relative_error: float


def _measured(run: _Run, rules: _Rules, map_: _Map, found: FixedPoint, response: _Response) -> _Measured:
    """Measure at the point found."""
    measured = map_.measure(found.point)
    if measured is None:
        raise ArithmeticError("the starting point lies outside the domain of the state-evolution map")
    gauge = rules.gauge(map_.channel.rule)
    errors = _errors(map_, measured, response, None if gauge is None else run.map(gauge), found.point)
    overlaps = map_.unpack(found.point)
    pooled = map_.quantities(found.point, pooled=True)
    assert pooled is not None
    values = _restore(_flatten(pooled)[0], pooled)
    values |= {"q": overlaps.q, "V": overlaps.V, "m": overlaps.m[..., 0], "theta": overlaps.theta}
    floor = 1e-6 * np.trace(run.spectrum.rho, axis1=-2, axis2=-1).mean()
    relative = float(np.abs(errors["q"]).max() / max(np.abs(overlaps.q).max(), floor))
    return _Measured(values, errors, relative)


def _branch_point(
    run: _Run, branch: str, map_: _Map, found: FixedPoint, result: _Measured, response: _Response
) -> BranchPoint:
    values, errors = dict(result.values), dict(result.errors)
    direct = values.pop("training_loss_direct")
    errors.pop("training_loss_direct")
    values["free_energy_gap"] = abs(direct - map_.free_entropy(found.point))
    values["linear_test_error"], errors["linear_test_error"] = linear_test_error(run.problem)
    assert map_.minima is not None
    values["unsolved_nodes"] = map_.minima.unsolved
    rule = map_.channel.rule
    return BranchPoint(
        problem=run.problem,
        alpha=run.alpha,
        branch=branch,
        values=values,
        errors=errors,
        status=found.status,
        residual=found.residual,
        iterations=run.maps,
        rule=rule.name,
        nodes=rule.size,
        restart=Restart(map_.unpack(found.point), response, rule, map_.minima),
    )


def solve(
    problem: Problem,
    alpha: float,
    branch: str = "semantic",
    *,
    start: Overlaps | BranchPoint | None = None,
    method: str = "newton",
    tolerance: float = 1e-7,
    max_maps: int = 400,
    max_nodes: int = 2**18,
    threads: int | None = None,
) -> xr.Dataset:
    """Solve a problem at one sample complexity; see `solve_point` and `SolverSettings` for the arguments.

    ``branch="all"`` solves every branch the problem has.

    Returns
    -------
    xarray.Dataset
        As documented in ``docs/schema.md``.
    """
    from attnphase.dataset import from_points

    settings = SolverSettings(method, tolerance, max_maps, max_nodes, threads)
    if branch != "all":
        return from_points([solve_point(problem, alpha, branch, start=start, settings=settings)], {})
    names = [b for b in BRANCHES if b != "positional" or np.any(problem.positions_gram)]
    points = [solve_point(problem, alpha, name, start=start, settings=settings) for name in names]
    return from_points(points, {"branch": names})
