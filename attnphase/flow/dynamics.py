"""The right-hand side: how the state moves under an integration rule."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from attnphase.arrays import Array
from attnphase.flow.rows import Rows
from attnphase.flow.settings import FlowSettings
from attnphase.flow.slopes import SlopeChannel
from attnphase.integration.rules import Rule
from attnphase.state_evolution.overlaps import packed_scales
from attnphase.state_evolution.sector import Sector
from attnphase.state_evolution.system import System

__all__ = ["Dynamics"]


@dataclass(eq=False)
class Dynamics:
    """Rates under one rule.

    Attributes
    ----------
    system : System
    rows : Rows
    channel : SlopeChannel
    settings : FlowSettings
    sector : Sector or None
        Symmetries of the start, which sampled means obey up to their error only; None to ask for no symmetry.
    evaluations : int
        How many there were.
    """

    system: System
    rows: Rows
    channel: SlopeChannel
    settings: FlowSettings
    sector: Sector | None = None
    evaluations: int = 0
    _known: tuple[Array, Array, float] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, system: System, rule: Rule, settings: FlowSettings, sector: Sector | None = None) -> Dynamics:
        """Of a problem."""
        return cls(system, Rows.of(system), SlopeChannel(system, rule), settings, sector)

    @property
    def eta(self) -> float:
        """The rate: of gradient flow one, in its own time."""
        return self.settings.learning_rate or 1.0

    def rate(self, state: Array) -> Array:
        """How the state moves per unit of time."""
        return self._at(state)[0]

    def loss(self, state: Array) -> float:
        """Mean loss of a fresh sample."""
        return self._at(state)[1]

    def speed(self, state: Array) -> float:
        """The largest share of itself by which an overlap moves in a unit of ``eta tau``."""
        overlaps = self.rows.overlaps(state)[0]
        rates = self.rows.moved(state, self.rate(state) / self.eta)
        scales = packed_scales(overlaps.pack(), self.rows.columns, self.system.spectrum.rho)
        return float(np.abs(rates.pack() / scales).max())

    def _at(self, state: Array) -> tuple[Array, float]:
        if self._known is None or not np.array_equal(self._known[0], state):
            self.evaluations += 1
            conjugates, loss = self.channel.of_sample(self.rows.overlaps(state)[0])
            if self.sector is not None:
                conjugates = self.sector.symmetrized(conjugates)
            samples = np.inf if self.settings.is_flow else float(self.settings.batch)
            self._known = state.copy(), self.rows.rate(state, conjugates, self.eta, samples), loss
        return self._known[1], self._known[2]
