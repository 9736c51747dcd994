"""What labels tell of fields of which nothing is known: the linear response that weak recovery follows from.

All fields of a sample are in units of their standard deviations: ``u`` is normal, and ``G = E[u u^T - I | Y]``.
Finitely many labels, and labels with noise, are summed over lattices of fields and of labels.  A channel with too many
lattice points draws labels.  One factor of a product ``G G`` is then that of the true field, whose mean given the label
is G: the product of two estimates from the same draws is too large by the variance of their errors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attnphase.arrays import Array
from attnphase.integration.rules import sobol
from attnphase.theories.bayes_optimal.lattices import axes_of

__all__ = ["Response", "of_cells", "of_labels", "of_labels_drawn", "of_noisy_labels", "of_preimages"]

_REACH = 8.0  # standard deviations, beyond which a normal number's fourth moment has 1e-11
_FIELD, _NOISE = 0.7, 0.5  # spacings, in deviations of a field and of the noise: errors of exp(-2 pi^2 / h^2)
_FINER = 1.0, 0.93, 0.87, 0.81  # replicates differ in spacing, so that their scatter holds what a spacing leaves
_MOST_WORK, _MOST_POINTS = 4e9, 2e6  # products of a replicate (a second or two), and points of a lattice
_MOST_FIELDS, _MOST_ENTRIES = 4, 3
_AT_ONCE = 2**22  # numbers of a block
_LINES, _CELLS = 1024, 512  # of the fields of labels with jumps
_HALVINGS = 40  # of a cell, until a jump's place is known to 1e-13
_CHANGE, _JUMP = 1e-9, 0.5  # of a probability: what is looked at, and the share of it that is left on no length
_LEAST = 1e-290  # probability of a label
_SAMPLES = 1024
_DRAWN, _DRAWN_REPLICATES = 2**16, 8  # fields of a factor, and their opposites


@dataclass(frozen=True, eq=False)
class Response:
    """Second moments of G over the labels, for each of S replicates.

    Attributes
    ----------
    operator : (S, F, F, F, F) array
        ``E G_ij G_kl``.
    first : (S,) array
        ``E |E[u | Y]|^2 / F``: zero if nothing is learned at first order.
    """

    operator: Array
    first: Array


def of_preimages(size: int, even: bool) -> Response:
    """Of labels that tell the fields up to a common sign, or exactly: moments of normal numbers by Wick's theorem."""
    one = np.eye(size)
    operator = np.einsum("ik,jl->ijkl", one, one) + np.einsum("il,jk->ijkl", one, one)
    return Response(np.stack([operator] * 2), np.full(2, 0.0 if even else 1.0))


def of_cells(chance: Array, mean: Array, second: Array) -> Response:
    """Of finitely many labels whose probabilities (Y,) and moments (Y, t), (Y, t, t) given each of them are known."""
    found = _products(chance, chance[:, None] * mean, chance[:, None, None] * second)
    return _joined([found] * 2)


def of_labels(probabilities: Callable[[Array], Array], root: Array, seed: int) -> Response:
    """Of finitely many labels of one or two fields.

    Along every line of a lattice the probability is a smooth function and jumps, whose moments are known functions.

    Parameters
    ----------
    probabilities : callable
        Of fields (..., t), those of the labels (..., Y).
    root : (t, t) array
        Of the fields' covariance.
    seed : int
    """
    found = []
    for number, finer in enumerate(_FINER):
        random, rank = np.random.default_rng([seed, number]), len(root)
        turn, lines, weights = np.eye(1), np.zeros(1), np.ones(1)
        if rank == 2:  # lines in a direction that jumps have by chance only
            angle = 2 * np.pi * random.random()
            turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            lines, weights = _lattice(2 * _REACH / _LINES * finer, random)
        u, of_u = _lattice(2 * _REACH / _CELLS * finer, random)

        def at(x: Array, y: Array, turn: Array = turn) -> Array:
            fields = np.stack([x, y][: len(turn)], axis=-1)
            return probabilities(fields @ turn.T @ root.T)

        along = _moments_of_lines(at, u, of_u, lines)  # (3, n, Y)
        chance, mean, second = weights @ along[0], [weights @ along[1]], [[weights @ along[2]]]
        if rank == 2:
            mean.append((weights * lines) @ along[0])
            crossed = (weights * lines) @ along[1]
            second = [[*second[0], crossed], [crossed, (weights * lines**2) @ along[0]]]
        means, seconds = np.einsum("ij,jy->yi", turn, mean), np.einsum("ia,aby,jb->yij", turn, second, turn)
        found.append(_products(chance, means, seconds))
    return _joined(found)


