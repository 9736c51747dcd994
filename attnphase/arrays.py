"""Names of the types of arrays, and of arguments that are one or several numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr

__all__ = ["Array", "Number", "Numbers", "Wholes"]

Array = NDArray[np.float64]
"""Of double precision."""

Number: TypeAlias = "float | np.floating[Any] | np.integer[Any] | xr.DataArray"
"""One number, Python's, NumPy's or xarray's."""

Numbers: TypeAlias = "Number | Sequence[Number] | NDArray[Any]"
"""One or several numbers."""

Wholes: TypeAlias = "int | np.integer[Any] | Sequence[int | np.integer[Any]] | NDArray[Any] | xr.DataArray"
"""One or several whole numbers."""
