"""Numba for many samples at once: no call that a processor cannot make for all its lanes.

The exponential and the logarithm are polynomials in what the exponent leaves over, so that the compiler does them in
parallel; what has no such form here (a sine) is called sample by sample.  A number is rounded by adding 3/2 2^52,
behind which a double has no digits left, and the last of its bits are the integer: not all processors turn a row of
numbers into integers.  Of two values one is chosen by an instruction and not by a branch, of which LLVM would make
stores under masks, which take some processors tens of cycles.
"""

from __future__ import annotations

from derivations.codegen.backends.numba import ELEMENTS
from derivations.codegen.modules import CONSTANTS, Backend, functions_of

__all__ = ["LANES"]

# the minimiser's constants, which lie beside the generated module
_RULES = (
    "PIVOT",
    "DECREASE",
    "ROUNDING",
    "FINITE",
    "FAR",
    "CAPTURED",
    "CLOSE",
    "GRADIENT_TOLERANCE",
    "MAX_NEWTON",
    "MAX_TRIES",
    "FIRST_SHIFT",
    "NO_SHIFT",
    "CONVEX",
    "STEEPER",
    "EASED",
    "GOES_ON",
    "CONVERGED",
    "MERGED",
    "FLED",
    "STUCK",
    "ENDLESS",
    "IRREGULAR",
)

_FUNCTIONS = """
@in_order
def exp(x):
    x = min(max(x, -700.0), 700.0)
    shifted = x * 1.4426950408889634 + 6755399441055744.0
    n = shifted - 6755399441055744.0
    r = (x - n * 0.6931471803691238) - n * 1.9082149292705877e-10
    square = r * r
    fourth = square * square
    low = (1.0 + r) + square * (0.5 + r * (1 / 6))
    middle = (1 / 24 + r * (1 / 120)) + square * (1 / 720 + r * (1 / 5040))
    high = (1 / 40320 + r * (1 / 362880)) + square * (1 / 3628800 + r * (1 / 39916800))
    p = low + fourth * (middle + fourth * (high + fourth * (1 / 479001600)))
    return p * np.int64((np.float64(shifted).view(np.int64) + np.int64(1023)) << np.int64(52)).view(np.float64)

@inlined
def log(x):
    bits = np.float64(x).view(np.int64)
    n = (bits >> np.int64(52)) - np.int64(1023)
    m = np.int64((bits & np.int64(0xFFFFFFFFFFFFF)) | np.int64(0x3FF0000000000000)).view(np.float64)
    large = m > 1.4142135623730951
    m = chosen(large, 0.5 * m, m)
    n = chosen(large, n + 1, n)
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    p = 0.0
    for i in range(21, 0, -2):
        p = p * square + 1.0 / i
    value = n * 0.6931471805599453 + 2.0 * s * p
    return chosen(x > 0.0, value, chosen(x == 0.0, -np.inf, np.nan))

@inlined
def log1p(x):
    u = 1.0 + x
    return log(u) + (x - (u - 1.0)) / u

@inlined
def tanh(x):
    small = exp(-2.0 * abs(x))
    size = (1.0 - small) / (1.0 + small)
    return chosen(x > 0.0, size, -size)

@inlined
def cosh(x):
    large = exp(abs(x))
    return 0.5 * (large + 1.0 / large)

@inlined
def sinh(x):
    large = exp(abs(x))
    size = 0.5 * (large - 1.0 / large)
    return chosen(x > 0.0, size, -size)

@inlined
def sigmoid(x):
    small = exp(-abs(x))
    size = 1.0 / (1.0 + small)
    return chosen(x > 0.0, size, small * size)
"""

LANES = Backend(
    dict.fromkeys(("cos", "sin", "sqrt", *CONSTANTS), "math")
    | dict.fromkeys(_RULES, ".constants")
    | {"compiled": ".compiled.side_by_side", "inlined": ".compiled.in_lanes", "np": "import numpy"}
    | dict.fromkeys(("chosen", "in_order"), ".compiled"),
    functions_of(_FUNCTIONS + ELEMENTS.replace("@compiled", "@inlined")),
)
