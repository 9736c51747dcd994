"""How independent replicates of the nodes move a map's image and what is measured: rows whose squares add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnphase.arrays import Array
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Overlaps

__all__ = ["Variations", "flatten", "packed_images", "restore", "restore_all", "rows_against", "rows_of", "variations"]


def flatten(measured: dict[str, Array]) -> Array:
    """(S, everything), in the order of the dictionary."""
    return np.concatenate([v.reshape(len(v), -1) for v in measured.values()], axis=1)


def restore(vector: Array, like: dict[str, Array]) -> dict[str, Any]:
    """The dictionary that `flatten` made a vector of, shaped like the replicates of ``like``."""
    return {name: float(x[0]) if x.ndim == 1 else x[0] for name, x in restore_all(vector[None], like).items()}


def restore_all(vectors: Array, like: dict[str, Array]) -> dict[str, Array]:
    """Likewise of several vectors, (N, everything) to (N, ...)."""
    result: dict[str, Array] = {}
    position = 0
    for name, values in like.items():
        size = values[0].size
        result[name] = vectors[:, position : position + size].reshape(-1, *values.shape[1:])
        position += size
    return result


def packed_images(measured: dict[str, Array], map_: StateEvolution) -> Array:
    """Images per replicate as packed vectors, (S, P)."""
    q, V, m, theta = (measured[name] for name in ("q", "V", "m", "theta"))
    trained = measured.get("trained", np.zeros((len(q), 0)))
    return map_.sector.pack_all(Overlaps(q, V, m[..., None], theta, trained, norms=map_.sector.norms))


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


def variations(
    map_: StateEvolution,
    x: Array,
    gauges: Sequence[StateEvolution],
    measured: dict[str, Array] | None = None,
) -> Variations:
    """What the replicates say at a point.

    Parameters
    ----------
    gauges : sequence of StateEvolution
        The map under other rules, where the first has no replicates: the distance to each is a row, and its own
        scatter, if it has any, further ones: two rules may agree by chance.
    measured : dict, optional
        What the map's replicates measure at ``x``, where that is known.

    Raises
    ------
    ArithmeticError
        The point lies outside the domain of one of the maps.
    """
    own = _columns(map_, map_.measure(x) if measured is None else measured)
    if not gauges:
        return Variations(*(rows_of(column) for column in own))
    others: list[tuple[Array, Array, Array]] = []
    for gauge in gauges:
        known = gauge.measure(x)
        if known is None:  # what a lifted map says is far off, as it should be
            gauge.lift = True
            known = gauge.measure(x)
        others.append(_columns(gauge, known))
    scatter = [gauge.channel.rule.randomised for gauge in gauges]
    theirs = zip(*others, strict=True)
    return Variations(*(rows_against(*both, scatter) for both in zip(own, theirs, strict=True)))


def _columns(map_: StateEvolution, measured: dict[str, Array] | None) -> tuple[Array, Array, Array]:
    if measured is None or map_.last is None:
        raise ArithmeticError("the point lies outside the domain of the state-evolution map")
    return packed_images(measured, map_), flatten(measured), map_.alpha * map_.last.envelope


def rows_against(own: Array, others: Sequence[Array], scatter: Sequence[bool]) -> Array:
    """Distances of other rules' means to those of a rule (S, ...), as rows, and their own scatter where they have any.

    Parameters
    ----------
    scatter : sequence of bool
        Which of the others are randomised.
    """
    rows: list[Array] = []
    for other, randomised in zip(others, scatter, strict=True):
        rows.append((other.mean(axis=0) - own.mean(axis=0))[None])
        if randomised:
            rows.append(rows_of(other))
    return np.concatenate(rows)


def rows_of(values: Array) -> Array:
    """Replicates (S, ...) as rows whose squares add up to the variance of their mean."""
    return (values - values.mean(axis=0)) / np.sqrt(max(len(values) * (len(values) - 1), 1))
