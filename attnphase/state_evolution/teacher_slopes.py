"""The mean derivative of the residual by the teacher's fields, which is ``theta_hat / alpha`` where these are Gaussian.

Three parts add up: the derivative where the residual is smooth, the jumps of the proximal point where two minima are
equally low, and the jumps of labels.  Differences of solved local problems give the first, so that none of the
kernel's derivatives is used.
"""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.local.values import Solution
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.proximal import Minima, Part, lower_factors
from attnphase.state_evolution.replicon import used_nodes

__all__ = ["teacher_slopes"]


def teacher_slopes(channel: Channel, overlaps: Overlaps, minima: Minima) -> tuple[Array, Array] | None:
    """``E dg_l/dk_l`` of every site, of every replicate; None where k is not Gaussian or labels jump unseen.

    Parameters
    ----------
    channel : Channel
        With all of its nodes and its jumps, see `StateEvolution.all_nodes`.
    overlaps : Overlaps
    minima : Minima
        Of its nodes there.

    Returns
    -------
    slopes : (P, S, r, t) array
    unresolved : (P, r, t) array
        What of the proximal point's jumps the rule does not resolve.
    """
    kernels, law, sample = channel.system.kernels, channel.law(overlaps), channel.system.sample_law
    rule, orbit = channel.rule, channel.representatives(overlaps)
    shape = len(overlaps.q), kernels.columns, kernels.teacher_rank
    slopes, unresolved = np.zeros((rule.replicates, *shape)), np.zeros(shape)
    jumping = sample.labels.has_labels or sample.labels.label_jumps
    if not sample.gaussian or (jumping and rule.of(0).jumps is None):
        return None
    chosen, factors = sorted({source for source, _ in orbit}), lower_factors(overlaps.V)
    # a copy of a node has the residual times its factor and, relative to the node's, a teacher's field of a sign
    parities = [factor * channel.signs[own][1] * channel.signs[source][1] for own, (source, factor) in enumerate(orbit)]
    for part in channel.proximal.parts(len(channel.configurations), chosen, rule.size):
        replicates, used, weights = used_nodes(channel, part)
        if not len(replicates):
            continue
        draws, omega, k = channel.nodes_of(law, part)
        start = (part.configuration * len(chosen) + chosen.index(part.variant)) * rule.size
        known = minima.fields[start + part.nodes.start : start + part.nodes.stop, 0][used]
        whole = k[used] + sample.means[part.configuration]
        shares = weights * (draws.shares[used] if len(draws.shares) else 1.0)
        shares *= sum(
            parity for parity, (source, _) in zip(parities, orbit, strict=True) if source == part.variant
        ) / len(orbit)
        of_part = _smooth(channel, part, np.ascontiguousarray(omega[used]), whole, known, factors)
        for s in range(rule.replicates):
            here = replicates == s
            means = np.einsum("n,nlij->lij", shares[here], of_part[here])
            np.add.at(slopes[s], channel.configurations[part.configuration], means)
    for configuration, tokens in enumerate(channel.configurations):
        if (jumps := rule.of(configuration).jumps) is not None:
            slopes[:, tokens] += channel.probabilities[configuration] * jumps.teacher
            unresolved[tokens] += channel.probabilities[configuration] * jumps.unresolved_teacher
    return channel.system.averaged(slopes.swapaxes(0, 1), by_teacher=True), unresolved


def _smooth(channel: Channel, part: Part, omega: Array, k: Array, known: Array, factors: Array) -> Array:
    """``dg_l/dk_l`` at nodes, (N, L, r, t): their minima are followed as one of the teacher's fields moves."""
    count = len(omega)
    slopes = np.empty((*omega.shape, channel.system.kernels.teacher_rank))

    def residuals_at(fields: Array) -> Array:
        # both minima alike: there is one to follow
        alike, energies = known[:, None].repeat(2, axis=1), np.zeros((count, 2))
        solution = Solution(alike, energies, np.empty(count), np.empty_like(omega), np.empty(count, np.int64))
        channel.proximal.search(part.configuration, omega, fields, factors, Starts.WARM, solution)
        return solution.residuals

    for (token, column), above, below, width in channel.proximal.teacher_steps(part.configuration, k):
        slopes[:, token, :, column] = (residuals_at(above) - residuals_at(below))[:, token] / width
    return slopes
