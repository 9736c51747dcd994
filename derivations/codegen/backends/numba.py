"""Numba: compiled functions of scalars and arrays, the samples one by one."""

from __future__ import annotations

from derivations.codegen.modules import CONSTANTS, ELEMENTARY, Backend, functions_of

__all__ = ["ELEMENTS", "KERNEL", "NUMBA", "PLAIN"]

ELEMENTS = """
@compiled
def largest_of(a, b):
    return max(a, b)

@compiled
def ratio(p, q):
    return p / q

@compiled
def step(x):
    return 1.0 if x > 0.0 else 0.0

@compiled
def sign(x):
    return 1.0 if x > 0.0 else (-1.0 if x < 0.0 else 0.0)

@compiled
def modulus(x):
    return abs(x)

@compiled
def relu(x):
    return max(x, 0.0)

@compiled
def softplus(x):
    return relu(x) + log1p(exp(-abs(x)))
"""
"""What a processor does for one number or for many at once."""

_FUNCTIONS = f"""{ELEMENTS}
@compiled
def sigmoid(x):
    small = exp(-abs(x))
    return 1.0 / (1.0 + small) if x > 0.0 else small / (1.0 + small)
"""


def _compiled_with(*options: str) -> Backend:
    """The back end whose functions are compiled with these options and those that all have."""
    common = ("nogil=True", 'error_model="numpy"', "forceinline=True", "no_cfunc_wrapper=True")
    compiled = f"compiled = njit({', '.join((*options, *common))})"
    return Backend(
        dict.fromkeys((*ELEMENTARY, *CONSTANTS, "log1p"), "math") | {"njit": "numba", "np": "import numpy"},
        functions_of(f"{compiled}\n{_FUNCTIONS}"),
    )


NUMBA = _compiled_with("cache=True")

KERNEL = _compiled_with("no_cpython_wrapper=True")
"""For functions that compiled code alone calls: without an entry point from Python, and machine code of their own on
the disk, they compile faster; called from Python they end the process."""

PLAIN = _compiled_with()
"""Without a cache, which needs a file: to be run wherever it is put."""
