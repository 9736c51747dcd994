"""Weights that rest at zero: where W = 0 is a stationary point of the training objective, exactly and at every d.

The objective's slope at W = 0 is the loss's at h = 0 and the regulariser's. Where 0 lies in the loss's subdifferential
at h = 0 for almost every sample, and in the inside of the regulariser's at w = 0, the regulariser's kink outweighs all
small weights. Then W = 0 is a local minimum: no sample pulls at the weights, ``q_hat = m_hat = theta_hat = 0``, and no
source moves one, V = 0. A positive density, which a loss with a slope at h = 0 leaves under any strength, is another
matter.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnphase.arrays import Array
from attnphase.integration.refinement import COARSE_POINTS
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.local.values import Solution
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.fields import FieldLaw
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.proximal import Part, lower_factors
from attnphase.state_evolution.system import System

__all__ = ["at_zero", "rests"]

_SIZES = (0.1, 1.0, 10.0)  # of the teacher's fields at which the loss is looked at, in their standard deviations
_POINTS = 2**12  # that a search may use, more than it does
_ROUNDING = 1e-9  # of the loss's slope, in the problem's units


def at_zero(system: System, overlaps: Overlaps) -> Overlaps:
    """The overlaps of zero weights, with the trained parameters of others."""
    nothing = {name: 0 * getattr(overlaps, name) for name in ("q", "m", "theta")}
    return replace(overlaps, **nothing, V=system.prior.least_variance)


def rests(system: System, overlaps: Overlaps) -> bool:
    """Whether zero weights are a stationary point, with the trained parameters of these overlaps.

    They are where the local problem with a V next to none and its centre at zero has its minimum there, whatever the
    teacher's fields: next to a kink of the loss too, that is where zero lies in its subdifferential.
    """
    rows = system.prior.rows
    if rows is None or not rows.holds_zero:
        return False
    zero = at_zero(system, overlaps)
    channel = Channel(system, system.refinement(_POINTS).sobol(COARSE_POINTS)).at(zero)
    law = channel.law(zero)
    law = law._replace(**{name: 0 * getattr(law, name) for name in ("roots", "lifts", "means")})
    least = _ROUNDING * system.units.energy / system.units.fields
    whole = slice(0, channel.rule.size)
    for size in _SIZES:
        wider = law._replace(teacher_roots=size * law.teacher_roots)
        for c, variant in np.ndindex(len(channel.configurations), len(channel.signs)):
            slopes = _slopes(channel, wider, zero, Part(c, variant, whole))
            if not (np.abs(slopes) <= least).all():
                return False
    return True


def _slopes(channel: Channel, law: FieldLaw, zero: Overlaps, part: Part) -> Array:
    """Slopes of the loss at the minima of the local problems of some nodes, (N, L, r)."""
    _, omega, k = channel.nodes_of(law, part)
    k = k + channel.system.sample_law.means[part.configuration]
    count, fields = len(omega), omega.shape[1:]
    found = Solution(
        np.zeros((count, 2, *fields)), np.zeros((count, 2)), np.empty(count), np.empty_like(omega),
        np.empty(count, dtype=np.int64),
    )  # fmt: skip
    channel.proximal.search(part.configuration, omega, k, lower_factors(zero.V), Starts.COLD, found)
    return found.residuals
