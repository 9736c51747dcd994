"""The maps of a problem along one of its fields, as one function of overlaps and field."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log

import numpy as np

from attnphase.arrays import Array
from attnphase.errors import ProblemError
from attnphase.fixed_points.run import system_of
from attnphase.fixed_points.setting import Setting
from attnphase.fixed_points.settings import SolverSettings
from attnphase.integration.refinement import Refinement
from attnphase.integration.rules import Rule
from attnphase.problem.problem import Problem
from attnphase.solvers.arclength import corrected
from attnphase.solvers.differences import STEP, finite_difference_jacobian
from attnphase.state_evolution.assignments import informed_starts, nearest_start
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.errors import SMOOTH_STEP, Response, order_of
from attnphase.state_evolution.gauge import Gauge
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.proximal import Minima
from attnphase.state_evolution.replicates import flatten, packed_images
from attnphase.state_evolution.sector import Sector
from attnphase.state_evolution.symmetries import ProblemSymmetry

__all__ = [
    "Family",
    "family_of",
    "gauge_along",
    "informed_at",
    "jumps",
    "rule_of",
    "rules_of",
    "scale_of",
    "share_of_node",
    "started",
]

SMALLEST = 0.1  # of a start's coordinates, relative to the informed ones, for their scale
_ALONG_LINES = 1e-5  # residual beside which lines may jump: a hundred times what measured maps jump by
_JUMP = 20.0  # nodes that may change their minimum between two sides of a point
_MOST_NODES = 2**16  # placed by chance: with more a curve takes minutes


@dataclass(eq=False)
class Family:
    """``F(x) - x`` along a field under one rule, in variables of order one.

    A place is ``(x / scale, p / span)``, with coordinates x in a sector and the field's value p, or its logarithm.

    Attributes
    ----------
    setting : Setting
    sector : Sector
        Of symmetries that the problem has all along.
    rules : Refinement
        That the rule is one of.
    rule : Rule
    settings : SolverSettings
    scale : (D,) array
    span : float
    minima : Minima or None
        Of the nodes at the last place.
    logarithmic : bool
        Whether p is the logarithm of the field's value.
    at_rest : bool
        Whether the maps are those of zero weights, see `rest`.
    maps : int
        Evaluations.
    """

    setting: Setting
    sector: Sector
    rules: Refinement
    rule: Rule
    settings: SolverSettings
    scale: Array
    span: float
    minima: Minima | None = None
    logarithmic: bool = False
    at_rest: bool = False
    maps: int = 0
    _channels: dict[Problem, Channel] = field(default_factory=dict, init=False, repr=False)
    _last: tuple[float, StateEvolution] | None = field(default=None, init=False, repr=False)

    def place(self, overlaps: Overlaps, value: float) -> Array:
        """The place of overlaps and a value of the field."""
        return np.append(self.sector.pack(overlaps) / self.scale, self.along(value))

    def along(self, value: float) -> float:
        """The last entry of a place at a value of the field."""
        return (log(value) if self.logarithmic else value) / self.span

    def value(self, along: float) -> float:
        """The field's value at the last entry of a place."""
        return exp(along * self.span) if self.logarithmic else float(along * self.span)

    def unit(self, along: float) -> float:
        """The change of the field's value by one unit of the last entry of a place."""
        return self.span * (self.value(along) if self.logarithmic else 1.0)

    def split(self, place: Array) -> tuple[Array, float]:
        """Coordinates in the sector, and the field's value."""
        return place[:-1] * self.scale, self.value(float(place[-1]))

    def map_at(self, value: float) -> StateEvolution | None:
        """The map at a value of the field, with the minima known so far; None where the field cannot have it.

        The same one as long as the value is the same, so that a place just looked at is not evaluated again.
        """
        if self._last is not None and self._last[0] == value:
            return self._last[1]
        try:
            here = self.setting.at(value)
        except ProblemError:
            return None
        channel = self._channels.get(here.problem)
        if channel is None:
            if len(self._channels) > 8:
                self._channels.clear()
            system = system_of(here.problem, self.settings)
            channel = Channel(system.at_rest() if self.at_rest else system, self.rule)
            self._channels[here.problem] = channel
        map_ = StateEvolution(channel, here.alpha, self.sector)
        map_.adopt(self.minima)
        self._last = value, map_
        return map_

    def quick(self, place: Array) -> Array | None:
        """``(F(x) - x) / scale`` from the minima that are known; see `Implicit`."""
        return self._residual(place, refresh=False)

    def careful(self, place: Array) -> Array | None:
        """Likewise, with all minima searched again."""
        return self._residual(place, refresh=True)

    def _residual(self, place: Array, *, refresh: bool) -> Array | None:
        x, value = self.split(place)
        map_ = self.map_at(value)
        if map_ is None:
            return None
        # along lines that are thorough every look is careful
        exact = self.rule.lines is not None and self.rule.lines.thorough
        image = map_(x, refresh=refresh and not exact)
        self.maps += 1
        self.minima = map_.minima
        return None if image is None or map_.bottomless else (image - x) / self.scale

    def derivative(self, place: Array) -> Array | None:
        """``dG/d(x, p)`` by differences, (D, D + 1), in variables of order one; see `Implicit`."""

        def image(at: Array) -> Array | None:
            residual = self.quick(at)
            return None if residual is None else residual + at[:-1]

        found = self._differences(image, place)
        return None if found is None else found - np.eye(*found.shape)

    def response(self, place: Array) -> tuple[Array, Response] | None:
        """The same, and derivatives by x of the image and of everything measured, in the sector's own coordinates."""

        def joint(at: Array) -> Array | None:
            x, value = self.split(at)
            map_ = self.map_at(value)
            measured = None if map_ is None else map_.measure(x, pooled=True)
            self.maps += 1
            if map_ is None or measured is None:
                return None
            self.minima = map_.minima
            return np.concatenate([packed_images(measured, map_)[0] / self.scale, flatten(measured)[0]])

        found, size = self._differences(joint, place), len(self.scale)
        if found is None:
            return None
        by_x, step = found[:, :size] / self.scale, self._step
        inexact = step if self.rule.lines is not None else step**2
        order, x = order_of(self.rule), self.split(place)[0]
        jacobian = self.scale[:, None] * by_x[:size]
        response = Response(jacobian, by_x[size:], self.scale, order, point=x, inexact=inexact)
        return found[:size] - np.eye(size, size + 1), response

    def _differences(self, function: Callable[[Array], Array | None], place: Array) -> Array | None:
        """Derivatives of a function of a place; along smooth lines by what is known at the place."""
        (x, value), step = self.split(place), self._step
        if (map_ := self.map_at(value)) is None:
            return None
        smooth = self.rule.lines is not None
        if not smooth:  # see `errors.response_at`
            step *= map_.untold(x)
        try:
            centre = function(place) if smooth else None
            return finite_difference_jacobian(function, place, np.ones_like(place), step, centre)
        except ArithmeticError:
            return None

    @property
    def _step(self) -> float:
        """Of differences, relative to the scales."""
        return STEP if self.rule.lines is None else SMOOTH_STEP


