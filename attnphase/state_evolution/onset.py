"""Where a branch leaves the uninformed point: by what factor one map enlarges a small m or theta there.

Differences of the sampled map do not tell. A node whose minimiser jumps is met by a step with a probability of the
step's size, so that the derivative at a point misses every jump, and a small step meets few. Here the nodes stay where
they are and their weights are differentiated instead: m and theta enter the law of the fields alone, and the derivative
of a Gaussian density is the density times a polynomial (Stein's lemma, as for V_hat). This sees all jumps, and its
replicates tell its error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from attnphase.arrays import Array
from attnphase.spectrum.measure import Spectrum
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.proximal import Part
from attnphase.state_evolution.sector import Element

__all__ = ["Growth", "growth_at", "growth_within", "has_symmetric_point", "is_decoupled"]

_STEP = 1e-3  # of a conjugate, for the prior's derivative, relative to the root of q_hat
_DECOUPLED = 1e-9  # mean of tau pi that is rounding, over the root mean squares of tau and of pi
# share of the teacher's variance, in units of the weights, below which a direction of q has no density to differentiate
_SMALLEST = 1e-4


@dataclass(frozen=True, eq=False)
class Growth:
    """By what the map multiplies a small order parameter: the leading eigenvalue of its derivative by it.

    Attributes
    ----------
    replicates : (S,) array
        To first order in what tells the replicates from their mean.
    """

    replicates: Array

    @property
    def factor(self) -> float:
        """Above one the order parameter grows, and an informed branch has left the uninformed point."""
        return float(self.replicates.mean())

    @property
    def rows(self) -> Array:
        """Its displacement by every replicate at the same point, (S,); the squares add up to its variance.

        Empty where the rule has no replicates. The point's own error is not part of it.
        """
        count = len(self.replicates)
        return (self.replicates - self.factor) / np.sqrt(count * (count - 1)) if count > 1 else self.replicates[:0]


def has_symmetric_point(map_: StateEvolution) -> bool:
    """Whether m = theta = 0 is exact somewhere, and neither of the two brings forth the other to first order."""
    if not map_.system.reflects or map_.channel.labelled:
        return False
    return is_decoupled(map_.system.spectrum)


def is_decoupled(spectrum: Spectrum) -> bool:
    """Whether encodings and the teacher are uncorrelated on every atom, in whatever units they are."""
    moments, count = spectrum.second_moments, spectrum.sites
    sizes = np.sqrt(np.einsum("aii->ai", moments).max(axis=0))
    crossed = np.abs(moments[:, :count, count:])
    return bool((crossed <= _DECOUPLED * np.outer(sizes[:count], sizes[count:])).all())


def growth_at(map_: StateEvolution, x: Array) -> dict[str, Growth]:
    """Growth of "m" alone and of "theta" alone, of any symmetry.

    Parameters
    ----------
    map_ : StateEvolution
        With replicates or without. Minima that are known at ``x`` are used; none are searched for again.
    x : (D,) array
        A fixed point with m = theta = 0, inside the domain.
    """
    derivatives, count = _derivatives(map_, x), map_.unpack(x).m.size
    parts = {"m": slice(None, count), "theta": slice(count, None)}
    return {name: _leading(derivatives[:, part, part]) for name, part in parts.items()}


def growth_within(map_: StateEvolution, x: Array) -> Growth | None:
    """Growth of m and theta together, in coordinates of the map's sector, in which one of them may differ from zero.

    Parameters
    ----------
    map_, x
        See `growth_at`.

    Returns
    -------
    Growth or None
        None where weights have a direction without any scatter, as Q - K of an untied student, or outside the domain.
    """
    overlaps = map_.channel.floored(map_.unpack(x))
    rho = map_.system.spectrum.rho
    weights = map_.system.units.weights
    sizes = np.linalg.eigvalsh(overlaps.q / np.outer(weights, weights))
    smallest = sizes.min() / np.trace(rho, axis1=-2, axis2=-1).mean()
    if smallest < _SMALLEST or map_(x) is None:
        return None
    odd, nothing = map_.sector.odd, map_.unpack(0 * x)
    units = np.stack([_signal(map_.unpack(unit)) for unit in np.eye(len(x))[odd]], axis=1)
    entries = (_with_signal(nothing, unit) for unit in np.eye(len(units)))
    onto = np.stack([map_.pack(entry)[odd] for entry in entries], axis=1)
    return _leading(onto @ _derivatives(map_, x) @ units)


def _leading(matrices: Array) -> Growth:
    """The leading eigenvalue of the mean of (S, E, E) matrices, and of every one to first order."""
    values, right = np.linalg.eig(matrices.mean(axis=0))
    leading = int(np.real(values).argmax())
    left = np.linalg.pinv(right)[leading]
    return Growth(np.real(np.einsum("i,sij,j->s", left, matrices, right[:, leading])))


def _signal(overlaps: Overlaps) -> Array:
    """Entries of m and of theta, (E,)."""
    return np.concatenate([overlaps.m.ravel(), overlaps.theta.ravel()])


def _with_signal(overlaps: Overlaps, signal: Array) -> Overlaps:
    count = overlaps.m.size
    m, theta = signal[:count].reshape(overlaps.m.shape), signal[count:].reshape(overlaps.theta.shape)
    return replace(overlaps, m=m, theta=theta)


def _derivatives(map_: StateEvolution, x: Array) -> Array:
    """Derivatives of the image's m and theta by those of ``x``, per replicate (S, E, E)."""
    if map_(x) is None:
        raise ArithmeticError("the uninformed point lies outside the domain")
    assert map_.last is not None
    prior, channel = _of_prior(map_, map_.last.conjugates.mean()), _of_channel(map_, map_.unpack(x))
    count = map_.unpack(x).m.size
    # of the channel's, neither of the two brings forth the other
    return np.concatenate([prior[:, :count] @ channel["m"], prior[:, count:] @ channel["theta"]], axis=2)


