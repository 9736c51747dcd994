"""mpmath: any number of digits, one sample at a time."""

from __future__ import annotations

from derivations.codegen.modules import CONSTANTS, ELEMENTARY, Backend, functions_of

__all__ = ["MPMATH"]

MPMATH = Backend(
    dict.fromkeys((*ELEMENTARY, *CONSTANTS, "mpf", "sign"), "mpmath"),
    functions_of("""
largest_of = max
modulus = abs

def compiled(function):
    return function

def ratio(p, q):
    return mpf(p) / q

def step(x):
    return mpf(1) if x > 0 else mpf(0)

def relu(x):
    return largest_of(x, mpf(0))

def sigmoid(x):
    return 1 / (1 + exp(-x))

def softplus(x):
    return log(1 + exp(x))
"""),
)
