"""What labels without noise leave undetermined of the fields: a sign, or all but some fields that the others give."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.facts.labels import LabelFacts
from attnphase.facts.points import SCALES
from attnphase.theories.bayes_optimal.importance import Target

__all__ = ["leave_a_sign", "log_volume", "solve_fields", "solved_fields"]

_SAMPLES, _STARTS, _STEPS = 6, 48, 60
_REACHED = 2048  # fields of which all others with their labels are to be reached
_SETS, _OF_A_SIZE = 16, 200  # other fields, and solved ones of every size with them, at which folds are looked for
_RARE = 5.0  # deviations, beyond which one field in a million is
_DIFFERENCE = 1e-6  # of fields, in standard deviations
_INDEPENDENT = 1e-7  # singular value of the labels' derivatives, over the largest
_NEWTON_STEPS, _CONVERGED, _FARTHEST = 24, 1e-8, 1e8  # a step after that, which squares it, is rounding
_SOLVED, _APART = 1e-9, 1e-3  # of labels that are equal, over what they vary by, and of fields that are not


def leave_a_sign(target: Target, length: int, scale: Array) -> bool:
    """Whether the only fields with the labels of ``k`` are ``k`` and ``-k``, for one column.

    A search, and no proof: from many starts for a few random fields, by Levenberg and Marquardt.

    Parameters
    ----------
    target : Target
        Even labels.
    length : int
        Number L of tokens.
    scale : (L,) array
        Standard deviations of the fields.
    """
    random = np.random.default_rng(3)

    def of_units(u: Array) -> Array:
        return target((scale * u)[..., None])

    samples = random.standard_normal((_SAMPLES, length))
    size = _variation(of_units(samples))
    for u in samples:
        label = of_units(u[None])[0]
        found = _solutions(
            of_units, label, np.append(1.5 * random.standard_normal((_STARTS, length)), [u], axis=0), size
        )
        if np.linalg.svd(_slopes(of_units, u[None])[0], compute_uv=False)[-1] < _DIFFERENCE * size:
            return False
        distance = np.minimum(np.abs(found - u).max(axis=1), np.abs(found + u).max(axis=1))
        if not len(found) or (distance > _APART).any():
            return False
    return True


def solved_fields(facts: LabelFacts, length: int, rank: int) -> tuple[tuple[tuple[int, ...], ...], bool] | None:
    """Sets of fields that the label and the other fields give, exactly or up to one sign; None if there are none.

    A search, and no proof, as above.  As many fields are given as the label has independent entries.

    Parameters
    ----------
    facts : LabelFacts
        Of one function.
    length, rank : int

    Returns
    -------
    solved : tuple of tuples of int
        Their places among the F fields: all columns that can be given, or else one set of other fields.
    even : bool
        Whether the other sign of all fields of a set has the same label.
    """
    (functions,), scale = facts.cases, facts.laws.scales
    given = functions.values_and_slopes()

    def both(u: Array) -> tuple[Array, Array]:
        values, slopes = given(scale * u)
        return values, scale * slopes

    u = np.random.default_rng(3).standard_normal((2 * _SAMPLES, length * rank))
    sizes = np.linalg.svd(both(u)[1], compute_uv=False)
    known = (sizes > _INDEPENDENT * sizes[:, :1]).sum(axis=1)
    if np.ptp(known) or facts.ranks() != {int(known[0])} or not known[0]:
        return None
    size, count = length * rank, int(known[0])
    places = np.arange(size).reshape(length, rank)
    columns = combinations(reversed(range(rank)), count // length) if count % length == 0 else ()
    whole = [tuple(sorted(places[:, list(some)].ravel().tolist())) for some in columns]
    others = [one for one in combinations(range(size), count) if one not in whole]
    for candidates in (whole, *([one] for one in others)):
        for even in (True, False):
            found = [one for one in candidates if facts.even_in(one) == even and _are_given(both, u, list(one), even)]
            found = [one for one in found if _keep_a_side(both, one, even, size)]
            found = [one for one in found if _are_reached(both, one, found, even, size)]
            if found:
                return tuple(found), even
    return None


def _are_given(both: Callable[[Array], tuple[Array, Array]], u: Array, solved: list[int], even: bool) -> bool:
    """Whether all fields found that have the labels of ``u``, and the same or other fields besides, are one pair.

    Fields are in units of their standard deviations.
    """
    random = np.random.default_rng(4)
    size = _variation(both(u)[0])
    for number, one in enumerate(u):
        label, here = both(one)[0], one.copy()
        if number % 2:  # other fields besides, for which there may be none
            rest = [i for i in range(len(one)) if i not in solved]
            here[rest] = random.standard_normal(len(rest))

        def target(w: Array, here: Array = here) -> Array:
            fields = np.broadcast_to(here, (len(w), len(here))).copy()
            fields[:, solved] = w
            return both(fields)[0]

        starts = 1.5 * random.standard_normal((_STARTS, len(solved)))
        begun = here.copy()
        begun[solved] = one[solved]
        found = _solutions(target, label, np.append(starts, begun[None, solved], axis=0), size)
        reached, good = solve_fields(both, begun[None], label[None], solved)
        if number % 2 == 0 and not (good[0] and len(found)):
            return False
        if len(found) and not good[0]:
            return False
        apart = np.abs(found - reached[:, solved]).max(axis=1)
        if even:
            apart = np.minimum(apart, np.abs(found + reached[:, solved]).max(axis=1))
        if good[0] and (apart > _APART * max(1.0, float(np.abs(found).max(initial=0)))).any():
            return False
    return True


def _keep_a_side(both: Callable[[Array], tuple[Array, Array]], solved: tuple[int, ...], even: bool, size: int) -> bool:
    """Whether the determinant of the label's derivatives has one sign, at random fields of all sizes.

    Where it changes its sign, with the other fields the same, the label folds: two fields have the same label. An even
    label of one field has its fold at zero.
    """
    random, count = np.random.default_rng(6), len(solved)
    sizes = np.array([one for one in SCALES if one < _RARE])
    shape = (_SETS, len(sizes), _OF_A_SIZE)
    fields = np.broadcast_to(random.standard_normal((_SETS, 1, 1, size)), (*shape, size)).copy()
    fields[..., solved] = sizes[:, None, None] * random.standard_normal((*shape, count))
    with np.errstate(all="ignore"):
        slopes = both(fields.reshape(-1, size))[1][..., solved]
        if slopes.shape[-2] != count:  # entries that follow from others have no determinant
            return True
        determinant = np.linalg.det(slopes).reshape(shape)
    if even and count == 1:
        determinant = determinant * np.sign(fields[..., solved[0]])
    determinant = np.where(np.isfinite(determinant), determinant, 0.0)
    seen = np.abs(determinant) > _INDEPENDENT * np.abs(determinant).max(axis=2, keepdims=True)
    rises, falls = (np.any(seen & (sign * determinant > 0), axis=(1, 2)) for sign in (1, -1))
    return not (rises & falls).any()


def _are_reached(
    both: Callable[[Array], tuple[Array, Array]],
    solved: tuple[int, ...],
    charts: list[tuple[int, ...]],
    even: bool,
    size: int,
) -> bool:
    """Whether Newton's method leads from random fields to all others with their labels that any chart finds."""
    random = np.random.default_rng(5)
    k, others = random.standard_normal((2, _REACHED, size))
    for chart in charts:
        free = [i for i in range(size) if i not in chart]
        begun = k.copy()
        begun[:, free] = others[:, free]
        there, good = solve_fields(both, begun, both(k)[0], list(chart))
        start, aim = k[good], there[good]
        begun = aim.copy()
        begun[:, solved] = start[:, solved]
        reached, found = solve_fields(both, begun, both(start)[0], list(solved))
        apart = np.abs(reached - aim)
        if even:
            mirrored = reached.copy()
            mirrored[:, solved] *= -1
            apart = np.minimum(apart.max(axis=1), np.abs(mirrored - aim).max(axis=1))[:, None]
        if not found.all() or (apart > _APART * (1 + np.abs(aim))).any():
            return False
    return True


