"""Nodes of a rule of nets at points of given symmetries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from attnphase.integration.lines import between, evenly_spaced, orbits
from attnphase.integration.nets import net_nodes
from attnphase.integration.rules import Rule, nets, tensor
from attnphase.state_evolution.directions import directions_of
from attnphase.state_evolution.sample_symmetries import Image, symmetries_of_samples
from attnphase.state_evolution.sector import Element
from attnphase.state_evolution.system import System

__all__ = ["rule_of_nets"]


def rule_of_nets(system: System, rule: Rule, group: Sequence[Element]) -> Rule:
    """The nodes of a rule of nets; of teacher's fields that symmetries make of each other one, with the weight of all.

    Parameters
    ----------
    system : System
    rule : Rule
    group : sequence of (order of the sites, (r, r) array, (t, t) array)
        Symmetries of the problem and of the points: what a map makes of the nodes must be averaged over them.
    """
    assert rule.nets is not None
    # of nodes that are those of other symmetries the orders are the same
    plain = nets(rule.nodes.shape[-1], rule.student_dimensions, rule.nets)
    return _nodes(system, plain, symmetries_of_samples(system, group))


@lru_cache(maxsize=32)
def _nodes(system: System, rule: Rule, elements: tuple[Image, ...]) -> Rule:
    orders, kernels = rule.nets, system.kernels
    assert orders is not None
    length, columns, rank = kernels.length, kernels.columns, kernels.teacher_rank
    directions = directions_of(system)
    breaks = [directions.breaks] + [()] * (len(orders.latent) - 1)
    axes = zip(breaks, orders.latent, strict=True)
    rules = [between(own, n, orders.shifted) if own else evenly_spaced(n, orders.shifted) for own, n in axes]
    places, weights = tensor(rules)
    zeta = places @ directions.latent.T
    every = zeta.reshape(-1, length, rank)
    chosen, counts = orbits(zeta, [image.of(every, image.teacher).reshape(zeta.shape) for image in elements])
    student = length * columns
    latent, normals, shares = net_nodes(weights[chosen] * counts, orders, student + length * kernels.noise_columns)
    # the first coordinates of a net are the most even ones: they are along the directions that matter most
    own = normals[:, :student] @ directions.student.T
    nodes = np.concatenate([own, zeta[chosen][latent], normals[:, student:]], axis=1)
    return replace(rule, nodes=nodes[None], weights=shares)
