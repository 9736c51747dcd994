"""Whether labels without noise leave a sign of the fields undetermined, and nothing else."""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array
from attnphase.theories.bayes_optimal.importance import Target

__all__ = ["leave_a_sign"]

_SAMPLES, _STARTS, _STEPS = 6, 48, 60
_DIFFERENCE = 1e-6
_SOLVED, _APART = 1e-9, 1e-3  # of labels that are equal, and of fields that are not


def leave_a_sign(target: Target, length: int, scale: Array) -> bool:
    """Whether the only fields with the labels of ``k`` are ``k`` and ``-k``, for one column.

    A search, and no proof: from many starts for a few random fields, by Levenberg and Marquardt.

    Parameters
    ----------
    target : Target
    length : int
        Number L of tokens.
    scale : (L,) array
        Standard deviations of the fields.
    """
    random = np.random.default_rng(3)
    for k in scale * random.standard_normal((_SAMPLES, length)):
        label = target(k[None, :, None])[0]
        if not np.allclose(target(-k[None, :, None])[0], label, atol=1e-12):
            return False
        found = _solutions(target, label, scale * 1.5 * random.standard_normal((_STARTS, length)))
        slope = _slopes(target, k[None])[0]
        if np.linalg.svd(slope * scale[:, None], compute_uv=False)[-1] < _DIFFERENCE:
            return False
        distance = np.minimum(np.abs(found - k).max(axis=1), np.abs(found + k).max(axis=1))
        if (distance > _APART * scale.max()).any():
            return False
    return True


def _slopes(target: Target, k: Array) -> Array:
    """Derivatives of labels, (B, L, M)."""
    moved = _DIFFERENCE * np.eye(k.shape[1])
    both = [target((k[:, None] + sign * moved).reshape(-1, k.shape[1], 1)) for sign in (1, -1)]
    return ((both[0] - both[1]) / (2 * _DIFFERENCE)).reshape(len(k), k.shape[1], -1)


def _solutions(target: Target, label: Array, k: Array) -> Array:
    """Fields with a label, of those that the starts lead to."""
    damping = np.full(len(k), 1e-2)
    misfit = label - target(k[..., None])
    cost = (misfit**2).sum(axis=1)
    for _ in range(_STEPS):
        slope = _slopes(target, k)
        normal = slope @ slope.mT
        size = np.trace(normal, axis1=1, axis2=2) / k.shape[1] + 1e-30
        normal = normal + (damping * size)[:, None, None] * np.eye(k.shape[1])
        trial = k + np.linalg.solve(normal, slope @ misfit[..., None])[..., 0]
        new_misfit = label - target(trial[..., None])
        new_cost = (new_misfit**2).sum(axis=1)
        better = new_cost < cost
        k, misfit = np.where(better[:, None], trial, k), np.where(better[:, None], new_misfit, misfit)
        cost = np.where(better, new_cost, cost)
        damping = np.where(better, damping / 5, np.minimum(damping * 5, 1e8))
        damping = np.maximum(damping, 1e-12)
    return k[cost < _SOLVED**2 * max(1.0, float((label**2).sum()))]
