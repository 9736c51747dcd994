"""How m and theta grow from zero: derivatives of the map at a point where both vanish by symmetry.

There the fields' centres and the teacher's are independent, and a small m or theta changes their joint law, not the
minimiser.  So the derivative of a mean is a mean too, of the same residuals with the law's own derivatives (Stein's
lemma, as for V_hat): it holds where the minimiser jumps, unlike differences of a sampled map and pointwise derivatives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from attnphase.arrays import Array
from attnphase.kernels.local.constants import Starts
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Conjugates, Overlaps

__all__ = ["Growth", "growth_at", "has_symmetric_point"]

_STEP = 1e-3  # of a conjugate, for the prior's derivative, relative to the root of q_hat
_DECOUPLED = 1e-9  # mean of tau pi that is rounding


@dataclass(frozen=True, eq=False)
class Growth:
    """By what the map multiplies a small order parameter.

    Attributes
    ----------
    factor : float
        The largest eigenvalue: above one the order parameter grows.
    rows : (S,) array
        Its displacement by every replicate at the same point; the squares add up to its variance. Empty where the rule
        has no replicates.
    """

    factor: float
    rows: Array


def has_symmetric_point(map_: StateEvolution) -> bool:
    """Whether m = theta = 0 is exact somewhere, and neither of the two brings forth the other to first order."""
    if not map_.system.reflects or map_.channel.labelled:
        return False
    spectrum = map_.system.spectrum
    count = spectrum.gamma.shape[0]
    return bool(np.abs(spectrum.second_moments[:, :count, count:]).max(initial=0.0) <= _DECOUPLED)


def growth_at(map_: StateEvolution, x: Array) -> dict[str, Growth]:
    """Growth of "m" and of "theta" at a point where they vanish.

    Parameters
    ----------
    map_ : StateEvolution
        Evaluated at ``x``, with replicates or without.
    x : (D,) array
        A fixed point with m = theta = 0.
    """
    assert map_.last is not None
    channel = _channel_derivatives(map_, map_.unpack(x))
    prior = _prior_derivatives(map_, map_.last.conjugates.mean())
    found = {}
    for name, per_replicate in channel.items():
        matrices = prior[name] @ per_replicate
        mean = matrices.mean(axis=0)
        values, right = np.linalg.eig(mean)
        leading = int(np.real(values).argmax())
        left = np.linalg.pinv(right)[leading]
        count = len(matrices)
        rows = np.einsum("i,sij,j->s", left, matrices - mean, right[:, leading]).real
        found[name] = Growth(
            float(np.real(values[leading])), rows / np.sqrt(count * (count - 1)) if count > 1 else rows[:0]
        )
    return found


def _channel_derivatives(map_: StateEvolution, overlaps: Overlaps) -> dict[str, Array]:
    """``dm_hat/dm`` and ``dtheta_hat/dtheta`` per replicate, (S, entries, entries)."""
    channel, rho = map_.channel, map_.system.spectrum.rho
    omega, k, _, floored = channel.fields(overlaps)
    orbit = channel.representatives(overlaps)
    points, _ = channel.proximal.minimise(omega, k, overlaps.V, orbit, Starts.COLD, None)
    g = points.residual
    sites, (columns, rank) = len(rho), overlaps.theta.shape[-2:]
    by_m = np.zeros((channel.rule.replicates, sites, columns, sites, columns))
    by_theta = np.zeros((channel.rule.replicates, sites, columns, rank, sites, columns, rank))
    share = channel.rule.weights / len(channel.rule.signs)
    precision, inverse_rho = np.linalg.inv(floored.q), np.linalg.inv(rho)
    for configuration, (of_token, probability) in enumerate(
        zip(channel.configurations, channel.probabilities, strict=True)
    ):
        weighted = g[configuration] * (probability * share)[:, None, None]
        # derivatives of the logarithm of the fields' law, by m and by theta
        w = np.einsum("lab,isnlb->isnla", precision[of_token], omega[configuration])
        z = np.einsum("lxy,isnly->isnlx", inverse_rho[of_token], k[configuration])
        of_m = np.einsum("isnla,isnkb->slakb", weighted, w)
        source = np.einsum("isnla,isnlc->isnlac", weighted, z)
        of_theta = np.einsum("isnlac,isnkb,isnkx->slackbx", source, w, z, optimize=True)
        tokens = range(len(of_token))
        for l, j in product(tokens, tokens):
            by_m[:, of_token[l], :, of_token[j]] += of_m[:, l, :, j]
            by_theta[:, of_token[l], :, :, of_token[j]] += of_theta[:, l, :, :, j]
        for l in tokens:
            own = np.einsum("sab,xc->sacbx", of_m[:, l, :, l], inverse_rho[of_token[l]])
            by_theta[:, of_token[l], :, :, of_token[l]] -= own
    shape = (channel.rule.replicates, sites * columns, sites * columns)
    return {
        "m": map_.alpha * by_m.reshape(shape),
        "theta": map_.alpha * by_theta.reshape(shape[0], shape[1] * rank, shape[2] * rank),
    }


def _prior_derivatives(map_: StateEvolution, conjugates: Conjugates) -> dict[str, Array]:
    """``dm/dm_hat`` and ``dtheta/dtheta_hat``, by central differences of a function that has no noise."""
    found = {}
    for name in ("m", "theta"):
        hat = getattr(conjugates, f"{name}_hat")
        step = _STEP * max(float(np.sqrt(np.abs(conjugates.q_hat).max())), 1e-12)
        columns = []
        for index in range(hat.size):
            unit = np.zeros(hat.size)
            unit[index] = step
            ends = []
            for side in (1.0, -1.0):
                moved = replace(conjugates, m_hat=0 * conjugates.m_hat, theta_hat=0 * conjugates.theta_hat)
                moved = replace(moved, **{f"{name}_hat": side * unit.reshape(hat.shape)})
                image = map_.image(moved, lift=True)
                if image is None:
                    raise ArithmeticError("the symmetric point lies at the edge of the domain")
                ends.append(getattr(image, name).ravel())
            columns.append((ends[0] - ends[1]) / (2 * step))
        found[name] = np.stack(columns, axis=1)
    return found
