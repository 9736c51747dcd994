"""Whether a point is on the branch whose name it bears, or has merged with the uninformed one.

Where m or theta is large and known well, the point is on its branch. Elsewhere the curve of `reduced` decides: if the
odd coordinates grow at the uninformed point, or at any amplitude, beyond doubt, there is a branch; if they shrink at
all of them, there is none. A rule that leaves it open makes room for one of more nodes, up to the largest allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import erfc, sqrt

import numpy as np

from attnphase.arrays import Array
from attnphase.fixed_points.iteration import FixedPoint, Status
from attnphase.fixed_points.measuring import Measured, measured_at
from attnphase.fixed_points.reduced import (
    Level,
    at_rest,
    growth_noise,
    highest_zero,
    level_at,
    levels_at,
    shrinking_down_to,
)
from attnphase.fixed_points.run import Run
from attnphase.fixed_points.spread import spread
from attnphase.integration.refinement import COARSE_POINTS, Refinement
from attnphase.integration.rules import Rule
from attnphase.state_evolution.branches import Branch, Identity
from attnphase.state_evolution.errors import Response, response_at
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.starts import vanishes, without_signal

__all__ = ["SMALL_SIGNAL", "Place", "Verdict", "identified", "judged"]

SMALL_SIGNAL = 0.25  # share of the start's order parameter from which on nothing else is asked
WELL_KNOWN = 0.03  # relative error of the order parameter up to which derivatives at the point tell it
_BY_FEW = 0.01  # likewise, from which on few nodes see it, or such just below
_MOVED = 0.02  # share from which on derivatives are taken anew: a sparse student's map is bent that much
_TELLS_NOTHING = 0.5  # relative error of an order parameter that should differ from zero: its own nodes do not do
_BELOW = 0.7  # share of a point's amplitude at which it must grow
_JUST_BELOW = 0.9  # likewise, where minima jump elsewhere on the way to that one: a sparse student's do
_AS_LARGE = 0.3  # relative error by derivatives, in units of the one by growth there: a smaller one is wrong
BEYOND_DOUBT = 4.0  # standard errors
_FAR_BEYOND = 5.0  # likewise, of few nodes
_AT_EASE = 2.0  # likewise, of a point and of more nodes there together, beyond which these contradict it
_OPEN = (
    2.0  # likewise, within which the uninformed point lies at least where nothing is decided: three would look certain
)
_BY_CHANCE = 3.0  # likewise; what shrinks at both neighbours does so here, unless this is seen to be otherwise
AMPLITUDES = (1.5, 1.1, 0.8, 0.55, 0.35, 0.2, 0.1, 0.05)  # of the start's: a branch that has not vanished continuously
# likewise; a sparse student's other overlaps have several values at one amplitude, and are followed in short steps
_SPARSE_AMPLITUDES = tuple(np.geomspace(AMPLITUDES[0], AMPLITUDES[-1], 40).tolist())
_LEAST_SHARE = 1e-9  # of an informed start's order parameter
_OWN = (1.0, 0.94, 0.87)  # of the point's: near a fold the growth is positive in a narrow window just below it alone
_SEEN_FROM_REST = 0.4  # amplitudes up to which the uninformed point's own multiplier, which is known better, speaks
_FINER = 4  # points of a rule against the one before
_MUCH_FINER = 16  # likewise, against those that only show where to begin
_AGAIN = 50  # maps that a point may take which is looked for once more
_AT_LEAST = 4096  # points per replicate that may decide, however few the numbers are made of


@dataclass(frozen=True, eq=False)
class Verdict:
    """What was found out about a point.

    Attributes
    ----------
    identity : Identity
    grows : (D,) array or None
        Where the odd coordinates were seen to grow; the branch lies above.
    rule : Rule or None
        By which this was seen.
    growth : float
        Where nothing is decided, the largest growth that is left, in standard errors.
    """

    identity: Identity
    grows: Array | None = None
    rule: Rule | None = None
    growth: float = np.inf


@dataclass(frozen=True, eq=False)
class Place:
    """A fixed point with everything known of it.

    Attributes
    ----------
    map_ : StateEvolution
    found : FixedPoint
    measured : Measured
    response : Response
    identity : Identity
    settled : bool
        Whether its minima are known to be the lowest, or never will be.
    """

    map_: StateEvolution
    found: FixedPoint
    measured: Measured
    response: Response
    identity: Identity = Identity.on_branch
    settled: bool = True

    @property
    def overlaps(self) -> Overlaps:
        """The point's."""
        return self.map_.unpack(self.found.point)


