"""Nodes of rules with a net for each value of the teacher's fields: these by a tensor rule, all other fields by points.

What the points of a net leave depends smoothly on the teacher's fields, so that few of these do.  The nets of one rule
are consecutive parts of one scrambled Sobol sequence, whose lengths are powers of two: each is a net of its own, and
together they cover the fields better than independent ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.integration.scrambling import scrambled_normals

__all__ = ["NetOrders", "net_nodes"]

_POWER = 2 / 3  # of a node's weight, with which its net grows: the best one where the error of n points falls as 1/n


@dataclass(frozen=True)
class NetOrders:
    """How many nodes a rule of nets has.

    Attributes
    ----------
    latent : (L t,) tuple
        Nodes of the teacher's fields in every direction; where labels jump along the first one, of each part of it.
    points : int
        Of all nets together, about.
    seed : tuple of int
        Of their scrambling.
    shifted : bool
        Whether the nodes of the teacher's fields lie half a spacing further in all directions.
    """

    latent: tuple[int, ...]
    points: int
    seed: tuple[int, ...]
    shifted: bool = False


def net_nodes(weights: Array, orders: NetOrders, dimensions: int) -> tuple[NDArray[np.int64], Array, Array]:
    """The points of all nets, in so many dimensions.

    Parameters
    ----------
    weights : (K,) array
        Of the teacher's fields.

    Returns
    -------
    latent : (N,) array of int
        To which of the teacher's fields a point belongs.
    normals : (N, dimensions) array
    weights : (N,) array
        They sum to one.
    """
    share = weights**_POWER
    wanted = np.maximum(orders.points * share / share.sum(), 1.0)
    sizes = 2 ** np.round(np.log2(wanted)).astype(np.int64)
    # large ones first, so that each begins at a multiple of its size
    order = np.argsort(-sizes, kind="stable")
    latent = np.repeat(order, sizes[order])
    normals = scrambled_normals(dimensions, len(latent), np.random.default_rng(np.random.SeedSequence(orders.seed)))
    return latent, normals, (weights / weights.sum() / sizes)[latent]
