"""NumPy: the reference; every array carries the samples on a trailing axis."""

from __future__ import annotations

from derivations.codegen.modules import CONSTANTS, ELEMENTARY, Backend, functions_of

__all__ = ["NUMPY"]

NUMPY = Backend(
    dict.fromkeys((*ELEMENTARY, *CONSTANTS, "logaddexp", "sign"), "numpy")
    | {"modulus": "numpy.abs", "largest_of": "numpy.maximum"},
    functions_of("""
def compiled(function):
    return function

def ratio(p, q):
    return p / q

def step(x):
    return (x > 0.0) * 1.0

def relu(x):
    return largest_of(x, 0.0)

def sigmoid(x):
    return (1.0 + tanh(x / 2.0)) / 2.0

def softplus(x):
    return logaddexp(0.0, x)
"""),
)
