"""Changes of the student's columns along which a loss has no slope, from its gradients in many digits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from attnphase.arrays import Array
from attnphase.facts.losses import Loss, SampleLoss, norm_matrices, sample_points
from attnphase.facts.questions import Asked
from attnphase.lazy import loaded_on_use

with loaded_on_use(__name__):
    import mpmath
    from scipy import linalg

    from derivations.algebra import digits

__all__ = ["free_changes"]

_FAR = 1e-6  # share of the largest singular value that is far above the rounding of double precision
_SMALL = 1e-6  # share of the largest slope, below which double precision may have rounding alone
_EACH = 2  # points of every size: there are at least seven sizes
_SPARE = 10  # equations more than unknowns
_STEP_DIGITS = 3  # a difference by steps of 10^-n in 3 n digits is exact to n digits and more


@lru_cache(maxsize=64)
def free_changes(loss: Loss, clusters: tuple[tuple[float, ...], ...] = ((),)) -> Array:
    """A basis (n, r, r) of the matrices X for which ``loss(h exp(X)^T)`` is ``loss(h)``, for all of some clusters.

    Of a loss that takes Q, which changes with the columns, likewise. The basis is reduced: each matrix has an entry of
    one where the others have zero.

    Gradients of double precision only show that there is none. The others are found by elimination in 40 digits, in
    columns of their own sizes, of equations that are each divided by their largest entry: so that neither the loss's
    unit nor a constant nor its size far out matters.
    """
    r = loss.kernels.columns
    sizes = np.array(loss.sizes.student)
    unit = (sizes[:, None] / sizes).ravel()
    asked = [*(_asked(loss, numbers) for numbers in clusters), *loss.witnesses]
    rough = np.concatenate([_in_double(loss, one) for one in asked]) * unit
    rough = rough[np.isfinite(rough).all(axis=1)]
    rough = rough[np.abs(rough).max(axis=1) > _SMALL * np.abs(rough).max(initial=0.0)]
    rough = _scaled(rough[rough.any(axis=1)])
    if len(rough) and np.linalg.svd(rough, compute_uv=False)[-1] > _FAR * np.sqrt(len(rough)) and len(rough) >= r * r:
        return np.zeros((0, r, r))
    with mpmath.workdps(digits.DIGITS):
        rows = _settled(lambda: np.concatenate([_in_digits(loss, one) for one in asked]))
        found = digits.null_space(rows * digits.exact(unit))
    if len(found) == r * r:  # no slope anywhere: it has kinks or steps alone, which tell nothing
        return np.zeros((0, r, r))
    changes = np.array((found * digits.exact(unit)).tolist(), dtype=float).reshape(-1, r, r)
    # where a loss jumps, its slopes do not tell that it changes
    kept = [all(_unchanged(loss, one, change) for one in asked) for change in changes]
    return changes[kept]


def _unchanged(loss: Loss, asked: Asked, change: Array) -> bool:
    """Whether values show no difference after changes by ``exp(X)`` and ``exp(-X)``."""
    same = np.eye(loss.kernels.teacher_rank), np.eye(len(loss.trained))
    return len(asked.possible([(linalg.expm(side * change), *same) for side in (1, -1)], loss.image)) == 2


def _asked(loss: Loss, numbers: Sequence[float]) -> Asked:
    question, r = loss.with_clusters(numbers), loss.kernels.columns
    each = max(_EACH, -(-(r * r + _SPARE) // 7))
    return Asked.of(question, sample_points(question, loss.sizes, loss.norms, each))


def _settled(slopes: Callable[[], Any]) -> Any:
    """Those rows (N, F) of slopes that twice as many digits leave as they are: others are rounding.

    Where a loss has saturated far out, its slopes are small differences of large numbers.
    """
    rows = slopes()
    with mpmath.workdps(2 * digits.DIGITS):
        found = slopes()
        kept = [max(map(abs, a - b)) <= digits.SAME * max(map(abs, b)) for a, b in zip(rows, found, strict=True)]
    return found[kept]


def _scaled(rows: Array) -> Array:
    found: Array = rows / np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    return found


def _in_double(loss: Loss, asked: Asked) -> Array:
    """The slopes along all changes at all points, (N, r^2); of a loss that takes Q none are rejected."""
    question, points = asked.question, asked.points
    r = loss.kernels.columns
    if loss.norms:
        return np.zeros((0, r * r))
    assert isinstance(question, SampleLoss)
    h, found = question.split(points.values)[0], np.empty((len(points.values), r * r))
    with np.errstate(all="ignore"):
        for here, fields, labels, numbers in question.parts(points.values):
            slopes = question.printed.gradients(fields, labels, question.mixing, numbers, question.variance)
            found[here] = np.einsum("nla,nlb->nab", slopes, h[here]).reshape(len(here), -1)
    return found


def _in_digits(loss: Loss, asked: Asked) -> Any:
    """The same in the digits that mpmath works in, at fewer points."""
    question, places = asked.question, asked.points.values[asked.points.exact]
    assert isinstance(question, SampleLoss)
    r = loss.kernels.columns
    h, found = question.split(places)[0], np.empty((len(places), r * r), dtype=object)
    for here, fields, labels, numbers in question.parts(places):
        constants = question.mixing, numbers, question.variance
        _, slopes = question.printed.in_digits(fields, labels, *constants)
        rows = np.einsum("nla,nlb->nab", slopes, digits.exact(h[here]))
        if loss.norms:
            rows = rows + _pulls(loss, question, fields, labels, numbers) @ digits.exact(
                norm_matrices(numbers[-loss.norms :], r)
            )
        found[here] = rows.reshape(len(here), -1)
    return found


def _pulls(loss: Loss, question: SampleLoss, h: Array, labels: Array, numbers: Array) -> Any:
    """``P`` with ``dloss = Tr[P dQ]/2``, (N, r, r), by differences of as many digits more as steps take."""
    r, count = loss.kernels.columns, digits.DIGITS
    found = np.empty((len(h), loss.norms), dtype=object)
    with mpmath.workdps(_STEP_DIGITS * count):
        exact = digits.exact(numbers)
        step = mpmath.mpf(10) ** -count * max(map(abs, exact[-loss.norms :]))
        for entry in range(loss.norms):
            ends = []
            for side in (1, -1):
                moved = exact.copy()
                moved[entry - loss.norms] += side * step
                ends.append(question.printed.in_digits(h, labels, question.mixing, moved, question.variance)[0])
            found[:, entry] = (ends[0] - ends[1]) / (2 * step)
    return norm_matrices(found, r) * (1 + np.eye(r, dtype=int))
