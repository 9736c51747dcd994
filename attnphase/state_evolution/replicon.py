"""The replicon: whether two copies of a solution that lie close together come closer, docs/stability.md."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from attnphase.arrays import Array
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.local.values import Nodes
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.errors import Displaced
from attnphase.state_evolution.overlaps import Conjugates, Overlaps, without_each
from attnphase.state_evolution.proximal import Minima, Part, lower_factors
from attnphase.state_evolution.sector import scales_of
from attnphase.state_evolution.spread import Spread
from attnphase.state_evolution.system import System

__all__ = ["mean_slopes", "replicon", "slope_sums", "used_nodes"]

_MOST = 2048  # points of each replicate that are used
_FEW = 64  # likewise, where only an error needs them
_NARROW = 0.1  # of the widest direction in which replicates' points scatter: narrower ones change nothing
_INSIDE = 0.1  # of a step, by which its ends must lie within the domain


def replicon(
    channel: Channel,
    alpha: float,
    overlaps: Overlaps,
    conjugates: Conjugates,
    minima: Minima,
    without: Displaced | None = None,
    squares: Array | None = None,
) -> Array:
    """Spectral radius of ``P -> C_hat -> P``, of all replicates together and of each.

    Equations (C2), (N1) of the stability page.

    ``C_hat_k = alpha E sum_l (dg_k/domega_l) P_l (dg_k/domega_l)^T``, and P is the covariance that the weights have
    apart whose sources have the noise ``C_hat`` apart.  The derivatives are those almost everywhere: the proximal
    point's jumps are missing.  Its square has a heavy tail (a proximal point is ``b^(1/3)`` at a cusp, where its two
    minima merge), of index 5/4: the mean exists, its variance does not, and replicates scatter accordingly.

    Parameters
    ----------
    channel : Channel
    alpha : float
    overlaps : Overlaps
        The fixed point.
    conjugates : Conjugates
        Its conjugates, with a replicate axis of length one.
    minima : Minima
        Of the channel's nodes there.
    without : Displaced, optional
        The fixed points of all replicates but one, for every one of them; by default the point itself.
    squares : array, optional
        The first of `slope_sums`, if it is known.

    Returns
    -------
    (1 + S,) array
        Replicates count by what is left without them: their mean and scatter are the jackknife's.
    """
    squares = alpha * (slope_sums(channel, overlaps, minima)[0] if squares is None else squares)
    rest = without_each(squares, 0)
    if without is not None:
        rest = rest + alpha * _changes(channel, overlaps, minima, without.overlaps)
    whole = _radii(channel.system, squares.mean(axis=0)[None], conjugates)[0]
    left = _radii(channel.system, rest, conjugates if without is None else without.conjugates)
    return np.append(whole, whole + (len(left) - 1) * (whole - left))


def _radii(system: System, squares: Array, conjugates: Conjugates) -> Array:
    """Spectral radii by squares of the residuals' derivatives (S, P, r, r, P, r, r), at one point or as many: (S,).

    NaN where the squares overflow.
    """
    size = int(np.prod(squares.shape[1:4]))
    products = Spread(system, conjugates).linear.reshape(-1, size, size) @ squares.reshape(-1, size, size)
    finite = np.isfinite(products)
    radii = np.abs(np.linalg.eigvals(np.where(finite, products, 0.0))).max(axis=-1)
    return np.where(finite.all(axis=(1, 2)), radii, np.nan)


def _changes(channel: Channel, overlaps: Overlaps, minima: Minima, points: Overlaps) -> Array:
    """What squares of all replicates change by at each of the points nearby, to first order, (N, P, r, r, P, r, r).

    By differences over a standard error along the few directions in which the points lie. Their own noise, which the
    heavy tail makes large, is taken off: what it adds to a sum of squares is known by the replicates' scatter.
    """
    rule, rho = channel.rule, channel.system.spectrum.rho
    scale = scales_of(overlaps, channel.system.units, rho)
    few = min(_FEW, rule.order)
    known = minima.part(rule.nodes.shape[:2], slice(few))
    coarse = replace(rule, nodes=rule.nodes[:, :few], weights=np.full(few, 1 / few), order=few)
    near = replace(channel, rule=coarse)
    shifts = (points.pack() - overlaps.pack()) / scale
    # squares are even in m and in theta: where these vanish they change nothing, and stay zero along every direction
    m, theta = (np.full_like(x, x.any()) for x in (overlaps.m, overlaps.theta))
    q, V, trained = map(np.ones_like, (overlaps.q, overlaps.V, overlaps.trained))
    moving = replace(overlaps, q=q, V=V, m=m, theta=theta, trained=trained).pack() > 0
    free = np.flatnonzero((np.abs(shifts).max(axis=0) > 0) & moving)
    directions = np.zeros((min(len(shifts), len(free)), shifts.shape[1]))
    _, widths, directions[:, free] = np.linalg.svd(shifts[:, free], full_matrices=False)
    sizes = overlaps.q.shape[0], overlaps.q.shape[-1], overlaps.theta.shape[-1]

    def moved(step: Array) -> Overlaps:
        return Overlaps.unpack(overlaps.pack() + step * scale, *sizes, overlaps.norms)

    def squares_at(there: Overlaps) -> Array:
        channel = near.at(there)
        return slope_sums(channel, there, channel.minima_at(there, Starts.WARM, known))[0]

    total = np.zeros((len(shifts), *overlaps.q.shape, *overlaps.q.shape))
    for width, direction in zip(widths, directions, strict=True):
        if width > _NARROW * widths[0]:
            step = width
            # near a fold an error reaches over the edge of the domain
            while not all(moved(side * step * direction).feasible(rho) for side in (1 + _INSIDE, -1 - _INSIDE)):
                step /= 2
            slopes = (squares_at(moved(step * direction)) - squares_at(moved(-step * direction))) / (2 * step)
            slope, noise = slopes.mean(axis=0), slopes.var(axis=0, ddof=1).sum() / len(slopes)
            seen = max(1 - noise / max((slope**2).sum(), np.finfo(float).tiny), 0.0)
            total += np.multiply.outer(shifts @ direction, np.sqrt(seen) * slope)
    return total


def mean_slopes(channel: Channel, slopes: Array) -> tuple[Array, Array]:
    """``-E dg_k/domega_k`` of every site, with those jumps of the proximal point that the rule has located.

    ``slopes`` is the second of `slope_sums`.

    Returns
    -------
    slopes : (P, S, r, r) array
        Per replicate.
    unresolved : (P, r, r) array
        What of the jumps the rule does not resolve.
    """
    slopes, unresolved = slopes.copy(), np.zeros(slopes.shape[1:])
    for configuration, tokens in enumerate(channel.configurations):
        if (jumps := channel.rule.of(configuration).jumps) is not None:
            slopes[:, tokens] -= channel.probabilities[configuration] * jumps.student
            unresolved[tokens] += channel.probabilities[configuration] * jumps.unresolved_student
    return slopes.swapaxes(0, 1), unresolved


def used_nodes(channel: Channel, part: Part) -> tuple[NDArray[np.int64], slice | NDArray[np.bool_], Array]:
    """Of a part's nodes those that means of derivatives use, with their replicates and weights.

    The first points of a Sobol sequence are one; of other rules all nodes are used.
    """
    rule, points = channel.rule, channel.rule.nodes.shape[1]
    few = min(points, _MOST) if rule.randomised else points
    replicates, place = np.divmod(np.arange(part.nodes.start, part.nodes.stop), points)
    used = slice(None) if few == points else place < few  # a mask copies what it selects
    weights = points / few * rule.of(part.configuration).weights[place[used]]
    return replicates[used], used, channel.probabilities[part.configuration] * weights


def slope_sums(channel: Channel, overlaps: Overlaps, minima: Minima) -> tuple[Array, Array]:
    """``E dg_k/domega_l (x) dg_k/domega_l`` for sites k and l, and ``-E dg_k/domega_k``, of every replicate.

    Returns
    -------
    (S, P, r, r, P, r, r) and (S, P, r, r) arrays
    """
    kernels, system, law = channel.system.kernels, channel.system, channel.law(overlaps)
    L, r, sites, rule = kernels.length, kernels.columns, len(overlaps.q), channel.rule
    (mixing, parameters), means = system.parameters, system.sample_law.means
    orbit = channel.representatives(overlaps)
    sources = [source for source, _ in orbit]
    chosen = sorted(set(sources))
    total = np.zeros((rule.replicates, sites, r, r, sites, r, r))
    answers = np.zeros((rule.replicates, sites, r, r))
    for part in channel.proximal.parts(len(channel.configurations), chosen, rule.size):
        tokens = channel.configurations[part.configuration]
        replicates, used, weights = used_nodes(channel, part)
        if not len(replicates):
            continue
        draws, _, k = channel.nodes_of(law, part)
        block = part.configuration * len(chosen) + chosen.index(part.variant)
        fields = minima.fields[block * rule.size + part.nodes.start : block * rule.size + part.nodes.stop, 0]
        weights *= sources.count(part.variant) / len(orbit)
        if len(draws.shares):
            weights *= draws.shares[used]
        labels, fields = k[used] + means[part.configuration], np.ascontiguousarray(fields[used])
        at = Nodes(fields, labels, np.empty(0), mixing, parameters, system.token_variances[part.configuration])
        hessians = np.empty((len(fields), L * r, L * r))
        kernels.slopes_at(at, np.empty(len(fields)), np.empty_like(fields), hessians)
        responses = _responses(hessians, overlaps.V[tokens])
        squares, slopes = np.zeros((rule.replicates, L, r, r, L, r, r)), np.zeros((rule.replicates, L, r, r))
        present, first = np.unique(replicates, return_index=True)
        of_nodes = np.einsum("nkalb,nkcld,n->nkaclbd", responses, responses, weights)
        squares[present] = np.add.reduceat(of_nodes, first)
        slopes[present] = np.add.reduceat(np.einsum("nkakb,n->nkab", responses, weights), first)
        for own, other in product(range(L), repeat=2):
            total[:, tokens[own], :, :, tokens[other]] += squares[:, own, :, :, other]
        for own in range(L):
            answers[:, tokens[own]] += slopes[:, own]
    return _averaged(system, total), system.averaged(answers.swapaxes(0, 1)).swapaxes(0, 1)


def _responses(hessians: Array, V: Array) -> Array:
    """``-dg_k/domega_l = (I + H V)^-1 H`` of nodes with Hessians H of the loss (N, L r, L r), as (N, L, r, L, r).

    With the factor C of V it is ``C^-T (I + B)^-1 B C^-1`` for ``B = C^T H C``, by elimination of all nodes at once.
    """
    L, r = V.shape[:2]
    factor: Any = block_diag(*lower_factors(V))

    def scaled(by: Any, matrices: Array) -> Array:
        for _ in range(2):
            matrices = (by.T @ matrices.reshape(L * r, -1)).reshape(L * r, L * r, -1).swapaxes(0, 1)
        return matrices

    right = scaled(factor, np.moveaxis(hessians, 0, -1)).copy()
    left = right + np.eye(L * r)[..., None]
    for c in range(L * r):  # positive definite where the energy has a minimum, so that any pivot will do
        shares = left[:, c] / left[c, c]
        shares[c] = 1 - 1 / left[c, c]
        left, right = (both - shares[:, None] * both[c] for both in (left, right))
    return np.moveaxis(scaled(np.linalg.inv(factor), right), -1, 0).reshape(-1, L, r, L, r)


def _averaged(system: System, squares: Array) -> Array:
    """As `System.averaged`, of what two sites have, (S, P, r, r, P, r, r)."""
    if not (group := system.averaged_over):
        return squares
    size = int(np.prod(squares.shape[1:4]))
    flat, mean = squares.reshape(-1, size, size), np.zeros((len(squares), size, size))
    for order, A, *_ in group:
        turn = np.kron(np.eye(len(order))[list(order)], np.kron(A, A))
        mean += turn @ flat @ turn.T / len(group)
    return mean.reshape(squares.shape)
