"""Entry points for the theory: nodes that share the diagonal of D, one after another."""

from __future__ import annotations

from attnphase.arrays import Array
from attnphase.kernels.local.values import Energy, Found, Nodes, Solution

from .compiled import entry
from .layouts import INTEGER, NODES, SOLUTION, array
from .local_problem import loss, teacher_target
from .search import empty_target, search, workspace

__all__ = ["losses_at", "minimise"]


@entry(NODES, INTEGER, SOLUTION)
def minimise(nodes: Nodes, starts: int, solution: Solution) -> None:
    """Lowest and second-lowest minimum of the local problem of every node, from `Starts`."""
    work, target = workspace(), empty_target()
    terms = Energy(target, nodes.variance, nodes.factor, nodes.parameters)
    for n in range(nodes.centers.shape[0]):
        k = nodes.teacher_fields[n]
        teacher_target(k, nodes.mixing, nodes.parameters, target)
        found = Found(solution.minima[n], solution.energies[n], solution.residuals[n])
        solution.losses[n], solution.flags[n] = search(nodes.centers[n], k, terms, starts, found, work)


@entry(array(3), array(3), array(2), array(1), array(1), array(1))
def losses_at(
    fields: Array, teacher_fields: Array, mixing: Array, parameters: Array, variance: Array, losses: Array
) -> None:
    """Loss of every sample at given fields (N, L, r), without any minimisation."""
    target = empty_target()
    for sample in range(fields.shape[0]):
        teacher_target(teacher_fields[sample], mixing, parameters, target)
        losses[sample] = loss(fields[sample], target, variance, parameters)
