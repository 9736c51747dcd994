"""Names of the types of arrays, and of arguments that are one or several numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "HasArray", "Number", "Numbers", "Wholes"]

Array = NDArray[np.float64]
"""Of double precision."""


class HasArray(Protocol):
    """Numbers and arrays of NumPy, xarray, PyTorch and others."""

    def __array__(self) -> NDArray[Any]:
        """Return it as an array of NumPy."""
        ...


Number = float | HasArray
"""One number, Python's or in an array without dimensions."""

Numbers = Number | Sequence[Number]
"""One or several numbers."""

Wholes = int | HasArray | Sequence[int | HasArray]
"""One or several whole numbers."""
