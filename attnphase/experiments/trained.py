"""Trained parameters of a loss at finite d: those that minimise the risk at given weights, and their Q.

With them the risk is a function of the weights alone, whose gradient is that at fixed parameters, and what it has by
Q = W^T W / d.  So every optimiser of weights trains both.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attnphase.arrays import Array
from attnphase.kernels.torch.loss import LocalLoss
from attnphase.state_evolution.trained import TrainedPenalties, newton_step

__all__ = ["best_trained", "of_samples"]

_MOST_STEPS, _MOST_HALVINGS = 100, 50
_SMALL_DECREASE = (
    1e-13  # of the risk, over its terms' absolute values: then a last step is left, not for rounding to judge
)


def of_samples(trained: Array, h: Tensor) -> Tensor:
    """Parameters (S, p) of runs for each of their samples, whose fields are (S n, ...): (p, S n)."""
    return torch.as_tensor(trained.T, dtype=h.dtype, device=h.device).repeat_interleave(len(h) // len(trained), dim=1)


def best_trained(
    loss: LocalLoss,
    penalties: TrainedPenalties,
    h: Tensor,
    targets: Tensor,
    grams: Tensor,
    norms: Array,
    dimension: int,
) -> Array:
    """The minimisers, by Newton's method from the problem's values, and Q: (S, p).

    A step that leads upwards is halved.

    Parameters
    ----------
    loss : LocalLoss
        With trained parameters.
    penalties : TrainedPenalties
    h, targets, grams : tensors
        Of the samples, (S n, ...).
    norms : (S, n) array
        The entries of Q, if the loss takes it.
    dimension : int
        d.
    """
    runs, count = len(norms), len(loss.trained) - norms.shape[1]

    def seen(trained: Array) -> tuple[Array, Array, Array, Array]:
        """The part of the risk that depends on the parameters, with its derivatives, and its terms' absolute values."""
        trained = np.hstack([trained, norms])
        found = loss.trained_slopes(h, targets, grams, of_samples(trained, h))
        sums = (one.reshape(*one.shape[:-1], runs, -1).sum(dim=-1).double().cpu().numpy() for one in found)
        value, slopes, curvatures = (np.moveaxis(one, -1, 0) for one in sums)
        paid = dimension * penalties.values(trained)
        size = found[0].abs().reshape(runs, -1).sum(dim=1).double().cpu().numpy() + np.abs(paid)
        stiffness = penalties.curvatures(trained)[..., None] * np.eye(trained.shape[1])
        return (
            value + paid,
            (slopes + dimension * penalties.slopes(trained))[:, :count],
            (curvatures + dimension * stiffness)[:, :count, :count],
            size,
        )

    if not count:
        return norms
    start = loss.parameters[list(loss.trained[:count])].double().cpu().numpy()
    trained = np.tile(start, (runs, 1))
    value, slopes, curvatures, size = seen(trained)
    for _ in range(_MOST_STEPS):
        step = newton_step(slopes, curvatures)
        going = np.abs((step * slopes).sum(axis=1)) > _SMALL_DECREASE * size
        if not going.any():
            return np.hstack([trained + step, norms])
        step[~going] = 0.0
        reached = seen(trained + step)
        for _ in range(_MOST_HALVINGS):
            rises = going & ~(reached[0] <= value)
            if not rises.any():
                break
            step[rises] /= 2
            reached = seen(trained + step)
        trained, (value, slopes, curvatures, size) = trained + step, reached
    return np.hstack([trained, norms])
