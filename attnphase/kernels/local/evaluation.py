"""Ways in for the theory without a search: the loss at given fields, and the teacher's targets."""

from __future__ import annotations

from attnphase.arrays import Array

from .compiled import entry
from .layouts import array
from .local_problem import loss, teacher_target
from .search import empty_target

__all__ = ["losses_at", "targets_at"]


@entry(array(3), array(3), array(2), array(1), array(1), array(1))
def losses_at(
    fields: Array, teacher_fields: Array, mixing: Array, parameters: Array, variance: Array, losses: Array
) -> None:
    """Loss of every sample at given fields (N, L, r), without any minimisation."""
    target = empty_target()
    for sample in range(fields.shape[0]):
        teacher_target(teacher_fields[sample], mixing, parameters, target)
        losses[sample] = loss(fields[sample], target, variance, parameters)


@entry(array(3), array(2), array(1), array(3))
def targets_at(teacher_fields: Array, mixing: Array, parameters: Array, targets: Array) -> None:
    """Teacher's target of every sample, (N, L, L) (or (N, L, t) for a scalar loss)."""
    for sample in range(teacher_fields.shape[0]):
        teacher_target(teacher_fields[sample], mixing, parameters, targets[sample])