def identified(
    run: Run, rules: Refinement, place: Place, informed: Overlaps, branch: str, settle: Callable[[Place], Place]
) -> Place:
    """The point with its identity; where that differs from what was found, the point that it is, and honest errors.

    Parameters
    ----------
    informed : Overlaps
        The branch's informed start.
    settle : callable
        Looks for lower minima to the end, which takes long where few nodes decide: where there is no branch the point
        is one of these nodes' making, and is left.
    """
    name, *others = Branch.named(branch).order_parameters or ("",)
    has_curve = bool(name) and not others and run.system.reflects and run.system.prior.even
    late = run.late  # then only what takes no map is decided
    if not place.settled and not (has_curve and run.settings.identity and place.overlaps.has_signal and not late):
        place = settle(place)
    if not name:
        return place
    if not run.settings.identity or place.found.status is Status.left_domain:
        return replace(place, identity=Identity.not_decided)
    if not has_curve:
        return replace(place, identity=_by_error(place, (name, *others)))
    known = not (late and place.map_.channel.rule.randomised) and _well_known(run, rules, place, name, informed)
    if known and not place.settled:
        place = settle(place)
        known = _well_known(run, rules, place, name, informed)
    if known:
        return place
    if late:
        return replace(place, identity=Identity.not_decided)
    own = _in_own_sector(run, place, informed)
    run.sector = own.map_.sector
    jacobian = run.sector.taken_over(place.response.jacobian, place.map_.sector)
    verdict = judged(run, rules, own.map_.channel.rule, own.overlaps, informed, jacobian)
    if run.only_merged and verdict.identity is not Identity.merged:
        return replace(place, identity=verdict.identity)
    if not place.settled and (run.late or verdict.identity is not Identity.merged):
        place = own = settle(place)
    if run.late:
        return replace(place, identity=Identity.not_decided)
    # what was solved without its order parameter, and has none, stays as it is, with the derivatives there; so does
    # what a tensor rule, which respects the symmetry, has led there
    led_there = not own.map_.channel.rule.by_chance and vanishes(run.system.problem, own.overlaps, branch)
    stays = verdict.identity is Identity.merged and (led_there or not own.overlaps.has_signal)
    moved = replace(place, identity=verdict.identity) if stays else _moved(run, rules, own, verdict)
    known = _with_errors(run, rules, moved, informed, _open_within(verdict.growth))
    if known.identity is not Identity.on_branch:
        return known
    finer_rules = _seeing(rules, known, verdict)
    spent = known.found.status is not Status.converged and run.spent  # the limit was asked for
    if spent or not finer_rules or (_told(known, name) and _agrees(run, rules, known, name)):
        return known
    for finer in finer_rules:
        if run.late:  # more nodes contradict the point
            return replace(known, identity=Identity.not_decided)
        taken = _found_above(run, rules, known, verdict, informed, finer)
        if taken is not None:
            known = _with_errors(run, rules, taken, informed)
            if _told(known, name):
                break
    return known


