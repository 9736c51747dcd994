"""Numba's types of the arguments that come from Python; all arrays are contiguous."""

from __future__ import annotations

from typing import Any

from numba import float64, int64, types

from attnphase.kernels.local.values import Draws, FieldLaw, Nodes, SampleNodes, Solution

__all__ = ["DRAWS", "FIELD_LAW", "INTEGER", "NODES", "SAMPLE_NODES", "SOLUTION", "array"]


def array(dimensions: int, entries: Any = float64) -> Any:
    """The type of an array of so many dimensions."""
    return types.Array(entries, dimensions, "C")


INTEGER: Any = int64
NODES = types.NamedTuple((array(3), array(3), array(3), array(2), array(1), array(1)), Nodes)
SAMPLE_NODES = types.NamedTuple(
    (array(3), array(3), array(3), array(3), array(2, int64), array(3), array(1)), SampleNodes
)
SOLUTION = types.NamedTuple((array(4), array(2), array(1), array(3), array(1, int64)), Solution)
DRAWS = types.NamedTuple((array(2), array(1), array(1), INTEGER, array(1)), Draws)
FIELD_LAW = types.NamedTuple((array(3), array(3), array(3), array(3), array(2), array(1)), FieldLaw)
