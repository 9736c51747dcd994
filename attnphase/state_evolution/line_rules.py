"""Rules of lines at a point: nodes outside the lines in every configuration, and the symmetries that spare some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from attnphase.arrays import Array
from attnphase.integration.lines import LineOrders, between, heaviest, orbits
from attnphase.integration.rules import Rule, gauss_hermite_nodes, tensor
from attnphase.kernels.local.values import Solution
from attnphase.state_evolution.directions import Directions
from attnphase.state_evolution.fields import FieldLaw
from attnphase.state_evolution.lines import Bundle, nodes_along
from attnphase.state_evolution.sample_symmetries import Image, images_in
from attnphase.state_evolution.sector import Element
from attnphase.state_evolution.system import System

__all__ = ["rule_at"]

_BESIDE = 1e-9  # of a plane on which labels jump, in standard deviations: on which side nodes lie


def rule_at(
    system: System,
    rule: Rule,
    law: FieldLaw,
    variances: Array,
    directions: Sequence[Directions],
    group: Sequence[Element],
    *,
    jumps: bool = False,
) -> tuple[Rule, Solution]:
    """The nodes of a rule of lines at a point, with their minima.

    Parameters
    ----------
    system : System
    rule : Rule
    law : FieldLaw
        Of the fields at the point.
    variances : (P, r, r) array
        V of every site.
    directions : sequence of Directions
        In every configuration of clusters.
    group : sequence of (order of the sites, (r, r) array, (t, t) array)
        Symmetries of the problem and of the point.  Of teacher's fields that they make of each other one is a node,
        with the weight of all: what it gives must be averaged over the group.
    jumps : bool
        Whether the rule's `jumps` are asked for, under the identity alone.
    """
    rule, every = replace(rule, own=()), list[tuple[Rule, Solution]]()
    for place, own in enumerate(directions):
        images = images_in(system, place, group)
        every.append(_in_configuration(system, rule, law, variances, place, own, images, jumps=jumps))
    if len(every) == 1:
        return every[0]
    return _side_by_side(every)


def _in_configuration(
    system: System,
    rule: Rule,
    law: FieldLaw,
    variances: Array,
    configuration: int,
    directions: Directions,
    images: tuple[Image, ...],
    *,
    jumps: bool,
) -> tuple[Rule, Solution]:
    """The nodes of a configuration of clusters, of those that its symmetries make of each other one."""
    orders, kernels = rule.lines, system.kernels
    assert orders is not None
    here = FieldLaw(*(values[system.sample_law.configurations[configuration]] for values in law))
    shape = kernels.length, kernels.teacher_rank, kernels.noise_columns
    zeta, z, of_latent = _latent_nodes(directions, orders, shape, images)
    zeta, shares = system.sample_law.drawn(configuration, zeta)
    of_latent = of_latent * shares
    bundle, eta = _bundle(system, rule, here, directions, configuration, (zeta, z, of_latent))
    found = nodes_along(system, variances, bundle, orders)
    latent, other = np.divmod(found.lines, len(eta))
    along = directions.student[:, 0]
    normals = np.outer(found.places, along) + eta.reshape(len(eta), -1).take(other, axis=0)
    of_labels = [part.reshape(len(zeta), -1).take(latent, axis=0) for part in (zeta, z)]
    nodes = np.concatenate([normals, *of_labels], axis=1)
    k = np.einsum("lij,nlj->nli", here.teacher_roots, zeta)
    constant = system.noisy_labels(configuration).mean_of_unseen(directions.noise, k, of_latent)
    located = found.jumps_of_slopes(system, variances, bundle) if jumps else None
    if located is not None:
        by_labels = _jumps_of_labels(system, rule, here, variances, configuration, directions)
        located = located._replace(teacher=located.teacher + by_labels)
    rule = replace(rule, nodes=nodes[None], weights=found.weights, constant=constant, jumps=located)
    return rule, found.solution


def _bundle(
    system: System,
    rule: Rule,
    law: FieldLaw,
    directions: Directions,
    configuration: int,
    latent: tuple[Array, Array, Array],
) -> tuple[Bundle, Array]:
    """Lines of one configuration at normals of the teacher's fields and of the noise, and the normals across them.

    ``law`` is that of the configuration's tokens.
    """
    orders, kernels = rule.lines, system.kernels
    assert orders is not None
    zeta, z, weights = latent
    shape = kernels.length, kernels.columns
    eta, of_across = _nodes_across(directions, orders, shape)
    along = directions.student[:, 0].reshape(shape)
    shared = law.means + np.einsum("lij,nlj->nli", law.lifts, zeta)
    k = np.einsum("lij,nlj->nli", law.teacher_roots, zeta)
    labels = system.sample_law.labels_of(k, law.noise[:, None] * z)
    bundle = Bundle(
        (shared[:, None] + np.einsum("lij,mlj->mli", law.roots, eta)).reshape(-1, *shape),
        np.repeat(labels, len(eta), axis=0),
        np.einsum("lij,lj->li", law.roots, along),
        np.outer(weights, of_across).ravel(),
        len(eta),
        configuration,
    )
    return bundle, eta


def _jumps_of_labels(
    system: System, rule: Rule, law: FieldLaw, variances: Array, configuration: int, directions: Directions
) -> Array:
    """What jumps of the labels add to ``E dg_l/dk_l``, (L, r, t), for a Gaussian k.

    The residual's mean on either side of every plane on which they jump, times the density there.
    """
    orders, kernels = rule.lines, system.kernels
    assert orders is not None
    shape = kernels.length, kernels.teacher_rank, kernels.noise_columns
    normal = directions.latent[:, 0].reshape(shape[:2])
    of_fields = np.linalg.solve(law.teacher_roots, normal[..., None])[..., 0]
    total = np.zeros((kernels.length, kernels.columns, kernels.teacher_rank))
    for place in directions.breaks:
        for side in (1, -1):
            latent = _tensor_of_latent(directions, orders, shape, at=place + side * _BESIDE)
            bundle, _ = _bundle(system, rule, law, directions, configuration, latent)
            found = nodes_along(system, variances, bundle, orders)
            means = np.einsum("n,nli->li", found.weights, found.solution.residuals)
            density = np.exp(-(place**2) / 2) / np.sqrt(2 * np.pi)
            total += side * density * means[..., None] * of_fields[:, None]
    return total


def _side_by_side(every: list[tuple[Rule, Solution]]) -> tuple[Rule, Solution]:
    """The nodes of all configurations, of each as many.

    Where there are fewer, the first one stands behind them again, of weight zero and with its lowest minimum alone.
    """
    most = max(rule.size for rule, _ in every)
    lacks = [most - rule.size for rule, _ in every]
    solved = [
        np.concatenate(
            [part for x, lacking in zip(values, lacks, strict=True) for part in (x, x[:1].repeat(lacking, axis=0))]
        )
        for values in zip(*(solution for _, solution in every), strict=True)
    ]
    solution, rules = Solution(*solved), []
    for place, ((rule, _), lacking) in enumerate(zip(every, lacks, strict=True)):
        behind = slice((place + 1) * most - lacking, (place + 1) * most)
        solution.energies[behind, 1], solution.flags[behind] = solution.energies[behind, 0], 0
        nodes = np.concatenate([rule.nodes, rule.nodes[:, :1].repeat(lacking, axis=1)], axis=1)
        rules.append(replace(rule, nodes=nodes, weights=np.pad(rule.weights, (0, lacking))))
    return replace(rules[0], own=tuple(rules)), solution


def _tensor_of_latent(
    directions: Directions, orders: LineOrders, shape: tuple[int, int, int], at: float | None = None
) -> tuple[Array, Array, Array]:
    """The teacher's standard normals (n, L, t), those of the noise (n, L, n) and weights; the first may be given."""
    length, rank, columns = shape
    counts = orders.latent[: length * rank + directions.noise.shape[1]]
    breaks = [directions.breaks] + [()] * (len(counts) - 1)
    axes = zip(breaks, counts, strict=True)
    rules = [between(own, count, i == orders.shifted) for i, (own, count) in enumerate(axes)]
    # beside a break light nodes count too
    broken = 1 if directions.breaks else 0
    others, of_others = heaviest(*tensor(rules[broken:]), orders.dropped)
    first, of_first = tensor(rules[:broken]) if at is None else (np.full((1, 1), at), np.ones(1))
    places = np.concatenate([first.repeat(len(others), axis=0), np.tile(others, (len(first), 1))], axis=1)
    weights = np.outer(of_first, of_others).ravel()
    zeta = (places[:, : length * rank] @ directions.latent.T).reshape(-1, length, rank)
    z = (places[:, length * rank :] @ directions.noise.T).reshape(len(places), length, columns)
    return zeta, z, weights


@lru_cache(maxsize=256)
def _latent_nodes(
    directions: Directions,
    orders: LineOrders,
    shape: tuple[int, int, int],
    images: tuple[Image, ...],
) -> tuple[Array, Array, Array]:
    """The teacher's standard normals (n, L, t), those of the noise (n, L, n) and weights.

    Of what symmetries make of each other they have one node.
    """
    zeta, z, weights = _tensor_of_latent(directions, orders, shape)

    def flat(zeta: Array, z: Array) -> Array:
        return np.concatenate([zeta.reshape(len(zeta), -1), z.reshape(len(z), -1)], axis=1)

    turned = [flat(image.of(zeta, image.teacher), image.of_noise(z)) for image in images]
    chosen, counts = orbits(flat(zeta, z), turned)
    return zeta[chosen], z[chosen], weights[chosen] * counts


@lru_cache(maxsize=32)
def _nodes_across(directions: Directions, orders: LineOrders, shape: tuple[int, int]) -> tuple[Array, Array]:
    """The student's standard normals given the teacher's (n, L, r), without those along the line, and weights."""
    across, weights = tensor([gauss_hermite_nodes(count) for count in orders.across])
    return (across @ directions.student[:, 1:].T).reshape(-1, *shape), weights
