"""Rules for Gaussian expectations: nodes, weights, and a way to say how wrong they are.

A rule integrates over standard normal vectors ``(xi, zeta)``, the student's and the teacher's part, and behind them
those of the labels' noise, whose sign nothing changes.  Sign-symmetric
losses are integrated over the orbits of the four sign changes ``(+-xi, +-zeta)``: a rule then holds one representative
of each orbit, and expectations that vanish by symmetry vanish exactly.

Randomised rules consist of independent replicates, whose scatter is the standard error.  Deterministic rules are
gauged against another rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from attnphase.arrays import Array
from attnphase.integration.lines import LineOrders
from attnphase.integration.scrambling import scrambled_normals

__all__ = [
    "SIGNS",
    "Jumps",
    "Rule",
    "gauss_hermite",
    "gauss_hermite_nodes",
    "lines",
    "published_rule",
    "sobol",
    "tensor",
]

SIGNS = ((1, 1), (1, -1), (-1, 1), (-1, -1))
"""Sign changes of (xi, zeta); a rule without symmetry uses the first alone."""


class Jumps(NamedTuple):
    """What located jumps of the residual g add to means of its derivatives, and what of that a rule does not resolve.

    Attributes
    ----------
    student, unresolved_student : (L, r, r) arrays
        To ``E dg/domega``, by jumps of the proximal point.
    teacher, unresolved_teacher : (L, r, t) arrays
        To ``E dg/dk``, by these and by jumps of the labels.
    """

    student: Array
    unresolved_student: Array
    teacher: Array
    unresolved_teacher: Array


@dataclass(frozen=True, eq=False)
class Rule:
    """Nodes and weights for means over ``N(0, I)`` in ``D`` dimensions.

    Attributes
    ----------
    name : str
        What ``integration.rule`` calls it.
    nodes : (S, n, D) array
        Replicates of nodes; representatives of sign orbits if `symmetric`.
    weights : (n,) array
        Sum to one.
    symmetric : bool
        Whether each node stands for its four sign changes.
    student_dimensions : int
        The first so many coordinates are ``xi``, the others ``zeta`` and the noise.
    order : int
        What refines the rule: points per replicate, or nodes per dimension.
    randomised : bool
        Replicates are independent and identically distributed: their scatter gives a standard error.
    from_zero : bool
        The local problems are solved from zero alone, whatever other minima they have, as the published curves were.
    lines : LineOrders, optional
        Of a rule whose nodes are found at every point anew; those that it has are the point's at which a map was
        evaluated last.
    constant : float
        What means of the loss have beyond those over the nodes: by noise of which no student's field knows, and which
        is zero at the nodes.
    jumps : Jumps, optional
        What means of the residual's derivatives have beyond those over the nodes.
    own : tuple of Rule
        The rule in every configuration of clusters, where each has nodes of its own, as many as the others; empty where
        all share `nodes` and `weights`, which are else the first one's.
    """

    name: str
    nodes: Array
    weights: Array
    symmetric: bool
    student_dimensions: int
    order: int
    randomised: bool
    from_zero: bool = False
    lines: LineOrders | None = None
    constant: float = 0.0
    jumps: Jumps | None = None
    own: tuple[Rule, ...] = ()

    @property
    def latent_first(self) -> bool:
        """Whether the teacher's fields are nodes of their own, and the student's are drawn given these."""
        return self.lines is not None

    def of(self, configuration: int) -> Rule:
        """The rule in a configuration of clusters."""
        return self.own[configuration] if self.own else self

    def part(self, points: slice) -> Rule:
        """Some points of every replicate; their weights keep their sizes."""
        own = tuple(one.part(points) for one in self.own)
        return replace(self, nodes=self.nodes[:, points], weights=self.weights[points].copy(), own=own)

    @property
    def replicates(self) -> int:
        """Number S of replicates."""
        return self.nodes.shape[0]

    @property
    def size(self) -> int:
        """Number of distinct nodes, sign changes not counted."""
        return self.nodes.shape[0] * self.nodes.shape[1]

    @property
    def signs(self) -> tuple[tuple[int, int], ...]:
        """Sign changes of (xi, zeta) that each node stands for."""
        return SIGNS if self.symmetric else SIGNS[:1]


@lru_cache(maxsize=16)
def sobol(
    dimensions: int, student_dimensions: int, symmetric: bool, points: int, replicates: int, seed: int | tuple[int, ...]
) -> Rule:
    """Independent scramblings of a Sobol sequence, mapped to the normal law.

    Parameters
    ----------
    points : int
        Points per replicate, a power of two.
    replicates : int
        Number of independent scramblings.
    seed : int or tuple of int
        Seed of the scramblings, or a seed and numbers that tell streams of it apart; the same gives the same nodes.
    """
    seeds = np.random.SeedSequence(seed).spawn(replicates)
    nodes = np.stack([scrambled_normals(dimensions, points, np.random.default_rng(s)) for s in seeds])
    return Rule("sobol", nodes, np.full(points, 1 / points), symmetric, student_dimensions, points, True)


def gauss_hermite_nodes(count: int) -> tuple[Array, Array]:
    """Nodes and weights (n,) for the normal law, exact for polynomials of degree ``2 count - 1``."""
    places, weights = np.polynomial.hermite_e.hermegauss(count)
    return np.asarray(places, dtype=float), np.asarray(weights / weights.sum(), dtype=float)


def tensor(axes: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Tensor product of one-dimensional rules: nodes (n, D) and weights (n,); one node of no entries without axes."""
    if not axes:
        return np.empty((1, 0)), np.ones(1)
    nodes, weights = (
        np.stack([axis.ravel() for axis in np.meshgrid(*one, indexing="ij")], axis=-1)
        for one in zip(*axes, strict=True)
    )
    return nodes, weights.prod(axis=-1)


