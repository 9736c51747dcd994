"""The state of a block of samples: one array, a row of it holding one number of every lane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sympy import Symbol

from derivations.codegen.ir import Assign, element
from derivations.codegen.unrolled import scalar

__all__ = ["LANE", "Block"]

LANE = Symbol("n", integer=True)

_SINGLE = ("ENERGY", "LOSS", "SHIFT", "STEPS", "TRIES", "EXPECTED", "DEFINITE", "WIDEST", "DEEPEST", "EVENT")


@dataclass(frozen=True)
class Block:
    """What a block holds of every sample.

    Attributes
    ----------
    length, columns, label_fields : int
        Of the sentence, of the student, and of what a token's labels are made of: the teacher's fields, and noise.
    targets : tuple
        The entries of the target that the loss reads, as names.
    lanes : int
        Samples side by side: the length of a row of the state, which is known to the compiler, so that it sees that
        rows do not overlap.
    weights : tuple
        The entries of the loss's weights, the diagonal of D or a Gram matrix, that it reads, as their indices.
    own : bool
        Whether every sample has its own weights, and its own Cholesky factors of V.
    parameters : tuple of int
        Places of the numbers that the loss reads.
    scratch : mapping
        Quantities that the loops of a trial hand on, with their numbers of rows.
    """

    length: int
    columns: int
    label_fields: int
    targets: tuple[Any, ...]
    lanes: int
    weights: tuple[tuple[int, ...], ...]
    own: bool
    parameters: tuple[int, ...] = (0, 1, 2)
    scratch: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def size(self) -> int:
        """Fields of a sample."""
        return self.length * self.columns

    @property
    def triangle(self) -> list[tuple[int, int]]:
        """Entries of a symmetric matrix."""
        return [(i, j) for i in range(self.size) for j in range(i + 1)]

    def rows(self) -> dict[str, int]:
        """The first row of every quantity, and their number."""
        widths = {
            "CENTER": self.size,
            "TARGET": len(self.targets),
            "POINT": self.size,
            "GRADIENT": self.size,
            "SLOPE": self.size,
            "CURVATURE": len(self.triangle),
            "STEP": self.size,
            "BEST": self.size,
            "OTHER": self.size,
            **dict.fromkeys(_SINGLE, 1),
            **({"FACTOR": self.size * self.columns, "VARIANCE": self.length**2} if self.own else {}),
            **self.scratch,
        }
        rows, first = {}, 0
        for quantity, width in widths.items():
            rows[quantity] = first
            first += width
        return rows | {"ROWS": first}

    def place(self, quantity: str, number: Any = 0) -> Any:
        """Where a row of the state begins."""
        return (self.rows()[quantity] + number) * self.lanes

    def row(self, quantity: str, number: Any = 0) -> Any:
        """A lane's number in a row of the state."""
        return element("state", LANE + self.place(quantity, number))

    def row_of(self, array: str, number: Any) -> Any:
        """A lane's number in a row of another array."""
        return element(array, LANE + number * self.lanes)

    def weights_of_lane(self) -> list[Assign]:
        """The weights of the loss, where every sample has its own."""
        numbers = {entry: entry[-1] + self.length * sum(entry[:-1]) for entry in self.weights if self.own}
        return [Assign(scalar("variance", *entry), self.row("VARIANCE", number)) for entry, number in numbers.items()]

    def weights_of_all(self) -> list[Assign]:
        """The weights of the loss, as an array has them."""
        return [Assign(scalar("variance", *entry), element("variance", *entry)) for entry in self.weights]

    def parameters_of_all(self) -> list[Assign]:
        """The numbers that the loss reads."""
        return [Assign(scalar("parameters", i), element("parameters", i)) for i in self.parameters]

    def fields_of(self, array: str, names: str, columns: int) -> list[Assign]:
        """The fields of a lane, read from the rows of an array."""
        return [
            Assign(scalar(names, a, i), self.row_of(array, a * columns + i))
            for a in range(self.length)
            for i in range(columns)
        ]
