"""Test metrics: formulas of a sample's fields, and NumPy functions of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sympy import Abs, Add, S, Symbol, lambdify

from derivations.models.bounds import growth_of
from derivations.models.functions import NUMPY_FUNCTIONS, Sign, Step, with_known_functions
from derivations.models.model import parameter_symbol
from derivations.models.scalar import formula_loss

__all__ = ["MetricFunction", "MetricSymbols", "metric_expression", "metric_function"]

Array = NDArray[np.float64]


class MetricSymbols(NamedTuple):
    """What a metric may depend on: fields, entries of the labels' noise, numbers of the clusters and of the loss."""

    student: tuple[Symbol, ...]
    teacher: tuple[Symbol, ...]
    noise: tuple[Symbol, ...]
    clusters: tuple[Symbol, ...]
    parameters: tuple[Symbol, ...]


def metric_expression(
    text: str, length: int, columns: int, teacher_rank: int, parameters: tuple[str, ...] = ()
) -> tuple[Any, MetricSymbols]:
    """A metric in symbols, read by the names of `formula_loss`; it may jump in the student's fields.

    Raises
    ------
    FormulaError
        The formula cannot be read.
    """
    h, k, noise = (
        [[Symbol(f"{letter}{a}_{c}", real=True) for c in range(count)] for a in range(length)]
        for letter, count in (("h", columns), ("k", teacher_rank), ("noise", length))
    )
    clusters = [Symbol(f"c{a}", real=True) for a in range(length)]
    model = formula_loss(text, length, columns, teacher_rank, noisy=True, parameters=parameters)
    known = model.loss(h, [[*own, *drawn, c] for own, drawn, c in zip(k, noise, clusters, strict=True)])
    student, teacher, entries = (tuple(x for row in rows for x in row) for rows in (h, k, noise))
    return with_known_functions(known), MetricSymbols(
        student, teacher, entries, tuple(clusters), tuple(map(parameter_symbol, parameters))
    )


@dataclass(frozen=True, eq=False)
class MetricFunction:
    """Metrics as a function of arrays.

    Attributes
    ----------
    function : callable
        Of every symbol's values, as a list of the metrics' values and then of the sizes of their jumps.
    noisy : bool
        Whether any metric takes the noise of the labels.
    growths : tuple of float or None
        How fast each metric grows with what is drawn, see `growth_of`.
    """

    function: Callable[..., Any]
    noisy: bool
    growths: tuple[float | None, ...]

    def __call__(self, h: Array, k: Array, noise: Array, clusters: Array, parameters: Array) -> tuple[Array, Array]:
        """The metrics of fields (L, r, N) and (L, t, N), noise (L L, N), and of numbers of clusters and loss.

        Returns
        -------
        values, jumps : (M, N) arrays
            By how much the metrics would jump if each sign and step in them had its other value.
        """
        count = h.shape[-1]
        with np.errstate(all="ignore"):  # exp may overflow on the way to a limit
            rows = self.function(*h.reshape(-1, count), *k.reshape(-1, count), *noise, *clusters, *parameters)
        every = np.stack([np.broadcast_to(np.asarray(row, dtype=float), count) for row in rows])
        return every[: len(every) // 2], every[len(every) // 2 :]


@lru_cache(maxsize=64)
def metric_function(
    texts: tuple[str, ...], length: int, columns: int, teacher_rank: int, parameters: tuple[str, ...] = ()
) -> MetricFunction:
    """The NumPy function of some metrics of one problem.

    Raises
    ------
    FormulaError
        One of them cannot be read.
    """
    read = [metric_expression(text, length, columns, teacher_rank, parameters) for text in texts]
    expressions, symbols = [expression for expression, _ in read], read[0][1]
    arguments = [x for group in symbols for x in group]
    drawn = {*symbols.student, *symbols.teacher, *symbols.noise}
    jumps = [_jump(one, drawn) for one in expressions]
    function = lambdify(arguments, [*expressions, *jumps], [NUMPY_FUNCTIONS, "numpy"], cse=True)
    noisy = any(one.has(*symbols.noise) for one in expressions)
    return MetricFunction(function, noisy, tuple(growth_of(one, drawn) for one in expressions))


def _jump(expression: Any, drawn: set[Any]) -> Any:
    """The sum over signs and steps of drawn variables of the size by which each makes the expression jump."""
    sizes = []
    for node in expression.atoms(Sign, Step):
        if node.free_symbols & drawn:
            low = -S.One if isinstance(node, Sign) else S.Zero
            sizes.append(Abs(expression.xreplace({node: S.One}) - expression.xreplace({node: low})))
    return Add(*sizes)