def of_labels_drawn(probabilities: Callable[[Array], Array], root: Array, seed: int) -> Response:
    """Of finitely many labels of any number of fields: by draws of the fields, half of them for each factor.

    Parameters
    ----------
    probabilities : callable
        Of fields (..., F), those of the labels (..., Y).
    root : (F, F) array
        Of the fields' covariance.
    seed : int
    """
    size, found = len(root), list[tuple[Array, float]]()
    i, j = np.triu_indices(size)
    for number in range(_DRAWN_REPLICATES):
        halves = []
        for half in (0, 1):
            u = sobol(size, 0, False, _DRAWN, 1, seed + 2 * number + half).nodes[0]
            u = np.concatenate([u, -u])
            shares = probabilities(u @ root.T) / len(u)
            G = (u[:, i] * u[:, j] - (i == j)).T @ shares  # times the probability of the label
            halves.append((shares.sum(axis=0), u.T @ shares, G))
        (one, mean, G), (other, other_mean, other_G) = halves
        chance = np.maximum((one + other) / 2, _LEAST)
        place = np.empty((size, size), np.int64)
        place[i, j] = place[j, i] = np.arange(len(i))
        both = (G / chance) @ other_G.T
        whole = ((both + both.T) / 2)[place[:, :, None, None], place]
        found.append((whole, float((mean * other_mean / chance).sum()) / size))
    return _joined(found)


def _lattice(step: float, random: np.random.Generator) -> tuple[Array, Array]:
    """Points and weights of a normal number."""
    points = np.arange(-_REACH, _REACH + step, step) + step * (random.random() - 0.5)
    weights = np.exp(-(points**2) / 2)
    return points, weights / weights.sum()


def _moments_of_lines(at: Callable[[Array, Array], Array], u: Array, weights: Array, lines: Array) -> Array:
    """``E P(y | u)``, that with ``u`` and that with ``u^2``, along lines, (3, n, Y)."""
    from scipy.special import ndtr

    smooth = at(*np.broadcast_arrays(u[:, None], lines[None]))
    powers = np.stack([weights, weights * u, weights * u**2])
    tails = np.cumsum(powers[:, ::-1], axis=1)[:, ::-1]
    cell, line = np.nonzero(np.abs(np.diff(smooth, axis=0)).max(axis=-1) > _CHANGE)
    place, jump = _jumps(at, u[cell], u[cell + 1], lines[line])
    density = np.exp(-(place**2) / 2) / np.sqrt(2 * np.pi)
    above = np.stack([ndtr(-place), density, place * density + ndtr(-place)])
    total = np.einsum("pu,uny->pny", powers, smooth)
    # what a lattice says of a jump gives way to what is true of it
    change = (above - tails[:, cell + 1])[..., None] * jump
    for p in range(3):
        np.add.at(total[p], line, change[p])
    return total


def _jumps(at: Callable[[Array, Array], Array], low: Array, high: Array, line: Array) -> tuple[Array, Array]:
    """Places of jumps in cells, and how far probabilities jump there: zero where they only change."""
    below, above = at(low, line), at(high, line)
    change = np.abs(above - below).max(axis=-1)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        between = at(middle, line)
        first = np.abs(between - below).max(axis=-1) >= np.abs(above - between).max(axis=-1)
        low, high = np.where(first, low, middle), np.where(first, middle, high)
        below, above = np.where(first[:, None], below, between), np.where(first[:, None], between, above)
    # a sign is zero on its jump itself, where a point may lie by chance
    below, above = at(2 * low - high, line), at(2 * high - low, line)
    jumps = np.abs(above - below).max(axis=-1) > _JUMP * change
    return (low + high) / 2, (above - below) * jumps[:, None]


