"""Extended systems: fixed points at a value of the field at which one thing more holds, solved for together.

States ``x_i``, each a fixed point of its own family of maps, share a value p of the field; one condition on them makes
as many equations as unknowns. A crossing is two states of equal loss, a passing of the baseline one state of a given
test error, an onset one state at which a small order parameter neither grows nor shrinks. A fold is the lowest or
highest p of a curve over the size of its order parameter, where nothing is singular.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize_scalar

from attnphase.arrays import Array
from attnphase.fixed_points.family import Family
from attnphase.fixed_points.threshold import Outcome, Threshold
from attnphase.fixed_points.weightless import map_at_rest
from attnphase.integration.refinement import Refinement
from attnphase.integration.rules import Rule
from attnphase.solvers.arclength import Corrected, corrected
from attnphase.solvers.differences import STEP, finite_difference_jacobian
from attnphase.state_evolution.branches import ERRORS
from attnphase.state_evolution.errors import SMOOTH_STEP
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.onset import growth_at
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.replicates import rows_against, rows_of

__all__ = [
    "Extended",
    "equal_losses",
    "equal_test_error",
    "fold",
    "held",
    "located",
    "loss_of_zero",
    "loss_without_weights",
    "no_growth",
]

Condition = Callable[[Sequence[StateEvolution], Sequence[Array]], Array]
"""What must vanish, by every replicate (S,), of maps just evaluated at points; their mean is that of all."""

FLAT = 1e-3  # share of itself to which the order parameter at a fold is known: alpha then is to its square
# of the error asked for of q, that crossings, and onsets and folds, may have where no chance is in the rule
OF_CROSSINGS, OF_ENDS = 0.1, 0.5


def equal_losses(maps: Sequence[StateEvolution], points: Sequence[Array]) -> Array:
    """Training loss of the first state less that of the second, relative to it; stationary in both states."""
    first, second = (_losses(map_, x) for map_, x in zip(maps, points, strict=True))
    return (first - second) / abs(float(second.mean()))


def _losses(map_: StateEvolution, x: Array) -> Array:
    """``-Phi`` with the energy of every replicate: to first order nothing else of it depends on them."""
    assert map_.last is not None
    energies = map_.alpha * map_.last.envelope
    return map_.free_entropy(x) + energies - energies.mean()


def loss_of_zero(map_: StateEvolution, start: Overlaps, tolerance: float) -> Array:
    """Training loss of zero weights by every replicate of a map, (S,); not numbers where they do not rest."""
    found = map_at_rest(map_.channel.system.whole.moving, map_.channel.rule, map_.alpha, start, tolerance)
    return np.full(map_.channel.rule.replicates, np.nan) if found is None else _losses(*found)


def loss_without_weights(tolerance: float) -> Condition:
    """Training loss of a state less that of zero weights, relative to that."""

    def condition(maps: Sequence[StateEvolution], points: Sequence[Array]) -> Array:
        ((map_, x),) = zip(maps, points, strict=True)
        own, zero = _losses(map_, x), loss_of_zero(map_, map_.unpack(x), tolerance)
        return (own - zero) / abs(float(zero.mean()))

    return condition


def equal_test_error(baseline: float) -> Condition:
    """The test error less a baseline, relative to that."""

    def condition(maps: Sequence[StateEvolution], points: Sequence[Array]) -> Array:
        ((map_, x),) = zip(maps, points, strict=True)
        found = map_.quantities(x, pooled=False)
        if found is None:
            raise ArithmeticError("the test error is not known at a point at the edge of the domain")
        return found["test_error"] / baseline - 1.0

    return condition


def no_growth(name: str) -> Condition:
    """By what share one map enlarges a small m or theta, at a point without both."""

    def condition(maps: Sequence[StateEvolution], points: Sequence[Array]) -> Array:
        ((map_, x),) = zip(maps, points, strict=True)
        return growth_at(map_, x)[name].replicates - 1.0

    return condition


@dataclass(frozen=True, eq=False)
class Extended:
    """``G(z) = 0`` for the states' coordinates and the field's value, in variables of order one; see `Implicit`.

    Attributes
    ----------
    families : sequence of Family
        Of all states, under one rule; the field in the same units.
    condition : callable
    share : float
        Of the error asked for of q, that the field's value may have relative to itself.
    """

    families: Sequence[Family]
    condition: Condition
    share: float = OF_ENDS

    @property
    def rule(self) -> Rule:
        """The rule of all families."""
        return self.families[0].rule

    def under(self, rule: Rule) -> Extended:
        """The same under another rule."""
        return replace(self, families=[replace(one, rule=rule, minima=None) for one in self.families])

    def places(self, z: Array) -> list[Array]:
        """The place of every state."""
        ends = np.cumsum([len(one.scale) for one in self.families])[:-1]
        return [np.append(part, z[-1]) for part in np.split(z[:-1], ends)]

    def threshold(self, z: Array, error: float) -> Threshold:
        """The value of the field, with an error that is in units of the place."""
        family, along = self.families[0], float(z[-1])
        return Threshold(family.value(along), family.unit(along) * error, rule=self.rule.name)

    def quick(self, place: Array) -> Array | None:
        """See `Implicit`."""
        return self._value(place, careful=False)

    def careful(self, place: Array) -> Array | None:
        """See `Implicit`."""
        return self._value(place, careful=True)

    def _value(self, z: Array, *, careful: bool) -> Array | None:
        residuals = []
        for family, place in zip(self.families, self.places(z), strict=True):
            residual = family.careful(place) if careful else family.quick(place)
            if residual is None:
                return None
            residuals.append(residual)
        return np.append(np.concatenate(residuals), float(self.condition(*self._maps(z)).mean()))

    def _maps(self, z: Array) -> tuple[list[StateEvolution], list[Array]]:
        """The maps at their points, just evaluated there."""
        maps, points = [], []
        for family, place in zip(self.families, self.places(z), strict=True):
            x, value = family.split(place)
            map_ = family.map_at(value)
            if map_ is None or map_(x) is None:
                raise ArithmeticError("a state of an extended system lies outside the domain")
            maps.append(map_)
            points.append(x)
        return maps, points

    def derivative(self, place: Array) -> Array | None:
        """See `Implicit`."""
        step = STEP if self.rule.randomised else SMOOTH_STEP
        try:
            return finite_difference_jacobian(self.quick, place, np.ones_like(place), step)
        except ArithmeticError:
            return None

    def table(self, z: Array) -> Array:
        """What every replicate makes of the images and the condition, (S, N), in variables of order one."""
        maps, points = self._maps(z)
        images = [map_.images() / family.scale for map_, family in zip(maps, self.families, strict=True)]
        return np.column_stack([*images, self.condition(maps, points)])

    def rough_share(self, z: Array) -> float:
        """The largest share of nodes of a state beside which something jumps."""
        return max(map_.rough_share for map_ in self._maps(z)[0])


def located(
    system: Extended, z: Array, rules: Refinement, tolerance: float, loose: float
) -> tuple[Array | None, Threshold]:
    """The root near a place, with as many nodes as its error needs.

    Parameters
    ----------
    system : Extended
    tolerance, loose : float
        On the residual, and of a place beside which it jumps over zero.

    Returns
    -------
    place : (N,) array or None
        None if it was not found.
    threshold : Threshold
    """
    jacobian = system.derivative(z)
    while True:
        found = None if jacobian is None else corrected(system, z, None, jacobian, tolerance)
        if found is None or found.residual > loose:
            return None, Threshold.absent(Outcome.unsettled, "it was not found again where it was seen")
        parts = displaced(system, found, rules)
        error = float(np.linalg.norm(parts))
        if (finer := _finer(system, found, rules, error, parts)) is None:
            return found.place, system.threshold(found.place, error)
        system, z, jacobian = system.under(finer), found.place, found.jacobian


def displaced(system: Extended, found: Corrected, rules: Refinement) -> Array:
    """By what the value of the field is displaced by each replicate, or by each rule that one without them meets."""
    rows = rows_between(system, found.place, rules)
    return np.linalg.lstsq(found.jacobian, -rows.T, rcond=None)[0][-1]


def rows_between(system: Extended, z: Array, rules: Refinement) -> Array:
    """Displacements of everything that `Extended.table` has, rows whose squares add up to the variance."""
    own, gauges = system.table(z), rules.gauges(system.rule, system.rough_share(z))
    if not gauges:
        return rows_of(own)
    others = [system.under(rule).table(z) for rule in gauges]
    return rows_against(own, others, [rule.randomised for rule in gauges])


def _finer(system: Extended, found: Corrected, rules: Refinement, error: float, parts: Array) -> Rule | None:
    """The next rule for a threshold of a relative error, to which rows contribute the parts; None if it is enough."""
    share = 1.0 if system.rule.randomised else system.share
    return rules.next(system.rule, error / share, system.rough_share(found.place), np.abs(parts) / share)


def held(family: Family, index: int, size: float) -> Condition:
    """A coordinate of a size, in units of its scale."""

    def condition(maps: Sequence[StateEvolution], points: Sequence[Array]) -> Array:
        ((map_, x),) = zip(maps, points, strict=True)
        return np.full(len(map_.images()), x[index] / family.scale[index] - size)

    return condition


def fold(
    curve: Family,
    places: Sequence[Array],
    jacobian: Array,
    index: int,
    rules: Refinement,
    limits: tuple[float, float],
) -> Threshold:
    """The end of a curve over its order parameter, unless the field does not turn back there beyond its error.

    Parameters
    ----------
    curve : Family
    places : sequence of (D + 1,) array
        In the order of travel, the second the outermost one; those behind it show whether the field turns back.
    jacobian : (D, D + 1) array
        Derivatives at the second one.
    index : int
        Of the coordinate that is the order parameter.
    limits : (float, float)
        Tolerance and looseness as of `located`.
    """
    place, side = places[1], float(np.sign(places[0][-1] - places[1][-1]))
    low, size, high = sorted(float(one[index]) for one in places[:3])
    system = Extended([curve], held(curve, index, size))
    matrix = np.vstack([jacobian, np.eye(len(place))[index]])
    unsettled = Threshold.absent(Outcome.unsettled, "the curve is not known well enough where it turns")
    while True:
        first = corrected(replace(system, condition=held(curve, index, size)), place, None, matrix, limits[0])
        if first.residual > limits[1]:
            return unsettled
        known = {size: first}

        def end_at(size: float, system: Extended = system, known: dict[float, Corrected] = known) -> float:
            near = min(known, key=lambda one: abs(one - size))
            here = replace(system, condition=held(curve, index, size))
            found = corrected(here, known[near].place, None, known[near].jacobian, limits[0])
            if found.residual > limits[1]:
                return np.inf
            known[size] = found
            return side * float(found.place[-1])

        minimize_scalar(end_at, bounds=(low, high), method="bounded", options={"xatol": FLAT * abs(size)})
        size = min(known, key=lambda one: side * float(known[one].place[-1]))
        found, system = known[size], replace(system, condition=held(curve, index, size))
        moved = displaced(system, found, rules)
        error = float(np.linalg.norm(moved))
        if (finer := _finer(system, found, rules, error, moved)) is not None:
            system, place, matrix = system.under(finer), found.place, found.jacobian
            low, high = sorted((0.9 * size, 1.1 * size))
            continue
        if any(_turns(system, index, side, behind, found, moved, rules, limits) for behind in places[2:]):
            return system.threshold(found.place, error)
        return Threshold.absent(Outcome.continuous, "the order parameter vanishes where the branch begins")


def _turns(
    system: Extended,
    index: int,
    side: float,
    place: Array,
    end: Corrected,
    moved: Array,
    rules: Refinement,
    limits: tuple[float, float],
) -> bool:
    """Whether a place of a curve lies on a side of its end by more than chance; the end moves by so much."""
    there = replace(system, condition=held(system.families[0], index, float(place[index])))
    found = corrected(there, place, None, end.jacobian, limits[0])
    if found.residual > limits[1]:
        return False
    noise = float(np.linalg.norm(displaced(there, found, rules) - moved))
    return side * float(found.place[-1] - end.place[-1]) > ERRORS * noise
