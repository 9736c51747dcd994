"""Names of the types of arrays, and of arguments that are one or several numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Numbers", "Wholes"]

Array = NDArray[np.float64]
"""Of double precision."""

Numbers = float | Sequence[float] | NDArray[Any]
"""One or several numbers."""

Wholes = int | Sequence[int] | NDArray[Any]
"""One or several whole numbers."""