def of_noisy_labels(target: Callable[[Array], Array], root: Array, noise: float, seed: int) -> Response | None:
    """Of labels with Gaussian noise, on lattices of the fields and of the labels; None where there are too many points.

    Parameters
    ----------
    target : callable
        Fields (B, F) to labels (B, M).
    root : (F, F) array
        Of the fields' covariance.
    noise : float
        Variance of a label's entry.
    seed : int
    """
    size, width = len(root), np.sqrt(noise)
    if size > _MOST_FIELDS:
        return None
    fields = 2 * np.random.default_rng(7).standard_normal((_SAMPLES, size))
    labels = target(fields @ root.T)
    middle = labels.mean(axis=0)
    axes = axes_of(labels - middle, noise)  # other entries are noise alone
    if len(axes) > _MOST_ENTRIES:
        return None

    def place(u: Array) -> Array:
        return (target(u @ root.T) - middle) @ axes.T

    moved = [(place(fields + 1e-5 * step) - place(fields)) / 1e-5 for step in np.eye(size)]
    steepest = float(np.quantile(np.linalg.norm(np.stack(moved, axis=1), ord=2, axis=(1, 2)), 0.9))
    spacing = min(_FIELD, _NOISE * width / steepest) * min(_FINER)
    points = (2 * _REACH / spacing) ** size
    cells = np.prod(np.ptp(place(fields), axis=0) / width + 2 * _REACH) / (_NOISE * min(_FINER)) ** len(axes)
    if points > _MOST_POINTS or points * cells * (1 + size) ** 2 > _MOST_WORK:
        return None
    found = []
    for number, finer in enumerate(_FINER):
        random = np.random.default_rng([seed, number])
        axis = [_lattice(spacing / min(_FINER) * finer, random) for _ in range(size)]
        u = np.stack(np.meshgrid(*(one[0] for one in axis), indexing="ij"), axis=-1).reshape(-1, size)
        weights = np.prod(np.meshgrid(*(one[1] for one in axis), indexing="ij"), axis=0).ravel()
        some = weights > 1e-16 * weights.max()
        found.append(_summed(u[some], weights[some], place(u[some]) / width, _NOISE * finer, random))
    return _joined(found)


def _summed(u: Array, weights: Array, labels: Array, step: float, random: np.random.Generator) -> tuple[Array, float]:
    """One replicate: sums over fields for every label of a lattice, which is in deviations of the noise."""
    first, last = labels.min(axis=0) - _REACH, labels.max(axis=0) + _REACH
    grids = [np.arange(a, b + step, step) + step * (random.random() - 0.5) for a, b in zip(first, last, strict=True)]
    size, cells = u.shape[1], [len(grid) for grid in grids]
    i, j = np.triu_indices(size)
    monomials = np.concatenate([np.ones((len(u), 1)), u, u[:, i] * u[:, j]], axis=1) * weights[:, None]
    rest = int(np.prod(cells[:-1]))
    sums = np.zeros((monomials.shape[1], rest, cells[-1]))
    block = max(_AT_ONCE // max(rest, cells[-1]), 1)
    for start in range(0, len(u), block):
        part = slice(start, start + block)
        shares = [np.exp(-((labels[part, a, None] - grid) ** 2) / 2) for a, grid in enumerate(grids)]
        before = np.ones((len(shares[-1]), 1))
        for one in shares[:-1]:
            before = (before[:, :, None] * one[:, None]).reshape(len(one), -1)
        for m, monomial in enumerate(monomials[part].T):
            sums[m] += (monomial[:, None] * before).T @ shares[-1]
    sums = sums.reshape(len(sums), -1) * (step / np.sqrt(2 * np.pi)) ** len(cells)
    second = np.empty((sums.shape[1], size, size))
    second[:, i, j] = second[:, j, i] = sums[1 + size :].T
    return _products(sums[0], sums[1 : 1 + size].T, second)


def _products(chance: Array, mean: Array, second: Array) -> tuple[Array, float]:
    """``E G_ij G_kl`` and the square of the first moments, from sums over fields for every label."""
    seen = chance > _LEAST
    chance, mean, second = chance[seen], mean[seen], second[seen]
    G = (second - chance[:, None, None] * np.eye(mean.shape[1])).reshape(len(chance), -1)
    size = mean.shape[1]
    operator = (G / chance[:, None]).T @ G
    return operator.reshape((size,) * 4), float((mean**2 / chance[:, None]).sum()) / size


def _joined(found: list[tuple[Array, float]]) -> Response:
    return Response(np.stack([one for one, _ in found]), np.array([first for _, first in found]))
