"""The languages of generated code, one file each: the imports and helpers that it finds around it."""

from __future__ import annotations

from derivations.codegen.backends.mpmath import MPMATH
from derivations.codegen.backends.numba import NUMBA
from derivations.codegen.backends.numpy import NUMPY
from derivations.codegen.backends.torch import TORCH
from derivations.codegen.modules import Backend

__all__ = ["BACKENDS"]

BACKENDS: dict[str, Backend] = {"numba": NUMBA, "numpy": NUMPY, "torch": TORCH, "mpmath": MPMATH}
