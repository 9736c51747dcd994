"""The right-hand side: how the state moves under an integration rule."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from attnphase.arrays import Array
from attnphase.integration.rules import Rule
from attnphase.problem.units import Units, power_of_two
from attnphase.state_evolution.overlaps import VANISHING, Conjugates
from attnphase.state_evolution.sector import Sector
from attnphase.state_evolution.system import System
from attnphase.theories.sgd_flow.noise import has_quadratic_noise
from attnphase.theories.sgd_flow.rows import Rows
from attnphase.theories.sgd_flow.settings import FlowSettings
from attnphase.theories.sgd_flow.slopes import SlopeChannel

__all__ = ["Dynamics"]

_SMALL = 1e-4  # of an overlap over the largest that it can be
_FOUND = 1e-3  # likewise, where it is there to stay
_LEAST = 1e-3  # of the weights over their natural size: smaller ones are measured by this
_LARGE = 10.0  # of the weights' square over the teacher's, where it is asked whether the noise has carried them off
_FEW = 1 / 16  # share of samples with a gradient, below which it has


class _Known(NamedTuple):
    """The last state that was asked for: how it moves, and every replicate's conjugates and mean loss without noise."""

    state: Array
    rate: Array
    conjugates: Conjugates
    losses: Array


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
    _known: _Known | None = field(default=None, repr=False)
    _known_loss: tuple[Array, Array] | None = field(default=None, repr=False)

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
        return self._at(state).rate

    def loss(self, state: Array) -> float:
        """Mean loss of a fresh sample, with the noise of its labels.

        Equation (F6) of the dynamics page.
        """
        return float(self._clean_losses(state).mean()) + self._noise_loss

    def test_error(self, state: Array) -> float:
        """Against labels without noise."""
        return float(self._test_errors(state).mean())

    def numbers(self, state: Array) -> Array:
        """Mean loss of a fresh sample, and test error, (2,)."""
        return np.array([self.loss(state), self.test_error(state)])

    def of_replicates(self, state: Array) -> tuple[Array, Array]:
        """Rates (S, D) and `numbers` (S, 2) under every replicate of the rule by itself."""
        known = self._at(state)
        rates = np.stack([self._moved(state, known.conjugates.replicate(s)) for s in range(len(known.losses))])
        return rates, np.stack([known.losses + self._noise_loss, self._test_errors(state)], axis=-1)

    def pace(self, state: Array) -> float:
        """The state's own unit of rates, per unit of ``eta tau``: the ridge, and the mean curvature of the loss.

        These are the coefficients of the weights in their rate. So it has the unit of a rate in any unit of losses,
        tokens and weights, and does not vanish where the rates do.
        """
        curvatures = np.linalg.norm(self._at(state).conjugates.mean().V_hat[:, 0], axis=(-2, -1))
        return float(np.max(self.rows.ridge) + self._token_squares @ curvatures)

    def clock(self, state: Array) -> float:
        """What time is multiplied by where it is integrated, about `pace` per unit of time.

        A power of two, so that this changes no digit of a time.
        """
        pace = self.eta * (self.pace(state) or Units.of(self.system.problem).curvature)
        return float(power_of_two(np.array(pace)))

    def speed(self, state: Array) -> float:
        """The largest share of itself by which an overlap moves in the state's own unit of time, one over `pace`.

        What is small and shrinks does not count: it only takes its time.
        """
        overlaps, norm = self.rows.overlaps(state)
        clock = self.clock(state)  # so that a step of a unit of time is about as large as the state
        rates = self.rows.moved(state, self.rate(state) / clock)
        limits, least, largest = self._limits(norm), self._natural_sizes, 0.0
        for name, size in least.items():
            value, rate = getattr(overlaps, name), getattr(rates, name)
            here = float(np.abs(value).max())
            if here >= _SMALL * limits[name] or (value * rate).sum() > 0:
                largest = max(largest, float(np.abs(rate).max()) / max(here, VANISHING * size))
        return largest * clock / (self.eta * self.pace(state)) if largest else 0.0

    def overlap_sizes(self, state: Array) -> dict[str, float]:
        """What differences of q, m and theta are relative to: q itself, and the most that m and theta can be."""
        overlaps, norm = self.rows.overlaps(state)
        least = _LEAST**2 * self._natural_sizes["q"]
        return self._limits(norm) | {"q": max(float(np.abs(overlaps.q).max()), least)}

    def sizes(self, state: Array) -> Array:
        """Natural sizes of a state's numbers, (D,): those of the columns' means, and of their covariances."""
        size = np.maximum(self.rows.column_sizes(state), _LEAST * Units.of(self.system.problem).weights)
        means = np.repeat(size[None, :, None], self.rows.points, axis=0)
        atoms = len(self.rows.weights) - self.rows.points
        return self.rows.pack(means, np.repeat(np.outer(size, size)[None], atoms, axis=0))

    @cached_property
    def _token_squares(self) -> Array:
        """The most that the mean square of the tokens is along a direction, site by site, means and encodings too."""
        spectrum = self.system.spectrum
        means = np.einsum("a,aii->i", spectrum.weights, spectrum.second_moments)[: spectrum.sites]
        squares: Array = spectrum.gamma.max(axis=1) + means
        return squares

    @cached_property
    def natural_norm(self) -> float:
        """The square ``|W|^2 / d`` of weights that match the teacher's."""
        spectrum = self.system.spectrum
        teacher = np.einsum("a,aii->i", spectrum.weights, spectrum.second_moments)[spectrum.sites :].sum()
        return float(teacher * Units.of(self.system.problem).matched.max() ** 2)

    @cached_property
    def _natural_sizes(self) -> dict[str, float]:
        """Of q, m and theta, of such weights without encodings."""
        spectrum = self.system.spectrum
        variance = float(spectrum.site_variances.max())
        teacher = np.einsum("a,aii->i", spectrum.weights, spectrum.second_moments)[spectrum.sites :].max()
        size = math.sqrt(self.natural_norm)
        return {
            "q": variance * self.natural_norm,
            "m": math.sqrt(variance) * size,
            "theta": variance * math.sqrt(teacher) * size,
        }

    def _limits(self, norm: float) -> dict[str, float]:
        """The largest values that overlaps of weights of this norm can have, q's by a natural norm."""
        spectrum = self.system.spectrum
        squares = np.einsum("a,aii->i", spectrum.weights, spectrum.second_moments)
        positions, teacher = squares[: spectrum.sites].max(), squares[spectrum.sites :].max()
        variance = float(spectrum.site_variances.max())
        size = math.sqrt(max(norm, _LEAST**2 * self.natural_norm))
        sizes = {"m": size * math.sqrt(positions), "theta": size * math.sqrt(teacher) * variance}
        return {"q": variance * max(norm, self.natural_norm)} | sizes

    def is_lost(self, state: Array) -> bool:
        """Whether the noise of SGD has made the weights so large that few samples have a gradient at all.

        Between attention that is saturated the loss is flat: what is left comes from a share of samples that falls as
        the weights grow, and no rule has nodes enough for it.
        """
        if self.settings.is_flow:
            return False
        overlaps, norm = self.rows.overlaps(self.rows.clipped(state))
        return norm > _LARGE * self.natural_norm and self.channel.participation(overlaps) < _FEW

    def has_found(self, state: Array) -> tuple[float, float, bool, bool]:
        """Sizes of m and theta, and whether each is more than what rounding or a shrinking rest leaves."""
        overlaps, norm = self.rows.overlaps(state)
        limits = self._limits(norm)
        sizes = float(np.abs(overlaps.m).max()), float(np.abs(overlaps.theta).max())
        return (*sizes, sizes[0] > _FOUND * limits["m"], sizes[1] > _FOUND * limits["theta"])

    @cached_property
    def _noise_loss(self) -> float:
        """What the noise adds to the loss of every student: as that of weights that are zero."""
        if not has_quadratic_noise(self.system.problem):
            return 0.0
        rows = self.rows
        signal = np.zeros((rows.columns, len(rows.tau) + rows.pi.shape[1]))
        nothing = rows.start(signal, np.zeros((rows.columns, rows.columns)))
        return self.channel.noise_gains(rows.overlaps(nothing)[0], of_loss=True)[1]

    def _test_errors(self, state: Array) -> Array:
        """Of every replicate."""
        problem, losses = self.system.problem, self._clean_losses(state)
        if problem.teacher.noise and not has_quadratic_noise(problem):
            losses = self.channel.loss_at_omega(self.rows.overlaps(self.rows.clipped(state))[0])
        return 2 * losses / problem.tokens.length

    def _clean_losses(self, state: Array) -> Array:
        """Mean losses without noise that is integrated in closed form; not the rates, five times as dear."""
        for known in (self._known, self._known_loss):
            if known is not None and np.array_equal(known[0], state):
                return known[-1]
        overlaps = self.rows.overlaps(self.rows.clipped(state))[0]
        self._known_loss = state.copy(), self.channel.loss_at_omega(overlaps, clean=False)
        return self._known_loss[1]

    def _at(self, state: Array) -> _Known:
        if self._known is None or not np.array_equal(self._known.state, state):
            self.evaluations += 1
            # a search for roots may leave what is a covariance: the fields are those at its edge
            overlaps = self.rows.overlaps(self.rows.clipped(state))[0]
            conjugates, losses = self.channel.of_samples(overlaps)
            if not self.settings.is_flow and has_quadratic_noise(self.system.problem):
                conjugates = replace(conjugates, q_hat=conjugates.q_hat + self.channel.noise_gains(overlaps)[0])
            self._known = _Known(state.copy(), self._moved(state, conjugates.mean()), conjugates, losses)
        return self._known

    def _moved(self, state: Array, conjugates: Conjugates) -> Array:
        """How conjugates, with an axis for one replicate, move the state."""
        if self.sector is not None:
            conjugates = self.sector.symmetrized(conjugates)
        samples = np.inf if self.settings.is_flow else float(self.settings.batch)
        return self.rows.rate(state, conjugates, self.eta, samples)
