"""torch: the samples on a trailing axis, as in NumPy, on any device."""

from __future__ import annotations

from derivations.codegen.modules import CONSTANTS, ELEMENTARY, Backend, functions_of

__all__ = ["TORCH"]

TORCH = Backend(
    dict.fromkeys(CONSTANTS, "math") | {"math": "import math", "torch": "import torch"},
    functions_of(
        """
def of_numbers_too(name):
    of_tensors, of_numbers = getattr(torch, name), getattr(math, name)
    return lambda x: of_tensors(x) if isinstance(x, torch.Tensor) else of_numbers(x)

"""
        + "\n".join(f'{name} = of_numbers_too("{name}")' for name in ELEMENTARY)
        + """
modulus = abs
largest_of = torch.clamp

def compiled(function):
    return function

def ratio(p, q):
    return p / q

def step(x):
    return (x > 0.0).to(x.dtype)

def sign(x):
    return torch.sign(x)

def relu(x):
    return torch.relu(x)

def sigmoid(x):
    return torch.sigmoid(x)

def softplus(x):
    return torch.relu(x) + torch.log1p(torch.exp(-abs(x)))
"""
    ),
)
