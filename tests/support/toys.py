"""Toys of the replica calculation: one token, one column, smooth losses that are not quadratic, two eigendirections.

Not public: `derivations.models.scalar` makes the losses that the chain's nodes hold.
"""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from sympy import cosh, log, tanh

from derivations.models.scalar import ScalarModel

LOG_COSH = ScalarModel("log cosh", lambda h, k: log(cosh(1.3 * h[0][0] - 0.8 * k[0][0] + 0.2)))
TANH_SQUARE = ScalarModel("tanh", lambda h, k: (tanh(0.6 * h[0][0]) - tanh(0.45 * k[0][0] + 0.3)) ** 2 / 2)
ATOMS = ((0.35, {"gamma": 0.7, "tau": 0.9, "pi": -1.2}), (0.65, {"gamma": 1.3, "tau": -0.6, "pi": 0.8}))


def richardson(function: Any, first: float, levels: int = 6) -> float:
    """Limit of a smooth function at 0 from its values at ``first / 2^j``."""
    row = [function(first / 2**j) for j in range(levels)]
    for order in range(1, levels):
        row = [b + (b - a) / (2**order - 1) for a, b in pairwise(row)]
    return row[0]


def executed(source: str) -> Any:
    """The module that a printed source is."""
    namespace: dict[str, Any] = {}
    exec(compile(source, "<printed>", "exec"), namespace)
    return SimpleNamespace(**namespace)
