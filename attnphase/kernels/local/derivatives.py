"""Losses of samples at given fields, the centres, and their derivatives there."""

from __future__ import annotations

from attnphase.arrays import Array

from .compiled import call
from .model import Model
from .search import take_in
from .starts import unsigned
from .values import Nodes

__all__ = ["losses_one_by_one", "slopes_at", "targets_at"]


def targets_at(model: Model, nodes: Nodes, targets: Array) -> None:
    """Teacher's target of every sample, (N, L, L) (or (N, L, t) for a scalar loss)."""
    m = model.numbers[0]
    width, labels = m.length * m.target_columns, m.length * m.label_fields
    for n in range(unsigned(targets.size) // width):
        k, target = nodes.teacher_fields[n * labels :], targets[n * width :]
        call(m.teacher_target_at, (k, nodes.mixing, nodes.parameters, target))


def losses_one_by_one(model: Model, nodes: Nodes, losses: Array, work: Array) -> None:
    """Loss of every sample, without any minimisation."""
    m, w = model.numbers[0], model.places[0]
    for n in range(unsigned(losses.size)):
        take_in(m, w, n, nodes, work)
        given = (work[w.center :], work[w.target :], work[w.variance :], work[w.parameters :])
        losses[n] = call(m.loss_at, given)


def slopes_at(model: Model, nodes: Nodes, losses: Array, residuals: Array, curvatures: Array, work: Array) -> None:
    """Loss (N,) of every sample, ``g = -dloss/dh`` (N, L, r), and if asked for the Hessian (N, L r, L r), else (0,).

    The Hessian of a loss with kinks is what it is beside them.
    """
    m, w = model.numbers[0], model.places[0]
    for n in range(unsigned(losses.size)):
        take_in(m, w, n, nodes, work)
        given = (work[w.center :], work[w.target :], work[w.variance :], work[w.parameters :], work[w.gradient :])
        if curvatures.size > 0:
            losses[n] = call(m.loss_derivatives_at, (*given, curvatures[n * m.fields * m.fields :]))
        else:
            losses[n] = call(m.loss_gradient_at, given)
        for p in range(m.fields):
            residuals[n * m.fields + p] = -work[w.gradient + p]
