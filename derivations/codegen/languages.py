"""What generated Python finds around it: the functions that its one body calls, in every language."""

from __future__ import annotations

__all__ = ["HEADS"]

_NUMPY = """\
from numpy import abs as modulus
from numpy import cos, cosh, e, exp, log, logaddexp, pi, sign, sin, sinh, sqrt, tanh
from numpy import maximum as largest
from numpy import where as chosen


def ratio(p, q):
    return p / q


def step(x):
    return (x > 0.0) * 1.0


def relu(x):
    return largest(x, 0.0)


def sigmoid(x):
    return (1.0 + tanh(x / 2.0)) / 2.0


def softplus(x):
    return logaddexp(0.0, x)
"""

_MPMATH = """\
from mpmath import cos, cosh, e, exp, log, mpf, pi, sign, sin, sinh, sqrt, tanh

largest = max
modulus = abs


def chosen(condition, yes, no):
    return yes if condition else no


def ratio(p, q):
    return mpf(p) / q


def step(x):
    return mpf(1) if x > 0 else mpf(0)


def relu(x):
    return largest(x, mpf(0))


def sigmoid(x):
    return 1 / (1 + exp(-x))


def softplus(x):
    return log(1 + exp(x))
"""

_TORCH = """\
import math
from math import e, pi

import torch
from torch import clamp as largest
from torch import relu, sigmoid, sign
from torch import where as chosen

modulus = abs


def of_numbers_too(name):
    of_tensors, of_numbers = getattr(torch, name), getattr(math, name)
    return lambda x: of_tensors(x) if isinstance(x, torch.Tensor) else of_numbers(x)


cos, cosh, exp, log, sin, sinh, sqrt, tanh = map(of_numbers_too, "cos cosh exp log sin sinh sqrt tanh".split())


def ratio(p, q):
    return p / q


def step(x):
    return (x > 0.0).to(x.dtype)


def softplus(x):
    return torch.relu(x) + torch.log1p(torch.exp(-abs(x)))
"""

HEADS = {"numpy": _NUMPY, "mpmath": _MPMATH, "torch": _TORCH}
"""Source by language: with NumPy and torch all arrays have a trailing axis of samples, or none for a single one."""
