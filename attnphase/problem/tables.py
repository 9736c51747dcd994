"""Tables of numbers: their shapes, and whether vectors can have them as products."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnphase.arrays import Array
from attnphase.errors import ProblemError

__all__ = ["RELATIVE_TOLERANCE", "check_square", "check_table", "gram_fault", "table_or_zeros"]

RELATIVE_TOLERANCE = 1e-9
"""How far a Gram matrix may be from symmetric and positive semidefinite, and weights from 1."""


def check_square(
    name: str, table: tuple[tuple[float, ...], ...], size: int, source: str = "tokens.length", field: str | None = None
) -> None:
    """Check that a table has as many rows and columns as `source` says.

    Raises
    ------
    ProblemError
        Naming `field`, or else `name`.
    """
    check_table(name, table, (size, size), (source, source), field)


def check_table(
    name: str,
    table: tuple[tuple[float, ...], ...],
    shape: tuple[int, int],
    sources: tuple[str, str],
    field: str | None = None,
) -> None:
    """Check a table's shape; `sources` say what sets its rows and columns.

    Raises
    ------
    ProblemError
        Naming `field`, or else `name`.
    """
    size = f"{shape[0]} by {shape[1]}"
    if len(table) != shape[0]:
        raise ProblemError(
            field or name, f"{name} has {len(table)} rows, but must be {size}: {sources[0]} is {shape[0]}."
        )
    for index, row in enumerate(table):
        if len(row) != shape[1]:
            raise ProblemError(
                field or name,
                f"{name} must be {size}, since {sources[1]} is {shape[1]}, but its row {index} has length {len(row)}.",
            )


def table_or_zeros(table: Any, shape: tuple[int, int]) -> Array:
    """A table of a shape as an array; zeros where it is left out."""
    return np.zeros(shape) if table is None else np.array(table, dtype=float).reshape(shape)


def gram_fault(gram: Array) -> str | None:
    """Say why a symmetric matrix cannot be a Gram matrix, if it cannot."""
    norms = np.sqrt(np.diag(gram))
    if np.any(gram[norms == 0]):
        return "a vector of norm 0 has none but 0"
    norms = np.where(norms == 0, 1.0, norms)
    lowest = float(np.linalg.eigvalsh(gram / norms[:, None] / norms)[0])
    if lowest >= -RELATIVE_TOLERANCE:
        return None
    return f"their Gram matrix, scaled to a unit diagonal, has the eigenvalue {lowest:.4g}"