def _well_known(run: Run, rules: Refinement, place: Place, name: str, informed: Overlaps) -> bool:
    """Whether derivatives at the point tell the errors of the order parameter, and there is a branch beyond doubt.

    They are differences over a hundredth. What chance does to these is several times what it does to the growth, so
    that a noisy map can look steep, and its zero well known; and they may be a neighbour's. Hence there must be growth
    further below, as much as they say; just below, by nodes that are not the point's own alone, if minima jump on the
    way to there.
    """
    if np.abs(getattr(place.overlaps, name)).max() < SMALL_SIGNAL * np.abs(getattr(informed, name)).max():
        return False
    map_, x = place.map_, place.found.point
    relative = _error_of(place, name)
    if not relative <= WELL_KNOWN or not map_.channel.rule.randomised:
        return relative <= WELL_KNOWN
    jacobian, own = place.response.jacobian, map_.channel.rule.order
    amplitude, noise = float(np.linalg.norm(x[map_.sector.odd])), growth_noise(map_, x, jacobian)
    most = min(own, rules.medium_points)
    # few nodes first, whose noise is several times as large: what is beyond doubt with them need not be asked of more
    well = relative <= _BY_FEW
    few = well and most > COARSE_POINTS and run.few_see
    levels = [(COARSE_POINTS, _BELOW, _FAR_BEYOND)] if few else []
    levels += [(most, _BELOW, BEYOND_DOUBT)]
    levels += [(min(max(own, _FINER * most), rules.most_points), _JUST_BELOW, BEYOND_DOUBT)] if well else []
    shrinks_at = np.inf
    for points, share, enough in levels:
        if share == shrinks_at:
            continue
        probe = run.map(rules.sobol(points))
        probe.adopt_from(map_)
        level = level_at(probe, x, share * amplitude, jacobian)
        seen = level is not None and level.exceeds(enough)
        if few and points == COARSE_POINTS:
            run.few_see = seen
        if level is not None and seen and relative >= _AS_LARGE * noise * (1 - share) / level.value:
            return True
        if level is not None and level.value < 0:
            shrinks_at = share
    return False


def _by_error(place: Place, names: tuple[str, ...]) -> Identity:
    """By the stated errors alone, where no symmetry makes the order parameter vanish, or there are two of them."""
    values, errors = place.measured.values, place.measured.errors
    sizes = [float(np.abs(values[name]).max()) for name in names]
    noise = [float(np.nan_to_num(np.abs(errors[name])).max()) for name in names]
    if any(size <= _BY_CHANCE * error or size == 0 for size, error in zip(sizes, noise, strict=True)):
        return Identity.merged
    far = all(size > BEYOND_DOUBT * error for size, error in zip(sizes, noise, strict=True))
    return Identity.on_branch if far else Identity.not_decided


def _in_own_sector(run: Run, place: Place, informed: Overlaps) -> Place:
    """A point that was solved without its order parameter, among those that have it."""
    if len(place.map_.sector.odd):
        return place
    sector = run.system.sector_of(informed)
    map_ = StateEvolution(place.map_.channel, place.map_.alpha, sector)
    map_.adopt(place.map_.minima)
    ends = (place.map_.unpack(end) for end in (place.found.point, place.found.image))
    point, image = (sector.pack(end) for end in ends)
    map_(point)
    map_.bottomless = place.map_.bottomless
    return replace(place, map_=map_, found=replace(place.found, point=point, image=image))


def _moved(run: Run, rules: Refinement, place: Place, verdict: Verdict) -> Place:
    """The point that the verdict asks for."""
    map_, odd = place.map_, place.map_.sector.odd
    size, identity, target = float(np.linalg.norm(place.found.point[odd])), verdict.identity, None
    if identity is Identity.merged and size > 0:
        # of all symmetries, which keep the zeros exact
        uninformed = without_signal(place.overlaps)
        run.sector = run.system.sector_of(uninformed)
        map_ = StateEvolution(map_.channel, map_.alpha, run.sector)
        target = map_.pack(uninformed)
    elif identity is Identity.on_branch and verdict.grows is not None:
        target = verdict.grows if size < float(np.linalg.norm(verdict.grows[odd])) / 2 else None
    if target is None:
        return replace(place, identity=identity)
    if not map_.channel.rule.by_chance:
        run.sector = place.map_.sector
        return replace(place, identity=Identity.not_decided)  # of its rule, whose errors are no statistics
    moved = _found_from(run, rules, map_, target, place.measured.relative_error)
    if moved is None:
        run.sector = place.map_.sector
        return replace(place, identity=Identity.not_decided)
    if identity is Identity.on_branch and not moved.overlaps.has_signal:
        identity = Identity.not_decided
    return replace(moved, identity=identity)