def solve_fields(
    both: Callable[[Array], tuple[Array, Array]], fields: Array, label: Array, solved: list[int]
) -> tuple[Array, NDArray[np.bool_]]:
    """Newton's method for the solved fields.

    Parameters
    ----------
    both : callable
        Of fields (..., F), the entries of the label (..., M) and their derivatives (..., M, F).
    fields : (N, F) array
        The others, and where to begin.
    label : (N, M) array
    solved : list of int

    Returns
    -------
    fields : (N, F) array
    found : (N,) array of bool
        Whether the method converged.
    """
    fields, farthest = fields.copy(), _FARTHEST * np.abs(fields).max(axis=1)
    found = np.zeros(len(fields), np.bool_)
    active = np.arange(len(fields))
    with np.errstate(all="ignore"):
        for _ in range(_NEWTON_STEPS):
            here = fields[active]
            values, slope = both(here)
            step = _newton_step(slope[..., solved], label[active] - values)
            here[:, solved] += step
            size, reach = np.abs(step).max(axis=1), np.abs(here[:, solved]).max(axis=1)
            good = np.isfinite(size) & (reach < farthest[active])
            done = good & (size <= _CONVERGED * reach)
            fields[active] = here
            found[active[done]] = True
            active = active[good & ~done]
            if not len(active):
                break
    return fields, found


