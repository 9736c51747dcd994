"""Way in for the theory's stability: Hessians of the loss at given fields."""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array

from .compiled import entry
from .layouts import array
from .linear_algebra import SIZE
from .local_problem import COLUMNS, LENGTH, loss_derivatives, teacher_target
from .search import empty_target

__all__ = ["hessians_at"]


@entry(array(3), array(3), array(2), array(1), array(1), array(3))
def hessians_at(
    fields: Array, teacher_fields: Array, mixing: Array, parameters: Array, variance: Array, hessians: Array
) -> None:
    """Hessian (L r, L r) of every sample's loss at fields (N, L, r); of one with kinks, what it is beside them."""
    target, gradient, contracted = empty_target(), np.empty((LENGTH, COLUMNS)), np.empty(SIZE)
    for sample in range(fields.shape[0]):
        teacher_target(teacher_fields[sample], mixing, parameters, target)
        loss_derivatives(fields[sample], target, variance, parameters, gradient, hessians[sample], contracted)
