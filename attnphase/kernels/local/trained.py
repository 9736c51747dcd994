"""Entry point for trained parameters of the loss: its derivatives in them at given fields."""

from __future__ import annotations

from attnphase.arrays import Array

from .compiled import entry
from .layouts import array
from .local_problem import teacher_target, trained_slopes
from .search import empty_target

__all__ = ["trained_slopes_at"]


@entry(array(3), array(3), array(2), array(1), array(1), array(2), array(3))
def trained_slopes_at(
    fields: Array,
    teacher_fields: Array,
    mixing: Array,
    parameters: Array,
    variance: Array,
    slopes: Array,
    curvatures: Array,
) -> None:
    """Derivatives (N, p) and (N, p, p) of every sample's loss in the trained parameters, at fields (N, L, r)."""
    target = empty_target()
    for sample in range(fields.shape[0]):
        teacher_target(teacher_fields[sample], mixing, parameters, target)
        trained_slopes(fields[sample], target, variance, parameters, slopes[sample], curvatures[sample])
