"""Whether a converged point is on the branch whose name it bears, or has merged with the uninformed one.

A point is believed where a change of the map by four standard errors leaves it a fixed point, and is not decided
elsewhere. See docs/trust.md.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnphase.arrays import Array
from attnphase.fixed_points.derivatives import with_derivatives
from attnphase.fixed_points.measuring import SolvedPoint, gauges_at, measured_at
from attnphase.fixed_points.run import Run
from attnphase.fixed_points.trial_amplitudes import Sweep, beside_held, growth_with_error, trials_of, zero_of
from attnphase.integration.refinement import Refinement
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.branches import ERRORS, Branch, Identity
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.errors import response_at
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.starts import vanishes, without_signal

__all__ = ["classified", "has_curve"]

_NEXT_TO_NONE = 1e-3  # share of the informed start's order parameter
_MAPS = 50  # that a point may take which is looked for once more


def classified(run: Run, rules: Refinement, solved: SolvedPoint, informed: Overlaps, branch: str) -> SolvedPoint:
    """The point with its identity; where the uninformed point has a branch above it, a point of that.

    Parameters
    ----------
    informed : Overlaps
        The branch's informed start.
    """
    names = Branch.named(branch).order_parameters
    if not names:
        return solved
    undecided = replace(solved, identity=Identity.not_decided)
    if not run.settings.identity or run.late or solved.found.status is not Status.converged:
        return undecided
    if not solved.response.known:
        return undecided
    if not vanishes(run.system.problem, solved.overlaps, branch):
        if _stands(run, rules, solved, names):
            return replace(solved, identity=Identity.on_branch)
        own = None if run.spent else with_derivatives(run, rules, solved, solved.map_.channel.rule)
        if own is None:
            return undecided
        return replace(own, identity=Identity.on_branch if _stands(run, rules, own, names) else Identity.not_decided)
    if not has_curve(run, branch):
        return replace(solved, identity=Identity.merged)
    return _beside_uninformed(run, rules, solved, informed, names)


def has_curve(run: Run, branch: str) -> bool:
    """Whether a symmetry makes the branch's only order parameter vanish at the uninformed point."""
    return len(Branch.named(branch).order_parameters) == 1 and run.system.reflects and run.system.prior.even


def _stands(run: Run, rules: Refinement, solved: SolvedPoint, names: tuple[str, ...]) -> bool:
    """Whether a point remains, with its order parameters, if the map changes by four standard errors.

    No eigenvalue of the Jacobian J may be one within four errors of the derivatives, which change the determinant of
    ``I - J`` by the share ``Tr (I - J)^-1 dJ``. Then `_is_bracketed` decides.
    """
    map_, x = solved.map_, solved.found.point
    scale = map_.scales(x)
    system = (np.eye(len(x)) - solved.response.jacobian) * scale / scale[:, None]
    inverse = np.asarray(np.linalg.pinv(system), dtype=float)
    noise = solved.response.noise * scale / scale[:, None]
    if not ERRORS * np.linalg.norm(np.einsum("ij,sji->s", inverse, noise)) < 1:
        return False
    for name in names:
        nothing = map_.unpack(np.zeros(len(x)))
        own = map_.pack(replace(nothing, **{name: getattr(solved.overlaps, name)})) / scale
        if not _is_bracketed(run, rules, solved, inverse, own / (own @ own)):
            return False
    return True


def _is_bracketed(run: Run, rules: Refinement, solved: SolvedPoint, inverse: Array, along: Array) -> bool:
    """Whether the map leads back to the point from eight errors of an order parameter on either side.

    An error dF of the map moves the point by ``(I - J)^-1 dF``. Where the map bends, a change by four errors makes a
    point vanish, at a fold or an onset, that lies eight of these first-order errors away from there: at so much, the
    map must lead back by more than four. Over the edge of the domain lies nothing: at a part of the distance a part of
    the way is enough.

    Parameters
    ----------
    inverse : (D, D) array
        Of ``I - J``, in units of the coordinates' scales.
    along : (D,) array
        By what share of itself a change of these moves the order parameter.
    """
    map_, x = solved.map_, solved.found.point
    rule, scale, odd, even_prior = map_.channel.rule, map_.scales(x), map_.sector.odd, run.system.prior.even
    # what the iteration may leave is an error too
    rows = np.vstack([solved.measured.moved.images / scale, run.settings.tolerance * np.eye(len(x))])
    moved = rows @ inverse.T
    error = float(np.linalg.norm(moved @ along))
    if not 2 * ERRORS * error < 1:
        return False
    step = 2 * ERRORS * (moved @ along) @ moved / error * scale
    if rules.is_few(rule):
        rule = rules.sobol(rules.medium_points)
    beside = StateEvolution(Channel(run.system, rule), map_.alpha, map_.sector)
    for side in (1.0, -1.0):
        part = side
        while not map_.unpack(x + part * step).feasible(run.system.spectrum.rho):
            part /= 2
            if np.array_equal(x + part * step, x):
                return False
        point = x + part * step
        beside.adopt_from(map_)
        image = beside(point)
        if image is None:
            return False
        share = np.ones(len(x))
        if run.system.reflects and even_prior:  # errors of what is odd shrink with it
            share[odd] = np.linalg.norm(point[odd]) / np.linalg.norm(x[odd])
        enough = abs(part) * ERRORS * float(np.linalg.norm(rows * share @ inverse.T @ along))
        if not -side * along @ inverse @ ((image - point) / scale) > enough:
            return False
    return True