@lru_cache(maxsize=16)
def gauss_hermite(dimensions: int, student_dimensions: int, symmetric: bool, order: int, fixed: int = 0) -> Rule:
    """Tensor product of ``order``-point Gauss-Hermite rules: exact for polynomials of degree ``2 order - 1``.

    The last ``fixed`` coordinates keep their sign under all sign changes.
    """
    grid, mass = tensor([gauss_hermite_nodes(order)] * dimensions)
    return _deterministic("gauss-hermite", grid, mass, symmetric, student_dimensions, order, fixed)


@lru_cache(maxsize=2)
def published_rule(symmetric: bool = True) -> Rule:
    """The rule of the published curves: the 12-point degree-7 formula of the plane, squared (144 nodes).

    The plane formula for the weight ``exp(-|x|^2)`` is E_2^(r^2) 7-1 of Stroud's collection.
    """
    inner, outer = np.sqrt((9 - 3 * np.sqrt(5)) / 4), np.sqrt((9 + 3 * np.sqrt(5)) / 4)
    corners = np.array([(1, 1), (1, -1), (-1, 1), (-1, -1)], dtype=float)
    axes = np.sqrt(6) * np.array([(1, 0), (-1, 0), (0, 1), (0, -1)], dtype=float)
    plane = np.concatenate([axes, inner * corners, outer * corners])
    mass = np.repeat([1 / 36, (5 + 2 * np.sqrt(5)) / 45, (5 - 2 * np.sqrt(5)) / 45], 4)
    nodes = np.concatenate([np.repeat(plane, 12, axis=0), np.tile(plane, (12, 1))], axis=1)
    rule = _deterministic("published", nodes, np.outer(mass, mass).ravel(), symmetric, 2, 12)
    return replace(rule, from_zero=True)


@lru_cache(maxsize=64)
def lines(dimensions: int, student_dimensions: int, orders: LineOrders) -> Rule:
    """Lines, of which no node is known before the rule has been used at a point."""
    nodes, weights = np.zeros((1, 1, dimensions)), np.ones(1)
    return Rule("lines", nodes, weights, False, student_dimensions, max(orders.latent), False, lines=orders)


def _deterministic(
    name: str,
    nodes: Array,
    weights: Array,
    symmetric: bool,
    student_dimensions: int,
    order: int,
    fixed: int = 0,
) -> Rule:
    """One replicate; for a symmetric rule a representative per orbit carries the weight of the whole orbit."""
    if symmetric:
        halves = [nodes[:, :student_dimensions], nodes[:, student_dimensions : nodes.shape[1] - fixed]]
        multiplicity = np.ones(len(nodes))
        keep = np.ones(len(nodes), dtype=bool)
        for half in halves:
            sign = _leading_sign(half)
            keep &= sign >= 0
            multiplicity *= np.where(sign == 0, 1.0, 2.0)
        nodes, weights = nodes[keep], (weights * multiplicity)[keep]
    return Rule(name, nodes[None], weights / weights.sum(), symmetric, student_dimensions, order, False)


def _leading_sign(vectors: Array) -> Array:
    """Sign of the first coordinate that is not zero; 0 for the zero vector."""
    clean = np.where(np.abs(vectors) < 1e-9, 0.0, vectors)
    first = (clean != 0).argmax(axis=1)
    return np.sign(clean[np.arange(len(clean)), first])