def _of_channel(map_: StateEvolution, overlaps: Overlaps) -> dict[str, Array]:
    """``dm_hat/dm`` and ``dtheta_hat/dtheta`` per replicate, (S, entries, entries)."""
    channel, kernels, rho = map_.channel, map_.system.kernels, map_.system.sample_law.rho
    rule, floored, law = channel.rule, channel.floored(overlaps), channel.law(overlaps)
    sites, columns, rank, length = len(rho), kernels.columns, kernels.teacher_rank, kernels.length
    orbit = [source for source, _ in channel.representatives(overlaps)]
    # of mirror images one is solved, and its moments of even order are those of all
    solved = sorted(set(orbit))
    assert map_.minima is not None
    fields = map_.minima.fields[:, 0].reshape(len(channel.configurations), len(solved), rule.size, length, columns)
    by_m = np.zeros((rule.replicates, sites, columns, sites, columns))
    by_theta = np.zeros((rule.replicates, sites, columns, rank, sites, columns, rank))
    precision, inverse_rho, inverse_V = (np.linalg.inv(each) for each in (floored.q, rho, overlaps.V))
    for (c, here), (place, sign) in product(enumerate(channel.configurations), enumerate(solved)):
        draws, omega, k = channel.nodes_of(law, Part(c, sign, slice(0, rule.size)))
        shape = (*rule.nodes.shape[:2], length)
        shares = draws.shares.reshape(shape[:2]) if len(draws.shares) else 1.0
        g = np.einsum("lij,nlj->nli", inverse_V[here], fields[c, place] - omega).reshape(*shape, columns)
        # derivatives of the logarithm of the fields' law, by m and by theta
        w = np.einsum("lab,nlb->nla", precision[here], omega).reshape(*shape, columns)
        z = np.einsum("lxy,nly->nlx", inverse_rho[here], k[:, :, :rank]).reshape(*shape, rank)
        share = channel.probabilities[c] * orbit.count(sign) / len(orbit)
        weighted = g * (share * shares * rule.of(c).weights)[..., None, None]
        of_m = np.einsum("snla,snkb->slakb", weighted, w)
        left, right = (field[..., None] * z[..., None, :] for field in (weighted, w))
        flat = left.reshape(*left.shape[:2], -1).mT @ right.reshape(*right.shape[:2], -1)
        of_theta = flat.reshape(-1, *left.shape[2:], *right.shape[2:])
        for l, j in product(range(length), repeat=2):
            by_m[:, here[l], :, here[j]] += of_m[:, l, :, j]
            by_theta[:, here[l], :, :, here[j]] += of_theta[:, l, :, :, j]
        for l in range(length):
            own = np.einsum("sab,xc->sacbx", of_m[:, l, :, l], inverse_rho[here[l]])
            by_theta[:, here[l], :, :, here[l]] -= own
    # nodes of which symmetries spare the mirror images
    by_m, by_theta = _symmetrized(map_.sector.group, by_m, by_theta)
    shape = (rule.replicates, sites * columns, sites * columns)
    return {
        "m": map_.alpha * by_m.reshape(shape),
        "theta": map_.alpha * by_theta.reshape(shape[0], shape[1] * rank, shape[2] * rank),
    }


def _symmetrized(group: Sequence[Element], by_m: Array, by_theta: Array) -> tuple[Array, Array]:
    """Means over the group of a sector of derivatives by m and by theta, (S, P, r, P, r) and (S, P, r, t, P, r, t)."""
    of_m, of_theta = 0 * by_m, 0 * by_theta
    for order, A, B, _ in group:
        of_m += np.einsum("ac,slcjd,bd->slajb", A, by_m[:, order][:, :, :, order], A)
        turned = by_theta[:, order][:, :, :, :, order]
        of_theta += np.einsum("ac,xu,slcujdv,bd,yv->slaxjby", A, B, turned, A, B, optimize=True)
    return of_m / len(group), of_theta / len(group)


def _of_prior(map_: StateEvolution, conjugates: Conjugates) -> Array:
    """Derivatives of m and theta by m_hat and theta_hat (E, E), by central differences of a function without noise."""
    step = _STEP * max(float(np.sqrt(np.abs(conjugates.q_hat).max())), np.finfo(float).tiny)
    count, size = conjugates.m_hat.size, conjugates.m_hat.size + conjugates.theta_hat.size
    steps = np.full(size, step)
    steps[count:] /= map_.system.units.tokens  # theta_hat multiplies tokens once more
    sides = np.concatenate([np.diag(steps), -np.diag(steps)])

    def of_sides(values: Array, like: Array) -> Array:
        """As replicates, behind the sites."""
        return values.reshape(len(sides), *like[:, 0].shape).swapaxes(0, 1)

    q_hat, V_hat = (np.repeat(x, len(sides), axis=1) for x in (conjugates.q_hat, conjugates.V_hat))
    m_hat, theta_hat = of_sides(sides[:, :count], conjugates.m_hat), of_sides(sides[:, count:], conjugates.theta_hat)
    own = replace(conjugates, q_hat=q_hat, V_hat=V_hat, m_hat=m_hat, theta_hat=theta_hat)
    images = map_.prior.of_replicates(own, lift=True)
    if images is None:
        raise ArithmeticError("the uninformed point lies at the edge of the domain")
    ends = np.concatenate([images.m.reshape(len(sides), -1), images.theta.reshape(len(sides), -1)], axis=1)
    return (ends[:size] - ends[size:]).T / (2 * steps)