def _seeing(rules: Refinement, place: Place, verdict: Verdict) -> list[Rule]:
    """Rules with more nodes than a point's own, of those that see a branch there."""
    if verdict.rule is None or not place.map_.channel.rule.randomised:
        return []
    own, seen = place.map_.channel.rule.order, verdict.rule.order
    return [
        rule
        for rule in _ladder(rules, place.map_.channel.rule, COARSE_POINTS)
        if rule.order > own and rule.order >= seen
    ]


def _told(place: Place, name: str) -> bool:
    """Whether a point is at rest, and its order parameter known to be other than zero."""
    return place.found.status is Status.converged and _error_of(place, name) <= _TELLS_NOTHING


def _agrees(run: Run, rules: Refinement, place: Place, name: str) -> bool:
    """Whether the growth by more nodes ends within two of a point's stated errors and of theirs, in quadrature.

    Few nodes make several zeros, of which the highest is found first; near a steep one it seems to be well known. And
    those that chance lets grow are taken for a branch more often.
    """
    own, x, jacobian = place.map_.channel.rule, place.found.point, place.response.jacobian
    enough, relative = _FINER * max(own.order, rules.medium_points), _error_of(place, name)
    more = next((rule for rule in _ladder(rules, own, COARSE_POINTS) if rule.order >= enough), None)
    if more is None:
        return True
    map_ = run.map(more)
    amplitude = float(np.linalg.norm(x[map_.sector.odd]))
    here = level_at(map_, x, amplitude, jacobian)
    if here is None or np.isnan(here.value):
        return False
    side = np.sign(here.value)
    off = level_at(map_, here.point, amplitude * (1 + side * _AT_EASE * relative), jacobian)
    if off is None or np.isnan(off.value):
        return True
    # on a line through both levels the zero is here.value / (here.value - off.value) of the way to the second
    change = max(side * (here.value - off.value), 0.0)
    return abs(here.value) <= np.hypot(change, _AT_EASE * here.stderr)


