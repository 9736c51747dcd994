"""How independent replicates of the nodes move a map's image and what is measured: rows whose squares add up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnphase.arrays import Array
from attnphase.state_evolution.errors import flatten, packed_images
from attnphase.state_evolution.map import StateEvolution

__all__ = ["Variations", "variations"]


@dataclass(frozen=True, eq=False)
class Variations:
    """Displacements of what is known at one point, n rows; the sum of a column's squares is its variance.

    Displacements of two maps under the same nodes belong together, row by row: they are added or subtracted before they
    are squared.

    Attributes
    ----------
    images : (n, D) array
        Of the map's image.
    values : (n, E) array
        Of everything measured, at the same point.
    energy : (n,) array
        Of ``alpha E[M]``: to first order those of the training loss, which is stationary.
    """

    images: Array
    values: Array
    energy: Array


def variations(map_: StateEvolution, x: Array, gauge: StateEvolution | None) -> Variations:
    """What the replicates say at a point.

    Parameters
    ----------
    gauge : StateEvolution or None
        The map under a second rule, where the first has no replicates: the distance to it is the first row.

    Raises
    ------
    ArithmeticError
        The point lies outside the domain of one of the maps.
    """
    own = _columns(map_, x)
    if gauge is None:
        return Variations(*(_rows(column) for column in own))
    others = _columns(gauge, x)
    parts = []
    for mine, other in zip(own, others, strict=True):
        shift = (other.mean(axis=0) - mine.mean(axis=0))[None]
        parts.append(np.concatenate([shift, _rows(other)]) if gauge.channel.rule.randomised else shift)
    return Variations(*parts)


def _columns(map_: StateEvolution, x: Array) -> tuple[Array, Array, Array]:
    measured = map_.measure(x)
    if measured is None or map_.last is None:
        raise ArithmeticError("the point lies outside the domain of the state-evolution map")
    return packed_images(measured, map_), flatten(measured), map_.alpha * map_.last.envelope


def _rows(values: Array) -> Array:
    return (values - values.mean(axis=0)) / np.sqrt(max(len(values) * (len(values) - 1), 1))
