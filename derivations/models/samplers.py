"""Samplers: formulas that make the teacher's fields of a sample of Gaussian ones, and NumPy functions of these."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Tuple, lambdify

from derivations.models.formulas import FormulaError
from derivations.models.functions import KINKED, NUMPY_FUNCTIONS
from derivations.models.metrics import MetricSymbols
from derivations.models.model import parameter_symbol
from derivations.models.scalar import Sizes, read_fields

__all__ = ["is_smooth", "sampler_expressions", "sampler_function"]

Array = NDArray[np.float64]


@lru_cache(maxsize=64)
def sampler_expressions(text: str, sizes: Sizes, parameters: tuple[str, ...] = ()) -> tuple[Tuple, MetricSymbols]:
    """The fields (L, t) of a sampler in symbols, token by token, read by the names of a metric.

    Raises
    ------
    FormulaError
        The formula cannot be read, or its value is not of this shape.
    """
    fields = sizes.symbols()
    shape = sizes.length, sizes.teacher_rank
    value = np.array(read_fields(text, fields, parameters, shaped=True), dtype=object)
    if value.shape != shape and not value.size == np.prod(shape) == 1:
        what = f"an array of shape {value.shape}" if value.ndim else "one number"
        raise FormulaError(f"its value is {what} instead of an array of shape {shape}, as k + k**3 is.")
    h, k, noise, c = (tuple(one.flat) for one in fields)
    return Tuple(*value.flat), MetricSymbols(h, k, noise, c, tuple(map(parameter_symbol, parameters)))


def is_smooth(text: str, sizes: Sizes, parameters: tuple[str, ...] = ()) -> bool:
    """Whether a sampler jumps and bends nowhere as the Gaussian fields vary."""
    value, held = sampler_expressions(text, sizes, parameters)
    return not any(node.free_symbols & {*held.teacher} for node in value.atoms(*KINKED))


@lru_cache(maxsize=64)
def sampler_function(
    text: str, sizes: Sizes, parameters: tuple[str, ...] = ()
) -> Callable[[Array, Array, Array], Array]:
    """The NumPy function of a sampler: fields (N, L, t) of Gaussian ones, of numbers of clusters, and of parameters."""
    value, held = sampler_expressions(text, sizes, parameters)
    arguments = [*held.teacher, *held.clusters, *held.parameters]
    compiled: Callable[..., Any] = lambdify(arguments, [*value], [NUMPY_FUNCTIONS, "numpy"], cse=True)

    def function(k: Array, clusters: Array, numbers: Array) -> Array:
        with np.errstate(all="ignore"):  # exp may overflow on the way to a limit
            entries = compiled(*k.reshape(len(k), -1).T, *clusters, *numbers)
        found = np.empty((len(k), len(entries)))
        for place, entry in enumerate(entries):
            found[:, place] = entry
        return found.reshape(k.shape)

    return function
