"""The maps of a problem along one of its fields, as one function of overlaps and field."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, log

import numpy as np

from attnphase.arrays import Array
from attnphase.errors import ProblemError
from attnphase.fixed_points.setting import Setting
from attnphase.fixed_points.settings import SolverSettings
from attnphase.integration.rules import Rule
from attnphase.problem.problem import Problem
from attnphase.processes.threads import available_cores
from attnphase.solvers.differences import STEP, finite_difference_jacobian
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.errors import SMOOTH_STEP, Response
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.proximal import Minima
from attnphase.state_evolution.replicates import flatten, packed_images
from attnphase.state_evolution.sector import Sector
from attnphase.state_evolution.system import System

__all__ = ["Family", "scale_of"]

_SMALLEST = 0.1  # of a start's coordinates, relative to the informed ones, for their scale


@dataclass(eq=False)
class Family:
    """``F(x) - x`` along a field under one rule, in variables of order one.

    A place is ``(x / scale, p / span)``, with coordinates x in a sector and the field's value p, or its logarithm.

    Attributes
    ----------
    setting : Setting
    sector : Sector
        Of symmetries that the problem has all along.
    rule : Rule
    settings : SolverSettings
    scale : (D,) array
    span : float
    minima : Minima or None
        Of the nodes at the last place.
    response : (D + E, D + 1) array or None
        Derivatives of the image and of everything measured there, by x and p, when `derivative` was last asked.
    measuring : bool
        Whether `derivative` is of everything measured too, and not of the image alone.
    logarithmic : bool
        Whether p is the logarithm of the field's value.
    maps : int
        Evaluations.
    """

    setting: Setting
    sector: Sector
    rule: Rule
    settings: SolverSettings
    scale: Array
    span: float
    minima: Minima | None = None
    response: Array | None = None
    measuring: bool = True
    logarithmic: bool = False
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
            system = System.of(here.problem, self.settings.threads or available_cores())
            channel = self._channels[here.problem] = Channel(system, self.rule)
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

        def both(at: Array) -> Array | None:
            x, value = self.split(at)
            if not self.measuring:
                residual = self.quick(at)
                return None if residual is None else residual + at[:-1]
            map_ = self.map_at(value)
            measured = None if map_ is None else map_.measure(x, pooled=True)
            self.maps += 1
            if map_ is None or measured is None:
                return None
            self.minima = map_.minima
            return np.concatenate([packed_images(measured, map_)[0] / self.scale, flatten(measured)[0]])

        try:
            step = STEP if self.rule.lines is None else SMOOTH_STEP
            self.response = finite_difference_jacobian(both, place, np.ones_like(place), step)
        except ArithmeticError:
            self.response = None
            return None
        size = len(self.scale)
        return self.response[:size] - np.eye(size, size + 1)

    def own_response(self) -> Response:
        """Derivatives at the place of the last `derivative`, by x, in the sector's own coordinates."""
        assert self.response is not None
        size = len(self.scale)
        by_x = self.response[:, :size] / self.scale
        return Response(self.scale[:, None] * by_x[:size], by_x[size:], self.rule.order)


def scale_of(x: Array, informed: Array, natural: Array) -> Array:
    """Sizes of coordinates along a curve: those of its start, but not too small against an informed start."""
    return np.maximum(np.maximum(np.abs(x), _SMALLEST * np.abs(informed)), 1e-3 * natural)