def _found_above(
    run: Run, rules: Refinement, place: Place, verdict: Verdict, informed: Overlaps, rule: Rule
) -> Place | None:
    """The point by a rule, from where the growth ends above: few nodes make further zeros below. None without one."""
    assert verdict.grows is not None
    odd, jacobian = place.map_.sector.odd, place.response.jacobian
    run.grant(_AGAIN)
    start = run.sector.pack(replace(place.overlaps, m=informed.m, theta=informed.theta))
    full, least = (float(np.linalg.norm(x[odd])) for x in (start, verdict.grows))
    amplitudes = [share * full for share in AMPLITUDES]
    # few nodes tell already how far down the odd coordinates shrink: the branch is below
    enough = max(COARSE_POINTS, rule.order // _MUCH_FINER)
    for few in [finer for finer in _ladder(rules, rule, COARSE_POINTS) if finer.order <= enough]:
        shrinking = shrinking_down_to(run.map(few), start, amplitudes, _FAR_BEYOND, jacobian)
        if shrinking is not None:
            start, amplitudes = shrinking.point, [one for one in amplitudes if one <= shrinking.amplitude]
    zero = highest_zero(run.map(rule), start, amplitudes, jacobian)
    own = place.found.point
    x = zero if zero is not None else own if np.linalg.norm(own[odd]) >= least else verdict.grows
    found = _found_from(run, rules, run.map(rule), x, WELL_KNOWN)
    if found is None or found.found.status is not Status.converged:
        return None
    return found if np.linalg.norm(found.found.point[odd]) > _BELOW * least else None


def _error_of(place: Place, name: str) -> float:
    """Relative error of the order parameter."""
    return float(np.nanmax(np.abs(place.measured.errors[name])) / np.abs(place.measured.values[name]).max())


def _found_from(run: Run, rules: Refinement, map_: StateEvolution, x: Array, error: float) -> Place | None:
    """The fixed point near ``x``, with what is measured there; None outside the domain."""
    try:
        response = response_at(map_, x, rules.of_derivatives(map_.channel.rule))
        found = run.newton(map_, x, response.jacobian)
        if np.max(np.abs(found.point - x) / map_.scales(found.point)) > _MOVED:
            response = response_at(map_, found.point, rules.of_derivatives(map_.channel.rule))
        found = run.verified(map_, found, error, lambda point: run.newton(map_, point, response.jacobian))
        if found.status is Status.left_domain:
            return None
        return Place(map_, found, measured_at(run, rules, map_, found, response), response)
    except ArithmeticError:  # no difference stays inside
        return None


def _open_within(growth: float) -> float:
    """Standard errors within which the uninformed point lies where nothing is decided.

    The growth tells with what probability p there is no branch. A point that is not there is off by all of its order
    parameter, so that its mean square error is at least p times the square of that.
    """
    return min(_OPEN, float(1 / np.sqrt(max(erfc(growth / sqrt(2)) / 2, 1 / _OPEN**2))))


def _with_errors(run: Run, rules: Refinement, place: Place, informed: Overlaps, within: float = _OPEN) -> Place:
    """The point with errors that hold near an onset; the uninformed one has m = theta = 0 exactly."""
    map_, x = place.map_, place.found.point
    if not map_.channel.rule.randomised:
        return place
    errors = place.measured.errors
    if place.identity is Identity.merged:
        exact = {name: 0 * errors[name] for name in ("m", "theta", "m_hat", "theta_hat")}
        return replace(place, measured=replace(place.measured, errors=errors | exact))
    response = place.response
    if len(response.jacobian) != len(x):
        response = response_at(map_, x, rules.of_derivatives(map_.channel.rule))
    start = map_.pack(replace(place.overlaps, m=informed.m, theta=informed.theta))
    names = ("m", "theta")
    size = max(float(np.abs(place.measured.values[name]).max()) for name in names)
    error = max(float(np.nan_to_num(errors[name]).max()) for name in names)
    relative = error / size if size > 0 else np.inf
    wide = spread(run, map_, x, start, response, relative, within if place.identity is Identity.not_decided else None)
    if not wide:  # what is left are errors by derivatives, which do not tell zero from a small order parameter
        settled = place.found.status is Status.converged
        return replace(place, identity=Identity.not_decided if settled else place.identity, response=response)
    return replace(place, measured=replace(place.measured, errors=errors | wide), response=response)


def judged(
    run: Run, rules: Refinement, rule: Rule, overlaps: Overlaps, informed: Overlaps, jacobian: Array | None = None
) -> Verdict:
    """Decide by the curve of the branch of ``informed``, with as many nodes as it takes.

    Parameters
    ----------
    run : Run
        Of the branch's own sector, in which the order parameter may differ from zero.
    rule : Rule
        That the point was found with.
    overlaps : Overlaps
        The point.
    jacobian : (D, D) array, optional
        Of the map near it; spares evaluations.
    """
    start = run.sector.pack(replace(overlaps, m=informed.m, theta=informed.theta))
    rest, bottom = run.sector.pack(overlaps), None
    for finer in _ladder(rules, rule, min(rule.order, rules.medium_points) if rule.randomised else COARSE_POINTS):
        if run.late:
            return Verdict(Identity.not_decided)
        map_ = run.map(finer)
        bottom = at_rest(map_, rest, jacobian) or bottom
        if bottom is None:
            break
        rest, jacobian = bottom.point, bottom.jacobian
        if bottom.exceeds(BEYOND_DOUBT):
            grows = _slightly(run, bottom.point, informed)
            return Verdict(Identity.not_decided if grows is None else Identity.on_branch, grows, finer)
        if bottom.falls_short(BEYOND_DOUBT):
            break
    else:
        return Verdict(Identity.not_decided, growth=np.inf if bottom is None else _in_errors(bottom))
    odd = run.sector.odd
    full = float(np.linalg.norm(start[odd]))
    own = float(np.linalg.norm(run.sector.pack(overlaps)[odd])) / full
    shares = AMPLITUDES if run.system.prior.rows is None else _SPARSE_AMPLITUDES
    candidates = sorted({*shares, *(own * part for part in _OWN)}, reverse=True)
    seen = 0.0 if bottom is None else _SEEN_FROM_REST
    amplitudes = [share * full for share in candidates if share > seen]
    levels = [level for level in run.levels if len(level.point) == len(start)]
    restless: set[float] = set()
    given_up: set[float] = set()
    growth = np.inf
    for number, finer in enumerate(_ladder(rules, rule, COARSE_POINTS)):
        if run.late:
            return Verdict(Identity.not_decided)
        map_ = run.map(finer)
        levels = levels_at(map_, start, amplitudes, jacobian, levels)
        if number == 0:  # what a neighbour can begin with
            run.levels = levels
        for level in levels:
            if level.exceeds(BEYOND_DOUBT):
                return Verdict(Identity.on_branch, level.point, finer)
        doubtful = [level for level in levels if not level.falls_short(_BY_CHANCE)]
        growth = max((_in_errors(level) for level in doubtful if np.isfinite(level.value)), default=np.inf)
        unsettled = {level.amplitude for level in doubtful if np.isnan(level.value)}
        # what comes to rest under neither of two rules, as on a map of stairs, takes the most maps of all
        given_up |= unsettled & restless
        amplitudes = [level.amplitude for level in doubtful if level.amplitude not in given_up]
        if not amplitudes:
            return Verdict(Identity.not_decided if given_up else Identity.merged)
        restless = unsettled
    return Verdict(Identity.not_decided, growth=growth)


def _in_errors(level: Level) -> float:
    """Growth in its standard errors; infinite, which tells of no end, where it is not known."""
    if not np.isfinite(level.value):
        return np.inf
    return level.value / level.stderr if level.stderr > 0 else float(np.copysign(np.inf, level.value))


def _slightly(run: Run, x: Array, informed: Overlaps) -> Array | None:
    """An uninformed point with a small share of an informed one's order parameter, None if none is in the domain."""
    rest, share = run.sector.unpack(x), AMPLITUDES[-1]
    small = replace(rest, m=share * informed.m, theta=share * informed.theta)
    # theta^2 is at most q rho, and an uninformed q may be next to nothing
    while share > _LEAST_SHARE and not small.feasible(run.system.spectrum.rho):
        share /= 2
        small = replace(rest, m=share * informed.m, theta=share * informed.theta)
    return run.sector.pack(small) if share > _LEAST_SHARE else None


def _ladder(rules: Refinement, rule: Rule, first: int) -> list[Rule]:
    """Rules with replicates, from ``first`` points in each to as many as are allowed."""
    limit = rules.most_points
    if rules.asked.nodes is not None and rule.randomised:
        limit = min(limit, max(rules.asked.nodes, _AT_LEAST))
    points = [min(first, limit)]
    while _FINER * points[-1] <= limit:
        points.append(_FINER * points[-1])
    return [rules.sobol(count) for count in points]