def _newton_step(slope: Array, residual: Array) -> Array:
    """The step for slopes (N, M, n)."""
    entries, count = slope.shape[1:]
    if entries > count:  # entries that follow from others
        residual, slope = (slope.mT @ residual[..., None])[..., 0], slope.mT @ slope
    if count == 1:
        return residual / slope[..., 0]
    if count == 2:
        (a, b), (c, d) = np.moveaxis(slope, 0, -1)
        x, y = residual.T
        return np.stack([d * x - b * y, a * y - c * x], axis=1) / (a * d - b * c)[:, None]
    singular = ~np.isfinite(np.linalg.slogdet(slope)[1])
    slope = np.where(singular[:, None, None], np.eye(count), slope)
    return np.asarray(np.linalg.solve(slope, residual[..., None])[..., 0], float)


def log_volume(slope: Array) -> Array:
    """Logarithm of the volume in labels to a volume of fields, of slopes (..., M, n)."""
    entries, count = slope.shape[-2:]
    with np.errstate(divide="ignore"):
        if entries > count:
            return np.linalg.slogdet(slope.mT @ slope)[1] / 2
        if count == 1:
            return np.log(np.abs(slope[..., 0, 0]))
        if count == 2:
            return np.log(np.abs(slope[..., 0, 0] * slope[..., 1, 1] - slope[..., 0, 1] * slope[..., 1, 0]))
        return np.linalg.slogdet(slope)[1]


def _variation(labels: Array) -> float:
    """By what labels (N, M) vary: half of them are nearer to the middle one."""
    apart = np.abs(labels - np.median(labels, axis=0))
    return float(np.median(apart.max(axis=1)))


def _slopes(target: Callable[[Array], Array], u: Array) -> Array:
    """Derivatives of labels, (B, L, M)."""
    moved = _DIFFERENCE * np.eye(u.shape[1])
    both = [target((u[:, None] + sign * moved).reshape(-1, u.shape[1])) for sign in (1, -1)]
    return ((both[0] - both[1]) / (2 * _DIFFERENCE)).reshape(len(u), u.shape[1], -1)


def _solutions(target: Callable[[Array], Array], label: Array, u: Array, size: float) -> Array:
    """Fields with a label, of those that the starts lead to, for labels that vary by a size."""
    damping = np.full(len(u), 1e-2)
    misfit = (label - target(u)) / size
    cost = (misfit**2).sum(axis=1)
    for _ in range(_STEPS):
        slope = _slopes(target, u) / size
        normal = slope @ slope.mT
        mean = np.trace(normal, axis1=1, axis2=2) / u.shape[1] + 1e-30
        normal = normal + (damping * mean)[:, None, None] * np.eye(u.shape[1])
        trial = u + np.linalg.solve(normal, slope @ misfit[..., None])[..., 0]
        new_misfit = (label - target(trial)) / size
        new_cost = (new_misfit**2).sum(axis=1)
        better = new_cost < cost
        u, misfit = np.where(better[:, None], trial, u), np.where(better[:, None], new_misfit, misfit)
        cost = np.where(better, new_cost, cost)
        damping = np.where(better, damping / 5, np.minimum(damping * 5, 1e8))
        damping = np.maximum(damping, 1e-12)
    return u[cost < _SOLVED**2 * max(1.0, float(((label / size) ** 2).sum()))]
