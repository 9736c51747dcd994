"""The stages of one solve: into the basin on few nodes, Newton's method on more, and a second look at all minima."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from attnphase.arrays import Array
from attnphase.fixed_points.deadline import NEVER, Deadline
from attnphase.fixed_points.settings import SolverSettings
from attnphase.integration.rules import Rule
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Callback, silent
from attnphase.processes.threads import available_cores
from attnphase.solvers.iteration import Anderson, Damped, FixedPoint, Method, Newton, Plain, Status, iterate
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.sector import Sector
from attnphase.state_evolution.system import System

__all__ = ["FEW_MAPS", "FIRST_ROUND", "LATER_ROUNDS", "MISSED", "Run", "system_of"]

# share of nodes that may be in another than their lowest minimum, in units of the relative error: as the point moves
# new minima appear, and a share of so many changes means by less than the nodes' own scatter
MISSED = 0.1
# what a second evaluation may differ by: descents that begin elsewhere end within their own tolerance
_REPEATED = 1e-9
_IN_THE_BASIN = 0.05  # residual from which on no more damped steps are needed
# maps within which Anderson's residual must halve: the 23 halvings from one to 1e-7 then take about 400
_HALVED = 20
_LONGER = 1.2  # by what plain steps go on farther from one try of Anderson's to the next
_SHORTER = 4.0  # by what damped steps are where the order parameter swings past zero
FEW_MAPS = 9  # within which Newton's method ends if its Jacobian is good
_OF_NEWTON = 15  # maps within which Newton's method ends from a good start
# of iteration between searches of all minima
ALL_ROUNDS = range(6)
FIRST_ROUND, LATER_ROUNDS = ALL_ROUNDS[:1], ALL_ROUNDS[1:]


@dataclass
class Run:
    """State of one solve: what is solved, and the maps used so far.

    Attributes
    ----------
    system : System
    alpha : float
    settings : SolverSettings
    sector : Sector
    callback : callable
        Is called with how far the iteration is.
    deadline : Deadline
    maps : int
        Of all rules together.
    unsettled : bool
        Whether the first round of the last `verified` left something to the later ones.
    gap : float or None
        A neighbouring point's, near which that of two copies is looked for.
    only_merged : bool
        Whether nothing more is asked of a point that has not merged.
    compares : bool
        Whether the point is only compared with those of other starts: it has no errors of integration.
    jacobian : (D, D) array or None
        As Newton's method left it the last time; None where that did not converge.
    contradicted : bool
        Whether Sobol points have contradicted a tensor rule: from then on no tensor rule is believed.
    gauges : tuple or None
        The map under other rules, as it was last compared with: of which rules and sector they are, and these.
    """

    system: System
    alpha: float
    settings: SolverSettings
    sector: Sector
    callback: Callback = silent
    deadline: Deadline = NEVER
    maps: int = 0
    unsettled: bool = False
    gap: float | None = None
    only_merged: bool = False
    compares: bool = False
    jacobian: Array | None = None
    contradicted: bool = False
    gauges: tuple[tuple[tuple[Rule, ...], Sector], list[StateEvolution]] | None = None

    @property
    def spent(self) -> bool:
        """Whether the solve has taken all maps or all the time that it may."""
        return self.maps >= self.settings.max_maps or self.late

    @property
    def late(self) -> bool:
        """Whether its time is over."""
        return self.deadline.passed

    def grant(self, maps: int) -> None:
        """Let the solve take so many maps from here on, if it has fewer left."""
        self.settings = replace(self.settings, max_maps=max(self.settings.max_maps, self.maps + maps))

    def tolerance_on(self, rule: Rule) -> float:
        """Residual to which a point is found: one that is only compared by points, to the weight of one of them."""
        asked = self.settings.tolerance
        return max(asked, 1 / rule.size) if self.compares and rule.randomised else asked

    def map(self, rule: Rule) -> StateEvolution:
        """The map under a rule."""
        return StateEvolution(Channel(self.system, rule), self.alpha, self.sector)

    def iterate(
        self,
        map_: StateEvolution,
        x: Array,
        method: Method,
        limit: int | None = None,
        tolerance: float | None = None,
        until: Callable[[Array, Array], bool] | None = None,
    ) -> FixedPoint:
        """Iterate with what is left of the maps, or `limit` of them, to the tolerance on its rule or another."""
        left = max(self.settings.max_maps - self.maps, 1)
        budget = left if limit is None else min(limit, left)

        def report(maps: int, residual: float) -> bool:
            done = self.maps + maps
            nodes = map_.channel.rule.size
            self.callback(f"{done} maps, residual {residual:.0e}, {nodes} nodes", done, self.settings.max_maps)
            return self.late

        tolerance = self.tolerance_on(map_.channel.rule) if tolerance is None else tolerance
        found = iterate(map_, x, map_.scales, method, tolerance=tolerance, max_maps=budget, report=report, until=until)
        self.maps += found.maps
        return found

    def verified(
        self,
        map_: StateEvolution,
        found: FixedPoint,
        error: float,
        again: Callable[[Array], FixedPoint],
        rounds: range = ALL_ROUNDS,
    ) -> FixedPoint:
        """Search all local problems afresh, and go on iterating as long as that changes the map.

        Where that takes too many rounds the point has not converged: its minima are not known to be the lowest.
        ``error`` is the relative one of q, below which a few nodes' minima do not matter. After `FIRST_ROUND` every map
        searches afresh, which takes several times as long; what has not settled in it is `unsettled`.
        """
        self.unsettled = False
        for turn in rounds:
            if found.status is not Status.converged or map_.channel.rule.from_zero:
                return found
            if self._stands(map_, found) and map_.spot_check(found.point, MISSED * error):
                return found
            if self.late:
                return replace(found, status=Status.iteration_limit)
            self.callback("searching all minima again")
            image = map_(found.point, refresh=True)
            self.maps += 1
            if image is None:
                return replace(found, status=Status.left_domain)
            residual = float(np.max(np.abs(image - found.point) / map_.scales(found.point)))
            if residual <= max(self.settings.tolerance, found.residual):
                return replace(found, image=image, residual=residual)
            # what a warm pass does not see it would keep from round to round
            map_.thorough = turn > 0
            found = again(found.point)
        # the last round has not been looked at
        if found.status is not Status.converged or map_.spot_check(found.point, MISSED * error):
            return found
        if rounds is FIRST_ROUND:
            self.unsettled = True
            return found
        return replace(found, status=Status.iteration_limit)

    def cuts(self, found: FixedPoint) -> bool:
        """Whether `newton` has not had its maps, because all maps or all the time is spent."""
        return found.status is Status.iteration_limit and found.maps < _OF_NEWTON and self.spent

    def _stands(self, map_: StateEvolution, found: FixedPoint) -> bool:
        """Whether the point is one of the map as it is: evaluated elsewhere since, nodes may be in other minima."""
        image = map_(found.point)
        if image is None:
            return False
        residual = float(np.max(np.abs(image - found.point) / map_.scales(found.point)))
        return residual <= max(self.settings.tolerance, found.residual, _REPEATED)

    def coarse(
        self,
        map_: StateEvolution,
        x: Array,
        tolerance: float | None = None,
        until: Callable[[Array, Array], bool] = lambda point, image: False,
    ) -> FixedPoint:
        """Into the basin by damped steps, then Anderson to a tolerance; damped steps again where Anderson fails.

        It ends, not converged, at a point and its image of which `until` says that they are enough.
        """
        first = found = FixedPoint(x, x, np.inf, 0, Status.left_domain)
        for first in self._damped(map_, x, until):
            if until(first.point, first.image):
                return replace(first, status=Status.iteration_limit)
            found = self.iterate(map_, first.point, Anderson(), 40, tolerance, until)
            if found.status is Status.converged or until(found.point, found.image):
                return found
            if self.spent:  # damped steps alone may be lifted into the domain
                outside = found.status is Status.left_domain and np.isfinite(first.residual)
                return replace(first, status=Status.iteration_limit) if outside else found
        # near a transition a few nodes decide: no use in converging them on this rule
        slow = self.iterate(map_, first.point, Damped(0.9), 20, until=until)
        return slow if slow.residual < found.residual else found

    def _damped(self, map_: StateEvolution, x: Array, until: Callable[[Array, Array], bool]) -> Iterator[FixedPoint]:
        """Where damped steps lead, shorter ones first where an image lies as far beyond zero as the start before it."""
        # the positional point has an eigenvalue of the map near -1.5 alpha: steps must shrink with alpha
        slowdown, odd = max(1.0, self.alpha / 2), map_.sector.odd

        def swings(image: Array) -> bool:
            return bool(image[odd] @ x[odd] < -(x[odd] @ x[odd]))

        def led(share: float, end: Callable[[Array, Array], bool]) -> FixedPoint:
            map_.lift = True
            steps = Damped(1 - share, map_.sector.covariances)
            found = self.iterate(map_, x, steps, min(round(15 * slowdown), 120), _IN_THE_BASIN, end)
            map_.lift = False
            return found

        share = 0.2 / slowdown
        found = led(share, lambda point, image: swings(image) or until(point, image))
        if not swings(found.image):
            yield found
            return
        # a sparse student's eigenvalue is several times as large, and its m dies out past zero
        yield led(share / _SHORTER, until)
        yield led(share, until)

    def unless_stalled(self, map_: StateEvolution, x: Array) -> FixedPoint:
        """Iterate by Anderson as long as it makes progress."""
        return self.iterate(map_, x, Anderson(), until=_stalled(map_))

    def persistent(
        self, map_: StateEvolution, x: Array, until: Callable[[Array, Array], bool] = lambda point, image: False
    ) -> FixedPoint:
        """Iterate with all maps that are left: by Anderson where it makes progress, else by plain steps.

        Plain steps lead to a branch far from its start, as near a hard margin. Anderson's leave the domain on the way.
        `until` is asked after some plain steps whether no more is wanted.

        Returns
        -------
        FixedPoint
            With the smallest residual met if nothing converged; the last one where `until` has ended it.
        """
        steps, length = Plain(), float(_HALVED)
        best = self.unless_stalled(map_, x)
        while best.status is not Status.converged and not self.spent:
            plain = self.iterate(map_, x, steps, until=_after(round(length)))
            if until(plain.point, plain.image):
                return plain
            found, x, length = [best, plain], plain.point, _LONGER * length
            if plain.status is Status.iteration_limit and not self.spent:
                found.append(self.unless_stalled(map_, x))
            best = min(found, key=lambda one: (one.status is not Status.converged, one.residual))
            if plain.status is Status.left_domain:
                break
        return best

    def insisting(self, map_: StateEvolution, found: FixedPoint, until: Callable[[Array, Array], bool]) -> FixedPoint:
        """What was found, or if that has not converged what `persistent` finds from there; `until` is asked of both."""
        if found.status is Status.converged or self.spent or until(found.point, found.image):
            return found
        last = self.persistent(map_, found.point, until)
        return found if last.status is Status.left_domain else last

    def newton(self, map_: StateEvolution, x: Array, jacobian: Array) -> FixedPoint:
        """Newton from a good start; Anderson where that fails, unless every map searches all minima."""
        method, self.jacobian = Newton(jacobian.copy()), None
        found = self.iterate(map_, x, method, _OF_NEWTON)
        if found.status is Status.converged:
            self.jacobian = jacobian if method.learnt is None else method.learnt
            return found
        if map_.thorough or self.spent:
            return found
        if not map_.channel.rule.randomised:  # no node jumps: derivatives on the way lead where those of afar did not
            nearer = self.iterate(map_, found.point, Newton(), 2 * len(x) + 15)
            if nearer.status is Status.converged:
                return nearer
            found = min(found, nearer, key=lambda one: one.residual)
        retry = self.iterate(map_, x, Anderson(), 50)
        return retry if retry.residual < found.residual else found


def system_of(problem: Problem, settings: SolverSettings, callback: Callback = silent) -> System:
    """The system of a problem, on the threads of the settings."""
    return System.of(problem, settings.threads or available_cores(), callback)


def _after(maps: int) -> Callable[[Array, Array], bool]:
    """Whether so many maps have been made."""
    seen = count()
    return lambda point, image: next(seen) >= maps


def _stalled(map_: StateEvolution) -> Callable[[Array, Array], bool]:
    """Whether the residual has not halved within `_HALVED` maps."""
    goal, waited = np.inf, 0

    def stalled(point: Array, image: Array) -> bool:
        nonlocal goal, waited
        residual = float(np.max(np.abs(image - point) / map_.scales(point)))
        goal, waited = (residual / 2, 0) if residual <= goal else (goal, waited + 1)
        return waited >= _HALVED

    return stalled
