"""Entry point for the dynamics: losses of samples at given fields, and minus their gradients."""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array

from .compiled import entry
from .layouts import array
from .local_problem import COLUMNS, LENGTH, loss_gradient, teacher_target
from .search import empty_target

__all__ = ["slopes_at"]


@entry(array(3), array(3), array(2), array(1), array(1), array(1), array(3))
def slopes_at(
    fields: Array,
    teacher_fields: Array,
    mixing: Array,
    parameters: Array,
    variance: Array,
    losses: Array,
    residuals: Array,
) -> None:
    """Loss (N,) of every sample at fields (N, L, r), and ``g = -dloss/dh`` (N, L, r)."""
    target, gradient = empty_target(), np.empty((LENGTH, COLUMNS))
    for sample in range(fields.shape[0]):
        teacher_target(teacher_fields[sample], mixing, parameters, target)
        losses[sample] = loss_gradient(fields[sample], target, variance, parameters, gradient)
        for a in range(LENGTH):
            for i in range(COLUMNS):
                residuals[sample, a, i] = -gradient[a, i]
