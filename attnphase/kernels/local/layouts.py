"""Layouts of the arguments that come from Python: kinds and dimensions of arrays, which are contiguous."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from .model import NUMBERS, PLACES, Model
from .values import Nodes, Room, Solution

__all__ = ["ENTRIES", "INTEGER", "Layout"]


class Layout(NamedTuple):
    """Of an array: the type of its entries, and dimensions; what compiled code takes as a flat one has any number."""

    entries: np.dtype[Any]
    dimensions: int


def array(dimensions: int = 1, entries: DTypeLike = np.float64) -> Any:
    """Layout of an array of so many dimensions."""
    return Layout(np.dtype(entries), dimensions)


INTEGER: Any = int
FLAT, _SQUARE, _PLACES = array(), array(2), array(entries=np.uint64)
MODEL = Model(array(entries=NUMBERS), array(entries=PLACES), _PLACES, _PLACES)
NODES = Nodes(FLAT, FLAT, FLAT, FLAT, FLAT, FLAT, FLAT, _PLACES)
SOLUTION = Solution(FLAT, FLAT, FLAT, FLAT, array(entries=np.int64))
ROOM = Room(FLAT, FLAT, FLAT, FLAT, FLAT, _PLACES, _PLACES, _PLACES)

ENTRIES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "minimise_in_lanes": ("lanes", (MODEL, NODES, INTEGER, SOLUTION, ROOM)),
    "losses_in_lanes": ("lanes", (MODEL, NODES, FLAT, ROOM)),
    "minimise_one_by_one": ("search", (MODEL, NODES, INTEGER, SOLUTION, FLAT)),
    "targets_at": ("derivatives", (MODEL, NODES, FLAT)),
    "losses_one_by_one": ("derivatives", (MODEL, NODES, FLAT, FLAT)),
    "slopes_at": ("derivatives", (MODEL, NODES, FLAT, FLAT, FLAT, FLAT)),
    "trained_slopes_at": ("trained", (MODEL, NODES, FLAT, _SQUARE, array(3), _SQUARE, array(3), FLAT)),
    **{
        f"token_{name}_{bits}": ("passes", (array(2, f"f{bits // 8}"),) * 3)
        for name in ("fields", "slopes")
        for bits in (32, 64)
    },
}
"""What Python calls, by name: the module, and the layouts of the arguments."""
