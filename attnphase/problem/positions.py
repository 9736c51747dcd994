"""`[positions]`: the positional encodings."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from attnphase.arrays import Array
from attnphase.errors import ProblemError
from attnphase.problem.messages import toml_table
from attnphase.problem.tables import RELATIVE_TOLERANCE, check_square
from attnphase.problem.values import (
    CONFIG,
    ENTRIES,
    MAX_COLUMNS,
    MAX_LENGTH,
    Table,
    lists,
)

__all__ = ["IN_ATOMS", "Positions"]


IN_ATOMS = "spectrum"
"""The kind of encodings that the atoms of ``tokens.spectrum`` have."""


@toml_table("positions", displaces={"gram": ("kind",), "kind": ("gram",)})
@dataclass(frozen=True, config=CONFIG)
class Positions:
    """The positional encodings, known through their products p_l · p_k.

    Parameters
    ----------
    kind
        ``"opposite"``: p_1 = -p_2 = 1/√d, for two tokens. ``"gram"``: the products are ``gram``.
        ``"spectrum"``: the atoms of ``tokens.spectrum`` have them. ``"none"``: no encodings. Left
        out, it is ``"gram"`` if ``gram`` is given, ``"spectrum"`` if the atoms have them, and else
        follows the number of tokens: see `Problem`.
    gram
        Shape (L, L), symmetric and positive semidefinite: the products p_l · p_k.
    teacher
        Shape (L, t): products p_l · Q⋆_s/√d of encodings that are correlated with the teacher, 0 if
        left out.

    Raises
    ------
    ProblemError
        A value is of the wrong type, ``gram`` is not a Gram matrix, or it does not go with
        ``kind``.
    """

    kind: Annotated[
        Literal["opposite", "gram", "spectrum", "none"] | None,
        Field(description='"opposite", "gram", "spectrum" or "none"'),
    ] = None
    gram: Annotated[
        Table | None,
        Field(description=f"a square table of {ENTRIES}, the products of the encodings"),
        lists(MAX_LENGTH, MAX_LENGTH),
    ] = None
    teacher: Annotated[
        Table | None,
        Field(description=f"a table of {ENTRIES}, a row for each token and a column for each teacher column"),
        lists(MAX_LENGTH, MAX_COLUMNS),
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.gram is not None:
            if self.kind is None:
                object.__setattr__(self, "kind", "gram")
            if self.kind != "gram":
                raise ProblemError(
                    "positions.gram",
                    f'positions.gram does not go with positions.kind = "{self.kind}": set'
                    ' positions.kind = "gram", or remove positions.gram.',
                )
            _check_gram(self.gram)
        elif self.kind == "gram":
            raise ProblemError(
                "positions.gram",
                'positions.kind = "gram" needs positions.gram, the table of products p_l . p_k:'
                " give it, or choose another kind.",
            )
        return self

    @property
    def in_atoms(self) -> bool:
        """Whether the atoms of ``tokens.spectrum`` have the encodings."""
        return self.kind == IN_ATOMS

    def check_length(self, length: int) -> None:
        """Refuse encodings of another number of tokens.

        Raises
        ------
        ProblemError
            Naming the field.
        """
        if self.kind == "opposite" and length != 2:
            raise ProblemError(
                "positions.kind",
                f'positions.kind = "opposite" needs tokens.length = 2, but it is {length}: choose "gram" or "none".',
            )
        if self.gram is not None:
            check_square("positions.gram", self.gram, length)

    def products(self, length: int) -> Array:
        """Products p_l · p_k, shape (L, L), of encodings that the atoms do not have."""
        if self.gram is not None:
            gram = np.array(self.gram)
            return (gram + gram.T) / 2
        return np.array([[1.0, -1.0], [-1.0, 1.0]]) if self.kind == "opposite" else np.zeros((length, length))

    def of_length(self, length: int, *, in_atoms: bool) -> Positions:
        """The same with the kind, which nobody gave, that goes with so many tokens."""
        if in_atoms:
            return replace(self, kind=IN_ATOMS)
        if length > 2:
            return replace(self, kind="gram", gram=_simplex(length))
        return replace(self, kind="opposite" if length == 2 else "none")


def _check_gram(gram: tuple[tuple[float, ...], ...]) -> None:
    name = "positions.gram"
    check_square(name, gram, len(gram), "the number of its rows")
    matrix = np.array(gram, dtype=float).reshape(len(gram), len(gram))
    largest = np.abs(matrix).max(initial=0.0)
    if largest == 0:
        return
    matrix = matrix / largest
    if np.abs(matrix - matrix.T).max() > RELATIVE_TOLERANCE:
        row, column = np.unravel_index(np.abs(matrix - matrix.T).argmax(), matrix.shape)
        raise ProblemError(
            name,
            f"positions.gram must be symmetric, but its entries [{row}][{column}] and"
            f" [{column}][{row}] are {gram[row][column]!r} and {gram[column][row]!r}.",
        )
    eigenvalues = np.linalg.eigvalsh((matrix + matrix.T) / 2)
    if eigenvalues[0] < -RELATIVE_TOLERANCE * np.abs(eigenvalues).max():
        raise ProblemError(
            name,
            "positions.gram must be positive semidefinite, as products p_l . p_k are, but it has"
            f" the eigenvalue {eigenvalues[0] * largest:.4g}.",
        )


def _simplex(length: int) -> tuple[tuple[float, ...], ...]:
    """Products of `length` unit vectors that sum to zero and are all equally far apart."""
    apart = -1 / (length - 1)
    return tuple(tuple(1.0 if k == l else apart for k in range(length)) for l in range(length))
