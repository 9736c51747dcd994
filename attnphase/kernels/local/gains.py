"""Entry point for the dynamics under noisy labels: what the noise adds to the squares of gradients, and to the loss."""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array

from .compiled import entry
from .layouts import array
from .local_problem import COLUMNS, LABEL_FIELDS, LENGTH, NOISE, TEACHER_RANK, loss, loss_gradient, teacher_target
from .search import empty_target

__all__ = ["gains_at"]


@entry(array(3), array(3), array(2), array(1), array(1), array(4), array(1))
def gains_at(
    fields: Array,
    teacher_fields: Array,
    mixing: Array,
    parameters: Array,
    variance: Array,
    squares: Array,
    losses: Array,
) -> None:
    """By noise of variance one: the gain of ``g g^T`` (N, L, r, r) of every token, and that of the loss (N,) or (0,).

    Of fields (N, L, r) and those of the teacher (N, L, t).  For a loss that is quadratic in the noise the differences
    are its derivatives.
    """
    target, labels = empty_target(), np.zeros((LENGTH, LABEL_FIELDS))
    ahead, clean = np.empty((LENGTH, COLUMNS)), np.empty((LENGTH, COLUMNS))
    for sample in range(fields.shape[0]):
        for a in range(LENGTH):
            for i in range(TEACHER_RANK):
                labels[a, i] = teacher_fields[sample, a, i]
        teacher_target(labels, mixing, parameters, target)
        without = loss_gradient(fields[sample], target, variance, parameters, clean)
        squares[sample] = 0.0
        if losses.shape[0] > 0:
            losses[sample] = -LENGTH * NOISE * without
        for place in range(LENGTH * NOISE):
            token, entry_ = divmod(place, NOISE)
            labels[token, TEACHER_RANK + entry_] = 1.0
            teacher_target(labels, mixing, parameters, target)
            total = loss_gradient(fields[sample], target, variance, parameters, ahead)
            for a in range(LENGTH):
                for i in range(COLUMNS):
                    for j in range(COLUMNS):
                        squares[sample, a, i, j] += (ahead[a, i] - clean[a, i]) * (ahead[a, j] - clean[a, j])
            if losses.shape[0] > 0:
                labels[token, TEACHER_RANK + entry_] = -1.0
                teacher_target(labels, mixing, parameters, target)
                losses[sample] += 0.5 * (total + loss(fields[sample], target, variance, parameters))
            labels[token, TEACHER_RANK + entry_] = 0.0
