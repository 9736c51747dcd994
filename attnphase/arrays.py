"""The one name for arrays of double precision."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array"]

Array = NDArray[np.float64]