def rules_of(problem: Problem, settings: SolverSettings) -> Refinement:
    """The rules of curves: those of a solve, with fewer nodes at most."""
    return system_of(problem, settings).refinement_of_solve(min(settings.max_nodes, _MOST_NODES))


def rule_of(rules: Refinement) -> Rule:
    """The first one; along lines with all minima searched from all starts, so that every look is careful."""
    rule = rules.first()
    return rule if rule.lines is None else replace(rule, lines=replace(rule.lines, thorough=True))


def jumps(rule: Rule) -> float:
    """Residual of a place beside which the map may jump over zero: a node that changes its minimum moves it."""
    return _ALONG_LINES if rule.lines is not None else min(_JUMP * share_of_node(rule), 0.02)


def share_of_node(rule: Rule) -> float:
    """The weight of a node on average."""
    return 1 / max(rule.size, 1)


def family_of(
    setting: Setting, branch: str, start: Overlaps, between: tuple[float, float], settings: SolverSettings
) -> Family:
    """The maps along a field under the first rule, in the sector of a branch and in units of a start on it.

    A place has the logarithm of a field that is positive all along, and else the field in units of half the range.
    """
    system, informed = system_of(setting.problem, settings), informed_at(setting, branch, start, settings)
    symmetries, gauge = _symmetries(setting, between, settings), gauge_along(setting, between, settings)
    sector = Sector.of(informed, symmetries, system.units, gauge)
    # at an end of the range the fields may have fewer dimensions: those without noise of the labels
    rules = rules_of(setting.inside(between).problem, settings)
    x = sector.pack(start)
    natural = sector.scales(0 * x, system.spectrum.rho) * 1e6
    scale, positive = scale_of(x, sector.pack(informed), natural), between[0] > 0
    span = 1.0 if positive else max((between[1] - between[0]) / 2, 1e-300)
    return Family(setting, sector, rules, rule_of(rules), settings, scale, span, logarithmic=positive)


def informed_at(setting: Setting, branch: str, start: Overlaps, settings: SolverSettings) -> Overlaps:
    """The branch's informed start next to some overlaps."""
    return nearest_start(informed_starts(system_of(setting.problem, settings), branch), start)


def gauge_along(setting: Setting, between: tuple[float, float], settings: SolverSettings) -> Gauge:
    """The gauge with the turns that the problem has all along: of ridges that vary it may have some at one value."""
    here, other = (system_of(one.problem, settings).gauge for one in (setting, setting.inside(between)))
    return here if len(here.turns) <= len(other.turns) else other


def _symmetries(setting: Setting, between: tuple[float, float], settings: SolverSettings) -> Sequence[ProblemSymmetry]:
    """Those that the problem has all along: at the start and at a value that nothing singles out."""
    here, other = (system_of(one.problem, settings).symmetries for one in (setting, setting.inside(between)))

    def same(a: ProblemSymmetry, b: ProblemSymmetry) -> bool:
        return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))

    return [one for one in here if any(same(one, two) for two in other)]


def started(family: Family, place: Array, tolerance: float) -> tuple[Array, float]:
    """The fixed point nearest to a place at the same value of the field, and its residual.

    Raises
    ------
    ArithmeticError
        It has no neighbourhood inside the domain.
    """
    if family.careful(place) is None or (jacobian := family.derivative(place)) is None:
        raise ArithmeticError("the start of a curve lies outside the domain of the map")
    found = corrected(family, place, np.eye(len(place))[-1], jacobian, tolerance)
    return found.place, found.residual


def scale_of(x: Array, informed: Array, natural: Array) -> Array:
    """Sizes of coordinates along a curve: those of its start, but not too small against an informed start."""
    return np.maximum(np.maximum(np.abs(x), SMALLEST * np.abs(informed)), 1e-3 * natural)