def _beside_uninformed(
    run: Run, rules: Refinement, solved: SolvedPoint, informed: Overlaps, names: tuple[str, ...]
) -> SolvedPoint:
    """A point without its order parameter, merged if that shrinks at every trial amplitude by four standard errors."""
    undecided = replace(solved, identity=Identity.not_decided)
    sector, at_rest = run.system.sector_of(informed), run.system.prior.at_rest
    channel = solved.map_.channel
    if at_rest:  # what other weights do, the map of those that move tells
        run = replace(run, system=run.system.moving, gauges=None)
        channel = replace(channel, system=run.system)
    map_ = StateEvolution(channel, solved.map_.alpha, sector)
    map_.adopt_from(solved.map_)
    x = sector.pack(without_signal(solved.overlaps))
    if map_(x) is None and not at_rest:
        return undecided
    gauges = gauges_at(run, rules, map_)
    sweep = Sweep(
        map_,
        beside_held(sector.taken_over(solved.response.jacobian, solved.map_.sector), sector.odd),
        (rules.asked.standard_error, run.settings.tolerance),
        lambda: run.late,
    )
    try:
        # no small weight grows beside a kink of the regulariser
        rest = (-1.0, 0.0) if at_rest else growth_with_error(map_, x, gauges)
        if rest is None:  # without a multiplier next to none of the order parameter tells
            small = replace(informed.changed(_NEXT_TO_NONE * np.eye(informed.q.shape[-1])), V=solved.overlaps.V)
            beside = replace(solved.overlaps, m=small.m, theta=small.theta)
            near = sweep.at(sector.pack(beside if beside.feasible(run.system.spectrum.rho) else small))
            if near is not None:
                rest = growth_with_error(map_, near, gauges)
            elif not sweep.open:  # it dies out at once where nothing settles beside it inside the domain
                rest = -1.0, 0.0
        if rest is None or abs(rest[0]) <= ERRORS * rest[1]:
            return undecided
        trials = trials_of(sweep, sector.pack(replace(informed, V=solved.overlaps.V)), x, rest[0])
        if trials is None:
            return undecided
        if not trials:  # a branch lies inside the domain
            return undecided if rest[0] > 0 else replace(solved, identity=Identity.merged)
        if rest[0] < 0:
            highest = max(trials, key=lambda trial: trial.growth).point
            map_(highest, refresh=map_.channel.rule.lines is None)
            growth = growth_with_error(map_, highest, gauges)
            if growth is None or abs(growth[0]) <= ERRORS * growth[1]:
                return undecided
            if growth[0] < 0:
                return replace(solved, identity=Identity.merged)
        return _above(run, rules, solved, map_, zero_of(trials, sector.odd, rest[0]), names)
    except ArithmeticError:  # a map lies outside the domain
        return undecided


def _above(
    run: Run, rules: Refinement, solved: SolvedPoint, map_: StateEvolution, x: Array, names: tuple[str, ...]
) -> SolvedPoint:
    """The point of the branch near ``x``; the given one, not decided, if none is found."""
    undecided = replace(solved, identity=Identity.not_decided)
    if run.only_merged:
        return undecided
    run.grant(_MAPS)
    derivatives, known = rules.of_derivatives(map_.channel.rule), solved.measured.relative_error
    response = response_at(map_, x, derivatives)
    found = run.newton(map_, x, response.jacobian)
    found = run.verified(map_, found, known, lambda point: run.newton(map_, point, response.jacobian))
    if found.status is not Status.converged or not map_.unpack(found.point).has_signal:
        return undecided
    response = response_at(map_, found.point, derivatives)
    moved = SolvedPoint(map_, found, measured_at(run, rules, map_, found, response), response)
    return moved if _stands(run, rules, moved, names) else replace(moved, identity=Identity.not_decided)
